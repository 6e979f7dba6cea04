package vnic_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A ring is a pair of foreign queues and a completion queue, as a daemon has them in shared memory.
type ring struct {
	mu      sync.Mutex
	sq      []rdma.SendWR
	rq      []rdma.RecvWR
	cookie  uint32
	retired int
	starved bool
	damaged error
	wcs     []rdma.WC
	cookies []uint32
	done    []uint32 // sqDone of each completion
	room    int      // completions that fit
}

type ringSend struct{ *ring }
type ringRecv struct{ *ring }

func (r ringSend) Next(wr *rdma.SendWR) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.damaged != nil {
		return false, r.damaged
	}
	if len(r.sq) == 0 {
		return false, nil
	}
	sges, inline := append(wr.SGEs[:0], r.sq[0].SGEs...), append(wr.Inline[:0], r.sq[0].Inline...)
	*wr = r.sq[0]
	wr.SGEs, wr.Inline = sges, inline
	r.sq = r.sq[1:]
	return true, nil
}

func (r ringSend) Retire(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired += n
}

func (r ringRecv) Next(wr *rdma.RecvWR) (uint32, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rq) == 0 {
		return 0, false, nil
	}
	wr.ID, wr.SGEs = r.rq[0].ID, append(wr.SGEs[:0], r.rq[0].SGEs...)
	r.rq = r.rq[1:]
	r.cookie++
	return r.cookie - 1, true, nil
}

func (r ringRecv) Starve(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starved = on
}

func (r ringRecv) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.rq)
}

func (r *ring) Push(wc *rdma.WC, cookie, sqDone uint32, solicited bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.wcs) == r.room {
		return false
	}
	if sqDone != 0 && int(sqDone) != r.retired {
		panic("Retire has to come before Push")
	}
	r.wcs, r.cookies, r.done = append(r.wcs, *wc), append(r.cookies, cookie), append(r.done, sqDone)
	return true
}

// onRing makes a QP of a RoCE device with foreign queues on r, which can have n sends under way.
func onRing(t *testing.T, c *vnic.Context, r *ring, typ rdma.QPType, n int) *vnictest.Peer {
	t.Helper()
	x := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
	x.QP.Close()
	cq, err := c.NewCQ(vnic.CQOptions{Depth: n + 8, Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	x.QP, err = x.PD.NewQP(vnic.QPOptions{
		QPConfig: rdma.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: n, MaxRecvWR: 8,
			MaxSendSGE: 1, MaxRecvSGE: 1},
		SendQueue: ringSend{r}, RecvQueue: ringRecv{r},
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// foreign makes a QP of c with foreign queues on r, whose peer is y.
func foreign(t *testing.T, c *vnic.Context, r *ring, y *vnictest.Peer) *vnictest.Peer {
	t.Helper()
	x := vnictest.NewPeer(t, c, ext)
	x.QP.Close()
	cq, err := c.NewCQ(vnic.CQOptions{Depth: 64, Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	x.QP, err = x.PD.NewQP(vnic.QPOptions{
		QPConfig: rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2,
			MaxRecvSGE: 2, MaxInline: 16},
		SendQueue: ringSend{r}, RecvQueue: ringRecv{r},
	})
	if err != nil {
		t.Fatal(err)
	}
	vnictest.Connect(t, x, y)
	return x
}

func (r *ring) statuses() (s []rdma.WCStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wc := range r.wcs {
		s = append(s, wc.Status)
	}
	return s
}

// Requests and receives come from foreign queues and complete in a foreign CQ, with the counts and
// cookies that a client needs; a starved receive queue is rung.
func TestForeignQueues(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		r := &ring{room: 100}
		x := foreign(t, e.a, r, y)
		y.Recv(1, 0, 100)
		r.mu.Lock()
		for i := range 5 { // three unsignaled ones in between
			wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpWrite, SGEs: []rdma.SGE{x.SGE(0, 10)},
				RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
			if i == 0 || i == 4 {
				wr.Flags = rdma.Signaled
			}
			r.sq = append(r.sq, wr)
		}
		r.mu.Unlock()
		x.QP.Ring()
		synctest.Wait()
		if !slices.Equal(r.done, []uint32{1, 5}) || r.retired != 5 {
			t.Fatalf("retired %v, %d in all", r.done, r.retired)
		}
		y.Send(7, 0, 10)
		synctest.Wait()
		if !r.starved {
			t.Fatal("a Send waits and nobody asked for a ring")
		}
		r.mu.Lock()
		r.rq = append(r.rq, rdma.RecvWR{ID: 70, SGEs: []rdma.SGE{x.SGE(0, 10)}},
			rdma.RecvWR{ID: 71, SGEs: []rdma.SGE{x.SGE(0, 10)}})
		r.mu.Unlock()
		x.QP.Ring()
		y.WantSend("it went on", is(7, ok))
		synctest.Wait()
		if r.starved || len(r.wcs) != 3 || r.wcs[2].ID != 70 || r.cookies[2] != 0 || len(r.rq) != 1 {
			t.Fatalf("starved %v, completions %+v, %d receives left", r.starved, r.wcs, len(r.rq))
		}
		if err := x.QP.PostSend(&rdma.SendWR{Op: rdma.OpSend}); !isErr(err, rdma.ErrUnsupported) {
			t.Errorf("PostSend on foreign queues: %v", err)
		}
		x.QP.Close()
		n := len(r.wcs)
		x.QP.Ring()
		synctest.Wait()
		if len(r.wcs) != n {
			t.Error("a completion came after Close")
		}
	})
}

// What a client writes into its ring is checked here again: docs/abi.md#threat-model. An honest
// mistake is an error completion, and ends its QP only.
func TestForeignRequestsChecked(t *testing.T) {
	for name, wr := range map[string]rdma.SendWR{
		"opcode":            {Op: 200},
		"atomic to nowhere": {Op: rdma.OpCompareSwap},
		"SEND_WITH_IMM": {Op: rdma.OpSendImm, SGEs: make([]rdma.SGE, 1), Flags: rdma.Inline,
			Inline: make([]byte, 1)},
		"flags":            {Op: rdma.OpSend, Flags: 0x80},
		"inline Read":      {Op: rdma.OpRead, Flags: rdma.Inline},
		"too many SGEs":    {Op: rdma.OpSend, SGEs: make([]rdma.SGE, 3)},
		"inline too long":  {Op: rdma.OpSend, Flags: rdma.Inline, Inline: make([]byte, 17)},
		"length overflows": {Op: rdma.OpSend, SGEs: []rdma.SGE{{Length: 1 << 31}, {Length: 1 << 31}}},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
				r := &ring{room: 100}
				x := foreign(t, e.a, r, y)
				r.mu.Lock()
				r.sq = append(r.sq, wr, rdma.SendWR{Op: rdma.OpSend})
				r.mu.Unlock()
				x.QP.Ring()
				x.WantDone("over")
				if got := r.statuses(); !slices.Equal(got, []rdma.WCStatus{rdma.WCLocQPOp, flush}) {
					t.Errorf("completions %v", got)
				}
			})
		})
	}
}

