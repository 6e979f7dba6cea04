package sctp

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// A cookie of which any bit is flipped, or cut or drawn out, is ignored, and DATA behind it too.
// SCTP-037, SCTP-044.
func TestCookieForged(t *testing.T) {
	_, n, p := lonely(t, Config{})
	cookie := p.init(100_000, appendAddr(nil, addr("10.9.9.9")))
	n.sent = nil
	data := mkData(flagB|flagE, p.tsn, 0, 0, 0, "x")
	try := func(what string, b []byte) {
		t.Helper()
		p.send(mk(chunkCookieEcho, 0, b...), data)
		if n.want(what); n.e.Associations() != 0 || len(n.msgs) > 0 {
			t.Fatalf("%s makes an association", what)
		}
	}
	for i := range cookie {
		for bit := range 8 {
			forged := bytes.Clone(cookie)
			forged[i] ^= 1 << bit
			try(fmt.Sprintf("octet %d, bit %d", i, bit), forged)
		}
	}
	for i := range cookie {
		try(fmt.Sprintf("cut after %d", i), cookie[:i])
	}
	try("longer", append(bytes.Clone(cookie), 0))
	// Under another key.
	_, _, q := lonely(t, Config{Rand: sctptest.Seeded(4711)})
	try("another endpoint's", q.init(100_000))
	p.send(mk(chunkCookieEcho, 0, cookie...), data)
	n.want("the right one", "COOKIE ACK | SACK cum=1000")
	if len(n.msgs) != 1 {
		t.Fatal("the DATA behind the COOKIE ECHO is not delivered")
	}
}

// A cookie is good for the ports, the tag and the addresses it was made for. SCTP-045, SCTP-148.
func TestCookieElsewhere(t *testing.T) {
	for what, change := range map[string]func(*rawPeer){
		"source port":      func(p *rawPeer) { p.sport++ },
		"destination port": func(p *rawPeer) { p.dport++ },
		"tag":              func(p *rawPeer) { p.tag++ },
		"source address":   func(p *rawPeer) { p.src = addr("10.7.7.7") },
	} {
		_, n, p := lonely(t, Config{})
		if err := n.e.Listen(5044, ListenConfig{}); err != nil {
			t.Fatal(err)
		}
		cookie := p.init(100_000)
		n.sent = nil
		q := *p
		change(&q)
		q.send(mk(chunkCookieEcho, 0, cookie...))
		if n.want(what); n.e.Associations() != 0 || n.e.Stats().BadCookie != 1 {
			t.Errorf("%s: an association", what)
		}
	}
}

