package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// An Opcode is the kind of an RDMA message (RFC 5040, section 4.1; RFC 7306, section 4.1).
type Opcode uint8

const (
	OpWrite            Opcode = 0
	OpReadRequest      Opcode = 1
	OpReadResponse     Opcode = 2
	OpSend             Opcode = 3
	OpSendInvalidate   Opcode = 4
	OpSendSE           Opcode = 5
	OpSendSEInvalidate Opcode = 6
	OpTerminate        Opcode = 7

	// Those of RFC 7306.
	OpImmediate      Opcode = 8
	OpImmediateSE    Opcode = 9
	OpAtomicRequest  Opcode = 10
	OpAtomicResponse Opcode = 11

	opBase  = 8  // without extensions
	opKnown = 12 // with them
)

// The queues of untagged messages (RFC 5040, section 3.1; RFC 7306, section 10).
const (
	qnSend           = 0 // Immediate Data, too
	qnRead           = 1 // Atomic Requests, too
	qnTerminate      = 2
	qnAtomicResponse = 3

	qnBase  = 3 // without extensions
	qnKnown = 4 // with them
)

type opcodeInfo struct {
	name   string
	tagged bool
	qn     uint32
	send   bool // one of the four kinds of Send
	inv    bool // carries an STag to invalidate
	se     bool // asks for a solicited event
	// header is the length of the RDMAP header of messages that consist of one, but for Terminate.
	header int
}

// opcodes has an entry for every value of the 4-bit field; one without a name is reserved.
// RFC 5040, figure 4, and RFC 7306, figure 3.
var opcodes = [16]opcodeInfo{
	OpWrite:          {name: "RDMA Write", tagged: true},
	OpReadRequest:    {name: "RDMA Read Request", qn: qnRead, header: ReadRequestLen},
	OpReadResponse:   {name: "RDMA Read Response", tagged: true},
	OpSend:           {name: "Send", qn: qnSend, send: true},
	OpSendInvalidate: {name: "Send with Invalidate", qn: qnSend, send: true, inv: true},
	OpSendSE:         {name: "Send with SE", qn: qnSend, send: true, se: true},
	OpSendSEInvalidate: {name: "Send with SE and Invalidate", qn: qnSend, send: true, inv: true,
		se: true},
	OpTerminate:      {name: "Terminate", qn: qnTerminate},
	OpImmediate:      {name: "Immediate Data", qn: qnSend, header: immediateLen},
	OpImmediateSE:    {name: "Immediate Data with SE", qn: qnSend, se: true, header: immediateLen},
	OpAtomicRequest:  {name: "Atomic Request", qn: qnRead, header: atomicRequestLen},
	OpAtomicResponse: {name: "Atomic Response", qn: qnAtomicResponse, header: atomicResponseLen},
}

func (o Opcode) String() string {
	if o < opKnown {
		return opcodes[o].name
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// IsSend says whether o is one of the four kinds of Send.
func (o Opcode) IsSend() bool { return o < opKnown && opcodes[o].send }

// Invalidates says whether messages of kind o name an STag to invalidate.
func (o Opcode) Invalidates() bool { return o < opKnown && opcodes[o].inv }

// Solicited says whether messages of kind o ask for a solicited event.
func (o Opcode) Solicited() bool { return o < opKnown && opcodes[o].se }

// An MSN numbers the messages of one untagged queue. It wraps: use Before, never <.
type MSN uint32

// Before says whether m comes before n.
func (m MSN) Before(n MSN) bool { return int32(m-n) < 0 }

// An RDMAPControl is the octet behind the DDP control octet: RV(2) Rsv(2) Opcode(4).
// RFC 5040, section 4.1.
type RDMAPControl uint8

const rdmapVersion = 1

// Version is RV; 1 is the IETF's.
func (c RDMAPControl) Version() uint8 { return uint8(c) >> 6 }

// Opcode is the kind of message, known or not.
func (c RDMAPControl) Opcode() Opcode { return Opcode(c & 0x0f) }

func rdmapControl(op Opcode) byte { return rdmapVersion<<6 | byte(op) }

// A ReadRequest views the RDMAP header of an RDMA Read Request:
// SinkSTag(4) SinkTO(8) RDMARDSZ(4) SrcSTag(4) SrcTO(8). RFC 5040, section 4.4.
type ReadRequest []byte

// ReadRequestLen is the length of that header.
const ReadRequestLen = 28

var errReadRequest = errors.New("iwarp: a Read Request has 28 octets")

// ParseReadRequest checks the length of p.
func ParseReadRequest(p []byte) (ReadRequest, error) {
	if len(p) != ReadRequestLen {
		return nil, errReadRequest
	}
	return ReadRequest(p), nil
}

func (r ReadRequest) SinkSTag() STag { return STag(binary.BigEndian.Uint32(r)) }
func (r ReadRequest) SinkTO() uint64 { return binary.BigEndian.Uint64(r[4:]) }
func (r ReadRequest) Size() uint32   { return binary.BigEndian.Uint32(r[12:]) }
func (r ReadRequest) SrcSTag() STag  { return STag(binary.BigEndian.Uint32(r[16:])) }
func (r ReadRequest) SrcTO() uint64  { return binary.BigEndian.Uint64(r[20:]) }

func putReadRequest(b []byte, sink STag, sinkTO uint64, size uint32, src STag, srcTO uint64) {
	_ = b[ReadRequestLen-1]
	binary.BigEndian.PutUint32(b, uint32(sink))
	binary.BigEndian.PutUint64(b[4:], sinkTO)
	binary.BigEndian.PutUint32(b[12:], size)
	binary.BigEndian.PutUint32(b[16:], uint32(src))
	binary.BigEndian.PutUint64(b[20:], srcTO)
}

// AppendReadRequest appends the header of a request to read size octets at (src, srcTO) into (sink,
// sinkTO).
func AppendReadRequest(b []byte, sink STag, sinkTO uint64, size uint32, src STag,
	srcTO uint64) []byte {
	n := len(b)
	b = append(b, make([]byte, ReadRequestLen)...)
	putReadRequest(b[n:], sink, sinkTO, size, src, srcTO)
	return b
}
