package iwarp

import (
	"os"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
)

// An endless connection has Sends come for ever; whoever reads has the time of a thousand Reads.
type endless struct {
	rawpeer.Conn
	t     *testing.T
	fpdu  []byte
	off   int
	until int // Reads till the deadline
	all   int
}

func (e *endless) SetReadDeadline(time.Time) error {
	e.until = 1000
	return nil
}

func (e *endless) Read(b []byte) (int, error) {
	if e.all++; e.all > 10_000 {
		e.t.Fatal("it reads for ever")
	}
	if e.until--; e.until < 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, e.fpdu[e.off:])
	e.off = (e.off + n) % len(e.fpdu)
	return n, nil
}

// An endpoint that says more and more does not keep a case longer than one that says nothing.
func TestEndless(t *testing.T) {
	peer := func() *rawpeer.Peer {
		var f rawpeer.Framer
		p := rawpeer.New(&endless{t: t, fpdu: f.Append(nil, rawpeer.Send(1, 0, nil).ULPDU(),
			rawpeer.Lie{})})
		p.Lenient = true
		return p
	}
	if err := new(attempt).over(peer()); err == nil {
		t.Error("the stream is over")
	}
	p := peer()
	p.Skip = func(s rawpeer.Seg) bool { return s.Op() == rawpeer.OpSend }
	if s, err := p.Next(); rawpeer.EndingOf(err) != rawpeer.EndSilence {
		t.Errorf("behind Sends that are left out: %v, %v", s, err)
	}
}
