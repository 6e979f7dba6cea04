package server

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A qpObj is a QP of a session.
type qpObj struct {
	pd             *pdObj
	sendCQ, recvCQ *cqObj
	srq            *srqObj // or nil
	h              QPHandler
	rings          *ring.DaemonQP
	mem            *osmem.Region
	own            int64 // octets that the daemon has for it
	caps           rpc.QPCaps
	num            uint32
	bell           *bellObj
	groups         map[[16]byte]struct{} // that it is a member of
}

// hold counts q (1), or not any more (-1), as a user of what it is made of.
func (q *qpObj) hold(n int) {
	q.pd.users += n
	q.sendCQ.users += n
	q.recvCQ.users += n
	if q.srq != nil {
		q.srq.users += n
	}
}

// A qpKey finds a QP by its number, which is unique on a device.
type qpKey struct {
	ctx *ctxObj
	num uint32
}

func (o *operation) createChan(req *rpc.CreateChanRequest) (*rpc.CreateChanReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.chans, s.limits.Channels, "channels")
	if err != nil {
		return nil, err
	}
	mem, fd, err := s.newRing("channel", ring.ChannelMemSize)
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := s.newEventPipe()
	if err != nil {
		osmem.CloseFD(fd)
		s.freeRing(mem)
		return nil, err
	}
	o.sendEnd(rfd)
	o.send(fd)
	ch := &chanObj{ctx: c, mem: mem, pipe: pipe}
	ch.ring = ring.NewChannelProducer(mem.Mem, n, pipe.Token, s.Fail)
	c.events.addChan(ch.ring)
	c.users++
	put(s, &s.chans, n, ch)
	return &rpc.CreateChanReply{Chan: n}, nil
}

func (o *operation) destroyChan(req *rpc.HandleRequest) error {
	s := o.s
	ch, err := get(&s.chans, req.Handle)
	if err != nil {
		return err
	}
	if ch.users > 0 {
		return syscall.EBUSY
	}
	ch.ctx.events.dropChan(ch.ring)
	ch.ctx.users--
	drop(s, &s.chans, req.Handle)
	ch.pipe.Close()
	s.freeRing(ch.mem)
	return nil
}

func (o *operation) createCQ(req *rpc.CreateCQRequest) (*rpc.CreateCQReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	var ch *chanObj
	var events *ring.ChannelProducer
	if req.Chan != 0 {
		if ch, err = get(&s.chans, req.Chan); err != nil {
			return nil, err
		}
		if ch.ctx != c {
			return nil, syscall.EINVAL
		}
		if ch.users >= abi.ChanSlots { // its ring has room for an event of each
			return nil, &Refusal{syscall.ENOMEM, fmt.Sprintf("the completion channel has %d completion "+
				"queues, as many as one may: make another channel", ch.users)}
		}
		events = ch.ring
	}
	if req.CQE < 1 || req.Vector != 0 {
		return nil, syscall.EINVAL
	}
	if int64(req.CQE) > int64(s.limits.CQDepth) {
		return nil, s.overBy(syscall.EINVAL, "cq-depth")
	}
	n, err := number(s, &s.cqs, s.limits.CQs, "cqs")
	if err != nil {
		return nil, err
	}
	size, told := s.cqSize(c, req.CQE)
	mem, fd, err := s.newRing("cq", ring.CQMemSize(size))
	if err != nil {
		return nil, err
	}
	o.send(fd)
	cq := &cqObj{ctx: c, ch: ch, mem: mem, ring: ring.NewCQProducer(mem.Mem, size, n, events, s.Fail)}
	cq.bits = &Bits{s: s, ring: cq.ring}
	if cq.h, err = c.h.CreateCQ(cq.ring, req.CQE); err != nil {
		o.out = nil
		cq.ring.Close()
		s.freeRing(mem)
		return nil, err
	}
	c.users++
	if ch != nil {
		ch.users++
	}
	put(s, &s.cqs, n, cq)
	return &rpc.CreateCQReply{CQ: n, CQE: told}, nil
}

// cqSize is how many completions the ring of a CQ of c has that asks for so many, and how many it
// is said to hold.
func (s *Session) cqSize(c *ctxObj, asked uint32) (size, told uint32) {
	told = min(c.h.CQDepth(asked), uint32(s.limits.CQDepth))
	size = abi.CeilPow2(max(asked, told))
	if told < asked {
		told = size
	}
	return size, told
}

