package mem

import (
	"context"
	"log/slog"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
)

// reportOverlap looks, if the log is at debug level, for memory that peers may write through m and
// also through a key of another protection domain. That is one buffer under two STags, for peers
// that need not trust each other: RFC 5042, section 6.3.6. It is the program's to decide whether
// they do, so nothing is refused.
func (s *Space) reportOverlap(m *MR) {
	if !m.peersWrite() || !s.cfg.Log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, o := range s.grants() {
		if o.pd != m.pd && o.peersWrite() && !o.Revoked() && m.overlaps(o) {
			s.cfg.Log.Warn("peers can write one memory through two protection domains",
				"pd", m.pd.handle, "addr", m.base, "length", m.length,
				"other pd", o.pd.handle, "other addr", o.base, "other length", o.length)
		}
	}
}

// grants returns all that s has under a key: regions, and what is bound.
func (s *Space) grants() []*MR {
	s.mu.Lock()
	all, fast, mws := s.mrs.Slice(), s.fast.Slice(), s.mws.Slice()
	s.mu.Unlock()
	for _, f := range fast {
		if m := f.Bound(); m != nil {
			all = append(all, m)
		}
	}
	for _, w := range mws {
		if m := w.Bound(); m != nil {
			all = append(all, m)
		}
	}
	return all
}

func (m *MR) peersWrite() bool { return m.access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 }

// overlaps reports whether m and o have memory in common. Memory that is reached by calls is its
// owner's address space, in which regions go by their addresses.
func (m *MR) overlaps(o *MR) bool {
	if (m.mem == nil) != (o.mem == nil) {
		return false
	}
	a, b := m.start(), o.start()
	return a < b+o.length && b < a+m.length
}

// start is where m's first octet lies.
func (m *MR) start() uint64 {
	switch {
	case m.mem == nil:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))
	case m.src != nil:
		return m.src.base + m.skip
	}
	return m.base
}
