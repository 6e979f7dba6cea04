package iwarp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/golden"
	. "github.com/vrnic/vrnic/iwarp"
)

// A liberal host takes everything: it stands for an RNIC whose memory the recording fits.
type liberal struct{ log []string }

func sum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }

func (l *liberal) note(format string, args ...any) {
	l.log = append(l.log, fmt.Sprintf(format, args...))
}
func (l *liberal) PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error {
	l.note("write %#08x+%#x %d octets %08x last=%t", uint32(stag), to, len(chunk), sum(chunk), last)
	return nil
}
func (l *liberal) BeginReceive() (uint32, bool) { return 1 << 20, true }
func (l *liberal) PlaceReceive(off uint32, chunk []byte) error {
	l.note("receive +%d %d octets %08x", off, len(chunk), sum(chunk))
	return nil
}
func (l *liberal) EndReceive(r Received) error {
	l.note("received %d octets se=%t inv=%t %#08x", r.Length, r.Solicited, r.Invalidate,
		uint32(r.STag))
	return nil
}
func (l *liberal) PlaceRead(off uint32, chunk []byte) error {
	l.note("read +%d %d octets %08x", off, len(chunk), sum(chunk))
	return nil
}
func (l *liberal) EndRead(token uint64) error { l.note("read %d done", token); return nil }
func (l *liberal) ReadSource(stag STag, to uint64, n uint32) (Payload, error) {
	l.note("asked for %d octets of %#08x+%#x", n, uint32(stag), to)
	return zeroes{}, nil
}
func (l *liberal) EndReadSource(Payload)         {}
func (l *liberal) Atomic(Atomic) (uint64, error) { return 0, errors.New("siw has no atomics") }
func (l *liberal) EndAtomic(token, old uint64) error {
	l.note("atomic %d done, %#x", token, old)
	return nil
}
func (l *liberal) Sent(uint64) {}

type zeroes struct{}

func (zeroes) CopyOut(p []byte, _ uint32) error { clear(p); return nil }

// A replayer feeds what one end of a recorded connection sent to an Endpoint in the other's place.
type replayer struct {
	name  string
	data  []byte // what comes in, behind the start frame
	fed   int
	own   []byte // what the place's real owner sent, behind the start frame
	ownAt int
	reads uint64
	e     *Endpoint
	h     *liberal
}

// follow posts the Reads whose requests the real owner has sent by now.
func (r *replayer) follow(n int) {
	for r.ownAt+2 <= n {
		ulpdu := int(binary.BigEndian.Uint16(r.own[r.ownAt:]))
		end := r.ownAt + FPDULen(ulpdu)
		if end > n {
			return
		}
		seg := r.own[r.ownAt+2:][:ulpdu]
		r.ownAt = end
		if h, body, err := ParseUntagged(seg); err == nil && h.RDMAP().Opcode() == OpReadRequest &&
			!h.DDP().Tagged() {
			q, _ := ParseReadRequest(body)
			r.reads++
			if err := r.e.PostRead(r.reads, q.SinkSTag(), q.SinkTO(), q.Size(), q.SrcSTag(),
				q.SrcTO()); err != nil {
				r.h.note("cannot post: %v", err)
			}
		}
		drain(r.e)
	}
}

// feed passes on what has come by n octets, in the pieces of the recording or octet by octet.
func (r *replayer) feed(n, cut int) {
	for r.fed < n {
		end := min(r.fed+cut, n)
		k, err := r.e.Write(r.data[r.fed:end])
		if err != nil {
			r.h.note("stopped: %v", err)
			return
		}
		r.fed += k
	}
	drain(r.e)
}

