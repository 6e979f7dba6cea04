package iwarp

import (
	"errors"
	"fmt"
)

// A TermCode is the cause in a Terminate message (RFC 5040, section 4.8). It is not an error.
type TermCode struct{ Layer, Type, Code uint8 }

// The layers of a TermCode.
const (
	LayerRDMAP = 0
	LayerDDP   = 1
	LayerLLP   = 2
)

// Causes of the RDMAP layer: RFC 5040, section 4.8, figure 9.
var (
	// TermLocalCatastrophic stands for all of 0/0: a local failure that no inbound message caused.
	TermLocalCatastrophic = TermCode{0, 0, 0xff}

	TermReadInvalidSTag         = TermCode{0, 1, 0x00}
	TermReadBounds              = TermCode{0, 1, 0x01}
	TermReadAccess              = TermCode{0, 1, 0x02}
	TermReadNotAssociated       = TermCode{0, 1, 0x03}
	TermReadTOWrap              = TermCode{0, 1, 0x04}
	TermInvalidateNotAssociated = TermCode{0, 1, 0x09}
	TermRemoteProtection        = TermCode{0, 1, 0xff}

	TermRDMAPVersion       = TermCode{0, 2, 0x05}
	TermUnexpectedOpcode   = TermCode{0, 2, 0x06}
	TermStreamCatastrophic = TermCode{0, 2, 0x07}
	TermMisaligned         = TermStreamCatastrophic // of an atomic's target: RFC 7306, section 8.2
	TermGlobalCatastrophic = TermCode{0, 2, 0x08}
	TermCannotInvalidate   = TermCode{0, 2, 0x09}
	TermRemoteOperation    = TermCode{0, 2, 0xff}
)

// Causes of the DDP layer: RFC 5041, section 7.2.
var (
	TermDDPCatastrophic = TermCode{1, 0, 0x00}

	TermInvalidSTag   = TermCode{1, 1, 0x00} // also: no right to write (docs/decisions.md#A1)
	TermBounds        = TermCode{1, 1, 0x01}
	TermNotAssociated = TermCode{1, 1, 0x02}
	TermTOWrap        = TermCode{1, 1, 0x03}
	TermTaggedVersion = TermCode{1, 1, 0x04}

	TermInvalidQN       = TermCode{1, 2, 0x01}
	TermNoBuffer        = TermCode{1, 2, 0x02}
	TermMSNRange        = TermCode{1, 2, 0x03}
	TermInvalidMO       = TermCode{1, 2, 0x04}
	TermMessageTooLong  = TermCode{1, 2, 0x05}
	TermUntaggedVersion = TermCode{1, 2, 0x06}
)

// Causes of MPA: RFC 5044, section 8, and RFC 6581, section 8.
var (
	TermClosed = TermCode{2, 0, 0x01}
	TermCRC    = TermCode{2, 0, 0x02}
	// framing lost; an FPDU too short for its header: docs/decisions.md#M8
	TermMarker          = TermCode{2, 0, 0x03}
	TermStartFrame      = TermCode{2, 0, 0x04} // never on the wire: docs/decisions.md#M2
	TermMPACatastrophic = TermCode{2, 0, 0x05}
	TermInsufficientIRD = TermCode{2, 0, 0x06}
	TermNoRTR           = TermCode{2, 0, 0x07}
)

// termText has every registered triple: RFC 6580, section 3, and RFC 6581, section 11.
var termText = map[TermCode]string{
	TermReadInvalidSTag:         "read: invalid STag",
	TermReadBounds:              "read: base or bounds violation",
	TermReadAccess:              "read: access rights violation",
	TermReadNotAssociated:       "read: STag not associated with the stream",
	TermReadTOWrap:              "read: TO wrap",
	TermInvalidateNotAssociated: "STag to invalidate not associated with the stream",
	TermRemoteProtection:        "unspecified remote protection error",
	TermRDMAPVersion:            "invalid RDMAP version",
	TermUnexpectedOpcode:        "unexpected opcode",
	TermStreamCatastrophic:      "catastrophic error, localized to the stream",
	TermGlobalCatastrophic:      "catastrophic error, global",
	TermCannotInvalidate:        "STag cannot be invalidated",
	TermRemoteOperation:         "unspecified remote operation error",
	TermDDPCatastrophic:         "local catastrophic error in DDP",
	TermInvalidSTag:             "invalid STag",
	TermBounds:                  "base or bounds violation",
	TermNotAssociated:           "STag not associated with the stream",
	TermTOWrap:                  "TO wrap",
	TermTaggedVersion:           "invalid DDP version, tagged",
	TermInvalidQN:               "invalid QN",
	TermNoBuffer:                "no receive buffer",
	TermMSNRange:                "MSN out of range",
	TermInvalidMO:               "invalid MO",
	TermMessageTooLong:          "message too long for its buffer",
	TermUntaggedVersion:         "invalid DDP version, untagged",
	TermClosed:                  "TCP connection closed or lost",
	TermCRC:                     "MPA CRC error",
	TermMarker:                  "MPA framing error",
	TermStartFrame:              "invalid MPA Request or Reply frame",
	TermMPACatastrophic:         "local catastrophic error in MPA",
	TermInsufficientIRD:         "insufficient IRD resources",
	TermNoRTR:                   "no matching RTR option",
}

