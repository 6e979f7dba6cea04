package roi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Setup is what one end brings to the set-up of a stream (section 12): whether each pool of
// credits is used, and how many credits the other end begins with.
type Setup struct {
	Sends       bool   // flow control of Sends and notifying Writes
	SendCredits uint16 // with Sends: granted to the other end
	Reads       bool   // flow control of Read Requests
	ReadCredits uint16 // with Reads: granted to the other end
}

// SetupLen is how many octets a Setup takes of the private data of a connection request and of its
// answer: "ROI0" flags(1) 0(1) send credits(2) read credits(2) 0(2). docs/decisions.md#W2.
const SetupLen = 12

const (
	setupMagic = "ROI0"
	setupSends = 1
	setupReads = 2
)

// Append appends s.
func (s *Setup) Append(b []byte) []byte {
	b = append(b, setupMagic...)
	b = append(b, byte(flag(s.Sends, setupSends)|flag(s.Reads, setupReads)), 0)
	b = binary.BigEndian.AppendUint16(b, s.SendCredits)
	b = binary.BigEndian.AppendUint16(b, s.ReadCredits)
	return append(b, 0, 0)
}

// ParseSetup reads the Setup that private data begin with; rest is what is behind it. ok is false
// if there is none. Private data of other protocols may look like it: that there is one is said by
// MPA's frame or the association.
func ParseSetup(b []byte) (s Setup, rest []byte, ok bool) {
	if len(b) < SetupLen || string(b[:4]) != setupMagic || b[4]&^(setupSends|setupReads) != 0 ||
		b[5]|b[10]|b[11] != 0 {
		return s, b, false
	}
	s = Setup{
		Sends: b[4]&setupSends != 0, SendCredits: binary.BigEndian.Uint16(b[6:]),
		Reads: b[4]&setupReads != 0, ReadCredits: binary.BigEndian.Uint16(b[8:]),
	}
	return s, b[SetupLen:], true
}

// The numbers of SCTP. None is registered: they are not those of RFC 5043, whose sessions carry the
// messages (docs/decisions.md#W8).
const (
	Indication  = 0x524f4930 // of the adaptation layer: "ROI0"
	PPIDSegment = 0x524f4973 // of a message: "ROIs"
	PPIDControl = 0x524f4963 // of the set-up and the end of a session: "ROIc"
)

// ErrSetup: two ends do not agree, or a transport does not do for what they want.
var ErrSetup = errors.New("roi: no agreement")

// Agree says whether two ends that bring s and peer can have a stream: both use a pool or none
// does, and nobody grants credits of a pool that is not used.
func (s *Setup) Agree(peer *Setup) error {
	for _, e := range []*Setup{s, peer} {
		if !e.Sends && e.SendCredits != 0 || !e.Reads && e.ReadCredits != 0 {
			return fmt.Errorf("%w: credits of a pool that is not used: %+v", ErrSetup, *e)
		}
	}
	if s.Sends != peer.Sends || s.Reads != peer.Reads {
		return fmt.Errorf("%w: flow control of Sends %t here and %t there, of Reads %t and %t", ErrSetup,
			s.Sends, peer.Sends, s.Reads, peer.Reads)
	}
	return nil
}

// A Carrier says what the transport below a stream lacks, or has too much of. The zero value is
// that of TCP, and of an ordered stream of SCTP.
type Carrier struct {
	Unordered, Unreliable         bool
	Multisource, Multidestination bool
}

// Check says whether c does for s: sections 9 and 11.
func (c Carrier) Check(s *Setup) error {
	switch {
	case c.Unreliable && (s.Sends || s.Reads):
		return fmt.Errorf("%w: flow control on a transport that is not reliable", ErrSetup)
	case c.Unordered || c.Unreliable:
		return fmt.Errorf("%w: operations of several messages on a transport that is not reliable and "+
			"ordered", ErrSetup)
	case c.Multisource && (s.Sends || s.Reads):
		return fmt.Errorf("%w: flow control with several sources", ErrSetup)
	case c.Multidestination && s.Reads:
		return fmt.Errorf("%w: flow control of Reads with several destinations", ErrSetup)
	}
	return nil
}
