package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

const qkey = 0x11111111

func newUD() *UD {
	return &UD{Num: 17, PKey: packet.DefaultPKey, MTU: 1024, QKey: qkey}
}

// An IP header of four or six, to UDP.
func ipHeader(t testing.TB, version int) []byte {
	t.Helper()
	if version == 6 {
		b := make([]byte, 40)
		b[0], b[1], b[3], b[6], b[7] = 0x6a, 0x60, 7, 17, 3
		from, to := netip.MustParseAddr("fd88::1").As16(), netip.MustParseAddr("fd88::2").As16()
		copy(b[8:], from[:])
		copy(b[24:], to[:])
		return b
	}
	// The worked example of 108 octets, from 10.88.0.1 to 10.88.0.2.
	return []byte{0x45, 0, 0, 0x6c, 0x1c, 0xf7, 0x40, 0, 0x40, 0x11, 0x08, 0xd8, 10, 88, 0, 1,
		10, 88, 0, 2}
}

// ROCE-175, 176, 182, 183: a message is one packet with the Q_Key of the request, or the queue
// pair's own if the top bit is set, and with the queue pair's number.
func TestUDSends(t *testing.T) {
	u := newUD()
	data := make(octets, 2000)
	var out [][]byte
	for _, d := range []Datagram{
		{Dest: 133, QKey: 5, Data: data, Length: 1024},
		{Dest: 134, QKey: ControlledQKey | 1<<16, Data: data, Length: 1, Solicited: true},
		{Dest: packet.Multicast, QKey: 5, Immediate: true, Imm: [4]byte{1, 2, 3, 4}},
	} {
		b, st, err := u.Append(nil, &d)
		if st != Success || err != nil {
			t.Fatalf("%v, %v", st, err)
		}
		out = append(out, b)
	}
	want := `UD SEND Only qp 133 psn 0 qkey 00000005 from 17 data 1024
UD SEND Only qp 134 psn 1 SE qkey 11111111 from 17 pad 3 data 1
UD SEND Only with Immediate qp 16777215 psn 2 qkey 00000005 from 17 imm 01020304 data 0
`
	if got := text(t, out); got != want {
		t.Errorf("sent\n%s\nwant\n%s", got, want)
	}
	head := []byte{1, 2, 3}
	b, st, err := u.Append(head, &Datagram{Data: data, Length: 1025})
	if st != LocalLength || !errors.Is(err, ErrDatagram) || !bytes.Equal(b, head) {
		t.Errorf("longer than the MTU: %v, %v, % x", st, err, b)
	}
	b, st, err = u.Append(head, &Datagram{Data: gone{}, Length: 4})
	if st != LocalProtection || err == nil || !bytes.Equal(b, head) || u.PSN != 3 {
		t.Errorf("memory that is gone: %v, %v, % x, PSN %d", st, err, b, u.PSN)
	}
}