// A damaged ring is a violation: reported once, and nothing crashes.
func TestDamagedRing(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		var calls atomic.Int32
		bad := errors.New("impossible index")
		c := vnictest.Open(t, e.a.Device(), vnic.ContextConfig{OnViolation: func(err error) {
			if !errors.Is(err, bad) {
				t.Errorf("violation %v", err)
			}
			calls.Add(1)
		}})
		r := &ring{room: 100}
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		x := foreign(t, c, r, y)
		r.mu.Lock()
		r.damaged = bad
		r.mu.Unlock()
		x.QP.Ring()
		x.QP.Ring()
		synctest.Wait()
		if calls.Load() != 1 {
			t.Fatalf("reported %d times", calls.Load())
		}
		c.Close() // as the daemon does
		y.WantDone("the peer sees the end")
	})
}

// mapping is a file mapped into memory, as a client's memfd is.
func mapping(t *testing.T, size int) (b []byte, truncate func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "mem"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err = syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return b, func() {
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// A mapping that faults (its file was cut) is a violation of its owner, never a crash: mode 1,
// docs/abi.md#errors. Each way into it, from both ends.
func TestMappingFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(x, y *vnictest.Peer, m *vnic.MR, n int) // y's region faults
	}{
		{"Write into it", func(x, y *vnictest.Peer, m *vnic.MR, n int) {
			x.Post(rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, n)
		}},
		{"Read from it", func(x, y *vnictest.Peer, m *vnic.MR, n int) {
			x.Post(rdma.SendWR{Op: rdma.OpRead, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, n)
		}},
		{"Send into it", func(x, y *vnictest.Peer, m *vnic.MR, n int) {
			y.QP.PostRecv(&rdma.RecvWR{
				SGEs: []rdma.SGE{{Addr: m.Addr(), Length: uint32(n), LKey: m.LKey()}}})
			x.Send(0, 0, n)
		}},
		{"Send from it", func(x, y *vnictest.Peer, m *vnic.MR, n int) {
			x.Recv(1, 0, n)
			y.Post(rdma.SendWR{Op: rdma.OpSend, SGEs: []rdma.SGE{{Addr: m.Addr(), Length: uint32(n),
				LKey: m.LKey()}}}, 0, 0)
		}},
		{"Read into it", func(x, y *vnictest.Peer, m *vnic.MR, n int) {
			y.Post(rdma.SendWR{Op: rdma.OpRead, SGEs: []rdma.SGE{{Addr: m.Addr(), Length: uint32(n),
				LKey: m.LKey()}}, RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey()}, 0, 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			try := func(t *testing.T, e *env, n int) {
				var calls atomic.Int32
				c := vnictest.Open(t, e.b.Device(), vnic.ContextConfig{OnViolation: func(error) {
					calls.Add(1)
				}})
				x, y := vnictest.NewQPs(t, e.a, c, vnictest.PeerConfig{Buffer: n}, vnictest.PeerConfig{})
				b, cut := mapping(t, n)
				var held atomic.Int32
				m, err := y.PD.RegisterRegion(vnic.Region{Bytes: b, Acquire: func() {
					held.Add(1)
				}, Release: func() { held.Add(-1) }}, 0x10000, uint64(n), vnictest.Full)
				if err != nil {
					t.Fatal(err)
				}
				if held.Load() != 1 {
					t.Error("not acquired")
				}
				cut()
				tt.do(x, y, m, n)
				y.WantDone("the connection ends")
				x.WantDone("on both sides")
				synctest.Wait()
				if calls.Load() != 1 {
					t.Errorf("%d octets: %d violations, want 1", n, calls.Load())
				}
				m.Close()
				m.Close()
				if held.Load() != 0 {
					t.Errorf("held %d times after Close", held.Load())
				}
			}
			onPaths(t, func(t *testing.T, e *env) {
				try(t, e, 4096)
				if e.loop {
					try(t, e, vnic.LongMessage) // which is copied in another way
				}
			})
		})
	}
}
