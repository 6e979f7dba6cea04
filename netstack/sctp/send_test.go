package sctp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// narrow is a Config whose packets hold chunks of exactly 1000 octets of data and nothing beside.
func narrow() Config {
	return Config{MTU: fixedMTU(headerLen + dataLen + 1000), Options: Options{NoSACKReserve: true}}
}

const fullChunk = dataLen + 1000

// queue sends k messages of 1000 octets.
func (n *node) queue(k int) {
	for range k {
		if _, err := n.last.Send(n.w.Now, SendOptions{Unordered: true},
			strings.NewReader(text(1000))); err != nil {
			n.w.T.Fatal(err)
		}
	}
	n.pump()
}

// tsns gives the TSNs of the DATA in what a node has sent, as offsets from the first of all, and
// forgets it.
func (p *rawPeer) tsns() (offs []int) {
	for _, s := range p.n.sent {
		for s != "" {
			i := strings.Index(s, "tsn=")
			if i < 0 {
				break
			}
			var v uint32
			fmt.Sscanf(s[i:], "tsn=%d", &v)
			offs = append(offs, int(int32(v-uint32(p.first()))))
			s = s[i+4:]
		}
	}
	p.n.sent = nil
	return offs
}

// first is the TSN that the node began with.
func (p *rawPeer) first() TSN {
	if p.firstTSN == nil {
		p.w.T.Fatal("not established by handshake")
	}
	return *p.firstTSN
}

func (p *rawPeer) wantTSNs(what string, want ...int) {
	p.w.T.Helper()
	if got := p.tsns(); !slices.Equal(got, want) {
		p.w.T.Fatalf("%s: TSNs %v, want %v", what, got, want)
	}
}

// ack sends a SACK: cum is an offset as tsns gives them.
func (p *rawPeer) ack(cum int, gaps ...gap) { p.send(mkSack(p.first()+TSN(cum), 1<<20, gaps...)) }

