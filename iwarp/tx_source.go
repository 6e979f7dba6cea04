package iwarp

import (
	"encoding/binary"
	"errors"
	"io"
)

var (
	errChanged   = errors.New("iwarp: the memory of a message changed while it was sent")
	errNoPayload = errors.New("iwarp: a message with octets needs a Payload")
)

// Pending says whether there is something to send.
func (e *Endpoint) Pending() bool { return e.Len() > 0 }

// Len is how many octets Read will give until the next Commit: at most Config.BatchBytes, or one
// FPDU.
func (e *Endpoint) Len() int {
	if !e.tx.planned {
		e.makePlan()
	}
	return e.tx.planEnd - e.tx.readPos
}

// Read builds FPDUs in p. It fills p unless Len says less; io.EOF if that is 0. Another error is
// that of a Payload: nothing that was read since the last Commit may be sent. Call Commit(0) then;
// what precedes the message goes out in later calls, and the Terminate behind it.
func (e *Endpoint) Read(p []byte) (n int, err error) {
	if e.Len() == 0 {
		return 0, io.EOF
	}
	t := &e.tx
	for n < len(p) && t.readIdx < len(t.plan) {
		ent := &t.plan[t.readIdx]
		at := t.readPos - (ent.end - ent.size) // octets of this FPDU that were given before
		var k int
		switch {
		case ent.src == txCarry:
			k = copy(p[n:], t.carry[at:])
		case at == 0 && len(p)-n >= ent.size:
			k = ent.size
			err = e.build(ent, p[n:n+k:n+k])
		default:
			if t.stageIdx != t.readIdx {
				err = e.buildStaged(ent, t.readIdx)
			}
			if err == nil {
				k = copy(p[n:], t.stage[at:ent.size])
			}
		}
		if err != nil {
			e.breakOff(ent, err)
			return 0, err
		}
		n += k
		if t.readPos += k; t.readPos == ent.end {
			t.readIdx++
		}
	}
	return n, nil
}

// buildStaged builds the FPDU of plan entry i in stage.
func (e *Endpoint) buildStaged(ent *txEntry, i int) error {
	t := &e.tx
	if cap(t.stage) < ent.size {
		t.stage = make([]byte, ent.size)
	}
	t.stage = t.stage[:cap(t.stage)]
	t.stageIdx = -1
	if err := e.build(ent, t.stage[:ent.size]); err != nil {
		return err
	}
	t.stageIdx = i
	return nil
}

// build makes the FPDU of ent in b, which has its length.
func (e *Endpoint) build(ent *txEntry, b []byte) error {
	t := &e.tx
	u := b
	switch {
	case t.bare:
	case !t.mark:
		u = b[fpduHeaderLen:]
	default:
		u = b[fpduHeaderLen+markerLen*markersIn(ent.after.pos-uint32(len(b)), len(b)):]
	}
	hdr := TaggedHeaderLen
	var payload Payload
	switch ent.src {
	case txRTR:
		// STag and TO do not matter; these are siw's.
		switch ent.op {
		case OpWrite:
			putTagged(u, true, OpWrite, 1, 0)
		case OpReadRequest:
			putUntagged(u, true, OpReadRequest, 0, ent.after.rmsn-1, 0)
			putReadRequest(u[UntaggedHeaderLen:], 0, 0, 0, 1, 0)
			hdr = UntaggedHeaderLen + ReadRequestLen
		default:
			putUntagged(u, true, OpSend, 0, ent.after.msn-1, 0)
			hdr = UntaggedHeaderLen
		}
	case txTerm:
		putUntagged(u, true, OpTerminate, 0, 1, 0)
		hdr = len(e.term.Append(u[:UntaggedHeaderLen:len(u)]))
	case txAnswer:
		a := t.answer(ent.idx)
		if ent.op == OpAtomicResponse {
			putUntagged(u, true, OpAtomicResponse, 0, ent.after.amsn-1, 0)
			putAtomicResponse(u[UntaggedHeaderLen:], a.id, a.old)
			hdr = UntaggedHeaderLen + atomicResponseLen
			break
		}
		putTagged(u, ent.last, OpReadResponse, a.sinkSTag, a.sinkTO+uint64(ent.off))
		payload = a.payload
	default:
		m := t.message(ent.idx)
		payload = m.payload
		switch m.op {
		case OpWrite:
			putTagged(u, ent.last, OpWrite, m.stag, m.to+uint64(ent.off))
		case OpReadRequest:
			putUntagged(u, true, OpReadRequest, 0, ent.after.rmsn-1, 0)
			putReadRequest(u[UntaggedHeaderLen:], m.sinkSTag, m.sinkTO, m.n, m.stag, m.to)
			hdr = UntaggedHeaderLen + ReadRequestLen
		case OpAtomicRequest:
			// The Request Identifier is the MSN, so that a response to another request shows.
			msn := ent.after.rmsn - 1
			putUntagged(u, true, OpAtomicRequest, 0, msn, 0)
			putAtomicRequest(u[UntaggedHeaderLen:], uint32(msn), &t.read(ent.after.reads-1).atomic)
			hdr = UntaggedHeaderLen + atomicRequestLen
		case OpImmediate, OpImmediateSE:
			putUntagged(u, true, m.op, 0, ent.after.msn-1, 0)
			binary.BigEndian.PutUint64(u[UntaggedHeaderLen:], m.to)
			hdr = UntaggedHeaderLen + immediateLen
		default:
			msn := ent.after.msn
			if ent.last {
				msn--
			}
			putUntagged(u, ent.last, m.op, m.stag, msn, ent.off)
			hdr = UntaggedHeaderLen
		}
	}
	n := hdr + int(ent.chunk)
	if ent.chunk > 0 {
		if payload == nil {
			return errNoPayload
		}
		if err := payload.CopyOut(u[hdr:n:n], ent.off); err != nil {
			return err
		}
	}
	// The CRC is that of the copy: whatever the memory does meanwhile, it is right (RDMAP-087).
	if e.cfg.Trace != nil {
		e.cfg.Trace(true, u[:n:n])
	}
	switch {
	case t.bare:
	case t.mark:
		ent.crc = sealMarked(b, n, t.crc, ent.after.pos-uint32(len(b)))
	default:
		ent.crc = sealFPDU(b, n, t.crc)
	}
	return nil
}

