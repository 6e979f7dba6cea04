package netstack

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

// Whoever listens may want to know in which order those who connect have sent their first octets. gVisor handles connections in
// parallel, and gives them to Accept in any order; frames come one after the other. So the link keeps in mind what it has
// answered to a SYN, until octets come that acknowledge it, or one of both ends says that none will.

// maxFirsts is how many connections are kept in mind; the oldest is forgotten for another one.
const maxFirsts = 1024

// firsts are connections whose first octets have not come.
type firsts struct {
	n atomic.Int32 // of them

	mu        sync.Mutex
	m         map[tcpFlow]firstFlow
	slots     [maxFirsts]tcpFlow // in turn
	next      int
	listeners map[*TCPListener]func(remote netip.AddrPort)
	listening atomic.Bool // there is one
}

// A firstFlow is such a connection.
type firstFlow struct {
	ack  uint32 // what the peer has to acknowledge
	slot int
	l    *TCPListener
}

// listen has f called for connections to l.
func (s *firsts) listen(l *TCPListener, f func(remote netip.AddrPort)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m, s.listeners = make(map[tcpFlow]firstFlow), make(map[*TCPListener]func(netip.AddrPort))
	}
	s.listeners[l] = f
	s.listening.Store(true)
}

// close has nothing more told to l.
func (s *firsts) close(l *TCPListener) {
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
func (s *firsts) sent(pkt *stack.PacketBuffer) {
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
	f := tcpFlow{
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
func (s *firsts) ended(f tcpFlow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(f)
}

func (s *firsts) forgetLocked(f tcpFlow) {
	delete(s.m, f)
	s.n.Store(int32(len(s.m)))
}

// answered keeps f in mind, whose peer will acknowledge ack.
func (s *firsts) answered(f tcpFlow, ack uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var to *TCPListener
	for l := range s.listeners {
		if a := l.addr; a.Port() == f.local.Port() && (a.Addr() == f.local.Addr() || a.Addr().IsUnspecified() && a.Addr().Is4() == f.local.Addr().Is4()) {
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
		s.next = (s.next + 1) % maxFirsts
	}
	s.m[f] = firstFlow{ack, slot, to}
	s.n.Store(int32(len(s.m)))
}

// came looks at a TCP packet that has come, before anybody else does.
func (s *firsts) came(p *frame.Packet) {
	if s.n.Load() == 0 {
		return
	}
	n, err := p.TCPHeaderLen()
	if err != nil {
		return
	}
	t := header.TCP(p.Headers[p.L4:])
	switch flags := t.Flags() & (header.TCPFlagAck | header.TCPFlagSyn | header.TCPFlagRst); {
	case flags&header.TCPFlagRst != 0: // TCP may pass over it; then the order is lost, and nothing else
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
