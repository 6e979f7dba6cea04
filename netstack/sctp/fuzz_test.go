package sctp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// addRecordings adds each kind of packet that Linux sends.
func addRecordings(f *testing.F, add func(b []byte)) {
	seen := map[uint32]bool{}
	for _, name := range []string{"sctp-basic", "sctp-abort", "sctp-multihome", "sctp-loss",
		"sctp-fragment", "sctp-reorder"} {
		for _, r := range readPcap(f, "testdata/"+name+".pcap") {
			if k := survey(r.data[headerLen:]).kinds; !seen[k] {
				seen[k] = true
				add(r.data)
			}
		}
	}
}

// What decodes is built again, and that decodes to the same; the walkers go forward and end, and
// chunks lie in the packet one behind the other. SCTP-012, SCTP-109.
func FuzzChunks(f *testing.F) {
	addRecordings(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = Describe(b)
		if len(b) >= headerLen {
			n := 0
			for rest := b[headerLen:]; ; {
				c, r, ok := nextChunk(rest)
				if !ok {
					break
				}
				if len(r) >= len(rest) || len(c) > len(rest) || len(c) < chunkLen ||
					len(rest)-len(r) > padded(len(c)) {
					t.Fatalf("chunk of %d octets, %d left of %d", len(c), len(r), len(rest))
				}
				rest = r
				if n++; n > len(b)/chunkLen {
					t.Fatal("more chunks than there are octets for")
				}
				walkParams(t, c.value())
				if s, ok := parseSack(c); ok {
					for i := range s.blocks() {
						s.block(i)
					}
					for i := range s.dups() {
						s.dup(i)
					}
				}
				if causes, ok := parseCauses(c.value()); ok {
					var again []byte
					for _, x := range causes {
						again = appendParam(again, uint16(x.Code), x.Info)
					}
					if y, ok := parseCauses(again); !ok || fmt.Sprint(y) != fmt.Sprint(causes) {
						t.Fatalf("causes %v, again %v", causes, y)
					}
				}
			}
			if survey(b[headerLen:]).chunks != n {
				t.Fatal("survey counts otherwise")
			}
		}
		once, err := rebuild(b)
		if err != nil {
			return
		}
		if !GoodChecksum(once) || len(once)%4 != 0 {
			t.Fatal("a bad packet was built")
		}
		twice, err := rebuild(once)
		if err != nil || !bytes.Equal(once, twice) || Describe(once) != Describe(twice) {
			t.Fatalf("%v\nonce  %x\ntwice %x", err, once, twice)
		}
	})
}

func walkParams(t *testing.T, b []byte) {
	for {
		p, r, ok := nextParam(b)
		if !ok {
			return
		}
		if len(r) >= len(b) || len(p) < paramLen {
			t.Fatalf("parameter of %d octets, %d left of %d", len(p), len(r), len(b))
		}
		b = r
	}
}

