package sctp

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// An ICMPKind is what an ICMP or ICMPv6 error says.
type ICMPKind uint8

const (
	ICMPTooBig              ICMPKind = iota + 1 // fragmentation needed, packet too big
	ICMPProtocolUnreachable                     // protocol unreachable, unrecognized next header
	ICMPPortUnreachable
	ICMPUnreachable // net, host and others
)

// An ICMPError is one that came for a packet of ours.
type ICMPError struct {
	Kind     ICMPKind
	Src, Dst netip.Addr // of our packet
	MTU      int        // ICMPTooBig: what the narrow link takes, without the IP header
	Encap    bool       // our packet was in UDP
	Quote    []byte     // our packet from the common header on, as much as there is
}

// ICMP takes an ICMP error. Anyone can send one, so it has to quote the tag that only we and the
// peer know. Section 10.
func (e *Endpoint) ICMP(now time.Time, m ICMPError) {
	if j := e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallICMP, Now: now, Octets: m.Quote, Src: m.Src, Dst: m.Dst, What: &m})
		defer j.End(&Result{})
	}
	q := m.Quote
	if len(q) < 8 {
		return
	}
	lport, rport, tag := binary.BigEndian.Uint16(q), binary.BigEndian.Uint16(q[2:]),
		binary.BigEndian.Uint32(q[4:])
	a := e.table[peerKey{lport, rport, m.Dst}]
	if a == nil {
		return
	}
	isInit := false
	if tag == 0 {
		// The quoted INIT carries our own initiate tag: docs/decisions.md#P1.
		isInit = len(q) >= headerLen+8 && ChunkType(q[headerLen]) == chunkInit &&
			binary.BigEndian.Uint32(q[headerLen+chunkLen:]) == a.tag
		if !isInit {
			return
		}
	} else if tag != a.peerTag {
		return
	}
	p := a.path(m.Dst)
	kind := m.Kind
	if m.Encap && kind == ICMPPortUnreachable {
		// "An SCTP implementation SHOULD treat it as protocol unreachable": RFC 6951, section 5.5.
		kind = ICMPProtocolUnreachable
	}
	switch kind {
	case ICMPTooBig:
		n := m.MTU
		if m.Encap {
			n -= udpLen
		}
		if n = max(n, minPMTU(p.addr)); n < p.pmtu {
			a.narrow(now, p, n, raiseTime)
		}
	case ICMPProtocolUnreachable:
		if !isInit || a.state == StateCookieWait {
			a.down(ErrUnreachable)
			return
		}
	case ICMPPortUnreachable:
		// "An implementation SHOULD ignore any ICMP messages where the code indicates Port
		// Unreachable": SCTP would have sent an ABORT.
	case ICMPUnreachable:
		a.fails(p, now, false)
	}
	e.changed(a)
	e.timers.set(a)
}
