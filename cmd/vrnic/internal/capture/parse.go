package capture

import (
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// A Parsed is what is looked at of a packet. What is not there is zero.
type Parsed struct {
	Proto    string // arp, icmp, tcp, udp, sctp, roce; "": another one
	Src, Dst netip.AddrPort
	BTH      *BTH
	// Payload is what UDP, TCP or SCTP carries: of SCTP its chunks. Seq is the number that TCP gives
	// its first octet.
	Payload []byte
	Seq     uint32
	SYN     bool // of TCP: a connection begins
}

// Verbs says that it can be of a queue pair.
func (p *Parsed) Verbs() bool { return p.BTH != nil || p.Proto == "tcp" || p.Proto == "sctp" }

// A BTH is what RoCE says of a packet.
type BTH struct {
	Opcode uint8
	Dest   uint32 // queue pair
	Src    uint32 // of datagrams
	PSN    uint32
}

// roceUDP is the UDP port of RoCEv2.
const roceUDP = 4791

// A Parser parses packets, one after the other.
type Parser struct {
	eth  layers.Ethernet
	tag  layers.Dot1Q
	arp  layers.ARP
	ip4  layers.IPv4
	ip6  layers.IPv6
	tcp  layers.TCP
	udp  layers.UDP
	sctp layers.SCTP
	ic4  layers.ICMPv4
	ic6  layers.ICMPv6
	p    *gopacket.DecodingLayerParser
	is   []gopacket.LayerType
	bth  BTH
}

// NewParser makes a Parser.
func NewParser() *Parser {
	p := new(Parser)
	p.p = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &p.eth, &p.tag, &p.arp, &p.ip4,
		&p.ip6, &p.tcp, &p.udp, &p.sctp, &p.ic4, &p.ic6)
	p.p.IgnoreUnsupported = true
	return p
}

// Parse looks at a packet, as far as it can be understood. What it gives is good until the next
// call.
func (p *Parser) Parse(b []byte) (r Parsed) {
	_ = p.p.DecodeLayers(b, &p.is) // what is broken behind some layer is of no interest
	var src, dst netip.Addr
	for _, l := range p.is {
		switch l {
		case layers.LayerTypeARP:
			r.Proto = "arp"
			src, _ = netip.AddrFromSlice(p.arp.SourceProtAddress)
			dst, _ = netip.AddrFromSlice(p.arp.DstProtAddress)
			r.Src, r.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		case layers.LayerTypeIPv4:
			src, _ = netip.AddrFromSlice(p.ip4.SrcIP.To4())
			dst, _ = netip.AddrFromSlice(p.ip4.DstIP.To4())
			r.Src, r.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		case layers.LayerTypeIPv6:
			src, _ = netip.AddrFromSlice(p.ip6.SrcIP.To16())
			dst, _ = netip.AddrFromSlice(p.ip6.DstIP.To16())
			r.Src, r.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		case layers.LayerTypeICMPv4, layers.LayerTypeICMPv6:
			r.Proto = "icmp"
		case layers.LayerTypeTCP:
			r.ports("tcp", uint16(p.tcp.SrcPort), uint16(p.tcp.DstPort))
			r.Payload, r.Seq, r.SYN = p.tcp.Payload, p.tcp.Seq, p.tcp.SYN
			if p.tcp.SYN {
				r.Seq++
			}
		case layers.LayerTypeSCTP:
			r.ports("sctp", uint16(p.sctp.SrcPort), uint16(p.sctp.DstPort))
			r.Payload = p.sctp.Payload
		case layers.LayerTypeUDP:
			r.ports("udp", uint16(p.udp.SrcPort), uint16(p.udp.DstPort))
			r.Payload = p.udp.Payload
			if p.udp.DstPort == roceUDP && p.bth.parse(p.udp.Payload) {
				r.Proto, r.BTH = "roce", &p.bth
			}
		}
	}
	return r
}

func (r *Parsed) ports(proto string, src, dst uint16) {
	r.Proto = proto
	r.Src, r.Dst = netip.AddrPortFrom(r.Src.Addr(), src), netip.AddrPortFrom(r.Dst.Addr(), dst)
}

// parse takes the BTH, and the source of a datagram's DETH, from the payload of UDP.
func (h *BTH) parse(b []byte) bool {
	const bthLen, dethSource = 12, 17
	if len(b) < bthLen {
		return false
	}
	u24 := func(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
	*h = BTH{Opcode: b[0], Dest: u24(b[5:]), PSN: u24(b[9:])}
	if h.Opcode>>5 == 3 && len(b) >= dethSource+3 {
		h.Src = u24(b[dethSource:])
	}
	return true
}

// operations are the names of BTH opcodes, without the transport in the three highest bits.
var operations = [...]string{0: "Send First", 1: "Send Middle", 2: "Send Last",
	3: "Send Last with Immediate", 4: "Send", 5: "Send with Immediate", 6: "RDMA Write First",
	7: "RDMA Write Middle", 8: "RDMA Write Last", 9: "RDMA Write Last with Immediate",
	10: "RDMA Write", 11: "RDMA Write with Immediate", 12: "RDMA Read Request",
	13: "RDMA Read Response First", 14: "RDMA Read Response Middle", 15: "RDMA Read Response Last",
	16: "RDMA Read Response", 17: "Acknowledge", 18: "Atomic Acknowledge", 19: "Compare and Swap",
	20: "Fetch and Add", 22: "Send Last with Invalidate", 23: "Send with Invalidate"}

// String is what the packet is, without its queue pairs.
func (h *BTH) String() string {
	const cnp = 0x81
	if h.Opcode == cnp {
		return "congestion notification"
	}
	if op := int(h.Opcode & 0x1f); op < len(operations) && operations[op] != "" {
		return fmt.Sprintf("%s, PSN %d", operations[op], h.PSN)
	}
	return fmt.Sprintf("opcode %#x, PSN %d", h.Opcode, h.PSN)
}

// Protocols are the values of Parsed.Proto.
var Protocols = []string{"arp", "icmp", "tcp", "udp", "sctp", "roce"}
