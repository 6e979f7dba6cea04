package vnictest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
)

// A RoCELink says what a Net does to RoCE's packets. With the zero value each one is handed up by
// who sends it, at once, and the packets of one Send are one batch, as between stacks of a process.
type RoCELink struct {
	MTU int // octets of an IP packet; 0: 9000
	// Delay is how long a packet takes. If it, Reorder or Duplicate are not 0 packets are handed up
	// by goroutines of the Net's, one at a time, each for itself. It is fake time in a bubble.
	Delay time.Duration
	// Loss, Duplicate and Reorder are the parts of all packets, 0 to 1, that get lost, come twice, and
	// come late by up to Late, or, if that is 0, by up to a millisecond.
	Loss, Duplicate, Reorder float64
	Late                     time.Duration
	Seed                     uint64 // the same numbers, the same fate of each packet
	// Find is how long it takes to find the way to another host.
	Find time.Duration
	// Lost reports whether a packet, from its IP header on, is lost; nil: none is beside those of
	// Loss. It is called with the packets in the order in which they are sent, by whoever sends.
	Lost func(ip []byte) bool
}

// A roceNet is the part of a Net that carries RoCE's packets.
type roceNet struct {
	mu    sync.Mutex
	ports map[netip.Addr]*rocePort         // +checklocks:mu
	mcast map[netip.Addr]map[*rocePort]int // +checklocks:mu
	rand  *rand.Rand                       // +checklocks:mu
	late  []latePacket                     // +checklocks:mu
	seq   uint64                           // +checklocks:mu

	pump sync.Mutex // held while late packets are handed up
}

// A latePacket is one that is under way.
type latePacket struct {
	due time.Time
	seq uint64
	ip  []byte
}

// OpenRoCE implements vnic.RoCENetwork.
func (h *Host) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	n := &h.net.roce
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		if !h.owns(a) {
			return nil, fmt.Errorf("RoCE at %v: %w", a, syscall.EADDRNOTAVAIL)
		}
		if n.ports[a] != nil {
			return nil, fmt.Errorf("RoCE at %v: %w", a, syscall.EADDRINUSE)
		}
	}
	if n.ports == nil {
		n.ports = make(map[netip.Addr]*rocePort)
		n.mcast = make(map[netip.Addr]map[*rocePort]int)
	}
	p := &rocePort{host: h, addrs: slices.Clone(addrs), r: r}
	for _, a := range addrs {
		n.ports[a] = p
	}
	return p, nil
}

// A rocePort is a vnic.RoCEPort.
type rocePort struct {
	host  *Host
	addrs []netip.Addr
	r     vnic.RoCEReceiver

	// calls has who calls r for reading; Close, for writing, waits for them.
	calls  sync.RWMutex
	closed bool // guarded by calls
}

func (p *rocePort) MTU() int {
	if m := p.host.net.RoCE.MTU; m != 0 {
		return m
	}
	return 9000
}

