package llp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
)

// A pipe is a connection in memory that carries DDP segments, each in one piece: a ring of records,
// which are a length and as many octets, and begin at multiples of recordAlign. A length of
// recordSkip stands for what is left of the ring. Each direction has one writer and one reader,
// which fill and drain their part of the ring without the lock: either may hang in a client's
// memory. A long message is read from one program's memory into the ring, and written from there
// into the other's. A pipe can go on over TCP: wire.go.
type pipe struct {
	mu    sync.Mutex
	reset bool          // guarded by mu
	moved chan struct{} // guarded by mu: nil, or to be closed when neither end sends by its ring
	ends  [2]pipeEnd
}

const (
	recordHeader = 4
	recordAlign  = 64
	recordSkip   = 1<<32 - 1
	recordMost   = (recordHeader + iwarp.MaxRecord + recordAlign - 1) / recordAlign * recordAlign

	// pipeSize is how many octets of each direction a pipe holds: some of the longest records.
	pipeSize = 4 * recordMost

	// readMost is how many octets ReadInto gives at most before others get a turn.
	readMost = 256 << 10
)

// A pipeEnd is an iwarp.Stream that gives an Endpoint segments, and takes one at a time:
// iwarp.Config.Records.
type pipeEnd struct {
	Defaults
	p     *pipe
	peer  *pipeEnd
	local netip.AddrPort
	buf   []byte               // what this end has sent and the peer has not taken
	show  func(segment []byte) // nil: nobody sees it
	full  bool                 // the owner's: there was no room for the segment that comes next
	given bool                 // the owner's: it has closed, and the wire is no more its own

	wire atomic.Pointer[wire] // this end of what takes the ring's place, or nil; set with p.mu held

	// guarded by p.mu; head and tail run free
	head, tail uint64
	fin        bool // nothing more is sent, and the ring says so
	left       bool // what is sent goes by the wire; set by the owner
	closed     bool
	waits      bool // the peer's reading is news
	notify     func()
	onMoved    func(local, remote netip.AddrPort, emss int) // nil: nobody asks
}

var _ Stream = (*pipeEnd)(nil)

// NewPipe makes the two ends of a pipe, whose addresses are a and b.
func NewPipe(a, b netip.AddrPort) (Stream, Stream) {
	p := &pipe{}
	x, y := &p.ends[0], &p.ends[1]
	*x = pipeEnd{p: p, peer: y, local: a, buf: make([]byte, pipeSize)}
	*y = pipeEnd{p: p, peer: x, local: b, buf: make([]byte, pipeSize)}
	return x, y
}

// Show has show called with each segment that goes into s, an end of a pipe into which nobody has
// written yet, by who writes it there.
func Show(s Stream, show func(segment []byte)) { s.(*pipeEnd).show = show }

// tellNotify runs f, a notify function that was read under the lock, without it.
func tellNotify(f func()) {
	if f != nil {
		f()
	}
}

var errPipeReset = fmt.Errorf("the other QP of the device is gone: %w", syscall.ECONNRESET)

// ReadInto implements iwarp.Stream: it gives w, an Endpoint, segment by segment. Another w gets
// their octets.
func (e *pipeEnd) ReadInto(w io.Writer) (n int, err error) {
	from := e.peer
	for n < readMost { // the writer may be as fast
		e.p.mu.Lock()
		head, fill := from.head, from.tail-from.head
		switch {
		case e.p.reset:
			err = errPipeReset
		case e.closed:
			err = net.ErrClosed
		case fill == 0 && from.fin && n == 0:
			err = io.EOF
		}
		over := err == nil && fill == 0 && from.left
		if over {
			from.buf = nil
		}
		e.p.mu.Unlock()
		if over {
			more, err := e.wire.Load().readInto(w)
			if n += more; n > 0 && err == io.EOF {
				err = nil // it comes again, when nothing is left
			}
			return n, err
		}
		if err != nil || fill == 0 {
			return n, err
		}
		at := head % pipeSize
		size := uint64(binary.NativeEndian.Uint32(from.buf[at:]))
		if size == recordSkip {
			from.take(pipeSize - at)
			continue
		}
		seg := from.buf[at+recordHeader:][:size:size]
		if ok, err := give(w, seg); !ok {
			return n, err
		}
		n += len(seg)
		from.take(recordSpace(len(seg)))
	}
	return n, nil
}

// give gives w seg; false and nil: it comes again when there is a receive for it.
func give(w io.Writer, seg []byte) (ok bool, err error) {
	if sink, ok := w.(interface {
		Segment(seg []byte, size int) error
	}); ok {
		return sink.Segment(seg, len(seg)) == nil, nil
	}
	_, err = w.Write(seg)
	return err == nil, err
}

