package pairtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
)

const (
	lentMems = 2 // what a program has lent, numbers 1 and 2
	lentLen  = 300 << 10
)

// A lent is memory of one program and the keys to it, as the daemon has them.
type lent struct {
	fds    []int // of the table, and then of the memories
	mems   []*osmem.Region
	table  *ring.KeyTable
	keys   []ring.Key
	places []uint32 // of those
	number uint32   // of keys that there were
}

func newLent(t *testing.T) (l lent) {
	t.Helper()
	for i := range 1 + lentMems {
		size := lentLen
		if i == 0 {
			size = ring.KeyTableLen
		}
		m, fd, err := osmem.NewRegion("lent", size, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			osmem.CloseFD(fd)
			m.Release()
		})
		l.fds, l.mems = append(l.fds, fd), append(l.mems, m)
	}
	l.table = ring.NewKeyTable(l.mems[0].Mem)
	return l
}

// files are those of its peer's process.
func (l *lent) files(t *testing.T) (files []*os.File) {
	t.Helper()
	for _, fd := range l.fds {
		fd, err := osmem.DupFD(fd)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "lent")
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return files
}

// change publishes a key, or ends one.
func (l *lent) change(rnd *rand.Rand) {
	if len(l.keys) > 6 || len(l.keys) > 3 && rnd.IntN(3) == 0 {
		i := rnd.IntN(len(l.keys))
		l.table.End(l.places[i], func() {})
		l.keys, l.places = append(l.keys[:i], l.keys[i+1:]...), append(l.places[:i], l.places[i+1:]...)
		if rnd.IntN(4) == 0 {
			l.table.MemGone()
		}
		return
	}
	l.number++
	k := ring.Key{Key: rnd.Uint32N(4)<<28 | l.number<<8 | rnd.Uint32N(256), Access: 0xf,
		Mem: 1 + rnd.Uint32N(lentMems), Addr: uint64(rnd.Uint32N(1 << 20))}
	if rnd.IntN(4) == 0 {
		k.Access = rnd.Uint32N(16)
	}
	if rnd.IntN(4) == 0 {
		k.QPN = 1 + rnd.Uint32N(2)
	}
	if k.Offset = uint64(rnd.IntN(1000)); rnd.IntN(2) == 0 { // with words that are aligned
		k.Offset, k.Addr = k.Offset&^7, k.Addr&^7
	}
	k.Length = lentLen - k.Offset
	if place, ok := l.table.Publish(&k); ok {
		l.keys, l.places = append(l.keys, k), append(l.places, place)
	}
}

// name says which key its peer uses next, and where.
func (l *lent) name(rnd *rand.Rand) string {
	if len(l.keys) == 0 || rnd.IntN(20) == 0 {
		return fmt.Sprintf("k %d %d 0", rnd.Uint32N(2), rnd.Uint32N(1<<20))
	}
	k := &l.keys[rnd.IntN(len(l.keys))]
	at := uint32(k.Addr) + rnd.Uint32N(1000)
	switch rnd.IntN(8) {
	case 0:
		at = uint32(k.Addr+k.Length) - rnd.Uint32N(200)
	case 1:
		at = uint32(k.Addr) - rnd.Uint32N(2)
	case 2, 3, 4:
		at &^= 7
	}
	return fmt.Sprintf("k %d %d 0", k.Key, at)
}

// all is what both programs may write to.
func (p *page) all() (mems [][]byte) {
	mems = append(mems, p.mem.Mem, p.bits[0].Mem, p.bits[1].Mem)
	for _, l := range p.lent {
		for _, m := range l.mems[1:] {
			mems = append(mems, m.Mem)
		}
	}
	return mems
}

// A reached is a peer's memory for an end in Go.
type reached struct {
	t     *testing.T
	lent  *lent
	asked int
}

func (r *reached) Keys() (*ring.PairKeys, bool) {
	mem := r.region(0, abi.KeysHeaderLen, false)
	k, err := ring.OpenPairKeys(mem.Mem, mem.Release)
	if err != nil {
		r.t.Error(err)
	}
	return k, err == nil
}

func (r *reached) Map(mem uint32) (octets []byte, free func(), ok bool) {
	m := r.region(mem, 1, true)
	return m.Mem, m.Release, true
}

func (r *reached) region(i uint32, least int, write bool) *osmem.Region {
	r.asked++
	fd, err := osmem.DupFD(r.lent.fds[i])
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := osmem.MapPeers(fd, least, write)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// move is that of testdata/end.c.
func (e *goEnd) move(op rune, a, b, flags uint32) string {
	n := a
	if op == 'F' || op == 'C' {
		n = 8
	}
	h := headOf(n, b, flags)
	fill(e.local[:n], b)
	segs := [][]byte{e.local[:n/3], e.local[n/3 : n]}
	e.want.Length = uint64(n)
	// Of enum ibv_access_flags.
	e.want.Right = map[rune]uint32{'W': 2, 'I': 2, 'R': 4, 'F': 8, 'C': 8}[op]
	done := e.remote.IsThere(&e.want)
	if done {
		switch op {
		case 'W':
			done = e.remote.Write(&e.want, segs, nil)
		case 'I':
			if e.remote.Write(&e.want, segs, h) {
				return e.sent(h, flags)
			}
			done = false
		case 'R':
			done = e.remote.Read(&e.want, segs)
		case 'F':
			done = e.remote.FetchAdd(&e.want, segs, uint64(a))
		case 'C':
			done = e.remote.CompareSwap(&e.want, segs, uint64(a), uint64(b))
		}
	}
	if !done {
		return fmt.Sprint("no 0 ", e.peers.asked)
	}
	return fmt.Sprint("moved ", sum(e.local[:n]), " ", e.peers.asked)
}
