package iwarp

// The sending half. A message is cut into FPDUs by a plan: a list of at most Config.BatchBytes of
// them, made from the queues and a cursor that says what the transport owns. Read builds the FPDUs
// of the plan, in the reader's memory where one fits whole and else in staging; Commit moves the
// cursor over those that were taken and drops the plan. So nothing has to be undone: what was
// built and not taken is planned and built again. With Config.Records the plan is one segment,
// bare.
//
// An FPDU of which only a part was taken must go on with the same octets although the memory it
// came from may have changed. Its rest is kept in carry: staging holds it already if the reader's
// memory ended inside it, else it is built again and has to give the same CRC.

// A txMessage is a posted message.
type txMessage struct {
	op       Opcode
	token    uint64
	n        uint32
	stag     STag   // Send: to invalidate; Write: sink; Read Request: source
	to       uint64 // Immediate Data: the data
	payload  Payload
	sinkSTag STag
	sinkTO   uint64
}

// A txResponse is the answer to a Read Request or an Atomic Request of the peer.
type txResponse struct {
	sinkSTag STag
	sinkTO   uint64
	n        uint32
	payload  Payload
	header   [UntaggedHeaderLen]byte // of the request, for a Terminate
	request  [ReadRequestLen]byte
	segLen   int
	op       Opcode // OpReadResponse or OpAtomicResponse
	id       uint32 // of an Atomic Request
	old      uint64
}

// A txRead is a Read or an atomic of ours that is not answered. They share the queue, its MSNs and
// ORD: RFC 7306, section 5.2.
type txRead struct {
	token    uint64
	sinkSTag STag
	sinkTO   uint64
	n        uint32
	rtr      bool // the ready-to-receive message; nobody waits for it
	isAtomic bool
	atomic   Atomic
}

// A txCursor says how far sending has come. Counts of messages are absolute and wrap.
type txCursor struct {
	sent      uint32 // posted messages that are out
	answered  uint32 // answers that are out
	reads     uint32 // Read and Atomic Requests that are out, the RTR included
	off       uint32 // octets of the message in progress that are out
	pos       uint32 // octets of the stream that are out; kept with markers only
	mid       txSource
	yield     bool // an answer went last: a posted message is next
	rtr       bool // the ready-to-receive message is out, or there is none
	term      bool // the Terminate is out
	msn, rmsn MSN  // next of QN 0 and QN 1
	amsn      MSN  // next of QN 3
}

// A txSource says what an FPDU belongs to.
type txSource uint8

const (
	txNone txSource = iota
	txPosted
	txAnswer
	txRTR
	txTerm
	txCarry // the rest of an FPDU
)

// A txEntry is an FPDU of the plan.
type txEntry struct {
	src   txSource
	op    Opcode
	last  bool
	idx   uint32 // of the message or answer
	off   uint32
	chunk uint32
	size  int // octets of the FPDU with its Markers, or of the carry
	end   int // octets of the plan up to its end
	crc   CRC
	after txCursor
}

// A sender is the sending half of an Endpoint.
type sender struct {
	open   bool // FPDUs may be sent
	mulpdu int
	emss   int // octets of a TCP segment; 0: nobody minds where TCP cuts
	crc    bool
	mark   bool // with Markers
	bare   bool // segments without framing: Config.Records
	rtr    RTRKinds

	ring   []txMessage // as the other rings: none at first, and a power of two
	limit  uint32      // messages that may be posted
	posted uint32

	answers []txResponse // of IRD
	asked   uint32

	readRing    []txRead // of ORD
	readsPosted uint32
	readsDone   uint32

	cur      txCursor
	carry    []byte  // rest of the FPDU that was taken in part
	carryEnt txEntry // that FPDU

	plan     []txEntry
	planned  bool
	planEnd  int
	readPos  int // octets of the plan given by Read
	readIdx  int // entry in which readPos is
	stage    []byte
	stageIdx int // entry that is in stage; -1: none

	broken    txSource // what could not be read, if termState is termBehind
	brokenIdx uint32
}

