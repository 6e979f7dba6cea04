package llp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/vrnic/vrnic/iwarp"
)

// A pipe goes on over a connection of TCP without anybody waiting for anybody. Each end sends what
// comes next there as soon as nothing of its Endpoint's waits for room in the ring, and the other
// one takes what is in the ring and then that. Segments are FPDUs there (RFC 5044, section 4), as
// they are of who has begun on TCP; neither side says anything before them.

// A Mover is a Stream that may be able to go on over TCP; a pipe is.
type Mover interface {
	// Movable reports whether MoveTo may do something. Any goroutine may call it.
	Movable() bool
	// MoveTo has what both ends send from now on go over a connection whose ends are own and peers,
	// which are the Mover's then. moved is closed when they do, or are over; nil: they do not. Any
	// goroutine may call it.
	MoveTo(own, peers iwarp.Stream) (moved <-chan struct{})
	// OnMoved has f called when this end sends over TCP, with a lock held.
	OnMoved(f func(local, remote netip.AddrPort, emss int))
}

var _ Mover = (*pipeEnd)(nil)

// Movable is that of s, if it is a Mover.
func Movable(s Stream) bool {
	m, ok := s.(Mover)
	return ok && m.Movable()
}

// MoveTo is that of s, if it is a Mover, as a Link has it.
func MoveTo(s Stream, own, peers iwarp.Stream) (done <-chan struct{}, moved func() bool) {
	if m, ok := s.(Mover); ok {
		done = m.MoveTo(own, peers)
	}
	return done, func() bool { return done != nil }
}

// Movable implements Mover.
func (e *pipeEnd) Movable() bool {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	return e.movableLocked()
}

func (e *pipeEnd) movableLocked() bool {
	return e.p.moved == nil && !e.p.reset && !e.closed && !e.peer.closed
}

// MoveTo implements Mover.
func (e *pipeEnd) MoveTo(own, peers iwarp.Stream) (moved <-chan struct{}) {
	own.SetNotify(e.tell)
	peers.SetNotify(e.peer.tell)
	e.p.mu.Lock()
	if !e.movableLocked() {
		e.p.mu.Unlock()
		own.SetNotify(nil)
		peers.SetNotify(nil)
		return nil
	}
	e.p.moved = make(chan struct{})
	moved = e.p.moved
	e.wire.Store(newWire(own))
	e.peer.wire.Store(newWire(peers))
	e.p.settleLocked()
	e.p.mu.Unlock()
	e.tell()
	e.peer.tell()
	return moved
}

// OnMoved implements Mover.
func (e *pipeEnd) OnMoved(f func(local, remote netip.AddrPort, emss int)) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	e.onMoved = f
}

// tell has who owns e look at it.
func (e *pipeEnd) tell() {
	e.p.mu.Lock()
	f := e.notify
	e.p.mu.Unlock()
	tellNotify(f)
}

// settleLocked tells who waits for the pipe to have moved.
func (p *pipe) settleLocked() {
	if p.moved == nil {
		return
	}
	x, y := &p.ends[0], &p.ends[1]
	over := p.reset || x.closed || y.closed // the other's program may not come back
	if !over && (!x.left && !x.fin || !y.left && !y.fin) {
		return
	}
	select {
	case <-p.moved:
	default:
		close(p.moved)
	}
}

// Flush implements Stream. A step ends with it, so that it is also what has an end leave.
func (e *pipeEnd) Flush() {
	w := e.wire.Load()
	if w == nil || e.given {
		return
	}
	if !e.left && !e.full {
		local, remote, emss := w.s.LocalAddr(), w.s.RemoteAddr(), w.s.EMSS()
		e.p.mu.Lock()
		if e.left = !e.fin && !e.closed && !e.p.reset; e.left {
			if e.onMoved != nil {
				e.onMoved(local, remote, emss)
			}
			e.p.settleLocked()
		}
		e.p.mu.Unlock()
	}
	if e.left {
		_ = w.drain() // an error is the end of the connection, which who reads is told
	}
}

// A wire is one end's part of the connection that takes a pipe's place. All but abort is its
// owner's.
type wire struct {
	s    Stream
	room chan struct{} // once it is closed: TCP may take more, or nothing at all

	out     []byte // an FPDU, or what TCP has not taken of it
	fpdu    []byte // the memory of out
	reader  bytes.Reader
	segment []byte // scratch
	fin     bool   // to be told behind out
	told    bool   // it was

	in  []byte // FPDUs and the beginning of one
	err error  // what is behind in is of no use
}

