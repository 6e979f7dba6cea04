package ethswitch

import (
	"fmt"

	"github.com/vrnic/vrnic/netstack/frame"
)

// A Sharer is a Port that can be one station of the network together with another one, as a card
// that is the kernel's and does RDMA, too. Both send from the Sharer's MAC, and do not hear each
// other; what comes for them the Sharer divides. The other port may have further addresses behind
// it, as any port without a MAC of its own.
type Sharer interface {
	Port
	// Divide says whether f, which came for the station or for a group, is for the Sharer, for the
	// other port, or for both.
	Divide(f *frame.Frame) (mine, theirs bool)
}

// join makes a, which is new, one station with the port that it wants to be beside, one of ports.
// The Switch's mu is held.
func (a *Attachment) join(ports []*Attachment) error {
	for _, o := range ports {
		if o.Name != a.Beside {
			continue
		}
		switch other := o.beside.Load(); {
		case o.sharer == nil || o.MAC == (frame.MAC{}) || a.MAC != (frame.MAC{}):
			return fmt.Errorf("netstack: ports %s and %s cannot be one station", o.Name, a.Name)
		case other != nil:
			return fmt.Errorf("netstack: port %s shares its station with port %s already", o.Name,
				other.Name)
		}
		a.sharer = nil // it is the other's to divide
		a.beside.Store(o)
		o.beside.Store(a)
		return nil
	}
	return fmt.Errorf("netstack: there is no port %s for port %s to be beside", a.Beside, a.Name)
}

// sharesMAC reports whether m is the MAC of the port beside a.
func (a *Attachment) sharesMAC(m frame.MAC) bool {
	o := a.beside.Load()
	return o != nil && o.MAC == m
}

// macs are the addresses behind a.
func (a *Attachment) macs() []frame.MAC {
	macs := a.sw.table.behind(a)
	if o := a.beside.Load(); o != nil && a.sharer == nil {
		macs = append([]frame.MAC{o.MAC}, macs...)
	}
	return macs
}

// transmitDivided sends f, which is for a's MAC, out of a, or of the port beside it.
func (a *Attachment) transmitDivided(f *frame.Frame, d *Delivery) {
	o := a.beside.Load()
	if o == nil || a.sharer == nil {
		a.transmit(f, d)
		return
	}
	mine, theirs := a.sharer.Divide(f)
	f.Shared = mine && theirs
	if theirs {
		o.transmit(f, d)
	}
	if mine {
		a.transmit(f, d)
	}
	f.Shared = false
}

// wants reports whether f, which is for a group, is for a, too.
func (a *Attachment) wants(f *frame.Frame) bool {
	o := a.beside.Load()
	switch {
	case o == nil:
		return true
	case a.sharer != nil:
		mine, _ := a.sharer.Divide(f)
		return mine
	default:
		_, theirs := o.sharer.Divide(f)
		return theirs
	}
}
