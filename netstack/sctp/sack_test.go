package sctp

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A SACK that was overtaken is dropped. SCTP-104.
func TestOldSack(t *testing.T) {
	_, n, p := established(t, narrow())
	n.queue(4)
	p.ack(1)
	rwnd := p.a.rwnd
	p.send(mkSack(p.first(), 5))
	if p.a.ackTSN != p.first()+1 || p.a.rwnd != rwnd || n.e.Stats().OldSACK != 1 {
		t.Error("an old SACK counts")
	}
	p.ack(1) // the same once more is not old
	if n.e.Stats().OldSACK != 1 {
		t.Error("a SACK that says the same is old")
	}
}

// What was never sent cannot be acknowledged: the end, cumulatively or by a block. SCTP-108,
// SCTP-109.
func TestAckOfUnsent(t *testing.T) {
	for name, chunk := range map[string]func(p *rawPeer) []byte{
		"cumulative": func(p *rawPeer) []byte { return mkSack(p.a.nextTSN, 1000) },
		"block":      func(p *rawPeer) []byte { return mkSack(p.first(), 1000, gap{2, 4}) },
		"far block": func(p *rawPeer) []byte {
			return mkSack(p.first(), 1000, gap{2, 2}, gap{60_000, 65_535})
		},
		"shutdown": func(p *rawPeer) []byte { return appendShutdown(nil, p.a.nextTSN) },
	} {
		_, n, p := established(t, narrow())
		n.queue(4)
		n.sent = nil
		p.send(chunk(p))
		n.want(name, `ABORT (protocol violation: "the peer acknowledges what was never sent")`)
		n.wantEvent(name, EventDown)
	}
	// Blocks that make no sense, of what was sent: no harm.
	for _, gaps := range [][]gap{
		{{3, 2}}, {{2, 3}, {2, 3}}, {{3, 3}, {2, 2}}, {{1, 1}}, {{0, 0}}, {{0, 3}}, {{65535, 1}},
		{{2, 2}, {3, 3}}, {{2, 3}, {3, 3}},
	} {
		w, n, p := established(t, narrow())
		n.queue(4)
		p.ack(0, gaps...)
		if p.a.State() != StateEstablished {
			t.Fatalf("%v: %v", gaps, p.a.State())
		}
		flight := 0
		for i := range p.a.chunks.len() {
			if c := p.a.chunks.at(i); c.outstanding() {
				flight += c.size()
			}
		}
		if flight != p.a.primary.flight {
			t.Errorf("%v: %d octets in flight, counted %d", gaps, flight, p.a.primary.flight)
		}
		w.Run(2 * time.Second)
		if p.ack(3); p.a.Acked() != 4 || p.a.primary.flight != 0 {
			t.Errorf("%v: %d acknowledged, %d in flight", gaps, p.a.Acked(), p.a.primary.flight)
		}
	}
	// More blocks than there is room for in the chunk: no SACK.
	_, n, p := established(t, narrow())
	n.queue(1)
	bad := mkSack(p.first(), 1000)
	bad[13] = 1
	if p.send(bad); p.a.Acked() != 0 {
		t.Error("a SACK with a block that is not there counts")
	}
}

// isDoubted says whether chunk i is.
func isDoubted(a *Association, i int) bool {
	w, mask := a.sets.word(a.ackTSN + 1 + TSN(i))
	return w[doubtedBits]&mask != 0
}

// A TSN that a gap ack block has said to be there and the next does not is missing again, and T3
// runs for it. SCTP-107.
func TestRenege(t *testing.T) {
	w, n, p := established(t, narrow())
	n.queue(3)
	p.wantTSNs("flight", 0, 1, 2)
	p.ack(0, gap{2, 2})
	p.ack(0) // may be older than the one before it: nothing is sent again for it
	if c := p.a.chunks.at(1); !c.acked || !isDoubted(p.a, 1) || p.a.primary.flight != fullChunk {
		t.Fatalf("%+v, %d in flight", c, p.a.primary.flight)
	}
	// All gap-acked and T3 off, then all taken back.
	p.ack(0, gap{1, 2})
	if !p.a.primary.t3.IsZero() || isDoubted(p.a, 1) {
		t.Fatal("T3 runs with nothing in flight")
	}
	p.ack(0)
	if p.a.primary.t3.IsZero() {
		t.Fatal("T3 does not run")
	}
	w.Run(time.Second)
	p.wantTSNs("T3", 1)
	p.ack(1)
	p.wantTSNs("and the other one", 2)
	// One that tells something new is certainly newer: what it leaves out is sent again at once.
	_, n, p = established(t, narrow())
	n.queue(4)
	p.ack(-1, gap{2, 2})
	n.sent = nil
	p.ack(-1, gap{3, 4})
	if c := p.a.chunks.at(1); c.acked || !c.marked && !c.resent {
		t.Errorf("%+v", c)
	}
	// A SHUTDOWN says nothing of blocks. SCTP-160.
	_, n, p = established(t, narrow())
	n.queue(3)
	p.ack(-1, gap{3, 3})
	p.send(appendShutdown(nil, p.first()))
	if p.a.Acked() != 1 || !p.a.chunks.at(1).acked || p.a.State() != StateShutdownReceived {
		t.Errorf("%d acknowledged, %v", p.a.Acked(), p.a.State())
	}
}

