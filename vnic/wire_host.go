package vnic

import (
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// The iwarp.Host of a connection: what the Endpoint asks for while it receives and sends. The
// transport's lock may be held, so nothing here blocks, unless the context is staged, and then the
// lock is not held.

// A farUse says what octets are for that were collected for memory that is reached by calls.
type farUse uint8

const (
	farWrite   farUse = iota // a peer's Write
	farReceive               // its Send
	farAnswer                // of our oldest request
)

// collects has what comes next collected as far as it continues what came before, for the same use.
func (w *wire) collects(use farUse) error {
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
func (w *wire) settle() error {
	h := &w.qp.inHold
	m := h.Collected()
	if m == nil {
		return nil
	}
	err := h.Flush()
	if err == nil {
		return nil
	}
	switch w.use {
	case farWrite:
		w.refused = true
		return mem.PeerWrite.Gone(m, err)
	case farReceive:
		return w.qp.rx.placeFailed(err)
	default:
		return w.sinkFailed(w.qp.sq.oldestRequest(), err)
	}
}

// sinkFailed is the end of the stream for an answer to e that cannot be placed.
func (w *wire) sinkFailed(e *sqe, err error) error {
	if e != nil {
		e.status = rdma.WCLocProt
	}
	w.refused = true // 15.4: "Read sink not writable" is an access error
	return &iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: err}
}

// PlaceWrite implements iwarp.Host.
func (w *wire) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	if err := w.collects(farWrite); err != nil {
		return err
	}
	if len(chunk) > 0 {
		m, err := w.qp.mem.Find(mem.PeerWrite, uint32(stag), to, uint32(len(chunk)))
		if err == nil {
			if e := w.qp.inHold.Write(m, chunk, to, last); e != nil {
				err = mem.PeerWrite.Gone(m, e)
			}
		}
		if err != nil {
			w.refused = true
			return err
		}
	}
	// Over SCTP a segment may have been placed before its turn, and then comes without its octets.
	placed := w.llp.Ahead && len(chunk) == 0
	switch {
	case last:
		w.qp.stats.inbound(rdma.OpWrite, 0)
		if len(chunk) == 0 && !placed {
			w.qp.stats.emptyWrites.Add(1)
		}
	case len(chunk) < tinySegment && !placed:
		w.qp.stats.tiny.Add(1)
	}
	w.octets += uint64(len(chunk))
	return nil
}

// BeginReceive implements iwarp.Host.
func (w *wire) BeginReceive() (size uint32, ok bool) {
	r := &w.qp.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.beginLocked()
}

// tinySegment is the length from which on nobody asks why a segment that is not the last of its
// message has no more octets: a MULPDU is at least 128.
const tinySegment = 64

// PlaceReceive implements iwarp.Host.
func (w *wire) PlaceReceive(off uint32, chunk []byte) error {
	// The last segment may be short, and its buffer is not known here to be full: two in a row are
	// no accident.
	if len(chunk) == 0 && w.llp.Ahead {
		return nil // placed before its turn
	}
	if len(chunk) < tinySegment && off > 0 {
		w.short++
	}
	if len(chunk) == 0 {
		return nil
	}
	if err := w.collects(farReceive); err != nil {
		return err
	}
	// The wire's owner is alone with this side; the lock is for tools and the flush.
	return w.qp.rx.placeLocked(&w.qp.inHold, off, chunk)
}

// EndReceive implements iwarp.Host.
func (w *wire) EndReceive(d iwarp.Received) error {
	if err := w.settle(); err != nil {
		return err
	}
	if d.Invalidate {
		w.qp.inHold.Drop() // it may be of what is invalidated
	}
	if w.short > 1 {
		w.qp.stats.tiny.Add(w.short)
	}
	w.short = 0
	r := &w.qp.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endLocked(d, false)
}

// PlaceRead implements iwarp.Host.
func (w *wire) PlaceRead(off uint32, chunk []byte) error {
	if w.read == nil {
		w.read = w.qp.sq.oldestRead()
	}
	e := w.read
	if e == nil {
		return mem.ErrGone
	}
	if err := w.collects(farAnswer); err != nil {
		return err
	}
	if err := e.list.CopyIn(&w.qp.inHold, chunk, off); err != nil {
		return w.sinkFailed(e, err)
	}
	return nil
}

// EndRead implements iwarp.Host.
func (w *wire) EndRead(token uint64) error {
	if err := w.settle(); err != nil {
		return err
	}
	w.read = nil
	w.qp.sendDone(w.qp.sq.at(uint32(token)))
	return nil
}

// Sent implements iwarp.Host.
func (w *wire) Sent(token uint64) {
	if token >= firstToken { // no request's, or only a part of one
		return
	}
	if e := w.qp.sq.at(uint32(token)); !isRequest(e.wr.Op) {
		w.qp.sendDone(e)
	}
}

// A readSource is the content of the answer to a peer's Read.
type readSource struct {
	w  *wire
	m  *mem.MR
	to uint64
	n  uint32
}

// CopyOut implements iwarp.Payload.
func (r *readSource) CopyOut(p []byte, off uint32) error {
	h := &r.w.qp.outHold
	if off == 0 {
		h.ForgetAhead()
	}
	if err := h.Read(r.m, p, r.to+uint64(off), r.n-off-uint32(len(p))); err != nil {
		r.w.unread, r.w.refused = true, true
		return mem.PeerRead.Gone(r.m, err)
	}
	return nil
}

// ReadSource implements iwarp.Host.
func (w *wire) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	w.qp.stats.inbound(rdma.OpRead, n)
	if n == 0 {
		w.qp.stats.emptyReads.Add(1)
		return nil, nil
	}
	m, err := w.qp.mem.Find(mem.PeerRead, uint32(stag), to, n)
	if err != nil {
		w.refused = true
		return nil, err
	}
	var r *readSource
	if k := len(w.sources); k > 0 {
		r, w.sources = w.sources[k-1], w.sources[:k-1]
	} else {
		r = &readSource{w: w}
	}
	r.m, r.to, r.n = m, to, n
	return r, nil
}

// EndReadSource implements iwarp.Host.
func (w *wire) EndReadSource(p iwarp.Payload) {
	if r, ok := p.(*readSource); ok {
		r.m = nil
		w.sources = append(w.sources, r)
	}
}
