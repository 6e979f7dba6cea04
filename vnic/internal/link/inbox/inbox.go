// Package inbox has the packets that come for a queue pair while somebody runs it.
package inbox

import (
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
)

// A Budget bounds the memory that several Inboxes keep together.
type Budget struct {
	Max    int64
	Parent *Budget // what it is a part of, or nil

	used atomic.Int64
}

// Used is how much is kept at present.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) take(n int64) bool {
	if b == nil {
		return true
	}
	if b.used.Add(n) <= b.Max && b.Parent.take(n) {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *Budget) give(n int64) {
	for ; b != nil; b = b.Parent {
		b.used.Add(-n)
	}
}

// A Config says what an Inbox has room for: beyond that packets are lost.
type Config struct {
	Packets int
	Octets  int64 // of the memory that they keep, which may be more than they have
	Budget  *Budget
	Heads   bool // Packet.IP is asked for
}

// An Inbox has the packets that came for a QP while somebody ran it. Any goroutine may put one in;
// the QP's owner takes them.
type Inbox struct {
	cfg  Config
	some atomic.Bool // there is one

	mu     sync.Mutex
	closed bool  // +checklocks:mu
	octets int64 // +checklocks:mu
	// end is that of the memory which the newest lies in.
	end *byte    // +checklocks:mu
	in  []Packet // +checklocks:mu
	out []Packet // the owner's: what it took last
}

// New makes an Inbox.
func New(c Config) *Inbox { return &Inbox{cfg: c} }

// A Packet is one that has waited.
type Packet struct {
	Octets    []byte // from the BTH on
	Congested bool   // its mark says that it has experienced congestion

	head [roce.NetworkHeaderLen]byte
	// Whose Octets are, if they were not copied: of several packets in a row that lie in one piece of
	// memory it is the last that keeps it.
	kept datagram.Kept
	own  *[]byte // the copy
}

// copies are buffers for packets whose memory cannot be kept.
var copies = sync.Pool{New: func() any { return new([]byte) }}

// IP is the header of p.
func (p *Packet) IP() []byte {
	if p.head[0]>>4 == 6 {
		return p.head[:]
	}
	return p.head[roce.NetworkHeaderLen-udp.IPv4Len:]
}

// Free lets go of p, when those that were taken with it before it have been let go of.
func (p *Packet) Free() {
	switch {
	case p.kept != nil:
		p.kept.Release()
	case p.own != nil:
		copies.Put(p.own)
	}
	*p = Packet{}
}

// Put adds p; false: there is no room.
func (x *Inbox) Put(p *datagram.Packet) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || len(x.in) >= x.cfg.Packets {
		return false
	}
	w := Packet{Octets: p.Datagram, Congested: p.TrafficClass()&udp.ECNMask == udp.CE}
	var end *byte
	var size int
	if p.Owner != nil {
		end, size = p.Owner.Memory()
	}
	if end != nil && end == x.end {
		// Packets that came together often lie in one piece of memory, which is kept once.
		last := &x.in[len(x.in)-1]
		w.kept, last.kept = last.kept, nil
		size = 0
	} else if w.kept = p.Keep(); w.kept == nil {
		w.own = copies.Get().(*[]byte)
		*w.own = append((*w.own)[:0], p.Datagram...)
		w.Octets = *w.own
		end, size = nil, cap(w.Octets)
	}
	n := int64(size)
	if n > 0 && (x.octets+n > x.cfg.Octets || !x.cfg.Budget.take(n)) {
		w.Free()
		return false
	}
	if x.cfg.Heads {
		roce.NetworkHeader(&w.head, p.IP())
	}
	x.in = append(x.in, w)
	x.octets += n
	x.end = end
	x.some.Store(true)
	return true
}

// Some reports whether a packet waits. Any goroutine may ask.
func (x *Inbox) Some() bool { return x.some.Load() }

// Take takes all that is there; each one is to be freed. What is returned is good until the next
// call.
func (x *Inbox) Take() []Packet {
	if !x.some.Load() {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.some.Store(false)
	x.in, x.out = x.out[:0], x.in
	x.emptyLocked()
	return x.out
}

// +checklocks:x.mu
func (x *Inbox) emptyLocked() {
	x.cfg.Budget.give(x.octets)
	x.octets, x.end = 0, nil
}

// Close drops what is there, and what comes.
func (x *Inbox) Close() {
	x.mu.Lock()
	x.closed = true
	in := x.in
	x.in = nil
	x.emptyLocked()
	x.mu.Unlock()
	for i := range in {
		in[i].Free()
	}
}
