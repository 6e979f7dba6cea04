package port

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// IPConfig describes a port whose link takes and gives IP packets, without frames: something that
// finds its neighbours itself, such as IP over InfiniBand. There is one stack on the switch.
type IPConfig struct {
	Name  string // of the port on the switch
	Stack frame.MAC
	Addrs []netip.Prefix // the stack's: nobody else is told to have them
}

// Bounds of what waits for Read.
const (
	ipQueuePackets = 1024
	ipQueueOctets  = 4 << 20
)

// An IP is such a port. To the stack all addresses but its own are those of one neighbour, the
// port, which answers ARP and neighbour discovery; none of these go any further.
type IP struct {
	cfg  IPConfig
	mac  frame.MAC
	at   *ethswitch.Attachment
	out  chan *frame.Frame // for Read
	kept atomic.Int64      // octets in out

	close  sync.Once
	closed chan struct{}
}

var _ ethswitch.Port = (*IP)(nil)

// AttachIP makes a port of sw.
func AttachIP(sw *ethswitch.Switch, c IPConfig) (*IP, error) {
	p := &IP{cfg: c, mac: frame.RandomMAC(), out: make(chan *frame.Frame, ipQueuePackets),
		closed: make(chan struct{})}
	var err error
	p.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "ip"}, p)
	if err != nil {
		return nil, fmt.Errorf("netstack: ip %s: %w", c.Name, err)
	}
	return p, nil
}

// String implements Port.
func (p *IP) String() string { return "IP packets" }

// Offloads implements Port: packets are whole.
func (p *IP) Offloads(frame.GSO) bool { return false }

// Transmit implements Port. Packets that nobody reads in time are lost.
func (p *IP) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	var h frame.Packet
	if h.Parse(f) != nil {
		return false
	}
	var answer []byte
	switch {
	case h.EtherType == frame.EtherARP:
		answer = p.answerARP(h.Headers[:h.N])
	case h.EtherType == frame.EtherIPv6 && isND(&h):
		answer = p.answerND(&h)
	case h.EtherType == frame.EtherIPv4 || h.EtherType == frame.EtherIPv6:
		return p.queue(f)
	default:
		return false
	}
	if answer != nil {
		p.input(frame.New(answer, frame.Offload{}))
	}
	return true
}

// queue has Read find f.
func (p *IP) queue(f *frame.Frame) bool {
	n := int64(f.Len())
	if p.kept.Add(n) > ipQueueOctets {
		p.kept.Add(-n)
		return false
	}
	q := frame.Empty()
	q.Buffer = f.Take()
	select {
	case p.out <- q:
		return true
	default:
		p.kept.Add(-n)
		q.Release()
		return false
	}
}

// Read waits for the next packet of the stack's, and reads it into b. io.EOF: the port is closed.
func (p *IP) Read(b []byte) (int, error) {
	select {
	case f := <-p.out:
		p.kept.Add(-int64(f.Len()))
		n, _ := f.Buffer.ReadAt(b, frame.EtherHeaderLen) // io.EOF of one that is shorter
		f.Release()
		return n, nil
	case <-p.closed:
		return 0, io.EOF
	}
}

// More reports whether Read will find a packet at once.
func (p *IP) More() bool { return len(p.out) > 0 }

// Write gives the stack a packet.
func (p *IP) Write(packet []byte) (int, error) {
	if len(packet) == 0 {
		return 0, io.ErrShortWrite
	}
	f := frame.Empty()
	head := buffer.NewViewSize(frame.EtherHeaderLen)
	b := head.AsSlice()
	to := p.cfg.Stack
	if g, ok := groupMAC(packet); ok {
		to = g
	}
	t := uint16(frame.EtherIPv4)
	if packet[0]>>4 == 6 {
		t = frame.EtherIPv6
	}
	putEther(b, to, p.mac, t)
	f.Append(head)
	for rest := packet; len(rest) > 0; {
		n := min(len(rest), buffer.MaxChunkSize)
		f.Append(buffer.NewViewWithData(rest[:n]))
		rest = rest[n:]
	}
	p.input(f)
	return len(packet), nil
}

// input brings f to the stack.
func (p *IP) input(f *frame.Frame) {
	_ = p.at.Input(f) // counts what it drops
	f.Release()
}

// Close takes the port off its switch. A Read that waits ends, and what nobody has read is lost.
func (p *IP) Close() error {
	p.close.Do(func() {
		p.at.Detach() // Transmit is not called after it
		close(p.closed)
		for {
			select {
			case f := <-p.out:
				f.Release()
			default:
				return
			}
		}
	})
	return nil
}

