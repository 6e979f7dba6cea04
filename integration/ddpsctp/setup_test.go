package ddpsctp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
	"github.com/vrnic/vrnic/sctpddp"
)

const (
	chunkInit, chunkInitAck, chunkAbort, chunkCookieEcho, chunkSack = 1, 2, 6, 10, 3
)

// only returns the chunks of one type that a node has sent.
func (w *world) only(from *node, typ byte) (out []sctptest.Chunk) {
	for _, d := range w.sent {
		for _, c := range sctptest.Chunks(d.Data) {
			if c.Type() == typ && d.Src == from.addr {
				out = append(out, c)
			}
		}
	}
	return out
}

// The indication is in the INIT and in the INIT ACK, once; as many streams are asked for as are
// offered; and an endpoint of one address says nothing of addresses. SDDP-001, 002, 054, 055, 058.
func TestSetupChunks(t *testing.T) {
	for _, streams := range []uint16{64, 3, 1000} {
		w, a, b := newWorld(t, 0)
		o := ddp()
		o.OutStreams, o.InStreams = streams, streams
		if err := b.e.Listen(port, sctp.ListenConfig{}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, o)
		w.Until("an association", time.Minute, func() bool { return a.mux != nil && b.mux != nil })
		want := min(streams, 64) // what the listener takes
		for i, cs := range [][]sctptest.Chunk{w.only(a, chunkInit), w.only(b, chunkInitAck)} {
			if len(cs) != 1 {
				t.Fatalf("%d chunks", len(cs))
			}
			c := cs[0]
			if n := bytes.Count(c.Body(), []byte{0xc0, 0x06, 0, 8, 0, 0, 0, 1}); n != 1 {
				t.Errorf("the indication is there %d times: % x", n, c.Body())
			}
			out, in := binary.BigEndian.Uint16(c.Body()[8:]), binary.BigEndian.Uint16(c.Body()[10:])
			if i == 0 && (out != streams || in != streams) || i == 1 && (out != want || in != out &&
				in != 64) {
				t.Errorf("%d streams out, %d in", out, in)
			}
			for p := c.Body()[16:]; len(p) >= 4; {
				typ, n := binary.BigEndian.Uint16(p), int(binary.BigEndian.Uint16(p[2:]))
				if typ == 5 || typ == 6 {
					t.Errorf("an address parameter: % x", p[:n])
				}
				p = p[min((n+3)&^3, len(p)):]
			}
		}
		if a.mux.Streams() != int(want) || b.mux.Streams() != int(want) {
			t.Errorf("%d and %d streams, want %d", a.mux.Streams(), b.mux.Streams(), want)
		}
	}
}

