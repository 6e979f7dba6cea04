package integration

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/rdma"
)

// TestRxeHost has devices on addresses of the host, over the kernel's UDP, and rxe do each
// operation of each type of queue pair to each other, and connect by rdma_cm from both sides. The
// guest is reached by a TAP, which is another daemon's. Nobody finds a wrong ICRC: ROCE-009.
func TestRxeHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	img, ns, link, way := byTAP(t, ctx, ",addr="+addrsA[1]+"/64")
	names := []string{"v4", "v6"}
	d := up(t, ns, "--device", names[0]+",host="+addrsA[0]+",transport=roce",
		"--device", names[1]+",host="+addrsA[1]+",transport=roce")
	g, err := peer.Start(ctx, img, peer.Config{Link: link, RoCE: true, Addrs: []netip.Prefix{
		netip.MustParsePrefix(guestAddrs[0] + "/24"), netip.MustParsePrefix(guestAddrs[1] + "/64")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guest:\n%s", g.Log())
		}
		g.Stop()
	})
	n := &siwNet{d: d, g: g, roce: true}
	m := &roceMatrix{}
	for f, name := range names {
		if siwSmoke() && f > 0 {
			break
		}
		b := n.bench(t, ctx, name)
		m.siwBench = b
		for _, kind := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
			m.row(t, ctx, roceWay{kind: kind, mtu: rdma.MTU1024, family: family(f), net: &roceNets[0]})
		}
		for _, from := range []initiator{fromSiw, fromVrnic} {
			err := guarded(func() {
				p, _ := b.connect(ctx, plan{from: from, family: family(f), ird: 16, ord: 16})
				x, y := p.ends()
				sends(p, x, y)
				p.finish(x)
				p.free()
			})
			if err != nil {
				t.Errorf("%v, rdma_cm from %v: %v", family(f), from, err)
			}
		}
		wantICRC(t, d, name)
		if err := b.probe.Stop(ctx); err != nil {
			t.Error(err)
		}
		b.client.Close()
	}
	n.stop()
	way.stop()
	reportSiw(t, "Operations between vrnic on an address of the host and rxe", m.table())
}
