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

// Reasons for refusing a connection, of those that RFC 4755 takes from InfiniBand.
const (
	ReasonService  = 8  // there is no such service
	ReasonConsumer = 28 // whoever it is for does not want it
)

// StreamPrivateLen is how many octets of private data each message has that makes a stream.
const StreamPrivateLen = 36

// A StreamPrivate is what the private data of MPA, or of RFC 5043, hold where a connection is a
// stream of iWARP: what messages of the connection manager say of RFC 4755's. No standard has it
// (docs/decisions.md#I9).
type StreamPrivate struct {
	Private
	Service uint64
	GID     GID    // of the sender
	Reason  uint16 // of a refusal
}

// Append adds p to b as it is on the wire.
func (p StreamPrivate) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(p.Private.Append(b), p.Service)
	b = append(b, p.GID[:]...)
	return append(binary.BigEndian.AppendUint16(b, p.Reason), 0, 0)
}

// ParseStreamPrivate reads the first StreamPrivateLen octets of b.
func ParseStreamPrivate(b []byte) (p StreamPrivate, ok bool) {
	if len(b) < StreamPrivateLen {
		return p, false
	}
	p.Private, _ = ParsePrivate(b)
	p.Service, p.GID = binary.BigEndian.Uint64(b[8:]), GID(b[16:32])
	p.Reason = binary.BigEndian.Uint16(b[32:])
	return p, true
}