// Peek implements Stream.
func (e *pipeEnd) Peek(to Watcher) error {
	from := e.peer
	e.p.mu.Lock()
	head, tail, fin, left, reset := from.head, from.tail, from.fin, from.left, e.p.reset
	e.p.mu.Unlock()
	if reset {
		return errPipeReset
	}
	for head != tail { // this end alone makes room there
		at := head % pipeSize
		size := uint64(binary.NativeEndian.Uint32(from.buf[at:]))
		if size == recordSkip {
			head += pipeSize - at
			continue
		}
		to.Notice(from.buf[at+recordHeader:][:size:size])
		head += recordSpace(int(size))
	}
	switch {
	case fin:
		return io.EOF
	case left:
		return e.wire.Load().peek(to)
	}
	return nil
}

// recordSpace is how many octets of the ring a segment of n takes.
func recordSpace(n int) uint64 {
	return uint64((recordHeader + n + recordAlign - 1) / recordAlign * recordAlign)
}

// take gives n octets of the ring back to their writer, e.
func (e *pipeEnd) take(n uint64) {
	var f func()
	e.p.mu.Lock()
	e.head += n
	if e.waits {
		e.waits, f = false, e.notify
	}
	e.p.mu.Unlock()
	tellNotify(f)
}

// WriteFrom implements iwarp.Stream: it takes all of src, which is one segment, or nothing.
func (e *pipeEnd) WriteFrom(src iwarp.Source) (int, error) {
	n := src.Len()
	if n == 0 {
		return 0, nil
	}
	if e.left {
		return e.wire.Load().writeFrom(src)
	}
	space := recordSpace(n)
	e.p.mu.Lock()
	var err error
	switch {
	case e.p.reset:
		err = errPipeReset
	case e.closed || e.fin:
		err = net.ErrClosed
	}
	tail := e.tail
	at := tail % pipeSize
	skip := uint64(0)
	if at+space > pipeSize {
		skip = pipeSize - at
	}
	room := pipeSize-(tail-e.head) >= skip+space
	e.full, e.waits = !room, !room
	e.p.mu.Unlock()
	if err != nil || !room {
		return 0, err
	}
	// This end alone writes behind tail.
	if skip > 0 {
		binary.NativeEndian.PutUint32(e.buf[at:], recordSkip)
		at = 0
	}
	binary.NativeEndian.PutUint32(e.buf[at:], uint32(n))
	for got, b := 0, e.buf[at+recordHeader:][:n]; got < n; {
		k, err := src.Read(b[got:])
		got += k
		if err != nil && got < n {
			return 0, err
		}
	}
	if e.show != nil {
		e.show(e.buf[at+recordHeader:][:n])
	}
	e.change(func() { e.tail += skip + space })
	return n, nil
}

// change runs f with the lock held, and tells the peer.
func (e *pipeEnd) change(f func()) {
	e.p.mu.Lock()
	f()
	e.p.settleLocked()
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

// Properties implements Stream.
func (e *pipeEnd) Properties() Properties {
	p := Properties{Transport: Memory, Records: true}
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if e.left {
		p.Transport = TCP
	}
	return p
}

// Abandon implements Stream.
func (e *pipeEnd) Abandon() { e.Abort() }

// EMSS implements iwarp.Stream: it is the longest segment.
func (e *pipeEnd) EMSS() int {
	if e.left {
		return iwarp.MULPDU(e.wire.Load().s.EMSS())
	}
	return iwarp.MaxRecord
}

// CloseWrite implements iwarp.Stream.
func (e *pipeEnd) CloseWrite() error {
	if e.left {
		return e.wire.Load().closeWrite()
	}
	e.change(func() { e.fin = true })
	return nil
}

// Close implements iwarp.Stream.
func (e *pipeEnd) Close() error {
	e.change(func() {
		e.closed = true
		e.fin = e.fin || !e.left
		if e.peer.head != e.peer.tail {
			e.p.reset = true
		}
	})
	if w := e.wire.Load(); w != nil && !e.given {
		e.given = true
		w.close()
	}
	return nil
}

// Abort implements iwarp.Stream.
func (e *pipeEnd) Abort() {
	e.change(func() {
		e.closed = true
		e.p.reset = e.p.reset || !e.left // or the wire brings it
	})
	if w := e.wire.Load(); w != nil {
		w.abort()
	}
}

func (e *pipeEnd) LocalAddr() netip.AddrPort  { return e.local }
func (e *pipeEnd) RemoteAddr() netip.AddrPort { return e.peer.local }
