package sctp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The side that begins: SHUTDOWN-PENDING until all is acknowledged, SHUTDOWN with what it has
// received, SHUTDOWN-SENT. SCTP-157, SCTP-083, SCTP-161, SCTP-080.
func TestShutdown(t *testing.T) {
	w, n, p := established(t, narrow())
	n.queue(5)
	n.sent = nil
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	n.sent = nil
	if err := p.a.Shutdown(w.Now); err != nil {
		t.Fatal(err)
	}
	n.pump()
	n.want("data is under way")
	if p.a.State() != StateShutdownPending {
		t.Fatal(p.a.State())
	}
	p.ack(3)
	n.want("the last message, with the I bit", "DATA IUBE")
	p.ack(3) // not yet
	n.want("not yet")
	p.ack(4)
	n.want("all acknowledged", fmt.Sprintf("SHUTDOWN cum=%d", p.tsn))
	if p.a.State() != StateShutdownSent {
		t.Fatal(p.a.State())
	}
	if p.a.Shutdown(w.Now) != nil {
		t.Error("a second Shutdown is an error")
	}
	p.send(mk(chunkShutdownAck, 0))
	n.want("SHUTDOWN ACK", fmt.Sprintf("tag=%08x SHUTDOWN COMPLETE !COMPLETE_T", p.own))
	if ev := n.wantEvent("down", EventDown); ev.Err != nil || ev.Acked != 5 ||
		n.e.Associations() != 0 {
		t.Errorf("%+v", ev)
	}
}

// The other side: what it has is finished first, new messages are refused, then SHUTDOWN ACK.
// SCTP-158, SCTP-083, SCTP-147, SCTP-160.
func TestPeerShutdown(t *testing.T) {
	w, n, p := established(t, narrow())
	n.queue(6)
	p.wantTSNs("the flight", 0, 1, 2, 3)
	p.send(appendShutdown(nil, p.first()+1)) // acknowledges two
	n.wantEvent("the user is told", EventPeerShutdown)
	p.wantTSNs("it goes on", 4, 5)
	if _, err := p.a.Send(w.Now, SendOptions{}, strings.NewReader("x")); err != ErrShutdown ||
		p.a.State() != StateShutdownReceived || p.a.Room() != 0 {
		t.Errorf("%v in %v", err, p.a.State())
	}
	if p.a.Shutdown(w.Now) != nil || p.a.State() != StateShutdownReceived {
		t.Error("a Shutdown of ours")
	}
	p.ack(1, gap{2, 2})
	p.send(appendShutdown(nil, p.first()+2))
	if n.want("not all yet"); p.a.State() != StateShutdownReceived {
		t.Fatal(p.a.State())
	}
	p.send(appendShutdown(nil, p.first()+5))
	n.want("all acknowledged", "SHUTDOWN ACK")
	// SHUTDOWN COMPLETE with the right tag and T, in this state only.
	for _, tt := range []struct {
		tag  uint32
		flag byte
		ends bool
	}{{p.own + 1, flagT, false}, {p.own, 0, false}, {p.tag, flagT, false}, {p.tag, 0, true}} {
		p.raw(tt.tag, mk(chunkShutdownComplete, tt.flag))
		if (p.a.State() == StateClosed) != tt.ends {
			t.Errorf("%+v: %v", tt, p.a.State())
		}
	}
	if ev := n.wantEvent("down", EventDown); ev.Err != nil {
		t.Error(ev.Err)
	}
	_, n, p = established(t, Config{})
	p.send(mk(chunkShutdownComplete, 0))
	p.send(mk(chunkShutdownAck, 0))
	if n.want("not shutting down"); p.a.State() != StateEstablished {
		t.Errorf("%v", p.a.State())
	}
	// Reflected: the peer has forgotten the association.
	p.send(appendShutdown(nil, p.a.ackTSN))
	p.raw(p.own, mk(chunkShutdownComplete, flagT))
	if p.a.State() != StateClosed {
		t.Errorf("%v", p.a.State())
	}
	// It has forgotten it, says an ABORT that reflects the tag, as the SHUTDOWN COMPLETE would have
	// said; one of its own is an ABORT.
	for _, reflected := range []bool{true, false} {
		_, n, p = established(t, Config{})
		p.send(appendShutdown(nil, p.a.ackTSN))
		if reflected {
			p.raw(p.own, mk(chunkAbort, flagT))
		} else {
			p.send(mk(chunkAbort, 0))
		}
		if ev := n.wantEvent("ABORT", EventDown); (ev.Err == nil) != reflected {
			t.Errorf("reflected %t: %v", reflected, ev.Err)
		}
	}
}

