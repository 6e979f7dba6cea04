package mem

import (
	"fmt"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// A keySlot owns the 256 keys with one prefix: a memory window, or a region of PD.AllocMR. Its
// present binding is an MR that names a part of another MR's memory. A binding never changes; a
// new one is a new MR, so what still holds the old one cannot use the new one by mistake.
//
//	         OpBindMW, OpRegMR
//	unbound ───────────────────▶ bound ──┐ OpBindMW of type 1: another binding
//	   ▲                           │ ▲───┘
//	   └───────────────────────────┘
//	 OpLocalInv, the peer's Send with Invalidate; type 1: OpBindMW of 0 octets;
//	 type 2: the end of the connection
type keySlot struct {
	pd     *PD
	kind   slotKind
	maxLen uint64 // octets that a binding may have
	handle uint32
	once   sync.Once // the end of close

	// guarded by pd.keyMu
	key    uint32 // the present binding's, or the last one's
	cur    *MR    // the binding; nil: unbound
	old    []*MR  // bindings that ended while copies were under way
	closed bool
}

type slotKind uint8

const (
	slotFast slotKind = iota
	slotType1
	slotType2
)

// needs is the request that binds a slot of a kind.
func (k slotKind) needs() rdma.Opcode {
	if k == slotFast {
		return rdma.OpRegMR
	}
	return rdma.OpBindMW
}

// allocSlot gives s keys and makes it known in pd. space.mu is held.
func (pd *PD) allocSlotLocked(s *keySlot) error {
	key, err := pd.keys.takePrefix(maxPrefixes)
	if err != nil {
		return err
	}
	s.pd, s.key = pd, key
	pd.slots++
	pd.keyMu.Lock()
	defer pd.keyMu.Unlock()
	if pd.byKey == nil {
		pd.byKey = make(map[uint32]*keySlot)
	}
	pd.byKey[key>>8] = s
	return nil
}

// close ends s and its binding; it waits for the copies under way. drop takes s out of its table.
func (s *keySlot) close(drop func(*Space)) {
	pd := s.pd
	pd.keyMu.Lock()
	s.closed = true
	s.endLocked()
	old := slices.Clone(s.old)
	pd.keyMu.Unlock()
	for _, m := range old {
		m.wait()
	}
	s.once.Do(func() {
		pd.keyMu.Lock()
		delete(pd.byKey, s.key>>8)
		pd.keyMu.Unlock()
		pd.keys.dropPrefix(s.key)
		sp := pd.space
		sp.mu.Lock()
		drop(sp)
		pd.slots--
		sp.mu.Unlock()
	})
}

// endLocked ends the binding; nil: there is none. pd.keyMu is held.
func (s *keySlot) endLocked() *MR {
	s.old = slices.DeleteFunc(s.old, (*MR).Drained)
	m := s.cur
	if m == nil {
		return nil
	}
	s.cur = nil
	m.forget()
	if m.only != nil {
		delete(m.only.ofFew().windows, s)
	}
	m.revoke()
	if !m.Drained() {
		s.old = append(s.old, m)
	}
	return m
}

const remoteRights = rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic

// binding checks what wr asks for and makes the MR of it.
func (s *keySlot) binding(src *MR, wr *rdma.SendWR) (*MR, error) {
	r := &wr.Range
	rights := remoteRights // a window gives nothing here
	if s.kind == slotFast {
		rights |= rdma.LocalWrite
	}
	const writes = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteAtomic
	switch {
	case src == nil || src.Revoked() || src.pd != s.pd || src.slot != nil:
		return nil, fmt.Errorf("no region of this protection domain has the key %#x", r.LKey)
	case s.kind != slotFast && src.access&rdma.MWBind == 0:
		return nil, fmt.Errorf("the region of key %#x was registered without MWBind", r.LKey)
	case r.Access&^rights != 0:
		return nil, fmt.Errorf("%v cannot give the rights %#x", wr.Op, uint32(r.Access&^rights))
	case r.Access&writes != 0 && src.access&rdma.LocalWrite == 0:
		return nil, fmt.Errorf("the region of key %#x may not be written", r.LKey)
	case s.kind == slotFast && r.Access&writes&^rdma.LocalWrite != 0 && r.Access&rdma.LocalWrite == 0:
		return nil, fmt.Errorf("remote write without local write")
	case r.Length == 0 || r.Length > s.maxLen:
		return nil, fmt.Errorf("%d octets, possible are 1 to %d", r.Length, s.maxLen)
	case !src.holds(r.Addr, r.Length):
		return nil, fmt.Errorf("%#x + %d lies outside of the region of key %#x, %#x + %d", r.Addr,
			r.Length, r.LKey, src.base, src.length)
	case wr.RemoteAddr+r.Length < wr.RemoteAddr: // a sum of exactly 2^64 could never be reached
		return nil, fmt.Errorf("%#x + %d wraps", wr.RemoteAddr, r.Length)
	}
	m := &MR{
		pd: s.pd, stag: wr.RKey, access: r.Access, base: wr.RemoteAddr, length: r.Length,
		mem: src.mem, foreign: src.foreign, slot: s, src: src,
	}
	off := r.Addr - src.base
	if src.lent.Mem != 0 {
		m.lent = Lent{src.lent.Mem, src.lent.Offset + off}
	}
	if src.mem != nil {
		m.skip = src.skip + off
	} else {
		m.b = src.b[off:][:r.Length:r.Length]
	}
	return m, nil
}

// remoteOnly reports whether m's key is a window's: nothing for SGEs.
func (m *MR) remoteOnly() bool { return m.slot != nil && m.slot.kind != slotFast }

// bound returns the binding for those that show it.
func (s *keySlot) bound() *MR {
	s.pd.keyMu.Lock()
	defer s.pd.keyMu.Unlock()
	return s.cur
}

// lastKey returns the present key, or the last one.
func (s *keySlot) lastKey() uint32 {
	s.pd.keyMu.Lock()
	defer s.pd.keyMu.Unlock()
	return s.key
}
