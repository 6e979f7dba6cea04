package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// CM is what a cm.Manager was made with.
type CM struct {
	GUID               uint64 `json:"guid"`
	MaxHalfOpen        int    `json:"max_half_open"`
	MaxHalfOpenPerPeer int    `json:"max_half_open_per_peer"`
	MaxPerPeer         int    `json:"max_per_peer"`
	MaxKept            int    `json:"max_kept"`
}

// A Manager records the calls of a cm.Manager: it is its Journal. Unlike a connection one is
// recorded from any moment on, which its State tells.
type Manager struct {
	t        *Tape
	on       bool // in this call
	accounts map[*cm.Account]int
	told     func(e *cm.Event) // of a player
}

// NewManager has the calls of m recorded by t from now on. m was made with cfg, and has no Packets
// and Events.
func NewManager(t *Tape, m *cm.Manager, cfg *cm.Config) *Manager {
	t.about.Kind = ConnManager
	t.about.CM = &CM{cfg.GUID, cfg.MaxHalfOpen, cfg.MaxHalfOpenPerPeer, cfg.MaxPerPeer, cfg.MaxKept}
	t.id = t.r.open(t.about)
	j := &Manager{t: t, accounts: map[*cm.Account]int{}}
	j.begin(m, m.Save(t.r.began, j.account))
	return j
}

// begin is the first call: m has that State.
func (j *Manager) begin(m *cm.Manager, s *cm.State) {
	m.Note(j)
	j.t.call(opRestore, []byte(asText(s)), "")
	j.t.done(0, nil, nil)
}

// account is the number of an Account.
func (j *Manager) account(a *cm.Account) int {
	if a == nil {
		return 0
	}
	n, ok := j.accounts[a]
	if !ok {
		n = len(j.accounts) + 1
		j.accounts[a] = n
	}
	return n
}

// Begin implements cm.Journal.
func (j *Manager) Begin(now time.Time, c *cm.Call) {
	if j.on = !j.t.off(); !j.on {
		return
	}
	text := ""
	switch {
	case c.Kind == cm.CallReceive:
		text = pairText(c.From, c.To)
	case c.What != nil:
		text = asText(c.What)
	}
	most := 0
	if c.Account != nil {
		most = c.Account.Max
	}
	j.t.call(opManager+Op(c.Kind), c.Octets, text, uint64(now.Sub(j.t.r.began)), c.Of,
		uint64(j.account(c.Account)), uint64(most))
}

// pairText is two addresses in words, and pairOf makes them of it.
func pairText(from, to netip.Addr) string { return from.String() + " " + to.String() }

func pairOf(s string) (from, to netip.Addr, err error) {
	a, b, _ := strings.Cut(s, " ")
	if from, err = netip.ParseAddr(a); err == nil {
		to, err = netip.ParseAddr(b)
	}
	return from, to, err
}

// Drew implements cm.Journal.
func (j *Manager) Drew(n uint32) { j.step(opDrew, nil, "", uint64(n)) }

// MTU implements cm.Journal.
func (j *Manager) MTU(code uint8) { j.step(opMTU, nil, "", uint64(code)) }

func (j *Manager) step(op Op, octets []byte, text string, args ...uint64) {
	if j.on {
		j.t.step(op, octets, text, args...)
	}
}

// Sent implements cm.Journal.
func (j *Manager) Sent(p *cm.Packet) {
	j.step(opSentMAD, p.MAD, pairText(p.From, p.To), uint64(p.TrafficClass), bit(p.Answers),
		p.Of)
}

// Told implements cm.Journal.
func (j *Manager) Told(e *cm.Event) {
	j.step(opTold, e.PrivateData, fmt.Sprint(e.Source, " ", e.Dest), uint64(e.Kind), e.Conn.Number(),
		e.Listener.Number(), e.Query.Number(), e.Lookup.Number(), uint64(e.ResponderResources),
		uint64(e.InitiatorDepth), uint64(e.RNRRetries), uint64(e.Retries), bit(e.FlowControl),
		bit(e.SRQ), uint64(e.QPN), uint64(e.QKey), uint64(e.Reason), uint64(e.Status), bit(e.TimedOut))
	if j.told != nil {
		j.told(e)
	}
}

