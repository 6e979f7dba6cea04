package sctp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// dialing is a node that has begun to set up an association with a packet-level peer.
func dialing(t testing.TB, cfg Config, remotes ...netip.Addr) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w = newWorld(t)
	n = w.node("n", cfg, addrA)
	if remotes == nil {
		remotes = []netip.Addr{addrB}
	}
	a, err := n.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: n.addrs, RemotePort: 5043,
		Remotes: remotes})
	if err != nil {
		t.Fatal(err)
	}
	n.pump()
	return w, n, &rawPeer{w: w, n: n, a: a, src: addrB, dst: addrA, sport: 5043, dport: 4000,
		tag: a.tag, own: peerTag, tsn: peerTSN}
}

var someCookie = appendParam(nil, paramCookie, []byte("a cookie"))

// initAck sends an INIT ACK as it should be, with parameters beside the cookie.
func (p *rawPeer) initAck(params ...[]byte) {
	p.send(mkInit(chunkInitAck, p.own, 100_000, 10, 10, p.tsn, append([][]byte{someCookie},
		params...)...))
}

// echoed is a node that has sent a COOKIE ECHO.
func echoed(t testing.TB, cfg Config) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w, n, p = dialing(t, cfg)
	p.initAck()
	n.want("INIT ACK", "INIT", "COOKIE ECHO")
	return w, n, p
}

// dialed is a node with an association that it began.
func dialed(t testing.TB, cfg Config) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w, n, p = echoed(t, cfg)
	p.send(mk(chunkCookieAck, 0))
	n.wantEvent("COOKIE ACK", EventUp)
	return w, n, p
}

// The active side, octet for octet: the INIT, and the cookie exactly as it came. SCTP-003,
// SCTP-030, SCTP-042, 043, SCTP-148, SCTP-173.
func TestActiveSetup(t *testing.T) {
	w := newWorld(t)
	n := w.node("n", Config{Options: Options{OutStreams: 7, InStreams: 9, RecvBuffer: 5000}}, addrA)
	all := capturePackets(w)
	a, err := n.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: n.addrs, RemotePort: 5043,
		Remotes: []netip.Addr{addrB}})
	if err != nil {
		t.Fatal(err)
	}
	n.pump()
	want := header{4000, 5043, 0}.append(nil)
	want = append(want, mkInit(chunkInit, a.tag, 5000, 7, 9, a.initTSN)...)
	finish(want)
	if len(*all) != 1 || !bytes.Equal((*all)[0], want) {
		t.Fatalf("INIT %x, want %x", *all, want)
	}
	if _, err := a.Send(w.Now, SendOptions{}, strings.NewReader("x")); err != ErrNotConnected {
		t.Errorf("a message before the association is up: %v", err)
	}
	p := &rawPeer{w: w, n: n, src: addrB, dst: addrA, sport: 5043, dport: 4000, tag: a.tag,
		own: peerTag, tsn: peerTSN}
	p.initAck()
	want = header{4000, 5043, peerTag}.append(nil)
	want = append(want, mk(chunkCookieEcho, 0, []byte("a cookie")...)...)
	finish(want)
	if len(*all) != 2 || !bytes.Equal((*all)[1], want) {
		t.Fatalf("COOKIE ECHO %x, want %x", (*all)[1:], want)
	}
	if a.State() != StateCookieEchoed {
		t.Fatal(a.State())
	}
	// A second INIT ACK is not looked at, nor is anything else sent before the COOKIE ACK. SCTP-057.
	p.send(mkInit(chunkInitAck, 77, 100_000, 10, 10, p.tsn, someCookie))
	p.send(mkData(flagB|flagE, p.tsn, 0, 0, 0, "early"))
	if len(*all) != 2 || a.State() != StateCookieEchoed || a.peerTag != peerTag {
		t.Fatal("COOKIE-ECHOED was left, or something was sent")
	}
	p.send(mk(chunkCookieAck, 0))
	if n.wantEvent("COOKIE ACK", EventUp).Assoc != a || a.State() != StateEstablished {
		t.Fatal("not established")
	}
	if out, in := a.Streams(); out != 7 || in != 9 {
		t.Errorf("streams %d and %d", out, in)
	}
	// In ESTABLISHED, COOKIE ACK and INIT ACK do nothing. SCTP-048.
	p.send(mk(chunkCookieAck, 0))
	p.send(mkInit(chunkInitAck, 0, 100_000, 10, 10, p.tsn, someCookie))
	p.send(mkInit(chunkInitAck, 78, 0, 0, 0, p.tsn))
	if len(*all) != 2 || a.State() != StateEstablished || len(n.events) > 0 {
		t.Fatal("a stray COOKIE ACK or INIT ACK did something")
	}
}

