package cm_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// How a connection ends, by either side, once, and after which time its QP is free: RCM-007, 040,
// 043, 045, 047, 048, 049 (ROCE-212, 216).
func TestDisconnect(t *testing.T) {
	s := newSUT(t)
	c, r := s.active()
	if err := c.Disconnect(s.now); err != nil {
		t.Fatal(err)
	}
	d := only[*mad.DREQ](t, s.said(two))
	if d.LocalID != r.RemoteID || d.RemoteID != r.LocalID || d.RemoteQPN != rawQPN {
		t.Errorf("%+v", d)
	}
	s.nothing("the peer has not answered")
	drep := &mad.DREP{LocalID: r.LocalID, RemoteID: r.RemoteID}
	silent(t, "DREP", s.says(drep))
	s.happened(EventDisconnected)
	silent(t, "DREP again", s.says(drep))
	silent(t, "no timer but the last one", s.pass(2147*time.Millisecond))
	s.nothing("4.096 us * 2^19 are 2.147 s")
	s.pass(time.Millisecond)
	s.happened(EventTimeWaitOver)
	s.over()
	silent(t, "a DREP is not answered", s.says(drep))

	s = newSUT(t)
	s.listens(service)
	c, p, _ := s.passive()
	dreq := &mad.DREQ{LocalID: p.RemoteID, RemoteID: p.LocalID, RemoteQPN: sutQPN + 1}
	silent(t, "another QP", s.says(dreq))
	s.nothing("another QP")
	dreq.RemoteQPN = sutQPN
	s.Receive(s.now, two, one, mad.Append(nil, 77, dreq))
	tid, m, _ := mad.Parse(s.Packets()[0].MAD)
	if x := m.(*mad.DREP); tid != 77 || x.LocalID != p.LocalID || x.RemoteID != p.RemoteID {
		t.Errorf("transaction %d, %+v", tid, x)
	}
	s.happened(EventDisconnected)
	only[*mad.DREP](t, s.says(dreq)) // the first one was lost
	s.nothing("it is over")
	if err := c.Disconnect(s.now); err != nil {
		t.Fatal(err)
	}
	silent(t, "it is over", s.said(two))
	c.Close(s.now)
	s.over()
	only[*mad.DREP](t, s.says(dreq)) // nobody knows of it any more
	s.nothing("nobody knows of it")

	s = newSUT(t) // both at once
	c, r = s.active()
	if err := c.Disconnect(s.now); err != nil {
		t.Fatal(err)
	}
	only[*mad.DREQ](t, s.said(two))
	only[*mad.DREP](t, s.says(&mad.DREQ{LocalID: r.LocalID, RemoteID: r.RemoteID, RemoteQPN: sutQPN}))
	s.happened(EventDisconnected)
	silent(t, "", s.says(&mad.DREP{LocalID: r.LocalID, RemoteID: r.RemoteID}))
	s.nothing("once")
	c.Close(s.now)
	s.over()

	s = newSUT(t) // by the end that has accepted, before it knows that the peer is ready
	s.listens(service)
	c, _ = s.asked()
	p = s.accepts(c)
	only[*mad.DREP](t, s.says(&mad.DREQ{LocalID: p.RemoteID, RemoteID: p.LocalID, RemoteQPN: sutQPN}))
	if e := s.Events(); len(e) != 2 || e[0].Kind != EventEstablished ||
		e[1].Kind != EventDisconnected {
		t.Errorf("%+v", e)
	}
	c, _ = s.asked()
	p = s.accepts(c)
	if err := c.Disconnect(s.now); err != nil {
		t.Fatal(err)
	}
	if x := only[*mad.REJ](t, s.said(two)); x.About != mad.AboutOther || x.LocalID != p.LocalID {
		t.Errorf("%+v", x)
	}
	s.happened(EventDisconnected)
}

// A DREQ is repeated, for a bounded time: RCM-042.
func TestDREQTimeout(t *testing.T) {
	s := newSUT(t)
	c, _ := s.active()
	if err := c.Disconnect(s.now); err != nil {
		t.Fatal(err)
	}
	only[*mad.DREQ](t, s.said(two))
	for range 15 {
		only[*mad.DREQ](t, s.pass(7*time.Second))
	}
	silent(t, "it has been enough", s.pass(7*time.Second))
	if e := s.happened(EventDisconnected); !e.TimedOut {
		t.Errorf("%+v", e)
	}
	s.pass(3 * time.Second)
	s.happened(EventTimeWaitOver)
	s.over()
}

