package ring

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
)

// A Pair is the daemon's end of what two connected QPs have in common whose programs exchange
// messages without it: docs/direct.md.
type Pair struct {
	Dirs [2]Direction // from the first, and from the second
}

// A PairEnd is one QP of a pair.
type PairEnd struct {
	Rings *DaemonQP
	// SendCQ and RecvCQ are where it completes; Covered: they have room for all that their queues can
	// have in them.
	SendCQ, RecvCQ *CQProducer
	Covered        bool
	// Reach is what it may do with its peer's memory: of enum ibv_access_flags.
	Reach uint32
	// Gone reports whether its program has died: nothing that it stores comes any more.
	Gone func() bool
	// Wake has the QP look for receives again, and Flushes reports whether it does so to flush them.
	Wake    func()
	Flushes func() bool
	// Sent and Received are told what has been sent and received without the daemon.
	Sent, Received func(Traffic)
	// Bad is told when the pair has been given what cannot be: the connection ends.
	Bad func(err error)
}

// A Traffic is what one end has done: Messages that took a receive, of which Immediates were no
// Sends, and of which the peer was asked to be told; Octets of Sends and Writes; Writes, of which
// the peer sees nothing but immediate data if they are Unsent; and the rest.
type Traffic struct {
	Messages, Octets, Solicited, Immediates    uint64
	Writes, Unsent, Reads, ReadOctets, Atomics uint64
}

// PairSlab is how many octets the slab of each direction has.
const PairSlab = 64 << 10

func pairOffsets(ends *[2]PairEnd) (off [2]uint32, size int) {
	at := uint32(abi.PairHeaderLen)
	for i := range off {
		off[i] = at
		slots := ends[1-i].Rings.Layout.RQSize
		at += abi.DirSlots(slots) + slots*abi.SlotLen + PairSlab
	}
	return off, int(at)
}

// PairMemSize is how many octets a pair of two such QPs takes, which have receive queues.
func PairMemSize(ends *[2]PairEnd) int {
	_, size := pairOffsets(ends)
	return size
}

// NewPair makes a pair in mem, which is zero. Both of its directions are the daemon's.
func NewPair(mem []byte, ends *[2]PairEnd) *Pair {
	off, _ := pairOffsets(ends)
	p := &Pair{}
	for i := range p.Dirs {
		to := &ends[1-i]
		slots := to.Rings.Layout.RQSize
		abi.Word(mem, abi.PairQPN+4*uint32(i)).Store(ends[i].Rings.QPN())
		abi.Word(mem, abi.PairOff+4*uint32(i)).Store(off[i])
		abi.Word(mem, abi.PairSlots+4*uint32(i)).Store(slots)
		abi.Word(mem, abi.PairSlab+4*uint32(i)).Store(PairSlab)
		abi.Word(mem, abi.PairReach+4*uint32(i)).Store(ends[i].Reach)
		p.Dirs[i].init(mem[off[i]:], slots, &ends[i], to)
	}
	markMade.pass()
	abi.Word(mem, abi.PairMagic).Store(abi.MagicPair)
	return p
}

// A Direction is what goes from one QP of a pair, the sender, to the other. It has the daemon's
// half of who may use the receiver's receives; the sender's is in C.
type Direction struct {
	n        uint32 // slots, a power of two
	from, to PairEnd

	mu sync.Mutex
	// What follows is in the pair's memory, which is there until End.
	open, base, seq, done, notify, solicited, own, spoiled *atomic.Uint32
	completed, polled, passed, bit                         *atomic.Uint32

	counts [numCounts]*atomic.Uint64
	slots  []byte

	// +checklocks:mu
	state dirState
	// odd is DirSeq when it was closed.
	// +checklocks:mu
	odd uint32
	// awaited says that a goroutine waits for it, and given that receives do so no more.
	// +checklocks:mu
	awaited bool
	// over: and what it had used by then has been taken over; what it says from there on is late.
	// +checklocks:mu
	given, over bool
	// +checklocks:mu
	bad bool
	// was is DirRecvDone as last seen, and sent DirMessages then, notified DirNotify, DirSolicited and
	// DirOwn, passedOn DirPassed, told counts.
	// +checklocks:mu
	was uint32
	// +checklocks:mu
	sent uint64
	// +checklocks:mu
	notified [3]uint32
	// +checklocks:mu
	passedOn uint32
	// +checklocks:mu
	told [numCounts]uint64
}