// An INIT or INIT ACK, whatever its parameters: what is read of it are its own octets, and the same
// when it is built again from what was read. SCTP-012, 013, SCTP-026.
func FuzzSetup(f *testing.F) {
	f.Add(true, mkInit(chunkInitAck, 1, 2, 3, 4, 5, someCookie, appendAddr(nil, addrA),
		appendAddr(nil, addr("fd00::1")), appendParam(nil, 0xc0ff, []byte("x")))[initLen:])
	f.Add(false, mkInit(chunkInit, 1, 2, 3, 4, 5, appendParam32(nil, paramAdaptation, 1),
		appendParam(nil, paramAddressTypes, []byte{0, 5, 0, 6}), appendParam32(nil, paramPreservative,
			9))[initLen:])
	f.Fuzz(func(t *testing.T, ack bool, params []byte) {
		if len(params) > 4000 {
			return
		}
		typ := chunkInit
		if ack {
			typ = chunkInitAck
		}
		var s setup
		c, _, _ := nextChunk(mkInit(typ, 1, 2, 3, 4, 5, params))
		if !parseSetup(c, &s) {
			t.Fatal("does not parse")
		}
		for _, a := range s.peerAddrs() {
			if !isUnicast(a) || a.Is4In6() {
				t.Fatalf("address %v", a)
			}
		}
		if !ack && s.cookie != nil {
			t.Fatal("an INIT with a cookie")
		}
		var again [][]byte
		for _, a := range s.peerAddrs() {
			again = append(again, appendAddr(nil, a))
		}
		if s.cookie != nil {
			again = append(again, appendParam(nil, paramCookie, s.cookie))
		}
		if s.adapts {
			again = append(again, appendParam32(nil, paramAdaptation, s.adaptation))
		}
		if s.preservative != 0 {
			again = append(again, appendParam32(nil, paramPreservative, s.preservative))
		}
		if s.hostName != nil {
			again = append(again, appendParam(nil, paramHostName, s.hostName.value()))
		}
		if s.types {
			var v []byte
			if s.types4 {
				v = append(v, 0, 5)
			}
			if s.types6 {
				v = append(v, 0, 6)
			}
			again = append(again, appendParam(nil, paramAddressTypes, v))
		}
		stop := []byte(nil)
		for _, p := range s.unknown[:s.nUnknown] {
			if p.typ()&paramSkips == 0 {
				stop = appendParam(nil, p.typ(), p.value()) // it ended the reading, and does so again
				continue
			}
			again = append(again, appendParam(nil, p.typ(), p.value()))
		}
		var u setup
		c, _, _ = nextChunk(mkInit(typ, 1, 2, 3, 4, 5, append(again, stop)...))
		parseSetup(c, &u)
		same := u.nAddrs == s.nAddrs && u.addrs == s.addrs && bytes.Equal(u.cookie, s.cookie) &&
			u.adapts == s.adapts && u.adaptation == s.adaptation &&
			u.preservative == s.preservative && bytes.Equal(u.hostName, s.hostName) && u.types == s.types &&
			u.types4 == s.types4 && u.types6 == s.types6 && u.nUnknown == s.nUnknown
		for i := range s.nUnknown {
			same = same && bytes.Equal(u.unknown[i], s.unknown[i])
		}
		if !same {
			t.Fatalf("read %+v\nagain %+v", s, u)
		}
	})
}

// Only what was sealed opens, and as it was. SCTP-037, SCTP-044.
func FuzzCookie(f *testing.F) {
	f.Add([]byte("junk"), uint32(1), uint16(2), uint8(3))
	f.Fuzz(func(t *testing.T, junk []byte, v uint32, w uint16, n uint8) {
		var k keyring
		k.rotate(start, func(b []byte) { sctptest.Seeded(1).Read(b) })
		var c, d cookie
		if k.open(junk, &d) {
			t.Fatal("junk opens")
		}
		c = cookie{
			created: int64(v) << 20, life: v, srcPort: w, dstPort: ^w, tag: v, peerTag: ^v, tsn: TSN(v + 1),
			peerTSN: TSN(v - 1), rwnd: v / 2, out: w, in: w + 1,
			encap: w, adapts: n&1 != 0, adaptation: v, tie: v ^ 1, peerTie: v ^ 2, src: addrA,
			dst: addr("fd00::1"),
		}
		for c.nAddrs < int(n)%(maxAddrs+1) {
			c.addrs[c.nAddrs] = netip.AddrFrom4(
				[4]byte(binary.BigEndian.AppendUint32(nil, v+uint32(c.nAddrs))))
			c.nAddrs++
		}
		b := k.seal(append([]byte(nil), "before"...), &c)[6:]
		if !k.open(b, &d) || d != c {
			t.Fatalf("sealed %+v\nopened %+v", c, d)
		}
		for _, x := range junk {
			if i := int(x) % len(b); len(junk) < 50 {
				bad := bytes.Clone(b)
				bad[i] ^= x | 1
				if k.open(bad, &d) {
					t.Fatalf("octet %d is not covered", i)
				}
			}
		}
	})
}

// snapshot is all that a packet could change of an association.
func snapshot(a *Association) string {
	s := fmt.Sprintf("%v %x %x %x %x %v %v %v %v", a.state, a.tag, a.peerTag, a.tie, a.peerTie, a.t1,
		a.t2, a.errors, a.Paths())
	s += fmt.Sprintf("%d %d %d %d %d %d %v", a.nextTSN, a.ackTSN, a.rwnd, a.inFlight, a.marked,
		a.gapAcked, a.recovering)
	s += fmt.Sprintf("%d %d %d %d %d %v %v", a.have.cum, a.have.high, a.have.above, a.held, a.pieces,
		a.sackAt, a.sackNow)
	return s + fmt.Sprint(len(a.frags.runs), a.dups, a.ctl)
}

