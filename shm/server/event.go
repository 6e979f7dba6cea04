package server

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// maxAsync is how many async events of one open device may wait; further ones are dropped. A
// network that is lost ends all connections of a program at once: each QP has the fault and its
// last WQE to tell then.
func (s *Session) maxAsync() int {
	l := &s.limits
	return 2*l.QPs + 2*l.SRQs + l.CQs
}

// An AsyncQueue takes the async events of one open device. Any goroutine may push.
type AsyncQueue struct {
	max      int // of q, but for what is gone
	mu       sync.Mutex
	pipe     *osmem.EventWriter  // +checklocks:mu
	q        []rpc.AsyncEvent    // +checklocks:mu
	queued   map[asyncObj]uint32 // of q, by object; +checklocks:mu
	reported map[asyncObj]uint32 // +checklocks:mu

	// Of an object that has been destroyed so many events, the first ones of a handle in q, are for
	// nobody.
	forgotten map[asyncObj]uint32 // +checklocks:mu
	gone      int                 // of q; +checklocks:mu

	// While it is quiet the client is told of nothing, of completion channels of the device neither;
	// held waits for the end of that.
	quiet bool                               // +checklocks:mu
	held  []rpc.AsyncEvent                   // +checklocks:mu
	chans map[*ring.ChannelProducer]struct{} // +checklocks:mu
}

// Quiet has the client told of nothing until it is called with false: what comes meanwhile is told
// of then.
func (a *AsyncQueue) Quiet(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quiet = on
	for ch := range a.chans {
		ch.Quiet(on)
	}
	if on {
		return
	}
	for _, e := range a.held {
		a.pushLocked(e)
	}
	a.held = nil
}

// addChan and dropChan say which completion channels the device has.
func (a *AsyncQueue) addChan(ch *ring.ChannelProducer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.chans == nil {
		a.chans = make(map[*ring.ChannelProducer]struct{})
	}
	a.chans[ch] = struct{}{}
	ch.Quiet(a.quiet)
}

func (a *AsyncQueue) dropChan(ch *ring.ChannelProducer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.chans, ch)
}

// newAsyncQueue is one for at most so many events.
func newAsyncQueue(most int, pipe *osmem.EventWriter) *AsyncQueue {
	return &AsyncQueue{max: most, pipe: pipe, queued: map[asyncObj]uint32{},
		reported: map[asyncObj]uint32{}, forgotten: map[asyncObj]uint32{}}
}

type asyncObj struct{ kind, handle uint32 }

// Push queues an event and wakes the client. It does not block.
func (a *AsyncQueue) Push(e rpc.AsyncEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.quiet {
		a.pushLocked(e)
	} else if len(a.held) < a.max {
		a.held = append(a.held, e)
	}
}

// +checklocks:a.mu
func (a *AsyncQueue) pushLocked(e rpc.AsyncEvent) {
	if !a.pipe.Open() || len(a.q)-a.gone >= a.max {
		return
	}
	a.q = append(a.q, e)
	a.queued[asyncObj{e.Kind, e.Handle}]++
	a.pipe.Token()
}

func (a *AsyncQueue) pop() (rpc.AsyncEvent, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.q) > 0 {
		e := a.q[0]
		a.q = a.q[1:]
		o := asyncObj{e.Kind, e.Handle}
		if a.skipLocked(o) {
			continue
		}
		less(a.queued, o)
		if e.Kind != rpc.ObjNone {
			a.reported[o]++
		}
		return e, true
	}
	return rpc.AsyncEvent{}, false
}

// skipLocked reports whether the first event of o is for nobody.
//
// +checklocks:a.mu
func (a *AsyncQueue) skipLocked(o asyncObj) bool {
	if a.forgotten[o] == 0 {
		return false
	}
	less(a.forgotten, o)
	a.gone--
	return true
}

// less takes one away from what m counts of o.
func less(m map[asyncObj]uint32, o asyncObj) {
	if m[o]--; m[o] == 0 {
		delete(m, o)
	}
}

