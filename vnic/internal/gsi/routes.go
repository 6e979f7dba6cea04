package gsi

import (
	"container/list"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
)

const (
	maxRoutes  = 1024            // ways that are remembered
	maxFinding = 64              // ways that are looked for at a time, for each of two kinds
	maxWaiting = 16              // messages that wait for one of them
	findTime   = 5 * time.Second // for a way
	// leastFind is how long a way is looked for at least: the neighbours on a link answer in less.
	leastFind = 20 * time.Millisecond
)

// routes are those that are known, or looked for.
//
// An answer goes where the packet that it answers says that it comes from, and nobody need be
// there: such a search lasts until its time is over, and whoever sends packets with many sources
// has many begin. So answers have searches of their own, and the oldest of them ends when there are
// too many: neighbours that are there are found, and what programs of this device ask for is.
type routes struct {
	known   map[pair]*route
	finding [2]list.List // of *route, the oldest first; by kind
}

// The kinds of searches.
const (
	forPrograms = iota
	forPeers
)

// A pair is from an address of the device to a peer.
type pair struct{ from, to netip.Addr }

// A route is the way from one to the other, known or looked for.
type route struct {
	pair
	found   datagram.Route // nil: looked for
	waiting []cm.Packet

	// While it is looked for:
	kind  int
	at    *list.Element // of routes.finding[kind]
	begun time.Time
	stop  context.CancelFunc
}

// route is the way of p, nil if it has to be found, and p waits for that, or is lost.
func (m *Manager) route(p *cm.Packet) datagram.Route {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.cfg.Route == nil {
		return nil
	}
	kind := forPrograms
	if p.Answers {
		kind = forPeers
	}
	w := pair{p.From, p.To}
	r := m.routes.known[w]
	if r == nil {
		if r = m.routes.begin(w, kind); r == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(m.ctx, findTime)
		r.stop = cancel
		m.wg.Add(1)
		go m.find(ctx, r)
	}
	if r.found == nil {
		m.routes.wait(r, p, kind)
	}
	return r.found
}

// begin is a search, nil: there are too many.
func (s *routes) begin(w pair, kind int) *route {
	now := time.Now()
	all := &s.finding[kind]
	if all.Len() >= maxFinding {
		oldest := all.Front().Value.(*route)
		if now.Sub(oldest.begun) < leastFind {
			return nil
		}
		s.end(oldest)
		delete(s.known, oldest.pair)
	}
	for k, old := range s.known {
		if len(s.known) < maxRoutes {
			break
		}
		if old.found != nil {
			delete(s.known, k)
		}
	}
	r := &route{pair: w, kind: kind, begun: now}
	r.at = all.PushBack(r)
	s.known[w] = r
	return r
}

// wait has p wait for r. What a program waits for is looked for as such, and finds room.
func (s *routes) wait(r *route, p *cm.Packet, kind int) {
	if kind < r.kind && s.finding[kind].Len() < maxFinding {
		s.finding[r.kind].Remove(r.at)
		r.kind = kind
		r.at = s.finding[kind].PushBack(r)
	}
	if len(r.waiting) >= maxWaiting {
		i := slices.IndexFunc(r.waiting, func(p cm.Packet) bool { return p.Answers })
		if p.Answers || i < 0 {
			return
		}
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	r.waiting = append(r.waiting, *p)
}

// end ends a search; false: it was over.
func (s *routes) end(r *route) bool {
	if r.at == nil {
		return false
	}
	s.finding[r.kind].Remove(r.at)
	r.at = nil
	r.stop()
	return true
}

// find looks for a way, and sends what has waited for it.
func (m *Manager) find(ctx context.Context, r *route) {
	defer m.wg.Done()
	found, err := m.cfg.Route(ctx, r.from, r.to)
	if err != nil && m.cfg.Log != nil {
		m.cfg.Log.Debug("no way for connection management", "from", r.from, "to", r.to, "err", err)
	}
	m.mu.Lock()
	waiting := r.waiting
	r.waiting = nil
	if m.routes.end(r) {
		if err == nil {
			r.found = found
		} else {
			delete(m.routes.known, r.pair)
		}
	}
	m.mu.Unlock()
	if err != nil {
		return
	}
	for i := range waiting {
		m.transmit(found, &waiting[i])
	}
}
