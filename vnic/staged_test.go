package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A context becomes staged while it has a connection: what was posted goes on, in order and once,
// memory that can block is reached from then on, and what it blocks is not the peer.
func TestStagedLate(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.staged {
			return
		}
		x, y := e.plain()
		fill(x.Buf, 1)
		fill(y.Buf[32<<10:], 2)
		// Before: a Send that waits for its receive, and what is behind it. The peer may keep
		// the Send until the receive is posted, or only its own Reads.
		x.Send(1, 0, 100)
		x.Read(3, 2000, 100, y, 32<<10)
		x.Write(2, 0, 100, y, 1000)
		synctest.Wait()
		if err := e.b.AllowBlocking(); err != nil {
			t.Fatalf("AllowBlocking with a connection: %v", err)
		}
		if err := e.b.AllowBlocking(); err != nil {
			t.Fatalf("again: %v", err)
		}
		synctest.Wait()
		y.WantNone("it still waits")
		x.WantState("connected", rdma.QPRTS)
		h := &hanging{b: make([]byte, 4096), release: make(chan struct{})}
		m, err := y.PD.RegisterRegion(vnic.Region{Mem: h}, 1<<32, 4096, vnictest.Full)
		if err != nil {
			t.Fatal(err)
		}
		if err := y.QP.PostRecv(&rdma.RecvWR{
			ID: 4, SGEs: []rdma.SGE{{Addr: 1 << 32, Length: 200, LKey: m.LKey()}}}); err != nil {
			t.Fatal(err)
		}
		x.WantSend("all of it, in order", is(1, ok), is(3, ok), is(2, ok))
		y.WantRecv("the Send", is(4, ok))
		synctest.Wait() // a Write is done when it is on its way
		if !bytes.Equal(h.b[:100], x.Buf[:100]) || !bytes.Equal(y.Buf[1000:1100], x.Buf[:100]) ||
			!bytes.Equal(x.Buf[2000:2100], y.Buf[32<<10:][:100]) {
			t.Fatal("the octets differ")
		}
		h.hang.Store(true)
		x.Post(rdma.SendWR{ID: 5, Op: rdma.OpWrite, RemoteAddr: 1 << 32, RKey: m.RKey()}, 0, 100)
		x.WantSend("y hangs, x does not", is(5, ok))
		synctest.Wait()
		if h.inside.Load() != 1 {
			t.Fatalf("%d copies hang, want 1", h.inside.Load())
		}
		h.hang.Store(false)
		close(h.release)
		y.Send(6, 0, 10)
		x.Recv(7, 0, 10)
		x.WantRecv("and back", is(7, ok))
		x.Conn.Disconnect()
		if err := y.WantDone("a graceful end"); err != nil {
			t.Error(err)
		}
		if err := x.WantDone("a graceful end"); err != nil {
			t.Error(err)
		}
	})
}

// A connection is handed over in the midst of messages that are longer than what is copied at once:
// they arrive whole and once, and what is behind them goes on.
func TestStagedMidMessage(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if !e.loop {
			return // a wire does nothing special
		}
		const n = 8 << 20
		for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpSend, rdma.OpWriteImm} {
			x, y := e.pair(vnictest.PeerConfig{Buffer: n, Param: extensions}, vnictest.PeerConfig{Buffer: n,
				Param: extensions})
			fill(x.Buf, 1)
			if op == rdma.OpRead {
				fill(y.Buf, 2)
			}
			if op == rdma.OpSend {
				y.Recv(5, 0, n)
			}
			x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(), Imm: 7}, 0, n)
			x.Read(2, 0, 0, y, 0)
			if op == rdma.OpSend { // and with the peer's context
				if err := e.a.HandOver(); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.b.HandOver(); err != nil {
				t.Fatal(err)
			}
			if op == rdma.OpWriteImm { // what waits for a receive does not hold the hand-over up
				y.Recv(5, 0, 0)
			}
			x.WantSend("both", is(1, ok), is(2, ok))
			if op == rdma.OpSend || op == rdma.OpWriteImm {
				y.WantRecv("it came", is(5, ok))
			}
			if !bytes.Equal(x.Buf, y.Buf) {
				t.Fatalf("%v: the octets differ", op)
			}
			x.QP.Close()
			y.QP.Close()
			// A fresh context for the next one, on the same device.
			b, a := e.b.Device(), e.a.Device()
			e.b = vnictest.Open(t, b, vnic.ContextConfig{Label: "b"})
			e.a = vnictest.Open(t, a, vnic.ContextConfig{Label: "a"})
		}
	})
}

