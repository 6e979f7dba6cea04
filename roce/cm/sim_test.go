package cm_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation with this seed only")
	seedsFlag = flag.Int("seeds", 30, "how many seeds the simulation runs with")
)

// A sim is three devices over a network that loses, doubles, delays and reorders. Programs on them
// connect to each other and to themselves, accept, reject, are slow, and go away in the middle.
type sim struct {
	t     *testing.T
	rand  *rand.Rand
	now   time.Time
	ends  [3]simEnd
	sky   []simFlight
	doing []simCall
	loss  float64
	dup   float64
	jump  time.Duration
	tries int
	next  uint64 // attempt
	qpn   uint32
	all   []*simTry
}

type simEnd struct {
	*Manager
	addr netip.Addr
}

type simFlight struct {
	due time.Time
	p   Packet
}

type simCall struct {
	due time.Time
	f   func()
}

// A simTry is an attempt to connect, or to look up, as its two programs have seen it.
type simTry struct {
	n             uint64
	a, p          *Conn
	attrA, attrP  Attr
	asked         int // requests that have come of it
	over          int // ends of the attempt at its active end
	established   [2]bool
	told          bool // the active end, of what it has done itself
	disconnected  [2]int
	timeWaits     [2]int
	closed        [2]bool
	accepted      bool
	lookup, found bool
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, rand: rand.New(rand.NewPCG(seed, 3)), now: epoch, tries: 60, qpn: 100}
	rates := []float64{0, 0.05, 0.2, 0.5}
	s.loss, s.dup = rates[s.rand.IntN(4)], rates[s.rand.IntN(3)]
	s.jump = []time.Duration{0, time.Millisecond, time.Second}[s.rand.IntN(3)]
	for i := range s.ends {
		cfg := config(seed*8 + uint64(i))
		cfg.GUID = uint64(i + 1)
		e := &s.ends[i]
		e.Manager, e.addr = New(cfg), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		for _, svc := range []Service{service, lookups} {
			r := &ListenRequest{Service: svc, Addr: e.addr, Backlog: 3}
			if _, err := e.Listen(s.now, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// later calls f in at most most.
func (s *sim) later(most time.Duration, f func()) {
	s.doing = append(s.doing, simCall{s.now.Add(time.Duration(s.rand.Int64N(int64(most)))), f})
}

func (s *sim) begin() {
	e, to := &s.ends[s.rand.IntN(3)], &s.ends[s.rand.IntN(3)]
	s.next++
	x := &simTry{n: s.next, lookup: s.rand.IntN(4) == 0}
	s.all = append(s.all, x)
	private := binary.BigEndian.AppendUint64(nil, x.n)
	if x.lookup {
		l, err := e.Lookup(s.now, &LookupRequest{From: e.addr, To: to.addr, Service: lookups,
			PrivateData: private})
		if err != nil {
			s.t.Fatal(err)
		}
		l.Owner = x
		return
	}
	s.qpn++
	c, err := e.Connect(s.now, &Request{From: e.addr, To: to.addr, Service: service, QPN: s.qpn,
		ResponderResources: 4, InitiatorDepth: 8, Retries: 7, PrivateData: private})
	if err != nil {
		s.t.Fatal(err)
	}
	c.Owner, x.a = x, c
	if s.rand.IntN(8) == 0 {
		s.later(30*time.Second, func() { s.close(x, 0) })
	}
}

func (s *sim) conn(x *simTry, end int) *Conn { return []*Conn{x.a, x.p}[end] }

func (s *sim) close(x *simTry, end int) {
	x.closed[end] = true
	s.conn(x, end).Close(s.now)
}

// happens is what a program does about an event.
func (s *sim) happens(e Event) {
	switch e.Kind {
	case EventRequest:
		x := s.all[binary.BigEndian.Uint64(e.PrivateData)-1]
		if x.asked++; x.asked > 1 {
			// All that the first request was answered by was lost, for minutes.
			if s.loss < 0.5 || x.established[1] {
				s.t.Fatalf("attempt %d: asked twice", x.n)
			}
			x.p.Close(s.now)
			x.closed[1], x.disconnected[1], x.timeWaits[1] = false, 0, 0
		}
		x.p, e.Conn.Owner = e.Conn, x
		s.later([]time.Duration{time.Second, 90 * time.Second}[s.rand.IntN(2)], func() { s.answer(x) })
		return
	case EventAsked:
		x := s.all[binary.BigEndian.Uint64(e.PrivateData)-1]
		s.later(20*time.Second, func() {
			_ = e.Query.Answer(s.now, &Answer{QPN: uint32(x.n), QKey: 7}) // the peer may have given up
		})
		return
	case EventFound:
		x := e.Lookup.Owner.(*simTry)
		x.over++
		if x.found = true; e.Status != mad.SIDRValid || e.QPN != uint32(x.n) {
			s.t.Fatalf("attempt %d: found %+v", x.n, e)
		}
		return
	case EventUnreachable:
		if e.Lookup != nil {
			e.Lookup.Owner.(*simTry).over++
			return
		}
	default:
	}
	x := e.Conn.Owner.(*simTry)
	end := 0
	if e.Conn == x.p {
		end = 1
	}
	if x.closed[end] {
		s.t.Fatalf("attempt %d: end %d is told of %d behind Close", x.n, end, e.Kind)
	}
	switch e.Kind {
	case EventReplied:
		x.over++
		x.attrA = e.Conn.Attr(nil)
		if binary.BigEndian.Uint64(e.PrivateData) != x.n || !x.accepted {
			s.t.Fatalf("attempt %d: replied %+v", x.n, e)
		}
		if s.rand.IntN(10) == 0 { // its QP cannot be made ready
			s.close(x, 0)
			return
		}
		s.up(x, 0)
	case EventEstablished:
		if !x.established[0] {
			s.t.Fatalf("attempt %d is established, but for who has asked", x.n)
		}
		if end == 0 {
			if x.told {
				s.t.Fatalf("attempt %d: who has asked is told twice", x.n)
			}
			x.told = true
			return
		}
		s.up(x, 1)
	case EventRejected, EventUnreachable:
		if end == 0 && !x.established[0] {
			x.over++
		}
		s.down(x, end)
	case EventDisconnected:
		if x.disconnected[end]++; x.disconnected[end] > 1 || !x.accepted {
			s.t.Fatalf("attempt %d: end %d is disconnected", x.n, end)
		}
		s.down(x, end)
	case EventTimeWaitOver:
		if x.timeWaits[end]++; x.timeWaits[end] > 1 {
			s.t.Fatalf("attempt %d: end %d has waited twice", x.n, end)
		}
	default:
		s.t.Fatalf("attempt %d: %+v", x.n, e)
	}
}

func (s *sim) answer(x *simTry) {
	if s.rand.IntN(5) == 0 {
		if x.p.Reject(s.now, nil) == nil {
			x.closed[1] = true
		}
		return
	}
	s.qpn++
	reply := &Reply{QPN: s.qpn, ResponderResources: 5, InitiatorDepth: 2,
		PrivateData: binary.BigEndian.AppendUint64(nil, x.n)}
	a := x.p.Attr(reply)
	if x.p.Accept(s.now, reply) != nil {
		return // the peer has given up
	}
	x.attrP, x.accepted = a, true
	if s.rand.IntN(8) == 0 {
		s.later(10*time.Second, func() { s.close(x, 1) })
	}
}

// up is the beginning of a connection at one of its ends.
func (s *sim) up(x *simTry, end int) {
	if x.established[end] {
		s.t.Fatalf("attempt %d: end %d is established twice", x.n, end)
	}
	x.established[end] = true
	c := s.conn(x, end)
	if end == 0 {
		if err := c.Ready(s.now, nil); err != nil {
			s.t.Fatal(err)
		}
		a, p := x.attrA, x.attrP
		if a.RQPSN != p.SQPSN || a.SQPSN != p.RQPSN || a.MaxRead != p.MaxDestRead ||
			a.MaxDestRead != p.MaxRead || a.Local != p.Remote || a.Remote != p.Local ||
			a.PathMTU != p.PathMTU || a.MaxRead != 5 || a.MaxDestRead != 2 {
			s.t.Fatalf("attempt %d: the ends are %+v and %+v", x.n, a, p)
		}
		if s.rand.IntN(2) == 0 { // data, which can come before the RTU
			s.later(5*time.Second, func() { _ = x.p.Established(s.now) })
		}
	}
	s.later(2*time.Minute, func() {
		if s.rand.IntN(4) == 0 {
			s.close(x, end)
			return
		}
		_ = c.Disconnect(s.now) // it may be over
	})
}

// down is the end of it.
func (s *sim) down(x *simTry, end int) {
	s.later(10*time.Second, func() {
		_ = s.conn(x, end).Disconnect(s.now)
		if s.rand.IntN(2) == 0 {
			s.close(x, end)
		}
	})
}

// Whatever the network does, both ends come to the same, or learn that they have not, and nothing
// is left of it: RCM-021, 024, 027, 040, 042, 045, 048, 049, 054, 064.
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		newSim(t, *seedFlag).run()
		return
	}
	for seed := range uint64(*seedsFlag) {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) { newSim(t, seed+1).run() })
	}
}

