// Package udp carries datagrams of a stack past gVisor's UDP: to a Socket's port they are handed up
// by the goroutine that found them, where they lie, and from it they go to the switch as the frames
// that they were made in. gVisor has the rest: which way a destination is reached, who the
// neighbours are, groups, and every packet that no Socket is for.
//
// Who uses it makes and reads IP and UDP headers itself, with all octets under his control, as
// RoCEv2 wants: its checksum covers them.
package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/ports"
)

// headerLen is the length of a UDP header.
const headerLen = 8

// A Config is what a Host needs of its stack.
type Config struct {
	Stack *stack.Stack
	MAC   frame.MAC                               // of the interface
	MTU   func() uint32                           // of the interface, in octets of an IP packet
	Send  func(*frame.Frame, *ethswitch.Delivery) // to the switch; it releases the frame
	Own   func(*frame.Frame) (taken bool)         // what the stack sends to itself may be taken
	Ports *ports.Table                            // those of the stack that are in use
}

// A Host is the Sockets of a stack. Its methods may be called from several goroutines at once. To
// the zero Host nothing is.
type Host struct {
	cfg   Config
	bound atomic.Pointer[[]binding] // of the Sockets that are open; never changed in place
	// neighbours counts what has become of any neighbour.
	neighbours atomic.Uint64

	mu sync.Mutex // serialises changes of bound

	inGroups sync.RWMutex
	// Of groups no list is changed in place.
	groups map[netip.AddrPort][]*Socket // +checklocks:inGroups
}

// A binding is one of a Socket's addresses.
type binding struct {
	addr netip.AddrPort
	s    *Socket
}

// at is whose address a is.
func (h *Host) at(a netip.AddrPort) *Socket {
	bound := *h.bound.Load()
	for i := range bound {
		if bound[i].addr == a {
			return bound[i].s
		}
	}
	return nil
}

// Has reports whether there is a Socket at a.
func (h *Host) Has(a netip.AddrPort) bool { return h.at(a) != nil }

// in is who has joined group.
func (h *Host) in(group netip.AddrPort) []*Socket {
	if !group.Addr().IsMulticast() {
		return nil
	}
	h.inGroups.RLock()
	defer h.inGroups.RUnlock()
	return h.groups[group]
}

// New makes the Host of c.Stack.
func New(c Config) *Host {
	h := &Host{cfg: c, groups: map[netip.AddrPort][]*Socket{}}
	h.bound.Store(&[]binding{})
	// What gVisor is left with for the port of a Socket, fragments for one thing, is not answered.
	c.Stack.SetTransportProtocolHandler(udp.ProtocolNumber,
		func(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
			return slices.ContainsFunc(*h.bound.Load(),
				func(b binding) bool { return b.addr.Port() == id.LocalPort })
		})
	return h
}

// NeighboursChanged says that something has become of a neighbour: Routes look whether it is
// theirs. It does not block.
func (h *Host) NeighboursChanged() { h.neighbours.Add(1) }

// A Handler takes the packets of a Socket. It is called by whoever has brought them, from several
// goroutines at once, also from a Send of this process. It must not wait for a Send or another call
// of itself.
type Handler interface {
	// Receive takes a packet, whose octets and Batch are good for the call only.
	Receive(p Packet)
}

// A Packet is a datagram that has come. Checksums and lengths are right, and it is no fragment.
type Packet struct {
	Src, Dst netip.Addr
	Header   []byte // IP header, with IPv4's options, and UDP header
	Data     []byte // what UDP carries
	Group    bool   // Dst is a group
	Batch    *ethswitch.Delivery

	view *buffer.View // Data lies in it
}

// Keep has the octets of p.Data stay as they are until what is returned is released.
func (p *Packet) Keep() *buffer.View { return p.view.Clone() }

// Memory is the last octet of all that Keep keeps, and how much it is.
func (p *Packet) Memory() (end *byte, octets int) {
	b := p.view.AsSlice()
	return &b[:cap(b)][cap(b)-1], p.view.Capacity()
}

// A Socket is a port of some addresses of the stack's.
type Socket struct {
	host    *Host
	addrs   []netip.Addr
	port    uint16
	handler Handler
	gate    *gate.Gate // around Receive and Send

	mu     sync.Mutex
	joined map[netip.Addr]int // by group, how often; guarded by mu
	idle   []*sender          // guarded by mu
	closed bool               // guarded by mu
}

// maxGroups is how many groups a Socket may be in.
const maxGroups = 8192

