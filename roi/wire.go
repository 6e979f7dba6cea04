package roi

import (
	"encoding/binary"
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
)

// A Kind says what a message is. Those of undecorated messages are their Tp.
type Kind uint8

const (
	Data         Kind = 0  // decorated: it is placed by STag and offset
	ReadRequest  Kind = 1  // section 5
	Send         Kind = 2  // section 6
	CreditReturn Kind = 3  // section 7
	Failure      Kind = 15 // the cause for which the sender ends the stream: docs/decisions.md#W4
)

func (k Kind) String() string {
	switch k {
	case Data:
		return "data"
	case ReadRequest:
		return "Read Request"
	case Send:
		return "Send"
	case CreditReturn:
		return "Credit Return"
	case Failure:
		return "Failure"
	}
	return fmt.Sprintf("message with Tp=%d", uint8(k))
}

// What fits.
const (
	ClientBits = 20                // of a Message Identifier
	MaxClient  = 1<<ClientBits - 1 // what a client can say in them
	MaxSend    = 1<<31 - 1         // octets of a Send: section 6
	maxReturn  = 255               // credits in one message
)

// A Message is a DDPP message without its data. Which fields mean something Kind says.
type Message struct {
	Kind    Kind
	Credits uint8 // for Sends and notifying Writes; not of Failure

	// Of Data. Notify has DDPP tell the peer of the message; the rest is its Message
	// Identifier: Response (R) parts a Read Response from a Write, Final (F) ends a group,
	// Notifying (N) ends a notifying Write, Client is the client's part.
	Notify, Response, Final, Notifying bool // Final also of Send
	Client                             uint32

	STag   iwarp.STag // Data: where it goes to; ReadRequest: the source
	Offset uint64     // with STag

	Sink       iwarp.STag // ReadRequest
	SinkOffset uint64
	Size       uint32

	Number     uint32 // Send: which one
	SendOffset uint32 // Send: where in it

	Cause iwarp.TermCode // Failure
}

// The header of DDPP as it is here (docs/decisions.md#W1): octet 0 has T(1) Notify(1) 0(4)
// version(2), octet 1 is zero. Decorated messages go on with Message Identifier(4) STag(4)
// offset(8).
const (
	tagged    = 0x80
	notify    = 0x40
	version   = 2
	dataLen   = 18
	headerLen = 2 // of an undecorated message

	readRequestLen  = 32
	sendLen         = 12
	creditReturnLen = 4
	failureLen      = 4
)

// The Message Identifier, from its first bit on: R F N Credits(8) client(20) 0.
const (
	idResponse  = 1 << 31
	idFinal     = 1 << 30
	idNotifying = 1 << 29
	idCredits   = 21 // shift
	idClient    = 1
)

const sendFinal = 0x08 // in the first octet of a Send

func flag(on bool, bit uint32) uint32 {
	if on {
		return bit
	}
	return 0
}

// Len is how many octets the headers of a message of kind k take.
func (k Kind) Len() int {
	switch k {
	case Data:
		return dataLen
	case ReadRequest:
		return headerLen + readRequestLen
	case Send:
		return headerLen + sendLen
	}
	return headerLen + creditReturnLen
}

// Append appends the headers of m. Reserved fields are zero.
func (m *Message) Append(b []byte) []byte {
	be := binary.BigEndian
	if m.Kind == Data {
		b = append(b, tagged|byte(flag(m.Notify, notify))|version, 0)
		b = be.AppendUint32(b, flag(m.Response, idResponse)|flag(m.Final, idFinal)|
			flag(m.Notifying, idNotifying)|uint32(m.Credits)<<idCredits|m.Client&MaxClient<<idClient)
		b = be.AppendUint32(b, uint32(m.STag))
		return be.AppendUint64(b, m.Offset)
	}
	b = append(b, version, 0, byte(m.Kind)<<4, m.Credits, 0, 0)
	switch at := len(b) - creditReturnLen; m.Kind {
	case ReadRequest:
		b = be.AppendUint32(b, uint32(m.STag))
		b = be.AppendUint64(b, m.Offset)
		b = be.AppendUint32(b, m.Size)
		b = be.AppendUint32(b, uint32(m.Sink))
		b = be.AppendUint64(b, m.SinkOffset)
	case Send:
		b[at] |= byte(flag(m.Final, sendFinal))
		b = be.AppendUint32(b, m.Number)
		b = be.AppendUint32(b, m.SendOffset)
	case Failure:
		b[at+1], b[at+2] = m.Cause.Layer<<4|m.Cause.Type&15, m.Cause.Code
	}
	return b
}

// Parse splits a segment into its headers and its data, which is seg's. Reserved fields are not
// looked at. An error is a *iwarp.LocalError.
func Parse(seg []byte) (m Message, data []byte, err error) {
	if len(seg) < headerLen+creditReturnLen {
		return m, nil, fault(iwarp.TermRemoteOperation, "a message of %d octets", len(seg))
	}
	be := binary.BigEndian
	switch isData := seg[0]&tagged != 0; {
	case seg[0]&3 != version && isData:
		return m, nil, fault(iwarp.TermTaggedVersion, "DDPP version %d", seg[0]&3)
	case seg[0]&3 != version:
		return m, nil, fault(iwarp.TermUntaggedVersion, "DDPP version %d", seg[0]&3)
	case isData && len(seg) < dataLen:
		return m, nil, fault(iwarp.TermRemoteOperation, "a decorated message of %d octets", len(seg))
	case isData:
		id := be.Uint32(seg[2:])
		return Message{
			Notify: seg[0]&notify != 0, Response: id&idResponse != 0, Final: id&idFinal != 0,
			Notifying: id&idNotifying != 0, Credits: uint8(id >> idCredits),
			Client: id >> idClient & MaxClient,
			STag:   iwarp.STag(be.Uint32(seg[6:])), Offset: be.Uint64(seg[10:]),
		}, seg[dataLen:], nil
	}
	b := seg[headerLen:]
	m = Message{Kind: Kind(b[0] >> 4), Credits: b[1]}
	switch m.Kind {
	case ReadRequest, Send, CreditReturn, Failure:
	default:
		return m, nil, fault(iwarp.TermUnexpectedOpcode, "a %v", m.Kind)
	}
	if n := len(seg); n < m.Kind.Len() || m.Kind != Send && n > m.Kind.Len() {
		return m, nil, fault(iwarp.TermRemoteOperation, "a %v of %d octets", m.Kind, n-headerLen)
	}
	switch m.Kind {
	case ReadRequest:
		m.STag, m.Offset = iwarp.STag(be.Uint32(b[4:])), be.Uint64(b[8:])
		m.Size = be.Uint32(b[16:])
		m.Sink, m.SinkOffset = iwarp.STag(be.Uint32(b[20:])), be.Uint64(b[24:])
	case Send:
		m.Final = b[0]&sendFinal != 0
		m.Number, m.SendOffset = be.Uint32(b[4:]), be.Uint32(b[8:])
		data = b[sendLen:]
	case Failure:
		m.Credits, m.Cause = 0, iwarp.TermCode{Layer: b[1] >> 4, Type: b[1] & 15, Code: b[2]}
	}
	return m, data, nil
}

func fault(c iwarp.TermCode, format string, args ...any) *iwarp.LocalError {
	return &iwarp.LocalError{Cause: c, Err: fmt.Errorf(format, args...)}
}
