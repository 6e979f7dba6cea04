package vnic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// A cmListen is what a listening CMID has.
type cmListen struct {
	id      *CMID
	net     StreamListener // nil without a Network
	sctp    io.Closer      // nil without an SCTPNetwork
	backlog int
	stop    context.CancelFunc
	ctx     context.Context
	once    sync.Once
	turns   turns // of streams whose requests have come and have not been announced
	ordered bool  // net tells when they have come; else they are in the order of their streams

	// Requests half open or unanswered, in all and by peer; guarded by the device's admission.mu.
	waiting int
	peers   map[peerKey]int
}

// A cmRequest is what a child CMID has until it is accepted or rejected: a Stream with a Responder
// that has been asked, a session over SCTP, or the other end on loopback.
type cmRequest struct {
	l         *cmListen
	place     *place
	stream    iwarp.Stream
	responder *iwarp.Responder
	params    iwarp.Params   // once it has been accepted
	session   *sessionStream // over SCTP
	loop      *loopCall
}

// drop refuses a request that nobody answers any more.
func (r *cmRequest) drop() {
	r.place.done()
	if r.loop != nil {
		r.loop.answer(loopAnswer{rejected: true})
		return
	}
	if r.session != nil {
		_ = r.rejectSession(nil)
		return
	}
	if r.responder.Reject(nil) == nil {
		flushStart(r.stream, r.responder)
	}
	r.stream.SetNotify(nil)
	r.stream.Close()
}

// Listen takes connection requests: CONNECT_REQUEST for each, at most backlog (0: a default)
// unanswered; further ones are refused. A CMID that is not bound takes a free port of all
// addresses.
func (id *CMID) Listen(backlog int) error {
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle {
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
		id.dev.unbind(id, id.local)
		id.local, id.bound, id.state = netip.AddrPort{}, false, cmIdle
	}
}

// portTaken says that a free port is to be chosen once More: a port that is free among CMIDs can be
// that of a connection which the Network has made.
func portTaken(err error, try int) bool {
	const tries = 16
	return errors.Is(err, syscall.EADDRINUSE) && try < tries
}

func (id *CMID) listenLocked(backlog int) error {
	if id.state != cmBound {
		return id.stateError("listen with")
	}
	l := &cmListen{id: id, backlog: min(backlog, 1<<16), turns: turns{most: positive(id.dev.cfg.Timeouts.Turn)}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	if n := id.dev.cfg.Network; n != nil {
		nl, err := l.listen(n)
		if err != nil {
			l.stop()
			return fmt.Errorf("listen on %v: %w", id.local, err)
		}
		l.net = nl
		if n, ok := n.(SCTPNetwork); ok {
			if l.sctp, err = n.ListenSCTP(id.local, l.acceptAssociation); err != nil {
				l.close()
				return fmt.Errorf("listen on %v: %w", id.local, err)
			}
		}
		if !id.ctx.start(l.accept) {
			l.close()
			return fmt.Errorf("listen on %v: %w", id.local, rdma.ErrClosed)
		}
	}
	id.listen, id.state = l, cmListening
	return nil
}

func (l *cmListen) listen(n Network) (StreamListener, error) {
	o, ok := n.(OrderedNetwork)
	if l.ordered = ok; ok {
		return o.ListenOrdered(l.id.local, l.backlog, l.first)
	}
	return n.Listen(l.id.local, l.backlog)
}

// first gives the request from remote its turn.
func (l *cmListen) first(remote netip.AddrPort) {
	remote = unmap(remote)
	l.turns.take(netip.AddrPortFrom(remote.Addr(), 0), remote)
}

// after waits until requests from the same host that have come before that from remote have been announced.
func (l *cmListen) after(ctx context.Context, remote netip.AddrPort) {
	if t := l.turns.of(unmap(remote)); t != nil {
		t.wait(ctx)
	}
}

// announced lets the next request of the host go, also when that from remote has come to nothing.
func (l *cmListen) announced(remote netip.AddrPort) {
	if t := l.turns.of(unmap(remote)); t != nil {
		t.done()
	}
}

func (id *CMID) listening() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.state == cmListening
}

func (l *cmListen) close() {
	l.once.Do(func() {
		l.stop()
		if l.net != nil {
			l.net.Close()
		}
		if l.sctp != nil {
			l.sctp.Close()
		}
	})
}

