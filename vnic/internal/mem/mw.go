package mem

import (
	"fmt"
	"math"

	"github.com/vrnic/vrnic/rdma"
)

// An MW is a memory window. It implements rdma.MW.
type MW struct {
	slot keySlot
	typ  rdma.MWType
	key  uint32 // at allocation
}

// NewMW makes a memory window that is not bound.
func (pd *PD) NewMW(typ rdma.MWType) (*MW, error) {
	w := &MW{typ: typ}
	w.slot.maxLen = math.MaxUint64
	switch typ {
	case rdma.MWType1:
		w.slot.kind = slotType1
	case rdma.MWType2:
		w.slot.kind = slotType2
	default:
		return nil, fmt.Errorf("allocate a memory window of type %d, there are 1 and 2: %w", typ,
			rdma.ErrInvalid)
	}
	sp := pd.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err := pd.openLocked(); err != nil {
		return nil, fmt.Errorf("allocate a memory window: %w", err)
	}
	h, err := sp.mws.Add(w, sp.cfg.Limits.MW)
	if err == nil {
		if err = pd.allocSlotLocked(&w.slot); err != nil {
			sp.mws.Remove(h)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("allocate a memory window: %w", err)
	}
	w.slot.handle, w.key = h, w.slot.lastKey() // a bind may change it from here on
	return w, nil
}

// AllocMW is NewMW.
func (pd *PD) AllocMW(typ rdma.MWType) (rdma.MW, error) {
	w, err := pd.NewMW(typ)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (w *MW) Handle() uint32    { return w.slot.handle }
func (w *MW) Type() rdma.MWType { return w.typ }
func (w *MW) RKey() uint32      { return w.key }

// Close unbinds w: when it returns nothing is read or written through it.
func (w *MW) Close() error {
	w.slot.close(func(sp *Space) { sp.mws.Remove(w.slot.handle) })
	return nil
}

// PD is the protection domain of w.
func (w *MW) PD() *PD { return w.slot.pd }

// Bound returns the present binding; nil: there is none.
func (w *MW) Bound() *MR { return w.slot.bound() }
