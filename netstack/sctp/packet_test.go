package sctp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const whole = flagB | flagE

// One flipped bit anywhere: no answer, no effect, counted. SCTP-005.
func TestBadChecksum(t *testing.T) {
	_, n, p := established(t, Config{})
	pkt := sealed(header{p.sport, p.dport, p.tag}, mkData(whole, p.tsn, 0, 0, 0, "hello"))
	for i := range pkt {
		bad := bytes.Clone(pkt)
		bad[i] ^= 0x10
		n.input(Datagram{Src: p.src, Dst: p.dst, Data: bad})
		if n.want(fmt.Sprintf("octet %d", i)); len(n.msgs) > 0 {
			t.Fatalf("octet %d: delivered", i)
		}
	}
	if got := n.e.Stats().BadChecksum + n.e.Stats().Malformed; got != uint64(len(pkt)) {
		t.Errorf("%d of %d counted", got, len(pkt))
	}
	// Whoever has looked already says so.
	n.e.Input(p.w.Now, Packet{Src: p.src, Dst: p.dst, Data: pkt, Verified: true})
	if n.pump(); len(n.msgs) != 1 {
		t.Error("not delivered")
	}
}

// Every kind of chunk with a wrong verification tag: dropped without a sound. SCTP-145, SCTP-146,
// 147.
func TestWrongTag(t *testing.T) {
	for typ := range ChunkType(chunkKnown) {
		for _, f := range []byte{0, flagT} {
			_, n, p := established(t, Config{})
			c := mk(typ, f, make([]byte, 20)...)
			switch typ {
			case chunkData:
				c = mkData(whole, p.tsn, 0, 0, 0, "x")
			case chunkSack:
				c = mkSack(p.a.ackTSN+100, 0)
			case chunkAbort, chunkShutdownComplete:
				c = mk(typ, f)
			}
			for _, tag := range []uint32{1, p.tag + 1, p.tag ^ 1<<31, p.own} {
				if tag == p.own && f == flagT {
					continue // that one is right: it is a reflected one
				}
				n.sent = nil
				p.raw(tag, c)
				if n.want(typ.String()); p.a.State() != StateEstablished || len(n.msgs)+len(n.events) > 0 {
					t.Errorf("%v with tag %x: something happened", typ, tag)
				}
			}
		}
	}
}

// ABORT: our tag and T clear, or the peer's and T set. SCTP-146, SCTP-155.
func TestAbortTags(t *testing.T) {
	for _, tt := range []struct {
		own, reflected, ends bool
	}{{true, false, true}, {true, true, false}, {false, true, true}, {false, false, false}} {
		_, n, p := established(t, Config{})
		tag, f := p.tag, byte(0)
		if !tt.own {
			tag = p.own
		}
		if tt.reflected {
			f = flagT
		}
		p.raw(tag, appendChunk(nil, chunkAbort, f, appendParam(nil, uint16(CauseUserAbort),
			[]byte("because"))))
		n.want("an ABORT is never answered")
		if gone := p.a.State() == StateClosed; gone != tt.ends {
			t.Errorf("%+v: ended %t", tt, gone)
		}
		if !tt.ends {
			continue
		}
		ev := n.wantEvent("ABORT", EventDown)
		if abort, ok := ev.Err.(*PeerAbort); !ok || len(abort.Causes) != 1 ||
			string(abort.Causes[0].Info) != "because" || abort.Refused() {
			t.Errorf("%v", ev.Err)
		}
		if !strings.Contains(ev.Err.Error(), `user-initiated abort: "because"`) {
			t.Error(ev.Err)
		}
	}
	// One whose causes are cut is none. One behind other chunks counts.
	_, n, p := established(t, Config{})
	p.send(mk(chunkAbort, 0, 0, 12, 0, 9, 1))
	if n.want("malformed ABORT"); p.a.State() != StateEstablished {
		t.Error("a malformed ABORT ends the association")
	}
	p.send(mkSack(p.a.ackTSN, 1000), mk(chunkAbort, 0), mkData(whole, p.tsn, 0, 0, 0, "x"))
	if n.want("ABORT behind a SACK"); p.a.State() != StateClosed || len(n.msgs) > 0 {
		t.Error("an ABORT behind a SACK does not count, or what is behind it does")
	}
	// Behind others its T bit has to be right, too.
	_, _, p = established(t, Config{})
	p.send(mkSack(p.a.ackTSN, 1000), mk(chunkAbort, flagT))
	if p.a.State() != StateEstablished {
		t.Error("an ABORT that says that the tag is reflected, with a tag that is not")
	}
	// In the set-up, with our tag: nobody listens there.
	_, n, p = dialing(t, Config{})
	n.sent = nil
	p.send(mk(chunkAbort, 0))
	if ev := n.wantEvent("refused", EventDown); !ev.Err.(*PeerAbort).Refused() {
		t.Error(ev.Err)
	}
	n.want("refused")
}

