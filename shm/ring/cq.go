package ring

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
)

// A CQProducer is the daemon's end of a completion queue. Any goroutine may push.
type CQProducer struct {
	mu      sync.Mutex // the CQ lock of the ABI; held over a push, its event and its token
	mem     []byte
	size    uint32
	handle  uint32
	prod    uint32           // our count; the shared word is only ever written
	cons    uint32           // the client's, as last seen
	overrun bool             // +checklocks:mu
	closed  bool             // +checklocks:mu
	ch      *ChannelProducer // or nil
	fail    func(error)
	// beside are those whose senders have completions of their own for the CQ, which does not cover
	// what its queues can complete.
	// +checklocks:mu
	beside map[*Direction]struct{}
	bits   cqBits

	prodWord, overrunWord, consWord, arm *atomic.Uint32
}

// CQMemSize is how many octets a CQ of size entries (a power of two) takes.
func CQMemSize(size uint32) int { return abi.CQHeaderLen + int(size)*abi.CQELen }

// NewCQProducer makes a CQ of size entries in mem, which is zero. Events go to ch, if it is not
// nil. fail, if not nil, is told of violations, from inside Push and with its lock held.
func NewCQProducer(mem []byte, size, handle uint32, ch *ChannelProducer,
	fail func(error)) *CQProducer {
	c := &CQProducer{handle: handle, ch: ch, fail: fail}
	c.useLocked(mem, size)
	return c
}

// useLocked has c write to mem, of a size of its own.
func (c *CQProducer) useLocked(mem []byte, size uint32) {
	c.mem, c.size = mem[:CQMemSize(size)], size
	c.prodWord, c.overrunWord = abi.Word(mem, abi.CQProd), abi.Word(mem, abi.CQOverrun)
	c.consWord, c.arm = abi.Word(mem, abi.CQCons), abi.Word(mem, abi.CQArm)
	abi.Word(mem, abi.CQMagic).Store(abi.MagicCQ)
	abi.Word(mem, abi.CQHandle).Store(c.handle)
	abi.Word(mem, abi.CQSize).Store(size)
	abi.Word(mem, abi.CQCQEOff).Store(abi.CQHeaderLen)
}

// Move has the CQ go on in mem, which is zero, with room for size completions (a power of two).
// What the client has not taken is there at the same indices, and so is what it has armed; the
// client must not touch the CQ meanwhile (docs/abi.md#resizing). When Move has returned the memory
// before is written no more. The error is EINVAL if there are more completions than size, and a
// *ProtocolError if the client's index is impossible; nothing has changed then.
func (c *CQProducer) Move(mem []byte, size uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons := c.consWord.Load()
	n := c.prod - cons
	if n > c.size {
		return abi.Violation("CQ cons %d with prod %d and %d slots", cons, c.prod, c.size)
	}
	if n > size {
		return fmt.Errorf("%d completions wait, which %d entries do not hold: %w", n, size,
			syscall.EINVAL)
	}
	from, mask, arm := c.mem, c.size-1, c.arm.Load()
	c.useLocked(mem, size)
	for i := cons; i != c.prod; i++ {
		copy(c.slot(i), from[abi.CQHeaderLen+(i&mask)*abi.CQELen:][:abi.CQELen])
	}
	c.cons = cons
	c.consWord.Store(cons)
	c.prodWord.Store(c.prod)
	c.arm.Store(arm & (abi.ArmSolicited | abi.ArmNext | abi.ArmQueued))
	if c.overrun {
		c.overrunWord.Store(1)
	}
	return nil
}

// slot is where completion i is.
func (c *CQProducer) slot(i uint32) []byte {
	return c.mem[abi.CQHeaderLen+(i&(c.size-1))*abi.CQELen:]
}

// Handle is how async events and the channel's ring name the CQ.
func (c *CQProducer) Handle() uint32 { return c.handle }

// Size is how many completions the CQ holds.
func (c *CQProducer) Size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.size)
}

