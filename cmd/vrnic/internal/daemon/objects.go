package daemon

import (
	"cmp"
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/adversary"
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

// This file holds the objects of a client, each over the RNIC's.

// A contextHandler is a device that the client has opened.
type contextHandler struct {
	sd     *sessionDevice
	events *server.AsyncQueue
}

func (c *contextHandler) AllocPD() (server.PDHandler, error) {
	if err := c.sd.fails(fault.AllocPD); err != nil {
		return nil, err
	}
	ctx, err := c.sd.context()
	if err != nil {
		return nil, errno(err)
	}
	pd, err := ctx.NewPD()
	if err != nil {
		return nil, errno(err)
	}
	h := &pdHandler{c: c, pd: pd, domain: direct.NewDomain(pd, c.sd.s.shm, ringAccess)}
	c.sd.domains[h.domain] = struct{}{}
	return h, nil
}

func (c *contextHandler) CQDepth(asked uint32) uint32 { return c.sd.dev.card().CQDepth(asked) }

func (c *contextHandler) CreateCQ(ring *ring.CQProducer, asked uint32) (server.CQHandler, error) {
	if err := c.sd.fails(fault.CreateCQ); err != nil {
		return nil, err
	}
	if err := c.sd.dev.card().CheckCQ(asked); err != nil {
		return nil, err
	}
	ctx, err := c.sd.context()
	if err != nil {
		return nil, errno(err)
	}
	h := &cqHandler{sd: c.sd, sink: &cqSink{ring: ring}}
	o := vnic.CQOptions{Depth: ring.Size(), Sink: h.sink}
	if a := c.sd.dev.adversary; a != nil {
		h.late = a.Completions()
		o.Sink = &lateSink{h.sink, h.late}
	}
	if h.cq, err = ctx.NewCQ(o); err != nil {
		return nil, errno(err)
	}
	c.sd.watch(h.source(), asyncQueue{c.events, ring.Handle(), nil})
	return h, nil
}

// Close leaves the session's context on the device alone: another of the client's may use it.
func (c *contextHandler) Close() error {
	c.sd.closeEvents(c.events)
	return nil
}

type cqHandler struct {
	sd   *sessionDevice
	cq   *vnic.CQ
	sink *cqSink
	late *adversary.Completions // or nil
}

func (h *cqHandler) source() asyncSource { return asyncSource{rpc.ObjCQ, h.cq.Handle()} }

func (h *cqHandler) CheckResize(asked uint32) error { return h.sd.dev.card().CheckResizeCQ(asked) }

func (h *cqHandler) Resize(size int) error {
	h.flush()
	return errno(h.cq.Resize(size))
}

func (h *cqHandler) Close() error {
	if err := h.cq.Close(); err != nil {
		return errno(err)
	}
	h.flush()
	h.sd.unwatch(h.source())
	return nil
}

type pdHandler struct {
	c      *contextHandler
	pd     *vnic.PD
	domain *direct.Domain
}

func (h *pdHandler) Close() error {
	if err := h.pd.Close(); err != nil {
		return errno(err)
	}
	h.domain.Close()
	delete(h.c.sd.domains, h.domain)
	return nil
}

// RegMR registers a part of a mapping that the client lent (mode 1), or its own memory (mode 0):
// that can hang, but LendMem came before it.
func (h *pdHandler) RegMR(
	req *rpc.RegMRRequest, mem *osmem.Memory, old server.MRHandler,
) (server.MRHandler, error) {
	if err := h.c.sd.fails(fault.RegMR); err != nil {
		return nil, err
	}
	rights, ok := access(req.Access)
	if !ok {
		return nil, syscall.EINVAL
	}
	var region vnic.Region
	switch req.Mode {
	case rpc.ModeShared:
		// shm keeps the mapping until the MR's Close has returned; this keeps it for as long as
		// the RNIC uses it, whatever comes first.
		if !mem.Acquire() {
			return nil, syscall.EINVAL
		}
		region.Bytes, region.Release = mem.Bytes(), mem.Release
		if a := h.c.sd.dev.adversary; a != nil {
			region.Mem, region.Bytes = a.Memory(lentMemory(region.Bytes)), nil
		} else {
			region.Lent = vnic.Lent{Mem: req.Mem, Offset: req.Offset}
		}
	case rpc.ModeApp:
		region.Mem = h.c.sd.dev.memory(appMemory{mem})
	default:
		return nil, syscall.EINVAL
	}
	var mr *vnic.MR
	var err error
	if old == nil {
		mr, err = h.pd.RegisterRegion(region, req.IOVA, req.Length, rights)
	} else {
		mr, err = h.pd.ReplaceRegion(old.(*mrHandler).mr.(*vnic.MR), region, req.IOVA, req.Length, rights)
	}
	if err != nil {
		return nil, errno(err)
	}
	return &mrHandler{mr}, nil
}

// memory is how the device reaches a program's own.
func (d *device) memory(m appMemory) vnic.Memory {
	if d.adversary != nil {
		return d.adversary.Memory(m)
	}
	return m
}

// A lentMemory is memory that both have, as if it were the program's own.
type lentMemory []byte

func (l lentMemory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, l[off:]), nil }
func (l lentMemory) WriteAt(p []byte, off int64) (int, error) { return copy(l[off:], p), nil }

