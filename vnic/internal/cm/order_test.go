package cm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var peerAddr = netip.MustParseAddrPort("10.0.0.2:7")

// queue joins a queue for who, which notes when it may go on.
func queue(t *testing.T, all *handshakeQueues, who string, went *[]string) *ticket {
	n := all.join(peerAddr, netip.AddrPort{})
	begin := time.Now()
	go func() {
		n.awaitFirst(t.Context())
		*went = append(*went, fmt.Sprint(who, " ", time.Since(begin)))
		n.leave()
	}()
	synctest.Wait() // who is ready is ready
	return n
}

// Whoever is ready first waits for those before it: for one that does not get on, no longer than it
// may delay others, and then the others are still in their order.
func TestTurnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &handshakeQueues{most: 100 * time.Millisecond}
		var went []string
		first := all.join(peerAddr, netip.AddrPort{})
		second := all.join(peerAddr, netip.AddrPort{})
		queue(t, all, "third", &went)
		queue(t, all, "fourth", &went)
		if len(went) != 0 {
			t.Fatalf("%v before the first", went)
		}
		first.awaitFirst(t.Context())
		first.leave()
		first.leave()
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
		second.awaitFirst(t.Context()) // does not wait any more
		second.leave()
		if len(all.queues) != 0 {
			t.Errorf("%d queues are left", len(all.queues))
		}
	})
}

// One that is ready when its turn comes has the whole time from then on, however long it has
// waited; and one that gives up in the middle holds nobody up.
func TestTurnOfOneThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &handshakeQueues{most: 100 * time.Millisecond}
		first, second := all.join(peerAddr, netip.AddrPort{}), all.join(peerAddr, netip.AddrPort{})
		gaveUp := all.join(peerAddr, netip.AddrPort{})
		at := make(chan time.Duration, 1)
		begin := time.Now()
		go func() {
			second.awaitFirst(t.Context())
			at <- time.Since(begin)
		}()
		synctest.Wait()
		gaveUp.leave()
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
		second.leave()
		synctest.Wait()
		if want := []string{"last 199ms"}; !slices.Equal(went, want) {
			t.Errorf("%v, want %v", went, want)
		}
		first.leave()
	})
}

// A context that ends does not wait.
func TestTurnCanceled(t *testing.T) {
	all := &handshakeQueues{most: time.Hour}
	all.join(peerAddr, netip.AddrPort{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all.join(peerAddr, netip.AddrPort{}).awaitFirst(ctx)
}

// Some open streams at a time. At an address that does not answer more and more do, so that many
// attempts take no long time; once one is over as it should be it is some again.
func TestTurnsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &handshakeQueues{most: 100 * time.Millisecond}
		const many = 100
		var ns []*ticket
		for range many {
			ns = append(ns, all.join(peerAddr, netip.AddrPort{}))
		}
		begun := func() (k int) {
			for _, n := range ns {
				select {
				case <-n.open:
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
		check("at first", opensAtOnce)
		ns[3].leave()
		check("one in the middle is over", opensAtOnce)
		ns[0].leave()
		check("the first is over", opensAtOnce+1)
		time.Sleep(101 * time.Millisecond)
		check("the first eight do not answer", many)
		length := func() (wait, open int) {
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.queues[peerAddr].tickets), all.queues[peerAddr].open
		}
		if wait, _ := length(); wait != many-opensAtOnce-1 {
			t.Errorf("%d wait, want %d", wait, many-opensAtOnce-1)
		}
		ns[opensAtOnce+1].leave()
		if _, open := length(); open != opensAtOnce {
			t.Errorf("%d at a time, want %d", open, opensAtOnce)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		all.mu.Lock()
		if len(all.queues) != 0 {
			t.Errorf("%d queues are left", len(all.queues))
		}
		all.mu.Unlock()
		ns[many-1].leave()
	})
}

// A request is found by its stream's address until its turn is over, or has been taken from it;
// other hosts have queues of their own.
func TestTurnOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &acceptor{requests: handshakeQueues{most: 100 * time.Millisecond}}
		a, b, other := netip.MustParseAddrPort("10.0.0.1:1"),
			netip.MustParseAddrPort("[::ffff:10.0.0.1]:2"), netip.MustParseAddrPort("10.0.0.3:1")
		for _, ap := range []netip.AddrPort{a, b, other} {
			l.arrived(ap)
		}
		l.awaitFirst(t.Context(), other)
		l.announced(other)
		l.announced(other)
		begin := time.Now()
		l.awaitFirst(t.Context(), b)
		if d := time.Since(begin); d != 100*time.Millisecond {
			t.Errorf("waited %v", d)
		}
		if l.requests.of(a) != nil {
			t.Error("who does not ask has a ticket still")
		}
		l.awaitFirst(t.Context(), a)
		l.announced(b)
		l.arrived(a) // and is refused, or ends
		time.Sleep(101 * time.Millisecond)
		synctest.Wait()
		if len(l.requests.queues) != 0 || len(l.requests.peers) != 0 {
			t.Errorf("left: %v, %v", l.requests.queues, l.requests.peers)
		}
	})
}
