package vnic

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A CMID is one end of a connection, or a listener, as rdma_cm_id is.
//
// Its calls answer at once; what comes of them is told to the handler, one event at a time and in
// order. The handler is called without a lock of this package, by whatever goroutine found out,
// even one that is inside of another call of this package, such as QP.Ring: it must not block nor
// take a lock that is held around such calls. It may call methods of CMIDs, but for Close.
type CMID struct {
	dev    *Device
	ctx    *Context
	handle uint32

	mu         sync.Mutex
	state      cmState        // guarded by mu, as all below
	handler    func(CMEvent)  //
	events     []CMEvent      // that wait for delivering
	delivering bool           // somebody calls the handler
	quiet      chan struct{}  // closed when delivering ends, if Close waits for that
	local      netip.AddrPort //
	remote     netip.AddrPort //
	bound      bool           // local is in the port table
	chosen     bool           // its port was chosen here: another will do
	mpa        rdma.MPAParam  // of a listener
	listen     *cmListen      // of a listener
	request    *cmRequest     // of a child that has not been answered
	rejected   *cmRequest     // of a child that was rejected: its connection is still there
	announced  atomic.Bool    // of a child: its CONNECT_REQUEST has been given to a handler, whose it is
	binding    *binding       // the QP, from Connect or Accept on
	cancel     func()         // ends the attempt
	param      rdma.ConnParam // what was agreed
}

type cmState uint8

const (
	cmIdle cmState = iota
	cmBound
	cmResolved
	cmRouted
	cmListening
	cmConnecting // Connect or Accept under way
	cmRequested  // a child that waits for an answer
	cmConnected
	cmOver // disconnected, rejected or failed
	cmClosed
)

var cmStateNames = [...]string{
	"IDLE", "BOUND", "ADDR_RESOLVED", "ROUTE_RESOLVED", "LISTEN", "CONNECTING", "REQUEST", "CONNECTED", "DISCONNECTED", "CLOSED",
}

func (s cmState) String() string { return cmStateNames[s] }

// A binding joins a CMID and a QP for one connection.
type binding struct {
	id       *CMID
	qp       *QP
	attached bool        // the QP is connected; QP's owner only
	canceled atomic.Bool // the attempt is over
}

// NewCMID makes an identifier whose events go to handler.
func (c *Context) NewCMID(handler func(CMEvent)) (*CMID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	id := &CMID{dev: c.dev, ctx: c, handler: handler}
	h, err := c.ids.Add(id, c.limits.CMID)
	if err != nil {
		return nil, fmt.Errorf("create a CM id: %w", err)
	}
	id.handle = h
	return id, nil
}

func (id *CMID) Handle() uint32    { return id.handle }
func (id *CMID) Context() *Context { return id.ctx }

// Local returns the address that id is bound to; the zero AddrPort if none.
func (id *CMID) Local() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.local
}

// Remote returns the peer's address.
func (id *CMID) Remote() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.remote
}

// QP returns the QP of the connection, nil before Connect or Accept and after the end.
func (id *CMID) QP() *QP {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.binding == nil {
		return nil
	}
	return id.binding.qp
}

// Param returns what was agreed on: the peer's private data, IRD and ORD.
func (id *CMID) Param() rdma.ConnParam {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.param
}

// SetMPA sets what a listener's connections use. Some of it is needed before Accept is called.
// rdma.ErrInvalid.
func (id *CMID) SetMPA(p rdma.MPAParam) error {
	if err := checkMPA(p); err != nil {
		return err
	}
	id.mu.Lock()
	id.mpa = p
	id.mu.Unlock()
	return nil
}

func (id *CMID) stateError(op string) error {
	if id.state == cmClosed {
		return fmt.Errorf("%s: %w", op, rdma.ErrClosed)
	}
	return fmt.Errorf("%s a CM id in state %v: %w", op, id.state, rdma.ErrInvalid)
}

// Bind takes an address of the device and a port; an unspecified address stands for all of the
// family (the IPv6 one for both families), port 0 for a free one. Errors wrap EADDRINUSE,
// EADDRNOTAVAIL or rdma.ErrInvalid.
func (id *CMID) Bind(ap netip.AddrPort) error {
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle {
		return id.stateError("bind")
	}
	return id.bindLocked(ap)
}

func (id *CMID) bindLocked(ap netip.AddrPort) error {
	if !ap.Addr().IsValid() {
		return fmt.Errorf("bind to no address: %w", rdma.ErrInvalid)
	}
	if !ap.Addr().IsUnspecified() && !id.dev.owns(ap.Addr()) {
		return errno(syscall.EADDRNOTAVAIL, "%v is no address of %s", ap.Addr(), id.dev.cfg.Name)
	}
	ap, err := id.dev.bind(id, ap)
	if err != nil {
		return err
	}
	id.local, id.bound, id.state = ap, true, cmBound
	return nil
}

