package vnic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/credit"
	"github.com/vrnic/vrnic/vnic/internal/link/loop"
	"github.com/vrnic/vrnic/vnic/internal/link/stream"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/session"
	"github.com/vrnic/vrnic/vnic/internal/stats"
)

// What a Device asks of the transport below it. A Network with SCTP, with ports or with the order
// of requests is an SCTPNetwork, a PortNetwork or an OrderedNetwork, too, and one that carries
// RoCE's packets a RoCENetwork.
type (
	Network        = cm.Network
	PortNetwork    = cm.PortNetwork
	OrderedNetwork = cm.OrderedNetwork
	StreamListener = cm.StreamListener

	SCTPNetwork        = session.Network
	SCTPUse            = session.Use
	Association        = session.Association
	AssociationHandler = session.Handler

	RoCENetwork  = datagram.Network
	RoCEPort     = datagram.Port
	RoCERoute    = datagram.Route
	RoCESource   = datagram.Source
	RoCEReceiver = datagram.Receiver
	RoCEPacket   = datagram.Packet
	RoCEKept     = datagram.Kept
)

// What an association is for.
const (
	SCTPForDDP = session.DDP
	SCTPForROI = session.ROI
)

// A CMID is one end of a connection, or a listener, as rdma_cm_id is. Its Connect and Accept take a
// *QP of the same Context.
type CMID = cm.ID

// CMSharing is how a CMID has its port.
type CMSharing = cm.Sharing

// A Connectable is a *QP, or nil for an identifier of datagrams that names none, or of a
// connection whose program moves its QP itself.
type Connectable = cm.Connectable

// A CMEvent tells the owner of a CMID what happened to it.
type CMEvent = cm.Event

// A CMEventType says what happened to a connection. The numbers are enum rdma_cm_event_type's.
type CMEventType = cm.EventType

const (
	CMAddrResolved    = cm.AddrResolved
	CMAddrError       = cm.AddrError
	CMRouteResolved   = cm.RouteResolved
	CMRouteError      = cm.RouteError
	CMConnectRequest  = cm.ConnectRequest
	CMConnectResponse = cm.ConnectResponse
	CMConnectError    = cm.ConnectError
	CMUnreachable     = cm.Unreachable
	CMRejected        = cm.Rejected
	CMEstablished     = cm.Established
	CMDisconnected    = cm.Disconnected
	CMDeviceRemoval   = cm.DeviceRemoval
	CMMulticastJoin   = cm.MulticastJoin
	CMMulticastError  = cm.MulticastError
	CMTimewaitExit    = cm.TimewaitExit
)

// A PeerInfo says what one peer has of a device, and Refusals count what was refused.
type (
	PeerInfo = cm.PeerInfo
	Refusals = cm.Refusals
)

// newCM makes the connection manager of d.
func (d *Device) newCM() *cm.Manager {
	c, t := &d.cfg, &d.cfg.Timeouts
	cfg := cm.Config{
		Name: c.Name, Network: c.Network, Owns: d.owns, Route: d.route, Log: d.log,
		OnWire:  func() bool { return c.ForceWire || d.watched.Load() != 0 },
		Connect: t.Connect, MPARequest: t.MPARequest, MPAReply: t.MPAReply, Turn: t.Turn,
		MaxPending: c.MaxPending, MaxPendingPerPeer: c.MaxPendingPerPeer,
		MaxHalfOpen: c.MaxHalfOpen, MaxHalfOpenPerPeer: c.MaxHalfOpenPerPeer,
		MaxConnsPerPeer: c.MaxConnsPerPeer, Tape: d.tape,
	}
	for _, p := range c.Addrs {
		cfg.Addrs = append(cfg.Addrs, p.Addr())
	}
	if d.roce != nil {
		cfg.RoCE = d.newRoCECM()
	}
	return cm.New(cfg)
}

// Peers describes the peers that have asked for connections, those with most first.
func (d *Device) Peers() []PeerInfo { return d.cm.Peers() }

// NewCMID makes an identifier whose events go to handler. rdma.ErrLimit, rdma.ErrClosed.
func (c *Context) NewCMID(handler func(CMEvent)) (*CMID, error) {
	return c.cm.NewID(cm.PortSpaceTCP, handler)
}

