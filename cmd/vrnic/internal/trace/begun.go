package trace

import (
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/iwarp"
)

// Begun makes up the start frames of MPA of connections over TCP that were there before a capture:
// who has seen none of a connection, as Wireshark, does not take what follows for FPDUs.
type Begun struct {
	seen map[[2]netip.AddrPort]struct{}
}

// MadeUp is the comment of packets of Begun.
const MadeUp = "made up: this connection began before the capture, and Wireshark knows it by this"

// maxBegun bounds the connections that are known. Of others nothing is made up: it might be in the
// middle of one that was known.
const maxBegun = 1 << 16

// NewBegun is one that has seen nothing.
func NewBegun() *Begun { return &Begun{make(map[[2]netip.AddrPort]struct{})} }

// Before gives the packets that are to come before p, which is between those queue pairs: a Request
// from who has sent p, with the octets in front of its own, and a Reply to it; or none.
func (b *Begun) Before(p *capture.Packet, is *capture.Parsed, from, to *capture.QP) (
	packets []capture.Packet, err error) {
	if is.Proto != "tcp" {
		return nil, nil
	}
	conn := [2]netip.AddrPort{is.Src, is.Dst}
	if is.Dst.Compare(is.Src) < 0 {
		conn = [2]netip.AddrPort{is.Dst, is.Src}
	}
	if _, ok := b.seen[conn]; ok {
		return nil, nil
	}
	q := from
	out, in := "out", "in" // of q, as it is of who has sent p
	if q == nil {
		q, out, in = to, in, out
	}
	old := !is.SYN && !isStart(is.Payload)
	// Also in front of a packet without octets: behind it they would have been sent again.
	if old && (q == nil || q.Transport != "tcp" && q.Transport != "loop" || !begins(is.Payload)) {
		return nil, nil
	}
	if len(b.seen) == maxBegun {
		return nil, nil
	}
	b.seen[conn] = struct{}{}
	if !old {
		return nil, nil
	}
	marked := func(way string) bool { return q.Markers == way || q.Markers == "both" }
	request, err := (&iwarp.StartFrame{Revision: 1, Markers: marked(in)}).Append(nil)
	if err != nil {
		return nil, err
	}
	reply, err := (&iwarp.StartFrame{Reply: true, Revision: 1, Markers: marked(out)}).Append(nil)
	if err != nil {
		return nil, err
	}
	for _, back := range []bool{false, true} {
		payload := request
		if back {
			payload = reply
		}
		data, err := madeUp(p.Data, payload, uint32(len(request)), uint32(len(reply)), back)
		if data == nil || err != nil {
			return nil, err
		}
		m := *p
		m.Data, m.Len, m.In, m.MadeUp = data, len(data), p.In != back, true
		packets = append(packets, m)
	}
	return packets, nil
}

// madeUp is a packet with that payload that came before p, back: from whom p goes to. The first of
// the two directions has had so many octets before p, and the other one that many. nil: p is of
// layers that are not made.
func madeUp(p, payload []byte, before, beforeBack uint32, back bool) ([]byte, error) {
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	var tcp layers.TCP
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &tcp)
	parser.IgnoreUnsupported = true
	var is []gopacket.LayerType
	if err := parser.DecodeLayers(p, &is); err != nil || len(is) < 3 ||
		is[2] != layers.LayerTypeTCP {
		return nil, nil
	}
	seq, ack := tcp.Seq-before, tcp.Ack-beforeBack
	if back {
		eth.SrcMAC, eth.DstMAC = eth.DstMAC, eth.SrcMAC
		ip4.SrcIP, ip4.DstIP = ip4.DstIP, ip4.SrcIP
		ip6.SrcIP, ip6.DstIP = ip6.DstIP, ip6.SrcIP
		tcp.SrcPort, tcp.DstPort = tcp.DstPort, tcp.SrcPort
		seq, ack = ack, tcp.Seq
	}
	made := &layers.TCP{SrcPort: tcp.SrcPort, DstPort: tcp.DstPort, Seq: seq, Ack: ack, ACK: true,
		PSH: true, Window: tcp.Window}
	stack := []gopacket.SerializableLayer{&eth}
	if is[1] == layers.LayerTypeIPv4 {
		ip4.Options, ip4.Padding = nil, nil
		stack = append(stack, &ip4)
		if err := made.SetNetworkLayerForChecksum(&ip4); err != nil {
			return nil, err
		}
	} else {
		stack = append(stack, &ip6)
		if err := made.SetNetworkLayerForChecksum(&ip6); err != nil {
			return nil, err
		}
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true,
		ComputeChecksums: true}, append(stack, made, gopacket.Payload(payload))...)
	return b.Bytes(), err
}