// Tags and initial TSNs are random, and a tag is never 0. SCTP-019.
func TestTags(t *testing.T) {
	tags, tsns := map[uint32]bool{}, map[TSN]bool{}
	var high, low int
	for i := range 1000 {
		w := newWorld(t)
		n := w.node("n", Config{Rand: sctptest.Seeded(uint64(i))}, addrA)
		a, err := n.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: n.addrs, RemotePort: 5043,
			Remotes: []netip.Addr{addrB}})
		if err != nil {
			t.Fatal(err)
		}
		if tags[a.tag] || tsns[a.initTSN] || a.tag == 0 {
			t.Fatalf("association %d: tag %x, TSN %d", i, a.tag, a.initTSN)
		}
		tags[a.tag], tsns[a.initTSN] = true, true
		high += int(a.tag >> 31)
		low += int(a.initTSN >> 31)
	}
	if high < 400 || high > 600 || low < 400 || low > 600 {
		t.Errorf("the top bit is set in %d tags and %d TSNs of 1000", high, low)
	}
	// Zeros first: the tag is what comes after them.
	e, err := NewEndpoint(Config{Rand: &zerosFirst{n: 32 + 8}})
	if err != nil {
		t.Fatal(err)
	}
	if e.newTag() == 0 {
		t.Error("a tag of 0")
	}
	// Each INIT ACK has a new tag.
	_, _, p := lonely(t, Config{})
	p.init(100_000)
	first := p.tag
	if p.init(100_000); p.tag == first {
		t.Error("two INIT ACKs with one tag")
	}
}

type zerosFirst struct{ n int }

func (z *zerosFirst) Read(b []byte) (int, error) {
	for i := range b {
		if b[i] = 9; z.n > 0 {
			b[i] = 0
			z.n--
		}
	}
	return len(b), nil
}

// INITs that say nonsense: dropped, or answered with an ABORT; neither makes nor disturbs an
// association. SCTP-020, 021, SCTP-030, SCTP-032, SCTP-016, SCTP-145.
func TestBadInit(t *testing.T) {
	hostName := appendParam(nil, paramHostName, []byte("example.org\x00"))
	good := mkInit(chunkInit, 5, 100_000, 1, 1, 1)
	for _, tt := range []struct {
		name string
		tag  uint32
		pkt  [][]byte
		want string // "" is silence
	}{
		{"tag 0", 0, [][]byte{mkInit(chunkInit, 0, 100_000, 1, 1, 1)}, ""},
		{"small window", 0, [][]byte{mkInit(chunkInit, 5, 1499, 1, 1, 1)}, "tag=00000005 ABORT (invalid"},
		{"no outbound streams", 0, [][]byte{mkInit(chunkInit, 5, 100_000, 0, 1, 1)},
			"tag=00000005 ABORT (invalid"},
		{"no inbound streams", 0, [][]byte{mkInit(chunkInit, 5, 100_000, 1, 0, 1)},
			"tag=00000005 ABORT (invalid"},
		{"host name", 0, [][]byte{mkInit(chunkInit, 5, 100_000, 1, 1, 1, hostName)},
			"tag=00000005 ABORT (unresolvable address: 000b0010"},
		{"verification tag", 9, [][]byte{good}, ""},
		{"bundled with DATA", 0, [][]byte{good, mkData(3, 1, 0, 0, 0, "x")}, ""},
		{"bundled behind DATA", 9, [][]byte{mkData(3, 1, 0, 0, 0, "x"), good}, ""},
		{"two INITs", 0, [][]byte{good, good}, ""},
		{"short", 0, [][]byte{mk(chunkInit, 0, make([]byte, 15)...)}, ""},
		{"tag 0 on DATA", 0, [][]byte{mkData(3, 1, 0, 0, 0, "x")}, ""},
		{"tag 0 on COOKIE ECHO", 0, [][]byte{mk(chunkCookieEcho, 0, make([]byte, 100)...)}, ""},
	} {
		for _, with := range []bool{false, true} {
			w, n, p := lonely(t, Config{})
			if with {
				p.handshake(100_000)
			}
			before := n.e.Associations()
			p.raw(tt.tag, tt.pkt...)
			what := fmt.Sprintf("%s, association %t", tt.name, with)
			if tt.want == "" {
				n.want(what)
			} else {
				n.want(what, tt.want+" !ABORT_T")
			}
			if n.e.Associations() != before || len(n.events) > 0 {
				t.Errorf("%s: something changed", what)
			}
			if with { // it still works
				p.send(mkData(flagB|flagE, p.tsn, 0, 0, 0, "alive"))
				if len(n.msgs) != 1 {
					t.Errorf("%s: the association is dead", what)
				}
			}
			w.Run(time.Second)
		}
	}
}

