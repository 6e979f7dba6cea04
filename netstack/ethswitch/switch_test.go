package ethswitch_test

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// A lab is a switch with ports in memory and a clock.
type lab struct {
	*testing.T
	sw    *ethswitch.Switch
	now   time.Time
	ports []*porttest.Port
}

func newLab(t *testing.T, ports int) *lab {
	l := &lab{T: t, now: time.Unix(1, 0)}
	l.sw = ethswitch.New(ethswitch.Config{
		Now: func() time.Time { return l.now }, Ageing: time.Minute})
	for i := range ports {
		l.ports = append(l.ports, porttest.NewPort(t, l.sw, fmt.Sprintf("p%d", i), false))
	}
	return l
}

// want sends a frame in at port from and says where it comes out.
func (l *lab) want(why string, from int, dst, src frame.MAC, at ...int) {
	l.Helper()
	octets := frametest.Ethernet(dst, src, 1)
	err := l.ports[from].Send(octets, frame.Offload{})
	if err != nil && len(at) > 0 {
		l.Errorf("%s: %v", why, err)
	}
	var got []int
	for i, p := range l.ports {
		for len(p.Frames) > 0 {
			got = append(got, i)
			if f := <-p.Frames; !bytes.Equal(f.Octets, octets) {
				l.Errorf("%s: port %d sent %x", why, i, f.Octets)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(at) {
		l.Errorf("%s: came out at %v, want %v", why, got, at)
	}
}

func TestSwitchForwards(t *testing.T) {
	l := newLab(t, 3)
	l.want("unknown unicast goes everywhere else", 0, frametest.MAC(1), frametest.MAC(0), 1, 2)
	l.want("learned", 1, frametest.MAC(0), frametest.MAC(1), 0)
	l.want("both ways", 0, frametest.MAC(1), frametest.MAC(0), 1)
	l.want("broadcast", 0, frametest.Broadcast, frametest.MAC(0), 1, 2)
	l.want("multicast", 2, frame.MAC{1, 0, 0x5e, 0, 0, 1}, frametest.MAC(2), 0, 1)
	l.want("both behind one port", 0, frametest.MAC(0), frametest.MAC(9))
	l.want("a host that moved", 2, frametest.MAC(1), frametest.MAC(0), 1)
	l.want("is found there", 1, frametest.MAC(0), frametest.MAC(1), 2)
	l.want("bridges' own group addresses stay on their link", 0, frame.MAC{1, 0x80, 0xc2, 0, 0, 0},
		frametest.MAC(9))
	l.want("a group address cannot send", 0, frametest.MAC(1), frametest.Broadcast)
}

func TestSwitchAges(t *testing.T) {
	l := newLab(t, 3)
	l.want("unknown", 0, frametest.MAC(1), frametest.MAC(0), 1, 2)
	l.now = l.now.Add(time.Minute)
	l.want("still known", 1, frametest.MAC(0), frametest.MAC(1), 0)
	l.now = l.now.Add(time.Second)
	l.want("too old", 1, frametest.MAC(0), frametest.MAC(1), 0, 2)
	l.want("heard again", 0, frametest.MAC(1), frametest.MAC(0), 1)
	for range 5 {
		l.now = l.now.Add(50 * time.Second)
		l.want("what is heard does not age", 0, frametest.Broadcast, frametest.MAC(0), 1, 2)
	}
	l.want("still known", 1, frametest.MAC(0), frametest.MAC(1), 0)
}

func TestSwitchPortsComeAndGo(t *testing.T) {
	l := newLab(t, 3)
	l.want("unknown", 0, frametest.Broadcast, frametest.MAC(0), 1, 2)
	l.ports[0].Detach()
	l.want("forgotten with its port", 1, frametest.MAC(0), frametest.MAC(1), 2)
	if err := l.ports[0].Send(frametest.Ethernet(frametest.Broadcast, frametest.MAC(0), 1),
		frame.Offload{}); err == nil {
		t.Error("a detached port got a frame in")
	}
	l.ports[0] = porttest.NewPort(t, l.sw, "p0", false)
	l.want("a new port of that name", 0, frametest.MAC(1), frametest.MAC(0), 1)
	if _, err := l.sw.Attach(ethswitch.PortOptions{Name: "p0"}, l.ports[0]); err == nil {
		t.Error("two ports of one name")
	}
	if err := l.sw.Close(); err == nil {
		t.Error("closed with ports on it, silently")
	}
	if _, err := l.sw.Attach(ethswitch.PortOptions{Name: "p9"}, l.ports[0]); err == nil {
		t.Error("a port on a closed switch")
	}
}

// TestSwitchOwnAddress: a port's own address cannot be taken by another.
func TestSwitchOwnAddress(t *testing.T) {
	l := newLab(t, 2)
	st := netstacktest.NewStack(t, l.sw, 1, 1500)
	drain := func() {
		for _, p := range l.ports {
			for len(p.Frames) > 0 {
				<-p.Frames
			}
		}
	}
	drain() // what the stack says when it comes up
	l.want("an impostor's frames are dropped", 0, frametest.MAC(1), st.MAC())
	l.want("and nothing was learned from them", 1, st.MAC(), frametest.MAC(1))
	if s := l.ports[0].Stats(); s.RxDrops != 1 || s.RxFrames != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, err := l.sw.Attach(ethswitch.PortOptions{Name: "x", MAC: st.MAC()}, l.ports[0]); err == nil {
		t.Error("two ports with one address")
	}
	infos := l.sw.Ports()
	if len(infos) != 3 || infos[2].Kind != "stack" || len(infos[2].MACs) != 1 ||
		infos[2].MACs[0] != st.MAC() {
		t.Errorf("ports: %+v", infos)
	}
}

// TestSwitchTableBounded: a port that makes addresses up fills its own share of the table only.
func TestSwitchTableBounded(t *testing.T) {
	l := newLab(t, 3)
	l.want("a host behind port 1", 1, frametest.MAC(0), frametest.MAC(1), 0, 2)
	var src frame.MAC
	for i := range 5000 {
		src = frame.MAC{2, 1, 0, 0, byte(i >> 8), byte(i)}
		if err := l.ports[0].Send(frametest.Ethernet(frametest.MAC(1), src, 1),
			frame.Offload{}); err != nil {
			t.Fatal(err)
		}
		<-l.ports[1].Frames // never flooded: frametest.MAC(1) is not pushed out
	}
	if n := len(l.sw.Ports()[0].MACs); n != 1024 {
		t.Errorf("%d addresses behind port 0", n)
	}
	l.want("what found no room is flooded", 1, src, frametest.MAC(1), 0, 2)
	l.now = l.now.Add(2 * time.Minute)
	l.want("age makes room", 0, frametest.Broadcast, frametest.MAC(7), 1, 2)
	l.want("for new ones", 1, frametest.MAC(7), frametest.MAC(1), 0)
}

func TestSwitchCounters(t *testing.T) {
	l := newLab(t, 2)
	octets := frametest.Ethernet(frametest.Broadcast, frametest.MAC(0), 1)
	n := uint64(len(octets))
	for range 3 {
		l.want("broadcast", 0, frametest.Broadcast, frametest.MAC(0), 1)
	}
	l.ports[1].Drop(true)
	l.want("dropped", 0, frametest.Broadcast, frametest.MAC(0))
	if err := l.ports[0].Send(octets[:13], frame.Offload{}); err == nil {
		t.Error("a frame of 13 octets")
	}
	want := ethswitch.PortStats{RxFrames: 4, RxOctets: 4 * n, RxDrops: 1}
	if got := l.ports[0].Stats(); got != want {
		t.Errorf("port 0: %+v, want %+v", got, want)
	}
	want = ethswitch.PortStats{TxFrames: 3, TxOctets: 3 * n, TxDrops: 1}
	if got := l.ports[1].Stats(); got != want {
		t.Errorf("port 1: %+v, want %+v", got, want)
	}
}

// TestDetachWhileBusy: Detach returns only when nothing is inside the port, and nothing comes in
// afterwards.
func TestDetachWhileBusy(t *testing.T) { synctest.Test(t, testDetachWhileBusy) }
func testDetachWhileBusy(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in := porttest.NewPort(t, sw, "in", false)
	p := &slow{release: make(chan struct{})}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "slow"}, p)
	if err != nil {
		t.Fatal(err)
	}
	detached := false
	go in.Send(frametest.Ethernet(frametest.Broadcast, frametest.MAC(1), 1), frame.Offload{})
	synctest.Wait()
	go func() { at.Detach(); detached = true }()
	synctest.Wait()
	if p.calls != 1 || detached {
		t.Errorf("%d frames are inside the port, detached: %v", p.calls, detached)
	}
	if err := in.Send(frametest.Ethernet(frametest.Broadcast, frametest.MAC(1), 1),
		frame.Offload{}); err != nil || p.calls != 1 {
		t.Errorf("a frame for a port that is being detached: %v, %d inside", err, p.calls)
	}
	close(p.release)
	synctest.Wait()
	if !detached {
		t.Error("not detached although nothing is inside")
	}
}

// slow keeps a frame until it is released.
type slow struct {
	calls   int
	release chan struct{}
}

func (p *slow) Transmit(*frame.Frame, *ethswitch.Delivery) bool {
	p.calls++
	<-p.release
	return true
}
func (p *slow) Offloads(frame.GSO) bool { return false }
func (p *slow) String() string          { return "slow" }

// TestSuperFrames: between ports that take them they cross as they are; for others they are cut.
func TestSuperFrames(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, 1000, 1001, 65000} {
			t.Run(fmt.Sprintf("v6=%v/n=%d", v6, n), func(t *testing.T) {
				sw := ethswitch.New(ethswitch.Config{})
				in := porttest.NewPort(t, sw, "in", true)
				super := porttest.NewPort(t, sw, "super", true)
				plain := porttest.NewPort(t, sw, "plain", false)
				b, o := frametest.Super(v6, n, 1000)
				if err := in.Send(b, o); err != nil {
					t.Fatal(err)
				}
				got := <-super.Frames
				o.HdrLen = got.HdrLen
				if got.Offload != o || !bytes.Equal(got.Octets, b) {
					t.Errorf("changed on the way: %+v, %d octets; sent %+v, %d", got.Offload, len(got.Octets),
						o, len(b))
				}
				var segs [][]byte
				for len(plain.Frames) > 0 {
					f := <-plain.Frames
					if f.GSO != frame.GSONone || f.Csum != frame.CsumValid {
						t.Errorf("not plain: %+v", f.Offload)
					}
					segs = append(segs, f.Octets)
				}
				if want := max(1, (n+999)/1000); len(segs) != want {
					t.Errorf("%d segments, want %d", len(segs), want)
				}
				frametest.CheckSegments(t, b, segs, int(o.CsumStart))
			})
		}
	}
}

