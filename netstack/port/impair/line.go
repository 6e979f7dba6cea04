package impair

import "time"

// A Line is what is on its way: the next to arrive comes out first, and of those that arrive
// together the first to go in. The zero value is empty.
type Line[T any] struct {
	heap []queued[T]
	n    uint64
}

type queued[T any] struct {
	due time.Duration
	n   uint64
	v   T
}

func (a *queued[T]) before(b *queued[T]) bool {
	return a.due < b.due || a.due == b.due && a.n < b.n
}

// Len is how many there are.
func (q *Line[T]) Len() int { return len(q.heap) }

// Next is when the next one is due; false: there is none.
func (q *Line[T]) Next() (due time.Duration, ok bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].due, true
}

// Push puts v in, which is due at a time.
func (q *Line[T]) Push(due time.Duration, v T) {
	q.heap = append(q.heap, queued[T]{due, q.n, v})
	q.n++
	h := q.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// Pop takes the next one out, which is there.
func (q *Line[T]) Pop() (due time.Duration, v T) {
	h := q.heap
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = queued[T]{}
	h = h[:last]
	q.heap = h
	for i := 0; ; {
		next := 2*i + 1
		if next >= len(h) {
			break
		}
		if next+1 < len(h) && h[next+1].before(&h[next]) {
			next++
		}
		if !h[next].before(&h[i]) {
			break
		}
		h[i], h[next] = h[next], h[i]
		i = next
	}
	return first.due, first.v
}
