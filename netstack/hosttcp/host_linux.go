package hosttcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Config describes a Host.
type Config struct {
	Addr netip.Addr // of the host; connections are from it, and listened for there
	// KeepAlive is after how much silence of its peer a connection asks for a sign of life,
	// UserTimeout after how much of it the connection is lost, if something is awaited of the peer. 0:
	// never.
	KeepAlive, UserTimeout time.Duration
}

// A Host is the kernel's TCP at one address of the host. Its methods may be called from several
// goroutines at once.
type Host struct {
	cfg    Config
	listen net.ListenConfig
	// life ends with Close.
	life context.Context
	end  context.CancelFunc

	mu    sync.Mutex
	shut  bool               // +checklocks:mu
	conns map[*Conn]struct{} // +checklocks:mu
	past  Stats              // guarded by mu; of connections that are gone
}

// New makes a Host. It fails if the host does not have the address: EADDRNOTAVAIL.
func New(c Config) (*Host, error) {
	h := &Host{cfg: c, conns: make(map[*Conn]struct{})}
	h.life, h.end = context.WithCancel(context.Background())
	h.listen = net.ListenConfig{KeepAlive: -1, Control: h.control(false)}
	h.listen.SetMultipathTCP(false)
	// Package net reads files when it listens for the first time, which a daemon may not later.
	l, err := h.listen.Listen(context.Background(), network(c.Addr),
		netip.AddrPortFrom(c.Addr, 0).String())
	if err != nil {
		return nil, fmt.Errorf("TCP at %v: %w", c.Addr, err)
	}
	return h, l.Close()
}

// network is package net's name for TCP over the family of a.
func network(a netip.Addr) string {
	if a.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// control sets the options of a socket before it has an address.
func (h *Host) control(dial bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return onSocket(c, func(fd int) error {
			set := func(level, name, value int) error {
				return unix.SetsockoptInt(fd, level, name, value)
			}
			var errs []error
			if dial { // a port is chosen for the peer, not kept from all others
				errs = append(errs, set(unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
			}
			if d := h.cfg.UserTimeout; d > 0 {
				errs = append(errs, set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds())))
			}
			if d := h.cfg.KeepAlive; d > 0 {
				between := max(time.Second, (h.cfg.UserTimeout-d)/4)
				errs = append(errs, set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
					set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(d)),
					set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(between)))
			}
			return errors.Join(errs...)
		})
	}
}

// seconds is d in whole seconds, of which the kernel's keep-alive has some hours at most.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// onSocket calls f with the descriptor of c.
func onSocket(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Dial connects to remote and waits until that has succeeded or failed or ctx is done. The port is
// local, unless that is 0; EADDRINUSE: something has it. For errors errors.Is finds the
// syscall.Errno, or ctx's.
func (h *Host) Dial(ctx context.Context, local uint16, remote netip.AddrPort) (*Conn, error) {
	if h.life.Err() != nil {
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.life, func() { cancel(net.ErrClosed) })()
	from := netip.AddrPortFrom(h.cfg.Addr, local)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: -1,
		Control: h.control(local == 0)}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, network(h.cfg.Addr), remote.String())
	if err != nil {
		h.count(func(s *Stats) { s.FailedConnects++ })
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	h.count(func(s *Stats) { s.ActiveOpens++ })
	return h.newConn(c.(*net.TCPConn))
}

// A Listener takes connections in.
type Listener struct {
	h    *Host
	l    *net.TCPListener
	done chan struct{}
	once sync.Once
}

// Listen listens at a port, which is not 0. EADDRINUSE: somebody on the host has it.
func (h *Host) Listen(port uint16) (*Listener, error) {
	at := netip.AddrPortFrom(h.cfg.Addr, port)
	l, err := h.listen.Listen(context.Background(), network(at.Addr()), at.String())
	if err != nil {
		return nil, err
	}
	return &Listener{h: h, l: l.(*net.TCPListener), done: make(chan struct{})}, nil
}

// Accept waits for a connection. The error wraps net.ErrClosed if the Listener was closed.
func (l *Listener) Accept() (*Conn, error) {
	const first, most = 5 * time.Millisecond, time.Second
	for wait := first; ; wait = min(2*wait, most) {
		c, err := l.l.AcceptTCP()
		if err == nil {
			conn, err := l.h.newConn(c)
			if err == nil {
				l.h.count(func(s *Stats) { s.PassiveOpens++ })
				return conn, nil
			}
			if errors.Is(err, net.ErrClosed) {
				return nil, err
			}
			continue // it has ended already
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		select { // no descriptors or no memory are left, at present
		case <-time.After(wait):
		case <-l.done:
			return nil, net.ErrClosed
		}
	}
}

// Close ends the listener and Accept. Connections that nobody has accepted are reset.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		close(l.done)
		err = l.l.Close()
	})
	return err
}

// Stats are totals over the life of a Host.
type Stats struct {
	ActiveOpens, PassiveOpens, FailedConnects uint64
	Established                               uint64 // at present
	SegmentsReceived, SegmentsSent            uint64
	Retransmits                               uint64
}

// add adds what the kernel has counted for c, if it still knows.
func (s *Stats) add(c *Conn) {
	_ = onSocket(c.raw, func(fd int) error {
		i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			s.SegmentsReceived += uint64(i.Segs_in)
			s.SegmentsSent += uint64(i.Segs_out)
			s.Retransmits += uint64(i.Total_retrans)
		}
		return err
	})
}

// count changes the totals.
func (h *Host) count(f func(*Stats)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.past)
}

// Stats returns the totals.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.past
	s.Established = uint64(len(h.conns))
	for c := range h.conns {
		s.add(c)
	}
	return s
}

// keep adds c; false: h is closed.
func (h *Host) keep(c *Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.shut {
		h.conns[c] = struct{}{}
	}
	return !h.shut
}

// forget ends what keep has begun.
func (h *Host) forget(c *Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.conns[c]; ok {
		h.past.add(c)
		delete(h.conns, c)
	}
}

// Close resets the connections that there are, and makes no more. Listeners are closed by who has
// them. It must not be called from a function given to SetNotify or SetPrompt.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.shut {
		h.mu.Unlock()
		return nil
	}
	h.shut = true
	h.end()
	conns := make([]*Conn, 0, len(h.conns))
	for c := range h.conns {
		conns = append(conns, c)
	}
	h.mu.Unlock()
	for _, c := range conns {
		c.release() // before the first reset: it may be of another one here
	}
	for _, c := range conns {
		c.Abort()
	}
	for _, c := range conns {
		c.wg.Wait()
	}
	return nil
}
