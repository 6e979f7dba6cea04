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
		if err := w.work.Memory.PlaceWrite(&w.in, uint32(stag), to, chunk, last); err != nil {
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
	return w.answers.Make(m, to, n), client, nil
}

// EndReadSource implements roi.Host.
func (w *Link) EndReadSource(p iwarp.Payload) { w.answers.End(p) }
