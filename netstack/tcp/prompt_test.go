package tcp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// An outsidePort brings what another one was given, by a goroutine of its own, as a TAP does.
type outsidePort struct {
	at    *ethswitch.Attachment
	queue chan *frame.Frame
	done  chan struct{}
	reset *atomic.Bool // add RST to segments with octets
	sent  atomic.Int64 // TCP segments over IPv4
}

func (p *outsidePort) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	b := f.AppendTo(nil)
	tcp := len(b) >= 14+20+20 && b[12] == 8 && b[14+9] == 6
	if tcp {
		p.sent.Add(1)
	}
	if p.reset.Load() && tcp && len(b) > 14+20+20+12 {
		const flags, sum = 14 + 20 + 12, 14 + 20 + 16
		b[flags+1] |= 4
		v := uint32(^binary.BigEndian.Uint16(b[sum:])) + 4
		binary.BigEndian.PutUint16(b[sum:], ^uint16(v+v>>16))
	}
	g := frame.New(b, f.Offload)
	select {
	case p.queue <- g:
		return true
	default:
		g.Release()
		return false
	}
}

func (p *outsidePort) Offloads(frame.GSO) bool { return false } // short frames
func (p *outsidePort) String() string          { return "outside" }

// bringTogether brings frames as one batch.
func bringTogether(to *outsidePort, frames ...*frame.Frame) {
	c := ethswitch.NewCourier(to.at)
	for _, f := range frames {
		c.Gather(f)
	}
	c.BringAll()
}

// A bringer brings f, which left one of the two stacks, to the port of the other; rest frames wait
// behind it. Each direction has a goroutine that calls it.
type bringer func(to *outsidePort, f *frame.Frame, rest int)

// alone brings each frame by itself; prompt says of each whether something comes behind it.
func alone(prompt func() bool) bringer {
	return func(to *outsidePort, f *frame.Frame, _ int) {
		ethswitch.NewCourier(to.at).Bring(f, prompt(), nil)
	}
}

// outside makes two stacks whose frames come from outside of each other's switch.
func outside(t *testing.T, bring bringer, reset *atomic.Bool) (a, b *netstack.Stack) {
	var ports [2]outsidePort
	var stacks [2]*netstack.Stack
	var wg sync.WaitGroup
	for i := range ports {
		sw := ethswitch.New(ethswitch.Config{})
		ports[i].reset = reset
		ports[i].queue, ports[i].done = make(chan *frame.Frame, 4096), make(chan struct{})
		at, err := sw.Attach(ethswitch.PortOptions{Name: "outside", Kind: "memory"}, &ports[i])
		if err != nil {
			t.Fatal(err)
		}
		ports[i].at = at
		stacks[i] = netstacktest.NewStack(t, sw, i+1, 1500)
	}
	for i := range ports {
		from, to := &ports[i], &ports[1-i]
		wg.Go(func() {
			for {
				select {
				case f := <-from.queue:
					bring(to, f, len(from.queue))
				case <-from.done:
					return
				}
			}
		})
	}
	t.Cleanup(func() { // before the stacks are closed
		for i := range ports {
			close(ports[i].done)
		}
		wg.Wait()
		for i := range ports {
			ports[i].at.Detach()
			for len(ports[i].queue) > 0 {
				(<-ports[i].queue).Release()
			}
		}
	})
	return stacks[0], stacks[1]
}

// promptBell is a Bell that c rings either way.
func promptBell(c *tcp.Conn, prompts *atomic.Int64) netstacktest.Bell {
	bell := netstacktest.NewBell(c)
	c.SetPrompt(func(func() bool) {
		prompts.Add(1)
		select {
		case bell <- struct{}{}:
		default:
		}
	})
	return bell
}

// bothInTurn has 1 MiB go both ways between a and b, which are closed then.
func bothInTurn(t *testing.T, a, b *tcp.Conn, prompts *atomic.Int64) {
	t.Helper()
	errc := make(chan error, 2)
	for _, c := range []*tcp.Conn{a, b} {
		bell := promptBell(c, prompts)
		go func() { errc <- inTurn(c, bell, 1<<20) }()
	}
	if err := errors.Join(<-errc, <-errc); err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
}

