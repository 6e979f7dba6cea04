package vnic

import (
	"errors"
	"io"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// A wire is a link over a Stream. It is the iwarp.Host of its Endpoint.
type wire struct {
	qp  *QP
	s   llp.Stream
	llp llp.Properties // of s
	ep  *iwarp.Endpoint

	changed  atomic.Bool // set by the transport: more can be read or written, or it has ended
	readable bool
	blocked  bool // the transport had no room
	failed   bool // an error of ep has been dealt with
	refused  bool // ep's error is that of a callback that checks the peer's rights
	stalled  bool // as ep.Stalled, when last looked at
	unread   bool // a Payload could not be read

	// Octets of a staged context on their way from the transport to ep.
	stage  stageBuffer
	near   bool // within sendNear
	rtrDue bool // the peer's ready-to-receive message comes first: RFC 6581, section 5

	nudges int // zero-length Writes sent so far to a peer that is silent: see expire

	atomic  iwarp.Atomic // scratch: the one that the peer asks for
	msn     uint32       // of the last message on QN 1: a Read or an atomic
	short   uint64       // segments of the Send under way that are tiny
	octets  uint64       // of Writes placed, not yet counted
	use     farUse       // of what inHold has collected
	read    *sqe         // the oldest Read, if known
	sources []*readSource
}

// stageSize is how many octets a staged QP takes out of the transport at once.
const stageSize = 64 << 10

// A stageBuffer takes octets under the transport's lock, where memory that can block may not be
// touched.
type stageBuffer struct {
	b         []byte
	off, fill int
}

func (s *stageBuffer) Write(p []byte) (int, error) {
	n := copy(s.b[s.fill:], p)
	s.fill += n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Tokens of messages that are no request, or the Write of a Write with immediate data. Requests have
// 32-bit ones.
const (
	firstToken = 1 << 62
	nudgeToken = firstToken
	partToken  = firstToken + 1
)

// newWire uses of c what an Endpoint has to know.
func newWire(qp *QP, s llp.Stream, p iwarp.Params, c rdma.ConnParam) *wire {
	w := &wire{qp: qp, s: s, llp: s.Properties(), readable: true}
	cfg := iwarp.Config{SendQueue: min(int(qp.sq.mask)+1, 128), EMSS: s.EMSS(), MULPDU: int(c.MPA.MULPDU), Extensions: c.Extensions}
	if w.llp.Records {
		cfg.Records, cfg.MULPDU = true, s.EMSS()
	}
	w.ep = iwarp.NewEndpoint(p, w, cfg)
	if p.Initiator && p.PeerToPeer && p.RTR == iwarp.RTRRead {
		w.msn = 1
	}
	w.rtrDue = !p.Initiator && p.PeerToPeer
	w.sources = make([]*readSource, 0, p.IRD)
	// What SCTP brings ahead of order is placed at once: who placed it is told whether that went well.
	qp.inHold.SetCollect(!w.llp.Ahead)
	return w
}

// aheadOf is the Endpoint of a wire. What it finds ahead of order it finds again in order, so that it is no
// fault before.
type aheadOf struct {
	*iwarp.Endpoint
	w *wire
}

func (a aheadOf) Ahead(seg []byte) (keep int) {
	was := a.w.refused
	keep = a.Endpoint.Ahead(seg)
	a.w.refused = was
	return keep
}

// open asks to be told of changes. What came before is found by the first step.
func (w *wire) open() {
	w.s.SetNotify(func() {
		w.changed.Store(true)
		w.qp.wake()
	})
	w.s.SetPrompt(func(more func() bool) {
		w.changed.Store(true)
		l := w.qp.linger
		lingers := more != nil && l != nil && l.Expect()
		w.qp.kick()
		if lingers {
			l.Linger(more)
		}
	})
	if w.s.SetPrefetch(w.fetch) {
		w.qp.wire.Store(w)
	}
	w.changed.Store(true)
	_ = w.s.Attach(aheadOf{w.ep, w}) // an error is the end of the stream, which the first step sees
	if w.llp.Transport == llp.TCP {
		w.awaitPeer()
	}
}

func (w *wire) step() (more bool) {
	qp := w.qp
	if w.changed.Swap(false) {
		w.readable, w.blocked = true, false
	}
	if qp.State() == rdma.QPClosing {
		w.receiveNothing()
		return false
	}
	if w.receive() {
		more = true
	}
	if qp.link != w { // lost
		return false
	}
	qp.retire() // a Read that was answered may be what the next request waits for
	if w.send() {
		more = true
	}
	return more
}

// receive takes what has come in. true: there is more.
func (w *wire) receive() (more bool) {
	qp := w.qp
	if w.stalled && !w.resume() {
		w.s.Absorb()
		return false
	}
	left := stepOctets
	for w.readable && !qp.eof {
		if left <= 0 {
			return true
		}
		var n int
		var err error
		if !w.llp.Records && (qp.ctx.mem.Blocking() || w.stage.off < w.stage.fill) {
			n, err = w.receiveStaged()
		} else {
			n, err = w.s.ReadInto(w.ep)
		}
		w.placed()
		w.readable = n > 0 // an end shows only when nothing is left
		if n > 0 {
			w.qp.setDeadline(deadlineLink, 0)
			qp.stillSending()
		}
		left -= n
		w.checkEndpoint()
		if qp.link != w {
			return false
		}
		if w.ep.Stalled() {
			// What is behind the Send stays in the transport.
			w.stalled = true
			if !w.resume() {
				return false
			}
			continue
		}
		switch {
		case n > 0, err == nil:
		case errors.Is(err, io.EOF):
			if w.ep.InMessage() && qp.State() == rdma.QPRTS {
				qp.lost(errPeerClosed)
				return false
			}
			qp.eof = true
		default:
			qp.lost(err)
			return false
		}
	}
	return false
}

// receiveStaged takes one buffer out of the transport, and places it without any lock of the
// transport's.
func (w *wire) receiveStaged() (n int, err error) {
	g := &w.stage
	if g.b == nil {
		g.b = make([]byte, stageSize)
	}
	if g.off == g.fill {
		g.off, g.fill = 0, 0
		if n, err = w.s.ReadInto(g); n == 0 {
			return 0, err
		}
	}
	n, _ = w.ep.Write(g.b[g.off:g.fill])
	g.off += n
	return max(n, 1), nil // it has to be looked at again, also if all of it waits for a receive
}

// placed ends a round of placing octets.
func (w *wire) placed() {
	if err := w.settle(); err != nil {
		le := err.(*iwarp.LocalError)
		w.ep.Fail(le.Cause, le.Err)
	}
	w.qp.inHold.Drop()
	w.qp.inHold.Release()
	if w.octets > 0 {
		w.qp.stats.recvOctets.Add(w.octets)
		w.octets = 0
	}
}

// resume tries to deliver the Send that waits for a receive.
func (w *wire) resume() bool {
	qp := w.qp
	w.ep.Resume()
	w.placed()
	w.checkEndpoint()
	if w.ep.Stalled() {
		if qp.State() == rdma.QPRTS {
			qp.awaitReceive()
		}
		return false
	}
	w.stalled, w.readable = false, true
	qp.gotReceive()
	return true
}

// checkEndpoint deals with an error of the Endpoint, once.
func (w *wire) checkEndpoint() {
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
		w.qp.peerTerminated(peer.Cause, w.culprit())
	case errors.As(err, &local):
		from := errLink
		if w.refused {
			from = errRefused
		}
		w.qp.localError(local, from)
	default:
		w.qp.lost(err)
	}
}

// culprit returns the Read or atomic that the peer's Terminate is about, if it can be told.
func (w *wire) culprit() *sqe {
	t, _, ok := w.ep.Terminate()
	if !ok || t.Cause.Layer != iwarp.LayerRDMAP {
		return nil
	}
	s := &w.qp.sq
	if len(t.ReadRequest) > 0 {
		for i := s.head; i != s.next; i++ {
			e := s.at(i)
			if e.wr.Op != rdma.OpRead || e.state != sqePosted {
				continue
			}
			if stag, to := e.sink(); t.ReadRequest.SinkSTag() == stag && t.ReadRequest.SinkTO() == to &&
				uint32(t.ReadRequest.SrcSTag()) == e.wr.RKey && t.ReadRequest.SrcTO() == e.wr.RemoteAddr {
				return e
			}
		}
	}
	if h := iwarp.UntaggedHeader(t.Header); len(h) == iwarp.UntaggedHeaderLen && h.DDP() != 0 {
		if h.QN() != 1 {
			return nil
		}
		for i := s.head; i != s.next; i++ {
			if e := s.at(i); isRequest(e.wr.Op) && e.state == sqePosted && e.msn == uint32(h.MSN()) {
				return e
			}
		}
	}
	// Only Read Requests, atomics and invalidations cause these, and the answers come in order.
	if t.Cause.Code != iwarp.TermInvalidateNotAssociated.Code {
		return s.oldestRequest()
	}
	return nil
}

// send gives the transport what is posted and what answers the peer's Reads.
func (w *wire) send() (more bool) {
	more = w.sendSome()
	w.s.Flush()
	return more
}

func (w *wire) sendSome() (more bool) {
	qp := w.qp
	left, fails := stepOctets, 0
	for {
		posted := w.fill()
		if qp.link != w || w.blocked || !w.ep.Pending() {
			if !w.blocked {
				qp.outHold.Release() // no message is in the midst
			}
			return posted
		}
		if w.llp.Records {
			w.ep.SetMULPDU(w.s.EMSS())
		} else {
			w.ep.SetEMSS(w.s.EMSS())
		}
		n, err := w.s.WriteFrom(w.ep)
		qp.outHold.Drop()
		w.ep.Commit(n)
		w.checkEndpoint()
		qp.retire()
		if err != nil {
			if !w.unread || fails == stepMessages {
				qp.lost(err)
				return false
			}
			w.unread = false
			fails++
			continue // a message could not be read: what is before it goes out, then the Terminate
		}
		if n == 0 {
			w.blocked = true
			return false
		}
		if left -= n; left <= 0 {
			return true
		}
	}
}

// sendNear is send for who may not touch memory that can block. true: all is sent.
func (w *wire) sendNear() bool {
	if w.blocked || w.ep.Pending() { // perhaps a message from such memory is in the midst
		return false
	}
	w.near = true
	more := w.send()
	w.near = false
	return !more && !w.blocked
}

// fill posts requests to the Endpoint; true: there may be more.
func (w *wire) fill() (more bool) {
	qp := w.qp
	s := &qp.sq
	for range stepMessages {
		if qp.State() != rdma.QPRTS || !w.ep.CanPost() {
			return false
		}
		e := qp.nextSend()
		if e == nil {
			return false
		}
		if w.near && e.list.Blocking() && !isRequest(e.wr.Op) { // what is asked for is placed by who receives
			return true
		}
		if !qp.ready(e) {
			if e.state == sqeDone && qp.State() == rdma.QPRTS {
				continue // it needed no link
			}
			return false
		}
		token := uint64(s.next)
		var p iwarp.Payload
		if e.total > 0 {
			p = e
		}
		var err error
		switch e.wr.Op {
		case rdma.OpWrite:
			err = w.ep.PostWrite(token, iwarp.STag(e.wr.RKey), e.wr.RemoteAddr, p, e.total)
		case rdma.OpRead:
			if !w.ep.CanPostRead() {
				return false
			}
			stag, to := e.sink()
			if err = w.ep.PostRead(token, stag, to, e.total, iwarp.STag(e.wr.RKey), e.wr.RemoteAddr); err == nil {
				w.msn++
				e.msn = w.msn
			}
		case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
			if !w.ep.CanPostRead() {
				return false
			}
			if err = w.ep.PostAtomic(token, e.atomic()); err == nil {
				w.msn++
				e.msn = w.msn
			}
		case rdma.OpSendImm:
			err = w.ep.PostImmediate(token, e.wr.Flags&rdma.Solicited != 0, e.immediate())
		case rdma.OpWriteImm:
			// Two messages, of which the second completes the request: RFC 7306, section 6.
			if e.total > 0 && !e.half {
				if err = w.ep.PostWrite(partToken, iwarp.STag(e.wr.RKey), e.wr.RemoteAddr, p, e.total); err != nil {
					break
				}
				e.half = true
			}
			err = w.ep.PostImmediate(token, e.wr.Flags&rdma.Solicited != 0, e.immediate())
		default:
			err = w.ep.PostSend(token, sendOpcode(&e.wr), iwarp.STag(e.wr.InvKey), p, e.total)
		}
		if err != nil {
			if errors.Is(err, iwarp.ErrQueueFull) || errors.Is(err, iwarp.ErrReadLimit) || errors.Is(err, iwarp.ErrEnded) {
				return false
			}
			qp.log("send request refused", "op", e.wr.Op, "err", err)
			e.state, e.status, s.bad = sqeFailed, rdma.WCLocQPOp, true
			continue
		}
		qp.posted(e)
	}
	return true
}

// sink is what a Read Request calls the place its answer goes to. The peer gives it back.
func (e *sqe) sink() (iwarp.STag, uint64) {
	if len(e.wr.SGEs) == 0 {
		return 0, 0
	}
	return iwarp.STag(e.wr.SGEs[0].LKey), e.wr.SGEs[0].Addr
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

// receiveNothing waits for the peer's FIN: in Closing no FPDU may come (Q14).
func (w *wire) receiveNothing() {
	qp := w.qp
	if !w.readable || qp.eof {
		return
	}
	w.readable = false
	var d discard
	_, err := w.s.ReadInto(&d)
	switch {
	case d.n > 0:
		qp.lost(errAfterFIN)
	case errors.Is(err, io.EOF):
		qp.eof = true
	case err != nil:
		qp.lost(err)
	}
}

type discard struct{ n int }

func (d *discard) Write(p []byte) (int, error) {
	d.n += len(p)
	return len(p), nil
}

// idle reports whether nothing is under way. What an Initiator still owes is its ready-to-receive message:
// a FIN before that would meet it in Closing.
func (w *wire) idle() bool {
	return w.ep.Idle() && w.stage.off == w.stage.fill && (!w.rtrDue || w.ep.Established())
}

func (w *wire) terminate(code iwarp.TermCode, err error) {
	w.failed = true
	w.ep.Fail(code, err)
}

func (w *wire) terminated() bool { return !w.ep.Pending() }

func (w *wire) closeWrite() { w.s.CloseWrite() }

func (w *wire) close() {
	w.s.SetNotify(nil)
	w.s.Close()
	w.ep.Close()
}

func (w *wire) abort() {
	w.s.SetNotify(nil)
	w.s.Abort()
	w.ep.Close()
}