// Registered says whether c has a meaning: a triple of the registries, or any code of a type that
// has no codes of its own.
func (c TermCode) Registered() bool {
	if _, ok := termText[c]; ok {
		return true
	}
	return c.Layer == LayerRDMAP && c.Type == 0
}

// Text is what c means, in words.
func (c TermCode) Text() string {
	if s, ok := termText[c]; ok {
		return s
	}
	switch {
	case c.Layer == LayerRDMAP && c.Type == 0:
		return "local catastrophic error"
	case c.Layer == LayerDDP && c.Type == 0:
		return "local catastrophic error in DDP"
	case c.Layer == LayerDDP && c.Type == 3, c.Layer == LayerLLP:
		// Some adapters send MPA's codes with type 3: docs/decisions.md#A27.
		if s, ok := termText[TermCode{LayerLLP, 0, c.Code}]; ok {
			return s
		}
		return "error of the LLP"
	case c.Layer == LayerRDMAP && c.Type == 1:
		return "remote protection error"
	case c.Layer == LayerRDMAP && c.Type == 2:
		return "remote operation error"
	}
	return "unknown cause"
}

// String shows the triple as layer/type/code, with its text.
func (c TermCode) String() string {
	return fmt.Sprintf("%d/%d/%02X %s", c.Layer, c.Type, c.Code, c.Text())
}

// copies says which headers of the message with opcode op go into a Terminate with cause c:
// RFC 5040, figure 10, as docs/decisions.md#A4, #A14, #A22 and #A23 read it.
func (c TermCode) copies(op Opcode) (ddp, rdmap bool) {
	if c.Layer == LayerLLP || c.Type == 0 || c.Layer == LayerDDP && c.Type == 3 {
		return false, false
	}
	return true, c.Layer == LayerRDMAP && c.Type == 1 && op == OpReadRequest
}

// A LocalError is a fault found here. Cause goes to the peer; Err is for logs and never sent.
type LocalError struct {
	Cause TermCode
	Err   error
}

func (e *LocalError) Error() string {
	if e.Err == nil {
		return "iwarp: " + e.Cause.String()
	}
	return fmt.Sprintf("iwarp: %v: %v", e.Cause, e.Err)
}

func (e *LocalError) Unwrap() error { return e.Err }

// A PeerError is the cause the peer sent us.
type PeerError struct {
	Cause TermCode
	// Swapped says that the fields were in siw's bit order.
	Swapped bool
}

func (e *PeerError) Error() string { return fmt.Sprintf("iwarp: peer terminated: %v", e.Cause) }

// A MessageError says which outbound message a LocalError is about.
type MessageError struct {
	Token uint64
	Op    Opcode
	Err   error
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("%v (token %#x): %v", e.Op, e.Token, e.Err)
}

func (e *MessageError) Unwrap() error { return e.Err }

// A RejectedError says that the Responder's program refused the connection. TCP is left open for
// the caller to close (RFC 5044, section 7.1.2 (3)).
type RejectedError struct {
	Revision    uint8
	Enhanced    bool   // IRD and ORD hold the Responder's wishes
	IRD, ORD    uint16 // NotNegotiated or a number
	PrivateData []byte
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("iwarp: connection rejected by the peer (%d octets of private data)",
		len(e.PrivateData))
}

// Errors that calls return.
var (
	ErrPrivateData = errors.New("iwarp: private data too long")
	ErrConfig      = errors.New("iwarp: invalid start-up configuration")
	ErrState       = errors.New("iwarp: call not possible in this state")

	// ErrNoReceive stops Endpoint.Write before a Send for which no buffer is posted.
	ErrNoReceive = errors.New("iwarp: no receive buffer is posted")
	// ErrUnanswered is a Host's for a Read Request or an atomic that nobody answers.
	ErrUnanswered = errors.New("iwarp: the request is passed over")
	// ErrQueueFull: Config.SendQueue messages are posted and not sent.
	ErrQueueFull = errors.New("iwarp: send queue is full")
	// ErrReadLimit: ORD Reads and atomics are posted and not answered (RFC 5040, section 6.1;
	// RFC 7306, section 5.2).
	ErrReadLimit = errors.New("iwarp: as many Reads and atomics are outstanding as ORD allows")
	// ErrEnded: the stream has failed, or a Terminate came or is to go out.
	ErrEnded = errors.New("iwarp: the stream has ended")
	// ErrOpcode: PostSend takes the four kinds of Send only.
	ErrOpcode = errors.New("iwarp: not a Send")
	// ErrAtomicOp: PostAtomic takes the operations of RFC 7306 only.
	ErrAtomicOp = errors.New("iwarp: no such atomic operation")
	// ErrExtensions: Config.Extensions is off.
	ErrExtensions = errors.New("iwarp: the programs have not agreed on the extensions of RFC 7306")
)

// localErrorf makes a LocalError.
func localErrorf(c TermCode, format string, args ...any) *LocalError {
	return &LocalError{Cause: c, Err: fmt.Errorf(format, args...)}
}
