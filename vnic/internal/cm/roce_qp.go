package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
)

// path is how packets go to a peer.
func (id *ID) path(local, remote netip.Addr, class uint8, label uint32) rdma.AHAttr {
	return id.m.path(local, remote, class, label)
}

func (m *Manager) path(local, remote netip.Addr, class uint8, label uint32) rdma.AHAttr {
	index, _ := m.cfg.RoCE.GIDIndex(local)
	return rdma.AHAttr{GID: rdma.GIDOf(remote), GIDIndex: index, HopLimit: 64, TrafficClass: class,
		FlowLabel: label, Port: 1, Global: true}
}

// qpAttr is what was agreed on as the attributes of a QP.
func (m *Manager) qpAttr(p *protocol.Attr) rdma.QPAttr {
	rights := rdma.RemoteWrite
	if p.MaxDestRead > 0 {
		rights |= rdma.RemoteRead | rdma.RemoteAtomic
	}
	return rdma.QPAttr{
		Access: rights, Port: 1, Path: m.path(p.Local, p.Remote, p.TrafficClass, p.FlowLabel),
		PathMTU: rdma.MTU(p.PathMTU), DestQPN: p.DestQPN, RQPSN: p.RQPSN, SQPSN: p.SQPSN,
		MaxDestRead: p.MaxDestRead, MaxRead: p.MaxRead, MinRNRTimer: p.MinRNRTimer,
		Timeout: p.Timeout, RetryCount: p.Retries, RNRRetry: p.RNRRetries,
	}
}

// A qpStep is a state on the way to RTS, and the attributes that go there.
type qpStep struct {
	to   rdma.QPState
	mask rdma.QPAttrMask
}

var qpSteps = []qpStep{
	{rdma.QPInit, rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess},
	{rdma.QPRTR, rdma.AttrState | rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN |
		rdma.AttrRQPSN | rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer},
	{rdma.QPRTS, rdma.AttrState | rdma.AttrSQPSN | rdma.AttrTimeout | rdma.AttrRetryCount |
		rdma.AttrRNRRetry | rdma.AttrMaxRead},
}

// moveQP moves a's QP to RTS, with what was agreed on; wait is as QP.Modify's.
func (id *ID) moveQP(a *Attempt, p *protocol.Attr, wait bool) error {
	return id.m.MoveQP(p, func(attr *rdma.QPAttr, mask rdma.QPAttrMask) error {
		if a.Canceled() {
			return fmt.Errorf("connect QP %d: %w", a.qp.Num(), rdma.ErrClosed)
		}
		return a.qp.Modify(attr, mask, wait)
	})
}

// MoveQP has modify move a QP to RTS, step by step, with what was agreed on.
func (m *Manager) MoveQP(p *protocol.Attr, modify func(*rdma.QPAttr, rdma.QPAttrMask) error) error {
	attr := m.qpAttr(p)
	for _, step := range qpSteps {
		attr.State = step.to
		if err := modify(&attr, step.mask); err != nil {
			return err
		}
	}
	return nil
}

// afterFlush calls f when the QP of a connection that is over has been flushed; it does not wait.
func (id *ID) afterFlush(f func()) {
	id.mu.Lock()
	a := id.attempt
	id.mu.Unlock()
	if a == nil || id.m.cfg.RoCE == nil {
		f() // it has been
		return
	}
	if !id.user.start(func() {
		// An error: it is gone.
		_ = a.qp.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState, false)
		f()
	}) {
		f()
	}
}

// Heard says that a packet has come for the QP: the peer is ready, be its word for that late or
// lost. Whoever runs the QP calls this.
func (a *Attempt) Heard() {
	if a == nil || !a.accepts {
		return
	}
	id := a.id
	id.mu.Lock()
	x := id.exchange
	id.mu.Unlock()
	if x != nil {
		id.m.gsi().Do(func(now time.Time, _ *protocol.Manager) {
			_ = x.conn.Established(now) // an error: it is known, or over
		})
	}
}

// Gone says that the QP is destroyed: its connection is over. Whoever runs it calls this.
func (a *Attempt) Gone() {
	if a == nil || a.id == nil {
		return
	}
	id := a.id
	a.canceled.Store(true)
	id.user.start(func() { // false: the user is shut down, and its ids with it
		id.mu.Lock()
		x, s := id.exchange, id.state
		if id.attempt == a {
			id.attempt = nil
		}
		id.mu.Unlock()
		if x == nil {
			return
		}
		x.end()
		if s == stateConnected {
			x.disconnected(nil)
		}
	})
}

// A program can take a queue pair of RoCE to RTR and RTS itself, by the attributes that QPAttr
// tells, and have the connection manager carry the messages only: rdma_cm has that for ids without
// a queue pair. To the connection manager the queue pair is a number then, which the peer is told;
// what becomes of it is its program's business
// (docs/decisions.md#C10).

