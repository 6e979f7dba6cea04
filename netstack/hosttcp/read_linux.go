package hosttcp

import (
	"errors"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/internal/slice"
)

// inbound is the side of a connection that receives.
//
// Octets are read by whoever finds that nothing that was read is left: the watcher, which then
// brings them, and by the owner, who goes on. While the owner has not come to the end of what the
// kernel has, the watcher stays away: of what comes meanwhile nobody need be told.
type inbound struct {
	c        *Conn
	ready    func(fd uintptr) bool // for Go's poller
	reading  func(fd uintptr)      // reads, within mu
	moreFunc func() bool

	mu        sync.Mutex // held while the socket is read, and what was read is given away
	buf       *[chunk]byte
	off, fill int   // of buf: what nobody has taken
	fresh     bool  // the watcher has read it, and has not brought it yet
	stalled   bool  // the owner takes no more at present
	err       error // behind what is in buf: io.EOF, or why the connection is lost
	// dry: when read last the kernel had no more. Of a FIN behind the last octets it says nothing
	// then, so the watcher reads once more before it waits in Go's poller; while it does, the owner
	// has to.
	dry    bool
	polled bool

	got    int // of reading
	gotErr error

	slice slice.Usual      // the watcher's
	quiet bool             // the watcher's, too: what quieten has chosen
	low   func(fd uintptr) // sets what quieten has chosen
	waits bool             // it waits for idle
	idle  chan struct{}
	ended bool
}

func (r *inbound) init(c *Conn) {
	r.c, r.idle = c, make(chan struct{}, 1)
	r.ready, r.reading, r.moreFunc, r.low = r.look, r.readSocket, r.more, r.setLow
}

// readSocket is for RawConn.Control. Go's scheduler is not told of the call, which does not wait.
func (r *inbound) readSocket(fd uintptr) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(r.buf)), chunk)
		if errno == unix.EINTR {
			continue
		}
		if r.got, r.gotErr = int(n), nil; errno != 0 {
			r.got, r.gotErr = 0, errno
		} else if n == 0 {
			r.gotErr = io.EOF
		}
		return
	}
}

// readLocked reads, if all that was read has been taken, and reports whether there is something
// new.
//
// +checklocks:r.mu
func (r *inbound) readLocked() bool {
	if r.off < r.fill || r.err != nil {
		return false
	}
	if r.buf == nil {
		r.buf = chunks.Get().(*[chunk]byte)
	}
	if err := r.c.raw.Control(r.reading); err != nil {
		r.got, r.gotErr = 0, err // it is closed
	}
	r.off, r.fill, r.dry = 0, r.got, r.got == 0 || r.got < chunk && !r.polled
	switch {
	case r.gotErr == nil:
		return true
	case r.gotErr == error(unix.EAGAIN):
	case errors.Is(r.gotErr, io.EOF):
		r.err = io.EOF
	default:
		r.err = r.c.lost(r.gotErr)
	}
	r.giveBackLocked()
	return r.err != nil
}

// giveBackLocked gives back the memory of what was taken.
//
// +checklocks:r.mu
func (r *inbound) giveBackLocked() {
	if r.off == r.fill && r.buf != nil {
		chunks.Put(r.buf)
		r.buf, r.off, r.fill = nil, 0, 0
	}
}

// look reports whether there is something to bring, for Go's poller, which else waits until
// something has changed. An owner who takes no more is told of that, too: it may be the end.
func (r *inbound) look(uintptr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polled = false
	if r.readLocked() {
		r.fresh = true
	}
	switch {
	case r.fresh || r.ended:
		return true
	case r.stalled:
		r.c.tell()
	}
	r.polled = true
	return false
}

// more is look for who has brought octets and looks for more again and again. What the owner has
// not come to the end of is nobody else's. Right behind what was sent there is no answer yet:
// others run first, before the kernel is asked in vain.
func (r *inbound) more() bool {
	r.slice.Share()
	r.quieten(true)
	if r.c.out.sent.Swap(false) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dry && r.readLocked() {
		r.fresh = true
	}
	return r.fresh
}

// lookedFor is how many octets may wait in the kernel without a thread being woken for them, while
// the watcher looks for them anyway.
const lookedFor = 32 << 10

// quieten has the kernel not tell Go's poller of a few octets, while the watcher looks for them
// again and again. Else each message wakes the thread that waits in the poller, which finds that
// nobody waits for it: half of a round trip where all ends share a processor. Of more octets, of a
// FIN and of errors it tells.
func (r *inbound) quieten(quiet bool) {
	if r.quiet != quiet {
		r.quiet = quiet
		_ = r.c.raw.Control(r.low) // an error: it is closed
	}
}

