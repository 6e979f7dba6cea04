package iwarp

// An LLP that keeps segments apart need not keep their order: what has come is placed at once, and
// delivered in its turn (RFC 5041, section 5). Segments go to Ahead when they come before their
// turn, and to Segment in it.

// maxBegun is how many receive buffers Ahead has taken at most, so that a peer cannot begin all of
// them.
const maxBegun = 16

// Ahead is shown a segment that has come before its turn. If all of it is sure to be right and can
// be placed, that is done, and only the header has to be kept for Segment; else the segment has to
// be kept as it is, or nothing of it if the stream has failed. It returns how many octets that are,
// and finds no faults: those are found in order.
func (e *Endpoint) Ahead(seg []byte) (keep int) {
	switch {
	case e.err != nil || e.closed:
		return 0
	case len(seg) < TaggedHeaderLen:
		return len(seg)
	}
	ddp, rdmap := DDPControl(seg[0]), RDMAPControl(seg[1])
	op := rdmap.Opcode()
	if ddp.Version() != ddpVersion || rdmap.Version() != rdmapVersion || op >= e.rx.opcodes ||
		ddp.Tagged() != opcodes[op].tagged {
		return len(seg)
	}
	placed, hdr := false, TaggedHeaderLen
	switch {
	case op == OpWrite:
		h, chunk := TaggedHeader(seg[:hdr:hdr]), seg[hdr:]
		placed = len(chunk) > 0 && e.host.PlaceWrite(h.STag(), h.TO(), chunk, false) == nil
	case op == OpReadResponse:
		placed = e.aheadRead(TaggedHeader(seg[:hdr:hdr]), seg[hdr:])
	case op.IsSend() && len(seg) > UntaggedHeaderLen:
		hdr = UntaggedHeaderLen
		placed = e.aheadSend(UntaggedHeader(seg[:hdr:hdr]), seg[hdr:])
	}
	if !placed {
		return len(seg)
	}
	e.stats.Ahead++
	if e.cfg.Trace != nil {
		e.cfg.Trace(false, seg)
	}
	return hdr
}

// aheadRead places a segment of a Read Response if one Read only can have asked for it.
func (e *Endpoint) aheadRead(h TaggedHeader, chunk []byte) bool {
	t := &e.tx
	var found *txRead
	first, off := false, uint64(0)
	for i := t.readsDone; i != t.cur.reads; i++ {
		r := t.read(i)
		at := h.TO() - r.sinkTO
		if r.isAtomic || r.sinkSTag != h.STag() || at >= uint64(r.n) ||
			uint64(len(chunk)) > uint64(r.n)-at {
			continue
		}
		if found != nil {
			return false
		}
		found, first, off = r, i == t.readsDone, at
	}
	switch {
	case found == nil || len(chunk) == 0:
		return false
	case first && off < uint64(e.rx.respGot):
		return false
	case first:
		return e.host.PlaceRead(uint32(off), chunk) == nil
	case e.cfg.PlaceRead != nil:
		return e.cfg.PlaceRead(found.token, uint32(off), chunk) == nil
	}
	return false
}

// aheadSend places a segment of a Send into the buffer that its MSN names, one of the window of
// posted buffers: docs/decisions.md#A21.
func (e *Endpoint) aheadSend(h UntaggedHeader, chunk []byte) bool {
	r := &e.rx
	if h.QN() != QNSend {
		return false
	}
	// begun is how many messages have a buffer and are not delivered, beside those in taken.
	begun := 0
	if r.deferred == openSend || r.deferred == openImmediate {
		begun++
	}
	k, size := int32(h.MSN()-r.msn), r.size
	open := r.open == openSend || r.open == openImmediate
	if open {
		begun++
		k--
	}
	switch {
	case k >= 0:
		limit := maxBegun
		if e.cfg.PlaceReceive == nil {
			limit = 1
		}
		if int(k)+begun >= limit {
			return false
		}
		for int(k) >= r.taken.n {
			n, ok := e.host.BeginReceive()
			if !ok {
				return false
			}
			r.taken.push(n)
		}
		size = r.taken.at(int(k))
	case k != -1 || r.open != openSend:
		return false // not a message to come, nor that which is open: found in order
	}
	mo := h.MO()
	if mo > size || uint32(len(chunk)) > size-mo {
		return false
	}
	if i := begun + int(k); i > 0 {
		return e.cfg.PlaceReceive(i, mo, chunk) == nil
	}
	return e.host.PlaceReceive(mo, chunk) == nil
}

// begunBuffers holds the sizes of buffers of QN 0, oldest first.
type begunBuffers struct {
	size    [maxBegun]uint32
	head, n int
}

func (b *begunBuffers) at(i int) uint32 { return b.size[(b.head+i)%maxBegun] }

func (b *begunBuffers) push(size uint32) {
	b.size[(b.head+b.n)%maxBegun] = size
	b.n++
}

// receiveBuffer gives the buffer for the next message of QN 0.
func (e *Endpoint) receiveBuffer() (size uint32, ok bool) {
	b := &e.rx.taken
	if b.n == 0 {
		return e.host.BeginReceive()
	}
	size = b.at(0)
	b.head, b.n = (b.head+1)%maxBegun, b.n-1
	return size, true
}

// Segment takes the next segment in order: size octets, of which seg has all, or as many as Ahead
// said. ErrNoReceive: it is a message for which no receive buffer is posted, and has to come again;
// see Resume. Other faults are in Err, and behind one everything is taken and dropped. seg is
// borrowed for the call.
func (e *Endpoint) Segment(seg []byte, size int) error {
	r := &e.rx
	if r.ended {
		e.fail(localErrorf(TermClosed, "a segment behind the end of the stream"), 0, nil, 0)
	}
	if e.err != nil || e.closed {
		e.stats.Dropped += uint64(size)
		return nil
	}
	if e.cfg.Trace != nil && !r.stalled && len(seg) == size {
		e.cfg.Trace(false, seg)
	}
	if e.segment(seg, size) == errHold {
		return ErrNoReceive
	}
	r.stalled = false
	e.stats.FPDUsIn++
	e.stats.OctetsIn += uint64(size)
	return nil
}
