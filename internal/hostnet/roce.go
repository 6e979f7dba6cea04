package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/netstack/hostudp"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
)

// RoCE's packets are datagrams of the kernel's UDP. The kernel makes the IP header, and shows none
// of it, whereas the ICRC covers it: so what the kernel will put there is known beforehand, and of
// what comes the one field that cannot be known, IPv4's identification, is told from the ICRC
// (docs/decisions.md#R18).

var _ vnic.RoCENetwork = (*Network)(nil)

// OpenRoCE implements vnic.RoCENetwork.
func (n *Network) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	if !slices.Equal(addrs, []netip.Addr{n.addr}) {
		return nil, fmt.Errorf("an address of the host is one: %w", syscall.EADDRNOTAVAIL)
	}
	s, err := hostudp.Open(n.addr, packet.Port, &roceReceiver{up: r, n: n})
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; another daemon has it, or rxe: for that one, give this device an address "+
			"of its own with addr=CIDR", err)
	}
	if err != nil {
		return nil, err
	}
	return &rocePort{Socket: s, n: n}, nil
}

// RoCEFree reports whether a device of RoCE can have its port at a, an address of the host.
func RoCEFree(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, packet.Port)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// A rocePort is a vnic.RoCEPort.
type rocePort struct {
	*hostudp.Socket
	n *Network
}

// MTU implements vnic.RoCEPort.
func (p *rocePort) MTU() int { return p.n.mtu }

// Route implements vnic.RoCEPort. Who the neighbours are is the kernel's.
func (p *rocePort) Route(ctx context.Context, local, remote netip.Addr) (vnic.RoCERoute, error) {
	remote = remote.WithZone("")
	r := &roceRoute{port: p, remote: remote, mtu: p.n.mtu}
	var err error
	switch {
	case local != p.n.addr:
		err = syscall.EADDRNOTAVAIL
	case local.Is4() != remote.Is4() || remote.Is4In6():
		err = syscall.EAFNOSUPPORT
	case remote.IsMulticast():
	default:
		var mtu int
		mtu, err = p.Reach(ctx, remote)
		r.mtu = min(r.mtu, mtu)
		if errors.Is(err, syscall.EINVAL) { // from the loopback to elsewhere
			err = syscall.ENETUNREACH
		}
	}
	if err != nil {
		return nil, fmt.Errorf("way from %v to %v: %w", local, remote, err)
	}
	return r, nil
}

// A roceRoute is a vnic.RoCERoute.
type roceRoute struct {
	port   *rocePort
	remote netip.Addr
	mtu    int
}

// NextHop implements vnic.RoCERoute: it is not known.
func (r *roceRoute) NextHop() [6]byte { return [6]byte{} }

// MTU implements vnic.RoCERoute.
func (r *roceRoute) MTU() int { return r.mtu }

// Send implements vnic.RoCERoute.
func (r *roceRoute) Send(src vnic.RoCESource) (err error) {
	if road := r.port.n.bad.out.Load(); road != nil {
		return r.sendBy(road, src)
	}
	x := roceSenders.Get().(*roceSender)
	defer roceSenders.Put(x)
	x.r = r
	for {
		b := x.room(r.mtu)
		ip, ok := src.NextPacket(b[:0])
		if !ok {
			break
		}
		if len(ip) > r.mtu {
			err = fmt.Errorf("a packet of %d octets where %d are the most: %w", len(ip), r.mtu,
				syscall.EMSGSIZE)
			continue
		}
		if gone := x.add(ip); gone != nil {
			err = gone
		}
	}
	if gone := x.flush(); gone != nil {
		err = gone
	}
	x.r = nil
	return err
}

// A roceSender puts packets together that go in one call.
type roceSender struct {
	r      *roceRoute
	memory []byte
	used   int      // of memory
	run    [][]byte // whole packets, of the same headers and, but for the last one, the same length
	pieces [][]byte // what UDP carries of them
	octets int
	m      hostudp.Message
	shifts shifts
}

var roceSenders = sync.Pool{New: func() any { return new(roceSender) }}

// senderMemory is room for the packets of a call, each at the begin of a line of the cache, and for
// another one of any length.
const senderMemory = 3 << 16

// room is memory for the next packet.
func (x *roceSender) room(n int) []byte {
	if x.memory == nil {
		x.memory = make([]byte, senderMemory)
	}
	return x.memory[x.used : x.used+n : x.used+n]
}

// ipLen is how many octets the IP header of a packet that a device has made has.
func ipLen(ip []byte) int {
	if ip[0]>>4 == 4 {
		return udp.IPv4Len
	}
	return udp.IPv6Len
}

// add takes a packet, which lies in what room gave, and sends those before it if it cannot go with
// them.
func (x *roceSender) add(ip []byte) (err error) {
	if len(x.run) > 0 {
		first, last := x.run[0], x.run[len(x.run)-1]
		if len(x.run) == hostudp.MaxDatagrams || x.octets+len(ip) > hostudp.MaxOctets ||
			len(last) != len(first) || len(ip) > len(first) || class(ip) != class(first) ||
			hops(ip) != hops(first) {
			err = x.flush()
			ip = x.memory[:copy(x.memory, ip)]
		}
	}
	x.used += (len(ip) + 63) &^ 63
	x.run = append(x.run, ip)
	x.octets += len(ip)
	return err
}

// class and hops are the traffic class and the hop limit of a packet.
func class(ip []byte) uint8 { p := udp.Packet{Header: ip}; return p.TrafficClass() }
func hops(ip []byte) uint8  { p := udp.Packet{Header: ip}; return p.HopLimit() }

