package server

import (
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
)

// onID makes an operation of f, which does something to the id that req names.
func onID[Req any, PReq message[Req]](id func(PReq) uint32, f func(*operation, *CMID,
	PReq) error) handler {
	return act(func(o *operation, req PReq) error {
		i, err := o.s.idOf(id(req))
		if err != nil {
			return err
		}
		return f(o, i, req)
	})
}

// cmOperations are those of the connection manager.
var cmOperations = map[abi.Op]handler{
	abi.OpCMCreateChan:  serve((*operation).createCMChan),
	abi.OpCMDestroyChan: act((*operation).destroyCMChan),
	abi.OpCMCreateID:    serve((*operation).createID),
	abi.OpCMDestroyID:   serve((*operation).destroyID),
	abi.OpCMGetEvent:    serve((*operation).getCMEvent),
	abi.OpCMMigrate:     serve((*operation).migrateID),
	abi.OpCMInitQPAttr:  serve((*operation).initQPAttr),
	abi.OpCMQuery:       serve((*operation).queryID),
	abi.OpCMOpenUDP:     act((*operation).openUDP),

	abi.OpCMJoinMulticast: onID(func(r *abi.CMJoinMulticastRequest) uint32 { return r.ID },
		(*operation).joinMulticast),
	abi.OpCMLeaveMulticast: serve((*operation).leaveMulticast),

	abi.OpCMBind: onID(func(r *abi.CMBindRequest) uint32 { return r.ID }, func(_ *operation, id *CMID,
		r *abi.CMBindRequest) error {
		addr, ok := sockAddr(r.Addr, false)
		if !ok {
			return syscall.EINVAL
		}
		return id.h.Bind(addr)
	}),
	abi.OpCMResolveAddr: onID(func(r *abi.CMResolveAddrRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *abi.CMResolveAddrRequest) error {
			src, ok1 := sockAddr(r.Src, true)
			dst, ok2 := sockAddr(r.Dst, false)
			if !ok1 || !ok2 {
				return syscall.EINVAL
			}
			return id.h.ResolveAddr(src, dst, r.TimeoutMS)
		}),
	abi.OpCMResolveRoute: onID(func(r *abi.CMResolveRouteRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *abi.CMResolveRouteRequest) error {
			return id.h.ResolveRoute(r.TimeoutMS)
		}),
	abi.OpCMListen: onID(func(r *abi.CMListenRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *abi.CMListenRequest) error {
			return id.h.Listen(r.Backlog)
		}),
	abi.OpCMConnect: onID(func(r *abi.CMConnectRequest) uint32 { return r.ID }, (*operation).connect),
	abi.OpCMAccept:  onID(func(r *abi.CMConnectRequest) uint32 { return r.ID }, (*operation).connect),
	abi.OpCMReject: onID(func(r *abi.CMRejectRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *abi.CMRejectRequest) error {
			if r.PrivateLen > abi.MaxPrivate {
				return syscall.EINVAL
			}
			return id.h.Reject(r.Private[:r.PrivateLen])
		}),
	abi.OpCMEstablish: onID(func(r *abi.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *abi.HandleRequest) error {
			return id.h.Establish()
		}),
	abi.OpCMNotify: onID(func(r *abi.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *abi.HandleRequest) error {
			return id.h.Notify()
		}),
	abi.OpCMDisconnect: onID(func(r *abi.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *abi.HandleRequest) error {
			return id.h.Disconnect()
		}),
	abi.OpCMSetOption: onID(func(r *abi.CMSetOptionRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *abi.CMSetOptionRequest) error {
			if r.Len > abi.MaxOption {
				return syscall.EINVAL
			}
			return id.h.SetOption(r.Level, r.Name, r.Value[:r.Len])
		}),
}

// idOf finds an id that the client knows.
func (s *Session) idOf(n uint32) (*CMID, error) {
	s.mu.Lock()
	id, err := get(&s.ids, n)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return id, id.usable()
}

func (o *operation) queryID(req *abi.HandleRequest) (*abi.CMQueryReply, error) {
	id, err := o.s.idOf(req.Handle)
	if err != nil {
		return nil, err
	}
	r := id.h.Query()
	return &r, nil
}

func (o *operation) openUDP(req *abi.HandleRequest) error {
	id, err := o.s.idOf(req.Handle)
	if err != nil {
		return err
	}
	if id.ps != abi.PSUDP {
		return syscall.EOPNOTSUPP
	}
	packets, fd, err := o.s.newPackets()
	if err != nil {
		return err
	}
	if err := id.h.OpenUDP(packets); err != nil {
		packets.Close()
		osmem.CloseFD(fd)
		return err
	}
	o.send(fd)
	return nil
}

// usable: a child exists for its client only when its CONNECT_REQUEST has been taken.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) usable() error {
	defer id.lock().mu.Unlock()
	if !id.known {
		return syscall.ENOENT
	}
	return nil
}

// sockAddr converts an address of a request; family 0 is allowed if none is.
func sockAddr(a abi.SockAddr, none bool) (ap netip.AddrPort, ok bool) {
	if a.Family == 0 {
		return ap, none
	}
	ap = a.AddrPort()
	return ap, ap.IsValid()
}