// A program that ends in any state has its peer learn it, and nothing is left: RCM-046.
func TestClose(t *testing.T) {
	for name, test := range map[string]struct {
		begin func(*sut) *Conn
		want  mad.Attribute
		about uint8
		why   mad.Reason
	}{
		"asking": {func(s *sut) *Conn { c, _ := s.connects(); return c }, mad.AttrREJ, mad.AboutREQ,
			mad.Timeout},
		"replied": {func(s *sut) *Conn {
			c, q := s.connects()
			s.says(s.rep(q))
			return c
		}, mad.AttrREJ, mad.AboutREP, mad.ConsumerRejection},
		"asked": {func(s *sut) *Conn { c, _ := s.asked(); return c }, mad.AttrREJ, mad.AboutREQ,
			mad.ConsumerRejection},
		"replying": {func(s *sut) *Conn {
			c, _ := s.asked()
			s.accepts(c)
			return c
		}, mad.AttrREJ, mad.AboutOther, mad.ConsumerRejection},
		"active":  {func(s *sut) *Conn { c, _ := s.active(); return c }, mad.AttrDREQ, 0, 0},
		"passive": {func(s *sut) *Conn { c, _, _ := s.passive(); return c }, mad.AttrDREQ, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSUT(t)
			s.listens(service)
			c := test.begin(s)
			s.Events()
			c.Close(s.now)
			all := s.said(two)
			if len(all) != 1 || all[0].Attribute() != test.want {
				t.Fatalf("said %+v", all)
			}
			if x, ok := all[0].(*mad.REJ); ok && (x.Reason != test.why || x.About != test.about) {
				t.Errorf("%+v", x)
			}
			c.Close(s.now)
			silent(t, "twice", s.said(two))
			s.over()
			s.nothing("nobody is there")
		})
	}
}

// A message of a connection acts from the address of its peer only: RCM-050 (ROCE-215).
func TestOtherAddress(t *testing.T) {
	s := newSUT(t)
	s.listens(service)
	_, p, q := s.passive()
	_, r := s.active()
	_, open := s.connects()
	own, peers := p.LocalID, p.RemoteID
	half, _ := s.asked()
	h := s.accepts(half)
	for _, m := range []mad.Message{
		&mad.DREQ{LocalID: peers, RemoteID: own, RemoteQPN: sutQPN},
		&mad.DREQ{LocalID: r.LocalID, RemoteID: r.RemoteID, RemoteQPN: sutQPN},
		&mad.DREP{LocalID: peers, RemoteID: own},
		&mad.REJ{LocalID: peers, RemoteID: own, About: mad.AboutOther, Reason: 28},
		&mad.REJ{RemoteID: open.LocalID, Reason: 8},
		&mad.MRA{RemoteID: open.LocalID, ServiceTimeout: 25},
		&mad.RTU{LocalID: h.RemoteID, RemoteID: h.LocalID},
		s.rep(open),
		&mad.REJ{LocalID: q.LocalID, Reason: mad.Timeout, Info: binary.BigEndian.AppendUint64(nil,
			rawGUID)},
	} {
		s.from = three
		silent(t, "from another address", s.says(m))
		s.nothing("from another address")
	}
}

// Ids and PSNs cannot be foretold, and none is given twice at a time: RCM-025 (ROCE-196).
func TestIDs(t *testing.T) {
	n := uint32(0)
	s := newSUT(t, func(c *Config) {
		c.Rand = func() uint32 { n++; return n / 8 } // each number many times, and 0
	})
	seen := map[uint32]bool{0: true}
	for range 100 {
		_, q := s.connects()
		if seen[q.LocalID] {
			t.Fatalf("id %d is there twice", q.LocalID)
		}
		seen[q.LocalID] = true
	}
	s = newSUT(t)
	s.listens(service)
	high := map[uint32]int{}
	for range 200 {
		c, q := s.connects()
		c.Close(s.now)
		high[q.StartingPSN>>20]++
		if q.StartingPSN > 0xffffff {
			t.Fatalf("PSN %#x", q.StartingPSN)
		}
		s.Packets()
		p, _ := s.asked()
		high[s.accepts(p).StartingPSN>>20]++
		p.Close(s.now)
		s.Packets()
	}
	if len(high) < 16 {
		t.Errorf("PSNs begin with %v", high)
	}
}

