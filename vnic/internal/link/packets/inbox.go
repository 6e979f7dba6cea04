package packets

import (
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
)

// inboxMost bounds the packets that wait for a QP that is being run, and inboxOctets their octets:
// beyond them they are lost, and sent again.
const (
	inboxMost   = 1024
	inboxOctets = 2 << 20
)

// An Inbox has the packets that came for a QP while somebody ran it. Any goroutine may put one in;
// the QP's owner takes them.
type Inbox struct {
	some atomic.Bool // there is one

	mu     sync.Mutex
	closed bool      // +checklocks:mu
	octets int       // +checklocks:mu
	in     []waiting // +checklocks:mu
	out    []waiting // the owner's: what it took last
}

// A waiting packet, from the BTH on.
type waiting struct {
	b    []byte
	kept interface{ Release() } // whose b is; nil: copied is
	own  *[]byte

	marked bool // it has experienced congestion
}

// copies are buffers for packets whose memory cannot be kept.
var copies = sync.Pool{New: func() any { return new([]byte) }}

func (w *waiting) free() {
	if w.kept != nil {
		w.kept.Release()
	} else {
		copies.Put(w.own)
	}
	*w = waiting{}
}

// Put adds p; false: there is no room.
func (x *Inbox) Put(p *datagram.Packet) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || len(x.in) >= inboxMost || x.octets+len(p.Datagram) > inboxOctets {
		return false
	}
	w := waiting{b: p.Datagram, kept: p.Keep(), marked: p.TrafficClass()&udp.ECNMask == udp.CE}
	if w.kept == nil {
		w.own = copies.Get().(*[]byte)
		*w.own = append((*w.own)[:0], p.Datagram...)
		w.b = *w.own
	}
	x.in = append(x.in, w)
	x.octets += len(w.b)
	x.some.Store(true)
	return true
}

// take takes all that is there. What is returned is good until the next call.
func (x *Inbox) take() []waiting {
	if !x.some.Load() {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.some.Store(false)
	x.in, x.out = x.out[:0], x.in
	x.octets = 0
	return x.out
}

// close drops what is there, and what comes.
func (x *Inbox) close() {
	x.mu.Lock()
	x.closed = true
	in := x.in
	x.in = nil
	x.mu.Unlock()
	for i := range in {
		in[i].free()
	}
}