// Packets from someone who does not know the tags, whatever they hold, change nothing of an
// association and bring up nothing. Only the tie-tags may come to be, as an INIT asks for a cookie.
// SCTP-145, SCTP-032, SCTP-055, SCTP-005.
func FuzzBlind(f *testing.F) {
	addRecordings(f, func(b []byte) { f.Add(b[headerLen:], uint32(1), false) })
	f.Add(mkInit(chunkInit, 1, 5000, 1, 1, 1), uint32(0), false)
	f.Add(mkInit(chunkInit, 1, 5000, 1, 1, 1, appendAddr(nil, addrA2)), uint32(0), false)
	f.Add(mk(chunkCookieEcho, 0, make([]byte, 90)...), uint32(5), false)
	f.Add(mk(chunkAbort, 1), uint32(1), true)
	f.Fuzz(func(t *testing.T, chunks []byte, tag uint32, spoil bool) {
		_, n, p := established(t, Config{})
		n.post(SendOptions{}, "in flight")
		p.send(mkData(whole, p.tsn, 0, 0, 0, "x"), mkData(flagB, p.tsn+2, 0, 1, 0, "y"))
		n.events, n.msgs = nil, nil
		if !spoil && (tag == p.tag || tag == p.own) {
			return
		}
		p.a.tieTags()
		before := snapshot(p.a)
		if spoil {
			b := sealed(header{p.sport, p.dport, p.tag}, chunks)
			b[8] ^= 1
			n.input(Datagram{Src: p.src, Dst: p.dst, Data: b})
		} else {
			p.raw(tag, chunks)
		}
		if after := snapshot(p.a); after != before || len(n.events)+len(n.msgs) > 0 ||
			n.e.Associations() != 1 {
			t.Fatalf("%s\nbefore %s\nafter  %s", Describe(sealed(header{1, 2, tag}, chunks)), before, after)
		}
	})
}

// Packets with the right tag, whatever they hold: one answer each beside DATA, the books are right,
// and no packet is held when the association has ended. SCTP-018, SCTP-103, SCTP-109, SCTP-008.
func FuzzAuthentic(f *testing.F) {
	addRecordings(f, func(b []byte) { f.Add(b[headerLen:], uint8(0)) })
	for i := range uint8(6) {
		f.Add(bytes.Join([][]byte{
			mkData(flagB, 1000, 0, 0, 0, "x"), mkSack(1, 1000, gap{2, 3}), mkData(flagE, 1001, 0, 0, 0, "y"),
			mk(0xc1, 0), appendShutdown(nil, 1), mk(chunkShutdownAck, 0),
			mk(chunkHeartbeat, 0, 0, 1, 0, 4), mk(chunkCookieAck, 0),
		}, nil), i)
	}
	f.Fuzz(func(t *testing.T, chunks []byte, state uint8) {
		var w *world
		var n *node
		var p *rawPeer
		switch state % 6 {
		case 0, 1, 2, 3:
			w, n, p = established(t, narrow())
			n.queue(6)
			// TSNs as the seeds have them.
			p.a.have.init(peerTSN - 1)
			d := p.a.nextTSN - 5
			p.a.renumber(d)
			switch state % 6 {
			case 1:
				p.a.Shutdown(w.Now)
			case 2:
				p.send(appendShutdown(nil, p.a.ackTSN))
			case 3:
				p.ack2(p.a.nextTSN - 1)
				p.ack2(p.a.nextTSN - 1)
				p.a.Shutdown(w.Now)
			}
		case 4:
			w, n, p = dialing(t, Config{})
		case 5:
			w, n, p = echoed(t, Config{})
		}
		n.pump()
		n.keep = true
		n.sent = nil
		control := 0
		w.trace = func(_ *node, d Datagram) {
			if s := survey(d.Data[headerLen:]); s.kinds != 1<<chunkData || s.chunks == 0 {
				control++
			}
		}
		// In two packets, so that state carries over.
		half := len(chunks) / 2 &^ 3
		for _, part := range [][]byte{chunks, chunks[:half], chunks[half:]} {
			control = 0
			p.send(part)
			// SHUTDOWN behind a SACK is the one that section 9.2 asks for.
			if control > 1 && !(control == 2 && p.a.state >= StateShutdownPending) {
				t.Fatalf("%d packets in answer to %s: %v", control, Describe(sealed(header{1, 2, 3}, part)),
					n.sent)
			}
			n.sent = nil
			checkBooks(t, p.a)
		}
		w.Run(time.Minute)
		checkBooks(t, p.a)
		for _, m := range n.held {
			m.Release()
		}
		p.a.Abort(w.Now, "")
		n.pump()
		if w.refs != 0 || n.e.Associations() != 0 || p.a.held != 0 && p.a.state == StateClosed ||
			p.a.pieces != 0 {
			t.Fatalf("%d packets held, %d associations, %d octets", w.refs, n.e.Associations(), p.a.held)
		}
	})
}