// Open opens the port of the addresses, all of which must be the stack's (else EADDRNOTAVAIL) and
// not be taken by another Socket (else EADDRINUSE). Packets may come before Open returns.
func (h *Host) Open(port uint16, addrs []netip.Addr, r Handler) (*Socket, error) {
	s := &Socket{host: h, addrs: slices.Clone(addrs), port: port, handler: r, gate: gate.New(),
		joined: make(map[netip.Addr]int)}
	for _, a := range addrs {
		if h.cfg.Stack.CheckLocalAddress(0, gvconv.Protocol(a), gvconv.Addr(a)) == 0 {
			return nil, fmt.Errorf("UDP port %d of %v: %w", port, a, syscall.EADDRNOTAVAIL)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	bound := slices.Clone(*h.bound.Load())
	for _, a := range addrs {
		if h.at(netip.AddrPortFrom(a, port)) != nil {
			return nil, fmt.Errorf("UDP port %d of %v: %w", port, a, syscall.EADDRINUSE)
		}
		bound = append(bound, binding{netip.AddrPortFrom(a, port), s})
	}
	if err := h.cfg.Ports.Use(s.ports()...); err != nil {
		return nil, fmt.Errorf("UDP port %d: %w", port, err)
	}
	h.bound.Store(&bound)
	return s, nil
}

// ports are those that s takes.
func (s *Socket) ports() (list []ports.Port) {
	for _, a := range s.addrs {
		list = append(list, ports.Port{UDP: true, At: netip.AddrPortFrom(a, s.port)})
	}
	return list
}

// Close hands nothing up any more, leaves the groups and waits for calls of the Handler and of Send
// that run; it must not be called from one.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return gate.Closed("the socket")
	}
	s.closed = true
	h := s.host
	for g := range s.joined {
		s.setJoined(g, false)
		// the stack may be gone
		_ = h.cfg.Stack.LeaveGroup(gvconv.Protocol(g), gvconv.NIC, gvconv.Addr(g))
	}
	s.mu.Unlock()
	h.mu.Lock()
	bound := slices.DeleteFunc(slices.Clone(*h.bound.Load()),
		func(b binding) bool { return b.s == s })
	h.bound.Store(&bound)
	h.cfg.Ports.Leave(s.ports()...)
	h.mu.Unlock()
	s.gate.Shut()
	s.gate.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.idle {
		x.release()
	}
	s.idle = nil
	return nil
}

// Close closes the Sockets that are open.
func (h *Host) Close() {
	for _, b := range *h.bound.Load() {
		_ = b.s.Close() // it may be closed, or have several addresses
	}
}

// Join has packets to group handed up. It counts: each wants its Leave.
func (s *Socket) Join(group netip.Addr) error {
	if !group.IsMulticast() {
		return fmt.Errorf("join %v: %w", group, syscall.EINVAL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return gate.Closed("the socket")
	case s.joined[group] > 0:
		s.joined[group]++
		return nil
	case len(s.joined) >= maxGroups:
		return fmt.Errorf("join %v: in %d groups already: %w", group, maxGroups, syscall.ENOBUFS)
	}
	err := s.host.cfg.Stack.JoinGroup(gvconv.Protocol(group), gvconv.NIC, gvconv.Addr(group))
	if err != nil {
		return fmt.Errorf("join %v: %w", group, gvconv.Error(err))
	}
	s.joined[group] = 1
	s.setJoined(group, true)
	return nil
}

// Leave takes a Join back.
func (s *Socket) Leave(group netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return gate.Closed("the socket")
	case s.joined[group] == 0:
		return fmt.Errorf("leave %v: %w", group, syscall.EADDRNOTAVAIL)
	}
	if s.joined[group]--; s.joined[group] > 0 {
		return nil
	}
	delete(s.joined, group)
	s.setJoined(group, false)
	err := s.host.cfg.Stack.LeaveGroup(gvconv.Protocol(group), gvconv.NIC, gvconv.Addr(group))
	if err != nil {
		return fmt.Errorf("leave %v: %w", group, gvconv.Error(err))
	}
	return nil
}

// setJoined has packets to group come to s, or no more. s.mu is held.
func (s *Socket) setJoined(group netip.Addr, on bool) {
	h := s.host
	h.inGroups.Lock()
	defer h.inGroups.Unlock()
	key := netip.AddrPortFrom(group, s.port)
	list := slices.DeleteFunc(slices.Clone(h.groups[key]), func(x *Socket) bool { return x == s })
	if on {
		list = append(list, s)
	}
	if h.groups[key] = list; len(list) == 0 {
		delete(h.groups, key)
	}
}

