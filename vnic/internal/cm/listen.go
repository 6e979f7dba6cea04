package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
)

// DefaultBacklog is how many connection requests wait at a listener that asks for no other number.
const DefaultBacklog = 128

// An acceptor is what a listening ID has.
type acceptor struct {
	id       *ID
	net      []StreamListener   // none without a Network
	sctp     []io.Closer        // none without an SCTPNetwork
	roce     *protocol.Listener // nil on a device of iWARP; gsi's
	backlog  int
	stop     context.CancelFunc
	ctx      context.Context
	once     sync.Once
	requests handshakeQueues // of streams whose requests have come and have not been announced

	// Requests half open or unanswered, in all and by peer; guarded by admission.mu.
	waiting int
	peers   map[peerKey]int
}

// Listen takes connection requests: CONNECT_REQUEST for each, at most backlog (0: a default)
// unanswered; further ones are refused. An ID that is not bound takes a free port of all
// addresses.
func (id *ID) Listen(backlog int) error {
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if !id.mayLocked(stepBind) {
		return id.listenLocked(backlog)
	}
	for try := 1; ; try++ {
		if err := id.bindLocked(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); err != nil {
			return err
		}
		err := id.listenLocked(backlog)
		if !portTaken(err, try) {
			return err
		}
		id.m.ports.unbind(id, id.local)
		id.local, id.bound = netip.AddrPort{}, false
		if err := id.stepLocked(stepUnbind); err != nil {
			return err
		}
	}
}

// portTaken says that a free port is to be chosen once more: a port that is free among IDs can be
// that of a connection which the Network has made.
func portTaken(err error, try int) bool {
	const tries = 16
	return errors.Is(err, syscall.EADDRINUSE) && try < tries
}

// +checklocks:id.mu
func (id *ID) listenLocked(backlog int) error {
	if !id.mayLocked(stepListen) {
		return id.stepLocked(stepListen)
	}
	l := &acceptor{
		id: id, backlog: min(backlog, 1<<16), requests: handshakeQueues{most: id.m.cfg.Turn},
	}
	if id.sharing.Reuse {
		alone := Sharing{Only6: id.sharing.Only6}
		if err := id.m.ports.share(id, id.local, alone); err != nil {
			return err
		}
		id.sharing = alone
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	if id.m.cfg.RoCE != nil {
		if err := id.listenRoCELocked(l); err != nil {
			l.stop()
			return err
		}
	} else if err := l.listen(id.listenAddrsLocked()); err != nil {
		l.close()
		return fmt.Errorf("listen on %v: %w", id.local, err)
	}
	id.listen = l
	return id.stepLocked(stepListen)
}

// listenAddrsLocked is where the network is listened at. To it the unspecified IPv6 address stands
// for IPv4 too, so one that does not is each of the device's.
//
// +checklocks:id.mu
func (id *ID) listenAddrsLocked() []netip.AddrPort {
	if !id.sharing.Only6 || id.local.Addr() != netip.IPv6Unspecified() {
		return []netip.AddrPort{id.local}
	}
	var addrs []netip.AddrPort
	for _, a := range id.m.cfg.Addrs {
		if a.Is6() {
			addrs = append(addrs, netip.AddrPortFrom(a, id.local.Port()))
		}
	}
	return addrs
}

// listen takes streams and associations at addresses, if there is a network. After an error close
// takes back what there is.
func (l *acceptor) listen(addrs []netip.AddrPort) error {
	n := &l.id.m.net
	if n.Network == nil {
		return nil
	}
	for _, a := range addrs {
		s, err := n.listen(a, l.backlog, l.arrived)
		if err != nil {
			return err
		}
		l.net = append(l.net, s)
		if n.sctp != nil {
			c, err := n.sctp.ListenSCTP(a, l.acceptAssociation)
			if err != nil {
				return err
			}
			l.sctp = append(l.sctp, c)
		}
		if !l.id.user.start(func() { l.accept(s) }) {
			return rdma.ErrClosed
		}
	}
	return nil
}

// arrived gives the request from remote its place behind those of the same host.
func (l *acceptor) arrived(remote netip.AddrPort) {
	remote = unmap(remote)
	l.requests.join(netip.AddrPortFrom(remote.Addr(), 0), remote)
}

// awaitFirst waits until requests from the same host that have come before that from remote have
// been announced.
func (l *acceptor) awaitFirst(ctx context.Context, remote netip.AddrPort) {
	if t := l.requests.of(unmap(remote)); t != nil {
		t.awaitFirst(ctx)
	}
}

// announced lets the next request of the host go, also when that from remote has come to nothing.
func (l *acceptor) announced(remote netip.AddrPort) {
	if t := l.requests.of(unmap(remote)); t != nil {
		t.leave()
	}
}

func (id *ID) listening() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.state == stateListen
}

