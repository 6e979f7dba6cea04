package vnic

// Copy stands for a copy of another QP's owner that is under way in m until end is called.
func (m *MR) Copy() (end func(), ok bool) {
	if !m.pin() {
		return nil, false
	}
	return m.unpin, true
}

// Bound returns f's present registration, or nil.
func (f *FastMR) Bound() *MR { return f.slot.bound() }

// Bound returns w's present binding, or nil.
func (w *MW) Bound() *MR { return w.slot.bound() }