// Push adds a completion and raises an event if the client asked for it. solicited: the message
// had the solicited bit; errors count as solicited. ErrCQOverrun if the CQ is full: it takes no
// more from then on, its QPs go to the error state: docs/abi.md#cq-memory. A *ProtocolError if the
// client's index is impossible; the session has been told.
func (c *CQProducer) Push(e *abi.CQE, solicited bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.putLocked(e); err != nil {
		return err
	}
	a := c.arm.Load()
	if a&abi.ArmNext == 0 && (a&abi.ArmSolicited == 0 || !solicited && e.Status == 0) {
		return nil
	}
	c.raiseLocked()
	return nil
}

// Put is Push without the event, which is Notify's.
func (c *CQProducer) Put(e *abi.CQE) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.putLocked(e)
}

// +checklocks:c.mu
func (c *CQProducer) putLocked(e *abi.CQE) error {
	if c.closed {
		return ErrCQClosed
	}
	if c.overrun {
		return ErrCQOverrun
	}
	if c.prod-c.cons >= c.size || len(c.beside) > 0 { // looks full by what we know: look again
		cons := c.consWord.Load()
		if n := c.prod - cons; n > c.size {
			err := abi.Violation("CQ cons %d with prod %d and %d slots", cons, c.prod, c.size)
			c.overrun = true
			if c.fail != nil {
				c.fail(err)
			}
			return err
		} else if n == c.size || len(c.beside) > 0 && c.isFullLocked() {
			c.overrun = true
			c.overrunWord.Store(1)
			return ErrCQOverrun
		}
		c.cons = cons
	}
	e.Encode(c.slot(c.prod))
	c.prod++
	// release, and a full fence before the load of arm: see Waking in the package comment
	c.prodWord.Swap(c.prod)
	return nil
}

// fullLooks bounds how often isFullLocked looks.
const fullLooks = 4

// isFullLocked reports whether the client has as many completions to poll as c has room for, in the
// ring and beside it. It posts and polls meanwhile, so that what one look finds may never have been
// so: it has been if the next one finds the same. A client whose counts do not stand still polls.
//
// +checklocks:c.mu
func (c *CQProducer) isFullLocked() bool {
	v := c.lookLocked()
	for range fullLooks {
		if c.prod-v.cons+v.completed-v.polled < c.size {
			return false
		}
		was := v
		if v = c.lookLocked(); v == was {
			return true
		}
	}
	return false
}

// A cqLook is what the client has said: what it has polled of the ring, and the sums of what has
// completed beside it and was polled there. None of them goes back.
type cqLook struct{ cons, completed, polled uint32 }

// +checklocks:c.mu
func (c *CQProducer) lookLocked() cqLook {
	v := cqLook{cons: c.consWord.Load()}
	for d := range c.beside {
		completed, polled := d.beside()
		v.completed += completed
		v.polled += polled
	}
	return v
}

func (c *CQProducer) setBeside(d *Direction, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beside == nil {
		c.beside = make(map[*Direction]struct{})
	}
	if c.beside[d] = struct{}{}; !on {
		delete(c.beside, d)
	}
}

// +checklocks:c.mu
func (c *CQProducer) raiseLocked() {
	if c.arm.Swap(abi.ArmQueued)&abi.ArmQueued == 0 && c.ch != nil {
		c.ch.push(c.handle)
	}
}

// Notify raises the event of a completion that the client has not got from here: docs/direct.md.
func (c *CQProducer) Notify(solicited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // its memory may be there no more, and the QP's peer still ring
		return
	}
	if a := c.arm.Load(); a&abi.ArmNext != 0 || a&abi.ArmSolicited != 0 && solicited {
		c.raiseLocked()
	}
}

// Armed reports whether the client waits for an event, as far as one can tell.
func (c *CQProducer) Armed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.arm.Load()&(abi.ArmNext|abi.ArmSolicited) != 0
}

// Pending is how many completions the client has not taken, as it says.
func (c *CQProducer) Pending() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	return min(c.prod-c.consWord.Load(), c.size)
}

// Close: when it has returned, neither the CQ nor its channel's ring is written for it.
func (c *CQProducer) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.bits.close()
	if c.ch != nil {
		c.ch.forget(c.handle)
	}
}

