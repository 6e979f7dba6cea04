package sctp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// DATA is taken in ESTABLISHED, SHUTDOWN-PENDING and SHUTDOWN-SENT, and nowhere else. SCTP-084,
// SCTP-068.
func TestDataStates(t *testing.T) {
	for _, tt := range []struct {
		state State
		begin func() (*world, *node, *rawPeer)
		taken bool
	}{
		{StateCookieWait, func() (*world, *node, *rawPeer) { return dialing(t, Config{}) }, false},
		{StateCookieEchoed, func() (*world, *node, *rawPeer) { return echoed(t, Config{}) }, false},
		{StateEstablished, func() (*world, *node, *rawPeer) { return established(t, Config{}) }, true},
		{StateShutdownPending, func() (*world, *node, *rawPeer) {
			w, n, p := established(t, Config{})
			n.post(SendOptions{}, "x")
			p.a.Shutdown(w.Now)
			return w, n, p
		}, true},
		{StateShutdownSent, func() (*world, *node, *rawPeer) {
			w, n, p := established(t, Config{})
			p.a.Shutdown(w.Now)
			n.pump()
			return w, n, p
		}, true},
		{StateShutdownReceived, func() (*world, *node, *rawPeer) {
			w, n, p := established(t, Config{})
			n.post(SendOptions{}, "x")
			p.send(appendShutdown(nil, p.a.ackTSN))
			return w, n, p
		}, false},
		{StateShutdownAckSent, func() (*world, *node, *rawPeer) {
			w, n, p := established(t, Config{})
			p.send(appendShutdown(nil, p.a.ackTSN))
			return w, n, p
		}, false},
	} {
		_, n, p := tt.begin()
		if p.a.State() != tt.state {
			t.Fatalf("%v, want %v", p.a.State(), tt.state)
		}
		p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
		if (len(n.msgs) == 1) != tt.taken {
			t.Errorf("%v: DATA taken: %t", tt.state, len(n.msgs) == 1)
		}
		_, err := p.a.Send(p.w.Now, SendOptions{}, strings.NewReader("x"))
		if (err == nil) != (tt.state == StateEstablished) {
			t.Errorf("%v: Send: %v", tt.state, err) // SCTP-083
		}
	}
}

// When a SACK goes: the first DATA at once; every second packet at once; one after 200 ms; at once
// for a gap, for what fills it, for duplicates and for the I bit; one per packet at most. SCTP-089,
// 090, 091, 092, 093, SCTP-085, SCTP-088.
func TestSackTiming(t *testing.T) {
	w, n, p := established(t, Config{})
	data := func(off TSN, f byte) []byte { return mkData(whole|flagU|f, p.tsn+off, 0, 0, 0, "x") }
	sack := func(off TSN, more string) string { return fmt.Sprintf("SACK cum=%d %s", p.tsn+off, more) }
	p.send(data(0, 0))
	n.want("the first", sack(0, ""))
	p.send(data(1, 0))
	n.want("one packet")
	w.Run(199 * time.Millisecond)
	n.want("199 ms")
	w.Run(time.Millisecond)
	n.want("200 ms", sack(1, ""))
	p.send(data(2, 0))
	p.send(data(3, 0))
	n.want("two packets", sack(3, ""))
	p.send(data(4, 0), data(5, 0), data(6, 0))
	n.want("one packet of three chunks")
	p.send(data(7, 0))
	n.want("the second packet", sack(7, ""))
	w.Run(time.Second)
	n.want("nothing is due")
	p.send(data(9, 0))
	n.want("a gap", sack(7, "gap=2-2"))
	p.send(data(11, 0))
	n.want("each packet while there is a gap", sack(7, "gap=2-2 gap=4-4"))
	p.send(data(8, 0))
	n.want("and what fills one", sack(9, "gap=2-2"))
	p.send(data(10, 0))
	n.want("and the last", sack(11, ""))
	p.send(data(12, 0))
	n.want("then they wait again")
	p.send(data(13, flagI))
	n.want("the I bit", sack(13, ""))
	p.send(data(14, flagI), data(15, 0))
	n.want("the I bit", sack(15, ""))
	p.send(data(3, 0), data(3, 0))
	p.send(data(3, 0))
	n.want("duplicates", sack(15, "dup="+fmt.Sprint(p.tsn+3)+" dup="+fmt.Sprint(p.tsn+3)),
		sack(15, "dup="+fmt.Sprint(p.tsn+3)))
	if c := n.e.Stats().Duplicates; c != 3 || len(n.msgs) != 16 {
		t.Errorf("%d duplicates, %d messages", c, len(n.msgs))
	}
	p.send(data(16, 0), data(16, 0))
	n.want("new and duplicate", sack(16, "dup="))
	for i := range TSN(100) { // SCTP-091
		p.send(data(18+2*i, 0))
	}
	if len(n.sent) != 100 {
		t.Errorf("%d SACKs for 100 packets", len(n.sent))
	}
	n.sent = nil
	p.send(data(1<<17, 0))
	if n.want("a TSN out of reach", sack(16, "")); n.last.Missing() > 1000 {
		t.Error("it counts")
	}
	// SCTP-091: no more than 500 ms can be set.
	if _, err := NewEndpoint(Config{Options: Options{SACKDelay: 501 * time.Millisecond}}); err == nil {
		t.Error("a SACK delay of 501 ms")
	}
	w, n, p = established(t, Config{Options: Options{SACKDelay: 500 * time.Millisecond}})
	p.send(data(0, 0))
	n.sent = nil
	p.send(data(1, 0))
	w.Run(499 * time.Millisecond)
	n.want("499 ms")
	w.Run(time.Millisecond)
	n.want("500 ms", "SACK")
}