func (o *operation) destroyCQ(req *rpc.HandleRequest) (*rpc.DestroyReply, error) {
	s := o.s
	cq, err := get(&s.cqs, req.Handle)
	if err != nil {
		return nil, err
	}
	if cq.users > 0 {
		return nil, syscall.EBUSY
	}
	if err := cq.h.Close(); err != nil {
		return nil, err
	}
	cq.ring.Close() // from here on neither the CQ nor its channel is written for it
	cq.ctx.users--
	if cq.ch != nil {
		cq.ch.users--
	}
	drop(s, &s.cqs, req.Handle)
	s.freeRing(cq.mem)
	s.freeNext(cq)
	cq.bits.close(s.freeRing)
	r := cq.ctx.events.forget(rpc.ObjCQ, req.Handle)
	return &r, nil
}

// resizeCQ makes other memory for a CQ, which goes on in its own until switchCQ.
func (o *operation) resizeCQ(req *rpc.ResizeCQRequest) (*rpc.ResizeCQReply, error) {
	s := o.s
	cq, err := get(&s.cqs, req.CQ)
	if err != nil {
		return nil, err
	}
	if err := cq.h.CheckResize(req.CQE); err != nil {
		return nil, err
	}
	if req.CQE < 1 {
		return nil, syscall.EINVAL
	}
	if int64(req.CQE) > int64(s.limits.CQDepth) {
		return nil, s.overBy(syscall.EINVAL, "cq-depth")
	}
	size, told := s.cqSize(cq.ctx, req.CQE)
	s.freeNext(cq)
	mem, fd, err := s.newRing("cq", ring.CQMemSize(size))
	if err != nil {
		return nil, err
	}
	o.send(fd)
	cq.next, cq.size = mem, size
	return &rpc.ResizeCQReply{CQE: told}, nil
}

// switchCQ has a CQ go on in the memory that resizeCQ has made.
func (o *operation) switchCQ(req *rpc.HandleRequest) error {
	cq, err := get(&o.s.cqs, req.Handle)
	if err != nil {
		return err
	}
	if cq.next == nil {
		return syscall.EINVAL
	}
	before := cq.ring.Size()
	if err := cq.h.Resize(int(cq.size)); err != nil {
		return err
	}
	if err := cq.ring.Move(cq.next.Mem, cq.size); err != nil {
		return errors.Join(err, cq.h.Resize(before))
	}
	old := cq.mem
	o.s.mu.Lock()
	cq.mem, cq.next = cq.next, nil
	o.s.mu.Unlock()
	o.s.freeRing(old)
	return nil
}

// freeNext forgets memory that was made for a CQ and not used.
func (s *Session) freeNext(cq *cqObj) {
	if cq.next != nil {
		s.freeRing(cq.next)
		cq.next = nil
		s.settle() // for the quota
	}
}

