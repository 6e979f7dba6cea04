package cm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/roce/mad"
)

// A Service is what a Listener offers: a port of a port space of rdma_cm or, with ID, a service
// that has a Service ID of its own. The private data of a request for the latter are the program's
// alone, without an address header in front.
type Service struct {
	Space mad.PortSpace
	Port  uint16
	ID    uint64 // of none of rdma_cm's; 0: Space and Port say which
}

func (s Service) id() uint64 {
	if s.ID != 0 {
		return s.ID
	}
	return mad.ServiceID(s.Space, s.Port)
}

// serviceOf is the service of a Service ID.
func serviceOf(id uint64) Service {
	if space, port, ok := mad.ServiceOf(id); ok {
		return Service{Space: space, Port: port}
	}
	return Service{ID: id}
}

func (s Service) String() string {
	if s.ID != 0 {
		return fmt.Sprintf("service %#016x", s.ID)
	}
	return fmt.Sprintf("port %d of port space %#x", s.Port, s.Space)
}

// datagrams says that a service is looked up, and not connected to.
func (s Service) datagrams() bool {
	return s.Space == mad.PortSpaceUDP || s.Space == mad.PortSpaceIPoIB
}

type listenKey struct {
	service Service
	addr    netip.Addr
}

// A Listener takes the requests for a service.
type Listener struct {
	// Owner is the caller's.
	Owner any

	m       *Manager
	num     uint64
	key     listenKey
	backlog int
	waiting int // requests that have not been answered
	peers   map[peerKey]int
	only6   bool
	account *Account
}

// A ListenRequest says where to listen. An unspecified Addr stands for all of its family, that of
// IPv6 for both, unless Only6 is set.
type ListenRequest struct {
	Service Service
	Addr    netip.Addr
	Backlog int // how many requests wait for an answer at most
	Only6   bool
	Account *Account `json:"-"` // who listens, or nil
}

// Listen takes requests for a service. ErrInUse if there is a Listener of this service and address.
func (m *Manager) Listen(now time.Time, r *ListenRequest) (l *Listener, err error) {
	err = m.made(now, Call{Kind: CallListen, What: r, Account: r.Account}, func() (uint64, error) {
		l, err = m.listen(r)
		return l.Number(), err
	})
	return l, err
}

func (m *Manager) listen(r *ListenRequest) (*Listener, error) {
	key := listenKey{r.Service, plain(r.Addr)}
	if m.listeners[key] != nil {
		return nil, fmt.Errorf("listen at %v, %v: %w", r.Addr, r.Service, ErrInUse)
	}
	l := &Listener{m: m, num: m.number(), key: key, backlog: max(r.Backlog, 1),
		peers: map[peerKey]int{}, only6: r.Only6, account: r.Account}
	m.listeners[key] = l
	m.listened(r.Service)
	return l, nil
}

// Waiting is how many requests have not been answered.
func (l *Listener) Waiting() int { return l.waiting }

// Close takes no more requests. Those that have come can be answered as before; those that come now
// wait a moment for another Listener of the service, and are refused then.
func (l *Listener) Close(now time.Time) {
	_ = l.m.noted(now, Call{Kind: CallUnlisten, Of: l.num}, func() error { // which does not fail
		if l.m.listeners[l.key] == l {
			delete(l.m.listeners, l.key)
			l.m.left(now, l.key.service)
		}
		return nil
	})
}

// listener is who takes requests for service that come to addr, nil: nobody does. datagrams says
// what is asked for.
func (m *Manager) listener(service uint64, addr netip.Addr, datagrams bool) *Listener {
	s := serviceOf(service)
	if s.datagrams() != datagrams {
		return nil
	}
	all := []netip.Addr{addr, netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if addr.Is6() {
		all[1] = addr
	}
	for _, a := range all {
		if l := m.listeners[listenKey{s, a}]; l != nil && !(l.only6 && a.Is6() && addr.Is4()) {
			return l
		}
	}
	return nil
}