// setLow is for RawConn.Control. When the kernel is to tell of all octets again, it tells of those
// that are there.
func (r *inbound) setLow(fd uintptr) {
	low := 1
	if r.quiet {
		low = lookedFor
	}
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, low) // best effort
}

// watch is the watcher.
func (r *inbound) watch() {
	for r.c.raw.Read(r.ready) == nil { // else it is closed
		for r.take() {
			r.c.bring()
		}
		r.slice.End()
		r.quieten(false)
		if !r.await() {
			return
		}
	}
}

// take reports whether there is something to bring.
func (r *inbound) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.fresh
	r.fresh = false
	return fresh
}

// await waits until the watcher has to look: the owner has come to the end of what there was, or
// takes no more. false: it is over.
func (r *inbound) await() bool {
	for {
		r.mu.Lock()
		over := r.ended || r.err != nil && r.off == r.fill && !r.fresh
		if r.fresh || r.dry && r.off == r.fill || r.stalled || over {
			r.waits = false
			r.mu.Unlock()
			return !over
		}
		r.waits = true
		r.mu.Unlock()
		<-r.idle
	}
}

// letWatchLocked has the watcher look, if it stays away.
//
// +checklocks:r.mu
func (r *inbound) letWatchLocked() {
	if !r.waits {
		return
	}
	r.waits = false
	select {
	case r.idle <- struct{}{}:
	default:
	}
}

// end has the watcher end. The socket is closed.
func (r *inbound) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.letWatchLocked()
}

// ReadInto passes received octets to w, in order, until none is left at present or w takes fewer
// than it was given or gives an error, and returns how many w took. The slices are good for the
// call of w only, which must not use c. 0 and nil: nothing is there, or w took nothing. io.EOF: the
// peer has closed and everything was taken. Any other error: the connection is lost, and errors.Is
// finds a syscall.Errno. It does not allocate, but for what a pool lacks.
func (c *Conn) ReadInto(w io.Writer) (n int, err error) {
	r := &c.in
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.dry {
		r.readLocked()
	}
	r.fresh, r.stalled = false, false
	if r.off < r.fill {
		b := r.buf[r.off:r.fill]
		k, werr := w.Write(b)
		k = min(max(k, 0), len(b))
		n, r.off = k, r.off+k
		r.stalled = k < len(b) || werr != nil
	}
	r.giveBackLocked()
	if r.off < r.fill {
		r.dry = false // what comes meanwhile is told of once
		r.letWatchLocked()
		return n, nil
	}
	if r.dry || r.err != nil {
		r.letWatchLocked()
	}
	if n == 0 {
		err = r.err
	}
	if why := c.err.Load(); n == 0 && err == nil && why != nil {
		err = *why // it was found out by sending
	}
	return n, err
}

// Peek passes what ReadInto would to w, and takes none of it; w takes all. Like ReadInto it says
// how the connection has ended, but at once: io.EOF is the peer's FIN, be it behind octets that
// wait; after another error there are none any more.
func (c *Conn) Peek(w io.Writer) error {
	r := &c.in
	r.mu.Lock()
	defer r.mu.Unlock()
	var queued []byte
	var events int16
	err := onSocket(c.raw, func(fd int) (err error) {
		// Before the octets are looked at: what comes behind them is seen the next time.
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		for err = unix.EINTR; err == unix.EINTR; { // by signals of Go's scheduler
			_, err = unix.Poll(p, 0)
		}
		if err != nil {
			return err
		}
		if events = p[0].Revents; events&unix.POLLERR != 0 {
			no, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && no != 0 {
				err = unix.Errno(no)
			}
			return err
		}
		queued, err = peekAll(fd)
		return err
	})
	switch {
	case r.err != nil && !errors.Is(r.err, io.EOF):
		err = r.err
	case err != nil:
		r.err = c.lost(err)
		err = r.err
	}
	if err != nil {
		r.off = r.fill
		r.giveBackLocked()
		return err
	}
	if r.off < r.fill {
		_, _ = w.Write(r.buf[r.off:r.fill]) // it takes all
	}
	if len(queued) > 0 {
		_, _ = w.Write(queued)
	}
	if r.err != nil || events&unix.POLLRDHUP != 0 {
		return io.EOF
	}
	return nil
}

// peekAll is what a socket has to read.
func peekAll(fd int) ([]byte, error) {
	const first, most = chunk, 64 << 20
	for size := first; ; size *= 2 {
		b := make([]byte, size)
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil, nil
		case errors.Is(err, unix.EINTR):
			size /= 2
			continue
		case err != nil || n < size || size >= most:
			return b[:max(n, 0)], err
		}
	}
}
