package vnic_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// The requests of connections that a program asks for one right behind the other come in that
// order, each time.
func TestConnectOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.sctp {
			// sessions are streams of one association, which are in no order among each other: RFC 9260,
			// section 1.5.2
			return
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

// What resolving brings comes in the order in which it was asked for, also while a handler takes
// long.
func TestResolvedOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		const n = 12
		l, _ := listen(t, e.b, n)
		var mu sync.Mutex
		var got []int
		hold := make(chan struct{})
		var ids []*vnic.CMID
		for i := range n {
			id, err := e.a.NewCMID(func(vnic.CMEvent) {
				if i == 0 {
					<-hold
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, i)
			})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		for _, f := range []func(id *vnic.CMID) error{
			func(id *vnic.CMID) error { return id.ResolveAddr(netip.Addr{}, l.Local(), time.Second) },
			func(id *vnic.CMID) error { return id.ResolveRoute(time.Second) },
		} {
			for _, id := range ids {
				go func() { // where handlers are called within f, that of 0 is
					if err := f(id); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
			}
			if len(got) != 0 {
				t.Fatalf("the events of %v came before that of 0", got)
			}
			hold <- struct{}{}
			synctest.Wait()
			for i, k := range got {
				if i != k {
					t.Fatalf("the events came in the order %v", got)
				}
			}
			if len(got) != n {
				t.Fatalf("%d of %d events", len(got), n)
			}
			got = nil
		}
		for _, id := range ids {
			id.Close()
		}
	})
}
