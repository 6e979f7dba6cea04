package vnic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// hanging is memory that does not come back, like a page of a FUSE mapping whose server sleeps.
type hanging struct {
	b       []byte
	hang    atomic.Bool
	release chan struct{}
	inside  atomic.Int32
	most    atomic.Int32
	calls   atomic.Int32
	err     error
}

func (h *hanging) wait() {
	h.calls.Add(1)
	if n := h.inside.Add(1); n > h.most.Load() {
		h.most.Store(n)
	}
	defer h.inside.Add(-1)
	if h.hang.Load() {
		<-h.release
	}
}

func (h *hanging) ReadAt(p []byte, off int64) (int, error) {
	h.wait()
	if h.err != nil {
		return 0, h.err
	}
	return copy(p, h.b[off:]), nil
}

func (h *hanging) WriteAt(p []byte, off int64) (int, error) {
	h.wait()
	if h.err != nil {
		return 0, h.err
	}
	return copy(h.b[off:], p), nil
}

// staged makes a peer of e.b whose memory is h.
func staged(t *testing.T, c *vnic.Context, h *hanging) (*vnictest.Peer, *vnic.MR) {
	t.Helper()
	y := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
	m, err := y.PD.RegisterRegion(vnic.Region{Mem: h}, 0x7000_0000, uint64(len(h.b)), vnictest.Full)
	if err != nil {
		t.Fatal(err)
	}
	return y, m
}

// Mode 0: each operation works on memory that is reached by calls, from both sides, and an error
// of it is LOC_PROT_ERR here.
func TestMode0(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if !e.staged {
			c := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			if _, err := c.PD.RegisterRegion(vnic.Region{Mem: &hanging{}}, 0, 1, 0); !isErr(err,
				rdma.ErrInvalid) {
				t.Errorf("mode 0 memory in a context that is not staged: %v", err)
			}
			return
		}
		h := &hanging{b: make([]byte, 300_000)}
		y, m := staged(t, e.b, h)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{Buffer: 300_000})
		vnictest.Connect(t, x, y)
		fill(x.Buf, 1)
		sge := []rdma.SGE{{Addr: m.Addr(), Length: 300_000, LKey: m.LKey()}}
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 300_000)
		y.Recv(2, 0, 0)
		x.Send(3, 0, 0)
		y.WantRecv("written", is(2, ok))
		if !bytes.Equal(h.b, x.Buf) {
			t.Fatal("the Write differs")
		}
		clear(x.Buf)
		y.Post(rdma.SendWR{ID: 4, Op: rdma.OpWrite, SGEs: sge, RemoteAddr: x.MR.Addr(),
			RKey: x.MR.RKey()}, 0, 0)
		y.WantSend("a Write from it", is(4, ok))
		synctest.Wait()
		if !bytes.Equal(h.b, x.Buf) {
			t.Fatal("the Write from it differs")
		}
		fill(x.Buf, 2)
		if err := y.QP.PostRecv(&rdma.RecvWR{ID: 5, SGEs: sge}); err != nil {
			t.Fatal(err)
		}
		x.Send(6, 0, 300_000)
		y.WantRecv("a Send into it", is(5, ok))
		if !bytes.Equal(h.b, x.Buf) {
			t.Fatal("the Send differs")
		}
		clear(x.Buf)
		x.Post(rdma.SendWR{ID: 7, Op: rdma.OpRead, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 300_000)
		x.WantSend("a Read from it", is(1, ok), is(3, ok), is(6, ok), is(7, ok))
		if !bytes.Equal(h.b, x.Buf) {
			t.Fatal("the Read differs")
		}
		fill(x.Buf, 3)
		y.Post(rdma.SendWR{ID: 8, Op: rdma.OpRead, SGEs: sge, RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey()},
			0, 0)
		y.WantSend("a Read into it", is(8, ok))
		if !bytes.Equal(h.b, x.Buf) {
			t.Fatal("the Read into it differs")
		}
		h.err = syscall.EFAULT
		y.Post(rdma.SendWR{ID: 9, Op: rdma.OpSend, SGEs: sge}, 0, 0)
		y.WantSend("EFAULT", is(9, rdma.WCLocProt))
		e.wantTerm("the peer sees the end", x.WantDone("over"), true, term{0, 0, 0xff})
	})
}

