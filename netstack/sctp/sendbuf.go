package sctp

import (
	"fmt"
	"io"
)

// A Source is what a message is read from: Len octets. It is read during Send only, perhaps in two
// pieces. (An alias, so that others can have the same without this package.)
type Source = interface {
	io.Reader
	Len() int
}

// A sendBuffer holds the octets of messages from Send until they are acknowledged: first in, first
// out. Positions count octets since the beginning.
type sendBuffer struct {
	ring       []byte // its length is a power of two
	head, tail uint64 // octets from head to tail are held
	limit      int
}

const sendBufferStart = 4096

func (s *sendBuffer) room() int { return s.limit - int(s.tail-s.head) }

// put reads a message of n octets, n at most room(). After an error nothing of it is held.
func (s *sendBuffer) put(src io.Reader, n int) (pos uint64, err error) {
	s.grow(n)
	a, b := s.at(s.tail, n)
	for _, p := range [2][]byte{a, b} {
		if len(p) == 0 {
			continue
		}
		if _, err := io.ReadFull(src, p); err != nil {
			return 0, fmt.Errorf("sctp: reading the message: %w", err)
		}
	}
	pos = s.tail
	s.tail += uint64(n)
	return pos, nil
}

// grow makes the ring large enough for n octets more.
func (s *sendBuffer) grow(n int) {
	need := int(s.tail-s.head) + n
	if need <= len(s.ring) {
		return
	}
	size := max(sendBufferStart, len(s.ring))
	for size < need {
		size *= 2
	}
	old := *s
	s.ring = make([]byte, size)
	held := int(s.tail - s.head)
	oa, ob := old.at(old.head, held)
	na, nb := s.at(s.head, held)
	for _, from := range [2][]byte{oa, ob} {
		n := copy(na, from)
		na = na[n:]
		copy(nb, from[n:])
		nb = nb[len(from)-n:]
	}
}

// at gives the n octets from pos on, in two pieces where the ring wraps.
func (s *sendBuffer) at(pos uint64, n int) (a, b []byte) {
	i := int(pos & uint64(len(s.ring)-1))
	if i+n <= len(s.ring) {
		return s.ring[i : i+n], nil
	}
	return s.ring[i:], s.ring[:i+n-len(s.ring)]
}

// move copies n octets to a lower position.
func (s *sendBuffer) move(to, from uint64, n int) {
	for n > 0 && to != from {
		a, _ := s.at(from, n)
		b, _ := s.at(to, n)
		k := copy(b, a)
		to, from, n = to+uint64(k), from+uint64(k), n-k
	}
}

// free gives up all octets before pos.
func (s *sendBuffer) free(pos uint64) { s.head = pos }

// A fifo is a queue in a ring that grows.
type fifo[T any] struct {
	ring []T // its length is a power of two
	head int
	n    int
}

func (q *fifo[T]) len() int { return q.n }

// at gives element i from the front.
func (q *fifo[T]) at(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// push makes room for an element at the end, which the caller fills.
func (q *fifo[T]) push() *T {
	if q.n == len(q.ring) {
		ring := make([]T, max(8, 2*q.n))
		for i := range q.n {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.n++
	return q.at(q.n - 1)
}

// drop drops the last element.
func (q *fifo[T]) drop() {
	var zero T
	*q.at(q.n - 1) = zero
	q.n--
}

// pop drops the first element.
func (q *fifo[T]) pop() {
	var zero T
	*q.at(0) = zero
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
}
