package cm

import (
	"net/netip"
	"sync/atomic"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/vnic/internal/llp"
)

// A Connectable is a queue pair as programs have it.
type Connectable interface {
	CM() QP // nil: there is none
}

// A QP is what the connection manager asks of a queue pair. Its methods may be called by any
// goroutine.
type QP interface {
	Num() uint32
	User() *User // whose it is
	// Reserve keeps the QP for a, until Release or the end of the connection. rdma.ErrBusy if another
	// Attempt has it, rdma.ErrInvalid if it is not Idle, or of RoCE not in Reset or Init,
	// rdma.ErrClosed.
	Reserve(a *Attempt) error
	// Release gives a QP back that a has not connected. failed says that this was tried: then the QP
	// goes to Error for err (Q2).
	Release(a *Attempt, failed bool, err error)
	// End is Release, or ends a's connection at once. It does not run the QP on the caller's
	// goroutine.
	End(a *Attempt)
	// Disconnect begins the graceful end of a's connection, as End does. then, if it is not nil, is
	// called when that has been done, by who runs the QP, but not if the QP is destroyed first.
	Disconnect(a *Attempt, then func())
	// Modify changes attributes of a QP of RoCE, see rdma.QP. If wait is set it waits for the way to
	// the peer; else, of a user who is not to wait, EINPROGRESS says that it is not known at once.
	Modify(attr *rdma.QPAttr, mask rdma.QPAttrMask, wait bool) error
	// Receives is how many receives are posted; shared: they are those of an SRQ.
	Receives() (n int, shared bool)
	// Blocks reports that running the QP may wait for a program's memory.
	Blocks() bool
	// OverStream makes the Link of a connection over c.Stream. After an error the Stream is the
	// caller's.
	OverStream(c Connection) (Link, error)
	// OverLoop makes the two Links of a connection with peer, a QP of the same device, to which it is
	// other.
	OverLoop(c Connection, peer QP, other Connection) (own, peers Link, err error)
}

// A Link joins a QP, which has made it, to its peer.
type Link interface {
	// Attach connects the QP, which a has reserved: RTS comes first, then a.Established, then data
	// (docs/decisions.md#V12). It may wait for who runs the QP. After an error the Link is aborted.
	Attach(a *Attempt) error
	// Abort gives up a Link that is not attached.
	Abort()
}

// A Connection is what a handshake has come to.
type Connection struct {
	Local, Remote netip.AddrPort
	Param         iwarp.Params   // as agreed
	Asked         rdma.ConnParam // by this end's program
	Stream        llp.Stream     // nil on loopback
	ROI           *ROI           // nil: the protocol is iWARP
}

// An Attempt joins an ID and a QP, from Connect or Accept to the end of the connection.
type Attempt struct {
	id       *ID
	qp       QP
	canceled atomic.Bool
	grant    *grant         // of a connection that a peer has asked for
	param    rdma.ConnParam // as agreed, for Established
	accepts  bool           // of RoCE: the end that has been asked
	roi      *roi.Setup     // what this end brings; nil: the protocol is iWARP
}

// newAttempt reserves q for a connection of id.
func (id *ID) newAttempt(q Connectable) (*Attempt, error) {
	var qp QP
	if q != nil {
		qp = q.CM()
	}
	if qp == nil || qp.User() != id.user {
		return nil, invalid("connect a QP of another device")
	}
	a := &Attempt{id: id, qp: qp}
	if err := qp.Reserve(a); err != nil {
		return nil, err
	}
	return a, nil
}

// attach connects a's QP by l, as c says. g is what the peer holds if it has asked for the
// connection.
func (a *Attempt) attach(l Link, c *Connection, g *grant) error {
	a.param = agreed(&c.Param)
	if c.ROI == nil {
		a.param.Extensions = c.Stream == nil || c.Asked.Extensions
	} else {
		a.param.Protocol = rdma.ROI
		a.param.ROI = rdma.ROIParam{NoSendCredits: !c.ROI.Own.Sends, NoReadCredits: !c.ROI.Own.Reads}
	}
	a.param.SCTP = c.Stream != nil && c.Stream.Properties().Transport == llp.SCTP
	a.grant = g
	g.connect()
	err := l.Attach(a)
	if err != nil {
		g.disconnect()
	}
	return err
}

// release ends an attempt that did not come to a connection.
func (a *Attempt) release(failed bool, err error) {
	if a == nil {
		return
	}
	a.canceled.Store(true)
	a.qp.Release(a, failed, err)
}

// Canceled reports that nobody waits for the connection any more.
func (a *Attempt) Canceled() bool { return a.canceled.Load() }

// Established says that the QP is connected; who runs it calls this, before any data moves.
func (a *Attempt) Established() {
	a.id.established(a.param)
	a.param = rdma.ConnParam{}
}

// LinkEnded says that the QP has given its link back; who runs it calls this.
func (a *Attempt) LinkEnded() { a.grant.disconnect() }

// Ended says that the connection is over and the QP flushed; who runs it calls this, once. err is
// nil for a graceful end.
func (a *Attempt) Ended(err error) { a.id.disconnected(a, err) }
