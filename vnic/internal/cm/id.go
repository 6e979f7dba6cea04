package cm

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

// An ID is one end of a connection, or a listener, as rdma_cm_id is.
//
// Its calls answer at once; what comes of them is told to the handler, one event at a time and in
// order. The handler is called without a lock of this package, by whatever goroutine found out,
// even one that is inside of another call of this package, such as QP.Ring: it must not block nor
// take a lock that is held around such calls. It may call methods of IDs.
type ID struct {
	m      *Manager
	user   *User
	space  PortSpace
	handle uint32

	mu      sync.Mutex
	state   state          // +checklocks:mu
	param   rdma.ConnParam // +checklocks:mu
	attempt *Attempt       // +checklocks:mu
	cancel  func()         // +checklocks:mu

	// Events wait for the handler while somebody calls it, who closes delivered, if Close waits.
	handler    func(Event)   // +checklocks:mu
	events     []Event       // +checklocks:mu
	delivering bool          // +checklocks:mu
	delivered  chan struct{} // +checklocks:mu

	// local is in the port table if bound; if chosen its port was chosen here, and another will do.
	local   netip.AddrPort // +checklocks:mu
	remote  netip.AddrPort // +checklocks:mu
	bound   bool           // +checklocks:mu
	chosen  bool           // +checklocks:mu
	sharing Sharing        // +checklocks:mu

	// exchange is the messages of a set-up on a device of RoCE, groups what was joined there.
	exchange *exchange                  // +checklocks:mu
	groups   map[netip.Addr]*membership // +checklocks:mu

	// Of a listener.
	mpa    rdma.MPAParam // +checklocks:mu
	listen *acceptor     // +checklocks:mu

	// Of a child: its request, until that is answered; what ends a request that was rejected; and
	// whether its CONNECT_REQUEST has been given to a handler, whose it is.
	request   request // +checklocks:mu
	hangUp    func()  // +checklocks:mu
	announced atomic.Bool
}

// Handle is the number by which the user names id.
func (id *ID) Handle() uint32 { return id.handle }

// Local returns the address that id is bound to; the zero AddrPort if none.
func (id *ID) Local() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.local
}

// Remote returns the peer's address.
func (id *ID) Remote() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.remote
}

// Param returns what was agreed on: the peer's private data, IRD and ORD.
func (id *ID) Param() rdma.ConnParam {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.param
}

// SetMPA sets what a listener's connections use. Some of it is needed before Accept is called.
// rdma.ErrInvalid.
func (id *ID) SetMPA(p rdma.MPAParam) error {
	if err := checkMPA(p); err != nil {
		return err
	}
	id.mu.Lock()
	id.mpa = p
	id.mu.Unlock()
	return nil
}

func invalid(what string) error { return fmt.Errorf("%s: %w", what, rdma.ErrInvalid) }

// Bind takes an address of the device and a port; an unspecified address stands for all of the
// family (the IPv6 one for both families), port 0 for a free one. Errors wrap EADDRINUSE,
// EADDRNOTAVAIL or rdma.ErrInvalid.
func (id *ID) Bind(ap netip.AddrPort) error {
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.bindLocked(ap)
}

// +checklocks:id.mu
func (id *ID) bindLocked(ap netip.AddrPort) error {
	if !id.mayLocked(stepBind) {
		return id.stepLocked(stepBind)
	}
	if !ap.Addr().IsValid() {
		return fmt.Errorf("bind to no address: %w", rdma.ErrInvalid)
	}
	if !ap.Addr().IsUnspecified() && !id.m.cfg.Owns(ap.Addr()) {
		return errno(syscall.EADDRNOTAVAIL, "%v is no address of %s", ap.Addr(), id.m.cfg.Name)
	}
	ap, err := id.m.ports.bind(id, ap, id.sharing)
	if err != nil {
		return err
	}
	id.local, id.bound = ap, true
	return id.stepLocked(stepBind)
}

