package shm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A cmEvents receives the connection manager's events of a device, on a goroutine of its own, and
// hands them to ids. As that goroutine always reads a pipe of the daemon's, it is also who notices
// first that the daemon has gone.
type cmEvents struct {
	d      *Device
	handle uint32
	pipe   *osmem.EventReader
	ended  chan struct{} // closed when the goroutine has returned
	stop   chan struct{} // closed to make it return

	mu   sync.Mutex
	ids  map[uint32]*cmID
	over error // of finishAll: why connections end as they come; guarded by mu

	ev    rpc.CMEvent                    // of whoever talks to the daemon: the one that has just come
	calls [seqpacket.MaxOutstanding]call // that takeEvents makes at a time; its goroutine's

	// ahead is how many events have been taken whose octets are in the pipe still. Too few are
	// harmless: then one is asked for that is not there.
	takenEarly atomic.Int32
}

// newCMEvents makes the channel and starts its goroutine.
func newCMEvents(d *Device) (*cmEvents, error) {
	var rep rpc.CMCreateChanReply
	fds, err := d.c.rpc(rpc.OpCMCreateChan, "create connection manager channel", &rpc.Empty{},
		&rep, -1)
	if err != nil {
		return nil, err
	}
	ch := &cmEvents{d: d, handle: rep.Chan, ended: make(chan struct{}), stop: make(chan struct{}),
		ids: make(map[uint32]*cmID)}
	if ch.pipe, err = d.c.newPipe(fds[0]); err != nil {
		return nil, err
	}
	go ch.run()
	return ch, nil
}

// run dispatches events until the channel is closed or the session dies.
func (ch *cmEvents) run() {
	defer close(ch.ended)
	c := ch.d.c
	for {
		select {
		case <-ch.stop:
			ch.finishAll(errClosed("device"))
			return
		case <-c.dead:
			ch.finishAll(c.gone())
			return
		default:
		}
		n, full, err := ch.pipe.Take()
		if err != nil {
			if err != osmem.ErrKicked {
				_ = c.die(errGone) // close joins run before it closes the pipe: this is the daemon's end
			}
			continue
		}
		ch.takeEvents(n, full)
	}
}

// takeEvents takes n events, for which the pipe had octets, or all that there are.
func (ch *cmEvents) takeEvents(n int, all bool) {
	n -= ch.alreadyTaken(n)
	var calls [seqpacket.MaxOutstanding]*call
	for n > 0 || all {
		k := seqpacket.MaxOutstanding
		if !all {
			k = min(k, n)
		}
		for i := range k {
			ch.calls[i] = ch.eventCall()
			calls[i] = &ch.calls[i]
		}
		ch.d.c.rpcs(calls[:k]...)
		n -= k
		none := 0
		for i := range k {
			if calls[i].err != nil {
				none++
			}
		}
		if none > 0 { // octets were those of events that have been taken, or whose ids have gone
			ch.alreadyTaken(none + max(n, 0))
			if all { // for want of room in the pipe, events that have been taken may have had no octet
				ch.takenEarly.Store(0)
			}
			return // what comes now has an octet of its own
		}
	}
}

// alreadyTaken says for how many of n octets the events have been taken, and that the octets have,
// too.
func (ch *cmEvents) alreadyTaken(n int) int {
	for {
		a := ch.takenEarly.Load()
		m := min(a, int32(n))
		if ch.takenEarly.CompareAndSwap(a, a-m) {
			return int(m)
		}
	}
}

// eventCall is a call that takes the next event. Events are dispatched in the order in which the
// daemon gives them.
func (ch *cmEvents) eventCall() call {
	return call{op: rpc.OpCMGetEvent, what: "connection event", req: &rpc.HandleRequest{
		Handle: ch.handle}, rep: &ch.ev, fd: -1, done: ch.eventTaken}
}

func (ch *cmEvents) eventTaken(k *call) {
	switch {
	case k.err == nil:
		ch.dispatch(&ch.ev)
	case !errors.Is(k.err, syscall.EAGAIN):
		_ = ch.d.c.die(goneBecause(k.err))
	}
}

