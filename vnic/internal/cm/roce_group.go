package cm

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
)

// resolveGroup is the address of the device that a multicast group is joined and sent to with; src,
// if valid, must be it.
func (m *Manager) resolveGroup(src, group netip.Addr) (netip.Addr, error) {
	if src.IsValid() && !src.IsUnspecified() {
		if !m.cfg.Owns(src) {
			return src, errno(syscall.EADDRNOTAVAIL, "%v is no address of %s", src, m.cfg.Name)
		}
		if src.Is4() != group.Is4() {
			return src, errno(syscall.EAFNOSUPPORT, "%v does not reach %v", src, group)
		}
		return src, nil
	}
	for _, a := range m.cfg.Addrs {
		if a.Is4() == group.Is4() {
			return a, nil
		}
	}
	return src, errno(syscall.ENETUNREACH, "no address of %s reaches %v", m.cfg.Name, group)
}

// Join joins a multicast group, with an ID of PortSpaceUDP that has an address. MULTICAST_JOIN
// follows, with tag as its Group, which tells in Param.RoCE what to attach a QP to and to send to,
// or MULTICAST_ERROR. rdma.ErrInvalid; rdma.ErrBusy: id has joined it.
func (id *ID) Join(group netip.Addr, tag uint64) error {
	group = group.Unmap().WithZone("")
	in := &membership{}
	id.mu.Lock()
	from, err := id.m.groupSource(id.local.Addr(), group)
	switch {
	case err != nil:
	case id.space != PortSpaceUDP || !group.IsMulticast() || !id.local.IsValid():
		err = invalid("join a multicast group with an id that is not of datagrams, or not bound")
	case id.state == stateClosed:
		err = rdma.ErrClosed
	case id.joinedLocked(group):
		err = rdma.ErrBusy
	}
	if err == nil {
		if id.groups == nil {
			id.groups = map[netip.Addr]*membership{}
		}
		id.groups[group] = in
	}
	id.mu.Unlock()
	if err != nil {
		return fmt.Errorf("join %v: %w", group, err)
	}
	ev := Event{Type: MulticastJoin, Group: tag}
	if err := id.m.cfg.RoCE.Join(id.user.cfg.Number, group); err != nil {
		id.mu.Lock()
		if id.groups[group] == in {
			delete(id.groups, group)
		}
		id.mu.Unlock()
		ev = Event{Type: MulticastError, Group: tag, Status: status(err, syscall.EINVAL), Err: err}
	} else {
		ev.Param.RoCE = rdma.RoCEParam{
			QPN: uint32(packet.Multicast), QKey: mad.UDPQKey, Path: id.path(from, group, 0, 0),
		}
		id.mu.Lock()
		in.joined = id.groups[group] == in
		stays := in.joined
		id.mu.Unlock()
		if !stays { // who has left the group meanwhile, or closed id, had nothing to take back
			id.leaveGroup(group)
			return fmt.Errorf("join %v: %w", group, rdma.ErrClosed)
		}
	}
	id.emitInOrder(ev)
	return nil
}

// A membership is an ID's in a multicast group.
type membership struct {
	joined bool // at the network, which is to be told of the end; guarded by ID.mu
}

// +checklocks:id.mu
func (id *ID) joinedLocked(group netip.Addr) bool {
	_, ok := id.groups[group]
	return ok
}

// groupSource is the address that an ID at local sends to group with.
func (m *Manager) groupSource(local, group netip.Addr) (netip.Addr, error) {
	if m.cfg.RoCE == nil {
		return local, rdma.ErrUnsupported
	}
	return m.resolveGroup(local, group)
}

// Leave leaves a group that id has joined. EADDRNOTAVAIL: it has not.
func (id *ID) Leave(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	id.mu.Lock()
	in, ok := id.groups[group]
	delete(id.groups, group)
	joined := ok && in.joined
	id.mu.Unlock()
	if !ok {
		return errno(syscall.EADDRNOTAVAIL, "leave %v, which was not joined", group)
	}
	if joined {
		id.leaveGroup(group)
	}
	return nil
}

// leaveGroupsLocked leaves all groups that id has joined; the caller calls what is returned with no
// lock held.
//
// +checklocks:id.mu
func (id *ID) leaveGroupsLocked() (leave func()) {
	var joined []netip.Addr
	for g, in := range id.groups {
		if in.joined {
			joined = append(joined, g)
		}
	}
	id.groups = nil
	return func() {
		for _, g := range joined {
			id.leaveGroup(g)
		}
	}
}

func (id *ID) leaveGroup(g netip.Addr) {
	if err := id.m.cfg.RoCE.Leave(id.user.cfg.Number, g); err != nil {
		id.m.cfg.Log.Debug("leave a group", "group", g, "err", err)
	}
}