// The third SACK that misses a TSN has it sent again, at once and whatever cwnd is; two do not.
// Only what is newly acknowledged above it counts. Each TSN once. SCTP-130, 131, SCTP-129,
// SCTP-132.
func TestFastRetransmit(t *testing.T) {
	_, n, p := established(t, narrow())
	x := p.a.primary
	x.cwnd, x.ssthresh, p.a.opt.MaxBurst = 10*fullChunk, fullChunk, 100
	n.queue(10)
	p.wantTSNs("the flight", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	n.queue(5)
	p.ack(0, gap{2, 2})
	p.wantTSNs("room for two, and for what cwnd has grown by", 10, 11, 12)
	p.ack(0, gap{2, 2}) // says nothing new
	p.ack(0, gap{2, 2})
	p.ack(0, gap{2, 3})
	p.wantTSNs("room for one", 13)
	cwnd := x.cwnd
	p.ack(0, gap{2, 4})
	p.wantTSNs("the third", 1)
	if grown := cwnd + fullChunk; x.ssthresh > grown*7/10 || x.ssthresh < cwnd*7/10 ||
		x.cwnd != x.ssthresh || !p.a.recovering {
		t.Errorf("cwnd %d of %d, ssthresh %d", x.cwnd, cwnd, x.ssthresh)
	}
	cwnd = x.cwnd
	// In Fast Recovery nothing is cut again, though another is lost.
	for i := range uint16(3) {
		p.ack(0, gap{2, 4}, gap{6, 6 + i})
	}
	if got := p.tsns(); !slices.Contains(got, 5) || x.cwnd != cwnd {
		t.Errorf("sent %v, cwnd %d, was %d", got, x.cwnd, cwnd)
	}
	// Both are lost again: what was sent behind them for the second time has arrived.
	n.queue(3)
	p.ack(0, gap{2, 4}, gap{6, 14})
	if got := p.tsns(); !slices.Contains(got, 15) {
		t.Fatalf("sent %v: no new data", got)
	}
	p.ack(0, gap{2, 4}, gap{6, 15})
	if got := p.tsns(); !slices.Contains(got, 1) || !slices.Contains(got, 5) || x.cwnd != cwnd ||
		n.e.Stats().FastRetransmits < 4 {
		t.Errorf("sent %v, cwnd %d, %+v", got, x.cwnd, n.e.Stats())
	}
	// It ends when what was outstanding at its beginning is acknowledged.
	if p.a.exit != p.first()+13 {
		t.Errorf("exit %d", p.a.exit-p.first())
	}
	if p.ack(12); !p.a.recovering {
		t.Error("left too early")
	}
	if p.ack(13); p.a.recovering {
		t.Error("not left")
	}
}

// A burst of losses: one packet at once, of the earliest, though cwnd is full; the rest by and by.
// Reordering by two is no loss. SCTP-131, SCTP-130.
func TestBurstLoss(t *testing.T) {
	_, n, p := established(t, Config{MTU: fixedMTU(headerLen + 4*316)})
	x := p.a.primary
	x.cwnd, x.ssthresh, p.a.opt.MaxBurst = 60*316, 316, 100
	for range 60 {
		p.a.Send(start, SendOptions{Unordered: true}, stringSource(text(300)))
	}
	n.pump()
	n.sent = nil
	p.ack(-1, gap{13, 16})
	p.ack(-1, gap{13, 20})
	p.wantTSNs("two packets that came before the others")
	p.ack(-1, gap{13, 24})
	p.wantTSNs("one packet, and another as cwnd allows", 0, 1, 2, 3, 4, 5, 6, 7)
	if p.a.marked != 4 || x.cwnd > 43*316 || x.flight != (60-12-12+8)*316 {
		t.Errorf("%d wait, cwnd %d, %d in flight", p.a.marked, x.cwnd, x.flight)
	}
	p.ack(-1, gap{13, 28})
	p.wantTSNs("as cwnd allows", 8, 9, 10, 11)

	_, n, p = established(t, narrow())
	n.queue(4)
	n.sent = nil
	p.ack(-1, gap{2, 2})
	p.ack(-1, gap{2, 3})
	p.ack(2)
	if p.wantTSNs("late by two"); n.e.Stats().FastRetransmits != 0 {
		t.Error("sent again")
	}
}

// A SACK that is due takes the room of the chunk that is to be sent again: then that goes behind
// it, at once all the same. SCTP-131, SCTP-078.
func TestFastRetransmitBesideSack(t *testing.T) {
	_, n, p := established(t, Config{})
	x := p.a.primary
	x.cwnd, x.ssthresh, p.a.opt.MaxBurst = 12*1468, 1, 100
	for range 12 {
		n.post(SendOptions{Unordered: true}, text(1452))
	}
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	p.ack(-1, gap{2, 2})
	p.ack(-1, gap{2, 3})
	n.sent = nil
	p.send(mkData(whole, p.tsn+1, 0, 1, 0, "x"), mkSack(p.first()-1, 1<<20, gap{2, 4}))
	n.want("its SACK, and the chunk", "SACK cum=1001 !DATA", fmt.Sprintf("DATA tsn=%d", p.first()))
	if x.flight <= x.cwnd {
		t.Errorf("cwnd %d leaves room for %d octets", x.cwnd, x.flight)
	}
}

// RTT and RTO: the first measurement, then the smoothed ones, within bounds. SCTP-117, SCTP-119.
func TestRTO(t *testing.T) {
	o := Options{RTOMin: time.Millisecond}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	p := &path{rto: o.RTOInitial}
	for i, tt := range []struct{ r, srtt, rttvar, rto float64 }{
		{100, 100, 50, 300},
		{200, 112.5, 62.5, 362.5},
		{100, 110.9375, 50, 310.9375},
		{110.9375, 110.9375, 37.5, 260.9375},
	} {
		p.measure(ms(tt.r), &o)
		if p.srtt != ms(tt.srtt) || p.rttvar != ms(tt.rttvar) || p.rto != ms(tt.rto) {
			t.Errorf("step %d: %v %v %v, want %v", i, p.srtt, p.rttvar, p.rto, tt)
		}
	}
	var d Options
	d.setDefaults()
	p = &path{}
	if p.measure(time.Microsecond, &d); p.rto != time.Second {
		t.Errorf("RTO %v after 1 us", p.rto)
	}
	p = &path{}
	if p.measure(0, &d); p.rttvar == 0 || p.srtt == 0 {
		t.Error("RTTVAR is 0")
	}
	p = &path{}
	if p.measure(time.Hour, &d); p.rto != time.Minute {
		t.Errorf("RTO %v after an hour", p.rto)
	}
	if p.backOff(&d); p.rto != time.Minute {
		t.Errorf("RTO %v backed off", p.rto)
	}
	for _, bad := range []Options{{RTOMin: 2 * time.Second}, {RTOMax: time.Millisecond},
		{RTOInitial: -1}} {
		if bad.setDefaults() == nil {
			t.Errorf("%+v", bad)
		}
	}
}

// One measurement per round trip, and none of what was sent again. What has arrived undoes the
// back-off, measured or not. SCTP-118.
func TestKarn(t *testing.T) {
	w, n, p := established(t, narrow())
	x := p.a.primary
	n.queue(3)
	w.Run(40 * time.Millisecond)
	p.ack(0)
	if x.srtt != 40*time.Millisecond {
		t.Fatalf("SRTT %v", x.srtt)
	}
	w.Run(20 * time.Millisecond)
	p.ack(1) // in flight at the same time as the first: no measurement
	if x.srtt != 40*time.Millisecond {
		t.Errorf("SRTT %v: measured twice in a round trip", x.srtt)
	}
	p.ack(2)
	n.queue(1) // 3: measured, but for what happens to it
	w.Run(1500 * time.Millisecond)
	if st := n.e.Stats(); st.Timeouts != 1 || st.TailProbes == 0 || x.rto != 2*time.Second {
		t.Fatalf("%+v, RTO %v", st, x.rto)
	}
	if p.ack(3); x.srtt != 40*time.Millisecond || x.rto != time.Second {
		t.Errorf("SRTT %v, RTO %v: a retransmission was measured, or the back-off stays", x.srtt, x.rto)
	}
	// What is sent new after that is measured.
	n.queue(1)
	w.Run(20 * time.Millisecond)
	if p.ack(4); x.srtt == 40*time.Millisecond || x.rto != time.Second {
		t.Errorf("SRTT %v, RTO %v", x.srtt, x.rto)
	}
}

// T3: starts with the first chunk, is left alone by others, restarts when the earliest is
// acknowledged, stops with the last. SCTP-079, SCTP-120.
func TestT3(t *testing.T) {
	w, n, p := established(t, narrow())
	x := p.a.primary
	t3 := func(what string, want time.Duration) {
		t.Helper()
		got := x.t3.Sub(start)
		if x.t3.IsZero() {
			got = 0
		}
		if got != want {
			t.Errorf("%s: T3 at %v, want %v", what, got, want)
		}
	}
	ms := time.Millisecond
	t3("nothing sent", 0)
	n.queue(1)
	t3("0 sent", 1000*ms)
	w.Run(ms)
	n.queue(2)
	t3("1 and 2 sent", 1000*ms)
	w.Run(199 * ms)
	p.ack(-1, gap{3, 3}) // 2 is there; 0 is the earliest
	t3("2 gap-acked", 1000*ms)
	p.ack(-1, gap{2, 3})
	t3("1 gap-acked", 1000*ms)
	p.ack(0)
	// Blocks are gone, which may be an old SACK: T3 runs until one is not.
	t3("0 acked", 1200*ms)
	p.ack(2)
	t3("all acked", 0)
	// The earliest, by a block, restarts it.
	n.queue(2)
	w.Run(100 * ms)
	p.ack(2, gap{1, 1})
	t3("3 gap-acked", 1300*ms)
	p.ack(4)
	// The lowest sent again restarts it, another does not.
	n.queue(6)
	n.sent = nil
	w.Run(100 * ms)
	p.ack(4, gap{2, 2})
	p.ack(4, gap{2, 3})
	t3("7 and 8 have arrived", 1300*ms)
	w.Run(30 * ms)
	if got := p.tsns(); !slices.Contains(got, 5) {
		t.Errorf("sent %v", got)
	}
	t3("5 sent again", 1425*ms)
}

// T3 runs out: ssthresh, cwnd, RTO; one packet of the earliest, nothing else until it is
// acknowledged. SCTP-121, 122, SCTP-079.
func TestT3Timeout(t *testing.T) {
	w, n, p := established(t, narrow())
	x := p.a.primary
	x.cwnd, p.a.opt.MaxBurst = 20*fullChunk, 100
	n.queue(20)
	n.queue(10)
	n.sent = nil
	w.Run(time.Second)
	p.wantTSNs("one packet", 0)
	if x.ssthresh != 14*fullChunk || x.cwnd != fullChunk || x.rto != 2*time.Second {
		t.Errorf("ssthresh %d, cwnd %d, RTO %v", x.ssthresh, x.cwnd, x.rto)
	}
	w.Run(1999 * time.Millisecond)
	p.wantTSNs("nothing yet")
	w.Run(time.Millisecond)
	p.wantTSNs("after twice the time", 0)
	if x.ssthresh != 14*fullChunk || x.rto != 4*time.Second { // it was cut already
		t.Errorf("ssthresh %d, RTO %v", x.ssthresh, x.rto)
	}
	p.ack(0)
	p.wantTSNs("slow start", 1, 2)
	p.ack(2)
	p.wantTSNs("and on", 3, 4, 5, 6)
	p.ack(19)
	// What was not sent again has come: nothing was lost, and the window is as it was.
	if got := p.tsns(); len(got) != 10 || got[0] != 20 || x.cwnd < 20*fullChunk ||
		n.e.Stats().Undone != 1 {
		t.Errorf("sent %v, cwnd %d", got, x.cwnd)
	}
	if p.a.State() != StateEstablished || p.a.errors != 0 {
		t.Error(p.a.errors)
	}
	// Small chunks: still one packet only.
	_, n, p = established(t, Config{})
	for range 30 {
		p.a.Send(p.w.Now, SendOptions{}, stringSource(text(100)))
	}
	n.pump()
	n.sent = nil
	p.w.Run(time.Second)
	if len(n.sent) != 1 {
		t.Errorf("%d packets", len(n.sent))
	}
	if got := p.tsns(); len(got) != 12 || got[0] != 0 {
		t.Errorf("TSNs %v", got)
	}
}

// Slow start: cwnd grows by what is acknowledged and L packets at most, if it was used up, and not
// in Fast Recovery. An application that sends little keeps it, and splitting SACKs gains nothing.
// SCTP-126.
func TestSlowStart(t *testing.T) {
	_, n, p := established(t, narrow())
	x := p.a.primary
	p.a.opt.MaxBurst = 100
	n.queue(3) // 3 of 4
	if p.ack(2); x.cwnd != 4*fullChunk {
		t.Errorf("cwnd %d though it was not used", x.cwnd)
	}
	n.queue(100)
	p.ack(3)
	if x.cwnd != 5*fullChunk {
		t.Errorf("cwnd %d", x.cwnd)
	}
	p.ack(6)
	if x.cwnd != 8*fullChunk {
		t.Errorf("cwnd %d", x.cwnd)
	}
	for _, want := range []int{16, 32, 48} { // L is 16
		if p.ack(int(p.a.nextTSN-p.first()) - 1); x.cwnd != want*fullChunk {
			t.Errorf("cwnd %d, not %d packets", x.cwnd, want)
		}
	}
	// Behind a loss one packet more, and then congestion avoidance: many acknowledged at once do not
	// take the cut back.
	x.ssthresh = x.cwnd
	for range 2 {
		n.queue(100)
		if p.ack(int(p.a.nextTSN-p.first()) - 1); x.cwnd < 49*fullChunk || x.cwnd >= 51*fullChunk {
			t.Errorf("cwnd %d behind a threshold of %d", x.cwnd, x.ssthresh)
		}
	}
	// A hundred messages of an octet acknowledged one by one: cwnd grows by what they are worth.
	_, n, p = established(t, Config{})
	x = p.a.primary
	x.cwnd = 4404
	for range 400 {
		p.a.Send(p.w.Now, SendOptions{}, stringSource("x"))
	}
	n.pump()
	before, acked := x.cwnd, 0
	for i := 0; i < 40; i++ {
		p.ack(i)
		acked += 20
	}
	if x.cwnd > before+acked {
		t.Errorf("cwnd %d of %d for %d octets", x.cwnd, before, acked)
	}
	// Of SACKs that come together each counts, though the first leaves room in the window.
	_, n, p = established(t, narrow())
	p.a.opt.MaxBurst = 100
	n.queue(100)
	p.send(mkSack(p.first()+1, 1<<20), mkSack(p.first()+3, 1<<20))
	if x = p.a.primary; x.cwnd != 8*fullChunk {
		t.Errorf("cwnd %d behind two SACKs together for all 4 packets", x.cwnd)
	}
	// In Fast Recovery it stays.
	_, n, p = established(t, narrow())
	x = p.a.primary
	p.a.opt.MaxBurst = 100
	x.cwnd = 10 * fullChunk
	n.queue(40)
	p.ack(-1, gap{2, 2})
	p.ack(-1, gap{2, 3})
	p.ack(-1, gap{2, 4})
	cwnd := x.cwnd
	p.ack(4)
	if x.cwnd != cwnd || !p.a.recovering {
		t.Errorf("cwnd %d, was %d", x.cwnd, cwnd)
	}
}

// Congestion avoidance: with no time passed as Reno's, about half a packet a round trip, and only
// if cwnd was in use. SCTP-127.
func TestCongestionAvoidance(t *testing.T) {
	_, n, p := established(t, narrow())
	x := p.a.primary
	p.a.opt.MaxBurst = 100
	x.cwnd, x.ssthresh = 10*fullChunk, 5*fullChunk
	n.queue(200)
	at, before := -1, x.cwnd
	for range 10 {
		for range x.cwnd / fullChunk { // one SACK for each packet
			at++
			p.ack(at)
		}
	}
	if grown := x.cwnd - before; grown < 4*fullChunk || grown > 10*fullChunk {
		t.Fatalf("cwnd %d, was %d", x.cwnd, before)
	}
	_, n, p = established(t, narrow())
	x = p.a.primary
	x.cwnd, x.ssthresh = 10*fullChunk, 5*fullChunk
	n.queue(1)
	for i := range 30 {
		n.queue(1)
		p.ack(i)
	}
	if x.cwnd != 10*fullChunk {
		t.Errorf("cwnd %d", x.cwnd)
	}
}

// An idle path loses half of its window every RTO, down to four packets. SCTP-128.
func TestIdleDecay(t *testing.T) {
	w, n, p := established(t, narrow())
	x := p.a.primary
	n.queue(1)
	p.ack(0)
	x.cwnd = 64 * fullChunk
	w.Run(5*x.rto - 100*time.Millisecond)
	n.queue(1)
	if x.cwnd != 4*fullChunk || x.ssthresh != 64*fullChunk {
		t.Errorf("cwnd %d, ssthresh %d", x.cwnd/fullChunk, x.ssthresh/fullChunk)
	}
	p.ack(1)
	x.cwnd, x.ssthresh = 64*fullChunk, 1<<30
	w.Run(x.rto + time.Millisecond)
	n.queue(1)
	if x.cwnd != 32*fullChunk || x.ssthresh != 64*fullChunk {
		t.Errorf("cwnd %d, ssthresh %d", x.cwnd/fullChunk, x.ssthresh/fullChunk)
	}
	p.ack(2)
	x.cwnd = 2 * fullChunk
	w.Run(10 * x.rto)
	n.queue(1)
	if x.cwnd != 2*fullChunk {
		t.Errorf("a small cwnd grows by idling: %d", x.cwnd)
	}
	// Another way, another window. SCTP-133.
	x.cwnd, x.ssthresh = 64*fullChunk, fullChunk
	if err := p.a.Rerouted(addrA, addrB2); err != nil || x.cwnd != 4*fullChunk || x.ssthresh < 1<<20 ||
		x.src != addrB2 {
		t.Errorf("%v, cwnd %d", err, x.cwnd)
	}
}

// takenForLost has ten chunks of a window of ten under way. Three SACKs have told that the first is
// missing, so that it was sent again.
func takenForLost(t *testing.T) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w, n, p = established(t, narrow())
	x := p.a.primary
	x.cwnd, x.ssthresh, p.a.opt.MaxBurst = 10*fullChunk, fullChunk, 100
	n.queue(10)
	n.sent = nil
	w.Run(20 * time.Millisecond)
	for i := range uint16(3) {
		p.ack(-1, gap{2, 2 + i})
	}
	p.wantTSNs("taken to be lost", 0)
	return w, n, p
}

