// Package stream is the Link over a stream of octets or records: iwarp's Endpoint on TCP, on a
// session of SCTP (RFC 5043), or on a pipe in memory. What each of them can do llp.Stream says.
package stream

import (
	"errors"
	"io"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/internal/prefetch"
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Config says what the two ends have agreed on, and what the Endpoint has to know beside.
type Config struct {
	Param      iwarp.Params
	Extensions bool // RFC 7306
	MULPDU     int  // octets of the longest DDP segment; 0: as they fit
	// Nudge is when a peer that is silent after the start is sent a zero-length Write; 0: never.
	Nudge time.Duration
}

// A Link is a link.Link over an llp.Stream. It is the iwarp.Host of its Endpoint.
type Link struct {
	link.Basic
	qp   link.QP
	work *wqe.Requests
	llp.End
	ep *iwarp.Endpoint // to be asked
	// eng is ep to be changed, or what records that; to and from are the same for octets.
	eng  engine
	to   io.Writer
	from iwarp.Source

	out wqe.Source // what is sent is read by it; within send
	in  mem.Hold   // what is received is placed by it; within receive

	readable bool
	blocked  bool // the transport had no room
	moved    int  // octets, in this step
	failed   bool // an error of ep has been dealt with
	refused  bool // ep's error is that of a callback that checks the peer's rights
	stalled  bool // as ep.Stalled, when last looked at
	look     lookState
	dropping bool // the Send under way is for nobody
	dropped  bool // there was one

	mapped bool // within SendMapped
	rtrDue bool // the peer's ready-to-receive message comes first: RFC 6581, section 5

	nudge  time.Duration // as Config.Nudge
	nudges int           // zero-length Writes sent so far to a peer that is silent: see Expire

	atomic  iwarp.Atomic // scratch: the one that the peer asks for
	msn     uint32       // of the last message on QN 1: a Read or an atomic
	short   uint64       // segments of the Send under way that are tiny
	octets  uint64       // of Writes placed, not yet counted
	use     collectedFor // of what in has collected
	read    *wqe.Request // the oldest Read, if known
	answers wqe.Answers
}

// An engine is an iwarp.Endpoint, or one that is recorded.
type engine interface {
	llp.Sink
	io.Writer
	iwarp.Source
	Commit(n int)
	Notice(seg []byte)
	Resume() error
	SetEMSS(n int)
	SetMULPDU(n int)
	PostSend(token uint64, op iwarp.Opcode, inv iwarp.STag, p iwarp.Payload, n uint32) error
	PostWrite(token uint64, stag iwarp.STag, to uint64, p iwarp.Payload, n uint32) error
	PostRead(token uint64, sink iwarp.STag, sinkTO uint64, n uint32, src iwarp.STag,
		srcTO uint64) error
	PostAtomic(token uint64, a iwarp.Atomic) error
	PostImmediate(token uint64, se bool, data uint64) error
	Close()
}

// Tokens of messages that are no request, or the Write of a Write with immediate data. Requests
// have 32-bit ones.
const (
	firstToken = 1 << 62
	nudgeToken = firstToken
	partToken  = firstToken + 1
)

// New makes a link of qp over s, which it owns.
func New(qp link.QP, s llp.Stream, c Config) *Link {
	p := c.Param
	w := &Link{qp: qp, work: qp.Work(), readable: true, nudge: c.Nudge}
	w.End.Init(s)
	cfg := iwarp.Config{
		SendQueue: min(w.work.Depth(), 128), EMSS: s.EMSS(), MULPDU: c.MULPDU, Extensions: c.Extensions,
	}
	if w.Props.Records {
		cfg.Records, cfg.MULPDU = true, s.EMSS()
	}
	if t := qp.Tape(); t != nil {
		t.Between(w.Props.Transport.String(), s.LocalAddr().String(), s.RemoteAddr().String())
		e := record.NewEndpoint(t, p, w, cfg)
		w.ep, w.eng, w.to, w.from = e.Endpoint, e, e, e
	} else {
		w.ep = iwarp.NewEndpoint(p, w, cfg)
		w.eng, w.to, w.from = w.ep, w.ep, w.ep
	}
	w.Endpoint = w.eng
	if p.Initiator && p.PeerToPeer && p.RTR == iwarp.RTRRead {
		w.msn = 1
	}
	w.rtrDue = !p.Initiator && p.PeerToPeer
	w.answers.Init(&w.out, int(p.IRD))
	// What SCTP brings ahead of order is placed at once: who placed it is told whether that went
	// well.
	w.in.SetCollect(!w.Props.Ahead)
	return w
}

// aheadOf is the Endpoint of a Link. What it finds ahead of order it finds again in order, so that
// it is no fault before.
type aheadOf struct {
	engine
	w *Link
}

func (a aheadOf) Ahead(seg []byte) (keep int) {
	was := a.w.refused
	keep = a.engine.Ahead(seg)
	a.w.refused = was
	return keep
}

// Open implements link.Link.
func (w *Link) Open() {
	w.Watch(w.qp)
	w.S.SetPrefetch(w.prefetch)
	_ = w.S.Attach(aheadOf{w.eng, w}) // an error is the end of the stream, which the first step sees
	if w.Props.Transport == llp.TCP {
		w.awaitPeer()
	}
}

// Prefetch implements link.Link.
func (w *Link) Prefetch() { w.S.Prefetch() }

// prefetch asks for what messages need of w and its QP.
func (w *Link) prefetch() {
	prefetch.Read(w.qp.Front())
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w)))
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(w.ep)), unsafe.Sizeof(*w.ep)))
}

