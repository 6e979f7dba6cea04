package progress

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/terminal"
)

func TestLine(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(0, 0)
	l := newLine(&b, 90*time.Second, func() time.Time { return now })
	want := func(s string) {
		t.Helper()
		if b.String() != s {
			t.Errorf("%q, want %q", b.String(), s)
		}
		b.Reset()
	}
	l.Clear()
	want("") // nothing is there yet
	l.Step("1 of 9: loop write")
	want("\r\x1b[K1 of 9: loop write (0s of about 1m30s)")
	now = now.Add(5 * time.Second)
	l.show()
	want("\r\x1b[K1 of 9: loop write (5s of about 1m30s)")
	l.Clear()
	l.Clear()
	want("\r\x1b[K")
	l.Step("2 of 9: loop read")
	b.Reset()
	l.Done()
	want("\r\x1b[K")
	l.Done()
	l.Step("more")
	l.show()
	want("")
}

// Files and pipes get none of it, and short runs need none.
func TestNoTerminal(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	for _, l := range []*Line{New(f, time.Hour), New(&b, time.Hour)} {
		l.Step("x")
		l.Done()
	}
	if st, err := f.Stat(); err != nil || st.Size() != 0 || b.Len() != 0 {
		t.Errorf("%d octets, %q, %v", st.Size(), b.String(), err)
	}
}

// terminal opens a terminal of its own.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		needtest.Lacking(t, "terminals", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func state(l *Line) (shown, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shown, l.ended
}

func TestTerminal(t *testing.T) {
	f := openTerminal(t)
	if !terminal.Is(f) {
		t.Fatal("a terminal is none")
	}
	if _, ended := state(New(f, time.Second)); !ended {
		t.Error("a short run has a line")
	}
	l := New(f, time.Hour)
	l.Step("x")
	if shown, _ := state(l); !shown {
		t.Error("a long run has no line")
	}
	l.Done() // ends its goroutine
}
