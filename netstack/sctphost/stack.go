package sctphost

import (
	"io"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/ports"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/sctp"
)

// protocolNumber is SCTP's number in an IP header.
const protocolNumber = tcpip.TransportProtocolNumber(frame.ProtoSCTP)

// headerLen is SCTP's common header.
const headerLen = 12

// A stackCarrier is SCTP as one more transport protocol of a gVisor stack. It takes every packet
// with its number, whatever the port: which association it belongs to is for the sctp.Endpoint to
// find. Ports in use are registered with gVisor all the same, for it hands up ICMP errors to
// registered ports only.
type stackCarrier struct {
	st    *stack.Stack
	host  *Host
	mtuOf func() uint32 // the MTU of the stack's interface
	send  func(*frame.Frame)
	own   func(*stack.PacketBuffer) (taken bool)

	admitted pairSet
	ways     map[[2]netip.Addr]*way // by source and destination; for transmit and forget only
}

// networks are the networks that SCTP runs on.
var networks = []tcpip.NetworkProtocolNumber{header.IPv4ProtocolNumber, header.IPv6ProtocolNumber}

var (
	_ stack.TransportProtocol = (*stackCarrier)(nil)
	_ stack.TransportEndpoint = (*stackCarrier)(nil)
	_ carrier                 = (*stackCarrier)(nil)
)

// New makes a Host for a stack that is still to be made, with Protocol among its transport
// protocols. linkMTU is the MTU of its interface, in octets, and send sends a frame over that, and
// releases it. own is asked for each packet before it is parsed: if it takes it nobody gets it.
// What is random comes from random; nil is crypto/rand.
func New(linkMTU func() uint32, send func(*frame.Frame),
	own func(*stack.PacketBuffer) (taken bool), random io.Reader, o sctp.Options) (*Host, error) {
	p := &stackCarrier{mtuOf: linkMTU, send: send, own: own, ways: map[[2]netip.Addr]*way{}}
	s, err := newHost(p, random, o)
	p.host = s
	return s, err
}

// Protocol is a stack.TransportProtocolFactory: it puts a Host of New on st, whose clock it uses.
func (s *Host) Protocol(st *stack.Stack) stack.TransportProtocol {
	p := s.carrier.(*stackCarrier)
	p.st = st
	s.setClock(st.Clock())
	return p
}

// Number implements stack.TransportProtocol.
func (*stackCarrier) Number() tcpip.TransportProtocolNumber { return protocolNumber }

// MinimumPacketSize implements stack.TransportProtocol.
func (*stackCarrier) MinimumPacketSize() int { return headerLen }

// ParsePorts implements stack.TransportProtocol.
func (*stackCarrier) ParsePorts(b []byte) (src, dst uint16, err tcpip.Error) {
	if len(b) < 4 {
		return 0, 0, &tcpip.ErrMalformedHeader{}
	}
	return uint16(b[0])<<8 | uint16(b[1]), uint16(b[2])<<8 | uint16(b[3]), nil
}

// Parse implements stack.TransportProtocol.
func (p *stackCarrier) Parse(pkt *stack.PacketBuffer) bool {
	if p.own != nil && p.own(pkt) {
		return false
	}
	_, ok := pkt.TransportHeader().Consume(headerLen)
	pkt.TransportProtocolNumber = protocolNumber
	return ok
}

// HandleUnknownDestinationPacket implements stack.TransportProtocol. What belongs to nothing is
// answered by SCTP's own rules, not by an ICMP error.
func (p *stackCarrier) HandleUnknownDestinationPacket(id stack.TransportEndpointID,
	pkt *stack.PacketBuffer) stack.UnknownDestinationPacketDisposition {
	p.HandlePacket(id, pkt)
	return stack.UnknownDestinationPacketHandled
}