// A flood of REQs fills no more than the bounds, and others come through: RCM-023 (ROCE-207, 209).
func TestFlood(t *testing.T) {
	s := newSUT(t, func(c *Config) { c.MaxHalfOpen, c.MaxHalfOpenPerPeer = 100, 10 })
	l, err := s.listen(service, netip.IPv4Unspecified(), 64)
	if err != nil {
		t.Fatal(err)
	}
	for range 10000 {
		silent(t, "no answer for a flood", s.says(s.req()))
	}
	if n := len(s.Events()); n != 10 || l.Waiting() != 10 {
		t.Fatalf("%d requests, %d waiting", n, l.Waiting())
	}
	s.from = three
	c, _ := s.asked()
	s.from = netip.MustParseAddr("10.1.0.0")
	for range 10000 {
		s.from = s.from.Next()
		silent(t, "no answer for a flood", s.says(s.req()))
	}
	if x := s.Load(); x.HalfOpen != 88 || x.Conns != 88 || x.Peers > 88 {
		t.Errorf("%+v", x)
	}
	s.from = three
	r := s.accepts(c)
	s.says(&mad.RTU{LocalID: r.RemoteID, RemoteID: r.LocalID})
	if x := s.Load(); x.HalfOpen != 87 {
		t.Errorf("%+v", x)
	}
	if x := s.Stats(); x.Refused != 10000-10+10000-77 {
		t.Errorf("%d refused", x.Refused)
	}
	c.Close(s.now)
	s.over() // what nobody answers and nobody repeats does not stay

	s = newSUT(t) // one that has filled the backlog does not keep another out
	l, err = s.listen(service, one, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.asked()
	silent(t, "full", s.says(s.req()))
	s.from = three
	s.asked()
	s.from = netip.MustParseAddr("10.1.0.0")
	silent(t, "full", s.says(s.req()))
	s.nothing("full")
	if l.Waiting() != 2 {
		t.Errorf("%d waiting", l.Waiting())
	}
}

// What is over counts no longer for its peer, however it has ended and long before it is forgotten:
// requests that were given up half open, connections in time wait, look-ups. What is not over does
// (ROCE-207, 209).
func TestOverIsOver(t *testing.T) {
	s := newSUT(t, func(c *Config) { c.MaxPerPeer, c.MaxKept = 4, 30 })
	s.listens(service)
	s.listens(lookups)
	for range 20 {
		c, _ := s.asked()
		s.accepts(c)
		c.Close(s.now)
		only[*mad.REJ](t, s.said(two))
		c, _, _ = s.passive()
		c.Close(s.now)
		d := only[*mad.DREQ](t, s.said(two))
		s.says(&mad.DREP{LocalID: d.RemoteID, RemoteID: d.LocalID})
		s.says(s.sidr())
		if err := s.happened(EventAsked).Query.Answer(s.now, &Answer{}); err != nil {
			t.Fatal(err)
		}
		only[*mad.SIDRREP](t, s.said(two))
	}
	if p, x := s.Peers(), s.Load(); len(p) != 0 || x.Kept != 30 {
		t.Errorf("peers have %+v, %+v", p, x)
	}
	for range 4 {
		s.passive()
	}
	s.says(s.req())
	s.nothing("as many connections as may be")
	s.says(s.sidr())
	s.nothing("as many connections as may be")
}

// What is over is kept in a bounded number, and one peer has a bounded number in all (ROCE-207,
// 209).
func TestKept(t *testing.T) {
	s := newSUT(t, func(c *Config) { c.MaxKept, c.MaxPerPeer = 10, 50 })
	s.listens(service)
	s.listens(lookups)
	for range 100 {
		c, _ := s.asked()
		if err := c.Reject(s.now, nil); err != nil {
			t.Fatal(err)
		}
		s.Packets()
		s.says(s.sidr())
		if err := s.happened(EventAsked).Query.Answer(s.now, &Answer{}); err != nil {
			t.Fatal(err)
		}
		s.Packets()
		c, _, _ = s.passive()
		c.Close(s.now)
		d := only[*mad.DREQ](t, s.said(two))
		s.says(&mad.DREP{LocalID: d.RemoteID, RemoteID: d.LocalID})
		if x := s.Load(); x.Kept > 10 || x.Conns > 12 {
			t.Fatalf("%+v", x)
		}
	}
	s.over()
	for range 100 {
		s.says(s.req())
		for _, e := range s.Events() {
			s.accepts(e.Conn)
			e.Conn.Established(s.now)
		}
		s.Events()
	}
	if x := s.Load(); x.Conns != 50 || x.HalfOpen != 0 {
		t.Errorf("%+v", x)
	}
}
