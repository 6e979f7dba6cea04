package capture_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
)

var (
	here  = netip.MustParseAddr("10.77.0.2")
	there = netip.MustParseAddr("10.77.0.3")
	here6 = netip.MustParseAddr("fd77::2")
)

// packet makes a frame from src to dst: of a protocol with ports, and a payload.
func packet(t *testing.T, src, dst netip.AddrPort, proto string, payload []byte) []byte {
	t.Helper()
	kinds := map[string]layers.IPProtocol{"tcp": layers.IPProtocolTCP, "udp": layers.IPProtocolUDP,
		"sctp": layers.IPProtocolSCTP, "icmp": layers.IPProtocolICMPv4}
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6),
		EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.NetworkLayer
	stack := []gopacket.SerializableLayer{eth}
	if src.Addr().Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: kinds[proto], SrcIP: src.Addr().AsSlice(),
			DstIP: dst.Addr().AsSlice()}
		ip, stack = v4, append(stack, v4)
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: kinds[proto],
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		ip, stack = v6, append(stack, v6)
	}
	switch proto {
	case "tcp":
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port())}
		_ = l.SetNetworkLayerForChecksum(ip)
		stack = append(stack, l)
	case "udp":
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = l.SetNetworkLayerForChecksum(ip)
		stack = append(stack, l)
	case "sctp":
		stack = append(stack, &layers.SCTP{SrcPort: layers.SCTPPort(src.Port()),
			DstPort: layers.SCTPPort(dst.Port())})
	case "icmp":
		stack = append(stack, &layers.ICMPv4{})
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true,
		ComputeChecksums: true}, append(stack, gopacket.Payload(payload))...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bth is the payload of a packet of RoCE.