// What Send refuses. SCTP-069, SCTP-024, SCTP-083, SCTP-110.
func TestSendErrors(t *testing.T) {
	_, n, p := established(t, Config{Options: Options{SendBuffer: 3000, OutStreams: 4}})
	now := p.w.Now
	send := func(o SendOptions, size int) error {
		_, err := p.a.Send(now, o, strings.NewReader(text(size)))
		return err
	}
	if err := send(SendOptions{}, 0); err != ErrEmpty {
		t.Error(err)
	}
	if err := send(SendOptions{Stream: 4}, 1); err != ErrStream {
		t.Error(err)
	}
	if err := send(SendOptions{}, 3001); err != ErrTooLong {
		t.Error(err)
	}
	if err := send(SendOptions{}, 2000); err != nil {
		t.Error(err)
	}
	if err := send(SendOptions{}, 1001); err != ErrNoRoom || p.a.Room() != 1000 {
		t.Error(err, p.a.Room())
	}
	// A source that fails leaves nothing behind.
	if _, err := p.a.Send(now, SendOptions{}, failing{10}); !errors.Is(err, iotest.ErrTimeout) ||
		p.a.Room() != 1000 || p.a.Sent() != 1 {
		t.Error(err)
	}
	n.pump()
	n.sent = nil
	p.send(mkSack(p.a.nextTSN-1, 5000))
	if ev := n.wantEvent("acked", EventAcked); ev.Acked != 1 || p.a.Room() != 3000 ||
		p.a.Acked() != 1 {
		t.Errorf("%+v, room %d", ev, p.a.Room())
	}
	// Messages cost more than their octets: there is a limit to their number.
	_, _, p = established(t, Config{Options: Options{SendBuffer: 1 << 20}})
	for i := range maxMessages + 1 {
		if err := send(SendOptions{}, 1); (err == ErrNoRoom) != (i == maxMessages) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if p.a.Room() != 0 {
		t.Errorf("room for %d", p.a.Room())
	}
	// Fragmentation off: what does not fit one chunk is refused.
	_, n, p = established(t, Config{Options: Options{NoFragments: true}})
	if err := send(SendOptions{}, p.a.MaxPayload()+1); err != ErrTooLong {
		t.Error(err)
	}
	if err := send(SendOptions{}, p.a.MaxPayload()); err != nil {
		t.Error(err)
	}
	n.pump()
	n.want("a full chunk", "DATA .BE")
	p.a.Abort(now, "")
	if err := send(SendOptions{}, 1); err != ErrClosed || p.a.Shutdown(now) != ErrClosed ||
		p.a.Room() != 0 {
		t.Error(err)
	}
}

type failing struct{ n int }

func (f failing) Len() int                 { return f.n }
func (f failing) Read([]byte) (int, error) { return 0, iotest.ErrTimeout }

// PPID on every fragment, TSNs in a row, one SSN, B first, E last, U on all; SSNs count ordered
// messages only. SCTP-070, SCTP-081, SCTP-082, SCTP-110, 111, SCTP-071.
func TestFragments(t *testing.T) {
	_, n, p := established(t, narrow())
	p.a.nextTSN, p.a.ackTSN = 0xfffffffe, 0xfffffffd
	n.post(SendOptions{Stream: 3, PPID: 16}, text(2500))
	n.want("ordered", "tsn=4294967294 sid=3 ssn=0 ppid=16 ..B. len=1000",
		"tsn=4294967295 sid=3 ssn=0 ppid=16 .... len=1000", "tsn=0 sid=3 ssn=0 ppid=16 ...E len=500")
	p.send(mkSack(0, 1<<20))
	n.post(SendOptions{Stream: 3, PPID: 17, Unordered: true, Immediate: true}, text(1001))
	n.want("unordered", "tsn=1 sid=3 ssn=0 ppid=17 .UB. len=1000",
		"tsn=2 sid=3 ssn=0 ppid=17 IU.E len=1")
	p.send(mkSack(2, 1<<20))
	n.post(SendOptions{Stream: 3}, "x")
	n.want("the next ordered one", "tsn=3 sid=3 ssn=1 ppid=0 ..BE")
	n.post(SendOptions{Stream: 2}, "x")
	n.want("another stream", "tsn=4 sid=2 ssn=0 ppid=0 ..BE")
	p.a.outSSN[2] = 0xffff
	n.post(SendOptions{Stream: 2}, "x")
	n.post(SendOptions{Stream: 2}, "x")
	n.want("SSNs wrap", "ssn=65535", "ssn=0")
	p.send(mkSack(4, 1<<20))
	if ev := n.wantEvent("acked", EventAcked); ev.Acked != 1 {
		t.Errorf("%+v", ev)
	}
	if p.a.Acked() != 4 || p.a.Sent() != 6 {
		t.Errorf("%d of %d acknowledged", p.a.Acked(), p.a.Sent())
	}
}

// Small messages share packets; a SACK that is due rides along if it fits. SCTP-017, SCTP-078,
// SCTP-113.
func TestBundling(t *testing.T) {
	w, n, p := established(t, Config{})
	for range 3 {
		p.a.Send(w.Now, SendOptions{}, strings.NewReader("x"))
	}
	n.pump()
	n.want("three messages", "DATA | DATA | DATA")
	p.send(mkData(whole, p.tsn, 0, 0, 0, "x"))
	n.sent = nil
	p.send(mkData(whole, p.tsn+1, 0, 1, 0, "x"))
	n.want("its SACK waits")
	n.post(SendOptions{}, text(p.a.MaxPayload()))
	n.want("and rides along with a full chunk", "SACK cum=1001 | DATA")
	w.Run(time.Second)
	if strings.Contains(fmt.Sprint(n.sent), "SACK") {
		t.Errorf("it is sent again: %v", n.sent)
	}
	// Both ways: few lone SACKs, and no packet too large (checked by DF).
	w, a, b := pair(t, Config{}, Config{})
	lone, all := 0, 0
	w.trace = func(_ *node, d Datagram) {
		s := survey(d.Data[headerLen:])
		if all++; s.has(chunkSack) && !s.has(chunkData) {
			lone++
		}
		if len(d.Data) > 1480 || !d.DF {
			t.Errorf("a packet of %d octets", len(d.Data))
		}
	}
	for range 200 {
		a.post(SendOptions{}, text(a.last.MaxPayload()))
		b.post(SendOptions{}, text(b.last.MaxPayload()))
		w.Run(5 * time.Millisecond)
	}
	if lone > all/10 {
		t.Errorf("%d lone SACKs in %d packets", lone, all)
	}
}

// A message that fills a packet goes in one chunk, with no room left for a SACK; one octet more is
// cut so that there is room. SCTP-113, SCTP-110.
func TestFullChunk(t *testing.T) {
	_, n, p := established(t, Config{})
	full := 1480 - headerLen - dataLen
	if m := p.a.MaxPayload(); m != full-sackReserve {
		t.Errorf("MaxPayload %d", m)
	}
	n.post(SendOptions{}, text(full))
	n.want("as much as fits", fmt.Sprintf(".BE len=%d", full))
	n.post(SendOptions{}, text(full+1))
	n.want("one more", fmt.Sprintf("..B. len=%d", full-sackReserve), fmt.Sprintf("...E len=%d",
		1+sackReserve))
}

// The send buffer is bounded by what is not acknowledged, gap-acked or not. SCTP-106.
func TestGapAckedStay(t *testing.T) {
	_, n, p := established(t, narrow())
	n.queue(3)
	p.wantTSNs("the first flight", 0, 1, 2)
	held := p.a.buf.tail - p.a.buf.head
	p.ack(-1, gap{2, 3})
	if p.a.buf.tail-p.a.buf.head != held || p.a.chunks.len() != 3 || p.a.Acked() != 0 ||
		len(n.events) > 0 {
		t.Error("a gap-acked chunk is given up")
	}
	p.ack(2)
	if p.a.buf.tail != p.a.buf.head || p.a.chunks.len() != 0 ||
		n.wantEvent("acked", EventAcked).Acked != 3 {
		t.Error("acknowledged chunks stay")
	}
}

// No new DATA beyond the peer's window; a probe after an RTO, then ever more rarely, and no error
// is counted while SACKs come. SCTP-072, SCTP-073, SCTP-074, SCTP-105.
func TestZeroWindow(t *testing.T) {
	cfg := narrow()
	cfg.Options.HeartbeatInterval = -1 // this peer answers none
	w, n, p := lonely(t, cfg)
	p.handshake(2500)
	p.a = n.last
	n.queue(5)
	p.wantTSNs("a window of 2500", 0, 1)
	if p.a.rwnd != 500 {
		t.Errorf("rwnd %d", p.a.rwnd)
	}
	sack := func(cum int, rwnd uint32) { p.send(mkSack(p.first()+TSN(cum), rwnd)) }
	sack(0, 1200)
	p.wantTSNs("1200 less the 1000 in flight")
	if p.a.rwnd != 200 {
		t.Errorf("rwnd %d", p.a.rwnd)
	}
	sack(1, 10)
	p.wantTSNs("a sliver of 10 octets: nothing, not a tiny chunk either")
	sack(1, 0)
	begin := w.Now
	var at []time.Duration
	w.trace = func(_ *node, d Datagram) {
		s := survey(d.Data[headerLen:])
		if s.has(chunkData) {
			at = append(at, w.Now.Sub(begin).Round(time.Second))
			if s.chunks != 1 {
				t.Errorf("a probe of %d chunks", s.chunks)
			}
		}
	}
	cwnd := p.a.primary.cwnd
	for limit := begin.Add(10 * time.Minute); w.Step(limit); {
		if len(n.sent) > 0 { // the peer drops it and says so
			n.sent = nil
			sack(1, 0)
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364, 424, 484, 544}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(at, want) {
		t.Errorf("probes at %v, want %v", at, want)
	}
	if p.a.State() != StateEstablished || p.a.errors != 0 || p.a.primary.errors != 0 ||
		p.a.primary.cwnd != cwnd {
		t.Errorf("%v, %d errors, cwnd %d of %d", p.a.State(), p.a.errors, p.a.primary.cwnd, cwnd)
	}
	w.trace = nil
	n.sent = nil
	sack(1, 2000)
	p.wantTSNs("the window opens: the probe at once, and one more", 2, 3)
	// Without an answer to probes, the peer is dead like any other.
	_, n, p = lonely(t, narrow())
	p.handshake(1500)
	p.a = n.last
	n.queue(2)
	p.send(mkSack(p.a.nextTSN-1, 0))
	p.w.Run(time.Hour)
	if ev := n.wantEvent("dead", EventDown); ev.Err != ErrTimeout {
		t.Error(ev.Err)
	}
}

// A peer whose whole buffer is smaller than a packet gets chunks that it can take, without waiting
// for probes. SCTP-072, SCTP-073.
func TestSmallPeer(t *testing.T) {
	w, n, p := lonely(t, Config{MTU: fixedMTU(8980)})
	p.handshake(1500)
	n.post(SendOptions{}, text(4000))
	p.wantTSNs("a chunk of 1500", 0)
	w.Run(time.Millisecond)
	p.send(mkSack(p.first(), 1500))
	p.wantTSNs("the next", 1)
	p.send(mkSack(p.first()+1, 4000))
	p.wantTSNs("the rest", 2)
	if w.Now.Sub(start) > time.Second || n.last.Sent() != 1 {
		t.Error("it takes too long")
	}
}

// On a long path what has arrived behind a hole takes no room from what may be sent.
func TestRoomBehindHole(t *testing.T) {
	c := narrow()
	c.Options.SendBuffer = 8 << 20
	w, n, p := established(t, c)
	x := p.a.primary
	n.queue(1)
	w.Run(10 * time.Millisecond)
	p.ack(0)
	x.cwnd, p.a.opt.MaxBurst = 1200*fullChunk, 2000
	n.queue(1000)
	w.Run(10 * time.Millisecond)
	p.ack(0, gap{2, 1000})
	if got, want := p.a.Room(), 600*fullChunk; got < want {
		t.Errorf("room for %d octets, of a window of twice %d", got, want)
	}
}

// What leaves at once is bounded by Max.Burst, and by cwnd with one packet of grace. SCTP-075,
// SCTP-077, SCTP-125.
func TestWindowAndBurst(t *testing.T) {
	_, n, p := established(t, narrow())
	n.queue(20)
	// cwnd is min(4 PMDCS, max(2 PMDCS, 4404)) = 4 * 1016.
	if c := p.a.primary.cwnd; c != 4*fullChunk {
		t.Errorf("cwnd %d", c)
	}
	p.wantTSNs("the first flight", 0, 1, 2, 3)
	_, n, p = established(t, Config{})
	if c := p.a.primary.cwnd; c != 4404 {
		t.Errorf("cwnd %d", c)
	}
	for range 20 {
		p.a.Send(p.w.Now, SendOptions{}, strings.NewReader(text(p.a.MaxPayload())))
	}
	n.pump()
	p.wantTSNs("4404 octets and up to a packet more", 0, 1, 2, 3)
	if f := p.a.primary.flight; f < 4404 || f > 4404+p.a.primary.pmdcs()-1 {
		t.Errorf("%d octets in flight", f)
	}
	w := newWorld(t)
	m := w.node("v6", Config{}, addr("fd00::2"))
	m.e.Listen(5043, ListenConfig{})
	q := &rawPeer{w: w, n: m, src: addr("fd00::1"), dst: addr("fd00::2"), sport: 4000, dport: 5043,
		own: peerTag, tsn: peerTSN}
	q.handshake(100_000)
	if c := q.a.primary.cwnd; c != 4344 || q.a.primary.ssthresh < 1<<20 {
		t.Errorf("IPv6: cwnd %d, ssthresh %d", c, q.a.primary.ssthresh)
	}
	// A large SACK does not let a burst go, but for what takes the place of what has arrived: the
	// packets that come together are acknowledged together.
	_, n, p = established(t, narrow())
	p.a.primary.cwnd, p.a.primary.ssthresh = 40*fullChunk, 1
	p.a.opt.MaxBurst = 4
	n.queue(60)
	for len(p.tsns()) == 0 {
		t.Fatal("nothing is sent")
	}
	for range 20 { // as many packets at a time as that
		p.ack(int(p.a.nextTSN-p.first()) - 1)
		if k := len(p.tsns()); k > 4 {
			t.Fatalf("%d packets at once", k)
		}
	}
	_, n, p = established(t, narrow())
	p.a.primary.cwnd, p.a.opt.MaxBurst = 40*fullChunk, 4
	n.queue(200)
	sent := len(p.tsns())
	for want := 8; want <= 32; want *= 2 { // slow start
		p.ack(int(p.a.nextTSN-p.first()) - 1)
		if k := len(p.tsns()); k != want {
			t.Fatalf("%d packets for a SACK of %d", k, sent)
		}
		sent = want
	}
}

// Never more in flight than cwnd and a packet less one octet, whatever is acknowledged and lost;
// one window for the peer, one for each path. SCTP-075, SCTP-105, SCTP-076.
func TestFlightModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w, a, b := pair(t, Config{}, Config{})
		w.Fate = impairment(rng, 0.1, 0.2, 0.05)
		x := a.last
		var highest TSN
		w.trace = func(from *node, d Datagram) {
			if from != a {
				return
			}
			// What is marked goes before what is new.
			marked := x.marked
			for rest := d.Data[headerLen:]; ; {
				c, r, ok := nextChunk(rest)
				if !ok {
					break
				}
				if rest = r; c.typ() == chunkData {
					if t0 := dataChunk(c).tsn(); highest == 0 || highest.before(t0) {
						if highest = t0; marked > 0 {
							w.T.Fatalf("seed %d: TSN %d is new while %d chunks wait to be sent again", seed, t0, marked)
						}
					}
				}
			}
		}
		check := func() {
			flight, data, marked, acked := 0, 0, 0, 0
			for i := range x.chunks.len() {
				c := x.chunks.at(i)
				if c.outstanding() {
					flight += c.size()
					data += int(c.n)
				}
				if c.marked {
					marked++
				}
				if c.acked {
					acked++
				}
			}
			p := x.primary
			if flight != p.flight || data != x.inFlight || marked != x.marked || acked != x.gapAcked {
				t.Fatalf("seed %d: flight %d %d, data %d %d, marked %d %d, acked %d %d", seed, flight, p.flight,
					data, x.inFlight, marked, x.marked, acked, x.gapAcked)
			}
			if flight > 0 && p.t3.IsZero() || flight == 0 && !p.t3.IsZero() { // SCTP-079, SCTP-120
				t.Fatalf("seed %d: %d octets in flight, T3 %v", seed, flight, p.t3)
			}
		}
		for range 400 {
			for x.Room() > 5000 && rng.IntN(3) > 0 {
				before, cwnd := x.primary.flight, x.primary.cwnd
				x.Send(w.Now, SendOptions{Stream: uint16(rng.IntN(5)), Unordered: rng.IntN(2) == 0},
					strings.NewReader(text(1+rng.IntN(4000))))
				a.pump()
				if f := x.primary.flight; f > before && f > max(cwnd, x.primary.cwnd)+x.primary.pmdcs()-1 {
					t.Fatalf("seed %d: %d octets in flight, cwnd %d", seed, f, cwnd)
				}
				check()
			}
			w.Run(time.Duration(rng.IntN(20)) * time.Millisecond)
			check()
		}
		w.Until("all acknowledged", time.Hour, func() bool { return x.Acked() == x.Sent() })
		if len(b.msgs) != int(x.Sent()) {
			t.Fatalf("seed %d: %d of %d", seed, len(b.msgs), x.Sent())
		}
	}
}