// HalfCloses implements link.Link.
func (w *Link) HalfCloses() bool { return true }

// Abandon implements link.Link.
func (w *Link) Abandon() { w.S.Abandon() }

// Movable implements link.Link.
func (w *Link) Movable() bool { return llp.Movable(w.S) }

// MoveTo implements link.Link.
func (w *Link) MoveTo(own, peers iwarp.Stream) (done <-chan struct{}, moved func() bool) {
	return llp.MoveTo(w.S, own, peers)
}

// Step implements link.Link.
func (w *Link) Step() (moved int, more bool) {
	w.moved = 0
	more = w.step()
	return w.moved, more
}

func (w *Link) step() (more bool) {
	qp := w.qp
	if w.TakeChange() {
		w.readable, w.blocked = true, false
	}
	if qp.State() == rdma.QPClosing {
		return w.receiveNothing()
	}
	if w.receive() {
		more = true
	}
	if w.Over { // lost
		return false
	}
	w.work.Retire() // a Read that was answered may be what the next request waits for
	if w.send() {
		more = true
	}
	return more
}

// receive takes what has come in. true: there is more.
func (w *Link) receive() (more bool) {
	qp := w.qp
	if w.stalled && !w.resume() {
		return w.lookBehind()
	}
	left := link.TurnOctets
	for w.readable && !qp.Ended() {
		if left <= 0 {
			return true
		}
		var n int
		var err error
		if !w.Props.Records && (qp.Blocking() || len(w.Stage.Waiting()) > 0) {
			n, err = w.ReadStaged(w.to)
		} else {
			n, err = w.S.ReadInto(w.to)
		}
		w.placed()
		w.readable = n > 0 // an end shows only when nothing is left
		if n > 0 {
			if w.look == lookNone {
				qp.SetDeadline(0)
			}
			qp.Moved()
		}
		left -= n
		w.moved += n
		w.checkEndpoint()
		if w.Over {
			return false
		}
		if w.ep.Stalled() {
			// What is behind the Send stays in the transport.
			w.stalled = true
			if !w.resume() {
				w.readable = true
				return w.lookBehind()
			}
			continue
		}
		switch {
		case n > 0, err == nil:
		case errors.Is(err, io.EOF):
			if w.ep.InMessage() && qp.State() == rdma.QPRTS {
				qp.Lost(link.ErrPeerClosed)
				return false
			}
			qp.EOF()
		default:
			qp.Lost(err)
			return false
		}
	}
	return false
}