// replay puts an Endpoint in the place of each end and lets the recording happen to them.
func replay(t *testing.T, c *conversation, cut int) string {
	t.Helper()
	req, reqLen, err := ParseStartFrame(c.client.data)
	if err != nil {
		t.Fatal(err)
	}
	rep, repLen, err := ParseStartFrame(c.server.data)
	if err != nil {
		return fmt.Sprintf("%v\nno Reply: %v\n", req, err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%v\n%v\n", req, rep)
	if rep.Rejected {
		return out.String()
	}
	p := Params{Revision: 2, CRC: req.CRC || rep.CRC, IRD: 128, ORD: 128}
	hs, hc := &liberal{}, &liberal{}
	server := &replayer{name: "server", data: c.client.data[reqLen:], own: c.server.data[repLen:],
		h: hs, e: NewEndpoint(p, hs, Config{})}
	p.Initiator = true
	client := &replayer{name: "client", data: c.server.data[repLen:], own: c.client.data[reqLen:],
		h: hc, e: NewEndpoint(p, hc, Config{})}
	for _, a := range c.arrivals {
		to, from, skip := server, client, reqLen
		if a.f == c.server {
			to, from, skip = client, server, repLen
		}
		if n := a.n - skip; n > 0 {
			from.follow(n)
			to.feed(n, cut)
		}
	}
	for _, r := range []*replayer{server, client} {
		fmt.Fprintf(&out, "%s:\n", r.name)
		for _, s := range r.h.log {
			fmt.Fprintf(&out, "  %s\n", s)
		}
		fmt.Fprintf(&out, "  end: %v\n", r.e.Err())
		if tm, sent, ok := r.e.Terminate(); ok && !sent {
			fmt.Fprintf(&out, "  %v\n", tm)
		}
		var le *LocalError
		if errors.As(r.e.Err(), &le) || r.e.Stats().CRCErrors > 0 {
			t.Errorf("%s: the recording is refused: %v", r.name, r.e.Err())
		}
		if r.fed != len(r.data) || r.e.Err() == nil && r.e.InMessage() {
			t.Errorf("%s: %d of %d octets taken, in a message: %t", r.name, r.fed, len(r.data),
				r.e.InMessage())
		}
	}
	return out.String()
}

// Recordings of Linux 6.1 siw, both ends: what the Endpoint makes of them is in testdata/*.txt.
// RDMAP-126, A28, S1, S2, S12, S13.
func TestGoldenCaptures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			convs, err := readPcap(name)
			if err != nil || len(convs) == 0 {
				t.Fatalf("%d connections, %v", len(convs), err)
			}
			var out strings.Builder
			for i, c := range convs {
				got := replay(t, c, 1<<20)
				if octets := replay(t, c, 1); octets != got {
					t.Errorf("octet by octet:\n%s\nin pieces:\n%s", octets, got)
				}
				fmt.Fprintf(&out, "connection %d\n%s", i+1, got)
				for _, f := range []*flow{c.client, c.server} {
					req, _, _ := ParseStartFrame(c.client.data)
					rep, _, _ := ParseStartFrame(c.server.data)
					for _, line := range DescribeStream(f.data, req.CRC || rep.CRC, 0) {
						if strings.Contains(line, "BAD") || strings.Contains(line, "malformed") ||
							strings.Contains(line, "cut") {
							t.Errorf("%s", line)
						}
						fmt.Fprintf(&out, "    %s\n", line)
					}
				}
			}
			golden.Check(t, strings.TrimSuffix(name, ".pcap")+".txt", out.String())
		})
	}
}

// The start-up machines come through the recorded exchanges.
func TestGoldenStart(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.pcap")
	for _, name := range files {
		convs, err := readPcap(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range convs {
			_, n, err := ParseStartFrame(c.client.data)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := NewResponder(DefaultStartConfig())
			s.Write(c.client.data[:n])
			if _, ok := s.Request(); !ok {
				t.Errorf("%s: siw's Request is refused: %v", name, s.Err())
			}
			rep, n, err := ParseStartFrame(c.server.data)
			if err != nil || !rep.Enhanced || rep.Rejected {
				continue
			}
			cfg := DefaultStartConfig()
			cfg.ClientServer = !rep.Data.PeerToPeer
			in, _ := NewInitiator(cfg, nil)
			k, _ := in.Write(c.server.data)
			if p, err := in.Result(); err != nil || k != n {
				t.Errorf("%s: siw's Reply: took %d of %d, %v, %v", name, k, n, p, err)
			}
		}
	}
}
