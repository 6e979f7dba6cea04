package shmtest

import (
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// A loopID implements shm.IDHandler.
type loopID struct {
	h      *loopSession
	id     *server.CMID
	local  netip.AddrPort
	remote netip.AddrPort
	listen bool
	qp     *loopQP
	peer   *loopID // the other end of a request or a connection
	sent   rpc.ConnParam
	live   bool
	over   bool
}

func (h *loopSession) CreateID(_ *rpc.CMCreateIDRequest, id *server.CMID) (server.IDHandler,
	error) {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	return h.newID(id), nil
}

func (h *loopSession) newID(id *server.CMID) *loopID {
	i := &loopID{h: h, id: id}
	h.ids[i] = struct{}{}
	h.count(1)
	return i
}

// push sends an event with the id's addresses.
func (i *loopID) push(typ uint32, status int32, p *rpc.ConnParam, cause uint32) {
	ev := rpc.CMEvent{Type: typ, Status: status, Cause: cause, Src: rpc.MakeSockAddr(i.local),
		Dst: rpc.MakeSockAddr(i.remote)}
	if p != nil {
		ev.Param = *p
		if typ == rpc.EvRejected {
			ev.Flags = rpc.EventByProgram
		}
	}
	_ = i.id.Push(ev) // nobody is there to hear it
}

// Bind implements shm.IDHandler.
func (i *loopID) Bind(addr netip.AddrPort) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	return i.bind(addr)
}

func (i *loopID) bind(addr netip.AddrPort) error {
	if !addr.Addr().IsUnspecified() && deviceOf(addr.Addr()) < 0 {
		return syscall.ENODEV
	}
	if addr.Port() == 0 {
		i.h.l.nextPort++
		addr = netip.AddrPortFrom(addr.Addr(), i.h.l.nextPort)
	}
	i.local = addr
	return nil
}

// ResolveAddr implements shm.IDHandler.
func (i *loopID) ResolveAddr(src, dst netip.AddrPort, _ uint32) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	if !src.Addr().IsValid() {
		return syscall.EINVAL
	}
	if err := i.bind(src); err != nil {
		return err
	}
	i.remote = dst
	i.push(rpc.EvAddrResolved, 0, nil, 0)
	return nil
}

// ResolveRoute implements shm.IDHandler.
func (i *loopID) ResolveRoute(uint32) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	i.push(rpc.EvRouteResolved, 0, nil, 0)
	return nil
}

// Listen implements shm.IDHandler.
func (i *loopID) Listen(uint32) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	if i.h.l.listeners[i.local] != nil {
		return syscall.EADDRINUSE
	}
	i.listen = true
	i.h.l.listeners[i.local] = i
	return nil
}

// Connect implements shm.IDHandler. Port 1 of any address never answers, port 2 cannot be reached.
func (i *loopID) Connect(qp server.QPHandler, p *rpc.ConnParam) error {
	l := i.h.l
	l.mu.Lock()
	q := qp.(*loopQP)
	lis := l.listeners[i.remote]
	if lis == nil {
		lis = l.listeners[netip.AddrPortFrom(netip.IPv4Unspecified(), i.remote.Port())]
	}
	if q.state != abi.StateInit || lis == nil {
		defer l.mu.Unlock()
		switch {
		case q.state != abi.StateInit:
			return syscall.EINVAL
		case i.remote.Port() == 1:
		case i.remote.Port() == 2:
			i.push(rpc.EvUnreachable, -int32(syscall.ETIMEDOUT), nil, 0)
		default:
			i.push(rpc.EvRejected, -int32(syscall.ECONNREFUSED), nil, 0)
		}
		return nil
	}
	i.qp, i.sent = q, *p
	l.mu.Unlock()
	// Not under l.mu: shm may close the child at once, which takes it.
	ev := rpc.CMEvent{Src: rpc.MakeSockAddr(i.remote), Dst: rpc.MakeSockAddr(i.local), Param: *p}
	err := lis.id.PushRequest(ev, func(child *server.CMID) server.IDHandler {
		l.mu.Lock()
		defer l.mu.Unlock()
		c := lis.h.newID(child)
		c.local, c.remote, c.peer = i.remote, i.local, i
		i.peer = c
		return c
	})
	if err != nil {
		i.push(rpc.EvRejected, -int32(syscall.ECONNREFUSED), nil, 0)
	}
	return nil
}

