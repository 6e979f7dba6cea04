package detour

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// patience is far more than anything here takes.
const patience = time.Minute

func plan(t *testing.T, words string) *impair.Plan {
	t.Helper()
	p, err := impair.ParsePlan(words, 5)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// An inbox has what has arrived.
type inbox struct {
	mu  sync.Mutex
	all []Packet
	// some is told of each.
	some chan struct{}
}

func newInbox() *inbox { return &inbox{some: make(chan struct{}, 1)} }

func (b *inbox) arrive(p *Packet) {
	b.mu.Lock()
	b.all = append(b.all, *p)
	b.mu.Unlock()
	select {
	case b.some <- struct{}{}:
	default:
	}
}

// await waits for n packets.
func (b *inbox) await(t *testing.T, n int) []Packet {
	t.Helper()
	late := time.After(patience)
	for {
		b.mu.Lock()
		all := slices.Clone(b.all)
		b.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-b.some:
		case <-late:
			t.Fatalf("%d packets have arrived, want %d", len(all), n)
		}
	}
}

// TestRoad: packets arrive late, by as much as was said, and in order; what needs no time arrives
// at once; those that find no room are counted.
func TestRoad(t *testing.T) {
	r := NewRoad(plan(t, "delay 20ms limit 50"), Out, time.Now())
	defer r.Close()
	b := newInbox()
	begun := time.Now()
	for i := range byte(60) {
		r.Send(&Packet{Octets: []byte{i}, Arrive: b.arrive})
	}
	for i, p := range b.await(t, 50)[:50] {
		if p.Octets[0] != byte(i) {
			t.Fatalf("packet %d is %d", i, p.Octets[0])
		}
	}
	if d := time.Since(begun); d < 20*time.Millisecond {
		t.Errorf("after %v they are there", d)
	}
	if s, waiting := r.Stats(); s.Frames != 60 || s.Overflow < 1 || waiting > 10 {
		t.Errorf("%+v, %d wait", s, waiting)
	}

	straight := NewRoad(plan(t, "loss 0.0001%"), Out, time.Now())
	defer straight.Close()
	here := 0
	for range 100 {
		straight.Send(&Packet{Octets: []byte{1}, Arrive: func(*Packet) { here++ }})
	}
	if here != 100 {
		t.Errorf("%d of 100 have arrived when Send has returned", here)
	}
}

// TestRoadFull: what finds no room takes no time of the bottleneck from what comes behind it.
func TestRoadFull(t *testing.T) {
	r := NewRoad(plan(t, "rate 8bit limit 2"), Out, time.Now())
	defer r.Close()
	for range 100 {
		r.Send(&Packet{Octets: make([]byte, 1000), Arrive: func(*Packet) { t.Error("too early") }})
	}
	if s, waiting := r.Stats(); s.Overflow != 98 || waiting != 2 {
		t.Errorf("%+v, %d wait", s, waiting)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	const each = 1000 * time.Second
	next := r.lane.Link(2*each).Carry(2*each, 1000).At[0]
	if next < 3*each || next > 4*each {
		t.Errorf("behind two of %v the third arrives after %v", each, next)
	}
}

// TestFramesTwice: the copies of a frame may arrive at the same time.
func TestFramesTwice(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in, out := porttest.NewPort(t, sw, "in", true), porttest.NewPort(t, sw, "out", true)
	road := NewRoad(plan(t, "delay 0 1us duplicate 100% corrupt 100%"), In, time.Now())
	t.Cleanup(road.Close)
	if _, err := NewFrames(sw, "in", nil, road, nil); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := out.Send(frametest.Ethernet(frametest.Broadcast, frametest.MAC(7), 30),
			frame.Offload{}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			select {
			case <-in.Frames:
			case <-time.After(patience):
				t.Fatal("no frame comes")
			}
		}
	}
}

