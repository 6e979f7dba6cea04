package vnic

import (
	"fmt"
	"iter"

	"github.com/vrnic/vrnic/rdma"
)

// A table gives out handles, from 1 on and cyclically, so that a handle that is gone is not soon
// that of something else.
type table[T any] struct {
	m    map[uint32]T
	last uint32
}

const maxHandle = 1<<24 - 1 // a QPN has 24 bits

// add stores v under a new handle unless limit are there.
func (t *table[T]) add(v T, limit int) (uint32, error) {
	if len(t.m) >= limit {
		return 0, fmt.Errorf("%d are there: %w", len(t.m), rdma.ErrLimit)
	}
	if t.m == nil {
		t.m = make(map[uint32]T)
	}
	for {
		t.last++
		if t.last > maxHandle {
			t.last = 1
		}
		if _, taken := t.m[t.last]; !taken {
			t.m[t.last] = v
			return t.last, nil
		}
	}
}

func (t *table[T]) remove(h uint32) { delete(t.m, h) }

func (t *table[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, v := range t.m {
			if !yield(v) {
				return
			}
		}
	}
}

// slice returns a copy, for walking it without the lock.
func (t *table[T]) slice() []T {
	s := make([]T, 0, len(t.m))
	for _, v := range t.m {
		s = append(s, v)
	}
	return s
}