// What a sender counts.
const (
	countMessages = iota
	countOctets
	countAsked
	countImms
	countWrites
	countUnsent
	countReads
	countReadOctets
	countAtomics
	numCounts
)

var countOffsets = [numCounts]uint32{abi.DirMessages, abi.DirOctets, abi.DirAsked, abi.DirImms,
	abi.DirWrites, abi.DirUnsent, abi.DirReads, abi.DirReadOctets, abi.DirAtomics}

type dirState uint8

const (
	dirClosed dirState = iota // the daemon's
	dirOpen                   // the sender's, if its ring is drained
	dirShut                   // closed, but the sender may not have seen it
	dirEnded                  // there is no memory any more
)

func (d *Direction) init(mem []byte, slots uint32, from, to *PairEnd) {
	d.mu.Lock() // nobody else has it yet
	defer d.mu.Unlock()
	d.open, d.base = abi.Word(mem, abi.DirOpen), abi.Word(mem, abi.DirRecvBase)
	d.seq, d.done = abi.Word(mem, abi.DirSeq), abi.Word(mem, abi.DirRecvDone)
	d.notify, d.solicited = abi.Word(mem, abi.DirNotify), abi.Word(mem, abi.DirSolicited)
	d.own, d.spoiled = abi.Word(mem, abi.DirOwn), abi.Word(mem, abi.DirSpoiled)
	d.completed, d.polled = abi.Word(mem, abi.DirCompleted), abi.Word(mem, abi.DirPolled)
	d.passed, d.bit = abi.Word(mem, abi.DirPassed), abi.Word(mem, abi.DirBit)
	for i, off := range countOffsets {
		d.counts[i] = abi.Word64(mem, off)
	}
	at := abi.DirSlots(slots)
	d.slots, d.n = mem[at:at+slots*abi.SlotLen], slots
	d.from, d.to = *from, *to
	used := to.Rings.RQ.used.Load()
	d.base.Store(used)
	d.done.Store(used)
	d.was = used
	// No receive has these stamps: neither one to come, nor one that is used and not polled yet.
	for i := range slots {
		abi.Word(d.slots, i*abi.SlotLen+abi.SlotStamp).Store(used - slots)
		abi.Word(mem, abi.DirRooms+i*abi.RoomLen+abi.RoomStamp).Store(used - slots)
	}
}

// Attach has the rings heed p, which is new: until then they do not.
func (p *Pair) Attach() {
	for i := range p.Dirs {
		d := &p.Dirs[i]
		d.from.Rings.SQ.out.Store(d)
		d.to.Rings.RQ.in.Store(d)
		if !d.from.Covered {
			d.from.SendCQ.setBeside(d, true)
		}
	}
	markAttached.pass()
}

// Open gives a direction to its sender.
func (d *Direction) Open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == dirClosed && !d.bad {
		d.base.Store(d.to.Rings.RQ.used.Load())
		markBase.pass()
		d.state = dirOpen
		d.open.Store(1)
		markOpen.pass()
	}
}

// Shut takes a direction from its sender, without waiting: until the sender has seen it, receives
// that may be its are not given out.
func (d *Direction) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shutLocked()
}

// +checklocks:d.mu
func (d *Direction) shutLocked() {
	if d.state != dirOpen {
		return
	}
	d.open.Swap(0) // a full fence: docs/direct.md#owner
	markShut.pass()
	d.state, d.odd = dirClosed, d.seq.Load()
	if d.odd&1 == 0 || d.from.Gone() {
		markClosed.pass()
		d.lookLocked()
		return
	}
	d.state = dirShut
	markWaits.pass()
}

// lookLocked has the receiver look: the sender sets its bit behind all else, and may have died
// before that.
//
// +checklocks:d.mu
func (d *Direction) lookLocked() {
	if b := d.bit.Load(); b != 0 {
		d.to.RecvCQ.bits.set(b - 1)
	}
}

