package sctphost

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/sctp"
)

// Packets between addresses that gVisor's IP has had packets of before go past it, in both
// directions: of those it would say the same. What it decides by the packet, such as fragments and
// options, is left to it.

// Receive looks at p, which is f, an SCTP packet for this stack that d brings. false: it has to go
// the usual way, through IP, and is as it was.
func (s *Host) Receive(d *ethswitch.Delivery, p *frame.Packet, f *frame.Frame) bool {
	c, ok := s.carrier.(*stackCarrier)
	if !ok {
		return false
	}
	var pair [2]netip.Addr // source and destination
	l3 := frame.IPv4MinLen
	if ip := p.Headers[p.L3:]; p.EtherType == frame.EtherIPv4 {
		pair[0], pair[1] = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	} else {
		l3 = frame.IPv6Len
		pair[0], pair[1] = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	}
	if p.L4 != p.L3+l3 || !c.admitted.has(pair) {
		return false
	}
	r := newPacketRef()
	r.buf = f.Take()
	r.buf.TrimFront(int64(p.L4))
	r.buf.Truncate(int64(p.End - p.L4))
	if v, ok := r.buf.PullUp(0, p.End-p.L4); ok {
		b := v.AsSlice()
		s.take(sctp.Packet{Src: pair[0], Dst: pair[1], Data: b, Ref: r,
			Verified: sctp.GoodChecksum(b)})
	}
	r.Release()
	if !d.PutOff(s) {
		s.drain()
	}
	return true
}

// A pairSet has pairs of a source and a destination, the latter an address of the stack, that IP
// has let pass.
type pairSet struct {
	m atomic.Pointer[map[[2]netip.Addr]bool] // never changed in place
}

// maxPairs is how many are kept; a peer has to have an association to be one.
const maxPairs = 1024

func (s *pairSet) has(pair [2]netip.Addr) bool {
	m := s.m.Load()
	return m != nil && (*m)[pair]
}

// add adds one. Of two that are added at once one may be lost, until its next packet.
func (s *pairSet) add(pair [2]netip.Addr) {
	next := map[[2]netip.Addr]bool{pair: true}
	if m := s.m.Load(); m != nil && len(*m) < maxPairs {
		for p := range *m {
			next[p] = true
		}
	}
	s.m.Store(&next)
}

// admit notes that IP has let a packet of an association pass. What seems to come from an address
// of the stack's own has not come over its link.
func (p *stackCarrier) admit(in *sctp.Packet) {
	pair := [2]netip.Addr{in.Src, in.Dst}
	if p.admitted.has(pair) ||
		p.st.CheckLocalAddress(0, gvconv.Protocol(in.Src), gvconv.Addr(in.Src)) != 0 ||
		!p.host.knows(in) {
		return
	}
	p.admitted.add(pair)
}

// knows says whether a packet is of an association.
func (s *Host) knows(in *sctp.Packet) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(in).Knows(in)
}

// A way is a pair of addresses that packets go between. As the owner of a packet it is told by
// Leaving what headers that has got.
type way struct {
	route   *stack.Route
	asked   time.Time // when a packet was given to IP last
	headers atomic.Pointer[headers]
}

// headers are those that IP has put before a packet, which others take as well, but for its length.
type headers struct {
	octets [headroom]byte
	n      int // of octets
}

const (
	headroom = frame.EtherHeaderLen + frame.IPv6Len
	// renewAfter is how long headers are used. IP watches its neighbours by what it sends to them.
	renewAfter = 100 * time.Millisecond
)

// KUID and KGID implement tcpip.PacketOwner. Nobody asks.
func (*way) KUID() uint32 { return 0 }
func (*way) KGID() uint32 { return 0 }

// Leaving looks at a packet that leaves its stack with all headers.
func Leaving(pkt *stack.PacketBuffer) {
	w, ok := pkt.Owner.(*way)
	if !ok {
		return
	}
	link, ip := pkt.LinkHeader().Slice(), pkt.NetworkHeader().Slice()
	if len(link) != frame.EtherHeaderLen || len(ip) != frame.IPv4MinLen && len(ip) != frame.IPv6Len {
		return
	}
	h := &headers{n: len(link) + len(ip)}
	copy(h.octets[copy(h.octets[:], link):], ip)
	w.headers.Store(h)
}

// frame is the packet in v, behind headroom, with the headers h. It takes v.
func (h *headers) frame(v *buffer.View) *frame.Frame {
	b := v.AsSlice()[headroom-h.n:]
	copy(b, h.octets[:h.n])
	if h.n == frame.EtherHeaderLen+frame.IPv4MinLen {
		ip := header.IPv4(b[frame.EtherHeaderLen:])
		ip.SetTotalLength(uint16(len(ip)))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	} else {
		ip := header.IPv6(b[frame.EtherHeaderLen:])
		ip.SetPayloadLength(uint16(len(ip) - frame.IPv6Len))
	}
	v.TrimFront(headroom - h.n)
	f := frame.Empty()
	f.Csum = frame.CsumValid
	f.Append(v)
	return f
}
