package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// sctpNet runs f with two contexts that reach each other over SCTP, in a bubble with fake time.
func sctpNet(t *testing.T, link vnictest.SCTPLink, f func(t *testing.T, e *env)) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{t: t, net: vnictest.NewNet(), sctp: true}
		e.net.SCTP = link
		e.a = vnictest.Open(t, e.net.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		e.b = vnictest.Open(t, e.net.Device(t, "vnic1", []string{"10.0.0.2/24"}), vnic.ContextConfig{})
		f(t, e)
	})
}

// server accepts connections for as many QPs as are wanted, at one port.
func (e *env) server() rdma.Listener {
	e.t.Helper()
	l, err := e.b.Listen(netip.AddrPortFrom(e.b.Attr().Addrs[0].Addr(), 7), 0)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { l.Close() })
	return l
}

// join connects one more pair of QPs at l.
func (e *env) join(l rdma.Listener, p rdma.ConnParam) (x, y *vnictest.Peer) {
	e.t.Helper()
	x, y = vnictest.NewPeer(e.t, e.a, vnictest.PeerConfig{Buffer: 4096}), vnictest.NewPeer(e.t, e.b,
		vnictest.PeerConfig{Buffer: 4096})
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(e.t.Context())
		if err == nil {
			y.Conn, err = r.Accept(e.t.Context(), y.QP, rdma.ConnParam{PrivateData: []byte("welcome")})
		}
		done <- err
	}()
	var err error
	p.SCTP = true
	if x.Conn, err = x.Ctx.Connect(e.t.Context(), x.QP, l.Addr(), p); err != nil {
		e.t.Fatal(err)
	}
	if err := <-done; err != nil {
		e.t.Fatal(err)
	}
	return x, y
}

// QPs that go to one listener are DDP streams of one association while it has some, and of another
// then. Each ends by itself, and its stream is used again; an association without any ends after a
// moment of grace.
func TestSCTPStreams(t *testing.T) {
	sctpNet(t, vnictest.SCTPLink{Streams: 8}, func(t *testing.T, e *env) {
		l := e.server()
		var xs, ys []*vnictest.Peer
		for range 5 { // the end that dialled has the even streams: four
			x, y := e.join(l, rdma.ConnParam{PrivateData: []byte("hello")})
			if got := x.Conn.Param(); string(got.PrivateData) != "welcome" || !got.SCTP {
				t.Errorf("the end that connected was told %+v", got)
			}
			if got := y.Conn.Param(); string(got.PrivateData) != "hello" || !got.SCTP {
				t.Errorf("the end that accepted was told %+v", got)
			}
			xs, ys = append(xs, x), append(ys, y)
		}
		if n := len(e.net.Assocs()) / 2; n != 2 {
			t.Errorf("five QPs have %d associations, want 2", n)
		}
		for i, x := range xs {
			fill(x.Buf, byte(i))
			x.Write(1, 0, 4096, ys[i], 0)
		}
		for i, x := range xs {
			x.WantSend("written", is(1, ok))
			synctest.Wait()
			if !bytes.Equal(x.Buf, ys[i].Buf) {
				t.Errorf("QP %d: other octets came", i)
			}
		}
		xs[0].Conn.Disconnect()
		if err := xs[0].WantDone("disconnected"); err != nil {
			t.Error(err)
		}
		if err := ys[0].WantDone("by the peer"); err != nil {
			t.Error(err)
		}
		xs[1].Write(2, 0, 10, ys[1], 0)
		xs[1].WantSend("its neighbour goes on", is(2, ok))
		synctest.Wait()
		e.join(l, rdma.ConnParam{})
		if n := len(e.net.Assocs()) / 2; n != 2 {
			t.Errorf("a stream that was free again was not used: %d associations", n)
		}
		for _, x := range xs[1:] {
			x.Conn.Disconnect()
			x.WantDone("disconnected")
		}
		time.Sleep(5 * time.Second)
		if down := e.net.Assocs()[2].Down(); !down {
			t.Error("the second association is there without a stream")
		}
		if down := e.net.Assocs()[0].Down(); down {
			t.Error("the first association has ended, and a QP is on it")
		}
	})
}

