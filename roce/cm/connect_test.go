package cm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// What a REQ says: RCM-009, 010, 011, 056, 058, 059, 065.
func TestREQ(t *testing.T) {
	s := newSUT(t)
	c, err := s.Connect(s.now, &Request{From: one, To: two, SourcePort: 5000, Service: service,
		QPN: sutQPN, ResponderResources: 3, InitiatorDepth: 7, Retries: 6, RNRRetries: 2, SRQ: true,
		FlowControl: true, TrafficClass: 0x68, ACKTimeout: 12, PrivateData: []byte("hi")})
	if err != nil {
		t.Fatal(err)
	}
	p := s.Packets()[0]
	_, m, _ := mad.Parse(p.MAD)
	r := m.(*mad.REQ)
	if p.TrafficClass != 0x68 || r.Primary.TrafficClass != 0x68 || r.Primary.ACKTimeout != 12 {
		t.Errorf("traffic class %#x, %+v", p.TrafficClass, r.Primary)
	}
	if r.ServiceID != 0x0000000001061d2f || r.GUID != sutGUID || r.QPN != sutQPN || r.PathMTU != 3 ||
		r.ResponderResources != 3 || r.InitiatorDepth != 7 || r.Retries != 6 || r.RNRRetries != 2 ||
		!r.SRQ || !r.FlowControl || r.PKey != 0xffff || r.MaxCMRetries != 15 ||
		r.Transport != mad.TransportRC || r.QKey != 0 {
		t.Errorf("%+v", r)
	}
	if x := r.Primary; x.LocalGID != mad.GIDOf(one) || x.RemoteGID != mad.GIDOf(two) ||
		x.LocalLID != 0xffff || x.RemoteLID != 0xffff || x.HopLimit != 64 {
		t.Errorf("%+v", x)
	}
	if r.Alternate != (mad.Path{}) || p.MAD[24+5] != 0 || p.MAD[24+6] != 0 || p.MAD[24+7] != 0 {
		t.Errorf("alternate %+v, vendor %x", r.Alternate, p.MAD[24+5:24+8])
	}
	head, rest, err := mad.ParseAddress(r.PrivateData)
	if err != nil || head != (mad.Address{Source: one, Dest: two, Port: 5000}) ||
		!bytes.HasPrefix(rest, []byte("hi\x00")) {
		t.Error(head, rest, err)
	}
	s.says(s.rep(r))
	s.happened(EventReplied)
	if a := c.Attr(nil); a.RQPSN != r.StartingPSN || a.SQPSN != 0x222222 || a.Timeout != 12 ||
		a.TrafficClass != 0x68 {
		t.Errorf("%+v, the REQ has PSN %#x", a, r.StartingPSN)
	}
}

// How many octets a program may give, and gets: RCM-012, 013.
func TestPrivateData(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	q := lookups
	for n, f := range map[int]func([]byte) error{
		56: func(b []byte) error {
			_, err := s.Connect(s.now, &Request{From: one, To: two, Service: service, PrivateData: b})
			return err
		},
		180: func(b []byte) error {
			_, err := s.Lookup(s.now, &LookupRequest{From: one, To: two, Service: q, PrivateData: b})
			return err
		},
		148: func(b []byte) error {
			c, _ := s.asked()
			defer c.Close(s.now)
			return c.Reject(s.now, b)
		},
		196: func(b []byte) error {
			c, _ := s.asked()
			defer c.Close(s.now)
			return c.Accept(s.now, &Reply{PrivateData: b})
		},
	} {
		if err := f(make([]byte, n)); err != nil {
			t.Errorf("%d octets: %v", n, err)
		}
		s.Packets()
		if err := f(make([]byte, n+1)); !errors.Is(err, ErrPrivate) {
			t.Errorf("%d octets: %v, want %v", n+1, err, ErrPrivate)
		}
		s.Packets()
	}
	s = newSUT(t)
	s.listens(service)
	s.says(s.req())
	if e := s.happened(EventRequest); len(e.PrivateData) != 56 ||
		!bytes.Equal(bytes.TrimRight(e.PrivateData, "\x00"), []byte("hello")) {
		t.Errorf("%q", e.PrivateData)
	}
	_, r := s.connects()
	s.says(s.rep(r))
	if e := s.happened(EventReplied); len(e.PrivateData) != 196 {
		t.Errorf("%d octets", len(e.PrivateData))
	}
}

