package netstack_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// An outsidePort brings what another one was given, by a goroutine of its own, as a TAP does.
type outsidePort struct {
	at    *netstack.Attachment
	queue chan *netstack.Frame
	done  chan struct{}
	reset *atomic.Bool // add RST to segments with octets
}

func (p *outsidePort) Transmit(f *netstack.Frame) bool {
	b := f.AppendTo(nil)
	if p.reset.Load() && len(b) > 14+20+20+12 && b[12] == 8 && b[14+9] == 6 {
		const flags, sum = 14 + 20 + 12, 14 + 20 + 16
		b[flags+1] |= 4
		v := uint32(^binary.BigEndian.Uint16(b[sum:])) + 4
		binary.BigEndian.PutUint16(b[sum:], ^uint16(v+v>>16))
	}
	g := netstack.NewFrame(b, f.Offload)
	select {
	case p.queue <- g:
		return true
	default:
		g.Release()
		return false
	}
}

func (p *outsidePort) Offloads() bool { return false } // short frames
func (p *outsidePort) String() string { return "outside" }

// outside makes two stacks whose frames come from outside of each other's switch; prompt says of each frame whether
// something comes behind it.
func outside(t *testing.T, prompt func() bool, reset *atomic.Bool) (a, b *netstack.Stack) {
	var ports [2]outsidePort
	var stacks [2]*netstack.Stack
	var wg sync.WaitGroup
	for i := range ports {
		sw := netstack.NewSwitch(netstack.SwitchConfig{})
		ports[i].reset = reset
		ports[i].queue, ports[i].done = make(chan *netstack.Frame, 4096), make(chan struct{})
		at, err := sw.Attach(netstack.PortOptions{Name: "outside", Kind: "memory"}, &ports[i])
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
					to.at.Arrive(f, prompt())
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
func promptBell(c *netstack.TCPConn, prompts *atomic.Int64) netstacktest.Bell {
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

// TestPromptTransfer moves checked octets both ways at once, their segments handled by who brings them and by gVisor's
// goroutines in all mixtures, until the end of both.
func TestPromptTransfer(t *testing.T) {
	for name, every := range map[string]int64{"all": 1, "every second": 2, "every seventh": 7} {
		t.Run(name, func(t *testing.T) {
			var frames, prompts atomic.Int64
			s1, s2 := outside(t, func() bool { return frames.Add(1)%every == 0 }, new(atomic.Bool))
			a, b := netstacktest.Connect(t, s1, s2, every == 2)
			errc := make(chan error, 2)
			for _, c := range []*netstack.TCPConn{a, b} {
				bell := promptBell(c, &prompts)
				go func() { errc <- inTurn(c, bell, 1<<20) }()
			}
			if err := errors.Join(<-errc, <-errc); err != nil {
				t.Error(err)
			}
			a.Close()
			b.Close()
			if prompts.Load() == 0 {
				t.Error("nobody was told by who brought a segment")
			}
		})
	}
}

// A head is the first octets of a Source.
type head struct {
	netstack.Source
	n int
}

func (h *head) Len() int { return min(h.n, h.Source.Len()) }

// inTurn writes and reads n octets on c, the one not much ahead of the other; then it half-closes and reads the end. If
// it fails it resets the connection, so that the other end does not wait for what does not come.
func inTurn(c *netstack.TCPConn, bell netstacktest.Bell, n int64) (err error) {
	defer func() {
		if err != nil {
			c.Abort()
		}
	}()
	const most = 40 << 10
	w, r := netstacktest.NewSource(n), netstacktest.NewSink(n)
	closed := false
	for sent := int64(0); ; {
		m, err := c.WriteFrom(&head{w, int(r.Len() + most - sent)})
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
		// The other end may have closed already: it has all octets as soon as the last of them are written.
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

// TestPromptUse: the one who is told uses the connection, on the goroutine that brought the segment; short messages go to and fro with
// no other goroutine.
func TestPromptUse(t *testing.T) {
	s1, s2 := outside(t, func() bool { return true }, new(atomic.Bool))
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

// TestPromptReset: a connection that is reset is lost as any other, also if the segment is one that who brought it
// handles.
func TestPromptReset(t *testing.T) {
	for _, octets := range []bool{false, true} {
		var reset atomic.Bool
		var prompts atomic.Int64
		s1, s2 := outside(t, func() bool { return true }, &reset)
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
