package hosttcp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Source is what WriteFrom takes octets from. Len is how many Read will give in all. It is an
// alias, so that others can name the same type.
type Source = interface {
	io.Reader
	Len() int
}

// A Conn is a TCP connection of the kernel's that never blocks. ReadInto, Peek, WriteFrom, EMSS and
// the calls that close it belong to one goroutine at a time, but for Abort, which may come from
// another: who owns the connection may be away, in WriteFrom's source, for as long as it likes.
type Conn struct {
	host          *Host
	tcp           *net.TCPConn
	raw           syscall.RawConn
	local, remote netip.AddrPort

	notify atomic.Pointer[func()]
	prompt atomic.Pointer[func(more func() bool)]

	emss  atomic.Int32
	asked atomic.Uint32 // how often EMSS was called

	in  inbound
	out outbound

	wg   sync.WaitGroup // goroutines that use the connection, and one more until it is closed
	once sync.Once      // the descriptor is closed
	// err is why the connection is over: the first reason counts.
	err atomic.Pointer[error]
}

// newConn wraps a connection. It fails if h is closed, or the connection is no more.
func (h *Host) newConn(t *net.TCPConn) (*Conn, error) {
	c := &Conn{host: h, tcp: t,
		local:  t.LocalAddr().(*net.TCPAddr).AddrPort(),
		remote: t.RemoteAddr().(*net.TCPAddr).AddrPort()}
	var err error
	if c.raw, err = t.SyscallConn(); err != nil {
		t.Close()
		return nil, err
	}
	c.in.init(c)
	c.out.init(c)
	c.measure()
	if !h.keep(c) {
		t.Close()
		return nil, net.ErrClosed
	}
	c.wg.Add(1)
	c.wg.Go(c.in.watch)
	return c, nil
}

// SetNotify sets the function that is called whenever more can be read or written or the connection
// has changed. It hears of what happens after SetNotify: look once at what was there before. It may
// only mark and wake.
func (c *Conn) SetNotify(f func()) {
	if f == nil {
		c.notify.Store(nil)
		return
	}
	c.notify.Store(&f)
}

// SetPrompt sets a function that is called in place of SetNotify's when octets have come: by the
// goroutine that has read them and with no lock held, so that it may use the connection. It must
// not wait for anything, but for what the program answers: more reports whether there is more to
// bring, and the function returns soon then.
func (c *Conn) SetPrompt(f func(more func() bool)) {
	if f == nil {
		c.prompt.Store(nil)
		return
	}
	c.prompt.Store(&f)
}

// tell calls what was given to SetNotify.
func (c *Conn) tell() {
	if f := c.notify.Load(); f != nil {
		(*f)()
	}
}

// bring tells of octets that have been read.
func (c *Conn) bring() {
	if f := c.prompt.Load(); f != nil {
		(*f)(c.in.moreFunc)
		return
	}
	c.tell()
}

// lost notes why the connection is lost.
func (c *Conn) lost(err error) error {
	return c.over(fmt.Errorf("tcp %v-%v: %w", c.local, c.remote, err))
}

// over notes why the connection is over, unless that is known, and returns the reason that counts.
func (c *Conn) over(err error) error {
	c.err.CompareAndSwap(nil, &err)
	return *c.err.Load()
}

// measureCalls is how often EMSS says the same before the kernel is asked again: a path's MTU falls
// seldom, and at the start the segments grow with the peer's window.
const measureCalls = 32

// EMSS is how many octets TCP puts into one segment at present, after options (RFC 5044, section
// 4.1; RFC 1122, section 4.2.2.6). It can fall during a connection, when the path's MTU does.
func (c *Conn) EMSS() int {
	if c.asked.Add(1)%measureCalls == 0 {
		c.measure()
	}
	return int(c.emss.Load())
}

// measure asks the kernel for EMSS.
func (c *Conn) measure() {
	_ = onSocket(c.raw, func(fd int) error {
		n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		if err == nil && n > 0 {
			c.emss.Store(int32(n))
		}
		return err
	})
}

// CloseWrite sends a FIN behind what was written.
func (c *Conn) CloseWrite() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return c.out.finish()
}

// Close gives the connection back: a FIN if there was none, a RST if octets were unread or still
// come. What was written is delivered if the peer is there. The function of SetNotify is not called
// any more once Close has returned, but for one call that runs.
func (c *Conn) Close() error {
	c.release()
	if c.out.closeBehind() {
		c.closeSocket()
	}
	return nil
}

// Abort resets the connection and gives it back.
func (c *Conn) Abort() {
	c.release()
	_ = onSocket(c.raw, func(fd int) error { // an error: it is closed
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	c.closeSocket()
}

// release has nobody told of the connection any more.
func (c *Conn) release() {
	c.notify.Store(nil)
	c.prompt.Store(nil)
	_ = c.over(fmt.Errorf("tcp %v-%v: %w", c.local, c.remote, net.ErrClosed)) // perhaps not the first
}

// closeSocket gives the descriptor back, and ends who waits for it.
func (c *Conn) closeSocket() {
	c.once.Do(func() {
		defer c.wg.Done()
		c.host.forget(c)
		c.out.end()
		_ = c.tcp.Close() // nothing is to be done about it
		c.in.end()
	})
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// chunk is how many octets are read at once, and mostly written: what stays in the cache of a
// processor until it is copied on.
const chunk = 128 << 10

// chunks have memory for so many octets.
var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}
