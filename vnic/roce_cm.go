package vnic

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/packet"
	vniccm "github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/gsi"
)

// newRoCECM makes QP 1 of a device of RoCE, and what its connection manager asks for beside.
func (d *Device) newRoCECM() *vniccm.RoCE {
	c := &d.cfg
	g := gsi.New(gsi.Config{
		CM: cm.Config{
			GUID:        guid(c.MAC),
			PathMTU:     func() uint8 { return uint8(d.roce.limits.ActiveMTU) },
			MaxHalfOpen: c.MaxPending, MaxHalfOpenPerPeer: c.MaxPendingPerPeer,
			MaxPerPeer: c.MaxConnsPerPeer,
		},
		Route: d.routeRoCE,
		Stays: func(a netip.Addr) bool { return !c.ForceWire && d.ownsGID(a) },
		Log:   d.log,
	})
	d.roce.gsi.Store(g)
	r := &vniccm.RoCE{
		GSI: g, GIDIndex: d.gidIndex,
		Has: func(u *vniccm.User, qpn uint32) bool {
			qp := d.roce.find(qpn)
			return qp != nil && qp.ctx.cm == u
		},
		Join:  func(user uint32, group netip.Addr) error { return d.roce.groups.Join(group, user) },
		Leave: func(user uint32, group netip.Addr) error { return d.roce.groups.Leave(group, user) },
	}
	return r
}

// guid is the identifier of a device's: an EUI-64 of its MAC.
func guid(mac [6]byte) (n uint64) {
	g := linkLocal(mac)
	for i, b := range g[8:] {
		if i == 0 {
			b ^= 2 // the bit that is inverted in addresses only
		}
		n = n<<8 | uint64(b)
	}
	return n
}

// gidIndex is the index of an address of the device in its GID table.
func (d *Device) gidIndex(a netip.Addr) (index uint8, ok bool) {
	for i, g := range d.roce.gids {
		if g == rdma.GIDOf(a) {
			return uint8(i), true
		}
	}
	return 0, false
}

func (d *Device) ownsGID(a netip.Addr) bool {
	_, ok := d.gidIndex(a)
	return ok
}

// connects reports whether a connection manager can move qp to RTS.
func (qp *QP) connects() bool {
	s := qp.State()
	return qp.Type() == rdma.RC && (s == rdma.QPReset || s == rdma.QPInit)
}

// Modify has the connection manager move a QP.
func (c *connectable) Modify(attr *rdma.QPAttr, mask rdma.QPAttrMask, wait bool) error {
	find := c.ctx.route
	if wait {
		find = c.ctx.await
	}
	return (*QP)(c).modify(attr, mask, find)
}

// close ends what is of the network.
func (a *adapter) close() error {
	a.gsi.Load().Close()
	if a.port != nil {
		return a.port.Close()
	}
	return nil
}

// manage gives a packet for QP 1 to who manages connections.
func (a *adapter) manage(p *RoCEPacket) {
	g := a.gsi.Load()
	if g == nil {
		return
	}
	if !p.Valid() {
		a.drops.icrc.Add(1)
		return
	}
	var h packet.Header
	if payload, err := h.Parse(p.Datagram); err == nil {
		g.Receive(p, &h, payload)
	}
}

func (d *Device) routeRoCE(ctx context.Context, local, remote netip.Addr) (datagram.Route, error) {
	if p := d.roce.port; p != nil {
		return p.Route(ctx, local, remote)
	}
	return nil, fmt.Errorf("device %s has no network: %w", d.cfg.Name, syscall.ENETUNREACH)
}
