package daemon

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/vnic"
)

// roceOptions are what rdma_set_option sets of an id on a RoCE device.
type roceOptions struct{ tos, ackTimeout uint8 }

// set takes an option of RDMA_OPTION_ID. REUSEADDR and AFONLY are hints here, and so are all on
// iWARP.
func (o *roceOptions) set(name uint32, value []byte) error {
	if name > abi.OptACKTimeout {
		return syscall.EOPNOTSUPP
	}
	if name != abi.OptTOS && name != abi.OptACKTimeout {
		return nil
	}
	var n uint32
	switch len(value) {
	case 1:
		n = uint32(value[0])
	case 4: // as programs pass a variable of their own
		n = binary.NativeEndian.Uint32(value)
	default:
		return syscall.EINVAL
	}
	if name == abi.OptTOS {
		o.tos = uint8(n)
		return nil
	}
	if n > 31 {
		return syscall.EINVAL
	}
	o.ackTimeout = uint8(n)
	return nil
}

func (h *idHandler) roceOptions() roceOptions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roce
}

// roceParam is what the client asked for of RoCE, with the id's options.
func (h *idHandler) roceParam(p *abi.ConnParam) rdma.RoCEParam {
	r, o := p.RoCE(), h.roceOptions()
	r.TrafficClass, r.ACKTimeout = o.tos, o.ackTimeout
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
	for _, p := range d.spec.Addrs {
		if p.Addr().Is4() == group.Unmap().Is4() {
			return true
		}
	}
	return false
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

// initRoCE says what the program has to set by itself. The QP of a connection is moved to RTR and
// RTS by the connection manager, so nothing is asked for these.
func (h *idHandler) initRoCE(state uint32) (abi.CMInitQPAttrReply, error) {
	r := abi.CMInitQPAttrReply{State: state, Port: 1}
	r.Attr.Port = 1
	datagrams := h.space == abi.PSUDP
	switch {
	case state == abi.StateInit && datagrams:
		r.Mask = uint32(rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey)
		r.Attr.QKey = udpQKey
	case state == abi.StateInit:
		r.Mask = uint32(rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess)
	case state == abi.StateRTR && datagrams:
		r.Mask = uint32(rdma.AttrState)
	case state == abi.StateRTS && datagrams:
		r.Mask = uint32(rdma.AttrState | rdma.AttrSQPSN)
	case state == abi.StateRTR, state == abi.StateRTS:
	default:
		return r, syscall.EINVAL
	}
	return r, nil
}
