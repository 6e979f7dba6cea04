package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/shm"
)

// A driver is `vrnic docker`, which the test calls as docker does.
type driver struct {
	*site
	path    string
	process *proctest.Process
	http    http.Client
}

func newDriver(s *site, path string) *driver {
	s.t.Helper()
	d := &driver{site: s, path: path}
	d.http.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
	d.begin()
	return d
}

func (d *driver) begin() {
	d.t.Helper()
	d.process = d.start(program(), "docker", "--plugin", d.path)
	d.process.WaitOutput("ready plugin="+d.path, 1)
}

func (d *driver) end() {
	d.t.Helper()
	d.process.Signal(syscall.SIGTERM)
	if err := d.process.Wait(patience); err != nil {
		d.t.Errorf("the driver: %v", err)
	}
	if _, err := os.Lstat(d.path); !os.IsNotExist(err) {
		d.t.Errorf("the driver has left its socket: %v", err)
	}
}

// call calls the driver about an endpoint, or with ID "" about the network.
func (d *driver) call(name, id string, more map[string]any) (reply map[string]any) {
	d.t.Helper()
	req := map[string]any{"NetworkID": "net", "EndpointID": id}
	for k, v := range more {
		req[k] = v
	}
	body, err := json.Marshal(req)
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := d.http.Post("http://driver/NetworkDriver."+name, "application/json",
		bytes.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&reply); err != nil || reply["Err"] != nil {
		d.t.Fatalf("%s: %v, %v", name, reply, err)
	}
	return reply
}

// create and join make an endpoint, whose TAP is here until it is moved.
func (d *driver) join(id, addr string) (tap string) {
	d.t.Helper()
	d.call("CreateEndpoint", id, map[string]any{"Interface": map[string]string{"Address": addr}})
	reply := d.call("Join", id, map[string]any{"SandboxKey": "/none/yet"})
	tap, _ = reply["InterfaceName"].(map[string]any)["SrcName"].(string)
	return tap
}

// move moves a TAP into a container, as libnetwork does.
func (d *driver) move(tap, addr string, ns *netlab.NS) {
	d.t.Helper()
	f, err := os.Open(ns.Path())
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	link, err := netlink.LinkByName(tap)
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(f.Fd()))
	}
	if err != nil {
		d.t.Fatalf("move %s: %v", tap, err)
	}
	if err := ns.Do(func() error {
		link, err := netlink.LinkByName(tap)
		if err != nil {
			return err
		}
		return netlink.LinkSetName(link, "eth0")
	}); err != nil {
		d.t.Fatal(err)
	}
	if err := ns.AddAddr("eth0", netip.MustParsePrefix(addr)); err != nil {
		d.t.Fatal(err)
	}
	if err := ns.SetUp("eth0"); err != nil {
		d.t.Fatal(err)
	}
}

// wantEndpoints wants devices and ports of as many endpoints in the daemon, and no TAP here.
func (d *driver) wantEndpoints(when string, want int) {
	d.t.Helper()
	count := func(kind, key, prefix string) (n int) {
		for _, row := range d.show(kind) {
			if name, _ := row[key].(string); strings.HasPrefix(name, prefix) {
				n++
			}
		}
		return n
	}
	devices, ports := 0, 0
	proctest.Eventually(d.t, patience, fmt.Sprintf("%s there are %d endpoints", when, want),
		func() bool {
			devices, ports = count("dev", "dev", "rdma"), count("port", "port", "vtap")
			return devices == want && ports == want
		})
	all, err := net.Interfaces()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, i := range all {
		if strings.HasPrefix(i.Name, "vtap") {
			d.t.Errorf("%s there is %s here", when, i.Name)
		}
	}
}

// sees is what devices a program in a container has.
func (d *driver) sees(ns *netlab.NS) (devices []string) {
	d.t.Helper()
	if err := ns.Do(func() error {
		c, err := shm.Dial(filepath.Join(d.guests(), "net", "vrnic.sock"))
		if err == nil {
			devices = c.Devices()
			err = c.Close()
		}
		return err
	}); err != nil {
		d.t.Fatal(err)
	}
	return devices
}

func endpointID(n int) string { return fmt.Sprintf("%08x%056x", n, 7) }