// Memory that hangs stops its own context only: at most eight goroutines are in it, the stack and
// other contexts go on, and closing the context tells all its peers within a second.
func TestHangingMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t)
		ca, cb, other := vnictest.Open(t, a, vnic.ContextConfig{}),
			vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
		if err := cb.AllowBlocking(); err != nil {
			t.Fatal(err)
		}
		h := &hanging{b: make([]byte, 1200), release: make(chan struct{})}
		h.hang.Store(true)
		var xs []*vnictest.Peer
		var ms []*vnic.MR
		for range 12 {
			y, m := staged(t, cb, h)
			x := vnictest.NewPeer(t, ca, vnictest.PeerConfig{})
			vnictest.Connect(t, x, y)
			xs, ms = append(xs, x), append(ms, m)
		}
		for i, x := range xs {
			x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: ms[i].Addr() + uint64(100*i),
				RKey: ms[i].RKey()}, 0, 100)
		}
		synctest.Wait()
		if n := h.most.Load(); n != 8 {
			t.Fatalf("%d goroutines are in the memory at once, want 8", n)
		}
		p, q := vnictest.NewQPs(t, ca, other, vnictest.PeerConfig{}, vnictest.PeerConfig{})
		q.Recv(1, 0, 10)
		p.Send(2, 0, 10)
		q.WantRecv("others go on", is(1, ok))

		start := time.Now()
		cb.Shutdown()
		for _, x := range xs {
			x.WantDone("the peers see it")
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("after %v", d)
		}
		select {
		case <-cb.Done():
			t.Fatal("done while goroutines are stuck")
		default:
		}
		h.hang.Store(false)
		close(h.release)
		<-cb.Done()
	})
}

// Posting does not touch memory that hangs: the poster is not held up. And Close waits for the copy
// that is under way, before the memory is given back.
func TestHangingClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t)
		ca, cb := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
		if err := cb.AllowBlocking(); err != nil {
			t.Fatal(err)
		}
		x, y := vnictest.NewQPs(t, ca, cb, vnictest.PeerConfig{}, vnictest.PeerConfig{})
		h := &hanging{b: make([]byte, 1000), release: make(chan struct{})}
		h.hang.Store(true)
		var given atomic.Bool
		m, err := y.PD.RegisterRegion(vnic.Region{Mem: h, Release: func() { given.Store(true) }}, 0x1000,
			1000, vnictest.Full)
		if err != nil {
			t.Fatal(err)
		}
		x.Recv(1, 0, 100)
		y.Post(rdma.SendWR{ID: 2, Op: rdma.OpSend, SGEs: []rdma.SGE{
			{Addr: m.Addr(), Length: 100, LKey: m.LKey()}}}, 0, 0)
		synctest.Wait()
		if h.inside.Load() != 1 {
			t.Fatal("the copy has not begun")
		}
		closed := make(chan struct{})
		go func() { m.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("Close returned while a copy was under way")
		default:
		}
		if given.Load() {
			t.Fatal("the memory was given back while a copy was under way")
		}
		close(h.release)
		<-closed
		if !given.Load() {
			t.Error("the memory was not given back")
		}
	})
}

