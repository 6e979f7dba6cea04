package rawhost

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A Station is one of a switch, with a MAC and some addresses. It answers ARP and neighbour
// discovery, and keeps RoCE's packets that come to its MAC.
type Station struct {
	MAC   frame.MAC
	Addrs []netip.Addr

	at   *ethswitch.Attachment
	came chan struct{} // one slot

	mu     sync.Mutex
	others [][]byte // IP packets that are not RoCE's; +checklocks:mu
	raw    [][]byte // +checklocks:mu
}

// maxKept bounds the packets that wait to be taken.
const maxKept = 1 << 16

// NewStation attaches a Station to sw; Close takes it off.
func NewStation(sw *ethswitch.Switch, addrs ...netip.Addr) (*Station, error) {
	p := &Station{MAC: frame.RandomMAC(), Addrs: addrs, came: make(chan struct{}, 1)}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "raw " + p.MAC.String(), Kind: "memory"}, p)
	if err != nil {
		return nil, err
	}
	p.at = at
	return p, nil
}

// Close takes p off its switch.
func (p *Station) Close() { p.at.Detach() }

// Offloads implements ethswitch.Port.
func (p *Station) Offloads(frame.GSO) bool { return false }

// String implements ethswitch.Port.
func (p *Station) String() string { return "a peer made by hand" }

// Transmit implements ethswitch.Port: a frame comes to p.
func (p *Station) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	b := f.AppendTo(nil)
	if frame.MAC(b[:6]) != p.MAC && b[0]&1 == 0 {
		return true
	}
	be := binary.BigEndian
	switch typ := be.Uint16(b[12:]); {
	case typ == 0x0806 && len(b) >= 42:
		if target, _ := netip.AddrFromSlice(b[38:42]); b[21] == 1 && slices.Contains(p.Addrs, target) {
			a := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, p.MAC[:]...)
			a = append(append(append(a, b[38:42]...), b[22:28]...), b[28:32]...)
			p.SendFrame(frame.MAC(b[6:12]), 0x0806, a)
		}
	case typ == 0x86dd && len(b) >= 78 && b[20] == 58 && b[54] == 135:
		if target, _ := netip.AddrFromSlice(b[62:78]); slices.Contains(p.Addrs, target) {
			p.advertise(frame.MAC(b[6:12]), b[22:38], target)
		}
	case typ == 0x0800 || typ == 0x86dd:
		p.keep(b[14:])
	}
	return true
}

// advertise answers a Neighbour Solicitation (RFC 4861, section 4.4).
func (p *Station) advertise(mac frame.MAC, to []byte, target netip.Addr) {
	icmp := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, target.AsSlice()...)
	icmp = append(append(icmp, 2, 1), p.MAC[:]...)
	pseudo := append(append(target.AsSlice(), to...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(icmp[2:], ^rawroce.Sum(append(pseudo, icmp...)))
	b := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), 58, 255}, target.AsSlice()...)
	p.SendFrame(mac, 0x86dd, append(append(b, to...), icmp...))
}

func (p *Station) keep(ip []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := rawroce.HeadLen(ip)
	proto := ip[6]
	if ip[0]>>4 == 4 {
		proto = ip[9]
	}
	list := &p.others
	if proto == 17 && len(ip) >= n+8 && binary.BigEndian.Uint16(ip[n+2:]) == 4791 {
		list = &p.raw
	}
	if len(*list) < maxKept {
		*list = append(*list, ip)
	}
	select {
	case p.came <- struct{}{}:
	default:
	}
}

// SendFrame sends a frame.
func (p *Station) SendFrame(dst frame.MAC, etherType uint16, payload []byte) {
	b := append(append([]byte(nil), dst[:]...), p.MAC[:]...)
	b = append(binary.BigEndian.AppendUint16(b, etherType), payload...)
	f := frame.New(b, frame.Offload{})
	defer f.Release()
	_ = p.at.Input(f) // it counts what it drops
}

// Send sends an IP packet to the station with the address mac.
func (p *Station) Send(mac frame.MAC, ip []byte) {
	typ := uint16(0x0800)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		typ = 0x86dd
	}
	p.SendFrame(mac, typ, ip)
}

// Take is the oldest of RoCE's packets that have come; ok is false if there is none. An error says
// what is wrong with it.
func (p *Station) Take() (q rawroce.Packet, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.raw) == 0 {
		return rawroce.Packet{}, false, nil
	}
	b := p.raw[0]
	p.raw = p.raw[1:]
	if q, err = rawroce.Read(b); err == nil && q.SrcPort < 0xc000 {
		err = fmt.Errorf("it is from port %d", q.SrcPort)
	}
	return q, true, err
}

// Next is Take that waits for a packet until ctx ends.
func (p *Station) Next(ctx context.Context) (rawroce.Packet, error) {
	for {
		q, ok, err := p.Take()
		switch {
		case err != nil:
			return q, fmt.Errorf("a packet that nobody may send: %w", err)
		case ok:
			return q, nil
		}
		select {
		case <-p.came:
		case <-ctx.Done():
			return q, ctx.Err()
		}
	}
}

// Others are the IP packets that have come and are not RoCE's.
func (p *Station) Others() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.others
	p.others = nil
	return o
}