// A peer without the indication, or with another one, gets an ABORT; no COOKIE ECHO goes to it, and
// no DATA. A plain listener beside the one for DDP is what it is. SDDP-004, 005, 007, 008, 009.
func TestIndicationOfPeer(t *testing.T) {
	seven := uint32(7)
	for name, peer := range map[string]*sctp.Options{"none": {}, "7": {Adaptation: &seven}} {
		// The listener is for DDP.
		w, a, b := newWorld(t, 0)
		if err := b.e.Listen(port, sctp.ListenConfig{Options: ddp()}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, peer)
		w.Run(10 * time.Second)
		var pa *sctp.PeerAbort
		if !a.down || !errors.As(a.err, &pa) || b.assoc != nil || len(w.only(b, chunkAbort)) != 1 ||
			len(w.only(a, chunkCookieEcho)) != 0 {
			t.Errorf("%s: %v", name, a.err)
		}
		// The connector is.
		w, a, b = newWorld(t, 0)
		if err := b.e.Listen(port, sctp.ListenConfig{Options: peer}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, nil)
		w.Run(10 * time.Second)
		if !a.down || a.assoc != nil || len(w.only(a, chunkAbort)) != 1 ||
			len(w.only(a, chunkCookieEcho)) != 0 || len(w.dataChunks(nil)) != 0 {
			t.Errorf("%s: %v, %d COOKIE ECHO", name, a.err, len(w.only(a, chunkCookieEcho)))
		}
		// If SCTP lets it through, DDP does not begin.
		w, a, b = newWorld(t, 0)
		o := ddp()
		o.AdmitAdaptation = nil
		if err := b.e.Listen(port, sctp.ListenConfig{Options: o}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, peer)
		w.Run(time.Second)
		if b.mux != nil || !errors.Is(b.err, sctpddp.ErrNoDDP) {
			t.Errorf("%s: %v", name, b.err)
		}
	}
	// A listener that has one association for DDP takes no other kind then, either.
	w, a, b := newWorld(t, 0)
	connect(t, w)
	if _, err := a.e.Dial(w.Now, sctp.DialConfig{LocalPort: 4001, Locals: []netip.Addr{addrA},
		RemotePort: port, Remotes: []netip.Addr{addrB}, Options: &sctp.Options{}}); err != nil {
		t.Fatal(err)
	}
	first := b.assoc
	a.pump()
	w.Run(10 * time.Second)
	if len(w.only(b, chunkAbort)) != 1 || b.assoc != first || b.e.Associations() != 1 ||
		first.State() != sctp.StateEstablished {
		t.Errorf("%d ABORTs, %d associations", len(w.only(b, chunkAbort)), b.e.Associations())
	}
	// Two listeners.
	w, a, b = newWorld(t, 0)
	if err := errors.Join(b.e.Listen(port, sctp.ListenConfig{Options: ddp()}),
		b.e.Listen(port+1, sctp.ListenConfig{Options: &sctp.Options{}})); err != nil {
		t.Fatal(err)
	}
	for i := range uint16(2) {
		_, err := a.e.Dial(w.Now, sctp.DialConfig{LocalPort: 4000 + i, Locals: []netip.Addr{addrA},
			RemotePort: port + i, Remotes: []netip.Addr{addrB}, Options: &sctp.Options{
				Adaptation: ddp().Adaptation}})
		if err != nil {
			t.Fatal(err)
		}
	}
	a.pump()
	w.Run(time.Second)
	acks := w.only(b, chunkInitAck)
	has := func(c sctptest.Chunk) bool {
		return bytes.Contains(c.Body(), []byte{0xc0, 6, 0, 8, 0, 0, 0, 1})
	}
	if len(acks) != 2 || has(acks[0]) == has(acks[1]) {
		t.Errorf("%d INIT ACKs", len(acks))
	}
}

// An indication that is not 8 octets long, or comes in another chunk, is none. SDDP-006.
func TestOddIndication(t *testing.T) {
	for name, edit := range map[string]func(b []byte) []byte{
		"length 12": func(b []byte) []byte {
			i := bytes.Index(b, []byte{0xc0, 6, 0, 8})
			b[i+3] = 12
			b = append(b[:i+8:i+8], append([]byte{0, 0, 0, 0}, b[i+8:]...)...)
			binary.BigEndian.PutUint16(b[14:], binary.BigEndian.Uint16(b[14:])+4)
			return b
		},
		"length 4": func(b []byte) []byte {
			i := bytes.Index(b, []byte{0xc0, 6, 0, 8})
			b[i+3] = 4
			b = append(b[:i+4:i+4], b[i+8:]...)
			binary.BigEndian.PutUint16(b[14:], binary.BigEndian.Uint16(b[14:])-4)
			return b
		},
		"behind the COOKIE ECHO": func(b []byte) []byte {
			if b[12] == chunkInit {
				i := bytes.Index(b, []byte{0xc0, 6, 0, 8})
				b = append(b[:i:i], b[i+8:]...)
				binary.BigEndian.PutUint16(b[14:], binary.BigEndian.Uint16(b[14:])-8)
			}
			return append(b, 0xc1, 0, 0, 16, 0, 0, 0, 1, 0xc0, 6, 0, 8, 0, 0, 0, 1) // ASCONF
		},
	} {
		w, a, b := newWorld(t, 0)
		w.Fate = func(d *sctp.Datagram) []time.Duration {
			if typ := d.Data[12]; d.Src == addrA && (typ == chunkInit || typ == chunkCookieEcho &&
				strings.HasPrefix(name, "behind")) {
				if typ == chunkInit && strings.HasPrefix(name, "behind") {
					d.Data = edit(d.Data)[:len(d.Data)-8]
				} else {
					d.Data = edit(d.Data)
				}
				sctptest.Seal(d.Data)
			}
			return []time.Duration{time.Millisecond}
		}
		o := ddp()
		o.AdmitAdaptation = nil
		if err := b.e.Listen(port, sctp.ListenConfig{Options: o}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, nil)
		w.Run(5 * time.Second)
		if b.assoc == nil || b.mux != nil || !errors.Is(b.err, sctpddp.ErrNoDDP) {
			t.Errorf("%s: association %t, %v", name, b.assoc != nil, b.err)
		}
	}
}