// A message that goes or comes in many segments costs few calls of memory that is reached by them,
// and is there when its completion is.
func TestMode0Calls(t *testing.T) {
	const n = 100_000
	onPaths(t, func(t *testing.T, e *env) {
		if !e.staged || e.sctp {
			return // over SCTP segments may come in any order, and are placed one by one
		}
		h := &hanging{b: make([]byte, n)}
		y, m := staged(t, e.b, h)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{Buffer: n})
		vnictest.Connect(t, x, y)
		sge := []rdma.SGE{{Addr: m.Addr(), Length: n, LKey: m.LKey()}}
		for i, do := range []struct {
			what string
			f    func(id uint64)
		}{
			{"Write into it", func(id uint64) {
				x.Post(rdma.SendWR{ID: id, Op: rdma.OpWrite, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, n)
				x.WantSend("", is(id, ok))
			}},
			{"Send into it", func(id uint64) {
				y.QP.PostRecv(&rdma.RecvWR{ID: id, SGEs: sge})
				x.Send(id, 0, n)
				y.WantRecv("", is(id, ok))
				if !bytes.Equal(h.b, x.Buf) {
					t.Error("complete before it is there")
				}
				x.WantSend("", is(id, ok))
			}},
			{"Read of it", func(id uint64) {
				x.Post(rdma.SendWR{ID: id, Op: rdma.OpRead, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, n)
				x.WantSend("", is(id, ok))
			}},
			{"Send from it", func(id uint64) {
				x.Recv(id, 0, n)
				y.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, SGEs: sge}, 0, 0)
				x.WantRecv("", is(id, ok))
				y.WantSend("", is(id, ok))
			}},
			{"Read into it", func(id uint64) {
				y.Post(rdma.SendWR{ID: id, Op: rdma.OpRead, SGEs: sge, RemoteAddr: x.MR.Addr(),
					RKey: x.MR.RKey()}, 0, 0)
				y.WantSend("", is(id, ok))
				if !bytes.Equal(h.b, x.Buf) {
					t.Error("complete before it is there")
				}
			}},
		} {
			if strings.HasSuffix(do.what, "into it") {
				fill(x.Buf, byte(i+1))
			} else {
				fill(h.b, byte(i+1))
			}
			before := h.calls.Load()
			do.f(uint64(i + 1))
			synctest.Wait()
			if !bytes.Equal(h.b, x.Buf) {
				t.Errorf("%s: the octets differ", do.what)
			}
			if c := h.calls.Load() - before; c == 0 || c > 4 {
				t.Errorf("%s: %d calls for %d octets", do.what, c, n)
			}
		}
	})
}

// What a post needs no memory for that can block goes out at once, by who posts, also while all
// goroutines that may touch such memory hang in it; what does need it waits, and so does what is
// behind it.
func TestNearSend(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if !e.staged {
			return
		}
		h := &hanging{b: make([]byte, 1200), release: make(chan struct{})}
		near, m := staged(t, e.b, h)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		vnictest.Connect(t, x, near)
		x.Recv(1, 0, 10)
		near.Send(1, 0, 10)
		x.WantRecv("connected", is(1, ok))
		near.WantSend("connected", is(1, ok))
		h.hang.Store(true)
		for range 8 {
			y, m := staged(t, e.b, h)
			z := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			vnictest.Connect(t, z, y)
			z.Recv(1, 0, 100)
			y.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, SGEs: []rdma.SGE{
				{Addr: m.Addr(), Length: 100, LKey: m.LKey()}}}, 0, 0)
		}
		synctest.Wait()
		if n := h.inside.Load(); n != 8 {
			t.Fatalf("%d hang", n)
		}
		for id := uint64(2); id < 6; id++ {
			x.Recv(id, 0, 10)
		}
		// Together: a post does not pass over what has come in, such as SCTP's acknowledgement of the
		// first.
		if _, err := near.QP.PostSends([]rdma.SendWR{
			{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{near.SGE(0, 10)}},
			{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, Inline: []byte("inline")},
		}); err != nil {
			t.Fatal(err)
		}
		x.WantRecv("by who posted", is(2, ok), is(3, ok))
		near.WantSend("by who posted", is(2, ok), is(3, ok))
		near.Post(rdma.SendWR{ID: 4, Op: rdma.OpSend, SGEs: []rdma.SGE{
			{Addr: m.Addr(), Length: 10, LKey: m.LKey()}}}, 0, 0)
		near.Send(5, 0, 10)
		synctest.Wait()
		x.WantNone("it waits for its turn")
		if n := h.inside.Load(); n != 8 {
			t.Errorf("%d are in the memory", n)
		}
		h.hang.Store(false)
		close(h.release)
		x.WantRecv("in order", is(4, ok), is(5, ok))
		near.WantSend("in order", is(4, ok), is(5, ok))
	})
}