// What a REQ is refused for, with which reason, and that nothing is kept of it: RCM-014, 015, 016,
// 018, 019, 020, 037, and that reserved fields are no reason: RCM-008 (ROCE-214).
func TestRefuses(t *testing.T) {
	bad := func(at int, v byte) func(*mad.REQ) {
		return func(r *mad.REQ) { r.PrivateData[at] = v }
	}
	for name, test := range map[string]struct {
		change func(*mad.REQ)
		reason mad.Reason
	}{
		"no listener":       {func(r *mad.REQ) { r.ServiceID++ }, mad.InvalidServiceID},
		"other service":     {func(r *mad.REQ) { r.ServiceID |= 1 << 40 }, mad.InvalidServiceID},
		"UDP space":         {func(r *mad.REQ) { r.ServiceID = 0x01111d2f }, mad.InvalidServiceID},
		"UC":                {func(r *mad.REQ) { r.Transport = mad.TransportUC }, mad.InvalidTransport},
		"RD":                {func(r *mad.REQ) { r.Transport = mad.TransportRD }, mad.InvalidTransport},
		"reserved":          {func(r *mad.REQ) { r.Transport = 3 }, mad.InvalidTransport},
		"MTU 0":             {func(r *mad.REQ) { r.PathMTU = 0 }, mad.InvalidMTU},
		"MTU 4":             {func(r *mad.REQ) { r.PathMTU = 4 }, mad.InvalidMTU},
		"MTU 6":             {func(r *mad.REQ) { r.PathMTU = 6 }, mad.InvalidMTU},
		"MTU 15":            {func(r *mad.REQ) { r.PathMTU = 15 }, mad.InvalidMTU},
		"our GID":           {func(r *mad.REQ) { r.Primary.RemoteGID[15] = 9 }, mad.InvalidGID},
		"its GID":           {func(r *mad.REQ) { r.Primary.LocalGID[15] = 9 }, mad.InvalidGID},
		"P_Key":             {func(r *mad.REQ) { r.PKey = 0x8001 }, mad.InvalidGID},
		"QP 0":              {func(r *mad.REQ) { r.QPN = 0 }, mad.UnsupportedReq},
		"QP 1":              {func(r *mad.REQ) { r.QPN = 1 }, mad.UnsupportedReq},
		"version":           {bad(0, 0x10), mad.ConsumerRejection},
		"IP version":        {bad(1, 0x50), mad.ConsumerRejection},
		"IP version 6 of 4": {bad(1, 0x60), mad.ConsumerRejection},
		"source":            {bad(19, 9), mad.ConsumerRejection},
		"destination":       {bad(35, 9), mad.ConsumerRejection},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSUT(t)
			s.listens(service)
			s.listens(lookups)
			q := s.req()
			test.change(q)
			r := only[*mad.REJ](t, s.says(q))
			if r.Reason != test.reason || r.About != mad.AboutREQ || r.LocalID != 0 ||
				r.RemoteID != q.LocalID {
				t.Errorf("%+v, want reason %d", r, test.reason)
			}
			s.nothing("refused")
			s.over()
		})
	}
	s := newSUT(t)
	s.listens(service)
	b := mad.Append(nil, 1, s.req())
	for _, at := range []int{6, 7, 18, 19, 24 + 4, 24 + 36, 24 + 40, 24 + 91, 24 + 94} {
		b[at] |= 7
	}
	b[24+52], b[24+53] = 1, 2 // LIDs
	s.Receive(s.now, two, one, b)
	s.happened(EventRequest)
	if r := s.Stats(); r.Received[0] != 1 {
		t.Errorf("%+v", r)
	}
}