// In SHUTDOWN-SENT each packet with DATA is answered with a SHUTDOWN, with a SACK too for gaps and
// duplicates. SCTP-159.
func TestDataInShutdownSent(t *testing.T) {
	w, n, p := established(t, Config{})
	p.a.Shutdown(w.Now)
	n.pump()
	n.want("SHUTDOWN", fmt.Sprintf("SHUTDOWN cum=%d", p.tsn-1))
	w.Run(900 * time.Millisecond)
	p.a.errors = 3 // as if T2 had run out
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	if n.want("DATA", fmt.Sprintf("SHUTDOWN cum=%d", p.tsn)); p.a.errors != 0 {
		t.Errorf("%d errors", p.a.errors)
	}
	w.Run(900 * time.Millisecond) // T2 was restarted
	n.want("T2")
	p.send(mkData(whole, p.tsn+2, 0, 2, 0, "x"))
	n.want("a gap", fmt.Sprintf("SACK cum=%d gap=2-2", p.tsn), fmt.Sprintf("SHUTDOWN cum=%d", p.tsn))
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	n.want("a duplicate", "SACK gap=2-2 dup=", "SHUTDOWN")
	for i := range TSN(30) {
		w.Run(900 * time.Millisecond)
		p.send(mkData(whole|flagU, p.tsn+3+i, 0, 0, 0, "x"))
	}
	// the ordered one waits for TSN 1
	if p.a.State() != StateShutdownSent || p.a.errors != 0 || len(n.msgs) != 31 {
		t.Errorf("%v, %d messages", p.a.State(), len(n.msgs))
	}
}

// In SHUTDOWN-SENT there is nothing to acknowledge: a SACK is discarded, whatever it says. An
// address that is confirmed then is not watched any more. SCTP-068, SCTP-135.
func TestShutdownSentDiscards(t *testing.T) {
	w, n, p := lonely(t, Config{Options: Options{AssociationMaxRetrans: 100}})
	all := capturePackets(w)
	p.raw(0, mkInit(chunkInit, p.own, 100_000, 10, 10, p.tsn, appendAddr(nil, addrA2)))
	var s setup
	c, _, _ := nextChunk((*all)[0][headerLen:])
	parseSetup(c, &s)
	p.tag = s.tag
	p.send(mk(chunkCookieEcho, 0, s.cookie...))
	w.Run(0)
	a := n.last
	c, _, _ = nextChunk((*all)[len(*all)-1][headerLen:])
	if c.typ() != chunkHeartbeat {
		t.Fatalf("%v", n.sent)
	}
	a.Shutdown(w.Now)
	n.pump()
	p.send(mkSack(a.nextTSN+5, 1000))
	if a.State() != StateShutdownSent {
		t.Fatalf("a SACK is looked at: %v", a.State())
	}
	p.send(mk(chunkHeartbeatAck, 0, c.value()...))
	if !a.path(addrA2).confirmed {
		t.Fatal("not confirmed")
	}
	n.sent = nil
	if w.Run(2 * time.Minute); strings.Contains(fmt.Sprint(n.sent), "HEARTBEAT") {
		t.Error("a HEARTBEAT behind the SHUTDOWN")
	}
}