// Whatever the order of arrival, the SACK says what has come, and each message comes up once.
// SCTP-086, SCTP-085, SCTP-087, SCTP-100, SCTP-097.
func TestArrivalOrders(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		_, n, p := established(t, Config{})
		if seed%3 == 0 {
			p.tsn = 0xfffffff0
			n.last.have.init(p.tsn - 1)
		}
		const total = 60
		order := rng.Perm(total)
		order = append(order, rng.Perm(total)...) // and all of them again
		come := map[int]bool{}
		cum := -1
		for _, i := range order {
			// The SSN of an unordered message means nothing.
			p.send(mkData(whole|flagU, p.tsn+TSN(i), 0, uint16(rng.Uint32()), 0, fmt.Sprint(i)))
			come[i] = true
			for come[cum+1] {
				cum++
			}
			want := fmt.Sprintf("SACK cum=%d rwnd=", p.tsn+TSN(cum))
			for j := cum + 1; j < total; j++ {
				if come[j] {
					k := j
					for come[k+1] {
						k++
					}
					want += fmt.Sprintf(" gap=%d-%d", j-cum, k-cum)
					j = k
				}
			}
			if n.last.packets > 0 || !n.last.sackAt.IsZero() {
				continue // delayed
			}
			if got := n.sent[len(n.sent)-1]; !matches(got, want) {
				t.Fatalf("seed %d: %s, want %s", seed, got, want)
			}
		}
		if len(n.msgs) != total {
			t.Fatalf("seed %d: %d messages", seed, len(n.msgs))
		}
		slices.Sort(n.msgs)
		if len(slices.Compact(n.msgs)) != total {
			t.Fatalf("seed %d: a message came twice", seed)
		}
	}
}

// A SACK lists gaps from the lowest on, as many as a packet takes. SCTP-087.
func TestSackFull(t *testing.T) {
	w, n, p := established(t, Config{MTU: fixedMTU(576 - 20)})
	var last []byte
	w.trace = func(_ *node, d Datagram) { last = d.Data }
	p.send(mkData(whole|flagU, p.tsn, 0, 0, 0, "x"))
	for i := range TSN(500) {
		p.send(mkData(whole|flagU, p.tsn+2+2*i, 0, 0, 0, "x"))
	}
	c, _, ok := nextChunk(last[headerLen:])
	s, ok2 := parseSack(c)
	if !ok || !ok2 || len(last) > 556 || s.blocks() != (556-headerLen-sackLen)/4 {
		t.Fatalf("%d octets: %s", len(last), Describe(last))
	}
	for i := range s.blocks() {
		if start, end := s.block(i); int(start) != 2+2*i || end != start {
			t.Fatalf("block %d: %d-%d", i, start, end)
		}
	}
	if n.last.Missing() != 500 {
		t.Errorf("%d are missing", n.last.Missing())
	}
}