// ROCE-043, 048, 177, 178, 180 to 182: which datagrams are taken, what is in their receive, and
// what others do: nothing.
func TestUDReceives(t *testing.T) {
	only := packet.SendOnly.Of(packet.UD)
	for name, c := range map[string]struct {
		h    packet.Header
		n    int
		recv int // octets of the receive; below 0: none is posted
		want Outcome
	}{
		"fits":           {packet.Header{Opcode: only, QKey: qkey}, 20, 60, Delivered},
		"nothing":        {packet.Header{Opcode: only, QKey: qkey}, 0, 40, Delivered},
		"MTU":            {packet.Header{Opcode: only, QKey: qkey}, 1024, 1064, Delivered},
		"any PSN":        {packet.Header{Opcode: only, QKey: qkey, PSN: 0xfffff0}, 4, 60, Delivered},
		"another Q_Key":  {packet.Header{Opcode: only, QKey: qkey + 1}, 20, 60, WrongQKey},
		"the top bit":    {packet.Header{Opcode: only, QKey: qkey | ControlledQKey}, 20, 60, WrongQKey},
		"above the MTU":  {packet.Header{Opcode: only, QKey: qkey}, 1025, 2000, OverMTU},
		"no receive":     {packet.Header{Opcode: only, QKey: qkey}, 20, -1, NoReceive},
		"one too long":   {packet.Header{Opcode: only, QKey: qkey}, 21, 60, TooLong},
		"no room at all": {packet.Header{Opcode: only, QKey: qkey}, 0, 39, TooLong},
		"RC":             {packet.Header{Opcode: packet.SendOnly}, 20, 60, NoDatagram},
		"UC":             {packet.Header{Opcode: packet.SendOnly.Of(packet.UC)}, 20, 60, NoDatagram},
		"CNP":            {packet.Header{Opcode: packet.CNP}, 16, 60, NoDatagram},
	} {
		for _, version := range []int{4, 6} {
			h := newHost(t, 0)
			if c.recv >= 0 {
				h.recvs = [][]byte{make([]byte, c.recv)}
			}
			payload := bytes.Repeat([]byte{0x7b}, c.n)
			c.h.Source, c.h.Solicited = 99, true
			got := newUD().Receive(h, &c.h, ipHeader(t, version), payload)
			if got != c.want || len(h.failed) != 0 {
				t.Errorf("%s: %d, want %d; failed %v", name, got, c.want, h.failed)
			}
			if got != Delivered {
				if len(h.received) != 0 || c.recv >= 0 && len(h.recvs) != 1 {
					t.Errorf("%s: %d received, %d left", name, len(h.received), len(h.recvs))
				}
				continue
			}
			r := h.received[0]
			if r.Length != uint32(NetworkHeaderLen+c.n) || r.Source != 99 || !r.Solicited ||
				r.Immediate || r.Write || r.Invalidate {
				t.Errorf("%s: %+v", name, r.Received)
			}
			head := append(make([]byte, 40-len(ipHeader(t, version))), ipHeader(t, version)...)
			if !bytes.Equal(r.data, append(head, payload...)) {
				t.Errorf("%s: received\n% x, want\n% x", name, r.data, append(head, payload...))
			}
		}
	}
	h := newHost(t, 0)
	h.recvs = [][]byte{make([]byte, 100)}
	p := packet.Header{Opcode: packet.SendOnlyImm.Of(packet.UD), QKey: qkey, Imm: [4]byte{1, 2, 3, 4}}
	if got := newUD().Receive(h, &p, ipHeader(t, 4), nil); got != Delivered ||
		!h.received[0].Immediate || h.received[0].Imm != p.Imm {
		t.Errorf("with immediate data: %d, %+v", got, h.received)
	}
	h = newHost(t, 0)
	h.recvs = [][]byte{make([]byte, 100)}
	p = packet.Header{Opcode: only, QKey: qkey}
	if got := newUD().Receive(spoilt{h}, &p, ipHeader(t, 4), make([]byte, 4)); got != BadReceive ||
		len(h.failed) != 1 || h.failed[0] != LocalProtection {
		t.Errorf("a receive that cannot be written: %d, %v", got, h.failed)
	}
}

// A spoilt host has receives that cannot be written behind the network header.
type spoilt struct{ *host }

func (s spoilt) PlaceReceive(off uint32, chunk []byte, last bool) error {
	if off > 0 {
		return errMemory
	}
	return s.host.PlaceReceive(off, chunk, last)
}

// Options of an IPv4 header do not get in, and what is left is a header that has the right
// checksum.
func TestNetworkHeaderOptions(t *testing.T) {
	plain := ipHeader(t, 4)
	with := append(bytes.Clone(plain), 0x94, 4, 0, 0, 1, 1, 1, 1)
	with[0] = 0x47
	binary.BigEndian.PutUint16(with[2:], 0x6c+8)
	var g [NetworkHeaderLen]byte
	for i := range g {
		g[i] = 0xee
	}
	NetworkHeader(&g, with)
	if !bytes.Equal(g[:20], make([]byte, 20)) || !bytes.Equal(g[20:], plain) {
		t.Errorf("% x", g)
	}
}

