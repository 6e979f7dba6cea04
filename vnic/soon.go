package vnic

import (
	"unsafe"

	"github.com/vrnic/vrnic/internal/prefetch"
	"github.com/vrnic/vrnic/rdma"
)

// soon asks the caches for what a message from qp to its peer needs, as far as both are in this process. With thousands of QPs it
// comes from memory, and what is asked for together comes together; by itself the processor looks no further than a few
// loads that wait for one another.
func (qp *QP) soon() {
	if w := qp.wire.Load(); w != nil {
		w.s.Prefetch()
		return
	}
	l := qp.peer.Load()
	if l == nil {
		return
	}
	qp.fetch()
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(l.pair)), unsafe.Sizeof(*l.pair)))
	l.qp.fetch()
}

// frontLen is how much of a QP messages need: up to what few requests have.
const frontLen = unsafe.Offsetof(QP{}.sq) + unsafe.Offsetof(sendSide{}.first) + unsafe.Offsetof(sqe{}.wr) + unsafe.Offsetof(rdma.SendWR{}.Atomic)

// fetch asks for the front of qp, which is all that messages need of it.
func (qp *QP) fetch() {
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(qp)), frontLen))
}

// fetch asks for what messages need of w and its QP.
func (w *wire) fetch() {
	w.qp.fetch()
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w)))
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(w.ep)), unsafe.Sizeof(*w.ep)))
}
