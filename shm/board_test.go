package shm_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
)

// A many is two programs with many QPs between them, of which each has one CQ.
type many struct {
	*host
	t    testing.TB
	cqs  [2]rdma.CQ
	ends [2][]*node
	of   [2]map[uint32]int // which QP has a number

	posted, sent, got, over [2][]int // of each: receives, and messages that were sent, came and ended
}

const manyDepth = 4

// newMany makes so many, and has all of them have a direct path.
func newMany(t testing.TB, qps int) *many {
	t.Helper()
	m := &many{host: newDirectHost(t), t: t}
	for k := range m.cqs {
		dev := m.open(fmt.Sprint("loop", k))
		m.cqs[k], m.of[k] = must(dev.CreateCQ(2*qps*manyDepth))(t), make(map[uint32]int)
		for range qps {
			n := &node{t: t, dev: dev, pd: must(dev.AllocPD())(t), scq: m.cqs[k], rcq: m.cqs[k]}
			n.buf = must(dev.AllocBuffer(4096))(t)
			n.mr = must(n.pd.RegisterMemory(n.buf.Bytes(), allRights))(t)
			m.ends[k] = append(m.ends[k], n)
		}
		for _, of := range []*[2][]int{&m.posted, &m.sent, &m.got, &m.over} {
			of[k] = make([]int, qps)
		}
	}
	for i := range qps {
		m.newQP(0, i)
		m.newQP(1, i)
		connect(t, m.ends[0][i], m.ends[1][i])
	}
	m.allDirect()
	return m
}

// newQP makes QP i of program k.
func (m *many) newQP(k, i int) {
	n := m.ends[k][i]
	n.qp = must(n.pd.CreateQP(rdma.QPConfig{SendCQ: n.scq, RecvCQ: n.rcq, MaxSendWR: manyDepth,
		MaxRecvWR: manyDepth, MaxInline: 64}))(m.t)
	m.of[k][n.qp.Num()] = i
	m.posted[k][i], m.sent[k][i], m.got[k][i], m.over[k][i] = 0, 0, 0, 0
}

// allDirect has each send messages until all of a round go directly, which needs some posts.
func (m *many) allDirect() {
	m.t.Helper()
	ctx := testContext(m.t)
	for n := uint64(0); n < uint64(2*len(m.ends[0])); {
		check(m.t, ctx.Err())
		was := m.loop.Direct()
		for k := range m.ends {
			for i := range m.ends[k] {
				m.post(k, i)
				m.send(1-k, i)
			}
		}
		m.drain()
		n = m.loop.Direct() - was
	}
}

// post posts one receive if there is room.
func (m *many) post(k, i int) {
	if m.posted[k][i]-m.got[k][i] < manyDepth {
		e := m.ends[k][i]
		check(m.t, e.qp.PostRecv(&rdma.RecvWR{ID: uint64(m.posted[k][i]),
			SGEs: []rdma.SGE{e.sge(m.posted[k][i]%manyDepth*64, 64)}}))
		m.posted[k][i]++
	}
}

// send sends the next message of QP i, in which is what it is, if it has a receive.
func (m *many) send(k, i int) {
	if m.sent[k][i]-m.over[k][i] < manyDepth && m.sent[k][i] < m.posted[1-k][i] {
		b := make([]byte, 16)
		binary.NativeEndian.PutUint64(b, uint64(i))
		binary.NativeEndian.PutUint64(b[8:], uint64(m.sent[k][i]))
		check(m.t, m.ends[k][i].qp.PostSend(&rdma.SendWR{ID: uint64(m.sent[k][i]), Op: rdma.OpSend,
			Flags: rdma.Signaled | rdma.Inline, Inline: b}))
		m.sent[k][i]++
	}
}

// poll takes up to n completions of one of the CQs, each of which is the next of its kind.
func (m *many) poll(k, n int) int {
	m.t.Helper()
	wc := make([]rdma.WC, n)
	got := must(m.cqs[k].Poll(wc))(m.t)
	for _, wc := range wc[:got] {
		i, ok := m.of[k][wc.QPN]
		if !ok || wc.Status != rdma.WCSuccess {
			m.t.Fatalf("program %d: %+v", k, wc)
		}
		next := &m.got[k][i]
		if wc.Op == rdma.WCSend {
			next = &m.over[k][i]
		}
		if wc.ID != uint64(*next) {
			m.t.Fatalf("program %d: QP %d: %+v, want %d", k, i, wc, *next)
		}
		if wc.Op == rdma.WCRecv {
			b := m.ends[k][i].buf.Bytes()[*next%manyDepth*64:]
			qp, id := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
			if wc.ByteLen != 16 || qp != uint64(i) || id != wc.ID || m.sent[1-k][i] <= *next {
				m.t.Fatalf("program %d: QP %d: message %d of QP %d has come for %+v", k, i, id, qp, wc)
			}
		}
		*next++
	}
	return got
}