// forget drops the events of an object that has been destroyed.
func (a *AsyncQueue) forget(kind, handle uint32) (r rpc.DestroyReply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := asyncObj{kind, handle}
	a.held = slices.DeleteFunc(a.held, func(e rpc.AsyncEvent) bool {
		return asyncObj{e.Kind, e.Handle} == o
	})
	n := a.queued[o]
	r.Reported, r.Tokens = a.reported[o], a.pipe.TakeBack(n)
	delete(a.reported, o)
	delete(a.queued, o)
	if n == 0 {
		return r
	}
	a.forgotten[o] += n
	if a.gone += int(n); a.gone > len(a.q)/2 {
		kept := a.q[:0]
		for _, e := range a.q {
			if !a.skipLocked(asyncObj{e.Kind, e.Handle}) {
				kept = append(kept, e)
			}
		}
		a.q = kept
	}
	return r
}

func (a *AsyncQueue) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pipe.Close()
	a.q = nil
}

// A cmChannel queues the events of some connection manager ids.
type cmChannel struct {
	handle uint32
	ids    int // guarded by Session.mu

	mu   sync.Mutex
	pipe *osmem.EventWriter // +checklocks:mu
	q    []queuedEvent
	room []queuedEvent // where q begins again when it has been empty; of no length
	max  int
}

type queuedEvent struct {
	id    *CMID
	child *CMID // of a connect request
	ev    rpc.CMEvent
}

// maxEvents is how many events of an id may wait, beside the requests of a listener, which its
// channel bounds, and those of its groups. A program that takes events has a handful. Calls that an
// event answers, and that can be made again, are refused when maxAsked wait: what comes by itself,
// such as DISCONNECTED, finds room behind them.
const (
	maxEvents = 64
	maxAsked  = maxEvents / 2
)

// eventsOfGroup is how many events there are of a group: that it was joined, and that it is gone.
const eventsOfGroup = 2

// own is how many events wait that are no requests. The lock of id's channel is held.
func (id *CMID) own() int { return id.queued - id.requests }

// ask says why a call cannot be answered by an event; nil: it can.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) ask() error {
	defer id.lock().mu.Unlock()
	n := id.own()
	if n >= maxAsked+eventsOfGroup*len(id.groups) {
		return &Refusal{syscall.ENOMEM, fmt.Sprintf("the connection manager id has %d events that wait: "+
			"take them first (rdma_get_cm_event)", n)}
	}
	if n < freeEvents {
		return nil
	}
	return id.s.srv.queues.check(id.s.account(), id.s.Privileged(), eventLen)
}

// freeEvents of an id may wait that are not counted as memory for queues, in which an event takes
// eventLen octets. Calls are refused for want of it, events never: they are a few more.
const (
	freeEvents = 1
	eventLen   = int64(unsafe.Sizeof(queuedEvent{}))
)

// memory is what the events of id are counted as. The lock of its channel is held.
func (id *CMID) memory() int64 { return max(int64(id.own())-freeEvents, 0) * eventLen }

// push queues e at the channel of its id.
//
// +checklocksignore: the lock of e.id.lock() is one of its result.
func (e queuedEvent) push() error {
	ch := e.id.lock()
	// the listener has migrated since the child was made
	for e.child != nil && e.child.ch.Load() != ch {
		ch.mu.Unlock()
		e.child.migrate(ch)
		ch = e.id.lock()
	}
	defer ch.mu.Unlock()
	if !ch.pipe.Open() || e.id.dead {
		return syscall.ENODEV
	}
	full := e.id.own() >= maxEvents+eventsOfGroup*len(e.id.groups)
	if e.child != nil {
		full = len(ch.q) >= ch.max
	}
	if full {
		return syscall.ENOMEM
	}
	ch.add(e)
	e.count(1)
	ch.pipe.Token()
	return nil
}

// count counts e, which waits or does no more, where what looks for it knows whether it has to. The
// lock of its id's channel is held.
func (e *queuedEvent) count(n int) {
	before := e.id.memory()
	e.id.queued += n
	if e.child != nil {
		e.id.requests += n
	}
	if more := e.id.memory() - before; more != 0 {
		e.id.s.srv.queues.force(e.id.s.account(), more)
	}
	if m := e.id.membershipOf(&e.ev); m != nil {
		m.queued += n
	}
}

