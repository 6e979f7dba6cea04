package roi

import (
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

type nobody struct{ sends int }

func (*nobody) PlaceWrite(iwarp.STag, uint64, []byte, bool) error { return nil }
func (*nobody) EndWrite(uint32, uint32) error                     { return nil }
func (*nobody) BeginReceive() (uint32, bool)                      { return 10, true }
func (*nobody) PlaceReceive(uint32, []byte) error                 { return nil }
func (n *nobody) EndReceive(uint32) error                         { n.sends++; return nil }
func (*nobody) EndReadSource(iwarp.Payload)                       {}
func (*nobody) PlaceRead(uint64, uint32, []byte) error            { return nil }
func (*nobody) EndRead(uint64, uint32) error                      { return nil }
func (*nobody) Sent(uint64)                                       {}
func (*nobody) ReadSource(iwarp.STag, uint64, uint32) (iwarp.Payload, uint32, error) {
	return nil, 0, nil
}

// Send Sequence Numbers go on with 0 behind 2^32-1, at both ends: ROI-026.
func TestNumbersWrap(t *testing.T) {
	h := &nobody{}
	x, err := NewEndpoint(h, Config{Initiator: true, Records: true})
	if err != nil {
		t.Fatal(err)
	}
	y, err := NewEndpoint(h, Config{Records: true})
	if err != nil {
		t.Fatal(err)
	}
	x.tx.number, y.rx.number = 1<<32-2, 1<<32-2
	var numbers []uint32
	for range 4 {
		if err := x.PostSend(0, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for x.Fill(); x.Len() > 0; x.Fill() {
		b := make([]byte, x.Len())
		if _, err := x.Read(b); err != nil {
			t.Fatal(err)
		}
		x.Commit(len(b))
		if m, _, err := Parse(b); err == nil && m.Kind == Send {
			numbers = append(numbers, m.Number)
		}
		if err := y.Segment(b, len(b)); err != nil {
			t.Fatal(err)
		}
	}
	if len(numbers) != 4 || numbers[1] != 1<<32-1 || numbers[2] != 0 || numbers[3] != 1 ||
		h.sends != 4 || y.Err() != nil {
		t.Errorf("numbers %v, %d delivered, %v", numbers, h.sends, y.Err())
	}
}
