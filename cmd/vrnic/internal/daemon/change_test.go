package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
)

const third = "vrnic2,addr=10.77.0.4/24,addr=fd77::4/64"

// changeTime bounds a change that is to come about.
func changeTime(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// change changes d over a session of its own.
func change(t *testing.T, d *daemontest.Daemon, verb shm.ChangeVerb, key, value string) error {
	t.Helper()
	c, err := shm.Dial(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Change(changeTime(t), shm.Change{Verb: verb, Key: key, Value: value})
}

func mustChange(t *testing.T, d *daemontest.Daemon, verb shm.ChangeVerb, key, value string) {
	t.Helper()
	if err := change(t, d, verb, key, value); err != nil {
		t.Fatal(err)
	}
}

// wantRefused wants words in the refusal of a change.
func wantRefused(t *testing.T, err error, errno syscall.Errno, words string) {
	t.Helper()
	if !errors.Is(err, errno) || !strings.Contains(err.Error(), words) {
		t.Errorf("%v; want %v with %q", err, errno, words)
	}
}

func deviceNames(t *testing.T, d *daemontest.Daemon) []string {
	t.Helper()
	c, err := shm.Dial(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Devices()
}

// sends sends x's whole buffer to y, in which it has to arrive as it was.
func sends(t *testing.T, x, y *daemontest.End, seed byte) {
	t.Helper()
	n := len(x.Buf.Bytes())
	y.Recv(uint64(seed), 0, n)
	x.Fill(0, n, seed)
	x.Send(uint64(seed), 0, n)
	x.WantOK("a Send", uint64(seed), rdma.WCSend)
	y.WantOK("a Send", uint64(seed), rdma.WCRecv)
	y.Check("a Send", 0, n, seed)
}

// A device that is added is there for sessions that begin later and for those that are there, and
// has connections with others. While it is in use it is deleted by force only.
func TestDeviceComesAndGoes(t *testing.T) {
	for _, kind := range []string{"iwarp", "roce"} {
		t.Run(kind, func(t *testing.T) { testDeviceComesAndGoes(t, kind == "roce") })
	}
}

func testDeviceComesAndGoes(t *testing.T, roce bool) {
	var options string
	d := daemontest.Start(t, func(c *daemon.Config) {
		if roce {
			options = ",transport=roce"
			for i := range c.Devices {
				c.Devices[i].RoCE = true
			}
		}
	})
	before := d.Dial()
	mustChange(t, d, shm.Add, "device", third+options)
	if got := deviceNames(t, d); !slices.Equal(got, []string{"vrnic0", "vrnic1", "vrnic2"}) {
		t.Errorf("devices of a session that begins later: %v", got)
	}
	if rows, err := before.List("dev"); err != nil || len(rows) != 3 {
		t.Errorf("a session that began before lists %s, %v", rows, err) // so /sys has it, too
	}
	after := d.Dial()
	stays := daemontest.NewEnd(t, daemontest.Open(t, after, "vrnic0"), 4096)
	goes := daemontest.NewEnd(t, daemontest.Open(t, before, "vrnic2"), 4096)
	if got := before.Devices(); !slices.Equal(got, []string{"vrnic0", "vrnic1", "vrnic2"}) {
		t.Errorf("devices of one that began before: %v", got)
	}
	daemontest.Connect(t, stays, goes, daemontest.Addr(t, goes.Dev, false, 0))
	sends(t, stays, goes, 1)

	wantRefused(t, change(t, d, shm.Del, "device", "vrnic2"), syscall.EBUSY, "is in use by pid ")
	sends(t, stays, goes, 2)

	goes.Recv(7, 0, 64)
	other := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 64)
	c := d.Dial()
	if err := c.Change(changeTime(t), shm.Change{Verb: shm.Del, Key: "device", Value: "vrnic2",
		Force: true}); err != nil {
		t.Fatal(err)
	}
	ev, err := goes.Dev.NextAsyncEvent(changeTime(t))
	if err != nil || ev.Type != rdma.EventDeviceFatal {
		t.Errorf("the program is told %v, %v; want DEVICE_FATAL", ev.Type, err)
	}
	goes.WantStatus("what it had posted", 7, rdma.WCFlush)
	if _, err := goes.Dev.AllocPD(); !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("what it does next: %v", err)
	}
	select {
	case <-before.Done():
	case <-changeTime(t).Done():
		t.Error("the session of a program without its device goes on")
	}
	stays.Recv(3, 0, 64)
	if !roce { // whose peer is told by rdma_cm alone
		stays.WantStatus("the peer's side", 3, rdma.WCFlush)
	}
	if got := deviceNames(t, d); !slices.Equal(got, []string{"vrnic0", "vrnic1"}) {
		t.Errorf("devices afterwards: %v", got)
	}

	// Name and addresses are free again, and nobody else has noticed.
	mustChange(t, d, shm.Add, "device", third+options)
	again := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic2"), 64)
	daemontest.Connect(t, other, again, daemontest.Addr(t, again.Dev, true, 0))
	sends(t, other, again, 3)
}

// A device that goes between its numbering and a program's first look at it hides none that come
// later.
func TestDeviceGoesUnheard(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	dev := daemontest.Open(t, c, "vrnic0")
	mustChange(t, d, shm.Add, "device", third)
	// This numbers all devices.
	l, err := dev.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mustChange(t, d, shm.Del, "device", "vrnic2")
	mustChange(t, d, shm.Add, "device", strings.Replace(third, "vrnic2", "vrnic3", 1))
	if got, want := c.Devices(), []string{"vrnic0", "vrnic1", "vrnic3"}; !slices.Equal(got, want) {
		t.Errorf("devices are %v, want %v", got, want)
	}
	daemontest.Open(t, c, "vrnic3")
	_, err = c.Open("vrnic2")
	wantRefused(t, err, syscall.ENODEV,
		`no device "vrnic2" (the daemon has ["vrnic0" "vrnic1" "vrnic3"])`)
}

// A device that has been listed but not opened can go: what a session asks of it then is ENODEV.
func TestDeviceListedOnly(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	mustChange(t, d, shm.Del, "device", "vrnic0")
	if _, err := c.Open("vrnic0"); !errors.Is(err, rdma.ErrDeviceGone) && !errors.Is(err,
		syscall.ENODEV) {
		t.Errorf("open a device that is gone: %v", err)
	}
	rows, err := c.List("dev")
	if err != nil || len(rows) != 1 || !strings.Contains(string(rows[0]), `"vrnic1"`) {
		t.Errorf("%s, %v", rows, err)
	}
	end := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic1"), 64)
	end.Recv(1, 0, 64)
}

// A program whose daemon is started anew is told what became of its devices, and has the new ones
// by a new session.
func TestRestart(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	x := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 64)
	x.Recv(1, 0, 64)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again := daemontest.Start(t, func(c *daemon.Config) { c.Socket = d.Socket() })
	if ev, err := x.Dev.NextAsyncEvent(changeTime(t)); err != nil ||
		ev.Type != rdma.EventDeviceFatal {
		t.Errorf("the program is told %v, %v; want DEVICE_FATAL", ev.Type, err)
	}
	x.WantStatus("what it had posted", 1, rdma.WCFlush)
	if _, err := c.Open("vrnic0"); !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("its session with the daemon that has gone: %v", err)
	}
	y := daemontest.NewEnd(t, daemontest.Open(t, again.Dial(), "vrnic0"), 64)
	z := daemontest.NewEnd(t, daemontest.Open(t, again.Dial(), "vrnic1"), 64)
	daemontest.Connect(t, y, z, daemontest.Addr(t, z.Dev, false, 0))
	sends(t, y, z, 1)
}

