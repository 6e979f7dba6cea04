package tcp_test

import (
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// TestBadNetwork: what a connection moves on a wire of 1 Gbit/s that reorders or loses is near what
// the path allows. The times are those of the path: no processor's speed is in them. Without what
// package recovery does the numbers are a tenth of these, or less.
func TestBadNetwork(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name          string
		delay, jitter time.Duration
		loss          float64
		octets        int64
		least         float64 // Mbit/s
	}{
		{"a little reordering", 5000 * us, 200 * us, 0, 16 << 20, 500},
		{"more than a delay", 50 * us, 200 * us, 0, 8 << 20, 700},
		{"a lot of it", 25000 * us, 5000 * us, 0, 16 << 20, 70},
		{"loss on a short path", 50 * us, 0, 0.01, 8 << 20, 300},
		{"loss and reordering", 50 * us, 200 * us, 0.01, 8 << 20, 200},
		{"more loss", 50 * us, 0, 0.05, 2 << 20, 40},
	} {
		if netstacktest.RaceEnabled && c.octets > 8<<20 {
			continue // for its time
		}
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: c.delay, jitter: c.jitter}, 1)
			r.connect(t)
			r.wire.loss = c.loss
			took := r.send(t, c.octets, time.Minute)
			got := float64(c.octets) * 8 / took.Seconds() / 1e6
			t.Logf("%.0f Mbit/s; %s", got, r.a.LossState())
			if got < c.least {
				t.Errorf("%.1f Mbit/s, want %.0f", got, c.least)
			}
			r.wire.loss = 0
		})
	}
}

// TestLostSYN: the time that a SYN was lost for is no round trip (Karn). gVisor sends it again with
// the timestamp of the first one, and would wait for three seconds and more from then on. RFC 6298,
// section 5.7.
func TestLostSYN(t *testing.T) {
	for name, lost := range map[string]int{"SYN": 0, "SYN and ACK": 1} {
		overBoth(t, name, func(t *testing.T, v6 bool) {
			r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
			r.v6 = v6
			n := 0
			r.dirs[lost].drop = func(b []byte) bool {
				if segment(b) != nil {
					n++
				}
				return segment(b) != nil && n == 1
			}
			r.connect(t)
			if at := r.clock.Elapsed(); at < time.Second {
				t.Fatalf("connected after %v, nothing was lost", at)
			}
			if rto := r.a.RTO(); rto > time.Second {
				t.Errorf("RTO %v before the first octet, want 1 s", rto)
			}
			r.send(t, 1<<20, time.Minute)
			if rto := r.a.RTO(); rto > 250*time.Millisecond {
				t.Errorf("RTO %v on a path of 0.1 ms", rto)
			}
		})
	}
}

// TestBlackout: after a time without a network data flow again within two seconds, and at once if
// the link says that it is there, or if the peer or somebody else is heard.
func TestBlackout(t *testing.T) {
	const away = 8 * time.Second
	for name, c := range map[string]struct {
		tell func(r *rig)
		most time.Duration
	}{
		"nobody tells": {func(*rig) {}, 2100 * time.Millisecond},
		"carrier":      {func(r *rig) { r.stacks[0].LinkUp() }, 500 * time.Millisecond},
		"the peer": {func(r *rig) {
			if _, err := r.b.WriteFrom(netstacktest.NewSource(10)); err != nil {
				t.Error(err)
			}
		}, 500 * time.Millisecond},
	} {
		overBoth(t, name, func(t *testing.T, v6 bool) {
			r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
			r.v6 = v6
			r.connect(t)
			r.send(t, 1<<20, time.Minute)
			r.wire.down = true
			src := netstacktest.NewSource(1 << 20)
			if _, err := r.a.WriteFrom(src); err != nil {
				t.Fatal(err)
			}
			for end := r.clock.Elapsed() + away; r.clock.Elapsed() < end; r.settle() {
				r.step()
			}
			r.wire.down = false
			from := r.clock.Elapsed()
			c.tell(r)
			r.settle()
			sink := netstacktest.NewSink(1 << 20)
			for sink.Len() < 1<<20 && r.clock.Elapsed()-from < time.Minute {
				r.settle()
				r.step()
				if _, err := r.a.WriteFrom(src); err != nil {
					t.Fatal(err)
				}
				r.settle()
				if _, err := r.b.ReadInto(sink); err != nil {
					t.Fatal(err)
				}
			}
			if took := r.clock.Elapsed() - from; took > c.most {
				t.Errorf("it takes %v until all is there, want %v", took, c.most)
			}
		})
	}
}