// TestPromptTransfer moves checked octets both ways at once, their segments handled by who brings
// them and by gVisor's goroutines in all mixtures, until the end of both.
func TestPromptTransfer(t *testing.T) {
	for name, every := range map[string]int64{"all": 1, "every second": 2, "every seventh": 7} {
		t.Run(name, func(t *testing.T) {
			var frames, prompts atomic.Int64
			s1, s2 := outside(t, alone(func() bool { return frames.Add(1)%every == 0 }), new(atomic.Bool))
			a, b := netstacktest.Connect(t, s1, s2, every == 2)
			bothInTurn(t, a, b, &prompts)
			if prompts.Load() == 0 {
				t.Error("nobody was told by who brought a segment")
			}
		})
	}
}

// A head is the first octets of a Source.
type head struct {
	tcp.Source
	n int
}

func (h *head) Len() int { return min(h.n, h.Source.Len()) }

// inTurn writes and reads n octets on c, the one not much ahead of the other; then it half-closes
// and reads the end. If it fails it resets the connection, so that the other end does not wait for
// what does not come.
func inTurn(c *tcp.Conn, bell netstacktest.Bell, n int64) error {
	return inTurns(c, bell, n, 40<<10)
}

// inTurns is inTurn with at most so many octets ahead.
func inTurns(c *tcp.Conn, bell netstacktest.Bell, n int64, most int) (err error) {
	defer func() {
		if err != nil {
			c.Abort()
		}
	}()
	w, r := netstacktest.NewSource(n), netstacktest.NewSink(n)
	closed := false
	for sent := int64(0); ; {
		m, err := c.WriteFrom(&head{w, int(r.Len() + int64(most) - sent)})
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		sent += int64(m)
		k, err := c.ReadInto(r)
		if r.Err != nil {
			return r.Err
		}
		if err != nil && (err != io.EOF || r.Len() < n) {
			return fmt.Errorf("read: %w after %d octets", err, r.Len())
		}
		// The other end may have closed already: it has all octets as soon as the last of them are
		// written.
		if !closed && sent == n && r.Len() == n {
			closed = true
			if err := c.CloseWrite(); err != nil {
				return fmt.Errorf("close write: %w", err)
			}
		}
		if err == io.EOF {
			if !closed {
				return fmt.Errorf("the end came behind %d octets of %d", sent, n)
			}
			return nil
		}
		if m == 0 && k == 0 {
			<-bell
		}
	}
}

// TestPromptUse: the one who is told uses the connection, on the goroutine that brought the
// segment; short messages go to and fro with no other goroutine.
func TestPromptUse(t *testing.T) {
	s1, s2 := outside(t, alone(func() bool { return true }), new(atomic.Bool))
	a, b := netstacktest.Connect(t, s1, s2, false)
	defer a.Close()
	defer b.Close()
	b.SetNotify(func() { t.Error("b was told by gVisor's goroutine") })
	b.SetPrompt(func(func() bool) {
		if n, err := b.ReadInto(netstacktest.NewSink(64)); n != 64 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		if n, err := b.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
	})
	bell := netstacktest.NewBell(a)
	for range 1000 {
		if n, err := a.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		readAll(t, a, bell, 64)
	}
	b.SetNotify(nil)
}

// inside makes two stacks on one switch.
func inside(t *testing.T) (s1, s2 *netstack.Stack) {
	sw := ethswitch.New(ethswitch.Config{})
	var stacks [2]*netstack.Stack
	for i := range stacks {
		stacks[i] = netstacktest.NewStackOf(t, sw, i+1, netstack.Config{})
	}
	return stacks[0], stacks[1]
}