// Chunks of types nobody knows: what their top bits say. SCTP-008, 009, 010, SCTP-174.
func TestUnknownChunks(t *testing.T) {
	for _, tt := range []struct {
		typ            ChunkType
		skips, reports bool
	}{{0x3e, false, false}, {0x7e, false, true}, {0x84, true, false}, {0xc1, true, true},
		{0x0f, false, false}, {0xff, true, true}} {
		_, n, p := established(t, Config{})
		p.send(mkData(whole, p.tsn, 0, 0, 0, "a"))
		n.sent, n.msgs = nil, nil
		p.send(mk(tt.typ, 3, 1, 2, 3), mkData(whole, p.tsn+1, 0, 1, 0, "b"), mkData(whole, p.tsn+2, 0,
			2, 0, "c"))
		var want []string
		if tt.reports {
			want = append(want, fmt.Sprintf("ERROR (unrecognized chunk type: %02x030007010203)",
				uint8(tt.typ)))
		}
		if n.want(fmt.Sprintf("type %#x", uint8(tt.typ)), want...); (len(n.msgs) == 2) != tt.skips {
			t.Errorf("type %#x: %d messages behind it delivered", uint8(tt.typ), len(n.msgs))
		}
		if p.a.State() != StateEstablished {
			t.Errorf("type %#x ends the association", uint8(tt.typ))
		}
	}
	// ECN was not agreed on: its chunks are passed over. SCTP-175.
	_, n, p := established(t, Config{})
	p.send(mk(chunkECNE, 0, 0, 0, 0, 1), mk(chunkCWR, 0, 0, 0, 0, 1),
		mkData(whole, p.tsn, 0, 0, 0, "x"))
	if n.want("ECN", "SACK !ERROR"); len(n.msgs) != 1 {
		t.Error("DATA behind ECN chunks is not delivered")
	}
}

// Lengths: padding is not looked at, may be counted by mistake, and a chunk that is cut is dropped
// while those before it stand. SCTP-006, 007, 008, SCTP-011.
func TestChunkLengths(t *testing.T) {
	for n := 1; n <= 4; n++ {
		_, nd, p := established(t, Config{})
		c := mkData(whole, p.tsn, 0, 0, 0, text(n))
		for i := dataLen + n; i < len(c); i++ {
			c[i] = 0xee // padding of another's making
		}
		p.send(c, mkData(whole, p.tsn+1, 0, 1, 0, "next"))
		if fmt.Sprint(nd.msgs) != fmt.Sprint([]string{text(n), "next"}) {
			t.Errorf("%d octets: %q", n, nd.msgs)
		}
	}
	_, n, p := established(t, Config{})
	cut := mkData(whole, p.tsn+1, 0, 1, 0, "this one is cut")
	p.send(mkData(whole, p.tsn, 0, 0, 0, "stands"), cut[:24])
	n.want("DATA and a piece of DATA", fmt.Sprintf("SACK cum=%d", p.tsn))
	if len(n.msgs) != 1 {
		t.Errorf("%q", n.msgs)
	}
	// A SACK of 18 octets says 20; an INIT ends in padding that its length counts.
	sack := mkSack(p.a.ackTSN, 5000)
	sack = append(sack, 0, 0, 0, 0)
	sack[3] = byte(len(sack))
	if p.send(sack); p.a.rwnd != 5000 {
		t.Error("a SACK that counts its padding is not taken")
	}
	_, n, p = lonely(t, Config{})
	init := mkInit(chunkInit, peerTag, 100_000, 1, 1, 1, appendParam(nil, 0x8001, []byte{1}))
	init[3] = byte(len(init))
	p.raw(0, init)
	n.want("an INIT that counts its padding", "INIT ACK")
	// Flags without a meaning.
	init[1] = 0xff
	p.raw(0, init)
	n.want("an INIT with all flags", "INIT ACK")
	_, n, p = established(t, Config{})
	sack = mkSack(p.a.ackTSN, 5001)
	sack[1] = 0xff
	if p.send(sack); p.a.rwnd != 5001 {
		t.Error("a SACK with flags is not taken")
	}
	d := mkData(0xf0|whole, p.tsn, 0, 0, 0, "x")
	if p.send(d); len(n.msgs) != 1 {
		t.Error("DATA with reserved flags is not taken")
	}
	shut := appendShutdown(nil, p.a.ackTSN)
	shut[1] = 0xff
	if p.send(shut); p.a.State() != StateShutdownAckSent {
		t.Error("a SHUTDOWN with flags is not taken")
	}
	// What is too short for its kind is passed over.
	_, n, p = established(t, Config{})
	p.send(mk(chunkSack, 0, 1, 2, 3))
	p.send(mk(chunkShutdown, 0))
	p.send(mk(chunkData, whole, 1, 2, 3))
	p.send(mk(chunkHeartbeat, 0))
	p.send(mk(chunkHeartbeatAck, 0))
	if p.a.State() != StateEstablished || len(n.events)+len(n.msgs) > 0 {
		t.Error("a chunk that is too short does something")
	}
}