// TestRoadClose: behind Close nothing arrives, also what was on its way.
func TestRoadClose(t *testing.T) {
	r := NewRoad(plan(t, "delay 1ms"), Out, time.Now())
	over := false
	var mu sync.Mutex
	for range 200 {
		r.Send(&Packet{Octets: []byte{1}, Arrive: func(*Packet) {
			mu.Lock()
			defer mu.Unlock()
			if over {
				t.Error("a packet behind Close")
			}
		}})
	}
	r.Close()
	mu.Lock()
	over = true
	mu.Unlock()
	r.Send(&Packet{Octets: []byte{1}, Arrive: func(*Packet) { t.Error("sent behind Close") }})
	r.Close()
}

// TestCorrupt: a packet has one wrong bit, not in front of From, and says so; its double too.
func TestCorrupt(t *testing.T) {
	r := NewRoad(plan(t, "corrupt 100% duplicate 100%"), In, time.Now())
	defer r.Close()
	b := newInbox()
	good := bytes.Repeat([]byte{0x5a}, 40)
	for range 500 {
		r.Send(&Packet{Octets: slices.Clone(good), From: 30, Arrive: b.arrive})
	}
	for i, p := range b.await(t, 1000) {
		wrong := 0
		for at, o := range p.Octets {
			n := bits.OnesCount8(o ^ 0x5a)
			if wrong += n; n > 0 && at < 30 {
				t.Fatalf("packet %d: octet %d is wrong", i, at)
			}
		}
		if wrong != 1 || !p.Wrong {
			t.Fatalf("packet %d: %d bits are wrong; it says %v", i, wrong, p.Wrong)
		}
	}
}

// TestECN: packets that can be marked are marked, with a checksum that is right, and the others are
// lost.
func TestECN(t *testing.T) {
	four := make([]byte, 24)
	four[0], four[1], four[8], four[9] = 0x45, 2, 64, 17
	binary.BigEndian.PutUint16(four[2:], 24)
	copy(four[12:], "\x0a\x00\x00\x01\x0a\x00\x00\x02")
	binary.BigEndian.PutUint16(four[10:], frametest.InetChecksum(four[:20]))
	six := make([]byte, 44)
	six[0], six[1] = 0x60, 1<<4
	deaf := slices.Clone(four)
	deaf[1] = 0
	r := NewRoad(plan(t, "loss 100% ecn"), Out, time.Now())
	defer r.Close()
	b := newInbox()
	for _, o := range [][]byte{four, six, deaf, {1, 2, 3}} {
		r.Send(&Packet{Octets: append([]byte{9, 9}, o...), L3: 2, Arrive: b.arrive})
	}
	// What looks like an IP packet, in a frame that has none.
	r.Send(&Packet{Octets: slices.Clone(four), L3: -1, Arrive: b.arrive})
	all := b.await(t, 2)
	if len(all) != 2 || all[0].Octets[3] != 3 || !sumRight(all[0].Octets[2:22]) ||
		all[1].Octets[3] != 3<<4 {
		t.Errorf("%v", all)
	}
	if s, _ := r.Stats(); s.Lost != 3 || s.Marked != 2 {
		t.Errorf("%+v", s)
	}
}

