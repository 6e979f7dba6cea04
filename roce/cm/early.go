package cm

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A program may close its Listener and soon listen at the same port again. What peers ask for in
// between waits a moment: both sides of perftest's programs sleep for a second there, and a client
// that is awake first, and refused, crashes (docs/decisions.md#C9). With datagrams they connect
// first, and the client looks the server up at the same port while that begins to listen there.

const (
	lull     = 2 * time.Second // for which a service outlives its last Listener
	maxLulls = 1024
	maxEarly = 64 // requests that wait
)

// An early request has come when nobody listened any more.
type early struct {
	m        *Manager
	num      uint64
	service  Service
	from, to netip.Addr
	mad      []byte
	timer    timer
}

// left notes that a service has no Listener any more.
func (m *Manager) left(now time.Time, s Service) {
	if len(m.lulls) >= maxLulls {
		maps.DeleteFunc(m.lulls, func(_ Service, until time.Time) bool { return !until.After(now) })
	}
	if len(m.lulls) < maxLulls {
		m.lulls[s] = now.Add(lull)
	}
}

// waits has a request of which nobody takes the service wait for who does, if somebody did a moment
// ago.
func (in *incoming) waits(service uint64) bool {
	m := in.m
	s := serviceOf(service)
	until := m.lulls[s]
	if !until.After(in.now) || len(m.early) >= maxEarly {
		return false
	}
	e := &early{m: m, num: m.number(), service: s, from: in.from, to: in.to, mad: clone(in.mad)}
	e.timer.due = e.again
	m.early = append(m.early, e)
	m.timers.set(&e.timer, until)
	return true
}

// lookUpWaits is waits for a look-up, which may also be of a program that is connected to at the
// same port, or was a moment ago: the first one since that began to listen waits for it.
func (in *incoming) lookUpWaits(service uint64) bool {
	m := in.m
	s := serviceOf(service)
	connected := Service{Space: mad.PortSpaceTCP, Port: s.Port}
	_, known := m.lulls[s]
	if !known && s.Space == mad.PortSpaceUDP &&
		(m.listener(connected.id(), in.to, false) != nil || m.lulls[connected].After(in.now)) {
		m.left(in.now, s)
	}
	return in.waits(service)
}

// again takes the request once more.
func (e *early) again(now time.Time) {
	m := e.m
	m.early = slices.DeleteFunc(m.early, func(x *early) bool { return x == e })
	m.take(now, e.from, e.to, e.mad)
}

// listened has those that wait for a service be taken at once.
func (m *Manager) listened(s Service) {
	delete(m.lulls, s)
	if s.Space == mad.PortSpaceTCP {
		delete(m.lulls, Service{Space: mad.PortSpaceUDP, Port: s.Port}) // see lookUpWaits
	}
	for _, e := range m.early {
		if e.service == s {
			m.timers.set(&e.timer, time.Time{})
		}
	}
}
