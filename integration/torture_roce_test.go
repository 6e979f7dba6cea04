package integration

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/roce"
)

// roceTarget is a daemon with a device of RoCE at an address of the host, and an Opener of links
// from the next one.
func roceTarget(t *testing.T) (d *daemon, target torture.Target, open roce.Opener) {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, byte(100 + rand.IntN(100)), byte(rand.IntN(256)), 2})
	d = up(t, nil, "--device", "roce0,transport=roce,host="+host.String())
	peer := roce.Host(host.Next())
	return d, torture.Target{Addr: netip.AddrPortFrom(host, 7174), Timeout: patience,
			Settle: 10 * time.Millisecond}, func(remote netip.Addr) (rawroce.Link, netip.Addr, error) {
			// A process that another test starts has the socket of the case before, until it executes its
			// program; so long the port is in use.
			syscall.ForkLock.RLock()
			defer syscall.ForkLock.RUnlock()
			return peer(remote)
		}
}

// A slow link is that of a busy machine: what comes is late.
type slow struct{ rawroce.Link }

func (s slow) Receive(by time.Time) ([]byte, error) {
	const late = 30 * time.Millisecond
	b, err := s.Link.Receive(by.Add(-late))
	time.Sleep(late)
	return b, err
}

// A daemon passes what vrnic torture has of RoCE, and nothing of it is left behind. Cases where an
// answer may come or none pass, too, where it comes later than target.Settle.
func TestTortureRoCE(t *testing.T) {
	t.Parallel()
	d, target, open := roceTarget(t)
	server := d.serve("-a", target.Addr.Addr().String(), "-P")
	passes(t, target, roce.Suite(open))
	s := roce.Suite(func(remote netip.Addr) (rawroce.Link, netip.Addr, error) {
		l, own, err := open(remote)
		return slow{l}, own, err
	})
	s.Cases = torture.Select(s.Cases, []string{"a Write again", "before the first", "with padding",
		"octets behind", "nobody asked for"})
	passes(t, target, s)
	server.interrupt()
	d.stop()
}

// A spoiled link changes what comes from an endpoint.
type spoiled struct {
	rawroce.Link
	change func(q rawroce.Packet, b []byte) [][]byte
	left   [][]byte
}

func (s *spoiled) Receive(by time.Time) ([]byte, error) {
	for len(s.left) == 0 {
		b, err := s.Link.Receive(by)
		if err != nil {
			return nil, err
		}
		q, err := rawroce.Read(b)
		if err != nil {
			return nil, err
		}
		s.left = s.change(q, b)
	}
	b := s.left[0]
	s.left = s.left[1:]
	return b, nil
}

// An endpoint that answers in another way, not at all, twice or where nothing is due does not pass,
// nor one that is down.
func TestTortureRoCEFinds(t *testing.T) {
	t.Parallel()
	d, target, open := roceTarget(t)
	server := d.serve("-a", target.Addr.Addr().String(), "-P")
	target.Timeout = 3 * time.Second
	syndrome := func(b []byte) *byte { return &b[rawroce.HeadLen(b)+8+12] }
	ack := func(q rawroce.Packet) bool { return q.Opcode == rawroce.Ack && q.Syndrome() < 0x20 }
	nak := func(q rawroce.Packet) bool { return q.Opcode == rawroce.Ack && q.Syndrome() >= 0x60 }
	fixed := func(b []byte) [][]byte { rawroce.FixICRC(b); return [][]byte{b} }
	gone := false
	for _, tt := range []struct {
		what, only string
		change     func(q rawroce.Packet, b []byte) [][]byte
		want       torture.Status
		words      string
	}{
		{"another NAK", "request/Send Middle", func(q rawroce.Packet, b []byte) [][]byte {
			if nak(q) {
				*syndrome(b) = 0x62
			}
			return fixed(b)
		}, torture.Differs, "NAK 0x62"},
		{"an ACK for a NAK", "request/Send Middle", func(q rawroce.Packet, b []byte) [][]byte {
			if nak(q) {
				*syndrome(b) = 0x1f
			}
			return fixed(b)
		}, torture.Fail, "it was taken"},
		{"an ACK for a NAK, where nothing will do", "request/Send First with padding",
			func(q rawroce.Packet, b []byte) [][]byte {
				if nak(q) {
					*syndrome(b) = 0x1f
				}
				return fixed(b)
			}, torture.Fail, "it was taken"},
		{"no NAK", "psn/1 ahead", func(q rawroce.Packet, b []byte) [][]byte {
			if nak(q) {
				return nil
			}
			return [][]byte{b}
		}, torture.Fail, "no NAK of a gap"},
		{"a wrong MSN", "packet/version 15", func(q rawroce.Packet, b []byte) [][]byte {
			if ack(q) {
				b[rawroce.HeadLen(b)+8+15] ^= 4
			}
			return fixed(b)
		}, torture.Down, "MSN"},
		{"an ACK twice", "no AckReq", func(q rawroce.Packet, b []byte) [][]byte {
			if ack(q) {
				return [][]byte{b, b}
			}
			return [][]byte{b}
		}, torture.Fail, "not an ACK of PSN"},
		{"a wrong ICRC", "psn/a Read again", func(q rawroce.Packet, b []byte) [][]byte {
			if q.Opcode == rawroce.ReadOnly {
				b[len(b)-1] ^= 1
			}
			return [][]byte{b}
		}, torture.Fail, "wrong ICRC"},
		{"a REP for a REJ", "a service of no kind", func(q rawroce.Packet, b []byte) [][]byte {
			if m := rawroce.MAD(q.Payload); q.QPN == 1 && m.Attr() == rawroce.AttrREJ {
				m[17] = rawroce.AttrREP
			}
			return fixed(b)
		}, torture.Fail, "it was taken: a REP came"},
		{"another reason", "a service of no kind", func(q rawroce.Packet, b []byte) [][]byte {
			if m := rawroce.MAD(q.Payload); q.QPN == 1 && m.Attr() == rawroce.AttrREJ {
				m.Set(10, 2, 28)
			}
			return fixed(b)
		}, torture.Differs, "reason 28"},
		{"it is down", "psn/1 ahead", func(q rawroce.Packet, b []byte) [][]byte {
			gone = gone || nak(q)
			if gone {
				return nil
			}
			return [][]byte{b}
		}, torture.Down, "no connection comes up"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			first := true
			s := roce.Suite(func(remote netip.Addr) (rawroce.Link, netip.Addr, error) {
				l, own, err := open(remote)
				change := tt.change
				if first { // the connection that is in order
					change = func(_ rawroce.Packet, b []byte) [][]byte { return [][]byte{b} }
				}
				first = false
				return &spoiled{Link: l, change: change}, own, err
			})
			s.Cases = torture.Select(s.Cases, []string{tt.only})
			var r torture.Report
			if err := torture.Run(t.Context(), target, s, r.Add); err != nil {
				t.Fatal(err)
			}
			if x := r.Results[0]; x.Status != tt.want ||
				!strings.Contains(x.Detail, tt.words) {
				t.Errorf("%+v", x)
			}
		})
	}
	server.interrupt()
	d.stop()
}
