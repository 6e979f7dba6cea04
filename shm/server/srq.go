package server

import (
	"fmt"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// An srqObj is an SRQ of a session.
type srqObj struct {
	pd    *pdObj
	h     SRQHandler
	rings *ring.DaemonSRQ
	mem   *osmem.Region
	bell  *bellObj
	users int // QPs
}

func (o *operation) createSRQ(req *rpc.CreateSRQRequest) (*rpc.CreateSRQReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	if int64(req.MaxWR) > int64(s.limits.Depth) {
		return nil, s.overBy(syscall.EINVAL, "depth")
	}
	if req.MaxSGE > abi.MaxSGE {
		return nil, &Refusal{syscall.EINVAL, fmt.Sprintf("a receive of a shared receive queue may have "+
			"%d parts (max_sge), not %d", abi.MaxSGE, req.MaxSGE)}
	}
	n, err := number(s, &s.srqs, s.limits.SRQs, "srqs")
	if err != nil {
		return nil, err
	}
	l := abi.NewSRQLayout(abi.CeilPow2(max(req.MaxWR, 1)), max(req.MaxSGE, 1))
	mem, fd, err := s.newRing("srq", l.Size())
	if err != nil {
		return nil, err
	}
	o.send(fd)
	q := &srqObj{pd: pd, mem: mem, rings: ring.NewDaemonSRQ(mem.Mem, l, n, s.Fail)}
	if q.h, err = pd.h.CreateSRQ(req, q.rings); err != nil {
		o.out = nil
		s.freeRing(mem)
		return nil, err
	}
	pd.users++
	put(s, &s.srqs, n, q)
	q.bell = s.addBell(q.h.Bell)
	return &rpc.CreateSRQReply{SRQ: n, Bell: q.bell.number, MaxWR: l.RQSize, MaxSGE: l.RQMaxSGE()}, nil
}

func (o *operation) modifySRQ(req *rpc.ModifySRQRequest) error {
	q, err := get(&o.s.srqs, req.SRQ)
	if err != nil {
		return err
	}
	switch {
	case req.Mask&rpc.ModifySRQMaxWR != 0:
		return syscall.EOPNOTSUPP
	case req.Mask&^rpc.ModifySRQLimit != 0 || req.MaxWR != 0 || req.Mask == 0 && req.Limit != 0 ||
		req.Limit > q.rings.Layout.RQSize:
		return syscall.EINVAL
	case req.Mask == 0:
		return nil
	}
	return q.h.SetLimit(req.Limit)
}

func (o *operation) querySRQ(req *rpc.HandleRequest) (*rpc.QuerySRQReply, error) {
	q, err := get(&o.s.srqs, req.Handle)
	if err != nil {
		return nil, err
	}
	limit, err := q.h.Limit()
	if err != nil {
		return nil, err
	}
	return &rpc.QuerySRQReply{MaxWR: q.rings.Layout.RQSize, MaxSGE: q.rings.Layout.RQMaxSGE(),
		Limit: limit}, nil
}

func (o *operation) destroySRQ(req *rpc.HandleRequest) (*rpc.DestroyReply, error) {
	s := o.s
	q, err := get(&s.srqs, req.Handle)
	if err != nil {
		return nil, err
	}
	if q.users > 0 {
		return nil, syscall.EBUSY
	}
	if err := s.endBell(q.bell, q.h.Close); err != nil {
		return nil, err
	}
	q.pd.users--
	drop(s, &s.srqs, req.Handle)
	s.freeRing(q.mem)
	r := q.pd.ctx.events.forget(rpc.ObjSRQ, req.Handle)
	return &r, nil
}
