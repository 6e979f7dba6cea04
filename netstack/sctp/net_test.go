package sctp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// Tests run on a world: nodes on a network in memory, and a clock that jumps to whatever comes
// next.

var start = sctptest.Start

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	addrA  = addr("10.1.0.1")
	addrB  = addr("10.1.0.2")
	addrA2 = addr("10.2.0.1")
	addrB2 = addr("10.2.0.2")
)

// pairs are addresses of IPv4 and of IPv6 that two nodes may have.
var pairs = [][2]netip.Addr{{addrA, addrB}, {addr("fd01::1"), addr("fd01::2")}}

type world struct {
	*sctptest.World[Datagram]
	nodes []*node
	// trace gets each packet that is sent.
	trace func(from *node, d Datagram)
	refs  int  // references that are held
	quiet bool // packets are neither described nor checked: there are too many
}

func newWorld(t testing.TB) *world {
	w := &world{}
	w.World = sctptest.NewWorld(t, w.deliver)
	return w
}

// A node is an Endpoint and its user.
type node struct {
	w      *world
	name   string
	e      *Endpoint
	addrs  []netip.Addr
	events []Event
	last   *Association // of the last EventUp
	sent   []string     // packets, described, since it was cleared
	onMsg  func(*Message)
	keep   bool // messages are not released
	held   []*Message
	msgs   []string // delivered messages: what they hold
	buf    []byte
}

func (w *world) node(name string, cfg Config, addrs ...netip.Addr) *node {
	w.T.Helper()
	if cfg.Rand == nil {
		cfg.Rand = sctptest.Seeded(uint64(len(w.nodes)) + 1)
	}
	e, err := NewEndpoint(cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	n := &node{w: w, name: name, e: e, addrs: addrs}
	w.nodes, w.Timers = append(w.nodes, n), append(w.Timers, n)
	return n
}

func (n *node) Deadline() (time.Time, bool) { return n.e.Deadline() }

func (n *node) Expire(now time.Time) {
	n.e.Expire(now)
	n.pump()
}

// memory is where a packet lies: it is spoilt when nobody holds it any more.
type memory struct {
	w *world
	b []byte
	n int
}

func (m *memory) Hold() { m.n++; m.w.refs++ }
func (m *memory) Release() {
	m.w.refs--
	if m.n--; m.n < 0 {
		m.w.T.Error("a packet was released more often than held")
	}
	if m.n == 0 {
		clear(m.b)
	}
}

// deliver gives a packet to the node that has its address.
func (w *world) deliver(d Datagram) {
	for _, n := range w.nodes {
		if slices.Contains(n.addrs, d.Dst) {
			n.input(d)
			return
		}
	}
}

func (n *node) input(d Datagram) {
	m := &memory{n.w, slices.Clone(d.Data), 0}
	m.Hold()
	n.e.Input(n.w.Now, Packet{Src: d.Src, Dst: d.Dst, Data: m.b, Ref: m, Encap: d.Encap})
	m.Release()
	n.pump()
}

// pump takes packets and events out of a node.
func (n *node) pump() {
	w := n.w
	for {
		busy := false
		for {
			d, ok := n.e.Output(w.Now, n.buf)
			if !ok {
				break
			}
			busy = true
			n.buf = d.Data
			d.Data = slices.Clone(d.Data)
			w.send(n, d)
		}
		for {
			ev, ok := n.e.NextEvent()
			if !ok {
				break
			}
			busy = true
			n.take(ev)
		}
		if !busy {
			return
		}
	}
}

func (n *node) take(ev Event) {
	switch ev.Kind {
	case EventMessage:
		if n.onMsg != nil {
			n.onMsg(ev.Msg)
		} else {
			n.msgs = append(n.msgs, string(ev.Msg.Append(nil)))
		}
		if n.keep {
			n.held = append(n.held, ev.Msg)
		} else {
			ev.Msg.Release()
		}
		return
	case EventUp:
		n.last = ev.Assoc
	}
	n.events = append(n.events, ev)
}

func (w *world) send(from *node, d Datagram) {
	if from != nil {
		if !w.quiet {
			from.sent = append(from.sent, Describe(d.Data))
		}
	}
	if w.trace != nil {
		w.trace(from, d)
	}
	if !w.quiet && (!GoodChecksum(d.Data) || len(d.Data)%4 != 0) {
		w.T.Errorf("a bad packet is sent: %s", Describe(d.Data))
	}
	w.Send(d)
}

// pair is two nodes that have an association on port 5043 of the second.
func pair(t testing.TB, ca, cb Config) (w *world, a, b *node) {
	t.Helper()
	return pairAt(t, pairs[0], ca, cb)
}

func pairAt(t testing.TB, at [2]netip.Addr, ca, cb Config) (w *world, a, b *node) {
	t.Helper()
	w = newWorld(t)
	a, b = w.node("a", ca, at[0]), w.node("b", cb, at[1])
	w.connect(a, b)
	return w, a, b
}

func (w *world) connect(a, b *node) {
	w.T.Helper()
	var locals []netip.Addr
	if len(b.addrs) > 1 {
		locals = b.addrs
	}
	if err := b.e.Listen(5043, ListenConfig{Locals: locals}); err != nil {
		w.T.Fatal(err)
	}
	if _, err := a.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: a.addrs, RemotePort: 5043,
		Remotes: b.addrs[:1]}); err != nil {
		w.T.Fatal(err)
	}
	a.pump()
	w.Until("established on both sides", time.Minute, func() bool {
		return a.last != nil && b.last != nil
	})
	a.sent, b.sent = nil, nil
}

