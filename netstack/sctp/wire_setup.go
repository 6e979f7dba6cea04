package sctp

import (
	"encoding/binary"
	"net/netip"
)

// Types of parameters (RFC 9260, section 3.3.2 and 3.3.3; RFC 5061, section 4.2.6).
const (
	paramHeartbeatInfo = 1
	paramIPv4          = 5
	paramIPv6          = 6
	paramCookie        = 7
	paramUnrecognized  = 8
	paramPreservative  = 9
	paramHostName      = 11
	paramAddressTypes  = 12
	paramECN           = 0x8000
	paramAdaptation    = 0xc006
	paramLen           = 4 // header
	maxAddrs           = 16
	maxUnrecognized    = 8
	paramSkips         = 0x8000
	paramReports       = 0x4000
	adaptationParamLen = 8
	minRwnd            = 1500
	// what is reported back of an INIT, so that the answer does not outgrow it
	maxUnrecognizedSize = 256
)

// A param is one parameter without its padding: type(2) length(2) value. Error causes have the same
// form (section 3.3.10).
type param []byte

func (p param) typ() uint16   { return binary.BigEndian.Uint16(p) }
func (p param) value() []byte { return p[paramLen:] }

// nextParam cuts the first parameter off b. ok is false at the end, and where a length is below 4
// or past the end; then rest is what was left. Section 3.2.1.
func nextParam(b []byte) (p param, rest []byte, ok bool) {
	if len(b) < paramLen {
		return nil, b, false
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < paramLen || n > len(b) {
		return nil, b, false
	}
	return param(b[:n:n]), b[min(padded(n), len(b)):], true
}

// beginParam pads what is before a parameter, or error cause, and appends its header for n octets.
// b begins at a multiple of four. The padding of the last parameter is left to endChunk: the length
// of a chunk "does include any padding of variable-length parameters other than the last", section
// 3.2.
func beginParam(b []byte, typ uint16, n int) []byte {
	b = appendPadding(b, 0)
	b = binary.BigEndian.AppendUint16(b, typ)
	return binary.BigEndian.AppendUint16(b, uint16(paramLen+n))
}

func appendParam(b []byte, typ uint16, value []byte) []byte {
	return append(beginParam(b, typ, len(value)), value...)
}

func appendParam32(b []byte, typ uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(beginParam(b, typ, 4), v)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return appendParam(b, paramIPv4, v[:])
	}
	v := a.As16()
	return appendParam(b, paramIPv6, v[:])
}

// addrOf reads an address parameter; ok is false if its length is wrong, and for an IPv4-mapped
// address, which nobody may send (section 3.3.2.1.2).
func addrOf(p param) (a netip.Addr, ok bool) {
	switch {
	case p.typ() == paramIPv4 && len(p) == 8:
		return netip.AddrFrom4([4]byte(p[4:])), true
	case p.typ() == paramIPv6 && len(p) == 20:
		a = netip.AddrFrom16([16]byte(p[4:]))
		return a, !a.Is4In6()
	}
	return a, false
}

// isUnicast says whether a can be the address of one host.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsMulticast() && !a.IsUnspecified() && a != netip.AddrFrom4(
		[4]byte{255, 255, 255, 255})
}

// A setup is an INIT or INIT ACK: header(4) initiate tag(4) a_rwnd(4) outbound streams(2)
// inbound streams(2) initial TSN(4) parameters. Sections 3.3.2 and 3.3.3.
type setup struct {
	tag, rwnd uint32
	out, in   uint16
	tsn       TSN

	// What the parameters say. Slices alias the chunk.
	nAddrs       int
	addrs        [maxAddrs]netip.Addr
	cookie       []byte // nil: none
	adaptation   uint32
	adapts       bool   // adaptation is there
	preservative uint32 // milliseconds
	hostName     param  // must not be there
	types4       bool   // Supported Address Types lists IPv4
	types6       bool
	types        bool // there is a Supported Address Types
	nUnknown     int
	unknown      [maxUnrecognized]param // to be reported
}

// parseSetup reads an INIT or INIT ACK; ok is false if it is too short for its fixed part.
// Parameters are read up to the first that is cut or, being unknown, says to stop there (section
// 3.2.1).
func parseSetup(c chunk, s *setup) (ok bool) {
	if len(c) < initLen {
		return false
	}
	s.tag = binary.BigEndian.Uint32(c[4:])
	s.rwnd = binary.BigEndian.Uint32(c[8:])
	s.out = binary.BigEndian.Uint16(c[12:])
	s.in = binary.BigEndian.Uint16(c[14:])
	s.tsn = TSN(binary.BigEndian.Uint32(c[16:]))
	for rest := []byte(c[initLen:]); ; {
		var p param
		if p, rest, ok = nextParam(rest); !ok {
			return true
		}
		switch t := p.typ(); t {
		case paramIPv4, paramIPv6:
			// More addresses than anyone has are not looked at: each costs a heartbeat.
			if a, ok := addrOf(p); ok && isUnicast(a) && s.nAddrs < maxAddrs {
				s.addrs[s.nAddrs] = a
				s.nAddrs++
			}
		case paramCookie:
			if c.typ() == chunkInitAck && s.cookie == nil {
				s.cookie = p.value()
			}
		case paramAdaptation:
			// RFC 5043 draws a variable length, RFC 5061 has 8. Another one is no indication.
			if len(p) == adaptationParamLen && !s.adapts { // docs/decisions.md#D10
				s.adapts, s.adaptation = true, binary.BigEndian.Uint32(p.value())
			}
		case paramPreservative:
			if len(p) == 8 {
				s.preservative = binary.BigEndian.Uint32(p.value())
			}
		case paramHostName:
			s.hostName = p
		case paramAddressTypes:
			s.types = true
			for v := p.value(); len(v) >= 2; v = v[2:] {
				switch binary.BigEndian.Uint16(v) {
				case paramIPv4:
					s.types4 = true
				case paramIPv6:
					s.types6 = true
				}
			}
		case paramECN, paramUnrecognized:
		default:
			if t&paramReports != 0 && s.nUnknown < maxUnrecognized {
				s.unknown[s.nUnknown] = p
				s.nUnknown++
			}
			if t&paramSkips == 0 {
				return true
			}
		}
	}
}

func (s *setup) peerAddrs() []netip.Addr { return s.addrs[:s.nAddrs] }

// appendSetupHeader begins an INIT or INIT ACK; the parameters and endChunk are the caller's.
func appendSetupHeader(b []byte, t ChunkType, tag, rwnd uint32, out, in uint16, tsn TSN) []byte {
	b = beginChunk(b, t, 0)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint32(b, rwnd)
	b = binary.BigEndian.AppendUint16(b, out)
	b = binary.BigEndian.AppendUint16(b, in)
	return binary.BigEndian.AppendUint32(b, uint32(tsn))
}
