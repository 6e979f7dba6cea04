package packet

import "hash/crc32"

// A CRC is linear: by which bits of an ICRC a change of a packet shows depends on what is changed,
// and on how many octets are behind it, and on nothing else. So an ICRC follows a change of the
// headers without another look at the packet; and the other way round, what an identification has
// to be can be told from an ICRC.

// times is the product of two polynomials modulo the CRC's, bit-reflected.
func times(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ -(b&1)&crc32.IEEE
	}
	return p
}

// squares has of a polynomial its powers of 2^0, 2^1, and so on.
type squares [20]uint32

func squaresOf(x uint32) (t squares) {
	for i := range t {
		t[i] = x
		x = times(x, x)
	}
	return t
}

// To the n-th power, below 2^20.
func (t *squares) power(n int) uint32 {
	r := uint32(1 << 31)
	for i := 0; n != 0; i++ {
		if n&1 != 0 {
			r = times(r, t[i])
		}
		n >>= 1
	}
	return r
}

// forth has the powers of x, by which a register moves past a bit, back those of its inverse, by
// which it moves back.
var forth, back = squaresOf(1 << 30), squaresOf((crc32.IEEE^1<<31)<<1 | 1)

// A Shift moves what is different in a register past some octets. It is made once for packets of a
// length.
type Shift struct {
	n, head      int    // octets of the packets, and of their IP headers; n is 0: nothing is in it
	forth, back  uint32 // past what is behind IPv4's identification, and back
	port         uint32 // past what is behind UDP's source port
	dontFragment uint32 // by what the register differs at the end for that flag
}

// identificationEnd is where IPv4's identification ends in a packet.
const identificationEnd = 6

// ShiftFor makes the Shift for packets of n octets from the IP header, which has head octets, to
// what is before the ICRC.
func ShiftFor(n, head int) Shift {
	bits := (n - identificationEnd) * 8
	s := Shift{n: n, head: head, forth: forth.power(bits), back: back.power(bits)}
	s.dontFragment = times(crcTable(0x40), forth.power(bits-8))
	s.port = forth.power((n - head - 2) * 8)
	return s
}

// Is reports whether s is for packets of n octets behind a header of head.
func (s *Shift) Is(n, head int) bool { return n != 0 && s.n == n && s.head == head }

// crcTable is what an octet makes of an empty register.
func crcTable(b byte) uint32 { return crc32.IEEETable[b] }

// Change is the ICRC of a packet whose ICRC is c, once the bits of id are others in IPv4's
// identification, and those of port in UDP's source port.
func (s *Shift) Change(c ICRC, id, port uint16) ICRC {
	return c ^ ICRC(times(two(id), s.forth)^times(two(port), s.port))
}

// two is the register behind the two octets of v, if it was empty.
func two(v uint16) uint32 {
	r := crcTable(byte(v >> 8))
	return r>>8 ^ crcTable(byte(r)^byte(v))
}

// Identification finds what an ICRC says of fields that are not known: have is the ICRC for an
// identification of 0 and DF, want that of the packet. id is the identification with which they are
// the same, and df whether DF is set; false: there is none. Of packets that are damaged it finds
// one for one of 2^15.
func (s *Shift) Identification(have, want ICRC) (id uint16, df, ok bool) {
	d := uint32(have ^ want)
	if id, ok = untwo(times(d, s.back)); ok {
		return id, true, true
	}
	id, ok = untwo(times(d^s.dontFragment, s.back))
	return id, false, ok
}

// of has, by the upper octet of what an octet makes of an empty register, the octet: each has
// another one.
var of = func() (t [256]byte) {
	for i := range 256 {
		t[crcTable(byte(i))>>24] = byte(i)
	}
	return t
}()

// untwo is what two has made r of; false: nothing.
func untwo(r uint32) (v uint16, ok bool) {
	second := of[r>>24]
	first := of[(r^crcTable(second))>>16&0xff]
	v = uint16(first)<<8 | uint16(second^byte(crcTable(first)))
	return v, two(v) == r
}