// vrnic dev set makes a device anew: what is not given stays.
func TestDeviceSet(t *testing.T) {
	d := daemontest.Start(t)
	mustChange(t, d, shm.Set, "device", "vrnic1,mtu=9000,loopback=wire")
	mustChange(t, d, shm.Set, "device", "vrnic1,mtu=4000")
	want := daemontest.Devices[1] + ",mtu=4000,loopback=wire"
	if got := d.Devices()[1].String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 64)
	wantRefused(t, change(t, d, shm.Set, "device", "vrnic1,mtu=1500"), syscall.EBUSY, "in use")
	y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 64)
	daemontest.Connect(t, y, x, daemontest.Addr(t, x.Dev, false, 0))
}

// A device is taken either by who opens it or by a change that is not forced, and never by both:
// who has opened it keeps it.
func TestDeviceTakenOnce(t *testing.T) {
	d := daemontest.Start(t)
	admin := d.Dial()
	var stop atomic.Bool
	var changed int
	var wg sync.WaitGroup
	end := func() { stop.Store(true); wg.Wait() }
	defer end()
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			err := admin.Change(changeTime(t), shm.Change{Verb: shm.Set, Key: "device",
				Value: fmt.Sprintf("vrnic1,mtu=%d", 2000+i%2)})
			if err == nil {
				changed++
			} else if !errors.Is(err, syscall.EBUSY) {
				t.Errorf("dev set: %v", err)
				return
			}
		}
	})
	opened := 0
	for opened < 30 {
		c, err := shm.Dial(d.Socket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if !slices.Contains(c.Devices(), "vrnic1") { // it is being made anew
			c.Close()
			continue
		}
		dev, err := c.Open("vrnic1")
		if err == nil {
			opened++
			if pd, err := dev.AllocPD(); err != nil {
				t.Fatalf("device %d that was opened: %v", opened, err)
			} else if err := pd.Close(); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, rdma.ErrDeviceGone) && !errors.Is(err, syscall.ENODEV) {
			t.Fatal(err)
		}
		c.Close()
	}
	if end(); changed == 0 {
		t.Error("the device was never changed")
	}
}

