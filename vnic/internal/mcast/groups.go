// Package mcast knows which queue pairs of a device are attached to which multicast groups.
package mcast

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A Config says who is told of groups, and how many there may be.
type Config[T comparable] struct {
	// Join and Leave are the network's: a group is joined as long as a member is attached to it.
	Join  func(netip.Addr) error
	Leave func(netip.Addr) error

	Groups  int // that have members
	Members int // of a group
	// Owner says whose a member is; PerOwner is how many times those of one are attached.
	Owner    func(T) any
	PerOwner int
}

// Groups has the members of all groups of a device. Any goroutine may use it.
type Groups[T comparable] struct {
	cfg Config[T]

	mu sync.Mutex
	// members is replaced as a whole, so that who looks up has no lock to take; written with mu held.
	members atomic.Pointer[map[netip.Addr][]T]
	groups  map[T]int   // +checklocks:mu
	owned   map[any]int // +checklocks:mu
}

// New makes a table of no groups.
func New[T comparable](cfg Config[T]) *Groups[T] {
	g := &Groups[T]{cfg: cfg, groups: make(map[T]int), owned: make(map[any]int)}
	g.members.Store(&map[netip.Addr][]T{})
	return g
}

// Members are those of a group. What is returned does not change.
func (g *Groups[T]) Members(group netip.Addr) []T { return (*g.members.Load())[group] }

// Attach makes t a member of group; it may be one already. rdma.ErrInvalid: group is none;
// rdma.ErrLimit; or what Join or ok says, which is asked whether t may be attached to anything.
func (g *Groups[T]) Attach(group netip.Addr, t T, ok func() error) error {
	if !group.IsMulticast() {
		return fmt.Errorf("%v is no multicast group: %w", group, rdma.ErrInvalid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ok(); err != nil {
		return err
	}
	all := *g.members.Load()
	of := all[group]
	owner := g.cfg.Owner(t)
	switch {
	case slices.Contains(of, t):
		return nil
	case g.owned[owner] >= g.cfg.PerOwner:
		return fmt.Errorf("queue pairs are attached to groups %d times: %w", g.owned[owner],
			rdma.ErrLimit)
	case len(of) >= g.cfg.Members:
		return fmt.Errorf("%d queue pairs are attached to %v: %w", len(of), group, rdma.ErrLimit)
	case len(of) == 0:
		if len(all) >= g.cfg.Groups {
			return fmt.Errorf("queue pairs are attached to %d groups: %w", len(all), rdma.ErrLimit)
		}
		if err := g.cfg.Join(group); err != nil {
			return err
		}
	}
	g.replace(group, append(slices.Clone(of), t))
	g.groups[t]++
	g.owned[owner]++
	return nil
}

// Detach takes Attach back. rdma.ErrInvalid: t is not a member of group.
func (g *Groups[T]) Detach(group netip.Addr, t T) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.Members(group), t) {
		return fmt.Errorf("it is not attached to %v: %w", group, rdma.ErrInvalid)
	}
	return g.detach(group, t)
}

// detach takes t, which is a member, from group.
//
// +checklocks:g.mu
func (g *Groups[T]) detach(group netip.Addr, t T) error {
	of := slices.Clone(g.Members(group))
	i := slices.Index(of, t)
	of = slices.Delete(of, i, i+1)
	g.replace(group, of)
	if g.groups[t]--; g.groups[t] == 0 {
		delete(g.groups, t)
	}
	owner := g.cfg.Owner(t)
	if g.owned[owner]--; g.owned[owner] == 0 {
		delete(g.owned, owner)
	}
	if len(of) == 0 {
		return g.cfg.Leave(group)
	}
	return nil
}

// +checklocks:g.mu
func (g *Groups[T]) replace(group netip.Addr, of []T) {
	all := maps.Clone(*g.members.Load())
	if len(of) > 0 {
		all[group] = of
	} else {
		delete(all, group)
	}
	g.members.Store(&all)
}

// Unless calls f if t is attached to nothing, and nothing is attached meanwhile; else it is
// rdma.ErrBusy.
func (g *Groups[T]) Unless(t T, f func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.groups[t]; n > 0 {
		return fmt.Errorf("it is attached to %d multicast groups, detach it first: %w", n, rdma.ErrBusy)
	}
	f()
	return nil
}

// Remove detaches t from all groups.
func (g *Groups[T]) Remove(t T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.groups[t] == 0 {
		return
	}
	for group, of := range *g.members.Load() {
		if slices.Contains(of, t) {
			// There is nobody to tell that a group could not be left: the network is gone then.
			_ = g.detach(group, t)
		}
	}
}

// Len is how many groups have members.
func (g *Groups[T]) Len() int { return len(*g.members.Load()) }
