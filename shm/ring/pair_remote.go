package ring

import (
	"github.com/vrnic/vrnic/internal/bulk"
	"github.com/vrnic/vrnic/shm/abi"
)

// This file has Writes, Reads and atomic operations of the direct path: the peer's program has lent
// its memory to the daemon, which says by a table of keys what of it may be reached, and gives it
// to this one when it is first used. What is not found there, and what is refused, is the daemon's.

const (
	// longestRemote is what goes so: longer operations are the daemon's, since who posts waits for the
	// copy.
	longestRemote = 1 << 20
	// remoteChunk is how much is copied between two looks at the key.
	remoteChunk = 128 << 10
	// longRemote is the length from which on an operation goes past the caches: see bulk.Copy.
	longRemote = 1 << 20
	// mostMapped is how many memories of the peer's a QP has mapped at a time: docs/decisions.md#X10.
	mostMapped = 64
	// mostAsked is how many operations there are between two that ask for what there was not, at most.
	mostAsked = 4096
)

// PeerMemory is where what a peer has lent comes from; false: it cannot be had now. Each call may
// ask the daemon.
type PeerMemory interface {
	Keys() (*PairKeys, bool)
	// Map maps memory mem, from a page on and up to the end of one; free unmaps it.
	Map(mem uint32) (octets []byte, free func(), ok bool)
}

// A PairRemote reaches the memory of the peer's program, by what goes out. Its user is the
// PairOut's.
type PairRemote struct {
	out             *PairOut
	from            PeerMemory
	keys            *PairKeys
	gone            uint32 // of the table, when all of mapped was there
	askIn, askEvery uint32
	mapped          []peerMapping
	next            int // where in mapped the next one goes
}

type peerMapping struct {
	mem    uint32
	octets []byte
	free   func()
}

// NewPairRemote reaches what from gives.
func NewPairRemote(out *PairOut, from PeerMemory) *PairRemote {
	return &PairRemote{out: out, from: from}
}

// Close unmaps all.
func (r *PairRemote) Close() {
	r.forget()
	if r.keys != nil {
		r.keys.free()
		r.keys = nil
	}
}

func (r *PairRemote) forget() {
	for i := range r.mapped {
		r.mapped[i].free()
	}
	clear(r.mapped)
	r.mapped, r.next = r.mapped[:0], 0
}

// isDue reports whether it is time to ask the daemon: what there was not may be there later.
func (r *PairRemote) isDue() bool {
	if r.askIn != 0 {
		r.askIn--
		return false
	}
	r.askEvery = min(2*r.askEvery+1, mostAsked)
	r.askIn = r.askEvery
	return true
}

func (r *PairRemote) hasKeys() bool {
	if r.keys != nil {
		return true
	}
	if !r.isDue() {
		return false
	}
	k, ok := r.from.Keys()
	if !ok {
		return false
	}
	r.keys, r.gone = k, k.gone.Load()
	r.askIn, r.askEvery = 0, 0
	return true
}

func (r *PairRemote) addMapping(mem uint32) bool {
	if !r.isDue() {
		return false
	}
	octets, free, ok := r.from.Map(mem)
	if !ok {
		return false
	}
	m := peerMapping{mem, octets, free}
	if len(r.mapped) == mostMapped {
		r.mapped[r.next].free()
		r.mapped[r.next] = m
	} else {
		r.mapped = append(r.mapped, m)
	}
	r.next = (r.next + 1) % mostMapped
	r.askIn, r.askEvery = 0, 0
	return true
}

// A place is where something is of the peer's: from off on in a mapping.
type place struct {
	mapping []byte
	off     uint64
}

// look finds in this process what w wants of the peer's; false: it is not to be had, or mem is to
// be mapped for it, if that is not 0.
func (r *PairRemote) look(w *PairWant) (at place, mem uint32, ok bool) {
	mem, off, ok := r.keys.find(w, r.out.peer)
	if !ok {
		return place{}, 0, false
	}
	for i := range r.mapped {
		if m := &r.mapped[i]; m.mem == mem {
			n := uint64(len(m.octets))
			return place{m.octets, off}, 0, off <= n && w.Length <= n-off
		}
	}
	return place{}, mem, false
}

// IsThere reports whether w seems to be to be had. It may ask the daemon, and maps what is needed.
func (r *PairRemote) IsThere(w *PairWant) bool {
	if w.Length == 0 || w.Length > longestRemote || w.Right&r.out.reach == 0 || !r.hasKeys() {
		return false
	}
	if gone := r.keys.gone.Load(); gone != r.gone {
		r.forget()
		r.gone = gone
	}
	_, mem, ok := r.look(w)
	return ok || mem != 0 && r.addMapping(mem)
}

// enter has steps 2 to 4: where w is; false, and it is the daemon's.
func (r *PairRemote) enter(w *PairWant) (at place, ok bool) {
	if !r.out.enter() {
		return place{}, false
	}
	if at, _, ok = r.look(w); !ok {
		r.out.leave()
	}
	return at, ok
}

