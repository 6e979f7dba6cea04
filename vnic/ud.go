package vnic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/ah"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/datagrams"
	"github.com/vrnic/vrnic/vnic/internal/mcast"
)

// Limits of multicast: groups that a device is in, and queue pairs that are attached to one.
const (
	MaxGroups       = 8192
	MaxGroupMembers = 1024
)

// maxContextJoins is how many times one context is in groups: in half of them.
const maxContextJoins = MaxGroups / 2

// newGroups makes the table of the multicast groups of a device, which are joined at its port.
// Without one there is no network that brings anything.
func (a *adapter) newGroups() *mcast.Groups[*QP] {
	return mcast.New(mcast.Config[*QP]{
		Join: func(g netip.Addr) error {
			if a.port == nil {
				return nil
			}
			return a.port.Join(g)
		},
		Leave: func(g netip.Addr) error {
			if a.port == nil {
				return nil
			}
			return a.port.Leave(g)
		},
		Groups: MaxGroups, Members: MaxGroupMembers,
		Owner: func(qp *QP) any { return qp.ctx.id }, PerOwner: maxContextJoins,
	})
}

// CreateAH implements rdma.PD.
func (pd *PD) CreateAH(a rdma.AHAttr) (rdma.AH, error) {
	h, err := pd.newAH(a)
	if err != nil {
		return nil, fmt.Errorf("create an address handle on device %s: %w", pd.ctx.dev.cfg.Name, err)
	}
	return h, nil
}

func (pd *PD) newAH(a rdma.AHAttr) (*ah.AH, error) {
	c := pd.ctx
	r := c.dev.roce
	if r == nil {
		return nil, fmt.Errorf("it speaks iWARP: %w", rdma.ErrUnsupported)
	}
	if err := r.limits.CheckPath(&a, true); err != nil {
		return nil, err
	}
	if c.ahs.Len() >= c.limits.AH {
		return nil, fmt.Errorf("%d are there: %w", c.limits.AH, rdma.ErrLimit)
	}
	own, _ := r.gid(a.GIDIndex)
	flow := udp.Flow{Src: own.Addr(), Dst: a.GID.Addr(), TrafficClass: a.TrafficClass,
		HopLimit: a.HopLimit, FlowLabel: a.FlowLabel}
	route, err := c.route(c.life, flow.Src, flow.Dst)
	if err != nil {
		return nil, err
	}
	return c.ahs.Add(ah.Config{PD: pd.PD, Attr: a, Flow: flow, Route: route,
		Settle: func() { settle(pd.datagramQPs()) }}, c.limits.AH)
}

// datagramQPs are the QPs of pd that use its address handles.
func (pd *PD) datagramQPs() []*QP {
	return slices.DeleteFunc(pd.ctx.qpList(), func(qp *QP) bool {
		return qp.Type() != rdma.UD || qp.work.Memory.PD() != pd.PD
	})
}

// settleTimeout is the longest that settle takes: memory of a program's own can block.
const settleTimeout = time.Second

// settle has UD QPs send what is posted. Programs destroy an address handle, and their QP, right
// behind the last post; a card has the packets out by then.
func settle(qps []*QP) {
	timeout := time.NewTimer(settleTimeout)
	defer timeout.Stop()
	for _, qp := range qps {
		if qp.lent.Load() { // to a handler, which may be who waits here
			continue
		}
		sent := make(chan struct{})
		qp.callAsync(func() { qp.packets.settling = append(qp.packets.settling, sent) })
		select {
		case <-sent:
		case <-qp.gone:
		case <-timeout.C:
			return
		}
	}
}

// settled tells those who wait for it that all is sent that was posted. The owner calls it.
func (p *packetQP) settled() {
	for _, sent := range p.settling {
		close(sent)
	}
	p.settling = nil
}

// route finds the way to a peer, until life, c's or that of a QP, ends.
func (c *Context) route(life context.Context, local, remote netip.Addr) (datagram.Route, error) {
	if c.ways != nil {
		return c.ways.Find(local, remote)
	}
	return c.await(life, local, remote)
}

// await is route, and waits for a bounded time.
func (c *Context) await(life context.Context, local, remote netip.Addr) (datagram.Route, error) {
	port := c.dev.roce.port
	if port == nil {
		return nil, fmt.Errorf("no network reaches %v: %w", remote, syscall.ENETUNREACH)
	}
	ctx, cancel := context.WithTimeout(life, c.dev.cfg.Timeouts.Connect)
	defer cancel()
	route, err := port.Route(ctx, local, remote)
	switch {
	case err == nil:
		return route, nil
	case life.Err() != nil:
		return nil, c.closedError()
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", syscall.ETIMEDOUT, err)
	}
	return nil, fmt.Errorf("the way from %v to %v: %w", local, remote, err)
}

