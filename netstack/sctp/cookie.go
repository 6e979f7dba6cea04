package sctp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/netip"
	"time"
)

// keyLife is how long a key signs cookies. It verifies them for as long again: no cookie lives
// longer.
const keyLife = time.Hour

// cookieMAC is how much of HMAC-SHA256 a cookie carries.
const cookieMAC = 16

// A cookieKey signs state cookies. The MAC is made once and reset, so that a flood costs no memory.
type cookieKey struct {
	id  byte
	mac hash.Hash
}

// A keyring holds the key that signs and the one before.
type keyring struct {
	current, previous cookieKey
	since             time.Time
	sum               [sha256.Size]byte
}

// rotate makes a new key if there is none or the current one is old. "The secret key SHOULD be
// changed reasonably frequently": RFC 9260, section 5.1.3.
func (k *keyring) rotate(now time.Time, random func([]byte)) {
	if k.current.mac != nil && now.Sub(k.since) < keyLife {
		return
	}
	// A key that has not been in use for so long that its cookies are dead is not kept.
	if k.previous = k.current; now.Sub(k.since) >= 2*keyLife {
		k.previous = cookieKey{}
	}
	var secret [sha256.Size]byte
	random(secret[:])
	k.current = cookieKey{id: k.previous.id + 1, mac: hmac.New(sha256.New, secret[:])}
	k.since = now
}

func (k *keyring) sumOf(key cookieKey, b []byte) []byte {
	key.mac.Reset()
	key.mac.Write(b)
	return key.mac.Sum(k.sum[:0])[:cookieMAC]
}

// A cookie is all that is needed to make an association of a COOKIE ECHO. "Out" and "in" are ours.
// On the wire, big endian, it is
//
//	key(1) flags(1) out(2) in(2) encapsulation port(2) created(8, ns) life(4, ms)
//	source port(2) destination port(2) tag(4) peer's tag(4) TSN(4) peer's TSN(4) peer's a_rwnd(4)
//	adaptation(4) local tie-tag(4) peer's tie-tag(4)
//	addresses: where the INIT came from, where it came to, the peer's others; each length(1), octets
//	MAC(16)
//
// Nothing of that is a secret from the peer: the tie-tags are random and good for nothing else
// (section 5.2.2), the rest the peer has sent or is told.
type cookie struct {
	created      int64
	life         uint32
	srcPort      uint16 // the peer's
	dstPort      uint16
	tag, peerTag uint32
	tsn, peerTSN TSN
	rwnd         uint32
	out, in      uint16
	encap        uint16
	adapts       bool
	adaptation   uint32
	tie, peerTie uint32
	src, dst     netip.Addr
	nAddrs       int
	addrs        [maxAddrs]netip.Addr // beside src
}

const (
	cookieFixed  = 56
	cookieAdapts = 1
)

func (k *keyring) seal(b []byte, c *cookie) []byte {
	at := len(b)
	flags := byte(0)
	if c.adapts {
		flags = cookieAdapts
	}
	be := binary.BigEndian
	b = append(b, k.current.id, flags)
	b = be.AppendUint16(b, c.out)
	b = be.AppendUint16(b, c.in)
	b = be.AppendUint16(b, c.encap)
	b = be.AppendUint64(b, uint64(c.created))
	b = be.AppendUint32(b, c.life)
	b = be.AppendUint16(b, c.srcPort)
	b = be.AppendUint16(b, c.dstPort)
	b = be.AppendUint32(b, c.tag)
	b = be.AppendUint32(b, c.peerTag)
	b = be.AppendUint32(b, uint32(c.tsn))
	b = be.AppendUint32(b, uint32(c.peerTSN))
	b = be.AppendUint32(b, c.rwnd)
	b = be.AppendUint32(b, c.adaptation)
	b = be.AppendUint32(b, c.tie)
	b = be.AppendUint32(b, c.peerTie)
	b = sealAddr(b, c.src)
	b = sealAddr(b, c.dst)
	for _, a := range c.addrs[:c.nAddrs] {
		b = sealAddr(b, a)
	}
	return append(b, k.sumOf(k.current, b[at:])...)
}

func sealAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(append(b, 4), v[:]...)
	}
	v := a.As16()
	return append(append(b, 16), v[:]...)
}

// open reads a cookie that seal made, and verifies it; ok is false if it did not.
func (k *keyring) open(b []byte, c *cookie) (ok bool) {
	if len(b) < cookieFixed+cookieMAC {
		return false
	}
	key := k.current
	if b[0] != key.id {
		key = k.previous
	}
	body := b[:len(b)-cookieMAC]
	if key.mac == nil || b[0] != key.id || !hmac.Equal(k.sumOf(key, body), b[len(body):]) {
		return false
	}
	be := binary.BigEndian
	*c = cookie{
		adapts: b[1]&cookieAdapts != 0, out: be.Uint16(b[2:]), in: be.Uint16(b[4:]),
		encap:   be.Uint16(b[6:]),
		created: int64(be.Uint64(b[8:])), life: be.Uint32(b[16:]), srcPort: be.Uint16(b[20:]),
		dstPort: be.Uint16(b[22:]),
		tag:     be.Uint32(b[24:]), peerTag: be.Uint32(b[28:]), tsn: TSN(be.Uint32(b[32:])),
		peerTSN: TSN(be.Uint32(b[36:])),
		rwnd:    be.Uint32(b[40:]), adaptation: be.Uint32(b[44:]), tie: be.Uint32(b[48:]),
		peerTie: be.Uint32(b[52:]),
	}
	rest := body[cookieFixed:]
	for i := -2; len(rest) > 0; i++ {
		n := 1 + int(rest[0])
		if n > len(rest) || i >= maxAddrs {
			return false
		}
		a, good := netip.AddrFromSlice(rest[1:n])
		if !good {
			return false
		}
		switch rest = rest[n:]; i {
		case -2:
			c.src = a
		case -1:
			c.dst = a
		default:
			c.addrs[i] = a
			c.nAddrs = i + 1
		}
	}
	return c.dst.IsValid()
}

// has says whether a is one of the peer's addresses.
func (c *cookie) has(a netip.Addr) bool {
	if a == c.src {
		return true
	}
	for _, b := range c.addrs[:c.nAddrs] {
		if a == b {
			return true
		}
	}
	return false
}

// stale is by how much the cookie is too old; not above 0 if it is not.
func (c *cookie) stale(now time.Time) time.Duration {
	return time.Duration(now.UnixNano()-c.created) - time.Duration(c.life)*time.Millisecond
}
