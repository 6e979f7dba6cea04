package integration

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// roceDevice opens a device of a daemon for the test's time.
func roceDevice(t *testing.T, d *daemon, name string) rdma.Device {
	t.Helper()
	c, err := shm.Dial(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	dev, err := c.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// wantICRC says whether packets have come to the device, none of them with a wrong ICRC.
func wantICRC(t *testing.T, d *daemon, dev string) {
	t.Helper()
	out := d.run("stat", "-d", dev, "--json")
	if !strings.Contains(out, `"drop_bad_icrc":0,`) || strings.Contains(out, `"rcvd_pkts":0,`) {
		t.Errorf("%s: %s", dev, out)
	}
}

// ROCE-009: a device on an address of the host, where the kernel makes the headers that the ICRC is
// over, and one on a TAP, that sees each packet as it is on the wire: each operation of each type
// of queue pair, over IPv4 and IPv6, groups, and connections. Nobody finds a wrong ICRC.
func TestRoCEHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ns := proctest.NewNS(t)
	tap := up(t, ns, "--device", deviceB+",transport=roce",
		"--port", "tap:vtap0,addr="+addrsA[0]+"/24,addr="+addrsA[1]+"/64")
	host := up(t, ns, "--device", "v4,host="+addrsA[0]+",transport=roce",
		"--device", "v6,host="+addrsA[1]+",transport=roce", "--device", "iw,host="+addrsA[0])
	far := roceDevice(t, tap, "")
	err := guarded(func() {
		for f, name := range []string{"v4", "v6"} {
			own := roceDevice(t, host, name)
			w := &roceWire{ctx: ctx, devs: [2]rdma.Device{own, far}, clean: &roceNet{}}
			for _, kind := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
				w.data(kind, family(f))
			}
			w.faults(family(f))
			w.connections(family(f))
			w.group(family(f))
			w.devs = [2]rdma.Device{far, own}
			w.group(family(f))
		}
	})
	if err != nil {
		t.Error(err)
	}
	wantICRC(t, tap, "vrnic0")
	wantICRC(t, host, "v4")
	wantICRC(t, host, "v6")
	host.stop()
	tap.stop()
}

// A UDP port that another program has is told, and what to do.
func TestRoCEHostTaken(t *testing.T) {
	udp, err := net.ListenPacket("udp", hostA+":4791")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	d := start(t, nil, nil, "up", "--socket", filepath.Join(t.TempDir(), "s"), "--device",
		"rocep0,host="+hostA+",transport=roce")
	const want = "UDP port 4791 of " + hostA
	if err := d.Wait(patience); err == nil || !strings.Contains(d.Output(), want) ||
		!strings.Contains(d.Output(), "rxe") {
		t.Errorf("%v, %s", err, d.Output())
	}
}
