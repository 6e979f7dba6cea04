package ring

import (
	"sync/atomic"

	"github.com/vrnic/vrnic/shm/abi"
)

// PairKeys are the keys that open memory of a peer's protection domain, as its daemon tells of them
// in a table: docs/direct.md#keys. It is the program's end of a KeyTable.
type PairKeys struct {
	entries []byte
	mask    uint32         // entries - 1
	gone    *atomic.Uint32 // changes when memory has been taken back
	free    func()
}

// OpenPairKeys finds the table in mem, which free unmaps. An error is a *ProtocolError.
func OpenPairKeys(mem []byte, free func()) (*PairKeys, error) {
	if len(mem) < abi.KeysHeaderLen {
		return nil, abi.Violation("keys of %d octets", len(mem))
	}
	n, off := abi.Word(mem, abi.KeysSize).Load(), abi.Word(mem, abi.KeysOff).Load()
	if m := abi.Word(mem, abi.KeysMagic).Load(); m != abi.MagicKeys {
		return nil, abi.Violation("keys have magic %#x", m)
	}
	if !abi.IsPow2(n) || off%64 != 0 || uint64(off)+uint64(n)*abi.KeyLen > uint64(len(mem)) {
		return nil, abi.Violation("%d keys at %d of %d octets", n, off, len(mem))
	}
	return &PairKeys{entries: mem[off:][:n*abi.KeyLen], mask: n - 1, gone: abi.Word(mem, abi.KeysGone),
		free: free}, nil
}

// A PairWant is what is wanted of a key: a right of enum ibv_access_flags to Length octets at Addr.
type PairWant struct {
	Key    uint32
	Right  uint32
	Addr   uint64
	Length uint64
}

// find says which memory gives w to the peer of QP qpn, and from where on; false if none does. That
// holds between PairOut.enter and leave, and is a guess else.
func (k *PairKeys) find(w *PairWant, qpn uint32) (mem uint32, off uint64, ok bool) {
	if w.Key == 0 {
		return 0, 0, false
	}
	for i := range uint32(keyProbes) {
		e := k.entries[(w.Key>>8+i)&k.mask*abi.KeyLen:][:abi.KeyLen]
		if abi.Word(e, abi.KeyKey).Load() != w.Key {
			continue
		}
		only := abi.Word(e, abi.KeyQPN).Load()
		addr, length := abi.Word64(e, abi.KeyAddr).Load(), abi.Word64(e, abi.KeyLength).Load()
		mem, off = abi.Word(e, abi.KeyMem).Load(), abi.Word64(e, abi.KeyOffset).Load()
		at := w.Addr - addr
		ok = abi.Word(e, abi.KeyAccess).Load()&w.Right != 0 && (only == 0 || only == qpn) &&
			w.Addr >= addr && at <= length && w.Length <= length-at
		return mem, off + at, ok
	}
	return 0, 0, false
}
