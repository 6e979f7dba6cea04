package frame

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// Plain calls emit with the ordinary frames that f stands for, checksums complete: f itself if it
// is one, else copies. f has passed Check. The frames are good for the call of emit only; emit
// returns false to end it.
func (f *Frame) Plain(emit func(*Frame) bool) {
	switch {
	case f.GSO == GSOUDP:
		f.datagrams(emit)
	case f.GSO != GSONone:
		f.segments(emit)
	case f.Csum == CsumPartial:
		c := f.completed()
		emit(c)
		c.Release()
	default:
		emit(f)
	}
}

// completed returns a copy of f with the checksum filled in.
func (f *Frame) completed() *Frame {
	n := f.Len()
	v := buffer.NewViewSize(n)
	b := v.AsSlice()
	f.copyTo(b, 0)
	start := int(f.CsumStart)
	// The field holds the pseudo-header's sum, which is thereby added.
	sum := ^checksum.Checksum(b[start:], 0)
	if sum == 0 && f.CsumOffset == udpCsumOffset {
		sum = 0xffff // to UDP, zero would mean that there is none
	}
	binary.BigEndian.PutUint16(b[start+int(f.CsumOffset):], sum)
	c := Empty()
	c.Csum = CsumValid
	c.Append(v)
	return c
}

// copyTo fills b from offset off of f on.
func (f *Frame) copyTo(b []byte, off int) {
	for v := range f.Views() {
		if off >= len(v) {
			off -= len(v)
			continue
		}
		b = b[copy(b, v[off:]):]
		off = 0
		if len(b) == 0 {
			return
		}
	}
}

// segments cuts the super-frame f.
func (f *Frame) segments(emit func(*Frame) bool) {
	var p Packet
	if p.Parse(f) != nil {
		return // check has seen to it
	}
	var (
		hdr  = p.Headers[:f.HdrLen]
		ip   = hdr[p.L3:]
		tcp  = hdr[p.L4:]
		seq  = binary.BigEndian.Uint32(tcp[4:])
		id   = binary.BigEndian.Uint16(ip[4:]) // of IPv4
		last = tcp[13]
		end  = f.Len()
	)
	for off := len(hdr); off < end; {
		n := min(int(f.GSOSize), end-off)
		flags := last
		if off+n < end {
			flags &^= tcpFIN | tcpPSH
		}
		if off > len(hdr) {
			flags &^= tcpCWR // RFC 3168, section 6.1.2: once
		}
		tcp[13] = flags
		binary.BigEndian.PutUint32(tcp[4:], seq)

		length := len(hdr) - p.L3 + n
		if f.GSO == GSOTCPv4 {
			binary.BigEndian.PutUint16(ip[2:], uint16(length))
			binary.BigEndian.PutUint16(ip[4:], id)
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(hdr[p.L3:p.L4], 0))
		} else {
			binary.BigEndian.PutUint16(ip[4:], uint16(length-IPv6Len))
		}

		v := buffer.NewViewSize(len(hdr) + n)
		b := v.AsSlice()
		copy(b, hdr)
		f.copyTo(b[len(hdr):], off)
		t := b[p.L4:]
		t[tcpCsumOffset], t[tcpCsumOffset+1] = 0, 0
		binary.BigEndian.PutUint16(t[tcpCsumOffset:], ^checksum.Checksum(t, p.pseudoSum(len(t))))

		if !emitCut(v, emit) {
			return
		}
		off += n
		seq += uint32(n)
		id++
	}
}

// emitCut emits a frame of a super-frame, with checksums that are right.
func emitCut(v *buffer.View, emit func(*Frame) bool) bool {
	s := Empty()
	defer s.Release()
	s.Csum = CsumValid
	s.Append(v)
	return emit(s)
}

// datagrams cuts the super-frame f of UDP.
func (f *Frame) datagrams(emit func(*Frame) bool) {
	var p Packet
	if p.Parse(f) != nil {
		return // check has seen to it
	}
	hdr := p.Headers[:f.HdrLen]
	end := f.Len()
	for i, off := 0, len(hdr); off < end; i++ {
		n := min(int(f.GSOSize), end-off)
		v := buffer.NewViewSize(len(hdr) + n)
		b := v.AsSlice()
		p.Datagram(b[:0], i, n)
		f.copyTo(b[len(hdr):], off)
		t := b[p.L4:]
		sum := ^checksum.Checksum(t, p.pseudoSum(len(t)))
		if sum == 0 {
			sum = 0xffff // zero would mean that there is none
		}
		binary.BigEndian.PutUint16(t[udpCsumOffset:], sum)
		if !emitCut(v, emit) {
			return
		}
		off += n
	}
}

// Datagram appends the headers of the i-th datagram, of n octets, of a super-frame of UDP that p
// has parsed and that has passed Check: without a checksum of UDP.
func (p *Packet) Datagram(b []byte, i, n int) []byte {
	at := len(b)
	b = append(b, p.Headers[:p.L4+udpLen]...)
	ip, udp := b[at+p.L3:], b[at+p.L4:]
	if p.EtherType == EtherIPv4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(p.L4-p.L3+udpLen+n))
		id := binary.BigEndian.Uint16(ip[4:])
		binary.BigEndian.PutUint16(ip[4:], id+uint16(i))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:p.L4-p.L3], 0))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(p.L4-p.L3-IPv6Len+udpLen+n))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	udp[6], udp[7] = 0, 0
	return b
}

// Gather makes a super-frame of UDP of f, whose octets are a datagram's frame, as p has parsed it,
// and the payloads of others behind it; size is the payload of each but the last. head is f's first
// octets, at least to the end of the UDP header, which are changed.
func (f *Frame) Gather(p *Packet, head []byte, size int) {
	n := f.Len()
	ip, udp := head[p.L3:], head[p.L4:]
	if p.EtherType == EtherIPv4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(n-p.L3))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:p.L4-p.L3], 0))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(n-p.L3-IPv6Len))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(n-p.L4))
	binary.BigEndian.PutUint16(udp[udpCsumOffset:], p.pseudoSum(n-p.L4))
	f.Offload = Offload{GSO: GSOUDP, Csum: CsumPartial, GSOSize: uint16(size),
		HdrLen: uint16(p.L4 + udpLen), CsumStart: uint16(p.L4), CsumOffset: udpCsumOffset}
}
