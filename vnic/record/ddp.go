package record

import (
	"io"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
)

// DDPOf says which Session of a sctpddp.Mux it is.
type DDPOf struct {
	Streams uint64 `json:"streams"` // the Subject that is the Mux
	Number  uint64 `json:"number"`  // of those that it has given out, from 1 on
	Stream  uint16 `json:"stream"`
}

// A DDP records the calls of a sctpddp.Mux, from its beginning on, or of a Session that this has
// given out, until it is given back: it is the Journal of the one or the other. Each has a Tape of
// its own, as it may have an owner of its own.
type DDP struct {
	t     *Tape
	on    bool // in this call
	call  sctpddp.CallKind
	state sctpddp.State // of a Session, as was told last

	// Of a Mux.
	open  func(of *DDPOf) *Tape // for a Session; nil: there is none
	given uint64
	fresh []*DDP // in this call

	number uint64 // of a Session
}

// NewDDP records the Mux that is made with it, if there is room.
func NewDDP(t *Tape) *DDP {
	d := newDDP(t)
	d.open = func(of *DDPOf) *Tape {
		of.Streams = t.id
		s := &Tape{r: t.r, about: t.about}
		s.about.Kind, s.about.DDP = DDPSession, of
		if !s.offer() {
			return nil
		}
		return s
	}
	t.offer()
	return d
}

func newDDP(t *Tape) *DDP {
	t.about.Kind = DDPStreams
	return &DDP{t: t}
}

// Belongs says of which queue pair a Session is.
func (d *DDP) Belongs(qpn uint32) { d.t.belongs(qpn) }

// lose says that nothing more is recorded.
func (d *DDP) lose() {
	d.t.dead = true
	d.t.r.lost(d.t.id)
}

// Around implements sctpddp.Journal.
func (d *DDP) Around(a sctpddp.Association, b sctpddp.Budget) (sctpddp.Association,
	sctpddp.Budget) {
	if k, ok := a.(*ddpAsked); ok {
		a, b = k.a, k.b
	}
	k := &ddpAsked{a, b, d}
	return k, k
}

// Begin implements sctpddp.Journal.
func (d *DDP) Begin(c *sctpddp.Call) {
	var number uint64
	if c.Kind == sctpddp.CallRelease {
		number = d.takeBack(c.Asked)
	}
	if d.on = !d.t.off(); !d.on {
		return
	}
	d.call = c.Kind
	now := uint64(c.Now.Sub(d.t.r.began))
	var octets []byte
	var text string
	var args []uint64
	switch c.Kind {
	case sctpddp.CallNew:
		text, args = asText(c.Config), []uint64{now}
	case sctpddp.CallOpen, sctpddp.CallAccept:
		text, octets = asText(c.Start), c.PrivateData
	case sctpddp.CallOpenOn:
		text, octets, args = asText(c.Start), c.PrivateData, []uint64{uint64(c.Stream)}
	case sctpddp.CallReject:
		octets = c.PrivateData
	case sctpddp.CallMuxInput, sctpddp.CallInput:
		m := c.Message
		octets = m.Data
		args = []uint64{uint64(m.Stream), uint64(m.PPID), uint64(max(m.Missing, 0)), bit(m.Unordered)}
		if c.Kind == sctpddp.CallMuxInput {
			args = append([]uint64{now}, args...)
		}
	case sctpddp.CallRelease:
		args = []uint64{now, number, uint64(c.Session.Stream())}
	case sctpddp.CallMuxStep:
		args = []uint64{now}
	case sctpddp.CallFailNegotiation:
		text, args = textOf(c.Err), []uint64{codeOf(c.Err)}
	case sctpddp.CallLost:
		text, args = textOf(c.Err), []uint64{uint64(c.Loss), codeOf(c.Err)}
	case sctpddp.CallAttach:
		c.Sink = &ddpSink{c.Sink, d}
	case sctpddp.CallWriteFrom:
		c.Source = &ddpSource{c.Source, d, false}
	default: // they have none
	}
	d.t.call(opDDP+Op(c.Kind), octets, text, args...)
}

