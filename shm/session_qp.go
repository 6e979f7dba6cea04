package shm

import (
	"sync"
	"syscall"
)

// A qpObj is a QP of a session.
type qpObj struct {
	pd             *pdObj
	sendCQ, recvCQ *cqObj
	h              QPHandler
	rings          *QPRings
	mem            *region
	caps           QPCaps
	num            uint32
	bell           uint32
	due            bool // the doorbell thread's

	mu   sync.Mutex // held while Bell runs
	dead bool
}

// A qpKey finds a QP by its number, which is unique on a device.
type qpKey struct {
	ctx *ctxObj
	num uint32
}

func (o *operation) createChan(req *CreateChanRequest) (*CreateChanReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	n, err := number(&s.chans, s.srv.limits.Channels)
	if err != nil {
		return nil, err
	}
	mem, fd, err := s.newRing("channel", ChannelMemSize)
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := newEventPipe()
	if err != nil {
		closeFD(fd)
		s.freeRing(mem)
		return nil, err
	}
	o.send(rfd)
	o.send(fd)
	ch := &chanObj{ctx: c, mem: mem, pipe: pipe}
	ch.ring = NewChannelRing(mem.mem, n, pipe.token, s.Fail)
	c.users++
	put(s, &s.chans, n, ch)
	return &CreateChanReply{Chan: n}, nil
}

func (o *operation) destroyChan(req *HandleRequest) error {
	s := o.s
	ch, err := get(&s.chans, req.Handle)
	if err != nil {
		return err
	}
	if ch.users > 0 {
		return syscall.EBUSY
	}
	ch.ctx.users--
	drop(s, &s.chans, req.Handle)
	s.mu.Lock()
	s.ringBytes -= int64(len(ch.mem.mem))
	s.mu.Unlock()
	ch.close()
	return nil
}

func (o *operation) createCQ(req *CreateCQRequest) (*CreateCQReply, error) {
	s := o.s
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	var ch *chanObj
	var ring *ChannelRing
	if req.Chan != 0 {
		if ch, err = get(&s.chans, req.Chan); err != nil {
			return nil, err
		}
		if ch.ctx != c {
			return nil, syscall.EINVAL
		}
		ring = ch.ring
	}
	if req.CQE < 1 || int64(req.CQE) > int64(s.srv.limits.Depth) || req.Vector != 0 {
		return nil, syscall.EINVAL
	}
	n, err := number(&s.cqs, s.srv.limits.CQs)
	if err != nil {
		return nil, err
	}
	size := ceilPow2(req.CQE)
	mem, fd, err := s.newRing("cq", CQMemSize(size))
	if err != nil {
		return nil, err
	}
	o.send(fd)
	cq := &cqObj{ctx: c, ch: ch, mem: mem, ring: NewCQRing(mem.mem, size, n, ring, s.Fail)}
	if cq.h, err = c.h.CreateCQ(cq.ring); err != nil {
		o.out = nil
		cq.ring.close()
		s.freeRing(mem)
		return nil, err
	}
	c.users++
	if ch != nil {
		ch.users++
	}
	put(s, &s.cqs, n, cq)
	return &CreateCQReply{CQ: n, CQE: size}, nil
}

func (o *operation) destroyCQ(req *HandleRequest) (*DestroyReply, error) {
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
	cq.ring.close() // from here on neither the CQ nor its channel is written for it
	cq.ctx.users--
	if cq.ch != nil {
		cq.ch.users--
	}
	drop(s, &s.cqs, req.Handle)
	s.freeRing(cq.mem)
	r := cq.ctx.events.forget(ObjCQ, req.Handle)
	return &r, nil
}

func (o *operation) createQP(req *CreateQPRequest) (*CreateQPReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	scq, err := get(&s.cqs, req.SendCQ)
	if err != nil {
		return nil, err
	}
	rcq, err := get(&s.cqs, req.RecvCQ)
	if err != nil {
		return nil, err
	}
	if req.SRQ != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	caps, ok := req.Caps.Round(uint32(s.srv.limits.Depth))
	if !ok || scq.ctx != pd.ctx || rcq.ctx != pd.ctx || req.Flags&^CreateQPSigAll != 0 {
		return nil, syscall.EINVAL
	}
	n := s.qps.next(s.srv.limits.QPs)
	bell, free := s.freeBell()
	if n == 0 || !free {
		return nil, syscall.ENOMEM
	}
	l := NewQPLayout(caps)
	mem, fd, err := s.newRing("qp", l.Size())
	if err != nil {
		return nil, err
	}
	o.send(fd)
	q := &qpObj{pd: pd, sendCQ: scq, recvCQ: rcq, mem: mem, caps: caps, bell: bell, rings: NewQPRings(mem.mem, l, n, s.Fail)}
	if q.h, err = pd.h.CreateQP(req, caps, scq.h, rcq.h, q.rings); err != nil {
		o.out = nil
		s.freeRing(mem)
		return nil, err
	}
	q.num = q.h.Num()
	q.rings.setQPN(q.num)
	pd.users++
	scq.users++
	rcq.users++
	put(s, &s.qps, n, q)
	s.qpNums[qpKey{pd.ctx, q.num}] = q
	s.bellTab[bell].Store(q)
	return &CreateQPReply{QP: n, QPN: q.num, Bell: bell, Caps: caps}, nil
}

func (s *Session) freeBell() (uint32, bool) {
	for i := range s.bellTab {
		if s.bellTab[i].Load() == nil {
			return uint32(i), true
		}
	}
	return 0, false
}

func (o *operation) modifyQP(req *ModifyQPRequest) error {
	q, err := get(&o.s.qps, req.QP)
	if err != nil {
		return err
	}
	if req.Mask&^ModifyQPState != 0 || req.Mask == 0 && req.State != 0 || req.State > StateErr {
		return syscall.EINVAL
	}
	if req.Mask == 0 {
		return nil
	}
	return q.h.Modify(req)
}

func (o *operation) queryQP(req *HandleRequest) (*QueryQPReply, error) {
	q, err := get(&o.s.qps, req.Handle)
	if err != nil {
		return nil, err
	}
	r := &QueryQPReply{QPN: q.num, Caps: q.caps}
	q.h.Query(r)
	return r, nil
}

func (o *operation) destroyQP(req *HandleRequest) (*DestroyReply, error) {
	s := o.s
	q, err := get(&s.qps, req.Handle)
	if err != nil {
		return nil, err
	}
	q.mu.Lock() // waits for a Bell under way
	q.dead = true
	q.mu.Unlock()
	if err := q.h.Close(); err != nil {
		q.mu.Lock()
		q.dead = false
		q.mu.Unlock()
		return nil, err
	}
	s.bellTab[q.bell].Store(nil)
	delete(s.qpNums, qpKey{q.pd.ctx, q.num})
	q.pd.users--
	q.sendCQ.users--
	q.recvCQ.users--
	drop(s, &s.qps, req.Handle)
	s.freeRing(q.mem)
	r := q.pd.ctx.events.forget(ObjQP, req.Handle)
	return &r, nil
}