func (t *sender) init(p *Params, queue int) {
	t.open = p.Initiator
	t.crc = p.CRC
	t.mark = p.MarkersOut
	t.limit = uint32(queue)
	t.cur = txCursor{msn: 1, rmsn: 1, amsn: 1, rtr: true}
	t.stageIdx = -1
	if p.Initiator && p.RTR != 0 {
		t.rtr = p.RTR
		t.cur.rtr = false
		if p.RTR == RTRRead {
			t.addRead(txRead{rtr: true})
		}
	}
}

// framed is how many octets a segment of n takes.
func (t *sender) framed(n int) int {
	if t.bare {
		return n
	}
	return FPDULen(n)
}

// leastRing is how many entries a ring has at least, once it has any.
const leastRing = 8

// widen returns a ring with the entries first to end of ring, and room for one more: most
// connections never have as much under way as they may. The counts that index a ring wrap at 2^32.
func widen[T any](ring []T, first, end uint32) []T {
	if end-first < uint32(len(ring)) {
		return ring
	}
	to := make([]T, max(2*len(ring), leastRing))
	for i := first; i != end; i++ {
		to[i&uint32(len(to)-1)] = ring[i&uint32(len(ring)-1)]
	}
	return to
}

func (t *sender) full() bool { return t.posted-t.cur.sent >= t.limit }

func (t *sender) empty() bool {
	return t.cur.rtr && t.cur.mid == txNone && t.posted == t.cur.sent && t.asked == t.cur.answered &&
		len(t.carry) == 0
}

func (t *sender) addRead(r txRead) {
	t.readRing = widen(t.readRing, t.readsDone, t.readsPosted)
	*t.read(t.readsPosted) = r
	t.readsPosted++
}

// oldestRead is the oldest Read or atomic whose request is out and whose answer is not complete;
// nil if none.
func (t *sender) oldestRead() *txRead {
	if t.readsDone == t.cur.reads {
		return nil
	}
	return t.read(t.readsDone)
}

func (t *sender) read(idx uint32) *txRead { return &t.readRing[idx&uint32(len(t.readRing)-1)] }

// oldestMSN is the QN 1 MSN of the request of oldestRead.
func (t *sender) oldestMSN() MSN { return t.cur.rmsn - MSN(t.cur.reads-t.readsDone) }

// atomicOut says whether an atomic is among the requests that are out.
func (t *sender) atomicOut() bool {
	for i := t.readsDone; i != t.cur.reads; i++ {
		if t.read(i).isAtomic {
			return true
		}
	}
	return false
}

// queueResponse queues the answer a.
func (t *sender) queueResponse(a *txResponse) {
	t.answers = widen(t.answers, t.cur.answered, t.asked)
	*t.answer(t.asked) = *a
	t.asked++
	t.stale()
}

func (t *sender) message(idx uint32) *txMessage { return &t.ring[idx&uint32(len(t.ring)-1)] }
func (t *sender) answer(idx uint32) *txResponse { return &t.answers[idx&uint32(len(t.answers)-1)] }

// stale drops a plan nothing of which has been read.
func (t *sender) stale() {
	if t.readPos == 0 {
		t.planned = false
	}
}

// abandon ends sending for good.
func (t *sender) abandon(h Host) {
	for ; t.cur.answered != t.asked; t.cur.answered++ {
		a := t.answer(t.cur.answered)
		if a.payload != nil {
			h.EndReadSource(a.payload)
		}
		*a = txResponse{}
	}
	clear(t.ring)
	t.cur.sent = t.posted
	t.cur.mid, t.cur.rtr = txNone, true
	t.carry = t.carry[:0]
	t.plan, t.planned, t.planEnd, t.readPos, t.readIdx = t.plan[:0], true, 0, 0, 0
}

