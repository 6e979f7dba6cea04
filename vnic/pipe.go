package vnic

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
)

// pipeSize is how many octets of each direction a pipe holds.
const pipeSize = 256 << 10

// pipeTake is how many octets are taken at once, so that the writer has room meanwhile.
const pipeTake = pipeSize / 2

// pipeEMSS makes FPDUs large: the pipe has no segments.
const pipeEMSS = 32 << 10

// A pipe is a connection in memory. Each direction has one writer and one reader, which fill and
// drain their part of the buffer without the lock: either may hang in a client's memory.
type pipe struct {
	mu    sync.Mutex
	reset bool // guarded by mu
	ends  [2]pipeEnd
}

// A pipeEnd is an iwarp.Stream.
type pipeEnd struct {
	p     *pipe
	peer  *pipeEnd
	local netip.AddrPort
	buf   []byte // what this end has sent and the peer has not taken

	// guarded by p.mu; head and tail run free
	head, tail uint64
	fin        bool // nothing more is sent
	closed     bool
	full       bool // the peer's reading is news
	notify     func()
}

var _ iwarp.Stream = (*pipeEnd)(nil)

func newPipe(a, b netip.AddrPort) (*pipeEnd, *pipeEnd) {
	p := &pipe{}
	x, y := &p.ends[0], &p.ends[1]
	*x = pipeEnd{p: p, peer: y, local: a, buf: make([]byte, pipeSize)}
	*y = pipeEnd{p: p, peer: x, local: b, buf: make([]byte, pipeSize)}
	return x, y
}

// tellNotify runs f, a notify function that was read under the lock, without it.
func tellNotify(f func()) {
	if f != nil {
		f()
	}
}

var errPipeReset = fmt.Errorf("the other QP of the device is gone: %w", syscall.ECONNRESET)

// ReadInto implements iwarp.Stream.
func (e *pipeEnd) ReadInto(w io.Writer) (n int, err error) {
	from := e.peer
	for {
		e.p.mu.Lock()
		head, fill := from.head, int(min(from.tail-from.head, pipeTake))
		switch {
		case e.p.reset:
			err = errPipeReset
		case e.closed:
			err = net.ErrClosed
		case fill == 0 && from.fin && n == 0:
			err = io.EOF
		}
		e.p.mu.Unlock()
		if err != nil || fill == 0 {
			return n, err
		}
		at := int(head % pipeSize)
		b := from.buf[at:min(pipeSize, at+fill)]
		k, _ := w.Write(b)
		n += k
		e.p.mu.Lock()
		from.head += uint64(k)
		var f func()
		if k > 0 && from.full {
			from.full, f = false, from.notify
		}
		e.p.mu.Unlock()
		tellNotify(f)
		if k < len(b) || n >= pipeSize { // the writer may be as fast
			return n, nil
		}
	}
}

// WriteFrom implements iwarp.Stream.
func (e *pipeEnd) WriteFrom(src iwarp.Source) (n int, err error) {
	e.p.mu.Lock()
	switch {
	case e.p.reset:
		err = errPipeReset
	case e.closed || e.fin:
		err = net.ErrClosed
	}
	tail := e.tail
	want := min(src.Len(), pipeSize-int(tail-e.head))
	e.full = want == 0
	e.p.mu.Unlock()
	if err != nil || want == 0 {
		return 0, err
	}
	for n < want { // this end alone writes behind tail
		at := int((tail + uint64(n)) % pipeSize)
		k, err := src.Read(e.buf[at:min(pipeSize, at+want-n)])
		n += k
		if err != nil && n < want {
			return 0, err
		}
	}
	e.change(func() { e.tail += uint64(n) })
	return n, nil
}

// change runs f with the lock held, and tells the peer.
func (e *pipeEnd) change(f func()) {
	e.p.mu.Lock()
	f()
	tell := e.peer.notify
	e.p.mu.Unlock()
	tellNotify(tell)
}

// SetNotify implements iwarp.Stream.
func (e *pipeEnd) SetNotify(f func()) {
	e.p.mu.Lock()
	e.notify = f
	e.p.mu.Unlock()
}

// EMSS implements iwarp.Stream.
func (e *pipeEnd) EMSS() int { return pipeEMSS }

// CloseWrite implements iwarp.Stream.
func (e *pipeEnd) CloseWrite() error {
	e.change(func() { e.fin = true })
	return nil
}

// Close implements iwarp.Stream.
func (e *pipeEnd) Close() error {
	e.change(func() {
		e.fin, e.closed = true, true
		if e.peer.head != e.peer.tail {
			e.p.reset = true
		}
	})
	return nil
}

// Abort implements iwarp.Stream.
func (e *pipeEnd) Abort() {
	e.change(func() { e.p.reset, e.closed = true, true })
}

func (e *pipeEnd) LocalAddr() netip.AddrPort  { return e.local }
func (e *pipeEnd) RemoteAddr() netip.AddrPort { return e.peer.local }