// connectedQP is what Connect is to connect: an attempt with qp, or without one the number of a QP
// that the program moves itself. An ID of datagrams has neither.
func (id *ID) connectedQP(qp Connectable, p *rdma.ConnParam) (a *Attempt, own uint32, err error) {
	switch {
	case id.space == PortSpaceUDP:
	case qp == nil:
		own, err = id.ownQP(p)
	default:
		a, err = id.newAttempt(qp)
	}
	return a, own, err
}

// ownQP is the number that p names, if it is that of a QP of the user's.
func (id *ID) ownQP(p *rdma.ConnParam) (uint32, error) {
	n := p.RoCE.QPN
	if !id.m.cfg.RoCE.Has(id.user, n) {
		return 0, fmt.Errorf("connect QP %d, which is none of the program's on %s: %w", n, id.m.cfg.Name,
			rdma.ErrInvalid)
	}
	return n, nil
}

// acceptOwn is Accept with a QP that the program moves itself.
func (id *ID) acceptOwn(p rdma.ConnParam) error {
	own, err := id.ownQP(&p)
	if err != nil {
		return err
	}
	r, err := id.takeRequest(stepAccept)
	if err != nil {
		return err
	}
	x := r.(*roceRequest).x
	id.mu.Lock()
	x.own = own
	id.mu.Unlock()
	if err := x.accept(x.reply(own, &p)); err != nil {
		x.end()
		id.mu.Lock()
		_ = id.stepLocked(stepFail) // an error: id is closed
		id.mu.Unlock()
		return err
	}
	return nil
}

// ownExchange is the exchange of an id whose program moves its QP itself, with the peer's answer if
// it has connected; nil: there is none.
func (id *ID) ownExchange() (x *exchange, answered bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if x = id.exchange; x == nil || x.own == 0 {
		return nil, false
	}
	return x, x.answered
}

// Establish says that the program has taken its QP to RTS, behind a CONNECT_RESPONSE: the peer is
// told, and no event follows. rdma.ErrInvalid: there was none, or the peer has given up.
func (id *ID) Establish() error {
	x, answered := id.ownExchange()
	if !answered {
		return invalid("establish an id that has no answer")
	}
	if err := x.sayReady(); err != nil {
		return fmt.Errorf("establish: %w: %w", rdma.ErrInvalid, err)
	}
	id.mu.Lock()
	if id.stepLocked(stepEstablished) == nil { // else the peer was faster, or x.established
		id.param = x.got
	}
	id.mu.Unlock()
	return nil
}

// Notify says that something has come for the QP of an id that has accepted: the peer is ready, be
// its word for that late or lost. ESTABLISHED follows. EISCONN: it has come; rdma.ErrInvalid: the
// id has not accepted.
func (id *ID) Notify() error {
	id.mu.Lock()
	x := id.exchange
	id.mu.Unlock()
	err := rdma.ErrInvalid
	if x != nil && x.conn != nil {
		x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Established(now) })
	}
	switch {
	case errors.Is(err, protocol.ErrOpen):
		return errno(syscall.EISCONN, "notify")
	case err != nil:
		return invalid("notify an id that has not accepted")
	}
	return nil
}

// rejectReply refuses the peer's answer, for a program that moves its QP itself; done is false if
// there is none to refuse.
func (id *ID) rejectReply(privateData []byte) (done bool, err error) {
	x, answered := id.ownExchange()
	if !answered {
		return false, nil
	}
	x.m.gsi().Do(func(now time.Time, _ *protocol.Manager) { err = x.conn.Reject(now, privateData) })
	if err != nil {
		return true, fmt.Errorf("reject: %w: %w", rdma.ErrInvalid, err)
	}
	id.mu.Lock()
	_ = id.stepLocked(stepFail) // an error: id is closed
	id.mu.Unlock()
	return true, nil
}

// QPAttr is what takes the QP of id's connection to INIT, RTR or RTS, as ibv_modify_qp wants it:
// RTR and RTS as soon as the peer's QP is known. rdma.ErrInvalid.
func (id *ID) QPAttr(to rdma.QPState) (rdma.QPAttr, rdma.QPAttrMask, error) {
	i := slices.IndexFunc(qpSteps, func(s qpStep) bool { return s.to == to })
	if i < 0 || id.m.cfg.RoCE == nil || id.space == PortSpaceUDP {
		return rdma.QPAttr{}, 0, invalid("attributes of a QP on its way")
	}
	id.mu.Lock()
	x := id.exchange
	id.mu.Unlock()
	attr := rdma.QPAttr{Port: 1}
	agreed := false
	if x != nil && x.conn != nil {
		x.m.gsi().Do(func(time.Time, *protocol.Manager) {
			if agreed = x.conn.Agreed(); agreed {
				a := x.conn.Attr(nil)
				// What a peer asks for before it is answered can be more than there is.
				most := id.user.cfg
				a.MaxDestRead = uint8(min(int(a.MaxDestRead), most.IRD))
				a.MaxRead = uint8(min(int(a.MaxRead), most.ORD))
				attr = id.m.qpAttr(&a)
			}
		})
	}
	if !agreed && to != rdma.QPInit {
		return rdma.QPAttr{}, 0, invalid("attributes of a QP whose peer is not known")
	}
	attr.State = to
	return attr, qpSteps[i].mask, nil
}