// accept takes streams until the listener is closed.
func (l *cmListen) accept() {
	for {
		s, err := l.net.Accept()
		if err != nil {
			if l.ctx.Err() == nil {
				l.id.dev.log.Warn("listener ended", "addr", l.id.Local(), "err", err)
			}
			return
		}
		r := &cmRequest{l: l, stream: s, place: l.admit(keyOf(s.RemoteAddr().Addr()), true)}
		if r.place == nil {
			s.Abort() // RFC 5042, section 6.4.1
			continue
		}
		if !l.ordered {
			l.first(s.RemoteAddr())
		}
		if !l.id.ctx.start(func() {
			defer l.announced(r.stream.RemoteAddr())
			l.greet(r)
		}) {
			l.announced(s.RemoteAddr())
			r.place.done()
			s.Abort()
		}
	}
}

// greet runs the Responder up to a complete Request and makes a child of it, when it is its turn.
func (l *cmListen) greet(r *cmRequest) {
	ctx, cancel := context.WithTimeout(l.ctx, positive(l.id.dev.cfg.Timeouts.MPARequest))
	defer cancel()
	l.id.mu.Lock()
	mpa := l.id.mpa
	l.id.mu.Unlock()
	cfg := startConfig(rdma.ConnParam{MPA: mpa}, l.id.ctx.limits)
	res, err := iwarp.NewResponder(cfg)
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
		l.id.dev.log.Debug("connection request failed", "remote", r.stream.RemoteAddr(), "err", err)
		r.place.done()
		r.stream.SetNotify(nil)
		if l.ctx.Err() != nil || res.Err() == nil {
			r.stream.Abort()
		} else {
			r.stream.Close() // MPA error 4: TCP is closed without a word
		}
		return
	}
	r.place.asked()
	p := rdma.ConnParam{
		PrivateData: append([]byte(nil), q.PrivateData...), IRD: shownReads(q.IRD), ORD: shownReads(q.ORD),
		MPA: rdma.MPAParam{Revision: q.Revision},
	}
	l.after(ctx, r.stream.RemoteAddr())
	l.child(r, r.stream.LocalAddr(), r.stream.RemoteAddr(), p)
}

// child announces a request; it is refused if its CMID cannot be made.
func (l *cmListen) child(r *cmRequest, local, remote netip.AddrPort, p rdma.ConnParam) {
	id := l.id
	id.mu.Lock()
	h := id.handler
	mpa := id.mpa
	listening := id.state == cmListening
	id.mu.Unlock()
	child, err := id.ctx.NewCMID(h)
	if err != nil || !listening {
		if err == nil {
			child.shut()
		}
		r.drop()
		return
	}
	child.mu.Lock()
	child.state, child.request, child.param, child.mpa = cmRequested, r, p, mpa
	child.local, child.remote = unmap(local), unmap(remote)
	child.mu.Unlock()
	id.emit(CMEvent{Type: CMConnectRequest, ID: child, Listener: id, Param: p})
	id.mu.Lock()
	closed := id.state == cmClosed
	id.mu.Unlock()
	if closed && !child.announced.Load() {
		child.shut() // nobody will answer it
	}
}

func unmap(ap netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()) }

// takeRequest moves a child on that is being answered.
func (id *CMID) takeRequest(op string, to cmState) (*cmRequest, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmRequested {
		return nil, id.stateError(op)
	}
	r := id.request
	id.request, id.state = nil, to
	return r, nil
}

// Accept connects qp to the peer that asked. ESTABLISHED follows, or CONNECT_ERROR. What p.MPA leaves
// open is that of SetMPA; its Revision is not used, as the peer has been answered with it in mind.
func (id *CMID) Accept(qp *QP, p rdma.ConnParam) error {
	if err := checkPrivateData(p.PrivateData, id.Param().MPA.Revision); err != nil {
		return err
	}
	if err := checkMPA(p.MPA); err != nil {
		return fmt.Errorf("accept with %w", err)
	}
	b, err := id.claim(qp)
	if err != nil {
		return err
	}
	r, err := id.takeRequest("accept", cmConnecting)
	if err != nil {
		b.release(false, nil)
		return err
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	if id.ctx.cfg.Within && r.stream != nil && r.session == nil && !id.ctx.mem.Blocking() {
		return id.acceptHere(b, r, p)
	}
	return id.acceptLater(b, r, func(ctx context.Context) error {
		switch {
		case r.loop != nil:
			return id.acceptLoop(b, r.loop, p)
		case r.session != nil:
			return id.acceptSession(b, r, p)
		}
		if err := id.reply(r, &p); err != nil {
			return err
		}
		return id.acceptWire(ctx, b, r, p)
	})
}

// acceptLater has f answer r and connect the QP of b, on a goroutine of the context.
func (id *CMID) acceptLater(b *binding, r *cmRequest, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), positive(id.dev.cfg.Timeouts.MPAReply), syscall.ETIMEDOUT)
	if !id.begin(b, cancel) || !id.ctx.start(func() {
		defer cancel()
		defer r.place.done()
		id.accepted(b, f(ctx))
	}) {
		cancel()
		b.release(false, nil)
		r.drop()
		return fmt.Errorf("accept: %w", rdma.ErrClosed)
	}
	return nil
}

