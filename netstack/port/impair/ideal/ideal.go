// Package ideal is a sender that knows of each frame whether it is lost or only late, and takes no
// time for anything; its window is CUBIC's (RFC 9438). What it gets over a bad network is what that
// leaves to a sender without faults: tests hold TCP and SCTP against it.
package ideal

import (
	"container/heap"
	"math"
	"time"

	"github.com/vrnic/vrnic/netstack/port/impair"
)

const (
	payload  = 1448 // octets of a segment
	frameLen = 1514
	ackLen   = 66

	initialWindow = 10
	leastTimeout  = 200 * time.Millisecond
	mostTimeout   = 60 * time.Second

	cubicC, beta = 0.4, 0.7
)

// Goodput is how many Mbit/s of payload arrive over c's network: in length, behind c.WarmUp.
func Goodput(c impair.Cell, seed uint64, length time.Duration) float64 {
	schedule := c.Schedule(seed)
	s := &sender{out: schedule.Link(1), back: schedule.Link(2), cwnd: initialWindow,
		threshold: math.Inf(1)}
	from := c.WarmUp()
	s.send()
	before := 0
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(event)
		if e.at >= from && before == 0 {
			before = s.arrived + 1
		}
		if e.at >= from+length {
			break
		}
		s.now = e.at
		e.run(s)
	}
	return float64(s.arrived+1-before) * payload * 8 / length.Seconds() / 1e6
}

// A sender is both ends. Segments have numbers, as have transmissions.
type sender struct {
	out, back *impair.Link
	now       time.Duration
	events    events
	made      int // events

	next  int // segment
	acked []bool
	una   int   // all segments before are acked
	again []int // segments to be sent again
	sent  []transmission
	known int // of all transmissions before it is known what has become of them

	came    []bool // segments at the receiver
	arrived int
	log     []int // transmissions, as they have come to the receiver
	read    int   // of these the sender has heard

	flight          int
	cwnd, threshold float64 // segments
	recover         int     // while una is before it, a window was cut for losses
	timeouts        int     // in a row
	timer           int     // of those that were set, the one that counts

	epoch               time.Duration
	began               bool
	most, k, reno, last float64
	srtt                time.Duration
}

type transmission struct {
	segment    int
	at         time.Duration
	lost, done bool
}

// send sends what the window allows.
func (s *sender) send() {
	for float64(s.flight) < s.cwnd {
		segment := s.next
		if len(s.again) > 0 {
			segment = s.again[0]
			s.again = s.again[1:]
			if s.acked[segment] {
				continue
			}
		} else {
			s.next++
			s.acked, s.came = append(s.acked, false), append(s.came, false)
		}
		s.transmit(segment)
	}
}

func (s *sender) transmit(segment int) {
	n := len(s.sent)
	f := s.out.Carry(s.now, frameLen)
	s.sent = append(s.sent, transmission{segment: segment, at: s.now, lost: f.Copies == 0})
	s.flight++
	if f.Copies > 0 {
		s.at(f.At[0], func(s *sender) { s.receive(n) })
	}
	s.setTimer()
}

// receive is the receiver's part: it acknowledges each frame with all that it has.
func (s *sender) receive(n int) {
	if segment := s.sent[n].segment; !s.came[segment] {
		s.came[segment] = true
		s.arrived++
	}
	s.log = append(s.log, n)
	end := len(s.log)
	if f := s.back.Carry(s.now, ackLen); f.Copies > 0 {
		s.at(f.At[0], func(s *sender) { s.hear(end) })
	}
}

// hear is told of the first end entries of the receiver's log.
func (s *sender) hear(end int) {
	if end <= s.read {
		return
	}
	fresh, latest := 0, s.known
	for _, n := range s.log[s.read:end] {
		t := &s.sent[n]
		if !t.done {
			t.done = true
			s.flight--
		}
		if !s.acked[t.segment] {
			s.acked[t.segment] = true
			fresh++
		}
		if n >= latest {
			latest, s.srtt = n+1, s.now-t.at
		}
	}
	s.read, s.timeouts = end, 0
	for ; s.known < latest; s.known++ {
		s.missed(s.known)
	}
	for s.una < s.next && s.acked[s.una] {
		s.una++
	}
	if s.una >= s.recover {
		s.grow(float64(fresh))
	}
	s.setTimer()
	s.send()
}

// missed looks at a transmission, behind which another one has arrived.
func (s *sender) missed(n int) {
	t := &s.sent[n]
	if t.done || !t.lost {
		return
	}
	t.done = true
	s.flight--
	s.again = append(s.again, t.segment)
	if t.segment >= s.recover {
		s.shrink()
	}
}

func (s *sender) shrink() {
	s.recover, s.began, s.last = s.next, false, s.cwnd
	if s.cwnd < s.most {
		s.most = s.cwnd * (1 + beta) / 2
	} else {
		s.most = s.cwnd
	}
	s.threshold = max(s.cwnd*beta, 2)
	s.cwnd = s.threshold
}

func (s *sender) grow(segments float64) {
	if s.cwnd < s.threshold {
		s.cwnd += segments
		return
	}
	if !s.began {
		s.began, s.epoch, s.reno = true, s.now, s.cwnd
		s.most = max(s.most, s.cwnd)
		s.k = math.Cbrt((s.most - s.cwnd) / cubicC)
	}
	at := func(t time.Duration) float64 {
		d := t.Seconds() - s.k
		return cubicC*d*d*d + s.most
	}
	alpha := 3 * (1 - beta) / (1 + beta)
	if s.reno >= s.last {
		alpha = 1
	}
	s.reno += alpha * segments / s.cwnd
	if at(s.now-s.epoch) < s.reno {
		s.cwnd = max(s.cwnd, s.reno)
		return
	}
	target := min(max(at(s.now-s.epoch+s.srtt), s.cwnd), 1.5*s.cwnd)
	s.cwnd += (target - s.cwnd) / s.cwnd * segments
}

// setTimer has the time until a probe, or behind that until a timeout, begin anew.
func (s *sender) setTimer() {
	s.timer++
	n := s.timer
	wait := min((leastTimeout+s.srtt)<<max(s.timeouts-1, 0), mostTimeout)
	if s.timeouts == 0 && s.srtt > 0 {
		wait = 2*s.srtt + 2*time.Millisecond
	}
	s.at(s.now+wait, func(s *sender) {
		if n == s.timer && s.flight > 0 {
			s.expire()
		}
	})
}

func (s *sender) expire() {
	s.timeouts++
	if s.timeouts == 1 && s.srtt > 0 {
		s.transmit(s.una)
		return
	}
	if s.una >= s.recover {
		s.shrink()
	}
	s.cwnd = 1
	s.threshold = max(s.threshold, 2)
	for n := s.known; n < len(s.sent); n++ {
		s.missed(n)
		s.sent[n].done = true
	}
	s.known, s.flight = len(s.sent), 0 // of what is not lost the ACKs are
	s.setTimer()
	s.send()
}

// An event is something that happens at a time.
type event struct {
	at  time.Duration
	n   int
	run func(*sender)
}

func (s *sender) at(t time.Duration, run func(*sender)) {
	s.made++
	heap.Push(&s.events, event{t, s.made, run})
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}