// MULPDU: the largest segment that goes into one packet, with and without room for a SACK beside
// it, and never less than 516, for then a control message with 512 octets of private data passes.
// SCTP fragments nothing of that.
//
// SDDP-061, 062, 063, 064, 066.
func TestMULPDU(t *testing.T) {
	for _, tt := range []struct {
		mtu, ip, udp, want int
	}{
		{1500, 20, 0, 1450}, {1500, 40, 0, 1430}, {1500, 20, 8, 1442}, {1500, 40, 8, 1422},
		{9000, 20, 0, 8950}, {9000, 40, 0, 8930}, {9000, 20, 8, 8942}, {9000, 40, 8, 8922},
		{1280, 20, 0, 1230}, {1280, 40, 0, 1210}, {1280, 20, 8, 1222}, {1280, 40, 8, 1202},
		// as if it were 576 with UDP: IP has to help
		{576, 20, 0, 526}, {576, 20, 8, 518}, {68, 20, 0, 518},
	} {
		for _, reserve := range []bool{false, true} {
			want := tt.want
			if reserve {
				want = max(want-20, 516)
			}
			w, a, b := newWorld(t, tt.mtu-tt.ip-tt.udp)
			o := ddp()
			o.NoSACKReserve = !reserve
			if err := b.e.Listen(port, sctp.ListenConfig{Options: o}); err != nil {
				t.Fatal(err)
			}
			a.dial(b, o)
			w.Until("an association", time.Minute, func() bool { return a.mux != nil && b.mux != nil })
			pd := bytes.Repeat([]byte("p"), 512)
			x, err := a.mux.Open(iwarp.StartConfig{Revision: 1}, pd)
			if err != nil {
				t.Fatal(err)
			}
			a.pump()
			var y *sctpddp.Session
			w.Until("the request", time.Minute, func() (ok bool) { y, ok = b.mux.Request(); return ok })
			if r, _ := y.Request(); !bytes.Equal(r.PrivateData, pd) {
				t.Errorf("mtu %d: %d octets of private data", tt.mtu, len(r.PrivateData))
			}
			y.Accept(iwarp.StartConfig{Revision: 1}, nil)
			b.pump()
			w.Until("the answer", time.Minute, func() bool { return x.State() == sctpddp.StateOpen })
			if x.MULPDU() != want {
				t.Errorf("mtu %d, header %d+%d, reserve %t: MULPDU %d, want %d", tt.mtu, tt.ip, tt.udp, reserve,
					x.MULPDU(), want)
			}
			all := w.qps([]*sctpddp.Session{x}, []*sctpddp.Session{y})
			text := bytes.Repeat([]byte("segment "), 12_000)
			// Out of step: else both always have a second packet to acknowledge at once.
			n := 0
			w.Fate = func(*sctp.Datagram) []time.Duration {
				n++
				return []time.Duration{time.Millisecond + time.Duration(n%3)*1100*time.Microsecond}
			}
			for _, q := range all {
				// Both ways at once, so that there are SACKs to bundle.
				q.ep.PostWrite(0, 7, 0, content(text), uint32(len(text)))
				q.ep.PostSend(0, iwarp.OpSend, 0, nil, 0)
			}
			a.pump()
			b.pump()
			w.Until("the Sends", time.Minute, func() bool { return len(all[0].got)+len(all[1].got) == 2 })
			for _, q := range all {
				if !bytes.Equal(q.mem[:len(text)], text) {
					t.Errorf("mtu %d: a Write differs", tt.mtu)
				}
			}
			pmtu := max(tt.mtu-tt.ip-tt.udp, 548)
			fragments, bundled, full := 0, 0, 0
			for _, d := range w.sent {
				if len(d.Data) > pmtu {
					t.Errorf("mtu %d: a packet of %d octets", tt.mtu, len(d.Data))
				}
				cs := sctptest.Chunks(d.Data)
				for _, c := range cs {
					if c.Type() == 0 && c.Flags()&3 != 3 {
						fragments++
					}
					if c.Type() == 0 && len(c.Body()) == 12+2+want {
						full++
						if cs[0].Type() == chunkSack {
							bundled++
						}
					}
				}
			}
			if fragments > 0 || full < 20 {
				t.Errorf("mtu %d, reserve %t: %d fragments, %d full segments", tt.mtu, reserve, fragments, full)
			}
			if (bundled > 0) != (reserve && want > 516) && tt.mtu > 576 {
				t.Errorf("mtu %d, reserve %t: %d SACKs beside a full segment", tt.mtu, reserve, bundled)
			}
		}
	}
}

