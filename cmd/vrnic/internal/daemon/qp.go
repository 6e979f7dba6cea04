package daemon

import (
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/direct"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/profile"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/fault"
)

// A qpHandler is a QP of a client.
type qpHandler struct {
	sd     *sessionDevice
	qp     *vnic.QP
	rings  *ring.DaemonQP
	sendCQ *cqHandler
	recvCQ *cqHandler
	slabs  []*vnic.MR
	roce   bool
	slab   *recvSlab // or nil
	direct *direct.End
}

func (h *pdHandler) QPSize(asked rpc.QPCaps, typ uint32) server.QPSize {
	return h.c.sd.dev.card().QPSize(&asked, typ)
}

// qpMemory is what a QP takes beside its send queue, whose slots have a number each in the ring.
const (
	qpMemory   = 10 << 10
	slotNumber = 4
)

func (h *pdHandler) QPMemory(caps rpc.QPCaps) int64 {
	return qpMemory + slotNumber*int64(caps.MaxSendWR) + vnic.SendMemory(&rdma.QPConfig{
		MaxSendWR: int(caps.MaxSendWR), MaxSendSGE: int(caps.MaxSendSGE), MaxInline: int(caps.MaxInline)})
}

func (h *pdHandler) CreateQP(p *server.QPParts) (_ server.QPHandler, err error) {
	if err := h.c.sd.fails(fault.CreateQP); err != nil {
		return nil, err
	}
	if err := h.c.sd.dev.card().CheckQP(&p.Asked, p.Type); err != nil {
		return nil, err
	}
	send, ok1 := p.SendCQ.(*cqHandler)
	recv, ok2 := p.RecvCQ.(*cqHandler)
	if !ok1 || !ok2 {
		return nil, syscall.EINVAL
	}
	q := &qpHandler{sd: h.c.sd, rings: p.Rings, sendCQ: send, recvCQ: recv, roce: h.c.sd.dev.roce()}
	q.direct = &direct.End{Program: q.sd.s.shm, Rings: p.Rings, SendCQ: send.sink.ring,
		RecvCQ: recv.sink.ring, Bits: p.Bits, Domain: h.domain, RoCE: q.roce, Log: q.sd.s.log}
	if p.Type != rpc.TypeRC && !q.roce {
		return nil, syscall.EOPNOTSUPP
	}
	defer func() {
		if err != nil {
			_ = q.closeSlabs() // nothing uses them
		}
	}()
	sq := &sendQueue{ring: &p.Rings.SQ, datagrams: p.Type == rpc.TypeUD}
	if mr, err := h.registerSlab(p.Rings.TxSlabMem(), 0); err != nil {
		return nil, errno(err)
	} else if mr != nil {
		q.slabs, sq.slab = append(q.slabs, mr), mr.LKey()
	}
	o := vnic.QPOptions{
		QPConfig: rdma.QPConfig{
			SendCQ: send.cq, RecvCQ: recv.cq,
			MaxSendWR: int(p.Caps.MaxSendWR), MaxRecvWR: int(p.Caps.MaxRecvWR),
			MaxSendSGE: int(p.Caps.MaxSendSGE), MaxRecvSGE: int(p.Caps.MaxRecvSGE),
			MaxInline: int(p.Caps.MaxInline), SignalAll: p.SigAll, Type: rdma.QPType(p.Type),
		},
		SendQueue:  sq,
		OnState:    q.onState,
		OnParted:   q.direct.Shut,
		OnCount:    q.direct.Count,
		Linger:     q,
		EndInError: p.EndInError,
	}
	var slab *recvSlab
	if srq, ok := p.SRQ.(*srqHandler); ok {
		o.SRQ = srq.srq
	} else {
		if mr, err := h.registerSlab(p.Rings.RxSlabMem(), rdma.LocalWrite); err != nil {
			return nil, errno(err)
		} else if mr != nil {
			q.slabs = append(q.slabs, mr)
			slab = &recvSlab{pd: h.pd, ring: &p.Rings.RxSlab, mr: mr}
		}
		o.RecvQueue = &recvQueue{ring: &p.Rings.RQ, slab: slab}
	}
	if q.qp, err = h.pd.NewQP(o); err != nil {
		return nil, errno(err)
	}
	if q.roce {
		p.Rings.SetState(qpState(q.qp.State()))
	}
	if q.slab = slab; slab != nil { // before anything can complete
		recv.sink.slabs.set(q.qp.Num(), slab)
	}
	q.sd.watch(q.source(), asyncQueue{h.c.events, p.Rings.Handle, p.Rings})
	if p.Type == rpc.TypeRC && p.SRQ == nil {
		q.sd.dev.direct.Add(q.direct, q.qp)
		q.sd.keep(q.direct)
	}
	return q, nil
}