func (d *DDP) step(op Op, octets []byte, text string, args ...uint64) {
	if d.on {
		d.t.step(op, octets, text, args...)
	}
}

// Given implements sctpddp.Journal.
func (d *DDP) Given(s *sctpddp.Session, a sctpddp.Association) sctpddp.Journal {
	k := a.(*ddpAsked)
	k.d = &DDP{} // which is never on
	if !d.on {
		return nil
	}
	d.given++
	of, text := &DDPOf{Number: d.given, Stream: s.Stream()}, ""
	if r, ok := s.Request(); ok {
		text = asText(&r)
	}
	t := d.open(of)
	d.step(opGiven, nil, text, d.given, uint64(of.Stream), uint64(s.State()), bit(t != nil))
	if t == nil {
		return nil
	}
	k.d = &DDP{t: t, number: d.given, state: s.State()}
	d.fresh = append(d.fresh, k.d)
	return k.d
}

// takeBack is for what is given back: its number. What has become of one that was not recorded
// until then is not known, so that the Mux is not any more.
func (d *DDP) takeBack(a sctpddp.Association) uint64 {
	k := a.(*ddpAsked)
	s := k.d
	if k.d = d; (s.t == nil || s.t.dead) && !d.t.off() {
		d.lose()
	}
	return s.number
}

// End implements sctpddp.Journal.
func (d *DDP) End(r *sctpddp.Result) (more bool) {
	if !d.on {
		return false
	}
	if e := r.Event; e != nil {
		d.step(opDDPEvent, e.PrivateData, textOf(e.Err), uint64(e.Kind), codeOf(e.Err))
	}
	if s := r.Session; s != nil && s.State() != d.state {
		d.state = s.State()
		d.step(opDDPState, nil, d.state.String(), uint64(d.state))
		if d.state == sctpddp.StateOpen {
			p := s.Params()
			d.step(opAgreed, nil, asText(&p))
		}
	}
	if d.on = false; r.Idle {
		d.t.drop()
		return true
	}
	d.t.done(uint64(r.N), nil, r.Err)
	if d.t.dead { // nobody can tell these
		for _, s := range d.fresh {
			s.lose()
		}
	}
	d.fresh = nil
	return !d.t.off() // nobody asks again: if so, it keeps no memory
}

// A ddpAsked is what a Mux, or one of its Sessions, asks: what that is, and what it is answered, is
// recorded.
type ddpAsked struct {
	a sctpddp.Association
	b sctpddp.Budget
	d *DDP // of who asks now: of a Session that is not given out it is the Mux
}

func (k *ddpAsked) Send(stream uint16, ppid uint32, src iwarp.Source) (id uint64, err error) {
	if !k.d.on {
		return k.a.Send(stream, ppid, src)
	}
	r := &ddpReads{Source: src}
	id, err = k.a.Send(stream, ppid, r)
	if b := r.b[min(ssnLen, len(r.b)):]; k.d.call == sctpddp.CallWriteFrom && len(b) > 0 &&
		ppid == sctpddp.PPIDSegment {
		k.d.step(opSource, b, "")
	}
	k.d.step(opDDPSend, r.b, textOf(err), uint64(stream), uint64(ppid), id, codeOf(err))
	return id, err
}

// ssnLen is the length of a DDP-SSN, with which each message begins.
const ssnLen = 2

// ddpReads has the octets that were read of a Source.
type ddpReads struct {
	iwarp.Source
	b []byte
}

func (r *ddpReads) Read(p []byte) (n int, err error) {
	n, err = r.Source.Read(p)
	r.b = append(r.b, p[:n]...)
	return n, err
}

func (k *ddpAsked) Drop(stream uint16) int {
	n := k.a.Drop(stream)
	k.d.step(opDDPDrop, nil, "", uint64(stream), uint64(n))
	return n
}

func (k *ddpAsked) Acked() uint64 {
	n := k.a.Acked()
	k.d.step(opDDPAcked, nil, "", n)
	return n
}

