package roce

import (
	"errors"

	"github.com/vrnic/vrnic/roce/packet"
)

// Access is what a peer may do to a queue pair's memory, beside what a region allows.
type Access uint8

// The rights.
const (
	RemoteWrite Access = 1 << iota
	RemoteRead
	RemoteAtomic
)

// Why a packet of a Send or a Write is refused.
var (
	errOrder      = errors.New("the packet does not follow from the one before")
	errLength     = errors.New("the packet has another length than its place in the message asks for")
	errTooLong    = errors.New("the message is longer than the receive")
	errRights     = errors.New("the queue pair does not allow that operation")
	errDMA        = errors.New("the octets do not add up to the length that the Write began with")
	errResources  = errors.New("more Reads and atomics than were agreed on")
	errMisaligned = errors.New("an atomic at an address that is no multiple of 8")
)

// A refusal is what becomes of a packet that is not as it should be.
type refusal struct {
	syndrome packet.Syndrome // what an RC tells the peer
	status   Status          // of the receive, if one was taken; Success: it is kept
	err      error
}

func refuse(s packet.Syndrome, err error) *refusal { return &refusal{syndrome: s, err: err} }

// errNoReceive is a refusal that is over once a receive is posted.
var errNoReceive = refuse(packet.RNR(0), errors.New("no receive is posted"))

// An assembly puts the Sends and Writes of a peer together: RC's and UC's alike.
type assembly struct {
	host   Host
	mtu    uint32
	access Access

	op      packet.Opcode // SendFirst or WriteFirst: a message that goes on; else noMessage
	off     uint32        // octets of it that were placed
	size    uint32        // of the receive, or of the Write
	holding bool          // a receive was taken for it
}

const noMessage packet.Opcode = 0xff

func (a *assembly) init(h Host, mtu uint32, access Access) {
	*a = assembly{host: h, mtu: mtu, access: access, op: noMessage}
}

// kind is what op is a packet of: SendFirst, WriteFirst, or noMessage.
func kind(op packet.Opcode) packet.Opcode {
	switch {
	case op <= packet.SendOnlyImm, op == packet.SendLastInv, op == packet.SendOnlyInv:
		return packet.SendFirst
	case op <= packet.WriteOnlyImm:
		return packet.WriteFirst
	}
	return noMessage
}

// begins reports whether op is a First or an Only.
func begins(op packet.Opcode) bool {
	switch op {
	case packet.SendFirst, packet.SendOnly, packet.SendOnlyImm, packet.SendOnlyInv,
		packet.WriteFirst, packet.WriteOnly, packet.WriteOnlyImm:
		return true
	default:
		return false
	}
}

// inside reports whether a message has begun and not ended.
func (a *assembly) inside() bool { return a.op != noMessage }

// take carries the next packet of the peer's out, whose opcode is h's as one of RC: a Send's or a
// Write's. ended: it was the end of a message. Before it refuses anything it has placed nothing of
// this packet.
func (a *assembly) take(h *packet.Header, payload []byte) (ended bool, r *refusal) {
	op, n := h.Opcode.Operation(), uint32(len(payload))
	ends := op.Ends()
	switch {
	case begins(op) == a.inside(), a.inside() && kind(op) != a.op:
		return false, &refusal{packet.NAKInvalid, RemoteInvalid, errOrder}
	case !ends && (n != a.mtu || h.Pad != 0), n > a.mtu, ends && !begins(op) && n == 0:
		return false, &refusal{packet.NAKInvalid, RemoteInvalid, errLength}
	}
	if begins(op) {
		if r := a.begin(h, op, n); r != nil {
			return false, r
		}
	}
	if kind(op) == packet.WriteFirst {
		r = a.write(op, payload, ends)
	} else if n > a.size-a.off {
		r = &refusal{packet.NAKInvalid, LocalLength, errTooLong}
	} else if err := a.receive(payload, ends); err != nil {
		r = &refusal{packet.NAKOperational, LocalProtection, err}
	}
	if r != nil {
		return false, r
	}
	a.off += n
	if !ends {
		a.op = kind(op)
		return false, nil
	}
	return true, a.end(h, op)
}

func (a *assembly) receive(payload []byte, last bool) error {
	if len(payload) == 0 {
		return nil
	}
	return a.host.PlaceReceive(a.off, payload, last)
}

// begin finds what a message goes to.
func (a *assembly) begin(h *packet.Header, op packet.Opcode, n uint32) *refusal {
	a.off = 0
	if kind(op) == packet.SendFirst {
		size, r := a.takeReceive()
		a.size = size
		return r
	}
	a.size = h.DMA
	switch {
	case a.access&RemoteWrite == 0:
		return refuse(packet.NAKInvalid, errRights)
	case h.DMA > MaxMessage:
		return refuse(packet.NAKInvalid, errLength)
	case h.DMA == 0:
		if n != 0 {
			return refuse(packet.NAKInvalid, errDMA)
		}
		return nil // no key is looked at
	}
	if err := a.host.BeginWrite(h.RKey, h.Addr, h.DMA); err != nil {
		return refuse(packet.NAKAccess, err)
	}
	return nil
}

// takeReceive takes a receive for the message.
func (a *assembly) takeReceive() (size uint32, r *refusal) {
	size, a.holding = a.host.BeginReceive()
	if !a.holding {
		return 0, errNoReceive
	}
	return size, nil
}

func (a *assembly) write(op packet.Opcode, payload []byte, ends bool) *refusal {
	n := uint32(len(payload))
	if left := a.size - a.off; n > left || ends != (n == left) {
		return &refusal{packet.NAKInvalid, RemoteInvalid, errDMA}
	}
	if op == packet.WriteLastImm || op == packet.WriteOnlyImm {
		if _, r := a.takeReceive(); r != nil {
			return r
		}
	}
	if n == 0 {
		return nil
	}
	if err := a.host.PlaceWrite(a.off, payload, ends); err != nil {
		return &refusal{packet.NAKAccess, RemoteInvalid, err}
	}
	return nil
}

// end completes a message.
func (a *assembly) end(h *packet.Header, op packet.Opcode) *refusal {
	a.op = noMessage
	if !a.holding {
		return nil
	}
	a.holding = false
	r := Received{Length: a.off, Write: kind(op) == packet.WriteFirst, Solicited: h.Solicited}
	switch op {
	case packet.SendLastImm, packet.SendOnlyImm, packet.WriteLastImm, packet.WriteOnlyImm:
		r.Immediate, r.Imm = true, h.Imm
	case packet.SendLastInv, packet.SendOnlyInv:
		r.Invalidate, r.RKey = true, h.RKey
	default:
	}
	if err := a.host.EndReceive(r); err != nil {
		return refuse(packet.NAKAccess, err)
	}
	return nil
}

// abandon ends the message that goes on: with an error its receive fails, and without it is kept
// for the next.
func (a *assembly) abandon(s Status) {
	a.op = noMessage
	if !a.holding {
		return
	}
	a.holding = false
	if s == Success {
		a.host.KeepReceive()
	} else {
		a.host.FailReceive(s)
	}
}
