package shm

import "syscall"

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
		users int // MRs, QPs
	}
	memObj struct {
		region *region
		users  int // MRs
	}
	mrObj struct {
		pd  *pdObj
		in  *memObj // or nil
		h   MRHandler
		mem *Memory
	}
	chanObj struct {
		ctx   *ctxObj
		ring  *ChannelRing
		mem   *region
		pipe  *eventPipe
		users int // CQs
	}
	cqObj struct {
		ctx   *ctxObj
		ch    *chanObj // or nil
		h     CQHandler
		ring  *CQRing
		mem   *region
		users int // QPs, once for each direction
	}
)

func (c *chanObj) close() {
	c.ring.mu.Lock()
	c.pipe.close()
	c.ring.mu.Unlock()
	c.mem.release()
}

// arg decodes the request's body.
func (o *operation) arg(v any) error { return decodeRequest(o.h, o.body, v) }

// get finds an object by a handle of the session's own; ENOENT.
func get[T any](h *handles[T], n uint32) (T, error) {
	v, ok := h.m[n]
	if !ok {
		return v, syscall.ENOENT
	}
	return v, nil
}

// named decodes a HandleRequest and finds what it names.
func named[T any](o *operation, h *handles[T]) (v T, n uint32, err error) {
	var req HandleRequest
	if err := o.arg(&req); err != nil {
		return v, 0, err
	}
	v, err = get(h, req.Handle)
	return v, req.Handle, err
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

// do carries the request out. A nil reply is an EmptyReply.
func (o *operation) do() (rep any, err error) {
	s := o.s
	switch o.h.Op {
	case OpSetMem:
		return nil, o.setMem()
	case OpAddMem:
		return o.addMem()
	case OpDelMem:
		return nil, o.delMem()
	case OpQueryDev:
		return o.queryDevice()
	case OpQueryPort:
		var req QueryPortRequest
		if err := o.arg(&req); err != nil {
			return nil, err
		}
		return s.h.QueryPort(req.Device, req.Port)
	case OpQueryGID:
		var req QueryGIDRequest
		if err := o.arg(&req); err != nil {
			return nil, err
		}
		return s.h.QueryGID(req.Device, req.Port, req.Index)
	case OpCtxOpen:
		return o.ctxOpen()
	case OpCtxClose:
		return nil, o.ctxClose()
	case OpGetAsync:
		return o.getAsync()
	case OpAllocPD:
		return o.allocPD()
	case OpDeallocPD:
		return nil, o.deallocPD()
	case OpRegMR:
		return o.regMR()
	case OpDeregMR:
		return nil, o.deregMR()
	case OpCreateChan:
		return o.createChan()
	case OpDestroyChn:
		return nil, o.destroyChan()
	case OpCreateCQ:
		return o.createCQ()
	case OpDestroyCQ:
		return o.destroyCQ()
	case OpCreateQP:
		return o.createQP()
	case OpModifyQP:
		return nil, o.modifyQP()
	case OpQueryQP:
		return o.queryQP()
	case OpDestroyQP:
		return o.destroyQP()
	case OpList, OpStat:
		return o.list()
	}
	if o.h.Op >= OpCMCreateChan && o.h.Op <= OpCMGetEvent {
		return o.doCM()
	}
	return nil, syscall.EOPNOTSUPP
}

// --- memory ---

func (o *operation) setMem() error {
	var req SetMemRequest
	if err := o.arg(&req); err != nil {
		return err
	}
	if o.fd < 0 {
		return syscall.EINVAL
	}
	if o.s.app != nil {
		return syscall.EEXIST
	}
	fd := o.fd
	o.fd = -1
	app, err := newAppMem(fd, req.NonceAddr, o.s.nonce, o.s.over)
	if err != nil {
		return err
	}
	if err := o.s.h.LendMem(); err != nil {
		app.release()
		return err
	}
	o.s.mu.Lock()
	o.s.app = app
	o.s.mu.Unlock()
	return nil
}

func (o *operation) addMem() (*AddMemReply, error) {
	s := o.s
	var req AddMemRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	if req.Flags != 0 || o.fd < 0 {
		return nil, syscall.EINVAL
	}
	n := s.mems.next(s.srv.limits.Mems)
	if n == 0 {
		return nil, syscall.ENOMEM
	}
	size, err := checkLentMem(o.fd)
	if err != nil {
		return nil, err
	}
	if size > s.srv.limits.MemBytes-s.memBytes || !s.srv.takeMapping() {
		return nil, syscall.ENOMEM
	}
	r, err := mapRegion(o.fd, int(size), func() { s.srv.mappings.Add(-1) })
	if err != nil {
		s.srv.mappings.Add(-1)
		return nil, syscall.EINVAL // sealed against writing, or not open for it
	}
	s.mu.Lock()
	s.memBytes += size
	s.mems.add(n, &memObj{region: r})
	s.mu.Unlock()
	return &AddMemReply{Mem: n, Size: uint64(size)}, nil
}

func (o *operation) delMem() error {
	m, n, err := named(o, &o.s.mems)
	if err != nil {
		return err
	}
	if m.users > 0 {
		return syscall.EBUSY
	}
	o.s.mu.Lock()
	o.s.memBytes -= int64(len(m.region.mem))
	delete(o.s.mems.m, n)
	o.s.mu.Unlock()
	m.region.release()
	return nil
}

// --- devices and contexts ---

func (o *operation) queryDevice() (*QueryDeviceReply, error) {
	var req QueryDeviceRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	r, err := o.s.h.QueryDevice(req.Device)
	if err != nil {
		return nil, err
	}
	c := *r // what the quotas leave
	lim := &o.s.srv.limits
	for _, f := range []struct {
		v   *uint32
		max int
	}{
		{&c.MaxQP, lim.QPs}, {&c.MaxQPWR, lim.Depth}, {&c.MaxCQ, lim.CQs}, {&c.MaxCQE, lim.Depth}, {&c.MaxMR, lim.MRs},
		{&c.MaxPD, lim.PDs}, {&c.MaxSGE, MaxSGE}, {&c.MaxInline, MaxInline},
	} {
		*f.v = uint32(min(int64(*f.v), int64(f.max)))
	}
	return &c, nil
}

func (o *operation) ctxOpen() (*CtxOpenReply, error) {
	s := o.s
	var req CtxOpenRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	n := s.ctxs.next(s.srv.limits.Contexts)
	if n == 0 {
		return nil, syscall.ENOMEM
	}
	pipe, rfd, err := newEventPipe()
	if err != nil {
		return nil, err
	}
	o.send(rfd)
	c := &ctxObj{device: req.Device, events: &AsyncQueue{pipe: pipe, reported: make(map[asyncObj]uint32)}}
	if c.h, err = s.h.OpenContext(req.Device, c.events); err != nil {
		c.events.close()
		o.out = nil
		return nil, err
	}
	put(s, &s.ctxs, n, c)
	return &CtxOpenReply{Ctx: n}, nil
}

func (o *operation) ctxClose() error {
	c, n, err := named(o, &o.s.ctxs)
	if err != nil {
		return err
	}
	if c.users > 0 {
		return syscall.EBUSY
	}
	if err := c.h.Close(); err != nil {
		return err
	}
	drop(o.s, &o.s.ctxs, n)
	c.events.close()
	return nil
}

func (o *operation) getAsync() (*AsyncEvent, error) {
	c, _, err := named(o, &o.s.ctxs)
	if err != nil {
		return nil, err
	}
	e, ok := c.events.pop()
	if !ok {
		return nil, syscall.EAGAIN
	}
	return &e, nil
}

// --- protection domains and regions ---

func (o *operation) allocPD() (*AllocPDReply, error) {
	s := o.s
	var req AllocPDRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	c, err := get(&s.ctxs, req.Ctx)
	if err != nil {
		return nil, err
	}
	n := s.pds.next(s.srv.limits.PDs)
	if n == 0 {
		return nil, syscall.ENOMEM
	}
	h, err := c.h.AllocPD()
	if err != nil {
		return nil, err
	}
	c.users++
	put(s, &s.pds, n, &pdObj{ctx: c, h: h})
	return &AllocPDReply{PD: n}, nil
}

func (o *operation) deallocPD() error {
	p, n, err := named(o, &o.s.pds)
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
	drop(o.s, &o.s.pds, n)
	return nil
}

// accessIgnored are the optional bits of ibv_access_flags, such as relaxed ordering.
const (
	accessIgnored = 0x3ff << 20
	accessKnown   = 0x1f // local write, remote write, remote read, remote atomic, window bind
)

func (o *operation) regMR() (*RegMRReply, error) {
	s := o.s
	var req RegMRRequest
	if err := o.arg(&req); err != nil {
		return nil, err
	}
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	req.Access &^= accessIgnored
	if req.Access&^accessKnown != 0 || req.Length > 1<<46 || req.IOVA+req.Length < req.IOVA || req.Addr+req.Length < req.Addr {
		return nil, syscall.EINVAL
	}
	n := s.mrs.next(s.srv.limits.MRs)
	if n == 0 {
		return nil, syscall.ENOMEM
	}
	mem := &Memory{length: req.Length, s: s}
	var in *memObj
	switch req.Mode {
	case ModeApp:
		if s.app == nil || req.Mem != 0 || req.Offset != 0 || req.Addr+req.Length > 1<<63-1 {
			return nil, syscall.EINVAL
		}
		s.app.acquire()
		mem.app, mem.addr = s.app, req.Addr
	case ModeShared:
		if in, err = get(&s.mems, req.Mem); err != nil {
			return nil, err
		}
		if size := uint64(len(in.region.mem)); req.Offset > size || req.Length > size-req.Offset {
			return nil, syscall.EINVAL
		}
		in.region.acquire()
		mem.shared, mem.off = in.region, req.Offset
	default:
		return nil, syscall.EINVAL
	}
	h, err := pd.h.RegMR(&req, mem)
	if err != nil {
		mem.release()
		return nil, err
	}
	pd.users++
	if in != nil {
		in.users++
	}
	put(s, &s.mrs, n, &mrObj{pd: pd, in: in, h: h, mem: mem})
	l, r := h.Keys()
	return &RegMRReply{MR: n, LKey: l, RKey: r}, nil
}

func (o *operation) deregMR() error {
	m, n, err := named(o, &o.s.mrs)
	if err != nil {
		return err
	}
	if err := m.h.Close(); err != nil {
		return err
	}
	m.pd.users--
	if m.in != nil {
		m.in.users--
	}
	drop(o.s, &o.s.mrs, n)
	m.mem.release()
	return nil
}
