package ddpsctp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
	"github.com/vrnic/vrnic/sctpddp"
)

const port = 7174

var (
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
	o := sctp.SendOptions{Stream: stream, PPID: ppid, Unordered: true,
		Immediate: ppid == sctpddp.PPIDControl}
	id, err := a.Association.Send(a.n.w.Now, o, src)
	if errors.Is(err, sctp.ErrNoRoom) {
		return 0, nil
	}
	return id, err
}

func (a *assoc) Shutdown() { a.Association.Shutdown(a.n.w.Now) }

// ddp are the options of an endpoint for DDP.
func ddp() *sctp.Options {
	code := uint32(sctpddp.IndicationDDP)
	return &sctp.Options{
		Adaptation: &code,
		AdmitAdaptation: func(code uint32, present bool) bool {
			return sctpddp.CheckIndication(code, present) == nil
		},
	}
}

// A world is a network of two nodes.
type world struct {
	*sctptest.World[*sctp.Datagram]
	nodes []*node
	sent  []sctp.Datagram
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

func newWorld(t *testing.T, mtu int) (w *world, a, b *node) {
	return newWorldAt(t, [2]netip.Addr{addrA, addrB}, mtu)
}

func newWorldAt(t *testing.T, at [2]netip.Addr, mtu int) (w *world, a, b *node) {
	w = &world{}
	w.World = sctptest.NewWorld(t, w.deliver)
	w.Show = w.show
	for i, addr := range at {
		cfg := sctp.Config{Rand: sctptest.Seeded(uint64(i)), Options: *ddp()}
		if mtu != 0 {
			cfg.MTU = func(netip.Addr) int { return mtu }
		}
		e, err := sctp.NewEndpoint(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{w: w, addr: addr, e: e, cfg: sctpddp.Config{Initiator: i == 0, Backlog: 64}}
		w.nodes, w.Timers = append(w.nodes, n), append(w.Timers, n)
	}
	return w, w.nodes[0], w.nodes[1]
}

// dial begins an association from a to b.
func (n *node) dial(to *node, o *sctp.Options) {
	n.w.T.Helper()
	_, err := n.e.Dial(n.w.Now, sctp.DialConfig{LocalPort: 4000, Locals: []netip.Addr{n.addr},
		RemotePort: port, Remotes: []netip.Addr{to.addr}, Options: o})
	if err != nil {
		n.w.T.Fatal(err)
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
	w.Until("an association", time.Minute, func() bool { return a.mux != nil && b.mux != nil })
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
			n.mux.Step(w.Now)
		}
		for n.step != nil && n.step() {
			busy = true
		}
		for {
			d, ok := n.e.Output(w.Now, nil)
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
		n.mux, n.err = sctpddp.NewMux(n.assoc, n.cfg, n.w.Now)
	case sctp.EventMessage:
		m := ev.Msg
		b, ok := m.Bytes()
		if !ok {
			n.scratch = m.Append(n.scratch[:0])
			b = n.scratch
			n.frags++
		}
		n.mux.Input(n.w.Now, sctpddp.Message{Stream: m.Stream, PPID: m.PPID, Unordered: m.Unordered,
			Missing: m.Missing, Data: b})
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
	d.Data = slices.Clone(d.Data) // which Fate may change
	w.Send(&d)
}

func (w *world) deliver(d *sctp.Datagram) {
	for _, n := range w.nodes {
		if n.addr == d.Dst || n.second == d.Dst {
			n.e.Input(w.Now, sctp.Packet{Src: d.Src, Dst: d.Dst, Data: slices.Clone(d.Data)})
			n.pump()
		}
	}
}

func (w *world) show() string {
	var s strings.Builder
	for _, n := range w.nodes {
		fmt.Fprintf(&s, "%v: down %t, %v, %v\n", n.addr, n.down, n.err, n.mux)
	}
	return s.String()
}

// Deadline is that of SCTP, or of DDP on it.
func (n *node) Deadline() (at time.Time, ok bool) {
	at, ok = n.e.Deadline()
	if n.mux != nil {
		if t, has := n.mux.Deadline(); has && (!ok || t.Before(at)) {
			return t, true
		}
	}
	return at, ok
}

func (n *node) Expire(now time.Time) {
	if t, ok := n.e.Deadline(); ok && !t.After(now) {
		n.e.Expire(now)
	}
	n.pump()
}

// dataChunks are the DATA chunks of all that was sent, or of what one node has sent.
func (w *world) dataChunks(from *node) (out []sctptest.Chunk) {
	for _, d := range w.sent {
		if from != nil && d.Src != from.addr {
			continue
		}
		for _, c := range sctptest.Chunks(d.Data) {
			if c.Type() == 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// open opens n sessions, and answers them.
func (w *world) open(n int) (xs, ys []*sctpddp.Session) {
	w.T.Helper()
	a, b := w.nodes[0], w.nodes[1]
	for range n {
		x, err := a.mux.Open(iwarp.StartConfig{IRD: 4, ORD: 4}, []byte("hello"))
		if err != nil {
			w.T.Fatal(err)
		}
		xs = append(xs, x)
	}
	a.pump()
	w.Until("requests", time.Minute, func() bool {
		if y, ok := b.mux.Request(); ok {
			if _, err := y.Accept(iwarp.StartConfig{IRD: 4, ORD: 4}, nil); err != nil {
				w.T.Fatal(err)
			}
			ys = append(ys, y)
			b.pump()
		}
		return len(ys) == n
	})
	w.Until("answers", time.Minute, func() bool {
		return !slices.ContainsFunc(xs,
			func(s *sctpddp.Session) bool { return s.State() != sctpddp.StateOpen })
	})
	// The order of requests is that of arrival.
	slices.SortFunc(ys, func(p, q *sctpddp.Session) int { return int(p.Stream()) - int(q.Stream()) })
	slices.SortFunc(xs, func(p, q *sctpddp.Session) int { return int(p.Stream()) - int(q.Stream()) })
	return xs, ys
}