// TestPromptPeer: between two stacks of a switch short messages go to and fro on the goroutine of
// who writes, once the two ends know each other; with long ones, or when one end is in use,
// gVisor's goroutines tell it.
func TestPromptPeer(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s1, s2 := inside(t)
		a, b := netstacktest.Connect(t, s1, s2, v6)
		var prompts atomic.Int64
		bellA, bellB := promptBell(a, &prompts), promptBell(b, &prompts)
		for _, c := range []struct {
			from, to *tcp.Conn
			bell     netstacktest.Bell
		}{{a, b, bellB}, {b, a, bellA}} { // they meet, if not by the handshake's last ACK
			if n, err := c.from.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
				t.Fatal(n, err)
			}
			readAll(t, c.to, c.bell, 64)
		}
		read := func(c *tcp.Conn, more func() bool) {
			if more != nil {
				t.Error("who writes says that there is more to bring")
			}
			if n, err := c.ReadInto(netstacktest.NewSink(64)); n != 64 || err != nil {
				t.Errorf("read %d, %v", n, err)
			}
		}
		answers := 0
		a.SetPrompt(func(more func() bool) {
			read(a, more)
			answers++
		})
		b.SetPrompt(func(more func() bool) {
			read(b, more)
			if n, err := b.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		})
		for i := range 1000 {
			if n, err := a.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
				t.Fatal(n, err)
			}
			if answers != i+1 {
				t.Fatalf("%d messages have %d answers", i+1, answers)
			}
			if i == 0 { // gVisor's goroutines have done with what came before
				told := func() { t.Error("told by gVisor's goroutine") }
				a.SetNotify(told)
				b.SetNotify(told)
			}
		}
		bellA = netstacktest.NewBell(a)

		// The second message of a stream is not, nor is a long one.
		bell := netstacktest.NewBell(b)
		const long = 100 << 10
		for i, n := range []int{64, 64, long} {
			b.SetPrompt(func(func() bool) {
				if i > 0 {
					t.Errorf("message %d: told by who wrote it", i)
				}
			})
			if k, err := a.WriteFrom(netstacktest.NewSource(int64(n))); k != n || err != nil {
				t.Fatal(k, err)
			}
			readAll(t, b, bell, n)
		}
		a.SetPrompt(func(func() bool) { t.Error("told by who wrote a long message") })
		if n, err := b.WriteFrom(netstacktest.NewSource(long)); n != long || err != nil {
			t.Fatal(n, err)
		}
		readAll(t, a, bellA, long)

		// Nor is one for an end that is gone.
		b.Close()
		for range 2 {
			a.WriteFrom(netstacktest.NewSource(64))
		}
		a.Close()
	}
}

// TestPromptPeerTransfer moves checked octets both ways at once between two stacks of a switch,
// until the end of both; the two ends write into each other's hands at the same time.
func TestPromptPeerTransfer(t *testing.T) {
	s1, s2 := inside(t)
	a, b := netstacktest.Connect(t, s1, s2, false)
	var prompts atomic.Int64
	bellA, bellB := promptBell(a, &prompts), promptBell(b, &prompts)
	// They meet, and then the writer tells. Of how much more it tells hangs on who is faster.
	for range 2 {
		for _, c := range []struct {
			from, to *tcp.Conn
			bell     netstacktest.Bell
		}{{a, b, bellB}, {b, a, bellA}} {
			if n, err := c.from.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
				t.Fatal(n, err)
			}
			readAll(t, c.to, c.bell, 64)
		}
	}
	if prompts.Load() == 0 {
		t.Error("nobody was told by who wrote")
	}
	errc := make(chan error, 2)
	go func() { errc <- inTurns(a, bellA, 1<<20, 3000) }()
	go func() { errc <- inTurns(b, bellB, 1<<20, 3000) }()
	if err := errors.Join(<-errc, <-errc); err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
}

// TestPromptPeerSource: while the source of a message hangs the other end can be used, and closed.
func TestPromptPeerSource(t *testing.T) {
	s1, s2 := inside(t)
	a, b := netstacktest.Connect(t, s1, s2, false)
	var prompts atomic.Int64
	promptBell(a, &prompts)
	bell := promptBell(b, &prompts)
	for range 2 {
		if n, err := a.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		readAll(t, b, bell, 64)
	}
	_, err := a.WriteFrom(during{netstacktest.NewSource(64), func() {
		if n, err := b.WriteFrom(netstacktest.NewSource(64)); n != 64 || err != nil {
			t.Errorf("the other end wrote %d, %v", n, err)
		}
		b.Close()
	}})
	if err != nil {
		t.Error(err)
	}
	a.Close()
}

// A during does something while it is read.
type during struct {
	tcp.Source
	do func()
}

func (d during) Read(p []byte) (int, error) {
	d.do()
	return d.Source.Read(p)
}

