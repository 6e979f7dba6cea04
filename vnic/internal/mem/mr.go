package mem

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/handle"
)

// Memory is registered memory that is reached by calls: mode 0, a program's own address space.
// Calls may block; an error says that the memory is not there. Offset i is the region's octet i.
type Memory interface {
	io.ReaderAt
	io.WriterAt
}

// A Region is memory that somebody else owns, lent to the RNIC. Exactly one of Bytes and Mem is
// set.
type Region struct {
	Bytes []byte // directly addressable: a mapping shared with its owner
	Mem   Memory // mode 0; the Space must allow that: AllowBlocking
	// Acquire is called once when the region is registered; Release once when the MR has been
	// closed and nothing uses the memory any more. Either may be nil.
	Acquire, Release func()
	// Lent is where the owner's peers, if they may, find it without the RNIC.
	Lent Lent
	// Internal says that the region is no object of the user's: it is in no list, and MR limits do not
	// count it.
	Internal bool
}

// An MR is memory under one key: a registered region, which is what users have, or one binding of a
// window or of a fast registration (keyslot.go). What it gives never changes, it only ends. It
// implements rdma.MR.
type MR struct {
	pd     *PD
	only   *Stream // of a type 2 window: the one that it serves; nil: all of pd
	stag   uint32
	access rdma.Access
	base   uint64 // of the first octet, as SGE.Addr and the peer's TO count
	length uint64 // base+length does not wrap

	// pins counts the copies under way; mrClosed is added when no further one may start.
	pins atomic.Int64

	b       []byte // directly addressable, or nil
	mem     Memory
	skip    uint64 // mem's offset of the first octet
	foreign bool   // b can fault: it is a mapping made from what a client passed
	hidden  bool   // Region.Internal
	own     []byte // what RegisterMemory was given
	lent    Lent
	shown   atomic.Pointer[published] // or nil
	release func()
	handle  uint32
	once    sync.Once // the end of Close

	slot *keySlot // of a binding; nil: registered
	src  *MR      // of a binding: the region that the memory is part of
	// of a region: its bindings that are not drained; mrClosed: no further one may come
	users atomic.Int64

	mu      sync.Mutex
	drained bool     // guarded by mu: revoked, and no copy is under way
	waiting []func() // guarded by mu: called when it is
}

const mrClosed = 1 << 62

// RegisterMemory registers b; its address is that of b[0]. b must not be empty, and the process
// must be able to write it itself if access says so: RFC 5042, section 7.3.
func (pd *PD) RegisterMemory(b []byte, access rdma.Access) (rdma.MR, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("register no memory: %w", rdma.ErrInvalid)
	}
	if err := probe(b, access&rdma.LocalWrite != 0); err != nil {
		return nil, fmt.Errorf("register memory that the process itself may not use so: %w: %w",
			rdma.ErrInvalid, err)
	}
	m := &MR{b: b, own: b, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))),
		length: uint64(len(b)), access: access}
	if err := pd.addMR(m, nil); err != nil {
		return nil, err
	}
	pd.space.reportOverlap(m)
	return m, nil
}

// RegisterRegion registers the first length octets of r; the first is called iova.
func (pd *PD) RegisterRegion(r Region, iova, length uint64, access rdma.Access) (*MR, error) {
	return pd.registerRegion(r, iova, length, access, nil)
}

// ReplaceRegion registers as RegisterRegion does, under old's key, and closes old: who uses the key
// finds one of the two at any time. If it fails old is as it was; it is rdma.ErrBusy when Close is.
func (pd *PD) ReplaceRegion(old *MR, r Region, iova, length uint64, access rdma.Access) (*MR,
	error) {
	m, err := pd.registerRegion(r, iova, length, access, old)
	if err != nil {
		return nil, err
	}
	return m, old.Close()
}

