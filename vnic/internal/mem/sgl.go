package mem

import "github.com/vrnic/vrnic/rdma"

// An SGL is a list of pieces of registered memory whose regions have been looked up and checked.
type SGL struct {
	sges     []rdma.SGE
	mrs      []*MR  // beside sges; nil for a length of 0
	blocking bool   // one of them can block
	room     [1]*MR // of mrs, if that is enough
}

// Init makes room for n pieces.
func (g *SGL) Init(n int) {
	if g.mrs = g.room[:0]; n > len(g.room) {
		g.mrs = make([]*MR, 0, n)
	}
}

// Blocking reports whether one of the regions can block.
func (g *SGL) Blocking() bool { return g.blocking }

// Resolve looks the regions of sges up. What it keeps it keeps by reference.
func (g *SGL) Resolve(pd *PD, sges []rdma.SGE, write bool) error {
	hint := pd.localHint.Load()
	g.sges = sges
	g.mrs, g.blocking = g.mrs[:0], false
	for _, s := range sges {
		m, err := pd.local(s, write, hint)
		if err != nil {
			g.sges, g.mrs, g.blocking = nil, g.mrs[:0], false
			return err
		}
		if m != nil && m.mem != nil {
			g.blocking = true
		}
		if m != nil && m != hint {
			hint = m
			pd.localHint.Store(m)
		}
		g.mrs = append(g.mrs, m)
	}
	return nil
}

// Drop forgets the regions, so that they can be collected.
func (g *SGL) Drop() {
	clear(g.mrs)
	g.sges, g.mrs, g.blocking = nil, g.mrs[:0], false
}

// Total returns the sum of the lengths; ok is false if it does not fit 32 bits.
func Total(sges []rdma.SGE) (n uint32, ok bool) {
	var sum uint64
	for _, s := range sges {
		sum += uint64(s.Length)
	}
	return uint32(sum), sum <= 1<<32-1
}

// Piece returns the part of g that starts off octets from its beginning: a region, an address, and
// how far it goes; n is 0 behind the end.
func (g *SGL) Piece(off uint32) (m *MR, addr uint64, n uint32) {
	for i := range g.sges {
		s := &g.sges[i]
		if off < s.Length {
			return g.mrs[i], s.Addr + uint64(off), s.Length - off
		}
		off -= s.Length
	}
	return nil, 0, 0
}

// CopyOut fills p from offset off on. h keeps the regions in place.
func (g *SGL) CopyOut(h *Hold, p []byte, off uint32) error {
	for len(p) > 0 {
		m, addr, n := g.Piece(off)
		if m == nil {
			return ErrGone
		}
		rest := n
		n = min(n, uint32(len(p)))
		if err := h.Read(m, p[:n], addr, rest-n); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// CopyIn places p at offset off. h keeps the regions in place.
func (g *SGL) CopyIn(h *Hold, p []byte, off uint32) error {
	for len(p) > 0 {
		m, addr, n := g.Piece(off)
		if m == nil {
			return ErrGone
		}
		n = min(n, uint32(len(p)))
		if err := h.Write(m, p[:n], addr, false); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}
