// Package direct says which queue pairs of a device exchange messages without the daemon, and keeps
// the memory that two of them have in common: docs/direct.md. What is in that memory is
// shm/ring's.
package direct

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A Directory are the QPs of a device that can have a direct path, by number. Its lock guards which
// of them share a pair; with it held, those of QPs, CQs and rings are taken, and nobody takes it
// with one of those held.
type Directory struct {
	// Off has none have a direct path.
	Off bool

	count counts

	mu   sync.Mutex
	ends map[uint32]*End // +checklocks:mu
}

// counts are of messages, among those of the RNIC.
type counts struct{ sends, receives, immediates, writes, reads, atomics atomic.Uint64 }

// Counts are how many messages have gone without the daemon. Immediates are not among Sends, and
// those behind a Write count as a Write, too.
type Counts struct {
	Sends      uint64 `json:"direct_sends"`
	Receives   uint64 `json:"direct_receives"`
	Immediates uint64 `json:"direct_immediates"`
	Writes     uint64 `json:"direct_writes"`
	Reads      uint64 `json:"direct_reads"`
	Atomics    uint64 `json:"direct_atomics"`
}

func (c *counts) now() Counts {
	return Counts{c.sends.Load(), c.receives.Load(), c.immediates.Load(), c.writes.Load(),
		c.reads.Load(), c.atomics.Load()}
}

// Counts are those of the device, as of when its QPs were last counted.
func (d *Directory) Counts() Counts { return d.count.now() }

// CountsOf are those of QP num.
func (d *Directory) CountsOf(num uint32) Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.ends[num]; e != nil {
		return e.count.now()
	}
	return Counts{}
}

// An End is a QP, as far as it is concerned.
type End struct {
	Program        *server.Session
	Rings          *ring.DaemonQP
	SendCQ, RecvCQ *ring.CQProducer
	Bits           *server.Bits // of RecvCQ
	Domain         *Domain
	RoCE           bool
	Log            *slog.Logger

	qp   *vnic.QP
	dir  *Directory
	pair atomic.Pointer[pair] // or nil; changed with dir.mu held
	// before is the pair of the connection before, or nil: the program may not have polled all that
	// came by it. dir.mu guards it.
	before *pair
	count  counts
}

// A pair is what two QPs share. What has no lock of its own is guarded by the directory's.
type pair struct {
	ring  *ring.Pair
	fd    descriptor
	free  func()
	ends  [2]*End
	has   [2]bool // whose programs have it
	users int     // of ends, that keep it
	// wakers are by what a program wakes the other one, from when that has asked for its end until
	// it asks itself; asleep says who has.
	wakers [2]descriptor
	asleep [2]bool
	over   atomic.Bool
	// covered says whose CQs have room for all that their queues can have in them
	// (docs/decisions.md#X11).
	covered [2]bool
	// reach is what each may do with the other's memory, as it was when the pair was made.
	reach [2]rdma.Access
}

// A descriptor is one that a program has not been given yet. Any lock may be held.
type descriptor struct {
	of *server.Session // whose it counts as
	mu sync.Mutex
	fd int // +checklocks:mu
}

// dup is one of the same memory; EAGAIN: it is closed.
func (d *descriptor) dup() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return -1, syscall.EAGAIN
	}
	return osmem.DupFD(d.fd)
}

func (d *descriptor) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd >= 0 {
		osmem.CloseFD(d.fd)
		d.of.GiveDescriptor()
		d.fd = -1
	}
}

// end has p be used no more, but for what has come by it.
func (p *pair) end() {
	p.over.Store(true)
	p.ring.Shut()
	p.fd.close() // a program that has not asked for it finds another one
	p.wakers[0].close()
	p.wakers[1].close()
}

// side is which of the two e is.
func (p *pair) side(e *End) int {
	if p.ends[1] == e {
		return 1
	}
	return 0
}

// isWhole reports whether both programs have it.
func (p *pair) isWhole() bool { return p.has[0] && p.has[1] }

// reaches is what each may do with the other's memory now.
func (p *pair) reaches() [2]rdma.Access {
	a, b := p.ends[0].qp, p.ends[1].qp
	return [2]rdma.Access{a.Reaches(b), b.Reaches(a)}
}

// Add has e, which is qp, be found.
func (d *Directory) Add(e *End, qp *vnic.QP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ends == nil {
		d.ends = make(map[uint32]*End)
	}
	e.dir, e.qp = d, qp
	d.ends[qp.Num()] = e
}

