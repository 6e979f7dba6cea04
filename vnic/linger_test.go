package vnic_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A promptNet has the streams that it dials dealt with by who calls prompt.
type promptNet struct {
	vnic.Network
	prompt func(more func() bool)
}

func (n *promptNet) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (
	iwarp.Stream, error) {
	s, err := n.Network.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return promptOf{s, n}, nil
}

type promptOf struct {
	iwarp.Stream
	n *promptNet
}

func (s promptOf) SetPrompt(f func(more func() bool)) {
	s.Stream.SetNotify(nil)
	s.n.prompt = f
}

// A lingerer notes what is asked of it.
type lingerer struct {
	lingers bool
	waits   func() bool // the message is not there yet
	did     string
}

func (l *lingerer) Expect() bool {
	if l.waits() {
		l.did += "expects, "
	}
	return l.lingers
}

func (l *lingerer) Linger(more func() bool) {
	if !l.waits() && more() {
		l.did += "lingers "
	}
}

// Who brings octets says so before the QP deals with them, each time, and lingers afterwards if
// that is wanted.
func TestLinger(t *testing.T) {
	for _, lingers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := &promptNet{}
			a, b := vnictest.Pair(t, func(c *vnic.Config) {
				if c.Name == "vnic0" {
					n.Network = c.Network
					c.Network = n
				}
			})
			l := &lingerer{lingers: lingers}
			cfg := vnictest.PeerConfig{Linger: l}
			x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), cfg)
			y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
			vnictest.Connect(t, x, y)
			for i := range uint64(3) {
				x.Recv(i, 0, 64)
				y.Send(i, 0, 64)
				y.Next(y.SendCQ, 1) // it is in x's stream
				synctest.Wait()     // x's goroutine has done what it had to do
				var wc [1]rdma.WC
				l.waits = func() bool { n, _ := x.RecvCQ.Poll(wc[:]); return n == 0 }
				n.prompt(func() bool { return true })
				want := "expects, "
				if lingers {
					want += "lingers "
				}
				if l.did != want {
					t.Errorf("message %d: it %s, want %s", i, l.did, want)
				}
				l.did = ""
				if !lingers {
					x.Next(x.RecvCQ, 1)
				}
			}
			// Who seems to have more to bring at once does not linger.
			x.Recv(3, 0, 64)
			y.Send(3, 0, 64)
			y.Next(y.SendCQ, 1)
			synctest.Wait()
			l.waits = func() bool { t.Error("it lingers"); return false }
			n.prompt(nil)
			x.Next(x.RecvCQ, 1)
		})
	}
}
