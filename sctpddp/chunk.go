package sctpddp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
)

// The payload protocol identifiers of user messages (RFC 5043, section 5.2).
const (
	PPIDSegment = 16 // DDP-SSN(2), DDP segment
	PPIDControl = 17 // DDP-SSN(2), function(2), private data
)

const (
	ssnLen      = 2
	functionLen = 2
	blockLen    = 4 // the enhanced data before the private data: RFC 6581, section 7

	// MaxPrivateData is what a control message can carry, the enhanced data included.
	MaxPrivateData = 512
)

// An SSN is a DDP-SSN: it numbers the messages of one direction of a session from 0
// (docs/decisions.md#D1). It wraps.
type SSN uint16

// A Function is what a session control message is for.
type Function uint16

// RFC 5043, section 5.2.3; RFC 6581, section 7.
const (
	FuncInitiate         Function = 1
	FuncAccept           Function = 2
	FuncReject           Function = 3
	FuncTerminate        Function = 4
	FuncEnhancedInitiate Function = 5
	FuncEnhancedAccept   Function = 6
	FuncEnhancedReject   Function = 7
)

var functionNames = [...]string{
	FuncInitiate: "Initiate", FuncAccept: "Accept", FuncReject: "Reject", FuncTerminate: "Terminate",
	FuncEnhancedInitiate: "Enhanced Initiate", FuncEnhancedAccept: "Enhanced Accept",
	FuncEnhancedReject: "Enhanced Reject",
}

func (f Function) known() bool { return f >= FuncInitiate && f <= FuncEnhancedReject }

// Enhanced says whether f is one of RFC 6581.
func (f Function) Enhanced() bool { return f >= FuncEnhancedInitiate && f <= FuncEnhancedReject }

func (f Function) String() string {
	if !f.known() {
		return fmt.Sprintf("function %#04x", uint16(f))
	}
	return functionNames[f]
}

// A Control is a session control message.
type Control struct {
	SSN      SSN
	Function Function
	// HasData says that Data is there: with an Enhanced Initiate or Accept always.
	HasData bool
	Data    iwarp.EnhancedData
	// PrivateData is the program's.
	PrivateData []byte
}

var (
	errShort       = errors.New("message too short for its headers")
	errFunction    = errors.New("unknown function")
	errPrivateData = errors.New("more than 512 octets of private data")
	errNoData      = errors.New("less than 4 octets of private data in the enhanced form")
)

// Append appends the message. An error wraps iwarp.ErrPrivateData.
func (c *Control) Append(b []byte) ([]byte, error) {
	limit := MaxPrivateData
	switch {
	case c.Function == FuncTerminate:
		limit = 0
	case c.HasData:
		limit -= blockLen
	}
	if n := len(c.PrivateData); n > limit {
		return b, fmt.Errorf("%w: %d octets in %v, at most %d", iwarp.ErrPrivateData, n,
			c.Function, limit)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(c.SSN))
	b = binary.BigEndian.AppendUint16(b, uint16(c.Function))
	if c.HasData {
		b = c.Data.Append(b)
	}
	return append(b, c.PrivateData...), nil
}

// ParseControl reads a user message with PPIDControl. What a Terminate carries beside its function
// is in PrivateData, to be ignored (docs/decisions.md#D9). PrivateData aliases msg.
func ParseControl(msg []byte) (c Control, err error) {
	if len(msg) < ssnLen+functionLen {
		return c, errShort
	}
	c.SSN = SSN(binary.BigEndian.Uint16(msg))
	c.Function = Function(binary.BigEndian.Uint16(msg[ssnLen:]))
	c.PrivateData = msg[ssnLen+functionLen:]
	n := len(c.PrivateData)
	switch {
	case !c.Function.known():
		return c, fmt.Errorf("%w %#04x", errFunction, uint16(c.Function))
	case c.Function == FuncTerminate:
		return c, nil
	case n > MaxPrivateData:
		return c, errPrivateData
	case !c.Function.Enhanced():
		return c, nil
	case n < blockLen:
		// The RFC promises the block in Initiate and Accept only (docs/decisions.md#D6).
		if c.Function == FuncEnhancedReject {
			return c, nil
		}
		return c, errNoData
	}
	c.HasData, c.Data = true, iwarp.ParseEnhancedData(c.PrivateData)
	c.PrivateData = c.PrivateData[blockLen:]
	return c, nil
}

// ParseSegment splits a user message with PPIDSegment. An error says that the segment is shorter
// than its DDP header. seg aliases msg.
func ParseSegment(msg []byte) (ssn SSN, seg []byte, err error) {
	if len(msg) < ssnLen {
		return 0, nil, errShort
	}
	ssn, seg = SSN(binary.BigEndian.Uint16(msg)), msg[ssnLen:]
	need := iwarp.TaggedHeaderLen
	if len(seg) > 0 && !iwarp.DDPControl(seg[0]).Tagged() {
		need = iwarp.UntaggedHeaderLen
	}
	if len(seg) < need {
		return ssn, nil, errShort
	}
	return ssn, seg, nil
}

// Describe says in one line what a user message is.
func Describe(ppid uint32, msg []byte) string {
	switch ppid {
	case PPIDSegment:
		ssn, seg, err := ParseSegment(msg)
		if err != nil {
			return fmt.Sprintf("segment, %d octets: %v", len(msg), err)
		}
		return fmt.Sprintf("ssn=%d %s", ssn, iwarp.DescribeSegment(seg))
	case PPIDControl:
		c, err := ParseControl(msg)
		if err != nil {
			return fmt.Sprintf("control, %d octets: %v", len(msg), err)
		}
		s := fmt.Sprintf("ssn=%d %v", c.SSN, c.Function)
		if c.HasData {
			s += fmt.Sprintf(" p2p=%t rtr=%v ird=%d ord=%d", c.Data.PeerToPeer, c.Data.RTR, c.Data.IRD,
				c.Data.ORD)
		}
		return s + fmt.Sprintf(" pd=%d", len(c.PrivateData))
	}
	return fmt.Sprintf("ppid %d, %d octets", ppid, len(msg))
}