// A CQConsumer is the client's end of a completion queue. Poll must not overlap itself; Arm and
// TakeEvent may be called from any goroutine.
type CQConsumer struct {
	mem    []byte
	size   uint32
	off    uint32
	handle uint32
	cons   uint32

	prodWord, overrunWord, consWord, arm *atomic.Uint32
}

// OpenCQConsumer checks line 0 of mem. An error is a *ProtocolError.
func OpenCQConsumer(mem []byte) (*CQConsumer, error) {
	if len(mem) < abi.CQHeaderLen {
		return nil, abi.Violation("CQ memory of %d octets", len(mem))
	}
	c := &CQConsumer{mem: mem, size: abi.Word(mem, abi.CQSize).Load(),
		off: abi.Word(mem, abi.CQCQEOff).Load(), handle: abi.Word(mem, abi.CQHandle).Load(),
		prodWord: abi.Word(mem, abi.CQProd), overrunWord: abi.Word(mem, abi.CQOverrun),
		consWord: abi.Word(mem, abi.CQCons), arm: abi.Word(mem, abi.CQArm)}
	if m := abi.Word(mem, abi.CQMagic).Load(); m != abi.MagicCQ {
		return nil, abi.Violation("CQ memory has magic %#x", m)
	}
	if !abi.RingFits(uint64(len(mem)), c.off, c.size, abi.MaxCQDepth, abi.CQELen, abi.CQELen,
		abi.CQELen) {
		return nil, abi.Violation("CQ memory of %d octets with %d entries at %d", len(mem), c.size, c.off)
	}
	return c, nil
}

// Handle is what the channel's ring calls the CQ, and Size how many completions it holds.
func (c *CQConsumer) Handle() uint32 { return c.handle }
func (c *CQConsumer) Size() int      { return int(c.size) }

// Poll takes the oldest completion; false if there is none. An error is a *ProtocolError: the
// session is dead.
func (c *CQConsumer) Poll(e *abi.CQE) (bool, error) {
	prod := c.prodWord.Load()
	n := prod - c.cons
	if n == 0 {
		return false, nil
	}
	if n > c.size {
		return false, abi.Violation("CQ prod %d with cons %d and %d slots", prod, c.cons, c.size)
	}
	e.Decode(c.mem[c.off+(c.cons&(c.size-1))*abi.CQELen:])
	c.cons++
	c.consWord.Store(c.cons)
	return true, nil
}

// Come is up to where completions have come, for Peek. An error is a *ProtocolError.
func (c *CQConsumer) Come() (uint32, error) {
	prod := c.prodWord.Load()
	if n := prod - c.cons; n > c.size {
		return c.cons, abi.Violation("CQ prod %d with cons %d and %d slots", prod, c.cons, c.size)
	}
	return prod, nil
}

// IsEmpty reports whether none seems to have come.
func (c *CQConsumer) IsEmpty() bool { return c.prodWord.Load() == c.cons }

// Peek reads the oldest completion, of those that had come; false if there is none. Next takes it.
func (c *CQConsumer) Peek(e *abi.CQE, come uint32) bool {
	if c.cons == come {
		return false
	}
	e.Decode(c.mem[c.off+(c.cons&(c.size-1))*abi.CQELen:])
	return true
}

// Next takes what Peek has read.
func (c *CQConsumer) Next() {
	c.cons++
	c.consWord.Store(c.cons)
}

// Each calls f for each completion that Poll has not taken; e is good for the call. An error is a
// *ProtocolError.
func (c *CQConsumer) Each(f func(e *abi.CQE)) error {
	prod := c.prodWord.Load()
	if n := prod - c.cons; n > c.size {
		return abi.Violation("CQ prod %d with cons %d and %d slots", prod, c.cons, c.size)
	}
	var e abi.CQE
	for i := c.cons; i != prod; i++ {
		e.Decode(c.mem[c.off+(i&(c.size-1))*abi.CQELen:])
		f(&e)
	}
	return nil
}

