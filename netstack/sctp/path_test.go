package sctp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// twoPaths is two nodes with two addresses each and an association over both.
func twoPaths(t testing.TB, cfg Config) (w *world, a, b *node) {
	t.Helper()
	w = newWorld(t)
	a, b = w.node("a", cfg, addrA, addrA2), w.node("b", cfg, addrB, addrB2)
	w.connect(a, b)
	w.Until("the second addresses are confirmed", time.Minute, func() bool {
		return len(a.last.confirmed()) == 2 && len(b.last.confirmed()) == 2
	})
	a.sent, b.sent, a.events, b.events = nil, nil, nil, nil
	return w, a, b
}

// Every path is addressed from the address of ours that is nearest; the first is the primary one.
// SCTP-026, SCTP-064, SCTP-124.
func TestTwoPaths(t *testing.T) {
	_, a, b := twoPaths(t, Config{})
	for _, x := range []struct {
		n          *node
		addr, from netip.Addr
		primary    bool
	}{{a, addrB, addrA, true}, {a, addrB2, addrA2, false}, {b, addrA, addrB, true},
		{b, addrA2, addrB2, false}} {
		i := slices.IndexFunc(x.n.last.Paths(), func(p PathInfo) bool { return p.Addr == x.addr })
		if i < 0 {
			t.Fatalf("%s does not know %v", x.n.name, x.addr)
		}
		p := x.n.last.Paths()[i]
		if p.Local != x.from || p.Primary != x.primary || !p.Confirmed || !p.Active || p.Cwnd != 4404 ||
			p.PMTU != 1480 || p.RTO != time.Second {
			t.Errorf("%s: %+v", x.n.name, p)
		}
	}
	// Congestion state is each path's own.
	a.last.paths[0].cwnd = 5
	if a.last.Paths()[1].Cwnd != 4404 {
		t.Error("one cwnd for both")
	}
}

// An address that a peer names, and that may be anybody's, gets HEARTBEATs until it answers one
// with the right nonce, and nothing else. SCTP-064, 065, 066, SCTP-140.
func TestVerification(t *testing.T) {
	victim := addr("10.9.9.9")
	w, n, p := lonely(t, Config{Options: Options{RTOMin: 100 * time.Millisecond,
		RTOInitial: 100 * time.Millisecond}})
	var toVictim [][]byte
	sacks := 0
	w.trace = func(_ *node, d Datagram) {
		if d.Dst == victim {
			toVictim = append(toVictim, d.Data)
		} else if survey(d.Data[headerLen:]).has(chunkSack) {
			sacks++
		}
	}
	p.init(100_000, appendAddr(nil, victim))
	if len(toVictim) > 0 {
		t.Fatal("the INIT ACK goes to an address it did not come from")
	}
	p.handshake(100_000, appendAddr(nil, victim))
	a := p.a
	w.Run(10 * time.Millisecond)
	n.want("the nonce goes out at once", "HEARTBEAT info=24")
	// Whatever else the victim seems to say: it gets a HEARTBEAT ACK, no more.
	p.src = victim
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"), mkData(whole, p.tsn+1, 999, 0, 0, "x"))
	if sacks != 1 {
		t.Fatalf("%d SACKs to the address that is confirmed", sacks)
	}
	p.send(mkParams(chunkHeartbeat, appendParam(nil, paramHeartbeatInfo, []byte("hi"))))
	p.send(mk(0xc1, 0))
	if err := a.SetPrimary(victim); err != ErrAddress {
		t.Errorf("primary: %v", err)
	}
	n.queue(3)
	w.Run(5 * time.Second) // timeouts: no retransmission there either
	beats, nonces := 0, map[uint64]bool{}
	var last []byte
	for _, b := range toVictim {
		s := survey(b[headerLen:])
		switch {
		case s.kinds == 1<<chunkHeartbeat:
			c, _, _ := nextChunk(b[headerLen:])
			info, _, _ := nextParam(c.value())
			nonces[binary.BigEndian.Uint64(info.value())] = true
			last = c.value()
			beats++
		case s.kinds != 1<<chunkHeartbeatAck:
			t.Fatalf("the victim gets %s", Describe(b))
		}
	}
	if beats < 4 || len(nonces) != beats {
		t.Fatalf("%d HEARTBEATs, %d nonces", beats, len(nonces))
	}
	if a.path(victim).confirmed {
		t.Fatal("confirmed")
	}
	// A wrong nonce, the right one with the wrong address, an old one; then the right one.
	forged := slices.Clone(last)
	forged[5] ^= 1
	p.send(mk(chunkHeartbeatAck, 0, forged...))
	forged = slices.Clone(last)
	forged[len(forged)-1] ^= 1
	p.send(mk(chunkHeartbeatAck, 0, forged...))
	p.send(mk(chunkHeartbeatAck, 0, last[:12]...))
	if a.path(victim).confirmed {
		t.Fatal("confirmed by a forged nonce")
	}
	p.src = addrA // the answer may come from anywhere; the nonce is what counts
	p.send(mk(chunkHeartbeatAck, 0, last...))
	if ev := n.wantEvent("confirmed", EventPath); ev.Addr != victim || ev.Path != PathConfirmed &&
		ev.Path != PathInactive || !a.path(victim).confirmed {
		t.Fatalf("%+v", ev)
	}
	rto := a.path(victim).rto
	p.send(mk(chunkHeartbeatAck, 0, last...)) // once
	if a.path(victim).rto != rto {
		t.Error("a replayed answer is measured")
	}
}

