package vnic_test

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
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

// A handler may destroy the QP that its event is about: whoever runs the QP meanwhile finds it
// dead, and what the QP has used is free.
func TestCloseInHandler(t *testing.T) {
	for _, when := range []vnic.CMEventType{vnic.CMEstablished, vnic.CMDisconnected} {
		t.Run(when.String(), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
				l, lr := listen(t, e.b, 0)
				closed := make(chan error, 2)
				events := make(chan vnic.CMEventType, 8)
				id, err := e.a.NewCMID(func(ev vnic.CMEvent) {
					if ev.Type == when {
						closed <- x.QP.Close()
						closed <- x.PD.Close()
					}
					events <- ev.Type
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := id.ResolveAddr(netip.Addr{}, l.Local(), time.Second); err != nil {
					t.Fatal(err)
				}
				<-events
				if err := id.ResolveRoute(time.Second); err != nil {
					t.Fatal(err)
				}
				<-events
				x.Recv(1, 0, 8)
				if err := x.MR.Close(); err != nil { // the PD has nothing but the QP then
					t.Fatal(err)
				}
				if err := id.Connect(x.QP, rdma.ConnParam{SCTP: e.sctp}); err != nil {
					t.Fatal(err)
				}
				lr.want("asked", vnic.CMConnectRequest)[0].ID.Accept(y.QP, rdma.ConnParam{})
				if when == vnic.CMEstablished {
					lr.want("accepted, and over", vnic.CMEstablished, vnic.CMDisconnected)
				} else {
					lr.want("accepted", vnic.CMEstablished)
					if err := id.Disconnect(); err != nil {
						t.Fatal(err)
					}
					lr.want("over", vnic.CMDisconnected)
				}
				for _, what := range []string{"QP", "PD"} {
					if err := <-closed; err != nil {
						t.Errorf("close the %s: %v", what, err)
					}
				}
				for want := vnic.CMEstablished; ; want = vnic.CMDisconnected {
					if got := <-events; got != want {
						t.Fatalf("event %v, want %v", got, want)
					} else if want == vnic.CMDisconnected {
						break
					}
				}
				if err := x.QP.PostRecv(&rdma.RecvWR{}); !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("post a receive: %v", err)
				}
				id.Close()
			})
		})
	}
}

// A handler may close its own identifier, and one whose handler waits for it: neither waits. No
// event comes behind that, the connection is over, and the identifier is free.
func TestCloseIDInHandler(t *testing.T) {
	for _, when := range []vnic.CMEventType{vnic.CMAddrResolved, vnic.CMRouteResolved,
		vnic.CMEstablished, vnic.CMDisconnected} {
		t.Run(when.String(), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
				l, lr := listen(t, e.b, 0)
				var id *vnic.CMID
				var behind atomic.Bool // the handler has closed id
				events := make(chan vnic.CMEventType, 8)
				id, err := e.a.NewCMID(func(ev vnic.CMEvent) {
					if behind.Load() {
						t.Errorf("%v behind the end", ev.Type)
					}
					if ev.Type == when {
						if err := id.Close(); err != nil {
							t.Error(err)
						}
						behind.Store(true)
					}
					events <- ev.Type
				})
				if err != nil {
					t.Fatal(err)
				}
				steps := []struct {
					do   func() error
					then vnic.CMEventType
				}{
					{func() error { return id.ResolveAddr(netip.Addr{}, l.Local(), time.Second) },
						vnic.CMAddrResolved},
					{func() error { return id.ResolveRoute(time.Second) }, vnic.CMRouteResolved},
					{func() error {
						if err := id.Connect(x.QP, rdma.ConnParam{SCTP: e.sctp}); err != nil {
							return err
						}
						lr.want("asked", vnic.CMConnectRequest)[0].ID.Accept(y.QP, rdma.ConnParam{})
						return nil
					}, vnic.CMEstablished},
					{func() error { return id.Disconnect() }, vnic.CMDisconnected},
				}
				for _, s := range steps {
					if err := s.do(); err != nil {
						t.Fatal(err)
					}
					if got := <-events; got != s.then {
						t.Fatalf("event %v, want %v", got, s.then)
					}
					if s.then == when {
						break
					}
				}
				if when == vnic.CMEstablished { // closed, which ends the connection
					lr.want("accepted, and over", vnic.CMEstablished, vnic.CMDisconnected)
				}
				synctest.Wait()
				if left := e.a.Device().CMs(e.a); len(left) > 0 {
					t.Errorf("left over: %+v", left)
				}
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Two handlers that close each other's identifier do not wait for each other.
func TestCloseIDsInHandlers(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		l, _ := listen(t, e.b, 0)
		var ids [2]*vnic.CMID
		meet := make(chan struct{})
		done := make(chan error, 2)
		for i := range ids {
			var err error
			c := vnictest.Open(t, e.a.Device(), vnic.ContextConfig{}) // events of one come one by one
			ids[i], err = c.NewCMID(func(vnic.CMEvent) {
				if i == 0 {
					meet <- struct{}{}
				} else {
					<-meet
				}
				done <- ids[1-i].Close()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			go id.ResolveAddr(netip.Addr{}, l.Local(), time.Second)
		}
		for range ids {
			if err := <-done; err != nil {
				t.Error(err)
			}
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