// TestFramesECN: in the frames of a port IP packets are marked, by their EtherType; what only looks
// like one is lost.
func TestFramesECN(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in, out := porttest.NewPort(t, sw, "in", true), porttest.NewPort(t, sw, "out", true)
	road := NewRoad(plan(t, "loss 100% ecn"), Out, time.Now())
	t.Cleanup(road.Close)
	if _, err := NewFrames(sw, "in", road, nil, nil); err != nil {
		t.Fatal(err)
	}
	f := frametest.Ethernet(frametest.Broadcast, frametest.MAC(7), 20)
	copy(f[14:], "\x45\x02\x00\x14\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02")
	binary.BigEndian.PutUint16(f[24:], frametest.InetChecksum(f[14:34]))
	for _, etherType := range []uint16{0x88b5, frame.EtherIPv4} {
		binary.BigEndian.PutUint16(f[12:], etherType)
		if err := in.Send(slices.Clone(f), frame.Offload{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case r := <-out.Frames:
		if o := r.Octets; o[12] != 8 || o[15] != 3 || !sumRight(o[14:34]) {
			t.Errorf("% x", o)
		}
	case <-time.After(patience):
		t.Fatal("no frame comes")
	}
	if s, _ := road.Stats(); s.Lost != 1 || s.Marked != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRoadOctets: packets on their way are bounded in octets, too; when they have arrived there is
// room again.
func TestRoadOctets(t *testing.T) {
	const each = 1 << 20
	big := make([]byte, each) // of all
	r := NewRoad(plan(t, "delay 60m limit 1000"), Out, time.Now())
	defer r.Close()
	for range maxOctets/each + 10 {
		r.Send(&Packet{Octets: big, Arrive: func(*Packet) {}})
	}
	if s, waiting := r.Stats(); waiting != maxOctets/each-1 || s.Overflow != 11 || s.Lost != 0 {
		t.Errorf("%d wait; %+v", waiting, s)
	}
	soon := NewRoad(plan(t, "delay 1us limit 1000"), Out, time.Now())
	defer soon.Close()
	b := newInbox()
	for range 500 {
		soon.Send(&Packet{Octets: big[:1000], Arrive: b.arrive})
	}
	b.await(t, 500)
	soon.mu.Lock()
	defer soon.mu.Unlock()
	if soon.octets != 0 {
		t.Errorf("%d octets are on their way when all have arrived", soon.octets)
	}
}

// sumRight reports whether the checksum of an IPv4 header is right.
func sumRight(ip []byte) bool {
	ip = slices.Clone(ip)
	sum := binary.BigEndian.Uint16(ip[10:])
	ip[10], ip[11] = 0, 0
	return sum == frametest.InetChecksum(ip)
}

// TestFrames: frames of a port go over Roads, a super-frame in pieces with right checksums, those
// that do not match and those behind Close straight on; a wrong one is verified again.
func TestFrames(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	in, out := porttest.NewPort(t, sw, "in", true), porttest.NewPort(t, sw, "out", true)
	roads := [2]*Road{NewRoad(plan(t, "delay 5ms"), Out, time.Now()),
		NewRoad(plan(t, "corrupt 100%"), In, time.Now())}
	t.Cleanup(roads[0].Close)
	t.Cleanup(roads[1].Close)
	f, err := NewFrames(sw, "in", roads[0], roads[1],
		func(p *frame.Packet, _ *frame.Frame, _ bool) bool { return p.Protocol == frame.ProtoTCP })
	if err != nil {
		t.Fatal(err)
	}
	next := func(p *porttest.Port) porttest.Received {
		t.Helper()
		select {
		case r := <-p.Frames:
			return r
		case <-time.After(patience):
			t.Fatal("no frame comes")
			panic("unreachable")
		}
	}
	super, off := frametest.Super(false, 3000, 1460)
	send := func(p *porttest.Port, octets []byte, o frame.Offload) {
		t.Helper()
		if err := p.Send(octets, o); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	send(in, super, off)
	for i, n := range []int{1514, 1514, 134} {
		if r := next(out); len(r.Octets) != n || r.GSO != frame.GSONone || r.Csum != frame.CsumValid {
			t.Errorf("part %d: %d octets, %+v", i, len(r.Octets), r.Offload)
		}
	}
	if d := time.Since(begun); d < 5*time.Millisecond {
		t.Errorf("after %v they are there", d)
	}
	other := frametest.Ethernet(frametest.Broadcast, frametest.MAC(7), 30)
	send(in, other, frame.Offload{})
	if len(out.Frames) != 1 || !bytes.Equal(next(out).Octets, other) {
		t.Error("what does not match does not go straight on")
	}
	send(out, super, off)
	if r := next(in); r.Csum != frame.CsumUnverified {
		t.Errorf("a wrong frame: %+v", r.Offload)
	}
	f.Close()
	for len(in.Frames) > 0 {
		<-in.Frames
	}
	send(in, super, off)
	if len(out.Frames) != 1 || next(out).GSO != off.GSO {
		t.Error("behind Close a super-frame does not go straight on")
	}
	if _, err := NewFrames(sw, "none", nil, nil, nil); err == nil {
		t.Error("a port that is not there has frames")
	}
}
