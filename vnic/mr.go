package vnic

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
)

// Memory is registered memory that is reached by calls: mode 0, a program's own address space.
// Calls may block; an error says that the memory is not there. Offset i is the region's octet i.
type Memory interface {
	io.ReaderAt
	io.WriterAt
}

// A Region is memory that somebody else owns, lent to the RNIC. Exactly one of Bytes and Mem is set.
type Region struct {
	Bytes []byte // directly addressable: a mapping shared with its owner
	Mem   Memory // mode 0; the context must be staged
	// Acquire is called once when the region is registered; Release once when the MR has been
	// closed and nothing uses the memory any more. Either may be nil.
	Acquire, Release func()
}

// An MR is a registered region. It implements rdma.MR.
type MR struct {
	pd     *PD
	handle uint32
	stag   uint32
	access rdma.Access
	base   uint64 // of the first octet, as SGE.Addr and the peer's TO count
	length uint64 // base+length does not wrap

	b       []byte // directly addressable, or nil
	mem     Memory
	foreign bool   // b can fault: it is a mapping made from what a client passed
	own     []byte // what RegisterMemory was given
	release func()

	// pins counts the copies under way; mrClosed is added when no further one may start.
	pins    atomic.Int64
	off     atomic.Bool // invalidated: disabled, but still to be closed
	drained chan struct{}
	drain   sync.Once // closes drained
	once    sync.Once
}

const mrClosed = 1 << 62

// RegisterMemory registers b; its address is that of b[0]. b must not be empty.
func (pd *PD) RegisterMemory(b []byte, access rdma.Access) (rdma.MR, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("register no memory: %w", rdma.ErrInvalid)
	}
	m := &MR{b: b, own: b, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), length: uint64(len(b)), access: access}
	if err := pd.addMR(m); err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterRegion registers the first length octets of r; the first is called iova.
func (pd *PD) RegisterRegion(r Region, iova, length uint64, access rdma.Access) (*MR, error) {
	switch {
	case (r.Bytes == nil) == (r.Mem == nil):
		return nil, fmt.Errorf("register a region: exactly one of Bytes and Mem must be set: %w", rdma.ErrInvalid)
	case r.Mem == nil && length > uint64(len(r.Bytes)):
		return nil, fmt.Errorf("register %d octets of a region of %d: %w", length, len(r.Bytes), rdma.ErrInvalid)
	case r.Mem != nil && !pd.ctx.staged.Load():
		return nil, fmt.Errorf("register memory that can block before SetStaged: %w", rdma.ErrInvalid)
	}
	m := &MR{mem: r.Mem, foreign: r.Mem == nil, release: r.Release, base: iova, length: length, access: access}
	if r.Mem == nil {
		m.b = r.Bytes[:length:length]
	}
	if r.Acquire != nil {
		r.Acquire()
	}
	if err := pd.addMR(m); err != nil {
		if r.Release != nil {
			r.Release()
		}
		return nil, err
	}
	return m, nil
}

const knownAccess = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic | rdma.MWBind

// addMR checks m and makes it known under a new STag.
func (pd *PD) addMR(m *MR) error {
	c := pd.ctx
	switch {
	case m.length == 0:
		return fmt.Errorf("register a region of 0 octets: %w", rdma.ErrInvalid)
	case m.base+m.length < m.base: // a sum of exactly 2^64 could never be reached
		return fmt.Errorf("register %#x + %d, which wraps: %w", m.base, m.length, rdma.ErrInvalid)
	case m.access&^knownAccess != 0:
		return fmt.Errorf("register with unknown access flags %#x: %w", uint32(m.access&^knownAccess), rdma.ErrInvalid)
	case m.access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && m.access&rdma.LocalWrite == 0:
		return fmt.Errorf("register for remote write without local write: %w", rdma.ErrInvalid)
	case m.length > c.limits.MRLen:
		return fmt.Errorf("register %d octets, at most %d: %w", m.length, c.limits.MRLen, rdma.ErrLimit)
	}
	m.pd, m.drained = pd, make(chan struct{})

	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return err
	}
	if pd.closed {
		return fmt.Errorf("register in a protection domain that is gone: %w", rdma.ErrClosed)
	}
	if m.length > c.limits.MRTotal-c.mrOctets {
		return fmt.Errorf("register %d octets more than the %d of this context, at most %d: %w", m.length, c.mrOctets, c.limits.MRTotal, rdma.ErrLimit)
	}
	h, err := c.mrs.add(m, c.limits.MR)
	if err != nil {
		return fmt.Errorf("register a region: %w", err)
	}
	m.handle = h
	pd.mrs++
	c.mrOctets += m.length
	c.dev.insertMR(m)
	return nil
}

// Close deregisters m: when it returns nothing more is read or written through it. With memory
// that can block, it waits for the copy that is under way.
func (m *MR) Close() error {
	m.once.Do(func() {
		m.pd.dev.removeMR(m)
		m.pd.hint.CompareAndSwap(m, nil)
		m.pd.rhint.CompareAndSwap(m, nil)
		if m.pins.Add(mrClosed) == mrClosed {
			m.unused()
		}
		<-m.drained
		c := m.pd.ctx
		c.mu.Lock()
		c.mrs.remove(m.handle)
		c.mrOctets -= m.length
		m.pd.mrs--
		c.mu.Unlock()
		if m.release != nil {
			m.release()
		}
	})
	<-m.drained
	return nil
}

// pin keeps m's memory in place until unpin; false: it is closed or invalidated.
func (m *MR) pin() bool {
	if m.pins.Add(1)&mrClosed != 0 || m.off.Load() {
		m.unpin()
		return false
	}
	return true
}

func (m *MR) unpin() {
	if m.pins.Add(-1) == mrClosed {
		m.unused()
	}
}

// unused says that m is closed and no copy is under way. Whoever fails to pin it passes here, too.
func (m *MR) unused() { m.drain.Do(func() { close(m.drained) }) }

// disabled reports whether m can no longer be used. A region that is not may become so at any
// time; what counts is pin.
func (m *MR) disabled() bool { return m.pins.Load()&mrClosed != 0 || m.off.Load() }

// invalidate disables m; it stays until it is closed. No access starts after it has returned.
func (m *MR) invalidate() {
	m.off.Store(true)
	m.pd.dev.removeMR(m)
}

// holds reports whether the n octets from addr on lie in m. Neither sum can wrap past the region.
func (m *MR) holds(addr uint64, n uint32) bool {
	return addr >= m.base && addr-m.base <= m.length && uint64(n) <= m.length-(addr-m.base)
}

func (m *MR) Handle() uint32      { return m.handle }
func (m *MR) LKey() uint32        { return m.stag }
func (m *MR) RKey() uint32        { return m.stag }
func (m *MR) Addr() uint64        { return m.base }
func (m *MR) Len() uint64         { return m.length }
func (m *MR) Access() rdma.Access { return m.access }

// Bytes returns what RegisterMemory was given; nil for memory of somebody else.
func (m *MR) Bytes() []byte { return m.own }