// NewDatagramCMID is NewCMID for the port space of datagrams: by such an identifier QPs of type UD
// are found (Connect, Listen, Accept), and multicast groups are joined. rdma.ErrUnsupported on a
// device of iWARP.
func (c *Context) NewDatagramCMID(handler func(CMEvent)) (*CMID, error) {
	return c.cm.NewID(cm.PortSpaceUDP, handler)
}

// Listen takes connection requests for addr.
func (c *Context) Listen(addr netip.AddrPort, backlog int) (rdma.Listener, error) {
	return c.cm.Listen(addr, backlog)
}

// Connect connects qp to remote and waits for the peer's answer.
func (c *Context) Connect(ctx context.Context, qp rdma.QP, remote netip.AddrPort,
	p rdma.ConnParam) (rdma.Conn, error) {
	return c.cm.Connect(ctx, qp, remote, p)
}

// CM returns qp as the connection manager sees it.
func (qp *QP) CM() cm.QP {
	if qp == nil {
		return nil
	}
	return (*connectable)(qp)
}

// A connectable is a QP as the connection manager sees it.
type connectable QP

func (c *connectable) Num() uint32    { return c.num }
func (c *connectable) User() *cm.User { return c.ctx.cm }
func (c *connectable) Blocks() bool   { return c.ctx.mem.Blocking() }

func (c *connectable) Reserve(a *cm.Attempt) error {
	qp := (*QP)(c)
	switch {
	case qp.destroying.Load():
		return fmt.Errorf("connect QP %d: %w", qp.num, rdma.ErrClosed)
	case qp.packets == nil && qp.State() != rdma.QPIdle, qp.packets != nil && !qp.connects():
		return fmt.Errorf("connect QP %d in state %v: %w", qp.num, qp.State(), rdma.ErrInvalid)
	case !qp.bound.CompareAndSwap(nil, a):
		return fmt.Errorf("connect QP %d, which is being connected: %w", qp.num, rdma.ErrBusy)
	}
	return nil
}

func (c *connectable) Release(a *cm.Attempt, failed bool, err error) {
	qp := (*QP)(c)
	qp.call(func() {
		if qp.attached || !qp.bound.CompareAndSwap(a, nil) {
			return
		}
		if failed && (qp.packets != nil || qp.State() == rdma.QPIdle) {
			qp.toError(err)
		}
	})
}

func (c *connectable) End(a *cm.Attempt) {
	qp := (*QP)(c)
	qp.callAsync(func() {
		if qp.packets != nil {
			if qp.bound.CompareAndSwap(a, nil) {
				qp.toError(nil)
			}
		} else if qp.attached && qp.bound.Load() == a {
			qp.leave()
			qp.toError(nil)
		} else {
			qp.bound.CompareAndSwap(a, nil)
		}
	})
}

func (c *connectable) Disconnect(a *cm.Attempt, then func()) {
	qp := (*QP)(c)
	qp.callAsync(func() {
		switch {
		case qp.bound.Load() != a:
		case qp.packets != nil:
			qp.toError(nil)
		case qp.attached:
			qp.disconnect()
		}
		if then != nil {
			then()
		}
	})
}

// Receives implements cm.QP.
func (c *connectable) Receives() (n int, shared bool) {
	qp := (*QP)(c)
	qp.do(func() { n = qp.work.Recv.Posted() })
	return n, qp.work.Queues.Tap != nil
}

func (c *connectable) OverStream(n cm.Connection) (cm.Link, error) {
	s, x := n.Stream, n.Asked.Extensions
	l, err := link.Link(nil), error(nil)
	if n.ROI != nil {
		x = true // it has Writes that notify; the link refuses the rest
		l, err = c.overROI(n)
	} else {
		l = stream.New((*linked)(c), s, stream.Config{
			Param: n.Param, Extensions: x, MULPDU: int(n.Asked.MPA.MULPDU),
			Nudge: c.dev.cfg.Timeouts.Nudge,
		})
	}
	return &candidate{(*QP)(c), l, x, linkInfo{
		llp: s.Properties(), local: n.Local, remote: n.Remote, param: n.Param, emss: s.EMSS(),
		roi: n.ROI != nil,
	}}, err
}

func (c *connectable) overROI(n cm.Connection) (link.Link, error) {
	return credit.New((*linked)(c), n.Stream, credit.Config{
		Param: n.Param, Own: n.ROI.Own, Peer: n.ROI.Peer, MULPDU: int(n.Asked.MPA.MULPDU),
	})
}