// post sends a message.
func (n *node) post(o SendOptions, data string) uint64 {
	n.w.T.Helper()
	id, err := n.last.Send(n.w.Now, o, strings.NewReader(data))
	if err != nil {
		n.w.T.Fatalf("%s: send: %v", n.name, err)
	}
	n.pump()
	return id
}

// want checks the packets that a node has sent since the last call: each must contain the text
// given.
func (n *node) want(what string, texts ...string) {
	n.w.T.Helper()
	ok := len(texts) == len(n.sent)
	for i := 0; ok && i < len(texts); i++ {
		ok = matches(n.sent[i], texts[i])
	}
	if !ok {
		n.w.T.Fatalf("%s: %s sent\n\t%s\nwant\n\t%s", what, n.name, strings.Join(n.sent, "\n\t"),
			strings.Join(texts, "\n\t"))
	}
	n.sent = nil
}

// matches says whether the words of text stand in s, in order, and those behind a ! do not. A _ in
// a word is a space.
func matches(s, text string) bool {
	all := s
	for _, w := range strings.Fields(text) {
		w = strings.ReplaceAll(w, "_", " ")
		if not, ok := strings.CutPrefix(w, "!"); ok {
			if strings.Contains(all, not) {
				return false
			}
			continue
		}
		i := strings.Index(s, w)
		if i < 0 {
			return false
		}
		s = s[i+len(w):]
	}
	return true
}

// wantEvent looks for an event of a kind, and drops those up to it.
func (n *node) wantEvent(what string, k EventKind) Event {
	n.w.T.Helper()
	for i, ev := range n.events {
		if ev.Kind == k {
			n.events = n.events[i+1:]
			return ev
		}
	}
	n.w.T.Fatalf("%s: %s has no event %d, but %+v", what, n.name, k, n.events)
	return Event{}
}

func (n *node) noEvent(what string, k EventKind) {
	n.w.T.Helper()
	if slices.ContainsFunc(n.events, func(ev Event) bool { return ev.Kind == k }) {
		n.w.T.Fatalf("%s: %s has event %d: %+v", what, n.name, k, n.events)
	}
}

// A rawPeer is the packet-level peer of a node: it sends what it is told to.
type rawPeer struct {
	w            *world
	n            *node
	a            *Association // of n with this peer
	src, dst     netip.Addr
	sport, dport uint16
	tag          uint32 // of n's association: what packets to it carry
	own          uint32 // ours
	tsn          TSN    // our first
	firstTSN     *TSN   // the node's first
}