// Many HEARTBEATs in one packet: one packet back. SCTP-018, SCTP-134.
func TestOneAnswer(t *testing.T) {
	w, n, p := established(t, Config{})
	var chunks [][]byte
	for i := range 20 {
		chunks = append(chunks, mkParams(chunkHeartbeat, appendParam(nil, paramHeartbeatInfo,
			bytes.Repeat([]byte{byte(i)}, 100))))
	}
	all := capturePackets(w)
	p.send(chunks...)
	if len(*all) != 1 || len((*all)[0]) > 1480 || len((*all)[0]) < 1400 {
		t.Errorf("%d packets: %v", len(*all), n.sent)
	}
	// Unknown chunks, an invalid stream and a HEARTBEAT, and DATA to be acknowledged: still one.
	*all = nil
	p.send(mk(0xc1, 0), mk(0xc2, 0), mkParams(chunkHeartbeat, appendParam(nil, 1, []byte("hb"))),
		mkData(whole, p.tsn, 999, 0, 0, "x"))
	if len(*all) != 1 {
		t.Errorf("%d packets: %v", len(*all), n.sent)
	}
}

// HEARTBEATs are answered where they come from with all that they carry, in the states named.
// SCTP-134, SCTP-140.
func TestHeartbeatAnswered(t *testing.T) {
	body := joinParams([][]byte{appendParam(nil, paramHeartbeatInfo, bytes.Repeat([]byte("info"),
		250)), appendParam(nil, 0x8042, []byte("odd")), appendParam(nil, 7, nil)})
	beat := mk(chunkHeartbeat, 0xff, body...)
	second := addr("10.9.9.9")
	w, n, p := lonely(t, Config{})
	p.handshake(100_000, appendAddr(nil, second))
	w.Run(time.Millisecond) // the first HEARTBEAT to verify it
	for _, src := range []netip.Addr{addrA, second} {
		var got []Datagram
		w.trace = func(_ *node, d Datagram) { got = append(got, d) }
		p.src = src
		p.send(beat)
		if len(got) != 1 || got[0].Dst != src || !bytes.Equal(got[0].Data[headerLen:],
			mk(chunkHeartbeatAck, 0, body...)) {
			t.Fatalf("from %v: %v", src, n.sent)
		}
	}
	// In COOKIE-ECHOED, SHUTDOWN-PENDING and SHUTDOWN-RECEIVED; not in the last two, nor before.
	_, n, p = echoed(t, Config{})
	p.send(beat)
	n.want("COOKIE-ECHOED", "HEARTBEAT ACK")
	_, n, p = dialing(t, Config{})
	n.sent = nil
	p.send(beat)
	n.want("COOKIE-WAIT")
	_, n, p = established(t, Config{})
	n.post(SendOptions{}, "x")
	p.a.Shutdown(w.Now)
	n.sent = nil
	p.send(beat)
	n.want("SHUTDOWN-PENDING", "HEARTBEAT ACK")
	p.send(mkSack(p.a.nextTSN-1, 1000))
	n.sent = nil
	p.send(beat)
	if n.want("SHUTDOWN-SENT"); p.a.State() != StateShutdownSent {
		t.Error(p.a.State())
	}
}