// A segment that a peer's SCTP has cut is put together before its number is looked at. SDDP-067.
func TestFragments(t *testing.T) {
	w, a, b := newWorld(t, 0)
	connect(t, w)
	xs, ys := w.open(1)
	q := newQP(t, ys[0])
	seg := append([]byte{0, 1}, iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 16)...)
	text := bytes.Repeat([]byte("cut"), 2000)
	a.assoc.Send(xs[0].Stream(), sctpddp.PPIDSegment, bytes.NewReader(append(seg, text...)))
	a.pump()
	w.Run(time.Second)
	if b.frags != 1 || !bytes.Equal(q.mem[16:][:len(text)], text) ||
		ys[0].State() != sctpddp.StateOpen {
		t.Errorf("%d messages in fragments, %v", b.frags, ys[0].Err())
	}
}

// With two addresses at both ends, and both paths confirmed, what sessions send takes one path: the
// other is for when that fails. SDDP-056, SDDP-057.
func TestOnePath(t *testing.T) {
	w, a, b := newWorld(t, 0)
	a.second, b.second = netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2")
	if err := b.e.Listen(port, sctp.ListenConfig{Locals: []netip.Addr{b.addr, b.second}}); err != nil {
		t.Fatal(err)
	}
	_, err := a.e.Dial(w.Now, sctp.DialConfig{LocalPort: 4000, Locals: []netip.Addr{a.addr, a.second},
		RemotePort: port, Remotes: []netip.Addr{b.addr}})
	if err != nil {
		t.Fatal(err)
	}
	a.pump()
	both := func() bool {
		for _, n := range w.nodes {
			if n.assoc == nil || len(n.assoc.Paths()) != 2 {
				return false
			}
			for _, p := range n.assoc.Paths() {
				if !p.Confirmed {
					return false
				}
			}
		}
		return true
	}
	w.Until("two paths", time.Minute, both)
	xs, ys := w.open(2)
	all := w.qps(xs, ys)
	w.sent = nil
	text := bytes.Repeat([]byte("path"), 2000)
	send := func() {
		t.Helper()
		for i, q := range all {
			q.ep.PostSend(0, iwarp.OpSend, 0, content(text), uint32(len(text)))
			all[i^1].want = append(all[i^1].want, string(text))
		}
		a.pump()
		b.pump()
		w.Until("the Sends", 10*time.Minute, func() bool {
			for _, q := range all {
				if len(q.got) < len(q.want) {
					return false
				}
			}
			return true
		})
	}
	paths := func() map[netip.Addr]int {
		out := map[netip.Addr]int{}
		for _, d := range w.sent {
			for _, c := range sctptest.Chunks(d.Data) {
				if c.Type() == 0 {
					out[d.Src]++
				}
			}
		}
		return out
	}
	for range 5 {
		send()
	}
	if p := paths(); len(p) != 2 || p[a.addr] == 0 || p[b.addr] == 0 {
		t.Errorf("DATA from %v", p)
	}
	// It fails, and the sessions do not notice.
	w.Fate = func(d *sctp.Datagram) []time.Duration {
		if d.Dst == a.addr || d.Dst == b.addr {
			return nil
		}
		return []time.Duration{time.Millisecond}
	}
	send()
	if p := paths(); p[a.second] == 0 || p[b.second] == 0 || xs[0].Err() != nil || ys[0].Err() != nil {
		t.Errorf("DATA from %v, %v, %v", p, xs[0].Err(), ys[0].Err())
	}
}

