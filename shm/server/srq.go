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
	told  rpc.QuerySRQReply // what it is said to have
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
	l, told := s.srqSize(pd, req)
	mem, fd, err := s.newRing("srq", l.Size())
	if err != nil {
		return nil, err
	}
	o.send(fd)
	q := &srqObj{pd: pd, mem: mem, told: told, rings: ring.NewDaemonSRQ(mem.Mem, l, n, s.Fail)}
	if q.h, err = pd.h.CreateSRQ(req, q.rings); err != nil {
		o.out = nil
		s.freeRing(mem)
		return nil, err
	}
	pd.users++
	put(s, &s.srqs, n, q)
	q.bell = s.addBell(q.h.Bell)
	return &rpc.CreateSRQReply{SRQ: n, Bell: q.bell.number, MaxWR: told.MaxWR,
		MaxSGE: told.MaxSGE}, nil
}

// srqSize is how large the ring of an SRQ is that asks for req, which has been checked, and what it
// is said to have.
func (s *Session) srqSize(pd *pdObj, req *rpc.CreateSRQRequest) (l abi.QPLayout,
	told rpc.QuerySRQReply) {
	wr, sge := pd.h.SRQSize(req.MaxWR, req.MaxSGE)
	wr, sge = min(wr, uint32(s.limits.Depth)), min(sge, abi.MaxSGE)
	l = abi.NewSRQLayout(abi.CeilPow2(max(req.MaxWR, wr, 1)), max(req.MaxSGE, sge, 1))
	told.MaxWR, told.MaxSGE = l.RQSize, l.RQMaxSGE()
	if wr != 0 && wr >= req.MaxWR {
		told.MaxWR = wr
	}
	if sge != 0 && sge >= req.MaxSGE {
		told.MaxSGE = sge
	}
	return l, told
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
	r := q.told
	if err := q.h.Query(&r); err != nil {
		return nil, err
	}
	return &r, nil
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
