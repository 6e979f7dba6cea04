package mem

import (
	"encoding/binary"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/vrnic/vrnic/iwarp"
)

// AtomicLen is how many octets the target of an atomic operation has, and the old value.
const AtomicLen = 8

// aligned reports whether address addr of m is a multiple of 8. Where the memory is counts, not how
// the region calls it; of memory that is reached by calls only the name is known.
func (m *MR) aligned(addr uint64) bool {
	if m.mem != nil {
		return addr%AtomicLen == 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))%AtomicLen == -(addr-m.base)%AtomicLen
}

// modify carries a out on the 8 octets at a.TO; range and alignment have been checked. Memory that
// is directly addressable changes by an instruction of the processor, atomically to all of this
// host. Memory that is reached by calls cannot: there atomics exclude each other, by a lock of the
// space that the memory belongs to, so that memory which hangs holds nobody else up:
// docs/decisions.md#R12.
func (m *MR) modify(a *iwarp.Atomic) (old uint64, err error) {
	if !m.Pin() {
		return 0, ErrGone
	}
	defer m.Unpin()
	if m.mem != nil {
		x := &m.pd.space.atomics
		x.mu.Lock()
		defer x.mu.Unlock()
		b := x.word[:]
		if err := m.readPinned(b, a.TO); err != nil {
			return 0, err
		}
		old = binary.NativeEndian.Uint64(b)
		binary.NativeEndian.PutUint64(b, a.Apply(old))
		return old, m.writePinned(b, a.TO, false)
	}
	p := (*uint64)(unsafe.Pointer(&m.b[a.TO-m.base:][:AtomicLen][0]))
	if m.foreign {
		old, err = modifyGuarded(p, a)
		return old, m.blame(err)
	}
	return modifyWord(p, a), nil
}

func modifyWord(p *uint64, a *iwarp.Atomic) (old uint64) {
	for {
		old = atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, a.Apply(old)) {
			return old
		}
	}
}

// modifyGuarded is modifyWord in a mapping that can fault, as MR.guarded.
func modifyGuarded(p *uint64, a *iwarp.Atomic) (old uint64, err error) {
	was := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(was)
		if r := recover(); r != nil {
			if _, ok := r.(interface{ Addr() uintptr }); !ok {
				panic(r) // not a fault, but a mistake of ours
			}
			err = &faultError{cause: r}
		}
	}()
	return modifyWord(p, a), nil
}