func (l *acceptor) close() {
	l.once.Do(func() {
		l.stop()
		for _, n := range l.net {
			n.Close()
		}
		for _, n := range l.sctp {
			n.Close()
		}
		if l.roce != nil {
			l.id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { l.roce.Close(now) })
		}
	})
}

// accept takes streams until the listener is closed.
func (l *acceptor) accept(from StreamListener) {
	for {
		s, err := from.Accept()
		if err != nil {
			if l.ctx.Err() == nil {
				l.id.m.cfg.Log.Warn("listener ended", "addr", l.id.Local(), "err", err)
			}
			return
		}
		r := &streamRequest{stream: s, grant: l.admit(keyOf(s.RemoteAddr().Addr()), true)}
		if r.grant == nil {
			s.Abort() // RFC 5042, section 6.4.1
			continue
		}
		if l.id.m.net.ordered == nil {
			l.arrived(s.RemoteAddr())
		}
		if !l.id.user.start(func() {
			defer l.announced(r.stream.RemoteAddr())
			l.greet(r)
		}) {
			l.announced(s.RemoteAddr())
			r.grant.answered()
			s.Abort()
		}
	}
}

// greet runs the Responder up to a complete Request and makes a child of it, when it is its turn.
func (l *acceptor) greet(r *streamRequest) {
	ctx, cancel := context.WithTimeout(l.ctx, l.id.m.cfg.MPARequest)
	defer cancel()
	res, err := l.id.m.newResponder(l.StartConfig(), r.stream)
	if err != nil { // the limits are our own
		panic(err)
	}
	r.responder = res
	asked := func() bool {
		_, ok := res.Request()
		return ok || res.Err() != nil
	}
	err = runStart(ctx, r.stream, res, asked)
	q, ok := res.Request()
	if err != nil || !ok {
		if err == nil {
			err = res.Err()
		}
		l.id.m.cfg.Log.Debug("connection request failed", "remote", r.stream.RemoteAddr(), "err", err)
		r.grant.answered()
		r.stream.SetNotify(nil)
		if l.ctx.Err() != nil || res.Err() == nil {
			r.stream.Abort()
		} else {
			r.stream.Close() // MPA error 4: TCP is closed without a word
		}
		return
	}
	r.grant.asked()
	p := rdma.ConnParam{
		PrivateData: append([]byte(nil), q.PrivateData...), IRD: shownReads(q.IRD),
		ORD: shownReads(q.ORD),
		MPA: rdma.MPAParam{Revision: q.Revision},
	}
	if q.ROI {
		requestROI(&p)
	}
	l.awaitFirst(ctx, r.stream.RemoteAddr())
	l.child(r, r.stream.LocalAddr(), r.stream.RemoteAddr(), p)
}

// child announces a request; it is refused if its ID cannot be made.
func (l *acceptor) child(r request, local, remote netip.AddrPort, p rdma.ConnParam) {
	id := l.id
	id.mu.Lock()
	h := id.handler
	mpa := id.mpa
	listening := id.state == stateListen
	id.mu.Unlock()
	child, err := id.user.NewID(id.space, h)
	if err != nil || !listening {
		if err == nil {
			child.shut()
		}
		r.drop()
		return
	}
	child.mu.Lock()
	err = child.stepLocked(stepRequest)
	if err == nil {
		child.request, child.param, child.mpa = r, p, mpa
		if r, ok := r.(*roceRequest); ok {
			r.belongsLocked(child)
		}
		child.local, child.remote = unmap(local), unmap(remote)
	}
	child.mu.Unlock()
	if err != nil { // its user has been shut down
		r.drop()
		return
	}
	id.emit(Event{Type: ConnectRequest, ID: child, Listener: id, Param: p})
	id.mu.Lock()
	closed := id.state == stateClosed
	id.mu.Unlock()
	if closed && !child.announced.Load() {
		child.shut() // nobody will answer it
	}
}

// StartConfig is what the listener can do: what requests are answered with before a program answers
// them.
func (l *acceptor) StartConfig() iwarp.StartConfig {
	l.id.mu.Lock()
	mpa := l.id.mpa
	l.id.mu.Unlock()
	return l.id.user.startConfig(rdma.ConnParam{MPA: mpa})
}