// Drop takes the completions of a QP that Poll has not taken from it: it gives them with 0 in
// place of a QP's number. f is called for each; e is good for the call. An error is a
// *ProtocolError.
func (c *CQConsumer) Drop(qpn uint32, f func(e *abi.CQE)) error {
	prod := c.prodWord.Load()
	if n := prod - c.cons; n > c.size {
		return abi.Violation("CQ prod %d with cons %d and %d slots", prod, c.cons, c.size)
	}
	var e abi.CQE
	for i := c.cons; i != prod; i++ {
		slot := c.mem[c.off+(i&(c.size-1))*abi.CQELen:]
		if e.Decode(slot); e.QPN != qpn {
			continue
		}
		f(&e)
		e.QPN = 0
		e.Encode(slot)
	}
	return nil
}

// Follow has c, which is new, go on where before has stopped: SWITCH_CQ has returned.
func (c *CQConsumer) Follow(before *CQConsumer) {
	c.cons = before.cons
	c.consWord.Store(c.cons)
}

// Empty reports whether Poll would find nothing.
func (c *CQConsumer) Empty() bool { return c.prodWord.Load() == c.cons }

// Overrun reports whether the CQ has lost completions.
func (c *CQConsumer) Overrun() bool { return c.overrunWord.Load() != 0 }

// Arm asks for an event with the next completion, or the next solicited one or error. Poll again
// after it: what came before causes no event.
func (c *CQConsumer) Arm(solicitedOnly bool) {
	if solicitedOnly {
		c.arm.Or(abi.ArmSolicited)
	} else {
		c.arm.Or(abi.ArmNext)
	}
}

// Armed reports whether an event has been asked for and not been raised.
func (c *CQConsumer) Armed() bool { return c.Wants() != 0 }

// Wants says for what one has been: ArmNext, ArmSolicited.
func (c *CQConsumer) Wants() uint32 { return c.arm.Load() & (abi.ArmNext | abi.ArmSolicited) }

// Claim takes the event that a message is due for which the client has heard of without the daemon
// (docs/direct.md#sleeping), asked if it was solicited: false if none is due, or if the daemon has
// raised it. With the channel's lock held.
func (c *CQConsumer) Claim(asked bool) bool {
	const wants = abi.ArmNext | abi.ArmSolicited
	if v := c.arm.Load(); v&abi.ArmNext == 0 && (v&abi.ArmSolicited == 0 || !asked) {
		return false
	}
	v := c.arm.And(^uint32(wants))
	return v&wants != 0 && v&abi.ArmQueued == 0
}

// TakeEvent marks the CQ's event as taken. Call it under the channel's lock right after Pop has
// returned the CQ, before the program sees the event; never later.
func (c *CQConsumer) TakeEvent() { c.arm.And(^uint32(abi.ArmQueued)) }

// A ChannelProducer is the daemon's end of a completion channel. CQs push with their own lock held.
type ChannelProducer struct {
	mu    sync.Mutex
	slots []atomic.Uint32
	prod  uint32
	token func() // writes one token to the event pipe; does not block
	fail  func(error)
	quiet bool     // guarded by mu: nothing is told
	held  []uint32 // guarded by mu: what waits for that to end

	prodWord, consWord *atomic.Uint32
}

// ChannelMemSize is how many octets a channel takes.
const ChannelMemSize = abi.ChanHeaderLen + 4*abi.ChanSlots

// NewChannelProducer makes a channel in mem, which is zero. token is called once per event, after
// it is in the ring.
func NewChannelProducer(mem []byte, handle uint32, token func(),
	fail func(error)) *ChannelProducer {
	abi.Word(mem, abi.ChanMagic).Store(abi.MagicChannel)
	abi.Word(mem, abi.ChanHandle).Store(handle)
	abi.Word(mem, abi.ChanSize).Store(abi.ChanSlots)
	abi.Word(mem, abi.ChanOff).Store(abi.ChanHeaderLen)
	return &ChannelProducer{slots: abi.Words(mem, abi.ChanHeaderLen, abi.ChanSlots), token: token,
		fail:     fail,
		prodWord: abi.Word(mem, abi.ChanProd), consWord: abi.Word(mem, abi.ChanCons)}
}