func (s *sim) run() {
	for range s.tries {
		s.later(5*time.Minute, s.begin)
	}
	for steps := 0; s.move(); steps++ {
		if steps > 100000 {
			s.t.Fatal("it does not end")
		}
	}
	if took := s.now.Sub(epoch); took > 40*time.Minute {
		s.t.Errorf("it has taken %v", took)
	}
	for i := range s.ends {
		if l := s.ends[i].Load(); l != (Load{}) {
			s.t.Errorf("device %d has %+v left", i, l)
		}
	}
	for _, x := range s.all {
		if x.over != 1 && !x.closed[0] || x.over > 1 {
			s.t.Errorf("attempt %d has ended %d times", x.n, x.over)
		}
		for end := range 2 {
			if !x.established[end] || x.closed[end] {
				continue
			}
			if x.timeWaits[end] != 1 {
				s.t.Errorf("attempt %d: end %d has waited %d times", x.n, end, x.timeWaits[end])
			}
		}
		if s.loss < 0.5 && x.established[0] && !x.closed[0] && !x.closed[1] && !x.established[1] {
			s.t.Errorf("attempt %d: one end only is established", x.n)
		}
	}
}

// move sends, delivers and calls what is due; false: nothing is left.
func (s *sim) move() bool {
	for quiet := false; !quiet; {
		quiet = true
		for i := range s.ends {
			e := &s.ends[i]
			for _, p := range e.Packets() {
				s.send(e, p)
			}
			for _, ev := range e.Events() {
				s.happens(ev)
				quiet = false
			}
		}
	}
	return s.pass()
}

