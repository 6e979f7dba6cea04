package vnic

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/cm"
)

// A service of a device of RoCE has a Service ID that is none of rdma_cm's, such as those that
// RFC 4755 has for IP over InfiniBand: its connections are made by the same messages, whose private
// data are its own from the first octet on.

// A ServiceEventKind says what has happened to a connection of a service.
type ServiceEventKind uint8

const (
	// ServiceRequest: a peer asks for a connection. Accept or Reject answers.
	ServiceRequest ServiceEventKind = iota
	// ServiceReplied: the peer has accepted. Ready, or Reject, is next.
	ServiceReplied
	// ServiceEstablished: both ends are ready.
	ServiceEstablished
	// ServiceRejected: the peer does not want the connection, or no longer, for Reason.
	ServiceRejected
	// ServiceUnreachable: the peer does not answer.
	ServiceUnreachable
	// ServiceDisconnected: the connection is over.
	ServiceDisconnected
)

// A ServiceEvent tells what has happened to Conn.
type ServiceEvent struct {
	Kind        ServiceEventKind
	Conn        *ServiceConn
	Peer        netip.Addr
	Reason      uint16 // of ServiceRejected, as the message has it
	PrivateData []byte // as long as the message has room for; nil: there is no message
}

// ServiceDataLen is how many octets of private data each message of a service has room for: a
// request has the fewest.
const ServiceDataLen = cm.MaxServiceData

// A ServiceListener takes the requests for a service.
type ServiceListener struct {
	ctx      *Context
	l        *cm.Listener
	happened func(ServiceEvent)
	stop     func() bool
}

// A ServiceConn is one end of a connection of a service. Its queue pair is its owner's, which
// creates and destroys it.
type ServiceConn struct {
	ctx      *Context
	c        *cm.Conn
	peer     netip.Addr
	happened func(ServiceEvent)
	stop     func() bool
}