// A change that fails before it deletes a device leaves that for whoever wants it.
func TestDeviceOfFailedChange(t *testing.T) {
	d := daemontest.Start(t)
	other, err := daemon.ParseDevice("vrnic9,host=203.0.113.99") // nobody's
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Reconfigure(changeTime(t), false, nil, func(c *daemon.Config) error {
		c.Devices = []daemon.DeviceSpec{c.Devices[0], other}
		return nil
	}); err == nil || !strings.Contains(err.Error(), "203.0.113.99") {
		t.Fatal(err)
	}
	daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 64)
}

// A change is made to its end when who asked for it goes away in the midst of it: here by losing
// the device that it changes.
func TestChangeOutlivesItsAsker(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	x := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic1"), 64)
	x.Recv(1, 0, 64)
	err := c.Change(changeTime(t), shm.Change{Verb: shm.Set, Key: "device", Value: "vrnic1,mtu=9000",
		Force: true})
	if err != nil && !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("who asked is told %v", err)
	}
	mustChange(t, d, shm.Set, "limit", "qps=9") // behind the other change
	want := daemontest.Devices[1] + ",mtu=9000"
	if got := d.Devices(); len(got) != 2 || got[1].String() != want {
		t.Errorf("devices %v, want %s", got, want)
	}
	settings, err := d.Dial().Settings()
	if err != nil || !slices.Contains(settings, [2]string{"device", want}) {
		t.Errorf("%v, %v; want device %s", settings, err, want)
	}
}

// A change that can be neither made nor undone leaves a configuration of what is there.
func TestChangeThatCannotBeUndone(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := daemon.ParseDevice("vrnic1,host=203.0.113.99") // nobody's
	if err != nil {
		t.Fatal(err)
	}
	port, err := daemon.ParsePort("unix-listen:" + dir + "/p")
	if err != nil {
		t.Fatal(err)
	}
	d := daemontest.Start(t, func(c *daemon.Config) {
		next := *c
		next.SocketMode = 0o600
		next.Limits = server.DefaultLimits()
		next.Devices = []daemon.DeviceSpec{c.Devices[0], spec}
		c.Ports = []daemon.PortSpec{port}
		c.Reload = func() (daemon.Config, error) { return next, nil }
	})
	if err := os.RemoveAll(dir); err != nil { // so that nobody listens there a second time
		t.Fatal(err)
	}
	c := d.Dial()
	err = c.Change(changeTime(t), shm.Change{Verb: shm.Reload})
	if err == nil || !strings.Contains(err.Error(), "203.0.113.99") ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("%v; want both what failed and what could not be undone", err)
	}
	settings, err := c.Settings()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range settings {
		if s[0] == "device" || s[0] == "port" {
			got = append(got, s[1])
		}
	}
	if !slices.Equal(got, daemontest.Devices[:]) {
		t.Errorf("made of %q, want %q", got, daemontest.Devices)
	}
}

