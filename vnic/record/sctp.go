package record

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp"
)

// An SCTP records the calls of an sctp.Endpoint: it is its Journal, from its beginning on.
type SCTP struct {
	t  *Tape
	on bool // in this call
}

// NewSCTP records the Endpoint that is made with it.
func NewSCTP(t *Tape) *SCTP {
	t.about.Kind = SCTPEndpoint
	t.id = t.r.open(t.about)
	return &SCTP{t: t}
}

// Lost says that nothing can be recorded.
func (j *SCTP) Lost() {
	j.t.dead = true
	j.t.r.lost(j.t.id)
}

// sctpSettings are what an Endpoint was made with, as far as that is numbers.
type sctpSettings struct {
	MaxAssociations, HeldMost, OOTBPerSecond int
	Options                                  sctp.Options
}

// Begin implements sctp.Journal.
func (j *SCTP) Begin(c *sctp.Call) {
	if j.on = !j.t.off(); !j.on {
		return
	}
	var text string
	var x, y uint64
	switch what := c.What.(type) {
	case *sctp.Config:
		text = asText(&sctpSettings{what.MaxAssociations, what.HeldMost, what.OOTBPerSecond,
			what.Options})
	case *sctp.Packet:
		text, x, y = pairText(c.Src, c.Dst), uint64(what.Encap), bit(what.Verified)
	case *sctp.ICMPError:
		text, x = pairText(c.Src, c.Dst), uint64(what.Kind)
		y = uint64(uint32(what.MTU)) | bit(what.Encap)<<32
	case *sctp.ListenConfig:
		text, x = asText(what), bit(what.Options != nil && what.Options.AdmitAdaptation != nil)
	case *sctp.DialConfig:
		text, x = asText(what), bit(what.Options != nil && what.Options.AdmitAdaptation != nil)
	case *sctp.SendOptions:
		x, y = uint64(what.Stream)<<2|bit(what.Unordered)<<1|bit(what.Immediate), uint64(what.PPID)
	case string:
		text = what
	}
	var now uint64
	if !c.Now.IsZero() {
		now = uint64(c.Now.UnixNano())
	}
	j.t.call(opSCTP+Op(c.Kind), c.Octets, text, now, c.Of, uint64(c.Port), x, y)
}

func (j *SCTP) step(op Op, octets []byte, text string, args ...uint64) {
	if j.on {
		j.t.step(op, octets, text, args...)
	}
}

// Drew implements sctp.Journal.
func (j *SCTP) Drew(b []byte) { j.step(opDrewOctets, b, "") }

// MTU implements sctp.Journal.
func (j *SCTP) MTU(n int) { j.step(opLinkMTU, nil, "", uint64(max(n, 0))) }

// Admitted implements sctp.Journal.
func (j *SCTP) Admitted(ok bool) { j.step(opAdmitted, nil, "", bit(ok)) }

// End implements sctp.Journal.
func (j *SCTP) End(r *sctp.Result) {
	if !j.on {
		return
	}
	if d := r.Datagram; d != nil {
		j.t.step(opSCTPPacket, d.Data, pairText(d.Src, d.Dst), bit(d.DF), uint64(d.Encap))
	}
	if e := r.Event; e != nil {
		m := e.Msg
		if m == nil {
			m = new(sctp.Message)
		}
		addr := ""
		if e.Addr.IsValid() {
			addr = e.Addr.String()
		}
		local, remote := e.Assoc.Ports()
		j.t.step(opSCTPEvent, nil, fmt.Sprint(addr, textOf(e.Err)), uint64(e.Kind), e.Assoc.Number(),
			e.Acked, bit(e.Inbound), uint64(e.Path), m.Number(), uint64(m.Stream), uint64(m.SSN),
			uint64(m.PPID), uint64(m.TSN), bit(m.Unordered), uint64(m.Missing), uint64(m.Len()),
			uint64(local), uint64(remote))
	}
	j.t.done(r.N, nil, r.Err)
}

// An sctpPlayer plays an sctp.Endpoint.
type sctpPlayer struct {
	j        *SCTP
	s        *script
	e        *sctp.Endpoint // nil: it has not begun
	assocs   map[uint64]*sctp.Association
	messages map[uint64]*sctp.Message
	room     *[]byte
	kept     int // octets of packets in which there are messages
	drawn    byte
}

func newSCTPPlayer(t *Tape, s *script, room *[]byte) engine {
	return &sctpPlayer{j: NewSCTP(t), s: s, room: room, assocs: map[uint64]*sctp.Association{},
		messages: map[uint64]*sctp.Message{}}
}

// Read gives the random octets of the recording, or some that differ from each other.
func (p *sctpPlayer) Read(b []byte) (int, error) {
	if step := p.s.next(opDrewOctets); step != nil && len(step.Octets) == len(b) {
		return copy(b, step.Octets), nil
	}
	p.s.wrong = true
	for i := range b {
		p.drawn++
		b[i] = p.drawn
	}
	return len(b), nil
}

func (p *sctpPlayer) mtu(netip.Addr) int {
	if step := p.s.next(opLinkMTU); step != nil {
		return int(min(step.Args[0], 1<<16))
	}
	return 0
}

func (p *sctpPlayer) admits(uint32, bool) bool {
	step := p.s.next(opAdmitted)
	return step != nil && step.Args[0] != 0
}

