package shm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// This file has what devices of RoCE have beside those of iWARP.

// GID implements rdma.Device.
func (d *Device) GID(index int) (rdma.GIDEntry, error) {
	if !d.attr.RoCE || index < 0 || index >= d.attr.GIDs {
		return rdma.GIDEntry{}, errInvalid("GID %d of device %s, which has %d", index, d.attr.Name,
			d.attr.GIDs)
	}
	var rep rpc.QueryGIDReply
	req := &rpc.QueryGIDRequest{Device: d.index, Port: 1, Index: uint32(index)}
	if err := d.c.call(rpc.OpQueryGID, "query GID", req, &rep); err != nil {
		return rdma.GIDEntry{}, err
	}
	return rdma.GIDEntry{GID: rep.GID, Type: rdma.GIDType(rep.Type)}, nil
}

// queryPort completes the attributes of a RoCE device.
func (d *Device) queryPort() error {
	var rep rpc.QueryPortReply
	req := &rpc.QueryPortRequest{Device: d.index, Port: 1}
	if err := d.c.call(rpc.OpQueryPort, "query port", req, &rep); err != nil {
		return err
	}
	if m := rdma.MTU(rep.ActiveMTU); uint32(m) == rep.ActiveMTU && m.Octets() != 0 {
		d.attr.ActiveMTU = m
	}
	d.attr.GIDs = int(min(rep.GIDs, 1<<16))
	return nil
}

// An addressHandle implements rdma.AH.
type addressHandle struct {
	pd     *protDomain
	attr   rdma.AHAttr
	handle uint32
	key    uint32

	mu     sync.Mutex
	closed bool // +checklocks:mu
}

// CreateAH implements rdma.PD.
func (pd *protDomain) CreateAH(attr rdma.AHAttr) (rdma.AH, error) {
	if err := pd.d.roceOnly("create an address handle"); err != nil {
		return nil, err
	}
	var ah rdma.AH
	err := untilKnown(createAH, func() (err error) {
		ah, err = pd.tryAH(&attr)
		return err
	})
	return ah, err
}

const createAH = "create address handle"

// tryAH makes an address handle. EINPROGRESS: the daemon looks for the peer.
func (pd *protDomain) tryAH(attr *rdma.AHAttr) (rdma.AH, error) {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.closed || pd.ending {
		return nil, errClosed("PD")
	}
	var rep rpc.CreateAHReply
	req := &rpc.CreateAHRequest{PD: pd.handle, Attr: ringAH(attr)}
	if err := pd.d.c.try(rpc.OpCreateAH, createAH, req, &rep); err != nil {
		return nil, err
	}
	ah := &addressHandle{pd: pd, attr: *attr, handle: rep.AH, key: rep.Key}
	pd.ahs[ah] = struct{}{}
	return ah, nil
}

// roceOnly is an error on a device of iWARP.
func (d *Device) roceOnly(what string) error {
	if err := d.usable(); err != nil {
		return err
	}
	if !d.attr.RoCE {
		return fmt.Errorf("shm: %s on device %s, which speaks iWARP: %w", what, d.attr.Name,
			rdma.ErrUnsupported)
	}
	return nil
}

// Attr implements rdma.AH.
func (ah *addressHandle) Attr() rdma.AHAttr { return ah.attr }

// Handle implements rdma.AH.
func (ah *addressHandle) Handle() uint32 { return ah.key }

// Close implements rdma.AH.
func (ah *addressHandle) Close() error {
	ah.mu.Lock()
	defer ah.mu.Unlock()
	if ah.closed {
		return nil
	}
	err := ah.pd.d.c.callHandle(rpc.OpDestroyAH, "destroy address handle", ah.handle)
	var ce *CallError
	if errors.As(err, &ce) {
		return err
	}
	ah.closed = true // also when the session is over
	ah.pd.mu.Lock()
	delete(ah.pd.ahs, ah)
	ah.pd.mu.Unlock()
	return nil
}

// ringAH is a as messages have it, ahAttr the way back.
func ringAH(a *rdma.AHAttr) rpc.AHAttr {
	r := rpc.AHAttr{
		GID: a.GID, FlowLabel: a.FlowLabel, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit,
		TrafficClass: a.TrafficClass, SL: a.SL, Port: uint32(a.Port),
	}
	if a.Global {
		r.Flags = rpc.AHGlobal
	}
	return r
}

func ahAttr(a *rpc.AHAttr) rdma.AHAttr {
	return rdma.AHAttr{
		GID: a.GID, FlowLabel: a.FlowLabel, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit,
		TrafficClass: a.TrafficClass, SL: a.SL, Port: uint8(a.Port), Global: a.Flags&rpc.AHGlobal != 0,
	}
}

