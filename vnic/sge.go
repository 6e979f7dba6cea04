package vnic

import "github.com/vrnic/vrnic/rdma"

// An sgl is a list of pieces of registered memory whose regions have been looked up and checked.
type sgl struct {
	sges []rdma.SGE
	mrs  []*MR // beside sges; nil for a length of 0
	far  bool  // one of them can block
}

// resolve looks the regions of sges up. What it keeps it keeps by reference.
func (g *sgl) resolve(pd *PD, sges []rdma.SGE, write bool) error {
	hint := pd.hint.Load()
	g.sges = sges
	g.mrs, g.far = g.mrs[:0], false
	for _, s := range sges {
		m, err := pd.localMR(s, write, hint)
		if err != nil {
			g.sges, g.mrs, g.far = nil, g.mrs[:0], false
			return err
		}
		if m != nil && m.mem != nil {
			g.far = true
		}
		if m != nil && m != hint {
			hint = m
			pd.hint.Store(m)
		}
		g.mrs = append(g.mrs, m)
	}
	return nil
}

// roomFor is room for n SGEs and their regions: what is given, beside what it belongs to, if that is enough.
func roomFor(n int, sges []rdma.SGE, mrs []*MR) ([]rdma.SGE, []*MR) {
	if n > cap(sges) {
		return make([]rdma.SGE, 0, n), make([]*MR, 0, n)
	}
	return sges, mrs
}

// drop forgets the regions, so that they can be collected.
func (g *sgl) drop() {
	clear(g.mrs)
	g.sges, g.mrs, g.far = nil, g.mrs[:0], false
}

// total returns the sum of the lengths; ok is false if it does not fit 32 bits.
func total(sges []rdma.SGE) (n uint32, ok bool) {
	var sum uint64
	for _, s := range sges {
		sum += uint64(s.Length)
	}
	return uint32(sum), sum <= 1<<32-1
}

// piece returns the part of g that starts off octets from its beginning: a region, an address, and
// how far it goes; n is 0 behind the end.
func (g *sgl) piece(off uint32) (m *MR, addr uint64, n uint32) {
	for i := range g.sges {
		s := &g.sges[i]
		if off < s.Length {
			return g.mrs[i], s.Addr + uint64(off), s.Length - off
		}
		off -= s.Length
	}
	return nil, 0, 0
}

// copyOut fills p from offset off on. h keeps the regions in place.
func (g *sgl) copyOut(h *hold, p []byte, off uint32) error {
	for len(p) > 0 {
		m, addr, n := g.piece(off)
		if m == nil {
			return errGone
		}
		rest := n
		n = min(n, uint32(len(p)))
		if err := h.read(m, p[:n], addr, rest-n); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// copyIn places p at offset off. h keeps the regions in place.
func (g *sgl) copyIn(h *hold, p []byte, off uint32) error {
	for len(p) > 0 {
		m, addr, n := g.piece(off)
		if m == nil {
			return errGone
		}
		n = min(n, uint32(len(p)))
		if err := h.write(m, p[:n], addr, false); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}
