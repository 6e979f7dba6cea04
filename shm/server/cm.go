package server

import (
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
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
var cmOperations = map[rpc.Op]handler{
	rpc.OpCMCreateChan:  serve((*operation).createCMChan),
	rpc.OpCMDestroyChan: act((*operation).destroyCMChan),
	rpc.OpCMCreateID:    serve((*operation).createID),
	rpc.OpCMDestroyID:   serve((*operation).destroyID),
	rpc.OpCMGetEvent:    serve((*operation).getCMEvent),
	rpc.OpCMMigrate:     serve((*operation).migrateID),
	rpc.OpCMInitQPAttr:  serve((*operation).initQPAttr),
	rpc.OpCMQuery:       serve((*operation).queryID),
	rpc.OpCMOpenUDP:     act((*operation).openUDP),

	rpc.OpCMJoinMulticast: onID(func(r *rpc.CMJoinMulticastRequest) uint32 { return r.ID },
		(*operation).joinMulticast),
	rpc.OpCMLeaveMulticast: serve((*operation).leaveMulticast),

	rpc.OpCMBind: onID(func(r *rpc.CMBindRequest) uint32 { return r.ID }, func(_ *operation, id *CMID,
		r *rpc.CMBindRequest) error {
		addr, ok := sockAddr(r.Addr, false)
		if !ok {
			return syscall.EINVAL
		}
		return id.h.Bind(addr)
	}),
	rpc.OpCMResolveAddr: onID(func(r *rpc.CMResolveAddrRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *rpc.CMResolveAddrRequest) error {
			src, ok1 := sockAddr(r.Src, true)
			dst, ok2 := sockAddr(r.Dst, false)
			if !ok1 || !ok2 {
				return syscall.EINVAL
			}
			if err := id.ask(); err != nil { // that there is no way is an event, as often as it is asked
				return err
			}
			return id.h.ResolveAddr(src, dst, r.TimeoutMS)
		}),
	rpc.OpCMResolveRoute: onID(func(r *rpc.CMResolveRouteRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *rpc.CMResolveRouteRequest) error {
			return id.h.ResolveRoute(r.TimeoutMS)
		}),
	rpc.OpCMListen: onID(func(r *rpc.CMListenRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *rpc.CMListenRequest) error {
			return id.h.Listen(r.Backlog)
		}),
	rpc.OpCMConnect: onID(func(r *rpc.CMConnectRequest) uint32 { return r.ID }, (*operation).connect),
	rpc.OpCMAccept:  onID(func(r *rpc.CMConnectRequest) uint32 { return r.ID }, (*operation).connect),
	rpc.OpCMReject: onID(func(r *rpc.CMRejectRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *rpc.CMRejectRequest) error {
			if r.PrivateLen > rpc.MaxPrivate {
				return syscall.EINVAL
			}
			return id.h.Reject(r.Private[:r.PrivateLen])
		}),
	rpc.OpCMEstablish: onID(func(r *rpc.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *rpc.HandleRequest) error {
			return id.h.Establish()
		}),
	rpc.OpCMNotify: onID(func(r *rpc.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *rpc.HandleRequest) error {
			return id.h.Notify()
		}),
	rpc.OpCMDisconnect: onID(func(r *rpc.HandleRequest) uint32 { return r.Handle },
		func(_ *operation, id *CMID, _ *rpc.HandleRequest) error {
			return id.h.Disconnect()
		}),
	rpc.OpCMSetOption: onID(func(r *rpc.CMSetOptionRequest) uint32 { return r.ID },
		func(_ *operation, id *CMID, r *rpc.CMSetOptionRequest) error {
			if r.Len > rpc.MaxOption {
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

func (o *operation) queryID(req *rpc.HandleRequest) (*rpc.CMQueryReply, error) {
	id, err := o.s.idOf(req.Handle)
	if err != nil {
		return nil, err
	}
	r := id.h.Query()
	return &r, nil
}

func (o *operation) openUDP(req *rpc.HandleRequest) error {
	id, err := o.s.idOf(req.Handle)
	if err != nil {
		return err
	}
	if id.ps != rpc.PSUDP {
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
	o.sendEnd(fd)
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
func sockAddr(a rpc.SockAddr, none bool) (ap netip.AddrPort, ok bool) {
	if a.Family == 0 {
		return ap, none
	}
	ap = a.AddrPort()
	return ap, ap.IsValid()
}

func (o *operation) migrateID(req *rpc.CMMigrateRequest) (*rpc.CMMigrateReply, error) {
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

func (o *operation) initQPAttr(req *rpc.CMInitQPAttrRequest) (*rpc.CMInitQPAttrReply, error) {
	id, err := o.s.idOf(req.ID)
	if err != nil {
		return nil, err
	}
	r, err := id.h.InitQPAttr(req.State)
	return &r, err
}

func (o *operation) createCMChan(*rpc.Empty) (*rpc.CMCreateChanReply, error) {
	s := o.s
	n, err := number(s, &s.cmChans, s.limits.CMChannels, "cm-channels")
	if err != nil {
		return nil, err
	}
	pipe, rfd, err := s.newEventPipe()
	if err != nil {
		return nil, err
	}
	o.sendEnd(rfd)
	put(s, &s.cmChans, n, &cmChannel{handle: n, pipe: pipe, max: s.limits.CMEvents})
	return &rpc.CMCreateChanReply{Chan: n}, nil
}

func (o *operation) destroyCMChan(req *rpc.HandleRequest) error {
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

func (o *operation) createID(req *rpc.CMCreateIDRequest) (*rpc.CMCreateIDReply, error) {
	s := o.s
	ch, err := get(&s.cmChans, req.Chan)
	if err != nil {
		return nil, err
	}
	if req.PS != rpc.PSTCP && req.PS != rpc.PSUDP {
		return nil, syscall.ENODEV // as rdma_bind_addr says of what no device has
	}
	s.mu.Lock()
	n := s.ids.next(s.limits.CMIDs)
	if n == 0 {
		s.mu.Unlock()
		return nil, s.overLimit("cm-ids")
	}
	if err := s.srv.ids.take(s.account(), s.Privileged()); err != nil {
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
	return &rpc.CMCreateIDReply{ID: n}, nil
}

func (s *Session) dropID(id *CMID) {
	s.mu.Lock()
	delete(s.ids.m, id.handle)
	id.ch.Load().ids--
	id.giveSocket()
	s.mu.Unlock()
	s.srv.ids.give(s.account(), 1)
}

// giveSocket is for an id that is gone: Session.mu is held.
func (id *CMID) giveSocket() {
	if id.socket {
		id.s.srv.pipes.give(id.s.account(), 1)
		id.socket = false
	}
}

func (o *operation) destroyID(req *rpc.HandleRequest) (*rpc.CMDestroyIDReply, error) {
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

func (o *operation) getCMEvent(req *rpc.HandleRequest) (*rpc.CMEvent, error) {
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
func (o *operation) connect(id *CMID, req *rpc.CMConnectRequest) error {
	var qp QPHandler
	// None: an id of datagrams need not name one, and the handler knows those that programs move.
	if req.PD != 0 || id.ps == rpc.PSUDP && req.Param.QPN != 0 {
		q, err := o.s.qpOf(req.PD, req.Param.QPN)
		if err != nil {
			return err
		}
		qp = q.h
	}
	if _, ok := req.Param.PrivateData(); !ok {
		return syscall.EINVAL
	}
	if o.h.Op == rpc.OpCMConnect {
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
