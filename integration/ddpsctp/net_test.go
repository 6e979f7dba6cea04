package ddpsctp

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/sctpddp"
)

const port = 7174

var (
	start = time.Unix(1_000_000_000, 0)
	addrA = netip.MustParseAddr("10.1.0.1")
	addrB = netip.MustParseAddr("10.1.0.2")
)

// An assoc is an SCTP association as sctpddp wants it.
type assoc struct {
	*sctp.Association
	n *node
}

var _ sctpddp.Association = (*assoc)(nil)

func (a *assoc) Send(stream uint16, ppid uint32, src iwarp.Source) (uint64, error) {
	o := sctp.SendOptions{Stream: stream, PPID: ppid, Unordered: true, Immediate: ppid == sctpddp.PPIDControl}
	id, err := a.Association.Send(a.n.w.now, o, src)
	if errors.Is(err, sctp.ErrNoRoom) {
		return 0, nil
	}
	return id, err
}

func (a *assoc) Shutdown() { a.Association.Shutdown(a.n.w.now) }

// ddp are the options of an endpoint for DDP.
func ddp() *sctp.Options {
	code := uint32(sctpddp.IndicationDDP)
	return &sctp.Options{
		Adaptation:      &code,
		AdmitAdaptation: func(code uint32, present bool) bool { return sctpddp.CheckIndication(code, present) == nil },
	}
}

// A world is a network of two nodes.
type world struct {
	t     *testing.T
	now   time.Time
	nodes []*node
	wires []flight // by time
	delay time.Duration
	// fate says when copies of a packet arrive, and may change it; nil: one, after delay.
	fate func(d *sctp.Datagram) []time.Duration
	sent []sctp.Datagram
}

type flight struct {
	at time.Time
	d  sctp.Datagram
}

// A node is an SCTP endpoint, with DDP on the one association that it has.
type node struct {
	w       *world
	addr    netip.Addr
	second  netip.Addr // another one, maybe
	e       *sctp.Endpoint
	cfg     sctpddp.Config
	assoc   *assoc
	mux     *sctpddp.Mux
	err     error // of the association
	down    bool
	scratch []byte
	frags   int // messages that came in several chunks
	step    func() bool
}

// seeded repeats.
type seeded struct{ *rand.ChaCha8 }