// push adds an event. Each CQ has at most one, so an honest client's ring cannot be full.
func (r *ChannelProducer) push(handle uint32) {
	r.mu.Lock()
	cons := r.consWord.Load()
	if n := r.prod - cons; n >= abi.ChanSlots || int(n)+len(r.held) >= abi.ChanSlots {
		r.mu.Unlock()
		if r.fail != nil {
			r.fail(abi.Violation("channel cons %d with prod %d and %d slots", cons, r.prod, abi.ChanSlots))
		}
		return
	}
	if r.quiet {
		r.held = append(r.held, handle)
		r.mu.Unlock()
		return
	}
	r.slots[r.prod%abi.ChanSlots].Store(handle)
	r.prod++
	r.prodWord.Store(r.prod)
	r.mu.Unlock()
	r.token()
}

// Quiet has the client told of nothing until it is called with false: what comes meanwhile is told
// of then.
func (r *ChannelProducer) Quiet(on bool) {
	r.mu.Lock()
	held := r.held
	if r.quiet = on; !on {
		r.held = nil
	}
	r.mu.Unlock()
	if !on {
		for _, handle := range held {
			r.push(handle)
		}
	}
}

// forget has nothing told of a CQ that was held back.
func (r *ChannelProducer) forget(handle uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = slices.DeleteFunc(r.held, func(h uint32) bool { return h == handle })
}

// A ChannelConsumer is the client's end of a completion channel. Calls must not overlap: take the
// channel's lock.
type ChannelConsumer struct {
	slots  []atomic.Uint32
	cons   uint32
	handle uint32

	prodWord, consWord *atomic.Uint32
}

// OpenChannelConsumer checks line 0 of mem. An error is a *ProtocolError.
func OpenChannelConsumer(mem []byte) (*ChannelConsumer, error) {
	if len(mem) < abi.ChanHeaderLen {
		return nil, abi.Violation("channel memory of %d octets", len(mem))
	}
	size, off := abi.Word(mem, abi.ChanSize).Load(), abi.Word(mem, abi.ChanOff).Load()
	if m := abi.Word(mem, abi.ChanMagic).Load(); m != abi.MagicChannel {
		return nil, abi.Violation("channel memory has magic %#x", m)
	}
	if !abi.IsPow2(size) || size > abi.MaxDepth || off%4 != 0 || !abi.RangeFits(uint64(len(mem)), off,
		4*size) {
		return nil, abi.Violation("channel memory of %d octets with %d slots at %d", len(mem), size, off)
	}
	return &ChannelConsumer{slots: abi.Words(mem, off, size),
		handle:   abi.Word(mem, abi.ChanHandle).Load(),
		prodWord: abi.Word(mem, abi.ChanProd), consWord: abi.Word(mem, abi.ChanCons)}, nil
}

// Pop takes the oldest event and returns its CQ's handle, skipping cancelled ones; false if there
// is none. Call it after reading a token, and then CQConsumer.TakeEvent. A token without an event
// is no error: read again. An error is a *ProtocolError.
func (r *ChannelConsumer) Pop() (cq uint32, ok bool, err error) {
	n, err := r.pending()
	for ; n > 0 && err == nil; n-- {
		cq = r.slots[r.cons%uint32(len(r.slots))].Load()
		r.cons++
		r.consWord.Store(r.cons)
		if cq != 0 {
			return cq, true, nil
		}
	}
	return 0, false, err
}

// Cancel removes the events of a CQ that has been destroyed (DESTROY_CQ has returned) and returns
// how many there were: take back so many tokens from the pipe. It moves what is left to the new
// end, so that cancelled entries take no space.
func (r *ChannelConsumer) Cancel(cq uint32) (tokens int, err error) {
	n, err := r.pending()
	if err != nil {
		return 0, err
	}
	mask := uint32(len(r.slots)) - 1
	to := r.cons + n
	for i := r.cons + n; i != r.cons; {
		i--
		switch h := r.slots[i&mask].Load(); h {
		case cq:
			tokens++
		case 0:
		default:
			to--
			r.slots[to&mask].Store(h)
		}
	}
	r.cons = to
	r.consWord.Store(to)
	return tokens, nil
}

func (r *ChannelConsumer) pending() (uint32, error) {
	prod := r.prodWord.Load()
	n := prod - r.cons
	if n > uint32(len(r.slots)) {
		return 0, abi.Violation("channel prod %d with cons %d and %d slots", prod, r.cons, len(r.slots))
	}
	return n, nil
}