// The end of an association is the end of all its QPs, on both sides, with its cause, also of those
// that are in the midst of sending.
func TestSCTPAssociationLost(t *testing.T) {
	sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
		l := e.server()
		x, y := e.join(l, rdma.ConnParam{})
		x2, y2 := e.join(l, rdma.ConnParam{})
		x.Recv(1, 0, 10)
		y.Recv(2, 0, 10)
		y2.Recv(3, 0, 10)
		x.Send(4, 0, 10)
		x2.Send(5, 0, 10)
		e.net.Assocs()[0].Fail()
		for _, p := range []*vnictest.Peer{x, y, x2, y2} {
			var lost *sctpddp.LostError
			if err := p.WantDone("the association has failed"); !errors.As(err, &lost) ||
				lost.Kind != sctpddp.LossFailure {
				t.Errorf("ended with %v", err)
			}
			p.WantState("over", rdma.QPError)
		}
		x.WantRecv("flushed", is(1, flush))
		// And the next connection has a new one.
		e.join(l, rdma.ConnParam{})
	})
}

// What keeps a connection from being made is told as over TCP.
func TestSCTPRefused(t *testing.T) {
	connect := func(e *env, at netip.AddrPort) error {
		x := vnictest.NewPeer(e.t, e.a, vnictest.PeerConfig{})
		_, err := x.Ctx.Connect(e.t.Context(), x.QP, at, rdma.ConnParam{SCTP: true,
			PrivateData: []byte("?")})
		return err
	}
	t.Run("rejected", func(t *testing.T) {
		sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
			l := e.server()
			go func() {
				if r, err := l.Next(t.Context()); err == nil {
					r.Reject([]byte("no"))
				}
			}()
			var rej *rdma.RejectedError
			if err := connect(e, l.Addr()); !errors.As(err, &rej) || string(rej.PrivateData) != "no" {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("nobody listens", func(t *testing.T) {
		sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
			if err := connect(e, netip.MustParseAddrPort("10.0.0.2:9")); !errors.Is(err,
				syscall.ECONNREFUSED) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("no DDP", func(t *testing.T) {
		sctpNet(t, vnictest.SCTPLink{NoDDP: true}, func(t *testing.T, e *env) {
			l := e.server()
			if err := connect(e, l.Addr()); err == nil {
				t.Error("connected")
			}
			for _, a := range e.net.Assocs() {
				if !a.Down() {
					t.Error("the association is still there")
				}
			}
		})
	})
	t.Run("the listener is closed", func(t *testing.T) {
		sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
			l := e.server()
			done := make(chan error, 1)
			go func() { done <- connect(e, l.Addr()) }()
			synctest.Wait()
			l.Close()
			if err := <-done; err == nil {
				t.Error("connected")
			}
		})
	})
	t.Run("no answer in time", func(t *testing.T) {
		sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
			l := e.server()
			if err := connect(e, l.Addr()); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("%v", err)
			}
			// The request that nobody answered has been withdrawn.
			r, err := l.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
			if _, err := r.Accept(t.Context(), y.QP, rdma.ConnParam{}); err == nil {
				t.Error("accepted though nobody asks any more")
			}
		})
	})
	t.Run("a network without SCTP", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := vnictest.NewNet()
			d := n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
				c.Network = tcpOnly{c.Network}
			})
			e := &env{t: t, net: n, a: vnictest.Open(t, d, vnic.ContextConfig{})}
			if err := connect(e, netip.MustParseAddrPort("10.0.0.2:9")); !errors.Is(err,
				syscall.EPROTONOSUPPORT) {
				t.Errorf("%v", err)
			}
		})
	})
}

