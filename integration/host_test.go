package integration

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// Addresses of the host that nobody else uses.
const (
	hostA = "127.77.4.2"
	hostB = "127.77.4.3"
)

// Two daemons on addresses of the host move data over the kernel's TCP and over SCTP in UDP, both
// ways, and from a device to itself; what the kernel counts is told.
func TestHost(t *testing.T) {
	a := up(t, nil, "--device", "vrnic0,host="+hostA)
	b := up(t, nil, "--device", "vrnic0,host="+hostB+",sctp-udp=9999")
	server := a.serve()
	for _, size := range sizes {
		for _, d := range []*daemon{a, b} {
			d.ping(hostA, 3, size)
		}
		b.ping(hostA, 3, size, "--sctp")
	}
	for _, row := range a.show("dev") {
		if row["addrs"] == nil || row["mtu"].(float64) < 1280 {
			t.Errorf("the device: %v", row)
		}
	}
	if out := a.run("stat", "-d", "vrnic0", "--json"); !strings.Contains(out,
		`"tcp_passive_opens":`+strconv.Itoa(len(sizes))+",") ||
		strings.Contains(out, `"tcp_segments_in":0,`) {
		t.Errorf("%s", out)
	}
	server.interrupt()
	server = b.serve("-a", hostB)
	a.ping(hostB, 3, 65535)
	server.interrupt()
	for _, d := range []*daemon{a, b} {
		proctest.Eventually(t, patience, "the QPs of all programs are gone",
			func() bool { return len(d.show("qp")) == 0 })
		d.stop()
	}
}

// QPs of one device go through the kernel's TCP if they are to.
func TestHostWire(t *testing.T) {
	a := up(t, nil, "--device", "vrnic0,host="+hostA+",loopback=wire,sctp-udp=off")
	server := a.serve()
	a.ping(hostA, 3, 65535)
	if out := a.run("stat", "-d", "vrnic0", "--json"); !strings.Contains(out,
		`"tcp_passive_opens":1,`) {
		t.Errorf("%s", out)
	}
	server.interrupt()
	a.stop()
}

// With --host there is a device of each kind for each address of the host that others reach, or of
// the loopback in a namespace that has no other.
func TestHostAll(t *testing.T) {
	a := up(t, nil, "--host")
	rows := a.show("dev")
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, only := range []bool{false, true} { // of the loopback
		for _, x := range addrs {
			ip := x.(*net.IPNet).IP
			if ip.IsLoopback() == only && !ip.IsLinkLocalUnicast() && len(want) < 32 {
				want = append(want, x.String())
			}
		}
		if len(want) > 0 {
			break
		}
	}
	slices.Sort(want)
	for _, kind := range []string{"vrnic-", "roce-"} {
		var got []string
		for _, row := range rows {
			if !strings.HasPrefix(row["dev"].(string), kind) {
				continue
			}
			for _, x := range row["addrs"].([]any) {
				got = append(got, x.(string))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("devices %s have %v, the host %v", kind, got, want)
		}
	}
	a.stop()
}

// What stands in the way is said: an address that the host does not have, a port that another
// program has.
func TestHostErrors(t *testing.T) {
	udp, err := net.ListenPacket("udp", hostA+":9899")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ device, want string }{
		{"vrnic0,host=192.0.2.77", "192.0.2.77 is not an address of this host, which has "},
		{"vrnic0,host=" + hostA, "choose another with sctp-udp=PORT"},
	} {
		d := start(t, nil, nil, "up", "--socket", filepath.Join(t.TempDir(), "s"), "--device", tt.device)
		if err := d.Wait(patience); err == nil || !strings.Contains(d.Output(), tt.want) {
			t.Errorf("%s: %v, %s", tt.device, err, d.Output())
		}
	}
	udp.Close()
	a := up(t, nil, "--device", "vrnic0,host="+hostA)
	l, err := net.Listen("tcp", hostA+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := a.start("ping", "-s", "-p", port)
	if err := s.Wait(patience); err == nil || !strings.Contains(s.Output(), "address is in use") {
		t.Errorf("%v, %s", err, s.Output())
	}
	a.stop()
}
