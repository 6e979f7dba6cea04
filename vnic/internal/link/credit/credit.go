// Package credit is the Link of package roi: a stream of draft-bailey-roi-rdma-00 on TCP, on a
// session of SCTP, or on a pipe in memory. The receives that are posted are promised to the peer,
// whose Sends wait until there is one.
package credit

import (
	"errors"
	"io"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// A Config says what the two ends have agreed on.
type Config struct {
	Param     iwarp.Params
	Own, Peer roi.Setup
	MULPDU    int // octets of the longest segment; 0: as they fit
}

// A Link is a link.Link over an llp.Stream. It is the roi.Host of its Endpoint.
type Link struct {
	link.Basic
	qp   link.QP
	work *wqe.Requests
	llp.End
	ep *roi.Endpoint

	sends  bool // receives are promised
	mulpdu int  // as Config.MULPDU
	out    wqe.Source
	in     mem.Hold

	readable bool
	blocked  bool // the transport had no room
	stalled  bool // as ep.Stalled, when last looked at
	failed   bool // an error of ep has been dealt with
	refused  bool // it is that of a callback that checks the peer's rights
	moved    int  // octets, in this step

	octets uint64 // of Writes placed, not yet counted

	// How many Reads of the peer were answered, and of ours: the client's part of the
	// identifier of an answer is its number.
	answered, ended uint32
	answers         wqe.Answers
}

// New makes a link of qp over s, which it owns.
func New(qp link.QP, s llp.Stream, c Config) (*Link, error) {
	w := &Link{
		qp: qp, work: qp.Work(), readable: true, sends: c.Own.Sends, mulpdu: c.MULPDU,
	}
	w.End.Init(s)
	w.answers.Init(&w.out, 0)
	answers := int(c.Param.IRD)
	if answers == 0 {
		answers = -1 // to the Endpoint 0 is many
	}
	var err error
	w.ep, err = roi.NewEndpoint(w, roi.Config{
		Own: c.Own, Peer: c.Peer, Initiator: c.Param.Initiator, Records: w.Props.Records,
		CRC: c.Param.CRC, SendQueue: min(w.work.Depth(), 128), Reads: int(c.Param.ORD),
		Answers: answers,
	})
	w.Endpoint = w.ep
	return w, err
}

// Open implements link.Link.
func (w *Link) Open() {
	w.Watch(w.qp)
	_ = w.S.Attach(w.ep) // an error is the end of the stream, which the first step sees
	w.qp.Wake()
}

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
	if w.TakeChange() {
		w.readable, w.blocked = true, false
	}
	more = w.receive()
	if w.Over || w.qp.State() == rdma.QPClosing {
		return w.moved, more
	}
	w.work.Retire() // a Read that was answered may be what the next request waits for
	w.grant()
	return w.moved, w.send() || more
}

// receive takes what has come in. true: there is more.
func (w *Link) receive() (more bool) {
	if w.stalled && w.ep.Resume() == nil {
		w.placed()
		w.check()
		w.readable = true // what is behind it, or itself, is in the transport still
	}
	for left := link.TurnOctets; w.readable && !w.qp.Ended(); {
		if left <= 0 {
			return true
		}
		n, err := w.take()
		w.placed()
		w.readable = n > 0 // an end shows only when nothing is left
		if n > 0 {
			w.qp.Moved()
		}
		left -= n
		w.moved += n
		w.check()
		switch {
		case w.Over:
			return false
		case w.ep.Stalled():
			w.stalled = true
			w.qp.AwaitReceive()
			w.lookBehind()
			return false
		case w.stalled:
			w.stalled = false
			w.qp.GotReceive()
		}
		switch {
		case n > 0, err == nil:
		case !errors.Is(err, io.EOF):
			w.qp.Lost(err)
			return false
		case w.ep.InMessage() && w.qp.State() == rdma.QPRTS:
			w.qp.Lost(link.ErrPeerClosed)
			return false
		default:
			w.qp.EOF()
		}
	}
	return false
}

// take gives ep one piece of what the transport has.
func (w *Link) take() (n int, err error) {
	if w.Props.Records {
		return w.S.ReadInto(w.ep)
	}
	return w.ReadStaged(w.ep)
}

// lookBehind looks for the end of the connection behind a Send that waits for a receive.
func (w *Link) lookBehind() {
	switch err := w.S.Peek(nobody{}); {
	case errors.Is(err, io.EOF):
		w.qp.PeerEnds()
	case err != nil:
		w.qp.Lost(err)
	}
}

// nobody is an llp.Watcher that takes no notice.
type nobody struct{}

func (nobody) Write(p []byte) (int, error) { return len(p), nil }
func (nobody) Notice([]byte)               {}

// placed ends a round of placing octets.
func (w *Link) placed() {
	w.in.Drop()
	w.in.Release()
	if w.octets > 0 {
		w.work.Stats.RecvOctets.Add(w.octets)
		w.octets = 0
	}
}

