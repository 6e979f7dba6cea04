package vnic

import (
	"fmt"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// A CMEventType says what happened to a connection. The numbers are enum rdma_cm_event_type's.
type CMEventType uint32

const (
	CMAddrResolved   CMEventType = 0
	CMAddrError      CMEventType = 1
	CMRouteResolved  CMEventType = 2
	CMRouteError     CMEventType = 3
	CMConnectRequest CMEventType = 4
	CMConnectError   CMEventType = 6
	CMUnreachable    CMEventType = 7
	CMRejected       CMEventType = 8
	CMEstablished    CMEventType = 9
	CMDisconnected   CMEventType = 10
	CMDeviceRemoval  CMEventType = 11
)

var cmEventNames = map[CMEventType]string{
	CMAddrResolved: "ADDR_RESOLVED", CMAddrError: "ADDR_ERROR", CMRouteResolved: "ROUTE_RESOLVED",
	CMRouteError: "ROUTE_ERROR", CMConnectRequest: "CONNECT_REQUEST", CMConnectError: "CONNECT_ERROR",
	CMUnreachable: "UNREACHABLE", CMRejected: "REJECTED", CMEstablished: "ESTABLISHED",
	CMDisconnected: "DISCONNECTED", CMDeviceRemoval: "DEVICE_REMOVAL",
}

func (t CMEventType) String() string {
	if n, ok := cmEventNames[t]; ok {
		return "RDMA_CM_EVENT_" + n
	}
	return fmt.Sprintf("RDMA_CM_EVENT_%d", uint32(t))
}

// A CMEvent tells the owner of a CMID what happened to it.
type CMEvent struct {
	Type   CMEventType
	Status int32 // 0, or -errno
	ID     *CMID // of a CONNECT_REQUEST: the new one, which is to be accepted, rejected or closed
	// Listener is the CMID that a CONNECT_REQUEST came to, nil otherwise.
	Listener *CMID
	// Param holds the peer's private data, and the IRD and ORD: the peer's in a
	// CONNECT_REQUEST, what was agreed in ESTABLISHED. 0: unknown, rdma.NoReads: none.
	Param rdma.ConnParam
	Err   error // what Status stands for; of DISCONNECTED: nil for a graceful end
}

// emit gives ev to id's handler, behind what was emitted before. The handler runs here, or ev is
// left to who is running it now. After id was closed nothing is delivered.
func (id *CMID) emit(ev CMEvent) {
	id.enqueue(ev)
	id.deliver()
}

// later is emit with the handler called from another goroutine, unless the context is one of ContextConfig.Within: the caller
// may hold a lock that its handler takes. What the ids of a context emit so is delivered one after the other, in the order of the calls.
func (id *CMID) later(ev CMEvent) {
	id.enqueue(ev)
	id.ctx.later.deliver(id)
}

// A laterQueue are ids with events to deliver. Linux has a work queue for them that is as orderly, and a program counts on that:
// perftest connects each QP when the event of its id comes, and pairs them by that order (-q).
type laterQueue struct {
	ctx  *Context
	mu   sync.Mutex
	ids  []*CMID // guarded by mu
	runs bool    // guarded by mu: somebody takes from ids
}

func (q *laterQueue) deliver(id *CMID) {
	q.mu.Lock()
	q.ids = append(q.ids, id)
	runs := q.runs
	q.runs = true
	q.mu.Unlock()
	switch {
	case runs:
	case q.ctx.cfg.Within:
		q.run()
	case !q.ctx.start(q.run):
		q.mu.Lock()
		q.ids, q.runs = nil, false // the context is being closed, which nobody is told
		q.mu.Unlock()
	}
}

func (q *laterQueue) run() {
	over := false
	defer func() {
		if !over { // a handler panics: the next call of deliver goes on
			q.mu.Lock()
			q.runs = false
			q.mu.Unlock()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.ids) == 0 {
			q.ids, q.runs, over = nil, false, true
			q.mu.Unlock()
			return
		}
		id := q.ids[0]
		q.ids = q.ids[1:]
		q.mu.Unlock()
		id.deliver()
	}
}

func (id *CMID) enqueue(ev CMEvent) {
	if ev.ID == nil {
		ev.ID = id
	}
	id.mu.Lock()
	if id.state != cmClosed {
		id.events = append(id.events, ev)
	}
	id.mu.Unlock()
}

func (id *CMID) deliver() {
	id.mu.Lock()
	if id.delivering {
		id.mu.Unlock()
		return
	}
	id.delivering = true
	id.mu.Unlock()
	over := false
	defer func() {
		if !over { // a handler panics: what waits for it is let go, and the panic goes on
			id.mu.Lock()
			id.deliveredLocked()
			id.mu.Unlock()
		}
	}()
	for {
		ev, h, ok := id.nextEvent()
		if !ok {
			over = true
			return
		}
		if h == nil {
			continue
		}
		if ev.Type == CMConnectRequest {
			ev.ID.announced.Store(true)
		}
		h(ev)
	}
}

// nextEvent takes the oldest event; false: there is none, and delivering is over.
func (id *CMID) nextEvent() (ev CMEvent, h func(CMEvent), ok bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if len(id.events) == 0 || id.state == cmClosed {
		id.events = nil
		id.deliveredLocked()
		return ev, nil, false
	}
	ev = id.events[0]
	id.events = id.events[1:]
	return ev, id.handler, true
}

// deliveredLocked says that nobody calls the handler.
func (id *CMID) deliveredLocked() {
	id.delivering = false
	if id.quiet != nil {
		close(id.quiet)
		id.quiet = nil
	}
}

// SetHandler replaces the handler of id; later events go to h. For a child it is called inside
// the handler of the CONNECT_REQUEST.
func (id *CMID) SetHandler(h func(CMEvent)) {
	id.mu.Lock()
	id.handler = h
	id.mu.Unlock()
}
