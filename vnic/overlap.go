package vnic

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
func (c *Context) reportOverlap(m *MR) {
	if !m.peersWrite() || !c.dev.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, o := range c.grants() {
		if o.pd != m.pd && o.peersWrite() && !o.disabled() && m.overlaps(o) {
			c.dev.log.Warn("peers can write one memory through two protection domains",
				"owner", c.cfg.Label, "pd", m.pd.handle, "addr", m.base, "length", m.length, "other pd", o.pd.handle, "other addr", o.base, "other length", o.length)
		}
	}
}

// grants returns all that c has under a key: regions, and what is bound.
func (c *Context) grants() []*MR {
	c.mu.Lock()
	all, fast, mws := c.mrs.slice(), c.fast.slice(), c.mws.slice()
	c.mu.Unlock()
	for _, f := range fast {
		if m := f.slot.bound(); m != nil {
			all = append(all, m)
		}
	}
	for _, w := range mws {
		if m := w.slot.bound(); m != nil {
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
	a, b := m.place0(), o.place0()
	return a < b+o.length && b < a+m.length
}

// place0 is where m's first octet lies.
func (m *MR) place0() uint64 {
	switch {
	case m.mem == nil:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))
	case m.src != nil:
		return m.src.base + m.skip
	}
	return m.base
}