// Modify implements rdma.QP.
func (q *queuePair) Modify(attr *rdma.QPAttr, mask rdma.QPAttrMask) error {
	req := &rpc.ModifyQPRequest{QP: q.handle, Mask: uint32(mask)}
	var ok bool
	if mask&rdma.AttrState != 0 {
		if req.State, ok = q.ringState(attr.State); !ok {
			return errInvalid("modify QP %d to state %v", q.num, attr.State)
		}
	}
	if mask&rdma.AttrCurState != 0 {
		if req.Attr.CurState, ok = q.ringState(attr.CurState); !ok {
			return errInvalid("modify QP %d from state %v", q.num, attr.CurState)
		}
	}
	switch {
	case q.d.attr.RoCE:
		a := &req.Attr
		a.PathMTU, a.QKey, a.RQPSN, a.SQPSN = uint32(attr.PathMTU), attr.QKey, attr.RQPSN, attr.SQPSN
		a.DestQPN, a.Access, a.Path = attr.DestQPN, uint32(attr.Access), ringAH(&attr.Path)
		a.PKeyIndex, a.Port = uint32(attr.PKeyIndex), attr.Port
		a.MaxRead, a.MaxDestRead, a.MinRNRTimer = attr.MaxRead, attr.MaxDestRead, attr.MinRNRTimer
		a.Timeout, a.RetryCount, a.RNRRetry = attr.Timeout, attr.RetryCount, attr.RNRRetry
		if attr.DrainedEvent {
			a.DrainedEvent = 1
		}
	case mask != rdma.AttrState:
		return errInvalid("modify QP %d with attributes %#x: a QP of iWARP has its state only", q.num,
			uint32(mask))
	}
	if err := q.d.c.call(rpc.OpModifyQP, "modify QP", req, &rpc.Empty{}); err != nil {
		return err
	}
	if q.d.attr.RoCE && mask&rdma.AttrState != 0 {
		switch attr.State {
		case rdma.QPReset:
			return q.reset()
		case rdma.QPRTS:
			if q.directIn.Load() == 0 {
				q.beginDirect()
			}
		default:
		}
	}
	return nil
}

// ringState is s as MODIFY_QP has it; false if it is none of the device's.
func (q *queuePair) ringState(s rdma.QPState) (uint32, bool) {
	for n := range uint32(len(iwarpStates)) {
		if q.stateOf(n) == s {
			return n, true
		}
	}
	return 0, false
}

// reset forgets what was posted, which has no completions any more: the daemon has taken all of it.
func (q *queuePair) reset() error {
	q.endDirect() // with what is left to be polled
	srq := func(e *abi.CQE) {
		if q.srq != nil && e.Receive() {
			q.srq.rq.received(e.Cookie)
		}
	}
	for _, cq := range []*compQueue{q.sendCQ, q.recvCQ} {
		cq.mu.Lock()
		if cq.mem != nil && !cq.bad {
			if err := cq.ring.Drop(q.num, srq); err != nil {
				cq.bad = true
				cq.mu.Unlock()
				return q.d.c.corrupt(err)
			}
		}
		cq.mu.Unlock()
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.mem != nil {
		q.sq.done = q.m.SQ.Posted()
	}
	q.rq.forget()
	return nil
}

// Query implements rdma.QP.
func (q *queuePair) Query() (rdma.QPAttr, error) {
	var rep rpc.QueryQPReply
	if err := q.d.c.callReply(rpc.OpQueryQP, "query QP", q.handle, &rep); err != nil {
		return rdma.QPAttr{}, err
	}
	a := &rep.Attr
	return rdma.QPAttr{
		State: q.stateOf(rep.State), CurState: q.stateOf(rep.State), Draining: a.Draining != 0,
		Access: rdma.Access(a.Access), PKeyIndex: uint16(a.PKeyIndex), Port: a.Port, QKey: a.QKey,
		Path: ahAttr(&a.Path), PathMTU: rdma.MTU(a.PathMTU), DestQPN: a.DestQPN, RQPSN: a.RQPSN,
		SQPSN: a.SQPSN, MaxDestRead: a.MaxDestRead, MaxRead: a.MaxRead, MinRNRTimer: a.MinRNRTimer,
		Timeout: a.Timeout, RetryCount: a.RetryCount, RNRRetry: a.RNRRetry,
		DrainedEvent: a.DrainedEvent != 0,
	}, nil
}

// AttachMulticast implements rdma.QP.
func (q *queuePair) AttachMulticast(group rdma.GID) error {
	return q.mcast(rpc.OpAttachMcast, "attach a QP to a multicast group", group)
}

// DetachMulticast implements rdma.QP.
func (q *queuePair) DetachMulticast(group rdma.GID) error {
	return q.mcast(rpc.OpDetachMcast, "detach a QP from a multicast group", group)
}

func (q *queuePair) mcast(op rpc.Op, what string, group rdma.GID) error {
	if q.cfg.Type != rdma.UD {
		return errInvalid("%s: QP %d is one of %v, not of UD", what, q.num, q.cfg.Type)
	}
	return q.d.c.call(op, what, &rpc.AttachMcastRequest{QP: q.handle, GID: group}, &rpc.Empty{})
}
