package ethswitch

import (
	"fmt"
	"slices"

	"github.com/vrnic/vrnic/netstack/frame"
)

// A Tap sees the frames of a port, in for those that come from it into the Switch: super-frames as
// they are, and out of it also what the port then drops. See may be called from several goroutines
// at once, also for a moment after the tap was taken away. It must not wait, and neither keep nor
// change f.
type Tap interface {
	See(f *frame.Frame, in bool)
}

// Tap puts t on the port of that name, until remove is called. It ends with the port.
func (s *Switch) Tap(name string, t Tap) (remove func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := *s.ports.Load()
	i := slices.IndexFunc(ports, func(a *Attachment) bool { return a.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("netstack: there is no port %s", name)
	}
	a := ports[i]
	mine := &t
	a.change(func(x *aside) { x.taps = append(slices.Clone(x.taps), mine) })
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.change(func(x *aside) {
			x.taps = slices.DeleteFunc(slices.Clone(x.taps), func(o *Tap) bool { return o == mine })
		})
	}, nil
}

// Show shows the taps a frame that the port has sent to itself, past the switch.
func (a *Attachment) Show(f *frame.Frame) {
	if x := a.aside.Load(); x != nil {
		x.see(f, true)
	}
}

// ToItself is Show for a frame that the port is about to send to itself: as it goes out, and as it
// comes in, a Detour may take it. It reports whether one has; then the port gets it by Transmit, or
// never. f remains the caller's.
func (a *Attachment) ToItself(f *frame.Frame) (taken bool) {
	x := a.aside.Load()
	if x == nil {
		return false
	}
	x.see(f, true)
	return x.take(f, true) || x.take(f, false)
}

// Diverts reports whether DivertOwn may take anything.
func (a *Attachment) Diverts() bool {
	x := a.aside.Load()
	return x != nil && len(x.detours) > 0
}

// DivertOwn is ToItself for a frame that Show shows, or nobody wants to see.
func (a *Attachment) DivertOwn(f *frame.Frame) (taken bool) {
	x := a.aside.Load()
	return x != nil && (x.take(f, true) || x.take(f, false))
}

// PortOf is the name of the port that has m as its own address; "": none has.
func (s *Switch) PortOf(m frame.MAC) string {
	for _, a := range *s.ports.Load() {
		if a.MAC == m {
			return a.Name
		}
	}
	return ""
}

// An aside is who sees frames of a port, and who takes them off their way. It never changes.
type aside struct {
	taps    []*Tap
	detours []*Diversion // the last one first
}

// change has a follow what edit makes of its aside. The Switch's mu is held.
func (a *Attachment) change(edit func(*aside)) {
	var x aside
	if was := a.aside.Load(); was != nil {
		x = *was
	}
	edit(&x)
	if len(x.taps) == 0 && len(x.detours) == 0 {
		a.aside.Store(nil)
		return
	}
	a.aside.Store(&x)
}

// see shows f to the taps.
func (x *aside) see(f *frame.Frame, in bool) {
	for _, t := range x.taps {
		(*t).See(f, in)
	}
}

// take reports whether one of the detours has taken f.
func (x *aside) take(f *frame.Frame, in bool) bool {
	for _, v := range x.detours {
		if v.to.Take(v, f, in) {
			return true
		}
	}
	return false
}