// earlyEventCall is next for an event that is there when the daemon has answered the calls before,
// most likely: so nobody has to be woken to ask for it. A refusal is nothing to die of: who closes
// the Device does not wait for who connects, so there may be no channel.
func (ch *cmEvents) earlyEventCall() *call {
	k := ch.eventCall()
	k.done = func(k *call) {
		if k.err == nil {
			ch.takenEarly.Add(1)
			ch.eventTaken(k)
		}
	}
	return &k
}

// dispatch hands ev to its id. An event of an id that has just been destroyed is dropped.
func (ch *cmEvents) dispatch(ev *rpc.CMEvent) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	id := ch.ids[ev.ID]
	switch {
	case ev.Type == rpc.EvConnectRequest:
		ch.request(id, ev)
	case id == nil || ev.Type == rpc.EvTimewaitExit:
	case ev.Type == rpc.EvEstablished && id.conn == nil:
		id.conn = newConn(id, ev)
		if ch.over != nil { // who talks to the daemon had read it by then
			id.conn.end(ch.over)
		}
		id.push(ev)
	case ev.Type == rpc.EvDisconnected && id.conn != nil:
		id.conn.end(endCause(ev))
	case ev.Type == rpc.EvDeviceRemoval && id.conn != nil:
		id.conn.end(errClosed("device"))
	default:
		id.push(ev)
	}
}

// request makes an id of a connection request and queues it at its listener: ch.mu is held.
func (ch *cmEvents) request(id *cmID, ev *rpc.CMEvent) {
	if ev.Child == 0 || ch.ids[ev.Child] != nil {
		_ = ch.d.c.die(errCorrupt("a connection request with id %d", ev.Child))
		return
	}
	if _, ok := ev.Param.PrivateData(); !ok {
		_ = ch.d.c.die(errCorrupt("a connection request with %d octets of private data",
			ev.Param.PrivateLen))
		return
	}
	child := &cmID{ch: ch, handle: ev.Child, events: make(chan *rpc.CMEvent, idEvents)}
	ch.ids[ev.Child] = child
	if id != nil && id.requests != nil {
		select {
		case id.requests <- newConnRequest(child, ev):
			return
		default: // more than the backlog wait
		}
	}
	go child.destroy(context.Background())
}

// finishAll ends every connection of the channel with err.
func (ch *cmEvents) finishAll(err error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.over = err
	for _, id := range ch.ids {
		if id.conn != nil {
			id.conn.end(err)
		}
	}
}

// close destroys all ids and ends the goroutine.
func (ch *cmEvents) close() {
	ch.mu.Lock()
	ids := make([]*cmID, 0, len(ch.ids))
	for _, id := range ch.ids {
		ids = append(ids, id)
	}
	ch.mu.Unlock()
	close(ch.stop)
	ch.pipe.Kick()
	<-ch.ended
	for _, id := range ids {
		id.destroy(context.Background())
	}
	// Nothing is on it.
	_ = ch.d.c.callHandle(rpc.OpCMDestroyChan, "destroy connection manager channel", ch.handle)
	ch.d.c.closePipe(ch.pipe)
}

// idEvents is how many events of one id may wait to be looked at: more than one connection has.
const idEvents = 8

// A cmID is one id of the connection manager: a listener, a request, or one end of a connection.
type cmID struct {
	ch       *cmEvents
	handle   uint32
	events   chan *rpc.CMEvent
	requests chan *connRequest // of a listener
	conn     *conn             // once established; guarded by ch.mu

	gone      sync.Once
	destroyed <-chan struct{} // closed when the daemon has answered; of gone
}

