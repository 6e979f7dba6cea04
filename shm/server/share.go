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

// An account is whom something is counted for: a user, or all users of a Guest's socket.
type account struct {
	guest string
	uid   uint32
}

func accountOf(guest string, peer osmem.Peer) account {
	if guest != "" {
		return account{guest: guest}
	}
	return account{uid: peer.UID}
}

func (a account) String() string {
	if a.guest != "" {
		return "socket " + a.guest
	}
	return fmt.Sprintf("uid %d", a.uid)
}

func (a account) compare(b account) int {
	return cmp.Or(cmp.Compare(a.guest, b.guest), cmp.Compare(a.uid, b.uid))
}

// Privileged reports whether the client is who looks after the daemon, and is not held to what one
// user may have.
func (s *Session) Privileged() bool { return s.srv.privileged(s.guest, s.peer) }

// privileged: nobody is who has come as a guest, root of a container for one.
func (s *Server) privileged(guest string, peer osmem.Peer) bool {
	return guest == "" && s.cfg.Privileged(peer)
}

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
	max   int64             // +checklocks:mu
	all   int64             // +checklocks:mu
	users map[account]int64 // +checklocks:mu
}

func newPool[N int | int64](limit, what string, max N) *pool {
	return &pool{limit: limit, what: what, max: int64(max), users: make(map[account]int64)}
}

// take takes one for a session of who; the error is a *Refusal.
func (p *pool) take(who account, privileged bool) error { return p.takeMany(who, privileged, 1) }

// takeMany takes n, or none.
func (p *pool) takeMany(who account, privileged bool, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.room(who, privileged, n)
	if err == nil {
		p.add(who, n)
	}
	return err
}

// check says why n could not be taken; nil: they could.
func (p *pool) check(who account, privileged bool, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room(who, privileged, n)
}

// room is check with the pool's lock.
//
// +checklocks:p.mu
func (p *pool) room(who account, privileged bool, n int64) error {
	most, all := p.max, p.max
	if !privileged {
		most, all = max(p.max/2, 1), p.max-p.max/8
	}
	wants := ""
	if n > 1 {
		wants = fmt.Sprintf(", and %d are wanted", n)
	}
	switch {
	case n > most-p.users[who]:
		return refuseOver(syscall.ENOMEM, p.limit,
			"%v has %d of the daemon's %d %s, as many as one user may%s", who, p.users[who], p.max,
			p.what, wants)
	case n > all-p.all:
		return refuseOver(syscall.ENOMEM, p.limit, "the daemon's %d %s are taken: %s%s", all, p.what,
			shares(p.users, who, privileged), wants)
	}
	return nil
}

// force takes n beyond all bounds, or gives -n back.
func (p *pool) force(who account, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(who, n)
}

// give gives n back.
func (p *pool) give(who account, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(who, -n)
}

// +checklocks:p.mu
func (p *pool) add(who account, n int64) {
	p.all += n
	if p.users[who] += n; p.users[who] == 0 {
		delete(p.users, who)
	}
}

// count is how many there are; of is how many who has.
func (p *pool) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

func (p *pool) of(who account) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[who]
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
	for _, p := range []*pool{s.ids, s.regions, s.mappings, s.pipes, s.memberships, s.queues} {
		use = append(use, PoolUse{p.limit, p.count()})
	}
	return use
}

// shares says who has how much, the most first, to who may know; to others how much they have.
func shares[N cmp.Ordered](users map[account]N, to account, privileged bool) string {
	if !privileged {
		return fmt.Sprintf("%v has %v, others the rest", to, users[to])
	}
	all := slices.SortedFunc(maps.Keys(users), func(a, b account) int {
		return cmp.Or(cmp.Compare(users[b], users[a]), a.compare(b))
	})
	const most = 8
	var b strings.Builder
	for i, who := range all[:min(len(all), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%v has %v", who, users[who])
	}
	if n := len(all) - most; n > 0 {
		fmt.Fprintf(&b, ", %d more have the rest", n)
	}
	return b.String()
}

// maxLookers is how many sessions beyond the limits root and the daemon's own user may have, to
// list and count.
const maxLookers = 16

// room says why there is no room for one more session of who; nil: there is.
//
// +checklocks:s.mu
func (s *Server) room(who account, privileged bool) error {
	full := s.limits.Sessions
	if !privileged {
		full -= full / 16
	}
	n := 0
	for _, have := range s.perUser {
		n += have
	}
	switch {
	case s.perUser[who] >= s.limits.SessionsPerUID:
		return refuseOver(syscall.ENOMEM, "sessions-per-uid",
			"%v has %d sessions, as many as one user may", who, s.perUser[who])
	case n >= full:
		return refuseOver(syscall.ENOMEM, "sessions", "the daemon's %d sessions are taken: %s", full,
			shares(s.perUser, who, privileged))
	}
	return nil
}