// End implements cm.Journal.
func (j *Manager) End(made uint64, err error) {
	if j.on {
		j.t.done(made, nil, err)
	}
}

// madText has the kind of a message of connection management.
func madText(b []byte) []string {
	_, msg, err := mad.Parse(b)
	if err != nil {
		return []string{err.Error()}
	}
	return []string{strings.TrimPrefix(fmt.Sprintf("%T", msg), "*mad.")}
}

// A managerPlayer plays a cm.Manager.
type managerPlayer struct {
	cfg      cm.Config
	t        *Tape
	s        *script
	r        *cm.Restored // nil: it has not begun
	accounts map[int]*cm.Account
	values   int // that its State had
	drawn    uint32
}

// What a recording may ask for: mostConns bounds what a Manager keeps, and mostValues what its
// State has in all, of which one octet may ask for hundreds.
const (
	mostConns  = 1 << 20
	mostValues = 1 << 20
	valueRoom  = 64      // octets, for each of these
	objectRoom = 1 << 10 // and for each thing of a Manager
)

// stateOf takes what a Manager begins with out of its Step.
func stateOf(b []byte) (s *cm.State, err error) {
	if bytes.Count(b, []byte{','}) >= mostValues {
		return nil, errNoCall
	}
	err = json.Unmarshal(b, &s)
	if err == nil && s == nil { // null
		err = errNoCall
	}
	return s, err
}

func newManagerPlayer(t *Tape, c *CM, s *script) (engine, error) {
	p := &managerPlayer{t: t, s: s, accounts: map[int]*cm.Account{}}
	for _, n := range []int{c.MaxHalfOpen, c.MaxHalfOpenPerPeer, c.MaxPerPeer, c.MaxKept} {
		if n < 0 || n > mostConns {
			return nil, errNoCall
		}
	}
	p.cfg = cm.Config{GUID: c.GUID, MaxHalfOpen: c.MaxHalfOpen,
		MaxHalfOpenPerPeer: c.MaxHalfOpenPerPeer, MaxPerPeer: c.MaxPerPeer, MaxKept: c.MaxKept,
		Rand: p.draw, PathMTU: p.mtu}
	t.id = t.r.open(t.about)
	return p, nil
}

// draw is the number that the recording has, or one that no Manager asks again for.
func (p *managerPlayer) draw() uint32 {
	if step := p.s.next(opDrew); step != nil {
		return uint32(step.Args[0])
	}
	p.drawn++
	return p.drawn
}

func (p *managerPlayer) mtu() uint8 {
	if step := p.s.next(opMTU); step != nil {
		return uint8(step.Args[0])
	}
	return 0
}

func (p *managerPlayer) account(n int) *cm.Account {
	a := p.accounts[n]
	if a == nil {
		a = new(cm.Account)
		p.accounts[n] = a
	}
	return a
}

// restore makes the Manager that the recording begins with.
func (p *managerPlayer) restore(b []byte) error {
	s, err := stateOf(b)
	if err != nil {
		return err
	}
	p.values = bytes.Count(b, []byte{','})
	if p.r, err = cm.Restore(p.cfg, p.t.r.began, s, p.account); err != nil {
		return err
	}
	j := &Manager{t: p.t, accounts: map[*cm.Account]int{}, told: func(e *cm.Event) {
		switch e.Kind {
		case cm.EventRequest:
			p.r.Conns[e.Conn.Number()] = e.Conn
		case cm.EventAsked:
			p.r.Queries[e.Query.Number()] = e.Query
		default:
		}
	}}
	for n, a := range p.accounts {
		j.accounts[a] = n
	}
	j.begin(p.r.Manager, s)
	return nil
}