// ResolveAddr finds the local address for dst; src, if valid, must be it. ADDR_RESOLVED or
// ADDR_ERROR follows. Neighbours are looked up by Connect only, so timeout is not used up.
func (id *CMID) ResolveAddr(src netip.Addr, dst netip.AddrPort, timeout time.Duration) error {
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	src = src.Unmap()
	id.mu.Lock()
	if id.state != cmIdle && id.state != cmBound {
		defer id.mu.Unlock()
		return id.stateError("resolve an address with")
	}
	was := id.state
	if id.bound && !id.local.Addr().IsUnspecified() && !src.IsValid() {
		src = id.local.Addr()
	}
	id.state = cmResolved
	id.mu.Unlock()

	from, err := id.resolve(src, dst)
	id.mu.Lock()
	ev := CMEvent{Type: CMAddrResolved}
	switch {
	case id.state != cmResolved:
		id.mu.Unlock()
		return nil
	case err != nil:
		id.state = was
		ev = CMEvent{Type: CMAddrError, Status: status(err, syscall.EADDRNOTAVAIL), Err: err}
	default:
		id.local = netip.AddrPortFrom(from, id.local.Port())
		id.remote = dst
		id.choosePortLocked()
	}
	id.mu.Unlock()
	id.later(ev)
	return nil
}

// choosePortLocked gives id a port to connect from, if it has none and the network would use it. If
// none is free the network finds one, or does not.
func (id *CMID) choosePortLocked() {
	if _, ok := id.dev.cfg.Network.(PortNetwork); id.bound || !ok && id.dev.cfg.Network != nil {
		return
	}
	if ap, err := id.dev.bind(id, netip.AddrPortFrom(id.local.Addr(), 0)); err == nil {
		id.local, id.bound, id.chosen = ap, true, true
	}
}

// connectedFrom notes where the connection comes from. The port table's entry of an id that was bound
// by its user keeps its name.
func (id *CMID) connectedFrom(ap netip.AddrPort) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmConnecting || id.bound && !id.chosen || id.local == ap {
		return
	}
	if id.bound {
		id.dev.unbind(id, id.local)
	}
	id.local, id.bound, id.chosen = ap, false, false
}

func (id *CMID) resolve(src netip.Addr, dst netip.AddrPort) (netip.Addr, error) {
	if !dst.Addr().IsValid() || dst.Addr().IsUnspecified() || dst.Addr().IsMulticast() || dst.Port() == 0 {
		return src, errno(syscall.EINVAL, "%v cannot be connected to", dst)
	}
	if src.IsValid() && !src.IsUnspecified() {
		if !id.dev.owns(src) {
			return src, errno(syscall.EADDRNOTAVAIL, "%v is no address of %s", src, id.dev.cfg.Name)
		}
		if src.Is4() != dst.Addr().Is4() {
			return src, errno(syscall.EAFNOSUPPORT, "%v does not reach %v", src, dst.Addr())
		}
		if _, err := id.dev.route(dst.Addr()); err != nil {
			return src, err
		}
		return src, nil
	}
	return id.dev.route(dst.Addr())
}

// ResolveRoute is followed by ROUTE_RESOLVED.
func (id *CMID) ResolveRoute(timeout time.Duration) error {
	id.mu.Lock()
	if id.state != cmResolved {
		defer id.mu.Unlock()
		return id.stateError("resolve a route with")
	}
	id.state = cmRouted
	id.mu.Unlock()
	id.later(CMEvent{Type: CMRouteResolved})
	return nil
}

// claim takes qp for a connection of id.
func (id *CMID) claim(qp *QP) (*binding, error) {
	switch {
	case qp == nil || qp.ctx != id.ctx:
		return nil, fmt.Errorf("connect a QP of another device: %w", rdma.ErrInvalid)
	case qp.destroying.Load():
		return nil, fmt.Errorf("connect QP %d: %w", qp.num, rdma.ErrClosed)
	case qp.State() != rdma.QPIdle:
		return nil, fmt.Errorf("connect QP %d in state %v: %w", qp.num, qp.State(), rdma.ErrInvalid)
	}
	b := &binding{id: id, qp: qp}
	if !qp.bound.CompareAndSwap(nil, b) {
		return nil, fmt.Errorf("connect QP %d, which is being connected: %w", qp.num, rdma.ErrBusy)
	}
	return b, nil
}

