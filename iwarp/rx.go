package iwarp

import "errors"

// segment takes the next DDP segment in order: size octets, of which seg has all, or the header
// alone if the payload has been placed (Ahead). The order of the checks is that of
// docs/decisions.md#A20: header length; DV; RV (#A8); opcode known; T fits it; QN exists and fits
// it (#A7); then what the kind of message asks for, with octets or without (#A9).
func (e *Endpoint) segment(seg []byte, size int) error {
	hdr := UntaggedHeaderLen
	if len(seg) > 0 && DDPControl(seg[0]).Tagged() {
		hdr = TaggedHeaderLen
	}
	if len(seg) < hdr {
		e.fail(localErrorf(TermMarker, "segment of %d octets, shorter than its header", size), 0, nil, 0)
		return nil
	}
	ddp, rdmap := DDPControl(seg[0]), RDMAPControl(seg[1])
	op := rdmap.Opcode()
	refuse := func(c TermCode, format string, args ...any) error {
		e.fail(localErrorf(c, format, args...), op, seg[:hdr], size)
		return nil
	}
	switch {
	case ddp.Version() != ddpVersion && ddp.Tagged():
		return refuse(TermTaggedVersion, "DDP version %d", ddp.Version())
	case ddp.Version() != ddpVersion:
		return refuse(TermUntaggedVersion, "DDP version %d", ddp.Version())
	case rdmap.Version() != rdmapVersion:
		return refuse(TermRDMAPVersion, "RDMAP version %d", rdmap.Version())
	case op >= e.rx.opcodes:
		return refuse(TermUnexpectedOpcode, "opcode %d", op)
	case ddp.Tagged() != opcodes[op].tagged:
		return refuse(TermUnexpectedOpcode, "%v with T=%t", op, ddp.Tagged())
	}
	if ddp.Tagged() {
		h, chunk := TaggedHeader(seg[:hdr:hdr]), seg[hdr:]
		if op == OpWrite {
			return e.inWrite(h, chunk, size)
		}
		return e.inReadResponse(h, chunk, size)
	}
	h, chunk := UntaggedHeader(seg[:hdr:hdr]), seg[hdr:]
	switch qn := h.QN(); {
	case qn >= e.rx.queues:
		return refuse(TermInvalidQN, "QN %d", qn)
	case qn != opcodes[op].qn:
		return refuse(TermUnexpectedOpcode, "%v on QN %d", op, qn)
	}
	// Messages are not interleaved, but a Terminate is taken at any time (docs/decisions.md#A26). What
	// follows an unfinished tagged message waits for its end, and there is room for one (DDP-021).
	r := &e.rx
	if op != OpTerminate && (r.open != openNone && r.openOp != op || r.deferred != openNone) {
		return refuse(TermUnexpectedOpcode, "%v within another message", op)
	}
	switch op {
	case OpReadRequest, OpAtomicRequest:
		return e.inRequest(h, chunk, size)
	case OpAtomicResponse:
		return e.inAtomicResponse(h, chunk, size)
	case OpTerminate:
		return e.inTerminate(h, chunk, size)
	case OpImmediate, OpImmediateSE:
		return e.inImmediate(h, chunk, size)
	default:
		return e.inSend(h, chunk, size)
	}
}

// refuse fails with a fault of the segment with header h.
func (e *Endpoint) refuse(op Opcode, h []byte, segLen int, c TermCode, format string, args ...any) {
	e.fail(localErrorf(c, format, args...), op, h, segLen)
}

// placing fails with what a Host returned for the segment with header h.
func (e *Endpoint) placing(op Opcode, h []byte, segLen int, err error) {
	e.fail(localError(err, TermDDPCatastrophic), op, h, segLen)
}

func (e *Endpoint) inWrite(h TaggedHeader, chunk []byte, segLen int) error {
	r := &e.rx
	n := segLen - TaggedHeaderLen // chunk is empty if they have been placed
	if r.respOpen {
		e.refuse(OpWrite, h, segLen, TermUnexpectedOpcode, "%v within a Read Response", OpWrite)
		return nil
	}
	last := h.DDP().Last()
	if err := e.host.PlaceWrite(h.STag(), h.TO(), chunk, last); err != nil {
		e.placing(OpWrite, h, segLen, err)
		return nil
	}
	e.stats.PayloadIn += uint64(n)
	r.writeOpen = !last
	if last {
		e.stats.MessagesIn[OpWrite]++
		e.deliverDeferred()
	}
	return nil
}

