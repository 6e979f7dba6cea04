package adversary

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"
)

// A block is memory that notes what is written where.
type block struct {
	b     []byte
	wrote []string
	full  int // writes that are left
}

func (m *block) ReadAt(p []byte, off int64) (int, error) { return copy(p, m.b[off:]), nil }

var errFull = errors.New("no more")

func (m *block) WriteAt(p []byte, off int64) (int, error) {
	if m.full--; m.full < 0 {
		return 0, errFull
	}
	m.wrote = append(m.wrote, fmt.Sprint(off, "+", len(p)))
	return copy(m.b[off:], p), nil
}

func (d *Device) write(n, times int) (*block, error) {
	d.sleep = func(time.Duration) {}
	under := &block{b: make([]byte, n+2), full: 1000}
	m := d.Memory(under)
	want := bytes.Repeat([]byte{0xa5}, n)
	for range times {
		if k, err := m.WriteAt(want, 1); k != n || err != nil {
			return under, fmt.Errorf("it wrote %d of %d: %w", k, n, err)
		}
	}
	if !bytes.Equal(under.b[1:n+1], want) || under.b[0] != 0 || under.b[n+1] != 0 {
		return under, fmt.Errorf("it wrote %x", under.b)
	}
	return under, nil
}

// All octets are there when WriteAt returns, whatever the seed; the last ones are not always the
// last, and what atomics write comes at once.
func TestMemory(t *testing.T) {
	early := 0
	for seed := range uint64(200) {
		for _, n := range []int{1, whole, whole + 1, 100, 5000} {
			under, err := New(seed).write(n, 1)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			var off, k int
			last := under.wrote[len(under.wrote)-1]
			if _, err := fmt.Sscanf(last, "%d+%d", &off, &k); err != nil {
				t.Fatal(err)
			}
			switch {
			case n <= whole && len(under.wrote) != 1, len(under.wrote) > maxParts:
				t.Errorf("seed %d: %d octets come as %v", seed, n, under.wrote)
			case off+k != n+1:
				early++
			}
		}
	}
	if early < 100 {
		t.Errorf("of 1000 messages the end came early in %d", early)
	}
}

// The same seed does the same, another one does not.
func TestSeed(t *testing.T) {
	var runs []string
	for _, seed := range []uint64{7, 7, 8} {
		under, err := New(seed).write(4096, 5)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, fmt.Sprint(under.wrote))
	}
	if runs[0] != runs[1] || runs[0] == runs[2] {
		t.Errorf("seeds 7, 7 and 8: %v", runs)
	}
}

// Memory that is not there is said so.
func TestFault(t *testing.T) {
	d := New(1)
	d.sleep = func(time.Duration) {}
	m := d.Memory(&block{b: make([]byte, 100)})
	if _, err := m.WriteAt(make([]byte, 100), 0); !errors.Is(err, errFull) {
		t.Errorf("WriteAt: %v", err)
	}
}
