package stacknet_test

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// devices makes one on a stack at each switch.
func devices(t *testing.T, sw []*ethswitch.Switch, times vnic.Timeouts) (cs []*vnic.Context) {
	t.Helper()
	for i := range sw {
		st := netstacktest.NewStack(t, sw[i], i+1, 1500)
		net := stacknet.New(st)
		t.Cleanup(func() { net.Close() })
		d, err := vnic.New(vnic.Config{
			Name: st.Name(), MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(), Network: net, Timeouts: times,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		cs = append(cs, vnictest.Open(t, d, vnic.ContextConfig{}))
	}
	return cs
}

// A connect that comes to nothing since segments are lost says what has happened, and not that the
// peer's program has rejected it: that was the case of a Request that came too late, for which the
// listener resets the connection. Which segments are lost is exact; what times they meet are of the
// host's clock, and far from each other.
func TestConnectOverBadPath(t *testing.T) {
	const port = 7471
	toPort := func(match func(flags byte, data int) bool) func(flags byte, data int, to uint16) bool {
		return func(flags byte, data int, to uint16) bool { return to == port && match(flags, data) }
	}
	for _, tt := range []struct {
		name  string
		lost  func(flags byte, data int, to uint16) bool
		times vnic.Timeouts
		port  uint16
		want  syscall.Errno
	}{
		{"each SYN is lost", toPort(func(flags byte, data int) bool { return flags == syn }),
			vnic.Timeouts{Connect: 100 * time.Millisecond}, port, syscall.ETIMEDOUT},
		{"each Request is lost", toPort(func(flags byte, data int) bool { return data > 0 }),
			vnic.Timeouts{MPARequest: 100 * time.Millisecond}, port, syscall.ECONNRESET},
		{"each Reply is lost", func(flags byte, data int, to uint16) bool {
			return to != port && data > 0
		},
			vnic.Timeouts{MPAReply: 100 * time.Millisecond}, port, syscall.ETIMEDOUT},
		{"nobody listens", toPort(func(flags byte, data int) bool { return false }),
			vnic.Timeouts{}, port + 1, syscall.ECONNREFUSED},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sw := []*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
			porttest.Bend(t, sw[0], sw[1], func(b []byte, deliver func()) {
				if flags, data, _, to, ok := segmentOf(b); !ok || !tt.lost(flags, data, to) {
					deliver()
				}
			})
			cs := devices(t, sw, tt.times)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			addr := cs[1].Attr().Addrs[0].Addr()
			l, err := cs[1].Listen(netip.AddrPortFrom(addr, port), 10)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if r, err := l.Next(ctx); err == nil {
					y := vnictest.NewPeer(t, cs[1], vnictest.PeerConfig{})
					_, _ = r.Accept(ctx, y.QP, rdma.ConnParam{})
				}
			}()
			x := vnictest.NewPeer(t, cs[0], vnictest.PeerConfig{})
			x.Recv(1, 0, 10)
			_, err = cs[0].Connect(ctx, x.QP, netip.AddrPortFrom(addr, tt.port), rdma.ConnParam{})
			var rejected *rdma.RejectedError
			if !errors.Is(err, tt.want) || errors.As(err, &rejected) {
				t.Errorf("connect: %v, want %v", err, tt.want)
			}
			x.WantRecv("flushed", vnictest.Want{ID: 1, Status: rdma.WCFlush})
			x.WantState("afterwards", rdma.QPError)
		})
	}
}
