package shm

import (
	"sync"
	"syscall"
)

// maxAsync is how many async events may wait; further ones are dropped. Each object has few.
const maxAsync = 4096

// An AsyncQueue takes the async events of one open device. Any goroutine may push.
type AsyncQueue struct {
	mu       sync.Mutex
	pipe     *eventPipe
	q        []AsyncEvent
	reported map[asyncObj]uint32
}

type asyncObj struct{ kind, handle uint32 }

// Push queues an event and wakes the client. It does not block.
func (a *AsyncQueue) Push(e AsyncEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pipe.fd < 0 || len(a.q) >= maxAsync {
		return
	}
	a.q = append(a.q, e)
	a.pipe.token()
}

func (a *AsyncQueue) pop() (AsyncEvent, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.q) == 0 {
		return AsyncEvent{}, false
	}
	e := a.q[0]
	a.q = a.q[1:]
	if e.Kind != ObjNone {
		a.reported[asyncObj{e.Kind, e.Handle}]++
	}
	return e, true
}

// forget drops the events of an object that has been destroyed.
func (a *AsyncQueue) forget(kind, handle uint32) (r DestroyReply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := asyncObj{kind, handle}
	r.Reported = a.reported[o]
	delete(a.reported, o)
	kept := a.q[:0]
	for _, e := range a.q {
		if e.Kind == kind && e.Handle == handle {
			r.Tokens++
		} else {
			kept = append(kept, e)
		}
	}
	a.q = kept
	return r
}

func (a *AsyncQueue) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pipe.close()
	a.q = nil
}

// A cmChannel queues the events of some connection manager ids.
type cmChannel struct {
	handle uint32
	ids    int // guarded by Session.mu

	mu   sync.Mutex
	pipe *eventPipe
	q    []cmQueued
	max  int
}

type cmQueued struct {
	id    *CMID
	child *CMID // of a connect request
	ev    CMEvent
}

// hardEvents is where events other than requests stop too: an id has a handful in its life.
func (ch *cmChannel) hardEvents() int { return 16*ch.max + 65536 }

func (ch *cmChannel) push(e cmQueued) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	n := len(ch.q)
	if ch.pipe.fd < 0 || e.id.dead {
		return syscall.ENODEV
	}
	if e.child != nil && n >= ch.max || n >= ch.hardEvents() {
		return syscall.ENOMEM
	}
	ch.q = append(ch.q, e)
	ch.pipe.token()
	return nil
}

func (ch *cmChannel) pop() (CMEvent, bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.q) == 0 {
		return CMEvent{}, false
	}
	e := ch.q[0]
	ch.q[0] = cmQueued{}
	ch.q = ch.q[1:]
	e.id.reported++
	e.ev.ID, e.ev.UID = e.id.handle, e.id.uid
	if e.child != nil {
		e.ev.Child = e.child.handle
		e.child.known = true
	}
	return e.ev, true
}

// forget marks an id as gone, drops its events and returns the children among them that the client
// never heard of.
func (ch *cmChannel) forget(id *CMID) (r CMDestroyIDReply, children []*CMID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	id.dead = true
	r.Reported = id.reported
	kept := ch.q[:0]
	for _, e := range ch.q {
		if e.id == id {
			r.Tokens++
			if e.child != nil {
				children = append(children, e.child)
			}
		} else {
			kept = append(kept, e)
		}
	}
	clear(ch.q[len(kept):])
	ch.q = kept
	return r, children
}

func (ch *cmChannel) close() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.pipe.close()
	ch.q = nil
}

// A CMID is a connection manager id of a session: where its handler pushes events.
type CMID struct {
	s      *Session
	ch     *cmChannel
	handle uint32
	h      IDHandler // set once, before the client knows the handle

	// guarded by ch.mu
	uid      uint64
	reported uint32
	dead     bool
	known    bool // the client knows the handle
}

// Handle is how the client names the id.
func (id *CMID) Handle() uint32 { return id.handle }

// Push queues an event for the client: e's ID and UID are filled in. It does not block, and any
// goroutine may call it. An error means that nobody will take the event.
func (id *CMID) Push(e CMEvent) error { return id.ch.push(cmQueued{id: id, ev: e}) }

// PushRequest queues a CONNECT_REQUEST on a listener's id. mk makes the handler of the new id that
// goes with it; it is called before PushRequest returns, if there is room. An error means that
// there was none, and the connection should be refused: mk was not called, or what it returned has
// been closed. Do not call it with a lock that the handler's Close takes.
func (id *CMID) PushRequest(e CMEvent, mk func(child *CMID) IDHandler) error {
	s := id.s
	s.mu.Lock()
	n := s.ids.next(s.srv.limits.CMIDs)
	if n == 0 || s.ended() {
		s.mu.Unlock()
		return syscall.ENOMEM
	}
	child := &CMID{s: s, ch: id.ch, handle: n}
	s.ids.add(n, child)
	id.ch.ids++
	s.mu.Unlock()
	child.h = mk(child)
	e.Type = EvConnectRequest
	if err := id.ch.push(cmQueued{id: id, child: child, ev: e}); err != nil {
		child.h.Close() //nolint:errcheck // the peer is refused either way
		s.dropID(child)
		return err
	}
	return nil
}