// Receive hands f up, which p has parsed, if it is a whole datagram to a Socket; unicast says that
// the frame is for the interface alone. False: it is not, and f is as it was.
func (h *Host) Receive(f *frame.Frame, p *frame.Packet, d *ethswitch.Delivery, unicast bool) bool {
	if bound := h.bound.Load(); bound == nil || len(*bound) == 0 {
		return false
	}
	if p.Protocol != frame.ProtoUDP || p.L4 == 0 || p.Fragment || min(p.N, p.End) < p.L4+headerLen {
		return false
	}
	var q Packet
	ip, udp := p.Headers[p.L3:p.L4], p.Headers[p.L4:p.L4+headerLen]
	switch {
	case p.EtherType == frame.EtherIPv4:
		q.Src, q.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case len(ip) == frame.IPv6Len:
		q.Src, q.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return false // extension headers
	}
	to := netip.AddrPortFrom(q.Dst, binary.BigEndian.Uint16(udp[2:]))
	one := h.at(to)
	var all []*Socket
	if one == nil {
		if all = h.in(to); len(all) == 0 {
			return false
		}
		q.Group = true
	}
	n := int(binary.BigEndian.Uint16(udp[4:]))
	// What is for one address and has come in a frame to many is somebody's trick.
	if n < headerLen || n > p.End-p.L4 || !q.Group && !unicast || !mayAnswer(q.Src) {
		return true // lost
	}
	if !f.ChecksumsValidOrNone(p) {
		h.cfg.Stack.Stats().UDP.ChecksumErrors.Increment() // gVisor counts those of its own sockets there
		return true
	}
	q.Batch = d
	if one != nil {
		// once for all there are: an atomic operation waits for what was copied before it
		if !one.gate.Enter() {
			return true
		}
		defer one.gate.Leave()
	}
	if f.GSO == frame.GSOUDP {
		h.receiveAll(q, f, p, one, all)
		return true
	}
	var b []byte
	var copied bool
	if b, q.view, copied = contiguous(f, p.L3, p.L4+n); copied {
		defer q.view.Release()
	}
	head := p.L4 - p.L3 + headerLen
	q.Header, q.Data = b[:head:head], b[head:]
	q.give(one, all)
	return true
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// mayAnswer reports whether src is one station's, on the network: what is sent back to another
// address would go to many, or nowhere (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
func mayAnswer(src netip.Addr) bool {
	return !src.IsMulticast() && !src.IsUnspecified() && !src.IsLoopback() && src != broadcast
}

// give gives q to one, whose gate was entered, if it is not nil, and to all.
func (q *Packet) give(one *Socket, all []*Socket) {
	if one != nil {
		one.handler.Receive(*q)
	}
	for _, s := range all {
		if s.gate.Enter() {
			s.handler.Receive(*q)
			s.gate.Leave()
		}
	}
}

// headers has room for those of a datagram that was cut out of a super-frame.
var headers = sync.Pool{New: func() any { return new([frame.EtherHeaderLen + 128]byte) }}

// receiveAll hands the datagrams of the super-frame f up, q having what they have in common.
func (h *Host) receiveAll(q Packet, f *frame.Frame, p *frame.Packet, one *Socket, all []*Socket) {
	hdr := headers.Get().(*[frame.EtherHeaderLen + 128]byte)
	defer headers.Put(hdr)
	views := f.Buffer.AsViewList()
	v := views.Front()
	base := 0 // where v begins
	for i, at := 0, int(f.HdrLen); at < p.End; i++ {
		n := min(int(f.GSOSize), p.End-at)
		for base+v.Size() <= at {
			base += v.Size()
			v = v.Next()
		}
		q.Header = p.Datagram(hdr[:0], i, n)[p.L3:]
		if q.view = v; base+v.Size() >= at+n {
			q.Data = v.AsSlice()[at-base : at-base+n : at-base+n]
			q.give(one, all)
		} else {
			q.view = buffer.NewViewSize(n)
			q.Data = q.view.AsSlice()
			_, _ = f.Buffer.ReadAt(q.Data, int64(at)) // they are all there
			q.give(one, all)
			q.view.Release()
		}
		at += n
	}
}

// contiguous is octets from to to of f as one piece, and the view they lie in: a copy, which the
// caller releases, if they are in several.
func contiguous(f *frame.Frame, from, to int) (b []byte, v *buffer.View, copied bool) {
	l := f.Buffer.AsViewList()
	if v = l.Front(); v.Size() >= to {
		return v.AsSlice()[from:to:to], v, false
	}
	v = buffer.NewViewSize(to - from)
	b = v.AsSlice()
	_, _ = f.Buffer.ReadAt(b, int64(from)) // they are all there
	return b, v, true
}