// The path narrows while segments are on their way: all of them arrive, later ones are smaller.
// SDDP-086.
func TestPathNarrows(t *testing.T) {
	w, a, b := newWorld(t, 1480)
	connect(t, w)
	xs, ys := w.open(1)
	all := w.qps(xs, ys)
	w.Fate = func(d *sctp.Datagram) []time.Duration {
		if len(d.Data) > 1000 && d.DF {
			// The router says so.
			w.nodes[0].e.ICMP(w.Now, sctp.ICMPError{Kind: sctp.ICMPTooBig, Src: d.Src, Dst: d.Dst, MTU: 1000,
				Quote: d.Data[:8]})
			return nil
		}
		return []time.Duration{time.Millisecond}
	}
	text := bytes.Repeat([]byte("narrow"), 1300)
	for i := range 15 {
		all[0].ep.PostWrite(0, 7, uint64(i)*8000, content(text), uint32(len(text)))
	}
	wide := xs[0].MULPDU()
	a.pump()
	w.Until("the Writes", 10*time.Minute, func() bool {
		for i := range 15 {
			if !bytes.Equal(all[1].mem[i*8000:][:len(text)], text) {
				return false
			}
		}
		return true
	})
	if n := xs[0].MULPDU(); n >= wide || n > 1000 {
		t.Errorf("MULPDU %d, was %d", n, wide)
	}
	if xs[0].Err() != nil || all[1].ep.Err() != nil || b.frags > 0 && xs[0].MULPDU() == wide {
		t.Errorf("%v, %v", xs[0].Err(), all[1].ep.Err())
	}
}

// A Send leaves at once, also behind other data in flight; a short Write in front of it leaves in
// the same packet. SDDP-079, SDDP-080.
func TestNoDelay(t *testing.T) {
	w, a, _ := newWorld(t, 0)
	connect(t, w)
	xs, ys := w.open(1)
	all := w.qps(xs, ys)
	a.pump() // the ready-to-receive message
	w.Run(time.Second)
	for i := range 3 {
		w.sent = nil
		all[0].ep.PostSend(0, iwarp.OpSend, 0, content("now"), 3)
		a.pump() // the clock stands still
		if n := len(w.dataChunks(a)); n != 1 {
			t.Errorf("Send %d: %d chunks left", i, n)
		}
	}
	w.Run(time.Second)
	w.sent = nil
	all[0].ep.PostWrite(0, 7, 0, content(make([]byte, 100)), 100)
	all[0].ep.PostSend(0, iwarp.OpSend, 0, content("done"), 4)
	a.pump()
	if len(w.sent) != 1 || len(w.dataChunks(a)) != 2 {
		t.Errorf("%d packets with %d chunks", len(w.sent), len(w.dataChunks(a)))
	}
}

