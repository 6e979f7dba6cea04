package daemon_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

const (
	linkDown = `"the link of a port is down" port=vtap0`
	linkUp   = `"the link of a port is up" port=vtap0`
)

// withTAP starts a daemon with a TAP vtap0 in a namespace and other ports.
func withTAP(t *testing.T, ports []string, more ...func(*daemon.Config)) (*daemontest.Daemon,
	*netlab.NS, *eventLog) {
	t.Helper()
	needtest.Root(t)
	ns, err := netlab.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	log := &eventLog{}
	d := daemontest.Start(t, append(more, func(c *daemon.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		for _, s := range append(ports, "tap:vtap0,netns="+ns.Path()) {
			p, err := daemon.ParsePort(s)
			if err != nil {
				t.Fatal(err)
			}
			c.Ports = append(c.Ports, p)
		}
	})...)
	return d, ns, log
}

// TestLostTAP: when somebody removes the TAP, LIST port says so, the log does once, and the port of
// each device is in error, for all who have opened one; when it is there again, active.
func TestLostTAP(t *testing.T) {
	d, ns, log := withTAP(t, nil)
	client := d.Dial()
	devs := []rdma.Device{daemontest.Open(t, client, "vrnic0"), daemontest.Open(t, client, "vrnic1"),
		daemontest.Open(t, d.Dial(), "vrnic0")}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// want wants an event on each device, and says what LIST says of the port behind them.
	want := func(typ rdma.AsyncEventType) (gone bool) {
		t.Helper()
		for i, dev := range devs {
			if ev, err := dev.NextAsyncEvent(ctx); err != nil || ev.Type != typ || ev.Object != 0 {
				t.Fatalf("device %d: %+v, %v, want %v", i, ev, err, typ)
			}
		}
		rows, err := client.List("port")
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			var p struct{ Port, Detail string }
			if err := json.Unmarshal(row, &p); err != nil {
				t.Fatal(err)
			}
			gone = gone || p.Port == "vtap0" && strings.Contains(p.Detail, "(the device is gone")
		}
		return gone
	}
	// It is made again a second later: on a machine that is busy it may be there before it is asked
	// for.
	lost := 0
	for told := false; !told; lost++ {
		if lost == 10 {
			t.Fatal("LIST port does not say that the device is gone")
		}
		if err := ns.DelLink("vtap0"); err != nil {
			t.Fatal(err)
		}
		told = want(rdma.EventPortErr)
		if want(rdma.EventPortActive) {
			t.Error("LIST port says that a device is gone that is there")
		}
	}
	for _, text := range []string{linkDown, linkUp} {
		if n := log.count(text); n != lost {
			t.Errorf("%s is %d times in the log, want %d:\n%s", text, n, lost, log.String())
		}
	}
}

// TestLostTAPBesideOthers: a device that has another way out has a network all the time.
func TestLostTAPBesideOthers(t *testing.T) {
	d, ns, log := withTAP(t, []string{"unix-listen:" + t.TempDir() + "/l"})
	dev := daemontest.Open(t, d.Dial(), "vrnic0")
	if err := ns.DelLink("vtap0"); err != nil {
		t.Fatal(err)
	}
	needtest.Eventually(t, "the device is made again", func() bool { return log.count(linkUp) > 0 })
	if n := log.count(linkDown); n != 1 {
		t.Errorf("%s is %d times in the log", linkDown, n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel() // long enough to show that nothing happens
	if ev, err := dev.NextAsyncEvent(ctx); err == nil {
		t.Errorf("the device hears of %v", ev.Type)
	}
}

// RSYS-008: the port of a device of RoCE is down as long as its network is, and says so to who asks
// and to who waits.
func TestRoCEPortDown(t *testing.T) {
	d, ns, _ := withTAP(t, nil, devices(t, "rocep0,addr=10.77.0.2/24,transport=roce"))
	dev := daemontest.Open(t, d.Dial(), "rocep0")
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, down := range []bool{true, false} {
		change, event, state, phys := ns.SetDown, rdma.EventPortErr, uint32(1), uint32(3)
		if !down {
			change, event, state, phys = ns.SetUp, rdma.EventPortActive, 4, 5
		}
		if err := change("vtap0"); err != nil {
			t.Fatal(err)
		}
		if ev, err := dev.NextAsyncEvent(ctx); err != nil || ev.Type != event {
			t.Fatalf("down %t: %+v, %v, want %v", down, ev, err, event)
		}
		var port rpc.QueryPortReply
		r.Must(rpc.OpQueryPort, &rpc.QueryPortRequest{Device: 0, Port: 1}, &port)
		if port.State != state || port.PhysState != phys || port.LinkLayer != 2 {
			t.Errorf("down %t: state %d, physical %d: want %d and %d", down, port.State, port.PhysState,
				state, phys)
		}
	}
}

// A device that is added where somebody has its address is told of, as at the start.
func TestAddedDuplicate(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	has := daemontest.Start(t, func(c *daemon.Config) {
		c.Devices = c.Devices[:1]
		c.Devices[0].Name = "far"
		c.Devices[0].Addrs = []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")}
		c.Devices[0].MAC = [6]byte{2, 9, 0x11, 0x81, 0x3a, 0x37}
	})
	mustChange(t, has, shm.Add, "port", "unix-listen:"+dir+"/p")
	log := new(eventLog)
	wants := daemontest.Start(t, func(c *daemon.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	mustChange(t, wants, shm.Add, "port", "unix-connect:"+dir+"/p")
	if !needtest.Becomes(func() bool { return log.count("the link of a port is up") > 0 }) {
		t.Fatal("the port has no link")
	}
	mustChange(t, wants, shm.Add, "device", "near,addr=10.77.0.9/24")
	if !needtest.Becomes(func() bool {
		return log.count("device=near addr=10.77.0.9 other=02:09:11:81:3a:37\n") > 0
	}) {
		t.Errorf("the log does not say that somebody has the address, and who:\n%s", log.String())
	}
}

// An eventLog is what a daemon has logged.
type eventLog struct{ needtest.Buffer }

func (l *eventLog) count(text string) int { return strings.Count(l.String(), text) }
