package udp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// A Source makes packets for Route.Send.
type Source interface {
	// NextPacket makes a whole IP packet of b, which is empty and has a capacity of Route.MTU at
	// least, and returns it; false: there is none at present.
	NextPacket(b []byte) ([]byte, bool)
}

// A Route is a way to a destination. Its methods may be called from several goroutines at once.
//
// It keeps the neighbour's Ethernet address, and asks gVisor for it anew, without waiting, when
// something has become of a neighbour, and once in refresh while it is used, which also keeps
// gVisor's neighbour unreachability detection at work (RFC 4861, section 7.3). While there is no
// answer packets go where the neighbour was last.
type Route struct {
	s       *Socket
	proto   tcpip.NetworkProtocolNumber
	local   tcpip.Address
	hop     tcpip.Address // who is asked for on the link
	remote  netip.Addr
	group   bool
	own     bool // remote is an address of the stack
	mac     atomic.Uint64
	seen    atomic.Uint64 // Host.neighbours when gVisor was asked last
	due     atomic.Int64  // when it is asked next, in nanoseconds of the stack's clock
	asking  atomic.Bool   // an answer is due
	resolve func(stack.LinkResolutionResult)
}

// refresh is how often gVisor is asked for the neighbour of a Route that is used.
const refresh = time.Second

// Route finds the way from local, one of the Socket's addresses, to remote, which may be a group,
// and waits until the neighbour on it is known. An error is ctx's, or wraps EADDRNOTAVAIL,
// EAFNOSUPPORT, ENETUNREACH, EHOSTUNREACH or net.ErrClosed.
func (s *Socket) Route(ctx context.Context, local, remote netip.Addr) (*Route, error) {
	st := s.host.cfg.Stack
	remote = remote.WithZone("")
	proto := gvconv.Protocol(remote)
	fail := func(err error) (*Route, error) {
		return nil, fmt.Errorf("way from %v to %v: %w", local, remote, err)
	}
	switch {
	case !slices.Contains(s.addrs, local):
		return fail(syscall.EADDRNOTAVAIL)
	case local.Is4() != remote.Is4() || remote.Is4In6():
		return fail(syscall.EAFNOSUPPORT)
	}
	if !s.gate.Enter() {
		return fail(gate.Closed("the socket"))
	}
	s.gate.Leave()
	r := &Route{s: s, proto: proto, local: gvconv.Addr(local), hop: gvconv.Addr(remote),
		remote: remote, group: remote.IsMulticast()}
	if r.group {
		r.setMAC(groupMAC(remote))
		return r, nil
	}
	way, terr := st.FindRoute(gvconv.NIC, r.local, r.hop, proto, false)
	if terr != nil {
		if err := gvconv.Error(terr); !errors.Is(err, syscall.EHOSTUNREACH) {
			return fail(err)
		}
		return fail(syscall.ENETUNREACH) // gVisor's "no route to host"
	}
	if hop := way.NextHop(); hop.BitLen() != 0 {
		r.hop = hop
	}
	broadcast := way.IsOutboundBroadcast()
	way.Release()
	switch {
	case broadcast || remote.IsUnspecified():
		return fail(syscall.ENETUNREACH)
	case st.CheckLocalAddress(0, proto, gvconv.Addr(remote)) != 0: // it knows broadcasts, too
		r.own = true
		return r, nil
	}
	r.resolve = r.resolved
	if err := r.await(ctx); err != nil {
		return fail(err)
	}
	return r, nil
}