// Over SCTP the streams of an association have it in common. The peers of a program whose memory
// hangs see its end if nobody else uses the association, and what others have there goes on.
func TestHangingSCTP(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := vnictest.Pair(t)
			ca, other := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, a, vnic.ContextConfig{})
			cb := vnictest.Open(t, b, vnic.ContextConfig{})
			if err := ca.AllowBlocking(); err != nil {
				t.Fatal(err)
			}
			h := &hanging{b: make([]byte, 100_000), release: make(chan struct{})}
			sctp := vnictest.PeerConfig{Buffer: 100_000, Param: rdma.ConnParam{SCTP: true}}
			l, err := cb.Listen(netip.AddrPortFrom(b.Config().Addrs[0].Addr(), 0), 8)
			if err != nil {
				t.Fatal(err)
			}
			connect := func(c *vnic.Context) (x, y *vnictest.Peer) {
				x, y = vnictest.NewPeer(t, c, sctp), vnictest.NewPeer(t, cb, sctp)
				done := make(chan error, 1)
				go func() {
					var err error
					x.Conn, err = c.Connect(t.Context(), x.QP, l.Addr(), rdma.ConnParam{SCTP: true})
					done <- err
				}()
				r, err := l.Next(t.Context())
				if err == nil {
					y.Conn, err = r.Accept(t.Context(), y.QP, rdma.ConnParam{})
				}
				if err = errors.Join(err, <-done); err != nil {
					t.Fatal(err)
				}
				return x, y
			}
			var hung []*vnictest.Peer
			for range 2 {
				x, y := connect(ca)
				m, err := x.PD.RegisterRegion(vnic.Region{Mem: h}, 1<<32, 100_000, vnictest.Full)
				if err != nil {
					t.Fatal(err)
				}
				h.hang.Store(true)
				x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGEs: []rdma.SGE{
					{Addr: 1 << 32, Length: 100_000, LKey: m.LKey()}},
					RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}, 0, 0)
				hung = append(hung, y)
			}
			var p, q *vnictest.Peer
			if shared {
				p, q = connect(other)
			}
			synctest.Wait()
			if n := h.inside.Load(); n != 2 {
				t.Fatalf("%d hang", n)
			}
			ca.Shutdown()
			if !shared {
				start := time.Now()
				for _, y := range hung {
					y.WantDone("nobody else is there")
				}
				if d := time.Since(start); d > time.Second {
					t.Errorf("after %v", d)
				}
			} else {
				time.Sleep(time.Second)
				q.Recv(1, 0, 10)
				p.Send(2, 0, 10)
				q.WantRecv("others go on", is(1, ok))
			}
			h.hang.Store(false)
			close(h.release)
			<-ca.Done()
			for _, y := range hung {
				y.WantDone("over")
			}
		})
	}
}

// A looker is a CQSink that looks at something when a completion is pushed.
type looker func(wc *rdma.WC)

func (f looker) Push(wc *rdma.WC, _, _ uint32, _ bool) bool {
	f(wc)
	return true
}

// sinkQP gives p a QP that completes into sink, and posts to foreign queues if r is set.
func sinkQP(t *testing.T, p *vnictest.Peer, sink vnic.CQSink, r *ring) {
	t.Helper()
	cq, err := p.Ctx.NewCQ(vnic.CQOptions{Depth: 64, Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	o := vnic.QPOptions{QPConfig: p.QP.Config()}
	o.SendCQ, o.RecvCQ = cq, cq
	if r != nil {
		o.SendQueue, o.RecvQueue = ringSend{r}, ringRecv{r}
	}
	p.QP.Close()
	if p.QP, err = p.PD.NewQP(o); err != nil {
		t.Fatal(err)
	}
}

// What arrived in many segments is in the memory when its completion is pushed, not only soon
// after.
func TestMode0CompletesBehind(t *testing.T) {
	const n = 20_000
	onPaths(t, func(t *testing.T, e *env) {
		if !e.staged {
			return
		}
		h := &hanging{b: make([]byte, n)}
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{Param: extensions})
		fill(x.Buf, 1)
		binary.NativeEndian.PutUint64(x.Buf[n:], 99)
		y, m := staged(t, e.b, h)
		y.Config.Param = extensions
		looked := 0
		sinkQP(t, y, looker(func(wc *rdma.WC) {
			looked++
			if wc.Status != ok || wc.Op != rdma.WCFetchAdd && !bytes.Equal(h.b, x.Buf[:n]) ||
				wc.Op == rdma.WCFetchAdd && binary.NativeEndian.Uint64(h.b) != 99 {
				t.Errorf("%v: pushed before the octets were there", wc.Op)
			}
		}), nil)
		x.Config.Param.SCTP, y.Config.Param.SCTP = e.sctp, e.sctp
		vnictest.Connect(t, x, y)
		sge := []rdma.SGE{{Addr: m.Addr(), Length: n, LKey: m.LKey()}}
		if err := y.QP.PostRecv(&rdma.RecvWR{ID: 1, SGEs: sge}); err != nil {
			t.Fatal(err)
		}
		x.Send(1, 0, n)
		synctest.Wait()
		clear(h.b)
		y.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, SGEs: sge, RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey()},
			0, 0)
		synctest.Wait()
		sge[0].Length = 8
		y.Post(rdma.SendWR{ID: 3, Op: rdma.OpFetchAdd, SGEs: sge, RemoteAddr: x.MR.Addr() + n,
			RKey: x.MR.RKey()}, 0, 0)
		synctest.Wait()
		if looked != 3 {
			t.Errorf("%d completions, want 3", looked)
		}
	})
}

