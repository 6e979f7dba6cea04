package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
)

// Who uses up what all share must not keep out the one who is to look after it. Root and the
// daemon's own user could end the daemon anyway, so only others are held to a part of it.

// privileged reports whether the client is who looks after the daemon.
func (s *Session) privileged() bool { return s.srv.cfg.Privileged(s.peer) }

// A Refusal is an error that a client is told of in words, not by its errno alone.
type Refusal struct {
	Errno syscall.Errno
	Why   string
}

func (r *Refusal) Error() string { return r.Why }
func (r *Refusal) Unwrap() error { return r.Errno }

// refuseOver says that a limit has been reached, and how to raise it.
func refuseOver(errno syscall.Errno, name, format string, args ...any) error {
	return &Refusal{errno, fmt.Sprintf("%s (\"vrnic up --limit %s=N\" sets the limit)",
		fmt.Sprintf(format, args...), name)}
}

// overLimit says that a session has as much as the limit allows; ENOMEM.
func (s *Session) overLimit(name string) error { return s.overBy(syscall.ENOMEM, name) }

// overBy is overLimit with another errno.
func (s *Session) overBy(errno syscall.Errno, name string) error {
	for i := range LimitTable {
		if t := &LimitTable[i]; t.Name == name {
			return refuseOver(errno, name, "over the limit of %d %s", s.limits.Get(t), t.Help)
		}
	}
	return errno
}

// A pool is something of which all sessions of the daemon together may have so much. A user may
// have half of it, all users seven eighths; privileged ones may have all.
type pool struct {
	limit string // its name in LimitTable
	what  string // there is so much of

	mu    sync.Mutex
	max   int64            // +checklocks:mu
	all   int64            // +checklocks:mu
	users map[uint32]int64 // +checklocks:mu
}

func newPool(limit, what string, max int) *pool {
	return &pool{limit: limit, what: what, max: int64(max), users: make(map[uint32]int64)}
}

// take takes one for a session of peer; the error is a *Refusal.
func (p *pool) take(peer osmem.Peer, privileged bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	most, all := p.max, p.max
	if !privileged {
		most, all = max(p.max/2, 1), p.max-p.max/8
	}
	switch {
	case p.users[peer.UID] >= most:
		return refuseOver(syscall.ENOMEM, p.limit,
			"uid %d has %d of the daemon's %d %s, as many as one user may",
			peer.UID, p.users[peer.UID], p.max, p.what)
	case p.all >= all:
		return refuseOver(syscall.ENOMEM, p.limit, "the daemon's %d %s are taken: %s", all, p.what,
			shares(p.users, peer, privileged))
	}
	p.add(peer, 1)
	return nil
}

// force is take beyond all bounds.
func (p *pool) force(peer osmem.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(peer, 1)
}

// give gives n back.
func (p *pool) give(peer osmem.Peer, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(peer, -int64(n))
}

// +checklocks:p.mu
func (p *pool) add(peer osmem.Peer, n int64) {
	p.all += n
	if p.users[peer.UID] += n; p.users[peer.UID] == 0 {
		delete(p.users, peer.UID)
	}
}

// count is how many there are; of is how many uid has.
func (p *pool) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

func (p *pool) of(uid uint32) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[uid]
}

// A PoolUse is how much of what all sessions share is taken. Limit is the name of its bound.
type PoolUse struct {
	Limit string
	Used  int64
}

// Pools says how much is taken of what all sessions share.
func (s *Server) Pools() []PoolUse {
	s.mu.Lock()
	use := []PoolUse{{"sessions", int64(len(s.sessions))}}
	s.mu.Unlock()
	for _, p := range []*pool{s.ids, s.regions, s.mappings, s.pipes, s.memberships} {
		use = append(use, PoolUse{p.limit, p.count()})
	}
	return use
}

// shares says who has how much, the most first, to who may know; to others how much they have.
func shares[N cmp.Ordered](users map[uint32]N, to osmem.Peer, privileged bool) string {
	if !privileged {
		return fmt.Sprintf("uid %d has %v, others the rest", to.UID, users[to.UID])
	}
	uids := slices.SortedFunc(maps.Keys(users), func(a, b uint32) int {
		return cmp.Or(cmp.Compare(users[b], users[a]), cmp.Compare(a, b))
	})
	const most = 8
	var b strings.Builder
	for i, uid := range uids[:min(len(uids), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "uid %d has %v", uid, users[uid])
	}
	if n := len(uids) - most; n > 0 {
		fmt.Fprintf(&b, ", %d more have the rest", n)
	}
	return b.String()
}

// maxLookers is how many sessions beyond the limits root and the daemon's own user may have, to
// list and count.
const maxLookers = 16

// room says why there is no room for one more session of peer; nil: there is.
//
// +checklocks:s.mu
func (s *Server) room(peer osmem.Peer) error {
	full := s.limits.Sessions
	privileged := s.cfg.Privileged(peer)
	if !privileged {
		full -= full / 16
	}
	n := 0
	for _, have := range s.perUID {
		n += have
	}
	switch {
	case s.perUID[peer.UID] >= s.limits.SessionsPerUID:
		return refuseOver(syscall.ENOMEM, "sessions-per-uid",
			"uid %d has %d sessions, as many as one user may",
			peer.UID, s.perUID[peer.UID])
	case n >= full:
		return refuseOver(syscall.ENOMEM, "sessions", "the daemon's %d sessions are taken: %s", full,
			shares(s.perUID, peer, privileged))
	}
	return nil
}
