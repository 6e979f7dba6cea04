package iwarp

import (
	"encoding/binary"
	"errors"
)

// Inbound messages of RFC 7306. Atomic Requests are taken by inRequest.

// inImmediate takes Immediate Data: it is ordered as a Send and uses up a receive buffer, which it
// leaves as it is (docs/decisions.md#A15).
func (e *Endpoint) inImmediate(h UntaggedHeader, chunk []byte, segLen int) error {
	if ok, err := e.takeReceive(h, segLen); !ok {
		return err
	}
	if !e.gatherExact(openImmediate, h, chunk, segLen) {
		return nil
	}
	r := &e.rx
	op := h.RDMAP().Opcode()
	r.msn++
	e.stats.MessagesIn[op]++
	r.received = Received{Solicited: op.Solicited(), Immediate: true,
		Data: binary.BigEndian.Uint64(r.header[:])}
	if !e.deferDelivery(openImmediate, h, segLen) {
		e.deliverReceived(op, h, segLen)
	}
	return nil
}

// deliverAtomicRequest has the Host carry rx.atomic out and queues the answer.
func (e *Endpoint) deliverAtomicRequest() {
	const op = OpAtomicRequest
	a, req := &e.rx.request, &e.rx.atomic
	if !req.Op.known() {
		// docs/decisions.md#A13
		e.refuse(op, a.header[:], a.segLen, TermUnexpectedOpcode, "%v with %v", op, req.Op)
		return
	}
	old, err := e.host.Atomic(*req)
	if errors.Is(err, ErrUnanswered) {
		return
	}
	if err != nil {
		e.fail(localError(err, TermLocalCatastrophic), op, a.header[:], a.segLen)
		return
	}
	a.op, a.old = OpAtomicResponse, old
	e.tx.queueResponse(a)
}

// inAtomicResponse takes an Atomic Response. QN 3 has a buffer for each atomic that is out.
func (e *Endpoint) inAtomicResponse(h UntaggedHeader, chunk []byte, segLen int) error {
	r, t := &e.rx, &e.tx
	const op = OpAtomicResponse
	read := t.oldestRead()
	switch {
	case h.MSN() != r.amsn:
		e.refuse(op, h, segLen, TermMSNRange, "%v with MSN %d, expected %d", op, h.MSN(), r.amsn)
		return nil
	case !t.atomicOut():
		e.refuse(op, h, segLen, TermNoBuffer, "%v, but no atomic is outstanding", op)
		return nil
	case !read.isAtomic:
		e.refuse(op, h, segLen, TermUnexpectedOpcode, "%v, but a Read is to be answered first", op)
		return nil
	}
	if !e.gatherExact(openResponse, h, chunk, segLen) {
		return nil
	}
	resp := AtomicResponse(r.header[:])
	if want := uint32(t.oldestMSN()); resp.ID() != want {
		e.refuse(op, h, segLen, TermRemoteOperation, "%v to request %#x, the oldest is %#x", op,
			resp.ID(), want)
		return nil
	}
	r.amsn++
	r.response.token, r.response.old = read.token, resp.Old()
	t.readsDone++
	e.stats.MessagesIn[op]++
	if !e.deferDelivery(openResponse, h, segLen) {
		e.deliverAtomicResponse(h, segLen)
	}
	return nil
}

func (e *Endpoint) deliverAtomicResponse(h []byte, segLen int) {
	if err := e.host.EndAtomic(e.rx.response.token, e.rx.response.old); err != nil {
		e.placing(OpAtomicResponse, h, segLen, err)
	}
}
