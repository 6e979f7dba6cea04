package server

import (
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

func (o *operation) setMem(req *rpc.SetMemRequest) error {
	if o.fd < 0 {
		return syscall.EINVAL
	}
	if o.s.app != nil {
		return syscall.EEXIST
	}
	fd := o.fd
	o.fd = -1
	var app *osmem.AppMem
	var err error
	if !o.s.foreign(func() func() {
		a, aerr := osmem.NewAppMem(fd, req.NonceAddr, o.s.nonce, o.s.Done())
		if app, err = a, aerr; err != nil {
			return nil
		}
		return a.Release
	}) {
		return errForeign
	}
	if err != nil {
		return err
	}
	if err := o.s.h.LendMem(); err != nil {
		app.Release()
		return err
	}
	o.s.mu.Lock()
	o.s.app = app
	o.s.mu.Unlock()
	return nil
}

func (o *operation) addMem(req *rpc.AddMemRequest) (*rpc.AddMemReply, error) {
	s := o.s
	if req.Flags != 0 || o.fd < 0 {
		return nil, syscall.EINVAL
	}
	n, err := number(s, &s.mems, s.limits.Mems, "mems")
	if err != nil {
		return nil, err
	}
	size, err := osmem.CheckLent(o.fd)
	if err != nil {
		return nil, err
	}
	if size > s.limits.MemBytes-s.memBytes {
		return nil, s.overLimit("mem-bytes")
	}
	if err := s.takeMapping(); err != nil {
		return nil, err
	}
	r, err := osmem.MapRegion(o.fd, int(size), s.giveMapping)
	if err != nil {
		s.giveMapping()
		return nil, syscall.EINVAL // sealed against writing, or not open for it
	}
	r.KeepFromDumps()
	m := &memObj{region: r, fd: -1}
	if s.direct.Load() && s.TakeDescriptor() { // else peers hear nothing of it
		m.fd = o.fd
	} else {
		osmem.CloseFD(o.fd) // of memory: that is quick
	}
	o.fd = -1
	s.mu.Lock()
	s.memBytes += size
	s.mems.add(n, m)
	s.mu.Unlock()
	return &rpc.AddMemReply{Mem: n, Size: uint64(size)}, nil
}

func (o *operation) delMem(req *rpc.HandleRequest) error {
	m, err := get(&o.s.mems, req.Handle)
	if err != nil {
		return err
	}
	if m.users > 0 {
		return syscall.EBUSY
	}
	o.s.mu.Lock()
	o.s.memBytes -= int64(len(m.region.Mem))
	delete(o.s.mems.m, req.Handle)
	o.s.mu.Unlock()
	if m.fd >= 0 {
		o.s.h.MemGone()
	}
	o.s.releaseMem(m)
	return nil
}

// releaseMem is for memory that is in no table any more.
func (s *Session) releaseMem(m *memObj) {
	if m.fd >= 0 {
		osmem.CloseFD(m.fd)
		s.GiveDescriptor()
	}
	m.region.Release()
}

// LentMem is a descriptor of memory that the client has lent; ENOENT: it has not, or not to peers.
func (s *Session) LentMem(n uint32) (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.mems.m[n]
	if !ok || m.fd < 0 {
		return -1, syscall.ENOENT
	}
	return osmem.DupFD(m.fd)
}

// accessIgnored are the optional bits of ibv_access_flags, such as relaxed ordering.
const (
	accessIgnored = 0x3ff << 20
	accessKnown   = 0x1f // local write, remote write, remote read, remote atomic, window bind
)

// newMR registers what req says in pd, in place of old and under its key if that is not nil. Its
// mem is held until release.
func (s *Session) newMR(pd *pdObj, req rpc.RegMRRequest, old MRHandler) (*mrObj, error) {
	req.Access &^= accessIgnored
	if req.Access&^accessKnown != 0 || req.Length > 1<<46 || req.IOVA+req.Length < req.IOVA ||
		req.Addr+req.Length < req.Addr {
		return nil, syscall.EINVAL
	}
	m := &mrObj{pd: pd, req: req}
	switch req.Mode {
	case rpc.ModeApp:
		if s.app == nil || req.Mem != 0 || req.Offset != 0 || req.Addr+req.Length > 1<<63-1 {
			return nil, syscall.EINVAL
		}
		// The first registration comes early enough, and by then the client has had time to allow
		// it: PR_SET_PTRACER, where Yama wants that.
		s.app.NameProcess(s.peer, s.srv.rights)
		m.mem = osmem.AppMemory(s.app, req.Addr, req.Length)
	case rpc.ModeShared:
		var err error
		if m.in, err = get(&s.mems, req.Mem); err != nil {
			return nil, err
		}
		if size := uint64(len(m.in.region.Mem)); req.Offset > size || req.Length > size-req.Offset {
			return nil, syscall.EINVAL
		}
		m.mem = osmem.SharedMemory(m.in.region, req.Offset, req.Length, s.Fail)
	default:
		return nil, syscall.EINVAL
	}
	var err error
	if m.h, err = pd.h.RegMR(&req, m.mem, old); err != nil {
		m.mem.Close()
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
	m.over()
	return nil
}

// over lets go of what m was made of: it is registered no more.
func (m *mrObj) over() {
	m.hold(-1)
	if m.mem != nil {
		m.mem.Close()
	}
}

func (m *mrObj) reply(n uint32) *rpc.RegMRReply {
	r := &rpc.RegMRReply{MR: n}
	r.LKey, r.RKey = m.h.Keys()
	return r
}

func (o *operation) regMR(req *rpc.RegMRRequest) (*rpc.RegMRReply, error) {
	return o.addMR(req.PD, func(pd *pdObj) (*mrObj, error) { return o.s.newMR(pd, *req, nil) })
}

// addMR gives what make registers in a PD a handle, if there may be one more.
func (o *operation) addMR(inPD uint32, make func(*pdObj) (*mrObj, error)) (*rpc.RegMRReply, error) {
	s := o.s
	pd, err := get(&s.pds, inPD)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.mrs, s.limits.MRs, "mrs")
	if err != nil {
		return nil, err
	}
	if err := s.srv.regions.take(s.account(), s.Privileged()); err != nil {
		return nil, err
	}
	m, err := make(pd)
	if err != nil {
		s.srv.regions.give(s.account(), 1)
		return nil, err
	}
	put(s, &s.mrs, n, m)
	return m.reply(n), nil
}

// reregMR registers the region anew, changed, and only then ends the old registration, so that it
// is as it was if anything fails. Its keys stay as long as its octets do: who was given them for
// these has been given no others.
func (o *operation) reregMR(req *rpc.ReregMRRequest) (*rpc.RegMRReply, error) {
	s := o.s
	old, err := get(&s.mrs, req.MR)
	if err != nil {
		return nil, err
	}
	if req.Flags == 0 || req.Flags&^(rpc.ReregTranslation|rpc.ReregPD|rpc.ReregAccess) != 0 ||
		old.mem == nil {
		return nil, syscall.EINVAL
	}
	is, changed := old.req, req.New
	if req.Flags&rpc.ReregPD == 0 {
		if changed.PD != 0 {
			return nil, syscall.EINVAL
		}
		changed.PD = is.PD
	}
	if req.Flags&rpc.ReregAccess == 0 {
		if changed.Access != 0 {
			return nil, syscall.EINVAL
		}
		changed.Access = is.Access
	}
	if req.Flags&rpc.ReregTranslation == 0 {
		if changed != (rpc.RegMRRequest{PD: changed.PD, Access: changed.Access}) {
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
	m, err := s.changedMR(old, pd, changed, req.Flags&rpc.ReregTranslation == 0)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.mrs.m[req.MR] = m
	s.mu.Unlock()
	return m.reply(req.MR), nil
}

// changedMR registers req in place of old, under its key or a new one.
func (s *Session) changedMR(old *mrObj, pd *pdObj, req rpc.RegMRRequest, sameKey bool) (*mrObj,
	error) {
	if sameKey {
		m, err := s.newMR(pd, req, old.h)
		if err == nil {
			old.over()
		}
		return m, err
	}
	m, err := s.newMR(pd, req, nil)
	if err != nil {
		return nil, err
	}
	if err := old.close(); err != nil {
		_ = m.close() // nobody knows it
		return nil, err
	}
	return m, nil
}

func (o *operation) deregMR(req *rpc.HandleRequest) error {
	m, err := get(&o.s.mrs, req.Handle)
	if err != nil {
		return err
	}
	if err := m.close(); err != nil {
		return err
	}
	drop(o.s, &o.s.mrs, req.Handle)
	o.s.srv.regions.give(o.s.account(), 1)
	return nil
}

func (o *operation) allocMR(req *rpc.AllocMRRequest) (*rpc.RegMRReply, error) {
	return o.addMR(req.PD, func(pd *pdObj) (*mrObj, error) {
		if req.MaxLen == 0 || req.MaxLen > 1<<46 {
			return nil, syscall.EINVAL
		}
		h, err := pd.h.AllocMR(req.MaxLen)
		if err != nil {
			return nil, err
		}
		m := &mrObj{pd: pd, h: h}
		m.hold(1)
		return m, nil
	})
}

func (o *operation) allocMW(req *rpc.AllocMWRequest) (*rpc.AllocMWReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.mws, s.limits.MWs, "mws")
	if err != nil {
		return nil, err
	}
	if err := s.srv.regions.take(s.account(), s.Privileged()); err != nil {
		return nil, err
	}
	h, err := pd.h.AllocMW(req.Type)
	if err != nil {
		s.srv.regions.give(s.account(), 1)
		return nil, err
	}
	pd.users++
	put(s, &s.mws, n, &mwObj{pd: pd, h: h})
	return &rpc.AllocMWReply{MW: n, RKey: h.RKey()}, nil
}

func (o *operation) deallocMW(req *rpc.HandleRequest) error {
	m, err := get(&o.s.mws, req.Handle)
	if err != nil {
		return err
	}
	if err := m.h.Close(); err != nil {
		return err
	}
	m.pd.users--
	drop(o.s, &o.s.mws, req.Handle)
	o.s.srv.regions.give(o.s.account(), 1)
	return nil
}