// a_rwnd falls as DATA comes and rises as messages are released; fragments and early messages keep
// it down. SCTP-094, SCTP-096.
func TestReceiveWindow(t *testing.T) {
	const buffer = 10_000
	w, n, p := established(t, Config{Options: Options{RecvBuffer: buffer}})
	n.keep = true
	rwnd := func(what string, want int) {
		t.Helper()
		if len(n.sent) == 0 || !strings.Contains(n.sent[len(n.sent)-1], fmt.Sprintf(" rwnd=%d", want)) {
			t.Fatalf("%s: %v, want rwnd=%d", what, n.sent, want)
		}
		n.sent = nil
	}
	next := p.tsn
	data := func(f byte, ssn uint16, size int) {
		p.send(mkData(f|flagI, next, 0, ssn, 0, text(size)))
		next++
	}
	data(whole|flagU, 0, 1000)
	rwnd("a message", buffer-1000)
	data(whole, 1, 1000)
	rwnd("one that came early", buffer-2000)
	data(flagB|flagU, 0, 1000)
	rwnd("a fragment", buffer-3000)
	data(flagE|flagU, 0, 1000)
	rwnd("all of it", buffer-4000)
	// Released: told with the next SACK only, unless it is a quarter of the buffer.
	n.held[0].Release()
	n.pump()
	n.want("1000 octets of 10000")
	n.held[1].Release()
	n.pump()
	rwnd("3000 in all: at once", buffer-1000)
	n.held = nil
	data(whole, 0, 1000) // brings the early one up
	rwnd("two ordered ones", buffer-2000)
	if len(n.held) != 2 {
		t.Fatal(len(n.held))
	}
	// Slivers are not told.
	data(whole|flagU, 0, 100)
	rwnd("100 more", buffer-2100)
	n.held[2].Release()
	data(whole|flagU, 0, 50)
	rwnd("100 less and 50 more", buffer-2150)
	n.held[3].Release()
	n.held[0].Release()
	data(whole|flagU, 0, 1)
	rwnd("1000 less: not a packet's worth", buffer-2151)
	n.held[1].Release()
	n.held[4].Release()
	data(whole|flagU, 0, 1)
	rwnd("all but one octet is free", buffer-1)
	n.held[5].Release()
	w.Run(time.Second)
	if w.refs != 0 || p.a.held != 0 || p.a.pieces != 0 || p.a.lent != 0 {
		t.Errorf("%d packets, %d octets, %d pieces, %d messages held", w.refs, p.a.held, p.a.pieces,
			p.a.lent)
	}
}

// A full buffer: what comes behind the highest is dropped and answered with a SACK at once, what
// fills a hole is taken, and nothing that was told to have come is dropped. SCTP-095, SCTP-097,
// SCTP-096.
func TestWindowFull(t *testing.T) {
	_, n, p := established(t, Config{Options: Options{RecvBuffer: 4000}})
	n.keep = true
	for _, off := range []TSN{0, 1, 3, 4} {
		p.send(mkData(whole|flagU, p.tsn+off, 0, 0, 0, text(1000)))
	}
	n.sent = nil
	p.send(mkData(whole|flagU, p.tsn+5, 0, 0, 0, text(1000)))
	n.want("behind the highest", fmt.Sprintf("SACK cum=%d rwnd=0 gap=2-3", p.tsn+1))
	if n.e.Stats().DataDropped != 1 {
		t.Error("not counted")
	}
	p.send(mkData(whole|flagU, p.tsn+2, 0, 0, 0, text(1000)))
	n.want("the hole", fmt.Sprintf("SACK cum=%d rwnd=0", p.tsn+4))
	if len(n.held) != 5 {
		t.Errorf("%d messages", len(n.held))
	}
	n.held[0].Release()
	n.held[1].Release()
	n.pump()
	n.want("the window opens", fmt.Sprintf("SACK cum=%d rwnd=1000", p.tsn+4))
	p.send(mkData(whole|flagU|flagI, p.tsn+5, 0, 0, 0, text(1000)))
	if n.want("and takes what it says", fmt.Sprintf("SACK cum=%d rwnd=0", p.tsn+5)); len(n.held) != 6 {
		t.Error("not delivered")
	}
	// Even holes have an end: twice the buffer.
	_, n, p = established(t, Config{Options: Options{RecvBuffer: 4000}})
	n.keep = true
	p.send(mkData(whole|flagU, p.tsn+60_000, 0, 0, 0, text(1000)))
	for i := range TSN(20) {
		p.send(mkData(whole|flagU, p.tsn+i, 0, 0, 0, text(1000)))
	}
	if p.a.held > 8000 {
		t.Errorf("%d octets are held of a buffer of 4000", p.a.held)
	}
	// Small chunks cost more than their octets.
	_, n, p = established(t, Config{Options: Options{RecvBuffer: 64_000}})
	n.keep = true
	for i := range TSN(3000) {
		p.send(mkData(whole|flagU, p.tsn+i, 0, 0, 0, "x"))
	}
	if p.a.pieces > p.a.maxPieces() {
		t.Errorf("%d chunks are held", p.a.pieces)
	}
	if s := n.sent[len(n.sent)-1]; !strings.Contains(s, "rwnd=0") {
		t.Error(s)
	}
}

