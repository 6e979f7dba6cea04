package hostnet

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/hostudp"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
)

// roads are where RoCE's packets go that are not to go straight on; nil: all are.
type roads struct{ out, in atomic.Pointer[detour.Road] }

// Impair has RoCE's packets go over out, and those that come over in; nil: straight on. What is on
// a Road still arrives as ever.
func (n *Network) Impair(out, in *detour.Road) {
	n.bad.out.Store(out)
	n.bad.in.Store(in)
}

// sendBy is Send over a Road.
func (r *roceRoute) sendBy(road *detour.Road, src vnic.RoCESource) (err error) {
	for {
		ip, ok := src.NextPacket(make([]byte, 0, r.mtu))
		if !ok {
			return err
		}
		if len(ip) > r.mtu {
			err = fmt.Errorf("a packet of %d octets where %d are the most: %w", len(ip), r.mtu,
				syscall.EMSGSIZE)
			continue
		}
		// The kernel makes the headers: in them nothing can be wrong.
		road.Send(&detour.Packet{Octets: ip, From: ipLen(ip) + udp.HeaderLen, Arrive: r.sendLate})
	}
}

// sendLate sends a packet that was on a Road. What cannot be sent is lost.
func (r *roceRoute) sendLate(p *detour.Packet) {
	x := roceSenders.Get().(*roceSender)
	defer roceSenders.Put(x)
	x.r = r
	ip := x.room(len(p.Octets))
	_ = x.add(ip[:copy(ip[:cap(ip)], p.Octets)])
	_ = x.flush()
	x.r = nil
}

// takeBy has what came arrive over a Road.
func (r *roceReceiver) takeBy(road *detour.Road, d *hostudp.Datagram) { road.Send(r.later(d)) }

// later is d as a packet that arrives later on.
func (r *roceReceiver) later(d *hostudp.Datagram) *detour.Packet {
	var head roceDatagram
	h := head.headers(d)
	octets := append(make([]byte, 0, len(h)+len(d.Data)), h...)
	late := *d
	late.Batch = nil
	return &detour.Packet{Octets: append(octets, d.Data...), From: len(h),
		Arrive: func(p *detour.Packet) {
			one := late // of this copy: another may arrive at the same time
			one.Class, one.Data = class(p.Octets), p.Octets[len(h):]
			r.hand(&one)
		}}
}
