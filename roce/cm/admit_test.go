package cm_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// replies is how many REPs are said in d, unasked.
func (s *sut) replies(d time.Duration) (n int) {
	s.t.Helper()
	for ; d > 0; d -= time.Second {
		for _, m := range s.pass(time.Second) {
			if _, ok := m.(*mad.REP); ok {
				n++
			}
		}
	}
	return n
}

// Where a REQ has come from nobody has shown: who has not used an id of ours is sent so many REPs
// unasked as one connection takes, however many REQs have come in its name. One that answers a
// single one is sent all that are due (ROCE-209, 212, RCM-027).
func TestForgedREQ(t *testing.T) {
	forged := func(s *sut) (last *mad.REP) {
		s.listens(service)
		for range 8 {
			c, _ := s.asked()
			last = s.accepts(c)
		}
		return last
	}
	s := newSUT(t)
	forged(s)
	if n := s.replies(5 * time.Minute); n != 15 {
		t.Errorf("8 forged REQs draw %d REPs beside the first ones, want 15", n)
	}
	s.Events()
	s.over()

	s = newSUT(t)
	r := forged(s)
	s.says(&mad.RTU{LocalID: r.RemoteID, RemoteID: r.LocalID})
	s.happened(EventEstablished)
	if n := s.replies(5 * time.Minute); n != 7*15 {
		t.Errorf("a peer that has answered once is sent %d REPs again, want %d", n, 7*15)
	}
}

// However many sources are forged, a peer that has a connection finds room for another one, and a
// stranger does again when what nobody has sent is given up (ROCE-207, 209).
func TestNeighboursInFlood(t *testing.T) {
	s := newSUT(t, func(c *Config) { c.MaxHalfOpen = 64 })
	if _, err := s.listen(service, one, 1000); err != nil {
		t.Fatal(err)
	}
	s.passive()
	forged := netip.MustParseAddr("10.1.0.0")
	for range 1000 {
		forged = forged.Next()
		s.from = forged
		silent(t, "a forged REQ", s.says(s.req()))
	}
	s.Events()
	s.from = three
	s.says(s.req())
	s.nothing("a stranger finds no room")
	s.from = two
	for range 8 {
		s.asked()
	}
	s.says(s.req())
	s.nothing("all places are taken")
	s.pass(3 * time.Minute)
	s.Events()
	s.from = three
	s.asked()
}

// A peer that asks for patience again and again is waited for once longer for each REQ that has
// gone out: Connect comes to an end (RCM-038).
func TestMRAWithoutEnd(t *testing.T) {
	s := newSUT(t)
	_, q := s.connects()
	begin := s.now
	asks := &mad.MRA{LocalID: 5, RemoteID: q.LocalID, ServiceTimeout: 31}
	for s.now.Sub(begin) < time.Hour {
		s.says(asks)
		s.pass(10 * time.Second)
		if e := s.Events(); len(e) > 0 {
			if e[0].Kind != EventUnreachable || !e[0].TimedOut {
				t.Errorf("%+v", e)
			}
			s.over()
			return
		}
	}
	t.Errorf("it waits for %v", s.now.Sub(begin))
}

