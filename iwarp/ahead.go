package iwarp

import "encoding/binary"

// An LLP that keeps segments apart need not keep their order: what has come is placed at once, and
// delivered in its turn (RFC 5041, section 5). Segments go to Ahead when they come before their
// turn, and to Segment in it.

// maxBegun is how many receive buffers Ahead has taken at most, so that a peer cannot begin all of
// them.
const maxBegun = 16

// Ahead is shown a segment that has come before its turn. If all of it is sure to be right and can
// be placed, that is done, and only the header has to be kept for Segment; else the segment has to
// be kept as it is, or nothing of it if the stream has failed. It returns how many octets that are,
// and finds no faults: those are found in order. A Terminate of the peer ends the stream here if a
// Send waits for a receive buffer.
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
	case op == OpTerminate:
		e.noteTerminate(seg)
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
	if h.QN() != qnSend {
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

// While a Send waits for a receive buffer, what is behind it waits, too, in the transport where
// that can keep it. A Terminate there is not made to wait: "the receiver always has room for one"
// (RFC 5040, section 5.4). It is found by looking at what is there, of which nothing is taken, so
// that the order and the back pressure stay as they are. Over an LLP that keeps segments apart,
// Ahead finds it when it comes.

// wholeTerminate returns the content of the Terminate that seg is, if it is one in one piece.
func wholeTerminate(seg []byte) (t Terminate, ok bool) {
	h, body, err := ParseUntagged(seg)
	if err != nil || h.DDP().Tagged() || !h.DDP().Last() || h.DDP().Version() != ddpVersion ||
		h.RDMAP().Version() != rdmapVersion || h.RDMAP().Opcode() != OpTerminate ||
		h.QN() != qnTerminate || h.MSN() != 1 || h.MO() != 0 || len(body) > terminateMaxMsg {
		return t, false
	}
	t, err = ParseTerminate(body)
	return t, err == nil
}

// Notice is shown a segment that is behind a Send that waits, and will come again.
func (e *Endpoint) Notice(seg []byte) {
	if !e.Stalled() {
		return
	}
	if t, ok := wholeTerminate(seg); ok {
		e.stats.MessagesIn[OpTerminate]++
		e.peerTerminated(t)
	}
}

// noteTerminate keeps a Terminate that has come ahead of order, which may be due before its turn.
func (e *Endpoint) noteTerminate(seg []byte) {
	if _, ok := wholeTerminate(seg); !ok {
		return
	}
	if e.Notice(seg); e.err == nil {
		e.rx.early = append([]byte(nil), seg...)
	}
}

// longestLook is how long an FPDU with a Terminate can be, Markers included.
const longestLook = fpduHeaderLen + UntaggedHeaderLen + terminateMaxMsg + 3 + fpduCRCLen +
	2*markerLen

// A Lookout goes through the octets behind a Send that waits: an io.Writer that takes all.
type Lookout struct {
	e    *Endpoint
	end  uint64 // of what was gone through, in octets of the stream
	skip int    // octets before that, which are shown again
	pos  uint32 // offset in the stream of the FPDU in progress, or of the Marker that leads it
	n    int    // octets of it so far
	size int    // of all of it; 0: not known yet
	raw  [longestLook]byte
}

// Lookout returns what the octets that wait behind a Send are to be shown to: from the first that
// Write has not taken on, as many as there are, again whenever there are more. A Terminate among
// them ends the stream, as if it had come. The result is good until the next call of Resume or
// Write. What was gone through while one Send waited is not when the next one does.
func (e *Endpoint) Lookout() *Lookout {
	r := &e.rx
	l := r.lookout
	if l == nil {
		l = &Lookout{e: e}
		r.lookout = l
	}
	taken := e.stats.OctetsIn // an FPDU begins there, if a Send waits
	if l.end <= taken {
		l.end, l.pos, l.n, l.size = taken, r.mark.pos, 0, 0
	}
	l.skip = int(l.end - taken)
	return l
}

// Write implements io.Writer.
func (l *Lookout) Write(b []byte) (int, error) {
	all := len(b)
	k := min(l.skip, len(b))
	l.skip -= k
	b = b[k:]
	l.end += uint64(len(b))
	lead := 0
	for len(b) > 0 && l.e.Stalled() {
		if lead = fpduHeaderLen; l.e.rx.mark.on && l.pos%markerEvery == 0 {
			lead += markerLen
		}
		if l.size == 0 {
			k = copy(l.raw[l.n:lead], b)
			if l.n += k; l.n == lead {
				l.size = FPDULen(int(binary.BigEndian.Uint16(l.raw[lead-fpduHeaderLen:])))
				if l.e.rx.mark.on {
					l.size = markedLen(l.pos, l.size)
				}
			}
			b = b[k:]
			continue
		}
		k = min(l.size-l.n, len(b))
		if l.size <= len(l.raw) {
			copy(l.raw[l.n:], b[:k])
		}
		l.n += k
		b = b[k:]
		if l.n == l.size {
			if l.size <= len(l.raw) {
				l.look(l.raw[:l.size])
			}
			l.pos += uint32(l.size)
			l.n, l.size = 0, 0
		}
	}
	return all, nil
}

// look looks at an FPDU, with its Markers. A wrong CRC is found in its turn.
func (l *Lookout) look(fpdu []byte) {
	e := l.e
	end := len(fpdu) - fpduCRCLen
	if e.rx.crc && CRC(0).Add(fpdu[:end]) != crcAt(fpdu[end:]) {
		return
	}
	if e.rx.mark.on {
		plain := fpdu[:0]
		for i := 0; i < len(fpdu); i += markerLen { // FPDUs and Markers begin at multiples of that
			if (l.pos+uint32(i))%markerEvery != 0 {
				plain = append(plain, fpdu[i:i+markerLen]...)
			}
		}
		fpdu = plain
	}
	e.Notice(fpdu[fpduHeaderLen:][:binary.BigEndian.Uint16(fpdu)])
}