// INIT ACKs that say nonsense, to one who waits for one. SCTP-022, SCTP-025, SCTP-030.
func TestBadInitAck(t *testing.T) {
	hostName := appendParam(nil, paramHostName, []byte("x\x00"))
	for _, tt := range []struct {
		name  string
		chunk []byte
		want  string
		ends  bool
	}{
		{"tag 0", mkInit(chunkInitAck, 0, 100_000, 1, 1, 1, someCookie), "ABORT_T", true},
		{"small window", mkInit(chunkInitAck, 5, 1499, 1, 1, 1, someCookie),
			"tag=00000005 ABORT (invalid", false},
		{"no outbound streams", mkInit(chunkInitAck, 5, 100_000, 0, 1, 1, someCookie),
			"tag=00000005 ABORT (invalid", true},
		{"no inbound streams", mkInit(chunkInitAck, 5, 100_000, 1, 0, 1, someCookie),
			"tag=00000005 ABORT (invalid", true},
		{"no cookie", mkInit(chunkInitAck, 5, 100_000, 1, 1, 1),
			"tag=00000005 ABORT (missing mandatory parameter: 000000010007", true},
		{"host name", mkInit(chunkInitAck, 5, 100_000, 1, 1, 1, someCookie, hostName),
			"tag=00000005 ABORT (unresolvable", true},
	} {
		w, n, p := dialing(t, Config{})
		n.sent = nil
		p.send(tt.chunk)
		n.want(tt.name, tt.want)
		if !tt.ends {
			if p.a.State() != StateCookieWait {
				t.Errorf("%s: %v", tt.name, p.a.State())
			}
			w.Run(1500 * time.Millisecond)
			n.want(tt.name+": it goes on trying", "INIT")
			continue
		}
		var abort *LocalAbort
		if ev := n.wantEvent(tt.name, EventDown); !errors.As(ev.Err, &abort) || n.e.Associations() != 0 {
			t.Errorf("%s: %v", tt.name, ev.Err)
		}
	}
}

// Streams are as many as the one wants and the other allows. SCTP-023, 024.
func TestStreamNumbers(t *testing.T) {
	_, n, p := lonely(t, Config{Options: Options{OutStreams: 8, InStreams: 5}})
	p.raw(0, mkInit(chunkInit, peerTag, 100_000, 100, 3, p.tsn))
	n.want("the peer allows 3 and wants 100", "INIT ACK out=3 in=5")
	var cookie []byte
	all := capturePackets(p.w)
	p.raw(0, mkInit(chunkInit, peerTag, 100_000, 100, 3, p.tsn))
	var s setup
	c, _, _ := nextChunk((*all)[0][headerLen:])
	parseSetup(c, &s)
	cookie, p.tag = s.cookie, s.tag
	p.send(mk(chunkCookieEcho, 0, cookie...))
	if out, in := n.last.Streams(); out != 3 || in != 5 {
		t.Errorf("streams %d and %d", out, in)
	}
	if _, err := n.last.Send(p.w.Now, SendOptions{Stream: 3}, strings.NewReader("x")); err !=
		ErrStream {
		t.Errorf("stream 3 of 3: %v", err)
	}
	n.post(SendOptions{Stream: 2}, "x")

	_, n, p = dialing(t, Config{Options: Options{OutStreams: 8, InStreams: 5}})
	p.send(mkInit(chunkInitAck, p.own, 100_000, 100, 4, p.tsn, someCookie))
	p.send(mk(chunkCookieAck, 0))
	if out, in := n.last.Streams(); out != 4 || in != 5 {
		t.Errorf("active: streams %d and %d", out, in)
	}
}

