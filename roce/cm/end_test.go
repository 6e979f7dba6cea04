package cm_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

var (
	epoch = time.Unix(1000, 0)
	one   = netip.MustParseAddr("10.0.0.1")
	two   = netip.MustParseAddr("10.0.0.2")
	three = netip.MustParseAddr("10.0.0.3")
	six   = netip.MustParseAddr("fd00::6")

	service = Service{Space: mad.PortSpaceTCP, Port: 7471}
	lookups = Service{Space: mad.PortSpaceUDP, Port: 7471}
)

const (
	sutGUID = 0x1111
	rawGUID = 0x2222
	sutQPN  = 0x40
	rawQPN  = 0x99
)

// A sut is a Manager at address one, before a peer that says what the test has it say.
type sut struct {
	t *testing.T
	*Manager
	now  time.Time
	from netip.Addr // of what is said
	id   uint32     // the peer's, of the next message
}

func config(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 7))
	return Config{GUID: sutGUID, PathMTU: func() uint8 { return 3 }, Rand: r.Uint32}
}

func newSUT(t *testing.T, change ...func(*Config)) *sut {
	cfg := config(1)
	for _, f := range change {
		f(&cfg)
	}
	return &sut{t: t, Manager: New(cfg), now: epoch, from: two, id: 0x7000}
}

func (s *sut) listen(svc Service, addr netip.Addr, backlog int) (*Listener, error) {
	return s.Listen(s.now, &ListenRequest{Service: svc, Addr: addr, Backlog: backlog})
}

func (s *sut) listens(svc Service) *Listener {
	s.t.Helper()
	l, err := s.listen(svc, netip.IPv6Unspecified(), 8)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// says has the peer say m and returns what the answers are, which must go to whom they are for.
func (s *sut) says(m mad.Message) []mad.Message {
	s.t.Helper()
	s.Receive(s.now, s.from, one, mad.Append(nil, 0xabcdef, m))
	return s.said(s.from)
}

// said is what has been said, to no other than to.
func (s *sut) said(to netip.Addr) (out []mad.Message) {
	s.t.Helper()
	for _, p := range s.Packets() {
		if p.From != one || p.To != to || len(p.MAD) != mad.Len {
			s.t.Errorf("%d octets go from %v to %v", len(p.MAD), p.From, p.To)
		}
		_, m, err := mad.Parse(p.MAD)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// pass lets time pass and returns what is said then.
func (s *sut) pass(d time.Duration) []mad.Message {
	s.t.Helper()
	s.now = s.now.Add(d)
	s.Expire(s.now)
	return s.said(two)
}

// happened is the one event since it was asked for last, which must be of kind.
func (s *sut) happened(kind EventKind) Event {
	s.t.Helper()
	all := s.Events()
	if len(all) != 1 || all[0].Kind != kind {
		s.t.Fatalf("events %+v, want one of kind %d", all, kind)
	}
	return all[0]
}

func (s *sut) nothing(why string) {
	s.t.Helper()
	if e := s.Events(); len(e) > 0 {
		s.t.Errorf("%s: events %+v", why, e)
	}
}

// req is a REQ of the peer's that is right.
func (s *sut) req() *mad.REQ {
	s.id++
	head := mad.Address{Source: s.from, Dest: one, Port: 4000}
	return &mad.REQ{
		LocalID: s.id, ServiceID: mad.ServiceID(mad.PortSpaceTCP, 7471), GUID: rawGUID,
		QPN: 0x10000 + s.id, ResponderResources: 4, InitiatorDepth: 6, RemoteCMTimeout: 20,
		LocalCMTimeout: 20, StartingPSN: 0x123456, Retries: 5, RNRRetries: 3, PKey: 0xffff, PathMTU: 3,
		MaxCMRetries: 15,
		Primary: mad.Path{LocalGID: mad.GIDOf(s.from), RemoteGID: mad.GIDOf(one), ACKTimeout: 19,
			TrafficClass: 8, FlowLabel: 5, HopLimit: 64},
		PrivateData: append(head.Append(nil), "hello"...),
	}
}

// sidr is a SIDR_REQ of the peer's that is right.
func (s *sut) sidr() *mad.SIDRREQ {
	s.id++
	head := mad.Address{Source: s.from, Dest: one, Port: 4000}
	return &mad.SIDRREQ{RequestID: s.id, PKey: 0xffff,
		ServiceID: mad.ServiceID(mad.PortSpaceUDP, 7471), PrivateData: head.Append(nil)}
}

// only is the one message of all, which must be a T.
func only[T mad.Message](t *testing.T, all []mad.Message) T {
	t.Helper()
	if len(all) == 1 {
		if m, ok := all[0].(T); ok {
			return m
		}
	}
	var want T
	t.Fatalf("said %d messages: %+v, want one %T", len(all), all, want)
	return want
}

func silent(t *testing.T, why string, all []mad.Message) {
	t.Helper()
	if len(all) > 0 {
		t.Errorf("%s: said %T", why, all[0])
	}
}

// connects has the SUT ask the peer, and returns its REQ.
func (s *sut) connects() (*Conn, *mad.REQ) {
	s.t.Helper()
	c, err := s.Connect(s.now, &Request{From: one, To: two, SourcePort: 5000, Service: service,
		QPN: sutQPN, ResponderResources: 3, InitiatorDepth: 7, Retries: 6, RNRRetries: 2})
	if err != nil {
		s.t.Fatal(err)
	}
	return c, only[*mad.REQ](s.t, s.said(two))
}

func (s *sut) rep(r *mad.REQ) *mad.REP {
	s.id++
	return &mad.REP{LocalID: s.id, RemoteID: r.LocalID, QPN: rawQPN, StartingPSN: 0x222222,
		ResponderResources: 2, InitiatorDepth: 2, RNRRetries: 4, GUID: rawGUID}
}

// active is a connection that the SUT has asked for.
func (s *sut) active() (*Conn, *mad.REP) {
	s.t.Helper()
	c, q := s.connects()
	r := s.rep(q)
	silent(s.t, "the QP is not ready", s.says(r))
	s.happened(EventReplied)
	if err := c.Ready(s.now, nil); err != nil {
		s.t.Fatal(err)
	}
	only[*mad.RTU](s.t, s.said(two))
	s.happened(EventEstablished)
	return c, r
}

// asked is a request of the peer's.
func (s *sut) asked() (*Conn, *mad.REQ) {
	s.t.Helper()
	q := s.req()
	silent(s.t, "the program has not answered", s.says(q))
	return s.happened(EventRequest).Conn, q
}

func (s *sut) accepts(c *Conn) *mad.REP {
	s.t.Helper()
	if err := c.Accept(s.now, &Reply{QPN: sutQPN, ResponderResources: 100, InitiatorDepth: 100,
		RNRRetries: 1}); err != nil {
		s.t.Fatal(err)
	}
	return only[*mad.REP](s.t, s.said(s.from))
}

// passive is a connection that the peer has asked for.
func (s *sut) passive() (*Conn, *mad.REP, *mad.REQ) {
	s.t.Helper()
	c, q := s.asked()
	r := s.accepts(c)
	silent(s.t, "RTU", s.says(&mad.RTU{LocalID: r.RemoteID, RemoteID: r.LocalID}))
	s.happened(EventEstablished)
	return c, r, q
}

// over checks that nothing is left once all timers have expired.
func (s *sut) over() {
	s.t.Helper()
	for range 1000 {
		at, ok := s.Deadline()
		if !ok {
			break
		}
		s.now = at
		s.Expire(at)
	}
	if l := s.Load(); l != (Load{}) {
		s.t.Errorf("%+v is left", l)
	}
}