// HandlePacket implements stack.TransportEndpoint.
func (p *stackCarrier) HandlePacket(id stack.TransportEndpointID, pkt *stack.PacketBuffer) {
	r := newPacketRef()
	r.buf = pkt.ToBuffer()
	r.buf.TrimFront(int64(len(pkt.LinkHeader().Slice()) + len(pkt.NetworkHeader().Slice())))
	size := int(r.buf.Size())
	v, ok := r.buf.PullUp(0, size)
	if ok {
		in := sctp.Packet{Src: gvconv.GoAddr(id.RemoteAddress), Dst: gvconv.GoAddr(id.LocalAddress),
			Data: v.AsSlice(), Ref: r}
		p.admit(&in)
		p.host.input(in)
	}
	r.Release()
}

// HandleError implements stack.TransportEndpoint: pkt starts with the ports of what was sent.
func (p *stackCarrier) HandleError(e stack.TransportError, pkt *stack.PacketBuffer) {
	err := sctp.ICMPError{Kind: sctp.ICMPUnreachable}
	switch e.Kind() {
	case stack.PacketTooBigTransportError:
		err.Kind, err.MTU = sctp.ICMPTooBig, int(e.Info())
	case stack.DestinationProtoUnreachableTransportError:
		err.Kind = sctp.ICMPProtocolUnreachable
	case stack.DestinationPortUnreachableTransportError:
		err.Kind = sctp.ICMPPortUnreachable
	case stack.DestinationHostUnreachableTransportError,
		stack.DestinationNetworkUnreachableTransportError,
		stack.SourceRouteFailedTransportError, stack.SourceHostIsolatedTransportError,
		stack.DestinationHostDownTransportError:
	}
	// gVisor does not say whose packet it was: its IP header lies behind that of ICMP.
	whole := pkt.ToBuffer()
	defer whole.Release()
	whole.TrimFront(int64(len(pkt.LinkHeader().Slice()) + len(pkt.NetworkHeader().Slice()) +
		header.ICMPv4MinimumSize))
	n := min(int(whole.Size()), quoteMax)
	v, _ := whole.PullUp(0, n)
	var ok bool
	if err.Src, err.Dst, err.Quote, ok = quoted(v.AsSlice(),
		pkt.Data().Size()-(int(whole.Size())-n)); ok {
		p.host.icmp(err)
	}
}

// quoteMax is how much of a quoted packet is looked at: an IP header, the common header, and the
// first fields of an INIT.
const quoteMax = 128

// quoted takes apart what an ICMP error quotes: b is an IP packet, and the last n octets of it are
// what comes behind its header.
func quoted(b []byte, n int) (src, dst netip.Addr, quote []byte, ok bool) {
	if n < 0 || n > len(b) {
		return src, dst, nil, false
	}
	ip, quote := b[:len(b)-n], b[len(b)-n:]
	switch {
	case len(ip) >= header.IPv4MinimumSize && ip[0]>>4 == 4:
		h := header.IPv4(ip)
		return gvconv.GoAddr(h.SourceAddress()), gvconv.GoAddr(h.DestinationAddress()), quote, true
	case len(ip) >= header.IPv6MinimumSize && ip[0]>>4 == 6:
		h := header.IPv6(ip)
		return gvconv.GoAddr(h.SourceAddress()), gvconv.GoAddr(h.DestinationAddress()), quote, true
	}
	return src, dst, nil, false
}

// headroom implements carrier.
func (*stackCarrier) headroom() int { return headroom }

// transmit implements carrier.
func (p *stackCarrier) transmit(now time.Time, d *sctp.Datagram, v *buffer.View) error {
	key := [2]netip.Addr{d.Src, d.Dst}
	w, err := p.way(key)
	if err != nil {
		v.Release()
		return gvconv.Error(err)
	}
	if h := w.headers.Load(); h != nil && d.DF && now.Sub(w.asked) < renewAfter {
		p.send(h.frame(v))
		return nil
	}
	v.TrimFront(headroom)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(w.route.MaxHeaderLength()),
		Payload:            buffer.MakeWithView(v),
	})
	defer pkt.DecRef()
	if d.DF {
		w.asked = now
		w.headers.Store(nil)
		pkt.Owner = w
	}
	// gVisor cuts a packet that is too large even if it must not be; sizes are SCTP's own care.
	err = w.route.WritePacket(stack.NetworkHeaderParams{Protocol: protocolNumber,
		TTL: w.route.DefaultTTL(), DF: d.DF}, pkt)
	if err != nil {
		w.route.Release() // it may be that its address has gone
		delete(p.ways, key)
	}
	return gvconv.Error(err)
}