// Parameters of Linux and usrsctp that are not known here: set-up goes on, and what is to be
// reported is. SCTP-013, 014, 015, SCTP-031, SCTP-012.
func TestUnknownParameters(t *testing.T) {
	for _, tt := range []struct {
		typ              uint16
		reported, beyond bool
	}{{0x3fff, false, false}, {0x7fff, true, false}, {0xbfff, false, true}, {0xc0ff, true, true}} {
		unknown := appendParam(nil, tt.typ, []byte("12345"))
		behind := appendParam32(nil, paramAdaptation, 9)
		want := "INIT ACK cookie"
		if tt.reported {
			want += fmt.Sprintf(" 0008=%04x00093132333435", tt.typ)
		} else {
			want += " !0008="
		}
		_, n, p := lonely(t, Config{})
		cookie := p.init(100_000, unknown, behind)
		if n.want(fmt.Sprintf("INIT with %04x", tt.typ), want); cookie == nil {
			t.Fatal("no cookie")
		}
		p.send(mk(chunkCookieEcho, 0, cookie...))
		if _, on := n.last.PeerAdaptation(); on != tt.beyond {
			t.Errorf("%04x: what is behind it was read: %t", tt.typ, on)
		}

		_, n, p = dialing(t, Config{})
		n.sent = nil
		p.initAck(unknown, behind)
		want = "COOKIE ECHO"
		if tt.reported {
			want += fmt.Sprintf(" | ERROR (unrecognized parameters: %04x00093132333435)", tt.typ)
		} else {
			want += " !ERROR"
		}
		n.want(fmt.Sprintf("INIT ACK with %04x", tt.typ), want)
		if _, on := p.a.PeerAdaptation(); on != tt.beyond {
			t.Errorf("INIT ACK, %04x: what is behind it was read: %t", tt.typ, on)
		}
	}
	// usrsctp's: ECN, FORWARD TSN, supported extensions, RANDOM, HMAC, CHUNKS, indication.
	_, n, p := lonely(t, Config{})
	p.handshake(100_000, appendParam(nil, paramECN, nil), appendParam(nil, 0xc000, nil),
		appendParam(nil, 0x8008, []byte{0xc0, 0x82, 0xc1, 0x80, 0x0f}),
		appendParam(nil, 0x8002, make([]byte, 32)), appendParam(nil, 0x8004, []byte{0, 1}),
		appendParam(nil, 0x8003, []byte{0xc1, 0x80}),
		appendParam32(nil, paramAdaptation, 7))
	if code, ok := n.last.PeerAdaptation(); code != 7 || !ok {
		t.Error("the indication behind all that is not there")
	}
	// Lengths that are no lengths end the reading, and nothing else.
	for _, length := range []uint16{0, 3, 9, 0xffff} {
		_, n, p := lonely(t, Config{})
		bad := binary.BigEndian.AppendUint16([]byte{0x80, 0x99}, length)
		p.raw(0, mkInit(chunkInit, peerTag, 100_000, 1, 1, 1, bad))
		n.want(fmt.Sprintf("a parameter of length %d", length), "INIT ACK")
	}
}