// makePlan plans the next FPDUs.
func (e *Endpoint) makePlan() {
	t := &e.tx
	t.plan, t.planEnd, t.planned = t.plan[:0], 0, true
	t.readPos, t.readIdx, t.stageIdx = 0, 0, -1
	if e.closed || !t.open || e.termState == termReceived || e.termState == termSent {
		return
	}
	c := t.cur
	if len(t.carry) > 0 {
		ent := t.room()
		ent.src, ent.size, ent.after = txCarry, len(t.carry), t.carryEnt.after
		t.planAdd(ent)
		c = ent.after
	}
	limit := maxBatchFPDUs
	if t.bare {
		limit = 1
	}
	// An FPDU that fills a TCP segment begins one: RFC 5044, section 5.1. A plan goes to TCP in one
	// piece, which TCP cuts from its start, so a shorter FPDU, or the rest of one, ends the plan if
	// such a one follows, or one whose pad and CRC TCP would cut.
	full := 0
	if e.cfg.MULPDU == 0 && !t.mark {
		full = FPDULen(t.mulpdu)
	}
	for len(t.plan) < limit && !c.term {
		ent := t.room()
		ok := e.nextFPDU(&c, ent)
		if t.mark && ok {
			ent.size = markedLen(c.pos, ent.size)
			ent.after.pos = c.pos + uint32(ent.size)
		}
		if !ok || len(t.plan) > 0 && t.planEnd+ent.size > e.cfg.BatchBytes {
			return
		}
		if full > 0 && ent.size == full && t.planEnd%full != 0 {
			return
		}
		if len(t.plan) > 0 && t.cutsTrailer(t.planEnd+ent.size) {
			return
		}
		t.planAdd(ent)
		c = ent.after
	}
}

// trailerRoom is more than the pad and CRC of an FPDU take.
const trailerRoom = 8

// cutsTrailer reports whether TCP may cut the pad and CRC of the FPDU that ends at end octets of
// the plan. Siw misreads them then, and ends the connection: docs/interop.md#S5.
func (t *sender) cutsTrailer(end int) bool {
	if t.emss == 0 {
		return false
	}
	r := uint32(end) % uint32(t.emss)
	return r != 0 && r < trailerRoom
}

// room is an empty entry behind the plan.
func (t *sender) room() *txEntry {
	n := len(t.plan)
	if n == cap(t.plan) {
		t.plan = append(t.plan, txEntry{})[:n]
	}
	ent := &t.plan[:n+1][n]
	*ent = txEntry{}
	return ent
}

// planAdd puts the entry that room gave into the plan.
func (t *sender) planAdd(ent *txEntry) {
	t.planEnd += ent.size
	ent.end = t.planEnd
	t.plan = t.plan[:len(t.plan)+1]
}

