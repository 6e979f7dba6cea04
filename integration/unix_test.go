package integration

import (
	"path/filepath"
	"testing"
)

// sizes are those of the messages that pings move: around what one segment holds, and the
// largest that rping takes.
var sizes = []int{64, 100, 1500, 4096, 16384, 65535}

const (
	deviceA = "vrnic0,addr=10.77.0.2/24,addr=fd77::2/64"
	deviceB = "vrnic0,addr=10.77.0.3/24,addr=fd77::3/64"
)

var (
	addrsA = []string{"10.77.0.2", "fd77::2"}
	addrsB = []string{"10.77.0.3", "fd77::3"}
)

// linked are two daemons on a Unix-stream link.
func linked(t *testing.T) (a, b *daemon) {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	a = up(t, nil, "--device", deviceA, "--port", "unix-listen:"+link)
	b = up(t, nil, "--device", deviceB, "--port", "unix-connect:"+link)
	return a, b
}

// tapped are two daemons on a Unix-stream link, with a tap on the wire.
func tapped(t *testing.T) (a, b *daemon, wire *tap) {
	t.Helper()
	dir := t.TempDir()
	left, right := filepath.Join(dir, "left"), filepath.Join(dir, "right")
	a = up(t, nil, "--device", deviceA, "--port", "unix-listen:"+left)
	wire = wiretap(t, right, left)
	b = up(t, nil, "--device", deviceB, "--port", "unix-connect:"+right)
	return a, b, wire
}

// pingBothWays has data move both ways between the devices of two daemons, over IPv4 and IPv6.
func pingBothWays(a, b *daemon) {
	for i, addr := range addrsA {
		server := a.serve("-a", addr)
		for _, size := range sizes {
			b.ping(addr, 3, size)
		}
		server.interrupt()
		server = b.serve("-a", addrsB[i])
		a.ping(addrsB[i], 3, 65535)
		server.interrupt()
	}
}

// Two daemons of an ordinary user on a Unix-stream link, with a tap on the wire: data moves both
// ways, over IPv4 and IPv6, and what passes is what tshark calls iWARP.
func TestUnixLink(t *testing.T) {
	a, b, wire := tapped(t)
	pingBothWays(a, b)
	b.stop()
	a.stop()
	checkIWARP(t, wire.stop(), true)
}

// Several clients at once, through one link.
func TestUnixConcurrent(t *testing.T) {
	a, b := linked(t)
	server := a.serve()
	var clients []*process
	for range 4 {
		clients = append(clients, b.start("ping", "-c", "-a", addrsA[0], "-C", "20", "-S", "4096", "-V"))
	}
	for _, c := range clients {
		c.succeed()
	}
	server.interrupt()
}

// The live connection as `vrnic show` has it, on both sides.
func TestShowLive(t *testing.T) {
	a, b := linked(t)
	a.serve()
	client := b.start("ping", "-c", "-a", addrsA[0], "-v")
	client.WaitOutput("ping data: ", 3)
	for _, d := range []*daemon{a, b} {
		checkLiveQP(t, d, "vrnic0")
		for _, kind := range []string{"dev", "qp", "mr", "cq", "client", "port"} {
			if rows := d.show(kind); len(rows) == 0 {
				t.Errorf("show %s is empty while a connection is open", kind)
			}
		}
	}
	if rows := a.show("cm"); len(rows) == 0 {
		t.Error("show cm has no listener")
	}
}

// checkLiveQP wants one connected QP with what its connection has agreed on.
func checkLiveQP(t *testing.T, d *daemon, device string) map[string]any {
	t.Helper()
	var live []map[string]any
	for _, row := range d.show("qp") {
		if row["state"] == "RTS" && row["dev"] == device {
			live = append(live, row)
		}
	}
	if len(live) != 1 {
		t.Fatalf("%d connected QPs, want 1: %v", len(live), d.show("qp"))
	}
	row := live[0]
	for key, want := range map[string]any{"mpa": 2.0, "crc": true, "enhanced": true, "ird": 1.0,
		"ord": 1.0, "transport": "tcp"} {
		if row[key] != want {
			t.Errorf("show qp: %s is %v, want %v", key, row[key], want)
		}
	}
	for _, key := range []string{"local", "remote", "emss", "pid", "comm"} {
		if v := row[key]; v == nil || v == "" || v == 0.0 {
			t.Errorf("show qp: no %s in %v", key, row)
		}
	}
	return row
}
