package port

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack/internal/doze"
)

// TestTAPTakenUpByHalves: a device that could be taken up and not be configured is configured by a
// later attempt. One that the port has made is made once more if it has gone meanwhile, and goes
// with the port; one that was there is left as it was found.
func TestTAPTakenUpByHalves(t *testing.T) {
	ns, err := netlab.NewNS()
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	defer ns.Close()
	del := func() {
		t.Helper()
		if err := ns.DelLink("vtap0"); err != nil {
			t.Fatal(err)
		}
	}
	create := func() error { return createTAP("vtap0") }
	for _, what := range []string{"made", "made twice", "found"} {
		if what == "found" {
			if err := inNetNS(ns.Path(), create); err != nil {
				t.Fatal(err)
			}
		}
		tap := &TAP{cfg: TAPConfig{Name: "vtap0", NetNS: ns.Path()}, fd: -1,
			stop: make(chan struct{}), dozes: make(chan *doze.Epoll, 1)}
		if err := inNetNS(ns.Path(), tap.setUp); err != nil {
			t.Fatal(err)
		}
		tap.lost.Store(true)
		del()
		if what == "found" {
			if err := inNetNS(ns.Path(), create); err != nil {
				t.Fatal(err)
			}
		}
		// The MTU can be set, and no interface has such an address.
		tap.cfg.MTU, tap.cfg.Addrs = 1400, []netip.Prefix{netip.MustParsePrefix("ff02::77/64")}
		for range 2 {
			_, err := tap.takeUp(remakeAfter)
			if !errors.Is(err, unix.EADDRNOTAVAIL) || !tap.lost.Load() {
				t.Errorf("%s: %v, want %v", what, err, unix.EADDRNOTAVAIL)
			}
		}
		if what == "made twice" {
			del()
			if wait, err := tap.takeUp(0); wait <= 0 || err != nil {
				t.Errorf("one that is gone again is waited for %v, %v", wait, err)
			}
		}
		tap.cfg.Addrs = nil
		if wait, err := tap.takeUp(remakeAfter); wait != 0 || err != nil || tap.lost.Load() {
			t.Errorf("%s: it is waited for %v, %v", what, wait, err)
		}
		if l, err := tap.k.link(); err != nil || l.Attrs().MTU != 1400 ||
			l.Attrs().Flags&net.FlagUp == 0 {
			t.Errorf("%s: the device is %+v, %v", what, l, err)
		}
		k := tap.k
		tap.undo[0] = func() error { return nil } // the handle is in use here
		if err := tap.release(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		l, err := k.link()
		switch {
		case what != "found" && !errors.Is(err, unix.ENODEV):
			t.Errorf("%s: at the end there is %+v, %v", what, l, err)
		case what == "found" && (err != nil || l.Attrs().MTU != 1500 ||
			l.Attrs().Flags&net.FlagUp != 0):
			t.Errorf("%s: it is left as %+v, %v", what, l, err)
		}
		k.close()
	}
}