// maxWays is how many ways are kept. To find one takes longer than to send a packet.
const maxWays = 1024

// way finds the way between two addresses.
func (p *stackCarrier) way(key [2]netip.Addr) (*way, tcpip.Error) {
	if w := p.ways[key]; w != nil {
		return w, nil
	}
	r, err := p.st.FindRoute(0, gvconv.Addr(key[0]), gvconv.Addr(key[1]), gvconv.Protocol(key[1]),
		false)
	if err != nil {
		return nil, err
	}
	if len(p.ways) >= maxWays {
		p.forget()
	}
	w := &way{route: r}
	p.ways[key] = w
	return w, nil
}

// forget implements carrier.
func (p *stackCarrier) forget() {
	for _, w := range p.ways {
		w.route.Release()
	}
	clear(p.ways)
}

// local implements carrier.
func (p *stackCarrier) local(remote netip.Addr) (netip.Addr, error) {
	r, err := p.st.FindRoute(0, tcpip.Address{}, gvconv.Addr(remote), gvconv.Protocol(remote), false)
	if err != nil {
		return netip.Addr{}, gvconv.Error(err)
	}
	defer r.Release()
	return gvconv.GoAddr(r.LocalAddress()), nil
}

// mtu implements carrier. It is called with the Host's lock held, and gVisor takes locks of its own
// for a route: the interface's MTU is the same for all.
func (p *stackCarrier) mtu(dst netip.Addr) int {
	link := int(p.mtuOf())
	if dst.Is4() {
		return link - header.IPv4MinimumSize
	}
	return link - header.IPv6MinimumSize
}

// encap implements carrier.
func (*stackCarrier) encap() uint16 { return 0 }

// usePort implements carrier.
func (p *stackCarrier) usePort(port uint16) error {
	err := p.st.RegisterTransportEndpoint(networks, protocolNumber, stack.TransportEndpointID{
		LocalPort: port}, p, ports.Flags{}, 0)
	return gvconv.Error(err)
}

// leavePort implements carrier.
func (p *stackCarrier) leavePort(port uint16) {
	p.st.UnregisterTransportEndpoint(networks, protocolNumber, stack.TransportEndpointID{
		LocalPort: port}, p, ports.Flags{}, 0)
}

// close implements carrier: the Stack closes what is below.
func (p *stackCarrier) close() {}

// The rest of stack.TransportProtocol and stack.TransportEndpoint has nothing to do here: this SCTP
// has no sockets in gVisor's sense, and Host.Close ends it.

func (*stackCarrier) NewEndpoint(tcpip.NetworkProtocolNumber, *waiter.Queue) (tcpip.Endpoint,
	tcpip.Error) {
	return nil, &tcpip.ErrNotSupported{}
}

func (*stackCarrier) NewRawEndpoint(tcpip.NetworkProtocolNumber, *waiter.Queue) (tcpip.Endpoint,
	tcpip.Error) {
	return nil, &tcpip.ErrNotSupported{}
}

func (*stackCarrier) SetOption(tcpip.SettableTransportProtocolOption) tcpip.Error {
	return &tcpip.ErrUnknownProtocolOption{}
}

func (*stackCarrier) Option(tcpip.GettableTransportProtocolOption) tcpip.Error {
	return &tcpip.ErrUnknownProtocolOption{}
}

func (*stackCarrier) Abort()   {}
func (*stackCarrier) Close()   {}
func (*stackCarrier) Wait()    {}
func (*stackCarrier) Pause()   {}
func (*stackCarrier) Resume()  {}
func (*stackCarrier) Restore() {}
