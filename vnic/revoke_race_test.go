package vnic_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Owners of memory open and revoke parts of it in every way there is, while peers on other
// connections of the same protection domain write and read what is open, what has been revoked and
// what is for another connection. Two oracles watch. Memory that is revoked is the owner's: it
// writes and compares it, so that a copy that goes on shows as a difference or, under the race
// detector, as a race. And each access is answered as its grant was: carried out while it was open,
// refused with exactly the code of docs/decisions.md#access-checks when it was not. SEC-014,
// SEC-006, SEC-017, DDP-096, DDP-099, RDMAP-072, RDMAP-125.
func TestRevokeRace(t *testing.T) {
	for _, tt := range []struct {
		name         string
		loop, staged bool
	}{{"loop", true, false}, {"wire", false, false}, {"wire-staged", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			n := vnictest.NewNet()
			n.Plain = true
			d1, d2 := n.Pair(t)
			if tt.loop {
				d2 = d1
			}
			lots := vnic.ContextConfig{Limits: vnic.Limits{QP: 1 << 14, CQ: 1 << 15}}
			a, b := vnictest.Open(t, d1, lots), vnictest.Open(t, d2, lots)
			if tt.staged {
				if err := b.AllowBlocking(); err != nil {
					t.Fatal(err)
				}
			}
			y := vnictest.NewPeer(t, b, vnictest.PeerConfig{Access: bindable})
			w := &revokeRace{t: t, a: a, y: y, stop: make(chan struct{})}
			const cycles = 150
			var owners, peers sync.WaitGroup
			ready := make(chan struct{})
			for i := range 2 {
				peers.Go(func() { w.peer(rand.New(rand.NewPCG(uint64(i), 1)), i, ready) })
			}
			<-ready
			<-ready
			// Again, if the peers had no turn meanwhile: the machine may be busy.
			for round := uint64(0); round == 0 || round < 50 && (w.done.Load() == 0 ||
				w.refused.Load() == 0); round++ {
				for i := range 3 {
					owners.Go(func() { w.owner(rand.New(rand.NewPCG(uint64(i), 2+2*round)), i, cycles) })
				}
				for i := range 2 {
					owners.Go(func() {
						w.streamOwner(rand.New(rand.NewPCG(uint64(i), 3+2*round)), i, 3+i, cycles)
					})
				}
				owners.Wait()
			}
			close(w.stop)
			peers.Wait()
			t.Logf(
				"carried out %d, refused %d: %d of them in a race with the end, %d for another connection",
				w.done.Load(), w.refused.Load(), w.raced.Load(), w.foreign.Load())
			if w.done.Load() == 0 || w.refused.Load() == 0 {
				t.Error("the test did not test")
			}
			for _, i := range b.Device().MRs(b) {
				if i.Kind == "fast" || i.Users != 0 {
					t.Errorf("left: %+v", i)
				}
			}
			if i := b.Device().MWs(b); len(i) != 0 {
				t.Errorf("left: %+v", i)
			}
			if err := y.MR.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

const slotLen = 8 << 10 // octets of each owner's part of the buffer

type revokeRace struct {
	t    *testing.T
	a    *vnic.Context
	y    *vnictest.Peer // its PD is everybody's
	stop chan struct{}

	mu      sync.Mutex
	grants  []*grant       // guarded by mu: the latest ones, open or not
	streams [2]*raceEnd    // guarded by mu: the connections that are under attack
	asks    [2]chan uint32 // made under mu: keys to be invalidated by the peer of a stream

	done, refused, raced, foreign atomic.Int64
}

// A raceEnd is y's end of a connection under attack.
type raceEnd struct {
	p     *vnictest.Peer
	index int
	over  atomic.Bool // both QPs are closed
}

// A grant is memory that is, or was, open to peers.
type grant struct {
	key    uint32
	addr   uint64
	stream *raceEnd // nil: all connections of the PD
	state  atomic.Int32
}

const (
	grantOpen int32 = iota
	grantEnding
	grantOver
)

func (w *revokeRace) publish(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.grants = append(w.grants, g); len(w.grants) > 24 {
		w.grants = w.grants[1:]
	}
}

// hold is what an owner does while nobody may touch its memory: fill it, look at it.
func (w *revokeRace) hold(mem []byte, v byte) {
	for i := range mem {
		mem[i] = v
	}
	runtime.Gosched()
	for i := range mem {
		if mem[i] != v {
			w.t.Errorf("octet %d was changed to %#x while nothing was open", i, mem[i])
			return
		}
	}
}

func pause(rng *rand.Rand) {
	for range rng.IntN(60) {
		runtime.Gosched()
	}
}

// end is one connection more of y's PD, whose CQs nobody else polls.
func (w *revokeRace) end() (x, y *vnictest.Peer) {
	z := *w.y
	cfg := w.y.QP.Config()
	var err error
	if z.SendCQ, err = z.Ctx.NewCQ(vnic.CQOptions{Depth: 256}); err == nil {
		z.RecvCQ, err = z.Ctx.NewCQ(vnic.CQOptions{Depth: 256})
	}
	if err != nil {
		w.t.Error(err)
	}
	cfg.SendCQ, cfg.RecvCQ = z.SendCQ, z.RecvCQ
	if z.QP, err = z.PD.NewQP(vnic.QPOptions{QPConfig: cfg}); err != nil {
		w.t.Error(err)
	}
	x = vnictest.NewPeer(w.t, w.a, vnictest.PeerConfig{Buffer: slotLen})
	vnictest.Connect(w.t, x, &z)
	return x, &z
}

// owner opens its part to all connections of the PD, and ends that again.
func (w *revokeRace) owner(rng *rand.Rand, slot, cycles int) {
	_, c := w.end() // requests of its own
	defer c.QP.Close()
	off := slot * slotLen
	mem := w.y.Buf[off : off+slotLen]
	const rights = rdma.RemoteWrite | rdma.RemoteRead
	must := func(wr rdma.SendWR) {
		c.Post(wr, 0, 0)
		c.WantSend("an owner's request", is(wr.ID, ok))
	}
	w1, err1 := c.PD.NewMW(rdma.MWType1)
	f, err2 := c.PD.NewFastMR(slotLen)
	if err := errors.Join(err1, err2); err != nil {
		w.t.Error(err)
		return
	}
	wkey, fkey := w1.RKey(), f.RKey()
	for i := range cycles {
		w.hold(mem, byte(i))
		g := &grant{addr: c.MR.Addr() + uint64(off)}
		var end func()
		switch rng.IntN(3) {
		case 0:
			m, err := c.PD.RegisterMemory(mem, vnictest.Full)
			if err != nil {
				w.t.Error(err)
				return
			}
			g.key = m.RKey()
			end = func() { m.Close() }
			if rng.IntN(2) == 0 {
				end = func() { must(localInv(g.key)); m.Close() }
			}
		case 1:
			fkey = rdma.NextKey(fkey)
			g.key = fkey
			must(regMR(c, fkey, off, slotLen, vnictest.Full))
			end = func() { must(localInv(g.key)) }
			if rng.IntN(8) == 0 {
				end = func() {
					f.Close()
					if f, err2 = c.PD.NewFastMR(slotLen); err2 != nil {
						w.t.Error(err2)
					}
					fkey = f.RKey()
				}
			}
		default:
			wkey = rdma.NextKey(wkey)
			g.key = wkey
			must(bindMW(c, wkey, off, slotLen, rights))
			end = func() { must(rdma.SendWR{ID: 1, Op: rdma.OpBindMW, RKey: wkey}) }
			switch rng.IntN(8) {
			case 0:
				end = func() {
					w1.Close()
					if w1, err1 = c.PD.NewMW(rdma.MWType1); err1 != nil {
						w.t.Error(err1)
					}
					wkey = w1.RKey()
				}
			case 1, 2, 3: // bound to something else; the next binding ends that
				end = func() {
					wkey = rdma.NextKey(wkey)
					must(bindMW(c, wkey, 7*slotLen, 8, 0))
				}
			}
		}
		w.publish(g)
		pause(rng)
		g.state.Store(grantEnding)
		end()
		w.hold(mem, byte(i)^0x55) // before the state: from now on nobody is in there
		g.state.Store(grantOver)
	}
	w1.Close()
	f.Close()
}

// streamOwner opens its part to one connection under attack, by windows of type 2.
func (w *revokeRace) streamOwner(rng *rand.Rand, stream, slot, cycles int) {
	off := slot * slotLen
	mem := w.y.Buf[off : off+slotLen]
	for i := range cycles {
		w.mu.Lock()
		s, ask := w.streams[stream], w.asks[stream]
		w.mu.Unlock()
		w.hold(mem, byte(i))
		win, err := w.y.PD.NewMW(rdma.MWType2)
		if err != nil {
			w.t.Error(err)
			return
		}
		g := &grant{key: rdma.NextKey(win.RKey()), addr: w.y.MR.Addr() + uint64(off), stream: s}
		c := s.p
		post := func(wr rdma.SendWR) bool {
			wr.Flags |= rdma.Signaled
			if c.QP.PostSend(&wr) != nil {
				return false // its connection has ended
			}
			switch st := c.Next(c.SendCQ, 1)[0].Status; st {
			case ok:
				return true
			case flush:
			default:
				w.t.Errorf("%v: %v", wr.Op, st)
			}
			return false
		}
		if post(bindMW(c, g.key, off, slotLen, rdma.RemoteWrite|rdma.RemoteRead)) {
			w.publish(g)
			pause(rng)
			g.state.Store(grantEnding)
			switch rng.IntN(3) {
			case 0:
				if !post(localInv(g.key)) {
					win.Close()
				}
			case 1:
				if c.QP.PostRecv(&rdma.RecvWR{ID: 1}) != nil {
					win.Close()
					break
				}
				select {
				case ask <- g.key:
				default:
				}
				// The receive completes or flushes: the peer carries on until it is refused.
				wc := c.Next(c.RecvCQ, 1)[0]
				if wc.Status != ok || wc.Flags&rdma.WCWithInv == 0 {
					win.Close()
				} else if wc.Imm != g.key {
					w.t.Errorf("key %#x was invalidated, want %#x", wc.Imm, g.key)
				}
			default:
				win.Close()
			}
			w.hold(mem, byte(i)^0x55)
			g.state.Store(grantOver)
		} else {
			runtime.Gosched()
		}
		win.Close()
	}
}

// peer attacks over one connection after another.
func (w *revokeRace) peer(rng *rand.Rand, stream int, ready chan struct{}) {
	for first := true; ; first = false {
		x, y := w.end()
		s := &raceEnd{p: y, index: stream}
		ask := make(chan uint32, 1)
		w.mu.Lock()
		w.streams[stream], w.asks[stream] = s, ask
		w.mu.Unlock()
		if first {
			ready <- struct{}{}
		}
		stopped := w.attack(rng, x, s, ask)
		x.QP.Close()
		y.QP.Abort() // what its owner posted flushes
		<-y.Conn.Done()
		if err := errors.Join(x.MR.Close(), x.PD.Close(), x.SendCQ.Close(),
			x.RecvCQ.Close()); err != nil {
			w.t.Error(err)
		}
		s.over.Store(true)
		if stopped {
			return
		}
	}
}

// attack accesses what is and what was open until it is refused (false) or the test is over.
func (w *revokeRace) attack(rng *rand.Rand, x *vnictest.Peer, s *raceEnd, ask chan uint32) (
	stopped bool) {
	for {
		select {
		case <-w.stop:
			return true
		case key := <-ask:
			x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSendInv, InvKey: key}, 0, 0)
			if st := x.Next(x.SendCQ, 1)[0].Status; st != ok {
				w.t.Errorf("Send with Invalidate: %v", st)
				return false
			}
			continue
		default:
		}
		w.mu.Lock()
		var g *grant
		if n := len(w.grants); n > 0 {
			g = w.grants[n-1]
			if rng.IntN(4) == 0 {
				g = w.grants[rng.IntN(n)]
			}
		}
		w.mu.Unlock()
		if g == nil {
			runtime.Gosched()
			continue
		}
		if g.stream == s || g.stream == nil || rng.IntN(10) == 0 {
			if !w.access(rng, x, s, g) {
				return false
			}
		}
	}
}

// access makes one access through g, and judges the answer; false: it was refused.
func (w *revokeRace) access(rng *rand.Rand, x *vnictest.Peer, s *raceEnd, g *grant) bool {
	before := g.state.Load()
	gone := g.stream != nil && g.stream.over.Load()
	// Each peer has a half of its own: two in one place would be a race of theirs.
	const half = slotLen / 2
	op, n := rdma.OpRead, 1+rng.IntN(half)
	if rng.IntN(2) == 0 {
		op = rdma.OpWrite
	}
	x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: g.addr + uint64(s.index)*half, RKey: g.key}, 0, n)
	x.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead}, 0, 0) // the answer comes behind it
	wc := x.Next(x.SendCQ, 2)
	after := g.state.Load()
	done := wc[0].Status == ok && wc[1].Status == ok
	bad := func(format string, args ...any) {
		w.t.Errorf("%v of a grant %d before and %d after, for another connection: %v: %s", op, before,
			after, g.stream != nil && g.stream != s, fmt.Sprintf(format, args...))
	}
	open := !gone && before != grantOver
	if done {
		w.done.Add(1)
		if !open || g.stream != nil && g.stream != s {
			bad("carried out")
		}
		return true
	}
	w.refused.Add(1)
	var te *rdma.TerminateError
	if err := x.WantDone("refused"); !errors.As(err, &te) || !te.Remote {
		bad("ended by %v", err)
		return false
	}
	got := term{te.Layer, te.Type, te.Code}
	invalid, other := term{1, 1, 0}, term{1, 1, 2}
	if op == rdma.OpRead {
		invalid, other = term{0, 1, 0}, term{0, 1, 3}
	}
	switch {
	case g.stream != nil && g.stream != s:
		w.foreign.Add(1)
		if got != invalid && (got != other || !open) {
			bad("refused with %v", got)
		}
		if got == invalid && open && after == grantOpen && !g.stream.over.Load() &&
			g.stream.p.QP.State() == rdma.QPRTS {
			bad("refused with %v, want %v", got, other)
		}
	case got != invalid:
		bad("refused with %v, want %v", got, invalid)
	case open && after == grantOpen:
		bad("refused")
	case open:
		w.raced.Add(1)
	}
	return false
}