// nextFPDU makes ent, which is empty, the FPDU that follows cursor c; ok is false if there is none.
func (e *Endpoint) nextFPDU(c *txCursor, ent *txEntry) (ok bool) {
	t := &e.tx
	ent.after = *c
	a := &ent.after
	answers, posted := t.asked != c.answered, t.posted != c.sent
	switch {
	case e.termState == termNow, e.termState == termNext && !answers:
		e.planTerminate(ent)
		return true
	case e.termState == termNext:
		// "Every valid Read Request is answered", that ahead of a bad one too: RDMAP-053,
		// docs/decisions.md#A26.
		posted = false
	}
	if !c.rtr {
		// The ready-to-receive message goes before anything else: RFC 6581, section 9.2.
		ent.src, ent.last = txRTR, true
		a.rtr = true
		switch t.rtr {
		case RTRWrite:
			ent.op, ent.size = OpWrite, t.framed(TaggedHeaderLen)
		case RTRRead:
			ent.op, ent.size = OpReadRequest, t.framed(UntaggedHeaderLen+ReadRequestLen)
			a.rmsn++
			a.reads++
		default:
			ent.op, ent.size = OpSend, t.framed(UntaggedHeaderLen)
			a.msn++
		}
		return true
	}
	src := c.mid
	if src == txNone {
		// At a message boundary answers and posted messages take turns.
		switch {
		case answers && !(posted && c.yield):
			src = txAnswer
		case posted:
			src = txPosted
		default:
			return false
		}
	}
	if e.termState == termBehind && src == t.broken && c.index(src) == t.brokenIdx {
		e.planTerminate(ent)
		return true
	}
	ent.src, ent.idx, ent.off = src, c.index(src), c.off
	var n uint32
	if src == txAnswer {
		ent.op, n = t.answer(ent.idx).op, t.answer(ent.idx).n
	} else {
		ent.op, n = t.message(ent.idx).op, t.message(ent.idx).n
	}
	info := &opcodes[ent.op&0xf]
	hdr := UntaggedHeaderLen + info.header
	if info.tagged {
		hdr = TaggedHeaderLen
	}
	if info.header > 0 {
		n = 0 // of the memory: the RDMAP header is made here, and MULPDU has room for any
	}
	ent.chunk = min(n-c.off, uint32(t.mulpdu-hdr))
	ent.size = t.framed(hdr + int(ent.chunk))
	if len(t.plan) == 0 && t.cutsTrailer(ent.size) && ent.chunk > trailerRoom {
		ent.chunk -= trailerRoom // it is longer than a TCP segment: Config.MULPDU
		ent.size -= trailerRoom
	}
	ent.last = ent.off+ent.chunk == n
	if !ent.last {
		a.mid, a.off = src, c.off+ent.chunk
		return true
	}
	a.mid, a.off = txNone, 0
	if src == txAnswer {
		if ent.op == OpAtomicResponse {
			a.amsn++
		}
		a.answered++
		a.yield = true
		return true
	}
	switch {
	case info.tagged:
	case info.qn == qnRead:
		a.rmsn++
		a.reads++
	default:
		a.msn++
	}
	a.sent++
	a.yield = false
	return true
}

func (c *txCursor) index(src txSource) uint32 {
	if src == txAnswer {
		return c.answered
	}
	return c.sent
}

// planTerminate plans the Terminate, which is the last FPDU of a stream (RDMAP-079).
func (e *Endpoint) planTerminate(ent *txEntry) {
	t := &e.tx
	if e.termState == termBehind && t.broken == txAnswer {
		e.advanceCopies(t.answer(t.brokenIdx), ent.after.off)
	}
	n := UntaggedHeaderLen + termControlLen + len(e.term.Header) + len(e.term.ReadRequest)
	if e.term.HasLength || len(e.term.Header) > 0 {
		n += termSegLenLen
	}
	ent.src, ent.op, ent.last, ent.size = txTerm, OpTerminate, true, t.framed(n)
	ent.after.term = true
}

// advanceCopies makes the header copies for a Read that failed when sent octets of its answer had
// gone out: "SinkTO and SrcTO increased and RDMARDSZ decreased". RFC 5040, section 4.8.
func (e *Endpoint) advanceCopies(a *txResponse, sent uint32) {
	ddp, rdmap := e.term.Cause.copies(OpReadRequest)
	if !ddp {
		return
	}
	copy(e.termCopies[:], a.header[:])
	e.term.HasLength, e.term.Length = true, uint16(a.segLen)
	e.term.Header = e.termCopies[:UntaggedHeaderLen:UntaggedHeaderLen]
	if !rdmap {
		return
	}
	r := ReadRequest(a.request[:])
	putReadRequest(e.termCopies[UntaggedHeaderLen:], r.SinkSTag(), r.SinkTO()+uint64(sent),
		r.Size()-sent,
		r.SrcSTag(), r.SrcTO()+uint64(sent))
	e.term.ReadRequest = ReadRequest(e.termCopies[UntaggedHeaderLen:])
}
