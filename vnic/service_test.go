package vnic_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// serviceID is none of rdma_cm's.
const serviceID = 0x0100000000000077

// A service's connection, with queue pairs of its owners': private data come as they were given,
// and a context that ends has what it has made end at the peer. IPOIB-031.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t, vnictest.RoCE)
		x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
		at, from := make(chan vnic.ServiceEvent, 10), make(chan vnic.ServiceEvent, 10)
		l, err := y.Ctx.ListenService(serviceID, 4, func(e vnic.ServiceEvent) { at <- e })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := y.Ctx.ListenService(serviceID, 4, nil); !errors.Is(err, cm.ErrInUse) {
			t.Errorf("a second listener: %v", err)
		}
		want := func(c chan vnic.ServiceEvent, kind vnic.ServiceEventKind,
			says string) *vnic.ServiceConn {
			t.Helper()
			e := <-c
			if e.Kind != kind || says != "" && string(e.PrivateData[:len(says)]) != says {
				t.Fatalf("%+v, want kind %d, and %q", e, kind, says)
			}
			return e.Conn
		}
		ask := vnic.ServiceConnect{From: netip.MustParseAddr("10.0.0.1"),
			To: netip.MustParseAddr("10.0.0.2"), ID: serviceID, QP: x.QP, PrivateData: []byte("asks")}
		n, err := x.Ctx.ConnectService(&ask, func(e vnic.ServiceEvent) { from <- e })
		if err != nil {
			t.Fatal(err)
		}
		m := want(at, vnic.ServiceRequest, "asks")
		if err := m.Accept(y.QP, false, []byte("takes it")); err != nil {
			t.Fatal(err)
		}
		want(from, vnic.ServiceReplied, "takes it")
		if err := n.Ready(x.QP, []byte("is ready")); err != nil {
			t.Fatal(err)
		}
		want(from, vnic.ServiceEstablished, "")
		want(at, vnic.ServiceEstablished, "is ready")
		y.Recv(1, 0, 10)
		x.Send(2, 0, 10)
		y.WantRecv("over the connection", vnictest.Want{ID: 1})
		x.WantSend("over the connection", vnictest.Want{ID: 2})
		if err := n.Ready(x.QP, nil); err == nil {
			t.Error("it is ready a second time")
		}
		x.Ctx.Close()
		want(at, vnic.ServiceDisconnected, "")
		l.Close()
		y.Ctx.Close()
		if _, err := y.Ctx.ListenService(serviceID, 4, nil); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a context that is closed listens: %v", err)
		}
		if _, err := y.Ctx.ConnectService(&ask, nil); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a context that is closed connects: %v", err)
		}
		if _, err := vnictest.Open(t, b, vnic.ContextConfig{}).ListenService(serviceID, 4,
			nil); err != nil {
			t.Errorf("the service is still taken: %v", err)
		}
	})
}

// A device of iWARP has no services.
func TestServiceUnsupported(t *testing.T) {
	a, _ := vnictest.Pair(t)
	c := vnictest.Open(t, a, vnic.ContextConfig{})
	if _, err := c.ListenService(serviceID, 4, nil); !errors.Is(err, rdma.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := c.ConnectService(&vnic.ServiceConnect{ID: serviceID}, nil); !errors.Is(err,
		rdma.ErrUnsupported) {
		t.Error(err)
	}
}