// Packets that belong to nothing. SCTP-150, 151, 152, 153, SCTP-149.
func TestOutOfTheBlue(t *testing.T) {
	stale := mkParams(chunkError, appendCause32(nil, CauseStaleCookie, 0))
	other := mkParams(chunkError, appendCause32(nil, CauseInvalidStream, 0))
	for _, tt := range []struct {
		name   string
		chunks [][]byte
		want   string
	}{
		{"ABORT", [][]byte{mk(chunkAbort, 0)}, ""},
		{"DATA and ABORT", [][]byte{mkData(whole, 1, 0, 0, 0, "x"), mk(chunkAbort, 0)}, ""},
		{"SHUTDOWN ACK", [][]byte{mk(chunkShutdownAck, 0)}, "SHUTDOWN_COMPLETE_T"},
		{"SHUTDOWN COMPLETE", [][]byte{mk(chunkShutdownComplete, 0)}, ""},
		{"COOKIE ACK", [][]byte{mk(chunkCookieAck, 0)}, ""},
		{"stale cookie", [][]byte{stale}, ""},
		{"another error", [][]byte{other}, "ABORT_T"},
		{"DATA", [][]byte{mkData(whole, 1, 0, 0, 0, "x")}, "ABORT_T"},
		{"SACK", [][]byte{mkSack(1, 1)}, "ABORT_T"},
		{"HEARTBEAT", [][]byte{mk(chunkHeartbeat, 0, 0, 1, 0, 4)}, "ABORT_T"},
		{"INIT ACK", [][]byte{mkInit(chunkInitAck, 1, 5000, 1, 1, 1, someCookie)}, "ABORT_T"},
		{"unknown chunk", [][]byte{mk(0xfe, 0)}, "ABORT_T"},
		{"COOKIE ECHO behind DATA", [][]byte{mkData(whole, 1, 0, 0, 0, "x"), mk(chunkCookieEcho, 0, 1)},
			"ABORT_T"},
		{"COOKIE ECHO", [][]byte{mk(chunkCookieEcho, 0, make([]byte, 90)...)}, ""},
	} {
		_, n, p := lonely(t, Config{})
		p.raw(0x12345678, tt.chunks...)
		if tt.want == "" {
			n.want(tt.name)
		} else {
			n.want(tt.name, "tag=12345678 "+tt.want)
		}
		// To or from what is no single host: never.
		pkt := sealed(header{p.sport, p.dport, 0x12345678}, tt.chunks...)
		for _, x := range []netip.Addr{addr("224.0.0.1"), addr("255.255.255.255"), addr("0.0.0.0"),
			addr("ff02::1"), addr("::")} {
			n.e.Input(start, Packet{Src: x, Dst: addrB, Data: pkt})
			n.e.Input(start, Packet{Src: addrA, Dst: x, Data: pkt})
			if n.pump(); len(n.sent) > 0 {
				t.Errorf("%s from or to %v: %v", tt.name, x, n.sent)
			}
		}
	}
	// An INIT to a port where nobody listens.
	_, n, p := lonely(t, Config{})
	p.dport = 1
	p.raw(0, mkInit(chunkInit, 0x55, 5000, 1, 1, 1))
	n.want("closed port", "tag=00000055 ABORT !ABORT_T")
	// A SHUTDOWN ACK in the set-up is answered so too, and the set-up goes on. SCTP-149.
	for _, begin := range []func(testing.TB, Config) (*world, *node, *rawPeer){
		func(t testing.TB, c Config) (*world, *node, *rawPeer) { return dialing(t, c) }, echoed,
	} {
		_, n, p := begin(t, Config{})
		state := p.a.State()
		n.sent = nil
		p.raw(0x777, mk(chunkShutdownAck, 0))
		if n.want("SHUTDOWN ACK", "tag=00000777 SHUTDOWN_COMPLETE_T"); p.a.State() != state {
			t.Error(p.a.State())
		}
		p.raw(p.tag, appendShutdown(nil, 1)) // SCTP-162
		if n.want("SHUTDOWN"); p.a.State() != state {
			t.Error(p.a.State())
		}
	}
	// There is a limit to ABORTs; INITs to an open port are answered all the same.
	_, n, p = lonely(t, Config{OOTBPerSecond: 10})
	for range 50 {
		p.raw(9, mkData(whole, 1, 0, 0, 0, "x"))
	}
	if len(n.sent) != 10 || n.e.Stats().RepliesDropped != 40 || n.e.Stats().OutOfTheBlue != 50 {
		t.Errorf("%d answers, %+v", len(n.sent), n.e.Stats())
	}
	n.sent = nil
	p.init(100_000)
	p.w.Now = p.w.Now.Add(time.Second)
	n.sent = nil
	p.raw(9, mkData(whole, 1, 0, 0, 0, "x"))
	n.want("a second later", "ABORT_T")
}

