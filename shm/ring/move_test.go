package ring

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// A CQ that changes its memory while completions wait, at any place of the index and to more or
// fewer entries, gives each completion once and in order, and its event too.
func TestCQMove(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tokens := 0
	chmem := make([]byte, ChannelMemSize)
	ch := NewChannelProducer(chmem, 1, func() { tokens++ }, nil)
	events, err := OpenChannelConsumer(chmem)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, CQMemSize(4))
	p := NewCQProducer(mem, 4, 9, ch, nil)
	c, err := OpenCQConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	pushed, polled, armed := uint64(0), uint64(0), false
	for range 3000 {
		for n := rnd.IntN(c.Size()*2 + 1); n > 0 && int(pushed-polled) < c.Size(); n-- {
			if err := p.Push(&abi.CQE{WRID: pushed}, false); err != nil {
				t.Fatal(err)
			}
			pushed++
			if armed {
				if tokens != 1 {
					t.Fatalf("%d events for an armed CQ", tokens)
				}
				armed = false
			}
		}
		// Sometimes the event is taken before the CQ moves, and sometimes behind it.
		takeEvent := func() {
			if tokens == 0 {
				return
			}
			tokens--
			if h, ok, err := events.Pop(); h != 9 || !ok || err != nil {
				t.Fatalf("event of CQ %d, %v, %v", h, ok, err)
			}
			c.TakeEvent()
		}
		if rnd.IntN(2) == 0 {
			takeEvent()
		}
		if size := uint32(1) << rnd.IntN(5); rnd.IntN(3) == 0 {
			next := make([]byte, CQMemSize(size))
			err := p.Move(next, size)
			if small := pushed-polled > uint64(size); small != errors.Is(err, syscall.EINVAL) {
				t.Fatalf("%d completions to %d entries: %v", pushed-polled, size, err)
			}
			if err == nil {
				clear(mem) // nobody reads it any more
				mem = next
				n, err := OpenCQConsumer(mem)
				if err != nil || n.Handle() != 9 || n.Size() != int(size) || p.Size() != int(size) {
					t.Fatalf("%v: CQ %d of %d entries", err, n.Handle(), n.Size())
				}
				n.Follow(c)
				c = n
			}
		}
		takeEvent()
		for n := rnd.IntN(4); n > 0; n-- {
			var e abi.CQE
			ok, err := c.Poll(&e)
			if err != nil || ok != (polled < pushed) || ok && e.WRID != polled {
				t.Fatalf("%v, %v, wr_id %d: %d were pushed, %d polled", ok, err, e.WRID, pushed, polled)
			}
			if ok {
				polled++
			}
		}
		if tokens == 0 && !armed && rnd.IntN(2) == 0 {
			c.Arm(false)
			armed = true
		}
	}
}

// What a client writes into its own index does not have the daemon copy beyond a ring; a CQ that
// has overrun stays so.
func TestCQMoveViolation(t *testing.T) {
	mem := make([]byte, CQMemSize(4))
	p := NewCQProducer(mem, 4, 1, nil, nil)
	for _, cons := range []uint32{1, 5, 1 << 31, ^uint32(0) - 4} {
		abi.Word(mem, abi.CQCons).Store(cons)
		if err := p.Move(make([]byte, CQMemSize(64)), 64); !abi.IsViolation(err) || p.Size() != 4 {
			t.Errorf("cons %#x: %v, and the CQ has %d entries", cons, err, p.Size())
		}
	}
	abi.Word(mem, abi.CQCons).Store(0)
	for range 5 {
		_ = p.Push(&abi.CQE{}, false) // the last finds no room
	}
	next := make([]byte, CQMemSize(8))
	if err := p.Move(next, 8); err != nil || abi.Word(next, abi.CQOverrun).Load() != 1 {
		t.Errorf("a CQ that has overrun: %v, overrun %d", err, abi.Word(next, abi.CQOverrun).Load())
	}
	if err := p.Push(&abi.CQE{}, false); !errors.Is(err, ErrCQOverrun) {
		t.Errorf("a completion for it: %v", err)
	}
}

// A QP that is reset has its completions taken away, and those of others stay.
func TestCQDrop(t *testing.T) {
	mem := make([]byte, CQMemSize(8))
	p := NewCQProducer(mem, 8, 1, nil, nil)
	c, err := OpenCQConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(8) {
		if err := p.Push(&abi.CQE{WRID: i, QPN: 1 + uint32(i%2)}, false); err != nil {
			t.Fatal(err)
		}
	}
	var dropped []uint64
	if err := c.Drop(2, func(e *abi.CQE) { dropped = append(dropped, e.WRID) }); err != nil ||
		len(dropped) != 4 || dropped[3] != 7 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	for i := range uint64(8) {
		var e abi.CQE
		want := uint32(1)
		if i%2 == 1 {
			want = 0
		}
		if ok, err := c.Poll(&e); !ok || err != nil || e.WRID != i || e.QPN != want {
			t.Errorf("%+v, %v, %v: want %d of QP %#x", e, ok, err, i, want)
		}
	}
	abi.Word(mem, abi.CQProd).Store(99)
	if err := c.Drop(1, func(*abi.CQE) {}); !abi.IsViolation(err) {
		t.Errorf("prod is nonsense: %v", err)
	}
}