func (p *managerPlayer) memory() int {
	n := p.values*valueRoom + (1+len(p.accounts))*objectRoom
	if r := p.r; r != nil {
		n += (len(r.Conns) + len(r.Listeners) + len(r.Lookups) + len(r.Queries)) * objectRoom
	}
	return n
}

func (p *managerPlayer) play(s *Step) error {
	if s.Op == opRestore {
		if p.r != nil {
			return errNoCall
		}
		return p.restore(s.Octets)
	}
	if p.r == nil || s.Op < opManager || s.Op > opManager+Op(cm.CallAnswer) {
		return errNoCall
	}
	defer func() { p.r.Packets(); p.r.Events() }() // all of it is recorded
	now := p.t.r.began.Add(time.Duration(s.arg("now")))
	kind := cm.CallKind(s.Op - opManager)
	if c := p.r.Conns[s.arg("of")]; c != nil {
		return p.conn(c, kind, now, s)
	}
	var a *cm.Account
	if n := int(s.arg("account")); n != 0 {
		a = p.account(n)
		a.Max = int(s.arg("most"))
	}
	switch kind {
	case cm.CallReceive:
		from, to, err := pairOf(s.Text)
		if err != nil {
			return err
		}
		p.r.Receive(now, from, to, s.Octets)
	case cm.CallExpire:
		p.r.Expire(now)
	case cm.CallListen:
		var r cm.ListenRequest
		if err := unmarshal([]byte(s.Text), &r); err != nil {
			return err
		}
		r.Account = a
		if l, err := p.r.Listen(now, &r); err == nil {
			p.r.Listeners[l.Number()] = l
		}
	case cm.CallConnect:
		var r cm.Request
		if err := unmarshal([]byte(s.Text), &r); err != nil {
			return err
		}
		r.Account = a
		if c, err := p.r.Connect(now, &r); err == nil {
			p.r.Conns[c.Number()] = c
		}
	case cm.CallLookup:
		var r cm.LookupRequest
		if err := unmarshal([]byte(s.Text), &r); err != nil {
			return err
		}
		r.Account = a
		if l, err := p.r.Lookup(now, &r); err == nil {
			p.r.Lookups[l.Number()] = l
		}
	default:
		return p.other(kind, now, s)
	}
	return nil
}

// conn makes a call of a Conn.
func (p *managerPlayer) conn(c *cm.Conn, kind cm.CallKind, now time.Time, s *Step) error {
	switch kind {
	case cm.CallAccept:
		var r cm.Reply
		if err := unmarshal([]byte(s.Text), &r); err != nil {
			return err
		}
		_ = c.Accept(now, &r) // as all results, it is recorded
	case cm.CallReject:
		_ = c.Reject(now, s.Octets)
	case cm.CallReady:
		_ = c.Ready(now, s.Octets)
	case cm.CallEstablished:
		_ = c.Established(now)
	case cm.CallDisconnect:
		_ = c.Disconnect(now)
	case cm.CallClose:
		c.Close(now)
	default:
		return errNoCall
	}
	return nil
}

// other makes a call of something else.
func (p *managerPlayer) other(kind cm.CallKind, now time.Time, s *Step) error {
	n := s.arg("of")
	l, q, x := p.r.Listeners[n], p.r.Queries[n], p.r.Lookups[n]
	switch {
	case kind == cm.CallUnlisten && l != nil:
		l.Close(now)
	case kind == cm.CallCancel && x != nil:
		x.Cancel(now)
	case kind == cm.CallAnswer && q != nil:
		var a cm.Answer
		if err := unmarshal([]byte(s.Text), &a); err != nil {
			return err
		}
		_ = q.Answer(now, &a) // as all results, it is recorded
	default:
		return errNoCall
	}
	return nil
}
