package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
)

// lendShared lends the daemon a TAP in a namespace, which is one station with a device there.
func lendShared(t *testing.T, d *daemontest.Daemon, ns *netlab.NS, tap, device string) {
	t.Helper()
	specs := d.Devices()
	spec := specs[slices.IndexFunc(specs, func(s daemon.DeviceSpec) bool { return s.Name == device })]
	fd, kind, end, err := port.LendTAP(port.TAPConfig{Name: tap, NetNS: ns.Path(), Addrs: spec.Addrs,
		MAC: spec.HardwareAddr()})
	if err != nil {
		t.Fatal(err)
	}
	cookie, err := port.TAPCookie(fd)
	if same, serr := port.NetNSCookie(ns.Path()); err != nil || serr != nil || cookie != same {
		t.Errorf("the TAP is in %d, %v, the namespace is %d, %v", cookie, err, same, serr)
	}
	err = d.Dial().Change(changeTime(t), shm.Change{Verb: shm.Add, Key: "port", TAP: fd,
		Offloads: kind.Offloads, UDP: kind.UDP,
		Value: fmt.Sprintf("tap:%s,share=%s,container,netns-cookie=%d", tap, device, cookie)})
	if err := errors.Join(err, end(false)); err != nil {
		t.Fatal(err)
	}
}

// dialIn connects to a socket as a program in a namespace does.
func dialIn(t *testing.T, ns *netlab.NS, socket string) (c *shm.Client, err error) {
	t.Helper()
	nserr := ns.Do(func() error {
		c, err = shm.Dial(socket)
		return nil
	})
	if nserr != nil {
		t.Fatal(nserr)
	}
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// Two containers, each of which has one address with a device, by a TAP that was lent: programs of
// one kernel reach the other's, devices reach each other, and the socket for the container's
// network shows each container its own device. All programs of a container together have what one
// user may have. Nothing is left when the ports go.
func TestLentShare(t *testing.T) {
	dir := guestDir(t)
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Containers, c.Limits = dir, server.DefaultLimits()
		if err := c.SetLimit("sessions-per-uid=8"); err != nil {
			t.Fatal(err)
		}
	})
	ns := []*netlab.NS{namespace(t), namespace(t), namespace(t)}
	socket := guest.Socket(dir, guest.Net)
	nothing := func(ns *netlab.NS, when string) {
		t.Helper()
		c, err := dialIn(t, ns, socket)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := c.Devices(); len(got) != 0 {
			t.Errorf("%s a container sees %v", when, got)
		}
		c.Close()
	}
	nothing(ns[0], "before there is a network")
	wantRefused(t, change(t, d, shm.Add, "port", "tap:lent0,share=vrnic0,netns-cookie=7"),
		syscall.EINVAL, "a TAP that the daemon is lent")
	for i, dev := range []string{"vrnic0", "vrnic1"} {
		lendShared(t, d, ns[i], fmt.Sprintf("lent%d", i), dev)
	}
	var devs [2]rdma.Device
	for i := range devs {
		name := fmt.Sprintf("vrnic%d", i)
		c, err := dialIn(t, ns[i], socket)
		if err != nil || !slices.Equal(c.Devices(), []string{name}) {
			t.Fatalf("container %d sees %v, %v", i, c.Devices(), err)
		}
		devs[i] = daemontest.Open(t, c, name)
		for range 7 {
			if _, err := dialIn(t, ns[i], socket); err != nil {
				t.Error(err)
			}
		}
		want := fmt.Sprintf("socket net:lent%d has 8 sessions", i)
		if _, err := dialIn(t, ns[i], socket); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a ninth session: %v, want %q", err, want)
		}
	}
	nothing(ns[2], "without a network")

	a, b := daemontest.NewEnd(t, devs[0], 4096), daemontest.NewEnd(t, devs[1], 4096)
	daemontest.Connect(t, a, b, daemontest.Addr(t, devs[1], false, 0))
	sends(t, a, b, 1)
	at := daemontest.Addr(t, devs[1], false, 7174)
	if _, err := devs[1].Listen(netip.AddrPortFrom(at.Addr(), 22), 1); !errors.Is(err,
		syscall.EACCES) {
		t.Errorf("the device listens at a port of root's: %v", err)
	}
	l, err := tcpListener(ns[1], at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := ns[0].Do(func() error {
		c, err := net.Dial("tcp4", at.String())
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("from kernel to kernel: %v", err)
	}

	client := d.Dial()
	for i := range devs {
		mustChange(t, d, shm.Del, "port", fmt.Sprintf("lent%d", i))
		if links, err := ns[i].Links(); err != nil || strings.Contains(strings.Join(links, " "),
			"lent") {
			t.Errorf("a namespace has %v, %v", links, err)
		}
	}
	rows, err := client.List("port")
	for _, row := range rows {
		var p struct{ Port string }
		if err := json.Unmarshal(row, &p); err != nil || strings.HasPrefix(p.Port, "lent") {
			t.Errorf("port %s, %v", row, err)
		}
	}
	if err != nil {
		t.Error(err)
	}
	nothing(ns[0], "when there is no network any more")
}