// placed ends a round of placing octets.
func (w *Link) placed() {
	if err := w.settle(); err != nil {
		le := err.(*iwarp.LocalError)
		w.eng.Fail(le.Cause, le.Err)
	}
	w.in.Drop()
	w.in.Release()
	if w.octets > 0 {
		w.work.Stats.RecvOctets.Add(w.octets)
		w.octets = 0
	}
}

// resume tries to deliver the Send that waits for a receive.
func (w *Link) resume() bool {
	qp := w.qp
	_ = w.eng.Resume()
	w.placed()
	w.checkEndpoint()
	if w.ep.Stalled() {
		if qp.State() == rdma.QPRTS {
			qp.AwaitReceive()
		}
		return false
	}
	w.stalled, w.readable = false, true
	qp.GotReceive()
	return true
}

// LookEvery is the time between two looks at what a Send that waits for a receive holds back. Most
// wait for less: a look goes through all that the transport has.
const LookEvery = 5 * time.Millisecond

// A lookState says when a Link looks behind a Send that waits.
type lookState uint8

const (
	lookNone lookState = iota
	lookSoon           // when the link's deadline is over
	lookNow            // it is
)

// lookBehind looks, once after each change and not too often, at what a Send that waits for a
// receive holds back: of that nothing is read, but a Terminate and the end of the connection do not
// wait. true: the Send does not either.
func (w *Link) lookBehind() (more bool) {
	if !w.readable || w.qp.Ended() || w.look == lookSoon {
		return false
	}
	if w.look == lookNone {
		w.look = lookSoon
		w.qp.SetDeadline(LookEvery)
		return false
	}
	w.look = lookNone
	w.readable = false
	behind := watcher{w.lookout(), w.eng}
	_, _ = behind.Write(w.Stage.Waiting())
	err := w.S.Peek(behind)
	w.placed() // SCTP places what comes ahead of its turn
	w.checkEndpoint()
	switch {
	case w.Over:
		return false
	case !w.ep.Stalled():
		return true
	case errors.Is(err, io.EOF):
		w.qp.PeerEnds()
	case err != nil:
		w.qp.Lost(err)
	}
	return false
}

// lookout is what octets behind a Send that waits are shown to.
func (w *Link) lookout() io.Writer {
	if e, ok := w.eng.(*record.Endpoint); ok {
		return e.Lookout()
	}
	return w.ep.Lookout()
}

// A watcher is the llp.Watcher of a Link.
type watcher struct {
	io.Writer
	eng engine
}

func (b watcher) Notice(seg []byte) { b.eng.Notice(seg) }

// checkEndpoint deals with an error of the Endpoint, once.
func (w *Link) checkEndpoint() {
	if w.failed {
		return
	}
	err := w.ep.Err()
	if err == nil {
		return
	}
	w.failed = true
	var local *iwarp.LocalError
	var peer *iwarp.PeerError
	switch {
	case errors.As(err, &peer):
		w.qp.PeerTerminated(peer.Cause, w.culprit())
	case errors.As(err, &local):
		from := link.ByLink
		if w.refused || w.out.Refused {
			from = link.Refused
		}
		w.qp.Fail(local, from)
	default:
		w.qp.Lost(err)
	}
}