// A program that has seen a Send complete may use its memory for the next: no octet that was read
// ahead for one message goes out with another.
func TestMode0ReadsAfresh(t *testing.T) {
	const n = 20_000
	onPaths(t, func(t *testing.T, e *env) {
		if !e.staged {
			return
		}
		h := &hanging{b: make([]byte, n)}
		fill(h.b, 1)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y, m := staged(t, e.b, h)
		r := &ring{}
		send := rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			{Addr: m.Addr(), Length: n, LKey: m.LKey()}}}
		r.sq = append(r.sq, send)
		sinkQP(t, y, looker(func(wc *rdma.WC) {
			if wc.ID == 1 {
				fill(h.b, 2)
				send.ID = 2
				r.mu.Lock()
				r.sq = append(r.sq, send)
				r.mu.Unlock()
			}
		}), r)
		x.Recv(1, 0, n)
		x.Recv(2, n, n)
		x.Config.Param.SCTP, y.Config.Param.SCTP = e.sctp, e.sctp
		vnictest.Connect(t, x, y)
		y.QP.Ring()
		x.WantRecv("both", is(1, ok), is(2, ok))
		want := make([]byte, n)
		for i := range 2 {
			if fill(want, byte(i+1)); !bytes.Equal(x.Buf[i*n:][:n], want) {
				t.Errorf("message %d differs", i+1)
			}
		}
	})
}

// Octets that were collected and cannot be placed fail the request that they are for, not the one
// behind it.
func TestMode0Faults(t *testing.T) {
	const n = 20_000
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpFetchAdd, rdma.OpSend, rdma.OpWrite} {
		t.Run(op.String(), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				if !e.staged {
					return
				}
				h := &hanging{b: make([]byte, n)}
				x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{Param: extensions})
				y, m := staged(t, e.b, h)
				y.Config.Param = extensions
				x.Config.Param.SCTP, y.Config.Param.SCTP = e.sctp, e.sctp
				vnictest.Connect(t, x, y)
				h.err = syscall.EFAULT
				sge := []rdma.SGE{{Addr: m.Addr(), Length: n, LKey: m.LKey()}}
				switch op {
				case rdma.OpSend:
					for id := uint64(1); id < 3; id++ {
						if err := y.QP.PostRecv(&rdma.RecvWR{ID: id, SGEs: sge}); err != nil {
							t.Fatal(err)
						}
					}
					x.Send(1, 0, n)
					y.WantRecv("the first only", is(1, rdma.WCLocProt), is(2, flush))
				case rdma.OpWrite:
					x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, n)
					e.wantTerm("no such memory", x.WantDone("over"), true, term{1, 1, 0})
				default:
					if op == rdma.OpFetchAdd {
						sge[0].Length = 8
					}
					y.Post(rdma.SendWR{ID: 1, Op: op, SGEs: sge, RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey()}, 0, 0)
					y.Read(2, 0, 10, x, 0)
					y.WantSend("the first only", is(1, rdma.WCLocProt), is(2, flush))
				}
				x.WantDone("over")
				y.WantDone("over")
			})
		})
	}
}