// That a tail loss probe was needless says nothing of a loss before it. SCTP-130.
func TestNeedlessProbeBehindLoss(t *testing.T) {
	w, n, p := takenForLost(t)
	x := p.a.primary
	w.Run(20 * time.Millisecond)
	p.ack(9)
	x.measure(20*time.Millisecond, p.a.opt)
	n.queue(1)
	w.Run(300 * time.Millisecond)
	if got := p.tsns(); !slices.Equal(got, []int{10, 10}) || n.e.Stats().TailProbes != 1 {
		t.Fatalf("sent %v, %+v", got, n.e.Stats())
	}
	p.ack(10)
	w.Run(time.Millisecond)
	p.send(appendSack(nil, p.first()+10, 1<<20, nil, []TSN{p.first() + 10}))
	if st := n.e.Stats(); x.cwnd >= 10*fullChunk || st.Spurious != 1 || st.Undone != 0 {
		t.Errorf("cwnd %d, %+v", x.cwnd, st)
	}
}

// A T3 expiry for nothing says nothing of a loss before it: the windows are what they were behind
// that, and what they were before it once the peer says that it was none. SCTP-130.
func TestTimeoutBehindLoss(t *testing.T) {
	w, n, p := takenForLost(t)
	x := p.a.primary
	w.Run(20 * time.Millisecond)
	p.ack(9)
	cut := x.cwnd
	n.queue(3)
	for n.e.Stats().Timeouts == 0 {
		w.Run(10 * time.Millisecond)
	}
	p.ack(12)
	if st := n.e.Stats(); x.cwnd < cut || x.cwnd >= 10*fullChunk || st.Undone != 1 {
		t.Errorf("cwnd %d behind a cut to %d, %+v", x.cwnd, cut, st)
	}
	var twice []TSN
	for _, i := range p.tsns() {
		if i < 10 || i > 12 {
			t.Errorf("%d sent", i)
		}
		twice = append(twice, p.first()+TSN(i))
	}
	p.send(appendSack(nil, p.first()+12, 1<<20, nil, append(twice[3:], p.first())))
	if st := n.e.Stats(); x.cwnd < 10*fullChunk || st.Undone != 2 {
		t.Errorf("cwnd %d, %+v", x.cwnd, st)
	}
}

