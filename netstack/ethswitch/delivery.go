package ethswitch

import (
	"github.com/vrnic/vrnic/netstack/frame"
)

// A Delivery goes through a Switch beside a frame: who brings the frame, and what that goroutine
// offers to do beyond bringing it. A nil Delivery offers nothing.
//
// A segment usually goes from the goroutine that has read the frame to one of gVisor's, which
// handles it, and from there to the connection's user. Each time Go wakes one more thread to see
// whether there is more to do, and where the processors are busy that thread takes one from those
// that have to do with the message. So whoever brings octets may handle them, and run the
// connection's user, to completion:
//
//	who brings it        handles the segment          runs the user (Receiver.Tell)     holding
//	a Courier, one short itself, if nothing seems to  itself; for as long as the user   no lock
//	frame                come behind it               likes, which looks at more
//	a Courier, long      itself, once, when all of    itself, once, behind the last     no lock
//	frames, or several   them are there
//	full ones
//	a connection of this what it wrote, when it has   itself, behind its own call       no lock
//	process (Sender)     let go of its own end
//	any other goroutine  a goroutine of gVisor's      that one, by notification only    gVisor's
//
// Between Hold and Finish the bringer has the receiver's locks and does nothing but bring frames;
// while others have them Hold fails, and the segment goes the usual way. ACKs without octets always
// do: they may make TCP send much.
type Delivery struct {
	// Sender is the connection of this process that has sent the frame, or nil.
	Sender Receiver
	// Short says that the frame is a short one from outside: its receiver's memory is worth asking the
	// caches for.
	Short bool
	// Handle says that the goroutine holds no lock, and handles what it can take hold of.
	Handle bool
	// Batch says that more frames may come behind this one, and that Finish follows the last.
	Batch bool

	held     Receiver              // that Finish is due for, or nil
	owed     *debts                // of the Courier; nil: nothing can be put off
	deferred interface{ Finish() } // what Finish calls, or nil
	more     func() bool           // see More
}

// Defer asks for f.Finish when all frames that come together are there. It reports false if this
// frame is one of many that do not, or if somebody else has asked.
func (d *Delivery) Defer(f interface{ Finish() }) bool {
	if d == nil || !d.Batch && !d.Handle || d.deferred != nil {
		return false
	}
	d.deferred = f
	return true
}

// Local reports whether the frames are sent by d's goroutine, which has more to do than to bring
// them.
func (d *Delivery) Local() bool { return d != nil && !d.Handle }

// More is what Receiver.Tell is given, for who has called Defer: its Finish may look for what the
// program answers for as long as more reports false. Nil: Finish returns soon.
func (d *Delivery) More() func() bool {
	if d == nil {
		return nil
	}
	return d.more
}

// Deferred is what Finish will call, or nil.
func (d *Delivery) Deferred() interface{ Finish() } {
	if d == nil {
		return nil
	}
	return d.deferred
}

// Finish ends a batch: it calls what Defer was given. The caller holds no lock.
func (d *Delivery) Finish() {
	d.Batch = false
	d.FinishEarly()
}

// FinishEarly calls what Defer was given; another one may be deferred then. The caller holds no
// lock.
func (d *Delivery) FinishEarly() {
	f := d.deferred
	d.deferred = nil
	if f != nil {
		f.Finish()
	}
}

// A Receiver is a connection whose segments can be handled by whoever brings them.
type Receiver interface {
	// Hold takes the receiver's locks, unless somebody has them; Finish has to follow. Segments that
	// come meanwhile are queued.
	Hold() bool
	// Finish handles what was queued, lets go, and reports whether Tell should be called.
	Finish() bool
	// Tell runs the receiver's user, which has something to read; the caller holds no lock. more
	// reports whether the caller has more to bring: the user returns soon then. Nil: it has.
	Tell(more func() bool)
}

// Free reports whether d's goroutine could handle one more receiver's segments, or tell its user.
func (d *Delivery) Free() bool { return d != nil && d.held == nil }

// Hold takes hold of r until all that the goroutine brings has come, if it offers that.
func (d *Delivery) Hold(r Receiver) {
	if d.Handle && d.held == nil && r.Hold() {
		d.held = r
	}
}

// Holds reports whether d's goroutine has hold of r.
func (d *Delivery) Holds(r Receiver) bool { return d != nil && d.held == r }

