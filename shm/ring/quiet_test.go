package ring

import (
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// In a quiet time nothing is told, and behind it what has come, in its order; of a CQ that was
// destroyed meanwhile nothing.
func TestChannelQuiet(t *testing.T) {
	tokens := 0
	mem := make([]byte, ChannelMemSize)
	ch := NewChannelProducer(mem, 3, func() { tokens++ }, nil)
	var cqs []*CQProducer
	for h := uint32(1); h <= 3; h++ {
		cq := NewCQProducer(make([]byte, CQMemSize(4)), 4, h, ch, nil)
		cq.arm.Store(abi.ArmNext)
		cqs = append(cqs, cq)
	}
	ch.Quiet(true)
	for _, cq := range cqs {
		if err := cq.Push(&abi.CQE{}, false); err != nil {
			t.Fatal(err)
		}
	}
	cc, err := OpenChannelConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := cc.Pop(); ok || err != nil || tokens != 0 {
		t.Errorf("told in a quiet time: %v, %v, %d tokens", ok, err, tokens)
	}
	if n, err := cc.Cancel(2); n != 0 || err != nil {
		t.Errorf("%d tokens of what was not told, %v", n, err)
	}
	cqs[1].Close()
	ch.Quiet(false)
	for _, want := range []uint32{1, 3} {
		if h, ok, err := cc.Pop(); h != want || !ok || err != nil {
			t.Errorf("popped %d, %v, %v; want %d", h, ok, err, want)
		}
	}
	if _, ok, _ := cc.Pop(); ok || tokens != 2 {
		t.Errorf("more than that, or %d tokens", tokens)
	}
}

// A client that marks its events as taken, and has none, is found out in a quiet time as in any
// other: what is held back and what is in the ring are no more than its places.
func TestChannelQuietOverrun(t *testing.T) {
	failed := 0
	ch := NewChannelProducer(make([]byte, ChannelMemSize), 3, func() {}, func(error) { failed++ })
	ch.push(1)
	ch.Quiet(true)
	for range abi.ChanSlots - 1 {
		ch.push(1)
	}
	if failed != 0 {
		t.Fatalf("failed %d times at as many as there are places", failed)
	}
	for range 3 {
		ch.push(1)
	}
	if failed != 3 || len(ch.held) != abi.ChanSlots-1 {
		t.Errorf("failed %d times of 3, %d events held back", failed, len(ch.held))
	}
	ch.Quiet(false)
	if failed != 3 {
		t.Error("what was held back has no room in the ring")
	}
}