// Associations that hold what has come ahead of order hold so much together, beside a little of
// each; what is next is taken all the same, and what was dropped when it comes again.
func TestHeldByAll(t *testing.T) {
	const n1, each = 30, 1000
	_, n, p := established(t, Config{HeldMost: 4000, Options: Options{RecvBuffer: 64_000}})
	n.keep = true
	for i := range TSN(n1) {
		p.send(mkData(whole|flagU, p.tsn+1+i, 0, 0, 0, text(each)))
	}
	if n.e.held != heldLeast/each*each || n.e.Stats().DataDropped != n1-heldLeast/each {
		t.Errorf("%d octets are held, %d chunks were dropped", n.e.held, n.e.Stats().DataDropped)
	}
	for i := range TSN(n1 + 1) {
		p.send(mkData(whole|flagU, p.tsn+i, 0, 0, 0, text(each)))
	}
	if len(n.held) != n1+1 || n.e.held != (n1+1)*each {
		t.Errorf("%d messages of %d, %d octets are held", len(n.held), n1+1, n.e.held)
	}
	for _, m := range n.held {
		m.Release()
	}
	if n.e.held != 0 {
		t.Errorf("%d octets are held when all was released", n.e.held)
	}
}

// Nor does the sum of all bound only what has gaps before it: messages whose turn never comes, and
// one that never ends, do not pass it, though each of their chunks is next. An association that
// waits for nothing else ends. A message that can be delivered goes on.
func TestHeldInOrder(t *testing.T) {
	const each = 1000
	cfg := Config{HeldMost: 4000, Options: Options{RecvBuffer: 64_000}}
	never := map[string]func(p *rawPeer, i TSN) []byte{
		"a turn that never comes": func(p *rawPeer, i TSN) []byte {
			return mkData(whole, p.tsn+i, 0, 1+uint16(i), 0, text(each))
		},
		"an end that never comes": func(p *rawPeer, i TSN) []byte {
			f := byte(0)
			if i == 0 {
				f = flagB
			}
			return mkData(f, p.tsn+i, 0, 0, 0, text(each))
		},
	}
	for name, data := range never {
		_, n, p := established(t, cfg)
		most := 0
		for i := TSN(0); i < 60 && p.a.state == StateEstablished; i++ {
			n.sent = nil
			p.send(data(p, i))
			most = max(most, n.e.held)
		}
		if most != heldLeast/each*each || n.e.held != 0 || p.w.refs != 0 {
			t.Errorf("%s: %d octets are held, then %d, %d packets", name, most, n.e.held, p.w.refs)
		}
		n.want(name, "ABORT out of resource")
		// There is something else to wait for: a hole, and a message that the user has.
		for _, lent := range []bool{false, true} {
			_, n, p = established(t, cfg)
			if n.keep = lent; lent {
				p.send(mkData(whole|flagU, p.tsn, 0, 0, 0, "x"))
				p.tsn++
			} else {
				p.send(mkData(whole|flagU, p.tsn+100, 0, 0, 0, "x"))
			}
			for i := range TSN(60) {
				p.send(data(p, i))
			}
			if n.e.held > cfg.HeldMost+heldLeast || p.a.state != StateEstablished {
				t.Errorf("%s, lent=%v: %d octets are held, %v", name, lent, n.e.held, p.a.state)
			}
		}
	}
	_, n, p := established(t, cfg)
	for i := range TSN(16) { // messages of other streams, which wait for their first ones
		p.send(mkData(whole, p.tsn+i, 1+uint16(i), 1, 0, text(each)))
	}
	p.tsn += 16
	for i := range TSN(60) {
		p.send(mkData(whole, p.tsn+i, 0, uint16(i), 0, text(each)))
	}
	if len(n.msgs) != 60 {
		t.Errorf("%d messages of 60", len(n.msgs))
	}
}

