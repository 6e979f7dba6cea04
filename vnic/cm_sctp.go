package vnic

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/sctpddp"
)

// Connections over SCTP: RFC 5043, and RFC 6581, section 10. A QP is a session on a DDP stream; QPs that
// go to the same listener share an association as long as that has free streams.

// connectSCTP asks the peer for a session and connects the QP of b.
func (id *CMID) connectSCTP(ctx context.Context, b *binding, p rdma.ConnParam, t *turn) {
	d := id.dev
	n, ok := d.cfg.Network.(SCTPNetwork)
	if !ok {
		id.fail(b, false, connectFailed(errno(syscall.EPROTONOSUPPORT, "%s has no SCTP", d.cfg.Name)))
		return
	}
	st, err := id.requestSession(ctx, n, p, t)
	if err != nil {
		id.fail(b, st != nil, connectFailed(err))
		return
	}
	id.connectedFrom(unmap(st.LocalAddr()))
	if err := b.attachSession(st, st.s.Params(), p, nil); err != nil {
		id.fail(b, true, connectFailed(err))
	}
}

// requestSession opens a session. st is nil if the peer was not asked.
func (id *CMID) requestSession(ctx context.Context, n SCTPNetwork, p rdma.ConnParam, t *turn) (st *sessionStream, err error) {
	const tries = 3
	for try := 1; ; try++ {
		if st, err = id.openSession(ctx, n, p); err != nil {
			return nil, err
		}
		t.done()
		rctx, cancel := context.WithTimeoutCause(ctx, positive(id.dev.cfg.Timeouts.MPAReply), syscall.ETIMEDOUT)
		err = st.await(rctx, func() bool { return st.s.State() == sctpddp.StateOpen })
		cancel()
		if err == nil {
			return st, nil
		}
		st.Abort()
		// The peer may shut an association down, for want of sessions, at the moment at which it is
		// asked for one more; or it has come back from a crash and knows nothing of an old one.
		var lost *sctpddp.LostError
		gone := errors.As(err, &lost) && (lost.Kind == sctpddp.LossShutdown || st.reused && lost.Kind != sctpddp.LossFailure)
		if try == tries || !gone {
			return st, err
		}
	}
}

// openSession begins a session in an association that is there, or in a new one.
func (id *CMID) openSession(ctx context.Context, n SCTPNetwork, p rdma.ConnParam) (*sessionStream, error) {
	d := id.dev
	ctx, cancel := context.WithTimeoutCause(ctx, positive(d.cfg.Timeouts.Connect), syscall.ETIMEDOUT)
	defer cancel()
	for i := 0; ; i++ {
		as, fresh, err := d.associate(ctx, n, id.Local().Addr(), id.Remote(), i)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		st, err := as.open(func(m *sctpddp.Mux) (*sctpddp.Session, error) {
			return m.Open(startConfig(p, id.ctx.limits), p.PrivateData)
		})
		if st != nil {
			st.reused = !fresh
		}
		again := errors.Is(err, sctpddp.ErrNoStream) || errors.Is(err, sctpddp.ErrDown) && !fresh
		if !again {
			return st, err
		}
	}
}

// startConfig is what the listener can do, for requests that are refused for it.
func (l *cmListen) startConfig() iwarp.StartConfig {
	l.id.mu.Lock()
	mpa := l.id.mpa
	l.id.mu.Unlock()
	return startConfig(rdma.ConnParam{MPA: mpa}, l.id.ctx.limits)
}

// maxPeerAssociations is how many associations a peer may have set up: each carries hundreds of QPs to one
// port, and can hold some MiB that have come and not been taken.
const maxPeerAssociations = 64

