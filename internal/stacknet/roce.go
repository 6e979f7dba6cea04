package stacknet

import (
	"context"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/vrnic/vrnic/netstack/udp"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic"
)

var _ vnic.RoCENetwork = (*Network)(nil)

// OpenRoCE implements vnic.RoCENetwork: RoCE's packets are datagrams of the stack that gVisor does
// not see. An address of a UDP socket of the host carries none.
func (n *Network) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	s, err := n.stack.UDP().Open(packet.Port, addrs, roceHandler{r})
	if err != nil {
		return nil, err
	}
	return rocePort{s}, nil
}

// A rocePort is a vnic.RoCEPort.
type rocePort struct{ *udp.Socket }

// Route implements vnic.RoCEPort.
func (p rocePort) Route(ctx context.Context, local, remote netip.Addr) (vnic.RoCERoute, error) {
	r, err := p.Socket.Route(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return roceRoute{r}, nil
}

// A roceRoute is a vnic.RoCERoute.
type roceRoute struct{ *udp.Route }

// NextHop implements vnic.RoCERoute.
func (r roceRoute) NextHop() [6]byte { return r.Route.NextHop() }

// Send implements vnic.RoCERoute.
func (r roceRoute) Send(src vnic.RoCESource) error { return r.Route.Send(src) }

// A roceHandler gives what comes to r.
type roceHandler struct{ r vnic.RoCEReceiver }

// A received is a packet on its way up. It is the Owner of its octets.
type received struct {
	up vnic.RoCEPacket
	in udp.Packet
}

var receivedPool = sync.Pool{New: func() any { return new(received) }}

// Keep implements the Owner of a packet.
func (x *received) Keep() vnic.RoCEKept { return (*kept)(x.in.Keep()) }

// kept is a part of gVisor's memory.
type kept buffer.View

// Release implements vnic.RoCEKept.
func (k *kept) Release() { (*buffer.View)(k).Release() }

// Memory implements the Owner of a packet.
func (x *received) Memory() (end *byte, octets int) { return x.in.Memory() }

// Receive implements udp.Handler.
func (h roceHandler) Receive(p udp.Packet) {
	if len(p.Data) < packet.BTHLen+packet.ICRCLen {
		return // no packet of RoCE is that short
	}
	x := receivedPool.Get().(*received)
	x.in = p
	x.up.Src, x.up.Dst, x.up.Header, x.up.Datagram = p.Src, p.Dst, p.Header, p.Data
	x.up.Group, x.up.Batch, x.up.Owner = p.Group, p.Batch, x
	h.r.ReceiveRoCE(&x.up)
	*x = received{}
	receivedPool.Put(x)
}
