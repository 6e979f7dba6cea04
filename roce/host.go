package roce

import (
	"fmt"

	"github.com/vrnic/vrnic/roce/packet"
)

// An Op is what a Request asks for.
type Op uint8

// The operations of a send queue.
const (
	Send Op = iota
	SendImm
	SendInv
	Write
	WriteImm
	Read
	CompareSwap
	FetchAdd
)

// answered reports whether the responder answers op with more than an ACK.
func (op Op) answered() bool { return op >= Read }

// takesReceive reports whether op takes a receive at the responder.
func (op Op) takesReceive() bool { return op <= SendInv || op == WriteImm }

// A Request is one work request of a send queue.
type Request struct {
	Token     uint64 // the owner's, told back by Host
	Op        Op
	Solicited bool
	Fence     bool    // wait for all Reads and atomics before it
	Length    uint32  // octets of Data, or to be read; not of an atomic
	Data      Payload // of a Send or a Write; nil if Length is 0
	Addr      uint64  // at the responder, of all but Sends; of an atomic a multiple of 8
	RKey      uint32  // the responder's, of all but Sends; of SendInv what is invalidated
	Imm       [packet.ImmDtLen]byte
	Swap      uint64 // what is stored, or added
	Compare   uint64
}

// A Payload is the octets of a message. It stays as it is until Host.Done, or until the owner has
// ended the connection: packets are made anew when they are lost.
type Payload interface {
	// CopyOut fills p with the octets from off on. They may change between two calls. An error ends
	// the connection: the memory is gone.
	CopyOut(p []byte, off uint32) error
}

// Received says what a receive was completed with.
type Received struct {
	Length     uint32 // of a Write with Immediate the Write's
	Write      bool   // it was a Write with Immediate: the receive's memory was not touched
	Solicited  bool
	Immediate  bool
	Imm        [packet.ImmDtLen]byte
	Invalidate bool
	RKey       uint32     // what the peer invalidates
	Source     packet.QPN // of a datagram: who has sent it
}

// A Host is what an engine does to the memory and the queues of its queue pair. It is called from
// inside the engine's methods and must not call back, but for Post from Done.
type Host interface {
	// Done says that the oldest request that was not done is: in the order in which they were posted.
	Done(token uint64)
	// PlaceRead puts octets of a Read's answer into its memory, in order.
	PlaceRead(token uint64, off uint32, chunk []byte) error
	// PlaceOriginal puts what an atomic found into its memory, as a number of the host.
	PlaceOriginal(token uint64, original uint64) error

	// BeginReceive takes a receive for a message; false: there is none. size is what fits.
	BeginReceive() (size uint32, ok bool)
	// PlaceReceive puts octets of a message into the receive, in order and within its size; last: its
	// end.
	PlaceReceive(off uint32, chunk []byte, last bool) error
	// EndReceive completes the receive; an error: what the peer wanted invalidated cannot be, and the
	// receive was completed with that.
	EndReceive(Received) error
	// FailReceive completes the receive that was taken with an error: s is LocalLength,
	// LocalProtection or RemoteInvalid.
	FailReceive(s Status)
	// KeepReceive gives the receive back for the next message: the rest of this one was lost.
	KeepReceive()
	// Receives is how many receives are posted, for the peer's credits; ok is false where there is no
	// telling, as with an SRQ.
	Receives() (n uint32, ok bool)

	// BeginWrite finds the memory of a Write of n octets, which is not 0, and checks that the peer may
	// write all of them.
	BeginWrite(rkey uint32, addr uint64, n uint32) error
	// PlaceWrite writes octets of the Write that has begun, in order; last: its end.
	PlaceWrite(off uint32, chunk []byte, last bool) error
	// ReadSource finds n octets, which is not 0, that the peer reads; it may be called again for the
	// same. EndReadSource says that no more of them is asked for.
	ReadSource(rkey uint32, addr uint64, n uint32) (Payload, error)
	EndReadSource(Payload)
	// Atomic carries an atomic operation out and returns what was there before, as numbers of the
	// host.
	Atomic(Atomic) (original uint64, err error)
}

// An Atomic is a Compare & Swap or a Fetch & Add of the peer. Addr is a multiple of 8.
type Atomic struct {
	Op            Op
	RKey          uint32
	Addr          uint64
	Swap, Compare uint64 // Swap is what is added, too
}

// A NAK is an error of a Host that says with which NAK a request is refused.
type NAK packet.Syndrome

func (n NAK) Error() string { return fmt.Sprintf("%v was asked for", packet.Syndrome(n)) }

// refusing is a Host that has each request of the peer refused. A message that has begun ends as
// ever where nothing of it is to be placed any more.
type refusing struct {
	Host
	nak NAK
}

func (r refusing) PlaceReceive(uint32, []byte, bool) error { return r.nak }

func (r refusing) EndReceive(Received) error {
	r.FailReceive(RemoteInvalid)
	return r.nak
}

func (r refusing) BeginWrite(uint32, uint64, uint32) error            { return r.nak }
func (r refusing) ReadSource(uint32, uint64, uint32) (Payload, error) { return nil, r.nak }
func (r refusing) Atomic(Atomic) (uint64, error)                      { return 0, r.nak }

// Refuse has the next request of the peer refused with a NAK.
func (c *RC) Refuse(s packet.Syndrome) {
	r := refusing{c.rq.assembly.host, NAK(s)}
	c.host, c.rq.assembly.host = r, r
}
