package iwarptest_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// taker takes at most n octets in all.
type taker struct {
	bytes.Buffer
	n      int
	pieces []int
}

func (k *taker) Write(p []byte) (int, error) {
	k.pieces = append(k.pieces, len(p))
	m := min(len(p), k.n)
	k.n -= m
	k.Buffer.Write(p[:m])
	if m < len(p) {
		return m, io.ErrShortWrite
	}
	return m, nil
}

func send(t *testing.T, s *iwarptest.Stream, text string) {
	t.Helper()
	if n, err := s.WriteFrom(bytes.NewReader([]byte(text))); n != len(text) || err != nil {
		t.Fatalf("WriteFrom: %d, %v", n, err)
	}
}

func take(t *testing.T, s *iwarptest.Stream, n int) string {
	t.Helper()
	k := &taker{n: n}
	if m, err := s.ReadInto(k); m != k.Len() || err != nil {
		t.Fatalf("ReadInto: %d of %d, %v", m, k.Len(), err)
	}
	return k.String()
}

func TestStream(t *testing.T) {
	a, b := iwarptest.NewPair(iwarptest.Link{CutEvery: 3, Record: true})
	w := iwarptest.NewWaker()
	b.SetNotify(w.Wake)
	send(t, a, "hello world")
	if w.Count() != 1 {
		t.Errorf("%d notices", w.Count())
	}
	if got := take(t, b, 4); got != "hell" {
		t.Errorf("%q", got)
	}
	k := &taker{n: 100}
	b.ReadInto(k)
	if k.String() != "o world" || len(k.pieces) != 3 || k.pieces[0] != 3 {
		t.Errorf("%q in %v", k.String(), k.pieces)
	}
	if n, err := b.ReadInto(k); n != 0 || err != nil {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	if n, log := a.Sent(); n != 11 || string(log) != "hello world" {
		t.Errorf("sent %d %q", n, log)
	}
	a.Corrupt(12, 0x20)
	send(t, a, "AAA")
	if got := take(t, b, 9); got != "AaA" {
		t.Errorf("%q", got)
	}
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() ||
		a.LocalAddr() == b.LocalAddr() {
		t.Error("addresses")
	}
	a.SetEMSS(100)
	if a.EMSS() != 100 || b.EMSS() != 1460 {
		t.Error("EMSS")
	}
}

func TestBufferIsBounded(t *testing.T) {
	a, b := iwarptest.NewPair(iwarptest.Link{Buffer: 8})
	w := iwarptest.NewWaker()
	a.SetNotify(w.Wake)
	if n, err := a.WriteFrom(bytes.NewReader(make([]byte, 20))); n != 8 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := a.WriteFrom(bytes.NewReader(make([]byte, 20))); n != 0 || err != nil {
		t.Errorf("full: %d, %v", n, err)
	}
	take(t, b, 3)
	if w.Count() != 1 {
		t.Error("no notice of room")
	}
	if n, err := a.WriteFrom(bytes.NewReader(make([]byte, 20))); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if a.InFlight() != 8 {
		t.Errorf("%d in flight", a.InFlight())
	}
}

// A source that fails loses nothing and breaks nothing.
type failing struct{ n int }

func (f *failing) Len() int { return 10 }
func (f *failing) Read(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return len(p), nil
}

func TestFailingSource(t *testing.T) {
	a, b := iwarptest.NewPair(iwarptest.Link{WriteMax: 4})
	if n, err := a.WriteFrom(&failing{n: 6}); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d, %v", n, err)
	}
	send(t, a, "x")
	if got := take(t, b, 9); got != "x" {
		t.Errorf("%q", got)
	}
}

func TestHold(t *testing.T) {
	a, b := iwarptest.NewPair(iwarptest.Link{})
	send(t, a, "one")
	a.Hold()
	send(t, a, "two")
	a.CloseWrite()
	if got := take(t, b, 2) + take(t, b, 9) + take(t, b, 9); got != "one" {
		t.Errorf("%q", got)
	}
	w := iwarptest.NewWaker()
	b.SetNotify(w.Wake)
	a.Release()
	if w.Count() != 1 {
		t.Error("no notice")
	}
	if got := take(t, b, 9); got != "two" {
		t.Errorf("%q", got)
	}
	if n, err := b.ReadInto(&taker{}); n != 0 || err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
	send(t, b, "half-closed")
	if got := take(t, a, 99); got != "half-closed" {
		t.Errorf("%q", got)
	}
}

func TestEnds(t *testing.T) {
	t.Run("close", func(t *testing.T) {
		a, b := iwarptest.NewPair(iwarptest.Link{})
		send(t, a, "bye")
		a.Close()
		if got := take(t, b, 9); got != "bye" {
			t.Errorf("%q", got)
		}
		if _, err := b.ReadInto(&taker{}); err != io.EOF {
			t.Error(err)
		}
		if _, err := a.ReadInto(&taker{}); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		b.WriteFrom(bytes.NewReader([]byte("late"))) // comes back as a RST
		if _, err := b.WriteFrom(bytes.NewReader([]byte("late"))); !errors.Is(err, iwarptest.ErrReset) {
			t.Error(err)
		}
	})
	t.Run("close with octets unread", func(t *testing.T) {
		a, b := iwarptest.NewPair(iwarptest.Link{})
		send(t, b, "unread")
		a.Close()
		if _, err := b.ReadInto(&taker{}); !errors.Is(err, iwarptest.ErrReset) {
			t.Error(err)
		}
	})
	t.Run("abort", func(t *testing.T) {
		a, b := iwarptest.NewPair(iwarptest.Link{})
		w := iwarptest.NewWaker()
		b.SetNotify(w.Wake)
		send(t, a, "lost")
		a.Abort()
		if _, err := b.ReadInto(&taker{n: 9}); !errors.Is(err, iwarptest.ErrReset) || w.Count() != 2 {
			t.Error(err, w.Count())
		}
		if _, err := a.WriteFrom(bytes.NewReader([]byte("x"))); !errors.Is(err, iwarptest.ErrReset) {
			t.Error(err)
		}
	})
}

// It works inside a bubble of testing/synctest.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := iwarptest.NewPair(iwarptest.Link{})
		w := iwarptest.NewWaker()
		b.SetNotify(w.Wake)
		got := ""
		go func() {
			<-w.C()
			k := &taker{n: 9}
			b.ReadInto(k)
			got = k.String()
		}()
		synctest.Wait()
		send(t, a, "x")
		synctest.Wait()
		if got != "x" {
			t.Errorf("%q", got)
		}
	})
}