// isDrained reports whether all has come and ended.
func (m *many) isDrained() bool {
	for k := range m.ends {
		for i := range m.ends[k] {
			if m.over[k][i] != m.sent[k][i] || m.got[k][i] != m.sent[1-k][i] {
				return false
			}
		}
	}
	return true
}

func (m *many) drain() {
	m.t.Helper()
	for ctx := testContext(m.t); !m.isDrained(); {
		check(m.t, ctx.Err())
		m.poll(0, 8)
		m.poll(1, 8)
	}
}

// traffic does so many random things.
func (m *many) traffic(rnd *rand.Rand, steps int) {
	m.t.Helper()
	for range steps {
		k, i := rnd.IntN(2), rnd.IntN(len(m.ends[0]))
		switch rnd.IntN(4) {
		case 0:
			m.poll(k, 1+rnd.IntN(6))
		case 1:
			m.post(k, i)
		default:
			m.post(1-k, i)
			m.send(k, i)
		}
	}
	m.drain()
}

// Many QPs that complete on one CQ have a direct path, all of them, and each of their completions
// comes once and in order.
func TestDirectMany(t *testing.T) {
	m := newMany(t, 70)
	before := m.loop.Direct()
	const steps = 20000
	m.traffic(rand.New(rand.NewPCG(1, 1)), steps)
	sent, posts := 0, m.loop.Direct()-before
	for k := range m.ends {
		for _, n := range m.sent[k] {
			sent += n - 1
		}
	}
	if posts < steps/4 || posts*10 < uint64(sent)*9 {
		t.Errorf("%d of %d messages were direct in %d steps", posts, sent, steps)
	}
	// The daemon has them between; who had a place goes, and others have it.
	m.loop.OpenDirect(false)
	m.traffic(rand.New(rand.NewPCG(2, 1)), steps/10)
	m.loop.OpenDirect(true)
	m.traffic(rand.New(rand.NewPCG(3, 1)), steps/10)
	for _, i := range []int{0, 20, 69} {
		for k := range m.ends {
			check(t, m.ends[k][i].qp.Close())
			delete(m.of[k], m.ends[k][i].qp.Num())
			m.newQP(k, i)
		}
		connect(t, m.ends[0][i], m.ends[1][i])
	}
	m.traffic(rand.New(rand.NewPCG(4, 1)), steps/10)
	m.allDirect()
}

// Who sleeps until there is an event misses no message of any of many QPs.
func TestDirectManyEvents(t *testing.T) {
	m := newMany(t, 40)
	rnd := rand.New(rand.NewPCG(5, 1))
	ctx := testContext(t)
	next, done := make(chan int), make(chan error, 1)
	go func() {
		for i := range next {
			m.send(0, i)
			done <- nil
		}
	}()
	before := m.loop.Direct()
	const rounds = 300
	for range rounds {
		i := rnd.IntN(len(m.ends[0]))
		m.post(1, i)
		check(t, m.cqs[1].Arm(false))
		if n := m.poll(1, 4); n != 0 {
			t.Fatalf("%d completions of nothing", n)
		}
		next <- i // while it is about to wait
		check(t, m.cqs[1].Wait(ctx))
		<-done
		if n := m.poll(1, 4); n != 1 {
			t.Fatalf("%d completions behind an event of QP %d, want 1", n, i)
		}
		m.drain()
	}
	close(next)
	if n := m.loop.Direct() - before; n != rounds {
		t.Errorf("%d of %d messages were direct", n, rounds)
	}
}

// What a peer writes into the bitmap says no more than where to look: with one that sets all bits
// all the time, and one that clears them, each completion comes once, and who sleeps is told.
func TestDirectManyHostile(t *testing.T) {
	for name, word := range map[string]uint32{"all": ^uint32(0), "none": 0} {
		t.Run(name, func(t *testing.T) {
			m := newMany(t, 70)
			var over atomic.Bool
			var hostile sync.WaitGroup
			for _, cq := range m.cqs {
				words := abi.Words(shm.CQBits(cq), abi.BitsHeaderLen, abi.MaxBits/32)
				hostile.Go(func() {
					for !over.Load() {
						for i := range words {
							words[i].Store(word)
						}
					}
				})
			}
			defer hostile.Wait()
			defer over.Store(true)
			rnd := rand.New(rand.NewPCG(5, 1))
			m.traffic(rnd, 3000)
			ctx := testContext(t)
			for range 50 {
				i := rnd.IntN(len(m.ends[0]))
				m.post(1, i)
				m.send(0, i)
				for m.got[1][i] != m.sent[0][i] {
					check(t, m.cqs[1].Arm(false))
					if m.poll(1, 4) == 0 {
						check(t, m.cqs[1].Wait(ctx))
					}
				}
				m.drain()
			}
		})
	}
}