// culprit returns the Read or atomic that the peer's Terminate is about, if it can be told.
func (w *Link) culprit() *wqe.Request {
	t, _, ok := w.ep.Terminate()
	if !ok || t.Cause.Layer != iwarp.LayerRDMAP {
		return nil
	}
	if len(t.ReadRequest) > 0 {
		for e := range w.work.Answered() {
			if e.WR.Op != rdma.OpRead {
				continue
			}
			stag, to := sink(e)
			if t.ReadRequest.SinkSTag() == stag && t.ReadRequest.SinkTO() == to &&
				uint32(t.ReadRequest.SrcSTag()) == e.WR.RKey && t.ReadRequest.SrcTO() == e.WR.RemoteAddr {
				return e
			}
		}
	}
	if h := iwarp.UntaggedHeader(t.Header); len(h) == iwarp.UntaggedHeaderLen && h.DDP() != 0 {
		if h.QN() != 1 {
			return nil
		}
		for e := range w.work.Answered() {
			if e.MSN == uint32(h.MSN()) {
				return e
			}
		}
	}
	// Only Read Requests, atomics and invalidations cause these, and the answers come in order.
	if t.Cause.Code != iwarp.TermInvalidateNotAssociated.Code {
		return w.work.OldestAnswered()
	}
	return nil
}

// send gives the transport what is posted and what answers the peer's Reads.
func (w *Link) send() (more bool) {
	more = w.sendSome()
	w.S.Flush()
	return more
}

func (w *Link) sendSome() (more bool) {
	qp := w.qp
	left, fails := link.TurnOctets, 0
	for {
		posted := w.fill()
		if w.Over || w.blocked || !w.ep.Pending() {
			if !w.blocked {
				w.out.Hold.Release() // no message is in the midst
			}
			return posted
		}
		if w.Props.Records {
			w.eng.SetMULPDU(w.S.EMSS())
		} else {
			w.eng.SetEMSS(w.S.EMSS())
		}
		n, err := w.S.WriteFrom(w.from)
		w.out.Hold.Drop()
		w.eng.Commit(n)
		w.checkEndpoint()
		w.work.Retire()
		if err != nil {
			if !w.out.Failed || fails == wqe.StepMessages {
				qp.Lost(err)
				return false
			}
			w.out.Failed = false
			fails++
			continue // a message could not be read: what is before it goes out, then the Terminate
		}
		if n == 0 {
			w.blocked = true
			return false
		}
		if w.failed {
			qp.Moved() // what the peer asked for before the Terminate is on its way
		}
		w.moved += n
		if left -= n; left <= 0 {
			return true
		}
	}
}

// SendMapped implements link.Link: send for who may not touch memory that can block.
func (w *Link) SendMapped() bool {
	// Perhaps a message from such memory is in the midst.
	if w.Changed() || w.blocked || w.ep.Pending() {
		return false
	}
	w.mapped = true
	more := w.send()
	w.mapped = false
	return !more && !w.blocked
}

