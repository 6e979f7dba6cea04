package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

// flowOf is the flow that p is a packet of.
func flowOf(p *Packet) Flow {
	return Flow{Src: p.Src, Dst: p.Dst, TrafficClass: p.TrafficClass(), HopLimit: p.HopLimit(),
		FlowLabel: p.FlowLabel(), SrcPort: binary.BigEndian.Uint16(p.Header[len(p.Header)-HeaderLen:])}
}

// remake is p made anew from its flow, its identification and what is behind its headers.
func remake(p *Packet) []byte {
	t := NewTemplate(flowOf(p))
	t.id = binary.BigEndian.Uint16(p.Header[4:])
	b := t.Append(nil)
	return t.Finish(append(b, p.Datagram[:len(p.Datagram)-packet.ICRCLen]...))
}

// ROCE-009: every packet that rxe sent is taken apart, has the right ICRC, and its headers are made
// again octet for octet: IHL 5, DF, the traffic class and the TTL that it has, no UDP checksum.
// ROCE-001: rxe's source ports are those of this package, too.
func TestGolden(t *testing.T) {
	for _, name := range rocetest.Recordings(t) {
		for i, ip := range rocetest.Packets(t, name) {
			p, err := Parse(ip)
			if err != nil || !p.Valid() {
				t.Fatalf("%s, packet %d: %v, ICRC %t", filepath.Base(name), i, err, p.Valid())
			}
			if !bytes.Equal(p.Datagram, rocetest.Datagram(ip)) ||
				len(p.Header)+len(p.Datagram) != len(ip) || len(p.IP()) != len(p.Header)-8 {
				t.Errorf("%s, packet %d: cut at the wrong place", filepath.Base(name), i)
			}
			if got := remake(&p); !bytes.Equal(got, ip) {
				t.Errorf("%s, packet %d: made\n% x, was\n% x", filepath.Base(name), i, got, ip)
			}
			if src := flowOf(&p).SrcPort; src < MinSourcePort {
				t.Errorf("%s, packet %d is from port %d", filepath.Base(name), i, src)
			}
		}
	}
}

// example is a Send of four octets from a to b.
func example(a, b string) []byte {
	t := NewTemplate(Flow{Src: netip.MustParseAddr(a), Dst: netip.MustParseAddr(b), SrcPort: 0xc123,
		TrafficClass: 0x6a, HopLimit: 7, FlowLabel: 0x54321})
	h := packet.Header{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, Dest: 18, PSN: 5}
	return t.Finish(append(h.Append(t.Append(nil)), 1, 2, 3, 4))
}