// The listeners of one user have a bounded number of requests between them, and those of another
// find room beside them. What a user of the device asks counts for that user, not for the device's
// address, and what a peer has says so (ROCE-207, 209).
func TestAccounts(t *testing.T) {
	greedy, neighbour := &Account{Max: 3}, &Account{Max: 3}
	s := newSUT(t, func(c *Config) { c.MaxHalfOpen, c.MaxHalfOpenPerPeer = 8, 4 })
	other := Service{Space: mad.PortSpaceTCP, Port: 1}
	third := Service{Space: mad.PortSpaceTCP, Port: 2}
	for svc, a := range map[Service]*Account{service: greedy, other: greedy, third: neighbour} {
		if _, err := s.Listen(s.now, &ListenRequest{Service: svc, Addr: netip.IPv6Unspecified(),
			Backlog: 8, Account: a}); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(from string, svc Service) bool {
		s.from = netip.MustParseAddr(from)
		q := s.req()
		q.ServiceID = mad.ServiceID(svc.Space, svc.Port)
		silent(t, "a request", s.says(q))
		return len(s.Events()) == 1
	}
	for i, svc := range []Service{service, other, service, other, service} {
		if got := asks("10.0.1.1", svc); got != (i < 3) {
			t.Errorf("request %d to the first user is taken: %v", i, got)
		}
	}
	if !asks("10.0.1.2", third) {
		t.Error("another user's listener finds no room")
	}
	if r := s.Refusals(); r != (Refusals{Account: 2}) {
		t.Errorf("refused %+v", r)
	}
	for _, p := range s.Peers() {
		want := PeerLoad{Addr: netip.MustParseAddr("10.0.1.1"), HalfOpen: 3, Refused: 2}
		if p.Addr != want.Addr {
			want = PeerLoad{Addr: netip.MustParseAddr("10.0.1.2"), HalfOpen: 1}
		}
		if p != want {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	s.over()

	// Two users of this device: the second finds its share whole.
	s = newSUT(t, func(c *Config) { c.MaxHalfOpenPerPeer = 4 })
	s.listens(service)
	for _, a := range []*Account{greedy, neighbour} {
		for range 6 {
			if _, err := s.Connect(s.now, &Request{From: one, To: one, Service: service, QPN: s.id + 99,
				Account: a}); err != nil {
				t.Fatal(err)
			}
			s.id++
			for _, p := range s.Packets() {
				s.Receive(s.now, p.From, p.To, p.MAD)
			}
		}
	}
	for _, p := range s.Peers() {
		if p.Account == nil || p.HalfOpen != 4 || p.Refused != 2 {
			t.Errorf("%+v, want 4 of each user's", p)
		}
	}
	if n := len(s.Events()); n != 8 {
		t.Errorf("%d requests, want 4 of each user's", n)
	}
}

// A peer that gives up each request at once, as anybody can in its name, has no more of them told
// of than fit: their places are taken until the program has closed them, or for as long as a
// request is kept that nobody answers (ROCE-207, 209, RCM-023).
func TestGivenUpREQs(t *testing.T) {
	s := newSUT(t)
	l := s.listens(service)
	var first *mad.REQ // of those that came last
	asks := func(times int) (told []*Conn) {
		t.Helper()
		for n := range times {
			q := s.req()
			if n == 0 {
				first = q
			}
			silent(t, "a REQ", s.says(q))
			silent(t, "its end", s.says(&mad.REJ{LocalID: q.LocalID, Reason: mad.Timeout,
				Info: binary.BigEndian.AppendUint64(nil, q.GUID), InfoLen: 8}))
		}
		ended := 0
		for _, e := range s.Events() {
			if e.Kind == EventRequest {
				told = append(told, e.Conn)
			} else if ended++; e.Kind != EventRejected || e.Reason != mad.Timeout {
				t.Errorf("%+v", e)
			}
		}
		if ended != len(told) {
			t.Errorf("%d are told of, and the end of %d", len(told), ended)
		}
		return told
	}
	told := asks(100)
	if len(told) != 8 || l.Waiting() != 8 || s.Load().HalfOpen != 8 {
		t.Fatalf("%d are told of, %d wait, of a backlog of 8; %+v", len(told), l.Waiting(), s.Load())
	}
	if err := told[0].Accept(s.now, &Reply{}); !errors.Is(err, ErrState) {
		t.Errorf("one is accepted: %v", err)
	}
	for _, c := range told[:3] {
		c.Close(s.now)
	}
	silent(t, "those that are closed", s.said(two))
	if n := len(asks(100)); n != 3 {
		t.Errorf("3 were closed, %d more are told of", n)
	}
	for range 2 { // the program does not close them, and one comes again and again
		silent(t, "the same REQ", s.says(first))
		s.pass(time.Minute)
	}
	if n := len(asks(100)); n != 8 {
		t.Errorf("%d are told of later", n)
	}
	told[7].Close(s.now) // which has gone
	s.pass(time.Hour)
	s.over()
}