// TestBadOffloads: offload fields that do not fit the frame get it dropped.
func TestBadOffloads(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in := porttest.NewPort(t, sw, "in", true)
	out := porttest.NewPort(t, sw, "out", false)
	for name, spoil := range map[string]func(b *[]byte, o *frame.Offload){
		"no segment size":      func(b *[]byte, o *frame.Offload) { o.GSOSize = 0 },
		"wrong family":         func(b *[]byte, o *frame.Offload) { o.GSO = frame.GSOTCPv6 },
		"unknown kind":         func(b *[]byte, o *frame.Offload) { o.GSO = 9 },
		"no partial checksum":  func(b *[]byte, o *frame.Offload) { o.Csum = frame.CsumValid },
		"sum starts elsewhere": func(b *[]byte, o *frame.Offload) { o.CsumStart++ },
		"sum goes elsewhere":   func(b *[]byte, o *frame.Offload) { o.CsumOffset = 6 },
		"sum goes outside":     func(b *[]byte, o *frame.Offload) { o.CsumOffset = 0xffff },
		"not TCP":              func(b *[]byte, o *frame.Offload) { (*b)[23] = 17 },
		"a fragment":           func(b *[]byte, o *frame.Offload) { (*b)[20] = 0x20 },
		"IP header too long":   func(b *[]byte, o *frame.Offload) { (*b)[14] = 0x4f },
		"IP header too short":  func(b *[]byte, o *frame.Offload) { (*b)[14] = 0x44 },
		"TCP header too short": func(b *[]byte, o *frame.Offload) { (*b)[46] = 0x40 },
		"TCP header too long": func(b *[]byte, o *frame.Offload) {
			*b = (*b)[:14+20+30]
			(*b)[16], (*b)[17] = 0, 50
			(*b)[46] = 0xf0
		},
		"shorter than it says": func(b *[]byte, o *frame.Offload) { *b = (*b)[:len(*b)-1] },
		"longer than it says":  func(b *[]byte, o *frame.Offload) { *b = append(*b, 0) },
		"no payload": func(b *[]byte, o *frame.Offload) {
			*b = (*b)[:54]
			(*b)[16],
				(*b)[17] = 0, 40
		},
		"ends in the IP header": func(b *[]byte, o *frame.Offload) { *b = (*b)[:30] },
		"ends in the MACs":      func(b *[]byte, o *frame.Offload) { *b = (*b)[:10] },
		"size but no kind":      func(b *[]byte, o *frame.Offload) { o.GSO = frame.GSONone },
		"no kind, sum outside": func(b *[]byte, o *frame.Offload) {
			o.GSO, o.GSOSize, o.CsumOffset = 0,
				0, 0xff00
		},
		"no kind, sum at end": func(b *[]byte, o *frame.Offload) {
			o.GSO, o.GSOSize, o.CsumStart = 0,
				0, uint16(len(*b)-17)
		},
		"sum over the addresses": func(b *[]byte, o *frame.Offload) {
			o.GSO, o.GSOSize,
				o.CsumStart = 0, 0, 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, o := frametest.Super(false, 3000, 1000)
			spoil(&b, &o)
			if err := in.Send(b, o); err == nil {
				t.Error("taken")
			}
			if n := len(out.Frames); n != 0 {
				t.Errorf("%d frames came out", n)
			}
		})
	}
}

// TestFloodPastStacks: a stack that a frame is flooded to does not take it away from the ports
// after.
func TestFloodPastStacks(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in := porttest.NewPort(t, sw, "in", true)
	netstacktest.NewStack(t, sw, 1, 1500)
	netstacktest.NewStack(t, sw, 2, 1500)
	last := porttest.NewPort(t, sw, "last", true)
	octets := frametest.Ethernet(frametest.Broadcast, frametest.MAC(9), 7)
	if err := in.Send(octets, frame.Offload{}); err != nil {
		t.Fatal(err)
	}
	for r := range last.Frames { // behind what the stacks say when they come up
		if bytes.Equal(r.Octets[6:12], octets[6:12]) {
			if !bytes.Equal(r.Octets, octets) {
				t.Errorf("%x came out, %x went in", r.Octets, octets)
			}
			return
		}
		if len(last.Frames) == 0 {
			t.Fatal("the frame did not come out")
		}
	}
}