// What cannot be is refused in words, and leaves all as it was.
func TestChangeRefused(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) {
		spec, err := daemon.ParseDevice("roce1,addr=10.77.0.3/24,addr=fd77::3/64,transport=roce")
		if err != nil {
			t.Fatal(err)
		}
		c.Devices = append(c.Devices, spec)
	})
	c := d.Dial()
	before, err := c.Settings()
	if err != nil {
		t.Fatal(err)
	}
	held := daemontest.Usage()
	for _, tt := range []struct {
		verb       shm.ChangeVerb
		key, value string
		words      string
	}{
		{shm.Add, "device", "vrnic0,addr=10.77.0.9/24", `device name "vrnic0" is given twice`},
		{shm.Add, "device", "x,addr=10.77.0.2/24", "10.77.0.2 is given to"},
		{shm.Add, "device", "x", "no address"},
		{shm.Add, "device", "x,host=203.0.113.99", "203.0.113.99"}, // nobody's: it fails when it is made
		{shm.Add, "device", "x,addr=10.77.0.3/24,transport=roce", "but not all addresses"},
		{shm.Del, "device", "vrnic9", "no device vrnic9"},
		{shm.Set, "device", "vrnic9,mtu=1500", "no device vrnic9"},
		{shm.Set, "device", "vrnic0", "what of device vrnic0"},
		{shm.Set, "device", "vrnic0,colour=red", `unknown option "colour"`},
		{shm.Set, "device", "roce1,mtu=9000", "device vrnic1 would need another"},
		{shm.Add, "port", "veth:x", "want tap:NAME"},
		{shm.Add, "port", "unix-listen:/nowhere/at/all", "/nowhere/at/all"},
		{shm.Del, "port", "tap9", "no port tap9"},
		{shm.Set, "port", "tap9", "cannot be changed"},
		{shm.Set, "limit", "wings=2", `"wings" is not known`},
		{shm.Set, "limit", "qps=0", "want a number"},
		{shm.Add, "limit", "qps=5", "cannot be changed"},
		{shm.Set, "socket", "/tmp/x", "cannot be changed"},
		{shm.Add, "ipoib", "ib0,dev=roce1,addr=10.78.0.1/24", "cannot be changed"},
		{77, "device", "vrnic0", "cannot be changed"},
		{shm.Reload, "", "", "has no file"},
	} {
		err := c.Change(changeTime(t), shm.Change{Verb: tt.verb, Key: tt.key, Value: tt.value})
		if err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%d %s %s: %v; want %q", tt.verb, tt.key, tt.value, err, tt.words)
		}
	}
	// A descriptor that is no TAP, or of a port that is none, is closed.
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for value, words := range map[string]string{
		"tap:t0": "netstack: tap t0: ", "unix-listen:/tmp/x": "takes no descriptor",
	} {
		if err := c.Change(changeTime(t), shm.Change{Verb: shm.Add, Key: "port", Value: value,
			TAP: int(null.Fd())}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v; want %q", value, err, words)
		}
	}
	if err := null.Close(); err != nil {
		t.Error(err)
	}
	if after, err := c.Settings(); err != nil || !slices.Equal(after, before) {
		t.Errorf("%v, %v; before it was %v", after, err, before)
	}
	held.WantBack(t, "after changes that were refused")
	// The last device stays, and a container's is none: that one goes with the container.
	for _, name := range []string{"vrnic0", "vrnic1"} {
		mustChange(t, d, shm.Del, "device", name)
	}
	const last = "one device at least that is not a container's"
	wantRefused(t, change(t, d, shm.Del, "device", "roce1"), syscall.EINVAL, last)
	mustChange(t, d, shm.Add, "device", third+",container")
	wantRefused(t, change(t, d, shm.Del, "device", "roce1"), syscall.EINVAL, last)
	wantRefused(t, change(t, d, shm.Set, "device", "roce1,addr=10.77.0.3/24,container"),
		syscall.EINVAL, last)
	mustChange(t, d, shm.Del, "device", "vrnic2")
}

