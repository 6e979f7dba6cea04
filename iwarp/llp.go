package iwarp

import (
	"io"
	"net/netip"
)

// An STag names a buffer of the RNIC that made it (RFC 5041, section 3.1).
type STag uint32

// A Stream is a TCP connection as MPA uses it: octets in order, never blocking. It belongs to
// whoever runs the QP; only the function given to SetNotify is called from elsewhere.
type Stream interface {
	// ReadInto passes received octets to w, in order, until none is left or w takes fewer than
	// it was given (with any error), and returns how many w took. The slices are the
	// transport's own memory, good for the call of w only, and w may be called with the
	// transport's lock held: it must not block nor call the Stream. 0 and nil: nothing is
	// there now. io.EOF: the peer has closed and everything has been taken. Another error:
	// the connection is lost.
	ReadInto(w io.Writer) (n int, err error)
	// WriteFrom takes octets from src while both src and the send buffer allow, and returns
	// how many the transport now owns. 0 and nil: no room now. src is read without a lock held.
	WriteFrom(src Source) (n int, err error)
	// SetNotify sets the function that is called whenever more can be read or written or the
	// connection has changed. It may be called with the transport's lock held, from any
	// goroutine: it may only mark and wake.
	SetNotify(f func())
	// EMSS is how many octets TCP puts into one segment at present (RFC 5044, section 4.1).
	EMSS() int
	// CloseWrite sends a FIN behind what was written.
	CloseWrite() error
	// Close gives the connection back: a FIN if there was none, a RST if octets were unread or
	// still come. What was written is delivered if the peer is there.
	Close() error
	// Abort resets the connection.
	Abort()
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// A Source is what WriteFrom takes octets from. Len is how many Read will give in all; Read gives
// fewer only with an error, and then the transport takes none of this call's octets. It is an
// alias, so that a transport can offer WriteFrom without importing this package.
type Source = interface {
	io.Reader
	Len() int
}

// A Payload is the content of an outbound message.
type Payload interface {
	// CopyOut fills p with the octets of the message from offset off on. It checks each time
	// that the memory may still be read. An error is a *LocalError or is made one with
	// TermLocalCatastrophic; nothing of p goes out then.
	CopyOut(p []byte, off uint32) error
}

// A Host is the RNIC above an Endpoint. Its methods are called from inside Endpoint's, by whoever
// called those; a slice given is good for the call only. An error that is a *LocalError is sent to
// the peer as a Terminate with its Cause; another error as TermDDPCatastrophic if it is about an
// inbound message (docs/decisions.md#terminate-causes), and as TermLocalCatastrophic from
// ReadSource and Atomic.
type Host interface {
	// PlaceWrite places a segment of a peer's RDMA Write, after the checks of RFC 5041,
	// section 7.1. last is the L bit. chunk may be empty: then nothing is checked.
	PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error

	// BeginReceive takes the next buffer of the receive queue for a Send or for Immediate Data
	// and says how long it is; ok is false if none is posted. It is called once per message.
	BeginReceive() (size uint32, ok bool)
	// PlaceReceive places octets of that Send into the buffer.
	PlaceReceive(off uint32, chunk []byte) error
	// EndReceive delivers the Send or the Immediate Data.
	EndReceive(r Received) error

	// PlaceRead places octets of the answer to the oldest outstanding Read.
	PlaceRead(off uint32, chunk []byte) error
	// EndRead delivers the answer to the oldest outstanding Read, the one posted with token.
	EndRead(token uint64) error

	// ReadSource checks what a peer's Read Request asks for (RFC 5040, section 7.2) and
	// returns its content. n may be 0: then nothing is checked. The Endpoint calls
	// EndReadSource when the last octet has gone out. ErrUnanswered passes the request over.
	ReadSource(stag STag, to uint64, n uint32) (Payload, error)
	EndReadSource(Payload)

	// Atomic carries a peer's Atomic Request out and returns what the target held before. All
	// that the peer sent before has been delivered. It makes the checks of RFC 5040, section
	// 7.2, then that of the alignment (TermMisaligned), and is atomic to all others of the RNIC.
	// ErrUnanswered passes the request over.
	Atomic(a Atomic) (old uint64, err error)
	// EndAtomic delivers the response to the atomic that was posted with token; it is the oldest
	// one outstanding, Reads included.
	EndAtomic(token uint64, old uint64) error

	// Sent says that the transport owns every octet of the message that was posted with token: a
	// Send, Write, Read Request, Atomic Request or Immediate Data.
	Sent(token uint64)
}

// Received describes a delivered Send, or Immediate Data, which leaves the buffer as it is.
type Received struct {
	Length     uint32 // 0 for Immediate Data
	Solicited  bool
	Invalidate bool // the Send carried STag to invalidate
	STag       STag
	Immediate  bool   // Data is there
	Data       uint64 // the 8 octets of Immediate Data, as a big-endian number
}