// await waits until the neighbour is known.
func (r *Route) await(ctx context.Context) error {
	answer := make(chan stack.LinkResolutionResult, 1)
	r.asked()
	err := r.s.host.cfg.Stack.GetLinkAddress(gvconv.NIC, r.hop, r.local, r.proto,
		func(a stack.LinkResolutionResult) { answer <- a })
	if _, wait := err.(*tcpip.ErrWouldBlock); err != nil && !wait {
		return gvconv.Error(err)
	}
	select {
	case a := <-answer:
		if a.Err != nil {
			return fmt.Errorf("%v does not answer: %w", gvconv.GoAddr(r.hop), syscall.EHOSTUNREACH)
		}
		r.resolved(a)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// groupMAC is where packets to a group go (RFC 1112, section 6.4; RFC 2464, section 7).
func groupMAC(g netip.Addr) frame.MAC {
	b := g.As16()
	if g.Is4() {
		return frame.MAC{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return frame.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

func (r *Route) setMAC(m frame.MAC) {
	r.mac.Store(uint64(m[0])<<40 | uint64(m[1])<<32 | uint64(m[2])<<24 | uint64(m[3])<<16 |
		uint64(m[4])<<8 | uint64(m[5]))
}

// NextHop is where packets go at present: zero if remote is an own address.
func (r *Route) NextHop() frame.MAC {
	m := r.mac.Load()
	return frame.MAC{byte(m >> 40), byte(m >> 32), byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)}
}

// resolved takes gVisor's answer. gVisor holds locks.
func (r *Route) resolved(a stack.LinkResolutionResult) {
	if a.Err == nil && len(a.LinkAddress) == len(frame.MAC{}) {
		r.setMAC(frame.MAC([]byte(a.LinkAddress)))
	}
	r.asking.Store(false)
}

// asked notes that gVisor is asked now.
func (r *Route) asked() {
	h := r.s.host
	r.seen.Store(h.neighbours.Load())
	r.due.Store(r.now() + int64(refresh))
}

func (r *Route) now() int64 {
	return int64(r.s.host.cfg.Stack.Clock().NowMonotonic().Sub(tcpip.MonotonicTime{}))
}

// follow asks gVisor for the neighbour if that is due.
func (r *Route) follow() {
	if r.resolve == nil || r.seen.Load() == r.s.host.neighbours.Load() && r.now() < r.due.Load() ||
		!r.asking.CompareAndSwap(false, true) {
		return
	}
	r.asked()
	err := r.s.host.cfg.Stack.GetLinkAddress(gvconv.NIC, r.hop, r.local, r.proto, r.resolve)
	if _, wait := err.(*tcpip.ErrWouldBlock); !wait {
		r.asking.Store(false)
	}
}

// MTU is the most octets that an IP packet can have at present.
func (r *Route) MTU() int { return r.s.MTU() }

// MTU is the most octets that an IP packet can have at present.
func (s *Socket) MTU() int { return min(int(s.host.cfg.MTU()), arena-frame.EtherHeaderLen) }

const (
	// arena is how much memory packets are made in at a time: as much as gVisor pools.
	arena = buffer.MaxChunkSize
	// small is up to which length a packet is copied into memory of its own: it does not keep an
	// arena then, nor use it up.
	small = 512
)

// A sender is what one Send needs, and what the next one may go on with.
type sender struct {
	d    ethswitch.Delivery
	view *buffer.View // the arena, or nil
	off  int          // how much of it is used

	// The frame to be sent next, or nil, which others may be joined to: what its first one is, and
	// its octets; how many it is, and the payload of each.
	run   *frame.Frame
	first frame.Packet
	head  []byte
	n     int
	size  int
	last  bool // nothing is joined any more
}

func (x *sender) release() {
	if x.view != nil {
		x.view.Release()
		x.view = nil
	}
}

// room is n octets of memory.
func (x *sender) room(n int) []byte {
	if x.view != nil && x.off+n > arena {
		x.release()
	}
	if x.view == nil {
		x.view, x.off = buffer.NewViewSize(arena), 0
	}
	return x.view.AsSlice()[x.off : x.off+n]
}

// take is the first n octets of what room gave.
func (x *sender) take(n int) (v *buffer.View) {
	if n <= small {
		v = buffer.NewViewSize(n)
		copy(v.AsSlice(), x.view.AsSlice()[x.off:])
		return v
	}
	v = x.view.Clone()
	v.TrimFront(x.off)
	v.CapLength(n)
	x.off = (x.off + n + 63) &^ 63 // each begins a line of the cache
	return v
}

func (s *Socket) sender() *sender {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		x := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return x
	}
	return &sender{}
}

// maxIdle is how many senders a Socket keeps: as many as send at once.
const maxIdle = 16

func (s *Socket) done(x *sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) < maxIdle {
		s.idle = append(s.idle, x)
	} else {
		x.release()
	}
}

// Send sends packets of src until it has none. Handlers of this process may be called before it
// returns. Packets above the MTU are not sent: EMSGSIZE. After Close it is net.ErrClosed.
func (r *Route) Send(src Source) (err error) {
	if !r.s.gate.Enter() {
		return gate.Closed("the socket")
	}
	defer r.s.gate.Leave()
	r.follow()
	x := r.s.sender()
	x.d = ethswitch.Delivery{Batch: true}
	mtu := r.MTU()
	for {
		b := x.room(frame.EtherHeaderLen + mtu)
		ip, ok := src.NextPacket(b[frame.EtherHeaderLen:frame.EtherHeaderLen])
		if !ok {
			break
		}
		n := len(ip)
		if n > mtu {
			err = fmt.Errorf("a packet of %d octets where %d are the most: %w", n, mtu, syscall.EMSGSIZE)
			continue
		}
		r.ethernet(b)
		x.add(r, frame.EtherHeaderLen+n)
	}
	x.flush(r)
	x.d.Finish()
	r.s.done(x)
	return err
}

// ethernet makes the header of a frame.
func (r *Route) ethernet(b []byte) {
	dst := r.NextHop()
	if r.own {
		dst = r.s.host.cfg.MAC
	}
	copy(b, dst[:])
	copy(b[6:], r.s.host.cfg.MAC[:])
	b[12], b[13] = byte(r.proto>>8), byte(r.proto)
}

// deliver hands f to those of this stack that it is for, and sends it.
func (r *Route) deliver(f *frame.Frame, d *ethswitch.Delivery) {
	h := r.s.host
	if r.own && h.cfg.Own(f) {
		f.Release()
		return
	}
	if r.own || r.group {
		var p frame.Packet
		if p.Parse(f) == nil {
			h.Receive(f, &p, d, r.own)
		}
	}
	if r.own {
		f.Release()
		return
	}
	h.cfg.Send(f, d)
}

// maxRun is how many datagrams are sent as one super-frame: as many as Linux takes.
const maxRun = 64

// add sends the n octets of a frame that room has given, or joins them to those that were added
// before and have not gone.
func (x *sender) add(r *Route, n int) {
	v := x.take(n)
	if x.run != nil && x.joins(v.AsSlice()) {
		v.TrimFront(x.first.L4 + headerLen)
		x.last = v.Size() < x.size
		x.run.Append(v)
		x.n++
		return
	}
	x.flush(r)
	f := frame.Empty()
	f.Csum = frame.CsumValid
	f.Append(v)
	if r.group {
		r.deliver(f, &x.d)
		return
	}
	x.head = v.AsSlice()
	if x.first.Parse(f) != nil || x.first.Protocol != frame.ProtoUDP || x.first.End != n ||
		x.first.N < x.first.L4+headerLen {
		r.deliver(f, &x.d) // let the receiver say what it is
		return
	}
	x.run, x.n, x.size, x.last = f, 1, n-x.first.L4-headerLen, false
}

// joins reports whether b is what Linux and Frame.Datagram make of a super-frame at this place: the
// same headers, but for the lengths and IPv4's identification, which counts on, and checksum.
func (x *sender) joins(b []byte) bool {
	p, be := &x.first, binary.BigEndian
	hdr := p.L4 + headerLen
	n := len(b) - hdr
	if x.last || x.n == maxRun || n <= 0 || n > x.size || x.run.Len()-p.L3+n > 65535 {
		return false
	}
	h := x.head[:hdr]
	if p.EtherType == frame.EtherIPv4 {
		if be.Uint16(b[p.L3+4:]) != be.Uint16(h[p.L3+4:])+uint16(x.n) ||
			!bytes.Equal(b[:p.L3+2], h[:p.L3+2]) || !bytes.Equal(b[p.L3+6:p.L3+10], h[p.L3+6:p.L3+10]) ||
			!bytes.Equal(b[p.L3+12:p.L4+4], h[p.L3+12:p.L4+4]) {
			return false
		}
	} else if !bytes.Equal(b[:p.L3+4], h[:p.L3+4]) || !bytes.Equal(b[p.L3+6:p.L4+4],
		h[p.L3+6:p.L4+4]) {
		return false
	}
	return int(be.Uint16(b[p.L4+4:])) == headerLen+n
}

// flush sends what was added.
func (x *sender) flush(r *Route) {
	f := x.run
	if f == nil {
		return
	}
	if x.n > 1 {
		f.Gather(&x.first, x.head, x.size)
	}
	x.run, x.head = nil, nil
	r.deliver(f, &x.d)
}