func (p *rawPeer) ack2(cum TSN) { p.send(mkSack(cum, 1<<20)) }

// checkBooks compares the sums that an association keeps with what they are sums of.
func checkBooks(t *testing.T, a *Association) {
	t.Helper()
	if a.state >= StateCookieEchoed {
		checkFlight(t, a)
	}
	checkRest(t, a)
}

// renumber takes d from all TSNs of what was sent.
func (a *Association) renumber(d TSN) {
	a.nextTSN, a.ackTSN = a.nextTSN-d, a.ackTSN-d
	for _, p := range a.paths {
		p.oldest, p.newest = p.oldest-d, p.newest-d
	}
	for i := range a.chunks.len() {
		c := a.chunks.at(i)
		c.older, c.next = c.older-d, c.next-d
	}
	was := a.sets
	a.sets = chunkSets{}
	a.sets.fit(a.ackTSN+1, a.chunks.len())
	for i := range a.chunks.len() {
		from, mask := was.word(a.ackTSN + 1 + d + TSN(i))
		for k, w := range from {
			if w&mask != 0 {
				a.sets.add(1<<k, a.ackTSN+1+TSN(i))
			}
		}
	}
}

// checkFlight compares the lists of what is in flight with the chunks.
func checkFlight(t *testing.T, a *Association) {
	t.Helper()
	for _, p := range a.paths {
		n := 0
		for i := range a.chunks.len() {
			if c := a.chunks.at(i); c.path == p && c.outstanding() {
				n++
			}
		}
		if n != p.listed {
			t.Fatalf("%v: %d chunks in flight, %d listed", p.addr, n, p.listed)
		}
		at := time.Duration(0)
		for tsn, i := p.oldest, 0; i < n; i++ {
			c := a.sentChunk(tsn)
			if c.path != p || !c.outstanding() || c.sentAt < at || (i == n-1) != (tsn == p.newest) {
				t.Fatalf("%v: %+v is number %d of %d in flight", p.addr, c, i, n)
			}
			at, tsn = c.sentAt, c.next
		}
	}
}

func checkRest(t *testing.T, a *Association) {
	t.Helper()
	if a.state < StateCookieEchoed {
		return
	}
	flight, data, marked, acked := map[*path]int{}, 0, 0, 0
	for i := range a.chunks.len() {
		c := a.chunks.at(i)
		if c.outstanding() {
			flight[c.path] += c.size()
			data += int(c.n)
		}
		if c.marked {
			marked++
		}
		if c.acked {
			acked++
		}
		w, mask := a.sets.word(a.ackTSN + 1 + TSN(i))
		if (w[flightBits]&mask != 0) != c.outstanding() || (w[ackedBits]&mask != 0) != c.acked ||
			w[doubtedBits]&mask != 0 && !c.acked {
			t.Fatalf("chunk %d: %+v is in sets %x", i, c, w)
		}
	}
	for _, p := range a.paths {
		if p.flight != flight[p] || p.flight > 0 && p.t3.IsZero() {
			t.Fatalf("%v: %d octets in flight, counted %d, T3 %v", p.addr, flight[p], p.flight, p.t3)
		}
	}
	if data != a.inFlight || marked != a.marked || acked != a.gapAcked ||
		int(a.nextTSN-a.ackTSN-1) != a.chunks.len() {
		t.Fatalf("%d octets of data in flight, counted %d; marked %d, %d; acked %d, %d", data, a.inFlight,
			marked, a.marked, acked, a.gapAcked)
	}
	held := 0
	for i, m := range a.frags.runs {
		held += m.size
		if i > 0 && !a.frags.runs[i-1].last.before(m.TSN) {
			t.Fatal("runs out of order")
		}
	}
	for _, s := range a.in {
		for i, m := range s.held {
			held += m.size
			if i > 0 && !ssnBefore(s.held[i-1].SSN, m.SSN) {
				t.Fatal("messages out of order")
			}
		}
	}
	if held > a.held {
		t.Fatalf("%d octets held, counted %d", held, a.held)
	}
}

