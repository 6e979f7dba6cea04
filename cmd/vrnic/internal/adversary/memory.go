// Package adversary is a device that does what the standards allow and cards seldom do. Of
// the octets of a message they promise nothing before its completion: not the order in which they
// are placed, and not how long that takes. From a seed, so that it can be had again.
package adversary

import (
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// whole is how much is never parted: what atomics read and write.
	whole = 8
	// maxParts is in how many parts what is written comes at most.
	maxParts = 8
	// maxPause is how long one part waits for the next one at most.
	maxPause = 500 * time.Microsecond
)

// A Device makes its memory. Its methods may be called by several goroutines at once.
type Device struct {
	seed    uint64
	regions atomic.Uint64
	queues  atomic.Uint64
	sleep   func(time.Duration)
}

// New returns a device that does the same with the same seed, as long as programs do.
func New(seed uint64) *Device { return &Device{seed: seed, sleep: time.Sleep} }

// Memory is a region of a program's, in which octets are placed in any order.
type Memory struct {
	under interface {
		io.ReaderAt
		io.WriterAt
	}
	sleep func(time.Duration)

	mu   sync.Mutex
	rand *rand.Rand // guarded by mu
}

// Memory stands in front of under, the next region that is registered.
func (d *Device) Memory(under interface {
	io.ReaderAt
	io.WriterAt
}) *Memory {
	return &Memory{under: under, sleep: d.sleep, rand: rand.New(rand.NewPCG(d.seed,
		d.regions.Add(1)))}
}

// ReadAt implements vnic.Memory.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) { return m.under.ReadAt(p, off) }

// A part is some of what is written: when its turn comes it waits for pause first.
type part struct {
	begin, end int
	pause      time.Duration
}

// WriteAt implements vnic.Memory. There is no WriteLast: who polls the last octet learns nothing.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	if len(p) <= whole {
		return m.under.WriteAt(p, off)
	}
	for _, t := range m.parts(len(p)) {
		if t.pause > 0 {
			m.sleep(t.pause)
		}
		if n, err := m.under.WriteAt(p[t.begin:t.end], off+int64(t.begin)); err != nil {
			return t.begin + n, err
		}
	}
	return len(p), nil
}

// parts takes n octets to pieces, in the order in which they come.
func (m *Memory) parts(n int) []part {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]part, 0, maxParts)
	for begin := 0; begin < n; {
		end := n
		if len(list) < maxParts-1 {
			end = begin + 1 + m.rand.IntN(n-begin)
		}
		t := part{begin: begin, end: end}
		if m.rand.IntN(2) == 0 {
			t.pause = time.Duration(m.rand.Int64N(int64(maxPause)))
		}
		list = append(list, t)
		begin = end
	}
	m.rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list
}