// Route finds a way to hosts of the Net; to one that swallows what comes it hangs, as Dial does.
func (p *rocePort) Route(ctx context.Context, local, remote netip.Addr) (vnic.RoCERoute, error) {
	remote = remote.WithZone("")
	switch {
	case !slices.Contains(p.addrs, local):
		return nil, fmt.Errorf("from %v: %w", local, syscall.EADDRNOTAVAIL)
	case local.Is4() != remote.Is4():
		return nil, fmt.Errorf("from %v to %v: %w", local, remote, syscall.EAFNOSUPPORT)
	}
	r := &roceRoute{port: p, remote: remote}
	if remote.IsMulticast() {
		r.mac = groupMAC(remote)
		return r, nil
	}
	h := p.host.net
	h.mu.Lock()
	up, known := h.hosts[remote]
	h.mu.Unlock()
	switch {
	case !known:
		return nil, fmt.Errorf("to %v: %w", remote, syscall.EHOSTUNREACH)
	case !up:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if !slices.Contains(p.addrs, remote) {
		// A timer that is over is run by who selects: under the race detector two of a bubble of
		// synctest that do so at once crash in the runtime (Go 1.26).
		if h.RoCE.Find > 0 {
			select {
			case <-time.After(h.RoCE.Find):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		b := remote.As16()
		r.mac = [6]byte{2, 0, b[12], b[13], b[14], b[15]}
	}
	return r, nil
}

// groupMAC is where packets to a group go (RFC 1112, section 6.4; RFC 2464, section 7).
func groupMAC(g netip.Addr) [6]byte {
	b := g.As16()
	if g.Is4() {
		return [6]byte{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

func (p *rocePort) Join(g netip.Addr) error {
	if !g.IsMulticast() {
		return fmt.Errorf("join %v: %w", g, syscall.EINVAL)
	}
	n := &p.host.net.roce
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mcast[g] == nil {
		n.mcast[g] = make(map[*rocePort]int)
	}
	n.mcast[g][p]++
	return nil
}

func (p *rocePort) Leave(g netip.Addr) error {
	n := &p.host.net.roce
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mcast[g][p] == 0 {
		return fmt.Errorf("leave %v: %w", g, syscall.EADDRNOTAVAIL)
	}
	if n.mcast[g][p]--; n.mcast[g][p] == 0 {
		delete(n.mcast[g], p)
	}
	return nil
}

func (p *rocePort) Close() error {
	n := &p.host.net.roce
	n.mu.Lock()
	for _, a := range p.addrs {
		if n.ports[a] == p {
			delete(n.ports, a)
		}
	}
	for _, m := range n.mcast {
		delete(m, p)
	}
	n.mu.Unlock()
	p.calls.Lock()
	defer p.calls.Unlock()
	p.closed = true
	return nil
}

// receive hands ip up, which nobody writes to any more.
//
// +checklocksignore: it does not know TryRLock.
func (p *rocePort) receive(ip []byte, group bool, b *roceBatch) {
	var q vnic.RoCEPacket
	var err error
	if q.Packet, err = udp.Parse(ip); err != nil {
		return
	}
	q.Group, q.Owner = group, collected{ip}
	if b != nil {
		q.Batch = b
	}
	// Calls nest where one answers from inside another, and a lock that somebody waits for to write
	// must not be taken twice: who does not get it has lost a packet of a Port that is closing.
	if !p.calls.TryRLock() {
		return
	}
	defer p.calls.RUnlock()
	if !p.closed {
		p.r.ReceiveRoCE(&q)
	}
}

// collected is memory that the garbage collector takes care of.
type collected struct{ ip []byte }

func (c collected) Keep() vnic.RoCEKept { return c }
func (collected) Release()              {}

func (c collected) Memory() (end *byte, octets int) { return &c.ip[len(c.ip)-1], len(c.ip) }

// A roceBatch is a vnic batch of packets.
type roceBatch struct{ f interface{ Finish() } }

func (b *roceBatch) Defer(f interface{ Finish() }) bool {
	if b.f != nil {
		return false
	}
	b.f = f
	return true
}

func (b *roceBatch) Deferred() interface{ Finish() } { return b.f }

// Local and More implement a batch of vnic's.
func (b *roceBatch) Local() bool       { return false }
func (b *roceBatch) More() func() bool { return nil }

func (b *roceBatch) FinishEarly() {
	f := b.f
	if b.f = nil; f != nil {
		f.Finish()
	}
}

// A roceRoute is a vnic.RoCERoute.
type roceRoute struct {
	port   *rocePort
	remote netip.Addr
	mac    [6]byte
}

func (r *roceRoute) NextHop() [6]byte { return r.mac }
func (r *roceRoute) MTU() int         { return r.port.MTU() }

func (r *roceRoute) Send(src vnic.RoCESource) (err error) {
	if r.port.isClosed() {
		return net.ErrClosed
	}
	n := r.port.host.net
	if n.Plain {
		return r.sendPlain(src)
	}
	var all [][]byte
	buf := make([]byte, r.MTU())
	for {
		ip, ok := src.NextPacket(buf[:0])
		switch {
		case !ok && len(all) == 0:
			return err
		case !ok:
			n.sendRoCE(all)
			return err
		case len(ip) > r.MTU():
			err = fmt.Errorf("a packet of %d octets: %w", len(ip), syscall.EMSGSIZE)
		default:
			all = append(all, bytes.Clone(ip))
		}
	}
}

// A plainSend is what a Send on a Plain Net needs.
type plainSend struct {
	buf   []byte
	batch roceBatch
	p     vnic.RoCEPacket
}

var plainSends = sync.Pool{New: func() any { return new(plainSend) }}

// sendPlain hands packets up where they were made, as fast as can be, and allocates nothing.
func (r *roceRoute) sendPlain(src vnic.RoCESource) error {
	n := r.port.host.net
	s := plainSends.Get().(*plainSend)
	if mtu := r.MTU(); cap(s.buf) < mtu {
		s.buf = make([]byte, mtu)
	}
	n.roce.mu.Lock()
	to := n.roce.ports[r.remote]
	n.roce.mu.Unlock()
	for {
		ip, ok := src.NextPacket(s.buf[:0])
		if !ok {
			break
		}
		var err error
		if s.p.Packet, err = udp.Parse(ip); err != nil || to == nil {
			continue
		}
		s.p.Batch = &s.batch
		to.r.ReceiveRoCE(&s.p)
	}
	s.batch.FinishEarly()
	plainSends.Put(s)
	return nil
}

// isClosed reports whether Close was called.
//
// +checklocksignore: it does not know TryRLock.
func (p *rocePort) isClosed() bool {
	if !p.calls.TryRLock() {
		return true // Close waits
	}
	defer p.calls.RUnlock()
	return p.closed
}

// sendRoCE carries packets, which nobody writes to any more.
func (n *Net) sendRoCE(all [][]byte) {
	link, r := n.RoCE, &n.roce
	now := time.Now()
	var direct [][]byte
	queued := link.Delay != 0 || link.Reorder != 0 || link.Duplicate != 0
	r.mu.Lock()
	if r.rand == nil {
		r.rand = rand.New(rand.NewPCG(link.Seed, 0))
	}
	for _, ip := range all {
		switch {
		case link.Lost != nil && link.Lost(ip), r.rand.Float64() < link.Loss:
			continue
		case !queued:
			direct = append(direct, ip)
			continue
		}
		times := 1
		if r.rand.Float64() < link.Duplicate {
			times = 2
		}
		for range times {
			d := link.Delay
			if r.rand.Float64() < link.Reorder {
				late := link.Late
				if late == 0 {
					late = time.Millisecond
				}
				d += time.Duration(r.rand.Int64N(int64(late))) + 1
			}
			r.seq++
			r.late = append(r.late, latePacket{now.Add(d), r.seq, ip})
			time.AfterFunc(d, n.pumpRoCE)
		}
	}
	r.mu.Unlock()
	b := &roceBatch{}
	for _, ip := range direct {
		n.arrive(ip, b)
	}
	b.FinishEarly()
}

// pumpRoCE hands up what is due, in order.
func (n *Net) pumpRoCE() {
	r := &n.roce
	r.pump.Lock()
	defer r.pump.Unlock()
	for {
		r.mu.Lock()
		first := -1
		for i, p := range r.late {
			if f := first; f < 0 || p.due.Before(r.late[f].due) ||
				p.due.Equal(r.late[f].due) && p.seq < r.late[f].seq {
				first = i
			}
		}
		if first < 0 || r.late[first].due.After(time.Now()) {
			r.mu.Unlock()
			return
		}
		ip := r.late[first].ip
		r.late = slices.Delete(r.late, first, first+1)
		r.mu.Unlock()
		n.arrive(ip, nil)
	}
}

// arrive hands a packet to who takes it: all that have joined a group, in no order.
func (n *Net) arrive(ip []byte, b *roceBatch) {
	p, err := udp.Parse(ip)
	if err != nil {
		return
	}
	r := &n.roce
	var to []*rocePort
	r.mu.Lock()
	if one := r.ports[p.Dst]; one != nil {
		to = append(to, one)
	}
	for one := range r.mcast[p.Dst] {
		to = append(to, one)
	}
	r.mu.Unlock()
	for _, one := range to {
		one.receive(ip, p.Dst.IsMulticast(), b)
	}
}
