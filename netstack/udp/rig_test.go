package udp_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/udp"
	"github.com/vrnic/vrnic/roce/packet"
	roceudp "github.com/vrnic/vrnic/roce/udp"
)

// addrs are those of the n-th stack, from 1.
func addrs(n int) (list []netip.Addr) {
	for _, p := range netstacktest.Addresses(n) {
		list = append(list, p.Addr())
	}
	return list
}

// A sink is a Handler that keeps what comes.
type sink struct {
	mu       sync.Mutex
	packets  []roceudp.Packet // +checklocks:mu
	groups   int              // +checklocks:mu
	finished int              // +checklocks:mu
}

func (s *sink) Receive(p udp.Packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packets = append(s.packets, roceudp.Packet{Src: p.Src, Dst: p.Dst,
		Header: slices.Clone(p.Header), Datagram: slices.Clone(p.Data)})
	if p.Group {
		s.groups++
	}
	p.Batch.Defer(s)
}

func (s *sink) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished++
}

// take is what has come since it was called last: PSNs, or -1 for a packet whose ICRC is wrong.
func (s *sink) take() (psns []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.packets {
		var h packet.Header
		if _, err := h.Parse(p.Datagram); err != nil || !p.Valid() {
			psns = append(psns, -1)
			continue
		}
		psns = append(psns, int(h.PSN))
	}
	s.packets = nil
	return psns
}

// A source makes n packets of size octets of payload, with PSNs from next on.
type source struct {
	roceudp.Template
	next packet.PSN
	n    int
	size int
	data []byte
}

func newSource(src, dst netip.Addr) *source {
	return &source{Template: roceudp.NewTemplate(roceudp.Flow{Src: src, Dst: dst, SrcPort: 0xc001}),
		data: make([]byte, 65536)}
}

func (s *source) NextPacket(b []byte) ([]byte, bool) {
	if s.n == 0 {
		return nil, false
	}
	h := packet.Header{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, Dest: 17, PSN: s.next}
	s.next, s.n = s.next+1, s.n-1
	return s.Finish(append(h.Append(s.Append(b)), s.data[:s.size]...)), true
}

// one is a packet of its own.
func (s *source) one(psn packet.PSN) []byte {
	s.next, s.n = psn, 1
	b, _ := s.NextPacket(nil)
	return b
}

// A rig is a stack with a Socket, and a port of its switch that sends and sees all frames.
type rig struct {
	t     *testing.T
	sw    *ethswitch.Switch
	stack *netstack.Stack
	sock  *udp.Socket
	sink  *sink
	wire  *porttest.Port
	mac   frame.MAC // of the wire's station
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, sw: ethswitch.New(ethswitch.Config{}), sink: &sink{},
		mac: frame.MAC{2, 0, 0, 0, 0, 9}}
	r.stack = netstacktest.NewStack(t, r.sw, 1, 1500)
	r.wire = porttest.NewPort(t, r.sw, "wire", false)
	r.sock = open(t, r.stack, 1, r.sink)
	return r
}

func open(t *testing.T, s *netstack.Stack, n int, h udp.Handler) *udp.Socket {
	t.Helper()
	sock, err := s.UDP().Open(packet.Port, addrs(n), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	return sock
}

// etherType is that of an IP packet.
func etherType(ip []byte) uint16 {
	if ip[0]>>4 == 4 {
		return frame.EtherIPv4
	}
	return frame.EtherIPv6
}

// frame is ip in a frame to dst.
func (r *rig) frame(dst frame.MAC, ip []byte) []byte {
	b := append(append([]byte(nil), dst[:]...), r.mac[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType(ip)), ip...)
}

// send sends ip to the stack.
func (r *rig) send(ip []byte) {
	if err := r.wire.Send(r.frame(r.stack.MAC(), ip), frame.Offload{}); err != nil {
		r.t.Error(err)
	}
}

// answer answers ARP and neighbour discovery for the wire's station at addr, until the test ends,
// and gives all other frames to others, as far as there is room.
func (r *rig) answer(addr netip.Addr, others chan<- []byte) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case f := <-r.wire.Frames:
				if reply := r.reply(f.Octets, addr); reply != nil {
					_ = r.wire.Send(reply, frame.Offload{}) // the stack may be gone
				} else if others != nil {
					select {
					case others <- f.Octets:
					default:
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
}

// reply is what answers an ARP request for addr, or nil.
func (r *rig) reply(b []byte, addr netip.Addr) []byte {
	a4 := addr.As4()
	if binary.BigEndian.Uint16(b[12:]) != frame.EtherARP || b[21] != 1 ||
		netip.AddrFrom4([4]byte(b[38:42])) != addr {
		return nil
	}
	return r.arp(2, r.mac, a4, frame.MAC(b[22:28]), [4]byte(b[28:32]))
}

// arp is an ARP packet: op 1 asks, 2 answers.
func (r *rig) arp(op byte, mac frame.MAC, addr [4]byte, toMAC frame.MAC, to [4]byte) []byte {
	b := append(append([]byte(nil), toMAC[:]...), mac[:]...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, op)
	b = append(append(b, mac[:]...), addr[:]...)
	return append(append(b, toMAC[:]...), to[:]...)
}
