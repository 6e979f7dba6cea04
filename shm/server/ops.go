package server

import (
	"io"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
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
		req rpc.RegMRRequest // what it was registered as
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
		bits  *Bits
		size  uint32 // of next
		users int    // QPs, once for each direction
	}
	ahObj struct {
		pd *pdObj
		h  AHHandler
	}
)

// A handler carries a request out and returns the reply.
type handler func(*operation) (rpc.Message, error)

// message is *T, a message.
type message[T any] interface {
	*T
	rpc.Message
}

// serve makes a handler of f, which takes its request decoded.
func serve[Req, Rep any, PReq message[Req], PRep message[Rep]](f func(*operation, PReq) (PRep,
	error)) handler {
	return func(o *operation) (rpc.Message, error) {
		req := PReq(new(Req))
		if err := rpc.DecodeRequest(o.h, o.body, req); err != nil {
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
	return serve(func(o *operation, req PReq) (*rpc.Empty, error) { return &rpc.Empty{}, f(o, req) })
}

// waits is f for what may wait for the network: the session ends if the client goes meanwhile, and
// with the session its context, for which f looks.
func waits(f handler) handler {
	return func(o *operation) (rpc.Message, error) {
		defer o.s.conn.Watch(func() { o.s.end(io.EOF) })()
		return f(o)
	}
}

// operations are all but the connection manager's: cmOperations.
var operations = map[rpc.Op]handler{
	rpc.OpControl:        waits(act((*operation).control)),
	rpc.OpSetMem:         act((*operation).setMem),
	rpc.OpAddMem:         serve((*operation).addMem),
	rpc.OpDelMem:         act((*operation).delMem),
	rpc.OpQueryDevice:    serve((*operation).queryDevice),
	rpc.OpQueryPort:      serve((*operation).queryPort),
	rpc.OpQueryGID:       serve((*operation).queryGID),
	rpc.OpCtxOpen:        serve((*operation).ctxOpen),
	rpc.OpCtxClose:       act((*operation).ctxClose),
	rpc.OpGetAsyncEvent:  serve((*operation).getAsync),
	rpc.OpAllocPD:        serve((*operation).allocPD),
	rpc.OpDeallocPD:      act((*operation).deallocPD),
	rpc.OpRegMR:          serve((*operation).regMR),
	rpc.OpDeregMR:        act((*operation).deregMR),
	rpc.OpReregMR:        serve((*operation).reregMR),
	rpc.OpAllocMR:        serve((*operation).allocMR),
	rpc.OpAllocMW:        serve((*operation).allocMW),
	rpc.OpDeallocMW:      act((*operation).deallocMW),
	rpc.OpCreateChan:     serve((*operation).createChan),
	rpc.OpDestroyChan:    act((*operation).destroyChan),
	rpc.OpCreateCQ:       serve((*operation).createCQ),
	rpc.OpDestroyCQ:      serve((*operation).destroyCQ),
	rpc.OpResizeCQ:       serve((*operation).resizeCQ),
	rpc.OpSwitchCQ:       act((*operation).switchCQ),
	rpc.OpCreateSRQ:      serve((*operation).createSRQ),
	rpc.OpModifySRQ:      act((*operation).modifySRQ),
	rpc.OpQuerySRQ:       serve((*operation).querySRQ),
	rpc.OpDestroySRQ:     serve((*operation).destroySRQ),
	rpc.OpCreateQP:       serve((*operation).createQP),
	rpc.OpModifyQP:       waits(act((*operation).modifyQP)),
	rpc.OpQueryQP:        serve((*operation).queryQP),
	rpc.OpDestroyQP:      serve((*operation).destroyQP),
	rpc.OpCreateAH:       waits(serve((*operation).createAH)),
	rpc.OpDestroyAH:      act((*operation).destroyAH),
	rpc.OpAttachMcast:    act((*operation).attachMcast),
	rpc.OpDetachMcast:    act((*operation).detachMcast),
	rpc.OpDirect:         serve((*operation).direct),
	rpc.OpIdentify:       act((*operation).identify),
	rpc.OpDirectKeys:     act((*operation).directKeys),
	rpc.OpDirectMem:      act((*operation).directMem),
	rpc.OpDirectSleep:    act((*operation).directSleep),
	rpc.OpDirectWake:     act((*operation).directWake),
	rpc.OpDirectBits:     act((*operation).directBits),
	rpc.OpDirectPeerBits: act((*operation).directPeerBits),
	rpc.OpList:           serve((*operation).list),
	rpc.OpStat:           serve((*operation).list),
}

// do carries the request out.
func (o *operation) do() (rep rpc.Message, err error) {
	switch o.h.Op {
	case rpc.OpQueryDevice, rpc.OpQueryPort, rpc.OpQueryGID, rpc.OpList, rpc.OpStat:
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

func (o *operation) queryDevice(req *rpc.QueryDeviceRequest) (*rpc.QueryDeviceReply, error) {
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
func (o *operation) control(req *rpc.ControlRequest) error {
	if !o.s.Privileged() {
		return &Refusal{syscall.EPERM,
			"only root and the daemon's own user may change it, or look at what others do"}
	}
	if req.Flags&^rpc.ControlKnown != 0 {
		return syscall.EINVAL
	}
	taken, err := o.s.h.Control(req, o.fd)
	if taken {
		o.fd = -1
	}
	return err
}

func (o *operation) queryPort(req *rpc.QueryPortRequest) (*rpc.QueryPortReply, error) {
	return o.s.h.QueryPort(req.Device, req.Port)
}

func (o *operation) queryGID(req *rpc.QueryGIDRequest) (*rpc.QueryGIDReply, error) {
	return o.s.h.QueryGID(req.Device, req.Port, req.Index)
}

func (o *operation) ctxOpen(req *rpc.CtxOpenRequest) (*rpc.CtxOpenReply, error) {
	s := o.s
	n, err := number(s, &s.ctxs, s.limits.Contexts, "contexts")
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := s.newEventPipe()
	if err != nil {
		return nil, err
	}
	o.sendEnd(rfd)
	c := &ctxObj{device: req.Device, events: newAsyncQueue(s.maxAsync(), pipe)}
	if c.h, err = s.h.OpenContext(req.Device, c.events); err != nil {
		c.events.close()
		o.out = nil
		return nil, err
	}
	put(s, &s.ctxs, n, c)
	return &rpc.CtxOpenReply{Ctx: n}, nil
}

func (o *operation) ctxClose(req *rpc.HandleRequest) error {
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

func (o *operation) getAsync(req *rpc.HandleRequest) (*rpc.AsyncEvent, error) {
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

func (o *operation) allocPD(req *rpc.AllocPDRequest) (*rpc.AllocPDReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.pds, s.limits.PDs, "pds")
	if err != nil {
		return nil, err
	}
	if err := s.srv.ids.take(s.account(), s.Privileged()); err != nil {
		return nil, err
	}
	h, err := c.h.AllocPD()
	if err != nil {
		s.srv.ids.give(s.account(), 1)
		return nil, err
	}
	c.users++
	put(s, &s.pds, n, &pdObj{ctx: c, h: h})
	return &rpc.AllocPDReply{PD: n}, nil
}

func (o *operation) deallocPD(req *rpc.HandleRequest) error {
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