func (h *qpHandler) closeSlabs() error {
	for _, mr := range h.slabs {
		if err := mr.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (h *qpHandler) source() asyncSource { return asyncSource{rpc.ObjQP, h.qp.Num()} }

// onState runs inside the QP, on each change.
func (h *qpHandler) onState(s rdma.QPState) {
	if s == rdma.QPRTS {
		h.rings.SetError(0) // of the connection before
	} else {
		h.direct.Shut()
	}
	h.rings.SetState(qpState(s))
}

// Direct implements server.QPHandler.
func (h *qpHandler) Direct(alloc func(int) (*osmem.Region, int, func(), error),
	rep *rpc.DirectReply,
) (fd int, err error) {
	fd, second, covered, err := h.direct.Pair(alloc)
	if second {
		rep.Second = 1
	}
	if covered {
		rep.Covered = 1
	}
	return fd, err
}

// DirectKeys implements server.QPHandler.
func (h *qpHandler) DirectKeys() (fd int, err error) { return h.direct.Keys() }

// DirectMem implements server.QPHandler.
func (h *qpHandler) DirectMem(mem uint32) (fd int, err error) { return h.direct.Mem(mem) }

// DirectSleep implements server.QPHandler.
func (h *qpHandler) DirectSleep() (fd int, err error) { return h.direct.Sleep() }

// DirectWake implements server.QPHandler.
func (h *qpHandler) DirectWake() (fd int, err error) { return h.direct.WakePeer() }

// DirectBits implements server.QPHandler.
func (h *qpHandler) DirectBits() (fd int, err error) { return h.direct.PeerBits() }

func (h *qpHandler) Num() uint32 { return h.qp.Num() }

// Bell: the RNIC runs the QP here for a bounded while and goes on elsewhere if more is left.
func (h *qpHandler) Bell(waiting func() bool) (more bool) {
	h.direct.Notified()
	h.qp.RingBeside(waiting)
	return false
}

var _ vnic.Lingerer = (*qpHandler)(nil)

// Expect implements vnic.Lingerer.
func (h *qpHandler) Expect() bool {
	return h.sd.s.shm.Expect(h.sendCQ.sink.ring, h.recvCQ.sink.ring)
}

// Linger implements vnic.Lingerer.
func (h *qpHandler) Linger(more func() bool) { h.sd.s.shm.Linger(more) }

func (h *qpHandler) Modify(req *rpc.ModifyQPRequest) error {
	if h.roce {
		return h.modifyRoCE(req)
	}
	if req.Mask&^rpc.ModifyQPState != 0 {
		return syscall.EINVAL
	}
	if req.Mask == 0 {
		return nil
	}
	move, err := h.sd.dev.card().CheckMove(qpState(h.qp.State()), req.State)
	if err != nil || move == profile.MoveNowhere {
		return err
	}
	to, ok := modifyStates[req.State]
	if move == profile.MoveToError {
		to, ok = rdma.QPError, true
	}
	if !ok {
		return syscall.EINVAL
	}
	if to == rdma.QPIdle && h.qp.State() == rdma.QPIdle {
		return nil // RESET to INIT and back: one state here
	}
	defer h.flush()
	return errno(h.qp.ModifyState(to))
}

// flush has no completion of the queue pair held.
func (h *qpHandler) flush() {
	h.sendCQ.flush()
	h.recvCQ.flush()
}

func (h *qpHandler) Query(r *rpc.QueryQPReply) {
	if a, err := h.qp.Query(); err == nil {
		r.Attr = ringAttr(&a)
	}
	if h.roce {
		r.State, r.Access = r.Attr.CurState, r.Attr.Access
		r.IRD, r.ORD = uint32(r.Attr.MaxDestRead), uint32(r.Attr.MaxRead)
		return
	}
	info := h.qp.Info()
	r.State = qpState(h.qp.State())
	r.IRD, r.ORD = uint32(info.IRD), uint32(info.ORD)
	r.Access = 1<<0 | 1<<1 | 1<<2 // what a QP of iWARP allows; the MRs decide
}

func (h *qpHandler) Close() error {
	if err := h.qp.Close(); err != nil {
		return errno(err)
	}
	h.flush()
	h.direct.Remove()
	h.sd.drop(h.direct)
	h.recvCQ.sink.slabs.set(h.qp.Num(), nil)
	h.sd.unwatch(h.source())
	return errno(h.closeSlabs())
}
