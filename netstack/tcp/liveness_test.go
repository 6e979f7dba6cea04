package tcp_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// A silentLab is a connection over a wire that can be cut.
type silentLab struct {
	clock *faketime.ManualClock
	cut   atomic.Bool
	a, b  *tcp.Conn
}

func newSilentLab(t *testing.T, v6 bool, keepAlive, userTimeout time.Duration) *silentLab {
	l := &silentLab{clock: faketime.NewManualClock()}
	var sw [2]*ethswitch.Switch
	for i := range sw {
		sw[i] = ethswitch.New(ethswitch.Config{})
	}
	porttest.Wire(t, sw[0], sw[1], false, func(porttest.Received) bool { return !l.cut.Load() })
	var stacks [2]*netstack.Stack
	for i := range stacks {
		stacks[i] = netstacktest.NewStackOf(t, sw[i], i+1, netstack.Config{Clock: l.clock,
			KeepAlive: keepAlive, UserTimeout: userTimeout})
	}
	l.a, l.b = netstacktest.Connect(t, stacks[0], stacks[1], v6)
	t.Cleanup(func() {
		l.a.Close()
		l.b.Close()
	})
	return l
}

// end waits for the end of c, for d at most, and says when that was and why; nil: c is well.
func (l *silentLab) end(c *tcp.Conn, d time.Duration) (at time.Duration, err error) {
	const step = 500 * time.Millisecond
	for ; at < d; at += step {
		if _, err := c.ReadInto(netstacktest.NewSink(0)); err != nil {
			return at, err
		}
		l.clock.Advance(step)
	}
	return at, nil
}

// A peer that has vanished is found out in a minute, whether octets of ours wait for its
// acknowledgement or nothing has to be said; in the latter case both ends find out.
func TestSilentPeer(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		keepAlive, userTimeout time.Duration
		writes                 bool
		from, to               time.Duration // when it ends; 0: never
	}{
		{"idle", 0, 0, false, 55 * time.Second, 61 * time.Second},
		{"outstanding", 0, 0, true, 55 * time.Second, 61 * time.Second},
		{"idle, others", 2 * time.Second, 8 * time.Second, false, 7 * time.Second, 9 * time.Second},
		{"outstanding, others", 2 * time.Second, 8 * time.Second, true, 7 * time.Second, 9 * time.Second},
		{"idle, no keep-alive", -1, 0, false, 0, 0},
		{"outstanding, no keep-alive", -1, 0, true, 55 * time.Second, 61 * time.Second},
		{"idle, no bound", 12 * time.Second, -1, false, 20 * time.Second, 26 * time.Second},
	} {
		overBoth(t, tt.name, func(t *testing.T, v6 bool) {
			l := newSilentLab(t, v6, tt.keepAlive, tt.userTimeout)
			l.cut.Store(true)
			if tt.writes {
				if n, err := l.a.WriteFrom(netstacktest.NewSource(10)); n != 10 || err != nil {
					t.Fatal(n, err)
				}
			}
			at, err := l.end(l.a, 5*time.Minute)
			switch {
			case tt.to == 0 && err != nil:
				t.Errorf("it ended after %v: %v", at, err)
			case tt.to > 0 && (at < tt.from || at > tt.to || !errors.Is(err, syscall.ETIMEDOUT) &&
				!errors.Is(err, syscall.EHOSTUNREACH)): // nobody answers to ARP
				t.Errorf("it ended after %v with %v, want ETIMEDOUT in %v to %v", at, err, tt.from, tt.to)
			}
			if _, err := l.end(l.b, 30*time.Second); tt.to > 0 && !tt.writes && err == nil {
				t.Error("the other end goes on")
			}
		})
	}
}

// An askedLab is a connection whose end a asks b for signs of life, or for a window. From arm on b
// answers on the spot, and time passes for neither of them before all has arrived.
type askedLab struct {
	clock  *faketime.ManualClock
	a, b   *tcp.Conn
	askers [2]*netstacktest.Asker

	armed, cut       atomic.Bool
	asked, delivered atomic.Int64 // questions: a quarter of them gets there
	coming           atomic.Int64 // answers
	open             atomic.Int64 // searches for a neighbour that were not answered
}

// What a frame has to do with the search for a neighbour.
const (
	neighbourNone = iota
	neighbourAsked
	neighbourFound
)

// neighbour looks at ARP, and at Neighbor Discovery for somebody: one that looks whether its own
// address is free asks from no address, and hopes for no answer.
func neighbour(b []byte) int {
	const ndp = 14 + header.IPv6MinimumSize
	switch {
	case len(b) > 21 && b[12] == 8 && b[13] == 6 && b[21] == 1:
		return neighbourAsked
	case len(b) > 21 && b[12] == 8 && b[13] == 6:
		return neighbourFound
	case len(b) <= ndp || b[12] != 0x86 || b[13] != 0xdd ||
		b[20] != uint8(header.ICMPv6ProtocolNumber):
	case b[ndp] == uint8(header.ICMPv6NeighborSolicit) && sender(b) != 0:
		return neighbourAsked
	case b[ndp] == uint8(header.ICMPv6NeighborAdvert) && b[ndp+4]&0x40 != 0: // solicited
		return neighbourFound
	}
	return neighbourNone
}

// sender is the last octet of the source address of an IP packet in a frame.
func sender(b []byte) byte {
	if b[12] == 8 {
		return b[29]
	}
	return b[37]
}