// What rxe's UD sends goes into receives, but for the one with another Q_Key, and is made anew as
// rxe has made it, but for the bit that rxe does not set.
func TestUDGolden(t *testing.T) {
	want := map[string]string{
		"ud": "DDDDDQ", "ud-ipv6": "DDDDDQ", "ud-short": "TDDD", "mcast": "DDD", "mcast-ipv6": "D",
		"udaddy": "__DDDD", "udaddy-ipv6": "__DDDD",
	}
	for _, name := range rocetest.Recordings(t) {
		base := strings.TrimSuffix(filepath.Base(name), ".pcap")
		if want[base] == "" {
			continue
		}
		got := ""
		var u *UD
		for i, ip := range rocetest.Packets(t, name) {
			var h packet.Header
			payload, err := h.Parse(rocetest.Datagram(ip))
			if err != nil {
				t.Fatal(err)
			}
			if h.Dest == 1 {
				got += "_"
				continue
			}
			if u == nil {
				u = &UD{PKey: packet.DefaultPKey, MTU: 1024, QKey: h.QKey}
			}
			in := newHost(t, 0)
			in.recvs = [][]byte{make([]byte, 60)}
			if base != "ud-short" {
				in.recvs[0] = make([]byte, 2048)
			}
			o := u.Receive(in, &h, ip, payload)
			got += string("D?QM-T!"[o])
			if o == Delivered && !bytes.Equal(in.received[0].data[40:], payload) {
				t.Errorf("%s: packet %d has other octets", base, i)
			}
			u.Num, u.PSN = h.Source, h.PSN
			b, st, err := u.Append(nil, &Datagram{Dest: h.Dest, QKey: h.QKey, Data: octets(payload),
				Length: uint32(len(payload)), Solicited: h.Solicited, Imm: h.Imm,
				Immediate: h.Opcode == packet.SendOnlyImm.Of(packet.UD)})
			was := rocetest.Datagram(ip)
			was = was[:len(was)-packet.ICRCLen]
			if st == Success {
				b[1] &^= 0x40
			}
			if err != nil || !bytes.Equal(b, was) {
				t.Errorf("%s: packet %d is made as\n% x, was\n% x (%v)", base, i, b, was, err)
			}
		}
		if got != want[base] {
			t.Errorf("%s: %s, want %s", base, got, want[base])
		}
		delete(want, base)
	}
	if len(want) != 0 {
		t.Errorf("not recorded: %v", want)
	}
}

// A datagram costs no allocation at either end.
func TestUDAllocs(t *testing.T) {
	u, v := newUD(), newUD()
	h := newHost(t, 0)
	recv, ip := make([]byte, 2048), ipHeader(t, 6)
	d := Datagram{Dest: 17, QKey: qkey, Data: make(octets, 1000), Length: 1000}
	buf := make([]byte, 0, 2048)
	var p packet.Header
	in := &reusing{host: h, recv: recv}
	if n := testing.AllocsPerRun(100, func() {
		b, _, err := u.Append(buf, &d)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := p.Parse(b[:len(b)+packet.ICRCLen])
		if err != nil || v.Receive(in, &p, ip, payload) != Delivered {
			t.Fatal("not delivered", err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a datagram", n)
	}
}

// A reusing inbox has one receive, again and again.
type reusing struct {
	*host
	recv []byte
}

func (r *reusing) BeginReceive() (uint32, bool) { return uint32(len(r.recv)), true }
func (r *reusing) PlaceReceive(off uint32, b []byte, _ bool) error {
	copy(r.recv[off:], b)
	return nil
}
func (r *reusing) EndReceive(Received) error { return nil }

// Whatever comes, a datagram is either as it was sent in a receive that has room for it, or nothing
// has happened; and its header is one that readers can tell from the other kind.
func FuzzUD(f *testing.F) {
	f.Add([]byte{0x64, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 0, 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 9,
		1, 2, 3, 4, 0, 0, 0, 0}, []byte{}, uint8(4), uint16(60))
	f.Add(make([]byte, 100), []byte{1, 1, 1, 1}, uint8(5), uint16(40))
	f.Add(make([]byte, 100), []byte{}, uint8(6), uint16(4000))
	f.Fuzz(func(t *testing.T, b, options []byte, version uint8, room uint16) {
		ip := ipHeader(t, 6)
		if version != 6 {
			ip = ipHeader(t, 4)
			options = options[:min(len(options), 40)&^3]
			ip[0] += byte(len(options) / 4)
			ip = append(ip, options...)
			binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+8+len(b)))
		}
		var h packet.Header
		payload, err := h.Parse(b)
		if err != nil {
			return
		}
		in := newHost(t, 0)
		in.recvs = [][]byte{make([]byte, room)}
		u := newUD()
		if u.Receive(in, &h, ip, payload) != Delivered {
			if len(in.received) != 0 || len(in.recvs) != 1 || len(in.failed) != 0 {
				t.Fatalf("not delivered, and %d received, %d left", len(in.received), len(in.recvs))
			}
			return
		}
		r := in.received[0]
		if int(r.Length) != 40+len(payload) || len(payload) > int(u.MTU) ||
			!bytes.Equal(r.data[40:], payload) || h.QKey != u.QKey {
			t.Fatalf("received %+v of %v", r.Received, &h)
		}
		if v4 := r.data[20:40]; version == 6 {
			if !bytes.Equal(r.data[:40], ip) {
				t.Fatal("the header is another")
			}
		} else if v4[0] != 0x45 || checksum(v4) != 0xffff || !bytes.Equal(v4[12:], ip[12:20]) ||
			int(binary.BigEndian.Uint16(v4[2:])) != 28+len(b) {
			t.Fatalf("the header is % x", v4)
		}
	})
}

// checksum is the sum of an IPv4 header, all ones if its checksum is right.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
