package overroce

import (
	"net/netip"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A carrier makes connections: with RoCE's connection manager, or as streams of iWARP. What comes
// of its attempts it tells by Link.tell.
type carrier interface {
	// connect asks a peer for a connection, which is qp's.
	connect(o *ipoib.Output, qp rdma.QP) (attempt, error)
	// close takes no more requests.
	close()
}

// An attempt is to become a connection, or is one. Its methods are as those of vnic.ServiceConn.
type attempt interface {
	Accept(qp rdma.QP, srq bool, private []byte) error
	Ready(qp rdma.QP, private []byte) error
	Reject(private []byte)
	Heard()
	Close()
}

// An event tells what has come of an attempt.
type event struct {
	kind    vnic.ServiceEventKind
	attempt attempt
	peer    ipoib.GID
	reason  uint16
	private []byte
}

// tell takes an event.
func (l *Link) tell(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newsLocked(news{event: &e})
}

// requestBacklog is how many requests for connections wait for an answer.
const requestBacklog = 64

// ackTimeout is the code of the local ACK timeout of connections, 134 ms: less than TCP waits
// before it sends again (RFC 4755, section 7.1).
const ackTimeout = 15

// A service makes reliable connections of RoCE, by the messages of its connection manager.
type service struct {
	l        *Link
	own      netip.Addr
	listener *vnic.ServiceListener
}

func newService(l *Link, own ipoib.LinkAddr) (*service, error) {
	s := &service{l: l, own: own.GID.Addr()}
	var err error
	s.listener, err = l.connSide.ctx.ListenService(ipoib.ServiceID(own.QPN), requestBacklog, s.told)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *service) told(e vnic.ServiceEvent) {
	s.l.tell(event{e.Kind, e.Conn, ipoib.GID(rdma.GIDOf(e.Peer)), e.Reason, e.PrivateData})
}

func (s *service) connect(o *ipoib.Output, qp rdma.QP) (attempt, error) {
	return s.l.connSide.ctx.ConnectService(&vnic.ServiceConnect{
		From: s.own, To: o.To.GID.Addr().Unmap(), ID: o.Service, QP: qp, SRQ: true,
		ACKTimeout: ackTimeout, PrivateData: o.Private,
	}, s.told)
}

func (s *service) close() { s.listener.Close() }
