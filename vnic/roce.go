package vnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/dcqcn"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic/internal/attr"
	"github.com/vrnic/vrnic/vnic/internal/gsi"
	"github.com/vrnic/vrnic/vnic/internal/link/packets"
	"github.com/vrnic/vrnic/vnic/internal/mcast"
)

// gidTable is how many entries the GID table of a RoCE device has.
const gidTable = 32

// roceOverhead is what a path MTU leaves of an IP packet for headers, as Linux's rxe counts it: the
// longest that a packet with a payload has are 80 octets, ICRC and all.
const roceOverhead = 80

// An adapter is what a Device of RoCE has beside those of iWARP.
type adapter struct {
	gids    []rdma.GID // the table (docs/decisions.md#R10); what is behind it is empty
	limits  attr.Limits
	port    RoCEPort // nil: there is no network
	shards  [qpShards]qpShard
	drops   drops
	past    PacketCounters // guarded by Device.mu; of QPs that are gone
	groups  *mcast.Groups[*QP]
	inboxes inboxes // guarded by Device.mu
	// gsi is QP 1; nil for a moment, while packets can come already.
	gsi atomic.Pointer[gsi.Manager]

	links   packets.Device
	watched atomic.Int32 // by so many, see Device.Watch
}

// The numbers of queue pairs that are not for programs: those below firstQPN, of which 0 and 1 are
// of the subnet and of connection management, and the one of all multicast groups.
const (
	firstQPN     = 16
	maxPacketQPs = 1 << 22 // far fewer than there are numbers
)

// nextQPN is the next number for a queue pair of RoCE; with mu held.
func (d *Device) nextQPN() uint32 {
	for {
		if n := d.qpns.Next(); n >= firstQPN && n != uint32(packet.Multicast) {
			return n
		}
	}
}

// newAdapter makes the adapter of a device of cfg, whose addresses are good.
func newAdapter(cfg *Config) (*adapter, error) {
	a := &adapter{gids: []rdma.GID{linkLocal(cfg.MAC)}, inboxes: newInboxes()}
	for _, p := range cfg.Addrs {
		if g := rdma.GIDOf(p.Addr()); g != a.gids[0] {
			a.gids = append(a.gids, g)
		}
	}
	if len(a.gids) > gidTable {
		return nil, fmt.Errorf("vnic: %d addresses for device %s, which is one of RoCE: at most %d: %w",
			len(cfg.Addrs), cfg.Name, gidTable-1, rdma.ErrInvalid)
	}
	a.limits = attr.Limits{ActiveMTU: activeMTU(cfg.MTU), MaxRead: maxReads, GID: a.gid}
	if a.limits.ActiveMTU == 0 {
		return nil, fmt.Errorf("vnic: device %s, which is one of RoCE, has an MTU of %d: %d are the "+
			"least: %w", cfg.Name, cfg.MTU, rdma.MTU256.Octets()+roceOverhead, rdma.ErrInvalid)
	}
	for i := range a.shards {
		a.shards[i].m = make(map[uint32]*QP)
	}
	a.groups = a.newGroups()
	if cfg.DCQCN {
		a.links.Congestion = &packets.Congestion{Config: dcqcn.Default()}
	}
	// Packets come as soon as it is open: all else is there.
	if err := a.open(cfg); err != nil {
		return nil, err
	}
	if cfg.Beside == nil {
		cfg.Beside = new(Beside)
	}
	if !cfg.ForceWire {
		cfg.Beside.add(a)
	}
	return a, nil
}

// open takes the packets to the device's addresses, if the network has them.
func (a *adapter) open(cfg *Config) error {
	n, ok := cfg.Network.(RoCENetwork)
	if !ok {
		return nil
	}
	addrs := make([]netip.Addr, len(a.gids))
	for i, g := range a.gids {
		addrs[i] = g.Addr()
	}
	port, err := n.OpenRoCE(addrs, a)
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // a network without the address that the MAC gives
		port, err = n.OpenRoCE(addrs[1:], a)
	}
	if err != nil {
		return fmt.Errorf("vnic: device %s: %w", cfg.Name, err)
	}
	a.port = port
	return nil
}

// linkLocal is the GID that a port has by itself: fe80::/64 and an EUI-64 of its MAC (RFC 4291,
// appendix A).
func linkLocal(mac [6]byte) (g rdma.GID) {
	g[0], g[1] = 0xfe, 0x80
	copy(g[8:], mac[:3])
	g[8] ^= 2
	binary.BigEndian.PutUint16(g[11:], 0xfffe)
	copy(g[13:], mac[3:])
	return g
}

// activeMTU is the largest path MTU whose packets fit n octets, 0: none does.
func activeMTU(n int) rdma.MTU {
	m := rdma.MTU4096
	for m > 0 && m.Octets()+roceOverhead > n {
		m--
	}
	return m
}

// gid is entry index of the GID table; ok is false of one that is empty.
func (a *adapter) gid(index uint8) (g rdma.GID, ok bool) {
	if int(index) >= len(a.gids) {
		return rdma.GID{}, false
	}
	return a.gids[index], true
}

// GID implements rdma.Device. The zero entry is an empty one.
func (c *Context) GID(index int) (rdma.GIDEntry, error) { return c.dev.GID(index) }

// RoCEPort is the largest path MTU of a device of RoCE, and how many entries its GID table has.
// Both are 0 on a device of iWARP.
func (d *Device) RoCEPort() (active rdma.MTU, gids int) {
	if d.roce == nil {
		return 0, 0
	}
	return d.roce.limits.ActiveMTU, gidTable
}

// GID is entry index of the device's GID table. The zero entry is an empty one.
func (d *Device) GID(index int) (rdma.GIDEntry, error) {
	a := d.roce
	switch {
	case a == nil:
		return rdma.GIDEntry{}, fmt.Errorf("GID %d of device %s, which speaks iWARP: %w", index,
			d.cfg.Name, rdma.ErrInvalid)
	case index < 0 || index >= gidTable:
		return rdma.GIDEntry{}, fmt.Errorf("GID %d of device %s, whose table has %d: %w", index,
			d.cfg.Name, gidTable, rdma.ErrInvalid)
	case index >= len(a.gids):
		return rdma.GIDEntry{}, nil
	}
	return rdma.GIDEntry{GID: a.gids[index], Type: rdma.GIDRoCEv2}, nil
}

// checkType completes cfg, of a QP that is to be made on d, with its type.
func (d *Device) checkType(cfg *rdma.QPConfig) error {
	or(&cfg.Type, rdma.RC)
	switch cfg.Type {
	case rdma.RC:
		return nil
	case rdma.UC, rdma.UD:
		if d.roce != nil {
			return nil
		}
		return fmt.Errorf("create a QP of type %v on device %s, which speaks iWARP: %w", cfg.Type,
			d.cfg.Name, rdma.ErrUnsupported)
	}
	return fmt.Errorf("create a QP of type %d: %w", uint32(cfg.Type), rdma.ErrInvalid)
}
