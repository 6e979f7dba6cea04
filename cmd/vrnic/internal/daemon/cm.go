package daemon

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/relay"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// An idHandler is a connection manager id of a client. It knows no device when it is made; an
// address binds it to one, and a wildcard address to all of them, as with rdma_cm. On each device
// there is one id of the RNIC's behind it.
type idHandler struct {
	s     *session
	id    *server.CMID // where events go
	space uint32       // rpc.PSTCP or rpc.PSUDP

	// The client's calls come one at a time and are the only ones to change these; mu lets
	// events read them.
	mu     sync.Mutex
	ids    []deviceID      // +checklocks:mu
	udp    *relay.Relay    // or nil; +checklocks:mu
	opts   rpc.ConnOptions // +checklocks:mu
	idOpts rpc.IDOptions   // +checklocks:mu
}

// A deviceID is the id of a device's that is behind one of a client's.
type deviceID struct {
	sd *sessionDevice
	cm *vnic.CMID
}

func (s *session) CreateID(req *rpc.CMCreateIDRequest, id *server.CMID) (server.IDHandler, error) {
	want := rdma.RC
	if req.PS == rpc.PSUDP {
		want = rdma.UD
		if !slices.ContainsFunc(s.devs, func(sd *sessionDevice) bool {
			return sd.dev.roce() && !sd.dev.gone.Load()
		}) {
			return nil, syscall.ENODEV // as rdma_bind_addr says of datagrams on an RNIC
		}
	}
	if rdma.QPType(req.Type) != want {
		return nil, syscall.EOPNOTSUPP // IB and XRC are not there
	}
	return &idHandler{s: s, id: id, space: req.PS}, nil
}

// deviceIDs returns the ids behind h.
func (h *idHandler) deviceIDs() []deviceID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids
}

func (h *idHandler) options() rpc.ConnOptions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opts
}

// single is the one id of h; EINVAL if it is bound to no device or to all.
func (h *idHandler) single() (deviceID, error) {
	if on := h.deviceIDs(); len(on) == 1 {
		return on[0], nil
	}
	return deviceID{}, syscall.EINVAL
}

// newOn makes an id on a device.
func (h *idHandler) newOn(sd *sessionDevice) (deviceID, error) {
	sd.dev.taking.RLock()
	defer sd.dev.taking.RUnlock()
	ctx, err := sd.context()
	if err != nil {
		return deviceID{}, err
	}
	if sd.dev.spec.Host.IsValid() && !sd.dev.roce() {
		if err := h.id.TakeSocket(); err != nil {
			return deviceID{}, err
		}
	}
	newID := ctx.NewCMID
	if h.space == rpc.PSUDP {
		newID = ctx.NewDatagramCMID
	}
	cm, err := newID(h.onEvent(sd))
	if err != nil {
		return deviceID{}, err
	}
	if err := cm.SetSharing(sharing(h.idOptions())); err != nil {
		cm.Close()
		return deviceID{}, err
	}
	return deviceID{sd, cm}, nil
}

// replace sets the ids behind h and closes those that are not kept.
func (h *idHandler) replace(ids []deviceID) {
	h.mu.Lock()
	old := h.ids
	h.ids = ids
	h.mu.Unlock()
	for _, b := range old {
		if !slices.Contains(ids, b) {
			b.cm.Close()
		}
	}
}

// Bind binds h to an address of a device, or with an unspecified one to all devices. A port of 0
// becomes a free one at once, the same on all devices.
func (h *idHandler) Bind(addr netip.AddrPort) error {
	if len(h.deviceIDs()) != 0 || !addr.IsValid() {
		return syscall.EINVAL
	}
	if !addr.Addr().IsUnspecified() {
		sd := h.ownerOf(addr.Addr())
		if sd == nil {
			return syscall.ENODEV // no device has it: docs/decisions.md#V4
		}
		b, err := h.bindOn(sd, addr)
		if err != nil {
			return errno(err)
		}
		h.replace([]deviceID{b})
		return nil
	}
	on, err := h.bindAll(addr)
	if err != nil {
		return errno(err)
	}
	h.replace(on)
	return nil
}

func (h *idHandler) bindOn(sd *sessionDevice, addr netip.AddrPort) (deviceID, error) {
	b, err := h.newOn(sd)
	if err != nil {
		return b, err
	}
	if err := b.cm.Bind(addr); err != nil {
		b.cm.Close()
		return b, err
	}
	return b, nil
}