// accepted tells of an attempt that failed.
func (id *CMID) accepted(b *binding, err error) {
	if err != nil {
		id.fail(b, true, CMEvent{Type: CMConnectError, Status: status(err, syscall.ECONNRESET), Err: err})
	}
}

// acceptHere sends the Reply and connects the QP at once, unless there is no room for all of the Reply.
func (id *CMID) acceptHere(b *binding, r *cmRequest, p rdma.ConnParam) error {
	if !id.begin(b, func() {}) {
		b.release(false, nil)
		r.drop()
		return fmt.Errorf("accept: %w", rdma.ErrClosed)
	}
	err := id.reply(r, &p)
	if err == nil {
		if err = flushStart(r.stream, r.responder); err != nil {
			err = lostError(err)
			abort(r.stream)
		} else if r.responder.Len() > 0 {
			return id.acceptLater(b, r, func(ctx context.Context) error { return id.acceptWire(ctx, b, r, p) })
		} else {
			err = b.attachWire(r.stream, r.params, p, r.place)
		}
	}
	r.place.done()
	id.accepted(b, err)
	return nil
}

// reply makes the Reply to r, which its responder has to say then.
func (id *CMID) reply(r *cmRequest, p *rdma.ConnParam) error {
	l := id.ctx.limits
	id.mu.Lock()
	p.MPA = overlay(p.MPA, id.mpa)
	id.mu.Unlock()
	err := r.responder.Reconfigure(startConfig(*p, l))
	if err == nil {
		r.params, err = r.responder.Accept(reads(p.IRD, l.IRD), reads(p.ORD, l.ORD), p.PrivateData)
	}
	if err != nil {
		abort(r.stream)
	}
	return err
}

// acceptWire sends the Reply and connects the QP.
func (id *CMID) acceptWire(ctx context.Context, b *binding, r *cmRequest, p rdma.ConnParam) error {
	// "Bind the DDP endpoint, be ready for FPDUs, then send the Reply": what comes right behind
	// the Reply waits in the stream.
	if err := runStart(ctx, r.stream, r.responder, func() bool { return true }); err != nil {
		abort(r.stream)
		return err
	}
	return b.attachWire(r.stream, r.params, p, r.place)
}

// attachWire connects the QP of b over s, and closes s if that cannot be. pl is the peer's place, nil
// if we have connected.
func (b *binding) attachWire(s iwarp.Stream, p iwarp.Params, c rdma.ConnParam, pl *place) error {
	w := newWire(b.qp, s, p, c)
	w.place = pl
	pl.connect()
	err := b.attach(w, w.open, &linkInfo{
		local: unmap(s.LocalAddr()), remote: unmap(s.RemoteAddr()), param: p, extensions: c.Extensions, stream: s, emss: s.EMSS(),
	})
	if err != nil {
		pl.disconnect()
		abort(s)
	}
	return err
}

// Reject refuses the peer that asked. The id can only be closed then; the peer's TCP connection is
// closed with it, if the peer has not done it before. Over SCTP nothing is left of the session.
func (id *CMID) Reject(privateData []byte) error {
	if err := checkPrivateData(privateData, id.Param().MPA.Revision); err != nil {
		return err
	}
	r, err := id.takeRequest("reject", cmOver)
	if err != nil {
		return err
	}
	if r.loop != nil {
		r.place.done()
		r.loop.answer(loopAnswer{rejected: true, privateData: append([]byte(nil), privateData...)})
		return nil
	}
	if r.session != nil {
		return r.rejectSession(privateData)
	}
	if err := r.responder.Reject(privateData); err != nil {
		r.place.done()
		r.stream.Abort()
		return fmt.Errorf("reject: %w", err)
	}
	flushStart(r.stream, r.responder)
	r.stream.SetNotify(nil)
	// "The MPA implementation leaves the TCP connection open; closing is up to the ULP": RFC 5044,
	// section 7.1.2 (3), and the ledger's choice 1. It holds a place as a connection does.
	r.place.connect()
	r.place.done()
	id.mu.Lock()
	closed := id.state == cmClosed
	if !closed {
		id.rejected = r
	}
	id.mu.Unlock()
	if closed {
		r.hangUp()
	}
	return nil
}

// hangUp closes the connection of a peer that was rejected.
func (r *cmRequest) hangUp() {
	r.stream.Close()
	r.place.disconnect()
}