// acceptAssociation takes an association that a peer has set up. It is an SCTPNetwork's accept.
func (l *cmListen) acceptAssociation(a Association) AssociationHandler {
	d := l.id.dev
	as := newAssociation(d, l)
	as.peer = keyOf(a.RemoteAddr().Addr())
	// One that asks for nothing ends by itself, after a moment of grace; until then it counts as a
	// request does (RFC 5042, section 6.4.1).
	d.assocMu.Lock()
	if d.assocPeers == nil {
		d.assocPeers = map[peerKey]int{}
	}
	full := d.assocPeers[as.peer] >= min(d.cfg.MaxPendingPerPeer, maxPeerAssociations)
	if !full {
		d.assocPeers[as.peer]++
		as.nth = d.assocPeers[as.peer]
	}
	d.assocMu.Unlock()
	if full {
		l.id.dev.log.Warn("association refused: its peer has too many", "remote", a.RemoteAddr())
		return nil
	}
	if as.established(a, false) != nil {
		as.uncount()
		return nil
	}
	return as
}

// uncount takes as, which a peer has set up, out of what that peer has.
func (as *association) uncount() {
	d := as.dev
	d.assocMu.Lock()
	defer d.assocMu.Unlock()
	if d.assocPeers[as.peer]--; d.assocPeers[as.peer] == 0 {
		delete(d.assocPeers, as.peer)
	}
}

// asked makes a child of a session that the peer asks for, or refuses it.
func (l *cmListen) asked(st *sessionStream) {
	q, ok := st.s.Request()
	r := &cmRequest{l: l, session: st}
	if ok && l.ctx.Err() == nil {
		r.place = l.admit(keyOf(st.RemoteAddr().Addr()), false)
	}
	p := rdma.ConnParam{
		PrivateData: append([]byte(nil), q.PrivateData...), IRD: shownReads(q.IRD), ORD: shownReads(q.ORD),
		MPA: rdma.MPAParam{Revision: 1}, SCTP: true,
	}
	if q.Enhanced {
		p.MPA.Revision = 2
	}
	if r.place == nil || !l.id.ctx.start(func() { l.child(r, st.LocalAddr(), st.RemoteAddr(), p) }) {
		// "The adaptation layer MUST respond with a DDP Stream Session Terminate message": RFC
		// 5043, section 5.2.3.
		r.place.done()
		st.refuse()
	}
}

// refuse answers a request without a program's word.
func (st *sessionStream) refuse() {
	_ = st.s.Refuse() // an error: it has gone already
	_ = st.Close()
}

// acceptSession answers the request and connects the QP.
func (id *CMID) acceptSession(b *binding, r *cmRequest, p rdma.ConnParam) error {
	st, l := r.session, id.ctx.limits
	id.mu.Lock()
	p.MPA = overlay(p.MPA, id.mpa)
	id.mu.Unlock()
	// What has come meanwhile may have withdrawn the request.
	for {
		if _, ok := st.input(); !ok {
			break
		}
	}
	st.events()
	err := st.err
	var params iwarp.Params
	if err == nil {
		params, err = st.s.Accept(startConfig(p, l), p.PrivateData)
	}
	if err != nil {
		st.Abort()
		return fmt.Errorf("accept over SCTP: %w", err)
	}
	return b.attachSession(st, params, p, r.place)
}

// rejectSession refuses the request for the program.
func (r *cmRequest) rejectSession(privateData []byte) error {
	st := r.session
	err := st.s.Reject(privateData)
	r.place.done()
	if err != nil {
		st.Abort()
		return fmt.Errorf("reject: %w", err)
	}
	return st.Close()
}

// attachSession connects the QP of b over st, and ends the session if that cannot be.
func (b *binding) attachSession(st *sessionStream, p iwarp.Params, c rdma.ConnParam, pl *place) error {
	w := newWire(b.qp, st, p, c)
	w.place = pl
	pl.connect()
	err := b.attach(w, w.open, &linkInfo{
		local: unmap(st.LocalAddr()), remote: unmap(st.RemoteAddr()), param: p, extensions: c.Extensions, session: st,
		stream: st, emss: st.EMSS(),
	})
	if err != nil {
		pl.disconnect()
		st.Abort()
	}
	return err
}
