package vnic

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// A loopCall is a connection request between two QPs of one device.
type loopCall struct {
	qp    *QP // the initiator's
	param rdma.ConnParam
	local netip.AddrPort // the initiator's
	mpa   iwarp.StartConfig

	reply chan loopAnswer // one slot
	once  sync.Once
}

type loopAnswer struct {
	rejected    bool
	privateData []byte
	err         error
	end         *loopEnd // the initiator's
	info        *linkInfo
}

// answer answers once; false: it has been answered or withdrawn.
func (c *loopCall) answer(a loopAnswer) (first bool) {
	c.once.Do(func() {
		first = true
		c.reply <- a
	})
	return first
}

// connectLoop asks listener l for a connection.
func (id *CMID) connectLoop(ctx context.Context, b *binding, l *CMID, p rdma.ConnParam, t *turn) {
	l.mu.Lock()
	ls := l.listen
	l.mu.Unlock()
	refused := errno(syscall.ECONNREFUSED, "nobody listens on %v", id.Remote())
	var pl *place
	if ls != nil {
		pl = ls.admit(peerKey{ctx: id.ctx.id}, false)
	}
	if pl == nil {
		id.fail(b, false, connectFailed(refused))
		return
	}
	id.mu.Lock()
	if !id.bound { // a port for both ends to show
		if ap, err := id.dev.bind(id, netip.AddrPortFrom(id.local.Addr(), 0)); err == nil {
			id.local, id.bound = ap, true
		}
		if id.state == cmClosed {
			local := id.local
			id.mu.Unlock()
			id.dev.unbind(id, local)
			pl.done()
			return
		}
	}
	local := id.local
	id.mu.Unlock()
	call := &loopCall{
		qp: b.qp, param: p, local: local, mpa: startConfig(p, id.ctx.limits), reply: make(chan loopAnswer, 1),
	}
	q := rdma.ConnParam{PrivateData: p.PrivateData, IRD: shownReads(call.mpa.IRD), ORD: shownReads(call.mpa.ORD), MPA: rdma.MPAParam{Revision: call.mpa.Revision}}
	if call.mpa.Revision == 1 {
		q.IRD, q.ORD = 0, 0
	}
	r := &cmRequest{l: ls, place: pl, loop: call}
	ls.child(r, id.Remote(), local, q)
	t.done()

	ctx, cancel := context.WithTimeoutCause(ctx, positive(id.dev.cfg.Timeouts.MPAReply), syscall.ETIMEDOUT)
	defer cancel()
	var a loopAnswer
	select {
	case a = <-call.reply:
	case <-ctx.Done():
		if call.answer(loopAnswer{}) {
			id.fail(b, true, connectFailed(context.Cause(ctx)))
			return
		}
		a = <-call.reply
	}
	switch {
	case a.rejected:
		id.fail(b, true, connectFailed(&iwarp.RejectedError{PrivateData: a.privateData}))
	case a.err != nil:
		id.fail(b, true, connectFailed(a.err))
	default:
		if err := b.attach(a.end, a.end.open, a.info); err != nil {
			a.end.abort()
			id.fail(b, true, connectFailed(err))
		}
	}
}

// acceptLoop connects b's QP to the one that calls.
func (id *CMID) acceptLoop(b *binding, c *loopCall, p rdma.ConnParam) error {
	id.mu.Lock()
	mpa := id.mpa
	id.mu.Unlock()
	mine, theirs, err := negotiate(c, p, startConfig(rdma.ConnParam{MPA: mpa}, id.ctx.limits), id.ctx.limits)
	if err != nil {
		c.answer(loopAnswer{err: err})
		return fmt.Errorf("accept: %w", err)
	}
	x, y := newLoop(b.qp, c.qp)
	ap := id.Local()
	info := &linkInfo{loop: true, extensions: true, local: ap, remote: c.local, param: mine}
	if !c.answer(loopAnswer{end: y, info: &linkInfo{loop: true, extensions: true, local: c.local, remote: ap, param: theirs}}) {
		return errno(syscall.ECONNABORTED, "accept: the peer has given up")
	}
	if err := b.attach(x, x.open, info); err != nil {
		x.abort()
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

// negotiate is what the MPA start-up comes to, by running it: what is agreed on does not depend on
// where the peer is.
func negotiate(c *loopCall, p rdma.ConnParam, responder iwarp.StartConfig, l Limits) (res, init iwarp.Params, err error) {
	in, err := iwarp.NewInitiator(c.mpa, c.param.PrivateData)
	if err != nil {
		return res, init, err
	}
	re, err := iwarp.NewResponder(responder)
	if err != nil {
		return res, init, err
	}
	if err = move(re, in); err != nil {
		return res, init, err
	}
	if res, err = re.Accept(reads(p.IRD, l.IRD), reads(p.ORD, l.ORD), p.PrivateData); err != nil {
		return res, init, err
	}
	if err = move(in, re); err != nil {
		return res, init, err
	}
	init, err = in.Result()
	return res, init, err
}

// move gives to what from has to say.
func move(to, from starter) error {
	b := make([]byte, from.Len())
	if _, err := io.ReadFull(from, b); err != nil {
		return err
	}
	from.Commit(len(b))
	_, err := to.Write(b)
	return err
}