// raw sends chunks, complete ones, with a tag.
func (p *rawPeer) raw(tag uint32, chunks ...[]byte) {
	b := header{p.sport, p.dport, tag}.append(nil)
	b = append(b, bytes.Join(chunks, nil)...)
	finish(b)
	p.n.input(Datagram{Src: p.src, Dst: p.dst, Data: b})
}

func (p *rawPeer) send(chunks ...[]byte) { p.raw(p.tag, chunks...) }

// mk makes a chunk.
func mk(t ChunkType, flags byte, value ...byte) []byte { return appendChunk(nil, t, flags, value) }

func mkParams(t ChunkType, params ...[]byte) []byte {
	return appendChunk(nil, t, 0, joinParams(params))
}

func joinParams(params [][]byte) (b []byte) {
	for _, p := range params {
		b = append(appendPadding(b, 0), p...)
	}
	return b
}

func mkData(flags byte, tsn TSN, stream, ssn uint16, ppid uint32, data string) []byte {
	b := appendDataHeader(nil, flags, tsn, stream, ssn, ppid, len(data))
	return appendPadding(append(b, data...), 0)
}

func mkSack(cum TSN, rwnd uint32, gaps ...gap) []byte {
	return appendSack(nil, cum, rwnd, gaps, nil)
}

func mkInit(t ChunkType, tag, rwnd uint32, out, in uint16, tsn TSN, params ...[]byte) []byte {
	b := appendSetupHeader(nil, t, tag, rwnd, out, in, tsn)
	return endChunk(append(b, joinParams(params)...), 0)
}

func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

const (
	peerTag = 0x01020304
	peerTSN = TSN(1000)
)

// lonely is a node that listens, and a packet-level peer beside it.
func lonely(t testing.TB, cfg Config) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w = newWorld(t)
	n = w.node("n", cfg, addrB)
	if err := n.e.Listen(5043, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	return w, n, &rawPeer{w: w, n: n, src: addrA, dst: addrB, sport: 4000, dport: 5043, own: peerTag,
		tsn: peerTSN}
}

// capturePackets collects what is sent from now on.
func capturePackets(w *world) *[][]byte {
	var all [][]byte
	w.trace = func(_ *node, d Datagram) { all = append(all, d.Data) }
	return &all
}

// handshake sets up an association by hand.
func (p *rawPeer) handshake(rwnd uint32, params ...[]byte) {
	p.w.T.Helper()
	cookie := p.init(rwnd, params...)
	p.send(mk(chunkCookieEcho, 0, cookie...))
	p.a = p.n.last
	if p.a == nil || p.a.State() != StateEstablished {
		p.w.T.Fatalf("not established: %v", p.n.sent)
	}
	p.n.sent, p.n.events = nil, nil
	p.firstTSN = ptr(p.a.nextTSN)
}

// init sends an INIT and returns the cookie of the answer.
func (p *rawPeer) init(rwnd uint32, params ...[]byte) (cookie []byte) {
	p.w.T.Helper()
	old := p.w.trace
	all := capturePackets(p.w)
	p.raw(0, mkInit(chunkInit, p.own, rwnd, 10, 10, p.tsn, params...))
	p.w.trace = old
	var s setup
	if len(*all) == 1 {
		if c, _, ok := nextChunk((*all)[0][headerLen:]); ok && c.typ() == chunkInitAck &&
			parseSetup(c, &s) {
			p.tag = s.tag
			return s.cookie
		}
	}
	p.w.T.Fatalf("the answer to an INIT is %v", p.n.sent)
	return nil
}

func established(t testing.TB, cfg Config) (w *world, n *node, p *rawPeer) {
	t.Helper()
	w, n, p = lonely(t, cfg)
	p.handshake(100_000)
	return w, n, p
}

func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return string(b)
}

func ptr[T any](v T) *T { return &v }

func newSeededRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

func stringSource(s string) *strings.Reader { return strings.NewReader(s) }
