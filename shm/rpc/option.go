package rpc

import (
	"maps"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

// The limits of OptFPDUSize: RFC 5044, section 3.
const (
	minFPDUSize = 128
	maxFPDUSize = 64768
)

// ConnOptions are what the options of OptLevelVRNIC say of one end of a connection, or of a
// listener. They are numbers, and only here they are taken apart and put together.
type ConnOptions struct {
	MPA        rdma.MPAParam
	Extensions bool // the messages of RFC 7306
	SCTP       bool // connect over SCTP
	Protocol   rdma.Protocol
	ROI        rdma.ROIParam
	IRD, ORD   uint16 // as rdma has them; what a connect or accept names comes first
	Device     uint32 // 1 + number of the device that a wildcard address means; 0: all
}

// connOptions has a row for each option: what it may be, 0 among it or not, and where it is kept.
// What get says is not sent if it is 0, the default; IRD and ORD go with a connect or accept.
var connOptions = map[uint32]struct {
	min, max uint64
	set      func(o *ConnOptions, n uint32)
	get      func(o *ConnOptions) uint32
}{
	OptMPARevision: {1, 2,
		func(o *ConnOptions, n uint32) { o.MPA.Revision = uint8(n) },
		func(o *ConnOptions) uint32 { return uint32(o.MPA.Revision) }},
	OptMPACRC: {0, uint64(rdma.CRCRequired),
		func(o *ConnOptions, n uint32) { o.MPA.CRC = rdma.CRCMode(n) },
		func(o *ConnOptions) uint32 { return uint32(o.MPA.CRC) }},
	OptMPAMarkers: {0, 1,
		func(o *ConnOptions, n uint32) { o.MPA.Markers = n == 1 },
		func(o *ConnOptions) uint32 { return boolWord(o.MPA.Markers) }},
	OptMPARTR: {0, RTRClientServer<<1 - 1,
		func(o *ConnOptions, n uint32) {
			o.MPA.ClientServer, o.MPA.RTR = n&RTRClientServer != 0, rdma.RTRKinds(n&^RTRClientServer)
		},
		func(o *ConnOptions) uint32 {
			return uint32(o.MPA.RTR) | RTRClientServer*boolWord(o.MPA.ClientServer)
		}},
	OptReads: {0, 1<<32 - 1,
		func(o *ConnOptions, n uint32) {
			o.IRD, o.ORD = readsFromRing(uint16(n>>16)),
				readsFromRing(uint16(n))
		},
		func(*ConnOptions) uint32 { return 0 }},
	OptFPDUSize: {0, maxFPDUSize,
		func(o *ConnOptions, n uint32) { o.MPA.MULPDU = uint16(n) },
		func(o *ConnOptions) uint32 { return uint32(o.MPA.MULPDU) }},
	OptTransport: {0, 1,
		func(o *ConnOptions, n uint32) { o.SCTP = n == 1 },
		func(o *ConnOptions) uint32 { return boolWord(o.SCTP) }},
	OptProtocol: {0, ProtocolROI | ProtocolNoSendCredits | ProtocolNoReadCredits,
		func(o *ConnOptions, n uint32) { o.Protocol, o.ROI = protocolOf(n) },
		func(o *ConnOptions) uint32 { return protocolWord(o.Protocol, &o.ROI) }},
	OptExtensions: {0, 1,
		func(o *ConnOptions, n uint32) { o.Extensions = n == 1 },
		func(o *ConnOptions) uint32 { return boolWord(o.Extensions) }},
}

// Set sets an option, on a daemon with so many devices: value is its octets. An error is a
// syscall.Errno.
func (o *ConnOptions) Set(name uint32, value []byte, devices int) error {
	var n uint64
	switch len(value) {
	case 4:
		n = uint64(abi.Order.Uint32(value))
	case 8:
		n = abi.Order.Uint64(value)
	default:
		return syscall.EINVAL
	}
	if name == OptDevice {
		if n >= uint64(devices) {
			return syscall.ENODEV
		}
		o.Device = uint32(n) + 1
		return nil
	}
	x, ok := connOptions[name]
	switch {
	case !ok:
		return syscall.EOPNOTSUPP
	case n < x.min, n > x.max, name == OptFPDUSize && n > 0 && n < minFPDUSize:
		return syscall.EINVAL
	}
	x.set(o, uint32(n))
	return nil
}

// Requests are those that set, for an id, what o has beside the defaults.
func (o *ConnOptions) Requests(id uint32) (reqs []*CMSetOptionRequest) {
	add := func(name, n uint32) {
		r := &CMSetOptionRequest{ID: id, Level: OptLevelVRNIC, Name: name, Len: 4}
		abi.Order.PutUint32(r.Value[:], n)
		reqs = append(reqs, r)
	}
	if o.Device != 0 {
		add(OptDevice, o.Device-1)
	}
	for _, name := range slices.Sorted(maps.Keys(connOptions)) {
		if n := connOptions[name].get(o); n != 0 {
			add(name, n)
		}
	}
	return reqs
}

// protocolOf reads the value of OptProtocol: a client that sets flags of ROI without it asks for
// iWARP.
func protocolOf(n uint32) (rdma.Protocol, rdma.ROIParam) {
	if n&ProtocolROI == 0 {
		return rdma.IWARP, rdma.ROIParam{}
	}
	return rdma.ROI, rdma.ROIParam{
		NoSendCredits: n&ProtocolNoSendCredits != 0, NoReadCredits: n&ProtocolNoReadCredits != 0,
	}
}

func protocolWord(p rdma.Protocol, r *rdma.ROIParam) uint32 {
	if p == rdma.IWARP {
		return 0
	}
	return ProtocolROI | ProtocolNoSendCredits*boolWord(r.NoSendCredits) |
		ProtocolNoReadCredits*boolWord(r.NoReadCredits)
}

func boolWord(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// IDOptions are what the options of OptLevelID, rdma_set_option's own, say of an id. TOS and
// ACKTimeout mean nothing on iWARP.
type IDOptions struct {
	TOS, ACKTimeout   uint8
	ReuseAddr, AFOnly bool
}

// maxACKTimeout is what five bits hold: 4.096 us * 2^31.
const maxACKTimeout = 31

// Set sets an option: value is its octets, of a number of one or four. An error is a syscall.Errno.
func (o *IDOptions) Set(name uint32, value []byte) error {
	var n uint32
	switch len(value) {
	case 1:
		n = uint32(value[0])
	case 4: // as programs pass a variable of their own
		n = abi.Order.Uint32(value)
	default:
		return syscall.EINVAL
	}
	switch name {
	case OptTOS:
		o.TOS = uint8(n)
	case OptReuseAddr:
		o.ReuseAddr = n != 0
	case OptAFOnly:
		o.AFOnly = n != 0
	case OptACKTimeout:
		if n > maxACKTimeout {
			return syscall.EINVAL
		}
		o.ACKTimeout = uint8(n)
	default:
		return syscall.EOPNOTSUPP
	}
	return nil
}

// Requests are those that set, for an id, what a connection of o has beside the defaults.
func (o *IDOptions) Requests(id uint32) (reqs []*CMSetOptionRequest) {
	add := func(name uint32, v uint8) {
		if v != 0 {
			r := &CMSetOptionRequest{ID: id, Level: OptLevelID, Name: name, Len: 1}
			r.Value[0] = v
			reqs = append(reqs, r)
		}
	}
	add(OptTOS, o.TOS)
	add(OptACKTimeout, o.ACKTimeout)
	return reqs
}

// Set has c ask for, or tell, p's private data, IRD and ORD; false: the private data are too long.
func (c *ConnParam) Set(p *rdma.ConnParam) bool {
	c.IRD, c.ORD = readsToRing(p.IRD), readsToRing(p.ORD)
	return c.SetPrivateData(p.PrivateData)
}

// Get is the way back; false: PrivateLen is beyond what there is room for. The private data are
// c's.
func (c *ConnParam) Get() (p rdma.ConnParam, ok bool) {
	p.IRD, p.ORD = readsFromRing(c.IRD), readsFromRing(c.ORD)
	p.PrivateData, ok = c.PrivateData()
	return p, ok
}

// SetRoCE has c ask for what p does, and say it as events do.
func (c *ConnParam) SetRoCE(p *rdma.RoCEParam) {
	c.Retry, c.RNRRetry = retryToRing(p.RetryCount), retryToRing(p.RNRRetry)
	c.FlowControl, c.SRQ = octet(p.FlowControl), octet(p.SRQ)
}

// RoCE is the way back, but for the numbers of datagrams.
func (c *ConnParam) RoCE() rdma.RoCEParam {
	return rdma.RoCEParam{
		RetryCount: retryFromRing(c.Retry), RNRRetry: retryFromRing(c.RNRRetry),
		FlowControl: c.FlowControl != 0, SRQ: c.SRQ != 0, QPN: c.QPN,
	}
}

// retryToRing translates a count of repeats to what the control messages have, where 0 is none.
func retryToRing(n uint8) uint8 {
	switch n {
	case 0:
		return 7
	case rdma.NoRetry:
		return 0
	}
	return n
}

func retryFromRing(n uint8) uint8 {
	if n == 0 {
		return rdma.NoRetry
	}
	return min(n, 7)
}

func octet(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// SetRoCE has e tell what a peer of RoCE asks for, what was agreed on, or where datagrams go; the
// path is not for this package.
func (e *CMEvent) SetRoCE(p *rdma.RoCEParam) {
	e.Param.SetRoCE(p)
	e.Param.QPN, e.QKey = p.QPN, p.QKey
}

// SetConn has e tell what a peer asks for, or what was agreed on.
func (e *CMEvent) SetConn(p *rdma.ConnParam) {
	e.Param.Set(p) // MPA carries no more private data than there is room for
	if p.Extensions {
		e.Flags |= EventExtensions
	}
	if p.SCTP {
		e.Flags |= EventSCTP
	}
	e.Flags |= protocolWord(p.Protocol, &p.ROI) * EventROI
}

// Conn is the way back, with private data of its own.
func (e *CMEvent) Conn() rdma.ConnParam {
	p, _ := e.Param.Get()
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	p.Extensions, p.SCTP = e.Flags&EventExtensions != 0, e.Flags&EventSCTP != 0
	p.Protocol, p.ROI = protocolOf(e.Flags / EventROI)
	return p
}

// readsFromRing translates an IRD or ORD of the control messages: there 0 is none and ReadsDefault
// asks for the default, or is unknown, where rdma says NoReads and 0.
func readsFromRing(n uint16) uint16 {
	switch n {
	case 0:
		return rdma.NoReads
	case ReadsDefault:
		return 0
	}
	return n
}

// readsToRing is the way back.
func readsToRing(n uint16) uint16 {
	switch n {
	case rdma.NoReads:
		return 0
	case 0:
		return ReadsDefault
	}
	return n
}