// groupMAC is the address of the group that packet goes to, if it goes to one (RFC 1112, section
// 6.4; RFC 2464, section 7; RFC 922 for the broadcast address).
func groupMAC(packet []byte) (m frame.MAC, ok bool) {
	switch {
	case packet[0]>>4 == 6 && len(packet) >= frame.IPv6Len && packet[24] == 0xff:
		return frame.MAC{0x33, 0x33, packet[36], packet[37], packet[38], packet[39]}, true
	case packet[0]>>4 == 4 && len(packet) >= frame.IPv4MinLen:
		d := packet[16:20]
		if d[0]>>4 == 0xe {
			return frame.MAC{0x01, 0x00, 0x5e, d[1] & 0x7f, d[2], d[3]}, true
		}
		if binary.BigEndian.Uint32(d) == 0xffffffff {
			return frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true
		}
	}
	return m, false
}

func putEther(b []byte, dst, src frame.MAC, t uint16) {
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], t)
}

func (p *IP) owns(a netip.Addr) bool {
	return slices.ContainsFunc(p.cfg.Addrs, func(o netip.Prefix) bool { return o.Addr() == a })
}

// answerARP is the reply to a request of RFC 826. Nil: nobody is asked for, or the stack itself,
// or the stack asks whether its address is somebody else's.
func (p *IP) answerARP(f []byte) []byte {
	const ether, arpLen = frame.EtherHeaderLen, 28
	if len(f) < ether+arpLen || [8]byte(f[ether:]) != [8]byte{0, 1, 8, 0, 6, 4, 0, 1} {
		return nil
	}
	a := f[ether : ether+arpLen]
	asker, target := netip.AddrFrom4([4]byte(a[14:18])), netip.AddrFrom4([4]byte(a[24:28]))
	if asker.IsUnspecified() || p.owns(target) {
		return nil
	}
	b := make([]byte, ether+arpLen)
	putEther(b, p.cfg.Stack, p.mac, frame.EtherARP)
	r := b[ether:]
	copy(r, a[:6])
	r[7] = 2
	copy(r[8:], p.mac[:])
	copy(r[14:], a[24:28])
	copy(r[18:], a[8:18])
	return b
}

// Types of neighbour discovery (RFC 4861, section 4), from the first to the last.
const (
	ndFirst     = 133
	ndSolicit   = 135
	ndAdvertise = 136
	ndLast      = 137
)

func isND(h *frame.Packet) bool {
	return h.Protocol == frame.ProtoICMPv6 && h.L4 > 0 && h.L4 < h.N &&
		h.Headers[h.L4] >= ndFirst && h.Headers[h.L4] <= ndLast
}

// answerND is the advertisement that a solicitation is answered with, nil as answerARP.
func (p *IP) answerND(h *frame.Packet) []byte {
	const ether, body = frame.EtherHeaderLen, 32 // 24 of the message, and its option
	b := h.Headers[:h.N]
	if b[h.L4] != ndSolicit || h.L4 != ether+frame.IPv6Len || h.N < h.L4+24 {
		return nil
	}
	asker, target := netip.AddrFrom16([16]byte(b[ether+8:])), netip.AddrFrom16([16]byte(b[h.L4+8:]))
	if asker.IsUnspecified() || p.owns(target) {
		return nil
	}
	r := make([]byte, ether+frame.IPv6Len+body)
	putEther(r, p.cfg.Stack, p.mac, frame.EtherIPv6)
	ip, m := r[ether:], r[ether+frame.IPv6Len:]
	ip[0], ip[5], ip[6], ip[7] = 0x60, body, frame.ProtoICMPv6, 255
	copy(ip[8:], target.AsSlice())
	copy(ip[24:], asker.AsSlice())
	m[0], m[4] = ndAdvertise, 0x60 // solicited, override
	copy(m[8:], target.AsSlice())
	m[24], m[25] = 2, 1 // the target's link-layer address
	copy(m[26:], p.mac[:])
	binary.BigEndian.PutUint16(m[2:], icmp6Sum(ip, m))
	return r
}

// icmp6Sum is the checksum of an ICMPv6 message m of whole words, behind the header ip.
func icmp6Sum(ip, m []byte) uint16 {
	sum := uint32(len(m)) + frame.ProtoICMPv6
	for _, part := range [][]byte{ip[8:40], m} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
