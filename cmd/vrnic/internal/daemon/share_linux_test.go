package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// namespace is a network namespace for the test's time.
func namespace(t *testing.T) *netlab.NS {
	t.Helper()
	needtest.Root(t)
	ns, err := netlab.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// tcpListener listens in a namespace.
func tcpListener(ns *netlab.NS, at netip.AddrPort) (l net.Listener, err error) {
	nserr := ns.Do(func() error {
		l, err = net.Listen("tcp4", at.String())
		return nil
	})
	return l, errors.Join(nserr, err)
}

// TestShareAddress: two devices, each of which has one address with a kernel: programs of the one
// kernel reach those of the other where verbs reach the device, and neither side takes the other's
// ports. The link to the kernel is not the network's.
func TestShareAddress(t *testing.T) {
	ns := []*netlab.NS{namespace(t), namespace(t)}
	d := daemontest.Start(t, func(c *daemon.Config) {
		for i, n := range ns {
			p, err := daemon.ParsePort("tap:share" + string(rune('0'+i)) + ",netns=" + n.Path() +
				",share=" + c.Devices[i].Name)
			if err != nil {
				t.Fatal(err)
			}
			c.Ports = append(c.Ports, p)
		}
	})
	client := d.Dial()
	dev, peer := daemontest.Open(t, client, "vrnic0"), daemontest.Open(t, d.Dial(), "vrnic1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	at := daemontest.Addr(t, dev, false, 7174)
	l, err := dev.Listen(at, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tcpListener(ns[0], at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the kernel listens where the device does: %v", err)
	}
	kernel, err := tcpListener(ns[1], daemontest.Addr(t, peer, false, 7174))
	if err != nil {
		t.Fatalf("the other kernel, whose device does not listen: %v", err)
	}
	defer kernel.Close()
	if _, err := peer.Listen(daemontest.Addr(t, peer, false, 7174), 1); !errors.Is(err,
		syscall.EADDRINUSE) {
		t.Errorf("the device listens where the kernel does: %v", err)
	}
	if _, err := dev.Listen(daemontest.Addr(t, dev, false, 22), 1); !errors.Is(err, syscall.EACCES) {
		t.Errorf("the device listens at a port of root's: %v", err)
	}
	err = ns[0].Do(func() error {
		var dialer net.Dialer
		c, err := dialer.DialContext(ctx, "tcp4", kernel.Addr().String())
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		t.Errorf("from kernel to kernel: %v", err)
	}
	if c, err := kernel.Accept(); err != nil {
		t.Error(err)
	} else if from := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr(); from != at.Addr() {
		t.Errorf("the kernel comes from %v, the device from %v", from, at.Addr())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := tcpListener(ns[0], at)
	if err != nil {
		t.Fatalf("the device has given the port back: %v", err)
	}
	again.Close()

	rows, err := client.List("port")
	if err != nil {
		t.Fatal(err)
	}
	macs := make(map[string]string)
	for _, row := range rows {
		var p struct {
			Port, Detail string
			MACs         []string
		}
		if err := json.Unmarshal(row, &p); err != nil {
			t.Fatal(err)
		}
		macs[p.Port] = strings.Join(p.MACs, " ")
		if p.Port == "share0" && !strings.Contains(p.Detail, "shared with vrnic0") {
			t.Errorf("%s", row)
		}
	}
	if macs["share0"] == "" || macs["share0"] != macs["vrnic0"] {
		t.Errorf("MACs %v", macs)
	}
	if err := ns[0].SetDown("share0"); err != nil {
		t.Fatal(err)
	}
	quiet, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel() // long enough to show that nothing happens
	if ev, err := dev.NextAsyncEvent(quiet); err == nil {
		t.Errorf("the device hears of %v", ev.Type)
	}
}

// What a program of the kernel's side has the daemon cannot have at its start, and says so.
func TestShareTaken(t *testing.T) {
	ns := namespace(t)
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", "0.0.0.0:4791")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	spec, err := daemon.ParseDevice("rocep0,addr=10.77.0.2/24,transport=roce")
	if err != nil {
		t.Fatal(err)
	}
	p, err := daemon.ParsePort("tap:share0,share,netns=" + ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	_, err = daemon.New(daemon.Config{Socket: filepath.Join(t.TempDir(), "s"),
		Devices: []daemon.DeviceSpec{spec}, Ports: []daemon.PortSpec{p}})
	const want = "UDP port 4791 of 10.77.0.2"
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if links, err := ns.Links(); err != nil || strings.Contains(strings.Join(links, " "), "share0") {
		t.Errorf("it has left %v, %v", links, err)
	}
}