// All that makes the association is in the cookie: an Endpoint with the same key that has never
// seen the INIT makes it of the echo. SCTP-038, SCTP-040.
func TestCookieAlone(t *testing.T) {
	w, n, p := lonely(t, Config{Rand: sctptest.Seeded(5)})
	other := addr("10.9.9.9")
	cookie := p.init(77_777, appendAddr(nil, other), appendParam32(nil, paramAdaptation, 3))
	var inner cookieCopy
	inner.read(t, n.e, cookie)

	m := w.node("rebuilt", Config{Rand: sctptest.Seeded(5)}, addrB)
	w.nodes = w.nodes[1:]
	if err := m.e.Listen(5043, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	m.e.keys.rotate(w.Now, m.e.random) // the same random numbers: the same key
	p.n = m
	p.send(mk(chunkCookieEcho, 0, cookie...), mkData(flagB|flagE, p.tsn, 9, 0, 0, "x"))
	m.want("the echo", "COOKIE ACK | SACK cum=1000")
	a := m.last
	code, ok := a.PeerAdaptation()
	out, in := a.Streams()
	if a.tag != p.tag || a.peerTag != p.own || a.rwnd != 77_777 || code != 3 || !ok || out != 10 ||
		in != 10 || a.path(other) == nil ||
		a.nextTSN != inner.tsn || a.have.cum != peerTSN {
		t.Errorf("%+v", a)
	}
	// Every field that is in the clear is one the peer has sent or is told in the same packet; what is
	// left are the tie-tags, 0 here.
	if inner.tie != 0 || inner.peerTie != 0 {
		t.Error("tie-tags without an association")
	}
}

type cookieCopy struct{ cookie }

func (c *cookieCopy) read(t *testing.T, e *Endpoint, b []byte) {
	t.Helper()
	if !e.keys.open(b, &c.cookie) {
		t.Fatal("the cookie does not open")
	}
}

// An old cookie is answered with an ERROR that says how old. SCTP-046.
func TestCookieStale(t *testing.T) {
	w, n, p := lonely(t, Config{})
	cookie := p.init(100_000)
	n.sent = nil
	w.Now = w.Now.Add(60 * time.Second)
	p.send(mk(chunkCookieEcho, 0, cookie...))
	n.want("at 60 s it is good", "COOKIE ACK")
	n.last.Abort(w.Now, "")
	n.pump()

	cookie = p.init(100_000)
	n.sent = nil
	w.Now = w.Now.Add(61 * time.Second)
	p.send(mk(chunkCookieEcho, 0, cookie...), mkData(flagB|flagE, p.tsn, 0, 0, 0, "x"))
	n.want("at 61 s", fmt.Sprintf("tag=%08x ERROR (stale cookie: %08x)", p.own, 1_000_000))
	if n.e.Associations() != 0 {
		t.Error("an association")
	}
	// The initiator may ask for more time, up to as much again.
	for _, tt := range []struct {
		ms   uint32
		life time.Duration
	}{{5000, 65 * time.Second}, {1 << 31, 120 * time.Second}} {
		var c cookieCopy
		c.read(t, n.e, p.init(100_000, appendParam32(nil, paramPreservative, tt.ms)))
		if got := time.Duration(c.life) * time.Millisecond; got != tt.life {
			t.Errorf("%d ms more: life %v, want %v", tt.ms, got, tt.life)
		}
	}
}

// The key changes every hour. A cookie made just before is still good just after; one made with the
// key before that is not. SCTP-039.
func TestCookieKeys(t *testing.T) {
	_, n, p := lonely(t, Config{Options: Options{CookieLife: 30 * time.Minute}})
	w := p.w
	p.init(100_000) // the key begins here
	w.Now = start.Add(59 * time.Minute)
	cookie := p.init(100_000)
	first := n.e.keys.current.id
	w.Now = start.Add(61 * time.Minute)
	p.init(100_000)
	if n.e.keys.current.id == first || n.e.keys.previous.id != first {
		t.Fatal("the key has not changed")
	}
	var c cookieCopy
	if !n.e.keys.open(cookie, &c.cookie) {
		t.Error("a cookie made with the key before is not good")
	}
	w.Now = start.Add(122 * time.Minute)
	p.init(100_000)
	if n.e.keys.open(cookie, &c.cookie) {
		t.Error("a cookie made two keys ago is good")
	}
	// After a silence of two key lives the key before is not kept either.
	cookie = p.init(100_000)
	w.Now = start.Add(300 * time.Minute)
	p.init(100_000)
	if n.e.keys.open(cookie, &c.cookie) {
		t.Error("a key is kept long after its cookies have died")
	}
}

// A cookie that made an association makes none when that has ended: neither a replay nor a late
// copy.
func TestCookieReplay(t *testing.T) {
	w, n, p := lonely(t, Config{})
	cookie := p.init(100_000)
	p.send(mk(chunkCookieEcho, 0, cookie...))
	n.last.Abort(w.Now, "")
	n.pump()
	n.sent, n.events = nil, nil
	p.send(mk(chunkCookieEcho, 0, cookie...))
	if n.want("replay"); n.e.Associations() != 0 || len(n.events) != 0 {
		t.Error("a cookie makes a second association")
	}
	// What is remembered of that has a bound.
	for i := range 3000 {
		n.e.spent.add(uint32(i + 1))
	}
	if len(n.e.spent.set) > len(n.e.spent.ring)+1 {
		t.Errorf("%d tags are remembered", len(n.e.spent.set))
	}
}

// A COOKIE ECHO for an association that lives: table 12, and all that is not in it, over every
// combination of tags and tie-tags that match, do not, or are 0. SCTP-058, 059, 060, 061, 062.
func TestTable12(t *testing.T) {
	const (
		match = iota
		other
		zero
	)
	for _, state := range []State{StateCookieWait, StateCookieEchoed, StateEstablished} {
		for k := range 81 {
			local, peer, tie, peerTie := k%3, k/3%3, k/9%3, k/27
			var w *world
			var n *node
			var p *rawPeer
			switch state {
			case StateCookieWait:
				w, n, p = dialing(t, Config{})
			case StateCookieEchoed:
				w, n, p = echoed(t, Config{})
			default:
				w, n, p = dialed(t, Config{})
			}
			if err := n.e.Listen(4000, ListenConfig{}); err != nil {
				t.Fatal(err)
			}
			a := p.a
			a.tieTags()
			n.sent, n.events = nil, nil
			pick := func(how int, v uint32) uint32 { return []uint32{v, v + 99, 0}[how] }
			ck := cookie{
				created: w.Now.UnixNano(), life: 60_000, srcPort: 5043, dstPort: 4000, tsn: 5, peerTSN: 6,
				rwnd: 100_000, out: 1, in: 1,
				src: addrB, dst: addrA, tag: pick(local, a.tag), peerTag: pick(peer, a.peerTag),
				tie: pick(tie, a.tie), peerTie: pick(peerTie, a.peerTie),
			}
			if state == StateCookieWait && peer == match {
				ck.peerTag = 55 // there is none to match: whatever it is, it is unknown
			}
			if ck.tag == 0 || ck.peerTag == 0 {
				continue // nobody gets a cookie for an INIT with the tag 0, and no tag of ours is 0
			}
			n.e.keys.rotate(w.Now, n.e.random)
			before := a.peerTag
			t1 := a.t1
			p.raw(ck.tag, mk(chunkCookieEcho, 0, n.e.keys.seal(nil, &ck)...))

			peerMatches := peer == match && state != StateCookieWait
			action := byte('-')
			switch {
			case local == match && peerMatches:
				action = 'D'
			case local == match:
				action = 'B'
			case !peerMatches && tie == match && peerTie == match:
				action = 'A'
			}
			what := fmt.Sprintf("%v, tags %d %d, ties %d %d: %c", state, local, peer, tie, peerTie, action)
			switch action {
			case 'D', 'B':
				n.want(what, "COOKIE ACK")
				if a.State() != StateEstablished || a.peerTag != ck.peerTag || !a.t1.IsZero() {
					t.Errorf("%s: %v, peer's tag %x", what, a.State(), a.peerTag)
				}
				if state != StateEstablished {
					n.wantEvent(what, EventUp)
				}
			case 'A':
				n.want(what, fmt.Sprintf("tag=%08x COOKIE ACK", ck.peerTag))
				if ev := n.wantEvent(what, EventDown); ev.Err != ErrRestarted || ev.Assoc != a {
					t.Errorf("%s: %v", what, ev.Err)
				}
				if ev := n.wantEvent(what, EventUp); ev.Assoc == a || ev.Assoc.tag != ck.tag || !ev.Inbound {
					t.Errorf("%s: the new association is the old one", what)
				}
			default:
				if n.want(what); a.State() != state || a.peerTag != before || a.t1 != t1 || len(n.events) > 0 {
					t.Errorf("%s: something changed", what)
				}
			}
		}
	}
}

// The age of a cookie does not count if both tags match: a late copy of it is answered. Otherwise
// it does. SCTP-058.
func TestCookieLate(t *testing.T) {
	w, n, p := lonely(t, Config{})
	cookie := p.init(100_000)
	p.send(mk(chunkCookieEcho, 0, cookie...))
	p.send(mkData(flagB|flagE, p.tsn, 0, 0, 0, "x"))
	w.Now = w.Now.Add(10 * time.Minute)
	n.sent = nil
	p.send(mk(chunkCookieEcho, 0, cookie...))
	n.want("after ten minutes", "COOKIE ACK")
	if n.last.have.cum != peerTSN || len(n.events) != 1 {
		t.Error("the association was begun anew")
	}
	// A cookie of a restart that has aged is stale.
	q := *p
	restart := q.init(100_000)
	w.Now = w.Now.Add(2 * time.Minute)
	n.sent = nil
	q.send(mk(chunkCookieEcho, 0, restart...))
	n.want("a restart with an old cookie", "ERROR (stale cookie")
	if n.last.State() != StateEstablished {
		t.Error("the association has gone")
	}
}

// Both sides begin at the same time, early and late: one association. SCTP-053, 054, SCTP-060.
func TestCollision(t *testing.T) {
	for lag := range 9 {
		w := newWorld(t)
		a, b := w.node("a", Config{}, addrA), w.node("b", Config{}, addrB)
		dial := func(n, m *node, local, remote uint16) *Association {
			x, err := n.e.Dial(w.Now, DialConfig{LocalPort: local, Locals: n.addrs, RemotePort: remote,
				Remotes: m.addrs})
			if err != nil {
				t.Fatal(err)
			}
			n.pump()
			return x
		}
		w.Delay = 4 * time.Millisecond
		x := dial(a, b, 4000, 5043)
		w.Run(time.Duration(lag) * time.Millisecond)
		if lag > 3 { // the INIT came to a port where nobody was
			continue
		}
		y := dial(b, a, 5043, 4000)
		w.Until("both are up", 10*time.Second, func() bool {
			return x.State() == StateEstablished && y.State() == StateEstablished
		})
		w.Run(10 * time.Second)
		if x.peerTag != y.tag || y.peerTag != x.tag || a.e.Associations() != 1 ||
			b.e.Associations() != 1 {
			t.Errorf("lag %d: tags %x %x and %x %x", lag, x.tag, x.peerTag, y.tag, y.peerTag)
		}
		a.post(SendOptions{}, "to b")
		b.post(SendOptions{}, "to a")
		w.Run(time.Second)
		if fmt.Sprint(a.msgs, b.msgs) != "[to a] [to b]" {
			t.Errorf("lag %d: %q %q", lag, a.msgs, b.msgs)
		}
	}

	// An INIT in COOKIE-WAIT: INIT ACK with our own tag and TSN, no tie-tags, T1 left alone.
	_, n, p := dialing(t, Config{})
	n.sent = nil
	t1 := p.a.t1
	p.init(100_000)
	n.want("COOKIE-WAIT", fmt.Sprintf("INIT ACK itag=%08x tsn=%d", p.a.tag, p.a.initTSN))
	if p.a.State() != StateCookieWait || p.a.t1 != t1 || p.a.tie != 0 {
		t.Error("the INIT changed something")
	}
	// Our user has not named the address it comes from: no INIT ACK goes there.
	elsewhere := *p
	elsewhere.src = addr("10.9.9.9")
	elsewhere.raw(0, mkInit(chunkInit, p.own, 100_000, 10, 10, p.tsn, appendAddr(nil, addrB)))
	n.want("INIT from elsewhere")
	// In COOKIE-ECHOED: with tie-tags. New addresses are refused.
	_, n, p = echoed(t, Config{})
	var c cookieCopy
	c.read(t, n.e, p.init(100_000))
	if n.want("COOKIE-ECHOED", fmt.Sprintf("INIT ACK itag=%08x", p.a.tag)); c.tie == 0 ||
		c.tie != p.a.tie || c.peerTie != p.a.peerTie {
		t.Errorf("tie-tags %x %x", c.tie, c.peerTie)
	}
	p.raw(0, mkInit(chunkInit, p.own, 100_000, 10, 10, p.tsn, appendAddr(nil, addr("10.9.9.9"))))
	n.want("new address", fmt.Sprintf("tag=%08x ABORT (restart of an association with new "+
		"addresses: 000500080a090909)", p.own))
	if p.a.State() != StateCookieEchoed {
		t.Error(p.a.State())
	}
}

// A collision takes no address away from another association: a peer to which an INIT is under way
// lists in one of its own what another one with the same ports was begun with.
func TestCollisionOverAddress(t *testing.T) {
	w, n, p := dialing(t, Config{}, addrB)
	other, err := n.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: n.addrs, RemotePort: 5043,
		Remotes: []netip.Addr{addrB2}})
	if err != nil {
		t.Fatal(err)
	}
	n.pump()
	free := addr("10.9.9.9")
	p.send(mk(chunkCookieEcho, 0, p.init(100_000, appendAddr(nil, addrB2), appendAddr(nil, free))...))
	of := func(x netip.Addr) *Association { return n.e.table[peerKey{4000, 5043, x}] }
	if p.a.State() != StateEstablished || of(addrB) != p.a || of(free) != p.a {
		t.Errorf("%v, paths %v", p.a.State(), p.a.Paths())
	}
	if of(addrB2) != other || len(p.a.Paths()) != 2 {
		t.Errorf("the address is the other's: %v; paths %v", of(addrB2) == other, p.a.Paths())
	}
	p.a.Abort(w.Now, "")
	n.pump()
	if of(addrB2) != other || of(addrB) != nil || of(free) != nil {
		t.Error("what is left is not the other association's")
	}
	q := &rawPeer{w: w, n: n, a: other, src: addrB2, dst: addrA, sport: 5043, dport: 4000,
		tag: other.tag, own: peerTag + 1, tsn: peerTSN}
	q.initAck()
	if q.send(mk(chunkCookieAck, 0)); other.State() != StateEstablished {
		t.Error(other.State())
	}
}