func (o *operation) createQP(req *rpc.CreateQPRequest) (*rpc.CreateQPReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	q := &qpObj{pd: pd}
	if q.sendCQ, err = get(&s.cqs, req.SendCQ); err != nil {
		return nil, err
	}
	if q.recvCQ, err = get(&s.cqs, req.RecvCQ); err != nil {
		return nil, err
	}
	parts := &QPParts{
		SigAll: req.Flags&rpc.CreateQPSigAll != 0, EndInError: req.Flags&rpc.CreateQPEndInError != 0,
		SendCQ: q.sendCQ.h, RecvCQ: q.recvCQ.h, Type: req.Type, Asked: req.Caps,
		Bits: q.recvCQ.bits,
	}
	switch parts.Type {
	case 0:
		parts.Type = rpc.TypeRC
	case rpc.TypeRC, rpc.TypeUC, rpc.TypeUD:
	default:
		return nil, syscall.EOPNOTSUPP
	}
	if req.SRQ != 0 {
		if q.srq, err = get(&s.srqs, req.SRQ); err != nil {
			return nil, err
		}
		parts.SRQ = q.srq.h
	}
	depth := uint32(s.limits.Depth)
	if max(req.Caps.MaxSendWR, req.Caps.MaxRecvWR) > depth {
		return nil, s.overBy(syscall.EINVAL, "depth")
	}
	if _, ok := req.Caps.Round(depth, q.srq != nil); !ok { // the handler reckons with them
		return nil, syscall.EINVAL
	}
	size := pd.h.QPSize(req.Caps, parts.Type)
	want := req.Caps
	want.MaxSendWR = max(want.MaxSendWR, min(size.Send, depth))
	want.MaxRecvWR = max(want.MaxRecvWR, min(size.Recv, depth))
	want.MaxInline = max(want.MaxInline, min(size.Inline, abi.MaxInline))
	caps, ok := want.Round(depth, q.srq != nil)
	if !ok || q.sendCQ.ctx != pd.ctx || q.recvCQ.ctx != pd.ctx || q.srq != nil && q.srq.pd != pd ||
		req.Flags&^(rpc.CreateQPSigAll|rpc.CreateQPEndInError) != 0 {
		return nil, syscall.EINVAL
	}
	n, err := number(s, &s.qps, s.limits.QPs, "qps")
	if err != nil {
		return nil, err
	}
	q.own = pd.h.QPMemory(caps)
	if err := s.srv.queues.takeMany(s.account(), s.Privileged(), q.own); err != nil {
		return nil, err
	}
	l := caps.Layout()
	mem, fd, err := s.newRing("qp", l.Size())
	if err != nil {
		s.giveQueue(q.own)
		return nil, err
	}
	o.send(fd)
	q.mem, q.caps, q.rings = mem, told(caps, want, size), ring.NewDaemonQP(mem.Mem, l, n, s.Fail)
	parts.Caps, parts.Rings = caps, q.rings
	if q.h, err = pd.h.CreateQP(parts); err != nil {
		o.out = nil
		s.freeRing(mem)
		s.giveQueue(q.own)
		return nil, err
	}
	q.num = q.h.Num()
	q.rings.SetQPN(q.num)
	q.hold(1)
	put(s, &s.qps, n, q)
	s.qpNums[qpKey{pd.ctx, q.num}] = q
	q.bell = s.addBell(q.h.Bell)
	return &rpc.CreateQPReply{QP: n, QPN: q.num, Bell: q.bell.number, Caps: q.caps}, nil
}

// told are the caps that a QP is said to have, whose rings have caps: as many requests as were
// wanted, where its handler has something to say of that.
func told(caps, want rpc.QPCaps, size QPSize) rpc.QPCaps {
	if size.Send != 0 {
		caps.MaxSendWR = want.MaxSendWR
	}
	if size.Recv != 0 && caps.MaxRecvWR != 0 {
		caps.MaxRecvWR = want.MaxRecvWR
	}
	if size.Inline != 0 {
		caps.MaxInline = want.MaxInline
	}
	return caps
}

func (o *operation) modifyQP(req *rpc.ModifyQPRequest) error {
	q, err := get(&o.s.qps, req.QP)
	if err != nil {
		return err
	}
	if req.Mask&^rpc.ModifyQPKnown != 0 || req.Mask == 0 && req.State != 0 ||
		req.State > abi.StateErr {
		return syscall.EINVAL
	}
	if req.Mask == 0 {
		return nil
	}
	return q.h.Modify(req)
}

func (o *operation) queryQP(req *rpc.HandleRequest) (*rpc.QueryQPReply, error) {
	q, err := get(&o.s.qps, req.Handle)
	if err != nil {
		return nil, err
	}
	r := &rpc.QueryQPReply{QPN: q.num, Caps: q.caps}
	q.h.Query(r)
	return r, nil
}

func (o *operation) destroyQP(req *rpc.HandleRequest) (*rpc.DestroyReply, error) {
	s := o.s
	q, err := get(&s.qps, req.Handle)
	if err != nil {
		return nil, err
	}
	if err := s.endBell(q.bell, q.h.Close); err != nil {
		return nil, err
	}
	delete(s.qpNums, qpKey{q.pd.ctx, q.num})
	s.leaveGroups(len(q.groups))
	q.hold(-1)
	drop(s, &s.qps, req.Handle)
	s.freeRing(q.mem)
	s.giveQueue(q.own)
	r := q.pd.ctx.events.forget(rpc.ObjQP, req.Handle)
	return &r, nil
}

// giveQueue gives octets back that a queue has had.
func (s *Session) giveQueue(n int64) { s.srv.queues.give(s.account(), n) }
