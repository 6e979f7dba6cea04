package shm

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// This file has who waits for events. docs/direct.md#sleeping has how a peer wakes it without the
// daemon.

// ownChans is how many CQs of a session get a completion channel of their own. Each takes
// descriptors, and a session may have thousands of CQs: the others share the channels that are
// there.
const ownChans = 32

// A compChan is a completion channel: a ring of the handles of CQs whose event has come, and a pipe
// with one octet for each. Whoever waits for an event reads the pipe, one goroutine at a time, and
// hands on what it finds for other CQs.
type compChan struct {
	c      *Client
	handle uint32
	pipe   *osmem.EventReader
	reader chan struct{} // holds a token while somebody reads the pipe

	// What the reader's context does when it ends. It stays between waits, so that one wait after
	// another with the same context does not allocate; whoever holds the token uses these.
	ctxDone <-chan struct{}
	ctxStop func() bool

	mu   sync.Mutex            // guards what follows, and the consumer's calls
	mem  *osmem.Region         // nil once closed
	ring *ring.ChannelConsumer // +checklocks:mu
	cqs  map[uint32]*compQueue // +checklocks:mu
	// directs are those whose messages come to CQs of the channel; deaf of them do not listen.
	directs []*directPath // +checklocks:mu
	deaf    int           // +checklocks:mu
	used    int           // CQs on it; guarded by Device.chanMu
}

// newCompChan makes a channel.
func newCompChan(d *Device) (*compChan, error) {
	c := d.c
	var rep rpc.CreateChanReply
	fds, err := c.rpc(rpc.OpCreateChan, "create completion channel", &rpc.CreateChanRequest{
		Ctx: d.ctx}, &rep, -1)
	if err != nil {
		return nil, err
	}
	ch := &compChan{c: c, handle: rep.Chan, reader: make(chan struct{}, 1),
		cqs: make(map[uint32]*compQueue)}
	mem, err := osmem.MapSealed(fds[1], abi.ChanHeaderLen)
	if err != nil {
		osmem.CloseFDs(fds[:1])
		return nil, c.die(goneBecause(err))
	}
	if ch.ring, err = ring.OpenChannelConsumer(mem.Mem); err != nil {
		osmem.CloseFDs(fds[:1])
		mem.Release()
		return nil, c.die(goneBecause(err))
	}
	if ch.pipe, err = c.newPipe(fds[0]); err != nil {
		mem.Release()
		return nil, err
	}
	ch.mem = mem
	return ch, nil
}

// wait blocks until q's event has come, ctx ends, q closes or the session dies.
func (ch *compChan) wait(ctx context.Context, q *compQueue) error {
	select {
	case <-q.notify:
		return nil
	default:
	}
	select {
	case <-q.notify:
		return nil
	case ch.reader <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closed:
		return errClosed("CQ")
	case <-ch.c.dead:
		return ch.c.gone()
	}
	defer func() { <-ch.reader }()
	for {
		if err := ch.pop(); err != nil {
			return err
		}
		select {
		case <-q.notify:
			return nil
		case <-q.closed:
			return errClosed("CQ")
		case <-ch.c.dead:
			return ch.c.gone()
		default:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		ch.kickedBy(ctx)
		ch.listen()
		// The ring was empty after the last octets had been read, and the daemon writes one
		// after each push: nothing is missed. An octet without an entry is one read too often.
		if err := ch.pipe.Wait(); err != nil && err != osmem.ErrKicked {
			select {
			case <-q.closed: // and the pipe with the channel: no sign of the daemon's end
				return errClosed("CQ")
			default:
			}
			if errors.Is(err, io.EOF) {
				return ch.c.die(errGone)
			}
			return ch.c.die(goneBecause(err))
		}
	}
}

// kickedBy sees to it that the end of ctx kicks the reader. A late kick, of the context before,
// only makes a reader look again.
func (ch *compChan) kickedBy(ctx context.Context) {
	if ctx.Done() == ch.ctxDone {
		return
	}
	if ch.ctxStop != nil {
		ch.ctxStop()
	}
	ch.ctxDone, ch.ctxStop = ctx.Done(), nil
	if ch.ctxDone != nil {
		ch.ctxStop = context.AfterFunc(ctx, ch.pipe.Kick)
	}
}

// pop takes all entries off the ring, and what has been heard without the daemon, and notifies
// their CQs.
func (ch *compChan) pop() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.mem == nil {
		return errClosed("CQ")
	}
	for {
		h, ok, err := ch.ring.Pop()
		if err != nil {
			return ch.c.corrupt(err)
		}
		if !ok {
			ch.hearLocked()
			return nil
		}
		q := ch.cqs[h]
		if q == nil {
			return ch.c.corrupt(errCorrupt("event ring %d names CQ %d", ch.handle, h))
		}
		// After the entry has been taken and before the event is handed out, so that the next
		// completion finds room for its entry and is an event of its own (docs/abi.md#waking).
		q.ring.TakeEvent()
		q.raise()
	}
}