// What a packet says is what its flow had, and identifications count up.
func TestFields(t *testing.T) {
	for _, a := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		p, err := Parse(example(a[0], a[1]))
		if err != nil || !p.Valid() || p.TrafficClass() != 0x6a || p.HopLimit() != 7 ||
			p.Src.String() != a[0] || p.Dst.String() != a[1] {
			t.Errorf("%v: %v, class %x, hops %d", a, err, p.TrafficClass(), p.HopLimit())
		}
		if want := uint32(0x54321); p.FlowLabel() != want && p.Src.Is6() {
			t.Errorf("flow label %x, want %x", p.FlowLabel(), want)
		}
	}
	tt := NewTemplate(Flow{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")})
	first := tt.id
	for i := range 3 {
		b := tt.Finish(append(tt.Append(nil), make([]byte, packet.BTHLen)...))
		if id := binary.BigEndian.Uint16(b[4:]); id != first+uint16(i) || b[8] != DefaultHopLimit {
			t.Errorf("identification %d, time to live %d", id, b[8])
		}
	}
	seen := map[uint16]bool{}
	for q := range packet.QPN(1000) {
		port := SourcePort(q << 4)
		seen[port] = true
		if port < MinSourcePort || port != SourcePort(q<<4) {
			t.Errorf("QP %d sends from %d", q<<4, port)
		}
	}
	if len(seen) < 900 {
		t.Errorf("1000 QPs send from %d ports", len(seen))
	}
}

// ROCE-006, ROCE-007, ROCE-008, ROCE-012, ROCE-034, ROCE-035, ROCE-220: which packets are taken,
// and of which the ICRC is right.
func TestRules(t *testing.T) {
	be := binary.BigEndian
	v4, v6 := example("10.0.0.1", "10.0.0.2"), example("fd00::1", "fd00::2")
	for _, c := range []struct {
		name  string
		ip    []byte
		do    func(b []byte) []byte
		err   error
		valid bool
	}{
		{"as it is", v4, func(b []byte) []byte { return b }, nil, true},
		{"as it is, IPv6", v6, func(b []byte) []byte { return b }, nil, true},
		{"padding of Ethernet", v4, func(b []byte) []byte { return append(b, make([]byte, 20)...) },
			nil, true},
		{"other TTL, TOS, checksums", v4, func(b []byte) []byte {
			b[1], b[8], b[10], b[11], b[26], b[27] = 3, 3, 1, 2, 3, 4
			return b
		}, nil, true},
		{"other class, label, hops, checksum", v6, func(b []byte) []byte {
			b[0], b[1], b[2], b[3], b[7], b[46], b[47] = 0x6f, 1, 2, 3, 3, 4, 5
			return b
		}, nil, true},
		{"FECN, BECN", v4, func(b []byte) []byte { b[32] = 0xff; return b }, nil, true},
		{"other source", v4, func(b []byte) []byte { b[15]++; return b }, nil, false},
		{"other identification", v4, func(b []byte) []byte { b[4]++; return b }, nil, false},
		{"other source port", v4, func(b []byte) []byte { b[20]++; return b }, nil, false},
		{"other QPN", v4, func(b []byte) []byte { b[35]++; return b }, nil, false},
		{"other PSN", v6, func(b []byte) []byte { b[59]++; return b }, nil, false},
		{"reserved seven bits", v4, func(b []byte) []byte { b[36] ^= 1; return b }, nil, false},
		{"the ICRC's complement", v4, func(b []byte) []byte {
			for i := range 4 {
				b[len(b)-1-i] ^= 0xff
			}
			return b
		}, nil, false},
		{"octets behind UDP", v4, func(b []byte) []byte {
			b = be.AppendUint64(b[:len(b)-packet.ICRCLen], 0)[:len(b)-packet.ICRCLen]
			be.PutUint16(b[2:], uint16(len(b)+packet.ICRCLen+8)) // the ICRC has the IP header's length
			c, _ := packet.Start(b)
			return append(c.Add(b[40:]).Append(b), 1, 2, 3, 4, 5, 6, 7, 8)
		}, nil, true},
		{"IPv4 options", v4, func(b []byte) []byte {
			b = append(append(bytes.Clone(b[:20]), 1, 1, 1, 0), b[20:len(b)-packet.ICRCLen]...)
			b[0] = 0x46
			be.PutUint16(b[2:], uint16(len(b)+packet.ICRCLen))
			c, _ := packet.Start(b)
			return c.Add(b[44:]).Append(b)
		}, nil, true},
		{"an option changed", v4, func(b []byte) []byte {
			b = append(append(bytes.Clone(b[:20]), 1, 1, 1, 0), b[20:len(b)-packet.ICRCLen]...)
			b[0] = 0x46
			be.PutUint16(b[2:], uint16(len(b)+packet.ICRCLen))
			c, _ := packet.Start(b)
			b[22] = 0
			return c.Add(b[44:]).Append(b)
		}, nil, false},
		{"UDP length above the packet's", v4, func(b []byte) []byte { b[25]++; return b }, ErrLength,
			false},
		{"UDP length below a BTH", v6, func(b []byte) []byte { b[45] = 23; return b }, ErrLength, false},
		{"the least length", v4, func(b []byte) []byte { b[25] = 24; return b }, nil, false},
		{"a fragment", v4, func(b []byte) []byte { b[6] = 0x20; return b }, ErrFragment, false},
		{"a later fragment", v4, func(b []byte) []byte { b[7] = 1; return b }, ErrFragment, false},
		{"other port", v4, func(b []byte) []byte { b[23]++; return b }, ErrNotRoCE, false},
		{"TCP", v4, func(b []byte) []byte { b[9] = 6; return b }, ErrNotRoCE, false},
		{"an extension header", v6, func(b []byte) []byte { b[6] = 0; return b }, ErrNotRoCE, false},
		{"IP length above the frame's", v4, func(b []byte) []byte { b[3]++; return b }, ErrIP, false},
		{"IP length above the frame's, IPv6", v6, func(b []byte) []byte { b[5]++; return b }, ErrIP,
			false},
		{"IHL 4", v4, func(b []byte) []byte { b[0] = 0x44; return b }, ErrIP, false},
		{"version 5", v4, func(b []byte) []byte { b[0] = 0x55; return b }, ErrIP, false},
		{"no room for UDP", v4, func(b []byte) []byte { be.PutUint16(b[2:], 27); return b }, ErrLength,
			false},
	} {
		p, err := Parse(c.do(bytes.Clone(c.ip)))
		if !errors.Is(err, c.err) || err == nil && p.Valid() != c.valid {
			t.Errorf("%s: %v, want %v; ICRC is right: want %t", c.name, err, c.err, c.valid)
		}
	}
}

// ROCE-217: a packet that is cut anywhere is refused.
func TestCut(t *testing.T) {
	for _, ip := range [][]byte{example("10.0.0.1", "10.0.0.2"), example("fd00::1", "fd00::2")} {
		for n := range ip {
			if p, err := Parse(ip[:n:n]); err == nil {
				t.Errorf("%d octets of %d: %v", n, len(ip), p)
			}
		}
	}
}

// Whatever comes, what Parse returns lies inside of it, and a packet whose ICRC is right and that
// has no options, no UDP checksum, nothing behind it and DF set is made again octet for octet.
func FuzzParse(f *testing.F) {
	f.Add(example("10.0.0.1", "10.0.0.2"))
	f.Add(example("fd00::1", "fd00::2"))
	f.Fuzz(func(t *testing.T, ip []byte) {
		p, err := Parse(ip)
		if err != nil {
			return
		}
		n := len(p.Header) + len(p.Datagram)
		if n > len(ip) || !bytes.Equal(append(bytes.Clone(p.Header), p.Datagram...), ip[:n]) ||
			len(p.Datagram) < packet.BTHLen+packet.ICRCLen {
			t.Fatalf("% x is %+v", ip, p)
		}
		again, err := Parse(ip[:n])
		whole := err == nil
		if whole && again.Valid() != p.Valid() {
			t.Fatalf("% x: the ICRC depends on what is behind the packet", ip)
		}
		csum := binary.BigEndian.Uint16(p.Header[len(p.Header)-2:])
		v4 := p.Src.Is4()
		if !whole || !p.Valid() || csum != 0 || p.HopLimit() == 0 || p.Src.Is4In6() || p.Dst.Is4In6() ||
			v4 && (ip[0] != 0x45 || ip[6] != 0x40) {
			return
		}
		made := remake(&p)
		if v4 {
			copy(made[10:12], ip[10:12]) // the header's checksum is not looked at
		}
		if !bytes.Equal(made, ip[:n]) {
			t.Fatalf("made % x\nof   % x", made, ip[:n])
		}
	})
}

// A packet costs no allocation, made or taken apart.
func TestAllocs(t *testing.T) {
	tt := NewTemplate(Flow{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2")})
	buf := make([]byte, 0, 4096)
	data := make([]byte, 1024)
	h := packet.Header{Opcode: packet.SendOnly}
	if n := testing.AllocsPerRun(100, func() {
		b := tt.Finish(append(h.Append(tt.Append(buf)), data...))
		if p, err := Parse(b); err != nil || !p.Valid() {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

func BenchmarkMakeAndParse(b *testing.B) {
	tt := NewTemplate(Flow{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")})
	buf := make([]byte, 0, 8192)
	data := make([]byte, 4096)
	h := packet.Header{Opcode: packet.SendOnly}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		ip := tt.Finish(append(h.Append(tt.Append(buf)), data...))
		if p, err := Parse(ip); err != nil || !p.Valid() {
			b.Fatal(err)
		}
	}
}