// The driver's endpoints have a TAP and a device of one address. Whatever ends in between, the
// driver, the daemon or the container, what docker then removes is gone, and what it makes anew is
// there.
func TestDockerDriver(t *testing.T) {
	need(t)
	file := filepath.Join(t.TempDir(), "vrnic.yaml")
	if err := os.WriteFile(file, []byte("device: vrnic0,addr=10.77.0.2/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, 0, "--config", file)
	d := newDriver(s, s.dir+"/plugins/docker.sock")
	d.call("CreateNetwork", "", map[string]any{"Options": map[string]any{}})
	a, b := proctest.NewNS(t), proctest.NewNS(t)
	const addrA, addrB = "10.60.0.2/24", "10.60.0.3/24"
	d.move(d.join(endpointID(1), addrA), addrA, a)
	d.move(d.join(endpointID(2), addrB), addrB, b)
	d.wantEndpoints("after two", 2)
	for i, ns := range []*netlab.NS{a, b} {
		if got := d.sees(ns); !slices.Equal(got, []string{fmt.Sprintf("rdma%08x", i+1)}) {
			t.Errorf("container %d sees %v", i+1, got)
		}
	}
	var l net.Listener
	if err := b.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.60.0.3:7174")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := a.Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err == nil {
			err = c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("from kernel to kernel: %v", err)
	}
	if out := s.run(program(), "save"); strings.Contains(out, "rdma0") ||
		strings.Contains(out, "vtap") {
		t.Errorf("what comes and goes with containers is saved:\n%s", out)
	}
	s.run(program(), "reload") // takes none away
	d.wantEndpoints("after the daemon has read its file again", 2)

	d.call("Leave", endpointID(1), nil)
	d.call("DeleteEndpoint", endpointID(1), nil)
	d.wantEndpoints("after the first has gone", 1)
	if got := faces(t, a); len(got) != 0 {
		t.Errorf("a container that has left the network has %v", got)
	}

	// The driver is killed, with one endpoint in a container and another one on its way.
	d.join(endpointID(3), "10.60.0.4/24")
	d.process.Kill()
	d.begin()
	for _, n := range []int{2, 3} {
		d.call("Leave", endpointID(n), nil)
		d.call("DeleteEndpoint", endpointID(n), nil)
	}
	d.wantEndpoints("after the driver was killed", 0)

	// It ends in good order, with one that docker never moves; and one is left before it is moved.
	d.join(endpointID(4), addrA)
	d.end()
	d.begin()
	d.join(endpointID(5), addrB)
	for _, n := range []int{4, 5} {
		d.call("Leave", endpointID(n), nil)
		d.call("DeleteEndpoint", endpointID(n), nil)
	}
	d.wantEndpoints("after docker has changed its mind", 0)

	// A container ends with its namespace, and without a word.
	c := proctest.NewNS(t)
	d.move(d.join(endpointID(6), addrA), addrA, c)
	d.wantEndpoints("with one that will be killed", 1)
	if err := c.DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	d.call("DeleteEndpoint", endpointID(6), nil)
	d.wantEndpoints("after it was killed", 0)

	// The daemon is killed: the network of containers goes with it, and comes back by docker's words.
	d.move(d.join(endpointID(7), addrA), addrA, a)
	d.wantEndpoints("with one that will lose its daemon", 1)
	s.daemon.Kill()
	proctest.Eventually(t, patience, "the interface goes with the daemon", func() bool {
		return len(faces(t, a)) == 0
	})
	d.call("Leave", endpointID(7), nil)
	s.up()
	d.call("DeleteEndpoint", endpointID(7), nil)
	d.move(d.join(endpointID(8), addrA), addrA, a)
	d.wantEndpoints("with a new daemon", 1)
	if got := d.sees(a); !slices.Equal(got, []string{"rdma00000008"}) {
		t.Errorf("with a new daemon a container sees %v", got)
	}
	d.call("DeleteEndpoint", endpointID(8), nil)
	d.call("DeleteNetwork", "", nil)
	d.wantEndpoints("in the end", 0)
	d.end()
}

// Two containers of docker's on such a network: perftest's own TCP connection goes from kernel to
// kernel, its data between the devices of the same addresses, each of which one container alone
// sees. Nothing is left, also of one that is killed while its driver is gone.
func TestDockerNetwork(t *testing.T) {
	s := newDockerSite(t, 0)
	docker := s.docker
	d := newDriver(s.site, "/run/docker/plugins/vrnic.sock")
	s.refused("no option colour", docker("network", "create", "-d", "vrnic", "-o", "colour=red",
		"bad")...)
	s.run(docker("network", "create", "-d", "vrnic", "--subnet", "10.60.0.0/24", "rdma")...)
	in := func(words ...string) []string {
		return docker(slices.Concat([]string{"run", "--network", "rdma"}, s.options("net"), words)...)
	}
	s.run(in("--detach", "--name", "server", "--ip", "10.60.0.2", "perftest", "sh", "-c",
		"ibv_devices; exec ib_write_bw -F -n 200")...)
	pid := strings.TrimSpace(s.run(docker("inspect", "--format", "{{.State.Pid}}", "server")...))
	proctest.Eventually(t, patience, "the server listens", func() bool { return listens(t, pid) })
	if out := s.run(docker("logs", "server")...); strings.Count(out, "rdma") != 1 {
		t.Errorf("the server sees\n%s", out)
	}
	if out := s.run(in("--rm", "perftest", "ib_write_bw", "-F", "-n", "200",
		"10.60.0.2")...); !strings.Contains(out, "65536      200") {
		t.Errorf("ib_write_bw:\n%s", out)
	}
	s.run(docker("wait", "server")...)
	s.run(docker("rm", "server")...)
	d.wantEndpoints("after that", 0)

	s.run(in("--detach", "--name", "idle", "perftest", "sleep", "1000")...)
	d.wantEndpoints("with one", 1)
	d.end()
	d.begin()
	s.run(docker("kill", "idle")...)
	d.wantEndpoints("after it was killed", 0)
	s.run(docker("start", "idle")...)
	d.wantEndpoints("when it is started again", 1)
	s.run(docker("rm", "--force", "idle")...)
	s.run(docker("network", "rm", "rdma")...)
	d.wantEndpoints("in the end", 0)
	d.end()
}
