package sctpddp

import (
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
)

// An Association is an established SCTP association, as this layer uses it. It is called by the
// owners of a Mux and of its Sessions, and may use a lock of its own.
type Association interface {
	// Send takes one user message of src.Len() octets, to be sent unordered with the PPID. It reads
	// src during the call; an error of src means that nothing was taken. The messages of an
	// association are numbered from 1 in the order of Send. 0 and nil: there is no room now.
	Send(stream uint16, ppid uint32, src iwarp.Source) (id uint64, err error)
	// Drop gives up the messages of a stream that Send has taken and of which nothing is on its way
	// yet, and says how many: the last ones. Their numbers are not acknowledged by themselves.
	Drop(stream uint16) int
	// Acked says that the messages up to this number are acknowledged, with all before them.
	Acked() uint64
	// MaxPayload is the length of the longest user message that goes into one packet on each
	// path, with room for what SCTP may want to bundle.
	MaxPayload() int
	// Streams is what was agreed on.
	Streams() (out, in int)
	// PeerAdaptation is the indication that came with the peer's INIT or INIT ACK.
	PeerAdaptation() (code uint32, present bool)
	// Shutdown ends the association when all that was sent has arrived.
	Shutdown()
}

// A Message is a user message that has come in, in the order of arrival.
type Message struct {
	Stream    uint16
	PPID      uint32
	Unordered bool
	// Missing is how many TSNs below the highest one received have not come.
	Missing int
	// Data is the whole message. It is good for the call only.
	Data []byte
}

// IndicationDDP is the adaptation indication of this layer (RFC 5043, section 5.1).
const IndicationDDP = 1

// CheckIndication says whether DDP may be used with a peer that has shown this indication. "NONE:
// RDMA and DDP procedures MUST NOT be performed upon this association": RFC 5043, section 11.1.
func CheckIndication(code uint32, present bool) error {
	switch {
	case !present:
		return fmt.Errorf("%w: it showed no adaptation indication", ErrNoDDP)
	case code != IndicationDDP:
		return fmt.Errorf("%w: it showed adaptation indication %#x", ErrNoDDP, code)
	}
	return nil
}

// ErrNoDDP: the peer does not speak DDP on this association.
var ErrNoDDP = errors.New("sctpddp: the peer does not use SCTP for DDP; is the other end an RDMA " +
	"program?")

// minMULPDU lets a control message with all its private data through, whatever the path.
// RFC 5043, section 9, and docs/decisions.md#D2.
const minMULPDU = 516

// MULPDU is the length of the longest segment for an association that takes user messages of that
// length in one packet.
func MULPDU(maxPayload int) int { return min(max(maxPayload-ssnLen, minMULPDU), iwarp.MaxMULPDU) }
