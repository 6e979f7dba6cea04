package port_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
)

// watchedTAP is a TAP whose changes are told, with a stack beside it.
func watchedTAP(t *testing.T, ns *netNS, addrs ...netip.Prefix) (*port.TAP, *netstack.Stack,
	chan linkChange) {
	t.Helper()
	if addrs == nil {
		addrs = kernelAddrs
	}
	changes := make(chan linkChange, 16)
	sw := ethswitch.New(ethswitch.Config{})
	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: "vtap0", NetNS: ns.path(), Addrs: addrs,
		MTU: 1400, OnLink: func(up bool, why error) { changes <- linkChange{up, why} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
		if n := len(changes); n != 0 {
			t.Errorf("%d changes more than expected, such as %+v", n, <-changes)
		}
	})
	return tap, netstacktest.NewStack(t, sw, 2, 1400), changes
}

// want waits for a change, and says what the port is like then.
func want(t *testing.T, tap *port.TAP, changes chan linkChange, up bool, why string) {
	t.Helper()
	select {
	case c := <-changes:
		if c.up != up || c.up != (c.why == nil) || !up && !strings.Contains(c.why.Error(), why) {
			t.Fatalf("link %+v, want up %v, %q", c, up, why)
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing was told; the port: %v", tap)
	}
	if s := tap.String(); !strings.Contains(s, why) || up && strings.Contains(s, "the device") {
		t.Errorf("up %v: %v", up, s)
	}
}

// link changes the device.
func (n *netNS) link(t *testing.T, name string, f func(netlink.Link) error) {
	t.Helper()
	n.do(t, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return f(l)
	})
}

// TestTAPRemoved: when somebody removes the device the port tells, makes it again as it was, and
// goes on; and a second time.
func TestTAPRemoved(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	tap, st, changes := watchedTAP(t, ns)
	for i := range 2 {
		ping(t, ns, st.Addrs()[i].Addr(), 56)
		ns.link(t, "vtap0", netlink.LinkDel)
		want(t, tap, changes, false, "gone")
		want(t, tap, changes, true, "")
		if got := fmt.Sprint(ns.addresses(t, "vtap0")); got != fmt.Sprint(kernelAddrs) {
			t.Errorf("addresses %v, want %v", got, kernelAddrs)
		}
		if dev := ns.devices(t)["vtap0"]; dev.MTU != 1400 || dev.Flags&net.FlagUp == 0 {
			t.Errorf("the device: %+v", dev)
		}
	}
	for _, a := range st.Addrs() { // of IPv4 and IPv6
		ping(t, ns, a.Addr(), 4000)
	}
	tap.Close()
	if dev, ok := ns.devices(t)["vtap0"]; ok {
		t.Errorf("the device is still there: %+v", dev)
	}
}

// TestTAPRemovedNoIPv6: where IPv6 has been switched off meanwhile, the device is made again with
// what it can have, and goes on.
func TestTAPRemovedNoIPv6(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	// The address that is refused is not the last one.
	addrs := []netip.Prefix{kernelAddrs[1], kernelAddrs[0]}
	tap, st, changes := watchedTAP(t, ns, addrs...)
	ns.do(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	})
	ns.link(t, "vtap0", netlink.LinkDel)
	want(t, tap, changes, false, "gone")
	want(t, tap, changes, true, "")
	if got := fmt.Sprint(ns.addresses(t, "vtap0")); got != fmt.Sprint(addrs[1:]) {
		t.Errorf("addresses %v, want %v", got, addrs[1:])
	}
	ping(t, ns, st.Addrs()[0].Addr(), 56)
}

// TestTAPRemovedByOwner: a device that was there before is not made; the next one of its name is
// taken up, and left there at the end.
func TestTAPRemovedByOwner(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	make := func() {
		t.Helper()
		ns.do(t, func() error { return persistentTAP("vtap0", unix.IFF_TAP|unix.IFF_NO_PI) })
	}
	make()
	tap, st, changes := watchedTAP(t, ns)
	ns.link(t, "vtap0", netlink.LinkDel)
	want(t, tap, changes, false, "gone")
	if dev, ok := ns.devices(t)["vtap0"]; ok {
		t.Errorf("it was made: %+v", dev)
	}
	make()
	want(t, tap, changes, true, "")
	ping(t, ns, st.Addrs()[0].Addr(), 56)
	tap.Close()
	if dev, ok := ns.devices(t)["vtap0"]; !ok || dev.MTU != 1500 || dev.Flags&net.FlagUp != 0 {
		t.Errorf("not left as it was made: %v %+v", ok, dev)
	}
}

// TestTAPNameTaken: a device of another kind that has the name is said, and not touched; when it
// goes, the port has its own again.
func TestTAPNameTaken(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	tap, st, changes := watchedTAP(t, ns)
	ns.link(t, "vtap0", netlink.LinkDel)
	want(t, tap, changes, false, "gone")
	ns.do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "vtap0"
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
	needtest.Eventually(t, "the port says so", func() bool {
		return strings.Contains(tap.String(), "not to be had again")
	})
	ns.link(t, "vtap0", netlink.LinkDel)
	want(t, tap, changes, true, "")
	ping(t, ns, st.Addrs()[0].Addr(), 56)
}

// TestTAPDown: that the device is set down, or has no carrier, is told, and that it is up again.
func TestTAPDown(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	tap, st, changes := watchedTAP(t, ns)
	ns.link(t, "vtap0", netlink.LinkSetDown)
	want(t, tap, changes, false, "ip link set vtap0 up")
	ns.link(t, "vtap0", netlink.LinkSetUp)
	want(t, tap, changes, true, "")
	carrier := func(on bool) {
		ns.link(t, "vtap0", func(l netlink.Link) error { return setCarrier(l, on) })
	}
	carrier(false)
	want(t, tap, changes, false, "no carrier")
	carrier(true)
	want(t, tap, changes, true, "")
	ping(t, ns, st.Addrs()[0].Addr(), 56)
}

// setCarrier does what `ip link set carrier` does.
func setCarrier(l netlink.Link, on bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	value := []byte{0}
	if on {
		value[0] = 1
	}
	req.AddData(nl.NewRtAttr(unix.IFLA_CARRIER, value))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