// newID makes an id. A listener's has room for so many requests.
func (ch *cmEvents) newID(ctx context.Context, backlog int) (*cmID, error) {
	var rep rpc.CMCreateIDReply
	k := &call{op: rpc.OpCMCreateID, what: "create connection id", req: &rpc.CMCreateIDRequest{
		Chan: ch.handle, PS: rpc.PSTCP, Type: 2}, rep: &rep, fd: -1}
	if err := ch.d.c.within(ctx, func() {
		if k.err == nil { // nobody knows it; the session's end destroys it too
			_ = ch.d.c.destroy(rpc.OpCMDestroyID, "destroy connection id", rep.ID)
		}
	}, k); err != nil {
		return nil, err
	}
	if k.err != nil {
		return nil, k.err
	}
	id := &cmID{ch: ch, handle: rep.ID, events: make(chan *rpc.CMEvent, idEvents)}
	if backlog > 0 {
		id.requests = make(chan *connRequest, backlog)
	}
	ch.mu.Lock()
	ch.ids[id.handle] = id
	ch.mu.Unlock()
	if err := ch.d.usable(); err != nil { // close may have looked before
		id.destroy(ctx)
		return nil, err
	}
	return id, nil
}

// push queues a copy of ev: ch.mu is held.
func (id *cmID) push(ev *rpc.CMEvent) {
	kept := *ev
	select {
	case id.events <- &kept:
	default:
		_ = id.ch.d.c.die(errCorrupt("more than %d events of connection id %d", idEvents, id.handle))
	}
}

// destroy ends the id in the daemon: a connection is disconnected, a request refused. It returns
// when the daemon has answered, or ctx has ended: what is asked of the daemon afterwards comes
// behind it either way.
func (id *cmID) destroy(ctx context.Context) {
	id.gone.Do(func() {
		id.destroyed = id.ch.d.c.begin(&call{op: rpc.OpCMDestroyID, what: "destroy connection id",
			req: &rpc.HandleRequest{Handle: id.handle}, rep: &rpc.DestroyReply{}, fd: -1,
			done: func(*call) { // refused: the session's end does it too
				id.ch.mu.Lock()
				delete(id.ch.ids, id.handle)
				id.ch.mu.Unlock()
			}})
	})
	select {
	case <-id.destroyed:
	case <-ctx.Done():
	}
}

// want blocks until the id's next event and returns it if it is of type t; else the error that it
// stands for. That there is a way is passed over by who wants more.
func (id *cmID) want(ctx context.Context, t uint32, op string) (*rpc.CMEvent, error) {
	for {
		select {
		case ev := <-id.events:
			switch ev.Type {
			case t:
				return ev, nil
			case rpc.EvAddrResolved:
				continue
			}
			return nil, eventError(op, ev)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-id.ch.d.closed:
			return nil, errClosed("device")
		case <-id.ch.d.c.dead:
			return nil, id.ch.d.c.gone()
		}
	}
}

// eventError is the error that ev stands for.
func eventError(op string, ev *rpc.CMEvent) error {
	if e := terminateError(ev.Cause); e != nil {
		return e
	}
	switch {
	case ev.Type == rpc.EvRejected && refusedByProgram(ev):
		pd, _ := ev.Param.PrivateData()
		return &rdma.RejectedError{PrivateData: append([]byte(nil), pd...)}
	case ev.Status < 0 && ev.Status > -4096:
		return &CallError{Op: op, Errno: syscall.Errno(-ev.Status)}
	case ev.Type == rpc.EvDisconnected:
		return &CallError{Op: op, Errno: syscall.ECONNRESET}
	case ev.Status > 0: // a peer of RoCE says why not
		return &CallError{Op: op, Errno: syscall.ECONNREFUSED}
	}
	return &CallError{Op: op, Errno: syscall.EPROTO}
}

// endCause is why a connection ended: nil if gracefully.
func endCause(ev *rpc.CMEvent) error {
	if e := terminateError(ev.Cause); e != nil {
		return e
	}
	if ev.Status < 0 && ev.Status > -4096 {
		return &CallError{Op: "connection", Errno: syscall.Errno(-ev.Status)}
	}
	return nil
}

// timeoutMS is how long the daemon may look for an address: what ctx leaves, at most 10 s.
func timeoutMS(ctx context.Context) uint32 {
	t := 10 * time.Second
	if dl, ok := ctx.Deadline(); ok {
		t = min(t, time.Until(dl))
	}
	return uint32(max(t.Milliseconds(), 1))
}
