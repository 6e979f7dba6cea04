// Package handle gives out the numbers by which users name their objects.
package handle

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/vrnic/vrnic/rdma"
)

// Max is the largest handle: a QPN has 24 bits.
const Max = 1<<24 - 1

// A Table gives out handles, from 1 on and cyclically, so that a handle that is gone is not soon
// that of something else. Its user has a lock for it. The zero Table is empty.
type Table[T any] struct {
	m    map[uint32]T
	last uint32
}

// Add stores v under a new handle; rdma.ErrLimit if limit values are there.
func (t *Table[T]) Add(v T, limit int) (uint32, error) {
	if len(t.m) >= limit {
		return 0, fmt.Errorf("%d are there: %w", len(t.m), rdma.ErrLimit)
	}
	if t.m == nil {
		t.m = make(map[uint32]T)
	}
	for {
		t.last++
		if t.last > Max {
			t.last = 1
		}
		if _, taken := t.m[t.last]; !taken {
			t.m[t.last] = v
			return t.last, nil
		}
	}
}

// AddFrom is Add with the first handle of next that nobody has, and that is not 0.
func (t *Table[T]) AddFrom(next func() uint32, v T, limit int) (uint32, error) {
	if len(t.m) >= limit {
		return 0, fmt.Errorf("%d are there: %w", len(t.m), rdma.ErrLimit)
	}
	if t.m == nil {
		t.m = make(map[uint32]T)
	}
	for {
		h := next()
		if _, taken := t.m[h]; h != 0 && !taken {
			t.m[h] = v
			return h, nil
		}
	}
}

// Remove forgets what has handle h.
func (t *Table[T]) Remove(h uint32) { delete(t.m, h) }

// Len is how many values are there.
func (t *Table[T]) Len() int { return len(t.m) }

// All goes through the values, in any order.
func (t *Table[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, v := range t.m {
			if !yield(v) {
				return
			}
		}
	}
}

// Slice returns a copy, in the order of the handles, for walking it without the lock.
func (t *Table[T]) Slice() []T {
	s := make([]T, 0, len(t.m))
	for _, h := range slices.Sorted(maps.Keys(t.m)) {
		s = append(s, t.m[h])
	}
	return s
}