var extensions = rdma.ConnParam{Extensions: true}

// asked is x's request for a connection, as b got it; connected tells x how it ended.
func (e *env) asked(t *testing.T, x *vnictest.Peer) (
	l rdma.Listener, r rdma.ConnRequest, connected <-chan error,
) {
	t.Helper()
	l, err := e.b.Listen(netip.AddrPortFrom(e.b.Attr().Addrs[0].Addr(), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		x.Conn, err = e.a.Connect(t.Context(), x.QP, l.Addr(), rdma.ConnParam{})
		ended <- err
	}()
	if r, err = l.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, r, ended
}

// A context becomes staged between a connection request and the answer to it: the connection is
// made, and its first message may go to memory that can block.
func TestStagedWhileConnecting(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.staged {
			return
		}
		for _, which := range []string{"acceptor", "initiator"} {
			x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
				vnictest.PeerConfig{})
			l, r, connected := e.asked(t, x)
			p, q := y, x
			if which == "initiator" {
				p, q = x, y
			}
			if err := p.Ctx.AllowBlocking(); err != nil {
				t.Fatal(err)
			}
			m, err := p.PD.RegisterRegion(vnic.Region{Mem: &hanging{b: make([]byte, 100)}}, 0, 100,
				vnictest.Full)
			if err != nil {
				t.Fatal(err)
			}
			if y.Conn, err = r.Accept(t.Context(), y.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			if err := <-connected; err != nil {
				t.Fatal(err)
			}
			q.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RKey: m.RKey()}, 0, 100)
			q.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, RKey: m.RKey()}, 0, 100)
			q.WantSend(which, is(1, ok), is(2, ok))
			l.Close()
			e.b = vnictest.Open(t, e.b.Device(), vnic.ContextConfig{Label: "b"})
			if e.loop {
				e.a = vnictest.Open(t, e.a.Device(), vnic.ContextConfig{Label: "a"})
			}
		}
	})
}

// A peer whose own memory hangs, so that its end of a connection is never attached, does not keep
// another context from becoming staged.
func TestStagedPeerHangs(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if !e.loop {
			return // only there the two have something in common
		}
		var busy []*vnictest.Peer
		for range 8 { // as many as a staged context runs at once
			p, q := e.plain()
			q.Recv(1, 0, 100)
			busy = append(busy, p)
		}
		x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
			vnictest.PeerConfig{})
		_, r, connected := e.asked(t, x)
		if err := e.a.AllowBlocking(); err != nil {
			t.Fatal(err)
		}
		h := &hanging{b: make([]byte, 100), release: make(chan struct{})}
		h.hang.Store(true)
		for _, p := range busy {
			m, err := p.PD.RegisterRegion(vnic.Region{Mem: h}, 0, 100, vnictest.Full)
			if err != nil {
				t.Fatal(err)
			}
			p.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, SGEs: []rdma.SGE{{Length: 100, LKey: m.LKey()}}}, 0,
				0)
		}
		synctest.Wait()
		if n := h.inside.Load(); n != 8 {
			t.Fatalf("%d hang", n)
		}
		var err error
		if y.Conn, err = r.Accept(t.Context(), y.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		staged := make(chan error, 1)
		go func() { staged <- e.b.AllowBlocking() }()
		synctest.Wait()
		select {
		case err := <-staged:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("one program's hanging memory keeps another waiting")
		}
		h.hang.Store(false)
		close(h.release)
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
		y.Write(1, 0, 100, x, 0)
		x.Recv(2, 0, 8)
		y.Send(3, 0, 8)
		x.WantRecv("it works", is(2, ok))
	})
}