// The indication of RFC 5061: sent where it is set, read in INIT and INIT ACK only, with its length
// only, and not judged. SCTP-169, 170, 171.
func TestAdaptation(t *testing.T) {
	for _, v := range []uint32{0, 1, 1<<32 - 1} {
		_, n, p := lonely(t, Config{Options: Options{Adaptation: ptr(v)}})
		p.init(100_000)
		n.want("INIT", fmt.Sprintf("INIT ACK adaptation=%d", v))
		p.handshake(100_000, appendParam32(nil, paramAdaptation, v))
		if code, ok := n.last.PeerAdaptation(); code != v || !ok {
			t.Errorf("%d: %d, %t", v, code, ok)
		}
		_, n, p = dialing(t, Config{Options: Options{Adaptation: ptr(v)}})
		n.want("dial", fmt.Sprintf("INIT adaptation=%d", v))
		p.initAck(appendParam32(nil, paramAdaptation, v))
		if code, ok := p.a.PeerAdaptation(); code != v || !ok {
			t.Errorf("%d: %d, %t", v, code, ok)
		}
	}
	for _, bad := range [][]byte{nil, appendParam(nil, paramAdaptation, nil),
		appendParam(nil, paramAdaptation, make([]byte, 8))} {
		_, n, p := lonely(t, Config{})
		p.handshake(100_000, bad)
		if _, ok := n.last.PeerAdaptation(); ok {
			t.Errorf("%x counts as an indication", bad)
		}
		// Elsewhere it is nothing: in an ERROR, and in an ASCONF, which is not known here.
		ind := appendParam32(nil, paramAdaptation, 1)
		p.send(mkParams(chunkError, ind), mkParams(0xc1, u32(1), ind))
		if _, ok := n.last.PeerAdaptation(); ok || n.last.State() != StateEstablished {
			t.Error("an indication in another chunk")
		}
	}
	// The user's choice: no association without the right one.
	opt := Options{AdmitAdaptation: func(code uint32, ok bool) bool { return ok && code == 1 }}
	for _, bad := range [][]byte{nil, appendParam32(nil, paramAdaptation, 2)} {
		_, n, p := lonely(t, Config{Options: opt})
		p.raw(0, mkInit(chunkInit, peerTag, 100_000, 1, 1, 1, bad))
		n.want("INIT", "ABORT (user-initiated abort")
		_, n, p = dialing(t, Config{Options: opt})
		n.sent = nil
		p.initAck(bad)
		n.want("INIT ACK", "ABORT (user-initiated abort")
		n.wantEvent("INIT ACK", EventDown)
	}
	_, _, p := lonely(t, Config{Options: opt})
	p.handshake(100_000, appendParam32(nil, paramAdaptation, 1))
}