// roomEvents is for how many events room is kept: one takes some 700 octets.
const roomEvents = 64

func (ch *cmChannel) add(e queuedEvent) {
	if len(ch.q) == 0 {
		ch.q = ch.room
	}
	full := len(ch.q) == cap(ch.q)
	ch.q = append(ch.q, e)
	if full && cap(ch.q) <= roomEvents {
		ch.room = ch.q[:0]
	}
}

func (ch *cmChannel) pop() (rpc.CMEvent, bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.q) == 0 {
		return rpc.CMEvent{}, false
	}
	e := ch.q[0]
	ch.q[0] = queuedEvent{}
	ch.q = ch.q[1:]
	e.count(-1)
	if m := e.id.membershipOf(&e.ev); m != nil {
		m.reported++
	} else {
		e.id.reported++
	}
	e.ev.ID, e.ev.UID = e.id.handle, e.id.uid
	if e.child != nil {
		e.ev.Child = e.child.handle
		e.child.known = true
	}
	return e.ev, true
}

// forget marks an id as gone, drops its events and returns the children among them that the client
// never heard of.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) forget() (r rpc.CMDestroyIDReply, children []*CMID) {
	ch := id.lock()
	defer ch.mu.Unlock()
	id.dead = true
	r.Reported = id.reported
	r.Tokens = ch.take(id.queued, func(e *queuedEvent) bool {
		if e.id != id {
			return false
		}
		if e.child != nil {
			children = append(children, e.child)
		}
		return true
	})
	return r, children
}

// take drops the events that f is true for, of which there are n, and returns how many tokens the
// client has to take for them.
//
// +checklocks:ch.mu
func (ch *cmChannel) take(n int, f func(e *queuedEvent) bool) uint32 {
	if n == 0 {
		return 0 // as nearly always: the queue can be long
	}
	kept := ch.q[:0]
	for _, e := range ch.q {
		if f(&e) {
			e.count(-1)
		} else {
			kept = append(kept, e)
		}
	}
	clear(ch.q[len(kept):])
	ch.q = kept
	return ch.pipe.TakeBack(uint32(n))
}

// membershipOf is what an event of id tells of; nil: nothing of a group. The lock of id's channel
// is held.
func (id *CMID) membershipOf(e *rpc.CMEvent) *membership {
	if e.Type != rpc.EvMulticastJoin && e.Type != rpc.EvMulticastError {
		return nil
	}
	return id.tags[e.Group]
}

// join notes that id has joined a group, which the client calls by a tag; false: it has, or has one
// that it calls so.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) join(addr netip.Addr, tag uint64) bool {
	defer id.lock().mu.Unlock()
	if id.groups[addr] != nil || id.tags[tag] != nil {
		return false
	}
	if id.groups == nil {
		id.groups, id.tags = make(map[netip.Addr]*membership), make(map[uint64]*membership)
	}
	m := &membership{tag: tag}
	id.groups[addr], id.tags[tag] = m, m
	return true
}

// member reports whether id has joined a group.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) member(addr netip.Addr) bool {
	defer id.lock().mu.Unlock()
	_, ok := id.groups[addr]
	return ok
}

// leave forgets a group and drops what waits of its events.
//
// +checklocksignore: the lock of id.lock() is one of its result.
func (id *CMID) leave(addr netip.Addr) (r rpc.CMLeaveMulticastReply) {
	ch := id.lock()
	defer ch.mu.Unlock()
	m := id.groups[addr]
	r.Reported = m.reported
	r.Tokens = ch.take(m.queued, func(e *queuedEvent) bool {
		return e.id == id && id.membershipOf(&e.ev) == m
	})
	delete(id.groups, addr)
	delete(id.tags, m.tag)
	return r
}

func (ch *cmChannel) close() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.pipe.Close()
	for i := range ch.q {
		ch.q[i].count(-1)
	}
	ch.q, ch.room = nil, nil
}

