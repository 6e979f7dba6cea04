package iwarp

import (
	"encoding/binary"
	"errors"
)

// errHold says that a Send or Immediate Data has to wait for a buffer. It never leaves the package.
var errHold = errors.New("hold")

// A receiver is the receiving half of an Endpoint.
type receiver struct {
	crc     bool
	ird     uint32
	opcodes Opcode // those below are known
	queues  uint32 // and those queues exist

	// buf gathers an FPDU that came in parts, or holds one that waits for a buffer.
	buf     []byte
	n       int  // octets in buf
	checked bool // buf holds a whole FPDU with a good CRC
	ended   bool // nothing may come any more
	mark    unmarker

	stalled bool
	early   []byte   // a Terminate that came ahead of order
	lookout *Lookout // nil until one was needed
	// The last header of a message that waits for a buffer, or for its delivery.
	heldHeader [UntaggedHeaderLen]byte
	heldLen    int
	heldOp     Opcode

	msn, rmsn, amsn MSN // next of QN 0, QN 1 and QN 3

	// The untagged message that has come in part.
	open     openMessage
	openOp   Opcode
	size     uint32 // of the buffer
	count    uint64 // octets so far
	header   [terminateMaxMsg]byte
	deferred openMessage // a whole message that waits for an unfinished tagged one
	received Received
	request  txResponse // Read or Atomic Request that waits
	atomic   Atomic     // what that Atomic Request asks for
	response struct {   // Atomic Response that waits
		token, old uint64
	}

	writeOpen, respOpen bool // the last segment of this kind had L=0
	respGot             uint32

	// Buffers that were taken for messages of QN 0 whose first segment in order has not come: the
	// oldest is for msn, or for the message behind it if one is open. See Ahead.
	taken begunBuffers
}

// An openMessage says what kind of untagged message is there in part.
type openMessage uint8

const (
	openNone openMessage = iota
	openSend
	openImmediate
	openRequest // on QN 1
	openResponse
	openTerminate
)

func (r *receiver) init(p *Params, extensions bool) {
	r.opcodes, r.queues = opBase, qnBase
	if extensions {
		r.opcodes, r.queues = opKnown, qnKnown
	}
	r.crc = p.CRC
	r.mark.on = p.MarkersIn
	r.ird = uint32(p.IRD)
	r.msn, r.rmsn, r.amsn = 1, 1, 1
}

// Write takes octets of the stream. FPDUs that are whole in b are checked and placed from there;
// one that is cut is gathered. b is borrowed for the call.
//
// It takes all of b, but for a message without a receive buffer: then it stops before that FPDU, or
// keeps it if it had been cut, and returns ErrNoReceive; see Resume. Behind an error, which is in
// Err only, everything is taken and dropped (DDP-091).
func (e *Endpoint) Write(b []byte) (n int, err error) {
	r := &e.rx
	if r.ended && len(b) > 0 {
		e.fail(localErrorf(TermClosed, "%d octets behind the end of the stream", len(b)), 0, nil, 0)
	}
	if r.checked && e.err == nil {
		if err := e.Resume(); err != nil {
			return 0, err
		}
	}
	if r.mark.on {
		return e.writeMarked(b)
	}
	for n < len(b) {
		if e.err != nil {
			e.stats.Dropped += uint64(len(b) - n)
			return len(b), nil
		}
		if r.n == 0 && len(b)-n >= fpduHeaderLen {
			ulpdu := int(binary.BigEndian.Uint16(b[n:]))
			if size := FPDULen(ulpdu); len(b)-n >= size {
				if e.fpdu(b[n:n+size:n+size], ulpdu, false) == errHold {
					return n, ErrNoReceive
				}
				e.stats.OctetsIn += uint64(size)
				n += size
				continue
			}
		}
		n += r.gather(b[n:])
		if !r.whole() {
			continue
		}
		e.stats.OctetsIn += uint64(r.n)
		if e.fpdu(r.buf[:r.n:r.n], int(binary.BigEndian.Uint16(r.buf)), false) == errHold {
			r.checked = true
			return n, ErrNoReceive
		}
		r.n = 0
	}
	return n, nil
}

