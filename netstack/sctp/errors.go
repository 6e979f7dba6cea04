package sctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A CauseCode says in an ERROR or ABORT chunk what is wrong. RFC 9260, section 3.3.10.
type CauseCode uint16

const (
	CauseInvalidStream         CauseCode = 1
	CauseMissingParameter      CauseCode = 2
	CauseStaleCookie           CauseCode = 3
	CauseOutOfResource         CauseCode = 4
	CauseUnresolvableAddress   CauseCode = 5
	CauseUnrecognizedChunk     CauseCode = 6
	CauseInvalidParameter      CauseCode = 7
	CauseUnrecognizedParameter CauseCode = 8
	CauseNoUserData            CauseCode = 9
	CauseShuttingDown          CauseCode = 10
	CauseRestartNewAddresses   CauseCode = 11
	CauseUserAbort             CauseCode = 12
	CauseProtocolViolation     CauseCode = 13
)

var causeNames = [...]string{
	CauseInvalidStream:         "invalid stream identifier",
	CauseMissingParameter:      "missing mandatory parameter",
	CauseStaleCookie:           "stale cookie",
	CauseOutOfResource:         "out of resource",
	CauseUnresolvableAddress:   "unresolvable address",
	CauseUnrecognizedChunk:     "unrecognized chunk type",
	CauseInvalidParameter:      "invalid mandatory parameter",
	CauseUnrecognizedParameter: "unrecognized parameters",
	CauseNoUserData:            "no user data",
	CauseShuttingDown:          "cookie received while shutting down",
	CauseRestartNewAddresses:   "restart of an association with new addresses",
	CauseUserAbort:             "user-initiated abort",
	CauseProtocolViolation:     "protocol violation",
}

func (c CauseCode) String() string {
	if c > 0 && int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint16(c))
}

// A Cause is an error cause and what comes with it.
type Cause struct {
	Code CauseCode
	Info []byte
}

func (c Cause) String() string {
	switch {
	case len(c.Info) == 0:
		return c.Code.String()
	case c.Code == CauseUserAbort || c.Code == CauseProtocolViolation:
		return fmt.Sprintf("%v: %q", c.Code, c.Info)
	}
	return fmt.Sprintf("%v: %x", c.Code, c.Info)
}

// parseCauses copies the causes of an ERROR or ABORT chunk out; ok is false if one is cut.
func parseCauses(b []byte) (causes []Cause, ok bool) {
	for len(b) > 0 {
		var p param
		if p, b, ok = nextParam(b); !ok {
			return causes, false
		}
		causes = append(causes, Cause{CauseCode(p.typ()), append([]byte(nil), p.value()...)})
	}
	return causes, true
}

// appendCause32 appends a cause whose information is one word.
func appendCause32(b []byte, code CauseCode, v uint32) []byte {
	return appendParam32(b, uint16(code), v)
}

// appendMissing appends the cause that one mandatory parameter is missing.
func appendMissing(b []byte, typ uint16) []byte {
	b = beginParam(b, uint16(CauseMissingParameter), 6)
	b = binary.BigEndian.AppendUint32(b, 1)
	return binary.BigEndian.AppendUint16(b, typ)
}

// Why a call was refused.
var (
	ErrNoRoom  = errors.New("sctp: the send buffer is full; wait for EventAcked")
	ErrEmpty   = errors.New("sctp: a message has at least one octet")
	ErrTooLong = errors.New("sctp: the message is longer than the send buffer, or than one " +
		"chunk where fragmentation is off")
	ErrStream = errors.New("sctp: no such outbound stream; the peer may allow fewer than were " +
		"asked for")
	ErrShutdown  = errors.New("sctp: the association is shutting down and takes no new message")
	ErrClosed    = errors.New("sctp: the association is gone")
	ErrPortInUse = errors.New("sctp: the port, or the association with that peer, is in use")
	ErrAddress   = errors.New("sctp: not a unicast address and port of a family that the local " +
		"addresses have")
	ErrTooMany      = errors.New("sctp: as many associations as are allowed")
	ErrNotConnected = errors.New("sctp: the association is not established")
)

// Why an association has ended, beside *PeerAbort and *LocalAbort.
var (
	ErrTimeout     = errors.New("sctp: the peer does not answer")
	ErrUnreachable = errors.New("sctp: the peer's host has no SCTP, its network said")
	ErrRestarted   = errors.New("sctp: the peer has restarted and knows nothing of the association")
	ErrStale       = errors.New("sctp: the peer finds its own cookie too old")
)

// A PeerAbort is the ABORT that the peer sent.
type PeerAbort struct{ Causes []Cause }

func (e *PeerAbort) Error() string {
	if len(e.Causes) == 0 {
		return "sctp: aborted by the peer"
	}
	s := make([]string, len(e.Causes))
	for i, c := range e.Causes {
		s[i] = c.String()
	}
	return "sctp: aborted by the peer: " + strings.Join(s, "; ")
}

// Refused says whether the ABORT has the look of a port on which nobody listens: no cause.
func (e *PeerAbort) Refused() bool { return len(e.Causes) == 0 }

// A LocalAbort is the reason for which an association was aborted here. Cause is what the peer was
// told.
type LocalAbort struct {
	Cause CauseCode
	Err   error
}

func (e *LocalAbort) Error() string { return fmt.Sprintf("sctp: aborted: %v: %v", e.Cause, e.Err) }
func (e *LocalAbort) Unwrap() error { return e.Err }

// A PeerError is an ERROR chunk that the peer sent. The association lives.
type PeerError struct{ Causes []Cause }

func (e *PeerError) Error() string {
	s := make([]string, len(e.Causes))
	for i, c := range e.Causes {
		s[i] = c.String()
	}
	return "sctp: the peer reports: " + strings.Join(s, "; ")
}
