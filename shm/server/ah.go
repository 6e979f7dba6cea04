package server

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/shm/rpc"
)

func (o *operation) createAH(req *rpc.CreateAHRequest) (*rpc.CreateAHReply, error) {
	s := o.s
	pd, err := get(&s.pds, req.PD)
	if err != nil {
		return nil, err
	}
	n, err := number(s, &s.ahs, s.limits.AHs, "ahs")
	if err != nil {
		return nil, err
	}
	if err := s.srv.ids.take(s.account(), s.Privileged()); err != nil {
		return nil, err
	}
	h, err := pd.h.CreateAH(&req.Attr)
	if err != nil {
		s.srv.ids.give(s.account(), 1)
		return nil, err
	}
	pd.users++
	put(s, &s.ahs, n, &ahObj{pd, h})
	return &rpc.CreateAHReply{AH: n, Key: h.Key()}, nil
}

func (o *operation) destroyAH(req *rpc.HandleRequest) error {
	s := o.s
	a, err := get(&s.ahs, req.Handle)
	if err != nil {
		return err
	}
	if err := a.h.Close(); err != nil {
		return err
	}
	a.pd.users--
	drop(s, &s.ahs, req.Handle)
	s.srv.ids.give(s.account(), 1)
	return nil
}

// attachMcast makes a QP a member of a group; once more changes nothing.
func (o *operation) attachMcast(req *rpc.AttachMcastRequest) error {
	s := o.s
	q, err := get(&s.qps, req.QP)
	if err != nil {
		return err
	}
	g := req.GID
	if _, ok := q.groups[g]; ok {
		return nil
	}
	if err := s.enterGroup(); err != nil {
		return err
	}
	if err := q.h.Attach(g); err != nil {
		s.leaveGroups(1)
		return err
	}
	if q.groups == nil {
		q.groups = make(map[[16]byte]struct{})
	}
	q.groups[g] = struct{}{}
	return nil
}

// enterGroup counts one more membership of s in a multicast group.
func (s *Session) enterGroup() error {
	if s.groups >= s.limits.Groups {
		return s.overLimit("groups")
	}
	if err := s.srv.memberships.take(s.account(), s.Privileged()); err != nil {
		return err
	}
	s.groups++
	return nil
}

// leaveGroups counts n less.
func (s *Session) leaveGroups(n int) {
	s.groups -= n
	s.srv.memberships.give(s.account(), int64(n))
}

func (o *operation) detachMcast(req *rpc.AttachMcastRequest) error {
	q, err := get(&o.s.qps, req.QP)
	if err != nil {
		return err
	}
	g := req.GID
	if _, ok := q.groups[g]; !ok {
		return syscall.EINVAL
	}
	if err := q.h.Detach(g); err != nil {
		return err
	}
	delete(q.groups, g)
	o.s.leaveGroups(1)
	return nil
}

// A membership is an id's of a multicast group; guarded by the channel's lock.
type membership struct {
	tag      uint64 // the client's name for it
	reported uint32 // events of it that the client was given
	queued   int    // and that wait
}

// joinMulticast has an id join a group.
func (o *operation) joinMulticast(id *CMID, req *rpc.CMJoinMulticastRequest) error {
	s := o.s
	addr, err := groupOf(req.Addr)
	if err != nil || req.Flags != 0 {
		return syscall.EINVAL
	}
	if !id.join(addr, req.UID) { // the event may be there before Join has returned
		return &Refusal{syscall.EADDRINUSE, fmt.Sprintf("the id has joined %v already", addr)}
	}
	if err := s.enterGroup(); err != nil {
		id.leave(addr)
		return err
	}
	if err := id.h.Join(addr, req.UID); err != nil {
		id.leave(addr)
		s.leaveGroups(1)
		return err
	}
	return nil
}

// leaveMulticast has an id leave a group. One that could not be joined, as MULTICAST_ERROR has
// told, has nothing to leave below, and is given back here all the same.
func (o *operation) leaveMulticast(req *rpc.CMLeaveMulticastRequest) (*rpc.CMLeaveMulticastReply,
	error) {
	id, err := o.s.idOf(req.ID)
	if err != nil {
		return nil, err
	}
	addr, err := groupOf(req.Addr)
	if err != nil {
		return nil, err
	}
	if !id.member(addr) {
		return nil, syscall.EADDRNOTAVAIL
	}
	if err := id.h.Leave(addr); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, err
	}
	o.s.leaveGroups(1)
	r := id.leave(addr)
	return &r, nil
}

// groupOf is the group that a request names.
func groupOf(a rpc.SockAddr) (netip.Addr, error) {
	ap := a.AddrPort()
	if !ap.IsValid() || !ap.Addr().IsMulticast() || ap.Port() != 0 {
		return netip.Addr{}, syscall.EINVAL
	}
	return ap.Addr(), nil
}