// registerRegion registers r under a new key or, if old is not nil, under old's. Of old nothing but
// Close is left to do then.
func (pd *PD) registerRegion(r Region, iova, length uint64, access rdma.Access, old *MR) (*MR,
	error) {
	switch {
	case (r.Bytes == nil) == (r.Mem == nil):
		return nil, fmt.Errorf("register a region: exactly one of Bytes and Mem must be set: %w",
			rdma.ErrInvalid)
	case r.Mem == nil && length > uint64(len(r.Bytes)):
		return nil, fmt.Errorf("register %d octets of a region of %d: %w", length, len(r.Bytes),
			rdma.ErrInvalid)
	case r.Mem != nil && !pd.space.Blocking():
		return nil, fmt.Errorf("register memory that can block before that was allowed: %w",
			rdma.ErrInvalid)
	case old != nil && old.pd.space != pd.space:
		return nil, fmt.Errorf("register in place of a region of another context: %w", rdma.ErrInvalid)
	}
	m := &MR{mem: r.Mem, foreign: r.Mem == nil, hidden: r.Internal, release: r.Release, base: iova,
		length: length, access: access, lent: r.Lent}
	if r.Mem == nil {
		m.b = r.Bytes[:length:length]
	}
	if r.Acquire != nil {
		r.Acquire()
	}
	if err := pd.addMR(m, old); err != nil {
		if r.Release != nil {
			r.Release()
		}
		return nil, err
	}
	m.publish()
	pd.space.reportOverlap(m)
	return m, nil
}

const knownAccess = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic |
	rdma.MWBind

// addMR checks m and makes it known under a new STag, or under that of old.
func (pd *PD) addMR(m, old *MR) error {
	s := pd.space
	switch {
	case m.length == 0:
		return fmt.Errorf("register a region of 0 octets: %w", rdma.ErrInvalid)
	case m.base+m.length < m.base: // a sum of exactly 2^64 could never be reached
		return fmt.Errorf("register %#x + %d, which wraps: %w", m.base, m.length, rdma.ErrInvalid)
	case m.access&^knownAccess != 0:
		return fmt.Errorf("register with unknown access flags %#x: %w", uint32(m.access&^knownAccess),
			rdma.ErrInvalid)
	case m.access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && m.access&rdma.LocalWrite == 0:
		return fmt.Errorf("register for remote write without local write: %w", rdma.ErrInvalid)
	case m.length > s.cfg.Limits.MRLen:
		return fmt.Errorf("register %d octets, at most %d: %w", m.length, s.cfg.Limits.MRLen,
			rdma.ErrLimit)
	}
	m.pd = pd

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := pd.openLocked(); err != nil {
		return fmt.Errorf("register a region: %w", err)
	}
	most := s.cfg.Limits.MR + s.hidden
	if m.hidden {
		most = handle.Max
	}
	if n := s.mrs.Len() + s.fast.Len(); n >= most {
		return fmt.Errorf("register a region: %d are there: %w", n, rdma.ErrLimit)
	}
	if m.length > s.cfg.Limits.MRTotal-s.octets {
		return fmt.Errorf("register %d octets more than the %d of this context, at most %d: %w", m.length,
			s.octets, s.cfg.Limits.MRTotal, rdma.ErrLimit)
	}
	h, err := s.mrs.Add(m, most)
	if err != nil {
		return fmt.Errorf("register a region: %w", err)
	}
	if old != nil && !old.claim() {
		s.mrs.Remove(h)
		return old.busy()
	}
	m.handle = h
	if m.hidden {
		s.hidden++
	}
	pd.mrs++
	s.octets += m.length
	if old == nil {
		s.cfg.Keys.insert(m)
	} else {
		m.stag = old.stag
		s.cfg.Keys.replace(m)
	}
	return nil
}

func (m *MR) busy() error {
	return fmt.Errorf("deregister a region that %d windows or fast registrations stand on; unbind "+
		"or invalidate them: %w", m.Users(), rdma.ErrBusy)
}

// Close deregisters m: when it returns nothing more is read or written through it. With memory
// that can block, it waits for the copy that is under way. rdma.ErrBusy while a window is bound to
// m or a fast registration covers a part of it.
func (m *MR) Close() error {
	if !m.retire() {
		return m.busy()
	}
	m.wait()
	m.once.Do(func() {
		m.forget()
		s := m.pd.space
		s.mu.Lock()
		s.mrs.Remove(m.handle)
		if m.hidden {
			s.hidden--
		}
		s.octets -= m.length
		m.pd.mrs--
		s.mu.Unlock()
		if m.release != nil {
			m.release()
		}
	})
	return nil
}

// claim has no binding of m come any more, unless there is one.
func (m *MR) claim() bool {
	return m.users.CompareAndSwap(0, mrClosed) || m.users.Load() == mrClosed
}

