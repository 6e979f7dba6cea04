package tcp

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// identify notes what c is called.
func (c *Conn) identify(h *Host) {
	c.flow = flow{gvconv.Unmap(c.local), gvconv.Unmap(c.remote)}
	c.id = stack.TransportEndpointID{
		LocalAddress: gvconv.Addr(c.flow.local.Addr()), LocalPort: c.flow.local.Port(),
		RemoteAddress: gvconv.Addr(c.flow.remote.Addr()), RemotePort: c.flow.remote.Port(),
	}
	// What seems to come from an address of the stack's own has not come over its link.
	if h.st.CheckLocalAddress(0, gvconv.Protocol(c.flow.remote.Addr()), c.id.RemoteAddress) == 0 {
		c.queue = h.queue
	}
}

// queueSegment gives pkt, which is p and for c and which d brings, to c's TCP. false: it has to go
// the usual way, and is as it was. Of a connection that is established IP would find nothing wrong:
// the addresses are the same as when it was made, and the rest has been looked at by Packet.Parse
// and Frame.ChecksumsValid.
func (c *Conn) queueSegment(d *ethswitch.Delivery, p *frame.Packet,
	pkt *stack.PacketBuffer) bool {
	if c.queue == nil || !sending(c.ep.EndpointState()) || !strip(p, pkt) {
		if d.Holds((*receiver)(c)) {
			c.queueRun() // it comes behind what was brought with it: a RST does
		}
		return false
	}
	n, _ := p.TCPHeaderLen()
	if c.ep.SACKPermitted && p.End-p.L4 > n {
		seq := header.TCP(p.Headers[p.L4:]).SequenceNumber()
		c.acks.arrived(span{seq, seq + uint32(p.End-p.L4-n)})
	}
	opens := c.loss.bound.Load() && c.loss.opens(header.TCP(p.Headers[p.L4:]))
	if c.loss.received(p, n) {
		pkt = withoutSACK(p, n, pkt)
	}
	// Who has no SACK finds a loss by the number of ACKs, one for each segment.
	if !d.Gathers((*receiver)(c)) || !c.ep.SACKPermitted {
		c.queuePacket(pkt)
	} else if c.run.add(p, n, pkt); c.run.full() {
		c.queueRun()
	}
	if opens {
		c.loss.opened.Store(true)
	}
	if opens || c.loss.heard.Load() && !d.Holds((*receiver)(c)) {
		c.host.losses.see(&c.loss)
	}
	return true
}

// queuePacket queues pkt, which it takes.
func (c *Conn) queuePacket(pkt *stack.PacketBuffer) {
	c.queue.QueuePacket(c.ep, c.id, pkt)
	pkt.DecRef()
}

// strip does with pkt, which is p, what IP would if p is a TCP segment without anything that IP, or
// another connection, has to do with: options, extension headers, fragments, SYN and RST. false: it
// is not, and pkt is as it was.
func strip(p *frame.Packet, pkt *stack.PacketBuffer) bool {
	l3 := frame.IPv4MinLen
	if p.EtherType == frame.EtherIPv6 {
		l3 = frame.IPv6Len
	}
	n, err := p.TCPHeaderLen()
	const synRST = header.TCPFlagSyn | header.TCPFlagRst
	if err != nil || p.L4 != p.L3+l3 || header.TCP(p.Headers[p.L4:]).Flags()&synRST != 0 {
		return false
	}
	// All of this is there: parse has seen to it.
	pkt.NetworkHeader().Consume(l3)
	pkt.Data().CapLength(p.End - p.L4)
	pkt.TransportHeader().Consume(n)
	pkt.TransportProtocolNumber = tcp.ProtocolNumber
	pkt.NICID = gvconv.NIC
	pkt.RXChecksumValidated = true // see link.Capabilities
	return true
}