// attach connects the QP of b by l; RTS comes first, then ESTABLISHED, then data (T12).
func (b *binding) attach(l link, open func(), info *linkInfo) error {
	qp := b.qp
	err := fmt.Errorf("connect QP %d: %w", qp.num, rdma.ErrClosed)
	qp.do(func() {
		switch {
		case b.canceled.Load() || qp.bound.Load() != b:
			return
		case qp.State() != rdma.QPIdle:
			err = fmt.Errorf("connect QP %d in state %v: %w", qp.num, qp.State(), rdma.ErrInvalid)
			return
		}
		err = nil
		for qp.flushIdle() {
		}
		qp.link, qp.linkParam, qp.extensions = l, info.param, info.extensions
		if end, ok := l.(*loopEnd); ok {
			qp.peer.Store(end.peer)
		}
		qp.eof, qp.finSent, qp.draining, qp.sentAny = false, false, false, false
		qp.endErr, qp.peerCode = nil, nil
		info.since = time.Now()
		qp.peek.Store(info)
		b.attached = true
		qp.mustState(rdma.QPRTS)
		b.id.established(b, info)
		open()
	})
	return err
}

// established is called by the QP's owner.
func (id *CMID) established(b *binding, info *linkInfo) {
	p := agreed(&info.param)
	p.Extensions, p.SCTP = info.extensions, info.session != nil
	id.mu.Lock()
	if id.state == cmConnecting {
		id.state, id.param = cmConnected, p
	}
	id.mu.Unlock()
	id.emit(CMEvent{Type: CMEstablished, Param: p})
}

// disconnected is called by the QP's owner, once for each connection.
func (id *CMID) disconnected(b *binding, err error) {
	id.mu.Lock()
	if id.state == cmConnected {
		id.state = cmOver
	}
	if id.binding == b {
		id.binding = nil
	}
	id.mu.Unlock()
	ev := CMEvent{Type: CMDisconnected, Err: err}
	if term := (*rdma.TerminateError)(nil); err != nil && !errors.As(err, &term) {
		// A program in another process is told by a number: "a graceful end of the stream is
		// distinguishable from a loss" (DDP-013).
		ev.Status = status(err, syscall.ECONNRESET)
	}
	id.emit(ev)
}

// release ends an attempt that did not come to a connection. mpa says that it got as far as the
// MPA start-up: then the QP goes to Error (Q2).
func (b *binding) release(mpa bool, err error) {
	b.canceled.Store(true)
	qp := b.qp
	qp.call(func() {
		if b.attached || !qp.bound.CompareAndSwap(b, nil) {
			return
		}
		if mpa && qp.State() == rdma.QPIdle {
			qp.toError(err)
		}
	})
}

// Disconnect ends id's connection gracefully, without waiting. DISCONNECTED follows.
func (id *CMID) Disconnect() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmConnected || id.binding == nil {
		return fmt.Errorf("disconnect: %w", rdma.ErrNotConnected)
	}
	qp := id.binding.qp
	qp.callLater(qp.disconnect)
	return nil
}

// Close destroys id. A connection of it ends at once; a request that waits is refused. No event
// comes when it has returned; it waits for a handler that is running.
func (id *CMID) Close() error {
	id.shut()
	id.mu.Lock()
	var wait chan struct{}
	if id.delivering {
		if id.quiet == nil {
			id.quiet = make(chan struct{})
		}
		wait = id.quiet
	}
	id.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return nil
}

// shut is Close without waiting.
func (id *CMID) shut() {
	id.mu.Lock()
	if id.state == cmClosed {
		id.mu.Unlock()
		return
	}
	id.state = cmClosed
	b, l, r, rejected, cancel := id.binding, id.listen, id.request, id.rejected, id.cancel
	id.binding, id.listen, id.request, id.rejected, id.cancel = nil, nil, nil, nil, nil
	bound, local := id.bound, id.local
	id.mu.Unlock()

	if bound {
		id.dev.unbind(id, local)
	}
	if cancel != nil {
		cancel()
	}
	if l != nil {
		l.close()
	}
	if r != nil {
		r.drop()
	}
	if rejected != nil {
		rejected.hangUp()
	}
	if b != nil {
		b.canceled.Store(true)
		qp := b.qp
		qp.callLater(func() {
			if qp.bound.Load() == b && b.attached {
				qp.toError(nil)
			} else {
				qp.bound.CompareAndSwap(b, nil)
			}
		})
	}
	id.ctx.mu.Lock()
	id.ctx.ids.Remove(id.handle)
	id.ctx.mu.Unlock()
}