// Probes go at the pace of the RTO, one at a time; a dead address turns inactive after
// Path.Max.Retrans and costs the association nothing. SCTP-067, SCTP-139.
func TestVerificationFails(t *testing.T) {
	dead := addr("10.9.9.9")
	w, n, p := lonely(t, Config{Options: Options{HeartbeatInterval: -1}}) // none but to verify
	p.handshake(100_000, appendAddr(nil, dead))
	var at []time.Duration
	w.trace = func(_ *node, d Datagram) {
		if d.Dst == dead {
			at = append(at, w.Now.Sub(start))
		}
	}
	w.Run(3 * time.Minute)
	want := []time.Duration{0, 1, 3, 7, 15, 31, 63} // the last as it turns inactive
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(at, want) {
		t.Errorf("probes at %v, want %v", at, want)
	}
	if ev := n.wantEvent("inactive", EventPath); ev.Addr != dead || ev.Path != PathInactive {
		t.Errorf("%+v", ev)
	}
	if p.a.errors != 0 || p.a.State() != StateEstablished || p.a.path(dead).errors != 6 {
		t.Errorf("%d errors of the association, %d of the path", p.a.errors, p.a.path(dead).errors)
	}
	// Many addresses: one HEARTBEAT in an RTO.
	w, n, p = lonely(t, Config{})
	var many [][]byte
	for i := range 8 {
		many = append(many, appendAddr(nil, netip.AddrFrom4([4]byte{10, 9, 9, byte(i)})))
	}
	p.handshake(100_000, many...)
	for i := range 8 {
		w.Run(999 * time.Millisecond)
		if len(n.sent) != 1 {
			t.Fatalf("second %d: %v", i, n.sent)
		}
		n.sent = nil
		w.Run(time.Millisecond)
	}
}