// retire revokes a region unless something is bound to it.
func (m *MR) retire() bool {
	if !m.claim() {
		return false
	}
	m.revoke()
	return true
}

// use counts one more binding of m's memory; false: m is going.
func (m *MR) use() bool {
	for {
		n := m.users.Load()
		if n == mrClosed {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Pin keeps m's memory in place until Unpin; false: it is revoked.
func (m *MR) Pin() bool {
	if m.pins.Add(1)&mrClosed != 0 {
		m.Unpin()
		return false
	}
	return true
}

func (m *MR) Unpin() {
	if m.pins.Add(-1) == mrClosed {
		m.unused()
	}
}

// revoke ends what m's key gives: no further copy starts. Those under way are over when m is
// drained: see Await.
func (m *MR) revoke() {
	if m.pins.Or(mrClosed)&^mrClosed == 0 {
		m.unused()
	}
	m.unpublish()
}

// End has m's key give nothing any more, whatever stands on m: all that is left to do is Close.
func (m *MR) End() { m.revoke() }

// EndKey is End for the region or binding of pd that has the key, if that is one of the user's.
func (pd *PD) EndKey(key uint32) {
	if m := pd.keys.lookup(key); m != nil && m.pd == pd && !m.hidden {
		m.revoke()
	}
}

// Revoked reports whether m is revoked. A region that is not may become so at any time; what
// counts is Pin.
func (m *MR) Revoked() bool { return m.pins.Load()&mrClosed != 0 }

// unused says that m is revoked and no copy is under way. Whoever fails to pin it passes here, too.
func (m *MR) unused() {
	m.mu.Lock()
	if m.drained {
		m.mu.Unlock()
		return
	}
	if m.src != nil {
		m.src.users.Add(-1) // before anybody can know
	}
	m.drained = true
	fs := m.waiting
	m.waiting = nil
	m.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// Await reports whether m, which has been revoked, is drained: nothing is read or written through
// it any more. If not, f is called when it is, on any goroutine and with locks held: it may only
// mark and wake.
func (m *MR) Await(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.drained {
		m.waiting = append(m.waiting, f)
	}
	return m.drained
}

// Drained reports whether m is drained.
func (m *MR) Drained() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drained
}

// wait blocks until m, which has been revoked, is drained.
func (m *MR) wait() {
	if m.Drained() {
		return
	}
	done := make(chan struct{})
	if !m.Await(func() { close(done) }) {
		<-done
	}
}

// forget takes m out of the tables.
func (m *MR) forget() {
	m.pd.keys.remove(m)
	m.pd.localHint.CompareAndSwap(m, nil)
	m.pd.peerHint.CompareAndSwap(m, nil)
}

// holds reports whether the n octets from addr on lie in m. Neither sum can wrap past the region.
func (m *MR) holds(addr, n uint64) bool {
	return addr >= m.base && addr-m.base <= m.length && n <= m.length-(addr-m.base)
}

func (m *MR) Handle() uint32      { return m.handle }
func (m *MR) LKey() uint32        { return m.stag }
func (m *MR) RKey() uint32        { return m.stag }
func (m *MR) Addr() uint64        { return m.base }
func (m *MR) Len() uint64         { return m.length }
func (m *MR) Access() rdma.Access { return m.access }

// Bytes returns what RegisterMemory was given; nil for memory of somebody else.
func (m *MR) Bytes() []byte { return m.own }

// PD is the protection domain that m was registered in.
func (m *MR) PD() *PD { return m.pd }

// Blocking reports whether m is reached by calls that can block.
func (m *MR) Blocking() bool { return m.mem != nil }

// Foreign reports whether m is memory that somebody else lent.
func (m *MR) Foreign() bool { return m.mem != nil || m.foreign }

// Users is how many windows and fast registrations stand on a region.
func (m *MR) Users() int64 { return m.users.Load() &^ mrClosed }

// Source is the region that a binding is part of, nil if m is a region.
func (m *MR) Source() *MR { return m.src }

// QPN is the number of the QP that a type 2 window is for; 0: m is for all of its PD.
func (m *MR) QPN() uint32 {
	if m.only == nil {
		return 0
	}
	return m.only.num
}
