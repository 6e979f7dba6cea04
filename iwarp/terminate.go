package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Terminate is the content of a Terminate message (RFC 5040, section 4.8).
type Terminate struct {
	Cause TermCode
	// Swapped says that it was read in siw's bit order (docs/decisions.md#A28).
	Swapped bool
	// HasLength says that Length holds the length of the segment concerned. Peers differ in
	// what they count (docs/decisions.md#A3).
	HasLength bool
	Length    uint16
	// Header is the DDP header of the segment concerned, 14 or 18 octets; nil if there is none.
	Header []byte
	// ReadRequest is the RDMAP header of the Read Request concerned; nil if there is none.
	ReadRequest ReadRequest
}

// The bits of the third octet of the control field, by RFC 5040, figure 8, and as siw has them.
const (
	termM, termD, termR           = 0x80, 0x40, 0x20
	siwTermM, siwTermD, siwTermR  = 0x01, 0x02, 0x04
	termControlLen, termSegLenLen = 4, 2
	// terminateMaxMsg is how long an inbound one may be: 52 octets are the longest that mean
	// something, 76 have room for the header of an Atomic Request.
	terminateMaxMsg = 80
)

var errShortTerminate = errors.New("iwarp: a Terminate has at least 4 octets")

// Append appends the Terminate header in the form of figure 8. M and D go together: the length is
// there if and only if the header is.
func (t *Terminate) Append(b []byte) []byte {
	var mdr byte
	if t.HasLength {
		mdr |= termM
	}
	if len(t.Header) > 0 {
		mdr |= termD
	}
	if len(t.ReadRequest) > 0 {
		mdr |= termR
	}
	b = append(b, t.Cause.Layer<<4|t.Cause.Type&0x0f, t.Cause.Code, mdr, 0)
	if mdr&(termM|termD) != 0 {
		b = binary.BigEndian.AppendUint16(b, t.Length)
	}
	b = append(b, t.Header...)
	return append(b, t.ReadRequest...)
}

// ParseTerminate reads the Terminate header p: what follows the DDP header. It takes all variants
// of docs/decisions.md: figure 8 or siw's bit order (#A28), copies that are absent, shorter than
// the bits promise, or filled with zeroes (#A2, #A4). The result aliases p.
func ParseTerminate(p []byte) (Terminate, error) {
	if len(p) < termControlLen {
		return Terminate{}, errShortTerminate
	}
	t, rest := readTerminate(p, p[0]>>4, p[0]&0x0f, p[2]&termM != 0, p[2]&termD != 0, p[2]&termR != 0)
	if t.Cause.Registered() && allZero(rest) {
		return t, nil
	}
	s, rest := readTerminate(p, p[0]&0x0f, p[0]>>4, p[2]&siwTermM != 0, p[2]&siwTermD != 0,
		p[2]&siwTermR != 0)
	if s.Cause.Registered() && allZero(rest) {
		s.Swapped = true
		return s, nil
	}
	return t, nil
}

// readTerminate takes the fields out of p and returns the octets nobody claimed.
func readTerminate(p []byte, layer, typ uint8, m, d, r bool) (t Terminate, rest []byte) {
	t.Cause = TermCode{layer, typ, p[1]}
	rest = p[termControlLen:]
	if !m && !d || len(rest) < termSegLenLen {
		return t, rest
	}
	if m { // without M the octets are there and mean nothing
		t.HasLength, t.Length = true, binary.BigEndian.Uint16(rest)
	}
	rest = rest[termSegLenLen:]
	if !d || len(rest) == 0 {
		return t, rest
	}
	n := UntaggedHeaderLen
	if DDPControl(rest[0]).Tagged() {
		n = TaggedHeaderLen
	}
	if len(rest) < n {
		return t, rest
	}
	t.Header, rest = rest[:n:n], rest[n:]
	// "The RDMAP header copy is present when R is set and only for Read Requests"; siw sets R
	// without one (docs/decisions.md#A4).
	if r && RDMAPControl(t.Header[1]).Opcode() == OpReadRequest && len(rest) >= ReadRequestLen {
		t.ReadRequest, rest = ReadRequest(rest[:ReadRequestLen:ReadRequestLen]), rest[ReadRequestLen:]
	}
	return t, rest
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

func (t Terminate) String() string {
	s := "Terminate " + t.Cause.String()
	if t.Swapped {
		s += " [siw's bit order]"
	}
	if t.HasLength {
		s += fmt.Sprintf(" length=%d", t.Length)
	}
	if len(t.Header) > 0 {
		s += " of {" + describeHeader(t.Header) + "}"
	}
	if len(t.ReadRequest) > 0 {
		s += " {" + t.ReadRequest.String() + "}"
	}
	return s
}
