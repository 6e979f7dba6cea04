package daemon

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/profile"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
)

// Numbers of rdma-core that programs look at (docs/decisions.md#V18).
const (
	portDown        = 1 // IBV_PORT_DOWN
	portActive      = 4 // IBV_PORT_ACTIVE
	linkEthernet    = 2 // IBV_LINK_LAYER_ETHERNET
	physDisabled    = 3
	physLinkUp      = 5
	width4X         = 2
	speedEDR        = 32
	maxMessage      = 1 << 31
	capCM           = 1 << 16  // IBV_PORT_CM_SUP
	vendorID        = 0xffffff // nobody's, as rxe has it; 0 is no device's for programs that look
	firmwareVersion = "vrnic"
	maxAH           = 1 << 24 // the session's quotas are less, of these two
	atomicHCA       = 1       // IBV_ATOMIC_HCA: among the QPs of the device
	capMemWindow    = 1 << 17 // IBV_DEVICE_MEM_WINDOW
	capMemMgt       = 1 << 21 // IBV_DEVICE_MEM_MGT_EXTENSIONS
	capMWType2B     = 1 << 24 // IBV_DEVICE_MEM_WINDOW_TYPE_2B
)

func (s *session) QueryDevice(number uint32) (*rpc.QueryDeviceReply, error) {
	sd, err := s.device(number)
	if err == syscall.ENODEV && s.shm.TellsGone() && s.numbered(number) {
		return nil, syscall.ENXIO
	}
	if err != nil {
		return nil, err
	}
	d := sd.dev
	l := d.vnic.Config().Limits
	own := clientLimits(s.shm.Limits())
	r := &rpc.QueryDeviceReply{
		Name:      rpc.MakeDeviceName(d.spec.Name),
		GUID:      guid(d.mac),
		MaxMRLen:  l.MRLen,
		MAC:       d.mac,
		MTU:       uint32(d.mtu()),
		VendorID:  vendorID,
		MaxQP:     uint32(own.QP),
		MaxQPWR:   uint32(own.Depth),
		MaxSGE:    uint32(min(own.SGE, abi.MaxSGE)),
		MaxInline: uint32(min(own.Inline, abi.MaxInline)),
		MaxCQ:     uint32(own.CQ),
		MaxCQE:    uint32(own.CQDepth),
		MaxMR:     uint32(own.MR),
		MaxPD:     uint32(own.PD),
		MaxIRD:    uint32(l.IRD),
		MaxORD:    uint32(l.ORD),
		MaxMW:     uint32(own.MW),
		MaxSRQ:    uint32(own.SRQ),
		MaxSRQWR:  uint32(own.Depth),
		MaxSRQSGE: uint32(min(own.SGE, abi.MaxSGE)),
		AtomicCap: atomicHCA,
		CapFlags:  capMemWindow | capMemMgt | capMWType2B,
	}
	r.NodeType = rpc.NodeRNIC
	copy(r.FWVersion[:], firmwareVersion)
	if d.roce() {
		r.NodeType = rpc.NodeCA
		r.MaxAH, r.MaxGroups, r.MaxGroupQPs = maxAH, vnic.MaxGroups, vnic.MaxGroupMembers
	}
	addrs := d.addrs
	for i, p := range addrs[:min(len(addrs), rpc.MaxAddrs)] {
		r.Addrs[i] = rpc.MakePrefix(p)
		r.NumAddrs++
	}
	d.card().Describe(r)
	return r, nil
}

func (s *session) QueryPort(number, port uint32) (*rpc.QueryPortReply, error) {
	sd, err := s.device(number)
	if err != nil {
		return nil, err
	}
	if port != 1 {
		return nil, syscall.EINVAL
	}
	mtu := ibMTU(sd.dev.mtu())
	state, phys := uint32(portActive), uint32(physLinkUp)
	if !sd.dev.vnic.PortActive() {
		state, phys = portDown, physDisabled // as siw says it
	}
	r := &rpc.QueryPortReply{
		State: state, MaxMTU: ibMTU(maxMTU), ActiveMTU: mtu, GIDs: 1, MaxMsg: maxMessage,
		LinkLayer: linkEthernet, Width: width4X, Speed: speedEDR, PhysState: phys,
	}
	if sd.dev.roce() {
		active, gids := sd.dev.vnic.RoCEPort()
		r.ActiveMTU, r.GIDs, r.CapFlags = uint32(active), uint32(gids), capCM
	}
	sd.dev.card().DescribePort(r)
	return r, nil
}

// ibMTU is enum ibv_mtu: the largest that fits n octets.
func ibMTU(n int) uint32 {
	mtu := uint32(1)
	for size := 512; size <= n && mtu < 5; size *= 2 {
		mtu++
	}
	return mtu
}

// QueryGID: entry 0 of an RNIC's table is its MAC address, zero padded, as siw has it. A RoCE
// device has its own.
func (s *session) QueryGID(number, port, index uint32) (*rpc.QueryGIDReply, error) {
	sd, err := s.device(number)
	if err != nil {
		return nil, err
	}
	if port != 1 || index > math.MaxInt32 {
		return nil, syscall.EINVAL
	}
	if sd.dev.roce() {
		if _, gids := sd.dev.vnic.RoCEPort(); int(index) >= gids && index < sd.dev.card().GIDs {
			return &rpc.QueryGIDReply{}, nil // the card's table is longer
		}
		e, err := sd.dev.vnic.GID(int(index))
		if err != nil {
			return nil, errno(err)
		}
		return &rpc.QueryGIDReply{GID: e.GID, Type: uint32(e.Type)}, nil
	}
	if index != 0 {
		return nil, syscall.EINVAL
	}
	r := &rpc.QueryGIDReply{}
	copy(r.GID[:], sd.dev.mac[:])
	return r, nil
}

// guid is the EUI-64 that a MAC address stands for, in network order as a number (RFC 4291,
// appendix A).
func guid(mac [6]byte) uint64 {
	return binary.BigEndian.Uint64([]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3],
		mac[4], mac[5]})
}

// card is what the device shows itself as: the zero Profile is nobody's, and bounds nothing.
func (d *device) card() *profile.Profile {
	if d.spec.Profile == nil {
		return &profile.Profile{}
	}
	return d.spec.Profile
}

func (d *device) owns(a netip.Addr) bool {
	return slices.ContainsFunc(d.addrs,
		func(p netip.Prefix) bool { return p.Addr() == a.Unmap() })
}
