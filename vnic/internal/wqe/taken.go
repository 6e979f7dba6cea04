package wqe

import "github.com/vrnic/vrnic/rdma"

// What becomes of a receive that Begin has taken where the transport decides, as on RoCE: it
// completes, fails by itself, or stays for the next message.

// Deliver completes the receive with wc, whose ID and QPN are filled in. n octets of payload are
// counted: wc.ByteLen may be of more, or of what was not placed there.
func (r *Receives) Deliver(wc rdma.WC, n uint32, solicited bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.DeliverLocked(wc, n, solicited)
}

// DeliverLocked is Deliver.
func (r *Receives) DeliverLocked(wc rdma.WC, n uint32, solicited bool) {
	wc.ID, wc.QPN = r.wr.ID, r.w.num
	r.wc, r.solicited = wc, solicited
	r.recvs++
	r.octets += uint64(n)
	if solicited {
		r.w.Stats.Solicited.Add(1)
	}
	if wc.Flags&rdma.WCWithImm != 0 {
		r.w.Stats.InImmediates.Add(1)
	}
	r.endLocked()
	r.completeLocked(&r.wc, solicited)
}

// EndFailed completes the receive with an error.
func (r *Receives) EndFailed(st rdma.WCStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wc = rdma.WC{ID: r.wr.ID, QPN: r.w.num, Op: rdma.WCRecv, Status: st}
	r.w.Stats.Errors.Add(1)
	r.endLocked()
	r.completeLocked(&r.wc, false)
}

// endLocked ends what is known of the receive that was taken.
func (r *Receives) endLocked() {
	r.have, r.used, r.fail, r.vendor = false, false, 0, 0
	r.list.Drop()
}

// Return has the next message find the receive again, as if it had not been taken.
func (r *Receives) Return() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ReturnLocked()
}

// ReturnLocked is Return.
func (r *Receives) ReturnLocked() { r.used, r.fail, r.vendor = false, 0, 0 }
