package session

import (
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/sctpddp"
)

// A Use is what the sessions of an association carry. It is known by its adaptation indication, and
// its messages by their PPIDs.
type Use uint8

const (
	DDP Use = iota // RFC 5043
	ROI            // the messages of package roi, in sessions of the same kind
)

// numbers are what a Use is known by.
var numbers = [...]struct{ indication, segment, control uint32 }{
	DDP: {sctpddp.IndicationDDP, sctpddp.PPIDSegment, sctpddp.PPIDControl},
	ROI: {roi.Indication, roi.PPIDSegment, roi.PPIDControl},
}

// Indication is what an INIT for u shows.
func (u Use) Indication() uint32 { return numbers[u].indication }

// Admits reports whether a peer that has shown this indication wants u.
func (u Use) Admits(code uint32, present bool) bool { return present && code == u.Indication() }

// useOf is what a's peer wants; DDP, which will not do, if it is none of ours.
func useOf(a Association) Use {
	if ROI.Admits(a.PeerAdaptation()) {
		return ROI
	}
	return DDP
}

// fromWire is the PPID of RFC 5043 that stands for ppid; an impossible one for that of another Use.
func (u Use) fromWire(ppid uint32) uint32 {
	switch {
	case u == DDP:
		return ppid
	case ppid == numbers[u].segment:
		return sctpddp.PPIDSegment
	case ppid == numbers[u].control:
		return sctpddp.PPIDControl
	}
	return 0
}

// of is a as a Mux sees it, which knows the numbers of RFC 5043 only.
func (u Use) of(a Association) sctpddp.Association {
	if u == DDP {
		return a
	}
	return &translated{a, u}
}

// A translated association has the numbers of another Use on the wire.
type translated struct {
	Association
	use Use
}

func (t *translated) Send(stream uint16, ppid uint32, src iwarp.Source) (uint64, error) {
	n := &numbers[t.use]
	if ppid == sctpddp.PPIDControl {
		return t.Association.Send(stream, n.control, src)
	}
	return t.Association.Send(stream, n.segment, src)
}

func (t *translated) PeerAdaptation() (code uint32, present bool) {
	code, present = t.Association.PeerAdaptation()
	if t.use.Admits(code, present) {
		return sctpddp.IndicationDDP, true
	}
	return code, present && code != sctpddp.IndicationDDP
}
