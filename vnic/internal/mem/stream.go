package mem

import (
	"fmt"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// A Stream is what one QP is to memory: the protection domain whose keys its peer may use, and the
// windows of type 2 that are for its connection alone. Its methods are for the QP's owner; on
// loopback the peer's owner calls Find, Atomic and RemoteInvalidate.
type Stream struct {
	pd   *PD
	num  uint32
	roce bool                    // the rules are InfiniBand's
	few  atomic.Pointer[fewHave] // nil: it has none of that
}

// fewHave is what few Streams have: messages need the others' memory.
type fewHave struct {
	windows map[*keySlot]struct{} // guarded by pd.keyMu: type 2, bound to this connection
	refused atomic.Pointer[Refused]
}

// ofFew makes it when it is first needed.
func (s *Stream) ofFew() *fewHave {
	if s.few.Load() == nil {
		s.few.CompareAndSwap(nil, &fewHave{windows: make(map[*keySlot]struct{})})
	}
	return s.few.Load()
}

// Refused is what a peer has asked for and not got.
type Refused struct {
	Use    string // "RDMA Write", "RDMA Read" or "atomic"
	Key    uint32
	Addr   uint64
	Octets uint32
	Why    Why // which check has failed
}

// A Why is a check that has failed.
type Why string

const (
	NoRegion Why = "no-region" // there is none of that key, or not any more
	Stranger Why = "stranger"  // of another protection domain, or a window for another connection
	NoRight  Why = "no-right"
	Outside  Why = "outside"
)

// Refused is the last one that Find has refused; nil: none. It may be called at any time.
func (s *Stream) Refused() *Refused {
	if few := s.few.Load(); few != nil {
		return few.refused.Load()
	}
	return nil
}

// Init makes s a stream of pd, which Add counts; roce: a queue pair of RoCE.
func (s *Stream) Init(pd *PD, roce bool) { s.pd, s.roce = pd, roce }

// PD is the protection domain of s.
func (s *Stream) PD() *PD { return s.pd }

// Add makes s count in its PD, under the QP's number; an error wraps rdma.ErrClosed.
func (s *Stream) Add(qpn uint32) error {
	pd := s.pd
	pd.space.mu.Lock()
	defer pd.space.mu.Unlock()
	err := pd.openLocked()
	if err == nil {
		s.num = qpn
		pd.streams.Add(1)
	}
	return err
}

// Remove takes Add back.
func (s *Stream) Remove() { s.pd.streams.Add(-1) }

// unshared reports whether no other stream can use the regions of s's PD. Only then a peer may
// invalidate one of them: RFC 5040, section 8.1.1 (7).
func (s *Stream) unshared() bool { return s.pd.streams.Load() <= 1 }

// EndWindows ends the bindings of the type 2 windows of s: they are for one connection, and it is
// over.
func (s *Stream) EndWindows() {
	s.pd.keyMu.Lock()
	defer s.pd.keyMu.Unlock()
	few := s.few.Load()
	if few == nil {
		return
	}
	for k := range few.windows {
		k.endLocked()
	}
}

// Find makes the checks of RFC 5040, section 7.2, and RFC 5041, section 5.2.1, for n > 0 octets at
// to of the region that the peer calls stag, in the order of docs/decisions.md#access-checks, and
// returns the region. The caller pins it for each access; a failure to pin is that of the first
// check: see Use.Gone. An error is a *iwarp.LocalError.
func (s *Stream) Find(u *Use, stag uint32, to uint64, n uint32) (*MR, error) {
	pd := s.pd
	m := pd.peerHint.Load() // the region of the last access
	if m == nil || m.stag != stag || m.Revoked() {
		m = pd.keys.lookup(stag)
		if m == nil || m.Revoked() { // all 32 bits match, and it is enabled
			return s.refuse(&Refused{u.name, stag, to, n, NoRegion}, u.stag,
				"no such region")
		}
		if m.pd == pd {
			pd.peerHint.Store(m)
		}
	}
	if m.pd != pd {
		return s.refuse(&Refused{u.name, stag, to, n, Stranger}, u.assoc,
			"it belongs to another protection domain")
	}
	if m.only != nil && m.only != s {
		return s.refuse(&Refused{u.name, stag, to, n, Stranger}, u.assoc,
			"it is a window for another connection")
	}
	if to+uint64(n) < to { // a sum of exactly 2^64 wraps
		return s.refuse(&Refused{u.name, stag, to, n, Outside}, u.wrap,
			"offset %#x + %d wraps", to, n)
	}
	if m.access&u.need == 0 {
		return s.refuse(&Refused{u.name, stag, to, n, NoRight}, u.access,
			"no right to do so (%v)", m.access)
	}
	if !m.holds(to, uint64(n)) {
		return s.refuse(&Refused{u.name, stag, to, n, Outside}, u.outside,
			"%#x + %d lies outside of %#x + %d",
			to, n, m.base, m.length)
	}
	return m, nil
}

// PlaceWrite is an RDMA Write of the peer's to the region that it calls stag: the checks of Find,
// and the copy by h. last: p, of one octet at least, is the end of a message.
func (s *Stream) PlaceWrite(h *Hold, stag uint32, to uint64, p []byte, last bool) error {
	m, err := s.Find(PeerWrite, stag, to, uint32(len(p)))
	if err != nil {
		return err
	}
	if err := h.Write(m, p, to, last); err != nil {
		return PeerWrite.Gone(m, err)
	}
	return nil
}

// refuse notes what the peer has not got.
func (s *Stream) refuse(r *Refused, code iwarp.TermCode, format string, args ...any) (*MR, error) {
	s.ofFew().refused.Store(r)
	return nil, &iwarp.LocalError{Cause: code, Err: fmt.Errorf("%s to STag %#x: %s", r.Use, r.Key,
		fmt.Sprintf(format, args...))}
}

// Atomic carries out what the peer of s asks for. An error is a *iwarp.LocalError.
func (s *Stream) Atomic(a *iwarp.Atomic) (old uint64, err error) {
	m, err := s.Find(PeerAtomic, uint32(a.STag), a.TO, AtomicLen)
	if err != nil {
		return 0, err
	}
	if !m.aligned(a.TO) {
		// "The Responder ... MUST NOT modify": RFC 7306, section 5.1.1.
		return 0, &iwarp.LocalError{
			Cause: iwarp.TermMisaligned,
			Err:   fmt.Errorf("atomic at %#x, which is no multiple of 8", a.TO),
		}
	}
	old, err = m.modify(a)
	if err != nil {
		return 0, PeerAtomic.Gone(m, err)
	}
	return old, nil
}

// Bind carries an OpBindMW or an OpRegMR out. What it ends, nil for nothing, has to be drained
// before the request completes.
func (s *Stream) Bind(wr *rdma.SendWR) (ended *MR, err error) {
	m, ended, err := s.bind(wr)
	if m != nil {
		s.pd.space.reportOverlap(m)
	}
	return ended, err
}

func (s *Stream) bind(wr *rdma.SendWR) (m, ended *MR, err error) {
	pd, r := s.pd, &wr.Range
	src := pd.keys.lookup(r.LKey)
	pd.keyMu.Lock()
	defer pd.keyMu.Unlock()
	k := pd.byKey[wr.RKey>>8]
	switch {
	case k == nil || k.closed:
		return nil, nil, fmt.Errorf("no object of this protection domain has keys like %#x", wr.RKey)
	case k.kind.needs() != wr.Op:
		return nil, nil, fmt.Errorf("key %#x is of an object that takes %v", wr.RKey, k.kind.needs())
	case k.kind == slotType1 && r.Length == 0:
		return nil, k.endLocked(), nil
	case k.kind != slotType1 && k.cur != nil:
		return nil, nil, fmt.Errorf("key %#x is of an object that is bound; invalidate it first", wr.RKey)
	}
	m, err = k.binding(src, wr)
	if err != nil {
		return nil, nil, err
	}
	if k.kind == slotType2 {
		m.only = s
	}
	if !src.use() {
		return nil, nil, fmt.Errorf("the region of key %#x is being deregistered", r.LKey)
	}
	ended = k.endLocked()
	k.cur, k.key = m, m.stag
	if m.only != nil {
		s.ofFew().windows[k] = struct{}{}
	}
	pd.keys.replace(m)
	m.publish()
	return m, ended, nil
}

// LocalInvalidate ends what key gives and returns it; nil: it gave nothing, and nothing is under
// way. Doing it again, or after the peer has done it, is no error.
func (s *Stream) LocalInvalidate(key uint32) (*MR, error) {
	pd := s.pd
	pd.keyMu.Lock()
	defer pd.keyMu.Unlock()
	if k := pd.byKey[key>>8]; k != nil {
		switch {
		case k.key != key:
			return nil, fmt.Errorf("invalidate key %#x, which is not the present one", key)
		case k.kind == slotType1:
			return nil, fmt.Errorf("invalidate a window of type 1; bind 0 octets instead")
		case k.cur != nil && k.cur.only != nil && k.cur.only != s:
			return nil, fmt.Errorf("invalidate a window of QP %d", k.cur.only.num)
		}
		if m := k.endLocked(); m != nil {
			return m, nil
		}
		for _, m := range k.old {
			if m.stag == key {
				return m, nil
			}
		}
		return nil, nil
	}
	m := pd.keys.lookup(key)
	switch {
	case m == nil || m.pd != pd:
		return nil, fmt.Errorf("invalidate key %#x: no such region", key)
	case !m.retire():
		return nil, fmt.Errorf("invalidate a region that windows or fast registrations stand on")
	}
	return m, nil
}

// RemoteInvalidate carries the peer's Send with Invalidate out and returns what it ended: RFC 5040,
// section 5.3, and docs/decisions.md#A6. A peer can invalidate what is for it alone.
//
// +checklocksignore: the checker misses the deferred unlock.
func (s *Stream) RemoteInvalidate(stag uint32) (*MR, *iwarp.LocalError) {
	fail := func(code iwarp.TermCode, why string) (*MR, *iwarp.LocalError) {
		return nil, &iwarp.LocalError{Cause: code, Err: fmt.Errorf("invalidate STag %#x: %s", stag, why)}
	}
	m := s.pd.keys.lookup(stag)
	switch {
	case m == nil || m.Revoked():
		return fail(iwarp.TermCannotInvalidate, "no such region")
	case m.pd != s.pd:
		return fail(iwarp.TermInvalidateNotAssociated, "it belongs to another protection domain")
	case m.only != nil && m.only != s:
		return fail(iwarp.TermInvalidateNotAssociated, "it is a window for another connection")
	case m.slot == nil || m.slot.kind == slotType1:
		return fail(iwarp.TermCannotInvalidate, "only its owner can do that")
	case m.access&remoteRights == 0:
		return fail(iwarp.TermCannotInvalidate, "it is not for peers")
	case m.only == nil && !s.roce && !s.unshared():
		// "A peer cannot invalidate an STag that is shared by several streams": RFC 5040,
		// section 8.1.1 (7).
		return fail(iwarp.TermCannotInvalidate, "other connections can use it")
	}
	s.pd.keyMu.Lock()
	defer s.pd.keyMu.Unlock()
	if m.slot.cur != m {
		return fail(iwarp.TermCannotInvalidate, "no such region")
	}
	return m.slot.endLocked(), nil
}
