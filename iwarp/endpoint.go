package iwarp

import (
	"errors"
	"math"
)

// A Config holds what an Endpoint's owner can choose. The zero value is fine.
type Config struct {
	// SendQueue is how many messages may be posted and not sent; 0 is 64.
	SendQueue int
	// EMSS is the transport's at the start; 0 is 536. See SetEMSS.
	EMSS int
	// MULPDU overrides the size that follows from EMSS, so that FPDUs are cut by TCP: fewer and
	// larger ones, which hardware peers refuse. 0 is off; else 128..64768.
	MULPDU int
	// BatchBytes bounds Len, so that what comes up in between is not held back for long; 0 is
	// 256 KiB. One FPDU is always possible.
	BatchBytes int
	// Extensions says that both programs have agreed on the messages of RFC 7306: atomics and
	// immediate data (section 1.1 leaves that to them). Otherwise none is sent, and one that
	// comes is refused as an unexpected opcode.
	Extensions bool
	// Records says that the LLP keeps the bounds of segments and their order by itself, as DDP over
	// SCTP does: what is sent is one bare segment at a time, which Commit takes whole or not, and
	// what comes in goes to Segment and Ahead. Both ends may send at once. CRC and Markers mean
	// nothing; MULPDU is the LLP's: see SetMULPDU.
	Records bool
	// PlaceReceive is Host.PlaceReceive for the i-th of the buffers that BeginReceive has given and
	// EndReceive has not ended, 0 being the oldest; PlaceRead is Host.PlaceRead for the Read that was
	// posted with token. They are for what comes ahead of order, and may be nil: then only the oldest
	// is placed into. An error of theirs, as of other calls from Ahead, is not the stream's.
	PlaceReceive func(i int, off uint32, chunk []byte) error
	PlaceRead    func(token uint64, off uint32, chunk []byte) error
	// Trace, if set, is shown every segment: when it has come in with a good CRC, and when it is
	// built to be sent, which can happen twice. seg is good for the call only; see DescribeSegment.
	Trace func(sent bool, seg []byte)
}

// MaxRecord is the length of the longest segment with Config.Records: 64 KiB and the headers of a
// segment. DDP itself has no limit.
const MaxRecord = 64<<10 + 64

func (c *Config) maxMULPDU() int {
	if c.Records {
		return MaxRecord
	}
	return MaxMULPDU
}

const (
	defaultSendQueue  = 64
	defaultEMSS       = 536
	defaultBatchBytes = 256 << 10
	maxBatchFPDUs     = 512
)

// An Endpoint is RDMAP over DDP over MPA on one TCP stream in Full Operation, or, with
// Config.Records, over an LLP that keeps segments apart.
//
// It has one owner at a time, who alone calls it and its results: Write for what comes in (through
// Stream.ReadInto), Read and Commit for what goes out (through Stream.WriteFrom). It calls its
// Host from inside these. A Host or Payload must not call back, but for Post from Sent, EndReceive,
// EndRead and EndAtomic.
//
// It does not close the stream; the owner does, when Drained says that all has gone out, and then
// calls Close.
type Endpoint struct {
	p    Params
	host Host
	cfg  Config

	err  error // *LocalError or *PeerError; the first one
	term Terminate
	// termCopies backs term.Header and term.ReadRequest.
	termCopies [UntaggedHeaderLen + ReadRequestLen]byte
	termState  termState
	closed     bool

	stats Stats
	tx    sender
	rx    receiver
}

// A termState is where the one Terminate of a stream is.
//
//	none -> behind | next -> sent
//	next -> now -> sent
//	none, behind, next, now -> received
type termState uint8

const (
	termNone     termState = iota
	termBehind             // goes out in place of the message that could not be read
	termNext               // goes out behind the answers to what the peer has asked for before
	termNow                // goes out behind the FPDU in progress
	termSent               // the transport owns it
	termReceived           // the peer's came: nothing is sent any more
)

