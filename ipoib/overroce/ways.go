package overroce

import (
	"slices"
	"sync"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
)

// Bounds of the ways to ports: what a peer says of its address need not be true.
const (
	maxWays    = 4096
	maxLooking = 64 // ways that are looked for at a time
	maxWaiting = 16 // frames that wait for one of them
)

// ways are the address handles of ports and groups.
type ways struct {
	l *Link

	mu      sync.RWMutex
	known   map[ipoib.GID]rdma.AH   // +checklocks:mu
	looking map[ipoib.GID][]waiting // +checklocks:mu
}

// A waiting frame goes when the way is known.
type waiting struct {
	way   ipoib.Way
	frame []byte
}

func newWays(l *Link) *ways {
	return &ways{l: l, known: map[ipoib.GID]rdma.AH{}, looking: map[ipoib.GID][]waiting{}}
}

// find is the handle of the address handle for a port or a group, 0: it has to be looked for.
func (s *ways) find(g ipoib.GID) uint32 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if ah := s.known[g]; ah != nil {
		return ah.Handle()
	}
	return 0
}

// look looks for the way of a frame, which is copied, and goes when it is found.
func (s *ways) look(w ipoib.Way, frame []byte) {
	s.mu.Lock()
	queue, looking := s.looking[w.To.GID]
	ok := len(queue) < maxWaiting && (looking || len(s.looking) < maxLooking)
	if ok {
		s.looking[w.To.GID] = append(queue, waiting{w, slices.Clone(frame)})
	}
	s.mu.Unlock()
	switch {
	case !ok:
		s.l.drop(func(d *Drops) { d.NoRoute++ })
	case !looking:
		s.l.wg.Go(func() { s.make(w.To.GID) })
	}
}

// make makes an address handle, and sends what waits for it.
func (s *ways) make(g ipoib.GID) {
	ah, err := s.l.sides[0].pd.CreateAH(rdma.AHAttr{GID: rdma.GID(g), GIDIndex: s.l.gidIndex,
		Port: 1, Global: true})
	s.mu.Lock()
	queue := s.looking[g]
	delete(s.looking, g)
	var old rdma.AH
	if err == nil {
		if len(s.known) >= maxWays {
			for other, x := range s.known {
				old = x
				delete(s.known, other)
				break
			}
		}
		s.known[g] = ah
	}
	s.mu.Unlock()
	if old != nil {
		_ = old.Close() // what was posted still goes by it
	}
	if err != nil {
		s.l.log.Debug("no way to a port", "gid", g.Addr(), "err", err)
		s.l.drop(func(d *Drops) { d.NoRoute += uint64(len(queue)) })
		return
	}
	for _, f := range queue {
		s.l.sendFrame(f.way, f.frame)
	}
}