func (k *ddpAsked) MaxPayload() int {
	n := k.a.MaxPayload()
	k.d.step(opMaxPayload, nil, "", uint64(max(n, 0)))
	return n
}

func (k *ddpAsked) Streams() (out, in int) {
	out, in = k.a.Streams()
	k.d.step(opStreams, nil, "", uint64(max(out, 0)), uint64(max(in, 0)))
	return out, in
}

func (k *ddpAsked) PeerAdaptation() (code uint32, present bool) {
	code, present = k.a.PeerAdaptation()
	k.d.step(opAdaptation, nil, "", uint64(code), bit(present))
	return code, present
}

func (k *ddpAsked) Shutdown() {
	k.a.Shutdown()
	k.d.step(opDDPShutdown, nil, "")
}

func (k *ddpAsked) Take(n int) bool {
	ok := k.b.Take(n)
	k.d.step(opTake, nil, "", uint64(n), bit(ok))
	return ok
}

func (k *ddpAsked) Give(n int) { k.b.Give(n) } // which asks nothing

func (k *ddpAsked) Scarce() bool {
	yes := k.b.Scarce()
	k.d.step(opScarce, nil, "", bit(yes))
	return yes
}

func (k *ddpAsked) Ask(more int) { k.b.Ask(more) }

func (k *ddpAsked) Asked() int {
	n := k.b.Asked()
	k.d.step(opAsked, nil, "", uint64(max(n, 0)))
	return n
}

// A ddpSink is the Sink of a Session: what its own is asked is recorded.
type ddpSink struct {
	to sctpddp.Sink
	d  *DDP
}

func (k *ddpSink) Ahead(seg []byte) (keep int) {
	keep = k.to.Ahead(seg)
	k.d.step(opDDPAhead, seg, "", uint64(max(keep, 0)))
	return keep
}

func (k *ddpSink) Segment(seg []byte, size int) error {
	err := k.to.Segment(seg, size)
	k.d.step(opDDPSegment, seg, textOf(err), uint64(size), codeOf(err))
	return err
}

func (k *ddpSink) Fail(c iwarp.TermCode, why error) {
	k.to.Fail(c, why)
	k.d.step(opDDPFail, nil, why.Error(), codeOf(&iwarp.LocalError{Cause: c}))
}

// A ddpSource is what WriteFrom is given: how long it says first that it is is recorded. What was
// read of it ddpAsked has.
type ddpSource struct {
	iwarp.Source
	d    *DDP
	said bool
}

func (s *ddpSource) Len() int {
	n := s.Source.Len()
	if !s.said {
		s.said = true
		s.d.step(opSourceLen, nil, "", uint64(max(n, 0)))
	}
	return n
}

// A ddpStreams is what those share who play a Mux and its Sessions: it is the Association, Budget
// and Sink of all of them.
type ddpStreams struct {
	script   *script // of the call that is played
	broken   *bool
	held     *int                        // octets, by all engines
	tapes    map[uint64]*Tape            // of Sessions that the recording has, by their number
	sessions map[uint64]*sctpddp.Session // that are given out
}

func (g *ddpStreams) Send(_ uint16, _ uint32, src iwarp.Source) (id uint64, err error) {
	n := 0 // read, when it was recorded
	for i := range min(2, len(g.script.left)) {
		if s := &g.script.left[i]; s.Op == opDDPSend {
			n = len(s.Octets)
			break
		}
	}
	_, err = io.ReadFull(src, make([]byte, min(n, src.Len())))
	step := g.script.next(opDDPSend)
	switch {
	case step == nil:
		return 0, errOther
	case err != nil:
		return 0, err
	}
	return step.arg("id"), errorOf(step.arg("err!"), step.Text)
}

func (g *ddpStreams) Drop(uint16) int {
	if s := g.script.next(opDDPDrop); s != nil {
		return int(min(s.arg("n"), maxQueue))
	}
	return 0
}

// number is the only thing that a Step of op tells, which is no more than most.
func (g *ddpStreams) number(op Op, most uint64) uint64 {
	if s := g.script.next(op); s != nil {
		return min(s.Args[0], most)
	}
	return 0
}