func (e *Endpoint) inReadResponse(h TaggedHeader, chunk []byte, segLen int) error {
	r := &e.rx
	const op = OpReadResponse
	read := e.tx.oldestRead()
	n := uint32(segLen - TaggedHeaderLen)
	switch {
	case read == nil:
		e.refuse(op, h, segLen, TermUnexpectedOpcode, "%v, but no Read is outstanding", op)
		return nil
	case read.isAtomic:
		// "Responses in request order, also relative to Reads": EXT-026.
		e.refuse(op, h, segLen, TermUnexpectedOpcode, "%v, but an atomic is to be answered first", op)
		return nil
	case r.writeOpen || r.open != openNone:
		e.refuse(op, h, segLen, TermUnexpectedOpcode, "%v within another message", op)
		return nil
	case n > 0 && h.STag() != read.sinkSTag:
		e.refuse(op, h, segLen, TermInvalidSTag, "%v for STag %#x, asked for %#x", op, h.STag(),
			read.sinkSTag)
		return nil
	case n > 0 && h.TO() != read.sinkTO+uint64(r.respGot), n > read.n-r.respGot:
		e.refuse(op, h, segLen, TermBounds, "%v of %d octets for TO %#x; want TO %#x, at most %d octets",
			op, n, h.TO(), read.sinkTO+uint64(r.respGot), read.n-r.respGot)
		return nil
	}
	last := h.DDP().Last()
	if last && r.respGot+n != read.n {
		e.refuse(op, h, segLen, TermBounds, "%v of %d octets, asked for %d", op, r.respGot+n, read.n)
		return nil
	}
	if len(chunk) > 0 {
		if err := e.host.PlaceRead(r.respGot, chunk); err != nil {
			e.placing(op, h, segLen, err)
			return nil
		}
	}
	e.stats.PayloadIn += uint64(n)
	r.respGot += n
	if !last {
		r.respOpen = true
		return nil
	}
	r.respOpen, r.respGot = false, 0
	token, rtr := read.token, read.rtr
	*read = txRead{}
	e.tx.readsDone++
	e.stats.MessagesIn[op]++
	if !rtr {
		if err := e.host.EndRead(token); err != nil {
			e.placing(op, h, segLen, err)
			return nil
		}
	}
	e.deliverDeferred()
	return nil
}

// takeReceive checks the MSN of a message of QN 0 and takes a buffer for a new one. ok: there is
// one.
func (e *Endpoint) takeReceive(h UntaggedHeader, segLen int) (ok bool, err error) {
	r := &e.rx
	op := h.RDMAP().Opcode()
	if h.MSN() != r.msn {
		e.refuse(op, h, segLen, TermMSNRange, "%v with MSN %d, expected %d", op, h.MSN(), r.msn)
		return false, nil
	}
	if r.open != openNone {
		return true, nil
	}
	size, ok := e.receiveBuffer()
	if !ok {
		if !r.stalled {
			e.stats.Stalls++
		}
		r.stalled, r.heldLen, r.heldOp = true, segLen, op
		copy(r.heldHeader[:], h)
		e.Notice(r.early)
		return false, errHold
	}
	r.begin(op, size)
	return true, nil
}

// begin opens a message of QN 0 with a buffer of size octets.
func (r *receiver) begin(op Opcode, size uint32) {
	r.open, r.openOp, r.size, r.count = openSend, op, size, 0
	if !op.IsSend() {
		r.open = openImmediate
	}
}

