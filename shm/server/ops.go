package server

import (
	"io"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
)

// Objects of a session. The counts of users decide about EBUSY and belong to the control goroutine.
type (
	ctxObj struct {
		device uint32
		h      ContextHandler
		events *AsyncQueue
		users  int // PDs, CQs, channels
	}
	pdObj struct {
		ctx   *ctxObj
		h     PDHandler
		users int // MRs, MWs, SRQs, QPs, AHs
	}
	memObj struct {
		region *osmem.Region
		users  int // MRs
		fd     int // kept for the peers of the client's QPs; -1: it is not
	}
	mrObj struct {
		pd  *pdObj
		in  *memObj // or nil
		h   MRHandler
		mem *osmem.Memory    // nil: ALLOC_MR
		req abi.RegMRRequest // what it was registered as
	}
	mwObj struct {
		pd *pdObj
		h  MWHandler
	}
	chanObj struct {
		ctx   *ctxObj
		ring  *ring.ChannelProducer
		mem   *osmem.Region
		pipe  *osmem.EventWriter
		users int // CQs
	}
	cqObj struct {
		ctx   *ctxObj
		ch    *chanObj // or nil
		h     CQHandler
		ring  *ring.CQProducer
		mem   *osmem.Region
		next  *osmem.Region // of RESIZE_CQ, for SWITCH_CQ; or nil
		size  uint32        // of next
		users int           // QPs, once for each direction
	}
	ahObj struct {
		pd *pdObj
		h  AHHandler
	}
)

func (c *chanObj) close() {
	c.pipe.Close()
	c.mem.Release()
}

// A handler carries a request out and returns the reply.
type handler func(*operation) (abi.Message, error)

// message is *T, a message.
type message[T any] interface {
	*T
	abi.Message
}

// serve makes a handler of f, which takes its request decoded.
func serve[Req, Rep any, PReq message[Req], PRep message[Rep]](f func(*operation, PReq) (PRep,
	error)) handler {
	return func(o *operation) (abi.Message, error) {
		req := PReq(new(Req))
		if err := abi.DecodeRequest(o.h, o.body, req); err != nil {
			return nil, err
		}
		rep, err := f(o, req)
		if err != nil {
			return nil, err // not a nil *Rep in the interface
		}
		return rep, nil
	}
}

// act is serve for what has no reply but its status.
func act[Req any, PReq message[Req]](f func(*operation, PReq) error) handler {
	return serve(func(o *operation, req PReq) (*abi.Empty, error) { return &abi.Empty{}, f(o, req) })
}

// waits is f for what may wait for the network: the session ends if the client goes meanwhile, and
// with the session its context, for which f looks.
func waits(f handler) handler {
	return func(o *operation) (abi.Message, error) {
		defer o.s.conn.Watch(func() { o.s.end(io.EOF) })()
		return f(o)
	}
}

