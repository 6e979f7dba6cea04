package vnic_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// What peers have of a device of RoCE is listed as on one of iWARP, by address, or by the user of
// the device who has asked; so are requests that are under way, and those that found no room, of
// which one user's listeners have so many (ROCE-207, 209).
func TestRoCEPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		x := n.Device(t, "rocep0", []string{"10.0.0.1/24"}, vnictest.RoCE)
		y := n.Device(t, "rocep1", []string{"10.0.0.2/24"}, vnictest.RoCE)
		host := vnictest.Open(t, x, vnic.ContextConfig{Limits: vnic.Limits{Pending: 3}})
		beside := vnictest.Open(t, x, vnic.ContextConfig{})
		away := vnictest.Open(t, y, vnic.ContextConfig{})
		listener, events := newID(t, host)
		at := netip.AddrPortFrom(xAddr, 7471)
		if err := listener.Bind(at); err != nil {
			t.Fatal(err)
		}
		if err := listener.Listen(100); err != nil {
			t.Fatal(err)
		}
		asks := func(c *vnic.Context) {
			t.Helper()
			id, r := newID(t, c)
			r.resolve(id, at)
			p := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
			if err := id.Connect(p.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for _, c := range []*vnic.Context{away, beside, away, away} {
			asks(c)
		}
		asked := events.want("requests", vnic.CMConnectRequest, vnic.CMConnectRequest,
			vnic.CMConnectRequest)
		want := []vnic.PeerInfo{
			{Dev: "rocep0", Addr: rawAddr, Pending: 2, Refused: 1},
			{Dev: "rocep0", Context: 2, Pending: 1},
		}
		if got := x.Peers(); !slices.Equal(got, want) {
			t.Errorf("peers %+v, want %+v", got, want)
		}
		full := vnic.Refusals{Context: 1}
		if i := x.DevInfo(); i.Pending != 3 || i.HalfOpen != 0 || i.Refused != full {
			t.Errorf("%d requests, %d half open, refused %+v", i.Pending, i.HalfOpen, i.Refused)
		}
		p := vnictest.NewPeer(t, host, vnictest.PeerConfig{})
		if err := asked[0].ID.Accept(p.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want[0].Pending, want[0].Conns = 1, 1
		if got := x.Peers(); !slices.Equal(got, want) {
			t.Errorf("peers %+v, want %+v", got, want)
		}
		if i := x.DevInfo(); i.Pending != 2 || i.HalfOpen != 0 {
			t.Errorf("%d requests, %d half open", i.Pending, i.HalfOpen)
		}
		for _, e := range asked {
			e.ID.Close()
		}
	})
}