// What was sent again in vain is told by the peer's report of the duplicate: the window is what it
// was, and lateness like that is no loss any more. SCTP-130.
func TestSpurious(t *testing.T) {
	w, n, p := takenForLost(t)
	x := p.a.primary
	if x.cwnd >= 10*fullChunk || !p.a.recovering {
		t.Fatalf("cwnd %d", x.cwnd)
	}
	w.Run(2 * time.Millisecond) // only late; the second one of it comes after that
	p.ack(9)
	w.Run(18 * time.Millisecond)
	p.send(appendSack(nil, p.first()+9, 1<<20, nil, []TSN{p.first()}))
	st := n.e.Stats()
	if x.cwnd < 10*fullChunk || p.a.recovering || st.Spurious != 1 || st.Undone != 1 {
		t.Errorf("cwnd %d, %+v", x.cwnd, st)
	}
	// So it is if the report has been overtaken by another SACK: it is in no other.
	was := st
	x.cwnd = 10 * fullChunk
	n.queue(10)
	x.rack.Forget()
	for i := range uint16(3) {
		p.ack(9, gap{2, 2 + i})
	}
	w.Run(2 * time.Millisecond)
	p.ack(19)
	w.Run(18 * time.Millisecond)
	p.send(appendSack(nil, p.first()+18, 1<<20, nil, []TSN{p.first() + 10}))
	if st = n.e.Stats(); st.OldSACK == was.OldSACK || st.Spurious != 2 || st.Undone != 2 {
		t.Errorf("%+v", st)
	}
	// A report of what was sent once says nothing of us.
	p.send(appendSack(nil, p.first()+19, 1<<20, nil, []TSN{p.first(), p.first() + 5}))
	if st := n.e.Stats(); st.Spurious != 2 {
		t.Errorf("%+v", st)
	}
	// The next time nothing is sent again for so little.
	n.queue(10)
	w.Run(20 * time.Millisecond)
	n.sent = nil
	for i := range uint16(3) {
		p.ack(19, gap{2, 2 + i})
	}
	w.Run(2 * time.Millisecond)
	if p.ack(29); n.e.Stats().Retransmits != 2 {
		t.Errorf("%+v", n.e.Stats())
	}
}

