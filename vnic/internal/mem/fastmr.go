package mem

import (
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// A FastMR is a region for fast registration: OpRegMR requests give it a part of a registered
// region's memory, and a key. It implements rdma.MR.
type FastMR struct{ slot keySlot }

// NewFastMR makes a region that is not valid yet and can cover up to maxLen octets.
func (pd *PD) NewFastMR(maxLen uint64) (*FastMR, error) {
	sp := pd.space
	switch {
	case maxLen == 0:
		return nil, fmt.Errorf("allocate a region of 0 octets: %w", rdma.ErrInvalid)
	case maxLen > sp.cfg.Limits.MRLen:
		return nil, fmt.Errorf("allocate a region of %d octets, at most %d: %w", maxLen,
			sp.cfg.Limits.MRLen, rdma.ErrLimit)
	}
	f := &FastMR{}
	f.slot.kind, f.slot.maxLen = slotFast, maxLen
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err := pd.openLocked(); err != nil {
		return nil, fmt.Errorf("allocate a region: %w", err)
	}
	h, err := sp.fast.Add(f, sp.cfg.Limits.MR+sp.hidden-sp.mrs.Len())
	if err == nil {
		if err = pd.allocSlotLocked(&f.slot); err != nil {
			sp.fast.Remove(h)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("allocate a region: %w", err)
	}
	f.slot.handle = h
	return f, nil
}

// AllocMR is NewFastMR.
func (pd *PD) AllocMR(maxLen uint64) (rdma.MR, error) {
	f, err := pd.NewFastMR(maxLen)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (f *FastMR) Handle() uint32 { return f.slot.handle }

// LKey is the key of the last registration, or that at allocation: what rdma.NextKey starts from.
func (f *FastMR) LKey() uint32 { return f.slot.lastKey() }
func (f *FastMR) RKey() uint32 { return f.slot.lastKey() }

// Addr is that of the first octet while f is registered, else 0.
func (f *FastMR) Addr() uint64 {
	if m := f.Bound(); m != nil {
		return m.base
	}
	return 0
}

// Bytes returns nil: the memory is another region's.
func (f *FastMR) Bytes() []byte { return nil }

// Close ends the registration: when it returns nothing is read or written through it.
func (f *FastMR) Close() error {
	f.slot.close(func(sp *Space) { sp.fast.Remove(f.slot.handle) })
	return nil
}

// PD is the protection domain of f.
func (f *FastMR) PD() *PD { return f.slot.pd }

// Bound returns the present registration; nil: there is none.
func (f *FastMR) Bound() *MR { return f.slot.bound() }

// MaxLen is how many octets a registration can cover.
func (f *FastMR) MaxLen() uint64 { return f.slot.maxLen }
