package ipoib

import (
	"encoding/binary"
	"net/netip"
)

// Signatures of the groups that carry IP (RFC 4391, section 4).
const (
	signature4 = 0x401B
	signature6 = 0x601B
)

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// BroadcastGID is the group of all interfaces of a link.
func BroadcastGID(pkey uint16, scope uint8) GID {
	g := mgid(signature4, pkey, scope)
	binary.BigEndian.PutUint32(g[12:], 0xffffffff)
	return g
}

// GroupOf is the group that carries packets to a multicast address, or to 255.255.255.255. Whoever
// sends there need not join it (docs/decisions.md#I2).
func GroupOf(ip netip.Addr, pkey uint16, scope uint8) GID {
	switch {
	case ip == limitedBroadcast:
		return BroadcastGID(pkey, scope)
	case ip.Is4():
		g := mgid(signature4, pkey, scope)
		b := ip.As4()
		binary.BigEndian.PutUint32(g[12:], binary.BigEndian.Uint32(b[:])&(1<<28-1))
		return g
	}
	g := mgid(signature6, pkey, scope)
	b := ip.As16()
	copy(g[6:], b[6:])
	return g
}

// mgid is a transient group of a scope, with nothing behind the P_Key.
func mgid(signature, pkey uint16, scope uint8) (g GID) {
	g[0], g[1] = 0xff, 0x10|scope&0xf
	binary.BigEndian.PutUint16(g[2:], signature)
	binary.BigEndian.PutUint16(g[4:], pkey)
	return g
}

// InterfaceID is the interface identifier of an EUI-64 (RFC 4391, section 8): the u bit of one that
// is not modified is toggled.
func InterfaceID(guid uint64, modified bool) (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], guid)
	if !modified {
		id[0] ^= 2
	}
	return id
}

// LinkLocal is the link-local address of an interface identifier.
func LinkLocal(id [8]byte) netip.Addr {
	b := [16]byte{0: 0xfe, 1: 0x80}
	copy(b[8:], id[:])
	return netip.AddrFrom16(b)
}

// solicitedNode is the group where the owner of an IPv6 address is looked for.
func solicitedNode(ip netip.Addr) netip.Addr {
	a := ip.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
}

// maxHostGroups bounds the groups that the host is in.
const maxHostGroups = 512

// groups are those that the interface is in: of an IP address each, of which several can have one
// MGID.
type groups struct {
	always map[netip.Addr]bool // those the host does not leave
	host   map[netip.Addr]bool // those it has told of
	joined map[GID]int         // how many addresses want it
}

// join notes that packets to ip are wanted.
func (i *Interface) join(ip netip.Addr, always bool) {
	g := &i.groups
	set := g.host
	if always {
		set = g.always
	} else if len(g.host) >= maxHostGroups {
		i.stats.DropGroups++
		return
	}
	if g.always[ip] || g.host[ip] {
		return
	}
	set[ip] = true
	id := i.groupOf(ip)
	if g.joined[id]++; g.joined[id] == 1 {
		i.output(Output{Kind: OutJoin, Way: Way{To: LinkAddr{GID: id}}})
	}
}

// leave notes that the host wants no packets to ip any more.
func (i *Interface) leave(ip netip.Addr) {
	g := &i.groups
	if !g.host[ip] {
		return
	}
	delete(g.host, ip)
	id := i.groupOf(ip)
	if g.joined[id]--; g.joined[id] == 0 {
		delete(g.joined, id)
		i.output(Output{Kind: OutLeave, Way: Way{To: LinkAddr{GID: id}}})
	}
}

func (i *Interface) groupOf(ip netip.Addr) GID { return GroupOf(ip, i.cfg.PKey, i.cfg.Scope) }

// Types of IGMP and MLD messages by which the host tells routers of its groups.
const (
	igmpReport1, igmpReport2, igmpReport3, igmpLeave = 0x12, 0x16, 0x22, 0x17
	mldReport1, mldDone, mldReport2                  = 131, 132, 143
)

// watchHost follows the host in and out of groups: what it tells routers of them passes here.
func (i *Interface) watchHost(h *ipHeader, body []byte) {
	switch {
	case h.proto == protoIGMP && len(body) >= 8:
		group := netip.AddrFrom4([4]byte(body[4:]))
		switch body[0] {
		case igmpReport1, igmpReport2:
			i.told(group, true)
		case igmpLeave:
			i.told(group, false)
		case igmpReport3:
			i.records(body, 4)
		}
	case h.proto == protoICMPv6 && len(body) >= 8:
		switch body[0] {
		case mldReport1, mldDone:
			if len(body) >= 24 {
				i.told(netip.AddrFrom16([16]byte(body[8:])), body[0] == mldReport1)
			}
		case mldReport2:
			i.records(body, 16)
		}
	}
}

func (i *Interface) told(group netip.Addr, in bool) {
	switch {
	case !group.IsMulticast():
	case in:
		i.join(group, false)
	default:
		i.leave(group)
	}
}

// records are the group records of IGMPv3 or MLDv2 (RFC 3376, section 4.2; RFC 3810, section 5.2),
// whose addresses have n octets. A filter that includes no source is the end of a membership.
func (i *Interface) records(body []byte, n int) {
	const isInclude, toInclude, block = 1, 3, 6
	count := int(binary.BigEndian.Uint16(body[6:]))
	b := body[8:]
	for range count {
		if len(b) < 4+n {
			return
		}
		kind, sources := b[0], int(binary.BigEndian.Uint16(b[2:]))
		group, _ := netip.AddrFromSlice(b[4 : 4+n])
		next := 4 + n + sources*n + 4*int(b[1])
		switch {
		case kind == block:
		case (kind == isInclude || kind == toInclude) && sources == 0:
			i.told(group, false)
		default:
			i.told(group, true)
		}
		if next > len(b) {
			return
		}
		b = b[next:]
	}
}
