package queue

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// One goroutine posts, another takes, and a third polls, without a common lock: what is taken is
// what was posted, in order, and no more is posted than the queue holds. Batches run it full, and
// empty, where it begins again with its first slot.
func TestOwnQueues(t *testing.T) {
	for _, depth := range []int{1, 2, 5, 8} {
		const messages = 20000
		cfg := &rdma.QPConfig{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2,
			MaxInline: 8}
		q := new(Local)
		q.init(cfg, true)
		polls := make(chan int, depth+1)
		go func() {
			rnd := rand.New(rand.NewPCG(uint64(depth), 1))
			for i := 0; i < messages; {
				q.LockSend()
				for n := rnd.IntN(depth) + 1; n > 0 && i < messages; n-- {
					wr := rdma.SendWR{ID: uint64(i), SGEs: []rdma.SGE{{Addr: uint64(i)},
						{Addr: uint64(i + 1)}}[:1+i%2]}
					if i%5 == 0 {
						wr.Flags, wr.Inline = rdma.Inline, []byte{byte(i)}
					}
					switch i % 11 {
					case 3:
						wr.Op, wr.Atomic.Swap = rdma.OpCompareSwap, uint64(i)
					case 4:
						wr.Op, wr.Range.Length = rdma.OpRegMR, uint64(i)
					}
					if q.PostSend(&wr) != nil {
						break
					}
					i++
				}
				q.UnlockSend()
				for range rnd.IntN(3) {
					runtime.Gosched()
				}
			}
		}()
		go func() { // and polls may lag behind
			for done := range polls {
				q.polledSends(1, uint32(done))
			}
		}()
		var wr rdma.SendWR
		for i := 0; i < messages; {
			ok, err := q.Next(&wr)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				runtime.Gosched()
				continue
			}
			inline := i%5 == 0
			switch {
			case wr.ID != uint64(i):
				t.Fatalf("depth %d: request %d was taken as number %d", depth, wr.ID, i)
			case inline && (len(wr.Inline) != 1 || wr.Inline[0] != byte(i)),
				!inline && (len(wr.SGEs) != 1+i%2 || wr.SGEs[0].Addr != uint64(i)):
				t.Fatalf("depth %d: request %d was taken changed: %+v", depth, i, wr)
			case wr.Op == rdma.OpCompareSwap && wr.Atomic.Swap != uint64(i), wr.Op == rdma.OpRegMR &&
				wr.Range.Length != uint64(i):
				t.Fatalf("depth %d: request %d was taken with the fields of another: %+v", depth, i, wr)
			case (i%11 == 3) != (wr.Op == rdma.OpCompareSwap), (i%11 == 4) != (wr.Op == rdma.OpRegMR):
				t.Fatalf("depth %d: request %d was taken with opcode %v", depth, i, wr.Op)
			case !inline && len(wr.SGEs) == 2 && wr.SGEs[1].Addr != uint64(i+1):
				t.Fatalf("depth %d: request %d was taken with another SGE: %+v", depth, i, wr)
			}
			i++
			if i%3 == 0 {
				q.retire(1, 0)
			} else {
				q.retire(1, unpolledOne)
				polls <- i
			}
		}
		close(polls)
	}
}

// A slot that is free stays free when a completion waits: many requests without one, then one with.
func TestFreeSlotsStayFree(t *testing.T) {
	const depth = 4
	q := new(Local)
	q.init(&rdma.QPConfig{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, true)
	post := func() error {
		q.LockSend()
		defer q.UnlockSend()
		return q.PostSend(&rdma.SendWR{})
	}
	done := uint32(0)
	for round := range 3 {
		for range 3 * depth {
			if err := post(); err != nil {
				t.Fatalf("round %d, without completions: %v", round, err)
			}
			q.retire(1, 0)
			done++
		}
		for range 2 { // one completion waits, then two
			if err := post(); err != nil {
				t.Fatalf("round %d, with completions: %v", round, err)
			}
			q.retire(1, unpolledOne)
			done++
		}
		for i := range depth {
			if err := post(); (err == nil) != (i < depth-2) {
				t.Fatalf("round %d, %d slots behind two completions: %v", round, i, err)
			}
		}
		q.retire(depth-2, 0)
		q.polledSends(2, done)
		done += depth - 2
	}
}

// A completion queue as large as its one QP's send queue never overruns, whoever posts and polls at
// the same time, and who arms it, polls once more and finds nothing is woken.
func TestCQSides(t *testing.T) {
	var c Space
	c.Init(Config{CQ: 1, CQDepth: 32})
	for _, depth := range []int{1, 4, 32} {
		const messages = 20000
		cq, err := c.NewCQ(CQOptions{Depth: depth})
		if err != nil {
			t.Fatal(err)
		}
		q := new(Local)
		q.init(&rdma.QPConfig{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, true)
		p := &Pair{Local: q}
		go func() {
			var taken rdma.SendWR
			for i := 0; i < messages; {
				q.LockSend()
				err := q.PostSend(&rdma.SendWR{ID: uint64(i)})
				q.UnlockSend()
				if err != nil {
					runtime.Gosched()
					continue
				}
				i++
				if ok, err := q.Next(&taken); !ok || err != nil {
					t.Errorf("nothing to take: %v", err)
				}
				q.retire(1, unpolledOne)
				cq.Lock()
				cq.addLocked(p, &rdma.WC{ID: taken.ID}, 0, uint32(i), true, i%2 == 0)
				cq.Unlock()
			}
		}()
		wcs := make([]rdma.WC, 3)
		for next, armed := 0, false; next < messages; {
			n, err := cq.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			for _, wc := range wcs[:n] {
				if wc.ID != uint64(next) {
					t.Fatalf("depth %d: completion %d was polled as number %d", depth, wc.ID, next)
				}
				next++
			}
			switch {
			case n > 0:
				armed = false
			case !armed:
				if err := cq.Arm(false); err != nil {
					t.Fatal(err)
				}
				armed = true
			default:
				select {
				case <-cq.event:
					armed = false
				case <-time.After(time.Minute):
					t.Fatalf("depth %d: armed and not woken after %d completions; %d are there", depth, next,
						cq.prod.Load())
				}
			}
		}
		if cq.overrun {
			t.Errorf("depth %d: the queue overran", depth)
		}
		if err := cq.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := cq.Poll(wcs); err == nil {
			t.Error("a closed queue was polled")
		}
	}
}
