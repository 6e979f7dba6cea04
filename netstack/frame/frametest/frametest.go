// Package frametest has frames for tests, and a check of what a super-frame was cut to.
package frametest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/vrnic/vrnic/netstack/frame"
)

var Broadcast = frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// MAC is the n-th host's address.
func MAC(n byte) frame.MAC { return frame.MAC{2, 0, 0, 0, 0, n} }

// Ethernet is a frame of an EtherType for experiments (IEEE 802, clause 9.2.4).
func Ethernet(dst, src frame.MAC, n byte) []byte {
	b := append(append([]byte(nil), dst[:]...), src[:]...)
	b = append(b, 0x88, 0xb5)
	return append(b, bytes.Repeat([]byte{n}, 46)...)
}

// Super makes a frame of n octets of TCP payload and describes it for cutting to mss.
func Super(v6 bool, n, mss int) ([]byte, frame.Offload) {
	b := append(append([]byte(nil), 2, 0, 0, 0, 0, 1), 2, 0, 0, 0, 0, 0)
	o := frame.Offload{Csum: frame.CsumPartial, CsumOffset: 16}
	if v6 {
		b = append(b, 0x86, 0xdd)
		ip := make([]byte, 40)
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(20+n))
		ip[6], ip[7] = 6, 64
		ip[8+15], ip[24+15] = 1, 2
		b = append(b, ip...)
		o.GSO = frame.GSOTCPv6
	} else {
		b = append(b, 0x08, 0x00)
		ip := make([]byte, 20)
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
		ip[4], ip[5] = 0xff, 0xfe // the identification wraps
		ip[8], ip[9] = 64, 6
		copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
		binary.BigEndian.PutUint16(ip[10:], InetChecksum(ip))
		b = append(b, ip...)
		o.GSO = frame.GSOTCPv4
	}
	o.CsumStart = uint16(len(b))
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, 1000)
	binary.BigEndian.PutUint16(tcp[2:], 2000)
	binary.BigEndian.PutUint32(tcp[4:], 0xfffffff0) // the sequence number wraps
	tcp[12] = 5 << 4
	tcp[13] = 0x99 // CWR, ACK, PSH, FIN
	b = append(b, tcp...)
	b = append(b, payload(n)...)
	binary.BigEndian.PutUint16(b[o.CsumStart+16:], ^PseudoSum(b, int(o.CsumStart)))
	o.GSOSize = uint16(mss)
	if n <= mss {
		o.GSO, o.GSOSize = frame.GSONone, 0
	}
	return b, o
}

// PseudoSum is the complement of the sum over the pseudo-header of a TCP packet at offset l4 of a
// frame.
func PseudoSum(whole []byte, l4 int) uint16 {
	var p []byte
	if whole[12] == 0x08 {
		p = append(p, whole[l4-8:l4]...)
	} else {
		p = append(p, whole[l4-32:l4]...)
	}
	p = append(p, 0, 6)
	p = binary.BigEndian.AppendUint16(p, uint16(len(whole)-l4))
	return InetChecksum(p)
}

// InetChecksum is that of RFC 1071, calculated octet by octet.
func InetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// CheckSegments compares segments with the super-frame they were cut from.
func CheckSegments(t *testing.T, super []byte, segs [][]byte, l4 int) {
	t.Helper()
	hdr := l4 + int(super[l4+12]>>4)*4
	seq := binary.BigEndian.Uint32(super[l4+4:])
	var payload []byte
	for i, s := range segs {
		tcp := s[l4:]
		if got, want := binary.BigEndian.Uint32(tcp[4:]), seq+uint32(len(payload)); got != want {
			t.Errorf("segment %d: sequence number %d, want %d", i, got, want)
		}
		want := super[l4+13]
		if i > 0 {
			want &^= 0x80 // CWR
		}
		if i < len(segs)-1 {
			want &^= 0x09 // PSH, FIN
		}
		if tcp[13] != want {
			t.Errorf("segment %d: flags %#x, want %#x", i, tcp[13], want)
		}
		// The sum over what is right, checksum included, is all ones: its complement is 0.
		sum := uint32(^PseudoSum(s, l4)) + uint32(^InetChecksum(Even(tcp)))
		if sum = sum&0xffff + sum>>16; sum != 0xffff {
			t.Errorf("segment %d: TCP checksum wrong", i)
		}
		if super[12] == 0x08 {
			ip := s[14:l4]
			if InetChecksum(ip) != 0 || int(binary.BigEndian.Uint16(ip[2:])) != len(s)-14 {
				t.Errorf("segment %d: IPv4 header %x, %d octets", i, ip, len(s))
			}
			if got, want := binary.BigEndian.Uint16(ip[4:]), binary.BigEndian.Uint16(super[18:])+uint16(
				i); got != want {
				t.Errorf("segment %d: identification %d, want %d", i, got, want)
			}
		} else if int(binary.BigEndian.Uint16(s[18:])) != len(s)-54 {
			t.Errorf("segment %d: payload length %d of %d", i, binary.BigEndian.Uint16(s[18:]), len(s))
		}
		if !bytes.Equal(tcp[14:16], super[l4+14:l4+16]) || !bytes.Equal(s[l4+20:hdr], super[l4+20:hdr]) {
			t.Errorf("segment %d: window or options changed", i)
		}
		payload = append(payload, s[hdr:]...)
	}
	if !bytes.Equal(payload, super[hdr:]) {
		t.Errorf("the segments' %d octets are not the super-frame's %d", len(payload), len(super)-hdr)
	}
}

// Even pads b to a whole number of 16-bit words.
func Even(b []byte) []byte {
	if len(b)%2 != 0 {
		return append(bytes.Clone(b), 0)
	}
	return b
}

// payload is n octets, of which no two runs look the same.
func payload(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}
