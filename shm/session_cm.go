package shm

import (
	"net/netip"
	"syscall"
)

// doCM carries out the requests of the connection manager.
func (o *operation) doCM() (rep any, err error) {
	switch o.h.Op {
	case OpCMCreateChan:
		return o.createCMChan()
	case OpCMDestroyChan:
		return nil, o.destroyCMChan()
	case OpCMCreateID:
		return o.createID()
	case OpCMDestroyID:
		return o.destroyID()
	case OpCMGetEvent:
		return o.getCMEvent()
	case OpCMBind:
		var req CMBindRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		addr, ok := sockAddr(req.Addr, false)
		if !ok {
			return nil, syscall.EINVAL
		}
		return nil, id.h.Bind(addr)
	case OpCMResolveAddr:
		var req CMResolveAddrRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		src, ok1 := sockAddr(req.Src, true)
		dst, ok2 := sockAddr(req.Dst, false)
		if !ok1 || !ok2 {
			return nil, syscall.EINVAL
		}
		return nil, id.h.ResolveAddr(src, dst, req.TimeoutMS)
	case OpCMResolveRoute:
		var req CMResolveRouteRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		return nil, id.h.ResolveRoute(req.TimeoutMS)
	case OpCMListen:
		var req CMListenRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		return nil, id.h.Listen(req.Backlog)
	case OpCMConnect, OpCMAccept:
		return nil, o.connect()
	case OpCMReject:
		var req CMRejectRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		if req.PrivateLen > MaxPrivate {
			return nil, syscall.EINVAL
		}
		return nil, id.h.Reject(req.Private[:req.PrivateLen])
	case OpCMDisconnect:
		var req HandleRequest
		id, err := idArg(o, &req, &req.Handle)
		if err != nil {
			return nil, err
		}
		return nil, id.h.Disconnect()
	case OpCMSetOption:
		var req CMSetOptionRequest
		id, err := idArg(o, &req, &req.ID)
		if err != nil {
			return nil, err
		}
		if req.Len > MaxOption {
			return nil, syscall.EINVAL
		}
		return nil, id.h.SetOption(req.Level, req.Name, req.Value[:req.Len])
	case OpCMQuery:
		var req HandleRequest
		id, err := idArg(o, &req, &req.Handle)
		if err != nil {
			return nil, err
		}
		r := id.h.Query()
		return &r, nil
	}
	return nil, syscall.EOPNOTSUPP
}

// idArg decodes a request and finds the id that its field *n names.
func idArg(o *operation, req any, n *uint32) (*CMID, error) {
	if err := o.arg(req); err != nil {
		return nil, err
	}
	o.s.mu.Lock()
	id, err := get(&o.s.ids, *n)
	o.s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return id, id.usable()
}

// usable: a child exists for its client only when its CONNECT_REQUEST has been taken.
func (id *CMID) usable() error {
	id.ch.mu.Lock()
	defer id.ch.mu.Unlock()
	if !id.known {
		return syscall.ENOENT
	}
	return nil
}

// sockAddr converts an address of a request; family 0 is allowed if none is.
func sockAddr(a SockAddr, none bool) (ap netip.AddrPort, ok bool) {
	if a.Family == 0 {
		return ap, none
	}
	ap = a.AddrPort()
	return ap, ap.IsValid()
}

func (o *operation) createCMChan() (*CMCreateChanReply, error) {
	s := o.s
	var req EmptyReply
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	n := s.cmChans.next(s.srv.limits.CMChannels)
	if n == 0 {
		return nil, syscall.ENOMEM
	}
	pipe, rfd, err := newEventPipe()
	if err != nil {
		return nil, err
	}
	o.send(rfd)
	put(s, &s.cmChans, n, &cmChannel{handle: n, pipe: pipe, max: s.srv.limits.CMEvents})
	return &CMCreateChanReply{Chan: n}, nil
}

func (o *operation) destroyCMChan() error {
	s := o.s
	ch, n, err := named(o, &s.cmChans)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if ch.ids > 0 {
		s.mu.Unlock()
		return syscall.EBUSY
	}
	delete(s.cmChans.m, n)
	s.mu.Unlock()
	ch.close()
	return nil
}

func (o *operation) createID() (*CMCreateIDReply, error) {
	s := o.s
	var req CMCreateIDRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	ch, err := get(&s.cmChans, req.Chan)
	if err != nil {
		return nil, err
	}
	if req.PS != PSTCP {
		return nil, syscall.ENODEV // as rdma_bind_addr says of datagrams on an RNIC
	}
	s.mu.Lock()
	n := s.ids.next(s.srv.limits.CMIDs)
	if n == 0 {
		s.mu.Unlock()
		return nil, syscall.ENOMEM
	}
	id := &CMID{s: s, ch: ch, handle: n, uid: req.UID}
	s.ids.add(n, id) // PushRequest must not take the same number
	ch.ids++
	s.mu.Unlock()
	if id.h, err = s.h.CreateID(&req, id); err != nil {
		s.dropID(id)
		return nil, err
	}
	ch.mu.Lock()
	id.known = true
	ch.mu.Unlock()
	return &CMCreateIDReply{ID: n}, nil
}

func (s *Session) dropID(id *CMID) {
	s.mu.Lock()
	delete(s.ids.m, id.handle)
	id.ch.ids--
	s.mu.Unlock()
}

func (o *operation) destroyID() (*CMDestroyIDReply, error) {
	var req HandleRequest
	id, err := idArg(o, &req, &req.Handle)
	if err != nil {
		return nil, err
	}
	if err := id.h.Close(); err != nil {
		return nil, err
	}
	r, children := id.ch.forget(id)
	o.s.dropID(id)
	// The peers of requests that the client never saw are refused.
	for _, c := range children {
		c.h.Close() //nolint:errcheck // nobody is left to tell
		_, more := c.ch.forget(c)
		o.s.dropID(c)
		children = append(children, more...)
	}
	return &r, nil
}

func (o *operation) getCMEvent() (*CMEvent, error) {
	ch, _, err := named(o, &o.s.cmChans)
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
func (o *operation) connect() error {
	s := o.s
	var req CMConnectRequest
	id, err := idArg(o, &req, &req.ID)
	if err != nil {
		return err
	}
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return err
	}
	q := s.qpNums[qpKey{pd.ctx, req.Param.QPN}]
	if q == nil {
		return syscall.ENOENT
	}
	if _, ok := req.Param.PrivateData(); !ok || q.pd != pd {
		return syscall.EINVAL
	}
	if o.h.Op == OpCMConnect {
		return id.h.Connect(q.h, &req.Param)
	}
	if req.UID != 0 {
		id.ch.mu.Lock()
		id.uid = req.UID
		id.ch.mu.Unlock()
	}
	return id.h.Accept(q.h, &req.Param)
}
