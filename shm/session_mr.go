package shm

import "syscall"

func (o *operation) setMem(req *SetMemRequest) error {
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
	app.nonceAddr = req.NonceAddr
	if err := o.s.h.LendMem(); err != nil {
		app.release()
		return err
	}
	o.s.mu.Lock()
	o.s.app = app
	o.s.mu.Unlock()
	return nil
}

// openVM looks, once, whether the client's memory can be reached by its process too. The first registration
// comes early enough, and by then the client has had time to allow it: PR_SET_PTRACER, where Yama wants that.
func (s *Session) openVM() {
	if s.app.looked {
		return
	}
	s.app.looked = true
	v := openVM(s.peer, s.srv.rights, s.app.nonceAddr, s.nonce)
	s.mu.Lock()
	s.app.proc = v
	s.mu.Unlock()
}

func (o *operation) addMem(req *AddMemRequest) (*AddMemReply, error) {
	s := o.s
	if req.Flags != 0 || o.fd < 0 {
		return nil, syscall.EINVAL
	}
	n, err := number(&s.mems, s.srv.limits.Mems)
	if err != nil {
		return nil, err
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

func (o *operation) delMem(req *HandleRequest) error {
	m, err := get(&o.s.mems, req.Handle)
	if err != nil {
		return err
	}
	if m.users > 0 {
		return syscall.EBUSY
	}
	o.s.mu.Lock()
	o.s.memBytes -= int64(len(m.region.mem))
	delete(o.s.mems.m, req.Handle)
	o.s.mu.Unlock()
	m.region.release()
	return nil
}

// accessIgnored are the optional bits of ibv_access_flags, such as relaxed ordering.
const (
	accessIgnored = 0x3ff << 20
	accessKnown   = 0x1f // local write, remote write, remote read, remote atomic, window bind
)

// newMR registers what req says in pd. Its mem is held until release.
func (s *Session) newMR(pd *pdObj, req RegMRRequest) (*mrObj, error) {
	req.Access &^= accessIgnored
	if req.Access&^accessKnown != 0 || req.Length > 1<<46 || req.IOVA+req.Length < req.IOVA || req.Addr+req.Length < req.Addr {
		return nil, syscall.EINVAL
	}
	m := &mrObj{pd: pd, mem: &Memory{length: req.Length, s: s}, req: req}
	switch req.Mode {
	case ModeApp:
		if s.app == nil || req.Mem != 0 || req.Offset != 0 || req.Addr+req.Length > 1<<63-1 {
			return nil, syscall.EINVAL
		}
		s.openVM()
		s.app.acquire()
		m.mem.app, m.mem.addr = s.app, req.Addr
	case ModeShared:
		var err error
		if m.in, err = get(&s.mems, req.Mem); err != nil {
			return nil, err
		}
		if size := uint64(len(m.in.region.mem)); req.Offset > size || req.Length > size-req.Offset {
			return nil, syscall.EINVAL
		}
		m.in.region.acquire()
		m.mem.shared, m.mem.off = m.in.region, req.Offset
	default:
		return nil, syscall.EINVAL
	}
	var err error
	if m.h, err = pd.h.RegMR(&req, m.mem); err != nil {
		m.mem.release()
		return nil, err
	}
	m.hold(1)
	return m, nil
}

// hold counts m (1), or not any more (-1), as a user of what it is made of.
func (m *mrObj) hold(n int) {
	m.pd.users += n
	if m.in != nil {
		m.in.users += n
	}
}

// close deregisters m.
func (m *mrObj) close() error {
	if err := m.h.Close(); err != nil {
		return err
	}
	m.hold(-1)
	if m.mem != nil {
		m.mem.release()
	}
	return nil
}

func (m *mrObj) reply(n uint32) *RegMRReply {
	r := &RegMRReply{MR: n}
	r.LKey, r.RKey = m.h.Keys()
	return r
}

func (o *operation) regMR(req *RegMRRequest) (*RegMRReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	n, err := number(&s.mrs, s.srv.limits.MRs)
	if err != nil {
		return nil, err
	}
	m, err := s.newMR(pd, *req)
	if err != nil {
		return nil, err
	}
	put(s, &s.mrs, n, m)
	return m.reply(n), nil
}

// reregMR registers the region anew, changed, and only then ends the old registration, so that it is as
// it was if anything fails.
func (o *operation) reregMR(req *ReregMRRequest) (*RegMRReply, error) {
	s := o.s
	old, err := get(&s.mrs, req.MR)
	if err != nil {
		return nil, err
	}
	if req.Flags == 0 || req.Flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 || old.mem == nil {
		return nil, syscall.EINVAL
	}
	is, changed := old.req, req.New
	if req.Flags&ReregPD == 0 {
		if changed.PD != 0 {
			return nil, syscall.EINVAL
		}
		changed.PD = is.PD
	}
	if req.Flags&ReregAccess == 0 {
		if changed.Access != 0 {
			return nil, syscall.EINVAL
		}
		changed.Access = is.Access
	}
	if req.Flags&ReregTranslation == 0 {
		if changed != (RegMRRequest{PD: changed.PD, Access: changed.Access}) {
			return nil, syscall.EINVAL
		}
		is.PD, is.Access = changed.PD, changed.Access
		changed = is
	}
	pd, err := get(&s.pds, changed.PD)
	if err != nil {
		return nil, err
	}
	if pd.ctx != old.pd.ctx {
		return nil, syscall.EINVAL
	}
	m, err := s.newMR(pd, changed)
	if err != nil {
		return nil, err
	}
	if err := old.close(); err != nil {
		m.close() //nolint:errcheck // nobody knows it
		return nil, err
	}
	s.mu.Lock()
	s.mrs.m[req.MR] = m
	s.mu.Unlock()
	return m.reply(req.MR), nil
}

func (o *operation) deregMR(req *HandleRequest) error {
	m, err := get(&o.s.mrs, req.Handle)
	if err != nil {
		return err
	}
	if err := m.close(); err != nil {
		return err
	}
	drop(o.s, &o.s.mrs, req.Handle)
	return nil
}

func (o *operation) allocMR(req *AllocMRRequest) (*RegMRReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	n, err := number(&s.mrs, s.srv.limits.MRs)
	if err != nil {
		return nil, err
	}
	if req.MaxLen == 0 || req.MaxLen > 1<<46 {
		return nil, syscall.EINVAL
	}
	h, err := pd.h.AllocMR(req.MaxLen)
	if err != nil {
		return nil, err
	}
	m := &mrObj{pd: pd, h: h}
	m.hold(1)
	put(s, &s.mrs, n, m)
	return m.reply(n), nil
}

func (o *operation) allocMW(req *AllocMWRequest) (*AllocMWReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	n, err := number(&s.mws, s.srv.limits.MWs)
	if err != nil {
		return nil, err
	}
	h, err := pd.h.AllocMW(req.Type)
	if err != nil {
		return nil, err
	}
	pd.users++
	put(s, &s.mws, n, &mwObj{pd: pd, h: h})
	return &AllocMWReply{MW: n, RKey: h.RKey()}, nil
}

func (o *operation) deallocMW(req *HandleRequest) error {
	m, err := get(&o.s.mws, req.Handle)
	if err != nil {
		return err
	}
	if err := m.h.Close(); err != nil {
		return err
	}
	m.pd.users--
	drop(o.s, &o.s.mws, req.Handle)
	return nil
}
