package ipoib

import "encoding/binary"

// servicePrefix is the first octet of Service IDs that the IETF gives out; the type behind it is 0
// (RFC 4755, section 3.5).
const servicePrefix = 0x01

// ServiceID is the service at which the interface with a UD queue pair takes connections.
func ServiceID(qpn uint32) uint64 { return servicePrefix<<56 | uint64(qpn&MaxQPN) }

// PrivateLen is how many octets of private data a message of connection management has.
const PrivateLen = 8

// A Private is what each message that makes a connection tells of its sender (RFC 4755, section 6).
type Private struct {
	QPN uint32 // of its UD queue pair
	MTU uint32 // Receive MTU: the longest frame that it takes
}

// Append adds p to b as it is on the wire.
func (p Private) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, p.QPN&MaxQPN), p.MTU)
}

// ParsePrivate reads the first PrivateLen octets of b; the first of them is not looked at.
func ParsePrivate(b []byte) (p Private, ok bool) {
	if len(b) < PrivateLen {
		return p, false
	}
	return Private{QPN: binary.BigEndian.Uint32(b) & MaxQPN, MTU: binary.BigEndian.Uint32(b[4:])}, true
}