// Remove forgets e, and its pair. Its QP is closed, or nobody runs it any more.
func (e *End) Remove() {
	if e.dir == nil {
		return // it was never added
	}
	e.dir.mu.Lock()
	defer e.dir.mu.Unlock()
	if e.dir.ends[e.qp.Num()] == e {
		delete(e.dir.ends, e.qp.Num())
	}
	e.dir.nextLocked(e, nil)
	e.dir.nextLocked(e, nil)
}

// nextLocked has e have pair p, or none, and keep the one before; that before it is let go. To free
// that can take for ever: e's program is at the mercy of the other one, and the daemon is not.
//
// +checklocks:d.mu
func (d *Directory) nextLocked(e *End, p *pair) {
	was, gone := e.pair.Load(), e.before
	if was != nil {
		was.end()
		e.Count()
	}
	e.pair.Store(p)
	e.before = was
	if gone == nil {
		return
	}
	gone.ring.Leave(gone.side(e))
	if gone.users--; gone.users == 0 {
		gone.ring.End()
		for i, to := range gone.ends {
			to.Domain.leave(&gone.ring.Dirs[1-i])
		}
		e.Program.Later(gone.free)
	}
}

// mayMoveOn reports whether e's program has left the pair before the last one, or never had it: it
// asks for one, and takes it, when it has polled all that came by the one that it had.
func (e *End) mayMoveOn() bool {
	p, was := e.pair.Load(), e.before
	return was == nil || p.has[p.side(e)] || !was.has[was.side(e)]
}

// isSettled ends e's pair, if it has one, and reports whether the daemon knows which receives have
// been used by it. Another one begins behind these.
func (e *End) isSettled() (ok bool) {
	e.Shut()
	e.qp.WithReceives(func() { ok = e.Rings.RQ.Settle() })
	return ok
}

// Shut takes both directions of e's pair, if it has one, from the programs for good. Any goroutine
// may call it, with the QP's locks held.
func (e *End) Shut() {
	if p := e.pair.Load(); p != nil {
		p.end()
	}
}

// Notified does what e's program has asked for by a bell: events, or the end of the connection.
func (e *End) Notified() {
	if p := e.pair.Load(); p != nil {
		i := p.side(e)
		p.ring.Dirs[i].Notified()
		p.ring.Dirs[1-i].Heard()
	}
}

// Count tells e's QP, and its peer's, what they have exchanged. Any lock may be held but that of a
// pair.
func (e *End) Count() {
	if p := e.pair.Load(); p != nil {
		p.ring.Dirs[0].Count()
		p.ring.Dirs[1].Count()
	}
}

