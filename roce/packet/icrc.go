package packet

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/vrnic/vrnic/internal/crcfold"
)

// The invariant CRC is that of Ethernet, over eight octets of ones, where InfiniBand has another
// header, and all of the packet from the IP header on. What a router may change counts as ones.

// start is the sum of the eight octets of ones.
var start = crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
)

// What routers change, as masks of little-endian words: of IPv4 TOS, TTL and checksum, of IPv6
// traffic class, flow label and hop limit, of UDP the checksum, and of the BTH its fifth octet.
const (
	ipv4Word0 = 0x0000ff00
	ipv4Word2 = 0xffff00ff
	ipv6Word0 = 0xffffff0f
	ipv6Word1 = 0xff000000
	udpWord1  = 0xffff0000
	bthWord1  = 0x000000ff
)

// An ICRC is the invariant CRC of what Start and Add have seen of a packet.
type ICRC uint32

// Start begins the ICRC of a packet with its IP header, which may have options if it is IPv4, the
// UDP header behind it, and the BTH: ip must have all of them, and what is behind does not count.
// How long the headers are is read from the first octet; false: they are not all there.
func Start(ip []byte) (c ICRC, ok bool) {
	n := headLen(ip)
	if n == 0 || len(ip) < n+udpLen+BTHLen {
		return 0, false
	}
	le := binary.LittleEndian
	r := ^start
	rest := ip[8:n]
	if n == ipv6Len {
		r = words(r, le.Uint64(ip)|ipv6Word1<<32|ipv6Word0)
	} else {
		r = words(r, le.Uint64(ip)|ipv4Word0)
		r = words(r, le.Uint64(ip[8:])|ipv4Word2)
		rest = ip[16:n]
	}
	for ; len(rest) >= 8; rest = rest[8:] {
		r = words(r, le.Uint64(rest))
	}
	udp := ip[n : n+udpLen+BTHLen]
	// The addresses of IPv4 end in the midst of eight octets, unless its options have another four.
	if len(rest) > 0 {
		r = words(r, le.Uint64(ip[n-4:]))
		r = words(r, le.Uint64(udp[4:])|udpWord1)
		r = words(r, le.Uint64(udp[12:])|bthWord1)
		return ICRC(^r), true
	}
	r = words(r, le.Uint64(udp)|udpWord1<<32)
	r = words(r, le.Uint64(udp[8:])|bthWord1<<32)
	return ICRC(^word(r, le.Uint32(udp[16:]))), true
}

// Of is the ICRC of a packet that has all from its IP header to its padding, and its headers as
// Start wants them; false: it has not. It writes to the headers, and has them as they were when it
// returns.
func Of(ip []byte) (c ICRC, ok bool) {
	n := headLen(ip)
	if n == 0 || len(ip) < n+udpLen+BTHLen {
		return 0, false
	}
	if !crcfold.Available || len(ip) < crcfold.Least {
		c, _ = Start(ip)
		return c.Add(ip[n+udpLen+BTHLen:]), true
	}
	le := binary.LittleEndian
	word0, word1 := le.Uint64(ip), le.Uint64(ip[8:])
	udp1, bth1 := le.Uint32(ip[n+4:]), le.Uint32(ip[n+udpLen+4:])
	if n == ipv6Len {
		le.PutUint64(ip, word0|ipv6Word1<<32|ipv6Word0)
	} else {
		le.PutUint64(ip, word0|ipv4Word0)
		le.PutUint64(ip[8:], word1|ipv4Word2)
	}
	le.PutUint32(ip[n+4:], udp1|udpWord1)
	le.PutUint32(ip[n+udpLen+4:], bth1|bthWord1)
	c = ICRC(start).Add(ip)
	le.PutUint64(ip, word0)
	le.PutUint64(ip[8:], word1)
	le.PutUint32(ip[n+4:], udp1)
	le.PutUint32(ip[n+udpLen+4:], bth1)
	return c, true
}

// hash/crc32 would have the masked headers on the heap. steps[k] is what an octet does to the
// register k octets later.
var steps = makeSteps()

func makeSteps() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range t[0] {
		for k := 1; k < len(t); k++ {
			t[k][i] = t[0][t[k-1][i]&0xff] ^ t[k-1][i]>>8
		}
	}
	return t
}

// word is the register r behind four octets more, w in little-endian order.
func word(r, w uint32) uint32 {
	r ^= w
	return steps[3][r&0xff] ^ steps[2][r>>8&0xff] ^ steps[1][r>>16&0xff] ^ steps[0][r>>24]
}

// words is the register r behind eight octets more.
func words(r uint32, w uint64) uint32 {
	r ^= uint32(w)
	h := uint32(w >> 32)
	return steps[7][r&0xff] ^ steps[6][r>>8&0xff] ^ steps[5][r>>16&0xff] ^ steps[4][r>>24] ^
		steps[3][h&0xff] ^ steps[2][h>>8&0xff] ^ steps[1][h>>16&0xff] ^ steps[0][h>>24]
}

// headLen is how many octets the IP header at ip has; 0: it is none that there is.
func headLen(ip []byte) int {
	switch {
	case len(ip) == 0:
	case ip[0]>>4 == 6:
		return ipv6Len
	case ip[0]>>4 == 4:
		if n := int(ip[0]&0xf) * 4; n >= ipv4Len {
			return n
		}
	}
	return 0
}

var polynomial = crcfold.New(crc32.IEEE)

// Add is c with what follows: extension headers, payload, padding, in as many pieces as they are.
func (c ICRC) Add(b []byte) ICRC {
	if crcfold.Available && len(b) >= crcfold.Least {
		n := len(b) &^ (crcfold.Step - 1)
		lo, hi := crcfold.Fold(^uint32(c), &b[0], n, polynomial)
		c = ICRC(^words(words(0, lo), hi))
		b = b[n:]
	}
	if len(b) >= shortLen {
		return ICRC(crc32.Update(uint32(c), crc32.IEEETable, b))
	}
	r := ^uint32(c)
	for ; len(b) >= 8; b = b[8:] {
		r = words(r, binary.LittleEndian.Uint64(b))
	}
	if len(b) >= 4 {
		r = word(r, binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	for _, x := range b {
		r = steps[0][byte(r)^x] ^ r>>8
	}
	return ICRC(^r)
}

// shortLen is the length from which on hash/crc32 takes less time than words.
const shortLen = 64

// Append adds c as it is sent, the least significant octet first.
func (c ICRC) Append(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, uint32(c)) }

// Check reports whether the ICRC of a packet is right: ip is the packet from the IP header to the
// ICRC, and nothing behind it. One that is too short is not.
func Check(ip []byte) bool {
	c, ok := Start(ip)
	from := headLen(ip) + udpLen + BTHLen
	if !ok || len(ip) < from+ICRCLen {
		return false
	}
	end := len(ip) - ICRCLen
	return uint32(c.Add(ip[from:end])) == binary.LittleEndian.Uint32(ip[end:])
}