func bth(opcode byte, dest, psn, source uint32) []byte {
	return []byte{opcode, 0, 0xff, 0xff, 0, byte(dest >> 16), byte(dest >> 8), byte(dest), 0,
		byte(psn >> 16), byte(psn >> 8), byte(psn), 0, 0, 0, 1, 0, byte(source >> 16),
		byte(source >> 8), byte(source), 1, 2, 3, 4}
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// What a packet is, of each kind, and with any part of it missing.
func TestParse(t *testing.T) {
	const qp, source = 0x123456, 0x654321
	for _, tt := range []struct {
		proto, want string
		src, dst    netip.AddrPort
		payload     []byte
		bth         string
	}{
		{"tcp", "tcp", at(here, 7174), at(there, 99), nil, ""},
		{"tcp", "tcp", at(here6, 7174), at(here6, 99), nil, ""},
		{"sctp", "sctp", at(here, 7174), at(there, 99), nil, ""},
		{"icmp", "icmp", at(here, 0), at(there, 0), nil, ""},
		{"udp", "udp", at(here, 4791), at(there, 53), bth(4, qp, 1, 0), ""},
		{"udp", "udp", at(here, 53), at(there, 4791), []byte("short"), ""},
		{"udp", "roce", at(here, 53), at(there, 4791), bth(4, qp, 7, source), "Send, PSN 7"},
		{"udp", "roce", at(here6, 53), at(here6, 4791), bth(0x64, qp, 8, source), "Send, PSN 8"},
		{"udp", "roce", at(here, 53), at(there, 4791), bth(0x81, qp, 0, 0),
			"congestion notification"},
		{"udp", "roce", at(here, 53), at(there, 4791), bth(0x1f, qp, 2, 0), "opcode 0x1f, PSN 2"},
	} {
		b := packet(t, tt.src, tt.dst, tt.proto, tt.payload)
		p := capture.NewParser()
		got := p.Parse(b)
		if got.Proto != tt.want || got.Src != tt.src || got.Dst != tt.dst {
			t.Errorf("%s %v to %v: %+v", tt.proto, tt.src, tt.dst, got)
		}
		switch {
		case tt.bth == "":
			if got.BTH != nil {
				t.Errorf("%s %v to %v: %+v", tt.proto, tt.src, tt.dst, got.BTH)
			}
		case got.BTH == nil || got.BTH.Dest != qp || got.BTH.String() != tt.bth:
			t.Errorf("a BTH of %q: %v", tt.bth, got.BTH)
		case got.BTH.Src != 0 && got.BTH.Opcode != 0x64, got.BTH.Opcode == 0x64 && got.BTH.Src != source:
			t.Errorf("of %v the source is %#x", got.BTH, got.BTH.Src)
		}
		for n := range b { // whatever the rest is
			p.Parse(b[:n])
		}
	}
}

// rows are queue pairs as a daemon lists them.
func rows(t *testing.T, r ...map[string]any) (list []json.RawMessage) {
	t.Helper()
	for _, row := range r {
		b, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

// Packets are of the queue pairs that the daemon has, or had: it is asked when one is not known,
// and not again at once.
func TestTable(t *testing.T) {
	now, asked := time.Unix(1, 0), 0
	var list []json.RawMessage
	var fault error
	table := capture.NewTable(map[string][]netip.Addr{"r0": {here, here6}, "r1": {there}},
		func() ([]json.RawMessage, error) { asked++; return list, fault },
		func() time.Time { return now })
	parser := capture.NewParser()
	want := func(why string, asks int, b []byte, from, to string) {
		t.Helper()
		before := asked
		parsed := parser.Parse(b)
		f, d, err := table.Find(&parsed)
		name := func(q *capture.QP) string {
			if q == nil {
				return ""
			}
			return fmt.Sprintf("%s %d", q.Dev, q.Num)
		}
		if err != nil || name(f) != from || name(d) != to || asked-before != asks {
			t.Errorf("%s: from %v to %v after %d questions (%v), want %q, %q, %d", why, f, d,
				asked-before, err, from, to, asks)
		}
	}
	tcp := func(from, to netip.AddrPort) []byte { return packet(t, from, to, "tcp", nil) }
	roce := func(from, to netip.Addr, b []byte) []byte {
		return packet(t, at(from, 49152), at(to, 4791), "udp", b)
	}
	want("nothing is known", 1, tcp(at(here, 1), at(there, 2)), "", "")
	list = rows(t,
		map[string]any{"dev": "v0", "qpn": 5, "pid": 7, "comm": "x", "local": "10.77.0.2:1",
			"remote": "10.77.0.3:2"},
		map[string]any{"dev": "v1", "qpn": 6, "local": "10.77.0.3:2", "remote": "10.77.0.2:1"},
		map[string]any{"dev": "v1", "qpn": 8, "local": nil, "remote": nil},
		map[string]any{"dev": "r0", "qpn": 20, "type": "RC", "dest_qpn": 21, "remote": "10.77.0.3"},
		map[string]any{"dev": "r1", "qpn": 21, "type": "RC", "dest_qpn": 20, "remote": "10.77.0.2"},
		map[string]any{"dev": "r0", "qpn": 30, "type": "UD", "dest_qpn": nil, "remote": nil})
	want("asked just before", 0, tcp(at(here, 1), at(there, 2)), "", "")
	now = now.Add(20 * time.Millisecond)
	want("both ends are here", 1, tcp(at(here, 1), at(there, 2)), "v0 5", "v1 6")
	now = now.Add(time.Second)
	want("known", 0, tcp(at(there, 2), at(here, 1)), "v1 6", "v0 5")
	want("of no queue pair by its kind", 0, packet(t, at(here, 1), at(there, 2), "icmp", nil), "", "")
	want("RC", 0, roce(here, there, bth(4, 21, 1, 0)), "r0 20", "r1 21")
	want("a number is a device's", 1, roce(there, there, bth(4, 20, 1, 0)), "", "")
	want("UD", 0, roce(here, there, bth(0x64, 21, 1, 30)), "r0 30", "r1 21")
	list = nil
	now = now.Add(time.Second)
	want("who asks for another", 1, tcp(at(here, 3), at(there, 2)), "", "")
	want("still knows what has gone", 0, tcp(at(here, 1), at(there, 2)), "v0 5", "v1 6")

	now = now.Add(time.Second)
	fault = errors.New("gone")
	parsed := parser.Parse(tcp(at(here, 3), at(there, 2)))
	if _, _, err := table.Find(&parsed); !errors.Is(err, fault) {
		t.Errorf("a daemon that has gone: %v", err)
	}
	fault, list = nil, []json.RawMessage{json.RawMessage(`{"dev":7}`)}
	now = now.Add(time.Second)
	if _, _, err := table.Find(&parsed); err == nil {
		t.Error("a broken row is taken")
	}
}

// Each part of a filter, and two together.
func TestFilter(t *testing.T) {
	from := &capture.QP{Dev: "r0", Num: 20, Who: "x, pid 1"}
	tcp := packet(t, at(here, 1), at(there, 2), "tcp", nil)
	roce := packet(t, at(here, 1), at(there, 4791), "udp", bth(4, 21, 1, 0))
	for _, tt := range []struct {
		f         capture.Filter
		text      string
		tcp, roce bool
	}{
		{capture.Filter{}, "", true, true},
		{capture.Filter{Proto: "tcp"}, "proto tcp", true, false},
		{capture.Filter{Proto: "udp"}, "proto udp", false, true},
		{capture.Filter{Proto: "roce"}, "proto roce", false, true},
		{capture.Filter{Peer: there}, "peer 10.77.0.3", true, true},
		{capture.Filter{Peer: here6}, "peer fd77::2", false, false},
		{capture.Filter{QP: 20}, "qp 20", false, true},
		{capture.Filter{QP: 21}, "qp 21", false, true},
		{capture.Filter{QP: 22}, "qp 22", false, false},
		{capture.Filter{Proto: "tcp", Peer: here}, "proto tcp and peer 10.77.0.2", true, false},
	} {
		p := capture.NewParser().Parse(tcp)
		q := capture.NewParser().Parse(roce)
		if a, b := tt.f.Wants(&p, nil, nil), tt.f.Wants(&q, from, nil); a != tt.tcp || b != tt.roce {
			t.Errorf("%+v: %v, %v", tt.f, a, b)
		}
		if tt.f.String() != tt.text || tt.f.Check() != nil {
			t.Errorf("%q, %v", tt.f.String(), tt.f.Check())
		}
	}
	if err := (&capture.Filter{Proto: "ip"}).Check(); err == nil || !strings.Contains(err.Error(),
		"arp, icmp") {
		t.Error(err)
	}
	p := capture.NewParser().Parse(roce)
	want := "Send, PSN 1, from QP 20 of r0 (x, pid 1), to QP 20 of r0 (x, pid 1)"
	if c := capture.Comments(&p, from, from); len(c) != 1 || c[0] != want {
		t.Errorf("%q", c)
	}
	if c := capture.Comments(&p, nil, nil); c != nil {
		t.Errorf("of nobody known: %q", c)
	}
}