// The association is aborted: one packet says so, no Terminate of any session is sent, and every
// session ends at both ends. The other ends are told apart. SDDP-081, 082, 087, 089.
func TestAssociationEnds(t *testing.T) {
	for _, how := range []string{"abort", "shutdown", "silence"} {
		w, a, b := newWorld(t, 0)
		connect(t, w)
		xs, ys := w.open(30)
		all := w.qps(xs, ys)
		for _, q := range all {
			q.ep.PostSend(0, iwarp.OpSend, 0, content("queued"), 6)
		}
		w.sent = nil
		want := []sctpddp.LossKind{sctpddp.LossAbort, sctpddp.LossAbort}
		switch how {
		case "abort":
			a.assoc.Abort(w.Now, "the user wants it so")
		case "shutdown":
			want = []sctpddp.LossKind{sctpddp.LossShutdown, sctpddp.LossShutdown}
			a.pump()
			b.pump()
			w.Run(time.Second)
			a.assoc.Shutdown()
		default:
			want = []sctpddp.LossKind{sctpddp.LossFailure, sctpddp.LossFailure}
			w.Fate = func(*sctp.Datagram) []time.Duration { return nil }
		}
		a.pump()
		b.pump()
		if how == "abort" {
			if n := len(w.only(a, chunkAbort)); n != 1 || len(w.dataChunks(a)) != 0 {
				t.Errorf("%d ABORTs, %d DATA chunks", n, len(w.dataChunks(a)))
			}
		}
		w.Until("the end", time.Hour, func() bool { return a.down && b.down })
		for i, ss := range [][]*sctpddp.Session{xs, ys} {
			for _, s := range ss {
				var le *sctpddp.LostError
				if !errors.As(s.Err(), &le) || le.Kind != want[i] {
					t.Fatalf("%s: %v", how, s.Err())
				}
				lost := 0
				for {
					ev, ok := s.Event()
					if !ok {
						break
					}
					if ev.Kind == sctpddp.EventLost {
						lost++
					}
				}
				if lost != 1 {
					t.Errorf("%s: told %d times", how, lost)
				}
			}
		}
	}
}

// As many streams as there can be cost next to nothing until they are used. SDDP-059.
func TestManyStreams(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	cost := map[uint16]int64{}
	for _, n := range []uint16{1, 65535} {
		before := heap()
		w, a, b := newWorld(t, 0)
		o := ddp()
		o.OutStreams, o.InStreams = n, n
		if err := b.e.Listen(port, sctp.ListenConfig{Options: o}); err != nil {
			t.Fatal(err)
		}
		a.dial(b, o)
		w.Until("an association", time.Minute, func() bool { return a.mux != nil && b.mux != nil })
		if a.mux.Streams() != int(n) || b.mux.Streams() != int(n) {
			t.Errorf("%d and %d streams", a.mux.Streams(), b.mux.Streams())
		}
		cost[n] = heap() - before
		// The last one works as the first.
		if _, err := a.mux.OpenOn(n-1, iwarp.StartConfig{Revision: 1}, nil); err != nil {
			t.Fatal(err)
		}
		a.pump()
		w.Run(time.Second)
		if y, ok := b.mux.Request(); !ok || y.Stream() != n-1 {
			t.Errorf("request %t", ok)
		}
		runtime.KeepAlive(w)
	}
	if n := (cost[65535] - cost[1]) / 65534; n > 128 {
		t.Errorf("%d octets for each stream, of both ends", n)
	}
}
