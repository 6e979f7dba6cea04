package tcp_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

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

// TestWindowOpensOnce: what the peer's window has room for is sent when it opens, though nothing is
// acknowledged by the segment that says so, and somebody looks before one of gVisor's goroutines
// has handled that: also where the peer will send nothing more (CLOSE-WAIT), and where the
// connection was given back.
func TestWindowOpensOnce(t *testing.T) {
	for name, end := range map[string]func(*rig) error{
		"established": func(*rig) error { return nil },
		"behind the peer's FIN": func(r *rig) error {
			err := r.b.CloseWrite()
			for r.a.State() != tcp.StateCloseWait && r.step() {
				r.settle()
			}
			return err
		},
		"behind ours": func(r *rig) error { return r.a.CloseWrite() },
		"given back":  func(r *rig) error { return r.a.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			const octets, delay = 256 << 10, 100 * time.Microsecond
			r := newRig(t, badWire{rate: 1e10, queue: 4 << 20, delay: delay, receive: 64 << 10}, 1)
			r.connect(t)
			if n, err := r.a.WriteFrom(netstacktest.NewSource(octets)); n != octets || err != nil {
				t.Fatal(n, err)
			}
			wait := func(d time.Duration) {
				over := false
				r.clock.AfterFunc(d, func() { over = true })
				for !over {
					r.stacks[0].Pause()
					r.step()
					r.a.AwaitLook()
					r.stacks[0].Resume()
					r.a.SettleAsked()
					r.b.SettleAsked()
				}
			}
			wait(100 * delay) // the window is full
			if err := end(r); err != nil || !r.a.Unsent() || r.a.Room() >= r.a.EMSS() {
				t.Fatal(err, r.a.Unsent(), r.a.Room())
			}
			sent := 0
			dir := r.dirs[0]
			dir.locked(func() {
				dir.drop = func(b []byte) bool {
					_, n := carried(b)
					sent += int(n)
					return false
				}
			})
			sink := netstacktest.NewSink(octets)
			if _, err := r.b.ReadInto(sink); err != nil {
				t.Fatal(err)
			}
			read := int(sink.Len())
			wait(3 * delay / 2) // nothing that is sent then is acknowledged yet
			dir.locked(func() {
				if sent < read*3/4 {
					t.Errorf("%d octets were sent where %d were read", sent, read)
				}
			})
		})
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