// Accept implements shm.IDHandler.
func (i *loopID) Accept(qp server.QPHandler, p *rpc.ConnParam) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	q := qp.(*loopQP)
	if i.peer == nil || i.live || q.state != abi.StateInit || i.peer.qp.state != abi.StateInit {
		return syscall.EINVAL
	}
	i.qp, i.live, i.peer.live = q, true, true
	q.peer, q.id = i.peer.qp, i
	q.peer.peer, q.peer.id = q, i.peer
	q.setState(abi.StateRTS)
	q.peer.setState(abi.StateRTS)
	i.push(rpc.EvEstablished, 0, &i.peer.sent, 0)
	i.peer.push(rpc.EvEstablished, 0, p, 0)
	return nil
}

// Reject implements shm.IDHandler.
func (i *loopID) Reject(private []byte) error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	if i.peer == nil || i.live {
		return syscall.EINVAL
	}
	i.refuse(private)
	return nil
}

func (i *loopID) refuse(private []byte) {
	var p rpc.ConnParam
	p.SetPrivateData(private)
	i.peer.push(rpc.EvRejected, -int32(syscall.ECONNRESET), &p, 0)
	i.peer.peer, i.peer = nil, nil
}

func (i *loopID) Establish() error { return nil }
func (i *loopID) Notify() error    { return nil }

// Disconnect implements shm.IDHandler.
func (i *loopID) Disconnect() error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	if !i.live {
		return syscall.ENOTCONN
	}
	i.qp.fail(0)
	return nil
}

// disconnected tells the client of the end of its connection, once.
func (i *loopID) disconnected(cause uint32) {
	if i.live && !i.over {
		i.live = false
		i.push(rpc.EvDisconnected, 0, nil, cause)
	}
}

// OpenUDP implements shm.IDHandler.
func (i *loopID) OpenUDP(*osmem.Packets) error { return syscall.EOPNOTSUPP }

// SetOption implements shm.IDHandler.
func (i *loopID) SetOption(level, name uint32, _ []byte) error {
	if level != rpc.OptLevelVRNIC || name != rpc.OptMPARevision && name != rpc.OptMPACRC &&
		name != rpc.OptDevice && name != rpc.OptExtensions {
		return syscall.EOPNOTSUPP
	}
	return nil
}

// InitQPAttr implements shm.IDHandler.
func (i *loopID) InitQPAttr(uint32) (rpc.CMInitQPAttrReply, error) {
	return rpc.CMInitQPAttrReply{}, syscall.EOPNOTSUPP
}

// Query implements shm.IDHandler.
func (i *loopID) Query() rpc.CMQueryReply {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	return rpc.CMQueryReply{Src: rpc.MakeSockAddr(i.local), Dst: rpc.MakeSockAddr(i.remote), Port: 1}
}

// Close implements shm.IDHandler.
func (i *loopID) Close() error {
	i.h.l.mu.Lock()
	defer i.h.l.mu.Unlock()
	i.end()
	i.h.count(-1)
	return nil
}

// end is Close, with the lock held and without the account.
func (i *loopID) end() {
	i.over = true
	delete(i.h.ids, i)
	if i.listen {
		delete(i.h.l.listeners, i.local)
	}
	switch {
	case i.live:
		i.live = false
		i.qp.fail(0)
	case i.peer != nil && i.qp == nil: // a request that was not answered
		i.refuse(nil)
	case i.peer != nil: // a connect that was given up
		i.peer.peer, i.peer = nil, nil
	}
}