// Small chunks below the highest TSN are no more than twice as many as above it, but for one that
// delivers a message.
func TestHolesOfSmallChunks(t *testing.T) {
	_, n, p := established(t, Config{Options: Options{RecvBuffer: 64_000}})
	p.w.quiet = true
	const far = 2000
	p.send(mkData(whole, p.tsn+far, 0, far, 0, "x"))
	for i := TSN(far - 1); i > 0; i-- {
		p.send(mkData(whole, p.tsn+i, 0, uint16(i), 0, "x"))
	}
	if most := 2 * p.a.maxPieces(); p.a.pieces != most || n.e.Stats().DataDropped != far-uint64(most) {
		t.Errorf("%d chunks are held, %d may be; %d were dropped", p.a.pieces, most,
			n.e.Stats().DataDropped)
	}
	for i := range TSN(far) { // the peer sends again what was not acknowledged
		p.send(mkData(whole, p.tsn+i, 0, uint16(i), 0, "x"))
	}
	if len(n.msgs) != far+1 || p.a.pieces != 0 {
		t.Errorf("%d messages of %d, %d chunks are held", len(n.msgs), far+1, p.a.pieces)
	}
	// So is what is next and delivers nothing.
	_, _, p = established(t, Config{Options: Options{RecvBuffer: 64_000}})
	p.w.quiet = true
	p.send(mkData(whole|flagU, p.tsn+far, 0, 0, 0, "x"))
	p.send(mkData(flagB, p.tsn, 0, 0, 0, "x"))
	for i := TSN(1); i < far-1; i++ {
		p.send(mkData(0, p.tsn+i, 0, 0, 0, "x"))
	}
	if p.a.pieces > 2*p.a.maxPieces() {
		t.Errorf("%d fragments are held, %d chunks may be", p.a.pieces, 2*p.a.maxPieces())
	}
}

// A chunk keeps the packet it came in: a small one is copied out of it before such packets take
// more than the receive buffer.
func TestMemoryOfSmallChunks(t *testing.T) {
	const buffer, small = 64_000, 200
	_, n, p := established(t, Config{Options: Options{RecvBuffer: buffer}})
	p.w.quiet = true
	for i := range TSN(small) {
		p.send(mkData(whole, p.tsn+1+i, 0, 1+uint16(i), 0, fmt.Sprint("message ", i+1)))
	}
	if p.a.pieces != small || p.w.refs*packetLeast > buffer || p.w.refs < buffer/packetLeast {
		t.Errorf("%d chunks are held in %d packets", p.a.pieces, p.w.refs)
	}
	p.send(mkData(whole, p.tsn, 0, 0, 0, "message 0"))
	for i, m := range n.msgs {
		if m != fmt.Sprint("message ", i) {
			t.Fatalf("message %d is %q", i, m)
		}
	}
	if len(n.msgs) != small+1 || p.a.kept != 0 || n.e.held != 0 || p.w.refs != 0 {
		t.Errorf("%d messages, %d and %d octets of memory, %d packets", len(n.msgs), p.a.kept, n.e.held,
			p.w.refs)
	}
	// A packet that is longer counts as long as it is.
	_, n, p = established(t, Config{Options: Options{RecvBuffer: buffer}})
	n.keep, p.w.quiet = true, true
	for i := range TSN(20) {
		p.send(mkData(whole|flagU, p.tsn+1+i, 0, 0, 0, "x"), mk(0xbf, 0, make([]byte, 8000)...))
	}
	if p.a.pieces != 20 || p.w.refs != buffer/8000-1 {
		t.Errorf("%d chunks are held in %d packets of 8000 octets", p.a.pieces, p.w.refs)
	}
	// All together hold no more memory than they may.
	const most = 10_000
	_, n, p = established(t, Config{HeldMost: most, Options: Options{RecvBuffer: 1 << 20}})
	n.keep, p.w.quiet = true, true
	for i := range TSN(2000) {
		p.send(mkData(whole|flagU, p.tsn+1+i, 0, 0, 0, "x"))
		if p.w.refs*packetLeast+(p.a.pieces-p.w.refs)*heldPerPiece > max(most, heldLeast) {
			t.Fatalf("%d chunks are held, in %d packets", p.a.pieces, p.w.refs)
		}
	}
	if n.e.held > max(most, heldLeast) || n.e.Stats().DataDropped == 0 {
		t.Errorf("%d octets of memory are held", n.e.held)
	}
}