func (g *ddpStreams) Acked() uint64   { return g.number(opDDPAcked, 1<<63) }
func (g *ddpStreams) MaxPayload() int { return int(g.number(opMaxPayload, maxOctets)) }

func (g *ddpStreams) Streams() (out, in int) {
	if s := g.script.next(opStreams); s != nil {
		return int(min(s.arg("out"), 1<<16)), int(min(s.arg("in"), 1<<16))
	}
	return 0, 0
}

func (g *ddpStreams) PeerAdaptation() (code uint32, present bool) {
	if s := g.script.next(opAdaptation); s != nil {
		return uint32(s.Args[0]), s.Args[1] != 0
	}
	return 0, false
}

func (g *ddpStreams) Shutdown() { g.script.next(opDDPShutdown) }

func (g *ddpStreams) Take(n int) bool {
	s := g.script.next(opTake)
	if s == nil || s.arg("ok") == 0 {
		return false
	}
	if *g.held += n; *g.held > heldRoom {
		panic(errHeld)
	}
	return true
}

func (g *ddpStreams) Give(n int)   { *g.held -= n }
func (g *ddpStreams) Scarce() bool { return g.number(opScarce, 1) != 0 }
func (g *ddpStreams) Ask(int)      {} // Asked says what came of it
func (g *ddpStreams) Asked() int   { return int(g.number(opAsked, 1<<32)) }

func (g *ddpStreams) Ahead([]byte) int { return int(g.number(opDDPAhead, maxOctets)) }

func (g *ddpStreams) Segment([]byte, int) error { return g.script.answer(opDDPSegment, 1) }

func (g *ddpStreams) Fail(iwarp.TermCode, error) { g.script.next(opDDPFail) }

// A scriptSource is what a WriteFrom is given that is played.
type scriptSource struct {
	s    *script
	n    int // octets that are left; -1: it was not asked yet
	rest []byte
	read bool
}

func (r *scriptSource) Len() int {
	if r.n < 0 {
		r.n = 0
		if s := r.s.next(opSourceLen); s != nil {
			r.n = int(min(s.Args[0], maxOctets))
		}
	}
	return r.n
}

func (r *scriptSource) Read(p []byte) (n int, err error) {
	if !r.read {
		r.read = true
		if s := r.s.next(opSource); s != nil {
			r.rest = s.Octets
		}
	}
	n = copy(p, r.rest)
	r.rest, r.n = r.rest[n:], max(r.n-n, 0)
	if n == 0 && len(p) > 0 {
		return 0, errOther
	}
	return n, nil
}

// A ddpPlayer plays a sctpddp.Mux.
type ddpPlayer struct {
	g *ddpStreams
	d *DDP
	s *script
	m *sctpddp.Mux // nil: it has not begun
}

func newDDPPlayer(t *Tape, c *conn, held *int) engine {
	g := &ddpStreams{broken: c.broken, held: held, tapes: make(map[uint64]*Tape),
		sessions: make(map[uint64]*sctpddp.Session)}
	p := &ddpPlayer{g: g, d: newDDP(t), s: &c.script}
	p.d.open = func(of *DDPOf) *Tape { return g.tapes[of.Number] }
	return p
}

