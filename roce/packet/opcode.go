package packet

import "fmt"

// An Opcode is the first octet of a BTH: a Transport in the upper three bits, an operation in the
// others.
type Opcode uint8

// A Transport is what serves the QP that a packet is for.
type Transport uint8

// The transports. XRC and RD, which there are no opcodes for here, are not carried.
const (
	RC Transport = iota << 5
	UC
	RD
	UD
	CN // congestion notification, which is not for a transport
)

// The operations, as an Opcode of RC; UC's and UD's are these with the Transport added.
const (
	SendFirst Opcode = iota
	SendMiddle
	SendLast
	SendLastImm
	SendOnly
	SendOnlyImm
	WriteFirst
	WriteMiddle
	WriteLast
	WriteLastImm
	WriteOnly
	WriteOnlyImm
	ReadRequest
	ReadResponseFirst
	ReadResponseMiddle
	ReadResponseLast
	ReadResponseOnly
	Acknowledge
	AtomicAcknowledge
	CompareSwap
	FetchAdd
	_ // RESYNC, of RD
	SendLastInv
	SendOnlyInv
)

// CNP is a congestion notification packet: 16 octets that mean nothing, and BECN set.
const CNP = Opcode(CN) | 1

const operations = 0x1f

// Transport is op's upper three bits.
func (op Opcode) Transport() Transport { return Transport(op) &^ operations }

// Operation is op as an Opcode of RC.
func (op Opcode) Operation() Opcode { return op & operations }

// Of is op, an operation, as an Opcode of t. Whether there is one Known says.
func (op Opcode) Of(t Transport) Opcode { return op.Operation() | Opcode(t) }

// A shape says which headers an operation has behind the BTH, and what else it may have.
type shape uint16

const (
	hasRETH shape = 1 << iota
	hasAtomic
	hasAETH
	hasAtomicAck
	hasImm
	hasIETH
	hasDETH
	hasPayload
	last // the end of its message
	onUC
	onUD
	known
)

var shapes = [operations + 1]shape{
	SendFirst:          hasPayload | onUC,
	SendMiddle:         hasPayload | onUC,
	SendLast:           hasPayload | last | onUC,
	SendLastImm:        hasPayload | hasImm | last | onUC,
	SendOnly:           hasPayload | last | onUC | onUD,
	SendOnlyImm:        hasPayload | hasImm | last | onUC | onUD,
	WriteFirst:         hasRETH | hasPayload | onUC,
	WriteMiddle:        hasPayload | onUC,
	WriteLast:          hasPayload | last | onUC,
	WriteLastImm:       hasPayload | hasImm | last | onUC,
	WriteOnly:          hasRETH | hasPayload | last | onUC,
	WriteOnlyImm:       hasRETH | hasPayload | hasImm | last | onUC,
	ReadRequest:        hasRETH | last,
	ReadResponseFirst:  hasAETH | hasPayload,
	ReadResponseMiddle: hasPayload,
	ReadResponseLast:   hasAETH | hasPayload | last,
	ReadResponseOnly:   hasAETH | hasPayload | last,
	Acknowledge:        hasAETH | last,
	AtomicAcknowledge:  hasAETH | hasAtomicAck | last,
	CompareSwap:        hasAtomic | last,
	FetchAdd:           hasAtomic | last,
	SendLastInv:        hasPayload | hasIETH | last,
	SendOnlyInv:        hasPayload | hasIETH | last,
}

// An entry is what the table below has of an Opcode.
type entry struct {
	shape  shape
	header uint8 // octets
}

var table = makeTable()

func makeTable() (t [256]entry) {
	for op := range t {
		s := shapeOf(Opcode(op))
		if s == 0 {
			continue
		}
		n := BTHLen
		for _, e := range extensions {
			if s&e.has != 0 {
				n += e.len
			}
		}
		t[op] = entry{shape: s, header: uint8(n)}
	}
	return t
}

func shapeOf(op Opcode) shape {
	s := shapes[op.Operation()]
	switch t := op.Transport(); {
	case op == CNP:
		return known | hasPayload | last
	case s == 0:
		return 0
	case t == RC, t == UC && s&onUC != 0:
		return known | s
	case t == UD && s&onUD != 0:
		return known | s | hasDETH
	}
	return 0
}

func (op Opcode) shape() shape { return table[op].shape }

// Known reports whether op is one that the transports here have.
func (op Opcode) Known() bool { return op.shape() != 0 }

// IsResponse reports whether packets of op go from a responder to a requester.
func (op Opcode) IsResponse() bool {
	return op.Transport() == RC && op >= ReadResponseFirst && op <= AtomicAcknowledge
}

// Ends reports whether op is the only or the last packet of a message, a request or an answer.
func (op Opcode) Ends() bool { return op.shape()&last != 0 }

// HasPayload reports whether packets of op may carry a payload.
func (op Opcode) HasPayload() bool { return op.shape()&hasPayload != 0 }

// HeaderLen is how many octets of headers a packet of op has, the BTH's among them; 0 if op is not
// Known.
func (op Opcode) HeaderLen() int { return int(table[op].header) }

// The extension headers, in their order in a packet: no Opcode has all.
var extensions = [...]struct {
	has shape
	len int
}{
	{hasDETH, DETHLen}, {hasRETH, RETHLen}, {hasAtomic, AtomicETHLen}, {hasAETH, AETHLen},
	{hasAtomicAck, AtomicAckETHLen}, {hasImm, ImmDtLen}, {hasIETH, IETHLen},
}

var operationNames = [operations + 1]string{
	SendFirst: "SEND First", SendMiddle: "SEND Middle", SendLast: "SEND Last",
	SendLastImm: "SEND Last with Immediate", SendOnly: "SEND Only",
	SendOnlyImm: "SEND Only with Immediate", WriteFirst: "RDMA WRITE First",
	WriteMiddle: "RDMA WRITE Middle", WriteLast: "RDMA WRITE Last",
	WriteLastImm: "RDMA WRITE Last with Immediate", WriteOnly: "RDMA WRITE Only",
	WriteOnlyImm: "RDMA WRITE Only with Immediate", ReadRequest: "RDMA READ Request",
	ReadResponseFirst: "RDMA READ Response First", ReadResponseMiddle: "RDMA READ Response Middle",
	ReadResponseLast: "RDMA READ Response Last", ReadResponseOnly: "RDMA READ Response Only",
	Acknowledge: "Acknowledge", AtomicAcknowledge: "ATOMIC Acknowledge",
	CompareSwap: "Compare & Swap", FetchAdd: "Fetch & Add",
	SendLastInv: "SEND Last with Invalidate", SendOnlyInv: "SEND Only with Invalidate",
}

var transportNames = map[Transport]string{RC: "RC", UC: "UC", UD: "UD"}

// String is op as the specification writes it.
func (op Opcode) String() string {
	switch {
	case op == CNP:
		return "CNP"
	case !op.Known():
		return fmt.Sprintf("opcode %#02x", uint8(op))
	}
	return transportNames[op.Transport()] + " " + operationNames[op.Operation()]
}