// check deals with an error of the Endpoint, once.
func (w *Link) check() {
	err := w.ep.Err()
	if w.failed || err == nil {
		return
	}
	w.failed = true
	var local *iwarp.LocalError
	var peer *iwarp.PeerError
	switch {
	case w.qp.State() == rdma.QPClosing:
		w.qp.Lost(err)
	case errors.As(err, &peer):
		var culprit *wqe.Request
		if peer.Cause.Layer == iwarp.LayerRDMAP { // only Reads cause these, answered in order
			culprit = w.work.OldestAnswered()
		}
		w.qp.PeerTerminated(peer.Cause, culprit)
	case errors.As(err, &local):
		by := link.ByLink
		if w.refused || w.out.Refused {
			by = link.Refused
		}
		w.qp.Fail(local, by)
	default:
		w.qp.Lost(err)
	}
}

// grant promises the peer the receives that stand behind no promise yet. While it has few, the next
// one that is posted is worth a run of the QP.
func (w *Link) grant() {
	if !w.sends || w.qp.State() != rdma.QPRTS {
		return
	}
	if w.ep.Promised() <= w.work.Config().MaxRecvWR/2 {
		w.work.Recv.Await()
	}
	if n := w.work.Recv.Posted() - w.ep.Promised(); n > 0 {
		w.ep.Grant(n)
	}
}

// send gives the transport what is posted, what answers the peer's Reads, and credits.
func (w *Link) send() (more bool) {
	more = w.sendSome()
	w.S.Flush()
	return more
}

func (w *Link) sendSome() (more bool) {
	for left := link.TurnOctets; ; {
		more = w.fill()
		w.fillEndpoint()
		if w.Over || w.blocked || w.ep.Len() == 0 {
			return more
		}
		n, err := w.S.WriteFrom(w.ep)
		w.ep.Commit(n)
		w.work.Retire()
		if err != nil {
			w.qp.Lost(err)
			return false
		}
		if n == 0 {
			w.blocked = true
			return false
		}
		if w.failed {
			w.qp.Moved() // what the peer asked for before the end is on its way
		}
		w.moved += n
		if left -= n; left <= 0 {
			return true
		}
	}
}

// fillEndpoint has ep make segments, for which it reads the memory of messages.
func (w *Link) fillEndpoint() {
	switch {
	case w.mulpdu > 0:
		w.ep.SetMULPDU(w.mulpdu)
	case w.Props.Records:
		w.ep.SetMULPDU(w.S.EMSS())
	default:
		w.ep.SetMULPDU(iwarp.MULPDU(w.S.EMSS()))
	}
	w.ep.Fill()
	w.out.Hold.Drop()
	w.out.Hold.Release()
	w.check()
}

var errOperation = errors.New("ROI has Send, Write and Read, and Writes that notify with 20 " +
	"bits of immediate data: docs/roi.md")

// fill posts requests to the Endpoint; true: there may be more.
func (w *Link) fill() (more bool) {
	for range wqe.StepMessages {
		if w.qp.State() != rdma.QPRTS || !w.ep.CanPost() {
			return false
		}
		e := w.work.Next()
		if e == nil {
			return false
		}
		if ok, err := w.work.Ready(e); err != nil {
			w.qp.Fail(err, link.ByQP)
			return false
		} else if !ok {
			if e.Done() {
				continue // it needed no link
			}
			return false
		}
		if err := w.post(e); err != nil {
			w.work.Refuse(e, rdma.WCLocQPOp, err)
			continue
		}
		w.work.Posted(e)
	}
	return true
}

// post posts e, for which there is room.
func (w *Link) post(e *wqe.Request) error {
	token, stag := uint64(w.work.NextToken()), iwarp.STag(e.WR.RKey)
	var p iwarp.Payload
	if e.Total > 0 {
		e.ReadBy(&w.out)
		p = e
	}
	switch e.WR.Op {
	case rdma.OpSend:
		return w.ep.PostSend(token, p, e.Total)
	case rdma.OpWrite:
		return w.ep.PostWrite(token, 0, stag, e.WR.RemoteAddr, p, e.Total)
	case rdma.OpWriteImm:
		if e.WR.ImmLow != 0 {
			return errOperation
		}
		return w.ep.PostNotifyingWrite(token, e.WR.Imm, stag, e.WR.RemoteAddr, p, e.Total)
	case rdma.OpRead:
		var sink rdma.SGE
		if len(e.WR.SGEs) > 0 {
			sink = e.WR.SGEs[0]
		}
		return w.ep.PostRead(token, iwarp.STag(sink.LKey), sink.Addr, e.Total, stag, e.WR.RemoteAddr)
	default:
		return errOperation
	}
}

// Idle implements link.Link.
func (w *Link) Idle() bool { return w.ep.Idle() && len(w.Stage.Waiting()) == 0 }

// Expire implements link.Link: nothing of it is timed.
func (w *Link) Expire() {}

// Terminate implements link.Link.
func (w *Link) Terminate(code iwarp.TermCode, err error) {
	w.failed = true
	w.ep.Fail(code, err)
}

// Terminated implements link.Link.
func (w *Link) Terminated() bool {
	w.ep.Fill()
	return w.ep.Len() == 0
}

// CloseWrite implements link.Link.
func (w *Link) CloseWrite() {
	w.ep.Leave()
	w.S.CloseWrite()
}
