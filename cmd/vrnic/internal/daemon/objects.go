package daemon

import (
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/vnic"
)

// This file holds the objects of a client, each over the RNIC's.

// A contextHandler is a device that the client has opened.
type contextHandler struct {
	sd     *sessionDevice
	events *shm.AsyncQueue
}

func (c *contextHandler) AllocPD() (shm.PDHandler, error) {
	ctx, err := c.sd.context()
	if err != nil {
		return nil, errno(err)
	}
	pd, err := ctx.NewPD()
	if err != nil {
		return nil, errno(err)
	}
	return &pdHandler{c: c, pd: pd}, nil
}

func (c *contextHandler) CreateCQ(ring *shm.CQRing) (shm.CQHandler, error) {
	ctx, err := c.sd.context()
	if err != nil {
		return nil, errno(err)
	}
	cq, err := ctx.NewCQ(vnic.CQOptions{Depth: ring.Size(), Sink: &cqSink{ring: ring}})
	if err != nil {
		return nil, errno(err)
	}
	h := &cqHandler{sd: c.sd, cq: cq}
	c.sd.watch(h.source(), asyncQueue{c.events, ring.Handle(), nil})
	return h, nil
}

// Close leaves the session's context on the device alone: another of the client's may use it.
func (c *contextHandler) Close() error { return nil }

type cqHandler struct {
	sd *sessionDevice
	cq *vnic.CQ
}

func (h *cqHandler) source() asyncSource { return asyncSource{shm.ObjCQ, h.cq.Handle()} }

func (h *cqHandler) Close() error {
	if err := h.cq.Close(); err != nil {
		return errno(err)
	}
	h.sd.unwatch(h.source())
	return nil
}

type pdHandler struct {
	c  *contextHandler
	pd *vnic.PD
}

func (h *pdHandler) Close() error { return errno(h.pd.Close()) }

// RegMR registers a part of a mapping that the client lent (mode 1), or its own memory (mode 0):
// that can hang, but LendMem came before it.
func (h *pdHandler) RegMR(req *shm.RegMRRequest, mem *shm.Memory) (shm.MRHandler, error) {
	rights, ok := access(req.Access)
	if !ok {
		return nil, syscall.EINVAL
	}
	var region vnic.Region
	switch req.Mode {
	case shm.ModeShared:
		// shm keeps the mapping until the MR's Close has returned; this keeps it for as long as
		// the RNIC uses it, whatever comes first.
		if !mem.Acquire() {
			return nil, syscall.EINVAL
		}
		region.Bytes, region.Release = mem.Bytes(), mem.Release
	case shm.ModeApp:
		region.Mem = appMemory{mem}
	default:
		return nil, syscall.EINVAL
	}
	mr, err := h.pd.RegisterRegion(region, req.IOVA, req.Length, rights)
	if err != nil {
		return nil, errno(err)
	}
	return &mrHandler{mr}, nil
}

// An appMemory is a program's own memory as the RNIC reaches it. Calls can hang.
type appMemory struct{ m *shm.Memory }

func (a appMemory) ReadAt(p []byte, off int64) (int, error) {
	if err := a.m.ReadAt(p, uint64(off)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (a appMemory) WriteAt(p []byte, off int64) (int, error) {
	if err := a.m.WriteAt(p, uint64(off)); err != nil {
		return 0, err
	}
	return len(p), nil
}

type mrHandler struct{ mr *vnic.MR }

func (h *mrHandler) Keys() (lkey, rkey uint32) { return h.mr.LKey(), h.mr.RKey() }
func (h *mrHandler) Close() error              { return errno(h.mr.Close()) }

func (h *pdHandler) CreateQP(req *shm.CreateQPRequest, caps shm.QPCaps, sendCQ, recvCQ shm.CQHandler, rings *shm.QPRings) (shm.QPHandler, error) {
	if caps.TxSlab != 0 || caps.RxSlab != 0 {
		return nil, syscall.EOPNOTSUPP // no slabs yet: the client sends and receives through MRs
	}
	send, ok1 := sendCQ.(*cqHandler)
	recv, ok2 := recvCQ.(*cqHandler)
	if !ok1 || !ok2 {
		return nil, syscall.EINVAL
	}
	q := &qpHandler{sd: h.c.sd, rings: rings}
	qp, err := h.pd.NewQP(vnic.QPOptions{
		QPConfig: rdma.QPConfig{
			SendCQ: send.cq, RecvCQ: recv.cq,
			MaxSendWR: int(caps.MaxSendWR), MaxRecvWR: int(caps.MaxRecvWR),
			MaxSendSGE: int(caps.MaxSendSGE), MaxRecvSGE: int(caps.MaxRecvSGE),
			MaxInline: int(caps.MaxInline), SignalAll: req.Flags&shm.CreateQPSigAll != 0,
		},
		SendQueue: &sendQueue{ring: &rings.SQ},
		RecvQueue: &recvQueue{ring: &rings.RQ},
		OnState:   q.onState,
	})
	if err != nil {
		return nil, errno(err)
	}
	q.qp = qp
	q.sd.watch(q.source(), asyncQueue{h.c.events, rings.Handle, rings})
	return q, nil
}

type qpHandler struct {
	sd    *sessionDevice
	qp    *vnic.QP
	rings *shm.QPRings
}

func (h *qpHandler) source() asyncSource { return asyncSource{shm.ObjQP, h.qp.Num()} }

// onState runs inside the QP, on each change.
func (h *qpHandler) onState(s rdma.QPState) {
	if s == rdma.QPRTS {
		h.rings.SetError(0) // of the connection before
	}
	h.rings.SetState(qpState(s))
}

func (h *qpHandler) Num() uint32 { return h.qp.Num() }

// Bell: the RNIC runs the QP here for a bounded while and goes on elsewhere if more is left.
func (h *qpHandler) Bell() (more bool) {
	h.qp.Ring()
	return false
}

func (h *qpHandler) Modify(req *shm.ModifyQPRequest) error {
	if req.Mask&^shm.ModifyQPState != 0 {
		return syscall.EINVAL
	}
	if req.Mask == 0 {
		return nil
	}
	to, ok := modifyStates[req.State]
	if !ok {
		return syscall.EINVAL
	}
	if to == rdma.QPIdle && h.qp.State() == rdma.QPIdle {
		return nil // RESET to INIT and back: one state here
	}
	return errno(h.qp.Modify(to))
}

func (h *qpHandler) Query(r *shm.QueryQPReply) {
	info := h.qp.Info()
	r.State = qpState(h.qp.State())
	r.IRD, r.ORD = uint32(info.IRD), uint32(info.ORD)
	r.Access = 1<<0 | 1<<1 | 1<<2 // what a QP of iWARP allows; the MRs decide
}

func (h *qpHandler) Close() error {
	if err := h.qp.Close(); err != nil {
		return errno(err)
	}
	h.sd.unwatch(h.source())
	return nil
}