// TestTailLoss: that the last segment is lost is found out by a probe, not by a timeout.
func TestTailLoss(t *testing.T) {
	for name, segments := range map[string]int64{"of one": 1, "of ten": 10} {
		overBoth(t, name, func(t *testing.T, v6 bool) {
			r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
			r.v6 = v6
			r.connect(t)
			r.send(t, 1<<20, time.Minute)
			n := segments
			r.dirs[0].drop = func(b []byte) bool {
				if len(b) > 1000 {
					n--
				}
				return len(b) > 1000 && n == 0
			}
			took := r.send(t, segments*int64(r.a.EMSS()), time.Minute)
			if n > 0 {
				t.Fatalf("nothing was lost: %d", n)
			}
			if took > 100*time.Millisecond || took < time.Millisecond {
				t.Errorf("the last segment of %d came after %v", segments, took)
			}
		})
	}
}

// TestDuplicates: octets that come twice are told of in the ACK (RFC 2883), below what is
// acknowledged and above it, over IPv4 and IPv6.
func TestDuplicates(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
		r.v6 = v6
		r.connect(t)
		r.send(t, 1<<20, time.Minute)
		n := 0
		told := 0
		r.dirs[0].twice = func(b []byte) bool {
			if len(b) > 1000 {
				n++
			}
			return len(b) > 1000 && n == 5
		}
		r.dirs[1].drop = func(b []byte) bool {
			var p frame.Packet
			f := frame.New(b, frame.Offload{})
			defer f.Release()
			if p.Parse(f) != nil || !f.ChecksumsValid(&p) {
				t.Errorf("a frame that is wrong: %x", b)
				return false
			}
			h, err := p.TCPHeaderLen()
			if err != nil {
				return false
			}
			ack := header.TCP(p.Headers[p.L4 : p.L4+h])
			for _, k := range header.ParseTCPOptions(ack.Options()).SACKBlocks {
				if k.End.LessThanEq(seqnum.Value(ack.AckNumber())) && int(k.Start.Size(k.End)) == r.a.EMSS() {
					told++
				}
			}
			return false
		}
		r.send(t, 20*int64(r.a.EMSS()), time.Minute)
		for range 100 {
			r.step()
			r.settle()
		}
		if told != 1 {
			t.Errorf("IPv6 %v: the sender was told of a duplicate %d times; %s", v6, told, r.a.LossState())
		}
	}
}

// TestACKsOfLosses: where something is missing whoever brings an ACK sends again what that tells to
// be lost, before it brings the next frame: no other goroutine has to wake up.
func TestACKsOfLosses(t *testing.T) {
	r := newRig(t, badWire{rate: 1e10, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
	r.connect(t)
	r.send(t, 1<<20, time.Minute)
	for from := r.clock.Elapsed(); r.clock.Elapsed()-from < time.Second && r.step(); {
		r.settle() // until all is acknowledged
	}
	r.a.SetPrompt(func(func() bool) {})
	emss := r.a.EMSS()
	var lost uint32
	sent, again := 0, 0
	var acks [][]byte
	r.dirs[0].locked(func() {
		r.dirs[0].drop = func(b []byte) bool {
			seq, n := carried(b)
			switch {
			case n == 0:
			case sent == 0:
				lost = seq
				sent++
				return true
			case seq == lost:
				again++
			default:
				sent++
			}
			return false
		}
	})
	r.dirs[1].locked(func() {
		r.dirs[1].drop = func(b []byte) bool {
			acks = append(acks, b)
			return true
		}
	})
	if n, err := r.a.WriteFrom(netstacktest.NewSource(int64(10 * emss))); n != 10*emss || err != nil {
		t.Fatal(n, err)
	}
	for range 20 {
		if len(acks) < 9 {
			r.step()
			r.b.Settle()
		}
	}
	if len(acks) < 9 || again > 0 {
		t.Fatalf("%d ACKs of %d segments, %d sent again", len(acks), sent, again)
	}
	courier := ethswitch.NewCourier(r.dirs[1].to)
	bring := func(ack []byte) {
		courier.BringOne(frame.New(ack, frame.Offload{}), true, nil)
		courier.Settle()
	}
	bring(acks[0])
	r.a.Settle() // it has told of the hole
	r.stacks[0].Pause()
	defer r.stacks[0].Resume()
	for _, ack := range acks[1:] {
		bring(ack)
	}
	r.dirs[0].locked(func() {
		if again != 1 {
			t.Errorf("the segment that was lost was sent again %d times", again)
		}
	})
}

// TestBuffersGrow: on a long path the buffers become large enough for it, on a short one they stay.
func TestBuffersGrow(t *testing.T) {
	if netstacktest.RaceEnabled {
		return // for its time; nothing in it runs on several goroutines
	}
	for _, c := range []struct {
		delay    time.Duration
		octets   int64
		least    float64 // Mbit/s
		from, to int64   // octets of the send buffer
	}{
		{25 * time.Millisecond, 64 << 20, 400, 8 << 20, 16 << 20},
		{50 * time.Microsecond, 16 << 20, 850, 4 << 20, 4 << 20},
	} {
		r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: c.delay}, 1)
		r.connect(t)
		got := float64(c.octets) * 8 / r.send(t, c.octets, time.Minute).Seconds() / 1e6
		if got < c.least {
			t.Errorf("delay %v: %.0f Mbit/s, want %.0f", c.delay, got, c.least)
		}
		send, _ := r.a.Buffers()
		_, receive := r.b.Buffers()
		if min(send, receive) < c.from || max(send, receive) > c.to {
			t.Errorf("delay %v: buffers of %d and %d octets, want %d to %d", c.delay, send, receive, c.from,
				c.to)
		}
	}
}