// TestPromptReset: a connection that is reset is lost as any other, also if the segment is one that
// who brought it handles.
func TestPromptReset(t *testing.T) {
	for _, octets := range []bool{false, true} {
		var reset atomic.Bool
		var prompts atomic.Int64
		s1, s2 := outside(t, alone(func() bool { return true }), &reset)
		a, b := netstacktest.Connect(t, s1, s2, false)
		bell := promptBell(a, &prompts)
		if reset.Store(octets); octets {
			if n, err := b.WriteFrom(netstacktest.NewSource(10)); n != 10 || err != nil {
				t.Fatal(n, err)
			}
		} else {
			b.Abort()
		}
		var err error
		for err == nil {
			if _, err = a.ReadInto(io.Discard); err == nil {
				<-bell
			}
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("octets=%v: read: %v", octets, err)
		}
		a.Close()
		b.Close()
	}
}

// TestBatchTransfer moves checked octets both ways at once, all frames that are there handled
// together, in the order in which they were sent or in another one.
func TestBatchTransfer(t *testing.T) {
	// mix returns how many frames of a batch are brought together; the others come behind them.
	for name, mix := range map[string]func([]*frame.Frame) int{
		"in order": func(f []*frame.Frame) int { return len(f) },
		"reversed": func(f []*frame.Frame) int { slices.Reverse(f); return len(f) },
		"one is late": func(f []*frame.Frame) int {
			if len(f) < 3 {
				return len(f)
			}
			copy(f[1:], append(slices.Clone(f[2:]), f[1]))
			return len(f) - 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			waiting := make(map[*outsidePort][]*frame.Frame)
			t.Cleanup(func() { // when nobody brings any more: the wire may end within a batch
				for _, frames := range waiting {
					for _, f := range frames {
						f.Release()
					}
				}
			})
			var prompts, longest atomic.Int64
			s1, s2 := outside(t, func(to *outsidePort, f *frame.Frame, rest int) {
				mu.Lock()
				frames := append(waiting[to], f)
				if rest > 0 && len(frames) < ethswitch.BatchFrames {
					waiting[to] = frames
					mu.Unlock()
					return
				}
				waiting[to] = nil
				mu.Unlock()
				longest.Store(max(longest.Load(), int64(len(frames))))
				n := mix(frames)
				bringTogether(to, frames[:n]...)
				bringTogether(to, frames[n:]...)
			}, new(atomic.Bool))
			a, b := netstacktest.Connect(t, s1, s2, false)
			bothInTurn(t, a, b, &prompts)
			if prompts.Load() == 0 || longest.Load() < 2 {
				t.Errorf("%d prompts, batches of at most %d frames", prompts.Load(), longest.Load())
			}
		})
	}
}

// A gatherer keeps frames with octets until there are as many as it wants, and brings those
// together.
type gatherer struct {
	want    atomic.Int64 // 0: each by itself
	mix     func([]*frame.Frame)
	frames  []*frame.Frame
	brought chan int64 // what the port has sent meanwhile
}

func (g *gatherer) bring(to *outsidePort, f *frame.Frame, _ int) {
	want := g.want.Load()
	if want == 0 || f.Len() < 1000 {
		ethswitch.NewCourier(to.at).Bring(f, false, nil)
		return
	}
	if g.frames = append(g.frames, f); int64(len(g.frames)) < want {
		return
	}
	sent := to.sent.Load()
	if g.mix != nil {
		g.mix(g.frames)
	}
	bringTogether(to, g.frames...)
	g.frames = nil
	g.want.Store(0)
	g.brought <- to.sent.Load() - sent
}

