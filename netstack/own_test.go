package netstack_test

import (
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// looker counts the frames that it sees of a port, and the octets of those that are of TCP.
type looker struct {
	t *testing.T

	mu     sync.Mutex
	frames int
	octets int64
}

func (l *looker) See(f *frame.Frame, in bool) {
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
