package ddpsctp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/sctpddp"
)

// A session that is aborted while a slow link has much of it to carry is in nobody's way: a new one
// in the same association is open within seconds, not behind all that was sent, and the peer sees
// the end of the old one as soon.
func TestAbortOnSlowLink(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { abortOnSlowLink(t, [2]netip.Addr{addrA, addrB}) })
	t.Run("IPv6", func(t *testing.T) {
		abortOnSlowLink(t, [2]netip.Addr{netip.MustParseAddr("fd01::1"), netip.MustParseAddr("fd01::2")})
	})
}

func abortOnSlowLink(t *testing.T, at [2]netip.Addr) {
	w, a, b := newWorldAt(t, at, 0)
	connect(t, w)
	xs, ys := w.open(2)
	all := w.qps(xs, ys)
	// A link of 0.5 Mbit/s with a queue of 32 KiB.
	var busy time.Time
	w.Fate = func(d *sctp.Datagram) []time.Duration {
		if d.Src != a.addr {
			return []time.Duration{w.Delay}
		}
		if busy.Before(w.Now) {
			busy = w.Now
		}
		if busy.Sub(w.Now) > 500*time.Millisecond {
			return nil
		}
		busy = busy.Add(time.Duration(len(d.Data)) * 16 * time.Microsecond)
		return []time.Duration{busy.Sub(w.Now) + w.Delay}
	}
	text := make([]byte, 250_000) // four seconds of the link
	for range 4 {
		all[0].ep.PostWrite(0, 7, 0, content(text), uint32(len(text)))
	}
	a.pump()
	w.Run(500 * time.Millisecond)
	if room := a.assoc.Room(); room > 100_000 {
		t.Fatalf("room for %d octets: the send buffer is not full", room)
	}
	all[0].aborted = true
	if err := xs[0].Abort(); err != nil {
		t.Fatal(err)
	}
	a.mux.Release(w.Now, xs[0])
	began := w.Now
	x, err := a.mux.Open(iwarp.StartConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.pump()
	w.Until("the new session", 2*time.Second, func() bool {
		if y, ok := b.mux.Request(); ok {
			y.Accept(iwarp.StartConfig{}, nil)
			b.pump()
		}
		return x.State() == sctpddp.StateOpen
	})
	w.Until("the peer sees the end", 2*time.Second, func() bool {
		return ys[0].State() == sctpddp.StatePeerClosed || ys[0].State() == sctpddp.StateOver
	})
	t.Logf("after %v", w.Now.Sub(began))
	if ys[0].Err() != nil || xs[1].State() != sctpddp.StateOpen || a.down || b.down {
		t.Errorf("%v, the other session is %v", ys[0].Err(), xs[1].State())
	}
}