// A packet that the path does not take any more leaves in IP fragments; what has no number yet is
// cut smaller. SCTP-114, SCTP-115, SCTP-112, SCTP-166.
func TestSmallerPMTU(t *testing.T) {
	w, n, p := established(t, Config{Options: Options{NoSACKReserve: true}})
	var out []Datagram
	w.trace = func(_ *node, d Datagram) { out = append(out, d) }
	if m := p.a.MaxPayload(); m != 1452 { // as Linux has it
		t.Errorf("MaxPayload %d", m)
	}
	n.post(SendOptions{}, text(1452))
	n.post(SendOptions{Stream: 1}, text(6000))
	numbered := p.a.chunks.len()
	if len(out) != 3 || !out[0].DF {
		t.Fatalf("%d packets", len(out))
	}
	quote := header{p.dport, p.sport, p.own}.append(nil)[:8]
	n.e.ICMP(w.Now, ICMPError{Kind: ICMPTooBig, Src: addrB, Dst: addrA, MTU: 1180, Quote: quote})
	n.pump()
	n.wantEvent("a smaller path", EventMaxPayload)
	if m := p.a.MaxPayload(); m != 1180-headerLen-dataLen {
		t.Errorf("MaxPayload %d", m)
	}
	out = nil
	w.Run(1500 * time.Millisecond) // T3
	if len(out) != 1 || out[0].DF || len(out[0].Data) != headerLen+dataLen+1452 {
		t.Fatalf("the numbered chunk: %v", out)
	}
	out = nil
	for i := 0; p.a.chunks.len() > 0 && i < 100; i++ {
		p.ack(int(p.a.nextTSN-p.first()) - 1)
	}
	for _, d := range out {
		if len(d.Data) > 1180 || !d.DF {
			t.Errorf("a packet of %d octets, DF %t: %s", len(d.Data), d.DF, Describe(d.Data))
		}
	}
	if len(out) == 0 || numbered == 0 || p.a.Acked() != 2 {
		t.Error("the rest was not sent")
	}
	// The smallest of the confirmed paths counts, and each has its own.
	w, n, p = established(t, Config{MTU: func(a netip.Addr) int {
		if a == addrA2 {
			return 900
		}
		return 1480
	}})
	p.a.addPath(w.Now, addrA2, netip.Addr{}, 0, false)
	if m := p.a.MaxPayload(); m != 1480-headerLen-dataLen-sackReserve {
		t.Errorf("an address that is not confirmed counts: %d", m)
	}
	p.a.path(addrA2).confirmed = true
	if m := p.a.MaxPayload(); m != 900-headerLen-dataLen-sackReserve {
		t.Errorf("MaxPayload %d", m)
	}
	n.post(SendOptions{}, text(2000))
	n.want("cut for both", "len=852", "len=852 | DATA len=296")
}