// drop forgets q, which the daemon no longer knows, and takes its entry off the ring. It leaves the
// octet in the pipe: wait does not count them.
func (ch *compChan) drop(q *compQueue) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.cqs, q.handle)
	if ch.mem == nil {
		return
	}
	if _, err := ch.ring.Cancel(q.handle); err != nil {
		_ = ch.c.corrupt(err)
	}
}

// close ends waits and unmaps. No CQ uses ch any more.
func (ch *compChan) close() {
	_ = ch.c.callHandle(rpc.OpDestroyChan, "destroy completion channel", ch.handle) // nothing is on it
	ch.c.closePipe(ch.pipe)
	select {
	case ch.reader <- struct{}{}: // for good: nobody waits any more
		ch.kickedBy(context.Background())
	default:
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.mem.Release()
	ch.mem = nil
}

// A wakeEnd is a QP's part in waking and being woken.
type wakeEnd struct {
	// The send queue's lock guards these.
	waker int // by which the peer is woken; -1: none
	asked bool

	// The channel's lock guards these.
	sleeper int // what the peer wakes by; -1: none
	listens bool
	heard   [2]uint32 // of the peer's messages, as last seen

	// The lock of the receive CQ guards it: the peer may be told that who waits hears it.
	sleeps bool
}

// wake wakes the peer; false: the daemon has to. The send queue's lock is held.
func (d *directPath) wake() bool {
	if !d.asked {
		d.asked = true
		fds, err := d.qp.d.c.rpc(rpc.OpDirectWake, "ask for what wakes a peer",
			&rpc.HandleRequest{Handle: d.qp.handle}, &rpc.Empty{}, -1)
		if err == nil {
			d.waker = fds[0]
		}
	}
	if d.waker < 0 {
		return false
	}
	if !osmem.WakeBy(d.waker) { // the peer has left
		d.closeWaker()
		return false
	}
	return true
}

// closeWaker is for when the peer is not woken any more: the send queue's lock is held.
func (d *directPath) closeWaker() {
	if d.waker >= 0 {
		osmem.CloseFD(d.waker)
		d.waker = -1
	}
}

// join and leave say whose messages are for who waits on ch: the lock of the receive CQ is held.
func (ch *compChan) join(d *directPath) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.directs = append(ch.directs, d)
	ch.deaf++
}

func (ch *compChan) leave(d *directPath) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	i := slices.Index(ch.directs, d)
	if i < 0 {
		return
	}
	ch.directs = slices.Delete(ch.directs, i, i+1)
	if !d.listens {
		ch.deaf--
	}
	if d.sleeper >= 0 {
		ch.pipe.Without(d.sleeper)
		d.sleeper = -1
	}
}

// listen has who waits on ch hear all peers: it holds the reader's token, and no lock.
func (ch *compChan) listen() {
	for d := ch.nextDeaf(); d != nil; d = ch.nextDeaf() {
		fds, err := ch.c.rpc(rpc.OpDirectSleep, "ask for what a peer wakes by",
			&rpc.HandleRequest{Handle: d.qp.handle}, &rpc.Empty{}, -1)
		if err == nil {
			ch.hearBy(d, fds[0])
		}
	}
}

// nextDeaf takes one whose peer cannot wake who waits; nil: there is none.
func (ch *compChan) nextDeaf() *directPath {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.deaf == 0 {
		return nil
	}
	d := ch.directs[slices.IndexFunc(ch.directs, func(d *directPath) bool { return !d.listens })]
	d.listens = true
	ch.deaf--
	return d
}

// hearBy has d's peer wake by fd, which it takes over.
func (ch *compChan) hearBy(d *directPath, fd int) {
	q := d.qp.recvCQ
	q.mu.Lock()
	defer q.mu.Unlock()
	ch.mu.Lock()
	d.sleeps = slices.Contains(ch.directs, d) && ch.pipe.Also(fd) == nil
	if d.sleeps {
		d.sleeper = fd
	}
	ch.mu.Unlock()
	if !d.sleeps {
		osmem.CloseFD(fd)
		return
	}
	q.tellWanted()
}

// hearLocked notifies CQs of messages that peers have counted.
//
// +checklocks:ch.mu
func (ch *compChan) hearLocked() {
	for _, d := range ch.directs {
		if plain, asked := d.hears(); plain || asked {
			if q := d.qp.recvCQ; q.ring.Claim(asked) {
				q.raise()
			}
		}
	}
}

// hears reports whether the peer has counted more, and solicited ones, since it was last asked: the
// channel's lock is held.
func (d *directPath) hears() (plain, asked bool) {
	p, a := d.in.Heard()
	was := d.heard
	d.heard = [2]uint32{p, a}
	return p != was[0], a != was[1]
}

// begin is for when q, which was not armed, is about to be: what has come causes no event. q.mu is
// held.
func (q *compQueue) begin() {
	q.ch.mu.Lock()
	defer q.ch.mu.Unlock()
	for _, d := range q.directs {
		if d.qp.recvCQ == q {
			d.hears()
		}
	}
}

// raise has the event be found by who waits for q.
func (q *compQueue) raise() {
	select {
	case q.notify <- struct{}{}:
	default: // one that nobody has waited for: merged
	}
}