// NewEndpoint starts Full Operation with what the start-up agreed on. It makes all it needs in
// steady state but the buffers for cut FPDUs, which grow to the size of the longest one met.
func NewEndpoint(p Params, h Host, cfg Config) *Endpoint {
	if cfg.SendQueue <= 0 {
		cfg.SendQueue = defaultSendQueue
	}
	if cfg.EMSS <= 0 {
		cfg.EMSS = defaultEMSS
	}
	if cfg.BatchBytes <= 0 {
		cfg.BatchBytes = defaultBatchBytes
	}
	if cfg.MULPDU != 0 {
		cfg.MULPDU = min(max(cfg.MULPDU, MinMULPDU), cfg.maxMULPDU())
	}
	e := &Endpoint{p: p, host: h, cfg: cfg}
	if cfg.Records {
		e.p.CRC, e.p.MarkersIn, e.p.MarkersOut = false, false, false
	}
	e.tx.init(&e.p, cfg.SendQueue)
	if cfg.Records { // and a Responder may send at once: docs/decisions.md#D7
		e.tx.bare, e.tx.open = true, true
	}
	e.SetEMSS(cfg.EMSS)
	e.rx.init(&e.p, cfg.Extensions)
	return e
}

// SetEMSS says how many octets TCP puts into a segment at present. Octets that were read are not
// cut again; call it between Commit and the next WriteFrom.
func (e *Endpoint) SetEMSS(emss int) {
	n := e.cfg.MULPDU
	if n == 0 {
		n = MULPDU(emss)
		if e.tx.mark {
			n = MULPDUMarkers(emss)
		}
	}
	if !e.tx.crc || e.tx.mark || e.tx.bare {
		emss = 0
	}
	if n != e.tx.mulpdu || emss != e.tx.emss {
		e.tx.mulpdu, e.tx.emss = n, emss
		e.tx.stale()
	}
}

// SetMULPDU is SetEMSS for an LLP that says how long a segment may be.
func (e *Endpoint) SetMULPDU(n int) {
	e.cfg.MULPDU = min(max(n, MinMULPDU), e.cfg.maxMULPDU())
	e.SetEMSS(0)
}

// MULPDU is the length of the longest segment that is sent at present.
func (e *Endpoint) MULPDU() int { return e.tx.mulpdu }

// Params is what the start-up agreed on.
func (e *Endpoint) Params() Params { return e.p }

// Err is what ended the stream: a *LocalError for a fault found here, a *PeerError for a Terminate
// of the peer, nil while it is well.
func (e *Endpoint) Err() error { return e.err }

// Established says that FPDUs may be sent: at once for an Initiator, for a Responder when the
// first valid FPDU has come (RFC 5044, section 7.1.2 (4)).
func (e *Endpoint) Established() bool { return e.tx.open }

// Terminate is the content of the Terminate that was made here (sent: and not only for the local
// record, see Terminating) or received; ok is false if there is none.
func (e *Endpoint) Terminate() (t Terminate, sent, ok bool) {
	return e.term, e.termState != termReceived, e.termState != termNone
}

// Terminating says that a Terminate is waiting to go out. A Responder whose first FPDU was not
// valid sends none (docs/decisions.md#M12).
func (e *Endpoint) Terminating() bool {
	return e.tx.open && e.termState >= termBehind && e.termState <= termNow
}

// Drained says that nothing is left to send: all that was posted and all answers to the peer's
// Reads and atomics, or, after an error, the Terminate.
func (e *Endpoint) Drained() bool {
	if e.closed || e.termState == termReceived {
		return true
	}
	if !e.tx.open {
		return e.err != nil || e.tx.empty()
	}
	if len(e.tx.carry) > 0 {
		return false
	}
	switch e.termState {
	case termNone:
		return e.tx.empty()
	case termSent:
		return true
	default:
		return false
	}
}

// Idle says that nothing is outstanding either way: all is sent, every Read and atomic of ours and
// of the peer's is answered, and no inbound message is half there.
func (e *Endpoint) Idle() bool {
	return e.Drained() && e.tx.readsPosted == e.tx.readsDone && !e.InMessage()
}

// InMessage says that an FPDU or a message has come in part: an end of the stream would cut it.
func (e *Endpoint) InMessage() bool {
	r := &e.rx
	return r.n > 0 || r.mark.open || r.mark.n > 0 || r.writeOpen || r.respOpen || r.open != openNone ||
		r.deferred != openNone
}

// ReadsOutstanding is how many Reads and atomics are posted and not answered; a ready-to-receive
// Read counts.
func (e *Endpoint) ReadsOutstanding() int { return int(e.tx.readsPosted - e.tx.readsDone) }