// Errors that the peer reports are told, cause by cause, and kill nothing. SCTP-156.
func TestPeerErrors(t *testing.T) {
	_, n, p := established(t, Config{})
	var causes [][]byte
	for c := CauseInvalidStream; c <= CauseProtocolViolation; c++ {
		if c != CauseStaleCookie {
			causes = append(causes, appendParam(nil, uint16(c), []byte{1, 2, 3}))
		}
	}
	causes = append(causes, appendParam(nil, 0xa0, nil), appendParam(nil, 0xffff, []byte("x")))
	p.send(mkParams(chunkError, causes...))
	ev := n.wantEvent("ERROR", EventPeerError)
	e, ok := ev.Err.(*PeerError)
	if !ok || len(e.Causes) != len(causes) || e.Causes[0].Code != CauseInvalidStream ||
		p.a.State() != StateEstablished {
		t.Fatalf("%v", ev.Err)
	}
	if s := e.Error(); !strings.Contains(s, "cause 160") ||
		!strings.Contains(s, "no user data: 010203") {
		t.Error(s)
	}
	n.want("an ERROR is not answered")
	p.send(mkParams(chunkError, []byte{0, 1, 0, 99}))
	p.send(mk(chunkError, 0))
	n.noEvent("an ERROR without a cause", EventPeerError)
}

// What is sent, over a whole association with loss: tags, control chunks before DATA, rising TSNs,
// no packet too large, INIT and its like alone. SCTP-003, SCTP-016, 017, SCTP-001, SCTP-068,
// SCTP-043.
func TestSentPackets(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a", Config{}, addrA), w.node("b", Config{}, addrB)
	w.Fate = impairment(newSeededRand(3), 0.05, 0.1, 0.02)
	tags := [2]map[uint32]bool{{}, {}} // that a has given out, and b
	w.trace = func(from *node, d Datagram) {
		h, _ := parseHeader(d.Data)
		s := survey(d.Data[headerLen:])
		i := slices.Index(w.nodes, from) ^ 1
		what := Describe(d.Data)
		if len(d.Data) > 1480 && d.DF {
			t.Errorf("%d octets: %s", len(d.Data), what)
		}
		switch {
		case s.has(chunkInit):
			c, _, _ := nextChunk(d.Data[headerLen:])
			var x setup
			if parseSetup(c, &x); h.tag != 0 || s.chunks != 1 {
				t.Errorf("INIT: %s", what)
			}
			tags[i^1][x.tag] = true
			return
		case s.has(chunkInitAck):
			c, _, _ := nextChunk(d.Data[headerLen:])
			var x setup
			parseSetup(c, &x)
			tags[i^1][x.tag] = true
		}
		if to := w.nodes[i].last; !tags[i][h.tag] || to != nil && to.tag != h.tag {
			t.Errorf("wrong tag: %s", what)
		}
		if s.chunks > 1 && (s.has(chunkInitAck) || s.has(chunkShutdownComplete)) || s.has(chunkData) &&
			s.kinds&(1<<chunkShutdown|1<<chunkShutdownAck|1<<chunkAbort) != 0 {
			t.Errorf("bundled: %s", what)
		}
		var last *TSN
		for i, rest := 0, d.Data[headerLen:]; ; i++ {
			c, r, ok := nextChunk(rest)
			if !ok {
				break
			}
			if rest = r; c.typ() == chunkData {
				tsn := dataChunk(c).tsn()
				if last != nil && !last.before(tsn) {
					t.Errorf("TSNs do not rise: %s", what)
				}
				last = &tsn
			} else if last != nil || (c.typ() == chunkCookieEcho || c.typ() == chunkCookieAck) && i > 0 {
				t.Errorf("order: %s", what)
			}
		}
	}
	w.connect(a, b)
	for i := range 300 {
		for _, n := range w.nodes {
			n.last.Send(w.Now, SendOptions{Stream: uint16(i % 10), Unordered: i%3 == 0},
				strings.NewReader(text(1+i*17%3000)))
			n.pump()
		}
		w.Run(3 * time.Millisecond)
	}
	a.last.Shutdown(w.Now)
	a.pump()
	w.Until("shutdown", time.Hour, func() bool { return a.e.Associations()+b.e.Associations() == 0 })
	if len(a.msgs) < 100 || len(b.msgs) < 100 {
		t.Errorf("%d and %d messages", len(a.msgs), len(b.msgs))
	}
}