// options are those that a call has, which asks whom to admit if x says so.
func (p *sctpPlayer) options(o *sctp.Options, x uint64) error {
	if o == nil {
		return nil
	}
	if x != 0 {
		o.AdmitAdaptation = p.admits
	}
	const least, most = -time.Hour, 24 * time.Hour
	for _, d := range []time.Duration{o.RTOInitial, o.RTOMin, o.RTOMax, o.SACKDelay,
		o.HeartbeatInterval, o.CookieLife, o.UserTimeout} {
		if d < least || d > most || d > 0 && d < time.Millisecond {
			return errNoCall
		}
	}
	if o.MaxBurst > maxQueue || o.SendBuffer > maxOctets || o.RecvBuffer > maxOctets ||
		o.MaxInitRetransmits > maxQueue {
		return errNoCall
	}
	return nil
}

// begin makes the Endpoint.
func (p *sctpPlayer) begin(s *Step) error {
	var c sctpSettings
	if err := unmarshal([]byte(s.Text), &c); err != nil {
		return err
	}
	if err := p.options(&c.Options, 0); err != nil {
		return err
	}
	var err error
	p.e, err = sctp.NewEndpoint(sctp.Config{Rand: p, MTU: p.mtu, MaxAssociations: c.MaxAssociations,
		HeldMost: c.HeldMost, OOTBPerSecond: c.OOTBPerSecond, Options: c.Options, Journal: p.j})
	return err
}

func (p *sctpPlayer) play(s *Step) error {
	kind := sctp.CallKind(s.Op - opSCTP)
	if s.Op < opSCTP || kind > sctp.CallRelease || (kind == sctp.CallNew) != (p.e == nil) {
		return errNoCall
	}
	a := s.Args
	if a[0] > 1<<62 {
		return errNoCall
	}
	now := time.Unix(0, int64(a[0]))
	switch kind {
	case sctp.CallNew:
		return p.begin(s)
	case sctp.CallInput, sctp.CallICMP:
		src, dst, err := pairOf(s.Text)
		if err != nil {
			return err
		}
		if b := bytes.Clone(s.Octets); kind == sctp.CallInput {
			p.e.Input(now, sctp.Packet{Src: src, Dst: dst, Data: b, Ref: &packetUse{p, len(b), 0},
				Encap: uint16(a[3]), Verified: a[4] != 0})
		} else {
			p.e.ICMP(now, sctp.ICMPError{Kind: sctp.ICMPKind(a[3]), Src: src, Dst: dst,
				MTU: int(uint32(a[4])), Encap: a[4]>>32 != 0, Quote: b})
		}
	case sctp.CallLinkUp:
		p.e.LinkUp(now)
	case sctp.CallExpire:
		p.e.Expire(now)
	case sctp.CallOutput:
		if d, ok := p.e.Output(now, (*p.room)[:0]); ok {
			*p.room = d.Data
		}
	case sctp.CallEvent:
		p.event()
	case sctp.CallListen, sctp.CallUnlisten:
		var c sctp.ListenConfig
		if err := unmarshal([]byte(s.Text), &c); err != nil {
			return err
		}
		if kind == sctp.CallUnlisten {
			p.e.StopListening(uint16(a[2]), c.Locals)
			return nil
		}
		if err := p.options(c.Options, a[3]); err != nil {
			return err
		}
		_ = p.e.Listen(uint16(a[2]), c) // as all results, it is recorded
	case sctp.CallDial:
		var c sctp.DialConfig
		err := unmarshal([]byte(s.Text), &c)
		if err == nil {
			err = p.options(c.Options, a[3])
		}
		if err != nil {
			return err
		}
		if x, err := p.e.Dial(now, c); err == nil {
			p.assocs[x.Number()] = x
		}
	case sctp.CallRelease:
		m := p.messages[a[1]]
		if m == nil {
			return errNoCall
		}
		delete(p.messages, a[1])
		m.Release()
	default:
		return p.association(kind, now, s)
	}
	return nil
}

// sctpRoom is about what an Endpoint takes by itself, octets.
const sctpRoom = 8 << 10

func (p *sctpPlayer) memory() int {
	if p.e == nil {
		return sctpRoom
	}
	return sctpRoom + p.kept + p.e.Memory()
}

// A packetUse is the sctp.Ref of a packet, all of which is kept for any message in it.
type packetUse struct {
	p       *sctpPlayer
	n, uses int
}

// pieceRoom is about what a chunk that is kept takes beside its octets.
const pieceRoom = 128

func (u *packetUse) Hold() {
	if u.p.kept += pieceRoom; u.uses == 0 {
		u.p.kept += u.n
	}
	u.uses++
}

func (u *packetUse) Release() {
	u.uses--
	if u.p.kept -= pieceRoom; u.uses == 0 {
		u.p.kept -= u.n
	}
}

// event takes the next event, and what it brings.
func (p *sctpPlayer) event() {
	e, ok := p.e.NextEvent()
	switch {
	case !ok:
	case e.Kind == sctp.EventUp:
		p.assocs[e.Assoc.Number()] = e.Assoc
	case e.Kind == sctp.EventMessage:
		p.messages[e.Msg.Number()] = e.Msg
	}
}

// association makes a call of one.
func (p *sctpPlayer) association(kind sctp.CallKind, now time.Time, s *Step) error {
	x, a := p.assocs[s.Args[1]], s.Args
	if x == nil {
		return errNoCall
	}
	switch kind {
	case sctp.CallSend:
		_, _ = x.Send(now, sctp.SendOptions{Stream: uint16(a[3] >> 2), Unordered: a[3]&2 != 0,
			Immediate: a[3]&1 != 0, PPID: uint32(a[4])}, bytes.NewReader(s.Octets))
	case sctp.CallDrop:
		x.Drop(uint16(a[2]))
	case sctp.CallShutdown:
		_ = x.Shutdown(now) // as all results, it is recorded
	case sctp.CallAbort:
		x.Abort(now, s.Text)
	default:
		return errNoCall
	}
	return nil
}