// An association that sends and receives makes no garbage: neither a message nor a SACK costs an
// allocation once buffers have their size.
func TestNoAllocations(t *testing.T) {
	e1, err1 := NewEndpoint(Config{Rand: sctptest.Seeded(1)})
	e2, err2 := NewEndpoint(Config{Rand: sctptest.Seeded(2)})
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := e2.Listen(5043, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	a, err := e1.Dial(start, DialConfig{LocalPort: 1, Locals: []netip.Addr{addrA}, RemotePort: 5043,
		Remotes: []netip.Addr{addrB}})
	if err != nil {
		t.Fatal(err)
	}
	now := start
	var buf [64][]byte
	got := 0
	// Packets of each side in turn, as many as fit buf; messages are released at once.
	move := func(from, to *Endpoint) (any bool) {
		for i := range buf {
			d, ok := from.Output(now, buf[i])
			if !ok {
				break
			}
			buf[i] = d.Data
			any = true
			to.Input(now, Packet{Src: d.Src, Dst: d.Dst, Data: d.Data, Ref: noRef{}})
			for _, e := range []*Endpoint{from, to} {
				for {
					ev, ok := e.NextEvent()
					if !ok {
						break
					}
					if ev.Kind == EventMessage {
						got++
						ev.Msg.Release()
					}
				}
			}
		}
		return any
	}
	settle := func() {
		for move(e1, e2) || move(e2, e1) {
		}
	}
	settle()
	src := &pattern{}
	send := func() {
		for i := range 8 {
			*src = pattern{n: 100 + 400*i, seq: uint32(i)}
			if _, err := a.Send(now, SendOptions{Stream: uint16(i), Unordered: i%2 == 0}, src); err != nil {
				t.Fatal(err)
			}
		}
		settle()
		now = now.Add(10 * time.Millisecond)
		e1.Expire(now)
		e2.Expire(now)
	}
	for range 200 {
		send()
	}
	got = 0
	if allocs := testing.AllocsPerRun(200, send); allocs != 0 {
		t.Errorf("%v allocations for eight messages of %d chunks", allocs, 16)
	}
	if got < 8*200 {
		t.Errorf("%d messages arrived", got)
	}
}

type noRef struct{}

func (noRef) Hold()    {}
func (noRef) Release() {}

// Links that take more than a chunk's length can say, or less than IP must: chunks stay within
// both.
func TestOddMTU(t *testing.T) {
	for _, mtu := range []int{1 << 20, 1<<16 - 1, 65515, 0, -5, 100} {
		cfg := Config{MTU: fixedMTU(mtu), Options: Options{NoSACKReserve: true, SendBuffer: 1 << 20,
			RecvBuffer: 1 << 20, MaxBurst: 100}}
		w, a, b := pair(t, cfg, cfg)
		if m := a.last.MaxPayload(); m < 500 || m > 1<<16-1-dataLen {
			t.Errorf("MTU %d: MaxPayload %d", mtu, m)
		}
		a.post(SendOptions{}, text(200_000))
		w.Run(time.Minute)
		if len(b.msgs) != 1 || b.msgs[0] != text(200_000) {
			t.Errorf("MTU %d: %d messages", mtu, len(b.msgs))
		}
	}
}

// Drop gives up what has not been sent of one stream: others arrive whole and in order, there is
// room at once, and what is sent for that stream later has the next sequence numbers.
func TestDrop(t *testing.T) {
	rng := newSeededRand(3)
	for round := range 50 {
		w, a, b := pair(t, narrow(), narrow())
		var want []string
		took := 0
		send := func(stream uint16) {
			s := fmt.Sprintf("%d:%d %s", stream, took, text(1+rng.IntN(3000)))
			if a.last.Room() < len(s) {
				return
			}
			took++
			if _, err := a.last.Send(w.Now, SendOptions{Stream: stream}, stringSource(s)); err != nil {
				t.Fatal(err)
			}
			want = append(want, s)
		}
		for range 20 + rng.IntN(200) {
			send(uint16(rng.IntN(3)))
		}
		a.pump() // some go out; the rest waits for the window
		room, waits := a.last.Room(), a.last.queue.len()
		n := a.last.Drop(1)
		if n == 0 && waits > 10 || a.last.queue.len() != waits-n || n > 0 && a.last.Room() <= room {
			t.Fatalf("%d of %d dropped, room for %d, before %d", n, waits, a.last.Room(), room)
		}
		for i := len(want) - 1; n > 0; i-- {
			if strings.HasPrefix(want[i], "1:") {
				want = slices.Delete(want, i, i+1)
				n--
			}
		}
		for range 10 {
			send(uint16(rng.IntN(3)))
		}
		a.pump()
		w.Until(fmt.Sprint("all that is left of round ", round), time.Hour,
			func() bool { return len(b.msgs) >= len(want) && a.last.chunks.len() == 0 })
		for stream := range 3 {
			of := func(all []string) (some []string) {
				for _, s := range all {
					if strings.HasPrefix(s, fmt.Sprint(stream, ":")) {
						some = append(some, s)
					}
				}
				return some
			}
			if !slices.Equal(of(b.msgs), of(want)) {
				t.Fatalf("round %d: stream %d has other messages", round, stream)
			}
		}
		checkBooks(t, a.last)
		if a.last.Room() != min(a.last.opt.SendBuffer, leastSendLimit) {
			t.Fatalf("room for %d", a.last.Room())
		}
	}
}
