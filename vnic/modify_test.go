package vnic_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A handler of CM events is called by who runs the QP, and may change the QP's state: it waits for
// nobody then, least of all for itself.
func TestModifyInHandler(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   vnic.CMEventType
		to   rdma.QPState
		want rdma.QPState // when all is over
	}{
		{"ESTABLISHED to ERROR", vnic.CMEstablished, rdma.QPError, rdma.QPError},
		{"ESTABLISHED to TERMINATE", vnic.CMEstablished, rdma.QPTerminate, rdma.QPError},
		{"DISCONNECTED to ERROR", vnic.CMDisconnected, rdma.QPError, rdma.QPError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
					vnictest.PeerConfig{})
				y.Config.Param.SCTP, x.Config.Param.SCTP = e.sctp, e.sctp
				modified := make(chan rdma.QPState, 1)
				id, err := e.a.NewCMID(func(ev vnic.CMEvent) {
					if ev.Type != tt.in {
						return
					}
					if err := x.QP.ModifyState(tt.to); err != nil && tt.in == vnic.CMEstablished {
						t.Errorf("Modify in the handler: %v", err)
					}
					modified <- x.QP.State()
				})
				if err != nil {
					t.Fatal(err)
				}
				connectID(t, e, id, x, y)
				if tt.in == vnic.CMDisconnected {
					if err := id.Disconnect(); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				time.Sleep(time.Minute)
				select {
				case s := <-modified:
					if tt.in == vnic.CMEstablished && s != tt.to {
						t.Errorf("behind Modify the state is %v", s)
					}
				default:
					t.Fatal("Modify in the handler has not returned")
				}
				if tt.in == vnic.CMEstablished {
					x.WantState("the end", tt.want)
				}
			})
		})
	}
}

// A handler that takes its time keeps nobody from the QP: it can be connected anew meanwhile, by
// another goroutine, and the handler that is told of that may change it, too. What has to be done
// for the new connection is done when the first handler has returned.
func TestReconnectWhileHandled(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		peer := func(c *vnic.Context) *vnictest.Peer {
			p := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
			p.Config.Param.SCTP = e.sctp
			return p
		}
		x, y, z := peer(e.a), peer(e.b), peer(e.b)
		hold := make(chan struct{})
		first, err := e.a.NewCMID(func(ev vnic.CMEvent) {
			if ev.Type == vnic.CMDisconnected {
				<-hold
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		again, err := e.a.NewCMID(func(ev vnic.CMEvent) {
			if ev.Type == vnic.CMEstablished {
				if err := x.QP.ModifyState(rdma.QPRTS); err != nil { // which it is
					t.Errorf("Modify in the second handler: %v", err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		connectID(t, e, first, x, y)
		if err := first.Disconnect(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		connectID(t, e, again, x, z)
		x.WantState("connected again", rdma.QPRTS)
		x.Recv(1, 0, 8)
		z.Send(2, 0, 8)
		synctest.Wait()
		at := time.Now()
		close(hold)
		x.WantRecv("the new connection", vnictest.Want{ID: 1})
		if d := time.Since(at); d > 10*time.Millisecond {
			t.Errorf("the new connection went on after %v only", d)
		}
	})
}

// connectID connects x by id, and y by a listener of its own.
func connectID(t *testing.T, e *env, id *vnic.CMID, x, y *vnictest.Peer) {
	t.Helper()
	l, err := e.b.Listen(netip.AddrPortFrom(e.b.Attr().Addrs[0].Addr(), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(t.Context())
		if err == nil {
			_, err = r.Accept(t.Context(), y.QP, y.Config.Param)
		}
		done <- err
	}()
	if err := id.ResolveAddr(netip.Addr{}, l.Addr(), time.Second); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if err := id.ResolveRoute(time.Second); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if err := id.Connect(x.QP, x.Config.Param); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Logf("accept: %v", err) // the other end may be gone already
	}
	synctest.Wait()
}

// What rdma_disconnect ends is no drained queue: the peers are told by the connection's events
// only. uDAPL takes an asynchronous event of a connected QP for its failure, and dapltest then
// waited for the end of the connection for ever.
func TestDisconnectDrainsNothing(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
		y.Recv(1, 0, 10)
		x.Recv(2, 0, 10)
		x.Send(3, 0, 10)
		y.Send(4, 0, 10)
		x.WantSend("sent", is(3, ok))
		y.WantSend("sent", is(4, ok))
		x.WantRecv("received", is(2, ok)) // what comes behind a disconnect is an error
		y.WantRecv("received", is(1, ok))
		if err := x.QP.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*vnictest.Peer{x, y} {
			if err := p.WantDone("over"); err != nil {
				t.Errorf("a graceful end has the cause %v", err)
			}
			wantEvents(t, p, "disconnected")
		}
	})
}

// A connected QP is not taken to Idle by Modify, and stays what it was; Closing is a graceful
// disconnect, which lets go out what was posted (Q3, Q4), and is for a connected QP only.
func TestModifyConnected(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 1 << 20}, vnictest.PeerConfig{Buffer: 1 << 20})
		if err := x.QP.ModifyState(rdma.QPIdle); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("RTS to Idle: %v", err)
		}
		x.WantState("refused", rdma.QPRTS)
		y.Recv(1, 0, 10)
		y.Recv(2, 0, 10)
		x.Recv(3, 0, 10)
		x.Write(4, 0, 1<<20, y, 0)
		x.Read(5, 0, 1000, y, 0)
		x.Send(6, 0, 10)
		if err := x.QP.ModifyState(rdma.QPClosing); err != nil {
			t.Fatalf("RTS to Closing: %v", err)
		}
		x.WantSend("all went out", is(4, ok), is(5, ok), is(6, ok))
		x.WantRecv("flushed", is(3, flush))
		y.WantRecv("arrived, and flushed", is(1, ok), is(2, flush))
		wantEvents(t, x, "its program drains the queue", rdma.EventSQDrained)
		wantEvents(t, y, "its program does not")
		for _, p := range []*vnictest.Peer{x, y} {
			if err := p.WantDone("over"); err != nil {
				t.Errorf("a graceful end has the cause %v", err)
			}
			p.WantState("Q13", rdma.QPIdle)
			if err := p.QP.ModifyState(rdma.QPClosing); !isErr(err, rdma.ErrInvalid) {
				t.Errorf("Idle to Closing: %v", err)
			}
		}
	})
}