// The peer's addresses are where the INIT came from and those it lists, of families that we have.
// SCTP-026, 027, 028, SCTP-033, SCTP-064, SCTP-029.
func TestPeerAddresses(t *testing.T) {
	x, y6 := addr("10.9.9.9"), addr("fd00::9")
	mapped := netip.AddrFrom16(x.As16())
	list := func(n *node) (s string) {
		for _, p := range n.last.Paths() {
			s += fmt.Sprintf("%v:%t ", p.Addr, p.Confirmed)
		}
		return strings.TrimSpace(s)
	}
	for _, tt := range []struct {
		params [][]byte
		want   string
	}{
		{nil, "10.1.0.1:true"},
		{[][]byte{appendAddr(nil, addrA)}, "10.1.0.1:true"},
		{[][]byte{appendAddr(nil, x)}, "10.1.0.1:true 10.9.9.9:false"},
		{[][]byte{appendAddr(nil, addrA), appendAddr(nil, x), appendAddr(nil, y6)},
			"10.1.0.1:true 10.9.9.9:false"},
		{[][]byte{appendAddr(nil, mapped), appendAddr(nil, addr("224.0.0.1")),
			appendAddr(nil, addr("0.0.0.0"))}, "10.1.0.1:true"},
		{[][]byte{appendParam(nil, paramIPv4, []byte{1, 2, 3}), appendParam(nil, paramIPv6,
			make([]byte, 4))}, "10.1.0.1:true"},
	} {
		_, n, p := lonely(t, Config{})
		p.handshake(100_000, tt.params...)
		if got := list(n); got != tt.want {
			t.Errorf("%x: %s, want %s", tt.params, got, tt.want)
		}
	}
	// Where there is IPv6, an IPv4-mapped address is none all the same.
	w := newWorld(t)
	n := w.node("v6", Config{}, y6)
	n.e.Listen(5043, ListenConfig{})
	p := &rawPeer{w: w, n: n, src: addr("fd00::1"), dst: y6, sport: 4000, dport: 5043, own: peerTag,
		tsn: peerTSN}
	p.handshake(100_000, appendAddr(nil, mapped), appendAddr(nil, addr("fd00::2")), appendAddr(nil, x))
	if got := list(n); got != "fd00::1:true fd00::2:false" {
		t.Error(got)
	}
	// The active side: those of the user are confirmed, those learnt are not; a family that we have
	// not is left out without a word.
	_, n, p = dialing(t, Config{}, addrB, addrB2)
	n.sent = nil
	p.initAck(appendAddr(nil, addrB), appendAddr(nil, x), appendAddr(nil, addrB2), appendAddr(nil, y6))
	p.send(mk(chunkCookieAck, 0))
	if got := list(n); got != "10.1.0.2:true 10.2.0.2:true 10.9.9.9:false" {
		t.Error(got)
	}
	// An address of the user that the peer does not list is given up.
	_, n, p = dialing(t, Config{}, addrB, addrB2)
	p.initAck(appendAddr(nil, addrB), appendAddr(nil, x))
	p.send(mk(chunkCookieAck, 0))
	if got := list(n); got != "10.1.0.2:true 10.9.9.9:false" {
		t.Error(got)
	}
	if n.e.table[peerKey{4000, 5043, addrB2}] != nil {
		t.Error("it still leads to the association")
	}
	// An INIT ACK from another address that lists the one the INIT went to.
	w, _, p = dialing(t, Config{})
	p.src = x
	p.initAck(appendAddr(nil, addrB), appendAddr(nil, x))
	if p.a.State() != StateCookieEchoed || w.refs != 0 {
		t.Error("INIT ACK from another address is not taken")
	}
	// Our addresses go out if there is more than one, of the families that the peer takes.
	w = newWorld(t)
	n = w.node("n", Config{}, addrB, addrB2, y6)
	if err := n.e.Listen(5043, ListenConfig{Locals: n.addrs}); err != nil {
		t.Fatal(err)
	}
	p = &rawPeer{w: w, n: n, src: addrA, dst: addrB, sport: 4000, dport: 5043, own: peerTag}
	p.init(100_000)
	n.want("no Supported Address Types", "INIT ACK addr=10.1.0.2 addr=10.2.0.2 addr=fd00::9 cookie")
	p.init(100_000, appendParam(nil, paramAddressTypes, []byte{0, 5}))
	n.want("IPv4 only", "INIT ACK addr=10.1.0.2 addr=10.2.0.2 cookie !fd00")
	p.init(100_000, appendParam(nil, paramAddressTypes, []byte{0, 5}),
		appendAddr(nil, addr("fd00::1")))
	n.want("IPv4 only, it says, and shows IPv6",
		"INIT ACK addr=10.1.0.2 addr=10.2.0.2 addr=fd00::9 cookie")
}

// No answer to an INIT costs memory: a flood of INITs, and of COOKIE ECHOs with cookies nobody
// made. SCTP-034, SCTP-044.
func TestFlood(t *testing.T) {
	w, n, p := lonely(t, Config{})
	w.Fate = func(Datagram) []time.Duration { return nil }
	n.w.trace = nil
	rng := sctptest.Seeded(7)
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	init := mkInit(chunkInit, peerTag, 100_000, 10, 10, 1)
	junk := make([]byte, 120)
	flood := func(rounds int) float64 {
		return testing.AllocsPerRun(rounds, func() {
			var r [8]byte
			rng.Read(r[:])
			src := netip.AddrFrom4([4]byte{10, r[0], r[1], r[2]})
			for _, c := range [][]byte{init, appendChunk(nil, chunkCookieEcho, 0, junk)} {
				tag := binary.BigEndian.Uint32(r[4:]) | 1
				if ChunkType(c[0]) == chunkInit {
					tag = 0
				}
				b := header{1000, 5043, tag}.append(nil)
				b = append(b, c...)
				finish(b)
				n.e.Input(w.Now, Packet{Src: src, Dst: addrB, Data: b})
			}
			for {
				d, ok := n.e.Output(w.Now, n.buf)
				if !ok {
					break
				}
				n.buf = d.Data
			}
		})
	}
	allocs := flood(total)
	if n.e.Associations() != 0 || len(n.e.table) != 0 || len(n.e.timers) != 0 ||
		n.e.replies.len() != 0 || len(n.e.spare) > maxReplies {
		t.Errorf("%d associations, %d table entries, %d timers, %d replies", n.e.Associations(),
			len(n.e.table), len(n.e.timers), n.e.replies.len())
	}
	if st := n.e.Stats(); st.BadCookie < uint64(total) {
		t.Errorf("%+v", st)
	}
	if allocs > 12 { // the test's own packets are most of them
		t.Errorf("%v allocations per INIT and COOKIE ECHO", allocs)
	}
	// Answers that nobody takes away do not pile up.
	for range 10 * maxReplies {
		p.n.e.Input(w.Now, Packet{Src: addrA, Dst: addrB, Data: sealed(header{4000, 5043, 0}, init)})
	}
	if got := n.e.replies.len(); got != maxReplies {
		t.Errorf("%d answers wait", got)
	}
}

