// Package iwarptest has an in-memory transport for tests of iWARP engines: two Streams joined back
// to back that can be cut, held, corrupted and broken. It starts no goroutine and uses no clock, so
// it works inside testing/synctest and without.
package iwarptest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
)

// ErrReset is what ReadInto and WriteFrom return once the connection was reset.
var ErrReset = errors.New("iwarptest: connection reset by peer")

var _ iwarp.Stream = (*Stream)(nil)

// Link describes the pair. The zero value is fine.
type Link struct {
	EMSS     int  // 0: 1460
	Buffer   int  // octets on the way in each direction; 0: 256 KiB
	CutEvery int  // ReadInto passes at most so many octets in one piece; 0: all there are
	WriteMax int  // WriteFrom reads at most so many octets in one piece; 0: all there is room for
	TakeLess int  // WriteFrom takes so many octets fewer than it read, but at least one
	Record   bool // keep what is sent, for Sent
	// Addrs of the two ends; zero: 192.0.2.1:1 and 192.0.2.2:2.
	Addrs [2]netip.AddrPort
}

// A Stream is one end of a pair. Its methods may be called from any goroutine.
type Stream struct {
	mu     *sync.Mutex // of the pair
	link   Link
	peer   *Stream
	local  netip.AddrPort
	emss   int
	notify func() // guarded by mu, called without

	// What this end has sent and the peer has not taken; guarded by mu.
	buf     []byte
	start   int    // octets of buf that the peer took
	sent    uint64 // octets ever
	log     []byte
	corrupt map[uint64]byte
	held    bool
	visible int // octets of buf that are not held, if held
	fin     bool
	finHeld bool // the FIN came after Hold

	reset  bool // the connection is broken
	closed bool // Close was called here
}

// NewPair joins two ends.
func NewPair(l Link) (a, b *Stream) {
	if l.EMSS == 0 {
		l.EMSS = 1460
	}
	if l.Buffer == 0 {
		l.Buffer = 256 << 10
	}
	for i := range l.Addrs {
		if !l.Addrs[i].IsValid() {
			l.Addrs[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), uint16(i+1))
		}
	}
	mu := new(sync.Mutex)
	a = &Stream{mu: mu, link: l, emss: l.EMSS, local: l.Addrs[0], corrupt: map[uint64]byte{}}
	b = &Stream{mu: mu, link: l, emss: l.EMSS, local: l.Addrs[1], corrupt: map[uint64]byte{}}
	a.peer, b.peer = b, a
	return a, b
}

// notices runs the notify functions of ends, without the lock.
func notices(ends ...*Stream) {
	for _, s := range ends {
		s.mu.Lock()
		f := s.notify
		s.mu.Unlock()
		if f != nil {
			f()
		}
	}
}

// readable is what the peer's octets amount to that this end may take. Callers hold mu.
func (s *Stream) readableLocked() []byte {
	p := s.peer
	end := len(p.buf)
	if p.held {
		end = p.start + p.visible
	}
	return p.buf[p.start:end]
}

// ReadInto implements iwarp.Stream. It calls w with the lock held, as gVisor's TCP does.
func (s *Stream) ReadInto(w io.Writer) (n int, err error) {
	s.mu.Lock()
	for {
		if s.reset {
			s.mu.Unlock()
			return n, ErrReset
		}
		if s.closed {
			s.mu.Unlock()
			return n, net.ErrClosed
		}
		b := s.readableLocked()
		if len(b) == 0 {
			if p := s.peer; p.fin && !p.finHeld && len(p.buf) == p.start && n == 0 {
				err = io.EOF
			}
			break
		}
		if c := s.link.CutEvery; c > 0 {
			b = b[:min(c, len(b))]
		}
		// A copy with nothing behind it: that w reads beyond the slice or keeps it shows.
		piece := append(make([]byte, 0, len(b)), b...)
		k, _ := w.Write(piece)
		for i := range piece {
			piece[i] = 0xdb
		}
		n += k
		s.peer.start += k
		if s.peer.held {
			s.peer.visible -= k
		}
		if k < len(b) {
			break
		}
	}
	if p := s.peer; p.start == len(p.buf) {
		p.buf, p.start = p.buf[:0], 0
	}
	s.mu.Unlock()
	if n > 0 {
		notices(s.peer)
	}
	return n, err
}

// Peek shows w what ReadInto would give it, and takes nothing. io.EOF: the peer has closed behind
// it.
func (s *Stream) Peek(w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.reset:
		return ErrReset
	case s.closed:
		return net.ErrClosed
	}
	for b := s.readableLocked(); len(b) > 0; {
		c := len(b)
		if s.link.CutEvery > 0 {
			c = min(s.link.CutEvery, c)
		}
		_, _ = w.Write(append(make([]byte, 0, c), b[:c]...))
		b = b[c:]
	}
	if p := s.peer; p.fin && !p.finHeld {
		return io.EOF
	}
	return nil
}