// migrate moves id to the channel to, with its events that wait, and returns how many there were.
// The ids of connection requests among them go along. Only the control goroutine migrates an id
// that the client knows.
//
// +checklocksignore: two channels, in the order of their handles.
func (id *CMID) migrate(to *cmChannel) (r rpc.CMMigrateReply) {
	s, from := id.s, id.ch.Load()
	s.mu.Lock() // the counts of ids, and no new child in between
	defer s.mu.Unlock()
	first, second := from, to
	if first.handle > second.handle {
		first, second = second, first
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	if from != to {
		second.mu.Lock()
		defer second.mu.Unlock()
	}
	r.Reported = id.reported
	if from == to {
		return r
	}
	move := func(i *CMID) {
		i.ch.Store(to)
		from.ids--
		to.ids++
	}
	move(id)
	pipe := to.pipe
	r.Tokens = from.take(id.queued, func(e *queuedEvent) bool {
		if e.id != id {
			return false
		}
		if e.child != nil {
			move(e.child)
		}
		to.add(*e)
		e.count(1) // it goes on waiting
		pipe.Token()
		return true
	})
	return r
}

// A CMID is a connection manager id of a session: where its handler pushes events.
type CMID struct {
	s      *Session
	ch     atomic.Pointer[cmChannel] // changes with its lock held, and with that of the next one
	handle uint32
	h      IDHandler // set once, before the client knows the handle

	// guarded by the channel's lock: see lock
	uid      uint64
	reported uint32
	queued   int // events that wait
	requests int // those of them that are a listener's requests
	dead     bool
	known    bool // the client knows the handle
	groups   map[netip.Addr]*membership
	tags     map[uint64]*membership // the same, by what the client calls them

	ps uint32 // port space; set before anybody else knows the id
	// socket: it counts as a pipe, for a socket of the host. Session.mu guards it.
	socket bool
}

// TakeSocket has the id count as a pipe, if it does not: it may have a socket of the host, a
// listener or a connection. So do the ids of its connection requests.
func (id *CMID) TakeSocket() error {
	s := id.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if id.socket {
		return nil
	}
	err := s.srv.pipes.take(s.account(), s.Privileged())
	id.socket = err == nil
	return err
}

func newCMID(s *Session, ch *cmChannel, handle uint32) *CMID {
	id := &CMID{s: s, handle: handle}
	id.ch.Store(ch)
	return id
}

// lock locks the id's channel and returns it.
//
// +checklocksignore: it returns with the lock of its result.
func (id *CMID) lock() *cmChannel {
	for {
		ch := id.ch.Load()
		ch.mu.Lock()
		if id.ch.Load() == ch {
			return ch
		}
		ch.mu.Unlock() // it has migrated
	}
}

// Handle is how the client names the id.
func (id *CMID) Handle() uint32 { return id.handle }

// Push queues an event for the client: e's ID and UID are filled in. It does not block, and any
// goroutine may call it. An error means that nobody will take the event.
func (id *CMID) Push(e rpc.CMEvent) error { return queuedEvent{id: id, ev: e}.push() }

// PushRequest queues a CONNECT_REQUEST on a listener's id. mk makes the handler of the new id that
// goes with it; it is called before PushRequest returns, if there is room. An error means that
// there was none, and the connection should be refused: mk was not called, or what it returned has
// been closed. Do not call it with a lock that the handler's Close takes.
func (id *CMID) PushRequest(e rpc.CMEvent, mk func(child *CMID) IDHandler) error {
	s := id.s
	s.mu.Lock()
	n := s.ids.next(s.limits.CMIDs)
	if n == 0 || s.ended() {
		s.mu.Unlock()
		return syscall.ENOMEM
	}
	if err := s.srv.ids.take(s.account(), s.Privileged()); err != nil {
		s.mu.Unlock()
		return err
	}
	if id.socket {
		if err := s.srv.pipes.take(s.account(), s.Privileged()); err != nil {
			s.srv.ids.give(s.account(), 1)
			s.mu.Unlock()
			return err
		}
	}
	ch := id.ch.Load()
	child := newCMID(s, ch, n)
	child.ps, child.socket = id.ps, id.socket
	s.ids.add(n, child)
	ch.ids++
	s.mu.Unlock()
	child.h = mk(child)
	e.Type = rpc.EvConnectRequest
	if err := (queuedEvent{id: id, child: child, ev: e}).push(); err != nil {
		child.h.Close() // the peer is refused either way
		s.dropID(child)
		return err
	}
	return nil
}
