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
//	frames               them are there
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

	held Receiver // that Finish is due for, or nil
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

// ShortFrame is the longest frame, in octets, that is a short one.
const ShortFrame = 4096

// BatchFrames is how many long frames a Courier brings together at most. With half as many there
// are more ACKs; with twice as many, hardly fewer.
const BatchFrames = 8

// A Courier brings frames from outside through an Attachment. It belongs to one goroutine, which
// holds no lock while it does.
//
// A short frame is handled by that goroutine if nothing seems to come behind it. Long frames that
// are there one behind the other are handled together, so far as they are for one connection: their
// octets are in a cache still, and one ACK is enough for them.
type Courier struct {
	at    *Attachment
	d     Delivery
	batch [BatchFrames]*frame.Frame
	n     int
}

// NewCourier makes one for a.
func NewCourier(a *Attachment) *Courier { return &Courier{at: a} }

// Bring brings f, which it releases. alone says that nothing seems to come behind it; more is what
// Receiver.Tell is given.
func (c *Courier) Bring(f *frame.Frame, alone bool, more func() bool) {
	short := f.Len() <= ShortFrame
	c.d = Delivery{Short: short, Handle: alone && short}
	_ = c.at.Deliver(f, &c.d) // counts what it drops
	f.Release()
	c.finish(more)
}

// Gather keeps f, a long frame, for BringAll, which releases it. It reports whether there is room
// for another one.
func (c *Courier) Gather(f *frame.Frame) bool {
	c.batch[c.n] = f
	c.n++
	return c.n < BatchFrames
}

// Gathered are the frames that BringAll will bring.
func (c *Courier) Gathered() []*frame.Frame { return c.batch[:c.n] }

// BringAll brings what was gathered.
func (c *Courier) BringAll() {
	c.d = Delivery{Handle: true}
	for _, f := range c.Gathered() {
		_ = c.at.Deliver(f, &c.d) // counts what it drops
		f.Release()
	}
	clear(c.batch[:c.n])
	c.n = 0
	c.finish(nil)
}

func (c *Courier) finish(more func() bool) {
	r := c.d.held
	c.d = Delivery{}
	if r != nil && r.Finish() {
		r.Tell(more)
	}
}
