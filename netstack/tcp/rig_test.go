package tcp_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// A badWire joins two stacks: a link of so many bit/s with a queue, whose frames take delay and up
// to jitter more, each for itself, or are lost.
type badWire struct {
	rate   float64 // bit/s
	queue  int     // octets that wait for the link
	delay  time.Duration
	jitter time.Duration
	loss   float64
	down   bool
	// octets of receive buffers; 0: the default
	receive int
}

// A wireDir is a port at one end of it.
type wireDir struct {
	w     *badWire
	clock *porttest.Clock
	mu    sync.Mutex
	rng   *rand.Rand
	free  time.Duration // when the link has sent what was given to it
	to    *ethswitch.Attachment
	lost  int
	drop  func(octets []byte) bool // or nil; whether a frame is lost
	twice func(octets []byte) bool // or nil; whether a frame comes twice
	bad   *impaired                // or nil: it says what becomes of frames, and nothing else
}

func (d *wireDir) Offloads(frame.GSO) bool { return false }
func (d *wireDir) String() string          { return "wire" }
func (d *wireDir) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	octets, off := f.AppendTo(nil), f.Offload
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Elapsed()
	if d.bad != nil {
		d.bad.carry(now, octets)
		return true
	}
	lost, by := d.rng.Float64() < d.w.loss, d.rng.Float64()
	d.free = max(d.free, now)
	if float64(d.free-now)*d.w.rate/8e9 > float64(d.w.queue) || lost || d.w.down ||
		d.drop != nil && d.drop(octets) {
		d.lost++
		return true
	}
	d.free += time.Duration(float64(len(octets)+24) * 8e9 / d.w.rate)
	if d.twice != nil && d.twice(octets) {
		d.carry(octets, off, d.free-now+d.w.delay)
	}
	due := d.free - now + d.w.delay + time.Duration(by*float64(d.w.jitter))
	d.carry(octets, off, due)
	return true
}

// locked calls f while nothing is sent.
func (d *wireDir) locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// carry has a frame arrive.
func (d *wireDir) carry(octets []byte, off frame.Offload, after time.Duration) {
	d.clock.AfterFunc(after, func() {
		g := frame.New(octets, off)
		defer g.Release()
		_ = d.to.Input(g)
	})
}

// A rig is two stacks with a badWire between them, and a connection.
type rig struct {
	clock  *porttest.Clock
	wire   *badWire
	stacks [2]*netstack.Stack
	dirs   [2]*wireDir
	a, b   *tcp.Conn
	v6     bool
}

func newRig(tb testing.TB, w badWire, seed uint64) *rig {
	tb.Helper()
	r := &rig{clock: porttest.NewStepClock(), wire: &w}
	var sw [2]*ethswitch.Switch
	var ats [2]*ethswitch.Attachment
	for i := range 2 {
		sw[i] = ethswitch.New(ethswitch.Config{})
		r.dirs[i] = &wireDir{w: r.wire, clock: r.clock, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		at, err := sw[i].Attach(ethswitch.PortOptions{Name: "wire", Kind: "memory"}, r.dirs[i])
		if err != nil {
			tb.Fatal(err)
		}
		ats[i] = at
		tb.Cleanup(at.Detach)
	}
	r.dirs[0].to, r.dirs[1].to = ats[1], ats[0]
	for i := range 2 {
		r.stacks[i] = netstacktest.NewStackOf(tb, sw[i], i+1, netstack.Config{Clock: r.clock,
			ReceiveBuffer: w.receive})
	}
	return r
}

// connect connects the two while time passes.
func (r *rig) connect(tb testing.TB) {
	tb.Helper()
	addr := r.stacks[1].Addrs()[0].Addr()
	if r.v6 {
		addr = r.stacks[1].Addrs()[1].Addr()
	}
	l, err := r.stacks[1].TCP().Listen(netip.AddrPortFrom(addr, 0), 1)
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 2)
	go func() {
		var err error
		r.a, err = r.stacks[0].TCP().Dial(context.Background(), netip.Addr{}, l.Addr())
		done <- err
	}()
	go func() {
		var err error
		r.b, err = l.Accept()
		done <- err
	}()
	for n := 0; n < 2; {
		select {
		case err := <-done:
			if err != nil {
				tb.Fatal(err)
			}
			n++
		case <-time.After(300 * time.Microsecond): // for the callers; all else is waited for
			for _, st := range r.stacks {
				st.Pause()
				st.Resume()
			}
			r.step()
		}
	}
	tb.Cleanup(func() { r.a.Close(); r.b.Close() })
}

// step goes on to the next timer; false: there is none. What it brings is answered by then where
// the answer is not TCP's: a neighbour that the clock does not wait for would be taken for gone.
func (r *rig) step() bool {
	ok := r.clock.Step()
	for _, st := range r.stacks {
		st.Settle()
	}
	return ok
}

// settle lets both ends deal with what has come.
func (r *rig) settle() {
	r.a.Settle()
	r.b.Settle()
}

// send moves n octets from a to b and returns how long it took, or fails after limit.
func (r *rig) send(tb testing.TB, n int64, limit time.Duration) time.Duration {
	tb.Helper()
	from := r.clock.Elapsed()
	src, sink := netstacktest.NewSource(n), netstacktest.NewSink(n)
	for {
		if src.Len() > 0 {
			if _, err := r.a.WriteFrom(src); err != nil {
				tb.Fatal(err)
			}
		}
		if got, err := r.b.ReadInto(sink); err != nil {
			tb.Fatal(got, err)
		}
		if sink.Len() == n {
			return r.clock.Elapsed() - from
		}
		r.settle()
		if !r.step() {
			tb.Fatalf("%d of %d octets arrived, and nothing is to come", sink.Len(), n)
		}
		r.settle()
		if r.clock.Elapsed()-from > limit {
			return limit * time.Duration(n) / time.Duration(max(sink.Len(), 1))
		}
	}
}

// overBoth runs f as subtests over IPv4 and over IPv6.
func overBoth(t *testing.T, name string, f func(t *testing.T, v6 bool)) {
	t.Run(name, func(t *testing.T) { f(t, false) })
	t.Run(name+", IPv6", func(t *testing.T) { f(t, true) })
}

// segment is the TCP segment in a frame; nil: there is none.
func segment(b []byte) header.TCP {
	const v4, v6 = 14 + header.IPv4MinimumSize, 14 + header.IPv6MinimumSize
	switch {
	case len(b) >= v4+header.TCPMinimumSize && b[12] == 8 && b[13] == 0 && b[23] == 6:
		return header.TCP(b[v4:])
	case len(b) >= v6+header.TCPMinimumSize && b[12] == 0x86 && b[13] == 0xdd && b[20] == 6:
		return header.TCP(b[v6:])
	}
	return nil
}