// flush sends what is there. An error is net.ErrClosed: all else is a loss.
func (x *roceSender) flush() error {
	if len(x.run) == 0 {
		return nil
	}
	first := x.run[0]
	x.m.Class, x.m.Hops = class(first), hops(first)
	x.m.Size = len(first) - ipLen(first) - udp.HeaderLen
	x.pieces = x.pieces[:0]
	for i, ip := range x.run {
		x.kernels(ip, uint16(i))
		x.pieces = append(x.pieces, ip[ipLen(ip)+udp.HeaderLen:])
	}
	err := x.send(x.pieces)
	if len(x.run) > 1 && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EIO)) {
		for i, ip := range x.run { // the interface cannot cut
			x.kernels(ip, 0)
			err = x.send(x.pieces[i : i+1])
		}
	}
	clear(x.run)
	clear(x.pieces)
	x.run, x.octets, x.used = x.run[:0], 0, 0
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (x *roceSender) send(pieces [][]byte) error {
	return x.r.port.Send(&x.m, x.r.remote, pieces)
}

// shifts are those for the two lengths that were last: of a message's packets and its last one, or
// of packets and their ACKs.
type shifts [2]packet.Shift

func (t *shifts) of(n, head int) *packet.Shift {
	if !t[0].Is(n, head) {
		if t[0], t[1] = t[1], t[0]; !t[0].Is(n, head) {
			t[0] = packet.ShiftFor(n, head)
		}
	}
	return &t[0]
}

// kernels makes the ICRC of a packet what it has to be with the headers that the kernel makes: they
// come from the port of the socket, and have an identification that counts the datagrams of a call.
func (x *roceSender) kernels(ip []byte, id uint16) {
	be, le := binary.BigEndian, binary.LittleEndian
	head, end := ipLen(ip), len(ip)-packet.ICRCLen
	var was uint16
	if head == udp.IPv4Len {
		was = be.Uint16(ip[4:])
		be.PutUint16(ip[4:], id)
	} else {
		id = 0
	}
	port := be.Uint16(ip[head:])
	be.PutUint16(ip[head:], packet.Port)
	s := x.shifts.of(end, head)
	c := packet.ICRC(le.Uint32(ip[end:]))
	le.PutUint32(ip[end:], uint32(s.Change(c, was^id, port^packet.Port)))
}

// A roceReceiver gives what comes to up.
type roceReceiver struct {
	up vnic.RoCEReceiver
	n  *Network
}

// A roceDatagram is a packet on its way up.
type roceDatagram struct {
	p      vnic.RoCEPacket
	header [udp.IPv6Len + udp.HeaderLen]byte
	shifts shifts
}

var roceDatagrams = sync.Pool{New: func() any { return new(roceDatagram) }}

// Receive implements hostudp.Handler.
func (r *roceReceiver) Receive(d *hostudp.Datagram) {
	if len(d.Data) < packet.BTHLen+packet.ICRCLen {
		return // no packet of RoCE is that short
	}
	if road := r.n.bad.in.Load(); road != nil {
		r.takeBy(road, d)
		return
	}
	r.hand(d)
}

// hand gives d to up.
func (r *roceReceiver) hand(d *hostudp.Datagram) {
	x := roceDatagrams.Get().(*roceDatagram)
	p := &x.p
	p.Src, p.Dst, p.Datagram, p.Group = d.Src.Addr(), d.Dst, d.Data, d.Group
	if d.Batch != nil { // a nil *hostudp.Batch is no nil Batch
		p.Batch = d.Batch
	}
	p.Header = x.headers(d)
	if p.Dst.Is4() {
		x.identify()
	}
	r.up.ReceiveRoCE(p)
	x.p = vnic.RoCEPacket{}
	roceDatagrams.Put(x)
}

// headers makes the headers that d had, as far as the kernel tells, with an identification of 0.
func (x *roceDatagram) headers(d *hostudp.Datagram) []byte {
	be := binary.BigEndian
	n := udp.HeaderLen + len(d.Data)
	b := x.header[:0]
	if d.Dst.Is4() {
		src, dst := d.Src.Addr().As4(), d.Dst.As4()
		b = append(b, 0x45, d.Class)
		b = be.AppendUint16(b, uint16(udp.IPv4Len+n))
		b = append(b, 0, 0, 0x40, 0, d.Hops, 17, 0, 0) // do not fragment
		b = append(append(b, src[:]...), dst[:]...)
	} else {
		src, dst := d.Src.Addr().As16(), d.Dst.As16()
		b = be.AppendUint32(b, 6<<28|uint32(d.Class)<<20)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, 17, d.Hops)
		b = append(append(b, src[:]...), dst[:]...)
	}
	b = be.AppendUint16(b, d.Src.Port())
	b = be.AppendUint16(b, packet.Port)
	b = be.AppendUint16(b, uint16(n))
	return append(b, 0, 0)
}

// identify finds the identification and the flag with which the ICRC is right, and leaves the
// header as it is if there are none.
func (x *roceDatagram) identify() {
	d, h := x.p.Datagram, x.p.Header
	end := len(d) - packet.ICRCLen
	var b [udp.IPv4Len + udp.HeaderLen + packet.BTHLen]byte
	copy(b[copy(b[:], h):], d)
	have, _ := packet.Start(b[:])
	have = have.Add(d[packet.BTHLen:end])
	want := packet.ICRC(binary.LittleEndian.Uint32(d[end:]))
	if have == want {
		return
	}
	s := x.shifts.of(len(h)+end, udp.IPv4Len)
	if id, df, ok := s.Identification(have, want); ok {
		binary.BigEndian.PutUint16(h[4:], id)
		if !df {
			h[6] = 0
		}
	}
}
