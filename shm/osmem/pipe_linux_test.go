package osmem

import (
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/internal/proctest"
)

// A testRunner is a session's goroutines.
type testRunner struct {
	wg sync.WaitGroup
	mu sync.Mutex
	q  []func()
	on bool
}

func (r *testRunner) Go(f func()) { r.wg.Go(f) }

func (r *testRunner) Later(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.q = append(r.q, f); !r.on {
		r.on = true
		r.wg.Go(r.run)
	}
}

func (r *testRunner) run() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.q) > 0 {
		f := r.q[0]
		r.q = r.q[1:]
		r.mu.Unlock()
		f()
		r.mu.Lock()
	}
	r.on = false
}

// wantBack ends the test if f does not return.
func wantBack(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what, "hangs")
	}
}

// Whatever the client does with a pipe, who tells it of events, or ends that, does not wait, and
// what was told comes in the end.
func TestTokenToHeldPipe(t *testing.T) {
	run, closed := &testRunner{}, make(chan struct{})
	w, r, err := NewEventPipe(run, func() { close(closed) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r)
	w.Token()
	run.wg.Wait()
	release := proctest.HoldPipe(t, r)
	defer release()
	wantBack(t, "Token", w.Token)
	wantBack(t, "Token", w.Token)
	wantBack(t, "Close", w.Close)
	if w.Open() {
		t.Error("it is open, though closed")
	}
	release()
	run.wg.Wait()
	<-closed
	b := make([]byte, 10)
	if n, err := unix.Read(r, b); n != 2 || err != nil {
		t.Errorf("read %d, %v, want the two octets that the client's splice has left", n, err)
	}
	if n, err := unix.Read(r, b); n != 0 || err != nil {
		t.Errorf("read %d, %v, want the end", n, err)
	}
}

// A client has one octet for each event, also of those for which its socket had no room; and then
// the end.
func TestTokensBeyondSocket(t *testing.T) {
	run := &testRunner{}
	w, fd, err := NewEventSocket(run, func() {})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewEventReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const events = 10_000
	for range events {
		w.Token()
	}
	left := w.TakeBack(events) // all are nobody's, and the client has been told of some
	if left == 0 || left >= events {
		t.Errorf("%d of %d are to be taken by the client", left, events)
	}
	const more = 5000
	for range more {
		w.Token()
	}
	want := int(left) + more
	for got := 0; got < want; {
		n, _, err := r.Take()
		if err != nil || got+n > want {
			t.Fatalf("%d octets behind %d of %d: %v", n, got, want, err)
		}
		got += n
	}
	w.Token()
	w.Close()
	w.Close()
	w.Token()
	if n, _, err := r.Take(); n != 1 || err != nil {
		t.Errorf("%d, %v, want the last octet", n, err)
	}
	if err := r.Wait(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
	run.wg.Wait()
}

// A socket can be closed with octets that the client does not read.
func TestCloseFullSocket(t *testing.T) {
	run, closed := &testRunner{}, make(chan struct{})
	w, fd, err := NewEventSocket(run, func() { close(closed) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for range 10_000 {
		w.Token()
	}
	w.Close()
	<-closed
	run.wg.Wait()
}

// A client that has gone does not keep who tells it of events, with a full socket or without.
func TestTokenToNobody(t *testing.T) {
	for _, n := range []int{0, 10_000} {
		run := &testRunner{}
		w, fd, err := NewEventSocket(run, func() {})
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			w.Token()
		}
		unix.Close(fd)
		w.Token()
		run.wg.Wait() // nobody waits for room
		w.Close()
		run.wg.Wait()
	}
}

// Who has the other end of what the daemon writes to by a socket can send nothing back, descriptors
// least of all: to close one could take for ever.
func TestOneWay(t *testing.T) {
	run := &testRunner{}
	w, events, err := NewEventSocket(run, func() {})
	if err != nil {
		t.Fatal(err)
	}
	sleeper, waker, err := NewWakePair()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { w.Close(); run.wg.Wait(); CloseFDs([]int{events, sleeper, waker}) }()
	for what, fd := range map[string]int{"events": events, "a sleeper": sleeper} {
		for _, oob := range [][]byte{nil, unix.UnixRights(int(os.Stdin.Fd()))} {
			if err := unix.Sendmsg(fd, []byte{1}, oob, nil, unix.MSG_NOSIGNAL); err != unix.EPIPE {
				t.Errorf("%s: sent %d octets of control: %v, want %v", what, len(oob), err, unix.EPIPE)
			}
		}
	}
	if !WakeBy(waker) {
		t.Error("who sleeps is not woken")
	}
	if n, err := unix.Read(sleeper, make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("who sleeps reads %d, %v", n, err)
	}
}

// A client of this version understands a daemon that has pipes.
func TestReaderOfPipe(t *testing.T) {
	run := &testRunner{}
	w, fd, err := NewEventPipe(run, func() {})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewEventReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		w.Token()
	}
	for got := 0; got < 3; {
		n, _, err := r.Take()
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	w.Close()
	if err := r.Wait(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
	run.wg.Wait()
}

// What is neither a socket nor a pipe is not waited for.
func TestEventReaderOfFile(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := DupFD(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewEventReader(fd); err == nil {
		t.Error("a device is taken for what tells of events")
	}
}
