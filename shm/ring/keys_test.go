package ring_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
)

// keyTest is a pair whose first program has the keys of the second's domain.
func keyTest(t *testing.T) (p *pairTest, table *ring.KeyTable, mem []byte) {
	t.Helper()
	p = newPairTest(t, 0)
	mem = make([]byte, ring.KeyTableLen)
	table = ring.NewKeyTable(mem)
	table.Join(&p.pair.Dirs[0])
	p.pair.Dirs[0].Open()
	return p, table, mem
}

// find is what a program finds of a key.
func find(mem []byte, key uint32) []byte {
	for i := range uint32(8) {
		e := mem[abi.KeysHeaderLen+(key>>8+i)%ring.KeyTableSize*abi.KeyLen:][:abi.KeyLen]
		if abi.Word(e, abi.KeyKey).Load() == key {
			return e
		}
	}
	return nil
}

// docs/direct.md#keys: what is published is found until it is ended, and only then does another key
// get its place.
func TestKeyTable(t *testing.T) {
	_, table, mem := keyTest(t)
	var places []uint32
	for i := range uint32(8) { // they differ in what does not say where they are
		k := &ring.Key{Key: 77<<8 | i, Access: 2, QPN: 5, Mem: 9, Addr: 1 << 40, Length: 1 << 33,
			Offset: 4096}
		place, ok := table.Publish(k)
		if !ok {
			t.Fatalf("no place for key %d of 8", i)
		}
		places = append(places, place)
		e := find(mem, k.Key)
		if e == nil || abi.Word(e, abi.KeyAccess).Load() != 2 || abi.Word(e, abi.KeyQPN).Load() != 5 ||
			abi.Word(e, abi.KeyMem).Load() != 9 || abi.Word64(e, abi.KeyAddr).Load() != 1<<40 ||
			abi.Word64(e, abi.KeyLength).Load() != 1<<33 || abi.Word64(e, abi.KeyOffset).Load() != 4096 {
			t.Errorf("key %#x is found as %x", k.Key, e)
		}
	}
	if _, ok := table.Publish(&ring.Key{Key: 77 << 8}); ok {
		t.Error("a ninth key has a place")
	}
	if !table.Opens(9) || table.Opens(8) || table.Opens(0) {
		t.Error("other memory is opened than the keys'")
	}
	over := 0
	table.End(places[3], func() { over++ })
	if find(mem, 77<<8|3) != nil || over != 1 {
		t.Errorf("a key that is ended is found, or in use: %d", over)
	}
	if _, ok := table.Publish(&ring.Key{Key: 77<<8 | 200}); !ok || find(mem, 77<<8|200) == nil {
		t.Error("its place is not free")
	}
	for i, place := range places {
		if i != 3 {
			table.End(place, func() {})
		}
	}
	if table.Opens(9) {
		t.Error("keys that are ended open memory")
	}
}

// A key that a sender may have found is used until that sender goes on, whatever it does next, or
// is gone; its place is nobody's meanwhile. Who ends it does not wait.
func TestKeyInUse(t *testing.T) {
	for name, settle := range map[string]func(p *pairTest){
		"even": func(p *pairTest) { p.word(abi.DirSeq).Store(8) },
		"odd":  func(p *pairTest) { p.word(abi.DirSeq).Store(9) },
		"dead": func(p *pairTest) { p.gone.Store(true) },
		"over": func(p *pairTest) { p.pair.End() },
	} {
		t.Run(name, func(t *testing.T) {
			p, table, mem := keyTest(t)
			key := &ring.Key{Key: 1234, Mem: 1, Length: 1}
			place, _ := table.Publish(key)
			p.word(abi.DirSeq).Store(7)
			over := make(chan struct{})
			table.End(place, func() { close(over) })
			if find(mem, key.Key) != nil {
				t.Error("it is found")
			}
			if other, _ := table.Publish(&ring.Key{Key: 1235, Mem: 2, Length: 1}); other == place {
				t.Error("its place has another key")
			}
			select {
			case <-over:
				t.Fatal("it is said to be in use no more")
			default:
			}
			settle(p)
			<-over
			if again, _ := table.Publish(key); again != place {
				t.Errorf("its place %d is not free: the key is at %d", place, again)
			}
		})
	}
}

