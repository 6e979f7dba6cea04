package credit

import (
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// The roi.Host of a connection. The checks of rights are those of iWARP: docs/decisions.md#W5.

// PlaceWrite implements roi.Host.
func (w *Link) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	if len(chunk) > 0 {
		m, err := w.work.Memory.Find(mem.PeerWrite, uint32(stag), to, uint32(len(chunk)))
		if err == nil {
			if e := w.in.Write(m, chunk, to, last); e != nil {
				err = mem.PeerWrite.Gone(m, e)
			}
		}
		if err != nil {
			w.refused = true
			return err
		}
	}
	w.octets += uint64(len(chunk))
	if last {
		w.work.Stats.Inbound(rdma.OpWrite, 0)
	}
	return nil
}

// EndWrite implements roi.Host. A notifying Write is to the program what a Write with immediate
// data is; the identifier is the immediate data.
func (w *Link) EndWrite(client uint32, n uint32) error {
	return w.work.Recv.EndMessage(&wqe.Arrival{
		Write: true, Immediate: true, Imm: client, Length: n, Solicited: true,
	})
}

// BeginReceive implements roi.Host.
func (w *Link) BeginReceive() (size uint32, ok bool) { return w.work.Recv.Begin() }

// PlaceReceive implements roi.Host.
func (w *Link) PlaceReceive(off uint32, chunk []byte) error {
	return w.work.Recv.Place(&w.in, off, chunk)
}

// EndReceive implements roi.Host. The draft's Sends all are for somebody who waits.
func (w *Link) EndReceive(n uint32) error {
	return w.work.Recv.End(iwarp.Received{Length: n, Solicited: true})
}

// Sent implements roi.Host.
func (w *Link) Sent(token uint64) {
	if e := w.work.ByToken(uint32(token)); !wqe.IsAnswered(e.WR.Op) {
		w.work.Finish(e)
	}
}

// PlaceRead implements roi.Host.
func (w *Link) PlaceRead(token uint64, off uint32, chunk []byte) error {
	e := w.work.ByToken(uint32(token))
	if err := e.List.CopyIn(&w.in, chunk, off); err != nil {
		e.Status = rdma.WCLocProt
		return &iwarp.LocalError{
			Cause: iwarp.TermDDPCatastrophic, Err: fmt.Errorf("%w: %w", wqe.ErrSink, err),
		}
	}
	return nil
}

// EndRead implements roi.Host.
func (w *Link) EndRead(token uint64, client uint32) error {
	if want := w.ended & roi.MaxClient; client != want {
		return &iwarp.LocalError{
			Cause: iwarp.TermRemoteOperation,
			Err:   fmt.Errorf("the answer to Read %d has identifier %d", want, client),
		}
	}
	w.ended++
	w.work.Finish(w.work.ByToken(uint32(token)))
	return nil
}

// A readSource is the content of the answer to a peer's Read.
type readSource struct {
	w  *Link
	m  *mem.MR
	to uint64
	n  uint32
}

// CopyOut implements iwarp.Payload.
func (r *readSource) CopyOut(p []byte, off uint32) error {
	h := &r.w.out.Hold
	if off == 0 {
		h.ForgetAhead()
	}
	if err := h.Read(r.m, p, r.to+uint64(off), r.n-off-uint32(len(p))); err != nil {
		r.w.refused = true
		return mem.PeerRead.Gone(r.m, err)
	}
	return nil
}

// ReadSource implements roi.Host.
func (w *Link) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, uint32, error) {
	client := w.answered & roi.MaxClient
	w.answered++
	w.work.Stats.Inbound(rdma.OpRead, n)
	if n == 0 {
		w.work.Stats.EmptyReads.Add(1)
		return nil, client, nil
	}
	m, err := w.work.Memory.Find(mem.PeerRead, uint32(stag), to, n)
	if err != nil {
		w.refused = true
		return nil, 0, err
	}
	var r *readSource
	if k := len(w.sources); k > 0 {
		r, w.sources = w.sources[k-1], w.sources[:k-1]
	} else {
		r = &readSource{w: w}
	}
	r.m, r.to, r.n = m, to, n
	return r, client, nil
}

// EndReadSource implements roi.Host.
func (w *Link) EndReadSource(p iwarp.Payload) {
	r := p.(*readSource)
	r.m = nil
	w.sources = append(w.sources, r)
}