// fill posts requests to the Endpoint; true: there may be more.
func (w *Link) fill() (more bool) {
	qp := w.qp
	for range wqe.StepMessages {
		if qp.State() != rdma.QPRTS || !w.ep.CanPost() {
			return false
		}
		e := w.work.Next()
		if e == nil {
			return false
		}
		// what is asked for is placed by who receives
		if w.mapped && e.List.Blocking() && !wqe.IsAnswered(e.WR.Op) {
			return true
		}
		if ok, err := w.work.Ready(e); err != nil {
			qp.Fail(err, link.ByQP)
			return false
		} else if !ok {
			if e.Done() {
				continue // it needed no link
			}
			return false
		}
		token := uint64(w.work.NextToken())
		var p iwarp.Payload
		if e.Total > 0 {
			e.ReadBy(&w.out)
			p = e
		}
		var err error
		switch e.WR.Op {
		case rdma.OpWrite:
			err = w.eng.PostWrite(token, iwarp.STag(e.WR.RKey), e.WR.RemoteAddr, p, e.Total)
		case rdma.OpRead:
			if !w.ep.CanPostRead() {
				return false
			}
			stag, to := sink(e)
			if err = w.eng.PostRead(token, stag, to, e.Total, iwarp.STag(e.WR.RKey),
				e.WR.RemoteAddr); err == nil {
				w.msn++
				e.MSN = w.msn
			}
		case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
			if !w.ep.CanPostRead() {
				return false
			}
			if err = w.eng.PostAtomic(token, e.Atomic()); err == nil {
				w.msn++
				e.MSN = w.msn
			}
		case rdma.OpSendImm:
			err = w.eng.PostImmediate(token, e.WR.Flags&rdma.Solicited != 0, e.Immediate())
		case rdma.OpWriteImm:
			// Two messages, of which the second completes the request: RFC 7306, section 6.
			if e.Total > 0 && !e.HalfPosted {
				if err = w.eng.PostWrite(partToken, iwarp.STag(e.WR.RKey), e.WR.RemoteAddr, p,
					e.Total); err != nil {
					break
				}
				e.HalfPosted = true
			}
			err = w.eng.PostImmediate(token, e.WR.Flags&rdma.Solicited != 0, e.Immediate())
		default:
			err = w.eng.PostSend(token, sendOpcode(&e.WR), iwarp.STag(e.WR.InvKey), p, e.Total)
		}
		if err != nil {
			if errors.Is(err, iwarp.ErrQueueFull) || errors.Is(err, iwarp.ErrReadLimit) ||
				errors.Is(err, iwarp.ErrEnded) {
				return false
			}
			w.work.Refuse(e, rdma.WCLocQPOp, err)
			continue
		}
		w.work.Posted(e)
	}
	return true
}

// sink is what a Read Request calls the place its answer goes to. The peer gives it back.
func sink(e *wqe.Request) (iwarp.STag, uint64) {
	if len(e.WR.SGEs) == 0 {
		return 0, 0
	}
	return iwarp.STag(e.WR.SGEs[0].LKey), e.WR.SGEs[0].Addr
}

func sendOpcode(wr *rdma.SendWR) iwarp.Opcode {
	switch se := wr.Flags&rdma.Solicited != 0; {
	case wr.Op == rdma.OpSendInv && se:
		return iwarp.OpSendSEInvalidate
	case wr.Op == rdma.OpSendInv:
		return iwarp.OpSendInvalidate
	case se:
		return iwarp.OpSendSE
	}
	return iwarp.OpSend
}

// receiveNothing waits for the peer's FIN: in Closing no FPDU may come (Q14), but what is behind a
// Send that was dropped. Of that a turn at most is passed over; true: there may be more.
func (w *Link) receiveNothing() (more bool) {
	qp := w.qp
	for w.readable && !qp.Ended() {
		if w.moved >= link.TurnOctets {
			return true
		}
		var d discard
		_, err := w.S.ReadInto(&d)
		w.moved += d.n
		if w.dropped && d.n > 0 && err == nil {
			continue
		}
		w.readable = false
		switch {
		case d.n > 0:
			qp.Lost(errAfterFIN)
		case errors.Is(err, io.EOF):
			qp.EOF()
		case err != nil:
			qp.Lost(err)
		}
	}
	return false
}

var errAfterFIN = errors.New("the peer sent data during the close")

type discard struct{ n int }

func (d *discard) Write(p []byte) (int, error) {
	d.n += len(p)
	return len(p), nil
}

// Idle implements link.Link. What an Initiator still owes is its ready-to-receive message: a FIN
// before that would meet it in Closing.
func (w *Link) Idle() bool {
	return w.ep.Idle() && len(w.Stage.Waiting()) == 0 && (!w.rtrDue || w.ep.Established())
}

// Terminate implements link.Link.
func (w *Link) Terminate(code iwarp.TermCode, err error) {
	w.failed = true
	w.eng.Fail(code, err)
}

// Terminated implements link.Link.
func (w *Link) Terminated() bool { return !w.ep.Pending() }

// CloseWrite implements link.Link.
func (w *Link) CloseWrite() { w.S.CloseWrite() }
