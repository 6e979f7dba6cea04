package mem

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// shows is a Publisher that keeps what it is told. A key that it has been told to end is in use
// until the test says otherwise.
type shows struct {
	mu    sync.Mutex
	keys  map[uint32]Grant // by place
	last  uint32
	done  []func()
	quick bool // nothing is in use
}

func (s *shows) Publish(g *Grant) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.keys[s.last] = *g
	return s.last, true
}

func (s *shows) End(place uint32, done func()) {
	s.mu.Lock()
	delete(s.keys, place)
	if !s.quick {
		s.done = append(s.done, done)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	done()
}

func (s *shows) count(key uint32) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.keys {
		if g.Key == key {
			n++
		}
	}
	return n
}

func publishing(t *testing.T) (*PD, *shows) {
	t.Helper()
	keys, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	s := &Space{}
	s.Init(Config{Keys: keys, Limits: Limits{PD: 9, MR: 9, MW: 9, MRLen: 1 << 30, MRTotal: 1 << 40},
		Violation: func(err error) { t.Error(err) }, Log: slog.New(slog.DiscardHandler)})
	pd, err := s.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	return pd, &shows{keys: make(map[uint32]Grant), quick: true}
}

func lent(mem uint32) Region { return Region{Bytes: make([]byte, 4096), Lent: Lent{mem, 512}} }

const peersAll = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead

// docs/direct.md#keys: regions that peers may reach and can find are shown, whether they were there
// before or come later, until they end; others are not.
func TestPublish(t *testing.T) {
	pd, p := publishing(t)
	register := func(r Region, access rdma.Access) *MR {
		t.Helper()
		m, err := pd.RegisterRegion(r, 0x1000, 4096, access)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	early := register(lent(7), peersAll)
	pd.Publish(p)
	late := register(lent(8), peersAll)
	for _, m := range []*MR{early, late} {
		if p.count(m.stag) != 1 {
			t.Errorf("key %#x is shown %d times", m.stag, p.count(m.stag))
		}
	}
	if g := p.keys[1]; g != (Grant{Key: early.stag, Access: uint32(peersAll), Addr: 0x1000,
		Length: 4096, Lent: Lent{7, 512}}) {
		t.Errorf("shown as %+v", g)
	}
	for _, m := range []*MR{register(lent(0), peersAll), register(lent(7), rdma.LocalWrite)} {
		if p.count(m.stag) != 0 {
			t.Errorf("%+v is shown", m)
		}
	}
	again, err := pd.ReplaceRegion(late, lent(9), 0x1000, 4096, peersAll)
	if err != nil || p.count(again.stag) != 1 {
		t.Errorf("registered anew: %v, shown %d times", err, p.count(again.stag))
	}
	for _, m := range []*MR{early, again} {
		if err := m.Close(); err != nil || p.count(m.stag) != 0 {
			t.Errorf("closed: %v, shown %d times", err, p.count(m.stag))
		}
	}
}

// Close returns when nobody uses the key any more, and not before.
func TestPublishedInUse(t *testing.T) {
	pd, p := publishing(t)
	p.quick = false
	pd.Publish(p)
	m, err := pd.RegisterRegion(lent(7), 0x1000, 4096, peersAll)
	if err != nil {
		t.Fatal(err)
	}
	m.End()
	if m.Drained() || p.count(m.stag) != 0 || len(p.done) != 1 {
		t.Fatalf("drained %v, shown %d times, ended %d times", m.Drained(), p.count(m.stag), len(p.done))
	}
	closed := make(chan error)
	go func() { closed <- m.Close() }()
	select {
	case <-closed:
		t.Fatal("closed while in use")
	default:
	}
	p.done[0]()
	if err := <-closed; err != nil || !m.Drained() {
		t.Errorf("closed: %v, drained %v", err, m.Drained())
	}
}

// Whoever comes first, one that shows a key or one that ends it: it is not shown in the end, and is
// drained.
func TestPublishRace(t *testing.T) {
	for range 300 {
		pd, p := publishing(t)
		m, err := pd.RegisterRegion(lent(7), 0x1000, 4096, peersAll)
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() { pd.Publish(p) })
		both.Go(m.End)
		both.Wait()
		if p.count(m.stag) != 0 || !m.Drained() {
			t.Fatalf("shown %d times, drained %v", p.count(m.stag), m.Drained())
		}
	}
}
