package iwarptest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

// A taker notes its calls.
type taker struct {
	log  []string
	fail error
}

func (t *taker) note(format string, args ...any) error {
	t.log = append(t.log, fmt.Sprintf(format, args...))
	return t.fail
}

func (t *taker) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	return t.note("write %d+%d %s %t", stag, to, chunk, last)
}
func (t *taker) BeginReceive() (uint32, bool) { return 8, t.note("begin") == nil }
func (t *taker) PlaceReceive(off uint32, chunk []byte) error {
	return t.note("place %d %s", off, chunk)
}
func (t *taker) EndReceive(iwarp.Received) error { return t.note("receive") }
func (t *taker) PlaceRead(off uint32, chunk []byte) error {
	return t.note("read %d %s", off, chunk)
}
func (t *taker) EndRead(uint64) error { return t.note("end read") }
func (t *taker) ReadSource(iwarp.STag, uint64, uint32) (iwarp.Payload, error) {
	return nil, t.note("source")
}
func (t *taker) EndReadSource(iwarp.Payload)         {}
func (t *taker) Atomic(iwarp.Atomic) (uint64, error) { return 0, t.note("atomic") }
func (t *taker) EndAtomic(uint64, uint64) error      { return t.note("end atomic") }
func (t *taker) Sent(uint64)                         {}

// A Late host places nothing before each of the calls that say that something is there, and then
// all, in the order that Pick says, with octets that it has kept.
func TestLate(t *testing.T) {
	for name, end := range map[string]func(l *Late) error{
		"receive":    func(l *Late) error { return l.EndReceive(iwarp.Received{}) },
		"end read":   func(l *Late) error { return l.EndRead(1) },
		"end atomic": func(l *Late) error { return l.EndAtomic(1, 2) },
		"source":     func(l *Late) error { _, err := l.ReadSource(1, 2, 3); return err },
		"atomic":     func(l *Late) error { _, err := l.Atomic(iwarp.Atomic{}); return err },
	} {
		for _, pick := range []func(int) int{nil, func(int) int { return 0 }} {
			h := &taker{}
			l := &Late{Host: h, Pick: pick}
			b := []byte("abcdef")
			if l.PlaceWrite(7, 3, b[:2], true) != nil || l.PlaceReceive(4, b[2:4]) != nil ||
				l.PlaceRead(5, b[4:]) != nil {
				t.Fatal("refused")
			}
			copy(b, "xxxxxx") // it was borrowed
			if len(h.log) > 0 || l.Held() != 3 {
				t.Errorf("%s: too early %q", name, h.log)
			}
			want := "[read 5 ef place 4 cd write 7+3 ab true " + name + "]"
			if pick != nil {
				want = "[write 7+3 ab true read 5 ef place 4 cd " + name + "]"
			}
			if err := end(l); err != nil || fmt.Sprint(h.log) != want || l.Held() != 0 {
				t.Errorf("%s: got %q, want %s, %v", name, h.log, want, err)
			}
			// A fault comes out of the call that made it known.
			h.log, h.fail = nil, errors.New("no")
			l.PlaceWrite(1, 2, nil, true)
			if err := end(l); !errors.Is(err, h.fail) || len(h.log) != 1 {
				t.Errorf("%s: %v, %q", name, err, h.log)
			}
		}
	}
}