// breakOff ends the stream at a message whose memory could not be read. RFC 5040, section 7.1 (1).
func (e *Endpoint) breakOff(ent *txEntry, err error) {
	t := &e.tx
	t.broken, t.brokenIdx = ent.src, ent.idx
	if e.err != nil { // the first error stays
		if e.termState == termNext {
			e.termState = termNow
		}
		return
	}
	le := localError(err, TermLocalCatastrophic)
	if ent.src == txPosted {
		m := t.message(ent.idx)
		le = &LocalError{le.Cause, &MessageError{m.token, m.op, err}}
	} else {
		le = &LocalError{le.Cause, &MessageError{0, OpReadResponse, err}}
	}
	e.err = le
	e.term = Terminate{Cause: le.Cause}
	e.termState = termBehind
	e.stats.LocalErrors++
}

// Commit says that the transport owns the first n of the octets that were read since the last
// Commit. Call it after every WriteFrom, whatever came of it, before anything else. It calls
// Host.Sent and Host.EndReadSource for the messages whose last octet went out.
func (e *Endpoint) Commit(n int) {
	t := &e.tx
	n = min(max(n, 0), t.readPos)
	e.stats.OctetsOut += uint64(n)
	for i := range t.plan {
		ent := &t.plan[i]
		start := ent.end - ent.size
		if n < ent.end {
			if n > start {
				e.keepRest(ent, i, n-start)
			}
			break
		}
		if ent.src == txCarry {
			t.carry = t.carry[:0]
			*ent = t.carryEnt
		}
		t.cur = ent.after
		e.complete(ent)
	}
	t.plan = t.plan[:0]
	t.planned, t.planEnd, t.readPos, t.readIdx, t.stageIdx = false, 0, 0, 0, -1
}

// keepRest keeps the octets behind the first n of plan entry i for the next plan.
func (e *Endpoint) keepRest(ent *txEntry, i, n int) {
	t := &e.tx
	if ent.src == txCarry {
		t.carry = t.carry[:copy(t.carry, t.carry[n:])]
		return
	}
	if t.stageIdx != i {
		// It was built in the reader's memory and the transport took less than it had room
		// for. Once more, and it has to be the same.
		crc := ent.crc
		if err := e.buildStaged(ent, i); err != nil || ent.crc != crc {
			if err == nil {
				err = errChanged
			}
			e.cutShort(err)
			return
		}
	}
	t.carry = append(t.carry[:0], t.stage[n:ent.size]...)
	t.carryEnt = *ent
}

// cutShort ends sending in the middle of an FPDU: no Terminate can follow.
func (e *Endpoint) cutShort(err error) {
	if e.err == nil {
		e.err = &LocalError{TermLocalCatastrophic, err}
		e.term = Terminate{Cause: TermLocalCatastrophic}
		e.stats.LocalErrors++
	}
	e.termState = termSent
}

// complete does what follows when the FPDU of ent has gone out.
func (e *Endpoint) complete(ent *txEntry) {
	t := &e.tx
	e.stats.FPDUsOut++
	e.stats.PayloadOut += uint64(ent.chunk)
	if !ent.last {
		return
	}
	e.stats.MessagesOut[ent.op]++
	switch ent.src {
	case txPosted:
		m := t.message(ent.idx)
		token := m.token
		*m = txMessage{}
		e.host.Sent(token)
	case txAnswer:
		a := t.answer(ent.idx)
		p := a.payload
		a.payload = nil
		if p != nil {
			e.host.EndReadSource(p)
		}
	case txTerm:
		e.termState = termSent
	}
}
