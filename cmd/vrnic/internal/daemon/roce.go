package daemon

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/relay"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// This file has what queue pairs and ids of RoCE have beside those of iWARP: attributes, address
// handles, groups, and ports of datagrams.

// ahHandler is an address handle of a client.
type ahHandler struct{ ah rdma.AH }

func (h *ahHandler) Key() uint32  { return h.ah.Handle() }
func (h *ahHandler) Close() error { return errno(h.ah.Close()) }

// CreateAH: the RNIC looks whether the attributes can be.
func (h *pdHandler) CreateAH(attr *rpc.AHAttr) (server.AHHandler, error) {
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
func ahAttr(a *rpc.AHAttr) (rdma.AHAttr, error) {
	if a.Flags&^rpc.AHGlobal != 0 || a.Port > 0xff {
		return rdma.AHAttr{}, syscall.EINVAL
	}
	return rdma.AHAttr{
		GID: a.GID, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		FlowLabel: a.FlowLabel, SL: a.SL, Port: uint8(a.Port), Global: a.Flags&rpc.AHGlobal != 0,
	}, nil
}

// ringAH is ahAttr backwards.
func ringAH(a *rdma.AHAttr) rpc.AHAttr {
	r := rpc.AHAttr{
		GID: a.GID, GIDIndex: a.GIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		FlowLabel: a.FlowLabel, SL: a.SL, Port: uint32(a.Port),
	}
	if a.Global {
		r.Flags = rpc.AHGlobal
	}
	return r
}

// modifyRoCE changes attributes of a RoCE QP. Those that the mask does not name are not looked at.
func (h *qpHandler) modifyRoCE(req *rpc.ModifyQPRequest) error {
	attr, err := h.qpAttr(req)
	if err != nil {
		return err
	}
	if req.Mask&uint32(rdma.AttrState) != 0 {
		// No card of RoCE does anything but refuse.
		if _, err := h.sd.dev.card().CheckMove(qpState(h.qp.State()), req.State); err != nil {
			return err
		}
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
func (h *qpHandler) qpAttr(req *rpc.ModifyQPRequest) (attr rdma.QPAttr, err error) {
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
func ringAttr(a *rdma.QPAttr) rpc.QPAttr {
	r := rpc.QPAttr{
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

// roceParam is what the client asked for of RoCE, with the id's options.
func (h *idHandler) roceParam(p *rpc.ConnParam) rdma.RoCEParam {
	r, o := p.RoCE(), h.idOptions()
	r.TrafficClass, r.ACKTimeout = o.TOS, o.ACKTimeout
	return r
}

// sends says that the device has an address of a group's family.
func (d *device) sends(group netip.Addr) bool {
	for _, p := range d.addrs {
		if p.Addr().Is4() == group.Unmap().Is4() {
			return true
		}
	}
	return false
}

// OpenUDP gives the program the UDP port with the number that h is bound to.
func (h *idHandler) OpenUDP(packets *osmem.Packets) error {
	b, err := h.single()
	if err != nil {
		return err
	}
	at := b.cm.Local()
	if at.Addr().IsUnspecified() || at.Port() == 0 {
		return syscall.EINVAL
	}
	if h.udpRelay() != nil {
		return syscall.EBUSY
	}
	r, err := relay.Start(h.s.shm, packets, func(receive relay.Receiver) (relay.Port, error) {
		return b.sd.dev.station.OpenUDP(at, receive)
	})
	if err != nil {
		return errno(err)
	}
	h.s.relays = append(h.s.relays, r)
	h.mu.Lock()
	h.udp = r
	h.mu.Unlock()
	if b.sd.dev.gone.Load() { // meanwhile: its end has not found it
		r.Close()
	}
	return nil
}

func (h *idHandler) udpRelay() *relay.Relay {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.udp
}

// closeUDP takes the UDP port back.
func (h *idHandler) closeUDP() {
	if r := h.udpRelay(); r != nil {
		h.s.relays = slices.DeleteFunc(h.s.relays, func(o *relay.Relay) bool { return o == r })
		r.Close()
	}
}

// Join joins a group of datagrams. EOPNOTSUPP on iWARP.
func (h *idHandler) Join(addr netip.Addr, group uint64) error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.Join(addr, group))
}

// Leave leaves what Join has joined.
func (h *idHandler) Leave(addr netip.Addr) error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.Leave(addr))
}

// udpQKey is the Q_Key of QPs of rdma_cm's datagrams.
const udpQKey = 0x01234567

// initRoCE says what the program has to set by itself.
func (h *idHandler) initRoCE(id *vnic.CMID, state uint32) (rpc.CMInitQPAttrReply, error) {
	r := rpc.CMInitQPAttrReply{State: state, Port: 1}
	to, ok := abi.RoCEState(state)
	if !ok {
		return r, syscall.EINVAL
	}
	if h.space != rpc.PSUDP {
		attr, mask, err := id.QPAttr(to)
		r.Mask, r.Attr, r.Access = uint32(mask), ringAttr(&attr), ringAccess(attr.Access)
		return r, errno(err)
	}
	r.Attr.Port = 1
	switch to {
	case rdma.QPInit:
		r.Mask = uint32(rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey)
		r.Attr.QKey = udpQKey
	case rdma.QPRTR:
		r.Mask = uint32(rdma.AttrState)
	case rdma.QPRTS:
		r.Mask = uint32(rdma.AttrState | rdma.AttrSQPSN)
	default:
		return r, syscall.EINVAL
	}
	return r, nil
}