// ListenService takes requests for the service id of a device of RoCE, at all its addresses; at
// most backlog wait for an answer. happened is called for one event of the device after the other,
// of the connections that come of them, too; it must not wait.
func (c *Context) ListenService(id uint64, backlog int, happened func(ServiceEvent)) (
	*ServiceListener, error) {
	if c.dev.roce == nil {
		return nil, fmt.Errorf("listen for a service: %w", rdma.ErrUnsupported)
	}
	s := &ServiceListener{ctx: c, happened: happened}
	err := c.closedError()
	c.gsi(func(now time.Time, m *cm.Manager) {
		if c.life.Err() != nil {
			return
		}
		s.l, err = m.Listen(now, &cm.ListenRequest{Service: cm.Service{ID: id},
			Addr: netip.IPv6Unspecified(), Backlog: backlog})
		if err == nil {
			s.l.Owner = s
			s.stop = context.AfterFunc(c.life, s.close)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", c.dev.cfg.Name, err)
	}
	return s, nil
}

func (c *Context) gsi(f func(time.Time, *cm.Manager)) bool { return c.dev.roce.gsi.Load().Do(f) }

// Close takes no more requests.
func (s *ServiceListener) Close() {
	s.stop()
	s.close()
}

func (s *ServiceListener) close() {
	s.ctx.gsi(func(now time.Time, _ *cm.Manager) { s.l.Close(now) })
}

// Happened takes an event of connection management.
func (s *ServiceListener) Happened(e cm.Event) {
	n := &ServiceConn{ctx: s.ctx, c: e.Conn, peer: e.Source.Addr(), happened: s.happened}
	s.ctx.gsi(func(time.Time, *cm.Manager) { n.own() })
	n.Happened(e)
}

// own makes s the owner of its connection, which ends with its context. gsi calls it.
func (s *ServiceConn) own() {
	s.c.Owner = s
	s.stop = context.AfterFunc(s.ctx.life, s.close)
}

// A ServiceConnect says what ConnectService asks for.
type ServiceConnect struct {
	From, To    netip.Addr // From is an address of the device
	ID          uint64
	QP          rdma.QP // an RC queue pair, in Reset
	SRQ         bool
	ACKTimeout  uint8  // code of the local ACK timeout of both ends; 0: 19
	PrivateData []byte // up to ServiceDataLen
}

// ConnectService asks a peer for a connection. happened is as of ListenService.
func (c *Context) ConnectService(r *ServiceConnect, happened func(ServiceEvent)) (*ServiceConn,
	error) {
	if c.dev.roce == nil {
		return nil, fmt.Errorf("connect to a service: %w", rdma.ErrUnsupported)
	}
	n := &ServiceConn{ctx: c, peer: r.To, happened: happened}
	err := c.closedError()
	c.gsi(func(now time.Time, m *cm.Manager) {
		if c.life.Err() != nil {
			return
		}
		n.c, err = m.Connect(now, &cm.Request{
			From: r.From, To: r.To, Service: cm.Service{ID: r.ID}, QPN: r.QP.Num(), SRQ: r.SRQ,
			Retries: serviceRetries, RNRRetries: serviceRetries, ACKTimeout: r.ACKTimeout,
			PrivateData: r.PrivateData,
		})
		if err == nil {
			n.own()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connect to service %#016x of %v: %w", r.ID, r.To, err)
	}
	return n, nil
}

// serviceRetries is how often a packet is sent again, of RNR without end.
const serviceRetries = 7

// Happened takes an event of connection management.
func (s *ServiceConn) Happened(e cm.Event) {
	k, ok := serviceEvents[e.Kind]
	if !ok { // time wait: the owner makes a queue pair for each connection
		return
	}
	s.happened(ServiceEvent{Kind: k, Conn: s, Peer: s.peer, Reason: uint16(e.Reason),
		PrivateData: e.PrivateData})
}

var serviceEvents = map[cm.EventKind]ServiceEventKind{
	cm.EventRequest: ServiceRequest, cm.EventReplied: ServiceReplied,
	cm.EventEstablished: ServiceEstablished, cm.EventRejected: ServiceRejected,
	cm.EventUnreachable: ServiceUnreachable, cm.EventDisconnected: ServiceDisconnected,
}

// Accept moves qp to RTS, which waits for the way to the peer, and answers a request.
func (s *ServiceConn) Accept(qp rdma.QP, srq bool, privateData []byte) error {
	reply := &cm.Reply{QPN: qp.Num(), SRQ: srq, RNRRetries: serviceRetries, PrivateData: privateData}
	err := s.move(qp, reply)
	if err == nil && !s.ctx.gsi(func(now time.Time, _ *cm.Manager) { err = s.c.Accept(now, reply) }) {
		err = rdma.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("accept a connection of %v: %w", s.peer, err)
	}
	return nil
}

// Ready moves qp, which ConnectService was given, to RTS, which waits for the way to the peer, and
// tells the peer, which has replied.
func (s *ServiceConn) Ready(qp rdma.QP, privateData []byte) error {
	err := s.move(qp, nil)
	if err == nil && !s.ctx.gsi(func(now time.Time, _ *cm.Manager) {
		err = s.c.Ready(now, privateData)
	}) {
		err = rdma.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("connect with %v: %w", s.peer, err)
	}
	return nil
}

// move moves qp by what was agreed on.
func (s *ServiceConn) move(qp rdma.QP, reply *cm.Reply) error {
	var attr cm.Attr
	agreed := false
	s.ctx.gsi(func(time.Time, *cm.Manager) {
		if agreed = s.c.Agreed(); agreed {
			attr = s.c.Attr(reply)
		}
	})
	if !agreed {
		return syscall.ECONNABORTED
	}
	return s.ctx.dev.cm.MoveQP(&attr, qp.Modify)
}

// Reject refuses a request, or a peer's reply, by the word of a program (reason 28), and ends s.
func (s *ServiceConn) Reject(privateData []byte) {
	s.ctx.gsi(func(now time.Time, _ *cm.Manager) {
		_ = s.c.Reject(now, privateData) // an error: it is over
	})
	s.Close()
}

// Heard says that a packet of the peer's queue pair has come: the peer is ready, be its word for
// that late or lost.
func (s *ServiceConn) Heard() {
	s.ctx.gsi(func(now time.Time, _ *cm.Manager) {
		_ = s.c.Established(now) // an error: it is known, or over
	})
}

// Close ends the connection, or gives it up; the peer is told, and nothing more is heard of it.
func (s *ServiceConn) Close() {
	if s.stop != nil { // nil: the device was closed when the request came
		s.stop()
	}
	s.close()
}

func (s *ServiceConn) close() {
	s.ctx.gsi(func(now time.Time, _ *cm.Manager) { s.c.Close(now) })
}