// Gathers reports whether d's goroutine has hold of r, and brings several frames together.
func (d *Delivery) Gathers(r Receiver) bool { return d != nil && d.Batch && d.held == r }

// A Settler has something to do that is done once for several frames better than for each.
type Settler interface {
	// Settle does it. The caller holds no lock.
	Settle()
}

// debts are those whose Settle is due.
type debts struct {
	n   int
	who [4]Settler
}

// PutOff has d's goroutine call s.Settle when nothing seems to come behind what it brings, or much
// has. false: d does not offer that, and it is for the caller to do.
func (d *Delivery) PutOff(s Settler) bool {
	if d == nil || d.owed == nil {
		return false
	}
	o := d.owed
	for _, w := range o.who[:o.n] {
		if w == s {
			return true
		}
	}
	if o.n == len(o.who) {
		return false
	}
	o.who[o.n] = s
	o.n++
	return true
}

// ShortFrame is the longest frame, in octets, that is a short one.
const ShortFrame = 4096

// FullFrame is the length, in octets, from which on a frame is likely to be one of a stream's.
const FullFrame = 1024

// BatchFrames is how many long frames a Courier brings together at most. With half as many there
// are more ACKs; with twice as many, hardly fewer.
const BatchFrames = 8

// A Courier brings frames from outside through an Attachment. It belongs to one goroutine, which
// holds no lock while it does.
//
// A short frame is handled by that goroutine if nothing seems to come behind it. Long frames that
// are there one behind the other are handled together, so far as they are for one connection: their
// octets are in a cache still, and one ACK is enough for them. So are full frames, if there are
// several.
type Courier struct {
	at    *Attachment
	d     Delivery
	batch [SettleFrames]*frame.Frame
	n     int
	owed  debts
}

// NewCourier makes one for a.
func NewCourier(a *Attachment) *Courier { return &Courier{at: a} }

// Bring brings f, which it releases. alone says that nothing seems to come behind it; more is what
// Receiver.Tell is given.
func (c *Courier) Bring(f *frame.Frame, alone bool, more func() bool) {
	c.BringOne(f, alone, more)
	c.Settle()
}

// BringOne is Bring for who looks for the next frame at once. If Owes says so, Settle has to be
// called when there is none, or at the latest when SettleFrames were brought.
func (c *Courier) BringOne(f *frame.Frame, alone bool, more func() bool) {
	short := f.Len() <= ShortFrame
	c.d = Delivery{Short: short, Handle: alone && short, owed: &c.owed}
	if c.d.Handle {
		c.d.more = more
	}
	_ = c.at.Deliver(f, &c.d) // counts what it drops
	f.Release()
	c.finish(more)
}

// Owes reports whether something was put off.
func (c *Courier) Owes() bool { return c.owed.n > 0 }

// SettleFrames is how many short frames may be brought until what they have put off is done.
const SettleFrames = 16

// Settle does what was put off.
func (c *Courier) Settle() {
	n := c.owed.n
	c.owed.n = 0
	for i := range n {
		s := c.owed.who[i]
		c.owed.who[i] = nil
		s.Settle()
	}
}

// Gather keeps f, a long or a full frame, for BringAll, which releases it. It reports whether there
// is room for another one: for BatchFrames, or SettleFrames that are not long.
func (c *Courier) Gather(f *frame.Frame) bool {
	c.batch[c.n] = f
	c.n++
	return c.n < BatchFrames || c.n < len(c.batch) && f.Len() <= ShortFrame
}

// Gathered are the frames that BringAll will bring.
func (c *Courier) Gathered() []*frame.Frame { return c.batch[:c.n] }

// BringAll brings what was gathered.
func (c *Courier) BringAll() {
	c.d = Delivery{Handle: true, Batch: true, owed: &c.owed}
	for _, f := range c.Gathered() {
		_ = c.at.Deliver(f, &c.d) // counts what it drops
		f.Release()
	}
	clear(c.batch[:c.n])
	c.n = 0
	c.finish(nil)
	c.Settle()
}

func (c *Courier) finish(more func() bool) {
	r := c.d.held
	tell := r != nil && r.Finish()
	c.d.Finish()
	c.d = Delivery{}
	if tell {
		r.Tell(more)
	}
}
