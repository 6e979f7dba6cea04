// Package ports knows which ports of a stack's addresses are in use, and keeps them from somebody
// else who has the same addresses: the kernel, where a card is shared with it.
package ports

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// A Keeper is who has the addresses, too.
type Keeper interface {
	// KeepPort keeps a port of TCP, or of UDP, from its programs until what is returned is closed.
	// EADDRINUSE: one of them has it. EACCES: it may not be had.
	KeepPort(udp bool, at netip.AddrPort) (io.Closer, error)
}

// A Port is one of an address.
type Port struct {
	UDP bool
	At  netip.AddrPort
}

// Limits of what is kept.
const (
	// maxKept is how many ports are kept at once: who connects from more gets none (ENOBUFS).
	maxKept = 16384
	// sweepEvery is how often it is looked which of those that were lent are over.
	sweepEvery = 2 * time.Second
)

// A Table is the ports of a stack. Its methods may be called from several goroutines at once. It
// is ready for use when Clock is set.
type Table struct {
	Clock tcpip.Clock

	mu     sync.Mutex
	keeper Keeper        // nil: nobody shares the addresses; guarded by mu
	used   map[Port]*use // guarded by mu
	lent   []loan        // guarded by mu
	timer  tcpip.Timer   // runs while something is lent; guarded by mu
}

// A use is a port that is in use.
type use struct {
	n    int       // how often
	kept io.Closer // nil: nobody else has the address
}

// A loan is a use that ends by itself.
type loan struct {
	port Port
	over func() bool
}

// Use keeps all of the ports, or none of them. Leave takes it back.
func (t *Table) Use(ports ...Port) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, p := range ports {
		if err := t.use(p); err != nil {
			for _, q := range ports[:i] {
				t.leave(q)
			}
			return err
		}
	}
	return nil
}

// Leave takes a Use back.
func (t *Table) Leave(ports ...Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range ports {
		t.leave(p)
	}
}

// Lend is Use until over reports true, which is looked at now and then. While nobody shares the
// addresses nothing is kept.
func (t *Table) Lend(p Port, over func() bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keeper == nil {
		return nil
	}
	if err := t.use(p); err != nil {
		return err
	}
	t.lent = append(t.lent, loan{p, over})
	if t.timer == nil {
		t.timer = t.Clock.AfterFunc(sweepEvery, t.sweep)
	}
	return nil
}

// use is Use of one port. mu is held.
func (t *Table) use(p Port) error {
	u := t.used[p]
	if u == nil {
		u = new(use)
		if t.keeper != nil {
			if len(t.used) >= maxKept {
				return fmt.Errorf("%d ports are in use: %w", len(t.used), syscall.ENOBUFS)
			}
			var err error
			if u.kept, err = t.keeper.KeepPort(p.UDP, p.At); err != nil {
				return err
			}
		}
		if t.used == nil {
			t.used = make(map[Port]*use)
		}
		t.used[p] = u
	}
	u.n++
	return nil
}

// leave takes use back. mu is held.
func (t *Table) leave(p Port) {
	u := t.used[p]
	if u.n--; u.n == 0 {
		delete(t.used, p)
		u.free()
	}
}

// free lets others have the port.
func (u *use) free() {
	if u.kept != nil {
		_ = u.kept.Close() // nothing was written to it
		u.kept = nil
	}
}

// sweep takes back what was lent and is over.
func (t *Table) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return
	}
	rest := t.lent[:0]
	for _, l := range t.lent {
		if l.over() {
			t.leave(l.port)
		} else {
			rest = append(rest, l)
		}
	}
	clear(t.lent[len(rest):])
	t.lent = rest
	if t.timer = nil; len(t.lent) > 0 {
		t.timer = t.Clock.AfterFunc(sweepEvery, t.sweep)
	}
}

// Share keeps what is in use, and what will be, from k's programs; an error names what they have,
// and nothing is kept then. Nil ends that: what was lent is free.
func (t *Table) Share(k Keeper) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lent {
		t.leave(l.port)
	}
	t.lent = nil
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.keeper = k
	var err error
	for p, u := range t.used {
		u.free()
		if k != nil && err == nil {
			u.kept, err = k.KeepPort(p.UDP, p.At)
		}
	}
	if err != nil {
		t.keeper = nil
		for _, u := range t.used {
			u.free()
		}
		return err
	}
	return nil
}
