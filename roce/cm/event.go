package cm

import (
	"net/netip"

	"github.com/vrnic/vrnic/roce/mad"
)

// An EventKind says what has happened.
type EventKind uint8

const (
	// EventRequest: a peer asks Listener for a connection, which Conn is to be. Conn.Accept or
	// Conn.Reject answers.
	EventRequest EventKind = iota
	// EventReplied: the peer has accepted. The owner readies its QP by Conn.Attr, and then calls
	// Conn.Ready, or Conn.Close if it cannot.
	EventReplied
	// EventEstablished: of the end that has accepted, the peer is ready; of the other, Conn.Ready was
	// called.
	EventEstablished
	// EventRejected: the peer does not want the connection, or no longer, for Reason.
	EventRejected
	// EventUnreachable: the peer does not answer.
	EventUnreachable
	// EventDisconnected: the connection is over: the peer says so, or has heard it, or with TimedOut
	// does not answer.
	EventDisconnected
	// EventTimeWaitOver: no packet of the connection is on its way any more, and its QP can be used
	// again.
	EventTimeWaitOver
	// EventAsked: a peer asks Listener for the QP of its service. Query.Answer answers.
	EventAsked
	// EventFound: the peer has answered Lookup with Status.
	EventFound
)

// An Event tells the owner of a Conn, a Listener or a Lookup what has happened.
type Event struct {
	Kind     EventKind
	Conn     *Conn
	Listener *Listener
	Query    *Query
	Lookup   *Lookup

	// Of a request: where it comes from, and which address it has come to.
	Source netip.AddrPort
	Dest   netip.Addr
	// Reads and atomics at once, as the receiver of the event has them: those that it answers, and
	// those that it may have under way.
	ResponderResources, InitiatorDepth uint8
	RNRRetries, Retries                uint8
	FlowControl, SRQ                   bool
	QPN                                uint32 // the peer's
	QKey                               uint32 // of EventFound

	Reason   mad.Reason // of EventRejected
	Status   uint8      // of EventFound: mad.SIDRValid, ...
	TimedOut bool
	// PrivateData are as long as the message has room for, whatever the peer has given: the rest is
	// 0. nil: there is no message.
	PrivateData []byte
}

// A Packet is a MAD to be sent.
type Packet struct {
	From, To     netip.Addr
	TrafficClass uint8
	// Answers says that it is of what a peer has begun, who may be somebody else than it says.
	Answers bool
	// Of is the Number of the Conn, Lookup or Query that it is about; 0: of none.
	Of  uint64
	MAD []byte
}

// Stats count messages, each by its attribute less mad.AttrREQ.
type Stats struct {
	Received, Duplicates [Kinds]uint64
	Sent, Retries        [Kinds]uint64
	Refused              uint64 // requests for which there was no room
}

// Kinds is how many kinds of messages there are.
const Kinds = int(mad.AttrSIDRREP-mad.AttrREQ) + 1