// A listener at an address takes what comes to it, and no other: RCM-017, 062, 063.
func TestListeners(t *testing.T) {
	s := newSUT(t)
	at := func(a Service) *Listener {
		l, err := s.listen(a, one, 1)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	own, err := s.Listen(s.now, &ListenRequest{Service: service, Addr: one, Backlog: 1,
		Only6: true}) // which says something of the unspecified address of IPv6 only
	if err != nil {
		t.Fatal(err)
	}
	at(lookups) // the same number, another space
	if _, err := s.listen(service, one, 1); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	all := s.listens(service)
	s.says(s.req())
	if e := s.happened(EventRequest); e.Listener != own || e.Dest != one || e.Source.Addr() != two ||
		e.Source.Port() != 4000 {
		t.Errorf("%+v", e)
	}
	own.Close(s.now)
	s.says(s.req())
	if e := s.happened(EventRequest); e.Listener != all {
		t.Errorf("%+v", e)
	}
	all.Close(s.now)
	silent(t, "somebody has just listened", s.says(s.req()))
	if r := only[*mad.REJ](t, s.pass(2*time.Second)); r.Reason != mad.InvalidServiceID {
		t.Errorf("%+v", r)
	}
	if r := only[*mad.REJ](t, s.says(s.req())); r.Reason != mad.InvalidServiceID {
		t.Errorf("%+v", r)
	}

	s = newSUT(t)
	s.listens(service)
	s.from = six
	q := s.req()
	head := mad.Address{Source: six, Dest: six.Next(), Port: 1}
	q.Primary.RemoteGID, q.PrivateData = mad.GIDOf(six.Next()), head.Append(nil)
	s.Receive(s.now, six, six.Next(), mad.Append(nil, 1, q))
	if e := s.happened(EventRequest); e.Source.Addr() != six {
		t.Errorf("%+v", e)
	}
}

// A service with a Service ID of its own: private data are the program's from the first octet on,
// in each message, and there are no addresses in front. IPOIB-031.
func TestServiceID(t *testing.T) {
	s := newSUT(t)
	own := Service{ID: 0x0100000000123456}
	l, err := s.listen(own, netip.IPv6Unspecified(), 1)
	if err != nil {
		t.Fatal(err)
	}
	q := s.req()
	q.ServiceID, q.PrivateData = own.ID, []byte("eight...")
	s.says(q)
	e := s.happened(EventRequest)
	if e.Listener != l || len(e.PrivateData) != MaxServiceData ||
		!bytes.HasPrefix(e.PrivateData, []byte("eight...\x00")) {
		t.Errorf("%+v", e)
	}
	l.Close(s.now)
	q.LocalID++
	silent(t, "somebody has just listened", s.says(q))

	s = newSUT(t)
	long := make([]byte, MaxServiceData+1)
	ask := Request{From: one, To: two, Service: own, PrivateData: long}
	if _, err := s.Connect(s.now, &ask); !errors.Is(err, ErrPrivate) {
		t.Error(err)
	}
	ask.PrivateData = []byte("asks")
	c, err := s.Connect(s.now, &ask)
	if err != nil {
		t.Fatal(err)
	}
	r := only[*mad.REQ](t, s.said(two))
	if r.ServiceID != own.ID || !bytes.HasPrefix(r.PrivateData, []byte("asks\x00")) {
		t.Errorf("%+v", r)
	}
	p := s.rep(r)
	s.says(p)
	s.happened(EventReplied)
	if err := c.Ready(s.now, make([]byte, MaxReadyData+1)); !errors.Is(err, ErrPrivate) {
		t.Error(err)
	}
	if err := c.Ready(s.now, []byte("is ready")); err != nil {
		t.Fatal(err)
	}
	for _, said := range [][]mad.Message{s.said(two), s.says(p)} { // again, for a REP that comes again
		if u := only[*mad.RTU](t, said); !bytes.HasPrefix(u.PrivateData, []byte("is ready\x00")) {
			t.Errorf("%+v", u)
		}
	}
}

// A REQ is repeated, as often and as slowly as it says, and then given up: RCM-024.
func TestREQTimeout(t *testing.T) {
	s := newSUT(t)
	_, q := s.connects()
	const every = 2*4096<<18 + 4096<<20 // ns
	for n := range 15 {
		silent(t, "too early", s.pass(every-1))
		if r := only[*mad.REQ](t, s.pass(1)); r.LocalID != q.LocalID || r.StartingPSN != q.StartingPSN {
			t.Fatalf("repeat %d: %+v", n, r)
		}
		s.nothing("it goes on")
	}
	r := only[*mad.REJ](t, s.pass(every))
	if r.Reason != mad.Timeout || r.LocalID != q.LocalID || r.InfoLen != 8 ||
		!bytes.Equal(r.Info[:8], []byte{0, 0, 0, 0, 0, 0, 0x11, 0x11}) {
		t.Errorf("%+v", r)
	}
	if e := s.happened(EventUnreachable); !e.TimedOut {
		t.Errorf("%+v", e)
	}
	if x := s.Stats(); x.Sent[0] != 16 || x.Retries[0] != 15 {
		t.Errorf("%+v", x)
	}
	s.over()
}

// A REP and what becomes of it: RCM-007, 025, 026, 028, 029, 030, 057.
func TestREP(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	c, q := s.asked()
	reply := &Reply{QPN: sutQPN, ResponderResources: 100, InitiatorDepth: 2, RNRRetries: 1}
	a := c.Attr(reply)
	if err := c.Accept(s.now, reply); err != nil {
		t.Fatal(err)
	}
	p := s.Packets()[0]
	tid, m, _ := mad.Parse(p.MAD)
	r := m.(*mad.REP)
	if tid != 0xabcdef || r.RemoteID != q.LocalID || r.LocalID == 0 || r.QPN != sutQPN ||
		r.ResponderResources != q.InitiatorDepth || r.InitiatorDepth != 2 || r.RNRRetries != 1 ||
		r.GUID != sutGUID || p.TrafficClass != 8 {
		t.Errorf("transaction %#x, %+v", tid, r)
	}
	if a != (Attr{
		DestQPN: q.QPN, RQPSN: r.StartingPSN, SQPSN: 0x123456, PathMTU: 3, MaxRead: 2, MaxDestRead: 6,
		Timeout: 19, Retries: 5, RNRRetries: 3, TrafficClass: 8, HopLimit: 64, FlowLabel: 5, Local: one,
		Remote: two,
	}) {
		t.Errorf("%+v", a)
	}
	if err := c.Accept(s.now, reply); !errors.Is(err, ErrState) {
		t.Error(err)
	}

	s = newSUT(t)
	c, q = s.connects()
	x := s.rep(q)
	s.says(x)
	e := s.happened(EventReplied)
	if e.ResponderResources != 2 || e.InitiatorDepth != 2 || e.QPN != rawQPN || e.RNRRetries != 4 {
		t.Errorf("%+v", e)
	}
	if a := c.Attr(nil); a.DestQPN != rawQPN || a.SQPSN != 0x222222 || a.RQPSN != q.StartingPSN ||
		a.MaxRead != 2 || a.MaxDestRead != 2 || a.RNRRetries != 4 || a.Retries != 6 || a.Timeout != 19 {
		t.Errorf("%+v", a)
	}
	// The QP is not ready, which a peer that asks again is told to wait for.
	if r := only[*mad.MRA](t, s.says(x)); r.About != mad.AboutREP || r.LocalID != q.LocalID ||
		r.RemoteID != x.LocalID || r.ServiceTimeout != 24 {
		t.Errorf("%+v", r)
	}
	if err := c.Ready(s.now, nil); err != nil {
		t.Fatal(err)
	}
	s.happened(EventEstablished)
	if r := only[*mad.RTU](t, s.said(two)); r.LocalID != q.LocalID || r.RemoteID != x.LocalID {
		t.Errorf("%+v", r)
	}
	only[*mad.RTU](t, s.says(x)) // the first one was lost
	other := *x
	other.LocalID++
	silent(t, "another id", s.says(&other))
	lost := *x
	lost.RemoteID++
	if r := only[*mad.REJ](t, s.says(&lost)); r.Reason != mad.InvalidCommID ||
		r.LocalID != lost.RemoteID || r.RemoteID != lost.LocalID || r.About != mad.AboutREP {
		t.Errorf("%+v", r)
	}
	s.nothing("all of that")
}

// More than was offered is not taken, whatever the peer says: RCM-026.
func TestREPDepths(t *testing.T) {
	s := newSUT(t)
	c, q := s.connects()
	r := s.rep(q)
	r.ResponderResources, r.InitiatorDepth = 200, 200
	s.says(r)
	s.happened(EventReplied)
	if a := c.Attr(nil); a.MaxRead != 7 || a.MaxDestRead != 3 {
		t.Errorf("%+v", a)
	}
}

// A REP is repeated until the RTU comes, or a packet of the peer's QP: RCM-027, 031, 032, 033.
func TestREPTimeout(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	c, _ := s.asked()
	r := s.accepts(c)
	for range 15 {
		if x := only[*mad.REP](t, s.pass(5*time.Second)); x.LocalID != r.LocalID {
			t.Fatalf("%+v", x)
		}
	}
	if x := only[*mad.REJ](t, s.pass(5*time.Second)); x.Reason != mad.Timeout ||
		x.About != mad.AboutREP || x.LocalID != r.LocalID || x.RemoteID != r.RemoteID {
		t.Errorf("%+v", x)
	}
	s.happened(EventUnreachable)
	c.Close(s.now)
	s.over()

	s = newSUT(t)
	s.listens(service)
	c, _ = s.asked()
	r = s.accepts(c)
	if err := c.Established(s.now); err != nil {
		t.Error(err)
	}
	s.happened(EventEstablished)
	silent(t, "the peer is there", s.pass(time.Minute))
	rtu := &mad.RTU{LocalID: r.RemoteID, RemoteID: r.LocalID}
	silent(t, "RTU", s.says(rtu))
	silent(t, "again", s.says(rtu))
	rtu.RemoteID++
	silent(t, "of another", s.says(rtu))
	s.nothing("RTUs")
}

// A REQ that comes again makes nothing new, whatever has become of the first: RCM-021, 039
// (ROCE-208).
func TestREQAgain(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	c, q := s.asked()
	m := only[*mad.MRA](t, s.says(q))
	if m.About != mad.AboutREQ || m.ServiceTimeout != 24 || m.RemoteID != q.LocalID {
		t.Errorf("%+v", m)
	}
	s.nothing("the program has it")
	r := s.accepts(c)
	if x := only[*mad.REP](t, s.says(q)); x.LocalID != r.LocalID || x.StartingPSN != r.StartingPSN {
		t.Errorf("%+v", x)
	}
	s.says(&mad.RTU{LocalID: r.RemoteID, RemoteID: r.LocalID})
	s.happened(EventEstablished)
	silent(t, "connected", s.says(q))
	s.says(&mad.DREQ{LocalID: r.RemoteID, RemoteID: r.LocalID, RemoteQPN: sutQPN})
	s.happened(EventDisconnected)
	silent(t, "over", s.says(q))
	s.nothing("over")

	c, q = s.asked()
	if err := c.Reject(s.now, []byte("no")); err != nil {
		t.Fatal(err)
	}
	for _, all := range [][]mad.Message{s.said(two), s.says(q)} {
		if x := only[*mad.REJ](t, all); x.Reason != mad.ConsumerRejection || x.RemoteID != q.LocalID ||
			!bytes.HasPrefix(x.PrivateData, []byte("no\x00")) {
			t.Errorf("%+v", x)
		}
	}
	s.nothing("rejected")
	if x := s.Stats(); x.Duplicates[0] != 5 {
		t.Errorf("%+v", x)
	}
}

// A peer that uses its QP anew has lost the connection that it had: RCM-022.
func TestStale(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	_, r, q := s.passive()
	s.pass(4096 << 18)
	again := s.req()
	again.QPN = q.QPN
	all := s.says(again)
	if len(all) != 2 {
		t.Fatalf("said %+v", all)
	}
	if x := only[*mad.REJ](t, all[:1]); x.Reason != mad.StaleConnection ||
		x.RemoteID != again.LocalID {
		t.Errorf("%+v", x)
	}
	if x := only[*mad.DREQ](t, all[1:]); x.LocalID != r.LocalID || x.RemoteQPN != q.QPN {
		t.Errorf("%+v", x)
	}
	s.says(&mad.DREP{LocalID: r.RemoteID, RemoteID: r.LocalID})
	s.happened(EventDisconnected)
	again.LocalID++
	s.says(again)
	c := s.happened(EventRequest).Conn

	s.pass(4096 << 18)
	again.LocalID++ // and in the middle of a request
	if x := only[*mad.REJ](t, s.says(again)); x.Reason != mad.StaleConnection {
		t.Errorf("%+v", x)
	}
	if e := s.happened(EventRejected); e.Conn != c || e.Reason != mad.StaleConnection {
		t.Errorf("%+v", e)
	}
	again.LocalID++
	s.says(again)
	s.happened(EventRequest)

	s = newSUT(t) // the peer's REP names a QP that it is connected with
	c, x := s.active()
	n, q2 := s.connects()
	y := s.rep(q2)
	y.QPN = x.QPN
	if all := s.says(y); len(all) != 2 || all[0].(*mad.DREQ).RemoteID != x.LocalID ||
		all[1].(*mad.REJ).Reason != mad.StaleConnection {
		t.Errorf("said %+v", all)
	}
	if e := s.happened(EventRejected); e.Conn != n {
		t.Errorf("%+v", e)
	}
	s.says(&mad.DREP{LocalID: x.LocalID, RemoteID: x.RemoteID})
	if e := s.happened(EventDisconnected); e.Conn != c {
		t.Errorf("%+v", e)
	}
}

// A request may come behind the next one of its QP, and is then none of today: RCM-022.
func TestLateREQ(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	late := s.req()
	_, _, q := s.passive()
	late.QPN = q.QPN
	s.pass(4096<<18 - 1)
	silent(t, "late", s.says(late))
	s.nothing("late")
	s.pass(1) // no packet is under way for as long
	if all := s.says(late); len(all) != 2 || all[0].(*mad.REJ).Reason != mad.StaleConnection {
		t.Errorf("said %+v", all)
	}
}

// A peer that is slow says so, and is waited for: RCM-038.
func TestMRA(t *testing.T) {
	s := newSUT(t)
	_, q := s.connects()
	s.says(&mad.MRA{LocalID: 5, RemoteID: q.LocalID, About: mad.AboutREQ, ServiceTimeout: 23})
	silent(t, "34 s", s.pass(35*time.Second))
	only[*mad.REQ](t, s.pass(time.Second))
	for _, wrong := range []*mad.MRA{
		{LocalID: 5, RemoteID: q.LocalID, About: mad.AboutREP, ServiceTimeout: 23},
		{LocalID: 5, RemoteID: q.LocalID + 1, ServiceTimeout: 23},
	} {
		silent(t, "", s.says(wrong))
	}
	only[*mad.REQ](t, s.pass(7*time.Second))
	s.says(&mad.MRA{RemoteID: q.LocalID, ServiceTimeout: 31}) // hours are too much
	only[*mad.REQ](t, s.pass(139*time.Second))
	s.says(&mad.MRA{RemoteID: q.LocalID, ServiceTimeout: 0}) // and it does not shorten anything
	silent(t, "too early", s.pass(6*time.Second))
	s.says(s.rep(q))
	s.happened(EventReplied)

	s = newSUT(t)
	s.listens(service)
	c, q := s.asked()
	r := s.accepts(c)
	s.says(&mad.MRA{LocalID: q.LocalID, RemoteID: r.LocalID, About: mad.AboutREP, ServiceTimeout: 23})
	silent(t, "34 s", s.pass(35*time.Second))
	only[*mad.REP](t, s.pass(time.Second))
}

// What a REJ does, in each state, and when it does nothing: RCM-034, 035, 036, 044.
func TestREJ(t *testing.T) {
	for _, reason := range []mad.Reason{8, 10, 26, 28, 0xffff} {
		s := newSUT(t)
		_, q := s.connects()
		x := &mad.REJ{LocalID: 3, RemoteID: q.LocalID, Reason: reason, PrivateData: []byte("why")}
		silent(t, "a REJ is not answered", s.says(x))
		if e := s.happened(EventRejected); e.Reason != reason || len(e.PrivateData) != 148 ||
			!bytes.HasPrefix(e.PrivateData, []byte("why\x00")) {
			t.Errorf("%+v", e)
		}
		silent(t, "again", s.says(x))
		s.nothing("again")
		s.over()
	}
	s := newSUT(t)
	s.listens(service)
	c, q := s.asked() // the peer gives up, and knows no id of ours
	x := &mad.REJ{LocalID: q.LocalID, Reason: mad.Timeout, InfoLen: 8, Info: []byte{7: 1}}
	silent(t, "another device", s.says(x))
	s.nothing("another device")
	x.Info = []byte{6: 0x22, 7: 0x22}
	silent(t, "", s.says(x))
	s.happened(EventRejected)
	if err := c.Accept(s.now, &Reply{}); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	silent(t, "a late copy of its REQ", s.says(q))
	s.nothing("a late copy of its REQ")

	c, _ = s.asked()
	r := s.accepts(c)
	x = &mad.REJ{LocalID: r.RemoteID, RemoteID: r.LocalID, About: mad.AboutREP, Reason: 28}
	silent(t, "", s.says(x))
	s.happened(EventRejected)
	c.Close(s.now)

	_, r, _ = s.passive()
	for _, wrong := range []*mad.REJ{
		{LocalID: r.RemoteID, RemoteID: r.LocalID, About: mad.AboutREQ, Reason: 28},
		{LocalID: r.RemoteID, RemoteID: r.LocalID, About: mad.AboutREP, Reason: mad.InvalidCommID},
		{LocalID: r.RemoteID + 1, RemoteID: r.LocalID, About: mad.AboutOther, Reason: 28},
	} {
		silent(t, "", s.says(wrong))
		s.nothing("not for this state")
	}
	x = &mad.REJ{LocalID: r.RemoteID, RemoteID: r.LocalID, About: mad.AboutOther, Reason: 28}
	s.from = three
	silent(t, "", s.says(x))
	s.nothing("from elsewhere")
	s.from = two
	silent(t, "", s.says(x))
	s.happened(EventRejected)
	s.pass(10 * time.Second)
	s.happened(EventTimeWaitOver)
	s.over()
}
