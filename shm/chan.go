package shm

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
)

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
	used int                   // CQs on it; guarded by Device.chanMu
}

// newCompChan makes a channel.
func newCompChan(d *Device) (*compChan, error) {
	c := d.c
	var rep abi.CreateChanReply
	fds, err := c.rpc(abi.OpCreateChan, "create completion channel", &abi.CreateChanRequest{
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

// pop takes all entries off the ring and notifies their CQs.
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
			return nil
		}
		q := ch.cqs[h]
		if q == nil {
			return ch.c.corrupt(errCorrupt("event ring %d names CQ %d", ch.handle, h))
		}
		// After the entry has been taken and before the event is handed out, so that the next
		// completion finds room for its entry and is an event of its own (docs/abi.md#waking).
		q.ring.TakeEvent()
		select {
		case q.notify <- struct{}{}:
		default: // one that nobody has waited for: merged
		}
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
	_ = ch.c.callHandle(abi.OpDestroyChan, "destroy completion channel", ch.handle) // nothing is on it
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
