package netstack

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/netstack/tcp"
	"github.com/vrnic/vrnic/netstack/udp"
)

// A link is the Ethernet interface of a Stack: gVisor's LinkEndpoint on one side, a Port on the
// other.
//
// TCP is delivered on the goroutine that brought the frame: gVisor only queues it there, and
// ethswitch.Delivery says when more is done. So is SCTP, which sends nothing with a lock held, and
// what is for a udp.Socket, of which gVisor sees nothing. What
// gVisor would answer at once (ARP, neighbour discovery, ICMP, UDP) goes through a goroutine of the
// link: a frame may come from another stack whose TCP endpoint is locked while it sends, and an
// ICMP error that came straight back would wait for that lock for ever.
type link struct {
	name string
	mac  frame.MAC
	mtu  atomic.Uint32
	at   *ethswitch.Attachment

	dispatcher atomic.Pointer[stack.NetworkDispatcher]

	tcp  *tcp.Host
	sctp *sctphost.Host
	udp  *udp.Host // this and what follows is set before the port is attached
	st   *stack.Stack
	own  []netip.Addr // of the stack

	queue   chan *stack.PacketBuffer // for the goroutine
	pending sync.WaitGroup           // what is in queue, or being delivered
	stop    chan struct{}            // closed when nobody puts into queue any more
	wg      sync.WaitGroup

	queued sync.Mutex // held while the goroutine delivers
	mute   bool       // guarded by queued: it delivers nothing any more
}

// linkQueueLen bounds the frames that wait for the link's goroutine. More are dropped.
const linkQueueLen = 512

var (
	_ stack.LinkEndpoint       = (*link)(nil)
	_ stack.GSOEndpoint        = (*link)(nil)
	_ stack.QueueingDiscipline = (*link)(nil)
	_ ethswitch.Port           = (*link)(nil)
)

func newLink(name string, mac frame.MAC, mtu uint32, tcp *tcp.Host, sctp *sctphost.Host) *link {
	l := &link{
		name: name, mac: mac, tcp: tcp, sctp: sctp,
		queue: make(chan *stack.PacketBuffer, linkQueueLen),
		stop:  make(chan struct{}),
	}
	l.mtu.Store(mtu)
	l.wg.Add(1)
	go l.serve()
	return l
}

// shutdown ends the link's goroutine. The port is detached by then.
func (l *link) shutdown() {
	close(l.stop)
	l.wg.Wait()
}

// serve delivers what was queued.
func (l *link) serve() {
	defer l.wg.Done()
	for {
		select {
		case pkt := <-l.queue:
			l.deliverQueued(pkt)
			continue
		default:
		}
		select {
		case pkt := <-l.queue:
			l.deliverQueued(pkt)
		case <-l.stop:
			for {
				select {
				case pkt := <-l.queue:
					pkt.DecRef()
					l.pending.Done()
				default:
					return
				}
			}
		}
	}
}

// deliverQueued is deliver for the goroutine.
func (l *link) deliverQueued(pkt *stack.PacketBuffer) {
	defer l.pending.Done()
	l.queued.Lock()
	defer l.queued.Unlock()
	if l.mute {
		pkt.DecRef()
		return
	}
	l.deliver(pkt)
}

// silence has the goroutine deliver nothing any more. gVisor's IP, once closed, keeps a lock for
// ever at the next fragment.
func (l *link) silence() {
	l.queued.Lock()
	defer l.queued.Unlock()
	l.mute = true
}

// deliver hands pkt, which it owns, to the stack.
func (l *link) deliver(pkt *stack.PacketBuffer) {
	if d := l.dispatcher.Load(); d != nil {
		(*d).DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
	}
	pkt.DecRef()
}

