package vnic_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// onBothKinds runs f with two contexts that reach each other, on iWARP and on RoCE.
func onBothKinds(t *testing.T, f func(t *testing.T, e rocePair)) {
	for name, options := range map[string][]vnictest.Option{"iWARP": nil, "RoCE": {vnictest.RoCE}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				x := n.Device(t, "dev0", []string{"10.0.0.1/24", "fd00::1/64"}, options...)
				y := n.Device(t, "dev1", []string{"10.0.0.2/24", "fd00::2/64"}, options...)
				f(t, rocePair{vnictest.Open(t, x, vnic.ContextConfig{}), vnictest.Open(t, y,
					vnic.ContextConfig{})})
			})
		})
	}
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// The unspecified IPv6 address stands for IPv4 too unless an id says that it does not: then both
// families can have a listener each. RCM-060.
func TestOnlyIPv6(t *testing.T) {
	onBothKinds(t, func(t *testing.T, e rocePair) {
		any4, any6 := netip.MustParseAddrPort("0.0.0.0:7471"), netip.MustParseAddrPort("[::]:7471")
		four, r4 := newID(t, e.b)
		if err := errors.Join(four.Bind(any4), four.Listen(0)); err != nil {
			t.Fatal(err)
		}
		six, r6 := newID(t, e.b)
		wantErrno(t, "both families", six.Bind(any6), syscall.EADDRINUSE)
		if err := errors.Join(six.SetSharing(vnic.CMSharing{Only6: true}), six.Bind(any6),
			six.Listen(0)); err != nil {
			t.Fatal(err)
		}
		if err := six.SetSharing(vnic.CMSharing{}); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a listener is changed: %v", err)
		}
		other, _ := newID(t, e.b)
		wantErrno(t, "an address of IPv6", other.Bind(netip.MustParseAddrPort("[fd00::2]:7471")),
			syscall.EADDRINUSE)
		for to, asked := range map[string]*recorder{"10.0.0.2:7471": r4, "[fd00::2]:7471": r6} {
			id, r := e.dial(t, netip.MustParseAddrPort(to))
			p := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			if err := id.Connect(p.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			child := asked.want(to, vnic.CMConnectRequest)[0].ID
			if child.Local() != id.Remote() {
				t.Errorf("asked at %v, want %v", child.Local(), id.Remote())
			}
			if err := child.Reject(nil); err != nil {
				t.Fatal(err)
			}
			r.want("refused", vnic.CMRejected)
		}
		if err := four.Close(); err != nil {
			t.Fatal(err)
		}
		id, r := e.dial(t, netip.MustParseAddrPort("10.0.0.2:7471"))
		p := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		if err := id.Connect(p.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // on RoCE the program might have come back
		r.want("nobody listens", vnic.CMRejected)
		r6.want("it is not for IPv6")
	})
}

// A port is shared by ids that have said so, until one of them wants to listen: RCM-060.
func TestReusedPort(t *testing.T) {
	onBothKinds(t, func(t *testing.T, e rocePair) {
		at := netip.MustParseAddrPort("10.0.0.2:7471")
		bind := func(reuse bool) (*vnic.CMID, error) {
			id, _ := newID(t, e.b)
			return id, errors.Join(id.SetSharing(vnic.CMSharing{Reuse: reuse}), id.Bind(at))
		}
		one, err := bind(true)
		if err != nil {
			t.Fatal(err)
		}
		_, err = bind(false)
		wantErrno(t, "one that does not share", err, syscall.EADDRINUSE)
		two, err := bind(true)
		if err != nil {
			t.Fatal(err)
		}
		wantErrno(t, "listen at a shared port", one.Listen(0), syscall.EADDRINUSE)
		wantErrno(t, "have it alone", two.SetSharing(vnic.CMSharing{}), syscall.EADDRINUSE)
		if err := errors.Join(two.Close(), one.Listen(0)); err != nil {
			t.Fatal(err)
		}
		_, err = bind(true)
		wantErrno(t, "beside a listener", err, syscall.EADDRINUSE)
	})
}
