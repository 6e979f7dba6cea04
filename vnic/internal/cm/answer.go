package cm

import (
	"context"
	"fmt"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// A request is a peer's wish to connect, until it is answered: over a stream, as a session of an
// SCTP association, or from a QP of the device. One of accept, reject and drop is called.
type request interface {
	// acceptNow answers and connects a's QP as far as its user is to wait for that. False: accept is
	// to do it, or the rest of it.
	acceptNow(a *Attempt, p rdma.ConnParam) (done bool, err error)
	// accept answers and connects a's QP.
	accept(ctx context.Context, a *Attempt, p rdma.ConnParam) error
	// answered gives back what the request holds beside a connection.
	answered()
	// reject refuses it for a program. What it returns, if that is not nil, ends what is left of it.
	reject(privateData []byte) (hangUp func(), err error)
	// drop refuses a request that nobody answers any more.
	drop()
}

// takeRequest moves a child on that is being answered.
func (id *ID) takeRequest(s step) (request, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.stepLocked(s); err != nil {
		return nil, err
	}
	r := id.request
	id.request = nil
	return r, nil
}

// Accept connects qp to the peer that asked. ESTABLISHED follows, or CONNECT_ERROR. What p.MPA
// leaves open is that of SetMPA; its Revision is not used, as the peer has been answered with it in
// mind. On a device of RoCE qp may be nil: p.RoCE.QPN is the number of one that the program takes
// to RTR and RTS itself, as QPAttr says.
func (id *ID) Accept(qp Connectable, p rdma.ConnParam) error {
	if id.space == PortSpaceUDP {
		return id.acceptDatagrams(qp, p)
	}
	if err := id.checkAnswer(p.PrivateData, protocol.MaxAcceptData); err != nil {
		return err
	}
	if qp == nil && id.m.cfg.RoCE != nil {
		return id.acceptOwn(p)
	}
	if err := checkMPA(p.MPA); err != nil {
		return fmt.Errorf("accept with %w", err)
	}
	a, err := id.newAttempt(qp)
	if err != nil {
		return err
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	if err := id.acceptROI(a, &p); err != nil {
		a.release(false, nil)
		return err
	}
	r, err := id.takeRequest(stepAccept)
	if err != nil {
		a.release(false, nil)
		return err
	}
	if !id.attempts(a, nil) {
		return id.notAccepted(a, r)
	}
	// A program finds its QP in RTS then, where it can be: on RoCE it may send at once.
	if id.m.cfg.RoCE != nil || id.user.cfg.InlineEvents && !a.qp.Blocks() {
		done, err := r.acceptNow(a, p)
		if done || err != nil {
			r.answered()
			id.accepted(a, err)
			return nil
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), id.m.cfg.MPAReply, syscall.ETIMEDOUT)
	if !id.attempts(a, cancel) || !id.user.start(func() {
		defer cancel()
		defer r.answered()
		id.accepted(a, r.accept(ctx, a, p))
	}) {
		cancel()
		return id.notAccepted(a, r)
	}
	return nil
}

// checkAnswer looks whether the peer can be told b; RoCE has room for most octets.
func (id *ID) checkAnswer(b []byte, most int) error {
	switch {
	case id.m.cfg.RoCE == nil:
		return checkPrivateData(b, id.Param().MPA.Revision)
	case id.space == PortSpaceUDP:
		most = protocol.MaxAnswerData
	}
	return checkRoCE(b, most)
}

// attempts notes the attempt of an ID that accepts, and what ends it, unless the ID was closed.
func (id *ID) attempts(a *Attempt, cancel func()) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != stateConnecting {
		return false
	}
	id.attempt, id.cancel = a, cancel
	return true
}

// notAccepted refuses a request for an ID that was closed meanwhile.
func (id *ID) notAccepted(a *Attempt, r request) error {
	a.release(false, nil)
	r.drop()
	return fmt.Errorf("accept: %w", rdma.ErrClosed)
}

// accepted tells of an attempt that failed.
func (id *ID) accepted(a *Attempt, err error) {
	if err != nil {
		id.fail(a, Event{Type: ConnectError, Status: status(err, syscall.ECONNRESET), Err: err})
	}
}

// Reject refuses the peer that asked. The id can only be closed then; the peer's TCP connection is
// closed with it, if the peer has not done it before. Over SCTP nothing is left of the session.
func (id *ID) Reject(privateData []byte) error {
	if err := id.checkAnswer(privateData, protocol.MaxRejectData); err != nil {
		return err
	}
	if done, err := id.rejectReply(privateData); done {
		return err
	}
	r, err := id.takeRequest(stepReject)
	if err != nil {
		return err
	}
	hangUp, err := r.reject(privateData)
	if err != nil {
		return fmt.Errorf("reject: %w", err)
	}
	if hangUp == nil {
		return nil
	}
	id.mu.Lock()
	closed := id.state == stateClosed
	if !closed {
		id.hangUp = hangUp
	}
	id.mu.Unlock()
	if closed {
		hangUp()
	}
	return nil
}

// overlaid is p with what it leaves open as it was set for id.
func (id *ID) overlaid(p rdma.ConnParam) rdma.ConnParam {
	id.mu.Lock()
	defer id.mu.Unlock()
	p.MPA = overlay(p.MPA, id.mpa)
	return p
}

// A streamRequest has a Stream with a Responder that has been asked.
type streamRequest struct {
	*grant
	stream    iwarp.Stream
	responder responder
	replied   bool           // the Responder has a Reply to say
	params    iwarp.Params   // once it has
	asked     rdma.ConnParam // as params
}

// reply makes the Reply, which the Responder has to say then.
func (r *streamRequest) reply(a *Attempt, p rdma.ConnParam) error {
	if r.replied {
		return nil
	}
	r.replied = true
	r.belongs(a)
	u := a.id.user
	p = a.id.overlaid(p)
	r.asked = p
	err := r.responder.Reconfigure(u.startConfig(p))
	if err == nil {
		r.params, err = r.responder.Accept(reads(p.IRD, u.cfg.IRD), reads(p.ORD, u.cfg.ORD),
			p.PrivateData)
	}
	if err != nil {
		abort(r.stream)
	}
	return err
}

// acceptNow sends the Reply and connects the QP, unless there is no room for all of the Reply.
func (r *streamRequest) acceptNow(a *Attempt, p rdma.ConnParam) (done bool, err error) {
	if err := r.reply(a, p); err != nil {
		return false, err
	}
	if err := flushStart(r.stream, r.responder); err != nil {
		abort(r.stream)
		return false, lostError(err)
	}
	if r.responder.Len() > 0 {
		return false, nil
	}
	return true, a.attachStream(llp.Of(r.stream), r.params, r.asked, r.grant)
}

func (r *streamRequest) accept(ctx context.Context, a *Attempt, p rdma.ConnParam) error {
	if err := r.reply(a, p); err != nil {
		return err
	}
	// "Bind the DDP endpoint, be ready for FPDUs, then send the Reply": what comes right behind
	// the Reply waits in the stream.
	if err := runStart(ctx, r.stream, r.responder, func() bool { return true }); err != nil {
		abort(r.stream)
		return err
	}
	return a.attachStream(llp.Of(r.stream), r.params, r.asked, r.grant)
}

func (r *streamRequest) reject(privateData []byte) (hangUp func(), err error) {
	defer r.answered()
	if err := r.responder.Reject(privateData); err != nil {
		r.stream.Abort()
		return nil, err
	}
	_ = flushStart(r.stream, r.responder) // the peer learns it from the end of the stream
	r.stream.SetNotify(nil)
	// "The MPA implementation leaves the TCP connection open; closing is up to the ULP": RFC 5044,
	// section 7.1.2 (3), and docs/decisions.md#M1. It counts as a connection does.
	r.connect()
	return func() {
		r.stream.Close()
		r.disconnect()
	}, nil
}

func (r *streamRequest) drop() {
	r.answered()
	if r.responder.Reject(nil) == nil {
		_ = flushStart(r.stream, r.responder)
	}
	r.stream.SetNotify(nil)
	r.stream.Close()
}

// attachStream connects a's QP over s, and closes s if that cannot be. g is what the peer holds,
// nil if we have connected.
func (a *Attempt) attachStream(s llp.Stream, p iwarp.Params, asked rdma.ConnParam, g *grant) error {
	c := Connection{Stream: s, Param: p, Asked: asked}
	c.Local, c.Remote = unmap(s.LocalAddr()), unmap(s.RemoteAddr())
	err := a.agree(&c)
	var l Link
	if err == nil {
		l, err = a.qp.OverStream(c)
	}
	if err != nil {
		abort(s)
		return err
	}
	return a.attach(l, &c, g)
}