// Transmit implements Port: it takes a frame into the stack.
func (l *link) Transmit(f *frame.Frame, d *ethswitch.Delivery) bool {
	dst, src := f.Addresses()
	if dst != l.mac && !dst.IsGroup() {
		return true // flooded; not for us
	}
	var p frame.Packet
	if p.Parse(f) != nil || p.L3 != frame.EtherHeaderLen {
		return false
	}
	if p.Protocol == frame.ProtoUDP && l.udp.Receive(f, &p, d, dst == l.mac) {
		return true
	}
	if f.GSO == frame.GSOUDP { // gVisor would take it for one datagram
		ok := true
		f.Plain(func(one *frame.Frame) bool {
			ok = l.Transmit(one, nil) && ok
			return true
		})
		return ok
	}
	if !f.ChecksumsValid(&p) || gvisor.AbsurdPathMTU(&p) {
		return false
	}
	if src == l.mac { // it has been off its way: the switch lets nobody else send it
		return l.takeOwn(&p, f)
	}
	whole := p.L4 != 0 && !p.Fragment
	if p.Protocol == frame.ProtoSCTP && whole && dst == l.mac && l.sctp.Receive(d, &p, f) {
		return true
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: f.Take()})
	if _, ok := pkt.LinkHeader().Consume(frame.EtherHeaderLen); !ok {
		pkt.DecRef()
		return false
	}
	pkt.NetworkProtocolNumber = tcpip.NetworkProtocolNumber(p.EtherType)
	if p.Fragment {
		pkt.Mark = gvisor.Fragment
	}
	switch {
	case dst == l.mac:
		pkt.PktType = tcpip.PacketHost
	case dst == frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		pkt.PktType = tcpip.PacketBroadcast
	default:
		pkt.PktType = tcpip.PacketMulticast
	}
	if (p.Protocol == frame.ProtoTCP || p.Protocol == frame.ProtoSCTP) && whole {
		if p.Protocol != frame.ProtoTCP || dst != l.mac || !l.tcp.Receive(d, &p, pkt) {
			l.deliver(pkt)
		}
		return true
	}
	if p.EtherType == frame.EtherARP || p.Protocol == frame.ProtoICMPv6 {
		l.tcp.LinkUp() // somebody is there; who waits for a peer may find it there, too
	}
	l.pending.Add(1)
	select {
	case l.queue <- pkt:
		return true
	default:
		l.pending.Done()
		pkt.DecRef()
		return false
	}
}

// Offloads implements Port.
func (l *link) Offloads(frame.GSO) bool { return true }

// String implements Port.
func (l *link) String() string { return fmt.Sprintf("mac %v mtu %d", l.mac, l.mtu.Load()) }

// WritePacket implements stack.QueueingDiscipline: it sends pkt into the switch.
func (l *link) WritePacket(pkt *stack.PacketBuffer) tcpip.Error {
	f := frame.Empty()
	f.Buffer = pkt.ToBuffer()
	f.Csum = frame.CsumValid
	if g := &pkt.GSOOptions; g.Type != stack.GSONone && g.NeedsCsum {
		f.Csum = frame.CsumPartial
		f.CsumStart = uint16(frame.EtherHeaderLen + len(pkt.NetworkHeader().Slice()))
		f.CsumOffset = g.CsumOffset
		if pkt.Data().Size() > int(g.MSS) {
			f.GSO = frame.GSOTCPv4
			if g.Type == stack.GSOTCPv6 {
				f.GSO = frame.GSOTCPv6
			}
			f.GSOSize = g.MSS
		}
	}
	sctphost.Leaving(pkt)
	d, kept := l.tcp.Sending(pkt, f)
	if kept {
		return nil
	}
	err := l.at.Deliver(f, d)
	f.Release()
	if err != nil {
		return &tcpip.ErrClosedForSend{}
	}
	return nil
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range pkts.AsSlice() {
		if err := l.WritePacket(pkt); err != nil {
			return i, err
		}
	}
	return pkts.Len(), nil
}

// GSOMaxSize implements stack.GSOEndpoint.
func (l *link) GSOMaxSize() uint32 { return gvisor.GSOMaxSize(l.mtu.Load()) }

// SupportedGSO implements stack.GSOEndpoint.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// MTU implements stack.LinkEndpoint.
func (l *link) MTU() uint32 { return l.mtu.Load() }

// SetMTU implements stack.LinkEndpoint.
func (l *link) SetMTU(mtu uint32) { l.mtu.Store(mtu) }

// MaxHeaderLength implements stack.LinkEndpoint.
func (l *link) MaxHeaderLength() uint16 { return frame.EtherHeaderLen }

// LinkAddress implements stack.LinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(l.mac[:]) }

// SetLinkAddress implements stack.LinkEndpoint. The address is part of the port and stays.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint. gVisor need not look at checksums: Transmit has, but
// for those of fragments, see gvisor.NewTCP. It has to make those of packets that are not TCP's.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

// Attach implements stack.LinkEndpoint.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// IsAttached implements stack.LinkEndpoint.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// Wait implements stack.LinkEndpoint. Stack.Close waits for the goroutine.
func (l *link) Wait() {}

// ARPHardwareType implements stack.LinkEndpoint.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader implements stack.LinkEndpoint.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(frame.EtherHeaderLen)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.LinkEndpoint.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(frame.EtherHeaderLen)
	return ok
}

// Close implements stack.LinkEndpoint and stack.QueueingDiscipline. Stack.Close detaches the port.
func (l *link) Close() {}

// SetOnCloseAction implements stack.LinkEndpoint.
func (l *link) SetOnCloseAction(func()) {}