// Idle addresses get a HEARTBEAT each RTO + HB.interval +/- half an RTO; unanswered ones double the
// RTO; none follow a SHUTDOWN. SCTP-135, SCTP-136, SCTP-144.
func TestHeartbeatPace(t *testing.T) {
	w, a, _ := pair(t, Config{}, Config{})
	var at []time.Time
	w.trace = func(from *node, d Datagram) {
		if from == a && survey(d.Data[headerLen:]).has(chunkHeartbeat) {
			at = append(at, w.Now)
		}
	}
	w.Run(2 * time.Hour)
	low, high := time.Hour, time.Duration(0)
	for i := 1; i < len(at); i++ {
		d := at[i].Sub(at[i-1])
		low, high = min(low, d), max(high, d)
	}
	if low < 30500*time.Millisecond || high > 31500*time.Millisecond ||
		high-low < 700*time.Millisecond || len(at) < 200 {
		t.Errorf("%d HEARTBEATs, %v to %v apart", len(at), low, high)
	}
	if a.last.primary.srtt != 2*time.Millisecond {
		t.Errorf("SRTT %v", a.last.primary.srtt)
	}
	// Data in time makes them unnecessary.
	at = nil
	for range 100 {
		a.post(SendOptions{}, "x")
		w.Run(20 * time.Second)
	}
	if len(at) > 0 {
		t.Errorf("%d HEARTBEATs beside data", len(at))
	}
	// Off, on with another interval, on demand.
	if err := a.last.SetHeartbeat(w.Now, addrB, -1); err != nil {
		t.Fatal(err)
	}
	w.Run(time.Hour)
	if len(at) > 0 {
		t.Errorf("%d HEARTBEATs though they are off", len(at))
	}
	if err := a.last.RequestHeartbeat(w.Now, addrB); err != nil {
		t.Fatal(err)
	}
	a.pump()
	w.Run(time.Second)
	if len(at) != 1 || a.last.primary.beatOpen {
		t.Errorf("%d HEARTBEATs on demand", len(at))
	}
	a.last.SetHeartbeat(w.Now, addrB, 5*time.Second)
	w.Run(time.Minute)
	if len(at) < 9 || len(at) > 12 {
		t.Errorf("%d HEARTBEATs in a minute", len(at))
	}
	for _, err := range []error{
		a.last.SetHeartbeat(w.Now, addrA2, 0), a.last.RequestHeartbeat(w.Now, addrA2),
		a.last.SetPrimary(addrA2), a.last.Rerouted(addrA2, addrA),
	} {
		if err != ErrAddress {
			t.Error(err)
		}
	}
	// A dead peer: RTO doubles with each, then the association ends. SCTP-137.
	w.Fate = func(Datagram) []time.Duration { return nil }
	at = nil
	w.Run(24 * time.Hour)
	if len(at) != 11 {
		t.Errorf("%d HEARTBEATs to the dead", len(at))
	}
	for i := 2; i < len(at); i++ {
		if d, e := at[i].Sub(at[i-1]), at[i-1].Sub(at[i-2]); d <= e && d < 60*time.Second {
			t.Errorf("HEARTBEAT %d after %v, the one before after %v", i, d, e)
		}
	}
	if ev := a.wantEvent("dead", EventDown); ev.Err != ErrTimeout {
		t.Error(ev.Err)
	}

	// A HEARTBEAT is not sent in SHUTDOWN-SENT.
	w2, n, p := established(t, Config{})
	p.a.Shutdown(w2.Now)
	n.pump()
	w2.Run(40 * time.Second)
	if strings.Contains(strings.Join(n.sent, ""), "HEARTBEAT") {
		t.Error("a HEARTBEAT behind a SHUTDOWN")
	}
}

// HEARTBEAT ACK clears the counters, with no data outstanding; that of the association waits for
// data otherwise. SCTP-136.
func TestHeartbeatClears(t *testing.T) {
	_, n, p := established(t, Config{})
	x := p.a.primary
	answer := func() {
		if err := p.a.RequestHeartbeat(p.w.Now, addrA); err != nil {
			t.Fatal(err)
		}
		all := capturePackets(p.w)
		n.pump()
		p.w.trace = nil
		c, _, _ := nextChunk((*all)[0][headerLen:])
		p.send(mk(chunkHeartbeatAck, 0, c.value()...))
	}
	x.errors, p.a.errors, x.active = 3, 3, false
	answer()
	if x.errors != 0 || p.a.errors != 0 || !x.active ||
		n.wantEvent("active", EventPath).Path != PathActive {
		t.Errorf("%d errors, %d of the association", x.errors, p.a.errors)
	}
	n.queue(1)
	x.errors, p.a.errors = 3, 3
	if answer(); x.errors != 0 || p.a.errors != 3 {
		t.Errorf("%d errors, %d of the association", x.errors, p.a.errors)
	}
}

// A silent peer: each T3 counts; after more than Association.Max.Retrans of them it is gone, at a
// time that can be computed. What is acknowledged clears the count. SCTP-137, 138, SCTP-139,
// SCTP-144.
func TestBlackout(t *testing.T) {
	w, a, _ := pair(t, Config{Options: Options{HeartbeatInterval: -1}},
		Config{Options: Options{HeartbeatInterval: -1}})
	dead := func(Datagram) []time.Duration { return nil }
	a.post(SendOptions{}, "before")
	w.Run(time.Second)
	w.Fate = dead
	a.post(SendOptions{}, "lost")
	a.post(SendOptions{}, "lost")
	begin := w.Now
	w.Until("the end", time.Hour, func() bool { return a.last.State() == StateClosed })
	// 1+2+4+8+16+32 and then 60 s each: eleven expiries.
	if d := w.Now.Sub(begin).Round(time.Second); d != (63+5*60)*time.Second {
		t.Errorf("gone after %v", d)
	}
	ev := a.wantEvent("inactive first", EventPath)
	if ev.Path != PathInactive {
		t.Errorf("%+v", ev)
	}
	if ev = a.wantEvent("the end", EventDown); ev.Err != ErrTimeout || ev.Acked != 1 ||
		a.last.Sent() != 3 {
		t.Errorf("%+v: what has not arrived is not told", ev)
	}

	// A link that flaps: ten losses, then it works, again and again.
	w, a, b := pair(t, Config{Options: Options{HeartbeatInterval: -1}},
		Config{Options: Options{HeartbeatInterval: -1}})
	for range 4 {
		w.Fate = dead
		a.post(SendOptions{}, "x")
		w.Until("nine losses", time.Hour, func() bool { return a.last.errors == 9 })
		w.Fate = nil
		w.Until("it arrives", time.Hour, func() bool { return a.last.Acked() == a.last.Sent() })
		if a.last.errors != 0 || a.last.primary.errors != 0 || !a.last.primary.active {
			t.Fatalf("%d errors", a.last.errors)
		}
	}
	if len(b.msgs) != 4 {
		t.Errorf("%q", b.msgs)
	}
	a.last.SetRetransmitLimits(1, 1)
	w.Fate = dead
	a.post(SendOptions{}, "x")
	w.Until("two losses are enough", 3*time.Minute,
		func() bool { return a.last.State() == StateClosed })
}