func newAskedLab(t *testing.T, v6 bool, keepAlive [2]time.Duration,
	userTimeout time.Duration) *askedLab {
	l := &askedLab{clock: faketime.NewManualClock()}
	var sw [2]*ethswitch.Switch
	for i := range sw {
		sw[i] = ethswitch.New(ethswitch.Config{})
	}
	porttest.Bend(t, sw[0], sw[1], func(b []byte, deliver func()) {
		seg := segment(b)
		switch search := neighbour(b); {
		case l.cut.Load():
		case search == neighbourAsked: // a question counts up, an answer down
			l.open.Add(1)
			deliver()
		case search == neighbourFound:
			deliver()
			l.open.Add(-1)
		case !l.armed.Load() || seg == nil || seg.Flags() != header.TCPFlagAck:
			deliver()
		case sender(b) == 2: // an answer
			l.coming.Add(1)
			go func() { // who asks has a locked
				defer l.coming.Add(-1)
				l.a.Handle(deliver)
			}()
		case l.asked.Add(1)%4 == 0:
			l.delivered.Add(1)
			l.b.Handle(deliver)
		}
	})
	var stacks [2]*netstack.Stack
	for i := range stacks {
		stacks[i] = netstacktest.NewStackOf(t, sw[i], i+1, netstack.Config{Clock: l.clock,
			KeepAlive: keepAlive[i], UserTimeout: userTimeout})
		l.askers[i] = netstacktest.NewAsker(t, sw[i], stacks[i])
	}
	l.a, l.b = netstacktest.Connect(t, stacks[0], stacks[1], v6)
	t.Cleanup(func() { l.a.Close(); l.b.Close() })
	return l
}

// arm is called when nothing is on its way.
func (l *askedLab) arm() {
	l.a.Settle()
	l.b.Settle()
	l.armed.Store(true)
}

// advance lets time pass, and all arrive that was sent then.
func (l *askedLab) advance(t *testing.T, d time.Duration) {
	t.Helper()
	l.clock.Advance(d)
	needtest.Eventually(t, "all answers", func() bool {
		open := l.open.Load()
		for _, a := range l.askers {
			a.Wait()
		}
		return open == 0 && l.open.Load() == 0 && l.coming.Load() == 0
	})
	if _, err := l.a.ReadInto(netstacktest.NewSink(0)); err != nil {
		t.Fatalf("behind %d questions, %d of which got there: %v", l.asked.Load(), l.delivered.Load(),
			err)
	}
}

// A peer that is there answers, and three questions of four may be lost.
func TestIdleConnectionStays(t *testing.T) {
	const idle = 6 * time.Second
	overBoth(t, "asked", func(t *testing.T, v6 bool) {
		l := newAskedLab(t, v6, [2]time.Duration{idle, -1}, 2*idle)
		l.arm()
		for range 1000 {
			l.advance(t, idle/24)
		}
		if l.delivered.Load() < 10 {
			t.Errorf("%d questions, %d of which got there", l.asked.Load(), l.delivered.Load())
		}
	})
}

// fill fills the window of b, which reads nothing.
func fill(t *testing.T, clock *faketime.ManualClock, a, b *tcp.Conn) {
	t.Helper()
	needtest.Eventually(t, "a closed window", func() bool {
		n, err := a.WriteFrom(netstacktest.NewSource(64 << 10))
		if err != nil {
			t.Fatal(err)
		}
		b.Settle()
		a.Settle()
		if n > 0 {
			return false
		}
		if a.WindowShut() {
			return true
		}
		clock.Advance(20 * time.Millisecond) // the last ACK may wait for another one
		return false
	})
}

// A peer that keeps its window shut lives as long as it answers, also if three questions of four
// are lost, and is given up when it does not (RFC 9293, section 3.8.6.1).
func TestShutWindowStays(t *testing.T) {
	for _, userTimeout := range []time.Duration{10 * time.Second, -1} {
		overBoth(t, fmt.Sprint(userTimeout), func(t *testing.T, v6 bool) {
			testShutWindow(t, v6, userTimeout)
		})
	}
}

func testShutWindow(t *testing.T, v6 bool, userTimeout time.Duration) {
	const step = 500 * time.Millisecond
	l := newAskedLab(t, v6, [2]time.Duration{-1, -1}, userTimeout)
	fill(t, l.clock, l.a, l.b)
	l.arm()
	for at := time.Duration(0); at < 10*time.Minute; at += step {
		l.advance(t, step)
	}
	if l.delivered.Load() < 10 {
		t.Errorf("%d questions, %d of which got there", l.asked.Load(), l.delivered.Load())
	}
	l.cut.Store(true)
	var err error
	var at time.Duration
	for ; err == nil && at < 2*time.Hour; at += step {
		l.clock.Advance(step)
		_, err = l.a.ReadInto(netstacktest.NewSink(0))
	}
	if err == nil || userTimeout > 0 && at > userTimeout+step {
		t.Errorf("a peer that has vanished is given up after %v: %v", at, err)
	}
}

// A peer that takes nothing for some time has lost nothing: the window is what it was when it goes
// on.
func TestClosedWindow(t *testing.T) {
	l := newSilentLab(t, false, 0, 0)
	fill(t, l.clock, l.a, l.b)
	for range 20 {
		l.clock.Advance(500 * time.Millisecond)
		l.b.Settle()
		l.a.Settle()
	}
	if s := l.a.LossState(); !strings.Contains(s, "Timeouts:0") {
		t.Errorf("the peer was asked whether its window is open: %s", s)
	}
	if !l.a.Watched() {
		t.Error("nobody looks whether what goes out when the window opens gets there")
	}
}
