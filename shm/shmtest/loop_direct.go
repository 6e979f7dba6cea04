package shmtest

import (
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A loopPair is what two connected QPs share whose programs exchange messages without the Loop.
type loopPair struct {
	ring  *ring.Pair
	fd    int
	free  func()
	ends  [2]*loopQP
	has   [2]bool // whose programs have it
	users int     // QPs that have not been closed
	bad   int     // how often it made no sense

	wakers [2]int // by what a program wakes the other one, from when that has asked; 0: none
}

// side is which of the two q is.
func (p *loopPair) side(q *loopQP) int {
	if p.ends[1] == q {
		return 1
	}
	return 0
}

// Direct implements shm.QPHandler.
func (q *loopQP) Direct(alloc func(int) (*osmem.Region, int, func(), error),
	rep *rpc.DirectReply) (fd int, err error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	peer := q.peer
	if peer == nil || q.state != abi.StateRTS || peer.state != abi.StateRTS || q.srq != nil ||
		peer.srq != nil || !q.program.MayShare(peer.program) {
		return -1, syscall.EAGAIN
	}
	if q.pair == nil {
		if err := newLoopPair(q, peer, alloc); err != nil {
			return -1, err
		}
	}
	p := q.pair
	i := p.side(q)
	if p.has[i] {
		return -1, syscall.EAGAIN
	}
	if fd, err = osmem.DupFD(p.fd); err != nil {
		return -1, err
	}
	if p.has[i] = true; p.has[1-i] && !q.l.closed {
		p.ring.Dirs[0].Open()
		p.ring.Dirs[1].Open()
	}
	rep.Second, rep.Covered = uint32(i), 1
	return fd, nil
}

// DirectKeys and DirectMem implement server.QPHandler: a Loop tells of no keys.
func (q *loopQP) DirectKeys() (int, error)      { return -1, syscall.EAGAIN }
func (q *loopQP) DirectMem(uint32) (int, error) { return -1, syscall.EAGAIN }

// DirectSleep implements server.QPHandler.
func (q *loopQP) DirectSleep() (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if q.pair == nil {
		return -1, syscall.EAGAIN
	}
	sleeper, waker, err := osmem.NewWakePair()
	if err == nil {
		q.pair.wakers[1-q.pair.side(q)] = waker
		q.l.sleepers.Add(1)
	}
	return sleeper, err
}

// DirectWake implements server.QPHandler.
func (q *loopQP) DirectWake() (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if q.pair == nil {
		return -1, syscall.EAGAIN
	}
	fd := &q.pair.wakers[q.pair.side(q)]
	if *fd == 0 {
		return -1, syscall.EAGAIN
	}
	waker := *fd
	*fd = 0
	return waker, nil
}

// DirectBits implements server.QPHandler.
func (q *loopQP) DirectBits() (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if q.pair == nil {
		return -1, syscall.EAGAIN
	}
	return q.pair.ends[1-q.pair.side(q)].bits.Dup()
}

func newLoopPair(a, b *loopQP, alloc func(int) (*osmem.Region, int, func(), error)) error {
	p := &loopPair{ends: [2]*loopQP{a, b}, users: 2}
	ends := [2]ring.PairEnd{a.pairEnd(p), b.pairEnd(p)}
	mem, fd, free, err := alloc(ring.PairMemSize(&ends))
	if err != nil {
		return err
	}
	p.ring, p.fd, p.free = ring.NewPair(mem.Mem, &ends), fd, free
	a.pair, b.pair = p, p
	p.ring.Attach()
	return nil
}

func (q *loopQP) pairEnd(p *loopPair) ring.PairEnd {
	return ring.PairEnd{
		Rings: q.rings, SendCQ: q.scq.ring, RecvCQ: q.rcq.ring, Covered: true,
		Gone: q.program.Gone, Wake: func() { q.Bell(nil) }, Flushes: func() bool { return false },
		Sent: func(t ring.Traffic) { q.l.direct.Add(t.Messages) }, Received: func(ring.Traffic) {},
		Bad: func(error) {
			p.bad++
			go func() {
				q.l.mu.Lock()
				defer q.l.mu.Unlock()
				q.fail(0)
			}()
		},
	}
}

// notified raises the events that q's program has asked for.
func (q *loopQP) notified() {
	if p := q.pair; p != nil {
		p.ring.Dirs[p.side(q)].Notified()
		p.ring.Dirs[1-p.side(q)].Heard()
	}
}

// leavePair is for a QP that closes.
func (q *loopQP) leavePair() {
	p := q.pair
	if p == nil {
		return
	}
	q.pair = nil
	if p.users--; p.users == 0 {
		p.ring.End()
		osmem.CloseFD(p.fd)
		for _, fd := range p.wakers {
			if fd != 0 {
				osmem.CloseFD(fd)
			}
		}
		p.free()
	}
}

// Direct is how many messages have gone without the Loop, until now.
func (l *Loop) Direct() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.qps() {
		if p := q.pair; p != nil {
			p.ring.Dirs[p.side(q)].Count()
		}
	}
	return l.direct.Load()
}

// Bells is how often a bell has been rung.
func (l *Loop) Bells() uint64 { return l.bells.Load() }

// Sleepers is how many programs have asked for what a peer wakes them by.
func (l *Loop) Sleepers() uint64 { return l.sleepers.Load() }

// OpenDirect gives all pairs to their programs, or takes them back, for as long as it is not called
// again.
func (l *Loop) OpenDirect(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = !open
	for _, q := range l.qps() {
		p := q.pair
		if p == nil || !p.has[0] || !p.has[1] || q.state != abi.StateRTS {
			continue
		}
		if d := &p.ring.Dirs[p.side(q)]; open {
			d.Open()
		} else {
			d.Shut()
		}
	}
}
