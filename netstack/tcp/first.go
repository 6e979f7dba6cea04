package tcp

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// Whoever listens may want to know in which order those who connect have sent their first octets.
// gVisor handles connections in parallel, and gives them to Accept in any order; frames come one
// after the other. So the link keeps in mind what it has answered to a SYN, until octets come that
// acknowledge it, or one of both ends says that none will.

// maxExpected is how many connections are kept in mind; the oldest is forgotten for another one.
const maxExpected = 1024

// firstOctets are connections whose first octets have not come.
type firstOctets struct {
	n atomic.Int32 // of them

	mu        sync.Mutex
	m         map[flow]expected
	slots     [maxExpected]flow // in turn
	next      int               // +checklocks:mu
	listeners map[*Listener]func(remote netip.AddrPort)
	listening atomic.Bool // there is one
}

// An expected is such a connection.
type expected struct {
	ack  uint32 // what the peer has to acknowledge
	slot int
	l    *Listener
}

// listen has f called for connections to l.
func (s *firstOctets) listen(l *Listener, f func(remote netip.AddrPort)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m, s.listeners = make(map[flow]expected), make(map[*Listener]func(netip.AddrPort))
	}
	s.listeners[l] = f
	s.listening.Store(true)
}

// close has nothing more told to l.
func (s *firstOctets) close(l *Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners[l] == nil {
		return
	}
	delete(s.listeners, l)
	if len(s.listeners) == 0 {
		s.listening.Store(false)
		clear(s.m)
		s.n.Store(0)
	}
}

// sent looks at a packet that goes out.
func (s *firstOctets) sent(pkt *stack.PacketBuffer) {
	if !s.listening.Load() || pkt.TransportProtocolNumber != tcp.ProtocolNumber {
		return
	}
	t := header.TCP(pkt.TransportHeader().Slice())
	if len(t) < header.TCPMinimumSize {
		return
	}
	answer := t.Flags() == header.TCPFlagSyn|header.TCPFlagAck
	// Who has been refused, or has been waited for long enough, is told so.
	over := t.Flags()&(header.TCPFlagRst|header.TCPFlagFin) != 0 && s.n.Load() > 0
	if !answer && !over {
		return
	}
	f := flow{
		netip.AddrPortFrom(gvconv.GoAddr(pkt.EgressRoute.LocalAddress), t.SourcePort()),
		netip.AddrPortFrom(gvconv.GoAddr(pkt.EgressRoute.RemoteAddress), t.DestinationPort()),
	}
	if over {
		s.ended(f)
	} else {
		s.answered(f, t.SequenceNumber()+1)
	}
}

// ended forgets f, of which nothing will come any more.
func (s *firstOctets) ended(f flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(f)
}

func (s *firstOctets) forgetLocked(f flow) {
	delete(s.m, f)
	s.n.Store(int32(len(s.m)))
}

// answered keeps f in mind, whose peer will acknowledge ack.
func (s *firstOctets) answered(f flow, ack uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var to *Listener
	for l := range s.listeners {
		if a := l.addr; a.Port() == f.local.Port() && (a.Addr() == f.local.Addr() ||
			a.Addr().IsUnspecified() && a.Addr().Is4() == f.local.Addr().Is4()) {
			if to = l; !a.Addr().IsUnspecified() {
				break
			}
		}
	}
	if to == nil {
		return
	}
	slot := s.next
	if was, ok := s.m[f]; ok {
		slot = was.slot
	} else {
		if old := s.slots[slot]; s.m[old].slot == slot {
			delete(s.m, old)
		}
		s.slots[slot] = f
		s.next = (s.next + 1) % maxExpected
	}
	s.m[f] = expected{ack, slot, to}
	s.n.Store(int32(len(s.m)))
}

// received looks at a TCP packet that has come, before anybody else does.
func (s *firstOctets) received(p *frame.Packet) {
	if s.n.Load() == 0 {
		return
	}
	n, err := p.TCPHeaderLen()
	if err != nil {
		return
	}
	t := header.TCP(p.Headers[p.L4:])
	switch flags := t.Flags() & (header.TCPFlagAck | header.TCPFlagSyn | header.TCPFlagRst); {
	case flags&header.TCPFlagRst != 0:
		// TCP may pass over it; then the order is lost, and nothing else
		s.ended(flowOf(p))
		return
	case flags != header.TCPFlagAck || p.End-p.L4 == n:
		return
	}
	f := flowOf(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.m[f]; ok && k.ack == t.AckNumber() {
		s.forgetLocked(f)
		if tell := s.listeners[k.l]; tell != nil {
			tell(f.remote)
		}
	}
}