// Both shut down at once. SCTP-161, SCTP-162.
func TestCrossingShutdowns(t *testing.T) {
	w, a, b := pair(t, Config{}, Config{})
	a.post(SendOptions{}, "to b")
	b.post(SendOptions{}, "to a")
	for _, n := range w.nodes {
		n.last.Shutdown(w.Now)
		n.pump()
	}
	w.Run(time.Minute)
	for _, n := range w.nodes {
		if ev := n.wantEvent("down", EventDown); ev.Err != nil || n.e.Associations() != 0 ||
			len(n.msgs) != 1 {
			t.Errorf("%s: %+v, %q", n.name, ev, n.msgs)
		}
	}
	// By hand: SHUTDOWN in SHUTDOWN-SENT, then SHUTDOWN ACK in SHUTDOWN-ACK-SENT.
	_, n, p := established(t, Config{})
	p.a.Shutdown(p.w.Now)
	n.pump()
	n.sent = nil
	p.send(appendShutdown(nil, p.a.ackTSN))
	if n.want("SHUTDOWN", "SHUTDOWN ACK"); p.a.State() != StateShutdownAckSent {
		t.Fatal(p.a.State())
	}
	p.send(mk(chunkShutdownAck, 0))
	n.want("SHUTDOWN ACK", "SHUTDOWN COMPLETE")
	n.wantEvent("down", EventDown)
}

// T2 sends the chunk again, with the TSN as it is then; after Association.Max.Retrans the peer is
// dead. SCTP-163.
func TestT2(t *testing.T) {
	for _, ack := range []bool{false, true} {
		w, n, p := established(t, Config{})
		if ack {
			p.send(appendShutdown(nil, p.a.ackTSN))
			n.want("SHUTDOWN", "SHUTDOWN ACK")
		} else {
			p.a.Shutdown(w.Now)
			n.pump()
			n.want("Shutdown", "SHUTDOWN")
			p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
			n.want("DATA", fmt.Sprintf("SHUTDOWN cum=%d", p.tsn))
		}
		w.Run(time.Second)
		if ack {
			n.want("T2", "SHUTDOWN ACK")
		} else {
			n.want("T2", fmt.Sprintf("SHUTDOWN cum=%d", p.tsn))
		}
		begin := w.Now
		w.Until("dead", time.Hour, func() bool { return p.a.State() == StateClosed })
		// In SHUTDOWN-SENT the guard of five times RTO.Max comes first. SCTP-164.
		want := 2 + 4 + 8 + 16 + 32 + 60*5
		if !ack {
			want = 300 - 1
		}
		if d := w.Now.Sub(begin); d.Round(time.Second) != time.Duration(want)*time.Second {
			t.Errorf("ack %t: dead after %v", ack, d)
		}
		if ev := n.wantEvent("dead", EventDown); ack && ev.Err != ErrTimeout {
			t.Error(ev.Err)
		}
	}
	// Retransmissions are bounded in SHUTDOWN-SENT too.
	w, n, p := established(t, Config{Options: Options{AssociationMaxRetrans: 3}})
	p.a.Shutdown(w.Now)
	n.pump()
	w.Run(time.Minute)
	n.want("four in all", "SHUTDOWN", "SHUTDOWN", "SHUTDOWN", "SHUTDOWN")
	if ev := n.wantEvent("dead", EventDown); ev.Err != ErrTimeout {
		t.Error(ev.Err)
	}
}

// A peer that never finishes is aborted by the guard timer. SCTP-164.
func TestShutdownGuard(t *testing.T) {
	w, n, p := established(t, Config{})
	p.a.Shutdown(w.Now)
	n.pump()
	begin := w.Now
	for i := TSN(0); p.a.State() != StateClosed && i < 1000; i++ {
		n.sent = nil
		w.Run(900 * time.Millisecond)
		if p.a.State() != StateClosed {
			p.send(mkData(whole|flagU, p.tsn+i, 0, 0, 0, "x"))
		}
	}
	if d := w.Now.Sub(begin); d < 299*time.Second || d > 302*time.Second {
		t.Errorf("after %v", d)
	}
	if !matches(n.sent[len(n.sent)-1], "ABORT (user-initiated abort)") {
		t.Errorf("%v", n.sent)
	}
}

