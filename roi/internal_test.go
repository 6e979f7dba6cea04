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

// eights are an iwarp.Payload without end.
type eights struct{}

func (eights) CopyOut(p []byte, _ uint32) error {
	for i := range p {
		p[i] = 8
	}
	return nil
}

// What every message takes is not allocated.
func TestNoAllocs(t *testing.T) {
	for _, records := range []bool{false, true} {
		own := Setup{Sends: true, SendCredits: 4, Reads: true, ReadCredits: 4}
		var ends [2]*Endpoint
		for i := range ends {
			var err error
			if ends[i], err = NewEndpoint(&nobody{}, Config{Own: own, Peer: own, Initiator: i == 0,
				Records: records, CRC: true}); err != nil {
				t.Fatal(err)
			}
		}
		b := make([]byte, 1<<17)
		move := func(from, to *Endpoint) {
			for from.Fill(); from.Len() > 0; from.Fill() {
				n, err := from.Read(b)
				from.Commit(n)
				if err == nil && records {
					err = to.Segment(b[:n:n], n)
				} else if err == nil {
					_, err = to.Write(b[:n:n])
				}
				if err != nil || to.Err() != nil {
					t.Fatal(err, to.Err())
				}
			}
		}
		round := func() {
			for _, err := range []error{
				ends[0].PostSend(1, eights{}, 10), ends[0].PostRead(2, 1, 0, 0, 1, 0),
				ends[0].PostNotifyingWrite(3, 1, 1, 0, eights{}, 3000),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			move(ends[0], ends[1])
			ends[1].Grant(2)
			move(ends[1], ends[0])
		}
		round()
		if n := testing.AllocsPerRun(100, round); n > 0 {
			t.Errorf("records %t: %.1f allocations in a round", records, n)
		}
	}
}
