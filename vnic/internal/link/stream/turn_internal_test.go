package stream

import (
	"io"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// A closingQP is in Closing until its peer has ended.
type closingQP struct {
	link.QP
	ended bool
	lost  error
}

func (q *closingQP) State() rdma.QPState { return rdma.QPClosing }
func (q *closingQP) Ended() bool         { return q.ended }
func (q *closingQP) EOF()                { q.ended = true }
func (q *closingQP) Lost(err error)      { q.ended, q.lost = true, err }

// A busyStream has so many octets, and then the end.
type busyStream struct {
	llp.Stream
	left int
}

func (s *busyStream) ReadInto(w io.Writer) (int, error) {
	n := min(s.left, 64<<10)
	if n == 0 {
		return 0, io.EOF
	}
	s.left -= n
	return w.Write(make([]byte, n))
}

// A peer that goes on sending behind a Send that was dropped does not keep whoever runs the QP: it
// passes over a turn of it at a time.
func TestTurnOfTheDropped(t *testing.T) {
	const turns = 5
	qp, s := &closingQP{}, &busyStream{left: turns * link.TurnOctets}
	w := &Link{qp: qp, End: llp.End{S: s}, readable: true, dropped: true}
	for i := range turns {
		if moved, more := w.Step(); moved != link.TurnOctets || !more || qp.ended {
			t.Fatalf("turn %d: %d octets, more %v", i, moved, more)
		}
	}
	if moved, more := w.Step(); moved != 0 || more || !qp.ended || qp.lost != nil {
		t.Errorf("at the end: %d octets, more %v, lost %v", moved, more, qp.lost)
	}
}
