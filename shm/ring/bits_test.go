package ring

import (
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// newBits is the bitmap of a CQ, and the daemon's end of that.
func newBits(t *testing.T) (*CQProducer, []byte) {
	t.Helper()
	c := NewCQProducer(make([]byte, CQMemSize(1)), 1, 1, nil, func(err error) { t.Error(err) })
	mem := make([]byte, BitsMemSize)
	c.UseBits(mem)
	return c, mem
}

// There are no bits but those that have a place, whatever is written in the bitmap.
func TestOpenPairBits(t *testing.T) {
	_, mem := newBits(t)
	for i := range mem {
		mem[i] = 0xff
	}
	b := OpenPairBits(mem)
	if last, ok := b.at(abi.MaxBits - 1); !ok || last.mask != 1<<31 {
		t.Errorf("the last bit is %+v, %v", last, ok)
	}
	for _, n := range []uint32{abi.MaxBits, abi.MaxBits + 1, ^uint32(0)} {
		if _, ok := b.at(n); ok {
			t.Errorf("there is a bit %d", n)
		}
	}
}

// The daemon sets a bit that a program has named, if there is one, and none of a CQ that has gone.
func TestCQBits(t *testing.T) {
	c, mem := newBits(t)
	words := abi.Words(mem, abi.BitsHeaderLen, abi.MaxBits/32)
	for _, n := range []uint32{0, 33, abi.MaxBits - 1, abi.MaxBits, ^uint32(0)} {
		c.bits.set(n)
		for i := range words {
			want := uint32(0)
			if n/32 == uint32(i) {
				want = 1 << (n % 32)
			}
			if got := words[i].Swap(0); got != want {
				t.Errorf("bit %d: word %d is %#x, want %#x", n, i, got, want)
			}
		}
	}
	c.Close()
	if c.bits.set(0); words[0].Load() != 0 {
		t.Error("a bit of a CQ that is closed has been set")
	}
}

// Each that has a place is found by its bits, once, and those that have gone are not.
func TestBoard(t *testing.T) {
	_, mem := newBits(t)
	b := OpenPairBits(mem)
	m := NewBoard[int]()
	m.Use(b)
	var x [abi.MaxBits]int
	for i := range x {
		if place, ok := m.Add(&x[i]); !ok || place != i || m.IsFull() != (i == len(x)-1) {
			t.Fatalf("place %d of %d: %v", place, i, ok)
		}
	}
	if _, ok := m.Add(new(int)); ok {
		t.Error("there was a place where all are taken")
	}
	found := func(kind int) (places []int) {
		m.Take(kind)
		for p := m.Next(kind, 0); p >= 0; p = m.Next(kind, p+1) {
			if m.At(p) != nil {
				places = append(places, p)
			}
			m.Clear(kind, p)
		}
		return places
	}
	bit, _ := b.at(77)
	bit.word.Or(bit.mask)
	m.Done(4095).Set()
	if come, done := found(BoardCome), found(BoardDone); len(come) != 1 || come[0] != 77 ||
		len(done) != 1 || done[0] != 4095 || !m.IsEmpty() {
		t.Errorf("found %v and %v", come, done)
	}
	for i := range b.words { // a peer that lies
		b.words[i].Store(^uint32(0))
	}
	m.Remove(77)
	if n := len(found(BoardCome)); n != len(x)-1 || !m.IsEmpty() {
		t.Errorf("%d of all but one are found", n)
	}
	m.MarkAll()
	if n, k := len(found(BoardCome)), len(found(BoardDone)); n != len(x)-1 || k != n || !m.IsEmpty() {
		t.Errorf("%d and %d of all are looked at", n, k)
	}
	for looked := 0; looked < 2*len(x)-2; looked += someLooks { // in turn
		if m.MarkSome(); m.IsEmpty() {
			t.Fatal("none is looked at")
		}
		if n := len(found(BoardCome)); n < someLooks-1 || n > someLooks {
			t.Fatalf("%d are looked at", n)
		}
	}
	turns := make(map[int]bool)
	for range turnPolls * len(x) {
		if p, x := m.Turn(); x != nil {
			turns[p] = true
		}
	}
	if len(turns) != len(x)-1 {
		t.Errorf("%d have had their turn", len(turns))
	}
}