// When all that was held is released next to nothing is left of it, on each stream: what is spare
// is the Endpoint's, and so much at most.
func TestNothingLeftOfHeld(t *testing.T) {
	const many, streams = maxSpare + 500, 3
	_, n, p := established(t, Config{Options: Options{RecvBuffer: 2 * heldPerPiece * many}})
	p.w.quiet = true
	for sid := range uint16(streams) {
		for i := TSN(many); i > 0; i-- {
			p.send(mkData(whole, p.tsn+i-1, sid, uint16(i-1), 0, "x"))
		}
		p.tsn += many
		if cap(p.a.in[sid].held) != 0 {
			t.Errorf("stream %d has room for %d early messages", sid, cap(p.a.in[sid].held))
		}
	}
	p.send(mkData(flagE|flagU, p.tsn+2*many-1, 0, 0, 0, "x"))
	for _, first := range []TSN{1, 2} { // those with gaps between them, then the rest
		for i := first; i < 2*many-1; i += 2 {
			p.send(mkData(flagU, p.tsn+i, 0, 0, 0, "x"))
		}
	}
	p.send(mkData(flagB|flagU, p.tsn, 0, 0, 0, "x"))
	if len(n.msgs) != streams*many+1 || len(n.msgs[streams*many]) != 2*many {
		t.Fatalf("%d messages; %v", len(n.msgs), p.a.state)
	}
	if r, e := cap(p.a.frags.runs), &n.e.free; r > fewRuns || len(e.messages) != maxSpare ||
		len(e.pieces) != maxSpare {
		t.Errorf("there is room for %d runs; %d messages and %d pieces are spare", r, len(e.messages),
			len(e.pieces))
	}
}

func fixedMTU(n int) func(netip.Addr) int { return func(netip.Addr) int { return n } }

// A stream that was not agreed on: acknowledged, reported, not delivered. SCTP-098.
func TestInvalidStream(t *testing.T) {
	_, n, p := established(t, Config{Options: Options{InStreams: 5}})
	p.send(mkData(whole, p.tsn, 60_000, 0, 0, "x"))
	n.want("stream 60000", fmt.Sprintf("ERROR (invalid stream identifier: ea600000) | SACK cum=%d",
		p.tsn))
	p.send(mkData(whole, p.tsn+1, 5, 0, 0, "x"))
	n.want("stream 5 of 5", "ERROR (invalid stream identifier: 00050000)")
	p.send(mkData(whole|flagI, p.tsn+2, 4, 0, 0, "x"))
	if n.want("stream 4", fmt.Sprintf("SACK cum=%d", p.tsn+2)); len(n.msgs) != 1 {
		t.Errorf("%q", n.msgs)
	}
}

// DATA without data ends the association. SCTP-099.
func TestNoUserData(t *testing.T) {
	_, n, p := established(t, Config{})
	p.send(mkData(whole, 0x01020304, 0, 0, 0, ""))
	n.want("an empty chunk", fmt.Sprintf("tag=%08x ABORT (no user data: 01020304)", p.own))
	if ev := n.wantEvent("down", EventDown); !strings.Contains(ev.Err.Error(), "no user data") {
		t.Error(ev.Err)
	}
}

// Ordered messages come up in the order of their stream, and other streams do not wait. SCTP-101,
// SCTP-081, SCTP-070.
func TestOrder(t *testing.T) {
	_, n, p := established(t, Config{})
	d := func(off TSN, f byte, sid, ssn uint16) {
		p.send(mkData(whole|f, p.tsn+off, sid, ssn, 0xdeadbeef, fmt.Sprintf("%d/%d", sid, ssn)))
	}
	d(1, 0, 1, 1) // stream 1: 0 is lost
	d(2, 0, 2, 0)
	d(3, flagU, 1, 77)
	d(4, 0, 1, 2)
	d(5, 0, 2, 1)
	if got := fmt.Sprint(n.msgs); got != "[2/0 1/77 2/1]" {
		t.Fatal(got)
	}
	n.onMsg = func(m *Message) {
		if m.PPID != 0xdeadbeef {
			t.Errorf("PPID %x", m.PPID)
		}
		n.msgs = append(n.msgs, string(m.Append(nil)))
	}
	d(0, 0, 1, 0)
	if got := fmt.Sprint(n.msgs); got != "[2/0 1/77 2/1 1/0 1/1 1/2]" {
		t.Fatal(got)
	}
	// SSNs wrap.
	_, n, p = established(t, Config{})
	p.a.in[3].next = 0xfffe
	for i, k := range []int{2, 0, 3, 1} {
		p.send(mkData(whole, p.tsn+TSN(i), 3, uint16(0xfffe+k), 0, fmt.Sprint(k)))
	}
	if got := fmt.Sprint(n.msgs); got != "[0 1 2 3]" {
		t.Error(got)
	}
	// One SSN twice, in the past or waiting: the peer is not right.
	for _, ssns := range [][]uint16{{0, 0}, {5, 5}, {0, 0xffff}} {
		_, n, p := established(t, Config{})
		for i, ssn := range ssns {
			p.send(mkData(whole, p.tsn+TSN(i), 0, ssn, 0, "x"))
		}
		if n.wantEvent("SSN twice", EventDown); !matches(n.sent[len(n.sent)-1],
			"ABORT (protocol violation") || p.w.refs != 0 {
			t.Errorf("%v: %v, %d packets held", ssns, n.sent, p.w.refs)
		}
	}
}