func (o *operation) migrateID(req *abi.CMMigrateRequest) (*abi.CMMigrateReply, error) {
	id, err := o.s.idOf(req.ID)
	if err != nil {
		return nil, err
	}
	ch, err := get(&o.s.cmChans, req.Chan)
	if err != nil {
		return nil, err
	}
	r := id.migrate(ch)
	return &r, nil
}

func (o *operation) initQPAttr(req *abi.CMInitQPAttrRequest) (*abi.CMInitQPAttrReply, error) {
	id, err := o.s.idOf(req.ID)
	if err != nil {
		return nil, err
	}
	r, err := id.h.InitQPAttr(req.State)
	return &r, err
}

func (o *operation) createCMChan(*abi.Empty) (*abi.CMCreateChanReply, error) {
	s := o.s
	n, err := number(s, &s.cmChans, s.limits.CMChannels, "cm-channels")
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := s.newEventPipe()
	if err != nil {
		return nil, err
	}
	o.send(rfd)
	put(s, &s.cmChans, n, &cmChannel{handle: n, pipe: pipe, max: s.limits.CMEvents})
	return &abi.CMCreateChanReply{Chan: n}, nil
}

func (o *operation) destroyCMChan(req *abi.HandleRequest) error {
	s := o.s
	ch, err := get(&s.cmChans, req.Handle)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if ch.ids > 0 {
		s.mu.Unlock()
		return syscall.EBUSY
	}
	delete(s.cmChans.m, req.Handle)
	s.mu.Unlock()
	ch.close()
	return nil
}

func (o *operation) createID(req *abi.CMCreateIDRequest) (*abi.CMCreateIDReply, error) {
	s := o.s
	ch, err := get(&s.cmChans, req.Chan)
	if err != nil {
		return nil, err
	}
	if req.PS != abi.PSTCP && req.PS != abi.PSUDP {
		return nil, syscall.ENODEV // as rdma_bind_addr says of what no device has
	}
	s.mu.Lock()
	n := s.ids.next(s.limits.CMIDs)
	if n == 0 {
		s.mu.Unlock()
		return nil, s.overLimit("cm-ids")
	}
	if err := s.srv.ids.take(s.account(), s.privileged()); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	id := newCMID(s, ch, n)
	id.uid, id.ps = req.UID, req.PS
	s.ids.add(n, id) // PushRequest must not take the same number
	ch.ids++
	s.mu.Unlock()
	if id.h, err = s.h.CreateID(req, id); err != nil {
		s.dropID(id)
		return nil, err
	}
	ch.mu.Lock()
	id.known = true
	ch.mu.Unlock()
	return &abi.CMCreateIDReply{ID: n}, nil
}

func (s *Session) dropID(id *CMID) {
	s.mu.Lock()
	delete(s.ids.m, id.handle)
	id.ch.Load().ids--
	s.mu.Unlock()
	s.srv.ids.give(s.account(), 1)
}

func (o *operation) destroyID(req *abi.HandleRequest) (*abi.CMDestroyIDReply, error) {
	id, err := o.s.idOf(req.Handle)
	if err != nil {
		return nil, err
	}
	if err := id.h.Close(); err != nil {
		return nil, err
	}
	r, children := id.forget()
	o.s.leaveGroups(len(id.groups))
	o.s.dropID(id)
	// The peers of requests that the client never saw are refused.
	for _, c := range children {
		c.h.Close() // nobody is left to tell
		_, more := c.forget()
		o.s.dropID(c)
		children = append(children, more...)
	}
	return &r, nil
}

func (o *operation) getCMEvent(req *abi.HandleRequest) (*abi.CMEvent, error) {
	ch, err := get(&o.s.cmChans, req.Handle)
	if err != nil {
		return nil, err
	}
	e, ok := ch.pop()
	if !ok {
		return nil, syscall.EAGAIN
	}
	return &e, nil
}

// connect is CM_CONNECT and CM_ACCEPT.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (o *operation) connect(id *CMID, req *abi.CMConnectRequest) error {
	var qp QPHandler
	// None: an id of datagrams need not name one, and the handler knows those that programs move.
	if req.PD != 0 || id.ps == abi.PSUDP && req.Param.QPN != 0 {
		q, err := o.s.qpOf(req.PD, req.Param.QPN)
		if err != nil {
			return err
		}
		qp = q.h
	}
	if _, ok := req.Param.PrivateData(); !ok {
		return syscall.EINVAL
	}
	if o.h.Op == abi.OpCMConnect {
		return id.h.Connect(qp, &req.Param)
	}
	if req.UID != 0 {
		ch := id.lock()
		id.uid = req.UID
		ch.mu.Unlock()
	}
	return id.h.Accept(qp, &req.Param)
}

// qpOf is the QP with this number and protection domain.
func (s *Session) qpOf(pd, num uint32) (*qpObj, error) {
	p, err := get(&s.pds, pd)
	if err != nil {
		return nil, err
	}
	q := s.qpNums[qpKey{p.ctx, num}]
	if q == nil {
		return nil, syscall.ENOENT
	}
	if q.pd != p {
		return nil, syscall.EINVAL
	}
	return q, nil
}
