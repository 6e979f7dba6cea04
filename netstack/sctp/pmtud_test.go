package sctp

import (
	"testing"
	"time"
)

// hole is a network on which packets above a size vanish, unless they may be fragmented.
func hole(w *world, size *int) {
	w.Fate = func(d Datagram) []time.Duration {
		if d.DF && len(d.Data) > *size {
			return nil
		}
		return []time.Duration{w.Delay}
	}
}

// A link in the middle takes less than ours and does not say so: after three timeouts packets are
// made small, all arrives, and probes find what the path takes; when the link has gone they find
// that too. None of it counts against the path. SCTP-116.
func TestBlackHole(t *testing.T) {
	for _, size := range []int{1400, 1204, 900, 560} {
		w, a, b := pair(t, Config{}, Config{})
		hole(w, &size)
		x := a.last
		for range 5 {
			a.post(SendOptions{}, text(10_000))
		}
		w.Until("all arrive", 5*time.Minute, func() bool { return x.Acked() == 5 && len(b.msgs) == 5 })
		w.Run(5 * time.Minute)
		if got := x.primary.pmtu; got > size || got < size-2*probeStep {
			t.Errorf("a link of %d: PMTU %d", size, got)
		}
		a.wantEvent("MaxPayload", EventMaxPayload)
		// Now all is well: no timeouts, nothing too large.
		before := a.e.Stats()
		tooLarge := 0
		w.trace = func(_ *node, d Datagram) {
			if survey(d.Data[headerLen:]).has(chunkData) && len(d.Data) > size {
				tooLarge++
			}
		}
		a.post(SendOptions{}, text(50_000))
		w.Run(time.Minute)
		if st := a.e.Stats(); len(b.msgs) != 6 || st.Timeouts != before.Timeouts || tooLarge != 0 ||
			x.primary.errors != 0 || x.errors != 0 {
			t.Errorf("a link of %d: %d messages, %+v, %d packets too large", size, len(b.msgs), st, tooLarge)
		}
		size = 1 << 16
		w.Run(11 * time.Minute)
		if got := x.primary.pmtu; got != 1480 || x.MaxPayload() != 1480-headerLen-dataLen-sackReserve {
			t.Errorf("the link has gone: PMTU %d", got)
		}
		if w.Run(time.Hour); !x.primary.prober.at.IsZero() {
			t.Error("it goes on looking")
		}
	}
}

// A PMTU that ICMP has lowered is tried to be raised after ten minutes, with a packet of that size
// that may not be fragmented; losses of small packets make none smaller. SCTP-116, SCTP-166.
func TestRaisePMTU(t *testing.T) {
	w, a, b := pair(t, Config{}, Config{})
	x := a.last
	a.e.ICMP(w.Now, ICMPError{Kind: ICMPTooBig, Src: addrA, Dst: addrB, MTU: 1300,
		Quote: x.header().append(nil)[:8]})
	a.pump()
	var probes []Datagram
	w.trace = func(from *node, d Datagram) {
		if s := survey(d.Data[headerLen:]); from == a && s.has(chunkHeartbeat) && s.chunks == 2 {
			probes = append(probes, d)
		}
	}
	w.Run(10*time.Minute - time.Millisecond)
	if len(probes) != 0 || x.primary.pmtu != 1300 {
		t.Fatalf("%d probes, PMTU %d", len(probes), x.primary.pmtu)
	}
	w.Run(time.Second)
	if len(probes) != 1 || len(probes[0].Data) != 1480 || !probes[0].DF || x.primary.pmtu != 1480 {
		t.Fatalf("%d probes, PMTU %d", len(probes), x.primary.pmtu)
	}
	a.wantEvent("lowered", EventMaxPayload)
	a.wantEvent("raised", EventMaxPayload)
	// An answer counts once, and only that to the last one.
	c, _, _ := nextChunk(probes[0].Data[headerLen:])
	again := func() {
		b.e.push(addrB, addrA, 0, b.last.header(),
			func(o []byte) []byte { return appendChunk(o, chunkHeartbeatAck, 0, c.value()) })
		b.pump()
		w.Run(time.Second)
	}
	if again(); !x.primary.prober.at.IsZero() {
		t.Error("an old answer begins a search")
	}
	a.e.ICMP(w.Now, ICMPError{Kind: ICMPTooBig, Src: addrA, Dst: addrB, MTU: 1300,
		Quote: x.header().append(nil)[:8]})
	if again(); x.primary.pmtu != 1300 {
		t.Errorf("an old answer raises the PMTU to %d", x.primary.pmtu)
	}
	// Small packets that are lost say nothing of the size.
	w.Fate = func(Datagram) []time.Duration { return nil }
	a.post(SendOptions{}, "small")
	w.Run(30 * time.Second)
	if x.primary.pmtu != 1300 || a.e.Stats().Timeouts < 3 {
		t.Errorf("PMTU %d after %d timeouts", x.primary.pmtu, a.e.Stats().Timeouts)
	}
	// One loss of a large packet does not either, nor many with one acknowledged between.
	w, n, p := established(t, Config{})
	p.a.Send(w.Now, SendOptions{}, stringSource(text(5000)))
	n.pump()
	for i := range 3 {
		w.Run(2 * p.a.primary.rto)
		p.ack(i)
	}
	if p.a.primary.pmtu != 1480 || n.e.Stats().Timeouts < 2 {
		t.Errorf("PMTU %d after %d timeouts", p.a.primary.pmtu, n.e.Stats().Timeouts)
	}
}
