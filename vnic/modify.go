package vnic

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/attr"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link/packets"
)

// A finder finds the way to a peer, while life lasts.
type finder func(life context.Context, local, remote netip.Addr) (datagram.Route, error)

// Modify implements rdma.QP.
func (qp *QP) Modify(a *rdma.QPAttr, mask rdma.QPAttrMask) error {
	return qp.modify(a, mask, qp.ctx.route)
}

// modify is Modify, with the way to the peer found by find.
func (qp *QP) modify(a *rdma.QPAttr, mask rdma.QPAttrMask, find finder) error {
	switch {
	case qp.packets != nil:
		if err := qp.modifyAttrs(*a, mask, find); err != nil {
			return fmt.Errorf("modify QP %d: %w", qp.num, err)
		}
		return nil
	case mask != rdma.AttrState:
		return fmt.Errorf("modify QP %d with attributes %#x, a QP of iWARP has its state only: %w",
			qp.num, uint32(mask), rdma.ErrInvalid)
	}
	return qp.ModifyState(a.State)
}

// controlledQKey is the bit of Q_Keys that only the privileged use.
const controlledQKey = 1 << 31

// modifyAttrs changes what mask names of a, all or nothing.
func (qp *QP) modifyAttrs(a rdma.QPAttr, mask rdma.QPAttrMask, find finder) error {
	p := qp.packets
	select {
	case p.modifying <- struct{}{}:
		defer func() { <-p.modifying }()
	case <-p.life.Done():
		return rdma.ErrClosed
	}
	if err := qp.checkModify(&a, mask); err != nil {
		return err
	}
	var path packets.Path
	if mask&rdma.AttrPath != 0 {
		var err error
		if path, err = qp.route(&a.Path, find); err != nil {
			return err
		}
	}
	err := rdma.ErrClosed
	qp.do(func() {
		// It may have failed meanwhile.
		if err = qp.checkModify(&a, mask); err != nil {
			return
		}
		from := qp.State()
		to := attr.Target(from, &a, mask)
		if qp.stillSends() && to != rdma.QPReset && to != rdma.QPError {
			err = fmt.Errorf("what was begun before SQD is not over yet: %w", rdma.ErrInvalid)
			return
		}
		if to == rdma.QPReset {
			p.attr = rdma.QPAttr{}
		}
		access := p.attr.Access
		attr.Set(&p.attr, &a, mask)
		shown := p.attr
		p.shown.Store(&shown)
		qp.mustState(to)
		if from == rdma.QPRTS && to == from && p.attr.Access != access {
			(*linked)(qp).Parted() // the peer may do something else
		}
		if qp.Type() == rdma.UD {
			qp.movedDatagrams(from, to, mask)
		} else {
			qp.moved(from, to, mask, path)
		}
	})
	return err
}

// checkModify says whether a may be set, as things are. What is under way it leaves to the owner.
func (qp *QP) checkModify(a *rdma.QPAttr, mask rdma.QPAttrMask) error {
	from := qp.State()
	if err := attr.CheckMask(qp.Type(), from, a, mask); err != nil {
		return err
	}
	if err := qp.dev.roce.limits.CheckValues(a, mask); err != nil {
		return err
	}
	if mask&rdma.AttrQKey != 0 && a.QKey&controlledQKey != 0 && !qp.packets.privilege {
		return fmt.Errorf("a Q_Key with the top bit set (%#x) is for who may open raw sockets: %w",
			a.QKey,
			syscall.EPERM)
	}
	return nil
}

// stillSends reports whether a QP in SQD has messages under way. The owner asks.
func (qp *QP) stillSends() bool {
	l := qp.packets.peer.Load()
	return qp.State() == rdma.QPSQD && l != nil && !l.Drained()
}

// Type is the type of qp.
func (qp *QP) Type() rdma.QPType { return qp.work.Config().Type }

// Query implements rdma.QP.
func (qp *QP) Query() (rdma.QPAttr, error) {
	if qp.packets == nil {
		return rdma.QPAttr{State: qp.State(), CurState: qp.State(), Port: 1}, nil
	}
	var a rdma.QPAttr
	if !qp.do(func() {
		a = qp.packets.attr
		a.State = qp.State()
		a.CurState = a.State
		a.Draining = qp.stillSends()
		if l := qp.packets.peer.Load(); l != nil {
			sq, rq := l.PSNs()
			a.RQPSN = uint32(rq)
			if a.State != rdma.QPRTR {
				a.SQPSN = uint32(sq)
			}
		}
	}) {
		return rdma.QPAttr{}, fmt.Errorf("query QP %d: %w", qp.num, rdma.ErrClosed)
	}
	return a, nil
}