func (e *Endpoint) inSend(h UntaggedHeader, chunk []byte, segLen int) error {
	if ok, err := e.takeReceive(h, segLen); !ok {
		return err
	}
	r := &e.rx
	op := h.RDMAP().Opcode()
	mo, n := h.MO(), uint32(segLen-UntaggedHeaderLen)
	switch {
	case mo > r.size, n > 0 && mo == r.size && mo > 0:
		e.refuse(op, h, segLen, TermInvalidMO, "MO %d in a buffer of %d octets", mo, r.size)
		return nil
	case n > r.size-mo:
		e.refuse(op, h, segLen, TermMessageTooLong, "%d octets at MO %d for a buffer of %d", n,
			mo, r.size)
		return nil
	}
	r.count += uint64(n)
	last := h.DDP().Last()
	if last && r.count != uint64(mo)+uint64(n) {
		e.refuse(op, h, segLen, TermInvalidMO, "message of %d octets ends at %d", r.count,
			uint64(mo)+uint64(n))
		return nil
	}
	if len(chunk) > 0 {
		if err := e.host.PlaceReceive(mo, chunk); err != nil {
			e.placing(op, h, segLen, err)
			return nil
		}
	}
	e.stats.PayloadIn += uint64(n)
	if !last {
		return nil
	}
	r.open = openNone
	r.msn++
	e.stats.MessagesIn[op]++
	r.received = Received{Length: uint32(r.count), Solicited: op.Solicited()}
	if op.Invalidates() {
		r.received.Invalidate, r.received.STag = true, h.Invalidate()
	}
	if !e.deferDelivery(openSend, h, segLen) {
		e.deliverReceived(op, h, segLen)
	}
	return nil
}

// deliverReceived delivers the Send or the Immediate Data of rx.received.
func (e *Endpoint) deliverReceived(op Opcode, h []byte, segLen int) {
	if err := e.host.EndReceive(e.rx.received); err != nil {
		e.placing(op, h, segLen, err)
	}
}

// deferDelivery says whether a whole message has to wait for the end of a tagged one (DDP-021), and
// keeps what its delivery needs: h is the header of its last segment.
func (e *Endpoint) deferDelivery(kind openMessage, h UntaggedHeader, segLen int) bool {
	r := &e.rx
	if !r.writeOpen && !r.respOpen {
		return false
	}
	r.deferred, r.heldOp, r.heldLen = kind, h.RDMAP().Opcode(), segLen
	copy(r.heldHeader[:], h)
	return true
}

// deliverDeferred delivers the message that waited for the end of the tagged one that has just
// ended.
func (e *Endpoint) deliverDeferred() {
	r := &e.rx
	kind := r.deferred
	if kind == openNone || e.err != nil {
		return
	}
	r.deferred = openNone
	switch {
	case kind == openResponse:
		e.deliverAtomicResponse(r.heldHeader[:], r.heldLen)
	case kind != openRequest:
		e.deliverReceived(r.heldOp, r.heldHeader[:], r.heldLen)
	case r.heldOp == OpAtomicRequest:
		e.deliverAtomicRequest()
	default:
		e.deliverReadRequest()
	}
}

// gatherHeader puts a chunk of a message that is all RDMAP header into header: such a message may
// be cut (docs/decisions.md#A24). done: its last segment is in.
func (e *Endpoint) gatherHeader(kind openMessage, h UntaggedHeader, chunk []byte, segLen,
	limit int) (n int, done bool) {
	r := &e.rx
	op := h.RDMAP().Opcode()
	if r.open != kind {
		r.open, r.openOp, r.count = kind, op, 0
	}
	mo := uint64(h.MO())
	end := mo + uint64(len(chunk))
	switch {
	case mo > uint64(limit):
		e.refuse(op, h, segLen, TermInvalidMO, "MO %d in a %v", mo, op)
		return 0, false
	case end > uint64(limit):
		e.refuse(op, h, segLen, TermRemoteOperation, "%v of %d octets", op, end)
		return 0, false
	}
	copy(r.header[mo:end], chunk)
	r.count += uint64(len(chunk))
	if !h.DDP().Last() {
		return 0, false
	}
	r.open = openNone
	if r.count != end {
		e.refuse(op, h, segLen, TermInvalidMO, "message of %d octets ends at %d", r.count, end)
		return 0, false
	}
	return int(end), true
}

// gatherExact is gatherHeader for the kinds of message that have one length.
func (e *Endpoint) gatherExact(
	kind openMessage, h UntaggedHeader, chunk []byte, segLen int,
) (done bool) {
	op := h.RDMAP().Opcode()
	want := opcodes[op].header
	n, done := e.gatherHeader(kind, h, chunk, segLen, want)
	if done && n != want {
		e.refuse(op, h, segLen, TermRemoteOperation, "%v of %d octets", op, n)
		return false
	}
	return done
}

