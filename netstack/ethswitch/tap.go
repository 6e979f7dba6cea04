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
	a.setTaps(append(slices.Clone(a.tapList()), mine))
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.setTaps(slices.DeleteFunc(slices.Clone(a.tapList()), func(o *Tap) bool { return o == mine }))
	}, nil
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

func (a *Attachment) tapList() []*Tap {
	if t := a.taps.Load(); t != nil {
		return *t
	}
	return nil
}

func (a *Attachment) setTaps(taps []*Tap) {
	if len(taps) == 0 {
		a.taps.Store(nil)
		return
	}
	a.taps.Store(&taps)
}

// seen shows f to the taps of the port.
func (*Attachment) seen(taps *[]*Tap, f *frame.Frame, in bool) {
	for _, t := range *taps {
		(*t).See(f, in)
	}
}
