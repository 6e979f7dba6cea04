package ethswitch

import (
	"fmt"
	"slices"

	"github.com/vrnic/vrnic/netstack/frame"
)

// A Detour takes frames of a port off their way, to bring them back by v.Pass, or never. Take
// reports whether it has taken f, in if it comes from the port into the Switch. It may be called
// from several goroutines at once, also for a moment after v has ended, must not wait, and neither
// keep nor change f.
type Detour interface {
	Take(v *Diversion, f *frame.Frame, in bool) bool
}

// A Diversion is a port whose frames a Detour may take.
type Diversion struct {
	at *Attachment
	to Detour
}

// Divert has to take frames of the port of that name: of several Detours the last one is asked
// first. It ends with the port.
func (s *Switch) Divert(name string, to Detour) (*Diversion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := *s.ports.Load()
	i := slices.IndexFunc(ports, func(a *Attachment) bool { return a.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("netstack: there is no port %s", name)
	}
	v := &Diversion{at: ports[i], to: to}
	v.at.change(func(x *aside) { x.detours = append([]*Diversion{v}, x.detours...) })
	return v, nil
}

// End has nothing more taken.
func (v *Diversion) End() {
	s := v.at.sw
	s.mu.Lock()
	defer s.mu.Unlock()
	v.at.change(func(x *aside) {
		x.detours = slices.DeleteFunc(slices.Clone(x.detours), func(o *Diversion) bool { return o == v })
	})
}

// Pass has a frame go on that was taken, or a copy of it. It is an ordinary one, with complete
// checksums, and remains the caller's.
func (v *Diversion) Pass(f *frame.Frame, in bool) {
	a := v.at
	dst, src := f.Addresses()
	switch own := src == dst && dst == a.MAC; {
	case own:
		v.passBack(f, in)
	case !in && a.out.Enter():
		defer a.out.Leave()
		a.transmitOne(f, nil, a.aside.Load())
	case in && a.in.Enter():
		defer a.in.Leave()
		a.forward(f, dst, nil)
	}
}

// passBack is Pass for what the port sends to itself, of which the taps were shown all there is.
func (v *Diversion) passBack(f *frame.Frame, in bool) {
	a := v.at
	if !a.out.Enter() {
		return
	}
	defer a.out.Leave()
	if x := a.aside.Load(); !in || x == nil || !x.take(f, false) {
		a.port.Transmit(f, nil)
	}
}
