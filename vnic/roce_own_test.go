package vnic_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// own is what a program says of a QP that it moves itself.
func own(p *vnictest.Peer) rdma.ConnParam {
	return rdma.ConnParam{IRD: 3, ORD: 3, RoCE: rdma.RoCEParam{QPN: p.QP.Num(), RetryCount: 5}}
}

// move takes p's QP to states as id says.
func move(t *testing.T, id *vnic.CMID, p *vnictest.Peer, states ...rdma.QPState) {
	t.Helper()
	for _, s := range states {
		a, mask, err := id.QPAttr(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.QP.Modify(&a, mask); err != nil {
			t.Fatal(err)
		}
	}
}

func wantInvalid(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("%s: %v, want %v", what, err, rdma.ErrInvalid)
	}
}

// Programs that move their QPs themselves: the messages have their numbers, what was agreed on is
// told as attributes, and the end that has asked says when it is ready. RCM-030, 056, 057, 066.
func TestRoCEOwnQP(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		id, r := e.dial(t, l.Local())
		wantInvalid(t, "another program's QP", id.Connect(nil, rdma.ConnParam{RoCE: rdma.RoCEParam{
			QPN: y.QP.Num()}}))
		move(t, id, x, rdma.QPInit)
		_, _, err := id.QPAttr(rdma.QPRTR)
		wantInvalid(t, "RTR before there is a peer", err)
		if err := id.Connect(nil, own(x)); err != nil {
			t.Fatal(err)
		}
		wantInvalid(t, "an answer that has not come", id.Establish())
		child := lr.want("asked", vnic.CMConnectRequest)[0].ID
		move(t, child, y, rdma.QPInit, rdma.QPRTR, rdma.QPRTS)
		wantInvalid(t, "not accepted", child.Notify())
		if err := child.Accept(nil, own(y)); err != nil {
			t.Fatal(err)
		}
		p := r.want("answered", vnic.CMConnectResponse)[0].Param
		if p.RoCE.QPN != y.QP.Num() || p.IRD != 3 || p.ORD != 3 {
			t.Errorf("%+v", p)
		}
		lr.want("the peer is not ready")
		if s := x.QP.State(); s != rdma.QPInit {
			t.Errorf("the QP is %v before its program moves it", s)
		}
		move(t, id, x, rdma.QPInit, rdma.QPRTR, rdma.QPRTS)
		if err := id.Establish(); err != nil {
			t.Fatal(err)
		}
		lr.want("ready", vnic.CMEstablished)
		r.want("its program has said so")
		wantInvalid(t, "a second time", id.Establish())
		if err := child.Notify(); !errors.Is(err, syscall.EISCONN) {
			t.Errorf("notify: %v", err)
		}
		a, b := attrs(t, x.QP), attrs(t, y.QP)
		const all = rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
		if a.DestQPN != y.QP.Num() || b.DestQPN != x.QP.Num() || a.RQPSN != b.SQPSN ||
			a.SQPSN != b.RQPSN || a.MaxRead != 3 || b.MaxDestRead != 3 || a.RetryCount != 5 ||
			b.RetryCount != 5 || a.Access != all || b.Access != all || a.PathMTU != b.PathMTU {
			t.Errorf("the ends are %+v and %+v", a, b)
		}
		y.Recv(1, 0, 64)
		x.Send(2, 0, 64)
		x.WantSend("sent", vnictest.Want{ID: 2})

		disconnect(t, id, r, lr)
		if x.QP.State() != rdma.QPRTS || y.QP.State() != rdma.QPRTS {
			t.Errorf("the programs' QPs are %v and %v", x.QP.State(), y.QP.State())
		}
		if err := child.Disconnect(); err != nil {
			t.Fatal(err)
		}
		_, _, err = id.QPAttr(rdma.QPRTS)
		wantInvalid(t, "it is over", err)
		time.Sleep(3 * time.Second)
		r.want("over", vnic.CMTimewaitExit)
		lr.want("over", vnic.CMTimewaitExit)
	})
}

// A QP that only serves as a number need not be a connected one. RCM-066.
func TestRoCEOwnNumber(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.UD}})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.UD}})
		id, r := e.dial(t, l.Local())
		if err := id.Connect(nil, own(x)); err != nil {
			t.Fatal(err)
		}
		if err := lr.want("asked", vnic.CMConnectRequest)[0].ID.Accept(nil, own(y)); err != nil {
			t.Fatal(err)
		}
		r.want("answered", vnic.CMConnectResponse)
		if err := id.Establish(); err != nil {
			t.Fatal(err)
		}
		lr.want("ready", vnic.CMEstablished)
		if err := id.Close(); err != nil { // a program that ends
			t.Fatal(err)
		}
		lr.want("the peer is gone", vnic.CMDisconnected)
	})
}

// Either end can refuse, also what the peer has answered. RCM-034, 066.
func TestRoCEOwnRejects(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		for _, active := range []bool{false, true} {
			id, r := e.dial(t, l.Local())
			if err := id.Connect(nil, own(x)); err != nil {
				t.Fatal(err)
			}
			child := lr.want("asked", vnic.CMConnectRequest)[0].ID
			if !active {
				if err := child.Reject([]byte("no")); err != nil {
					t.Fatal(err)
				}
				if ev := r.want("rejected", vnic.CMRejected)[0]; ev.Status != 28 ||
					string(ev.Param.PrivateData[:3]) != "no\x00" {
					t.Errorf("%+v", ev)
				}
				wantInvalid(t, "rejected", id.Establish())
				continue
			}
			if err := child.Accept(nil, own(y)); err != nil {
				t.Fatal(err)
			}
			r.want("answered", vnic.CMConnectResponse)
			if err := id.Reject([]byte("never")); err != nil {
				t.Fatal(err)
			}
			if ev := lr.want("rejected", vnic.CMRejected)[0]; ev.Status != 28 ||
				string(ev.Param.PrivateData[:6]) != "never\x00" {
				t.Errorf("%+v", ev)
			}
			wantInvalid(t, "rejected", id.Establish())
		}
		if s := x.QP.State(); s != rdma.QPReset {
			t.Errorf("the QP is %v, which nobody has moved", s)
		}
	})
}

// A program that hears of its QP before the peer's word for it says so, and one that takes its time
// is waited for: RCM-031, 038, 039.
func TestRoCEOwnNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		lost := false
		n.RoCE.Lost = func(ip []byte) bool {
			_, m := messageOf(ip)
			_, rtu := m.(*mad.RTU)
			lost = lost || rtu
			return rtu
		}
		open := func(name, a string) *vnic.Context {
			return vnictest.Open(t, n.Device(t, name, []string{a}, vnictest.RoCE), vnic.ContextConfig{})
		}
		e := rocePair{open("rocep0", "10.0.0.1/24"), open("rocep1", "10.0.0.2/24")}
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		id, r := e.dial(t, l.Local())
		if err := id.Connect(nil, own(x)); err != nil {
			t.Fatal(err)
		}
		child := lr.want("asked", vnic.CMConnectRequest)[0].ID
		if err := child.Accept(nil, own(y)); err != nil {
			t.Fatal(err)
		}
		r.want("answered", vnic.CMConnectResponse)
		time.Sleep(2 * time.Minute) // longer than a peer repeats that is not asked for patience
		lr.want("patience")
		if err := id.Establish(); err != nil {
			t.Fatal(err)
		}
		lr.want("the RTU is lost")
		if err := child.Notify(); err != nil || !lost {
			t.Fatal(err, lost)
		}
		lr.want("the program knows", vnic.CMEstablished)
		time.Sleep(10 * time.Minute)
		lr.want("once")
	})
}
