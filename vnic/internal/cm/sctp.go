package cm

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/session"
)

// connectSCTP asks the peer for a session and connects the QP of a.
func (id *ID) connectSCTP(ctx context.Context, a *Attempt, p rdma.ConnParam, t *ticket) {
	m := id.m
	if m.net.sctp == nil {
		id.fail(a, connectFailed(errno(syscall.EPROTONOSUPPORT, "%s has no SCTP", m.cfg.Name)))
		return
	}
	use := session.DDP
	if a.roi != nil {
		use = session.ROI
	}
	st, err := m.assocs.Open(ctx, m.net.sctp, &session.Call{
		QPN: a.qp.Num(), Local: id.Local().Addr(), Remote: id.Remote(), Use: use,
		Start: id.user.startConfig(p), PrivateData: p.PrivateData,
		Connect: m.cfg.Connect, Reply: m.cfg.MPAReply, Sent: t.leave,
	})
	if err != nil {
		id.fail(a, connectFailed(err))
		return
	}
	id.connectedFrom(unmap(st.LocalAddr()))
	if err := a.attachStream(st, st.Params(), p, nil); err != nil {
		id.fail(a, connectFailed(err))
	}
}

// maxPeerAssociations is how many associations a peer may have set up: each carries hundreds of QPs
// to one port, and can hold some MiB that have come and not been taken.
const maxPeerAssociations = 64

// acceptAssociation takes an association that a peer has set up. It is an SCTPNetwork's accept.
func (l *acceptor) acceptAssociation(as session.Association) session.Handler {
	m, key := l.id.m, keyOf(as.RemoteAddr().Addr())
	// One that asks for nothing ends by itself, after a moment of grace; until then it counts
	// as a request does (RFC 5042, section 6.4.1).
	n := m.admit.addAssociation(key, min(m.cfg.MaxPendingPerPeer, maxPeerAssociations))
	if n == 0 {
		m.cfg.Log.Warn("association refused: its peer has too many", "remote", as.RemoteAddr())
		return nil
	}
	in := &session.Incoming{Listener: l, Nth: n, Ended: func() { m.admit.removeAssociation(key) },
		Tape: m.cfg.Tape}
	return in.Accept(as)
}

// addAssociation counts one more association that a peer has set up; 0: it has most of them.
func (a *admission) addAssociation(key peerKey, most int) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.assocs == nil {
		a.assocs = map[peerKey]int{}
	}
	if a.assocs[key] >= most {
		return 0
	}
	a.assocs[key]++
	return a.assocs[key]
}

func (a *admission) removeAssociation(key peerKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.assocs[key]--; a.assocs[key] == 0 {
		delete(a.assocs, key)
	}
}

// Backlog implements session.Listener.
func (l *acceptor) Backlog() int { return l.backlog }

// Current implements session.Listener.
func (l *acceptor) Current(local netip.AddrPort) session.Listener {
	if l.ctx.Err() == nil {
		return l
	}
	if id := l.id.m.ports.listener(local); id != nil {
		id.mu.Lock()
		defer id.mu.Unlock()
		if id.listen != nil {
			return id.listen
		}
	}
	return l
}

// Asked implements session.Listener: it makes a child of a session that the peer asks for, or
// refuses it.
func (l *acceptor) Asked(st *session.Stream) {
	q, ok := st.Request()
	r := &sessionRequest{st: st}
	if ok && l.ctx.Err() == nil {
		r.grant = l.admit(keyOf(st.RemoteAddr().Addr()), false)
	}
	p := rdma.ConnParam{
		PrivateData: append([]byte(nil), q.PrivateData...), IRD: shownReads(q.IRD),
		ORD: shownReads(q.ORD),
		MPA: rdma.MPAParam{Revision: 1}, SCTP: true,
	}
	if q.Enhanced {
		p.MPA.Revision = 2
	}
	whole := st.Use() != session.ROI || requestROI(&p)
	if !whole || r.grant == nil ||
		!l.id.user.start(func() { l.child(r, st.LocalAddr(), st.RemoteAddr(), p) }) {
		// "The adaptation layer MUST respond with a DDP Stream Session Terminate message":
		// RFC 5043, section 5.2.3.
		r.answered()
		st.Refuse()
	}
}

// A sessionRequest has a session that the peer has asked for.
type sessionRequest struct {
	*grant
	st *session.Stream
}

// acceptNow does nothing: what has come for the session meanwhile is looked at first.
func (r *sessionRequest) acceptNow(*Attempt, rdma.ConnParam) (done bool, err error) {
	return false, nil
}

func (r *sessionRequest) accept(_ context.Context, a *Attempt, p rdma.ConnParam) error {
	p = a.id.overlaid(p)
	r.st.Belongs(a.qp.Num())
	params, err := r.st.Accept(a.id.user.startConfig(p), p.PrivateData)
	if err != nil {
		return fmt.Errorf("accept over SCTP: %w", err)
	}
	return a.attachStream(r.st, params, p, r.grant)
}

func (r *sessionRequest) reject(privateData []byte) (hangUp func(), err error) {
	r.answered()
	return nil, r.st.Reject(privateData)
}

func (r *sessionRequest) drop() { _, _ = r.reject(nil) }
