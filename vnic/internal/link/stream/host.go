package stream

import (
	"fmt"
	"math"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// The iwarp.Host of a connection: what the Endpoint asks for while it receives and sends. The
// transport's lock may be held, so nothing here blocks, unless memory may block, and then the
// lock is not held.

// A collectedFor says what octets are for that were collected for memory that is reached by calls.
type collectedFor uint8

const (
	forWrite   collectedFor = iota // a peer's Write
	forReceive                     // its Send
	forAnswer                      // of our oldest request
)

// collects has what comes next collected as far as it continues what came before, for the same use.
func (w *Link) collects(use collectedFor) error {
	if w.use != use {
		if err := w.settle(); err != nil {
			return err
		}
		w.use = use
	}
	return nil
}

// settle places what was collected, before anybody is told of what follows it. An error is what the
// Host's methods return.
func (w *Link) settle() error {
	h := &w.in
	m := h.Collected()
	if m == nil {
		return nil
	}
	err := h.Flush()
	if err == nil {
		return nil
	}
	switch w.use {
	case forWrite:
		w.refused = true
		return mem.PeerWrite.Gone(m, err)
	case forReceive:
		return w.work.Recv.PlaceFailed(err)
	default:
		return w.sinkFailed(w.work.OldestAnswered(), err)
	}
}

// sinkFailed is the end of the stream for an answer to e that cannot be placed.
func (w *Link) sinkFailed(e *wqe.Request, err error) error {
	if e != nil {
		e.Status = rdma.WCLocProt
	}
	return &iwarp.LocalError{
		Cause: iwarp.TermDDPCatastrophic, Err: fmt.Errorf("%w: %w", wqe.ErrSink, err),
	}
}

// PlaceWrite implements iwarp.Host.
func (w *Link) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	if err := w.collects(forWrite); err != nil {
		return err
	}
	if len(chunk) > 0 {
		if err := w.work.Memory.PlaceWrite(&w.in, uint32(stag), to, chunk, last); err != nil {
			w.refused = true
			return err
		}
	}
	// Over SCTP a segment may have been placed before its turn, and then comes without its octets.
	placed := w.Props.Ahead && len(chunk) == 0
	switch {
	case last:
		w.work.Stats.Inbound(rdma.OpWrite, 0)
		if len(chunk) == 0 && !placed {
			w.work.Stats.EmptyWrites.Add(1)
		}
	case len(chunk) < tinySegment && !placed:
		w.work.Stats.Tiny.Add(1)
	}
	w.octets += uint64(len(chunk))
	return nil
}

// BeginReceive implements iwarp.Host.
func (w *Link) BeginReceive() (size uint32, ok bool) {
	r := &w.work.Recv
	if w.dropped { // and all behind it, as ReadSource does: what is delivered is in order
		w.dropping = true
		return math.MaxUint32, true
	}
	size, ok = r.Begin()
	if !ok && r.Waiting() && !r.Revoking() && w.qp.Leaving() {
		w.dropping, w.dropped = true, true
		return math.MaxUint32, true
	}
	return size, ok
}

// tinySegment is the length from which on nobody asks why a segment that is not the last of its
// message has no more octets: a MULPDU is at least 128.
const tinySegment = 64

// PlaceReceive implements iwarp.Host.
func (w *Link) PlaceReceive(off uint32, chunk []byte) error {
	// The last segment may be short, and its buffer is not known here to be full: two in a row are
	// no accident.
	if len(chunk) == 0 && w.Props.Ahead {
		return nil // placed before its turn
	}
	if len(chunk) < tinySegment && off > 0 {
		w.short++
	}
	if len(chunk) == 0 || w.dropping {
		return nil
	}
	if err := w.collects(forReceive); err != nil {
		return err
	}
	// The QP's owner is alone with this side; the lock is for tools and the flush.
	return w.work.Recv.Place(&w.in, off, chunk)
}

// EndReceive implements iwarp.Host.
func (w *Link) EndReceive(d iwarp.Received) error {
	if err := w.settle(); err != nil {
		return err
	}
	if d.Invalidate {
		w.in.Drop() // it may be of what is invalidated
	}
	if w.short > 1 {
		w.work.Stats.Tiny.Add(w.short)
	}
	w.short = 0
	if w.dropping {
		w.dropping = false
		return nil
	}
	return w.work.Recv.End(d)
}

// PlaceRead implements iwarp.Host.
func (w *Link) PlaceRead(off uint32, chunk []byte) error {
	if w.read == nil {
		w.read = w.work.OldestRead()
	}
	e := w.read
	if e == nil {
		return mem.ErrGone
	}
	if err := w.collects(forAnswer); err != nil {
		return err
	}
	if err := e.List.CopyIn(&w.in, chunk, off); err != nil {
		return w.sinkFailed(e, err)
	}
	return nil
}

// EndRead implements iwarp.Host.
func (w *Link) EndRead(token uint64) error {
	if err := w.settle(); err != nil {
		return err
	}
	w.read = nil
	w.work.Finish(w.work.ByToken(uint32(token)))
	return nil
}

// Sent implements iwarp.Host.
func (w *Link) Sent(token uint64) {
	if token >= firstToken { // no request's, or only a part of one
		return
	}
	if e := w.work.ByToken(uint32(token)); !wqe.IsAnswered(e.WR.Op) {
		w.work.Finish(e)
	}
}

// ReadSource implements iwarp.Host. An answer says that all Sends ahead of the request were
// delivered (RFC 5040, section 5.5), so behind one that was dropped there is none: RDMAP-091.
func (w *Link) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	if w.dropped {
		return nil, iwarp.ErrUnanswered
	}
	w.work.Stats.Inbound(rdma.OpRead, n)
	if n == 0 {
		w.work.Stats.EmptyReads.Add(1)
		return nil, nil
	}
	m, err := w.work.Memory.Find(mem.PeerRead, uint32(stag), to, n)
	if err != nil {
		w.refused = true
		return nil, err
	}
	return w.answers.Make(m, to, n), nil
}

// EndReadSource implements iwarp.Host.
func (w *Link) EndReadSource(p iwarp.Payload) { w.answers.End(p) }

// Atomic implements iwarp.Host. As for a Read, there is no answer behind a Send that was dropped.
func (w *Link) Atomic(a iwarp.Atomic) (old uint64, err error) {
	if w.dropped {
		return 0, iwarp.ErrUnanswered
	}
	w.atomic = a
	w.in.Drop() // it may be this region's
	old, err = w.work.Memory.Atomic(&w.atomic)
	if err != nil {
		w.refused = true
		return 0, err
	}
	w.work.Stats.Inbound(rdma.OpFetchAdd, 0)
	return old, nil
}

// EndAtomic implements iwarp.Host.
func (w *Link) EndAtomic(token, old uint64) error {
	if err := w.collects(forAnswer); err != nil {
		return err
	}
	e := w.work.ByToken(uint32(token))
	if err := e.PutOld(&w.in, old); err != nil {
		return w.sinkFailed(e, err)
	}
	if err := w.settle(); err != nil {
		return err
	}
	w.work.Finish(e)
	return nil
}