// Abort: an ABORT with the peer's tag, the user's reason and no DATA; the user is told too.
// SCTP-154, SCTP-155.
func TestAbort(t *testing.T) {
	w, n, p := established(t, narrow())
	n.queue(2)
	p.a.Send(w.Now, SendOptions{}, strings.NewReader("waits"))
	n.sent = nil
	p.a.Abort(w.Now, "because we say so")
	n.pump()
	n.want("abort", fmt.Sprintf(`tag=%08x ABORT (user-initiated abort: "because we say so")`, p.own))
	ev := n.wantEvent("abort", EventDown)
	if e, ok := ev.Err.(*LocalAbort); !ok || e.Cause != CauseUserAbort || n.e.Associations() != 0 {
		t.Errorf("%v", ev.Err)
	}
	p.a.Abort(w.Now, "again")
	n.pump()
	n.want("once")
	if w.Run(time.Hour); len(n.sent) > 0 {
		t.Errorf("after the end: %v", n.sent)
	}
	// What the peer sends then is out of the blue.
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	n.want("DATA for a dead association", fmt.Sprintf("tag=%08x ABORT_T", p.tag))
	// A reason of any length.
	_, n, p = established(t, Config{})
	p.a.Abort(w.Now, text(5000))
	n.pump()
	if len(n.sent) != 1 || len(n.sent[0]) > 400 {
		t.Errorf("%d packets", len(n.sent))
	}
	// Before the peer has a tag there is nobody to tell.
	_, n, p = dialing(t, Config{})
	n.sent = nil
	p.a.Abort(w.Now, "x")
	n.pump()
	n.want("COOKIE-WAIT")
	n.wantEvent("COOKIE-WAIT", EventDown)
	_, n, p = echoed(t, Config{})
	p.a.Shutdown(w.Now)
	n.pump()
	n.want("COOKIE-ECHOED", fmt.Sprintf("tag=%08x ABORT", p.own))
	// Two that abort each other: it ends.
	w, a, b := pair(t, Config{}, Config{})
	for _, x := range w.nodes {
		x.last.Abort(w.Now, "")
		x.pump()
	}
	w.Run(time.Hour)
	if len(a.sent) != 1 || len(b.sent) != 1 {
		t.Errorf("%v %v", a.sent, b.sent)
	}
}

// Timers of many associations go off in order, whatever is added and taken away.
func TestTimerHeap(t *testing.T) {
	w := newWorld(t)
	n := w.node("n", Config{}, addrA)
	rng := newSeededRand(3)
	var all []*Association
	for i := range 500 {
		w.Now = start.Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
		a, err := n.e.Dial(w.Now, DialConfig{LocalPort: uint16(1 + i), Locals: n.addrs, RemotePort: 1,
			Remotes: []netip.Addr{addrB}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
		if rng.IntN(3) == 0 {
			all[rng.IntN(len(all))].Abort(w.Now, "")
		}
	}
	check := func() {
		want := 0
		for _, a := range all {
			if a.state != StateClosed {
				if want++; a.heapAt == 0 || n.e.timers[a.heapAt-1] != a {
					t.Fatal("an association has lost its place")
				}
			} else if a.heapAt != 0 {
				t.Fatal("a closed one has a place")
			}
		}
		if len(n.e.timers) != want {
			t.Fatalf("%d timers, %d associations", len(n.e.timers), want)
		}
		for i, a := range n.e.timers {
			if a.deadline != a.nextDeadline() || i > 0 && a.deadline.Before(n.e.timers[(i-1)/2].deadline) {
				t.Fatal("not a heap")
			}
		}
	}
	for limit := start.Add(time.Hour); w.Step(limit); {
		check()
	}
	if n.e.Associations() != 0 {
		t.Error("some are left")
	}
}