// bindTries bounds the search for a port that is free on all devices.
const bindTries = 16

func (h *idHandler) bindAll(addr netip.AddrPort) (_ []deviceID, err error) {
	devs := h.devices()
	for range bindTries {
		want := addr
		var on []deviceID
		for _, sd := range devs {
			var b deviceID
			if b, err = h.bindOn(sd, want); err != nil {
				break
			}
			on = append(on, b)
			want = netip.AddrPortFrom(addr.Addr(), b.cm.Local().Port())
		}
		if err == nil {
			return on, nil
		}
		for _, b := range on {
			b.cm.Close()
		}
		if addr.Port() != 0 || len(on) == 0 {
			return nil, err
		}
	}
	return nil, err
}

// ResolveAddr finds the device that reaches dst. That there is none is an event, as that of a
// kernel is.
func (h *idHandler) ResolveAddr(src, dst netip.AddrPort, timeoutMS uint32) error {
	if !dst.IsValid() || src.IsValid() && src.Addr().Is4() != dst.Addr().Is4() {
		return syscall.EINVAL
	}
	// A source with a port is bound to. Without one it only names the device: the port is then the
	// one that the connection gets.
	if src.IsValid() && src.Port() != 0 && len(h.deviceIDs()) == 0 {
		if err := h.Bind(src); err != nil {
			return err
		}
	}
	on := h.deviceIDs()
	sd := h.routeTo(dst.Addr())
	switch {
	case len(on) == 1: // bound: it must be this one, and it will say whether it reaches dst
		sd = on[0].sd
	case src.IsValid() && !src.Addr().IsUnspecified():
		if sd = h.ownerOf(src.Addr()); sd == nil {
			return syscall.ENODEV
		}
	}
	if sd == nil {
		return h.id.Push(rpc.CMEvent{
			Type: rpc.EvAddrError, Status: -int32(syscall.ENETUNREACH), Device: rpc.NoDevice,
			Dst: rpc.MakeSockAddr(dst),
		})
	}
	var b deviceID
	var err error
	for _, o := range on {
		if o.sd == sd {
			b = o
		}
	}
	if b.cm == nil {
		if b, err = h.newOn(sd); err != nil {
			return errno(err)
		}
	}
	h.replace([]deviceID{b})
	return errno(b.cm.ResolveAddr(src.Addr(), dst, time.Duration(timeoutMS)*time.Millisecond))
}

func (h *idHandler) ResolveRoute(timeoutMS uint32) error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.ResolveRoute(time.Duration(timeoutMS) * time.Millisecond))
}

// maxBacklog bounds what a client may ask for; its event queue is shorter anyway.
const maxBacklog = 1024

func (h *idHandler) Listen(backlog uint32) error {
	on := h.deviceIDs()
	if len(on) == 0 {
		return syscall.EINVAL
	}
	mpa := h.options().MPA
	for _, b := range on {
		if err := b.cm.SetMPA(mpa); err != nil { // MPA answers before the client accepts
			return errno(err)
		}
		if err := b.cm.Listen(int(min(backlog, maxBacklog))); err != nil {
			// The client has a number; whose the port is has more words.
			h.s.log.Info("no listener", "err", err)
			return errno(err)
		}
	}
	return nil
}

// param is what the client asked for, with the id's options where it left something open.
func (h *idHandler) param(p *rpc.ConnParam) (rdma.ConnParam, error) {
	out, ok := p.Get()
	if !ok {
		return out, syscall.EINVAL
	}
	o := h.options()
	out.MPA, out.Extensions, out.SCTP = o.MPA, o.Extensions, o.SCTP
	out.Protocol, out.ROI = o.Protocol, o.ROI
	if out.IRD == 0 {
		out.IRD = o.IRD
	}
	if out.ORD == 0 {
		out.ORD = o.ORD
	}
	out.RoCE = h.roceParam(p)
	return out, nil
}

func (h *idHandler) Connect(qp server.QPHandler, p *rpc.ConnParam) error {
	b, q, param, err := h.join(qp, p)
	if err != nil {
		return err
	}
	return errno(b.cm.Connect(connectable(q), param))
}

