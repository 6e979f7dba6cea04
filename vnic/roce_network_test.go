package vnic_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// An openingNet is a network that has packets for a device before OpenRoCE returns, and that keeps
// its port.
type openingNet struct {
	vnic.RoCENetwork
	early   [][]byte
	port    vnic.RoCEPort
	joining func()
	groups  int // that are joined
}

func (n *openingNet) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	var err error
	if n.port, err = n.RoCENetwork.OpenRoCE(addrs, r); err != nil {
		return nil, err
	}
	for _, ip := range n.early {
		p, err := udp.Parse(ip)
		if err != nil {
			return nil, err
		}
		r.ReceiveRoCE(&vnic.RoCEPacket{Packet: p})
	}
	return n, nil
}

// The rest of a RoCEPort, by which a test knows of groups; joining is called within Join.
func (n *openingNet) MTU() int     { return n.port.MTU() }
func (n *openingNet) Close() error { return n.port.Close() }

func (n *openingNet) Route(ctx context.Context, local, remote netip.Addr) (vnic.RoCERoute, error) {
	return n.port.Route(ctx, local, remote)
}

func (n *openingNet) Join(g netip.Addr) error {
	if n.joining != nil {
		n.joining()
	}
	n.groups++
	return n.port.Join(g)
}

func (n *openingNet) Leave(g netip.Addr) error {
	n.groups--
	return n.port.Leave(g)
}

// option has n between c's device and its network.
func (n *openingNet) option(c *vnic.Config) {
	n.RoCENetwork = c.Network.(vnic.RoCENetwork)
	c.Network = struct {
		vnic.Network
		vnic.RoCENetwork
	}{c.Network, n}
}

// Packets for anybody may come as soon as a device has its port, while it is still being made.
func TestPacketsBeforeDevice(t *testing.T) {
	early := &openingNet{}
	for _, to := range []packet.QPN{mad.QPN, 0, 0x77, packet.Multicast} {
		for _, dst := range []string{"10.0.0.1", "239.1.2.3"} {
			tmpl := udp.NewTemplate(udp.Flow{Src: netip.MustParseAddr("10.0.0.2"),
				Dst: netip.MustParseAddr(dst), SrcPort: 5555})
			h := packet.Header{Opcode: packet.SendOnly.Of(packet.UD), PKey: packet.DefaultPKey, Dest: to}
			early.early = append(early.early, tmpl.Finish(h.Append(tmpl.Append(nil))))
		}
	}
	d := vnictest.NewNet().Device(t, "rocep0", []string{"10.0.0.1/24"}, vnictest.RoCE, early.option)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A network that is closed below a device takes no packets: datagrams are lost then, as on any
// network, and their queue pair goes on and comes to its end.
func TestUDOnClosedNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &openingNet{}
		d := vnictest.NewNet().Device(t, "rocep0", []string{"10.0.0.1/24"}, vnictest.RoCE, n.option)
		x := newDatagrammer(t, vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.PeerConfig{})
		h := x.ah("10.0.0.1")
		if err := n.port.Close(); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(3) {
			x.to(h, 0x77, id, 0, 100)
		}
		x.WantSend("the network is closed", is(0, ok), is(1, ok), is(2, ok))
		if err := x.QP.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// An id that leaves a group, or is closed, while it joins it leaves nothing joined at the network.
func TestLeaveWhileJoining(t *testing.T) {
	group := netip.MustParseAddr("239.1.2.3")
	for _, closing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := &openingNet{}
			d := vnictest.NewNet().Device(t, "rocep0", []string{"10.0.0.1/24"}, vnictest.RoCE, n.option)
			c := vnictest.Open(t, d, vnic.ContextConfig{})
			id := datagramID(t, c)
			n.joining = func() {
				if closing {
					id.Close()
				} else if err := id.Leave(group); err != nil {
					t.Error(err)
				}
			}
			if err := id.Join(group, 2); !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("joined, and left meanwhile: %v", err)
			}
			if n.joining = nil; n.groups != 0 || d.DevInfo().Groups != 0 {
				t.Errorf("the group is joined %d times, for nobody", n.groups)
			}
			for range 2 { // the network is told once
				if err := datagramID(t, c).Join(group, 1); err != nil {
					t.Fatal(err)
				}
			}
			if n.groups != 1 || d.DevInfo().Groups != 1 {
				t.Errorf("the group is joined %d times, for two ids", n.groups)
			}
		})
	}
}

// datagramID is an id of datagrams that is bound.
func datagramID(t *testing.T, c *vnic.Context) *vnic.CMID {
	t.Helper()
	id, err := c.NewDatagramCMID((&recorder{t: t}).handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Bind(addr(c, 0)); err != nil {
		t.Fatal(err)
	}
	return id
}

// ROCE-009, RVB-007: packets of a connection have the hop limit and traffic class of its path; 0 is
// the default.
func TestConnectionHopLimit(t *testing.T) {
	for _, limit := range []uint8{0, 1, 9, 255} {
		want := limit
		if limit == 0 {
			want = udp.DefaultHopLimit
		}
		synctest.Test(t, func(t *testing.T) {
			r := newRawRoCE(t)
			a := r.attrs()
			a.Path.HopLimit, a.Path.TrafficClass = limit, 0x68
			r.x.ToRTS(a)
			r.x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend}, 0, 10)
			synctest.Wait()
			if len(r.ttl) == 0 || slices.ContainsFunc(r.ttl, func(n uint8) bool { return n != want }) {
				t.Errorf("with a hop limit of %d packets go out with %v", limit, r.ttl)
			}
		})
	}
}