// Stats is what has happened so far.
func (e *Endpoint) Stats() Stats { return e.stats }

// Fail ends the stream for a fault found by the owner, with one Terminate. Only the first error of
// a stream counts. TermNoBuffer after a stall names the Send that was held.
func (e *Endpoint) Fail(c TermCode, err error) {
	var seg []byte
	if e.rx.stalled && c == TermNoBuffer {
		seg = e.rx.heldHeader[:]
	}
	e.fail(&LocalError{c, err}, OpSend, seg, e.rx.heldLen)
}

// EndInput says that the peer has ended its half of the stream gracefully and that all of it has
// been taken; Stalled says no. If that cut an FPDU or a message, the stream fails with TermClosed,
// and so it does if octets come all the same (RFC 5041, section 6.2.1). Else the other half goes on
// as before. It is for Streams that could give more behind their end; those of vnic do not, and a
// cut message is a lost connection there, as to other RNICs.
func (e *Endpoint) EndInput() {
	if e.InMessage() {
		e.fail(localErrorf(TermClosed, "the peer's half of the stream ended within a message"), 0, nil, 0)
	}
	e.rx.ended = true
}

// Close gives back the Payloads of the Reads that were not answered (Host.EndReadSource) and drops
// what was posted, without a word to the Host: Sent is not called. Nothing is sent or taken any
// more.
func (e *Endpoint) Close() {
	if e.closed {
		return
	}
	e.closed = true
	if e.err == nil {
		e.err = ErrEnded
	}
	e.tx.abandon(e.host)
}

// fail records the first error and queues its Terminate. seg is the header of the inbound segment
// concerned, segLen the length of the segment; nil for faults without one.
func (e *Endpoint) fail(le *LocalError, op Opcode, seg []byte, segLen int) {
	if e.err != nil {
		return
	}
	e.err = le
	e.stats.LocalErrors++
	e.term = Terminate{Cause: le.Cause}
	if ddp, _ := le.Cause.copies(op); ddp && len(seg) > 0 {
		n := copy(e.termCopies[:UntaggedHeaderLen], seg)
		e.term.HasLength, e.term.Length = true, uint16(min(segLen, math.MaxUint16))
		e.term.Header = e.termCopies[:n]
	}
	e.termState = termNext
	e.tx.stale()
}

// localError makes a *LocalError of what a Host or Payload returned.
func localError(err error, otherwise TermCode) *LocalError {
	var le *LocalError
	if errors.As(err, &le) {
		return le
	}
	return &LocalError{otherwise, err}
}

// peerTerminated records the peer's Terminate: nothing is sent any more (RDMAP-080).
func (e *Endpoint) peerTerminated(t Terminate) {
	e.term = t
	n := copy(e.termCopies[:], t.Header)
	e.term.Header = e.termCopies[:n:n]
	m := copy(e.termCopies[UntaggedHeaderLen:], t.ReadRequest)
	e.term.ReadRequest = ReadRequest(e.termCopies[UntaggedHeaderLen : UntaggedHeaderLen+m])
	e.termState = termReceived
	e.err = &PeerError{Cause: t.Cause, Swapped: t.Swapped}
	e.stats.PeerErrors++
	e.tx.stale()
}

// Stats counts what an Endpoint did. Octets are those of FPDUs, framing included.
type Stats struct {
	FPDUsIn, FPDUsOut     uint64
	OctetsIn, OctetsOut   uint64
	PayloadIn, PayloadOut uint64
	MessagesIn            [opKnown]uint64 // by Opcode, whole messages
	MessagesOut           [opKnown]uint64
	CRCErrors             uint64
	Stalls                uint64 // Sends and Immediate Data that found no buffer
	Dropped               uint64 // octets that came behind an error
	Ahead                 uint64 // segments that were placed ahead of order
	LocalErrors           uint64
	PeerErrors            uint64
}

// ringRoom is what an entry of a ring takes at most, octets.
const ringRoom = 112

// Memory is about how many octets the Endpoint has for FPDUs that are cut, and for what is under
// way, both of which grow with what is asked of it.
func (e *Endpoint) Memory() int {
	t := &e.tx
	rings := len(t.ring) + len(t.answers) + len(t.readRing) + cap(t.plan)
	return cap(e.rx.buf) + cap(e.rx.early) + cap(t.carry) + cap(t.stage) + rings*ringRoom
}
