package wqe

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// Where both ends of a connection are in this process whoever runs the requester copies between
// their memory, of which none can block: mem.ErrBlocking is the error of what does.

// mode is how n octets of e are copied that are at off and end a piece, or go on for more.
func (e *Request) mode(off, n uint32, more bool) mem.CopyMode {
	return mem.CopyMode{Long: e.Total >= mem.LongMessage, More: more, Last: off+n == e.Total}
}

// CopyTo copies n octets of e from off on to address to of dst. The error is own if e's memory is
// to blame for it, and peers if dst is.
func (e *Request) CopyTo(dst *mem.MR, to uint64, off, n uint32) (own, peers error) {
	if e.WR.Flags&rdma.Inline != 0 {
		return nil, dst.Write(e.WR.Inline[off:off+n], to, off+n == e.Total)
	}
	for n > 0 {
		src, from, k := e.List.Piece(off)
		more := k > n
		k = min(k, n)
		peers, own = mem.Copy(dst, to, src, from, k, e.mode(off, k, more))
		if own != nil || peers != nil {
			return own, peers
		}
		to, off, n = to+uint64(k), off+k, n-k
	}
	return nil, nil
}

// CopyFrom copies n octets from address from of src on to the memory of e from off on.
func (e *Request) CopyFrom(src *mem.MR, from uint64, off, n uint32) (own, peers error) {
	for n > 0 {
		dst, to, k := e.List.Piece(off)
		k = min(k, n)
		how := e.mode(off, k, off+k < e.Total)
		how.Last = true
		if own, peers = mem.Copy(dst, to, src, from, k, how); own != nil || peers != nil {
			return own, peers
		}
		from, off, n = from+uint64(k), off+k, n-k
	}
	return nil, nil
}

// CopyLocked copies n octets of e, which is not none of them, from off on into the receive that was
// begun for it, of which front octets are before those of e. The regions stay pinned by from and
// into. What is to blame on this side is fault, a *iwarp.LocalError.
func (r *Receives) CopyLocked(e *Request, off, n, front uint32, from, into *mem.Hold) (own,
	fault error) {
	sink, fault := r.ListLocked()
	switch {
	case fault != nil:
		return nil, fault
	case sink.Blocking() || e.List.Blocking():
		return mem.ErrBlocking, nil
	case e.WR.Flags&rdma.Inline != 0:
		return nil, r.Place(into, front+off, e.WR.Inline[off:off+n])
	}
	for n > 0 {
		src, at, k := e.List.Piece(off)
		dst, to, kd := sink.Piece(front + off)
		k = min(k, kd, n)
		if !into.Take(dst) {
			return nil, r.PlaceFailed(mem.ErrGone)
		}
		if !from.Take(src) {
			return mem.ErrGone, nil
		}
		how := mem.CopyMode{Long: e.Total >= mem.LongMessage, More: off+k < e.Total}
		gone, err := mem.CopyPinned(dst, to, src, at, k, how)
		if err != nil {
			return err, nil
		}
		if gone != nil {
			return nil, r.PlaceFailed(gone)
		}
		off, n = off+k, n-k
	}
	return nil, nil
}