// inSize is how many octets that have come a wire holds: the longest FPDU and the next one.
const inSize = 2 * iwarp.MaxFPDU

func newWire(s iwarp.Stream) *wire { return &wire{s: Of(s), room: make(chan struct{}, 1)} }

// writeFrom takes all of src, which is one segment, or nothing.
func (w *wire) writeFrom(src iwarp.Source) (int, error) {
	if err := w.drain(); err != nil || len(w.out) > 0 {
		return 0, err
	}
	n := src.Len()
	w.segment = slices.Grow(w.segment[:0], n)[:n]
	for got := 0; got < n; {
		k, err := src.Read(w.segment[got:])
		got += k
		if err != nil && got < n {
			return 0, err
		}
	}
	w.fpdu = iwarp.AppendFPDU(w.fpdu[:0], w.segment, true)
	w.out = w.fpdu
	return n, w.drain()
}

// drain gives TCP what it takes.
func (w *wire) drain() error {
	for len(w.out) > 0 {
		w.reader.Reset(w.out)
		n, err := w.s.WriteFrom(&w.reader)
		w.out = w.out[n:]
		if n == 0 || err != nil {
			return err
		}
	}
	if w.fin && !w.told {
		w.told = true
		return w.s.CloseWrite()
	}
	return nil
}

func (w *wire) closeWrite() error {
	w.fin = true
	return w.drain()
}

// close ends the connection behind what waits.
func (w *wire) close() {
	w.s.SetNotify(w.news)
	go func() {
		for w.drain() == nil && len(w.out) > 0 {
			<-w.room
		}
		_ = w.s.Close() // it has ended then, too
	}()
}

func (w *wire) news() {
	select {
	case w.room <- struct{}{}:
	default:
	}
}

// abort ends it at once. Any goroutine may call it.
func (w *wire) abort() {
	w.s.Abort()
	w.news()
}

var errFPDU = errors.New("what a pipe has become brings a wrong CRC")

// cut returns the segment that b begins with, and how many octets of b it takes; 0: it is not
// there, or not in full.
func cut(b []byte) (segment []byte, size int, err error) {
	if len(b) < 2 {
		return nil, 0, nil
	}
	n := int(binary.BigEndian.Uint16(b))
	if size = iwarp.FPDULen(n); len(b) < size {
		return nil, 0, nil
	}
	if !iwarp.SoundFPDU(b[:size]) {
		return nil, 0, errFPDU
	}
	return b[2:][:n:n], size, nil
}

// readInto gives to what has come, segment by segment, as a pipe does.
func (w *wire) readInto(to io.Writer) (n int, err error) {
	if err := w.drain(); err != nil {
		w.out = nil // the end of the connection is behind what has come
	}
	off := 0
	defer func() { w.in = append(w.in[:0], w.in[off:]...) }()
	for n < readMost && w.err == nil {
		seg, size, err := cut(w.in[off:])
		if err != nil {
			w.err = err
			break
		}
		if size > 0 {
			if ok, err := give(to, seg); !ok {
				return n, err
			}
			n += len(seg)
			off += size
			continue
		}
		w.in, off = append(w.in[:0], w.in[off:]...), 0
		got, err := w.s.ReadInto(w)
		if got > 0 {
			continue
		}
		if err == io.EOF && len(w.in) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	return n, w.err
}

// Write takes what TCP has as far as there is room: more is there when that is cut.
func (w *wire) Write(p []byte) (int, error) {
	if w.in == nil {
		w.in = make([]byte, 0, inSize)
	}
	n := min(len(p), inSize-len(w.in))
	w.in = append(w.in, p[:n]...)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// peek shows to what has come.
func (w *wire) peek(to Watcher) error {
	v := &onlooker{Watcher: to}
	_, _ = v.Write(w.in)
	if err := w.s.Peek(v); err != nil {
		return err
	}
	return w.err
}

// An onlooker shows segments, of whose octets it is shown all.
type onlooker struct {
	Watcher
	part  []byte
	wrong bool
}

// Write implements io.Writer.
func (v *onlooker) Write(p []byte) (int, error) {
	if v.wrong {
		return len(p), nil
	}
	b := append(v.part, p...)
	for {
		seg, size, err := cut(b)
		if size == 0 {
			v.wrong = err != nil
			break
		}
		v.Notice(seg)
		b = b[size:]
	}
	v.part = append(v.part[:0], b...)
	return len(p), nil
}