// SetSharing says how id has the port that it is bound to, or is going to be. Who listens has it
// alone. EADDRINUSE: it is shared; rdma.ErrInvalid: id listens, or for s.Only6 is too far for that.
func (id *ID) SetSharing(s Sharing) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	early := id.state == stateIdle || id.state == stateBound
	if id.state == stateListen || s.Only6 != id.sharing.Only6 && !early {
		return fmt.Errorf("share the port of a CM id in state %v: %w", id.state, rdma.ErrInvalid)
	}
	if id.bound && !id.chosen {
		if err := id.m.ports.share(id, id.local, s); err != nil {
			return err
		}
	}
	id.sharing = s
	return nil
}

// ResolveAddr finds the local address for dst; src, if valid, must be it. ADDR_RESOLVED or
// ADDR_ERROR follows. Neighbours are looked up by Connect only, so timeout is not used up.
func (id *ID) ResolveAddr(src netip.Addr, dst netip.AddrPort, timeout time.Duration) error {
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	src = src.Unmap()
	id.mu.Lock()
	if err := id.stepLocked(stepResolveAddr); err != nil {
		id.mu.Unlock()
		return err
	}
	if id.bound && !id.local.Addr().IsUnspecified() && !src.IsValid() {
		src = id.local.Addr()
	}
	id.mu.Unlock()

	from, err := id.m.resolve(id.space, src, dst)
	id.mu.Lock()
	then, ev := stepAddrResolved, Event{Type: AddrResolved}
	switch {
	case err == nil:
	case id.bound:
		then = stepBoundAddrFailed
	default:
		then = stepAddrFailed
	}
	if err != nil {
		ev = Event{Type: AddrError, Status: status(err, syscall.EADDRNOTAVAIL), Err: err}
	}
	if id.stepLocked(then) != nil { // closed meanwhile
		id.mu.Unlock()
		return nil
	}
	if err == nil {
		id.local = netip.AddrPortFrom(from, id.local.Port())
		id.remote = dst
		id.choosePortLocked()
	}
	id.mu.Unlock()
	id.emitInOrder(ev)
	return nil
}

// choosePortLocked gives id a port to connect from, if it has none and the network would use it. If
// none is free the network finds one, or does not.
//
// +checklocks:id.mu
func (id *ID) choosePortLocked() {
	n := &id.m.net
	if id.bound || id.m.cfg.RoCE == nil && n.ports == nil && n.Network != nil {
		return
	}
	if ap, err := id.m.ports.bind(id, netip.AddrPortFrom(id.local.Addr(), 0), Sharing{}); err == nil {
		id.local, id.bound, id.chosen = ap, true, true
	}
}

// connectedFrom notes where the connection comes from. The port table's entry of an id that was
// bound by its user keeps its name.
func (id *ID) connectedFrom(ap netip.AddrPort) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateConnecting || id.bound && !id.chosen || id.local == ap {
		return
	}
	if id.bound {
		id.m.ports.unbind(id, id.local)
	}
	id.local, id.bound, id.chosen = ap, false, false
}

func (m *Manager) resolve(space PortSpace, src netip.Addr, dst netip.AddrPort) (netip.Addr, error) {
	if space == PortSpaceUDP && dst.Addr().IsMulticast() {
		return m.resolveGroup(src, dst.Addr())
	}
	if !dst.Addr().IsValid() || dst.Addr().IsUnspecified() || dst.Addr().IsMulticast() ||
		dst.Port() == 0 {
		return src, errno(syscall.EINVAL, "%v cannot be connected to", dst)
	}
	if src.IsValid() && !src.IsUnspecified() {
		if !m.cfg.Owns(src) {
			return src, errno(syscall.EADDRNOTAVAIL, "%v is no address of %s", src, m.cfg.Name)
		}
		if src.Is4() != dst.Addr().Is4() {
			return src, errno(syscall.EAFNOSUPPORT, "%v does not reach %v", src, dst.Addr())
		}
		if _, err := m.cfg.Route(dst.Addr()); err != nil {
			return src, err
		}
		return src, nil
	}
	return m.cfg.Route(dst.Addr())
}