// A sender that has seen that its direction is closed, or will, has found nothing.
func TestKeyClosed(t *testing.T) {
	p, table, _ := keyTest(t)
	place, _ := table.Publish(&ring.Key{Key: 1234, Mem: 1, Length: 1})
	p.pair.Dirs[0].Shut()
	p.word(abi.DirSeq).Store(7)
	over := false
	table.End(place, func() { over = true })
	if !over {
		t.Error("a sender is waited for that does nothing")
	}
	p, table, _ = keyTest(t)
	place, _ = table.Publish(&ring.Key{Key: 1234, Mem: 1, Length: 1})
	p.word(abi.DirSeq).Store(7)
	table.Leave(&p.pair.Dirs[0])
	table.End(place, func() { over = false })
	if over {
		t.Error("a sender is waited for that has left")
	}
}

// newUncovered is a pair whose QPs complete on one CQ, cq, that their queues can overrun.
func newUncovered(t *testing.T) (p *pairTest, cq []byte) {
	t.Helper()
	p = newPairTest(t, 0)
	cq = make([]byte, ring.CQMemSize(pairDepth))
	producer := ring.NewCQProducer(cq, pairDepth, 1, nil, nil)
	for i := range p.ends {
		p.ends[i].SendCQ = producer
		p.ends[i].Covered = false
	}
	clear(p.mem)
	p.pair = ring.NewPair(p.mem, &p.ends)
	p.pair.Attach()
	return p, cq
}

// docs/direct.md#who: where a CQ is smaller than what its queues can complete it runs over when it
// would have without the direct path.
func TestPairUncovered(t *testing.T) {
	p, _ := newUncovered(t)
	p.word(abi.DirCompleted).Store(3)
	p.word(abi.DirPolled).Store(1)
	for i, want := range []error{nil, nil, ring.ErrCQOverrun} {
		if err := p.ends[0].SendCQ.Push(&abi.CQE{}, false); err != want {
			t.Errorf("completion %d, with 2 of %d places taken: %v, want %v", i, pairDepth, err, want)
		}
	}
}

// What a QP that has left its pair had not polled takes no place in its CQ, also while the peer has
// the pair.
func TestPairUncoveredLeft(t *testing.T) {
	p, _ := newUncovered(t)
	p.word(abi.DirCompleted).Store(3)
	p.pair.Leave(0)
	for i := range pairDepth {
		if err := p.ends[0].SendCQ.Push(&abi.CQE{}, false); err != nil {
			t.Fatalf("completion %d of %d: %v", i, pairDepth, err)
		}
	}
}

// A program that posts and polls while the daemon looks, on two QPs in turn, has no overrun.
func TestPairUncoveredBusy(t *testing.T) {
	p, cq := newUncovered(t)
	other := p.mem[abi.Word(p.mem, abi.PairOff+4).Load():]
	var over atomic.Bool
	var posts sync.WaitGroup
	posts.Go(func() {
		const n = pairDepth - 1
		for i := uint32(n); !over.Load(); i += n {
			for _, dir := range [][]byte{p.dir, other} {
				abi.Word(dir, abi.DirCompleted).Store(i)
				abi.Word(dir, abi.DirPolled).Store(i)
			}
		}
	})
	for i := range uint32(50000) {
		if err := p.ends[0].SendCQ.Push(&abi.CQE{}, false); err != nil {
			t.Errorf("completion %d, with at most %d of %d places taken: %v", i, pairDepth-1, pairDepth, err)
			break
		}
		abi.Word(cq, abi.CQCons).Store(i + 1)
	}
	over.Store(true)
	posts.Wait()
}

// A table of keys that makes no sense is refused, and nothing is read beyond it.
func TestPairKeysNonsense(t *testing.T) {
	for name, write := range map[string]func(mem []byte){
		"magic":  func(mem []byte) { abi.Word(mem, abi.KeysMagic).Add(1) },
		"size":   func(mem []byte) { abi.Word(mem, abi.KeysSize).Store(ring.KeyTableSize - 1) },
		"none":   func(mem []byte) { abi.Word(mem, abi.KeysSize).Store(0) },
		"beyond": func(mem []byte) { abi.Word(mem, abi.KeysSize).Store(1 << 31) },
		"offset": func(mem []byte) { abi.Word(mem, abi.KeysOff).Store(2 * abi.KeysHeaderLen) },
		"odd":    func(mem []byte) { abi.Word(mem, abi.KeysOff).Store(8) },
	} {
		mem := make([]byte, ring.KeyTableLen)
		ring.NewKeyTable(mem)
		if _, err := ring.OpenPairKeys(mem, nil); err != nil {
			t.Fatal(err)
		}
		write(mem)
		if _, err := ring.OpenPairKeys(mem, nil); !abi.IsViolation(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ring.OpenPairKeys(make([]byte, 8), nil); !abi.IsViolation(err) {
		t.Errorf("8 octets: %v", err)
	}
}
