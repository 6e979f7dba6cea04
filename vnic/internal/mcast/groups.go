// Package mcast knows who of a device is in which multicast groups, and which queue pairs are
// attached to them.
package mcast

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// A Config says who is told of groups, and how many there may be.
type Config[T comparable] struct {
	// Join and Leave are the network's: a group is joined as long as somebody is in it.
	Join  func(netip.Addr) error
	Leave func(netip.Addr) error

	Groups  int // that somebody is in
	Members int // of a group
	// Owner says whose a member is; PerOwner is how many times an owner is in groups, by its members
	// and by Join, each one counted.
	Owner    func(T) any
	PerOwner int
}

// Groups has the members of all groups of a device. Any goroutine may use it.
type Groups[T comparable] struct {
	cfg Config[T]

	mu sync.Mutex // held for changes, also while the network is told
	// joined is how many are in a group.
	joined   map[netip.Addr]int            // +checklocks:mu
	attached map[T]map[netip.Addr]struct{} // +checklocks:mu
	owned    map[any]int                   // +checklocks:mu

	// Who looks members up waits for no change. A list is never changed in place; it is replaced with
	// mu held, too.
	table   sync.RWMutex
	members map[netip.Addr][]T // +checklocks:table
}

// New makes a table of no groups.
func New[T comparable](cfg Config[T]) *Groups[T] {
	return &Groups[T]{
		cfg: cfg, joined: map[netip.Addr]int{}, attached: map[T]map[netip.Addr]struct{}{},
		owned: map[any]int{}, members: map[netip.Addr][]T{},
	}
}

// Members are those of a group. What is returned does not change.
func (g *Groups[T]) Members(group netip.Addr) []T {
	g.table.RLock()
	defer g.table.RUnlock()
	return g.members[group]
}

// Join is for an owner who is in group without a member; each one wants its Leave. Errors are those
// of Attach.
func (g *Groups[T]) Join(group netip.Addr, owner any) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.enter(group, owner)
}

// Leave takes a Join back.
func (g *Groups[T]) Leave(group netip.Addr, owner any) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exit(group, owner)
}

// enter counts one more of owner in group.
//
// +checklocks:g.mu
func (g *Groups[T]) enter(group netip.Addr, owner any) error {
	switch n := g.joined[group]; {
	case !group.IsMulticast():
		return fmt.Errorf("%v is no multicast group: %w", group, rdma.ErrInvalid)
	case g.owned[owner] >= g.cfg.PerOwner:
		return fmt.Errorf("in multicast groups %d times, as often as one user may: %w", g.owned[owner],
			rdma.ErrLimit)
	case n == 0 && len(g.joined) >= g.cfg.Groups:
		return fmt.Errorf("the device is in %d multicast groups, as many as it may: %w", len(g.joined),
			rdma.ErrLimit)
	case n == 0:
		if err := g.cfg.Join(group); err != nil {
			return err
		}
	}
	g.joined[group]++
	g.owned[owner]++
	return nil
}

// exit counts one less.
//
// +checklocks:g.mu
func (g *Groups[T]) exit(group netip.Addr, owner any) error {
	if g.owned[owner]--; g.owned[owner] == 0 {
		delete(g.owned, owner)
	}
	if g.joined[group]--; g.joined[group] > 0 {
		return nil
	}
	delete(g.joined, group)
	return g.cfg.Leave(group)
}

// Attach makes t a member of group; it may be one already. rdma.ErrInvalid: group is none;
// rdma.ErrLimit; or what Config.Join or ok says, which is asked whether t may be attached to
// anything.
func (g *Groups[T]) Attach(group netip.Addr, t T, ok func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ok(); err != nil {
		return err
	}
	of := g.Members(group)
	if _, is := g.attached[t][group]; is {
		return nil
	}
	if len(of) >= g.cfg.Members {
		return fmt.Errorf("%d queue pairs are attached to %v: %w", len(of), group, rdma.ErrLimit)
	}
	if err := g.enter(group, g.cfg.Owner(t)); err != nil {
		return err
	}
	if g.attached[t] == nil {
		g.attached[t] = map[netip.Addr]struct{}{}
	}
	g.attached[t][group] = struct{}{}
	g.replace(group, append(slices.Clone(of), t))
	return nil
}

// Detach takes Attach back. rdma.ErrInvalid: t is not a member of group.
func (g *Groups[T]) Detach(group netip.Addr, t T) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, is := g.attached[t][group]; !is {
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
	g.replace(group, slices.Delete(of, i, i+1))
	if delete(g.attached[t], group); len(g.attached[t]) == 0 {
		delete(g.attached, t)
	}
	return g.exit(group, g.cfg.Owner(t))
}

// +checklocks:g.mu
func (g *Groups[T]) replace(group netip.Addr, of []T) {
	g.table.Lock()
	defer g.table.Unlock()
	if len(of) > 0 {
		g.members[group] = of
	} else {
		delete(g.members, group)
	}
}

// Unless calls f if t is attached to nothing, and nothing is attached meanwhile; else it is
// rdma.ErrBusy.
func (g *Groups[T]) Unless(t T, f func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.attached[t]); n > 0 {
		return fmt.Errorf("it is attached to %d multicast groups, detach it first: %w", n, rdma.ErrBusy)
	}
	f()
	return nil
}

// Remove detaches t from all groups.
func (g *Groups[T]) Remove(t T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group := range g.attached[t] {
		// There is nobody to tell that a group could not be left: the network is gone then.
		_ = g.detach(group, t)
	}
}

// Len is how many groups somebody is in.
func (g *Groups[T]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.joined)
}
