package adversary

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A manual has what is to happen later happen when a test says so.
type manual struct{ later []func() }

func (m *manual) after(_ time.Duration, f func()) (stop func() bool) {
	i := len(m.later)
	m.later = append(m.later, f)
	return func() bool { m.later[i] = nil; return true }
}

// Completions of one queue pair stay in their order, those of two do not; none is lost, none is
// held where there is no room; and all is the same again with the same seed.
func TestCompletions(t *testing.T) {
	run := func(seed uint64) (got []string, mixed bool) {
		m := new(manual)
		c := New(seed).Completions()
		c.after = m.after
		next, want := [2]int{}, 0
		for n := range 200 {
			qp := uint32(n/3) % 2
			id := n
			room := n%7 != 0
			was := len(got)
			if !c.Push(qp, room, func() bool {
				got = append(got, fmt.Sprint(qp, ":", id))
				if id < next[qp] {
					t.Errorf("completion %d of queue pair %d is behind %d", id, qp, next[qp])
				}
				next[qp] = id
				if id != want {
					mixed = true
				}
				want++
				return true
			}) {
				t.Error("a completion that there is room for is refused")
			}
			if !room && len(got) == was {
				t.Errorf("completion %d is held, and there is no room", n)
			}
			if n%11 == 0 {
				for _, f := range m.later {
					if f != nil {
						f()
					}
				}
			}
		}
		c.Flush()
		if c.Held() != 0 || len(got) != 200 {
			t.Errorf("%d of 200 completions have come, %d are held", len(got), c.Held())
		}
		return got, mixed
	}
	one, mixed := run(7)
	if !mixed {
		t.Error("completions of two queue pairs stay in their order")
	}
	if again, _ := run(7); !slices.Equal(one, again) {
		t.Error("the same seed does something else")
	}
	if other, _ := run(8); slices.Equal(one, other) {
		t.Error("another seed does the same")
	}
	c := New(1).Completions()
	c.after = new(manual).after
	if c.Push(1, false, func() bool { return false }) {
		t.Error("a completion that is too much is taken")
	}
}