// A peer cannot have any number of associations, and those on which nothing is asked for end by
// themselves.
func TestSCTPAssociationsOfAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		d := n.Device(t, "vnic1", []string{"10.0.0.2/24"},
			func(c *vnic.Config) { c.MaxPendingPerPeer = 3 })
		e := &env{t: t, net: n, b: vnictest.Open(t, d, vnic.ContextConfig{})}
		at := e.server().Addr()
		peer, other := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
		host := n.Host(peer, other)
		dial := func(from netip.Addr) error {
			_, err := host.DialSCTP(t.Context(), from, at, vnic.SCTPForDDP, silent{})
			return err
		}
		for range 3 {
			if err := dial(peer); err != nil {
				t.Fatal(err)
			}
		}
		if err := dial(peer); err == nil {
			t.Error("the fourth was taken")
		}
		if err := dial(other); err != nil {
			t.Errorf("another peer: %v", err)
		}
		time.Sleep(2 * time.Minute)
		for i, a := range n.Assocs() {
			if !a.Down() && i/2 != 3 { // the one refused was never handed out
				t.Errorf("association %d is there, and nobody has asked for anything", i/2)
			}
		}
		if err := dial(peer); err != nil {
			t.Errorf("when they had ended: %v", err)
		}
	})
}

// silent is a peer that sets associations up and asks for nothing.
type silent struct{}

func (silent) Message(sctpddp.Message, any) {}
func (silent) Notify()                      {}
func (silent) Down(sctpddp.LossKind, error) {}

// tcpOnly hides what else a network can do.
type tcpOnly struct{ vnic.Network }

// A Send that waits for a receive does not hold the other streams of its association up, and when
// it has waited too long its own connection ends, and only that. DDP-002.
func TestSCTPStalledStream(t *testing.T) {
	sctpNet(t, vnictest.SCTPLink{Window: 64}, func(t *testing.T, e *env) {
		l := e.server()
		x, y := e.join(l, rdma.ConnParam{})
		x2, y2 := e.join(l, rdma.ConnParam{})
		for i := range 20 {
			x.Send(uint64(i), 0, 4096)
		}
		synctest.Wait()
		for i := range 200 {
			x2.Write(uint64(i), 0, 4096, y2, 0)
			x2.WantSend("the other stream goes on", is(uint64(i), ok))
		}
		if s := y.QP.State(); s != rdma.QPRTS {
			t.Fatalf("the stream that waits is in %v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		select {
		case <-x.Conn.Done():
		case <-ctx.Done():
			t.Fatal("the Send waits for ever")
		}
		var term *rdma.TerminateError
		if err := x.Conn.Err(); !errors.As(err, &term) || term.Layer != 1 || term.Type != 2 ||
			term.Code != 2 {
			t.Errorf("ended with %v, want no buffer", err)
		}
		x2.Write(1, 0, 100, y2, 0)
		x2.WantSend("the other stream goes on", is(1, ok))
	})
}

// A peer that has come back from a crash knows nothing of the association that it had: the next
// connection takes a new one, and the program does not notice.
func TestSCTPPeerCameBack(t *testing.T) {
	sctpNet(t, vnictest.SCTPLink{}, func(t *testing.T, e *env) {
		l := e.server()
		x, _ := e.join(l, rdma.ConnParam{})
		e.net.Assocs()[0].AbortOnSend()
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		go func() {
			if r, err := l.Next(t.Context()); err == nil {
				y.Conn, _ = r.Accept(t.Context(), y.QP, rdma.ConnParam{})
			}
		}()
		z := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		if _, err := z.Ctx.Connect(t.Context(), z.QP, l.Addr(), rdma.ConnParam{SCTP: true}); err != nil {
			t.Errorf("the next connection: %v", err)
		}
		x.WantDone("the old connection")
		if n := len(e.net.Assocs()) / 2; n != 2 {
			t.Errorf("%d associations, want 2", n)
		}
	})
}
