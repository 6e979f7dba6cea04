package load

import (
	"encoding/binary"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// addend is what a fetch-and-add adds: odd, and with bits in all octets.
const addend = 0x0123456789abcdef

// afterAtomic is what is left of v.
func afterAtomic(op Op, v uint64) uint64 {
	if op == FetchAdd {
		return v + addend
	}
	return mix(v + golden)
}

// atomicArgs makes the request for a slot, which finds what the one before has left.
func (l *lane) atomicArgs(slot int) (rdma.Opcode, rdma.AtomicArgs) {
	v := l.values[slot]
	if l.e.spec.Op == FetchAdd {
		return rdma.OpFetchAdd, rdma.AtomicArgs{CompareAdd: addend}
	}
	return rdma.OpCompareSwap, rdma.AtomicArgs{CompareAdd: v, Swap: afterAtomic(CompareSwap, v)}
}

// atomicDone compares the old value that an atomic has brought back.
func (l *lane) atomicDone(slot int) error {
	old := binary.NativeEndian.Uint64(l.bytes(l.e.layout.source(slot)))
	if want := l.values[slot]; old != want {
		return fmt.Errorf("%w: %s of slot %d brings back %016x, want %016x", errData, l.e.spec.Op, slot,
			old, want)
	}
	l.values[slot] = afterAtomic(l.e.spec.Op, old)
	return nil
}
