package detour

import (
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A Match says which frames are meant: p has the headers of f, in says that it goes from the port
// into the switch. It does not wait.
type Match func(p *frame.Packet, f *frame.Frame, in bool) bool

// Frames has frames of a port go over Roads.
type Frames struct {
	in, out *Road // nil: straight on
	match   Match // nil: all
	at      *ethswitch.Diversion
}

// NewFrames has frames of the port of that name go over in, if they go from the port into the
// switch, and else over out, those that match does not refuse. Either Road may be nil.
func NewFrames(sw *ethswitch.Switch, name string, in, out *Road, match Match) (*Frames, error) {
	s := &Frames{in: in, out: out, match: match}
	var err error
	s.at, err = sw.Divert(name, s)
	return s, err
}

// Close has frames go straight on.
func (s *Frames) Close() { s.at.End() }

// Take implements ethswitch.Detour. Of a super-frame each frame goes by itself.
func (s *Frames) Take(v *ethswitch.Diversion, f *frame.Frame, in bool) bool {
	road := s.out
	if in {
		road = s.in
	}
	if road == nil {
		return false
	}
	var p frame.Packet
	l3 := -1
	if p.Parse(f) != nil {
		p.L3, p.L4 = frame.EtherHeaderLen, 0 // no IP
	} else if p.EtherType == frame.EtherIPv4 || p.EtherType == frame.EtherIPv6 {
		l3 = p.L3
	}
	if s.match != nil && !s.match(&p, f, in) {
		return false
	}
	f.Plain(func(one *frame.Frame) bool {
		right := one.Csum
		road.Send(&Packet{Octets: one.AppendTo(make([]byte, 0, one.Len())), L3: l3,
			Arrive: func(k *Packet) {
				csum := right // of this copy: another may arrive at the same time
				if k.Wrong {
					csum = frame.CsumUnverified
				}
				g := frame.New(k.Octets, frame.Offload{Csum: csum})
				v.Pass(g, in)
				g.Release()
			}})
		return true
	})
	return true
}
