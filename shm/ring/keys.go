package ring

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
)

// A KeyTable is the daemon's end of the keys that open lent memory of a protection domain, for
// those whose peers write and read there without it: docs/direct.md#keys.
type KeyTable struct {
	mem []byte

	mu sync.Mutex
	// +checklocks:mu
	used [KeyTableSize]bool // also while who may have found what was there may be using it
	// +checklocks:mu
	users map[*Direction]struct{} // whose senders have the table
}

// KeyTableSize is how many keys a table has room for: those that find no place are the daemon's.
// KeyTableLen is how many octets that takes.
const (
	KeyTableSize = 4096
	KeyTableLen  = abi.KeysHeaderLen + KeyTableSize*abi.KeyLen

	keyProbes = 8
)

// A Key is what one gives: an entry as in the table, but for the region's memory and offset in it.
type Key struct {
	Key, Access, QPN, Mem uint32
	Addr, Length, Offset  uint64
}

// NewKeyTable makes one in mem, which is zero.
func NewKeyTable(mem []byte) *KeyTable {
	abi.Word(mem, abi.KeysSize).Store(KeyTableSize)
	abi.Word(mem, abi.KeysOff).Store(abi.KeysHeaderLen)
	abi.Word(mem, abi.KeysMagic).Store(abi.MagicKeys)
	return &KeyTable{mem: mem, users: make(map[*Direction]struct{})}
}

func (t *KeyTable) entry(place uint32) []byte {
	at := abi.KeysHeaderLen + place*abi.KeyLen
	return t.mem[at : at+abi.KeyLen]
}

// Publish has k found, at the place that it returns, until End; false: there is no place.
func (t *KeyTable) Publish(k *Key) (place uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range uint32(keyProbes) {
		place = (k.Key>>8 + i) & (KeyTableSize - 1)
		if ok = !t.used[place]; ok {
			break
		}
	}
	if !ok || k.Key == 0 {
		return 0, false
	}
	t.used[place] = true
	e := t.entry(place)
	abi.Word(e, abi.KeyAccess).Store(k.Access)
	abi.Word(e, abi.KeyQPN).Store(k.QPN)
	abi.Word(e, abi.KeyMem).Store(k.Mem)
	abi.Word64(e, abi.KeyAddr).Store(k.Addr)
	abi.Word64(e, abi.KeyLength).Store(k.Length)
	abi.Word64(e, abi.KeyOffset).Store(k.Offset)
	markEntry.pass()
	abi.Word(e, abi.KeyKey).Store(k.Key) // last
	markKey.pass()
	return place, true
}

// Opens reports whether a key is found to memory mem.
func (t *KeyTable) Opens(mem uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for place := range t.used {
		e := t.entry(uint32(place))
		if abi.Word(e, abi.KeyKey).Load() != 0 && abi.Word(e, abi.KeyMem).Load() == mem {
			return true
		}
	}
	return false
}

// End has what is at place found no more. done is called when nobody who has found it uses it any
// more: within End, or later by another goroutine, if a sender may be about to.
func (t *KeyTable) End(place uint32, done func()) {
	abi.Word(t.entry(place), abi.KeyKey).Swap(0) // a full fence: docs/direct.md#keys
	markHidden.pass()
	w := t.busy()
	if len(w) == 0 {
		t.free(place, done)
		return
	}
	markBusy.pass()
	go func() {
		stopped := time.Now().Add(shutMost)
		for looks := 0; !settledAll(w); looks++ {
			if looks < shutLooks {
				runtime.Gosched()
			} else {
				pauseFor(stopped)
			}
		}
		t.free(place, done)
	}()
}

// A keyUse is a sender that may have found a key.
type keyUse struct {
	d   *Direction
	odd uint32
}

// busy are those that may be using one that is found no more.
func (t *KeyTable) busy() (w []keyUse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d := range t.users {
		if odd, ok := d.mayUse(); ok {
			w = append(w, keyUse{d, odd})
		}
	}
	return w
}

func settledAll(w []keyUse) bool {
	for _, u := range w {
		if odd, ok := u.d.mayUse(); ok && odd == u.odd {
			return false
		}
	}
	return true
}

func (t *KeyTable) free(place uint32, done func()) {
	markGone.pass()
	t.mu.Lock()
	t.used[place] = false
	t.mu.Unlock()
	markFree.pass()
	done()
}

// Join says that d's sender is given the table, and Leave that d has ended: it stores nothing more.
func (t *KeyTable) Join(d *Direction) {
	t.mu.Lock()
	t.users[d] = struct{}{}
	t.mu.Unlock()
	markJoined.pass()
}

func (t *KeyTable) Leave(d *Direction) {
	t.mu.Lock()
	delete(t.users, d)
	t.mu.Unlock()
}

// MemGone says that memory was taken back which keys had named: who has mapped it may let it go.
func (t *KeyTable) MemGone() { t.gone().Add(1) }

func (t *KeyTable) gone() *atomic.Uint32 { return abi.Word(t.mem, abi.KeysGone) }

// mayUse reports whether d's sender may be in the middle of what it was given, and its DirSeq.
func (d *Direction) mayUse() (odd uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != dirOpen && d.state != dirShut { // it has seen that it is closed, or will
		return 0, false
	}
	odd = d.seq.Load()
	return odd, odd&1 != 0 && !d.from.Gone() && !d.to.Gone()
}