// gather adds octets of b to buf, up to the end of the FPDU, and says how many.
func (r *receiver) gather(b []byte) int {
	want := fpduHeaderLen
	if r.n >= fpduHeaderLen {
		want = FPDULen(int(binary.BigEndian.Uint16(r.buf)))
	}
	if cap(r.buf) < want {
		size := max(want, 2048)
		if size > 2048 {
			size = MaxFPDU // at most once more
		}
		buf := make([]byte, size)
		copy(buf, r.buf[:r.n])
		r.buf = buf
	}
	r.buf = r.buf[:cap(r.buf)]
	k := copy(r.buf[r.n:want], b)
	r.n += k
	return k
}

func (r *receiver) whole() bool {
	return r.n > fpduHeaderLen && r.n == FPDULen(int(binary.BigEndian.Uint16(r.buf)))
}

// Stalled says that a Send or Immediate Data waits for a receive buffer. How long it may wait (5 s
// by default) is for the owner to say: Fail(TermNoBuffer, err) ends it.
func (e *Endpoint) Stalled() bool { return e.rx.stalled && e.err == nil }

// Resume takes a buffer for the message that waits for one; call it when a buffer has been posted,
// and go on reading the stream then: the message may be there still. ErrNoReceive: there is no
// buffer yet.
func (e *Endpoint) Resume() error {
	r := &e.rx
	if !r.stalled || e.err != nil {
		return nil
	}
	size, ok := e.receiveBuffer()
	if !ok {
		return ErrNoReceive
	}
	// The FPDU that comes next is the one that was held, here or in the transport.
	r.stalled = false
	r.begin(r.heldOp, size)
	if r.checked {
		r.checked = false
		n := r.n
		r.n = 0
		_ = e.fpdu(r.buf[:n:n], int(binary.BigEndian.Uint16(r.buf)), true)
	}
	return nil
}

// fpdu takes one whole FPDU: the CRC first, and only then the segment in it. errHold: it has to
// come again; other faults are in e.err.
func (e *Endpoint) fpdu(b []byte, ulpdu int, checked bool) error {
	r := &e.rx
	seg := b[fpduHeaderLen : fpduHeaderLen+ulpdu : fpduHeaderLen+ulpdu]
	if r.crc && !checked {
		end := len(b) - fpduCRCLen
		want := crcAt(b[end:])
		got := r.mark.crc
		if !r.mark.on {
			got = CRC(0).Add(b[:end])
		}
		if got != want {
			e.stats.CRCErrors++
			if want == 0 && e.stats.FPDUsIn == 0 && e.startupTerminate(seg) {
				return nil
			}
			// "Once MPA delivers an error of any type, it MUST NOT pass or deliver any
			// additional FPDUs on that half connection." RFC 5044, section 8. Closing is
			// left to the owner, so that a Terminate can still go out.
			e.fail(localErrorf(TermCRC, "FPDU of %d octets: CRC %08x, computed %08x", len(b), uint32(want),
				uint32(got)), 0, nil, 0)
			return nil
		}
	}
	if r.mark.on && r.mark.bad && !checked {
		e.fail(localErrorf(TermMarker, "a Marker says that its FPDU starts %d octets before it, the "+
			"last ULPDU_Length says %d", r.mark.got, r.mark.want), 0, nil, 0)
		return nil
	}
	// MPA finds it valid: a Responder may send now, be it a Terminate (docs/decisions.md#M12, #M14).
	if !e.tx.open {
		e.tx.open = true
		e.tx.stale()
	}
	if e.cfg.Trace != nil && !checked {
		e.cfg.Trace(false, seg)
	}
	if err := e.segment(seg, len(seg)); err != nil {
		return err
	}
	r.stalled = false
	e.stats.FPDUsIn++
	return nil
}

// startupTerminate takes a Terminate of siw for a failed set-up, which has a zero CRC field though
// CRCs were agreed (docs/interop.md#S8).
func (e *Endpoint) startupTerminate(seg []byte) bool {
	t, ok := wholeTerminate(seg)
	if !ok {
		return false
	}
	if t = ofStartup(t); t.Cause.Layer != LayerLLP {
		return false
	}
	e.peerTerminated(t)
	return true
}

// ofStartup reads a Terminate that is a peer's first FPDU: without copies, what looks like 0/2/05
// to 0/2/07 is siw's form of 2/0/05 to 2/0/07, which occur there only (docs/interop.md#S12).
func ofStartup(t Terminate) Terminate {
	c := t.Cause
	if c.Layer == LayerRDMAP && c.Type == 2 && c.Code >= 5 && c.Code <= 7 && !t.HasLength &&
		len(t.Header) == 0 {
		t.Cause, t.Swapped = TermCode{LayerLLP, 0, c.Code}, true
	}
	return t
}