// An appMemory is a program's own memory as the RNIC reaches it. Calls can hang.
type appMemory struct{ m *osmem.Memory }

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

// WriteLast implements vnic.LastWriter.
func (a appMemory) WriteLast(p []byte, off int64) (int, error) {
	if err := a.m.WriteLast(p, uint64(off)); err != nil {
		return 0, err
	}
	return len(p), nil
}

type mrHandler struct{ mr rdma.MR }

func (h *mrHandler) Keys() (lkey, rkey uint32) { return h.mr.LKey(), h.mr.RKey() }
func (h *mrHandler) Close() error              { return errno(h.mr.Close()) }

// AllocMR makes a region without memory.
func (h *pdHandler) AllocMR(maxLen uint64) (server.MRHandler, error) {
	if err := h.c.sd.fails(fault.RegMR); err != nil {
		return nil, err
	}
	mr, err := h.pd.AllocMR(maxLen)
	if err != nil {
		return nil, errno(err)
	}
	return &mrHandler{mr}, nil
}

func (h *pdHandler) AllocMW(typ uint32) (server.MWHandler, error) {
	if err := h.c.sd.fails(fault.AllocMW); err != nil {
		return nil, err
	}
	if err := h.c.sd.dev.card().CheckMW(); err != nil {
		return nil, err
	}
	mw, err := h.pd.AllocMW(rdma.MWType(typ))
	if err != nil {
		return nil, errno(err)
	}
	return &mwHandler{mw}, nil
}

type mwHandler struct{ mw rdma.MW }

func (h *mwHandler) RKey() uint32 { return h.mw.RKey() }
func (h *mwHandler) Close() error { return errno(h.mw.Close()) }

func (h *pdHandler) SRQSize(maxWR, maxSGE uint32) (wr, sge uint32) {
	size := h.c.sd.dev.card().SRQSize(maxWR, maxSGE)
	return size.WR, size.SGE
}

func (h *pdHandler) CreateSRQ(
	req *rpc.CreateSRQRequest, rings *ring.DaemonSRQ,
) (server.SRQHandler, error) {
	if err := h.c.sd.fails(fault.CreateSRQ); err != nil {
		return nil, err
	}
	if err := h.c.sd.dev.card().CheckSRQ(req.MaxWR, req.MaxSGE); err != nil {
		return nil, err
	}
	srq, err := h.pd.NewSRQ(vnic.SRQOptions{
		SRQConfig: rdma.SRQConfig{MaxWR: int(rings.Layout.RQSize), MaxSGE: int(rings.Layout.RQMaxSGE()),
			MaxPerQP: int(req.MaxPerQP)},
		Queue: &sharedQueue{recvQueue{ring: &rings.RQ}},
	})
	if err != nil {
		return nil, errno(err)
	}
	s := &srqHandler{sd: h.c.sd, srq: srq, size: h.c.sd.dev.card().SRQSize(req.MaxWR, req.MaxSGE)}
	s.sd.watch(s.source(), asyncQueue{h.c.events, rings.Handle, nil})
	return s, nil
}

type srqHandler struct {
	sd   *sessionDevice
	srq  *vnic.SRQ
	size profile.SRQSize
}

func (h *srqHandler) source() asyncSource { return asyncSource{rpc.ObjSRQ, h.srq.Num()} }

func (h *srqHandler) SetLimit(n uint32) error { return errno(h.srq.SetLimit(int(n))) }

func (h *srqHandler) Query(r *rpc.QuerySRQReply) error {
	if err := h.sd.dev.card().CheckQuerySRQ(); err != nil {
		return err
	}
	n, err := h.srq.Limit()
	r.Limit = uint32(n)
	r.MaxWR = cmp.Or(h.size.QueriedWR, r.MaxWR)
	return errno(err)
}

// Bell wakes the QPs that wait; each runs on a goroutine of its own.
func (h *srqHandler) Bell(func() bool) (more bool) {
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
