package mem

import (
	"fmt"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// Keys are the STags of a device, and what each of them gives.
type Keys struct {
	mu       sync.Mutex
	source   *stagSource         // +checklocks:mu
	prefixes map[uint32]struct{} // guarded by mu: those of key slots
	shards   [keyShards]keyShard
}

// STags are looked up for each segment: the map is split, so that QPs do not meet on one lock.
const keyShards = 64

type keyShard struct {
	mu sync.RWMutex
	m  map[uint32]*MR // +checklocks:mu
}

// maxPrefixes bounds the prefixes in use, far below the 2^23 that there are.
const maxPrefixes = 1 << 22

// NewKeys makes the keys of a device; an error says that there are no random numbers.
func NewKeys() (*Keys, error) {
	source, err := newSTagSource()
	if err != nil {
		return nil, err
	}
	k := &Keys{source: source, prefixes: make(map[uint32]struct{})}
	for i := range k.shards {
		k.shards[i].m = make(map[uint32]*MR)
	}
	return k, nil
}

// Len is how many STags are in force.
func (k *Keys) Len() (n int) {
	for i := range k.shards {
		s := &k.shards[i]
		s.mu.RLock()
		n += len(s.m)
		s.mu.RUnlock()
	}
	return n
}

func (k *Keys) shard(stag uint32) *keyShard { return &k.shards[stag%keyShards] }

// insert gives m an STag and makes it known.
func (k *Keys) insert(m *MR) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		m.stag = k.source.next()
		s := k.shard(m.stag)
		s.mu.Lock()
		_, taken := s.m[m.stag]
		if !taken {
			s.m[m.stag] = m
		}
		s.mu.Unlock()
		if !taken {
			return
		}
	}
}

// takePrefix takes a prefix that nobody has, unless most are in use, and returns a key with it.
func (k *Keys) takePrefix(most int) (key uint32, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.prefixes) >= most {
		return 0, fmt.Errorf("%d windows and fast regions are on the device: %w",
			len(k.prefixes), rdma.ErrLimit)
	}
	for {
		key = k.source.nextPrefix()
		if _, taken := k.prefixes[key>>8]; !taken {
			k.prefixes[key>>8] = struct{}{}
			return key, nil
		}
	}
}

func (k *Keys) dropPrefix(key uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.prefixes, key>>8)
}

// replace makes m known under the key that it has: one of its slot's, or that of another region,
// which is known no more.
func (k *Keys) replace(m *MR) {
	s := k.shard(m.stag)
	s.mu.Lock()
	s.m[m.stag] = m
	s.mu.Unlock()
}

func (k *Keys) remove(m *MR) {
	s := k.shard(m.stag)
	s.mu.Lock()
	if s.m[m.stag] == m {
		delete(s.m, m.stag)
	}
	s.mu.Unlock()
}

func (k *Keys) lookup(stag uint32) *MR {
	s := k.shard(stag)
	s.mu.RLock()
	m := s.m[stag]
	s.mu.RUnlock()
	return m
}
