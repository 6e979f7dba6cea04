package rawroce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Of messages of the connection manager.
const (
	ManagerQPN  = 1
	ManagerQKey = 0x80010000
	madLen      = 256
	madHead     = 24
	cmaLen      = 36 // the address header in front of private data
)

// Attribute ids of messages.
const (
	AttrREQ     = 0x10
	AttrMRA     = 0x11
	AttrREJ     = 0x12
	AttrREP     = 0x13
	AttrRTU     = 0x14
	AttrDREQ    = 0x15
	AttrDREP    = 0x16
	AttrSIDRREQ = 0x17
	AttrSIDRREP = 0x18
	AttrLAP     = 0x19
)

var attrNames = map[uint16]string{AttrREQ: "REQ", AttrMRA: "MRA", AttrREJ: "REJ", AttrREP: "REP",
	AttrRTU: "RTU", AttrDREQ: "DREQ", AttrDREP: "DREP", AttrSIDRREQ: "SIDR_REQ",
	AttrSIDRREP: "SIDR_REP", AttrLAP: "LAP"}

// A MAD is a management datagram of the connection manager, header and all: 256 octets, if nobody
// lies.
type MAD []byte

// NewMAD makes one with nothing but its header.
func NewMAD(attr uint16, tid uint64) MAD {
	m := make(MAD, madLen)
	copy(m, []byte{1, 7, 2, 3})
	binary.BigEndian.PutUint64(m[8:], tid)
	binary.BigEndian.PutUint16(m[16:], attr)
	return m
}

// TID and Attr are those of the header.
func (m MAD) TID() uint64  { return binary.BigEndian.Uint64(m[8:]) }
func (m MAD) Attr() uint16 { return binary.BigEndian.Uint16(m[16:]) }

// Name is what m is called.
func (m MAD) Name() string {
	if n, ok := attrNames[m.Attr()]; ok {
		return n
	}
	return fmt.Sprintf("attribute %#x", m.Attr())
}

// String is m in a few words.
func (m MAD) String() string {
	s := fmt.Sprintf("%s local %#x remote %#x", m.Name(), m.Local(), m.Remote())
	switch m.Attr() {
	case AttrREJ:
		s += fmt.Sprintf(" about %d for reason %d", m.About(), m.Reason())
	case AttrREP:
		s += fmt.Sprintf(" QP %#x PSN %#x", m.ReplyQPN(), m.ReplyPSN())
	case AttrSIDRREP:
		s += fmt.Sprintf(" status %d", m.at(4, 1))
	}
	return s
}

// at is a field of n octets behind the header, Set makes it v.
func (m MAD) at(off, n int) uint64 {
	var v uint64
	for _, b := range m[madHead+off : madHead+off+n] {
		v = v<<8 | uint64(b)
	}
	return v
}

// Set makes the n octets at off behind the header v.
func (m MAD) Set(off, n int, v uint64) MAD {
	for i := n - 1; i >= 0; i-- {
		m[madHead+off+i] = byte(v)
		v >>= 8
	}
	return m
}

// Local and Remote are the ids in front of most messages, Reason and About those of a REJ.
func (m MAD) Local() uint32  { return uint32(m.at(0, 4)) }
func (m MAD) Remote() uint32 { return uint32(m.at(4, 4)) }
func (m MAD) Reason() uint16 { return uint16(m.at(10, 2)) }
func (m MAD) About() uint8   { return uint8(m.at(8, 1)) >> 6 }

// Of a REP.
func (m MAD) ReplyQPN() uint32  { return uint32(m.at(12, 3)) }
func (m MAD) ReplyPSN() uint32  { return uint32(m.at(20, 3)) }
func (m MAD) Resources() uint8  { return uint8(m.at(24, 1)) }
func (m MAD) Depth() uint8      { return uint8(m.at(25, 1)) }
func (m MAD) SIDRStatus() uint8 { return uint8(m.at(4, 1)) }

// A Request is what a REQ says.
type Request struct {
	ID, QPN, PSN     uint32
	Service, GUID    uint64
	Transport        uint8 // 0 RC, 1 UC
	Resources, Depth uint8
	Retries          uint8
	MTU              uint8 // code
	PKey             uint16
	AckTimeout       uint8
	Src, Dst         netip.Addr
	Port             uint16 // of the source
}

// Where fields of a REQ are, for those who lie.
const (
	ReqMTU  = 50 // in the high four bits
	ReqGID  = 72 // the primary remote one
	ReqPath = 52
	ReqCMA  = 140 // the address header
)

// MAD is the REQ.
func (r Request) MAD(tid uint64) MAD {
	const timeout = 18 // of messages: 1.1 s
	m := NewMAD(AttrREQ, tid)
	m.Set(0, 4, uint64(r.ID)).Set(8, 8, r.Service).Set(16, 8, r.GUID).Set(32, 3, uint64(r.QPN))
	m.Set(35, 1, uint64(r.Resources)).Set(39, 1, uint64(r.Depth))
	m.Set(43, 1, timeout<<3|uint64(r.Transport)<<1).Set(44, 3, uint64(r.PSN))
	m.Set(47, 1, timeout<<3|uint64(r.Retries)).Set(48, 2, uint64(r.PKey))
	m.Set(ReqMTU, 1, uint64(r.MTU)<<4|7).Set(51, 1, 15<<4).Set(ReqPath, 4, 1<<32-1)
	gid(m[madHead+56:], r.Src)
	gid(m[madHead+ReqGID:], r.Dst)
	m.Set(93, 1, 64).Set(95, 1, uint64(r.AckTimeout)<<3)
	cma(m[madHead+ReqCMA:], r.Src, r.Dst, r.Port)
	return m
}

// Lookup is a SIDR_REQ for a service.
func Lookup(tid uint64, id uint32, service uint64, src, dst netip.Addr, port uint16) MAD {
	m := NewMAD(AttrSIDRREQ, tid).Set(0, 4, uint64(id)).Set(4, 2, 0xffff).Set(8, 8, service)
	cma(m[madHead+16:], src, dst, port)
	return m
}

// Pair is a message that says no more than two ids: RTU, DREP, and the begin of others.
func Pair(attr uint16, tid uint64, local, remote uint32) MAD {
	return NewMAD(attr, tid).Set(0, 4, uint64(local)).Set(4, 4, uint64(remote))
}

func gid(b []byte, a netip.Addr) {
	g := a.As16() // of IPv4: mapped
	copy(b, g[:])
}

func cma(b []byte, src, dst netip.Addr, port uint16) {
	clear(b[:cmaLen])
	b[1] = 4 << 4
	if src.Is6() {
		b[1] = 6 << 4
	}
	binary.BigEndian.PutUint16(b[2:], port)
	s, d := src.AsSlice(), dst.AsSlice()
	copy(b[4+16-len(s):], s)
	copy(b[20+16-len(d):], d)
}

// Service is rdma_cm's id of a port, of the space for connections or, with udp, that for datagrams.
func Service(port uint16, udp bool) uint64 {
	space := uint64(0x106)
	if udp {
		space = 0x111
	}
	return space<<16 | uint64(port)
}
