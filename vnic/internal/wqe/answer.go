package wqe

import "github.com/vrnic/vrnic/vnic/internal/mem"

// Answers makes what the answers to a peer's Reads are made of.
type Answers struct {
	from *Source
	free []*Answer
}

// An Answer is the content of the answer to a peer's Read.
type Answer struct {
	of   *Answers
	m    *mem.MR
	addr uint64
	n    uint32
}

// Init has answers read by from. Of so many at a time none is allocated.
func (a *Answers) Init(from *Source, most int) {
	a.from, a.free = from, make([]*Answer, 0, most)
}

// Make is the answer of n octets from address addr of m on.
func (a *Answers) Make(m *mem.MR, addr uint64, n uint32) *Answer {
	var r *Answer
	if k := len(a.free); k > 0 {
		r, a.free = a.free[k-1], a.free[:k-1]
	} else {
		r = &Answer{of: a}
	}
	r.m, r.addr, r.n = m, addr, n
	return r
}

// End takes back what Make has made. Answers that have no content, nil for example, are nobody's.
func (a *Answers) End(p interface {
	CopyOut(p []byte, off uint32) error
}) {
	if r, ok := p.(*Answer); ok {
		r.m = nil
		a.free = append(a.free, r)
	}
}

// CopyOut implements iwarp.Payload and roce.Payload.
func (r *Answer) CopyOut(p []byte, off uint32) error {
	h := &r.of.from.Hold
	if off == 0 {
		h.ForgetAhead() // an answer is not made of what was there for another
	}
	if err := h.Read(r.m, p, r.addr+uint64(off), r.n-off-uint32(len(p))); err != nil {
		r.of.from.Failed, r.of.from.Refused = true, true
		return mem.PeerRead.Gone(r.m, err)
	}
	return nil
}
