package daemon

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/relay"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/vnic"
)

// sharing is what an id's options say of the addresses that it binds to.
func sharing(o abi.IDOptions) vnic.CMSharing {
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

func (h *idHandler) idOptions() abi.IDOptions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.idOpts
}

// roceParam is what the client asked for of RoCE, with the id's options.
func (h *idHandler) roceParam(p *abi.ConnParam) rdma.RoCEParam {
	r, o := p.RoCE(), h.idOptions()
	r.TrafficClass, r.ACKTimeout = o.TOS, o.ACKTimeout
	return r
}

// connectable is a QP for an id of the RNIC's, which takes none for nil.
func connectable(q *vnic.QP) vnic.Connectable {
	if q == nil {
		return nil
	}
	return q
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
	r, err := relay.Start(packets, func(receive func(netip.AddrPort, []byte)) (relay.Port, error) {
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
func (h *idHandler) initRoCE(id *vnic.CMID, state uint32) (abi.CMInitQPAttrReply, error) {
	r := abi.CMInitQPAttrReply{State: state, Port: 1}
	to, ok := abi.RoCEState(state)
	if !ok {
		return r, syscall.EINVAL
	}
	if h.space != abi.PSUDP {
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