// TestTimeoutsFarApart: a connection that moves is not given up for timeouts with more than the
// user timeout between them, although it never has everything acknowledged.
func TestTimeoutsFarApart(t *testing.T) {
	r := newRig(t, badWire{rate: 1e6, queue: 1 << 20, delay: 50 * time.Microsecond}, 1)
	r.connect(t)
	from := r.clock.Elapsed()
	outages := 0
	var outage func()
	outage = func() { // a second in each forty
		r.wire.down = true
		outages++
		r.clock.AfterFunc(time.Second, func() { r.wire.down = false })
		r.clock.AfterFunc(40*time.Second, outage)
	}
	r.clock.AfterFunc(10*time.Second, outage)
	src, sink := netstacktest.NewSource(1<<40), netstacktest.NewSink(1<<40)
	for r.clock.Elapsed()-from < 150*time.Second {
		if _, err := r.a.WriteFrom(limited{src}); err != nil {
			t.Fatalf("after %v: %v", r.clock.Elapsed()-from, err)
		}
		if _, err := r.b.ReadInto(sink); err != nil {
			t.Fatalf("after %v: %v", r.clock.Elapsed()-from, err)
		}
		r.settle()
		r.step()
		r.settle()
	}
	if outages < 3 || sink.Len() < 10<<20 {
		t.Errorf("%d outages, %d octets", outages, sink.Len())
	}
}

// limited gives no more than 64 KiB at a time.
type limited struct{ *netstacktest.Source }

func (l limited) Len() int { return min(l.Source.Len(), 64<<10) }

// TestNudgedOften: that others are heard all the time while a peer is away, as in a large network
// where somebody always asks for somebody, does not end a connection before its user timeout.
func TestNudgedOften(t *testing.T) {
	r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Microsecond}, 1)
	r.connect(t)
	r.send(t, 1<<20, time.Minute)
	r.wire.down = true
	src, sink := netstacktest.NewSource(1<<20), netstacktest.NewSink(1<<20)
	for end := r.clock.Elapsed() + 50*time.Second; r.clock.Elapsed() < end; r.settle() {
		if _, err := r.a.WriteFrom(src); err != nil {
			t.Fatal(err)
		}
		if _, err := r.a.ReadInto(sink); err != nil {
			t.Fatalf("%v before the end: %v", end-r.clock.Elapsed(), err)
		}
		r.stacks[0].LinkUp()
		r.settle()
		r.step()
	}
	r.wire.down = false
	r.stacks[0].LinkUp()
	for from := r.clock.Elapsed(); sink.Len() < 1<<20; r.settle() {
		if _, err := r.a.WriteFrom(src); err != nil {
			t.Fatal(err)
		}
		r.settle()
		if _, err := r.b.ReadInto(sink); err != nil {
			t.Fatal(err)
		}
		if r.clock.Elapsed()-from > 5*time.Second || !r.step() {
			t.Fatalf("%d octets %v after the peer is back", sink.Len(), r.clock.Elapsed()-from)
		}
	}
}
