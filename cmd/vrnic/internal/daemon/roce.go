package daemon

import (
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/server"
)

// This file has what queue pairs of RoCE have beside those of iWARP: attributes, address handles
// and groups.

// ahHandler is an address handle of a client.
type ahHandler struct{ ah rdma.AH }

func (h *ahHandler) Key() uint32  { return h.ah.Handle() }
func (h *ahHandler) Close() error { return errno(h.ah.Close()) }

// CreateAH: the RNIC looks whether the attributes can be.
func (h *pdHandler) CreateAH(attr *abi.AHAttr) (server.AHHandler, error) {
	a, err := ahAttr(attr)
	if err != nil {
		return nil, err
	}
	ah, err := h.pd.CreateAH(a)
	if err != nil {
		return nil, errno(err)
	}
	return &ahHandler{ah}, nil
}

func (h *qpHandler) Attach(group [16]byte) error { return errno(h.qp.AttachMulticast(group)) }
func (h *qpHandler) Detach(group [16]byte) error { return errno(h.qp.DetachMulticast(group)) }

// ahAttr is a as the RNIC has it.
func ahAttr(a *abi.AHAttr) (rdma.AHAttr, error) {
	if a.Flags&^abi.AHGlobal != 0 || a.Port > 0xff {
		return rdma.AHAttr{}, syscall.EINVAL
	}
	return rdma.AHAttr{
		GID: a.GID, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		FlowLabel: a.FlowLabel, SL: a.SL, Port: uint8(a.Port), Global: a.Flags&abi.AHGlobal != 0,
	}, nil
}

// ringAH is ahAttr backwards.
func ringAH(a *rdma.AHAttr) abi.AHAttr {
	r := abi.AHAttr{
		GID: a.GID, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		FlowLabel: a.FlowLabel, SL: a.SL, Port: uint32(a.Port),
	}
	if a.Global {
		r.Flags = abi.AHGlobal
	}
	return r
}

// modifyRoCE changes attributes of a RoCE QP. Those that the mask does not name are not looked at.
func (h *qpHandler) modifyRoCE(req *abi.ModifyQPRequest) error {
	attr, err := h.qpAttr(req)
	if err != nil {
		return err
	}
	defer h.flush()
	if err := h.qp.Modify(&attr, rdma.QPAttrMask(req.Mask)); err != nil {
		return errno(err)
	}
	if h.slab != nil && attr.State == rdma.QPReset && req.Mask&uint32(rdma.AttrState) != 0 {
		h.slab.taken = false // nothing of the QP runs in Reset
	}
	return nil
}

// qpAttr is what req asks for as the RNIC has it, which looks at the rest.
func (h *qpHandler) qpAttr(req *abi.ModifyQPRequest) (attr rdma.QPAttr, err error) {
	mask, a := rdma.QPAttrMask(req.Mask), &req.Attr
	var ok [3]bool
	attr.State, ok[0] = roceState(mask, rdma.AttrState, req.State)
	attr.CurState, ok[1] = roceState(mask, rdma.AttrCurState, a.CurState)
	ok[2] = mask&rdma.AttrAltPath == 0 && mask&rdma.AttrCap == 0 &&
		(mask&rdma.AttrMigState == 0 || a.MigState == 0) &&
		(mask&rdma.AttrPathMTU == 0 || a.PathMTU <= 0xff) &&
		(mask&rdma.AttrPKeyIndex == 0 || a.PKeyIndex <= 0xffff)
	if ok != [3]bool{true, true, true} {
		return attr, syscall.EINVAL
	}
	if mask&rdma.AttrPath != 0 {
		if attr.Path, err = ahAttr(&a.Path); err != nil {
			return attr, err
		}
	}
	if mask&rdma.AttrAccess != 0 {
		rights, ok := access(a.Access)
		if !ok {
			return attr, syscall.EINVAL
		}
		attr.Access = rights
	}
	attr.PathMTU, attr.PKeyIndex = rdma.MTU(a.PathMTU), uint16(a.PKeyIndex)
	attr.Port, attr.QKey, attr.DestQPN = a.Port, a.QKey, a.DestQPN
	attr.RQPSN, attr.SQPSN = a.RQPSN, a.SQPSN
	attr.MaxRead, attr.MaxDestRead = a.MaxRead, a.MaxDestRead
	attr.MinRNRTimer, attr.Timeout = a.MinRNRTimer, a.Timeout
	attr.RetryCount, attr.RNRRetry = a.RetryCount, a.RNRRetry
	attr.DrainedEvent = a.DrainedEvent != 0
	return attr, nil
}

// roceState is a state that mask may name; false if there is no such one.
func roceState(mask, bit rdma.QPAttrMask, ring uint32) (rdma.QPState, bool) {
	if mask&bit == 0 {
		return 0, true
	}
	return abi.RoCEState(ring)
}

// ringAttr is attributes of a QP as Query gives them.
func ringAttr(a *rdma.QPAttr) abi.QPAttr {
	r := abi.QPAttr{
		CurState: qpState(a.CurState), PathMTU: uint32(a.PathMTU), QKey: a.QKey, RQPSN: a.RQPSN,
		SQPSN: a.SQPSN, DestQPN: a.DestQPN, Access: ringAccess(a.Access), Path: ringAH(&a.Path),
		PKeyIndex: uint32(a.PKeyIndex), Port: a.Port, MaxRead: a.MaxRead, MaxDestRead: a.MaxDestRead,
		MinRNRTimer: a.MinRNRTimer, Timeout: a.Timeout, RetryCount: a.RetryCount, RNRRetry: a.RNRRetry,
	}
	if a.DrainedEvent {
		r.DrainedEvent = 1
	}
	if a.Draining {
		r.Draining = 1
	}
	return r
}
