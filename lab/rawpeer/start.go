package rawpeer

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Keys of the start frames: RFC 5044, section 7.1.1.
const (
	KeyRequest = "MPA ID Req Frame"
	KeyReply   = "MPA ID Rep Frame"
)

// Bits of octet 16 of a start frame: RFC 5044, section 7.1.1; S: RFC 6581, section 6.
const (
	FlagM = 0x80 // the sender wants Markers
	FlagC = 0x40 // and CRCs
	FlagR = 0x20 // it refuses
	FlagS = 0x10 // enhanced data comes first
)

// Bits of the two words of enhanced data, beside the 14 bits of IRD and of ORD: RFC 6581, section
// 9.
const (
	WordA = 0x8000 // in the first: peer-to-peer
	WordB = 0x4000 // RTR by Send
	WordC = 0x8000 // in the second: RTR by Write
	WordD = 0x4000 // RTR by Read

	NotNegotiated = 0x3fff
)

const startLen = 20

// A Start is an MPA Request or Reply:
//
//	octets 0-15 Key   16 flags   17 Rev   18-19 PD_Length   20- private data
//
// With FlagS the private data begins with two words, A B IRD(14) and C D ORD(14).
type Start struct {
	Key    string
	Flags  byte
	Rev    byte
	Claim  int    // PD_Length; below 0: the length of Data
	Data   []byte // all that follows, the two words too
	Behind []byte // octets behind the frame, in the same TCP segment
}

// Request is one of revision 1; see Enhanced.
func Request(flags byte, private ...byte) Start {
	return Start{Key: KeyRequest, Flags: flags, Rev: 1, Claim: -1, Data: private}
}

// Reply is one of revision 1; see Enhanced.
func Reply(flags byte, private ...byte) Start {
	return Start{Key: KeyReply, Flags: flags, Rev: 1, Claim: -1, Data: private}
}

// Enhanced makes s one of revision 2 with two words in front of its private data.
func (s Start) Enhanced(first, second uint16) Start {
	s.Flags |= FlagS
	s.Rev = 2
	words := binary.BigEndian.AppendUint16(nil, first)
	words = binary.BigEndian.AppendUint16(words, second)
	s.Data = append(words, s.Data...)
	return s
}

// Append appends the octets of s.
func (s Start) Append(b []byte) []byte {
	n := s.Claim
	if n < 0 {
		n = len(s.Data)
	}
	b = append(b, s.Key...)
	b = append(b, s.Flags, s.Rev)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, s.Data...)
	return append(b, s.Behind...)
}

// Words are the two words of enhanced data; ok: there are some.
func (s Start) Words() (first, second uint16, ok bool) {
	if s.Flags&FlagS == 0 || s.Rev < 2 || len(s.Data) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(s.Data), binary.BigEndian.Uint16(s.Data[2:]), true
}

// Private is the program's part of Data.
func (s Start) Private() []byte {
	if _, _, ok := s.Words(); ok {
		return s.Data[4:]
	}
	return s.Data
}

// readStart reads a start frame and not an octet more. What no sender may do is an error: reserved
// bits (0x0f, and 0x10 at revision 1), private data of more than 512 octets.
func readStart(r io.Reader) (Start, []byte, error) {
	b := make([]byte, startLen, startLen+512)
	if n, err := io.ReadFull(r, b); err != nil {
		return Start{}, b[:n], fmt.Errorf("a start frame: %w", err)
	}
	s := Start{Key: string(b[:16]), Flags: b[16], Rev: b[17],
		Claim: int(binary.BigEndian.Uint16(b[18:]))}
	if s.Key != KeyRequest && s.Key != KeyReply {
		return s, b, fmt.Errorf("a start frame with Key %q", s.Key)
	}
	if s.Claim > 512 {
		return s, b, fmt.Errorf("a start frame with PD_Length %d", s.Claim)
	}
	b = b[:startLen+s.Claim]
	if n, err := io.ReadFull(r, b[startLen:]); err != nil {
		return s, b[:startLen+n], fmt.Errorf("private data of %d octets: %w", s.Claim, err)
	}
	s.Data = b[startLen:]
	switch {
	case s.Flags&0x0f != 0 || s.Rev < 2 && s.Flags&FlagS != 0:
		return s, b, fmt.Errorf("reserved flags in %#02x at revision %d", s.Flags, s.Rev)
	case s.Key == KeyRequest && s.Flags&FlagR != 0:
		return s, b, fmt.Errorf("a Request with R set")
	case s.Flags&FlagS != 0 && len(s.Data) < 4:
		return s, b, fmt.Errorf("a frame with S set and %d octets of private data", len(s.Data))
	}
	return s, b, nil
}