// Chunks of any flags, TSNs, streams and SSNs: each message that comes up is what the chunks with
// the TSNs from its own on said, from a B to an E, no TSN is in two messages, and ordered ones are
// in order. SCTP-103, SCTP-101, 102.
func FuzzReassembly(f *testing.F) {
	f.Add([]byte{0, 2, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0})
	f.Add([]byte{2, 1, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0})
	f.Add([]byte{1, 3, 1, 1, 0, 3, 1, 0, 2, 7, 0, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		_, n, p := established(t, Config{Options: Options{InStreams: 4}})
		type said struct {
			flags byte
			sid   uint16
			data  string
		}
		first := map[TSN]said{}
		used := map[TSN]bool{}
		next := map[uint16]uint16{}
		n.onMsg = func(m *Message) {
			want, tsn := "", m.TSN
			for ; ; tsn++ {
				s, ok := first[tsn]
				if !ok || used[tsn] || s.sid != m.Stream || (s.flags&flagU != 0) != m.Unordered ||
					(s.flags&flagB != 0) != (tsn == m.TSN) {
					t.Fatalf("TSN %d is not of message %d", tsn-p.tsn, m.TSN-p.tsn)
				}
				used[tsn] = true
				if want += s.data; s.flags&flagE != 0 {
					break
				}
			}
			if got := string(m.Append(nil)); got != want || m.Len() != len(want) {
				t.Fatalf("message %d: %q, want %q", m.TSN-p.tsn, got, want)
			}
			if !m.Unordered {
				if m.SSN != next[m.Stream] {
					t.Fatalf("stream %d: SSN %d, want %d", m.Stream, m.SSN, next[m.Stream])
				}
				next[m.Stream]++
			}
		}
		for ; len(ops) >= 4 && p.a.state == StateEstablished; ops = ops[4:] {
			tsn := p.tsn + TSN(ops[0]%24)
			s := said{ops[1] & 7, uint16(ops[2] % 4), fmt.Sprintf("%d.%d;", ops[0], len(ops))}
			if _, ok := first[tsn]; !ok {
				first[tsn] = s
			}
			p.send(mkData(s.flags, tsn, s.sid, uint16(ops[3]%8), 0, s.data))
			checkBooks(t, p.a)
		}
		p.a.Abort(p.w.Now, "")
		if p.w.refs != 0 {
			t.Fatalf("%d packets held", p.w.refs)
		}
	})
}

// ICMP errors with any quote: only the tag opens the door. SCTP-165.
func FuzzICMP(f *testing.F) {
	f.Add(uint8(1), 700, []byte{0x13, 0xb3, 0x0f, 0xa0, 1, 2, 3, 5})
	f.Fuzz(func(t *testing.T, kind uint8, mtu int, quote []byte) {
		w, n, p := established(t, Config{})
		before := snapshot(p.a)
		n.e.ICMP(w.Now, ICMPError{Kind: ICMPKind(kind % 6), Src: addrB, Dst: addrA, MTU: mtu,
			Encap: kind&0x80 != 0, Quote: quote})
		right := len(quote) >= 8 && bytes.Equal(quote[:8], header{p.dport, p.sport,
			p.own}.append(nil)[:8])
		if n.pump(); !right && (snapshot(p.a) != before || len(n.events) > 0) {
			t.Fatal("something changed")
		}
		if x := p.a.primary.pmtu; x > 1480 || x < minPMTU(addrA) {
			t.Fatalf("PMTU %d", x)
		}
	})
}