// Either end, or both at once, end the connection around the hand-over, in each way: each request
// completes once, both QPs come to an end, and who hands over does, too.
func TestStagedEnds(t *testing.T) {
	ends := map[string]func(p *vnictest.Peer){
		"abort":      func(p *vnictest.Peer) { p.QP.Abort() },
		"close":      func(p *vnictest.Peer) { p.QP.Close() },
		"disconnect": func(p *vnictest.Peer) { p.Conn.Disconnect() },
		"terminate":  func(p *vnictest.Peer) { p.QP.ModifyState(rdma.QPTerminate) },
		"fault": func(p *vnictest.Peer) {
			p.QP.PostSend(&rdma.SendWR{ID: 99, Op: rdma.OpWrite, RKey: 1, SGEs: []rdma.SGE{p.SGE(0, 1)}})
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 5))
			for range 30 {
				a, b := real(t, true)
				x, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, vnictest.PeerConfig{})
				x.Write(1, 0, 60000, y, 0)
				y.Recv(2, 0, 10)
				var wg sync.WaitGroup
				wait := func() { time.Sleep(time.Duration(rng.IntN(30)) * time.Microsecond) }
				wait()
				if rng.IntN(2) == 0 {
					wg.Go(func() { b.HandOver() })
				}
				if rng.IntN(2) == 0 {
					wg.Go(func() { a.HandOver() })
				}
				if rng.IntN(2) == 0 {
					wg.Go(func() {
						_ = a.Device().ToStreams(t.Context(), 0, vnictest.NewNet().Within)
					})
				}
				p := []*vnictest.Peer{x, y}[rng.IntN(2)]
				wait()
				wg.Go(func() { end(p) })
				wg.Wait()
				x.WantDone("over")
				y.WantDone("over")
				x.QP.Close()
				y.QP.Close()
				a.Close()
				b.Close()
			}
		})
	}
}

// Both ends talk as fast as they can, on several connections, while those of one context and then
// of the other are handed over, or all to a network, or the one and then the other: each octet
// arrives, each request completes once and in order.
func TestStagedStress(t *testing.T) {
	for round := range 12 {
		piped, moved, want := round%3 != 1, round%3 > 0, "loop"
		if moved {
			want = "tcp"
		}
		a, b := real(t, true)
		var wg sync.WaitGroup
		talks(t, a, b, &wg)
		wg.Go(func() {
			wait := func() { time.Sleep(time.Duration(round/3) * time.Millisecond) }
			wait()
			for _, c := range []*vnic.Context{b, a} {
				if !piped {
					break
				}
				if err := c.HandOver(); err != nil {
					t.Error(err)
				}
				wait()
			}
			if moved {
				if err := a.Device().ToStreams(t.Context(), 0, vnictest.NewNet().Within); err != nil {
					t.Error(err)
				}
				if n := a.Device().InMemory(); n != 0 {
					t.Errorf("%d queue pairs are in memory still", n)
				}
			}
		})
		wg.Wait()
		for _, i := range a.Device().QPs(nil) {
			if i.State != "RTS" || i.Transport != want {
				t.Errorf("QP %d is %s over %s", i.QPN, i.State, i.Transport)
			}
		}
	}
}

// What waits for a receive when the connection is handed over waits for as long as it would have,
// and a Write whose immediate data waits is not written again.
func TestStagedHold(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.staged {
			return
		}
		x, y := e.ext()
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			Imm: 7}, 0, 100)
		x.Send(2, 0, 10)
		synctest.Wait()
		written := y.QP.Info().Counters.InWrites
		if err := e.b.HandOver(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		y.Recv(3, 0, 0)
		if wc := y.WantRecv("the immediate data", is(3, ok))[0]; wc.Imm != 7 {
			t.Errorf("received %+v", wc)
		}
		x.WantSend("sent", is(1, ok))
		if n := y.QP.Info().Counters.InWrites; n != written {
			t.Errorf("%d Writes, were %d", n, written)
		}
		time.Sleep(10 * time.Second)
		e.wantTerm("no receive for the Send", y.WantDone("held for too long"), false, term{1, 2, 2})
	})
}

