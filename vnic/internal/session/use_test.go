package session

import (
	"bytes"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/sctpddp"
)

// A wire is an Association that notes the PPIDs that go out.
type wire struct {
	Association
	code uint32
	sent []uint32
}

func (w *wire) PeerAdaptation() (uint32, bool) { return w.code, w.code != 0 }

func (w *wire) Send(_ uint16, ppid uint32, _ iwarp.Source) (uint64, error) {
	w.sent = append(w.sent, ppid)
	return uint64(len(w.sent)), nil
}

// Associations of ROI have numbers of their own, both ways, and never those of RFC 5043:
// docs/decisions.md#W8.
func TestUses(t *testing.T) {
	for code, want := range map[uint32]Use{
		sctpddp.IndicationDDP: DDP, roi.Indication: ROI, 0: DDP, 7: DDP,
	} {
		if u := useOf(&wire{code: code}); u != want {
			t.Errorf("indication %#x is for %d, want %d", code, u, want)
		}
	}
	for u, want := range map[Use][]uint32{DDP: {16, 17}, ROI: {roi.PPIDSegment, roi.PPIDControl}} {
		w := &wire{code: u.Indication()}
		a := u.of(w)
		for i, ppid := range []uint32{sctpddp.PPIDSegment, sctpddp.PPIDControl} {
			if _, err := a.Send(0, ppid, bytes.NewReader(nil)); err != nil || w.sent[i] != want[i] {
				t.Errorf("use %d: PPID %d goes as %#x, want %#x", u, ppid, w.sent[i], want[i])
			}
			if got := u.fromWire(want[i]); got != ppid {
				t.Errorf("use %d: PPID %#x comes as %d", u, want[i], got)
			}
		}
		if err := sctpddp.CheckIndication(a.PeerAdaptation()); err != nil {
			t.Errorf("use %d: %v", u, err)
		}
	}
	for _, ppid := range []uint32{0, 16, 17, roi.PPIDSegment + 1} { // in an association of ROI
		if got := ROI.fromWire(ppid); got == sctpddp.PPIDSegment || got == sctpddp.PPIDControl {
			t.Errorf("PPID %d is taken for %d", ppid, got)
		}
	}
	for _, code := range []uint32{0, 1, 7} { // what others show is none of ROI's
		if err := sctpddp.CheckIndication(ROI.of(&wire{code: code}).PeerAdaptation()); err == nil {
			t.Errorf("indication %d will do for ROI", code)
		}
	}
}