// A peer that has vanished is found out a UserTimeout after it was heard of last, by heartbeats if
// nothing else is under way; one that is there is not lost though three heartbeats of four are.
func TestUserTimeout(t *testing.T) {
	for _, at := range pairs {
		testUserTimeout(t, at)
	}
}

func testUserTimeout(t *testing.T, at [2]netip.Addr) {
	t.Helper()
	const interval, timeout = 30 * time.Second, 60 * time.Second
	opt := Options{HeartbeatInterval: interval, UserTimeout: timeout,
		RTOMin: 300 * time.Millisecond, RTOMax: 5 * time.Second, AssociationMaxRetrans: 14}
	for _, data := range []bool{false, true} {
		w, a, _ := pairAt(t, at, Config{Options: opt}, Config{Options: Options{HeartbeatInterval: -1}})
		w.Run(10 * time.Minute)
		beats := 0
		w.trace = func(from *node, d Datagram) {
			if from == a && survey(d.Data[headerLen:]).has(chunkHeartbeat) {
				beats++
			}
		}
		heard := a.last.heard
		w.Fate = func(Datagram) []time.Duration { return nil }
		if data {
			a.post(SendOptions{}, "lost")
		}
		w.Until("the end", time.Hour, func() bool { return a.last.State() == StateClosed })
		if d := w.Now.Sub(heard); d != timeout {
			t.Errorf("data %t: gone after %v", data, d)
		}
		if ev := a.wantEvent("the end", EventDown); ev.Err != ErrTimeout {
			t.Errorf("data %t: %+v", data, ev)
		}
		if beats < 5 && !data {
			t.Errorf("asked %d times", beats)
		}
	}

	w, a, _ := pairAt(t, at, Config{Options: opt}, Config{Options: Options{HeartbeatInterval: -1}})
	n := 0
	w.Fate = func(d Datagram) []time.Duration {
		if survey(d.Data[headerLen:]).has(chunkHeartbeat) {
			if n++; n%4 != 0 {
				return nil
			}
		}
		return []time.Duration{time.Millisecond}
	}
	w.Run(time.Hour)
	if a.last.State() != StateEstablished || n < 200 {
		t.Errorf("after %d heartbeats it is %v", n, a.last.State())
	}
}

// Who has had nothing to say for longer than a UserTimeout, and is not asked, is not silent: a
// packet that is lost then ends nothing, and a peer that has vanished is found out a UserTimeout
// after it was needed.
func TestUserTimeoutAfterIdling(t *testing.T) {
	const timeout = time.Minute
	opt := Options{HeartbeatInterval: -1, UserTimeout: timeout, RTOMin: 300 * time.Millisecond,
		RTOMax: 5 * time.Second, AssociationMaxRetrans: 1000}
	w, a, _ := pair(t, Config{Options: opt}, Config{Options: Options{HeartbeatInterval: -1}})
	a.post(SendOptions{}, "first")
	w.Run(10 * time.Minute)
	n := 0
	w.Fate = func(Datagram) []time.Duration {
		if n++; n == 1 {
			return nil
		}
		return []time.Duration{time.Millisecond}
	}
	a.post(SendOptions{}, "lost once")
	w.Run(10 * time.Second)
	if a.last.State() != StateEstablished || a.last.Acked() != a.last.Sent() {
		t.Fatalf("a packet was lost after a pause: %v, %d of %d have arrived", a.last.State(),
			a.last.Acked(), a.last.Sent())
	}
	w.Run(10 * time.Minute)
	w.Fate = func(Datagram) []time.Duration { return nil }
	began := w.Now
	a.post(SendOptions{}, "lost")
	w.Until("the end", time.Hour, func() bool { return a.last.State() == StateClosed })
	if d := w.Now.Sub(began); d != timeout {
		t.Errorf("gone after %v", d)
	}
}