func sealed(h header, chunks ...[]byte) []byte {
	b := append(h.append(nil), bytes.Join(chunks, nil)...)
	finish(b)
	return b
}

// T1-init: the same INIT with the same tag, at 1, 2, 4 .. 60 s, nine in all; then the end.
// SCTP-050, SCTP-019.
func TestInitTimer(t *testing.T) { testSetupTimer(t, false) }

// T1-cookie: the same for the COOKIE ECHO. SCTP-051.
func TestCookieTimer(t *testing.T) { testSetupTimer(t, true) }

func testSetupTimer(t *testing.T, cookie bool) {
	w := newWorld(t)
	n := w.node("n", Config{}, addrA)
	var at []time.Duration
	var pkts []string
	w.trace = func(_ *node, d Datagram) {
		at = append(at, w.Now.Sub(start))
		pkts = append(pkts, string(d.Data))
	}
	a, err := n.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: n.addrs, RemotePort: 5043,
		Remotes: []netip.Addr{addrB}})
	if err != nil {
		t.Fatal(err)
	}
	n.pump()
	if cookie {
		at, pkts = nil, nil
		p := &rawPeer{w: w, n: n, src: addrB, dst: addrA, sport: 5043, dport: 4000, tag: a.tag,
			own: peerTag, tsn: peerTSN}
		p.initAck()
	}
	w.Run(time.Hour)
	want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(at, want) {
		t.Errorf("sent at %v, want %v", at, want)
	}
	for _, p := range pkts {
		if p != pkts[0] {
			t.Error("a retransmission differs from the first")
		}
	}
	if ev := n.wantEvent("the last T1", EventDown); ev.Err != ErrTimeout {
		t.Error(ev.Err)
	}
	if _, ok := n.e.Deadline(); ok || n.e.Associations() != 0 {
		t.Error("something is left")
	}
}

// Retransmissions of the set-up go to the peer's addresses in turn. SCTP-052.
func TestSetupRotates(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a", Config{}, addrA), w.node("b", Config{}, addrB, addrB2)
	if err := b.e.Listen(5043, ListenConfig{Locals: b.addrs}); err != nil {
		t.Fatal(err)
	}
	w.Fate = func(d Datagram) []time.Duration { // the first address is dead
		if d.Dst == addrB || d.Src == addrB {
			return nil
		}
		return []time.Duration{time.Millisecond}
	}
	if _, err := a.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: a.addrs, RemotePort: 5043,
		Remotes: b.addrs}); err != nil {
		t.Fatal(err)
	}
	a.pump()
	w.Until("set up over the second address", 10*time.Second, func() bool {
		return a.last != nil && b.last != nil
	})
}

