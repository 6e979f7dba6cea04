package sctphost

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp"
)

// maxOld is how many of them there are at most. The bounds of an Endpoint are its own.
const maxOld = 16

// Journal has j hear of all associations that begin from now on, and of nothing else, until stop is
// called: an Endpoint is heard from its beginning, so they have one of their own. An error: there
// are too many from earlier times whose associations have not ended. Others stay until those are
// over, and no cookie of theirs can come back.
func (s *Host) Journal(j sctp.Journal) (stop func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	if len(s.old) >= maxOld {
		return nil, fmt.Errorf("associations of %d recordings are there still", len(s.old))
	}
	cfg := s.cfg
	cfg.Journal = j
	ep, err := sctp.NewEndpoint(cfg)
	if err != nil {
		return nil, err
	}
	for _, l := range s.listeners {
		err := ep.Listen(l.addr.Port(), sctp.ListenConfig{Locals: l.locals, Options: l.options})
		if err != nil {
			return nil, err
		}
	}
	s.old = append(s.old, s.ep)
	s.ep = ep
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		ep.Forget()
	}, nil
}

// prune lets go of Endpoints that nothing is left of. The lock is held.
//
// +checklocks:s.mu
func (s *Host) prune(now time.Time) {
	s.old = slices.DeleteFunc(s.old, func(ep *sctp.Endpoint) bool {
		idle := ep.Idle(now)
		if idle {
			s.gone.Add(ep.Stats())
		}
		return idle
	})
}

// of is the Endpoint that p is for. The lock is held.
//
// +checklocks:s.mu
func (s *Host) of(p *sctp.Packet) *sctp.Endpoint {
	for _, o := range s.old {
		if o.Concerns(p) {
			return o
		}
	}
	return s.ep
}

// all are all Endpoints. The lock is held.
//
// +checklocks:s.mu
func (s *Host) all() []*sctp.Endpoint {
	if len(s.old) == 0 {
		s.only[0] = s.ep
		return s.only[:]
	}
	return append([]*sctp.Endpoint{s.ep}, s.old...)
}

// output is the next packet of any. The lock is held.
//
// +checklocks:s.mu
func (s *Host) output(now time.Time, b []byte) (d sctp.Datagram, ok bool) {
	for _, o := range s.old {
		if d, ok = o.Output(now, b); ok {
			return d, ok
		}
	}
	return s.ep.Output(now, b)
}

// nextEvent is the next event of any. The lock is held.
//
// +checklocks:s.mu
func (s *Host) nextEvent() (e sctp.Event, ok bool) {
	for _, o := range s.old {
		if e, ok = o.NextEvent(); ok {
			return e, ok
		}
	}
	return s.ep.NextEvent()
}

// deadline is the earliest of all. The lock is held.
//
// +checklocks:s.mu
func (s *Host) deadline() (at time.Time, ok bool) {
	for _, ep := range s.all() {
		if t, is := ep.Deadline(); is && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	return at, ok
}

// stopListening ends l, at all Endpoints. The lock is held.
//
// +checklocks:s.mu
func (s *Host) stopListening(l *Listener) {
	for _, ep := range s.all() {
		ep.StopListening(l.addr.Port(), l.locals)
	}
}

// taken says whether an Endpoint of an earlier time has an association of these ports with a peer.
// The lock is held.
//
// +checklocks:s.mu
func (s *Host) taken(local uint16, peer netip.AddrPort) bool {
	return slices.ContainsFunc(s.old, func(o *sctp.Endpoint) bool { return o.Has(local, peer) })
}