// After a time without a network data flow again within a round trip when the link says that it is
// there, or anything of the peer arrives; else at the next T3, which is not put off for ever.
// SCTP-120.
func TestAfterBlackout(t *testing.T) {
	for _, at := range pairs {
		testAfterBlackout(t, at)
	}
}

func testAfterBlackout(t *testing.T, at [2]netip.Addr) {
	t.Helper()
	opt := Options{RTOMin: 300 * time.Millisecond, RTOMax: 5 * time.Second,
		HeartbeatInterval: -1, AssociationMaxRetrans: 100, PathMaxRetrans: 100}
	for name, tt := range map[string]struct {
		back   func(a, b *node)
		within time.Duration
	}{
		"link":   {func(a, _ *node) { a.e.LinkUp(a.w.Now); a.pump() }, 10 * time.Millisecond},
		"peer's": {func(_, b *node) { b.post(SendOptions{}, "from b") }, 10 * time.Millisecond},
		"peer's own": {func(_, b *node) { b.last.RequestHeartbeat(b.w.Now, at[0]); b.pump() },
			10 * time.Millisecond},
		"nothing": {func(a, b *node) {}, 5 * time.Second},
	} {
		for _, dark := range []time.Duration{2 * time.Second, 8 * time.Second, time.Minute} {
			w, a, b := pairAt(t, at, Config{Options: opt}, Config{Options: opt})
			a.post(SendOptions{}, "before")
			w.Run(time.Second)
			w.Fate = func(Datagram) []time.Duration { return nil }
			for range 20 {
				a.post(SendOptions{}, text(1000))
			}
			w.Run(dark)
			w.Fate = nil
			b.msgs = nil
			began := w.Now
			tt.back(a, b)
			w.Until(name+": data again", tt.within, func() bool { return len(b.msgs) > 0 })
			w.Until(name+": all data", tt.within+50*time.Millisecond,
				func() bool { return len(b.msgs) == 20 })
			if a.last.primary.rto != opt.RTOMin {
				t.Errorf("%s: RTO %v", name, a.last.primary.rto)
			}
			if n := a.e.Stats().Retransmits; dark == time.Minute && n > 60 {
				t.Errorf("%s: %d chunks sent again in %v", name, n, w.Now.Sub(began)+dark)
			}
		}
	}
	// An INIT is sent again, too.
	w := newWorld(t)
	a, b := w.node("a", Config{Options: opt}, at[0]), w.node("b", Config{Options: opt}, at[1])
	w.Fate = func(Datagram) []time.Duration { return nil }
	if err := b.e.Listen(5043, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	a.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: a.addrs, RemotePort: 5043, Remotes: b.addrs})
	a.pump()
	w.Run(3500 * time.Millisecond)
	w.Fate = nil
	a.e.LinkUp(w.Now)
	a.pump()
	w.Until("established", 10*time.Millisecond, func() bool { return a.last != nil && b.last != nil })
}