func (h *idHandler) Accept(qp server.QPHandler, p *rpc.ConnParam) error {
	b, q, param, err := h.join(qp, p)
	if err != nil {
		return err
	}
	return errno(b.cm.Accept(connectable(q), param))
}

// join checks what a connection is to be made of.
func (h *idHandler) join(
	qp server.QPHandler, p *rpc.ConnParam,
) (b deviceID, q *vnic.QP, param rdma.ConnParam, err error) {
	if b, err = h.single(); err != nil {
		return b, nil, param, err
	}
	if qp != nil {
		qh, ok := qp.(*qpHandler)
		if !ok || qh.sd != b.sd {
			return b, nil, param, syscall.EINVAL // a QP of another device
		}
		q = qh.qp
	}
	param, err = h.param(p)
	return b, q, param, err
}

// connectable is a QP for an id of the RNIC's, which takes none for nil.
func connectable(q *vnic.QP) vnic.Connectable {
	if q == nil {
		return nil
	}
	return q
}

func (h *idHandler) Reject(private []byte) error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.Reject(private))
}

func (h *idHandler) Establish() error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.Establish())
}

// Notify is for what the RNIC of iWARP knows by itself.
func (h *idHandler) Notify() error {
	b, err := h.single()
	if err != nil || !b.sd.dev.roce() {
		return err
	}
	return errno(b.cm.Notify())
}

func (h *idHandler) Disconnect() error {
	b, err := h.single()
	if err != nil {
		return err
	}
	return errno(b.cm.Disconnect())
}

// SetOption takes rdma_cm's options of ids, and ours. Paths of InfiniBand are EOPNOTSUPP.
func (h *idHandler) SetOption(level, name uint32, value []byte) error {
	switch level {
	case rpc.OptLevelID:
		return h.setOption(name, value)
	case rpc.OptLevelVRNIC:
	default:
		return syscall.EOPNOTSUPP
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opts.Set(name, value, len(h.s.devs))
}

// sharing is what an id's options say of the addresses that it binds to.
func sharing(o rpc.IDOptions) vnic.CMSharing {
	return vnic.CMSharing{Reuse: o.ReuseAddr, Only6: o.AFOnly}
}

// setOption has the ids behind h have an option of RDMA_OPTION_ID, and those that come.
func (h *idHandler) setOption(name uint32, value []byte) error {
	h.mu.Lock()
	o, on := h.idOpts, h.ids
	h.mu.Unlock()
	was := sharing(o)
	if err := o.Set(name, value); err != nil {
		return err
	}
	if now := sharing(o); now != was {
		for _, b := range on {
			if err := b.cm.SetSharing(now); err != nil {
				return errno(err)
			}
		}
	}
	h.mu.Lock()
	h.idOpts = o
	h.mu.Unlock()
	return nil
}

func (h *idHandler) idOptions() rpc.IDOptions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.idOpts
}

// InitQPAttr answers as rdma_cm does for an RNIC: INIT is where a QP is from the start, and the
// later states are entered by connecting, so nothing is asked for them. (A kernel names the rights
// for RTR too, and its drivers pass over them.)
func (h *idHandler) InitQPAttr(state uint32) (rpc.CMInitQPAttrReply, error) {
	r := rpc.CMInitQPAttrReply{State: state, Port: 1}
	if h.Query().Device == rpc.NoDevice {
		return r, syscall.EINVAL
	}
	if on, err := h.single(); err == nil && on.sd.dev.roce() {
		return h.initRoCE(on.cm, state)
	}
	switch state {
	case abi.StateInit:
		r.Mask, r.Access = rpc.QPAttrState|rpc.QPAttrAccess, initAccess
	case abi.StateRTR, abi.StateRTS:
	default:
		return r, syscall.EINVAL
	}
	return r, nil
}

// initAccess is what the kernel's iWARP connection manager asks for: remote write and read.
const initAccess = 1<<1 | 1<<2

func (h *idHandler) Query() rpc.CMQueryReply {
	on := h.deviceIDs()
	r := rpc.CMQueryReply{Device: rpc.NoDevice}
	if len(on) > 0 {
		r.Src, r.Dst = rpc.MakeSockAddr(on[0].cm.Local()), rpc.MakeSockAddr(on[0].cm.Remote())
	}
	if len(on) == 1 && !on[0].cm.Local().Addr().IsUnspecified() {
		r.Device, r.Port = on[0].sd.number, 1
	}
	return r
}