// Write carries out what IsThere has found, with the octets of segs, of which there are w.Length;
// false leaves it to the daemon, all of it. segs change. told, if it is not nil, is a message that
// tells of it: then it has its place, as behind PairOut.Begin, and PairOut.End is to follow.
func (r *PairRemote) Write(w *PairWant, segs [][]byte, told *PairHead) bool {
	if told != nil && !r.out.takesNext(told) { // before all of it is copied for nothing
		return false
	}
	long := w.Length >= longRemote
	for done := uint64(0); ; {
		at, ok := r.enter(w)
		if !ok {
			return false
		}
		far, from := at.mapping[at.off:][done:w.Length], at.off+done
		if len(far) <= remoteChunk {
			if told != nil && r.out.place(told) == nil {
				r.out.leave()
				return false
			}
			k := abi.LastWord(from, len(far))
			n := len(far) - k
			var word [8]byte
			copyIn(word[:k], copyIn(far[:n], segs, long), false)
			storeWord(at.mapping, from+uint64(n), word[:k])
			r.out.Wrote(w.Length)
			if told == nil {
				r.out.leave()
			}
			return true
		}
		segs = copyIn(far[:remoteChunk], segs, long)
		done += remoteChunk
		r.out.leave()
	}
}

// Read is Write the other way.
func (r *PairRemote) Read(w *PairWant, segs [][]byte) bool {
	for done := uint64(0); done < w.Length; {
		at, ok := r.enter(w)
		if !ok {
			return false
		}
		n := min(w.Length-done, remoteChunk)
		segs = copyOut(segs, at.mapping[at.off+done:][:n], w.Length >= longRemote)
		if done += n; done == w.Length {
			r.out.count(abi.DirReads, 1)
			r.out.count(abi.DirReadOctets, w.Length)
		}
		r.out.leave()
	}
	return true
}

// FetchAdd and CompareSwap do what they say with the word of 8 octets that w wants, and put what it
// was into segs.
func (r *PairRemote) FetchAdd(w *PairWant, segs [][]byte, add uint64) bool {
	at, ok := r.enterWord(w)
	if ok {
		r.leaveWord(segs, abi.Word64(at.mapping, uint32(at.off)).Add(add)-add)
	}
	return ok
}

func (r *PairRemote) CompareSwap(w *PairWant, segs [][]byte, compare, swap uint64) bool {
	at, ok := r.enterWord(w)
	if !ok {
		return false
	}
	word := abi.Word64(at.mapping, uint32(at.off))
	old := word.Load()
	for old == compare && !word.CompareAndSwap(compare, swap) {
		old = word.Load()
	}
	r.leaveWord(segs, old)
	return true
}

func (r *PairRemote) enterWord(w *PairWant) (at place, ok bool) {
	if at, ok = r.enter(w); ok && (w.Addr%8 != 0 || at.off%8 != 0) {
		r.out.leave()
		return at, false
	}
	at.mapping, at.off = at.mapping[at.off:], 0
	return at, ok
}

func (r *PairRemote) leaveWord(segs [][]byte, old uint64) {
	var b [8]byte
	abi.Order.PutUint64(b[:], old)
	copyOut(segs, b[:], false)
	r.out.count(abi.DirAtomics, 1)
	r.out.leave()
}

// copyIn copies the first octets of segs to to, and returns the others.
func copyIn(to []byte, segs [][]byte, long bool) [][]byte {
	for len(to) != 0 {
		n := min(len(to), len(segs[0]))
		copyPiece(to[:n], segs[0][:n], long)
		to, segs = to[n:], skip(segs, n)
	}
	return segs
}

// copyOut copies from to the first octets of segs, and returns the others.
func copyOut(segs [][]byte, from []byte, long bool) [][]byte {
	for len(from) != 0 {
		n := min(len(from), len(segs[0]))
		copyPiece(segs[0][:n], from[:n], long)
		from, segs = from[n:], skip(segs, n)
	}
	return segs
}

func copyPiece(to, from []byte, long bool) {
	if long {
		bulk.Copy(to, from, true)
	} else {
		copy(to, from)
	}
}

// skip is what is behind n octets of the first of segs.
func skip(segs [][]byte, n int) [][]byte {
	if segs[0] = segs[0][n:]; len(segs[0]) == 0 {
		return segs[1:]
	}
	return segs
}

// storeWord stores an aligned word of 1, 2, 4 or 8 octets behind all that was stored before. What
// is beside a short one stays, also if its owner changes it meanwhile.
func storeWord(mem []byte, off uint64, b []byte) {
	if len(b) == 8 {
		abi.Word64(mem[off:], 0).Store(abi.Order.Uint64(b))
		return
	}
	word := abi.Word(mem[off&^3:], 0)
	for {
		var all [4]byte
		old := word.Load()
		abi.Order.PutUint32(all[:], old)
		copy(all[off&3:], b)
		if word.CompareAndSwap(old, abi.Order.Uint32(all[:])) {
			return
		}
	}
}