func (p *ddpPlayer) play(s *Step) error {
	kind := sctpddp.CallKind(s.Op - opDDP)
	if s.Op < opDDP || kind > sctpddp.CallDown || (kind == sctpddp.CallNew) != (p.m == nil) {
		return errNoCall
	}
	p.g.script = p.s
	now := func() time.Time { return p.d.t.r.began.Add(time.Duration(s.arg("now"))) }
	var given *sctpddp.Session
	switch kind {
	case sctpddp.CallNew:
		var cfg sctpddp.Config
		if err := unmarshal([]byte(s.Text), &cfg); err != nil {
			return err
		}
		cfg.Budget, cfg.Journal = p.g, p.d
		p.m, _ = sctpddp.NewMux(p.g, cfg, now()) // as all results, it is recorded
	case sctpddp.CallOpen, sctpddp.CallOpenOn:
		var cfg iwarp.StartConfig
		if err := unmarshal([]byte(s.Text), &cfg); err != nil {
			return err
		}
		if kind == sctpddp.CallOpen {
			given, _ = p.m.Open(cfg, s.Octets)
		} else {
			given, _ = p.m.OpenOn(uint16(s.Args[0]), cfg, s.Octets)
		}
	case sctpddp.CallMuxInput:
		p.m.Input(now(), messageOf(s))
	case sctpddp.CallRequest:
		given, _ = p.m.Request()
	case sctpddp.CallRelease:
		n := s.arg("number")
		x := p.g.sessions[n]
		if x == nil {
			return errNoCall
		}
		delete(p.g.sessions, n)
		p.m.Release(now(), x)
	case sctpddp.CallMuxStep:
		p.m.Step(now())
	default:
		p.m.Down()
	}
	if given != nil {
		p.g.sessions[p.d.given] = given
	}
	return nil
}

// memory says nothing of what Take has counted, for the sessions as well.
func (p *ddpPlayer) memory() int { return 0 }

// messageOf is the message that a call is about.
func messageOf(s *Step) sctpddp.Message {
	return sctpddp.Message{Stream: uint16(s.arg("stream")), PPID: uint32(s.arg("ppid")),
		Missing: int(min(s.arg("missing"), 1<<32)), Unordered: s.arg("unordered") != 0, Data: s.Octets}
}

// A sessionPlayer plays a sctpddp.Session, which the one that plays its Mux has been given.
type sessionPlayer struct {
	g      *ddpStreams
	number uint64
	s      *script
}

// newSessionPlayer plays a Session of the Mux that of plays.
func newSessionPlayer(t *Tape, c, of *conn, d *DDPOf) (engine, error) {
	if of == nil {
		return nil, errNoCall
	}
	p, ok := of.engine.(*ddpPlayer)
	if !ok || p.g.tapes[d.Number] != nil {
		return nil, errNoCall
	}
	p.g.tapes[d.Number] = t
	c.broken = p.g.broken // what differs in the one has the other differ, too
	return &sessionPlayer{p.g, d.Number, &c.script}, nil
}

func (p *sessionPlayer) play(s *Step) error {
	x := p.g.sessions[p.number]
	kind := sctpddp.CallKind(s.Op - opDDP)
	if x == nil || s.Op < opDDP+Op(sctpddp.CallInput) || kind > sctpddp.CallLost {
		return errNoCall
	}
	p.g.script = p.s
	switch kind {
	case sctpddp.CallInput:
		x.Input(messageOf(s))
	case sctpddp.CallWriteFrom:
		_, _ = x.WriteFrom(&scriptSource{s: p.s, n: -1}) // as all results, it is recorded
	case sctpddp.CallStep:
		_ = x.Step()
	case sctpddp.CallMULPDU:
		x.MULPDU()
	case sctpddp.CallEvent:
		x.Event()
	case sctpddp.CallAttach:
		_ = x.Attach(p.g)
	case sctpddp.CallResume:
		x.Resume()
	case sctpddp.CallAccept:
		var cfg iwarp.StartConfig
		if err := unmarshal([]byte(s.Text), &cfg); err != nil {
			return err
		}
		_, _ = x.Accept(cfg, s.Octets)
	case sctpddp.CallReject:
		_ = x.Reject(s.Octets)
	case sctpddp.CallRefuse:
		_ = x.Refuse()
	case sctpddp.CallFailNegotiation:
		_ = x.FailNegotiation(errorOf(s.Args[0], s.Text))
	case sctpddp.CallClose:
		_ = x.Close()
	case sctpddp.CallAbort:
		_ = x.Abort()
	case sctpddp.CallAbandon:
		x.Abandon()
	default:
		x.Lost(sctpddp.LossKind(s.Args[0]), errorOf(s.Args[1], s.Text))
	}
	return nil
}

func (p *sessionPlayer) memory() int { return 0 }

var _ sctpddp.Journal = (*DDP)(nil)
