package overroce

import (
	"net/netip"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// StreamPort is the port of TCP, and of SCTP, at which an interface takes streams: the number that
// RoCE has of UDP (docs/decisions.md#I9).
const StreamPort = 4791

// streams makes connections of streams of iWARP: what RFC 4755 has in messages of the connection
// manager is in the private data of MPA, or of RFC 5043.
type streams struct {
	l        *Link
	own      ipoib.LinkAddr
	listener *vnic.CMID
}

func newStreams(l *Link, own ipoib.LinkAddr) (*streams, error) {
	s := &streams{l: l, own: own}
	var err error
	if s.listener, err = l.connSide.ctx.NewCMID(s.requested); err != nil {
		return nil, err
	}
	err = s.listener.Bind(netip.AddrPortFrom(own.GID.Addr(), StreamPort))
	if err == nil {
		err = s.listener.Listen(requestBacklog)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *streams) close() {
	_ = s.listener.Close() // a second call does nothing
}

// private is what a message of the set-up says; the Interface says the same of itself.
func (s *streams) private(service uint64, reason uint16) []byte {
	return ipoib.StreamPrivate{
		Private: ipoib.Private{QPN: s.own.QPN, MTU: uint32(s.l.cfg.MTU + ipoib.HeaderLen)},
		Service: service, GID: s.own.GID, Reason: reason,
	}.Append(nil)
}

// requested takes a peer's request. Who says that it is another port than the one that it is gets
// nothing.
func (s *streams) requested(e vnic.CMEvent) {
	if e.Type != vnic.CMConnectRequest {
		return
	}
	a := &stream{s: s, id: e.ID, service: ipoib.ServiceID(s.own.QPN)}
	e.ID.SetHandler(a.happened)
	p, ok := ipoib.ParseStreamPrivate(e.Param.PrivateData)
	switch {
	case !ok || p.GID.Addr() != e.ID.Remote().Addr():
		a.refuse(ipoib.ReasonConsumer)
	case p.Service != a.service:
		a.refuse(ipoib.ReasonService)
	default:
		s.l.tell(event{vnic.ServiceRequest, a, p.GID, 0, p.Private.Append(nil)})
	}
}

func (s *streams) connect(o *ipoib.Output, qp rdma.QP) (attempt, error) {
	a := &stream{s: s, peer: o.To.GID, service: o.Service, qp: qp}
	var err error
	if a.id, err = s.l.connSide.ctx.NewCMID(a.happened); err != nil {
		return nil, err
	}
	err = a.id.ResolveAddr(s.own.GID.Addr(), netip.AddrPortFrom(o.To.GID.Addr(), StreamPort), 0)
	if err != nil {
		_ = a.id.Close() // nothing came of it
		return nil, err
	}
	return a, nil
}

// A stream is a connection of iWARP.
type stream struct {
	s       *streams
	id      *vnic.CMID
	service uint64
	// of one that this end asks for
	peer ipoib.GID
	qp   rdma.QP
}

var _ attempt = (*stream)(nil)

func (a *stream) tell(kind vnic.ServiceEventKind) { a.s.l.tell(event{kind: kind, attempt: a}) }

// happened takes an event of the id.
func (a *stream) happened(e vnic.CMEvent) {
	var err error
	switch e.Type {
	case vnic.CMAddrResolved:
		err = a.id.ResolveRoute(0)
	case vnic.CMRouteResolved:
		err = a.id.Connect(a.qp.(vnic.Connectable), rdma.ConnParam{SCTP: a.s.l.cfg.SCTP,
			PrivateData: a.s.private(a.service, 0)})
	case vnic.CMEstablished:
		if a.qp == nil { // the peer has asked
			a.tell(vnic.ServiceEstablished)
			return
		}
		p, ok := ipoib.ParseStreamPrivate(e.Param.PrivateData)
		if !ok || p.GID != a.peer || p.Service != a.service { // it is somebody else
			a.tell(vnic.ServiceRejected)
			return
		}
		a.s.l.tell(event{vnic.ServiceReplied, a, a.peer, 0, p.Private.Append(nil)})
	case vnic.CMRejected:
		p, _ := ipoib.ParseStreamPrivate(e.Param.PrivateData)
		a.s.l.tell(event{kind: vnic.ServiceRejected, attempt: a, peer: a.peer, reason: p.Reason})
	case vnic.CMDisconnected:
		a.tell(vnic.ServiceDisconnected)
	default:
		a.tell(vnic.ServiceUnreachable)
	}
	if err != nil {
		a.tell(vnic.ServiceUnreachable)
	}
}

// Accept answers the peer, with the Service ID that it has asked for.
func (a *stream) Accept(qp rdma.QP, _ bool, _ []byte) error {
	return a.id.Accept(qp.(vnic.Connectable), rdma.ConnParam{PrivateData: a.s.private(a.service, 0)})
}

// Ready has nothing to tell: the peer knows by the ready-to-receive message of RFC 6581.
func (a *stream) Ready(rdma.QP, []byte) error {
	a.tell(vnic.ServiceEstablished)
	return nil
}

// Reject refuses a request by the word of a program, or ends what the peer has accepted.
func (a *stream) Reject([]byte) { a.refuse(ipoib.ReasonConsumer) }

func (a *stream) refuse(reason uint16) {
	if a.qp == nil {
		_ = a.id.Reject(a.s.private(a.service, reason)) // an error: the peer has gone
	}
	a.Close()
}

// Heard has nothing to do: there is a stream when both ends are ready.
func (a *stream) Heard() {}

func (a *stream) Close() { _ = a.id.Close() } // a second call does nothing