// Shut is that of both directions.
func (p *Pair) Shut() {
	p.Dirs[0].Shut()
	p.Dirs[1].Shut()
}

// Leave is for when one QP, the first or the second, has left the pair: what its program has not
// polled by then it polls no more, and takes no place in its CQ.
func (p *Pair) Leave(side int) {
	if d := &p.Dirs[side]; !d.from.Covered {
		d.from.SendCQ.setBeside(d, false)
	}
}

// End is for when both QPs have left the pair: its memory is not touched any more.
func (p *Pair) End() {
	for i := range p.Dirs {
		d := &p.Dirs[i]
		d.Count()
		d.mu.Lock()
		d.state = dirEnded
		d.mu.Unlock()
		markEnded.pass()
	}
}

// beside is how many requests the sender has completed itself, and how many of those its program
// has polled.
func (d *Direction) beside() (completed, polled uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == dirEnded {
		return 0, 0
	}
	return d.completed.Load(), d.polled.Load()
}

// IsOpen reports whether the sender has it.
func (d *Direction) IsOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == dirOpen
}

// publish says how many receives are used, before SendConsumer.Retire says what used them.
func (d *Direction) publish() {
	d.mu.Lock()
	if d.state != dirEnded {
		d.base.Store(d.to.Rings.RQ.used.Load())
		markPublished.pass()
	}
	d.mu.Unlock()
}

// Count tells both ends what has gone since it was last called. The sender is believed, but not
// that it has taken something back.
func (d *Direction) Count() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == dirEnded {
		return
	}
	var n [numCounts]uint64
	for i, c := range d.counts {
		if now := c.Load(); now > d.told[i] {
			n[i], d.told[i] = now-d.told[i], now
		}
	}
	// The sender may be between the two words: what is seen without the other is told with the next.
	for _, k := range [...][2]int{{countImms, countMessages}, {countUnsent, countWrites}} {
		part, of := k[0], k[1]
		if n[part] > n[of] {
			d.told[part] -= n[part] - n[of]
			n[part] = n[of]
		}
	}
	if n != [numCounts]uint64{} {
		t := Traffic{Messages: n[countMessages], Octets: n[countOctets], Solicited: n[countAsked],
			Immediates: n[countImms], Writes: n[countWrites],
			Unsent: n[countUnsent], Reads: n[countReads],
			ReadOctets: n[countReadOctets], Atomics: n[countAtomics]}
		d.from.Sent(t)
		d.to.Received(t)
	}
}

// Looks that are made for a sender to go on, the time between those of who waits for it then, how
// long receives are kept for it that are to be flushed, and the time between looks from then on: it
// is stopped.
const (
	shutLooks   = 64
	shutPause   = time.Millisecond
	shutMost    = time.Second
	stoppedLook = 100 * time.Millisecond
)

// pauseFor sleeps between two looks for a sender, which is taken to be stopped from stopped on.
func pauseFor(stopped time.Time) {
	if time.Now().Before(stopped) {
		time.Sleep(shutPause)
	} else {
		time.Sleep(stoppedLook)
	}
}

// aRound is how many messages a sender has counted at least when the numbers of receives have come
// round: less than there are numbers, since the last one may not be counted yet.
const aRound = 1 << 31