func (c *connectable) OverLoop(n cm.Connection, peer cm.QP, other cm.Connection) (own,
	peers cm.Link, err error) {
	p := peer.(*connectable)
	if n.ROI != nil { // there is no copy from QP to QP, but its messages go through memory
		n.Stream, other.Stream = llp.NewPipe(n.Local, n.Remote)
		if own, err = c.OverStream(n); err == nil {
			peers, err = p.OverStream(other)
		}
		return own, peers, err
	}
	x, y := loop.New((*linked)(c), (*linked)(p))
	info := func(n cm.Connection) linkInfo {
		return linkInfo{
			llp: llp.Properties{Transport: llp.Memory}, local: n.Local, remote: n.Remote, param: n.Param,
		}
	}
	return &candidate{(*QP)(c), x, true, info(n)}, &candidate{(*QP)(p), y, true, info(other)}, nil
}

// WatchCopies has the Config's OnCopied be shown what queue pairs of d send to each other through
// memory, until stop is called. Connections that copy from one program's memory to the other's go
// through memory of d from now on, and stay so.
func (d *Device) WatchCopies() (stop func()) {
	if d.cfg.OnCopied == nil {
		return func() {}
	}
	d.copiesShown.Add(1)
	for _, qp := range d.qpList() {
		qp.callAsync(func() {
			if qp.link != nil {
				qp.link.ShowCopies()
			}
		})
	}
	return sync.OnceFunc(func() { d.copiesShown.Add(-1) })
}

// A StreamPair makes a connection between two addresses of a device.
type StreamPair func(ctx context.Context, a, b netip.Addr) (x, y iwarp.Stream, err error)