// AttachMulticast implements rdma.QP.
func (qp *QP) AttachMulticast(group rdma.GID) error {
	if err := qp.checkUD(); err != nil {
		return fmt.Errorf("attach QP %d: %w", qp.num, err)
	}
	err := qp.dev.roce.groups.Attach(group.Addr(), qp, func() error {
		if qp.destroying.Load() {
			return rdma.ErrClosed
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("attach QP %d: %w", qp.num, err)
	}
	return nil
}

// DetachMulticast implements rdma.QP.
func (qp *QP) DetachMulticast(group rdma.GID) error {
	err := qp.checkUD()
	if err == nil {
		err = qp.dev.roce.groups.Detach(group.Addr(), qp)
	}
	if err != nil {
		return fmt.Errorf("detach QP %d: %w", qp.num, err)
	}
	return nil
}

// destroyDetached is destroy for a QP that is attached to nothing.
func (qp *QP) destroyDetached() error {
	r := qp.dev.roce
	if r == nil {
		qp.destroy()
		return nil
	}
	if qp.Type() == rdma.UD {
		settle([]*QP{qp})
	}
	first := false
	err := r.groups.Unless(qp, func() { first = qp.destroying.CompareAndSwap(false, true) })
	if err != nil {
		return fmt.Errorf("destroy QP %d: %w", qp.num, err)
	}
	if first {
		qp.destroyed()
	}
	return nil
}

func (qp *QP) checkUD() error {
	if qp.packets == nil || qp.Type() != rdma.UD {
		return fmt.Errorf("it is not of type UD: %w", rdma.ErrInvalid)
	}
	return nil
}

// movedDatagrams has a UD QP follow: its attributes have changed by mask, and it went from one
// state to another, or stayed. The owner calls it.
func (qp *QP) movedDatagrams(from, to rdma.QPState, mask rdma.QPAttrMask) {
	p := qp.packets
	l := p.datagrams.Load()
	switch {
	case from == rdma.QPInit && to == rdma.QPRTR:
		c := qp.ctx
		l = datagrams.New((*packeted)(qp), datagrams.Config{
			PKey: packet.DefaultPKey, QKey: p.attr.QKey,
			MTU:    uint32(c.dev.roce.limits.ActiveMTU.Octets()),
			Handle: c.ahs.Find, Find: qp.datagramsBeside(), Inbox: qp.newInbox(), Stats: &p.stats,
		})
		l.Record(c.dev.tape(qp.num))
		qp.work.Begin(true, false)
		qp.link = l
		var seen link.Link = l
		qp.seen.Store(&seen)
		p.datagrams.Store(l)
	case l == nil:
		return
	case from == rdma.QPSQE && to == rdma.QPRTS:
		qp.work.Begin(true, false) // what is posted flushes no more
	}
	if mask&rdma.AttrQKey != 0 {
		l.SetQKey(p.attr.QKey)
	}
	if mask&rdma.AttrSQPSN != 0 {
		l.SetPSN(p.attr.SQPSN)
	}
	if from != rdma.QPSQD && to == rdma.QPSQD {
		(*packeted)(qp).Drained() // a datagram that has begun is out
	}
}

// recordDatagrams has what qp does recorded, if it takes datagrams. The owner calls it.
func (qp *QP) recordDatagrams() {
	if l := qp.packets.datagrams.Load(); l != nil {
		l.Record(qp.dev.tape(qp.num))
	}
}

// takeDatagram has qp take p, which is for its number.
func (a *adapter) takeDatagram(qp *QP, p *RoCEPacket) {
	l := qp.packets.datagrams.Load()
	switch {
	case l == nil || p.Group:
		a.drops.unknown.Add(1)
	case !p.Valid():
		a.drops.icrc.Add(1)
	default:
		qp.bring(l, p)
	}
}

// takeGroup has all QPs take p that are attached to the group which it came to.
func (a *adapter) takeGroup(p *RoCEPacket) {
	members := a.groups.Members(p.Dst)
	switch {
	case len(members) == 0:
		a.drops.unknown.Add(1)
		return
	case !p.Valid():
		a.drops.icrc.Add(1)
		return
	}
	for _, qp := range members {
		if l := qp.packets.datagrams.Load(); l != nil {
			qp.bring(l, p)
		}
	}
}