func (h *idHandler) Close() error {
	h.closeUDP()
	h.replace(nil)
	return nil
}

// devices are those that h can be on. Those of iWARP come first: who names no device, and asks for
// what one of each kind has, gets iWARP, as before there was anything else.
func (h *idHandler) devices() []*sessionDevice {
	h.s.look()
	all := h.s.devs
	if n := h.options().Device; n != 0 {
		all = all[n-1 : n]
	}
	devs := make([]*sessionDevice, 0, len(all))
	for _, roce := range []bool{false, true} {
		for _, sd := range all {
			if !sd.dev.gone.Load() && sd.dev.roce() == roce && (roce || h.space != rpc.PSUDP) {
				devs = append(devs, sd)
			}
		}
	}
	return devs
}

// ownerOf is the device whose address addr is; nil: none's.
func (h *idHandler) ownerOf(addr netip.Addr) *sessionDevice {
	for _, sd := range h.devices() {
		if sd.dev.owns(addr) {
			return sd
		}
	}
	return nil
}

// routeTo is the device that reaches addr: its own, or the one with the longest prefix that holds
// it, the first of several. nil: none does.
func (h *idHandler) routeTo(addr netip.Addr) *sessionDevice {
	if sd := h.ownerOf(addr); sd != nil {
		return sd
	}
	var best *sessionDevice
	bits := -1
	for _, sd := range h.devices() {
		if addr.IsMulticast() && sd.dev.sends(addr) {
			return sd
		}
		if n := sd.dev.station.Reaches(addr); n > bits {
			best, bits = sd, n
		}
	}
	return best
}

// onEvent passes events of an id on sd on to the client. The RNIC calls it for one event at a time,
// and it must not block.
func (h *idHandler) onEvent(sd *sessionDevice) func(vnic.CMEvent) {
	return func(ev vnic.CMEvent) {
		t, ok := cmEvents[ev.Type]
		if !ok {
			return
		}
		out := rpc.CMEvent{
			Type: t, Status: ev.Status, Cause: causeOf(ev.Err), Device: sd.number,
		}
		out.SetConn(&ev.Param)
		if sd.dev.roce() {
			out.SetRoCE(&ev.Param.RoCE)
			out.Path, out.Group = ringAH(&ev.Param.RoCE.Path), ev.Group
		}
		if _, ok := errors.AsType[*rdma.RejectedError](ev.Err); ok {
			out.Flags |= rpc.EventByProgram
		}
		if ev.ID != nil {
			out.Src, out.Dst = rpc.MakeSockAddr(ev.ID.Local()), rpc.MakeSockAddr(ev.ID.Remote())
		}
		sd.s.log.Debug("connection", "dev", sd.dev.spec.Name, "event", ev.Type, "local",
			out.Src.AddrPort(), "remote", out.Dst.AddrPort(), "status", out.Status, "err", ev.Err)
		if r := h.udpRelay(); r != nil && ev.Type == vnic.CMDeviceRemoval {
			go r.Close() // the network goes, too
		}
		sd.held.do(func() {
			if ev.Type == vnic.CMConnectRequest {
				h.request(sd, ev.ID, out)
			} else if err := h.id.Push(out); err != nil {
				sd.s.log.Debug("connection event lost", "event", ev.Type, "err", err)
			}
		})
	}
}

// request offers a new connection to the client as a child id. If its queue is full the peer is
// refused: the child is closed, on another goroutine, since its handler is what runs here.
func (h *idHandler) request(sd *sessionDevice, child *vnic.CMID, ev rpc.CMEvent) {
	made := false
	err := h.id.PushRequest(ev, func(id *server.CMID) server.IDHandler {
		made = true
		o := h.idOptions()
		c := &idHandler{s: h.s, id: id, space: h.space, ids: []deviceID{{sd, child}},
			opts: h.options(), idOpts: rpc.IDOptions{TOS: o.TOS, ACKTimeout: o.ACKTimeout}}
		child.SetHandler(c.onEvent(sd))
		return c
	})
	if err == nil {
		return
	}
	sd.s.log.Warn("connection request refused: the client does not take its events", "dev",
		sd.dev.spec.Name, "err", err)
	if !made { // else shm has closed it
		go child.Close()
	}
}