// ToStreams has connections of iWARP within d, whose messages go through memory, go on over those
// that pair makes, and stay there: all, or that of queue pair qpn, if it is not 0; of all also
// those that come about while Watch lasts, though they were asked for before. It returns when they
// do, or when ctx is over; those of a program whose memory does not come back may do so later. One
// that cannot does not keep the others from it.
func (d *Device) ToStreams(ctx context.Context, qpn uint32, pair StreamPair) error {
	if qpn == 0 {
		d.within.Store(&pair)
	}
	var errs []error
	var waits []<-chan struct{}
	for _, qp := range d.qpList() {
		info, l := qp.peek.Load(), qp.seen.Load()
		if info == nil || l == nil || qpn != 0 && qp.num != qpn {
			continue
		}
		if !(*l).Movable() {
			continue
		}
		x, y, err := pair(ctx, info.local.Addr(), info.remote.Addr())
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: QP %d and its peer: %w", d.cfg.Name, qp.num, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		done, moved := (*l).MoveTo(x, y)
		settled := make(chan struct{})
		settle := func() {
			defer close(settled)
			if done != nil {
				<-done // at the end of a queue pair, too
			}
			if done == nil || !moved() {
				x.Abort()
				y.Abort()
			}
		}
		if !qp.ctx.spawn(settle) { // it is about to end
			go settle()
		}
		waits = append(waits, settled)
	}
	for _, settled := range waits {
		select {
		case <-settled:
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// goOut has qp's connection, which has begun in memory, go where ToStreams has brought all of its
// device.
func (qp *QP) goOut() {
	d := qp.dev
	pair, l := d.within.Load(), qp.seen.Load()
	if pair == nil || d.watched.Load() == 0 || l == nil || !(*l).Movable() {
		return
	}
	qp.ctx.spawn(func() {
		ctx, cancel := context.WithTimeout(qp.ctx.life, d.cfg.Timeouts.Connect)
		defer cancel()
		if err := d.ToStreams(ctx, qp.num, *pair); err != nil {
			d.log.Warn("a connection within a device stays in it", "device", d.cfg.Name, "err", err)
		}
	})
}

// InMemory is how many queue pairs of d are connected within d, and go through memory.
func (d *Device) InMemory() (n int) {
	for _, qp := range d.qpList() {
		if p := qp.peek.Load(); p != nil && p.llp.Transport == llp.Memory {
			n++
		}
	}
	return n
}

// A candidate is a link that qp does not have yet.
type candidate struct {
	qp         *QP
	link       link.Link
	extensions bool // RFC 7306 was agreed on
	info       linkInfo
}

func (c *candidate) Abort() { c.link.Abort() }

func (c *candidate) Attach(a *cm.Attempt) error {
	qp := c.qp
	err := fmt.Errorf("connect QP %d: %w", qp.num, rdma.ErrClosed)
	qp.do(func() {
		switch {
		case a.Canceled() || qp.bound.Load() != a:
			return
		case qp.State() != rdma.QPIdle:
			err = fmt.Errorf("connect QP %d in state %v: %w", qp.num, qp.State(), rdma.ErrInvalid)
			return
		}
		for qp.flushIdle() {
		}
		if qp.dead { // destroyed by the handler that was told of the connection before
			return
		}
		err = nil
		qp.param = c.info.param
		(*linked)(qp).Replace(c.link)
		qp.work.Begin(c.extensions, qp.param.ORD > 0)
		qp.eof, qp.draining = false, false
		qp.endErr, qp.peerCode = nil, nil
		c.info.since = time.Now()
		qp.peek.Store(&c.info)
		qp.attached = true
		qp.mustState(rdma.QPRTS)
		qp.lend(a.Established)
		if qp.link == c.link { // its handler may have ended the connection
			qp.link.Open()
		}
	})
	if err != nil {
		c.link.Abort()
	} else {
		qp.goOut()
	}
	return err
}

// Near is the QP at the other end of qp's connection, if that is of this device, both are RTS, what
// is posted is done at the peer when it is retired, and nobody observes either; else nil. It may be
// so no longer when Near returns: QPOptions.OnState and OnParted tell.
func (qp *QP) Near() *QP {
	l := qp.seen.Load()
	if l == nil || !qp.mayBeNear() {
		return nil
	}
	if qp.packets != nil {
		return qp.nearBeside()
	}
	p, ok := (*l).Near().(*linked)
	if !ok || !(*QP)(p).mayBeNear() {
		return nil
	}
	return (*QP)(p)
}

// Reaches is what qp may do with the memory of its peer, which is Near, by the keys that it is
// given. It stays so until the two are Near no longer.
func (qp *QP) Reaches(peer *QP) (r rdma.Access) {
	const reads = rdma.RemoteRead | rdma.RemoteAtomic
	r = rdma.RemoteWrite | reads
	if qp.packets == nil {
		if info := qp.peek.Load(); info == nil || info.param.ORD == 0 {
			r &^= reads
		}
		return r
	}
	own, theirs := qp.packets.shown.Load(), peer.packets.shown.Load()
	if own == nil || theirs == nil {
		return 0
	}
	if r &= theirs.Access; own.MaxRead == 0 || theirs.MaxDestRead == 0 {
		r &^= reads
	}
	return r
}

func (qp *QP) mayBeNear() bool { return qp.State() == rdma.QPRTS && !qp.work.Watched() }

// Covered reports whether the CQs of qp have room for all that their queues can complete at once.
func (qp *QP) Covered() bool { return qp.work.Queues.Covered() }

// WithReceives calls f while nobody takes receives of qp.
func (qp *QP) WithReceives(f func()) {
	qp.work.Recv.Lock()
	defer qp.work.Recv.Unlock()
	f()
}

// counted is what qp has counted by now.
func (qp *QP) counted() *stats.QP {
	if f := qp.tells.onCount; f != nil {
		f()
	}
	return &qp.work.Stats
}

// A Traffic is what one end of a connection has done without the device: Messages that took a
// receive, of which Immediates were no Sends and Solicited asked for an event; Octets are those of
// Sends and Writes. Unsent are Writes of iWARP of which there is but the immediate data.
type Traffic struct {
	Messages, Octets, Solicited, Immediates    uint64
	Writes, Unsent, Reads, ReadOctets, Atomics uint64
}

// SentDirectly and ReceivedDirectly count what qp's program, and its peer's, have done.
func (qp *QP) SentDirectly(t *Traffic) {
	s := &qp.work.Stats
	s.Sends.Add(t.Messages - t.Immediates)
	s.Immediates.Add(t.Immediates)
	s.SentOctets.Add(t.Octets)
	s.Writes.Add(t.Writes)
	s.Reads.Add(t.Reads)
	s.ReadOctets.Add(t.ReadOctets)
	s.Atomics.Add(t.Atomics)
}

func (qp *QP) ReceivedDirectly(t *Traffic) {
	s := &qp.work.Stats
	s.Received(t.Messages, t.Octets)
	s.InImmediates.Add(t.Immediates)
	s.Solicited.Add(t.Solicited)
	s.InWrites.Add(t.Writes - t.Unsent)
	s.InReads.Add(t.Reads)
	s.ServedOctets.Add(t.ReadOctets)
	s.InAtomics.Add(t.Atomics)
}