func newWorld(t *testing.T, mtu int) (w *world, a, b *node) {
	w = &world{t: t, now: start, delay: time.Millisecond}
	for i, addr := range []netip.Addr{addrA, addrB} {
		var seed [32]byte
		seed[0] = byte(i)
		cfg := sctp.Config{Rand: seeded{rand.NewChaCha8(seed)}, Options: *ddp()}
		if mtu != 0 {
			cfg.MTU = func(netip.Addr) int { return mtu }
		}
		e, err := sctp.NewEndpoint(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.nodes = append(w.nodes, &node{w: w, addr: addr, e: e, cfg: sctpddp.Config{Initiator: i == 0, Backlog: 64}})
	}
	return w, w.nodes[0], w.nodes[1]
}

// dial begins an association from a to b.
func (n *node) dial(to *node, o *sctp.Options) {
	n.w.t.Helper()
	_, err := n.e.Dial(n.w.now, sctp.DialConfig{LocalPort: 4000, Locals: []netip.Addr{n.addr}, RemotePort: port, Remotes: []netip.Addr{to.addr}, Options: o})
	if err != nil {
		n.w.t.Fatal(err)
	}
	n.pump()
}

// connect sets up DDP between the nodes of a world.
func connect(t *testing.T, w *world) {
	t.Helper()
	a, b := w.nodes[0], w.nodes[1]
	if err := b.e.Listen(port, sctp.ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	a.dial(b, nil)
	w.until("an association", time.Minute, func() bool { return a.mux != nil && b.mux != nil })
}

// pump takes packets and events out of n.
func (n *node) pump() {
	w := n.w
	for {
		busy := false
		for {
			ev, ok := n.e.NextEvent()
			if !ok {
				break
			}
			busy = true
			n.take(ev)
		}
		if n.mux != nil && !n.down {
			n.mux.Sessions(func(s *sctpddp.Session) { s.Step() })
			n.mux.Step(w.now)
		}
		for n.step != nil && n.step() {
			busy = true
		}
		for {
			d, ok := n.e.Output(w.now, nil)
			if !ok {
				break
			}
			busy = true
			w.send(d)
		}
		if !busy {
			return
		}
	}
}

func (n *node) take(ev sctp.Event) {
	switch ev.Kind {
	case sctp.EventUp:
		n.assoc = &assoc{ev.Assoc, n}
		n.mux, n.err = sctpddp.NewMux(n.assoc, n.cfg, n.w.now)
	case sctp.EventMessage:
		m := ev.Msg
		b, ok := m.Bytes()
		if !ok {
			n.scratch = m.Append(n.scratch[:0])
			b = n.scratch
			n.frags++
		}
		n.mux.Input(n.w.now, sctpddp.Message{Stream: m.Stream, PPID: m.PPID, Unordered: m.Unordered, Missing: m.Missing, Data: b})
		m.Release()
	case sctp.EventDown:
		n.down = true
		if n.err = ev.Err; n.mux != nil {
			kind := sctpddp.LossFailure
			var pa *sctp.PeerAbort
			var la *sctp.LocalAbort
			switch {
			case ev.Err == nil:
				kind = sctpddp.LossShutdown
			case errors.As(ev.Err, &pa), errors.As(ev.Err, &la):
				kind = sctpddp.LossAbort
			case errors.Is(ev.Err, sctp.ErrRestarted):
				kind = sctpddp.LossRestart
			}
			n.mux.Lost(kind, ev.Err)
		}
	}
}

func (w *world) send(d sctp.Datagram) {
	d.Data = slices.Clone(d.Data)
	w.sent = append(w.sent, d)
	times := []time.Duration{w.delay}
	if w.fate != nil {
		d.Data = slices.Clone(d.Data)
		times = w.fate(&d)
	}
	for _, t := range times {
		f := flight{w.now.Add(t), d}
		i, _ := slices.BinarySearchFunc(w.wires, f, func(x, y flight) int {
			if x.at.After(y.at) {
				return 1
			}
			return -1 // behind those of the same time
		})
		w.wires = slices.Insert(w.wires, i, f)
	}
}

// tick goes to whatever comes next, but not beyond limit.
func (w *world) tick(limit time.Time) bool {
	at := limit.Add(1)
	if len(w.wires) > 0 {
		at = w.wires[0].at
	}
	for _, n := range w.nodes {
		if t, ok := n.e.Deadline(); ok && t.Before(at) {
			at = t
		}
		if n.mux != nil {
			if t, ok := n.mux.Deadline(); ok && t.Before(at) {
				at = t
			}
		}
	}
	if at.After(limit) {
		w.now = limit
		return false
	}
	if at.After(w.now) {
		w.now = at
	}
	if len(w.wires) > 0 && !w.wires[0].at.After(w.now) {
		d := w.wires[0].d
		w.wires = w.wires[1:]
		for _, n := range w.nodes {
			if n.addr == d.Dst || n.second == d.Dst {
				n.e.Input(w.now, sctp.Packet{Src: d.Src, Dst: d.Dst, Data: slices.Clone(d.Data)})
				n.pump()
			}
		}
		return true
	}
	for _, n := range w.nodes {
		if t, ok := n.e.Deadline(); ok && !t.After(w.now) {
			n.e.Expire(w.now)
		}
		n.pump()
	}
	return true
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	for limit := w.now.Add(d); w.tick(limit); {
	}
}

// until runs until cond holds.
func (w *world) until(what string, d time.Duration, cond func() bool) {
	w.t.Helper()
	for limit := w.now.Add(d); !cond(); {
		if !w.tick(limit) && !cond() {
			for _, n := range w.nodes {
				w.t.Logf("%v: down %t, %v, %v", n.addr, n.down, n.err, n.mux)
			}
			w.t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// A chunk of a packet.
type chunk struct {
	typ, flags byte
	body       []byte // behind the chunk header
}

func (c chunk) ppid() uint32 { return binary.BigEndian.Uint32(c.body[8:]) }

// chunks takes a packet apart.
func chunks(b []byte) (out []chunk) {
	for b = b[12:]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint16(b[2:]))
		out = append(out, chunk{b[0], b[1], b[4:n]})
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}

// dataChunks are the DATA chunks of all that was sent, or of what one node has sent.
func (w *world) dataChunks(from *node) (out []chunk) {
	for _, d := range w.sent {
		if from != nil && d.Src != from.addr {
			continue
		}
		for _, c := range chunks(d.Data) {
			if c.typ == 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// seal makes the checksum of a packet right again.
func seal(b []byte) {
	clear(b[8:12])
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// open opens n sessions, and answers them.
func (w *world) open(n int) (xs, ys []*sctpddp.Session) {
	w.t.Helper()
	a, b := w.nodes[0], w.nodes[1]
	for range n {
		x, err := a.mux.Open(iwarp.StartConfig{IRD: 4, ORD: 4}, []byte("hello"))
		if err != nil {
			w.t.Fatal(err)
		}
		xs = append(xs, x)
	}
	a.pump()
	w.until("requests", time.Minute, func() bool {
		if y, ok := b.mux.Request(); ok {
			if _, err := y.Accept(iwarp.StartConfig{IRD: 4, ORD: 4}, nil); err != nil {
				w.t.Fatal(err)
			}
			ys = append(ys, y)
			b.pump()
		}
		return len(ys) == n
	})
	w.until("answers", time.Minute, func() bool {
		return !slices.ContainsFunc(xs, func(s *sctpddp.Session) bool { return s.State() != sctpddp.StateOpen })
	})
	// The order of requests is that of arrival.
	slices.SortFunc(ys, func(p, q *sctpddp.Session) int { return int(p.Stream()) - int(q.Stream()) })
	slices.SortFunc(xs, func(p, q *sctpddp.Session) int { return int(p.Stream()) - int(q.Stream()) })
	return xs, ys
}