// One address goes down: what timed out goes to the other, the primary is given up after
// Path.Max.Retrans and taken again when it answers; each path keeps its own timer and window.
// SCTP-123, SCTP-141, SCTP-142, SCTP-139, SCTP-124, SCTP-144.
func TestFailover(t *testing.T) {
	w, a, b := twoPaths(t, Config{})
	x := a.last
	down := false
	w.Fate = func(d Datagram) []time.Duration {
		if down && (d.Dst == addrB || d.Dst == addrA) {
			return nil
		}
		return []time.Duration{w.Delay}
	}
	var to []netip.Addr
	w.trace = func(from *node, d Datagram) {
		if from == a && survey(d.Data[headerLen:]).has(chunkData) {
			to = append(to, d.Dst)
		}
	}
	a.post(SendOptions{}, "1")
	w.Run(time.Second)
	down = true
	a.post(SendOptions{}, "2")
	w.Run(1500 * time.Millisecond)
	// Tail loss probes go to where the chunk went.
	if !slices.Equal(slices.Compact(to), []netip.Addr{addrB, addrB2}) || len(b.msgs) != 2 {
		t.Fatalf("DATA went to %v, %q arrived", to, b.msgs)
	}
	if p1, p2 := x.paths[0], x.paths[1]; p1.rto != 2*time.Second || p2.rto != time.Second ||
		p1.flight != 0 || p1.cwnd != p1.pmdcs() || p2.cwnd < 4404 {
		t.Errorf("%+v %+v", x.Paths()[0], x.Paths()[1])
	}
	// New data still goes to the primary until that is inactive.
	to = nil
	for i := range 6 {
		a.post(SendOptions{}, "more")
		w.Run(time.Minute)
		if len(b.msgs) != 3+i {
			t.Fatalf("message %d: %q", i, b.msgs)
		}
	}
	var ev Event
	if ev = a.wantEvent("inactive", EventPath); ev.Addr != addrB || ev.Path != PathInactive {
		t.Errorf("%+v", ev)
	}
	to = nil
	a.post(SendOptions{}, "now")
	if w.Run(time.Second); !slices.Equal(to, []netip.Addr{addrB2}) {
		t.Errorf("DATA went to %v", to)
	}
	down = false
	w.Run(5 * time.Minute) // heartbeats find it
	if ev = a.wantEvent("active", EventPath); ev.Addr != addrB || ev.Path != PathActive {
		t.Errorf("%+v", ev)
	}
	to = nil
	a.post(SendOptions{}, "back")
	if w.Run(time.Second); !slices.Equal(to, []netip.Addr{addrB}) || x.State() != StateEstablished {
		t.Errorf("DATA went to %v", to)
	}
	// The user's choice.
	if err := x.SetPrimary(addrB2); err != nil {
		t.Fatal(err)
	}
	to = nil
	a.post(SendOptions{}, "other")
	if w.Run(time.Second); !slices.Equal(to, []netip.Addr{addrB2}) {
		t.Errorf("DATA went to %v", to)
	}
}

// A path that drops everything, and one that works, under load: all arrives. Fast retransmissions
// stay on their path. SCTP-141, SCTP-123.
func TestTwoPathsUnderLoad(t *testing.T) {
	cfg := Config{Options: Options{RTOMin: 50 * time.Millisecond, RTOInitial: 100 * time.Millisecond,
		HeartbeatInterval: time.Second}}
	w, a, b := twoPaths(t, cfg)
	rng := newSeededRand(8)
	round := 0
	lossy := impairment(rng, 0.05, 0.1, 0.02)
	w.Fate = func(d Datagram) []time.Duration {
		if first := d.Dst == addrA || d.Dst == addrB; first == (round%2 == 0) {
			return nil
		}
		return lossy(d)
	}
	sent := 0
	for round = range 8 {
		for limit := w.Now.Add(4 * time.Second); w.Now.Before(limit); {
			for _, n := range w.nodes {
				if n.last.Room() > 5000 && n.last.Sent() < n.last.Acked()+200 {
					n.post(SendOptions{Stream: 1}, text(1+rng.IntN(3000)))
					sent++
				}
			}
			w.Run(5 * time.Millisecond)
		}
	}
	w.Fate = nil
	w.Until("all arrive", time.Hour, func() bool {
		return a.last.Acked() == a.last.Sent() && b.last.Acked() == b.last.Sent()
	})
	if got := len(a.msgs) + len(b.msgs); got != sent || sent < 1000 {
		t.Errorf("%d of %d", got, sent)
	}
	// Fast retransmit: to where the chunk went.
	w3, m, p := established(t, narrow())
	p.a.addPath(w3.Now, addrA2, netip.Addr{}, 0, true)
	m.queue(4)
	var to netip.Addr
	w3.trace = func(_ *node, d Datagram) { to = d.Dst }
	p.ack(-1, gap{2, 2})
	p.ack(-1, gap{2, 3})
	p.a.SetPrimary(addrA2)
	p.ack(-1, gap{2, 4})
	if to != addrA || m.e.Stats().FastRetransmits != 1 {
		t.Errorf("fast retransmission to %v", to)
	}
	// What timed out goes to the other at once, though that one's window is used up.
	p.a.path(addrA2).cwnd = 0
	m.sent = nil
	w3.Run(1100 * time.Millisecond)
	if to != addrA2 || len(p.tsns()) != 1 || m.e.Stats().Timeouts != 1 {
		t.Errorf("retransmission to %v, %+v", to, m.e.Stats())
	}
}