// A listener's limits, and what Dial and Listen refuse. SCTP-002, SCTP-025.
func TestRefusals(t *testing.T) {
	_, n, p := lonely(t, Config{MaxAssociations: 1})
	p.handshake(100_000)
	q := *p
	q.sport = 4001
	q.raw(0, mkInit(chunkInit, 5, 100_000, 1, 1, 1))
	n.want("one too many", "tag=00000005 ABORT (out of resource)")
	dial := func(c DialConfig) error {
		_, err := n.e.Dial(start, c)
		return err
	}
	ok := DialConfig{LocalPort: 1, Locals: []netip.Addr{addrB}, RemotePort: 2,
		Remotes: []netip.Addr{addrA}}
	if err := dial(ok); err != ErrTooMany {
		t.Error(err)
	}
	n.e.cfg.MaxAssociations = 10
	for name, change := range map[string]func(*DialConfig){
		"local port 0":     func(c *DialConfig) { c.LocalPort = 0 },
		"remote port 0":    func(c *DialConfig) { c.RemotePort = 0 },
		"no remote":        func(c *DialConfig) { c.Remotes = nil },
		"no local":         func(c *DialConfig) { c.Locals = nil },
		"multicast":        func(c *DialConfig) { c.Remotes = []netip.Addr{addr("224.0.0.1")} },
		"other family":     func(c *DialConfig) { c.Remotes = []netip.Addr{addr("fd00::1")} },
		"local not proper": func(c *DialConfig) { c.Locals = []netip.Addr{addrB, {}} },
	} {
		c := ok
		if change(&c); dial(c) != ErrAddress {
			t.Errorf("%s: not refused", name)
		}
	}
	if err := dial(DialConfig{LocalPort: 5043, Locals: n.addrs, RemotePort: 4000,
		Remotes: []netip.Addr{addrA}}); err != ErrPortInUse {
		t.Error(err)
	}
	if n.e.Listen(0, ListenConfig{}) != ErrAddress ||
		n.e.Listen(5043, ListenConfig{}) != ErrPortInUse {
		t.Error("Listen on port 0 or twice")
	}
	// Port 0 in a packet.
	for _, h := range []header{{0, 5043, 0}, {4000, 0, 0}} {
		before := n.e.Stats().Malformed
		n.input(Datagram{Src: addrA, Dst: addrB, Data: sealed(h, mkInit(chunkInit, 5, 100_000, 1, 1, 1))})
		if n.want("port 0"); n.e.Stats().Malformed != before+1 {
			t.Error("a packet with port 0 is not dropped")
		}
	}
	// A listener that has gone leaves its associations alone, and no cookie is good any more.
	r := *p
	r.sport = 4002
	cookie := r.init(100_000)
	n.sent = nil
	n.e.StopListening(5043, nil)
	r.send(mk(chunkCookieEcho, 0, cookie...))
	n.want("COOKIE ECHO to a port that has closed", "ABORT")
	p.send(mkData(flagB|flagE, p.tsn, 0, 0, 0, "alive"))
	if len(n.msgs) != 1 {
		t.Error("the association went with the listener")
	}
}

// An INIT ACK of 8 KiB is taken, and its cookie comes back whole in a packet that may be
// fragmented. SCTP-036.
func TestLargeInitAck(t *testing.T) {
	w, n, p := dialing(t, Config{})
	big := appendParam(nil, paramCookie, bytes.Repeat([]byte("cookie! "), 1000))
	var out Datagram
	w.trace = func(_ *node, d Datagram) { out = d }
	p.send(mkInit(chunkInitAck, p.own, 100_000, 10, 10, p.tsn, big))
	c, _, ok := nextChunk(out.Data[headerLen:])
	if !ok || c.typ() != chunkCookieEcho || !bytes.Equal(c.value(), big[4:]) || out.DF {
		t.Fatalf("%d octets, DF %t: %v", len(out.Data), out.DF, n.sent)
	}
}

// The answer to an INIT is small, whatever the INIT has. SCTP-035, SCTP-041.
func TestAmplification(t *testing.T) {
	w, n, p := lonely(t, Config{Options: Options{Adaptation: ptr(uint32(1))}})
	var size int
	w.trace = func(_ *node, d Datagram) { size = len(d.Data) }
	init := func(params ...[]byte) int {
		c := mkInit(chunkInit, peerTag, 100_000, 10, 10, 1, params...)
		p.raw(0, c)
		return headerLen + len(c)
	}
	// Linux's INIT.
	if n := init(appendParam(nil, paramAddressTypes, []byte{0, 5}), appendParam(nil, paramECN, nil),
		appendParam(nil, 0xc000, nil),
		appendParam32(nil, paramAdaptation, 1)); size > 3*n {
		t.Errorf("an INIT of %d octets is answered with %d", n, size)
	}
	if _, s := init(), len(p.init(100_000)); s > 100 {
		t.Errorf("a cookie of %d octets", s)
	}
	unknown := appendParam(nil, 0xffee, make([]byte, 400))
	n.sent = nil
	if init(unknown, unknown); strings.Contains(fmt.Sprint(n.sent), "ffee") || size > 300 {
		t.Errorf("unknown parameters are sent back at length: %d octets", size)
	}
}
