package vnic_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A QP that goes without a word leaves a stream which both ends know to be free, or not: the next
// connection over the association does not wait for an answer on one that only one end has given
// up. SDDP-052.
func TestSCTPStreamAfterAbruptEnd(t *testing.T) {
	for _, end := range []string{"that connected", "that accepted"} {
		t.Run(end, func(t *testing.T) {
			sctpNet(t, vnictest.SCTPLink{Streams: 8}, func(t *testing.T, e *env) {
				l := e.server()
				e.join(l, rdma.ConnParam{}) // keeps the association
				for range 10 {
					x, y := e.join(l, rdma.ConnParam{})
					if end == "that connected" {
						x.QP.Close()
						y.WantDone("the peer has gone")
						y.QP.Close()
					} else {
						y.QP.Close()
						x.WantDone("the peer has gone")
						x.QP.Close()
					}
					synctest.Wait()
				}
				if n := len(e.net.Assocs()) / 2; n != 1 {
					t.Errorf("%d associations, and never more than two QPs", n)
				}
			})
		})
	}
}

// A listener that takes the place of one that was closed gets the requests of associations that the
// first one took.
func TestSCTPListenAgain(t *testing.T) {
	sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
		l := e.server()
		x, y := e.join(l, rdma.ConnParam{})
		l.Close()
		synctest.Wait()
		e.join(e.server(), rdma.ConnParam{})
		if n := len(e.net.Assocs()) / 2; n != 1 {
			t.Errorf("%d associations", n)
		}
		x.Write(1, 0, 10, y, 0)
		x.WantSend("its neighbour goes on", is(1, ok))
	})
}

// A connection that is asked for while the peer shuts the association down, for want of streams,
// gets another one; likewise when this end is told of that by the first message that is not taken.
func TestSCTPConnectDuringShutdown(t *testing.T) {
	for name, prepare := range map[string]func(e *env){
		"asked":  func(e *env) { e.net.Assocs()[0].Hold(true) },
		"asking": func(e *env) { e.net.Assocs()[0].Shutdown() },
	} {
		t.Run(name, func(t *testing.T) {
			sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
				l := e.server()
				x, y := e.join(l, rdma.ConnParam{})
				x.Conn.Disconnect()
				x.WantDone("disconnected")
				y.WantDone("disconnected")
				synctest.Wait()
				prepare(e)
				e.join(l, rdma.ConnParam{})
				if n := len(e.net.Assocs()) / 2; n != 2 {
					t.Errorf("%d associations, want another one", n)
				}
			})
		})
	}
}

// A connection that waits for the association which another one is setting up does not fail with
// that one's user.
func TestSCTPDialGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		e := &env{t: t, net: n, sctp: true}
		slow := &slowSCTP{gate: make(chan struct{})}
		e.a = vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
			slow.Network, slow.SCTPNetwork = c.Network, c.Network.(vnic.SCTPNetwork)
			c.Network = slow
		}), vnic.ContextConfig{})
		e.b = vnictest.Open(t, n.Device(t, "vnic1", []string{"10.0.0.2/24"}), vnic.ContextConfig{})
		l := e.server()
		first, giveUp := context.WithCancel(t.Context())
		done := make(chan error, 1)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		go func() {
			_, err := x.Ctx.Connect(first, x.QP, l.Addr(), rdma.ConnParam{SCTP: true})
			done <- err
		}()
		synctest.Wait()
		go func() {
			synctest.Wait()
			giveUp()
			<-done
			close(slow.gate)
		}()
		e.join(l, rdma.ConnParam{})
	})
}

// An association that is over as soon as it is there is not tried again and again.
func TestSCTPShortLived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		e := &env{t: t, net: n, sctp: true}
		short := &shortSCTP{}
		e.a = vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
			short.Network, short.SCTPNetwork = c.Network, c.Network.(vnic.SCTPNetwork)
			c.Network = short
		}), vnic.ContextConfig{})
		e.b = vnictest.Open(t, n.Device(t, "vnic1", []string{"10.0.0.2/24"}), vnic.ContextConfig{})
		l := e.server()
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		_, err := x.Ctx.Connect(t.Context(), x.QP, l.Addr(), rdma.ConnParam{SCTP: true})
		if !errors.Is(err, sctpddp.ErrDown) {
			t.Errorf("connect: %v", err)
		}
		if short.dials != 1 {
			t.Errorf("%d associations were set up for one connection", short.dials)
		}
	})
}

// shortSCTP has associations that are aborted before DialSCTP has returned.
type shortSCTP struct {
	vnic.Network
	vnic.SCTPNetwork
	dials int
}

func (s *shortSCTP) DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort,
	use vnic.SCTPUse, h vnic.AssociationHandler) (vnic.Association, error) {
	s.dials++
	a, err := s.SCTPNetwork.DialSCTP(ctx, local, remote, use, h)
	if err == nil {
		a.Abort("at once")
	}
	return a, err
}

// slowSCTP sets no association up before its gate is open.
type slowSCTP struct {
	vnic.Network
	vnic.SCTPNetwork
	gate chan struct{}
}

func (s *slowSCTP) DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort,
	use vnic.SCTPUse, h vnic.AssociationHandler) (vnic.Association, error) {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.SCTPNetwork.DialSCTP(ctx, local, remote, use, h)
}

// Connections that come and go, gracefully or not, on an association with one stream for them, use
// that stream again and again: with owners that are at work at the same time, nothing is lost
// between them.
func TestSCTPStreamTurns(t *testing.T) {
	const turns = 200
	n := vnictest.NewNet()
	n.SCTP = vnictest.SCTPLink{Streams: 2}
	e := &env{t: t, net: n, sctp: true}
	e.a = vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
	e.b = vnictest.Open(t, n.Device(t, "vnic1", []string{"10.0.0.2/24"}), vnic.ContextConfig{})
	l := e.server()
	var ends sync.WaitGroup
	defer ends.Wait()
	for i := range turns {
		x, y := e.join(l, rdma.ConnParam{})
		if i%2 == 0 {
			x.Conn.Disconnect()
			x.WantDone("disconnected")
		}
		ends.Go(func() { y.QP.Close() })
		x.QP.Close()
	}
	// One more is made where the last session is not over on both sides yet.
	if n := len(n.Assocs()) / 2; n > turns/4 {
		t.Errorf("%d associations for %d connections, one at a time", n, turns)
	}
}