// inRequest takes a Read Request or an Atomic Request, which share QN 1 and IRD:
// docs/decisions.md#A17.
func (e *Endpoint) inRequest(h UntaggedHeader, chunk []byte, segLen int) error {
	r, t := &e.rx, &e.tx
	op := h.RDMAP().Opcode()
	if h.MSN() != r.rmsn {
		e.refuse(op, h, segLen, TermMSNRange, "%v with MSN %d, expected %d", op, h.MSN(), r.rmsn)
		return nil
	}
	// Each one that may be outstanding has a buffer of QN 1: docs/decisions.md#A5.
	if t.asked-t.cur.answered >= r.ird {
		e.refuse(op, h, segLen, TermNoBuffer, "more than %d Reads and atomics outstanding", r.ird)
		return nil
	}
	if !e.gatherExact(openRequest, h, chunk, segLen) {
		return nil
	}
	r.rmsn++
	e.stats.MessagesIn[op]++
	a := &r.request
	*a = txResponse{segLen: segLen}
	copy(a.header[:], h)
	if op == OpAtomicRequest {
		req := AtomicRequest(r.header[:])
		r.atomic, a.id = req.Atomic(), req.ID()
	} else {
		copy(a.request[:], r.header[:])
	}
	// "A Read Request is not started before DDP delivered it": RDMAP-091. Nor is an atomic: RFC
	// 7306, section 5.4 (3).
	switch {
	case e.deferDelivery(openRequest, h, segLen):
	case op == OpAtomicRequest:
		e.deliverAtomicRequest()
	default:
		e.deliverReadRequest()
	}
	return nil
}

// deliverReadRequest checks what rx.request asks for and queues the answer.
func (e *Endpoint) deliverReadRequest() {
	r, t := &e.rx, &e.tx
	a := &r.request
	req := ReadRequest(a.request[:])
	p, err := e.host.ReadSource(req.SrcSTag(), req.SrcTO(), req.Size())
	if err == nil && p == nil && req.Size() > 0 {
		err = errNoPayload
	}
	if errors.Is(err, ErrUnanswered) {
		return
	}
	if err != nil {
		le := localError(err, TermLocalCatastrophic)
		if e.err == nil {
			e.fail(le, OpReadRequest, a.header[:], a.segLen)
			if _, rdmap := le.Cause.copies(OpReadRequest); rdmap {
				copy(e.termCopies[UntaggedHeaderLen:], a.request[:])
				e.term.ReadRequest = ReadRequest(e.termCopies[UntaggedHeaderLen:])
			}
		}
		return
	}
	a.op, a.sinkSTag, a.sinkTO, a.n, a.payload = OpReadResponse, req.SinkSTag(), req.SinkTO(),
		req.Size(), p
	t.queueResponse(a)
	a.payload = nil
}

func (e *Endpoint) inTerminate(h UntaggedHeader, chunk []byte, segLen int) error {
	r := &e.rx
	const op = OpTerminate
	if h.MSN() != 1 {
		e.refuse(op, h, segLen, TermMSNRange, "%v with MSN %d", op, h.MSN())
		return nil
	}
	if mo := int64(h.MO()); mo <= terminateMaxMsg && mo+int64(len(chunk)) > terminateMaxMsg {
		e.badTerminate(mo + int64(len(chunk)))
		return nil
	}
	n, done := e.gatherHeader(openTerminate, h, chunk, segLen, terminateMaxMsg)
	if !done {
		return nil
	}
	t, err := ParseTerminate(r.header[:n])
	if err != nil {
		e.badTerminate(int64(n))
		return nil
	}
	if e.stats.FPDUsIn == 0 && !e.cfg.Records {
		t = ofStartup(t)
	}
	e.stats.MessagesIn[op]++
	e.peerTerminated(t)
	return nil
}

// badTerminate ends the stream for a Terminate of n octets, which is none. It is an error and ends
// the stream (RDMAP-077), but a peer that has sent one waits for nothing any more: as behind a good
// one, nothing is sent: docs/decisions.md#A31.
func (e *Endpoint) badTerminate(n int64) {
	e.fail(localErrorf(TermRemoteOperation, "%v of %d octets", OpTerminate, n), OpTerminate, nil, 0)
	e.termState = termReceived
}