// TestBatch: frames that come together are handled by who brings them, as one segment if they
// follow one another, in whatever order they come. The connection's user is told once, when all are
// there, and one ACK is sent for all.
func TestBatch(t *testing.T) {
	for name, mix := range map[string]func([]*frame.Frame){
		"in order": nil,
		"reversed": slices.Reverse[[]*frame.Frame],
		"in two":   func(f []*frame.Frame) { slices.Reverse(f[:3]); slices.Reverse(f[3:]) },
	} {
		t.Run(name, func(t *testing.T) {
			g := &gatherer{brought: make(chan int64, 1), mix: mix}
			s1, s2 := outside(t, g.bring, new(atomic.Bool))
			a, b := netstacktest.Connect(t, s1, s2, false)
			defer a.Close()
			defer b.Close()
			n := ethswitch.BatchFrames * a.EMSS()
			prompts, got := 0, netstacktest.NewSink(int64(n))
			b.SetNotify(func() { t.Error("b was told by gVisor's goroutine") })
			b.SetPrompt(func(more func() bool) {
				prompts++
				if k, err := b.ReadInto(got); k != n || err != nil || got.Err != nil || more != nil {
					t.Errorf("read %d of %d: %v, %v; more: %v", k, n, err, got.Err, more != nil)
				}
			})
			before := s2.Stats()
			g.want.Store(ethswitch.BatchFrames)
			if k, err := a.WriteFrom(netstacktest.NewSource(int64(n))); k != n || err != nil {
				t.Fatal(k, err)
			}
			if acks := <-g.brought; prompts != 1 || acks != 1 {
				t.Errorf("told %d times, %d ACKs", prompts, acks)
			}
			after := s2.Stats()
			if in, out := after.TCPSegmentsReceived-before.TCPSegmentsReceived,
				after.TCPSegmentsSent-before.TCPSegmentsSent; in != 1 || out != 1 {
				t.Errorf("gVisor has handled %d segments and made %d ACKs, want one each", in, out)
			}
			b.SetNotify(nil)
			b.SetPrompt(nil)
		})
	}
}

// TestBatchWithoutSACK: a peer without SACK counts ACKs to find a loss (RFC 5681, section 4.2):
// each segment that comes before its turn has one, also where segments come together.
func TestBatchWithoutSACK(t *testing.T) {
	g := &gatherer{brought: make(chan int64, 1), mix: slices.Reverse[[]*frame.Frame]}
	s1, s2 := outside(t, g.bring, new(atomic.Bool))
	a, b := netstacktest.Connect(t, s1, s2, false)
	defer a.Close()
	defer b.Close()
	b.WithoutSACK()
	n := ethswitch.BatchFrames * a.EMSS()
	got := netstacktest.NewSink(int64(n))
	b.SetPrompt(func(func() bool) {
		if k, err := b.ReadInto(got); k != n || err != nil || got.Err != nil {
			t.Errorf("read %d of %d: %v, %v", k, n, err, got.Err)
		}
	})
	g.want.Store(ethswitch.BatchFrames)
	if k, err := a.WriteFrom(netstacktest.NewSource(int64(n))); k != n || err != nil {
		t.Fatal(k, err)
	}
	if acks := <-g.brought; acks != ethswitch.BatchFrames {
		t.Errorf("%d ACKs for %d segments", acks, ethswitch.BatchFrames)
	}
	b.SetPrompt(nil)
}

// TestBatchOfTwo: what comes together for a second connection, and for one that somebody has hold
// of, goes the usual way.
func TestBatchOfTwo(t *testing.T) {
	for _, held := range []bool{false, true} {
		g := &gatherer{brought: make(chan int64, 1)}
		s1, s2 := outside(t, g.bring, new(atomic.Bool))
		a1, b1 := netstacktest.Connect(t, s1, s2, false)
		a2, b2 := netstacktest.Connect(t, s1, s2, true)
		var prompts [2]atomic.Int64
		bells := [2]netstacktest.Bell{promptBell(b1, &prompts[0]), promptBell(b2, &prompts[1])}
		if held {
			b1.Hold()
		}
		const each = ethswitch.BatchFrames / 2
		g.want.Store(2 * each)
		n := each * min(a1.EMSS(), a2.EMSS())
		for _, c := range []*tcp.Conn{a1, a2} {
			if k, err := c.WriteFrom(netstacktest.NewSource(int64(n))); k != n || err != nil {
				t.Fatal(k, err)
			}
		}
		<-g.brought
		want := [2]int64{1, 0}
		if held {
			b1.LetGo()
			want = [2]int64{0, 1}
		}
		for i, c := range []*tcp.Conn{b1, b2} {
			if got := readAll(t, c, bells[i], n); !bytes.Equal(got, netstacktest.Pattern(0, n)) {
				t.Errorf("held %v, connection %d: other octets", held, i)
			}
			if prompts[i].Load() != want[i] {
				t.Errorf("held %v, connection %d: told %d times by who brought frames, want %d", held, i,
					prompts[i].Load(), want[i])
			}
		}
		for _, c := range []*tcp.Conn{a1, b1, a2, b2} {
			c.Close()
		}
	}
}
