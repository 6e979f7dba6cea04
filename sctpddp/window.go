package sctpddp

import (
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
)

// maxAhead is how far ahead of the next message in order one can be: the sender keeps what it has
// sent within 32767 messages of the oldest that is not acknowledged (RFC 5043, section 10).
const maxAhead = 32766

// A held message has come ahead of order, or in order when it could not be taken.
type held struct {
	there bool
	ppid  uint32
	size  int   // octets of the message
	n     uint8 // of them in hdr, if buf is nil
	// the beginning of a segment whose payload has been placed
	hdr [ssnLen + iwarp.UntaggedHeaderLen]byte
	buf []byte // the whole message
}

// ppidBad stands for the PPID of a message that is too short for its headers.
const ppidBad = 0

// heldLen is what an entry counts for against the budgets, about its size in memory.
const heldLen = 72

// A Budget is what the sessions of an association share, whoever their owners are: several may call
// it at once.
type Budget interface {
	// Take takes that many octets to hold; false: there are no more. Give gives them back.
	Take(octets int) bool
	Give(octets int)
	// Scarce says that half of it is in use.
	Scarce() bool
	// Ask counts the requests of a peer that are not answered, and Asked says how many there are.
	Ask(more int)
	Asked() int
}

// A budget is the one that a Mux has if nobody says.
type budget struct {
	all   int64        // octets that may be held
	left  atomic.Int64 // of these
	asked atomic.Int64 // sessions in StateAsked
}

func newBudget(octets int) *budget {
	if octets <= 0 {
		octets = defaultHoldAll
	}
	b := &budget{all: int64(octets)}
	b.left.Store(b.all)
	return b
}

func (b *budget) Take(n int) bool {
	if b.left.Add(int64(-n)) >= 0 {
		return true
	}
	b.left.Add(int64(n))
	return false
}

func (b *budget) Give(n int)   { b.left.Add(int64(n)) }
func (b *budget) Scarce() bool { return b.left.Load() < b.all/2 }
func (b *budget) Ask(n int)    { b.asked.Add(int64(n)) }
func (b *budget) Asked() int   { return int(b.asked.Load()) }

// A ring of freeEntries is every session's own; what is beyond that is in the budget. One of up to
// keptEntries is kept for the next time, unless there is little left for others.
const (
	freeEntries = 16
	keptEntries = 64
)

func ringCost(entries int) int { return max(entries-freeEntries, 0) * heldLen }

// A window holds the messages from the next one in order on. Entries are made only as far as
// messages have come.
type window struct {
	next  SSN
	ring  []held // a power of two, entry of next at head
	head  int
	n     int // entries that are there
	high  int // all of them are below next+high
	bytes int // octets in buf of all
	limit int // of bytes
	pool  Budget
	free  [][]byte // buffers to use again
}

// freeBuffers is how many buffers a session keeps to use again.
const freeBuffers = 16

func (w *window) at(d int) *held { return &w.ring[(w.head+d)&(len(w.ring)-1)] }

func (w *window) there(d int) bool { return d < w.high && w.at(d).there }

// reserve makes room for an entry d ahead of next.
func (w *window) reserve(d int) bool {
	if d < len(w.ring) {
		return true
	}
	size := max(len(w.ring), freeEntries)
	for size <= d {
		size <<= 1
	}
	if !w.pool.Take(ringCost(size) - ringCost(len(w.ring))) {
		return false
	}
	ring := make([]held, size)
	for i := range w.high {
		ring[i] = *w.at(i)
	}
	w.ring, w.head = ring, 0
	return true
}

// put holds a message: the first keep octets of data. false: there is no room for it.
func (w *window) put(d int, ppid uint32, data []byte, keep int) bool {
	if !w.reserve(d) {
		return false
	}
	e := held{there: true, ppid: ppid, size: len(data)}
	if keep <= len(e.hdr) && keep < len(data) {
		e.n = uint8(copy(e.hdr[:], data[:keep]))
	} else {
		if w.bytes+keep > w.limit || !w.pool.Take(keep) {
			return false
		}
		w.bytes += keep
		e.buf = append(w.buffer(keep), data[:keep]...)
	}
	*w.at(d) = e
	w.n++
	w.high = max(w.high, d+1)
	return true
}

func (w *window) buffer(n int) []byte {
	if k := len(w.free); k > 0 {
		b := w.free[k-1]
		w.free = w.free[:k-1]
		if cap(b) >= n {
			return b[:0]
		}
	}
	return make([]byte, 0, n)
}

// data is what is kept of e.
func (e *held) data() []byte {
	if e.buf != nil {
		return e.buf
	}
	return e.hdr[:e.n]
}

// drop lets go of the octets of e.
func (w *window) drop(e *held) {
	if e.buf == nil {
		return
	}
	w.bytes -= len(e.buf)
	w.pool.Give(len(e.buf))
	if len(w.free) < freeBuffers {
		w.free = append(w.free, e.buf)
	}
	e.buf = nil
}

// pop ends the turn of the next message, held or not.
func (w *window) pop() {
	w.next++
	if w.high == 0 {
		return
	}
	e := w.at(0)
	if e.there {
		w.drop(e)
		*e = held{}
		w.n--
	}
	w.head = (w.head + 1) & (len(w.ring) - 1)
	w.high--
	if w.high == 0 && (len(w.ring) > keptEntries || len(w.ring) > freeEntries && w.pool.Scarce()) {
		w.shrink()
	}
}

// shrink gives the ring back, which must be empty.
func (w *window) shrink() {
	w.pool.Give(ringCost(len(w.ring)))
	w.ring, w.head, w.high = nil, 0, 0
}

// clear drops everything.
func (w *window) clear() {
	for d := range w.high {
		if e := w.at(d); e.there {
			w.drop(e)
		}
	}
	w.n = 0
	w.free = nil
	w.shrink()
}