// SACKs go to where the last DATA came from. SCTP-143, SCTP-140.
func TestSackPath(t *testing.T) {
	w, n, p := established(t, Config{})
	p.a.addPath(w.Now, addrA2, netip.Addr{}, 0, true)
	var to netip.Addr
	w.trace = func(_ *node, d Datagram) { to = d.Dst }
	for i, src := range []netip.Addr{addrA, addrA2, addrA2, addrA} {
		p.src = src
		p.send(mkData(whole|flagI, p.tsn+TSN(i), 0, uint16(i), 0, "x"))
		if to != src {
			t.Errorf("DATA from %v, SACK to %v", src, to)
		}
	}
	// It does not ride along to another address.
	p.src = addrA2
	p.send(mkData(whole, p.tsn+4, 0, 4, 0, "x"))
	n.sent = nil
	n.post(SendOptions{}, "x")
	if n.want("DATA", "DATA !SACK"); to != addrA {
		t.Errorf("DATA to %v", to)
	}
	w.Run(200 * time.Millisecond)
	if n.want("SACK", "SACK"); to != addrA2 {
		t.Errorf("SACK to %v", to)
	}
}

// RFC 6951: packets come in UDP and go back so, to the port they came from once their tag is good;
// a bare one ends it. A packet is eight octets smaller. SCTP-177, SCTP-179.
func TestEncapsulation(t *testing.T) {
	w, n, p := lonely(t, Config{})
	var got []Datagram
	w.trace = func(_ *node, d Datagram) { got = append(got, d) }
	in := func(port uint16, tag uint32, chunks ...[]byte) Datagram {
		got = nil
		n.input(Datagram{Src: p.src, Dst: p.dst, Encap: port, Data: sealed(header{p.sport, p.dport, tag},
			chunks...)})
		if len(got) == 0 {
			return Datagram{}
		}
		return got[0]
	}
	d := in(7777, 0, mkInit(chunkInit, peerTag, 100_000, 10, 10, p.tsn))
	var s setup
	c, _, _ := nextChunk(d.Data[headerLen:])
	if parseSetup(c, &s); d.Encap != 7777 {
		t.Fatalf("INIT ACK to port %d", d.Encap)
	}
	if d = in(7777, s.tag, mk(chunkCookieEcho, 0, s.cookie...)); d.Encap != 7777 {
		t.Fatalf("COOKIE ACK to port %d", d.Encap)
	}
	a := n.last
	if m := a.MaxPayload(); m != 1480-8-headerLen-dataLen-sackReserve {
		t.Errorf("MaxPayload %d", m)
	}
	in(8888, s.tag+1, mkSack(a.ackTSN, 1000))
	if d = in(7777, s.tag, mkData(whole|flagI, p.tsn, 0, 0, 0, "x")); d.Encap != 7777 {
		t.Error("a wrong tag changes the port")
	}
	if d = in(9999, s.tag, mkData(whole|flagI, p.tsn+1, 0, 1, 0, "x")); d.Encap != 9999 {
		t.Errorf("SACK to port %d", d.Encap)
	}
	if d = in(0, s.tag, mkData(whole|flagI, p.tsn+2, 0, 2, 0, "x")); d.Encap != 0 {
		t.Errorf("SACK to port %d", d.Encap)
	}
	// Dial through UDP, and out of the blue.
	x, err := n.e.Dial(w.Now, DialConfig{LocalPort: 1, Locals: []netip.Addr{addrB}, RemotePort: 2,
		Remotes: []netip.Addr{addrA}, Encap: 9899})
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	n.pump()
	if got[0].Encap != 9899 || x.primary.pmtu != 1472 {
		t.Errorf("INIT to port %d, PMTU %d", got[0].Encap, x.primary.pmtu)
	}
	p.dport = 77
	if d = in(5555, 1, mkData(whole, 1, 0, 0, 0, "x")); d.Encap != 5555 {
		t.Errorf("ABORT to port %d", d.Encap)
	}
}

