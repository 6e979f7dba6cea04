package vnic_test

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// The requests of connections that a program asks for one right behind the other come in that order, each time.
func TestConnectOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.sctp {
			return // sessions are streams of one association, which are in no order among each other: RFC 9260, section 1.5.2
		}
		const n = 12
		l, lr := listen(t, e.b, n)
		var ids []*vnic.CMID
		var peers []*vnictest.Peer
		for range n {
			id, _ := routed(t, e.a, l.Local())
			ids = append(ids, id)
			peers = append(peers, vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}))
		}
		for i, id := range ids {
			if err := id.Connect(peers[i].QP, rdma.ConnParam{PrivateData: []byte{byte(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		var want []vnic.CMEventType
		for range n {
			want = append(want, vnic.CMConnectRequest)
		}
		for i, ev := range lr.want("all ask", want...) {
			if got := ev.Param.PrivateData; len(got) == 0 || got[0] != byte(i) {
				t.Errorf("request %d is %v", i, got)
			}
		}
		for _, id := range ids {
			id.Close()
		}
	})
}
