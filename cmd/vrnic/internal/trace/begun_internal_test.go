package trace

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/iwarp"
)

// segment is a packet of TCP from a to b.
func segment(t *testing.T, a, b netip.AddrPort, syn bool, payload []byte) *capture.Packet {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(a.Port()), DstPort: layers.TCPPort(b.Port()), Seq: 100,
		Ack: 5000, ACK: true, SYN: syn, Window: 77}
	ip4 := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolTCP, SrcIP: a.Addr().AsSlice(),
		DstIP: b.Addr().AsSlice()}
	stack := []gopacket.SerializableLayer{eth, ip4}
	_ = tcp.SetNetworkLayerForChecksum(ip4)
	if a.Addr().Is6() {
		ip6 := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolTCP,
			SrcIP: a.Addr().AsSlice(), DstIP: b.Addr().AsSlice()}
		eth.EthernetType, stack[1] = layers.EthernetTypeIPv6, ip6
		_ = tcp.SetNetworkLayerForChecksum(ip6)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true,
		ComputeChecksums: true}, append(stack, tcp, gopacket.Payload(payload))...); err != nil {
		t.Fatal(err)
	}
	return &capture.Packet{Data: buf.Bytes(), In: true, Port: 3}
}

// The first packet that is seen of a connection has a Request and a Reply before it, whose octets
// end where the two directions go on; nothing else has, and nothing behind it.
func TestBegun(t *testing.T) {
	fpdu := []byte{0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0}
	request := []byte("MPA ID Req Frame\x00\x01\x00\x00")
	a4, b4 := netip.MustParseAddrPort("10.1.0.1:9"), netip.MustParseAddrPort("10.1.0.2:8")
	a6, b6 := netip.MustParseAddrPort("[fd01::1]:9"), netip.MustParseAddrPort("[fd01::2]:8")
	iwarpQP := &capture.QP{Transport: "tcp"}
	full := NewBegun()
	for i := range maxBegun {
		full.seen[[2]netip.AddrPort{netip.AddrPortFrom(a4.Addr(), uint16(i))}] = struct{}{}
	}
	for name, tt := range map[string]struct {
		a, b            netip.AddrPort
		syn             bool
		payload         []byte
		from, to        *capture.QP
		made            bool
		request, answer bool // have the flag that asks for markers
	}{
		"from one of ours": {a: a4, b: b4, payload: fpdu, from: iwarpQP, made: true},
		"to one of ours":   {a: b4, b: a4, payload: fpdu, to: iwarpQP, made: true},
		"IPv6":             {a: a6, b: b6, payload: fpdu, from: iwarpQP, made: true},
		"no octets":        {a: a4, b: b4, from: iwarpQP, made: true},
		"markers out": {a: a4, b: b4, payload: fpdu, made: true, answer: true,
			from: &capture.QP{Transport: "tcp", Markers: "out"}},
		"markers into ours": {a: a4, b: b4, payload: fpdu, made: true, answer: true,
			to: &capture.QP{Transport: "tcp", Markers: "in"}},
		"markers, both ways": {a: a4, b: b4, payload: fpdu, made: true, request: true, answer: true,
			to: &capture.QP{Transport: "tcp", Markers: "both"}},
		"one that begins":     {a: a4, b: b4, syn: true, from: iwarpQP},
		"its Request is seen": {a: a4, b: b4, payload: request, from: iwarpQP},
		"ROI":                 {a: a4, b: b4, payload: fpdu, from: &capture.QP{Transport: "tcp+roi"}},
		"nobody's":            {a: a4, b: b4, payload: fpdu},
		"the middle of one":   {a: a4, b: b4, payload: []byte("in the midst"), from: iwarpQP},
	} {
		parser, again, b := capture.NewParser(), capture.NewParser(), NewBegun()
		p := segment(t, tt.a, tt.b, tt.syn, tt.payload)
		is := parser.Parse(p.Data)
		got, err := b.Before(p, &is, tt.from, tt.to)
		if err != nil || len(got) != 0 != tt.made || len(got) != 0 && len(got) != 2 {
			t.Errorf("%s: %d packets, %v", name, len(got), err)
			continue
		}
		for i, m := range got {
			now := again.Parse(m.Data)
			f, n, err := iwarp.ParseStartFrame(now.Payload)
			src, seq, in, markers := tt.a, uint32(100-20), true, tt.request
			if i == 1 {
				src, seq, in, markers = tt.b, 5000-20, false, tt.answer
			}
			if err != nil || n != 20 || f.Reply != (i == 1) || f.Markers != markers || now.Src != src ||
				now.Seq != seq || m.In != in || m.Port != 3 || m.Len != len(m.Data) || !m.MadeUp {
				t.Errorf("%s: packet %d is %+v from %v at %d, in %v, %v", name, i, f, now.Src, now.Seq, m.In,
					err)
			}
		}
		if got, err := full.Before(p, &is, tt.from, tt.to); err != nil || len(got) != 0 {
			t.Errorf("%s: behind too many connections there are %d packets, %v", name, len(got), err)
		}
		is = parser.Parse(segment(t, tt.b, tt.a, false, fpdu).Data)
		if got, err := b.Before(p, &is, iwarpQP, nil); err != nil ||
			len(got) != 0 && (tt.made || tt.syn) {
			t.Errorf("%s: behind it come %d packets, %v", name, len(got), err)
		}
	}
}