// An INIT while established: answered, the association is as before, and goes on. Only the cookie
// that comes back with the tie-tags restarts it. SCTP-055, SCTP-056, SCTP-059, SCTP-145.
func TestRestart(t *testing.T) {
	w, n, p := established(t, Config{})
	a := p.a
	n.keep = true
	p.send(mkData(flagB|flagE, p.tsn, 0, 0, 0, "before"))
	n.last.Send(w.Now, SendOptions{}, strings.NewReader("unacked"))
	n.pump()
	n.sent = nil
	// A blind INIT, and one that brings an address with it.
	var c cookieCopy
	blind := *p
	blind.own = 99
	cookie := blind.init(100_000)
	c.read(t, n.e, cookie)
	n.want("INIT", "INIT ACK")
	if blind.tag == a.tag || c.tie != a.tie || a.tie == 0 || c.tie == a.tag || c.peerTie == a.peerTag {
		t.Errorf("new tag %x, tie-tags %x %x", blind.tag, c.tie, c.peerTie)
	}
	for _, src := range []netip.Addr{addrA, addr("10.9.9.9")} {
		blind.src = src
		blind.raw(0, mkInit(chunkInit, 99, 100_000, 10, 10, 1, appendAddr(nil, addrA),
			appendAddr(nil, addr("10.9.9.9"))))
		n.want("new address", "tag=00000063 ABORT (restart of an association with new addresses: "+
			"000500080a090909)")
	}
	p.send(mkData(flagB|flagE, p.tsn+1, 0, 1, 0, "goes on"))
	if len(n.msgs) != 2 || a.State() != StateEstablished || len(n.events) > 0 {
		t.Fatal("the association was changed by an INIT")
	}
	n.sent = nil

	// The peer has restarted.
	p.own = 0x0a0b0c0d
	cookie = p.init(50_000)
	n.sent = nil
	p.tsn = 7000
	a.primary.cwnd = 77777
	p.send(mk(chunkCookieEcho, 0, cookie...))
	n.want("restart", "tag=0a0b0c0d COOKIE ACK")
	if ev := n.wantEvent("restart", EventDown); ev.Err != ErrRestarted || ev.Assoc != a ||
		ev.Acked != 0 {
		t.Errorf("%+v", ev)
	}
	b := n.wantEvent("restart", EventUp).Assoc
	if b == a || b.primary.cwnd == 77777 || n.e.Associations() != 1 || a.State() != StateClosed {
		t.Error("the new association has something of the old one")
	}
	p.send(mkData(flagB|flagE, peerTSN, 0, 0, 0, "new"))
	if len(n.msgs) != 3 || n.msgs[2] != "new" {
		t.Errorf("%q", n.msgs)
	}
	// Messages of the old one can still be released.
	for _, m := range n.held {
		m.Release()
	}
	n.held = nil
	w.Run(time.Second)
	if w.refs != 0 {
		t.Errorf("%d packets are held", w.refs)
	}
}