// A daemon that has containers' devices only, as a change can leave it that was not to be undone,
// gives these back to the last one, and takes others.
func TestContainersOnly(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Devices = c.Devices[:1]
		c.Devices[0].Container = true
	})
	mustChange(t, d, shm.Add, "device", third+",container")
	for _, name := range []string{"vrnic0", "vrnic2"} {
		mustChange(t, d, shm.Del, "device", name)
	}
	mustChange(t, d, shm.Set, "limit", "qps=7")
	if left := deviceNames(t, d); len(left) != 0 {
		t.Errorf("there are %v", left)
	}
	mustChange(t, d, shm.Add, "device", third)
	wantRefused(t, change(t, d, shm.Del, "device", "vrnic2"), syscall.EINVAL, "one device at least")
}

// A hundred devices and ports that come and go leave nothing behind.
func TestComeAndGoLeavesNothing(t *testing.T) {
	d := daemontest.Start(t)
	dir := t.TempDir()
	c := d.Dial()
	round := func(i int) {
		kind := []string{"", ",transport=roce"}[i%2]
		for _, ch := range []shm.Change{
			{Verb: shm.Add, Key: "device", Value: third + kind},
			{Verb: shm.Add, Key: "port", Value: "unix-listen:" + dir + "/p"},
			{Verb: shm.Del, Key: "device", Value: "vrnic2"},
			{Verb: shm.Del, Key: "port", Value: "unix-listen:" + dir + "/p"},
		} {
			if err := c.Change(changeTime(t), ch); err != nil {
				t.Fatalf("round %d: %v: %v", i, ch, err)
			}
		}
	}
	round(0)
	round(1) // what is made once has been made
	held := daemontest.Usage()
	for i := range 100 {
		round(i)
	}
	held.WantBack(t, "after 100 rounds")
	if rows, err := c.List("port"); err != nil || len(rows) != 2 { // of the two devices
		t.Errorf("%s, %v", rows, err)
	}
}

// Two that change the daemon at once take turns: of two that want the same one gets it.
func TestTwoWriters(t *testing.T) {
	d := daemontest.Start(t)
	var won atomic.Int32
	var wg sync.WaitGroup
	for w := range 2 {
		c := d.Dial()
		wg.Go(func() {
			own := fmt.Sprintf("own%d", w)
			for range 20 {
				for _, ch := range []shm.Change{
					{Verb: shm.Add, Key: "device", Value: fmt.Sprintf("%s,addr=10.78.0.%d/24", own, w+1)},
					{Verb: shm.Set, Key: "device", Value: own + ",mtu=9000"},
					{Verb: shm.Del, Key: "device", Value: own},
				} {
					if err := c.Change(changeTime(t), ch); err != nil {
						t.Errorf("%v: %v", ch, err)
					}
				}
			}
			if c.Change(changeTime(t), shm.Change{Verb: shm.Add, Key: "device", Value: third}) == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || len(deviceNames(t, d)) != 3 {
		t.Errorf("%d have made one device; there are %v", won.Load(), deviceNames(t, d))
	}
}

// A limit that is changed holds for who begins then.
func TestLimitChanges(t *testing.T) {
	d := daemontest.Start(t)
	x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 64)
	mustChange(t, d, shm.Set, "limit", "qps=1")
	mustChange(t, d, shm.Set, "limit", "peer-requests=7")
	y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 64)
	cfg := rdma.QPConfig{SendCQ: y.CQ, RecvCQ: y.CQ, MaxSendWR: 1, MaxRecvWR: 1}
	if _, err := y.PD.CreateQP(cfg); !errors.Is(err, rdma.ErrLimit) {
		t.Errorf("a second queue pair: %v; want to be over the limit", err)
	}
	cfg.SendCQ, cfg.RecvCQ = x.CQ, x.CQ
	if _, err := x.PD.CreateQP(cfg); err != nil {
		t.Errorf("of a session that began before: %v", err)
	}
	mustChange(t, d, shm.Set, "limit", "qps=40000")
	z := daemontest.Open(t, d.Dial(), "vrnic0")
	if got := z.Attr().MaxQP; got != 40000 {
		t.Errorf("a program is told of %d queue pairs, 40000 were set", got)
	}
	settings, err := d.Dial().Settings()
	if err != nil || !slices.Contains(settings, [2]string{"limit", "qps=40000"}) ||
		!slices.Contains(settings, [2]string{"limit", "peer-requests=7"}) {
		t.Errorf("%v, %v", settings, err)
	}
}

// A daemon is made as its file has it now, in the middle of traffic of which no octet is lost; what
// would end connections is refused as a whole.
func TestReload(t *testing.T) {
	var next daemon.Config
	var mu sync.Mutex // of next: the way over the socket is none that the race detector knows
	d := daemontest.Start(t, func(c *daemon.Config) {
		next = *c
		next.SocketMode = 0o600
		next.Devices = slices.Clone(c.Devices)
		c.Reload = func() (daemon.Config, error) {
			mu.Lock()
			defer mu.Unlock()
			return next, nil
		}
	})
	now, err := d.Dial().Settings()
	if err != nil {
		t.Fatal(err)
	}
	x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 1<<16)
	daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
	c := d.Dial()
	reload := func() error { return c.Change(changeTime(t), shm.Change{Verb: shm.Reload}) }
	wantDevices := func(when string, want ...string) {
		var got []string
		for _, spec := range d.Devices() {
			got = append(got, spec.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s there are %v, want %v", when, got, want)
		}
	}
	wantRefused := func(errno syscall.Errno, words string) {
		if err := reload(); !errors.Is(err, errno) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v; want %v with %q", err, errno, words)
		}
	}
	base := next.Devices
	spec, err := daemon.ParseDevice(third)
	if err != nil {
		t.Fatal(err)
	}
	file := func(mode fs.FileMode, devices ...daemon.DeviceSpec) {
		mu.Lock()
		defer mu.Unlock()
		next.SocketMode, next.Devices = mode, devices
	}
	next.Limits = limitsOf(t, now)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10 {
			file(0o600, base[0], base[1], spec)
			if err := reload(); err != nil {
				t.Error(err)
			}
			wantDevices("with one more in the file", "vrnic0", "vrnic1", "vrnic2")
			file(0o600, base...)
			if err := reload(); err != nil {
				t.Error(err)
			}
		}
		// One that is in use is gone from the file, another one is new: neither is made.
		file(0o600, base[0], spec)
		wantRefused(syscall.EBUSY, "device vrnic1 is in use")
		wantDevices("after a reload that was refused", "vrnic0", "vrnic1")
		file(0o660, base...)
		wantRefused(syscall.EINVAL, "socket-mode cannot change")
		file(0o600, base...)
		if err := reload(); err != nil {
			t.Errorf("a file that says what there is: %v", err)
		}
	}()
	for i, over := 0, false; !over; i++ {
		select {
		case <-done:
			over = true
		default:
		}
		sends(t, x, y, byte(i))
	}
	if after, err := c.Settings(); err != nil || !slices.Equal(after, now) {
		t.Errorf("%v, %v; before it was %v", after, err, now)
	}
}