// Fragments, in any order, ordered and not, make the message that was cut. SCTP-102, SCTP-103.
func TestReassembly(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 11))
		_, n, p := established(t, Config{})
		var frags [][]byte
		var want []string
		tsn := p.tsn
		for i := range 12 {
			k := 1 + rng.IntN(6)
			msg := text(k + rng.IntN(40))
			msg = fmt.Sprint(i, ":", msg)
			f := byte(rng.IntN(2)) * flagU
			ssn := uint16(len(want)) // of no meaning in unordered ones
			rest := msg
			for j := range k {
				g := f
				cut := len(rest) / (k - j)
				if j == 0 {
					g |= flagB
				}
				if j == k-1 {
					g |= flagE
					cut = len(rest)
				}
				frags = append(frags, mkData(g, tsn, 2, ssn, 9, rest[:cut]))
				rest = rest[cut:]
				tsn++
			}
			if f == 0 {
				want = append(want, msg)
			}
		}
		rng.Shuffle(len(frags), func(i, j int) { frags[i], frags[j] = frags[j], frags[i] })
		for i, f := range frags {
			p.send(f)
			if rng.IntN(4) == 0 {
				p.send(frags[rng.IntN(i+1)]) // again
			}
		}
		if len(n.msgs) != 12 || p.a.State() != StateEstablished {
			t.Fatalf("seed %d: %d messages, %v, %v", seed, len(n.msgs), p.a.State(), n.events)
		}
		var ordered []string
		for _, m := range n.msgs {
			if slices.Contains(want, m) {
				ordered = append(ordered, m)
			}
		}
		if !slices.Equal(ordered, want) {
			t.Fatalf("seed %d: %q, want %q", seed, ordered, want)
		}
		if len(p.a.frags.runs) != 0 || p.a.held != 0 || p.w.refs != 0 {
			t.Fatalf("seed %d: %d runs, %d octets, %d packets left", seed, len(p.a.frags.runs), p.a.held,
				p.w.refs)
		}
	}
}

// Fragments that no honest sender sends end the association, and nothing wrong comes up. SCTP-103.
func TestBrokenFragments(t *testing.T) {
	type f struct {
		off   TSN
		flags byte
		sid   uint16
		ssn   uint16
		ppid  uint32
	}
	const B, E, U = flagB, flagE, flagU
	for name, frags := range map[string][]f{
		"B inside":               {{0, B, 0, 0, 0}, {1, B, 0, 0, 0}},
		"B inside, late":         {{1, B, 0, 0, 0}, {0, B, 0, 0, 0}},
		"whole inside":           {{0, B, 0, 0, 0}, {1, B | E, 0, 1, 0}},
		"whole inside, late":     {{1, B | E, 0, 1, 0}, {0, B, 0, 0, 0}},
		"middle without B":       {{0, 0, 0, 0, 0}},
		"E without B":            {{0, E, 0, 0, 0}},
		"E behind a whole":       {{0, B | E, 0, 0, 0}, {1, E, 0, 1, 0}},
		"E behind an E":          {{0, B, 0, 0, 0}, {1, E, 0, 0, 0}, {2, E, 0, 0, 0}},
		"E behind an E, first":   {{2, E, 0, 0, 0}, {1, E, 0, 0, 0}},
		"middle before a B":      {{2, B, 0, 0, 0}, {1, 0, 0, 0, 0}},
		"middle before a whole":  {{2, B | E | U, 0, 0, 0}, {1, 0, 0, 0, 0}},
		"other stream":           {{0, B, 0, 0, 0}, {1, E, 1, 0, 0}},
		"other SSN":              {{0, B, 0, 0, 0}, {1, E, 0, 1, 0}},
		"other PPID":             {{0, B, 0, 0, 1}, {1, E, 0, 0, 2}},
		"other U":                {{0, B | U, 0, 0, 0}, {1, E, 0, 0, 0}},
		"other stream, backward": {{1, E, 1, 0, 0}, {0, B, 0, 0, 0}},
		"join of two streams":    {{0, B, 0, 0, 0}, {2, E, 1, 0, 0}, {1, 0, 0, 0, 0}},
	} {
		w, n, p := established(t, Config{})
		for _, x := range frags {
			p.send(mkData(x.flags, p.tsn+x.off, x.sid, x.ssn, x.ppid, "data"))
		}
		if p.a.State() != StateClosed || !matches(n.sent[len(n.sent)-1],
			`ABORT (protocol violation: "fragments`) {
			t.Errorf("%s: %v, sent %v, got %q", name, p.a.State(), n.sent, n.msgs)
		}
		if len(n.msgs) > 1 || len(n.msgs) == 1 && !strings.Contains(name, "whole") &&
			!strings.Contains(name, "E behind") {
			t.Errorf("%s: %q comes up", name, n.msgs)
		}
		if w.refs != 0 {
			t.Errorf("%s: %d packets held", name, w.refs)
		}
	}
	// Unordered fragments may have any SSN.
	_, n, p := established(t, Config{})
	p.send(mkData(flagB|flagU, p.tsn, 0, 3, 0, "a"), mkData(flagE|flagU, p.tsn+1, 0, 9, 0, "b"))
	if fmt.Sprint(n.msgs) != "[ab]" {
		t.Errorf("%q", n.msgs)
	}
}

