package rawhost

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// A Host is a TCP/IP stack of its own, linked to a Unix-stream port.
type Host struct {
	sw    *ethswitch.Switch
	stack *netstack.Stack
	link  *link
}

// Config describes a Host.
type Config struct {
	Path  string         // of the socket that a port unix-listen:PATH has made
	Addrs []netip.Prefix // of IPv4, IPv6 or both
	MTU   int            // 0: 1500
	// ReceiveBuffer is how much a connection takes that is not read, half of it is its window; 0: 4
	// MiB.
	ReceiveBuffer int
}

// New makes a Host.
func New(c Config) (*Host, error) {
	h := &Host{sw: ethswitch.New(ethswitch.Config{})}
	var err error
	h.stack, err = netstack.NewStack(h.sw, netstack.Config{
		Name: "raw", MTU: c.MTU, Addrs: c.Addrs, ReceiveBuffer: c.ReceiveBuffer,
	})
	if err != nil {
		return nil, err
	}
	if h.link, err = newLink(h.sw, c.Path); err != nil {
		h.stack.Close()
		return nil, err
	}
	return h, nil
}

// Close resets all connections.
func (h *Host) Close() {
	h.stack.Close()
	h.link.close()
	h.sw.Close()
}

// Dial connects to addr.
func (h *Host) Dial(ctx context.Context, addr netip.AddrPort) (*rawpeer.Peer, error) {
	c, err := h.stack.TCP().Dial(ctx, netip.Addr{}, addr)
	if err != nil {
		return nil, err
	}
	return rawpeer.New(newConn(c)), nil
}

// A Listener takes connections.
type Listener struct{ l *tcp.Listener }

// Listen listens at a free port of addr, which is one of the Host's.
func (h *Host) Listen(addr netip.Addr) (*Listener, error) {
	l, err := h.stack.TCP().Listen(netip.AddrPortFrom(addr, 0), 64)
	if err != nil {
		return nil, err
	}
	return &Listener{l}, nil
}

// Addr is where l listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Accept waits for a connection, until l is closed.
func (l *Listener) Accept() (*rawpeer.Peer, error) {
	c, err := l.l.Accept()
	if err != nil {
		return nil, err
	}
	return rawpeer.New(newConn(c)), nil
}

// Close ends l.
func (l *Listener) Close() error { return l.l.Close() }

// conn makes a connection of a stack block.
type conn struct {
	c       *tcp.Conn
	changed *sync.Cond // with mu: something may have become possible

	mu sync.Mutex
	// +checklocks:mu
	closed        bool      // guarded by mu, as the rest; c's calls are, too
	readBy, putBy time.Time // deadlines; zero: none
}

func newConn(c *tcp.Conn) *conn {
	k := &conn{c: c}
	k.changed = sync.NewCond(&k.mu)
	// It is called with the stack's locks held: another goroutine takes ours.
	wake := make(chan struct{}, 1)
	c.SetNotify(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	go func() {
		tick := time.NewTicker(20 * time.Millisecond) // for deadlines
		defer tick.Stop()
		for {
			select {
			case <-wake:
			case <-tick.C:
			}
			k.mu.Lock()
			over := k.closed
			k.changed.Broadcast()
			k.mu.Unlock()
			if over {
				return
			}
		}
	}()
	return k
}

// until repeats f until it has done something, has failed, or it is too late.
func (k *conn) until(deadline *time.Time, f func() (int, error)) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		if k.closed {
			return 0, net.ErrClosed
		}
		if n, err := f(); n > 0 || err != nil {
			return n, err
		}
		if !deadline.IsZero() && !time.Now().Before(*deadline) {
			return 0, errTimeout{}
		}
		k.changed.Wait()
	}
}

// into takes what fits.
type into struct {
	b []byte
	n int
}

func (w *into) Write(p []byte) (int, error) {
	n := copy(w.b[w.n:], p)
	w.n += n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func (k *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return k.until(&k.readBy, func() (int, error) {
		w := into{b: b}
		n, err := k.c.ReadInto(&w)
		if n > 0 {
			err = nil
		}
		return n, err
	})
}

func (k *conn) Write(b []byte) (total int, err error) {
	for total < len(b) {
		n, err := k.until(&k.putBy, func() (int, error) {
			return k.c.WriteFrom(bytes.NewReader(b[total:]))
		})
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (k *conn) CloseWrite() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return net.ErrClosed
	}
	return k.c.CloseWrite()
}

func (k *conn) Reset() error { return k.end(func() error { k.c.Abort(); return nil }) }
func (k *conn) Close() error { return k.end(k.c.Close) }

func (k *conn) end(f func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	k.c.SetNotify(nil)
	k.changed.Broadcast()
	return f()
}

func (k *conn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(k.c.LocalAddr()) }
func (k *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(k.c.RemoteAddr()) }

func (k *conn) SetDeadline(t time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readBy, k.putBy = t, t
	return nil
}

func (k *conn) SetReadDeadline(t time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readBy = t
	return nil
}

func (k *conn) SetWriteDeadline(t time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.putBy = t
	return nil
}