// takeOver says behind which receives the daemon goes on, which was at head, and up to where they
// are posted, by prodWord: those that the sender has said that it has used, and if it may be dead
// those that it has stamped. false: it may be about to use one; to.Wake is called when it has, or
// is not waited for any more by who takes a receive now.
func (d *Direction) takeOver(head uint32, prodWord *atomic.Uint32, take bool) (
	used, prod uint32, ok bool,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 0; d.state == dirShut && !d.over; i++ {
		if d.seq.Load() != d.odd || d.from.Gone() {
			d.state, d.given = dirClosed, false
			markSettled.pass()
			d.lookLocked()
		} else if d.given && take && d.to.Flushes() {
			d.lookLocked() // for the message that has been stamped, if its sender stands still behind that
			break
		} else if i == shutLooks {
			d.awaitLocked()
			return head, prod, false
		} else {
			runtime.Gosched()
		}
	}
	if d.state == dirEnded {
		return head, prodWord.Load(), true
	}
	// It has used some since the last look, or not: how many says nothing, they may have been more
	// than half of all numbers.
	ends := d.state == dirClosed || d.given
	done := d.done.Load()
	markDone.pass()
	prod = prodWord.Load() // behind it: what is used was posted before
	markPosted.pass()
	if done != d.was && !d.over {
		// One that goes back would have receives used twice; but so many may have been used that the
		// numbers have come round to just there.
		sent := d.counts[countMessages].Load()
		back := head-done-1 < d.n && sent-d.sent < aRound
		d.was, d.sent = done, sent
		most := d.n
		if ends && d.stamped(done) { // it died, or stands still, before it said that it has used that
			most++
		}
		if prod-done <= most && !back {
			head = done
		} else {
			d.spoilLocked(done, prod)
		}
	}
	if ends {
		for head != prod && d.stamped(head) {
			head++
			markAdopted.pass()
			d.lookLocked() // its sender may never get to say so
		}
	}
	if prod-head > d.n { // what it has used before it has taken back
		d.spoilLocked(done, prod)
		head = prod - d.n
	}
	d.over = d.given
	return head, prod, true
}

// spoilLocked ends the connection. All receives are flushed: what the receiver has had of them it
// passes over.
//
// +checklocks:d.mu
func (d *Direction) spoilLocked(done, prod uint32) {
	if !d.bad {
		d.bad = true
		d.shutLocked()
		d.to.Bad(abi.Violation("recv_done %d with rq_prod %d of %d slots", done, prod, d.n))
	}
}

// stamped reports whether receive i has got a message.
//
// +checklocks:d.mu
func (d *Direction) stamped(i uint32) bool {
	return abi.Word(d.slots, i&(d.n-1)*abi.SlotLen+abi.SlotStamp).Load() == i+1
}

// awaitLocked has to.Wake called when the sender has gone on. It may be stopped: then that takes as
// long as it is.
//
// +checklocks:d.mu
func (d *Direction) awaitLocked() {
	if d.awaited {
		return
	}
	d.awaited = true
	markAwaits.pass()
	go func() {
		for until := time.Now().Add(shutMost); !d.settled(until); {
			pauseFor(until)
		}
		markRings.pass()
		d.to.Wake()
	}()
}

func (d *Direction) settled(until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == dirShut && d.seq.Load() == d.odd && !d.from.Gone() {
		// It may use one receive still, whose program finds either the message or that it was flushed:
		// docs/decisions.md#X16. Memory is kept for it all the same, however long that takes.
		d.given = d.over || !time.Now().Before(until) && d.to.Flushes()
		if !d.given {
			return false
		}
	}
	d.awaited = false
	return true
}

// Heard does what the receiver has asked for: the connection ends if it has said that what has come
// makes no sense, and an event is raised of which it has heard and that it does not give itself.
func (d *Direction) Heard() {
	if d.heard() {
		d.to.RecvCQ.Notify(true)
	}
}

func (d *Direction) heard() (raise bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == dirEnded {
		return false
	}
	if !d.bad && d.spoiled.Load() != 0 {
		d.bad = true
		d.shutLocked()
		d.to.Bad(errSpoiled)
	}
	passed := d.passed.Load()
	raise = passed != d.passedOn
	d.passedOn = passed
	return raise
}

var errSpoiled = errors.New("its program has found nonsense in what has come")

// Notified raises the events that the sender has asked for: the receiver's, and its own.
func (d *Direction) Notified() {
	d.mu.Lock()
	if d.state == dirEnded {
		d.mu.Unlock()
		return
	}
	now := [3]uint32{d.notify.Load(), d.solicited.Load(), d.own.Load()}
	was := d.notified
	d.notified = now
	d.mu.Unlock()
	if now != was {
		markNotified.pass()
	}
	if now[0] != was[0] || now[1] != was[1] {
		d.to.RecvCQ.Notify(now[1] != was[1])
	}
	if now[2] != was[2] {
		d.from.SendCQ.Notify(false)
	}
	if now != was {
		markRaised.pass()
	}
}