// The peer says that our cookie is too old: once more, with a wish for a longer life, then no more.
// In other states that is not looked at. SCTP-049.
func TestStaleCookieError(t *testing.T) {
	stale := mkParams(chunkError, appendCause32(nil, CauseStaleCookie, 5000))
	w, n, p := echoed(t, Config{})
	w.Now = w.Now.Add(300 * time.Millisecond)
	p.send(stale)
	n.want("stale", "INIT 0009=00000514") // 300 ms and a second
	if p.a.State() != StateCookieWait {
		t.Fatal(p.a.State())
	}
	p.initAck()
	n.want("again", "COOKIE ECHO")
	p.send(stale)
	if ev := n.wantEvent("twice stale", EventDown); ev.Err != ErrStale {
		t.Error(ev.Err)
	}
	_, n, p = dialed(t, Config{})
	p.send(stale)
	if n.want("established"); p.a.State() != StateEstablished || len(n.events) > 0 {
		t.Error("a stale cookie ERROR does something in ESTABLISHED")
	}
}

// In SHUTDOWN-ACK-SENT neither an INIT nor the cookie of a restart begins anything: the SHUTDOWN
// ACK again. SCTP-063.
func TestRestartInShutdown(t *testing.T) {
	_, n, p := established(t, Config{})
	restart := *p
	restart.own = 77
	cookie := restart.init(100_000)
	p.send(appendShutdown(nil, p.a.ackTSN))
	n.sent = nil
	if p.a.State() != StateShutdownAckSent {
		t.Fatal(p.a.State())
	}
	p.raw(0, mkInit(chunkInit, 77, 100_000, 10, 10, 1))
	n.want("INIT", "SHUTDOWN ACK")
	restart.send(mk(chunkCookieEcho, 0, cookie...))
	n.want("COOKIE ECHO", "ERROR (cookie received while shutting down)", "SHUTDOWN ACK")
	if n.last != p.a || n.e.Associations() != 1 {
		t.Error("a new association")
	}
}