// ResolveRoute is followed by ROUTE_RESOLVED.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	id.mu.Lock()
	err := id.stepLocked(stepResolveRoute)
	id.mu.Unlock()
	if err == nil {
		id.emitInOrder(Event{Type: RouteResolved})
	}
	return err
}

// established is called by who runs the QP.
func (id *ID) established(p rdma.ConnParam) {
	id.mu.Lock()
	if id.stepLocked(stepEstablished) == nil {
		id.param = p
	}
	id.mu.Unlock()
	id.emit(Event{Type: Established, Param: p})
}

// disconnected is called by who runs the QP, once for each connection.
func (id *ID) disconnected(a *Attempt, err error) {
	id.mu.Lock()
	_ = id.stepLocked(stepDisconnected) // an error: id is closed, and the event goes nowhere
	if id.attempt == a {
		id.attempt = nil
	}
	id.mu.Unlock()
	ev := Event{Type: Disconnected, Err: err}
	if term := (*rdma.TerminateError)(nil); err != nil && !errors.As(err, &term) {
		// A program in another process is told by a number: "a graceful end of the stream is
		// distinguishable from a loss" (DDP-013).
		ev.Status = status(err, syscall.ECONNRESET)
	}
	id.emit(ev)
}

// Disconnect ends id's connection gracefully, without waiting. DISCONNECTED follows. On a device of
// RoCE its QP goes to Error at once, as rdma_disconnect has it; the peer's goes on until it is
// disconnected too, and TIMEWAIT_EXIT tells when a QP can be connected again.
func (id *ID) Disconnect() error {
	if id.m.cfg.RoCE != nil {
		return id.disconnectRoCE()
	}
	id.mu.Lock()
	a, connected := id.attempt, id.state == stateConnected
	id.mu.Unlock()
	if !connected || a == nil {
		return fmt.Errorf("disconnect: %w", rdma.ErrNotConnected)
	}
	a.qp.Disconnect(a, nil)
	return nil
}

// Close destroys id. A connection of it ends at once; a request that waits is refused. No event
// comes when it has returned: it waits for a handler of id that is running, but not if a handler
// calls it, which would wait for itself, or for one that waits for it.
func (id *ID) Close() error {
	id.shut()
	if running := id.running(); running != nil && !inHandler() {
		<-running
	}
	return nil
}

// running is closed when the handler that is running now has returned; nil: none is.
func (id *ID) running() <-chan struct{} {
	id.mu.Lock()
	defer id.mu.Unlock()
	if !id.delivering {
		return nil
	}
	if id.delivered == nil {
		id.delivered = make(chan struct{})
	}
	return id.delivered
}

// shut is Close without waiting.
func (id *ID) shut() {
	id.mu.Lock()
	if id.stepLocked(stepClose) != nil {
		id.mu.Unlock()
		return
	}
	a, l, r, hangUp, cancel := id.attempt, id.listen, id.request, id.hangUp, id.cancel
	id.attempt, id.listen, id.request, id.hangUp, id.cancel = nil, nil, nil, nil, nil
	x, leave := id.exchange, id.leaveGroupsLocked()
	id.exchange = nil
	bound, local := id.bound, id.local
	id.mu.Unlock()

	if bound {
		id.m.ports.unbind(id, local)
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
	if hangUp != nil {
		hangUp()
	}
	if x != nil && r == nil {
		x.end()
	}
	leave()
	if a != nil {
		a.canceled.Store(true)
		a.qp.End(a)
	}
	id.user.mu.Lock()
	id.user.ids.Remove(id.handle)
	id.user.mu.Unlock()
}
