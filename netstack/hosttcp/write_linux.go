package hosttcp

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outbound is the side of a connection that sends.
//
// What WriteFrom takes is made in memory of its own and given to the kernel in one piece. It ends a
// record there (MSG_EOR), to which the kernel adds nothing that comes later: so a segment begins
// where a piece does, as FPDUs want. What the kernel has no room for stays here, and a goroutine
// waits until it has.
type outbound struct {
	c       *Conn
	ready   func(fd uintptr) bool // for Go's poller
	sending func(fd uintptr)      // sends, within mu
	waiting func()                // wait
	sent    atomic.Bool           // something, since the watcher looked for more

	mu      sync.Mutex // held while the socket is written to
	buf     []byte     // what the kernel has not taken; a goroutine waits while there is something
	mem     *[]byte    // it lies in
	fin     bool       // nothing follows
	closing bool       // the socket is closed behind it
	ended   bool       // the socket is closed
	piece   []byte     // of sending
	took    int
	tookErr error
}

func (o *outbound) init(c *Conn) {
	o.c, o.ready, o.sending, o.waiting = c, o.flush, o.sendSocket, o.wait
}

// pieces have memory for what WriteFrom takes: a chunk, or what a longer one has needed.
var pieces = sync.Pool{New: func() any {
	b := make([]byte, chunk)
	return &b
}}

// sendSocket is for RawConn.Control. Go's scheduler is not told of the call, which does not wait.
func (o *outbound) sendSocket(fd uintptr) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL | unix.MSG_EOR
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd,
			uintptr(unsafe.Pointer(unsafe.SliceData(o.piece))), uintptr(len(o.piece)), flags, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if o.took, o.tookErr = int(n), nil; errno != 0 {
			o.took, o.tookErr = 0, errno
		}
		return
	}
}

// sendLocked gives b to the kernel as far as it has room.
//
// +checklocks:o.mu
func (o *outbound) sendLocked(b []byte) (n int, err error) {
	for n < len(b) {
		o.piece = b[n:]
		if err := o.c.raw.Control(o.sending); err != nil {
			return n, err // it is closed
		}
		if errors.Is(o.tookErr, unix.EAGAIN) {
			break
		}
		if o.tookErr != nil {
			return n, o.tookErr
		}
		n += o.took
	}
	return n, nil
}

// WriteFrom takes octets from src, as many as there are, unless some wait already, and returns how
// many. 0 and nil: no room, and the function of SetNotify is called when there is. If src gives an
// error or fewer octets than its Len said, none is taken and the error is returned; the connection
// goes on. Any other error: the connection is lost or closed for writing (EPIPE). src is read
// without a lock held. It does not allocate, but for what a pool lacks.
func (c *Conn) WriteFrom(src Source) (int, error) {
	o := &c.out
	if err := c.err.Load(); err != nil {
		return 0, *err
	}
	n := src.Len()
	if n <= 0 || !o.free() {
		return 0, nil
	}
	mem := pieces.Get().(*[]byte)
	if len(*mem) < n {
		*mem = make([]byte, n)
	}
	b := (*mem)[:n]
	if err := readAll(src, b); err != nil {
		pieces.Put(mem)
		return 0, err
	}
	return o.write(mem, b)
}

// readAll fills b from src, which has said that it has so many octets.
func readAll(src Source, b []byte) error {
	for done := 0; done < len(b); {
		n, err := src.Read(b[done:])
		if n < 0 || n > len(b)-done {
			return errBadSource
		}
		if done += n; done == len(b) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrNoProgress
		}
	}
	return nil
}

var errBadSource = errors.New("hosttcp: source returned an impossible count")

// free reports whether nothing waits.
func (o *outbound) free() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf) == 0
}

// write sends b, which lies in mem, and keeps what the kernel has no room for.
func (o *outbound) write(mem *[]byte, b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.sendLocked(b)
	if err != nil {
		pieces.Put(mem)
		if errors.Is(err, unix.EPIPE) && o.fin {
			return 0, err
		}
		return 0, o.c.lost(err)
	}
	if n < len(b) && !o.ended {
		o.buf, o.mem = b[n:], mem
		o.c.wg.Add(1)
		go o.waiting() // which is no new closure each time
		return len(b), nil
	}
	pieces.Put(mem)
	o.sent.Store(true)
	return len(b), nil
}

// wait waits until the kernel has taken all, and does what was to be done behind it.
func (o *outbound) wait() {
	defer o.c.wg.Done()
	_ = o.c.raw.Write(o.ready) // an error: the connection is closed
	o.mu.Lock()
	closing := o.closing
	o.mu.Unlock()
	if closing {
		o.c.closeSocket()
		return
	}
	o.c.tell()
}

// flush reports whether nothing is left to send, for Go's poller, which else waits for room.
func (o *outbound) flush(uintptr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.sendLocked(o.buf)
	if o.buf = o.buf[n:]; err == nil && len(o.buf) > 0 {
		return false
	}
	pieces.Put(o.mem)
	o.buf, o.mem = nil, nil
	switch {
	case err != nil:
		_ = o.c.lost(err) // who reads or writes is told
	case o.fin && !o.closing:
		_ = o.shutdownLocked() // an error: it has ended
	}
	return true
}

// shutdownLocked sends the FIN.
//
// +checklocks:o.mu
func (o *outbound) shutdownLocked() error {
	return onSocket(o.c.raw, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

// finish sends a FIN behind what waits.
func (o *outbound) finish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fin {
		return nil
	}
	o.fin = true
	if len(o.buf) > 0 {
		return nil
	}
	return o.shutdownLocked()
}

// closeBehind reports whether the socket is to be closed now. If something waits it is closed
// behind that.
func (o *outbound) closeBehind() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing = true
	return len(o.buf) == 0
}

// end: the socket is being closed, and nobody waits for it any more.
func (o *outbound) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}
