package vnictest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/iwarp"
)

// errPipeReset is what the streams of a pipe give after an Abort.
var errPipeReset = errors.New("vnictest: connection reset")

const pipeSize = 1 << 20

// A pipe is a connection in memory that does nothing but move octets: no allocation, one copy in
// and none out. Tests that want trouble use iwarptest's.
type pipe struct {
	mu    sync.Mutex
	reset bool // +checklocks:mu
	ends  [2]pipeEnd
}

type pipeEnd struct {
	p     *pipe
	peer  *pipeEnd
	local netip.AddrPort

	// What this end has sent and the peer has not taken. Indices run free. guarded by p.mu
	buf        []byte
	head, tail uint64
	fin        bool // nothing more is sent
	closed     bool
	notify     func()
	wasFull    bool // the peer's reading is news
}

func newPipe(a, b netip.AddrPort) (iwarp.Stream, iwarp.Stream) {
	p := &pipe{}
	x, y := &p.ends[0], &p.ends[1]
	*x = pipeEnd{p: p, peer: y, local: a, buf: make([]byte, pipeSize)}
	*y = pipeEnd{p: p, peer: x, local: b, buf: make([]byte, pipeSize)}
	return x, y
}

// tell runs f, a notify function that was read under the lock, without it.
func tell(f func()) {
	if f != nil {
		f()
	}
}

func (e *pipeEnd) ReadInto(w io.Writer) (n int, err error) {
	e.p.mu.Lock()
	from := e.peer
	for {
		switch {
		case e.p.reset:
			err = errPipeReset
		case e.closed:
			err = net.ErrClosed
		case from.head == from.tail && from.fin && n == 0:
			err = io.EOF
		}
		if err != nil || from.head == from.tail {
			break
		}
		at := int(from.head % pipeSize)
		b := from.buf[at:min(pipeSize, at+int(from.tail-from.head))]
		k, _ := w.Write(b)
		n += k
		from.head += uint64(k)
		if k < len(b) {
			break
		}
	}
	var f func()
	if n > 0 && from.wasFull {
		from.wasFull = false
		f = from.notify
	}
	e.p.mu.Unlock()
	tell(f)
	return n, err
}

func (e *pipeEnd) WriteFrom(src iwarp.Source) (n int, err error) {
	e.p.mu.Lock()
	switch {
	case e.p.reset:
		err = errPipeReset
	case e.closed || e.fin:
		err = net.ErrClosed
	}
	tail, room := e.tail, pipeSize-int(e.tail-e.head)
	want := min(src.Len(), room)
	if want == 0 {
		e.wasFull = true
	}
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
	e.p.mu.Lock()
	e.tail += uint64(n)
	f := e.peer.notify
	e.p.mu.Unlock()
	tell(f)
	return n, nil
}

func (e *pipeEnd) SetNotify(f func()) {
	e.p.mu.Lock()
	e.notify = f
	e.p.mu.Unlock()
}

func (e *pipeEnd) EMSS() int { return 1460 }

func (e *pipeEnd) CloseWrite() error {
	e.p.mu.Lock()
	e.fin = true
	f := e.peer.notify
	e.p.mu.Unlock()
	tell(f)
	return nil
}

func (e *pipeEnd) Close() error {
	e.p.mu.Lock()
	e.fin, e.closed = true, true
	if e.peer.head != e.peer.tail {
		e.p.reset = true
	}
	f := e.peer.notify
	e.p.mu.Unlock()
	tell(f)
	return nil
}

func (e *pipeEnd) Abort() {
	e.p.mu.Lock()
	e.p.reset, e.closed = true, true
	f := e.peer.notify
	e.p.mu.Unlock()
	tell(f)
}

func (e *pipeEnd) LocalAddr() netip.AddrPort  { return e.local }
func (e *pipeEnd) RemoteAddr() netip.AddrPort { return e.peer.local }
