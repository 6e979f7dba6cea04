package datagram_test

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/vnic/internal/datagram"
)

// A lookout is what looks for ways, and finds none before it is told to.
type lookout struct {
	*datagram.Ways
	tell  chan error
	asked atomic.Int32
}

func newLookout() *lookout {
	l := &lookout{tell: make(chan error)}
	l.Ways = datagram.NewWays(func(netip.Addr, netip.Addr) (datagram.Route, error) {
		l.asked.Add(1)
		return nil, <-l.tell
	}, func(f func()) bool { go f(); return true })
	return l
}

// find asks for the way to host n.
func (l *lookout) find(n byte) error {
	_, err := l.Find(netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 1, n}))
	return err
}

func (l *lookout) wantAsked(t *testing.T, why string, n int32) {
	t.Helper()
	synctest.Wait()
	if got := l.asked.Load(); got != n {
		t.Errorf("%s: looked %d times, want %d", why, got, n)
	}
}

// What is known at once is told at once. Else who asks is told that it is looked for, comes to know
// what was found when he asks again, and asks anew behind that.
func TestWays(t *testing.T) {
	for _, found := range []error{nil, syscall.EHOSTUNREACH} {
		synctest.Test(t, func(t *testing.T) {
			l := newLookout()
			go func() { l.tell <- found }()
			began := time.Now()
			if err := l.find(1); !errors.Is(err, found) || time.Since(began) != 0 {
				t.Errorf("at once: %v after %v", err, time.Since(began))
			}
			for range 3 {
				began = time.Now()
				if err := l.find(1); !errors.Is(err, syscall.EINPROGRESS) ||
					time.Since(began) > 10*time.Millisecond {
					t.Errorf("while it is looked for: %v after %v", err, time.Since(began))
				}
			}
			l.wantAsked(t, "asked again", 2)
			l.tell <- found
			if err := l.find(1); !errors.Is(err, found) {
				t.Errorf("found: %v", err)
			}
			l.wantAsked(t, "what was found", 2)
			go func() { l.tell <- nil }()
			if err := l.find(1); err != nil {
				t.Errorf("anew: %v", err)
			}
			l.wantAsked(t, "anew", 3)
		})
	}
}

// Some are looked for at a time, more when it is their turn. What nobody asks for again is
// forgotten.
func TestWaysBounded(t *testing.T) {
	const most = 64
	synctest.Test(t, func(t *testing.T) {
		l := newLookout()
		for n := range byte(most + 6) {
			if err := l.find(n); !errors.Is(err, syscall.EINPROGRESS) {
				t.Fatal(err)
			}
		}
		l.wantAsked(t, "as many as may be", most)
		for range most {
			l.tell <- nil
		}
		synctest.Wait()
		if err := l.find(most); !errors.Is(err, syscall.EINPROGRESS) {
			t.Error(err)
		}
		l.wantAsked(t, "what was found is kept for a while", most)
		time.Sleep(2 * time.Second)
		go func() { l.tell <- nil }()
		if err := l.find(most); err != nil {
			t.Error(err)
		}
		l.wantAsked(t, "its turn", most+1)
		if err := l.find(1); !errors.Is(err, syscall.EINPROGRESS) {
			t.Errorf("nobody had asked for it any more: %v", err)
		}
		l.tell <- nil
	})
}

// Of an owner that is gone there are no ways.
func TestWaysGone(t *testing.T) {
	w := datagram.NewWays(func(netip.Addr, netip.Addr) (datagram.Route, error) {
		t.Error("looked for")
		return nil, nil
	}, func(func()) bool { return false })
	if _, err := w.Find(netip.Addr{}, netip.Addr{}); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}