// limitsOf are the limits that settings name, the defaults else.
func limitsOf(t *testing.T, settings [][2]string) server.Limits {
	t.Helper()
	c := daemon.Config{Limits: server.DefaultLimits()}
	for _, s := range settings {
		if s[0] == "limit" {
			if err := c.SetLimit(s[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return c.Limits
}

// Ports and what is behind them: with nobody there a port goes, with a connection through it by
// force only.
func TestPortComesAndGoes(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic") // t.TempDir can be longer than a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := daemontest.Start(t)
	mustChange(t, a, shm.Add, "port", "unix-listen:"+dir+"/p")
	b := daemontest.Start(t, func(c *daemon.Config) {
		c.Devices = c.Devices[:1]
		c.Devices[0].Name = "far"
		c.Devices[0].Addrs = []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")}
	})
	mustChange(t, b, shm.Add, "port", "unix-connect:"+dir+"/p")
	x := daemontest.NewEnd(t, daemontest.Open(t, a.Dial(), "vrnic0"), 4096)
	y := daemontest.NewEnd(t, daemontest.Open(t, b.Dial(), "far"), 4096)
	daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
	wantRefused(t, change(t, a, shm.Del, "port", "unix-listen:"+dir+"/p"), syscall.EBUSY,
		"1 connections lead out")
	sends(t, x, y, 3)
	for _, p := range []struct {
		d    *daemontest.Daemon
		name string
	}{{b, "unix-connect:"}, {a, "unix-listen:"}} {
		if err := p.d.Dial().Change(changeTime(t), shm.Change{Verb: shm.Del, Key: "port",
			Value: p.name + dir + "/p", Force: true}); err != nil {
			t.Error(err)
		}
	}
}