// WriteFrom implements iwarp.Stream.
func (s *Stream) WriteFrom(src iwarp.Source) (n int, err error) {
	s.mu.Lock()
	if err := s.writableLocked(); err != nil {
		s.mu.Unlock()
		return 0, err
	}
	room := s.link.Buffer - (len(s.buf) - s.start)
	s.mu.Unlock()
	want := min(src.Len(), room)
	if want <= 0 {
		return 0, nil
	}
	p := make([]byte, want)
	for at := 0; at < want; {
		end := want
		if m := s.link.WriteMax; m > 0 {
			end = min(at+m, want)
		}
		k, err := src.Read(p[at:end])
		at += k
		if err != nil {
			return 0, err
		}
		if at < end {
			return 0, io.ErrUnexpectedEOF // Len promised more
		}
	}
	n = max(want-s.link.TakeLess, 1)

	s.mu.Lock()
	if err := s.writableLocked(); err != nil {
		s.mu.Unlock()
		return 0, err
	}
	for i, c := range p[:n] {
		if mask, ok := s.corrupt[s.sent+uint64(i)]; ok {
			p[i] = c ^ mask
		}
	}
	s.sent += uint64(n)
	s.buf = append(s.buf, p[:n]...)
	if s.link.Record {
		s.log = append(s.log, p[:n]...)
	}
	broken := s.peer.closed
	if broken {
		// "A RST if octets were unread or still come."
		s.resetLocked()
	}
	s.mu.Unlock()
	notices(s.peer)
	if broken {
		notices(s)
	}
	return n, nil
}

func (s *Stream) writableLocked() error {
	switch {
	case s.reset:
		return ErrReset
	case s.closed || s.fin:
		return net.ErrClosed
	}
	return nil
}

func (s *Stream) resetLocked() {
	for _, e := range [...]*Stream{s, s.peer} {
		e.reset = true
		e.buf, e.start, e.visible = nil, 0, 0
	}
}

// SetNotify implements iwarp.Stream.
func (s *Stream) SetNotify(f func()) {
	s.mu.Lock()
	s.notify = f
	s.mu.Unlock()
}

// EMSS implements iwarp.Stream.
func (s *Stream) EMSS() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.emss
}

// SetEMSS changes what EMSS says.
func (s *Stream) SetEMSS(n int) {
	s.mu.Lock()
	s.emss = n
	s.mu.Unlock()
}

// CloseWrite implements iwarp.Stream.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	if s.reset {
		s.mu.Unlock()
		return ErrReset
	}
	s.fin, s.finHeld = true, s.held
	s.mu.Unlock()
	notices(s.peer)
	return nil
}

// Close implements iwarp.Stream.
func (s *Stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	if !s.fin {
		s.fin, s.finHeld = true, s.held
	}
	if !s.reset && len(s.peer.buf) > s.peer.start {
		s.resetLocked()
	}
	s.mu.Unlock()
	notices(s.peer)
	return nil
}

// Abort implements iwarp.Stream.
func (s *Stream) Abort() {
	s.mu.Lock()
	s.closed = true
	s.resetLocked()
	s.mu.Unlock()
	notices(s.peer, s)
}

// LocalAddr implements iwarp.Stream.
func (s *Stream) LocalAddr() netip.AddrPort { return s.local }

// RemoteAddr implements iwarp.Stream.
func (s *Stream) RemoteAddr() netip.AddrPort { return s.peer.local }

// Corrupt flips the bits of mask in the octet at offset off of what this end sends, counted from
// its first octet. It has to be called before that octet is sent.
func (s *Stream) Corrupt(off uint64, mask byte) {
	s.mu.Lock()
	s.corrupt[off] ^= mask
	s.mu.Unlock()
}

// Hold keeps what this end sends from now on from the peer, until Release.
func (s *Stream) Hold() {
	s.mu.Lock()
	if !s.held {
		s.held, s.visible = true, len(s.buf)-s.start
	}
	s.mu.Unlock()
}

// Release lets the peer have what was held.
func (s *Stream) Release() {
	s.mu.Lock()
	s.held, s.finHeld = false, false
	s.mu.Unlock()
	notices(s.peer)
}

// Sent is how many octets this end has sent, and, with Link.Record, which.
func (s *Stream) Sent() (n uint64, log []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, append([]byte(nil), s.log...)
}

// InFlight is how many octets this end has sent that the peer has not taken.
func (s *Stream) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buf) - s.start
}

// A Waker is a notify function that can be waited for.
type Waker struct {
	c     chan struct{}
	count atomic.Uint64
}

// NewWaker makes one; give its Wake to SetNotify.
func NewWaker() *Waker { return &Waker{c: make(chan struct{}, 1)} }

// Wake marks.
func (w *Waker) Wake() {
	w.count.Add(1)
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// C gets a value after each Wake; several may be merged.
func (w *Waker) C() <-chan struct{} { return w.c }

// Count is how often Wake was called.
func (w *Waker) Count() uint64 { return w.count.Load() }