func (s *sim) send(e *simEnd, p Packet) {
	if p.From != e.addr {
		s.t.Fatalf("%v sends as %v", e.addr, p.From)
	}
	for s.rand.Float64() >= s.loss {
		due := s.now.Add(time.Millisecond)
		if s.jump > 0 {
			due = due.Add(time.Duration(s.rand.Int64N(int64(s.jump))))
		}
		p.MAD = bytes.Clone(p.MAD)
		s.sky = append(s.sky, simFlight{due, p})
		if s.rand.Float64() >= s.dup {
			break
		}
	}
}

// pass goes on to the next thing that happens.
func (s *sim) pass() bool {
	slices.SortStableFunc(s.sky, func(a, b simFlight) int { return a.due.Compare(b.due) })
	slices.SortStableFunc(s.doing, func(a, b simCall) int { return a.due.Compare(b.due) })
	var next time.Time
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if len(s.sky) > 0 {
		sooner(s.sky[0].due)
	}
	if len(s.doing) > 0 {
		sooner(s.doing[0].due)
	}
	for i := range s.ends {
		if at, ok := s.ends[i].Deadline(); ok {
			sooner(at)
		}
	}
	if next.IsZero() {
		return false
	}
	if next.After(s.now) {
		s.now = next
	}
	switch {
	case len(s.sky) > 0 && !s.sky[0].due.After(s.now):
		f := s.sky[0]
		s.sky = s.sky[1:]
		for i := range s.ends {
			if e := &s.ends[i]; e.addr == f.p.To {
				e.Receive(s.now, f.p.From, f.p.To, f.p.MAD)
			}
		}
	case len(s.doing) > 0 && !s.doing[0].due.After(s.now):
		f := s.doing[0].f
		s.doing = s.doing[1:]
		f()
	}
	for i := range s.ends {
		s.ends[i].Expire(s.now)
	}
	return true
}