// A connection within a device stays what it is for as long as no request needs memory that can
// block, also if both contexts have some; the first that does has it handed over, whichever end and
// whatever kind it is.
func TestStagedOnDemand(t *testing.T) {
	type ends struct {
		x, y   *vnictest.Peer
		mx, my *vnic.MR
		hx, hy *hanging
	}
	far := func(m *vnic.MR) []rdma.SGE {
		return []rdma.SGE{{Addr: m.Addr(), Length: 8, LKey: m.LKey()}}
	}
	for name, do := range map[string]func(e *ends){
		"Write from it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, SGEs: far(e.mx), RemoteAddr: e.y.MR.Addr(),
				RKey: e.y.MR.RKey()}, 0, 0)
		},
		"Write into it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, RemoteAddr: e.my.Addr(), RKey: e.my.RKey()}, 0, 8)
		},
		"inline Write into it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, Flags: rdma.Inline, Inline: []byte("12345678"),
				RemoteAddr: e.my.Addr(), RKey: e.my.RKey()}, 0, 0)
		},
		"Read from it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpRead, RemoteAddr: e.my.Addr(), RKey: e.my.RKey()}, 0, 8)
		},
		"Read into it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpRead, SGEs: far(e.mx), RemoteAddr: e.y.MR.Addr(),
				RKey: e.y.MR.RKey()}, 0, 0)
		},
		"Send from it": func(e *ends) {
			e.y.Recv(8, 0, 8)
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpSend, SGEs: far(e.mx)}, 0, 0)
		},
		"Send into it": func(e *ends) {
			e.y.QP.PostRecv(&rdma.RecvWR{ID: 8, SGEs: far(e.my)})
			e.x.Send(9, 0, 8)
		},
		"inline Send into it": func(e *ends) {
			e.y.QP.PostRecv(&rdma.RecvWR{ID: 8, SGEs: far(e.my)})
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte("12345678")}, 0,
				0)
		},
		"atomic in it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpFetchAdd, RemoteAddr: e.my.Addr(), RKey: e.my.RKey()}, 0,
				8)
		},
		"atomic from it": func(e *ends) {
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpFetchAdd, SGEs: far(e.mx), RemoteAddr: e.y.MR.Addr(),
				RKey: e.y.MR.RKey()}, 0, 0)
		},
		"Write with immediate data": func(e *ends) {
			e.y.Recv(8, 0, 0)
			e.x.Post(rdma.SendWR{ID: 9, Op: rdma.OpWriteImm, SGEs: far(e.mx), RemoteAddr: e.my.Addr(),
				RKey: e.my.RKey()}, 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := vnictest.NewNet()
				d := net.Device(t, "vnic0", []string{"10.0.0.1/24"})
				a, b := vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.Open(t, d, vnic.ContextConfig{})
				for _, c := range []*vnic.Context{a, b} {
					if err := c.AllowBlocking(); err != nil {
						t.Fatal(err)
					}
				}
				e := &ends{hx: &hanging{b: make([]byte, 64)}, hy: &hanging{b: make([]byte, 64)}}
				e.x, e.y = vnictest.NewQPs(t, a, b, vnictest.PeerConfig{Param: extensions}, vnictest.PeerConfig{
					Param: extensions})
				var err error
				if e.mx, err = e.x.PD.RegisterRegion(vnic.Region{Mem: e.hx}, 0x1000, 64,
					vnictest.Full); err != nil {
					t.Fatal(err)
				}
				if e.my, err = e.y.PD.RegisterRegion(vnic.Region{Mem: e.hy}, 0x2000, 64,
					vnictest.Full); err != nil {
					t.Fatal(err)
				}
				e.y.Recv(1, 0, 100)
				e.x.Send(2, 0, 100)
				e.x.Write(3, 0, 100, e.y, 0)
				e.x.Read(4, 0, 100, e.y, 0)
				e.x.WantSend("with mapped memory", is(2, ok), is(3, ok), is(4, ok))
				e.y.WantRecv("with mapped memory", is(1, ok))
				if e.x.QP.HandedOver() {
					t.Fatal("handed over for nothing")
				}
				do(e)
				e.x.WantSend(name, is(9, ok))
				synctest.Wait()
				if !e.x.QP.HandedOver() || !e.y.QP.HandedOver() {
					t.Error("not handed over")
				}
				if n := e.hx.calls.Load() + e.hy.calls.Load(); n == 0 {
					t.Error("the memory was not reached")
				}
			})
		})
	}
}

// Of connections that are to go on over a network one that cannot keeps no other from it.
func TestToStreamsOthers(t *testing.T) {
	a, b := real(t, true)
	for range 2 {
		vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, vnictest.PeerConfig{})
	}
	tries, within := 0, vnictest.NewNet().Within
	err := a.Device().ToStreams(t.Context(), 0, func(ctx context.Context, p, q netip.Addr) (m,
		n iwarp.Stream, err error) {
		if tries++; tries <= 1 {
			return nil, nil, syscall.ENOBUFS
		}
		return within(ctx, p, q)
	})
	if !errors.Is(err, syscall.ENOBUFS) {
		t.Errorf("%v", err)
	}
	if n := a.Device().InMemory(); n != 0 {
		t.Errorf("%d queue pairs are in memory still", n)
	}
}
