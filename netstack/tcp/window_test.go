package tcp_test

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// TestWindowGrows: as long as nothing is lost more and more is under way, also on a path where ACKs
// come one after the other and round trips take longer the more is under way. gVisor's CUBIC takes
// that for a sign to leave slow start and forgets to set where the window is to go, which then
// shrinks, with bad luck to 0: nothing is under way, no timer runs, and nothing is ever sent again.
func TestWindowGrows(t *testing.T) {
	clock := faketime.NewManualClock()
	var stacks [2]*netstack.Stack
	var ports [2]*porttest.Port
	for i := range stacks {
		sw := ethswitch.New(ethswitch.Config{})
		ports[i] = porttest.NewPort(t, sw, "wire", true)
		stacks[i] = netstacktest.NewStackOf(t, sw, i+1, netstack.Config{Clock: clock})
	}
	var ends [2]atomic.Pointer[tcp.Conn]
	most := 0 // super-frames that were under way
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // the wire carries one super-frame at a time, and its ACK back in a millisecond
		defer close(stopped)
		for {
			select {
			case f := <-ports[0].Frames:
				ports[1].Send(f.Octets, f.Offload)
				if f.GSO == frame.GSONone {
					continue
				}
				ends[1].Load().Settle() // has sent the ACK
				clock.Advance(time.Millisecond)
				for len(ports[1].Frames) > 0 {
					f := <-ports[1].Frames
					ports[0].Send(f.Octets, f.Offload)
					ends[0].Load().Settle() // has sent what the ACK allows
				}
				most = max(most, len(ports[0].Frames))
			case f := <-ports[1].Frames:
				ports[0].Send(f.Octets, f.Offload)
			case <-stop:
				return
			}
		}
	}()

	a, b := netstacktest.Connect(t, stacks[0], stacks[1], false)
	defer a.Close()
	defer b.Close()
	ends[0].Store(a)
	ends[1].Store(b)
	bell := netstacktest.NewBell(b)
	const size = 4 << 20
	if n, err := a.WriteFrom(netstacktest.NewSource(size)); n != size || err != nil {
		t.Fatal(n, err)
	}
	sink := netstacktest.NewSink(size)
	for sink.Len() < size {
		n, err := b.ReadInto(sink)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			continue
		}
		select {
		case <-bell:
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d octets arrived, then nothing more", sink.Len(), size)
		}
	}
	close(stop)
	<-stopped
	if most < 10 {
		t.Errorf("%d super-frames under way at most", most)
	}
}

// TestWholeSegments: what is written at once goes out in segments that are cut from its start on,
// whatever the peer's window has room for and whatever is lost, so that FPDUs which are made to fit
// are not cut (MPA-044).
func TestWholeSegments(t *testing.T) {
	for name, c := range map[string]struct {
		receive int
		loss    float64
	}{
		"a small window":          {64 << 10, 0},
		"a small window and loss": {64 << 10, 0.02},
		"loss":                    {0, 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: time.Millisecond,
				receive: c.receive}, 1)
			r.connect(t)
			emss := uint32(r.a.EMSS())
			begin, segments, cut := uint32(0), 0, 0
			r.dirs[0].drop = func(b []byte) bool {
				seq, n := carried(b)
				if n == 0 {
					return false
				}
				if segments == 0 {
					begin = seq
				}
				segments++
				if at := seq - begin; at%emss != 0 || n != emss {
					cut++
				}
				return false
			}
			r.wire.loss = c.loss
			r.send(t, int64(500*emss), time.Minute)
			if cut > 0 || segments < 500 {
				t.Errorf("%d of %d segments begin or end elsewhere", cut, segments)
			}
			r.wire.loss = 0
		})
	}
}

// A short message waits for nobody's ACK, as if TCP_NODELAY were set: MPA-100.
func TestShortMessagesAtOnce(t *testing.T) {
	r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: 50 * time.Millisecond}, 1)
	r.connect(t)
	var sizes []int // guarded by the direction's mu
	drop := func(b []byte) bool {
		if _, n := carried(b); n > 0 {
			sizes = append(sizes, int(n))
		}
		return false
	}
	r.dirs[0].locked(func() { r.dirs[0].drop = drop })
	begin := r.clock.Elapsed()
	for range 3 {
		if n, err := r.a.WriteFrom(netstacktest.NewSource(100)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		r.settle()
	}
	r.dirs[0].locked(func() {
		if !slices.Equal(sizes, []int{100, 100, 100}) || r.clock.Elapsed() != begin {
			t.Errorf("segments of %d octets in %v, want three at once", sizes, r.clock.Elapsed()-begin)
		}
	})
}

// TestSentAgainWhole: what is sent again begins and ends where what was sent first did, be the
// segments long or short, so that an FPDU that had a segment of its own has one again
// (docs/interop.md#S5).
func TestSentAgainWhole(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		r := newRig(t, badWire{rate: 1e9, queue: 4 << 20, delay: time.Millisecond}, seed)
		r.connect(t)
		emss, dir := r.a.EMSS(), r.dirs[0]
		sizes, losses := rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))
		// guarded by the direction's mu, as is losses
		var begin, end uint32 // of what was sent
		bounds := map[uint32]bool{}
		segments, again, cut := 0, 0, 0
		drop := func(b []byte) bool {
			seq, n := carried(b)
			if n == 0 {
				return false
			}
			if segments == 0 {
				begin = seq
			}
			segments++
			from := seq - begin
			to := from + n
			if to > end {
				if from != end {
					cut++
				}
				end = to
				bounds[from], bounds[to] = true, true
			} else {
				again++
				if !bounds[from] || !bounds[to] {
					cut++
				}
			}
			return losses.IntN(20) == 0
		}
		dir.locked(func() { dir.drop = drop })
		left, sink := int64(0), netstacktest.NewSink(1<<40)
		src := netstacktest.NewSource(1 << 40)
		enough := func() (is bool) {
			dir.locked(func() { is = again >= 200 })
			return is
		}
		for !enough() {
			for range 8 { // messages, each with a last segment that is short
				if left == 0 {
					left = 1 + sizes.Int64N(4*int64(emss))
				}
				n, err := r.a.WriteFrom(message{src, int(left)})
				if err != nil {
					t.Fatal(err)
				}
				if left -= int64(n); n == 0 {
					break
				}
			}
			if _, err := r.b.ReadInto(sink); err != nil {
				t.Fatal(err)
			}
			r.settle()
			r.step()
			r.settle()
		}
		dir.locked(func() { dir.drop = nil })
		if cut > 0 {
			t.Errorf("seed %d: of %d segments, %d of them sent again, %d begin or end elsewhere", seed,
				segments, again, cut)
		}
	}
}

// carried is the sequence number of a frame of TCP, and how many octets it carries.
func carried(b []byte) (seq, n uint32) {
	h := segment(b)
	if h == nil {
		return 0, 0
	}
	return h.SequenceNumber(), uint32(len(h) - int(h.DataOffset()))
}

// message gives so many octets and no more.
type message struct {
	*netstacktest.Source
	n int
}

func (m message) Len() int { return m.n }
