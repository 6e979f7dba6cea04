package netstack_test

import (
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// looker counts the frames of TCP that it sees of a port, and their octets. Others come by
// themselves: a stack looks for routers when it has been there for a while.
type looker struct {
	t *testing.T

	mu     sync.Mutex
	frames int
	octets int64
}

func (l *looker) See(f *frame.Frame, in bool) {
	var whole frame.Packet
	if err := whole.Parse(f); err == nil && whole.Protocol != frame.ProtoTCP {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frames++
	f.Plain(func(one *frame.Frame) bool { // cut, and with its checksum
		var p frame.Packet
		if err := p.Parse(one); err != nil || !in || one.Len() > frame.EtherHeaderLen+1500 {
			l.t.Errorf("a frame of %d octets, in %v: %v", one.Len(), in, err)
		}
		if !one.ChecksumsValid(&p) {
			l.t.Errorf("a frame of %d octets has a wrong checksum", one.Len())
		}
		l.octets += int64(p.End - p.L4 - int(p.Headers[p.L4+12]>>4)*4)
		return true
	})
}

// What a stack sends to itself does not leave it, and is seen at its port by who asks for it, as
// the packets that it would be there.
func TestWatch(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		sw := ethswitch.New(ethswitch.Config{})
		s := netstacktest.NewStack(t, sw, 1, 1500)
		const n = 1 << 18
		exchange := func() {
			a, b := netstacktest.Connect(t, s, s, v6)
			netstacktest.Exchange(t, a, b, n)
			a.Close()
			b.Close()
		}
		l := &looker{t: t}
		remove, err := sw.Tap(sw.Ports()[0].Name, l)
		if err != nil {
			t.Fatal(err)
		}
		exchange()
		if l.frames != 0 {
			t.Errorf("nobody has asked for them, and %d frames are seen", l.frames)
		}
		first, second := s.Watch(), s.Watch()
		second()
		exchange()
		first()
		l.mu.Lock()
		if l.octets < 2*n { // what is sent again is seen again
			t.Errorf("v6=%v: of %d octets both ways %d are seen", v6, 2*n, l.octets)
		}
		l.mu.Unlock()
		exchange() // behind which nothing of before is on its way
		l.mu.Lock()
		was := l.frames
		l.mu.Unlock()
		exchange()
		if l.mu.Lock(); l.frames != was {
			t.Errorf("%d frames are seen when nobody asks any more", l.frames-was)
		}
		l.mu.Unlock()
		remove()
	}
}

// What a stack sends to itself goes over the roads of its port, on its way out and in, as what it
// sends to others does: of connections that there are, and of those that are made meanwhile.
func TestDivertOwn(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		sw := ethswitch.New(ethswitch.Config{})
		s := netstacktest.NewStack(t, sw, 1, 1500)
		a, b := netstacktest.Connect(t, s, s, v6)
		x, y := netstacktest.Connect(t, s, s, v6)
		plan, err := impair.ParsePlan("delay 200us 100us\nloss 1%\nduplicate 5%\ncorrupt 1%", 7)
		if err != nil {
			t.Fatal(err)
		}
		out := detour.NewRoad(&plan, detour.Out, time.Now())
		in := detour.NewRoad(&plan, detour.In, time.Now())
		f, err := detour.NewFrames(sw, sw.Ports()[0].Name, out, in, nil)
		if err != nil {
			t.Fatal(err)
		}
		const n = 1 << 17
		exchange := func(a, b *tcp.Conn) {
			t.Helper()
			netstacktest.Exchange(t, a, b, n)
			a.Close()
			b.Close()
		}
		exchange(a, b)
		exchange(netstacktest.Connect(t, s, s, v6))
		for name, r := range map[string]*detour.Road{"out": out, "in": in} {
			const least = 4 * n / 1500 // both ways
			if c, _ := r.Stats(); c.Frames < least || c.Lost == 0 || c.Doubled == 0 ||
				c.Corrupted == 0 {
				t.Errorf("v6=%v, %s: %+v", v6, name, c)
			}
		}
		f.Close()
		was, _ := out.Stats()
		exchange(x, y)
		if c, _ := out.Stats(); c.Frames > was.Frames+4 { // the others' ends
			t.Errorf("v6=%v: behind the end there are frames: %+v, before %+v", v6, c, was)
		}
		out.Close()
		in.Close()
	}
}

// Who looks sees what a stack sends to itself once, also if it goes over roads.
func TestDivertOwnWatched(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, 1, 1500)
	plan, err := impair.ParsePlan("delay 100us", 7)
	if err != nil {
		t.Fatal(err)
	}
	road := detour.NewRoad(&plan, detour.Out, time.Now())
	defer road.Close()
	name := sw.Ports()[0].Name
	f, err := detour.NewFrames(sw, name, road, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := &looker{t: t}
	remove, err := sw.Tap(name, l)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	defer s.Watch()()
	a, b := netstacktest.Connect(t, s, s, false)
	const n = 1 << 18
	netstacktest.Exchange(t, a, b, n)
	a.Close()
	b.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.octets < 2*n || l.octets >= 3*n { // what is sent again is seen again
		t.Errorf("of %d octets %d are seen", 2*n, l.octets)
	}
}
