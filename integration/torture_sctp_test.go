package integration

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/sctp"
)

// A spoiledSCTP changes what comes from an endpoint.
type spoiledSCTP struct {
	rawsctp.Link
	change func(b []byte) // nil: none
}

func (s *spoiledSCTP) Read(b []byte) (int, error) {
	n, err := s.Link.Read(b)
	if err == nil && s.change != nil && n >= 16 {
		s.change(b[:n])
		rawsctp.Seal(b[:n])
	}
	return n, err
}

// A daemon passes what vrnic torture has of SCTP, and nothing of it is left behind. An endpoint
// whose answers are others does not pass, nor one that is not there.
func TestTortureSCTP(t *testing.T) {
	t.Parallel()
	host := netip.AddrFrom4([4]byte{127, byte(100 + rand.IntN(100)), byte(rand.IntN(256)), 2})
	d := up(t, nil, "--device", "vrnic0,host="+host.String())
	server := d.serve("-a", host.String(), "-P")
	target := torture.Target{Addr: netip.AddrPortFrom(host, 7174), Timeout: patience}
	passes(t, target, sctp.Suite(sctp.Host(rawsctp.EncapsulationPort)))

	// The first chunk of what comes is one of type typ: it becomes what change makes of it.
	first := func(typ byte, change func(c []byte)) func(b []byte) {
		return func(b []byte) {
			if b[12] == typ {
				change(b[12:])
			}
		}
	}
	for _, tt := range []struct {
		what, only string
		change     func(b []byte)
		want       torture.Status
		words      string
	}{
		{"another cause", "init/a host name", first(rawsctp.Abort, func(c []byte) {
			binary.BigEndian.PutUint16(c[4:], 2)
		}), torture.Differs, "an ABORT for [2]"},
		{"an INIT ACK for an ABORT", "init/no streams in", first(rawsctp.Abort, func(c []byte) {
			c[0] = rawsctp.InitAck
		}), torture.Fail, "where an ABORT is due"},
		{"another tag", "init/DATA of no association", func(b []byte) { b[7] ^= 1 }, torture.Fail,
			"an ABORT with tag"},
		{"more streams", "init/streams", first(rawsctp.InitAck, func(c []byte) { c[13] = 9 }),
			torture.Fail, "9 streams out"},
		{"no indication", "session/a Terminate", first(rawsctp.InitAck, func(c []byte) {
			for i := range c[:len(c)-7] {
				if c[i] == 0xc0 && c[i+1] == 6 && c[i+3] == 8 {
					c[i+1] = 7
				}
			}
		}), torture.Skip, "does not say that it speaks DDP"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			calm := true // the connection that is in order
			s := sctp.Suite(func(ctx context.Context, x torture.Target) (*rawsctp.Peer, error) {
				l, err := rawsctp.DialUDP(ctx, x.Addr.Addr(), rawsctp.EncapsulationPort)
				change := tt.change
				if calm {
					change = nil
				}
				calm = false
				return rawsctp.New(&spoiledSCTP{l, change}, x.Addr.Port()), err
			})
			s.Cases = torture.Select(s.Cases, []string{tt.only})
			var r torture.Report
			if err := torture.Run(t.Context(), target, s, r.Add); err != nil {
				t.Fatal(err)
			}
			if x := r.Results[0]; x.Status != tt.want || !strings.Contains(x.Detail, tt.words) {
				t.Errorf("%+v", x)
			}
		})
	}
	server.interrupt()
	err := torture.Run(t.Context(), target, sctp.Suite(sctp.Host(rawsctp.EncapsulationPort)),
		func(x torture.Result) { t.Errorf("nobody there: %+v", x) })
	if err == nil || !strings.Contains(err.Error(), "does not take a connection") {
		t.Errorf("nobody there: %v", err)
	}
	d.stop()
}
