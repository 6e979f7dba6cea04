package tcp_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// TestWindowOpens: a sender that the peer's window holds back goes on when the peer's program has
// read, in whole segments: neither waits for the other until an ACK that is delayed is due.
func TestWindowOpens(t *testing.T) {
	t.Run("small", func(t *testing.T) { windowOpens(t, 64<<10, 2<<20) })
	t.Run("wide", func(t *testing.T) { windowOpens(t, 1<<20, 8<<20) })
}

func windowOpens(t *testing.T, receive int, size int64) {
	const delay, pause = 100 * time.Microsecond, 2 * time.Millisecond
	r := newRig(t, badWire{rate: 1e10, queue: 4 << 20, delay: delay, receive: receive}, 1)
	r.connect(t)
	segments := 0
	dir := r.dirs[0]
	dir.locked(func() {
		dir.drop = func(b []byte) bool {
			if _, n := carried(b); n > 0 {
				segments++
			}
			return false
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	src, sink := netstacktest.NewSource(size), netstacktest.NewSink(size)
	last := r.clock.Elapsed()
	var due, longest time.Duration
	for was, i := 0, 0; sink.Len() < size; i++ {
		if i%200 == 0 { // at a time, so that it is not writing that has more sent
			if _, err := r.a.WriteFrom(src); err != nil {
				t.Fatal(err)
			}
		}
		if now := r.clock.Elapsed(); now >= due {
			if _, err := r.b.ReadInto(&few{sink, 1 + rng.Int64N(int64(receive))}); err != nil {
				t.Fatal(err)
			}
			wait := time.Duration(rng.Int64N(int64(pause)))
			due = now + wait
			r.clock.AfterFunc(wait, func() {})
		}
		r.a.SettleAsked()
		r.b.SettleAsked()
		if !r.step() {
			t.Fatal("nothing is to come")
		}
		r.a.SettleAsked()
		r.b.SettleAsked()
		unsent := r.a.Unsent()
		dir.locked(func() {
			now := r.clock.Elapsed()
			if segments > was || !unsent {
				longest = max(longest, now-last)
				was, last = segments, now
			}
		})
	}
	if longest > 10*time.Millisecond {
		t.Errorf("nothing was sent for %v", longest)
	}
}

// Short messages that the peer's window has room for go out at once, also where it has room for few
// segments.
func TestShortMessagesWithinWindow(t *testing.T) {
	r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: time.Millisecond, receive: 64 << 10}, 1)
	r.connect(t)
	settle := func() { r.a.SettleAsked(); r.b.SettleAsked() }
	write := func(octets int) {
		if n, err := r.a.WriteFrom(netstacktest.NewSource(int64(octets))); n != octets || err != nil {
			t.Fatal(n, err)
		}
		settle()
	}
	emss := r.a.EMSS()
	for r.a.Room() >= 3*emss {
		write(emss)
		for range 3 { // there, and back
			r.step()
			settle()
		}
	}
	const messages = 10
	room := r.a.Room()
	for range messages {
		write(100)
	}
	if sent := room - r.a.Room(); sent != messages*100 {
		t.Errorf("%d octets of %d are under way, and there is room for %d", sent, messages*100, room)
	}
}

// few takes so many octets of what it is given and no more.
type few struct {
	*netstacktest.Sink
	n int64
}

func (f *few) Write(b []byte) (int, error) {
	n, err := f.Sink.Write(b[:min(int64(len(b)), f.n)])
	f.n -= int64(n)
	return n, err
}
