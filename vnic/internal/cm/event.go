package cm

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// An EventType says what happened to a connection. The numbers are enum rdma_cm_event_type's.
type EventType uint32

const (
	AddrResolved   EventType = 0
	AddrError      EventType = 1
	RouteResolved  EventType = 2
	RouteError     EventType = 3
	ConnectRequest EventType = 4
	// ConnectResponse: the peer has accepted, and the program takes its QP to RTS itself.
	ConnectResponse EventType = 5
	ConnectError    EventType = 6
	Unreachable     EventType = 7
	Rejected        EventType = 8
	Established     EventType = 9
	Disconnected    EventType = 10
	DeviceRemoval   EventType = 11
	MulticastJoin   EventType = 12
	MulticastError  EventType = 13
	TimewaitExit    EventType = 15
)

var eventNames = map[EventType]string{
	AddrResolved: "ADDR_RESOLVED", AddrError: "ADDR_ERROR", RouteResolved: "ROUTE_RESOLVED",
	RouteError: "ROUTE_ERROR", ConnectRequest: "CONNECT_REQUEST",
	ConnectResponse: "CONNECT_RESPONSE", ConnectError: "CONNECT_ERROR",
	Unreachable: "UNREACHABLE", Rejected: "REJECTED", Established: "ESTABLISHED",
	Disconnected: "DISCONNECTED", DeviceRemoval: "DEVICE_REMOVAL", MulticastJoin: "MULTICAST_JOIN",
	MulticastError: "MULTICAST_ERROR", TimewaitExit: "TIMEWAIT_EXIT",
}

func (t EventType) String() string {
	if n, ok := eventNames[t]; ok {
		return "RDMA_CM_EVENT_" + n
	}
	return fmt.Sprintf("RDMA_CM_EVENT_%d", uint32(t))
}

// An Event tells the owner of an ID what happened to it.
type Event struct {
	Type   EventType
	Status int32 // 0, or -errno, or what a peer of RoCE has said: why it rejects, or has no QP
	ID     *ID   // of a CONNECT_REQUEST: the new one, which is to be accepted, rejected or closed
	// Listener is the ID that a CONNECT_REQUEST came to, nil otherwise.
	Listener *ID
	// Param holds the peer's private data, and the IRD and ORD: the peer's in a
	// CONNECT_REQUEST, what was agreed in ESTABLISHED. 0: unknown, rdma.NoReads: none.
	Param rdma.ConnParam
	// Group is the tag of Join, of MULTICAST_JOIN and MULTICAST_ERROR.
	Group uint64
	Err   error // what Status stands for; of DISCONNECTED: nil for a graceful end
}

// emit gives ev to id's handler, behind what was emitted before. The handler runs here, or ev is
// left to who is running it now. After id was closed nothing is delivered.
func (id *ID) emit(ev Event) {
	id.enqueue(ev)
	id.deliver()
}

// emitInOrder is emit with the handler called from another goroutine, unless the user is one of
// UserConfig.InlineEvents: the caller may hold a lock that its handler takes. What the ids of a
// user emit so is delivered one after the other, in the order of the calls.
func (id *ID) emitInOrder(ev Event) {
	id.enqueue(ev)
	id.user.events.deliver(id)
}

// An eventQueue has ids with events to deliver. Linux has a work queue for them that is as orderly,
// and a program counts on that: perftest connects each QP when the event of its id comes, and pairs
// them by that order (-q).
type eventQueue struct {
	user *User
	mu   sync.Mutex
	ids  []*ID // +checklocks:mu
	// running: somebody takes from ids.
	running bool // +checklocks:mu
}

func (q *eventQueue) deliver(id *ID) {
	q.mu.Lock()
	q.ids = append(q.ids, id)
	running := q.running
	q.running = true
	q.mu.Unlock()
	switch {
	case running:
	case q.user.cfg.InlineEvents:
		q.run()
	case !q.user.start(q.run):
		q.mu.Lock()
		q.ids, q.running = nil, false // the user is being shut down, which nobody is told
		q.mu.Unlock()
	}
}

func (q *eventQueue) run() {
	over := false
	defer func() {
		if !over { // a handler panics: the next call of deliver goes on
			q.mu.Lock()
			q.running = false
			q.mu.Unlock()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.ids) == 0 {
			q.ids, q.running, over = nil, false, true
			q.mu.Unlock()
			return
		}
		id := q.ids[0]
		q.ids = q.ids[1:]
		q.mu.Unlock()
		id.deliver()
	}
}

func (id *ID) enqueue(ev Event) {
	if ev.ID == nil {
		ev.ID = id
	}
	id.mu.Lock()
	if id.state != stateClosed {
		id.events = append(id.events, ev)
	}
	id.mu.Unlock()
}

func (id *ID) deliver() {
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
		if ev.Type == ConnectRequest {
			ev.ID.announced.Store(true)
		}
		callHandler(h, ev)
	}
}

// callHandler calls a handler of events. inHandler knows it by its name.
func callHandler(h func(Event), ev Event) { h(ev) }

var callHandlerName = runtime.FuncForPC(reflect.ValueOf(callHandler).Pointer()).Name()

// inHandler reports whether the caller is called by a handler of events, of whichever ID.
func inHandler() bool {
	var pcs [64]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			if f, more = frames.Next(); f.Function == callHandlerName {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

// nextEvent takes the oldest event; false: there is none, and delivering is over.
func (id *ID) nextEvent() (ev Event, h func(Event), ok bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if len(id.events) == 0 || id.state == stateClosed {
		id.events = nil
		id.deliveredLocked()
		return ev, nil, false
	}
	ev = id.events[0]
	id.events = id.events[1:]
	return ev, id.handler, true
}

// deliveredLocked says that nobody calls the handler.
//
// +checklocks:id.mu
func (id *ID) deliveredLocked() {
	id.delivering = false
	if id.delivered != nil {
		close(id.delivered)
		id.delivered = nil
	}
}

// SetHandler replaces the handler of id; later events go to h. For a child it is called inside
// the handler of the CONNECT_REQUEST.
func (id *ID) SetHandler(h func(Event)) {
	id.mu.Lock()
	id.handler = h
	id.mu.Unlock()
}