// ICMP: only what quotes our ports, addresses and the tag. SCTP-165, 166, 167, 168, SCTP-178.
func TestICMP(t *testing.T) {
	quote := func(p *rawPeer, tag uint32) []byte {
		return header{p.dport, p.sport, tag}.append(nil)[:8]
	}
	for _, tt := range []struct {
		name   string
		change func(p *rawPeer, m *ICMPError)
	}{
		{"wrong tag", func(p *rawPeer, m *ICMPError) { m.Quote = quote(p, p.own+1) }},
		{"our own tag", func(p *rawPeer, m *ICMPError) { m.Quote = quote(p, p.tag) }},
		{"tag 0", func(p *rawPeer, m *ICMPError) { m.Quote = quote(p, 0) }},
		{"tag 0, an INIT with another tag", func(p *rawPeer, m *ICMPError) {
			m.Quote = append(header{p.dport, p.sport, 0}.append(nil), mkInit(chunkInit, p.tag+1, 5000, 1,
				1, 1)...)
		}},
		{"ports", func(p *rawPeer, m *ICMPError) { m.Quote[0]++ }},
		{"address", func(p *rawPeer, m *ICMPError) { m.Dst = addrA2 }},
		{"seven octets", func(p *rawPeer, m *ICMPError) { m.Quote = m.Quote[:7] }},
		{"nothing", func(p *rawPeer, m *ICMPError) { m.Quote = nil }},
	} {
		for _, kind := range []ICMPKind{ICMPTooBig, ICMPProtocolUnreachable, ICMPUnreachable} {
			w, n, p := established(t, Config{})
			m := ICMPError{Kind: kind, Src: addrB, Dst: addrA, MTU: 700, Quote: quote(p, p.own)}
			tt.change(p, &m)
			n.e.ICMP(w.Now, m)
			n.pump()
			if p.a.State() != StateEstablished || p.a.primary.pmtu != 1480 || p.a.primary.errors != 0 ||
				len(n.events) > 0 {
				t.Errorf("%s, kind %d: something changed", tt.name, kind)
			}
		}
	}
	icmp := func(p *rawPeer, kind ICMPKind, mtu int, encap bool) {
		p.n.e.ICMP(p.w.Now, ICMPError{Kind: kind, Src: addrB, Dst: addrA, MTU: mtu, Encap: encap,
			Quote: quote(p, p.own)})
		p.n.pump()
	}
	_, n, p := established(t, Config{})
	icmp(p, ICMPTooBig, 1380, false)
	if p.a.primary.pmtu != 1380 || n.wantEvent("too big", EventMaxPayload).Assoc.MaxPayload() !=
		1380-headerLen-dataLen-sackReserve {
		t.Errorf("PMTU %d", p.a.primary.pmtu)
	}
	icmp(p, ICMPTooBig, 1400, false)
	if n.noEvent("larger again", EventMaxPayload); p.a.primary.pmtu != 1380 {
		t.Errorf("PMTU %d", p.a.primary.pmtu)
	}
	icmp(p, ICMPTooBig, 1300, true)
	if p.a.primary.pmtu != 1292 {
		t.Errorf("in UDP: PMTU %d", p.a.primary.pmtu)
	}
	icmp(p, ICMPTooBig, 1, false)
	if p.a.primary.pmtu != 548 || p.a.MaxPayload() < 500 {
		t.Errorf("PMTU %d", p.a.primary.pmtu)
	}
	icmp(p, ICMPUnreachable, 0, false)
	if p.a.primary.errors != 1 || p.a.errors != 0 {
		t.Errorf("%d errors, %d of the association", p.a.primary.errors, p.a.errors)
	}
	icmp(p, ICMPPortUnreachable, 0, false)
	if p.a.State() != StateEstablished {
		t.Error("port unreachable ends the association")
	}
	icmp(p, ICMPPortUnreachable, 0, true)
	if ev := n.wantEvent("port unreachable in UDP", EventDown); ev.Err != ErrUnreachable {
		t.Error(ev.Err)
	}
	_, n, p = established(t, Config{})
	n.sent = nil
	icmp(p, ICMPProtocolUnreachable, 0, false)
	if ev := n.wantEvent("protocol unreachable", EventDown); ev.Err != ErrUnreachable {
		t.Error(ev.Err)
	}
	n.want("nothing is sent")
	// Of an INIT: in COOKIE-WAIT only.
	quoteInit := func(p *rawPeer) []byte {
		return append(header{p.dport, p.sport, 0}.append(nil), mkInit(chunkInit, p.a.tag, 5000, 1,
			1, 1)...)
	}
	_, n, p = dialing(t, Config{})
	m := ICMPError{Kind: ICMPProtocolUnreachable, Src: addrA, Dst: addrB, Quote: quoteInit(p)}
	n.e.ICMP(p.w.Now, m)
	n.pump()
	if ev := n.wantEvent("INIT", EventDown); ev.Err != ErrUnreachable {
		t.Error(ev.Err)
	}
	_, n, p = echoed(t, Config{})
	m.Quote = quoteInit(p)
	n.e.ICMP(p.w.Now, m)
	if p.a.State() != StateCookieEchoed {
		t.Error(p.a.State())
	}
	m.Quote = m.Quote[:16]
	n.e.ICMP(p.w.Now, m)
}
