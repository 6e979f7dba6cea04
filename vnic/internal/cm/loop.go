package cm

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
	*grant
	initiator *Attempt
	param     rdma.ConnParam
	local     netip.AddrPort // the initiator's
	mpa       iwarp.StartConfig

	reply chan loopAnswer // one slot
	once  sync.Once
}

type loopAnswer struct {
	rejected    bool
	privateData []byte
	err         error
	link        Link       // the initiator's
	conn        Connection // for it
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
func (id *ID) connectLoop(ctx context.Context, a *Attempt, l *ID, p rdma.ConnParam, t *ticket) {
	l.mu.Lock()
	ls := l.listen
	l.mu.Unlock()
	refused := errno(syscall.ECONNREFUSED, "nobody listens on %v", id.Remote())
	var g *grant
	if ls != nil {
		g = ls.admit(peerKey{user: id.user.cfg.Number}, false)
	}
	if g == nil {
		id.fail(a, connectFailed(refused))
		return
	}
	id.mu.Lock()
	if !id.bound { // a port for both ends to show
		if ap, err := id.m.ports.bind(id, netip.AddrPortFrom(id.local.Addr(), 0), Sharing{}); err == nil {
			id.local, id.bound = ap, true
		}
		if id.state == stateClosed {
			local := id.local
			id.mu.Unlock()
			id.m.ports.unbind(id, local)
			g.answered()
			return
		}
	}
	local := id.local
	id.mu.Unlock()
	call := &loopCall{
		grant: g, initiator: a, param: p, local: local, mpa: id.user.startConfig(p),
		reply: make(chan loopAnswer, 1),
	}
	q := rdma.ConnParam{
		PrivateData: p.PrivateData, IRD: shownReads(call.mpa.IRD), ORD: shownReads(call.mpa.ORD),
		MPA: rdma.MPAParam{Revision: call.mpa.Revision},
	}
	if call.mpa.Revision == 1 {
		q.IRD, q.ORD = 0, 0
	}
	if call.mpa.ROI {
		requestROI(&q)
	}
	ls.child(call, id.Remote(), local, q)
	t.leave()

	ctx, cancel := context.WithTimeoutCause(ctx, id.m.cfg.MPAReply, syscall.ETIMEDOUT)
	defer cancel()
	var ans loopAnswer
	select {
	case ans = <-call.reply:
	case <-ctx.Done():
		if call.answer(loopAnswer{}) {
			id.fail(a, connectFailed(context.Cause(ctx)))
			return
		}
		ans = <-call.reply
	}
	switch {
	case ans.rejected:
		id.fail(a, connectFailed(&iwarp.RejectedError{PrivateData: ans.privateData}))
	case ans.err != nil:
		id.fail(a, connectFailed(ans.err))
	default:
		if err := a.attach(ans.link, &ans.conn, nil); err != nil {
			id.fail(a, connectFailed(err))
		}
	}
}

// acceptNow does nothing: the QPs are not joined within a call.
func (c *loopCall) acceptNow(*Attempt, rdma.ConnParam) (done bool, err error) { return false, nil }

func (c *loopCall) accept(_ context.Context, a *Attempt, p rdma.ConnParam) error {
	id := a.id
	id.mu.Lock()
	mpa := id.mpa
	id.mu.Unlock()
	u := id.user
	q := rdma.ConnParam{MPA: mpa, Protocol: p.Protocol}
	mine, theirs, err := negotiate(c, p, u.startConfig(q), &u.cfg)
	if err != nil {
		c.answer(loopAnswer{err: err})
		return fmt.Errorf("accept: %w", err)
	}
	ap := id.Local()
	own, other := Connection{Local: ap, Remote: c.local, Param: mine}, Connection{Local: c.local,
		Remote: ap, Param: theirs}
	x, y, err := a.overLoop(&own, c, &other)
	if err != nil {
		c.answer(loopAnswer{err: err})
		return fmt.Errorf("accept: %w", err)
	}
	if !c.answer(loopAnswer{link: y, conn: other}) {
		return errno(syscall.ECONNABORTED, "accept: the peer has given up")
	}
	if err := a.attach(x, &own, nil); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

// overLoop makes the two Links.
func (a *Attempt) overLoop(own *Connection, c *loopCall, other *Connection) (x, y Link, err error) {
	if err := c.initiator.agree(other); err != nil { // the same checks as on a stream, at both ends
		return nil, nil, err
	}
	if err := a.agree(own); err != nil {
		return nil, nil, err
	}
	return a.qp.OverLoop(*own, c.initiator.qp, *other)
}

func (c *loopCall) reject(privateData []byte) (hangUp func(), err error) {
	c.answered()
	c.answer(loopAnswer{rejected: true, privateData: append([]byte(nil), privateData...)})
	return nil, nil
}

func (c *loopCall) drop() { _, _ = c.reject(nil) }

// negotiate is what the MPA start-up comes to, by running it: what is agreed on does not depend on
// where the peer is.
func negotiate(c *loopCall, p rdma.ConnParam, responder iwarp.StartConfig, l *UserConfig) (res,
	init iwarp.Params, err error) {
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
