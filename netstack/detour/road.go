package detour

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/vrnic/vrnic/netstack/port/impair"
)

// Directions of a Road: each has decisions of its own.
const (
	Out = 1
	In  = 2
)

// A Packet is one on its way.
type Packet struct {
	Octets []byte
	L3     int  // where in them the IP header begins; below 0: they have none
	From   int  // where what may have a wrong bit begins: not behind the last octet
	Wrong  bool // a bit of it is wrong: no checksum is to be believed
	// Arrive is called when it arrives, once: by the Road's goroutine or, if that is at once, by who
	// sends it. Octets are its own.
	Arrive func(*Packet)
}

// A Road is one direction of a path. Its methods may be called from several goroutines at once.
type Road struct {
	begun time.Time
	wake  chan struct{} // one slot
	stop  chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	lane   *impair.Lane         // +checklocks:mu
	queue  impair.Line[*Packet] // +checklocks:mu
	octets int                  // +checklocks:mu
	closed bool                 // +checklocks:mu
	busy   bool                 // guarded by mu: the goroutine has packets that are due
}

// maxOctets of packets are on their way at most, two seconds of a Gbit/s; what comes behind them
// finds no room, whatever the limit in packets is.
const maxOctets = 256 << 20

// full is more than any limit in packets.
const full = math.MaxInt32

// NewRoad is one direction of plan, whose time 0 is begun.
func NewRoad(plan *impair.Plan, direction uint64, begun time.Time) *Road {
	r := &Road{begun: begun, lane: plan.Lane(direction), wake: make(chan struct{}, 1),
		stop: make(chan struct{})}
	r.wg.Go(r.run)
	return r
}

// Close loses what is on its way. Behind it nothing arrives.
func (r *Road) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.stop)
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// Stats are what the Road has done, and how many packets are on their way.
func (r *Road) Stats() (s impair.Stats, waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lane.Stats(), r.queue.Len()
}

func (r *Road) now() time.Duration { return time.Since(r.begun) }

// Send takes p, which has at least one octet.
func (r *Road) Send(p *Packet) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	now := r.now()
	link := r.lane.Link(now)
	waiting := r.queue.Len()
	if r.octets+2*len(p.Octets) > maxOctets {
		waiting = full
	}
	f := link.CarryBehind(waiting, now, len(p.Octets))
	if f.Mark && !p.markCE() {
		link.Marked--
		if f.Lose {
			link.Lost++
			f.Copies = 0
		}
	}
	if f.Flip >= 0 && f.Copies > 0 {
		bit := 8*p.From + f.Flip%(8*(len(p.Octets)-p.From))
		p.Octets[bit/8] ^= 1 << (bit % 8)
		p.Wrong = true
	}
	var atOnce [2]*Packet
	wake := false
	for i, at := range f.At[:f.Copies] {
		q := p
		if i > 0 {
			again := *p
			again.Octets = slices.Clone(p.Octets)
			q = &again
		}
		next, some := r.queue.Next()
		if at <= now && !r.busy && (!some || next > at) {
			atOnce[i] = q
			continue
		}
		wake = wake || !some || at < next
		r.queue.Push(at, q)
		r.octets += len(q.Octets)
	}
	r.mu.Unlock()
	if wake {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	for _, q := range atOnce {
		if q != nil {
			q.Arrive(q)
		}
	}
}

// run has packets arrive that are due.
func (r *Road) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p, wait, some := r.due()
		switch {
		case p != nil:
			p.Arrive(p)
			continue
		case some && wait <= shortWait:
			nap(min(wait, longNap)) // another one may be due before it meanwhile
			continue
		case some:
			timer.Reset(wait - shortWait/2)
		default:
			timer.Stop()
		}
		select {
		case <-r.stop:
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// due is the next packet that is due or, if there is none, how long it is until one is; some: there
// is one.
func (r *Road) due() (p *Packet, wait time.Duration, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, 0, false
	}
	at, some := r.queue.Next()
	now := r.now()
	if r.busy = some && at <= now; r.busy {
		_, p = r.queue.Pop()
		r.octets -= len(p.Octets)
		return p, 0, true
	}
	return nil, at - now, some
}

// markCE has an IP packet say that it met congestion (RFC 3168, section 5); false: it is none, or
// its sender does not listen.
func (p *Packet) markCE() bool {
	if p.L3 < 0 {
		return false
	}
	const ecn, ce = 3, 3
	ip := p.Octets[min(p.L3, len(p.Octets)):]
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4:
		if ip[1]&ecn == 0 {
			return false
		}
		// RFC 1624: the checksum follows.
		was := binary.BigEndian.Uint16(ip)
		ip[1] |= ce
		sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(^was) +
			uint32(binary.BigEndian.Uint16(ip))
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
		return true
	case len(ip) >= 40 && ip[0]>>4 == 6:
		if ip[1]>>4&ecn == 0 {
			return false
		}
		ip[1] |= ce << 4
		return true
	}
	return false
}
