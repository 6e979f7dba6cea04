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

type mrHandler struct{ mr rdma.MR }

func (h *mrHandler) Keys() (lkey, rkey uint32) { return h.mr.LKey(), h.mr.RKey() }
func (h *mrHandler) Close() error              { return errno(h.mr.Close()) }

// AllocMR makes a region without memory.
func (h *pdHandler) AllocMR(maxLen uint64) (shm.MRHandler, error) {
	mr, err := h.pd.AllocMR(maxLen)
	if err != nil {
		return nil, errno(err)
	}
	return &mrHandler{mr}, nil
}

func (h *pdHandler) AllocMW(typ uint32) (shm.MWHandler, error) {
	mw, err := h.pd.AllocMW(rdma.MWType(typ))
	if err != nil {
		return nil, errno(err)
	}
	return &mwHandler{mw}, nil
}

type mwHandler struct{ mw rdma.MW }

func (h *mwHandler) RKey() uint32 { return h.mw.RKey() }
func (h *mwHandler) Close() error { return errno(h.mw.Close()) }

func (h *pdHandler) CreateSRQ(req *shm.CreateSRQRequest, rings *shm.SRQRings) (shm.SRQHandler, error) {
	srq, err := h.pd.NewSRQ(vnic.SRQOptions{
		SRQConfig: rdma.SRQConfig{MaxWR: int(rings.Layout.RQSize), MaxSGE: int(rings.Layout.RQMaxSGE()), MaxPerQP: int(req.MaxPerQP)},
		Queue:     &sharedQueue{recvQueue{ring: &rings.RQ}},
	})
	if err != nil {
		return nil, errno(err)
	}
	s := &srqHandler{sd: h.c.sd, srq: srq}
	s.sd.watch(s.source(), asyncQueue{h.c.events, rings.Handle, nil})
	return s, nil
}

type srqHandler struct {
	sd  *sessionDevice
	srq *vnic.SRQ
}

func (h *srqHandler) source() asyncSource { return asyncSource{shm.ObjSRQ, h.srq.Num()} }

func (h *srqHandler) SetLimit(n uint32) error { return errno(h.srq.SetLimit(int(n))) }

func (h *srqHandler) Limit() (uint32, error) {
	n, err := h.srq.Limit()
	return uint32(n), errno(err)
}

// Bell wakes the QPs that wait; each runs on a goroutine of its own.
func (h *srqHandler) Bell() (more bool) {
	h.srq.Ring()
	return false
}

func (h *srqHandler) Close() error {
	if err := h.srq.Close(); err != nil {
		return errno(err)
	}
	h.sd.unwatch(h.source())
	return nil
}

func (h *pdHandler) CreateQP(p *shm.QPParts) (shm.QPHandler, error) {
	if p.Caps.TxSlab != 0 || p.Caps.RxSlab != 0 {
		return nil, syscall.EOPNOTSUPP // no slabs yet: the client sends and receives through MRs
	}
	send, ok1 := p.SendCQ.(*cqHandler)
	recv, ok2 := p.RecvCQ.(*cqHandler)
	if !ok1 || !ok2 {
		return nil, syscall.EINVAL
	}
	q := &qpHandler{sd: h.c.sd, rings: p.Rings}
	o := vnic.QPOptions{
		QPConfig: rdma.QPConfig{
			SendCQ: send.cq, RecvCQ: recv.cq,
			MaxSendWR: int(p.Caps.MaxSendWR), MaxRecvWR: int(p.Caps.MaxRecvWR),
			MaxSendSGE: int(p.Caps.MaxSendSGE), MaxRecvSGE: int(p.Caps.MaxRecvSGE),
			MaxInline: int(p.Caps.MaxInline), SignalAll: p.SigAll,
		},
		SendQueue: &sendQueue{ring: &p.Rings.SQ},
		OnState:   q.onState,
	}
	if srq, ok := p.SRQ.(*srqHandler); ok {
		o.SRQ = srq.srq
	} else {
		o.RecvQueue = &recvQueue{ring: &p.Rings.RQ}
	}
	qp, err := h.pd.NewQP(o)
	if err != nil {
		return nil, errno(err)
	}
	q.qp = qp
	q.sd.watch(q.source(), asyncQueue{h.c.events, p.Rings.Handle, p.Rings})
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
