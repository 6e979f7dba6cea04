package ring

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file has the bitmap of a CQ where many QPs complete that have a direct path: what is to be
// looked at of it, so that who polls need not look at all (docs/direct.md#many). Programs of one
// user write there, and a bit says no more than where to look.

// cqBits is the daemon's end. It has a lock of its own, with which no other one is taken.
type cqBits struct {
	mu    sync.Mutex
	words []atomic.Uint32 // nil: there is none, or no more; +checklocks:mu
}

// BitsMemSize is how many octets a bitmap takes.
const BitsMemSize = abi.BitsHeaderLen + abi.MaxBits/8

// UseBits makes the bitmap of the CQ in mem, which is zero, and may be used until Close.
func (c *CQProducer) UseBits(mem []byte) {
	c.bits.mu.Lock()
	defer c.bits.mu.Unlock()
	c.bits.words = abi.Words(mem, abi.BitsHeaderLen, abi.MaxBits/32)
}

// set sets a bit, as a program says it, if there is such a one.
func (b *cqBits) set(bit uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bit/32 < uint32(len(b.words)) {
		b.words[bit/32].Or(1 << (bit % 32))
	}
}

func (b *cqBits) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.words = nil
}

// PairBits is a program's end of the bitmap of a CQ, its own or a peer's.
type PairBits struct {
	words []atomic.Uint32
	want  *atomic.Uint32
}

// OpenPairBits finds the bitmap in mem, which has BitsMemSize octets at least: a peer can spoil
// nothing of where it is.
func OpenPairBits(mem []byte) *PairBits {
	return &PairBits{abi.Words(mem, abi.BitsHeaderLen, abi.MaxBits/32), abi.Word(mem, abi.BitsWant)}
}

// Want tells all senders that set bits what the CQ is armed for.
func (b *PairBits) Want(arm uint32) { b.want.Store(arm) }

// A bit is one that a sender sets behind each message.
type bit struct {
	word *atomic.Uint32
	mask uint32
}

func (b *PairBits) at(n uint32) (bit, bool) {
	if n/32 >= uint32(len(b.words)) {
		return bit{}, false
	}
	return bit{&b.words[n/32], 1 << (n % 32)}, true
}

// A Board has those of many direct paths that complete on a CQ, each at a place of its own, and
// finds the ones that have something: a message, by the CQ's bitmap, or requests of the program's
// own that are over. Calls must not overlap, but for those of what Done gives.
type Board[T any] struct {
	at   []*T
	used int // behind the highest place that was taken
	n    int

	come []atomic.Uint32 // the bitmap, where senders write; nil: no messages come
	done []atomic.Uint32 // the program's own requests
	// What has been taken of these and not been looked through.
	todo [2][]uint32

	polls, turn int
	all, some   bool
}

// The kinds of what there is to be looked at.
const (
	BoardCome = iota
	BoardDone
)

// NewBoard makes one of which nothing is at any place.
func NewBoard[T any]() *Board[T] {
	const words = abi.MaxBits / 32
	return &Board[T]{at: make([]*T, abi.MaxBits), done: make([]atomic.Uint32, words),
		todo: [2][]uint32{make([]uint32, words), make([]uint32, words)}}
}

// Use has messages be found by b.
func (m *Board[T]) Use(b *PairBits) { m.come = b.words }

// Comes reports whether messages are found.
func (m *Board[T]) Comes() bool { return m.come != nil }

// Add gives x the first place that is free; false: there is none.
func (m *Board[T]) Add(x *T) (place int, ok bool) {
	place = slices.Index(m.at, nil)
	if place < 0 {
		return 0, false
	}
	m.at[place] = x
	m.n++
	m.used = max(m.used, place+1)
	return place, true
}

// Remove frees a place.
func (m *Board[T]) Remove(place int) {
	m.at[place] = nil
	m.n--
}

// At is what is at a place, or nil.
func (m *Board[T]) At(place int) *T { return m.at[place] }

// Done gives what says that a request is over of what is at place.
func (m *Board[T]) Done(place int) BoardBit {
	return BoardBit{bit{&m.done[place/32], 1 << (place % 32)}}
}

// A BoardBit is a bit of who posts.
type BoardBit struct{ bit bit }

// Set says that a request is over.
func (b BoardBit) Set() { b.bit.word.Or(b.bit.mask) }

// words are those that have a place which was taken.
func (m *Board[T]) words() int { return (m.used + 31) / 32 }

// turnPolls is how many polls there are between two that look at one more without being told to. A
// program that is told nothing, since another peer clears what its own has set, finds it so.
const turnPolls = 64

// Turn is one that is to be looked at although nothing says so; nil: none now.
func (m *Board[T]) Turn() (place int, x *T) {
	if m.polls++; m.polls%turnPolls != 0 || m.used == 0 {
		return 0, nil
	}
	if m.turn++; m.turn >= m.used {
		m.turn = 0
	}
	return m.turn, m.at[m.turn]
}

// Mark has what is at place be looked at for messages.
func (m *Board[T]) Mark(place int) { m.todo[BoardCome][place/32] |= 1 << (place % 32) }

// MarkAll has all be looked at.
func (m *Board[T]) MarkAll() { m.all = true }

// someLooks is how many are looked at by the first poll of who is about to sleep although nothing
// says so.
const someLooks = 64

// MarkSome has some be looked at, others each time, if there are so many.
func (m *Board[T]) MarkSome() { m.some = true }

// IsFull reports whether no place is free.
func (m *Board[T]) IsFull() bool { return m.n == len(m.at) }

// IsEmpty reports whether nothing is to be looked at.
func (m *Board[T]) IsEmpty() bool {
	if m.all || m.some {
		return false
	}
	n := m.words()
	var any uint32
	if m.come != nil {
		for i := range m.come[:n] {
			any |= m.come[i].Load()
		}
	}
	for i := range m.done[:n] {
		any |= m.done[i].Load() | m.todo[BoardCome][i] | m.todo[BoardDone][i]
	}
	return any == 0
}

// Take takes what there is to be looked at of a kind. It is cleared before anybody looks: what
// comes later says so again (dirtyScenario of the search). Messages are taken first:
// docs/direct.md#receiving.
func (m *Board[T]) Take(kind int) {
	from := m.done
	if kind == BoardCome {
		from = m.come
	}
	if from == nil {
		m.some = false // nothing comes
		return
	}
	todo := m.todo[kind]
	for i := range from[:m.words()] {
		if from[i].Load() != 0 {
			todo[i] |= from[i].Swap(0)
		}
	}
	if m.some && kind == BoardCome {
		m.some = false
		for range min(someLooks, m.used) {
			if m.turn++; m.turn >= m.used {
				m.turn = 0
			}
			todo[m.turn/32] |= 1 << (m.turn % 32)
		}
	}
	if m.all {
		for i, x := range m.at[:m.used] {
			if x != nil {
				todo[i/32] |= 1 << (i % 32)
			}
		}
		m.all = kind == BoardCome
	}
}

// Next is the first place from one on of what has been taken; below 0: none. Nothing is at a place
// that has been freed.
func (m *Board[T]) Next(kind, from int) int {
	todo := m.todo[kind][:m.words()]
	for i := from / 32; i < len(todo); i++ {
		w := todo[i]
		if i == from/32 {
			w &= ^uint32(0) << (from % 32)
		}
		if w != 0 {
			return 32*i + bits.TrailingZeros32(w)
		}
	}
	return -1
}

// Clear is for when all there was at a place has been found.
func (m *Board[T]) Clear(kind, place int) { m.todo[kind][place/32] &^= 1 << (place % 32) }
