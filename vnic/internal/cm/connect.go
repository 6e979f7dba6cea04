package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// Connect connects qp to the address that was resolved. ESTABLISHED follows, or REJECTED,
// UNREACHABLE or CONNECT_ERROR, and if it is not the first, qp is in Error, or of RoCE in Reset if
// it was still there, from where no way leads to Error. An ID of PortSpaceUDP has no use for qp:
// ESTABLISHED tells which QP serves. On a device of RoCE qp may be nil: p.RoCE.QPN is the number of
// one that the program takes to RTR and RTS itself, as QPAttr says, when CONNECT_RESPONSE has come,
// which stands for ESTABLISHED then; Establish or Reject follows.
func (id *ID) Connect(qp Connectable, p rdma.ConnParam) error {
	if ev, fails := id.m.spoiled(); fails {
		return id.failConnect(qp, ev)
	}
	if id.m.cfg.RoCE != nil {
		p.PrivateData = append([]byte(nil), p.PrivateData...)
		return id.connectRoCE(qp, p)
	}
	if err := checkPrivateData(p.PrivateData, p.MPA.Revision); err != nil {
		return err
	}
	if err := checkMPA(p.MPA); err != nil {
		return fmt.Errorf("connect with %w", err)
	}
	a, err := id.newAttempt(qp)
	if err != nil {
		return err
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	if err := a.offerROI(&p); err != nil {
		a.release(false, nil)
		return fmt.Errorf("connect: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := id.begin(stepConnect, a, cancel); err != nil {
		cancel()
		a.release(false, nil)
		return err
	}
	t := id.user.calls.join(id.Remote(), netip.AddrPort{})
	if !id.user.start(func() {
		defer cancel()
		defer t.leave()
		id.connect(ctx, a, p, t)
	}) {
		t.leave()
		cancel()
		a.release(false, nil)
		return fmt.Errorf("connect: %w", rdma.ErrClosed)
	}
	return nil
}

// failConnect is a Connect that comes to nothing, of which ev tells: nobody is asked.
func (id *ID) failConnect(qp Connectable, ev Event) (err error) {
	var a *Attempt
	if qp != nil && id.space != PortSpaceUDP {
		if a, err = id.newAttempt(qp); err != nil {
			return err
		}
	}
	if err = id.begin(stepConnect, a, nil); err == nil && !id.user.start(func() { id.fail(a, ev) }) {
		err = fmt.Errorf("connect: %w", rdma.ErrClosed)
	}
	if err != nil {
		a.release(false, nil)
	}
	return err
}

// begin takes the step that a begins with.
func (id *ID) begin(s step, a *Attempt, cancel func()) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.stepLocked(s); err != nil {
		return err
	}
	id.attempt, id.cancel = a, cancel
	return nil
}

// fail ends an attempt, and says so once: the peer may refuse what Accept fails to bring about. The
// QP goes to Error, where its receives flush, as librdmacm has it, and whatever the attempt has
// failed for (Q2).
func (id *ID) fail(a *Attempt, ev Event) {
	a.release(true, ev.Err)
	id.mu.Lock()
	first := id.attempt == a
	if first {
		_ = id.stepLocked(stepFail) // an error: id is closed, and the event goes nowhere
		id.attempt = nil
	}
	id.mu.Unlock()
	if first {
		id.emit(ev)
	}
}

// connect runs on a goroutine of the context, and leaves the queue when the request has been sent.
func (id *ID) connect(ctx context.Context, a *Attempt, p rdma.ConnParam, t *ticket) {
	m := id.m
	if p.SCTP || m.net.ordered == nil {
		t.awaitFirst(ctx) // with the opening of the stream, too
	}
	if !m.cfg.OnWire() && m.cfg.Owns(id.Remote().Addr()) {
		l := m.ports.listener(id.Remote())
		if l == nil && m.net.Network == nil {
			id.fail(a, connectFailed(errno(syscall.ECONNREFUSED, "nobody listens on %v",
				id.Remote())))
			return
		}
		if l != nil {
			t.awaitFirst(ctx)
			id.connectLoop(ctx, a, l, p, t)
			return
		}
	}
	if m.net.Network == nil {
		id.fail(a, connectFailed(errno(syscall.ENETUNREACH, "%s has no network to reach %v",
			m.cfg.Name, id.Remote())))
		return
	}
	if p.SCTP {
		id.connectSCTP(ctx, a, p, t)
		return
	}
	t.awaitOpen(ctx)
	dctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Connect, syscall.ETIMEDOUT)
	s, err := m.net.dial(dctx, id.Local(), id.Remote())
	if err != nil && dctx.Err() != nil {
		err = context.Cause(dctx)
	}
	cancel()
	if err != nil {
		id.fail(a, connectFailed(err))
		return
	}
	id.connectedFrom(unmap(s.LocalAddr()))
	t.awaitFirst(ctx)
	if ev, ok := id.initiate(ctx, a, s, p, t); !ok {
		id.fail(a, ev)
	}
}

// initiate runs the Initiator on s and connects the QP; ok is false with an event if it came to
// nothing, and s is closed then.
func (id *ID) initiate(ctx context.Context, a *Attempt, s iwarp.Stream, p rdma.ConnParam,
	t *ticket) (ev Event, ok bool) {
	abort := func(err error) (Event, bool) {
		abort(s)
		return connectFailed(err), false
	}
	m, err := a.newInitiator(id.user.startConfig(p), s, p.PrivateData)
	if err != nil {
		return abort(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, id.m.cfg.MPAReply, syscall.ETIMEDOUT)
	defer cancel()
	err = flushStart(s, m) // all of it: there is room in a new stream
	t.leave()
	if err != nil {
		return abort(lostError(err))
	}
	if err := runStart(ctx, s, m, m.Done); err != nil {
		return abort(err)
	}
	params, err := m.Result()
	if err != nil { // what it has to say (a Terminate 2/0/6 or 2/0/7) has been sent
		s.SetNotify(nil)
		s.Close()
		return connectFailed(err), false
	}
	if err := a.attachStream(llp.Of(s), params, p, nil); err != nil {
		return connectFailed(err), false
	}
	return Event{}, true
}

// connectFailed is the event for an attempt that failed, as the kernel reports it
// (docs/decisions.md#V20).
func connectFailed(err error) Event {
	var rej *iwarp.RejectedError
	var local *iwarp.LocalError
	switch {
	case errors.As(err, &rej):
		pd := append([]byte(nil), rej.PrivateData...)
		return Event{
			Type: Rejected, Status: -int32(syscall.ECONNRESET), Err: &rdma.RejectedError{PrivateData: pd},
			Param: rdma.ConnParam{PrivateData: pd},
		}
	case errors.As(err, &local):
		return Event{Type: ConnectError, Status: -int32(syscall.EPROTO), Err: err}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return Event{Type: Rejected, Status: status(err, 0), Err: err}
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		return Event{Type: Unreachable, Status: -int32(syscall.ETIMEDOUT), Err: err}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Event{Type: Unreachable, Status: status(err, 0), Err: err}
	}
	return Event{Type: ConnectError, Status: status(err, syscall.ECONNABORTED), Err: err}
}