// Pair gives a descriptor of the memory that e and its peer share, and says whether e is the second
// of the two, and whether its CQs are covered; EAGAIN: there is none now. alloc makes such memory,
// and what gives it back.
func (e *End) Pair(alloc func(size int) (*osmem.Region, int, func(), error)) (
	fd int, second, covered bool, err error,
) {
	d := e.dir
	if d == nil {
		return -1, false, false, syscall.EAGAIN
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	peer, _ := d.peerLocked(e)
	if peer == nil {
		return -1, false, false, syscall.EAGAIN
	}
	p := e.pair.Load()
	if p == nil || p.over.Load() || p.ends[1-p.side(e)] != peer {
		if !e.mayMoveOn() || !peer.mayMoveOn() || !e.isSettled() || !peer.isSettled() {
			return -1, false, false, syscall.EAGAIN
		}
		if p, err = newPair(e, peer, alloc); err != nil {
			return -1, false, false, err
		}
		d.nextLocked(e, p)
		d.nextLocked(peer, p)
		p.ring.Attach()
	}
	i := p.side(e)
	if p.has[i] {
		return -1, false, false, syscall.EAGAIN
	}
	if fd, err = p.fd.dup(); err != nil {
		return -1, false, false, err
	}
	p.has[i] = true
	p.ring.Dirs[i].Open() // it finds no receives until the peer has the pair, too
	if p.isWhole() {
		p.fd.close()
	}
	// Who ends the connection, has it go on otherwise, or gives other rights has found the pair, or
	// is found here.
	if now, _ := d.peerLocked(e); now != peer || p.reaches() != p.reach {
		e.Shut()
	}
	return fd, i == 1, p.covered[i], nil
}

// peerLocked is the QP that e can have a direct path to; nil, and why it can have none.
//
// +checklocks:d.mu
func (d *Directory) peerLocked(e *End) (*End, string) {
	near := e.qp.Near()
	if near == nil {
		return nil, e.whyFar()
	}
	peer := d.ends[near.Num()]
	switch {
	case d.ends[e.qp.Num()] != e:
		return nil, "the queue pair is closing"
	case peer == nil || peer.qp != near:
		return nil, "the peer receives from an SRQ"
	case !e.Program.HasDirect():
		return nil, "the program's library has no direct path"
	case !peer.Program.HasDirect():
		return nil, "the peer's library has no direct path"
	case !e.Program.MayShare(peer.Program):
		return nil, "the peer is of another user, container or label, or has not asked yet"
	}
	return peer, ""
}

// whyFar is why e's QP has nobody near.
func (e *End) whyFar() string {
	if e.RoCE {
		return "it is not in RTS, its peer is not or is no queue pair of this device that knows it, or " +
			"somebody looks"
	}
	return "its requests are looked at, or memory has been used that is not shared"
}

// Path says how the messages of QP num, which is connected to another of the device, go: "direct",
// or "daemon" and why.
func (d *Directory) Path(num uint32) (path, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.ends[num]
	switch {
	case d.Off:
		return "daemon", "off"
	case e == nil:
		return "daemon", "it receives from an SRQ"
	}
	if _, why := d.peerLocked(e); why != "" {
		return "daemon", why
	}
	p := e.pair.Load()
	switch {
	case p == nil || p.over.Load():
		return "daemon", "nobody has asked yet"
	case !p.has[p.side(e)]:
		return "daemon", "the program has not asked yet"
	case !p.isWhole():
		return "direct", "but for Sends: the peer has not asked yet"
	}
	if !p.covered[p.side(e)] {
		return "direct", "but for Sends to it: a CQ is smaller than what its queues can complete"
	}
	return "direct", ""
}

func newPair(a, b *End, alloc func(int) (*osmem.Region, int, func(), error)) (*pair, error) {
	p := &pair{ends: [2]*End{a, b}, users: 2, covered: [2]bool{a.qp.Covered(), b.qp.Covered()}}
	p.reach = p.reaches()
	ends := [2]ring.PairEnd{a.pairEnd(p.reach[0], p.covered[0]), b.pairEnd(p.reach[1], p.covered[1])}
	if !a.Program.TakeDescriptor() {
		return nil, syscall.EAGAIN
	}
	mem, fd, free, err := alloc(ring.PairMemSize(&ends))
	if err != nil {
		a.Program.GiveDescriptor()
		return nil, err
	}
	p.ring, p.fd.fd, p.free = ring.NewPair(mem.Mem, &ends), fd, free
	p.fd.of = a.Program
	p.wakers[0].fd, p.wakers[1].fd = -1, -1
	return p, nil
}

func (e *End) pairEnd(reach rdma.Access, covered bool) ring.PairEnd {
	return ring.PairEnd{
		Rings: e.Rings, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, Covered: covered, Gone: e.Program.Gone,
		Reach: e.Domain.access(reach),
		Wake:  e.qp.Ring, Flushes: e.flushes, Sent: e.sent, Received: e.received,
		Bad: func(err error) {
			e.Log.Warn("a pair makes no sense", "qp", e.qp.Num(), "err", err)
			go func() { _ = e.qp.ModifyState(rdma.QPError) }() // it may have ended meanwhile
		},
	}
}

// flushes reports whether e's QP flushes what is posted to receive.
func (e *End) flushes() bool {
	switch e.qp.State() {
	case rdma.QPClosing, rdma.QPTerminate, rdma.QPError:
		return true
	default:
		return false
	}
}

func (e *End) sent(t ring.Traffic) {
	e.qp.SentDirectly((*vnic.Traffic)(&t))
	for _, c := range []*counts{&e.count, &e.dir.count} {
		c.sends.Add(t.Messages - t.Immediates)
		c.immediates.Add(t.Immediates)
		c.writes.Add(t.Writes)
		c.reads.Add(t.Reads)
		c.atomics.Add(t.Atomics)
	}
}

func (e *End) received(t ring.Traffic) {
	e.qp.ReceivedDirectly((*vnic.Traffic)(&t))
	e.count.receives.Add(t.Messages)
	e.dir.count.receives.Add(t.Messages)
}