// The loss of what was sent last is found by a probe, long before T3: the last chunk again, or new
// data if there is any, and again at doubled distances. SCTP-120.
func TestTailProbe(t *testing.T) {
	w, n, p := established(t, narrow())
	x := p.a.primary
	n.queue(1)
	w.Run(10 * time.Millisecond)
	p.ack(0)
	n.queue(3)
	n.sent = nil
	begin := w.Now
	var at []time.Duration
	w.trace = func(*node, Datagram) { at = append(at, w.Now.Sub(begin)) }
	wait := x.srtt + 4*x.rttvar
	w.Run(5 * wait)
	p.wantTSNs("two probes", 3, 3)
	if want := []time.Duration{wait, 3 * wait}; !slices.Equal(at, want) ||
		n.e.Stats().TailProbes != 2 {
		t.Errorf("probes at %v, want %v", at, want)
	}
	// Its arrival tells of the others.
	p.ack(0, gap{3, 3})
	w.Run(wait)
	if got := p.tsns(); len(got) < 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("sent %v", got)
	}
	p.ack(3)
	// With more to send than cwnd lets go, the probe is new data.
	w.trace = nil
	n.queue(x.cwnd/fullChunk + 3)
	last := slices.Max(p.tsns())
	w.Run(x.srtt + 4*x.rttvar)
	p.wantTSNs("new data", last+1)
	if n.e.Stats().Timeouts != 0 {
		t.Errorf("%+v", n.e.Stats())
	}
}
