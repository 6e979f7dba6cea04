package osmem

// Bytes is the region itself, if it is Shared; nil if not. It is good from a successful Acquire to
// the Release, and for as long as the region is registered. Copy to and from it with
// debug.SetPanicOnFault set: see guardedCopy.
func (m *Memory) Bytes() []byte {
	if m.shared == nil {
		return nil
	}
	return m.shared.Mem[m.off : m.off+m.length : m.off+m.length]
}

// Acquire keeps a Shared region mapped until Release; false if it is gone.
func (m *Memory) Acquire() bool { return m.shared != nil && m.shared.Acquire() }

// Release takes back an Acquire.
func (m *Memory) Release() { m.shared.Release() }