// operations are all but the connection manager's: cmOperations.
var operations = map[abi.Op]handler{
	abi.OpControl:       waits(act((*operation).control)),
	abi.OpSetMem:        act((*operation).setMem),
	abi.OpAddMem:        serve((*operation).addMem),
	abi.OpDelMem:        act((*operation).delMem),
	abi.OpQueryDevice:   serve((*operation).queryDevice),
	abi.OpQueryPort:     serve((*operation).queryPort),
	abi.OpQueryGID:      serve((*operation).queryGID),
	abi.OpCtxOpen:       serve((*operation).ctxOpen),
	abi.OpCtxClose:      act((*operation).ctxClose),
	abi.OpGetAsyncEvent: serve((*operation).getAsync),
	abi.OpAllocPD:       serve((*operation).allocPD),
	abi.OpDeallocPD:     act((*operation).deallocPD),
	abi.OpRegMR:         serve((*operation).regMR),
	abi.OpDeregMR:       act((*operation).deregMR),
	abi.OpReregMR:       serve((*operation).reregMR),
	abi.OpAllocMR:       serve((*operation).allocMR),
	abi.OpAllocMW:       serve((*operation).allocMW),
	abi.OpDeallocMW:     act((*operation).deallocMW),
	abi.OpCreateChan:    serve((*operation).createChan),
	abi.OpDestroyChan:   act((*operation).destroyChan),
	abi.OpCreateCQ:      serve((*operation).createCQ),
	abi.OpDestroyCQ:     serve((*operation).destroyCQ),
	abi.OpResizeCQ:      serve((*operation).resizeCQ),
	abi.OpSwitchCQ:      act((*operation).switchCQ),
	abi.OpCreateSRQ:     serve((*operation).createSRQ),
	abi.OpModifySRQ:     act((*operation).modifySRQ),
	abi.OpQuerySRQ:      serve((*operation).querySRQ),
	abi.OpDestroySRQ:    serve((*operation).destroySRQ),
	abi.OpCreateQP:      serve((*operation).createQP),
	abi.OpModifyQP:      waits(act((*operation).modifyQP)),
	abi.OpQueryQP:       serve((*operation).queryQP),
	abi.OpDestroyQP:     serve((*operation).destroyQP),
	abi.OpCreateAH:      waits(serve((*operation).createAH)),
	abi.OpDestroyAH:     act((*operation).destroyAH),
	abi.OpAttachMcast:   act((*operation).attachMcast),
	abi.OpDetachMcast:   act((*operation).detachMcast),
	abi.OpDirect:        serve((*operation).direct),
	abi.OpIdentify:      act((*operation).identify),
	abi.OpDirectKeys:    act((*operation).directKeys),
	abi.OpDirectMem:     act((*operation).directMem),
	abi.OpDirectSleep:   act((*operation).directSleep),
	abi.OpDirectWake:    act((*operation).directWake),
	abi.OpList:          serve((*operation).list),
	abi.OpStat:          serve((*operation).list),
}

// do carries the request out.
func (o *operation) do() (rep abi.Message, err error) {
	switch o.h.Op {
	case abi.OpQueryDevice, abi.OpQueryPort, abi.OpQueryGID, abi.OpList, abi.OpStat:
	default:
		if o.s.looks != nil {
			return nil, o.s.looks
		}
	}
	f, ok := operations[o.h.Op]
	if !ok {
		if f, ok = cmOperations[o.h.Op]; !ok {
			return nil, syscall.EOPNOTSUPP
		}
	}
	return f(o)
}

// get finds an object by a handle of the session's own; ENOENT.
func get[T any](h *handles[T], n uint32) (T, error) {
	v, ok := h.m[n]
	if !ok {
		return v, syscall.ENOENT
	}
	return v, nil
}

// number is the handle for one more object of at most max, which is the limit of that name.
func number[T any](s *Session, h *handles[T], max int, limit string) (uint32, error) {
	n := h.next(max)
	if n == 0 {
		return 0, s.overLimit(limit)
	}
	return n, nil
}

// put and drop change a table of the session.
func put[T any](s *Session, h *handles[T], n uint32, v T) {
	s.mu.Lock()
	h.add(n, v)
	s.mu.Unlock()
}

func drop[T any](s *Session, h *handles[T], n uint32) {
	s.mu.Lock()
	delete(h.m, n)
	s.mu.Unlock()
}