// A message that the receive buffer cannot hold would wait for ever; the association ends.
func TestMessageTooLarge(t *testing.T) {
	_, n, p := established(t, Config{Options: Options{RecvBuffer: 5000}})
	f := byte(flagB)
	for i := range TSN(6) {
		p.send(mkData(f, p.tsn+i, 0, 0, 0, text(1000)))
		f = 0
	}
	n.wantEvent("down", EventDown)
	if got := n.sent[len(n.sent)-1]; !matches(got, "ABORT (out of resource)") {
		t.Error(got)
	}
	// With something to be delivered it does not.
	_, n, p = established(t, Config{Options: Options{RecvBuffer: 5000}})
	n.keep = true
	p.send(mkData(whole, p.tsn, 0, 0, 0, text(1000)))
	f = flagB
	for i := range TSN(6) {
		p.send(mkData(f, p.tsn+1+i, 0, 1, 0, text(1000)))
		f = 0
	}
	if p.a.State() != StateEstablished {
		t.Error("the association ends though the user holds a message")
	}
}

// The ranges of a message stay as they came until it is released, and what it was in is not copied.
func TestBorrowed(t *testing.T) {
	w, n, p := established(t, Config{})
	n.keep = true
	var sent [][]byte
	for i := range TSN(3) {
		b := sealed(header{p.sport, p.dport, p.tag}, mkData([]byte{flagB, 0, flagE}[i], p.tsn+i, 0, 0, 0,
			text(100+int(i))))
		m := &memory{w, b, 0}
		m.Hold()
		n.e.Input(w.Now, Packet{Src: p.src, Dst: p.dst, Data: b, Ref: m})
		m.Release()
		n.pump()
		sent = append(sent, b)
	}
	if len(n.held) != 1 || w.refs != 3 {
		t.Fatalf("%d messages, %d packets held", len(n.held), w.refs)
	}
	i := 0
	for piece := range n.held[0].Pieces() {
		if &piece[0] != &sent[i][headerLen+dataLen] || !bytes.Equal(piece, []byte(text(100+i))) {
			t.Errorf("piece %d is a copy", i)
		}
		i++
	}
	if _, ok := n.held[0].Bytes(); ok || n.held[0].Len() != 303 || n.held[0].TSN != p.tsn {
		t.Error("a message of three fragments")
	}
	n.held[0].Release()
	if w.refs != 0 {
		t.Errorf("%d packets held", w.refs)
	}
	p.send(mkData(whole, p.tsn+3, 0, 1, 0, "one"))
	if b, ok := n.held[1].Bytes(); !ok || string(b) != "one" {
		t.Error("a message of one chunk")
	}
	// An ended association gives up what it had not delivered, and lets go of what it had later.
	p.send(mkData(flagB, p.tsn+4, 0, 2, 0, "frag"))
	p.send(mkData(whole, p.tsn+9, 0, 9, 0, "early"))
	p.a.Abort(w.Now, "")
	n.pump()
	if w.refs != 1 {
		t.Errorf("%d packets held, want the one that the user has", w.refs)
	}
	n.held[1].Release()
	if w.refs != 0 {
		t.Errorf("%d packets held", w.refs)
	}
}

// Missing counts what is missing when a message comes up.
func TestMissing(t *testing.T) {
	_, n, p := established(t, Config{})
	var got []int
	n.onMsg = func(m *Message) { got = append(got, m.Missing) }
	for _, off := range []TSN{0, 5, 2, 1, 3, 4} {
		p.send(mkData(whole|flagU, p.tsn+off, 0, 0, 0, "x"))
	}
	if fmt.Sprint(got) != "[0 4 3 2 1 0]" {
		t.Error(got)
	}
}
