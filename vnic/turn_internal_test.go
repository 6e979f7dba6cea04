package vnic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var turnAt = netip.MustParseAddrPort("10.0.0.2:7")

// A queuer stands in a line, and notes when it may go on.
func queue(t *testing.T, all *turns, who string, went *[]string) *turn {
	n := all.take(turnAt, netip.AddrPort{})
	begin := time.Now()
	go func() {
		n.wait(t.Context())
		*went = append(*went, fmt.Sprint(who, " ", time.Since(begin)))
		n.done()
	}()
	synctest.Wait() // who is ready is ready
	return n
}

// Whoever is ready first waits for those before it: for one that does not get on, no longer than it may delay others, and then
// the others are still in their order.
func TestTurnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &turns{most: 100 * time.Millisecond}
		var went []string
		first := all.take(turnAt, netip.AddrPort{})
		second := all.take(turnAt, netip.AddrPort{})
		queue(t, all, "third", &went)
		queue(t, all, "fourth", &went)
		if len(went) != 0 {
			t.Fatalf("%v before the first", went)
		}
		first.wait(t.Context())
		first.done()
		first.done()
		synctest.Wait()
		if len(went) != 0 {
			t.Fatalf("%v before the second", went)
		}
		time.Sleep(50 * time.Millisecond)
		queue(t, all, "fifth", &went)
		time.Sleep(time.Second)
		synctest.Wait()
		// The second could have begun with the first.
		if want := []string{"third 100ms", "fourth 100ms", "fifth 50ms"}; !slices.Equal(went, want) {
			t.Errorf("%v, want %v", went, want)
		}
		second.wait(t.Context()) // does not wait any more
		second.done()
		if len(all.lines) != 0 {
			t.Errorf("%d lines are left", len(all.lines))
		}
	})
}

// One that is ready when its turn comes has the whole time from then on, however long it has waited; and one that gives up in the
// middle holds nobody up.
func TestTurnOfOneThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &turns{most: 100 * time.Millisecond}
		first, second := all.take(turnAt, netip.AddrPort{}), all.take(turnAt, netip.AddrPort{})
		gaveUp := all.take(turnAt, netip.AddrPort{})
		at := make(chan time.Duration, 1)
		begin := time.Now()
		go func() {
			second.wait(t.Context())
			at <- time.Since(begin)
		}()
		synctest.Wait()
		gaveUp.done()
		var went []string
		queue(t, all, "last", &went)
		if d := <-at; d != 100*time.Millisecond {
			t.Errorf("the second waited %v for the first", d)
		}
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		if len(went) != 0 {
			t.Errorf("%v, while the second sends", went)
		}
		second.done()
		synctest.Wait()
		if want := []string{"last 199ms"}; !slices.Equal(went, want) {
			t.Errorf("%v, want %v", went, want)
		}
		first.done()
	})
}

// A context that ends does not wait.
func TestTurnCanceled(t *testing.T) {
	all := &turns{most: time.Hour}
	all.take(turnAt, netip.AddrPort{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all.take(turnAt, netip.AddrPort{}).wait(ctx)
}

// Some open streams at a time. At an address that does not answer more and more do, so that many attempts take no long time; once one
// is over as it should be it is some again.
func TestTurnsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &turns{most: 100 * time.Millisecond}
		const many = 100
		var ns []*turn
		for range many {
			ns = append(ns, all.take(turnAt, netip.AddrPort{}))
		}
		begun := func() (k int) {
			for _, n := range ns {
				select {
				case <-n.begin:
					k++
				default:
				}
			}
			return k
		}
		check := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if got := begun(); got != want {
				t.Errorf("%s: %d may open their streams, want %d", what, got, want)
			}
		}
		check("at first", turnsOpen)
		ns[3].done()
		check("one in the middle is over", turnsOpen)
		ns[0].done()
		check("the first is over", turnsOpen+1)
		time.Sleep(101 * time.Millisecond)
		check("the first eight do not answer", many)
		line := func() (wait, open int) {
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.lines[turnAt].turns), all.lines[turnAt].open
		}
		if wait, _ := line(); wait != many-turnsOpen-1 {
			t.Errorf("%d wait, want %d", wait, many-turnsOpen-1)
		}
		ns[turnsOpen+1].done()
		if _, open := line(); open != turnsOpen {
			t.Errorf("%d at a time, want %d", open, turnsOpen)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(all.lines) != 0 {
			t.Errorf("%d lines are left", len(all.lines))
		}
		ns[many-1].done()
	})
}

// A request is found by its stream's address until its turn is over, or has been taken from it; other hosts' have lines of their
// own.
func TestTurnOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &cmListen{turns: turns{most: 100 * time.Millisecond}}
		a, b, other := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("[::ffff:10.0.0.1]:2"), netip.MustParseAddrPort("10.0.0.3:1")
		for _, ap := range []netip.AddrPort{a, b, other} {
			l.first(ap)
		}
		l.after(t.Context(), other)
		l.announced(other)
		l.announced(other)
		begin := time.Now()
		l.after(t.Context(), b)
		if d := time.Since(begin); d != 100*time.Millisecond {
			t.Errorf("waited %v", d)
		}
		if l.turns.of(a) != nil {
			t.Error("who does not ask has a turn still")
		}
		l.after(t.Context(), a)
		l.announced(b)
		l.first(a) // and is refused, or ends
		time.Sleep(101 * time.Millisecond)
		synctest.Wait()
		if len(l.turns.lines) != 0 || len(l.turns.peers) != 0 {
			t.Errorf("left: %v, %v", l.turns.lines, l.turns.peers)
		}
	})
}