func (o *operation) queryDevice(req *abi.QueryDeviceRequest) (*abi.QueryDeviceReply, error) {
	r, err := o.s.h.QueryDevice(req.Device)
	if err != nil {
		return nil, err
	}
	if r.Card != 0 {
		return r, nil
	}
	c := *r // what the quotas leave
	lim := &o.s.limits
	for _, f := range []struct {
		v   *uint32
		max int
	}{
		{&c.MaxQP, lim.QPs}, {&c.MaxQPWR, lim.Depth}, {&c.MaxCQ, lim.CQs}, {&c.MaxCQE, lim.CQDepth},
		{&c.MaxMR, lim.MRs},
		{&c.MaxPD, lim.PDs}, {&c.MaxSGE, abi.MaxSGE}, {&c.MaxInline, abi.MaxInline}, {&c.MaxMW, lim.MWs},
		{&c.MaxSRQ, lim.SRQs},
		{&c.MaxSRQWR, lim.Depth}, {&c.MaxSRQSGE, abi.MaxSGE},
		{&c.MaxAH, lim.AHs}, {&c.MaxGroups, lim.Groups},
	} {
		*f.v = uint32(min(int64(*f.v), int64(f.max)))
	}
	return &c, nil
}

// control is for who looks after the daemon.
func (o *operation) control(req *abi.ControlRequest) error {
	if !o.s.privileged() {
		return &Refusal{syscall.EPERM,
			"only root and the daemon's own user may change it, or look at what others do"}
	}
	if req.Flags&^abi.ControlKnown != 0 {
		return syscall.EINVAL
	}
	taken, err := o.s.h.Control(req, o.fd)
	if taken {
		o.fd = -1
	}
	return err
}

func (o *operation) queryPort(req *abi.QueryPortRequest) (*abi.QueryPortReply, error) {
	return o.s.h.QueryPort(req.Device, req.Port)
}

func (o *operation) queryGID(req *abi.QueryGIDRequest) (*abi.QueryGIDReply, error) {
	return o.s.h.QueryGID(req.Device, req.Port, req.Index)
}

func (o *operation) ctxOpen(req *abi.CtxOpenRequest) (*abi.CtxOpenReply, error) {
	s := o.s
	n, err := number(s, &s.ctxs, s.limits.Contexts, "contexts")
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := s.newEventPipe()
	if err != nil {
		return nil, err
	}
	o.send(rfd)
	c := &ctxObj{device: req.Device, events: newAsyncQueue(s.maxAsync(), pipe)}
	if c.h, err = s.h.OpenContext(req.Device, c.events); err != nil {
		c.events.close()
		o.out = nil
		return nil, err
	}
	put(s, &s.ctxs, n, c)
	return &abi.CtxOpenReply{Ctx: n}, nil
}

func (o *operation) ctxClose(req *abi.HandleRequest) error {
	c, err := get(&o.s.ctxs, req.Handle)
	if err != nil {
		return err
	}
	if c.users > 0 {
		return syscall.EBUSY
	}
	if err := c.h.Close(); err != nil {
		return err
	}
	drop(o.s, &o.s.ctxs, req.Handle)
	c.events.close()
	return nil
}

func (o *operation) getAsync(req *abi.HandleRequest) (*abi.AsyncEvent, error) {
	c, err := get(&o.s.ctxs, req.Handle)
	if err != nil {
		return nil, err
	}
	e, ok := c.events.pop()
	if !ok {
		return nil, syscall.EAGAIN
	}
	return &e, nil
}

func (o *operation) allocPD(req *abi.AllocPDRequest) (*abi.AllocPDReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.pds, s.limits.PDs, "pds")
	if err != nil {
		return nil, err
	}
	if err := s.srv.ids.take(s.account(), s.privileged()); err != nil {
		return nil, err
	}
	h, err := c.h.AllocPD()
	if err != nil {
		s.srv.ids.give(s.account(), 1)
		return nil, err
	}
	c.users++
	put(s, &s.pds, n, &pdObj{ctx: c, h: h})
	return &abi.AllocPDReply{PD: n}, nil
}

func (o *operation) deallocPD(req *abi.HandleRequest) error {
	p, err := get(&o.s.pds, req.Handle)
	if err != nil {
		return err
	}
	if p.users > 0 {
		return syscall.EBUSY
	}
	if err := p.h.Close(); err != nil {
		return err
	}
	p.ctx.users--
	drop(o.s, &o.s.pds, req.Handle)
	o.s.srv.ids.give(o.s.account(), 1)
	return nil
}
