package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// A network is one of the Container Network Interface, as a runtime has it.
type network struct {
	*site
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newNetwork makes one that has no configuration yet. Its daemon has a device, and more.
func newNetwork(t *testing.T, more ...string) *network {
	t.Helper()
	devices := append([]string{"rocep0,addr=10.60.0.100/24,transport=roce"}, more...)
	return newNetworkAt(t, nil, `device: ["`+strings.Join(devices, `", "`)+"\"]\n")
}

// newNetworkAt makes one on a host of its own, whose daemon has a file.
func newNetworkAt(t *testing.T, ns *netlab.NS, text string) *network {
	t.Helper()
	need(t)
	file := filepath.Join(t.TempDir(), "vrnic.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &network{site: newSiteAt(t, ns, 0, "--config", file)}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"vrnic-cni": program(), ipamName: exe, frontName: exe} {
		if err := os.Symlink(to, filepath.Join(n.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.dir}, n.dir+"/cache", nil)
	return n
}

// config is that of the network, with the plugin's part, behind others.
func (n *network) config(plugin string, front ...string) *libcni.NetworkConfigList {
	n.t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "rdma", "plugins": [%s]}`,
		strings.Join(append(front, fmt.Sprintf(`{"type": "vrnic-cni", "socket": %q, %s}`, n.socket,
			plugin)), ","))
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		n.t.Fatalf("%s: %v", text, err)
	}
	return list
}

// ipam has addresses from 10.60.0.2 on, and a route by way of a gateway.
func (n *network) ipam() string {
	return fmt.Sprintf(`"ipam": {"type": %q, "dataDir": %q, "route": "10.61.0.0/16"}`, ipamName,
		n.dir+"/ipam")
}

// A pod is a network namespace with an attachment.
type pod struct {
	*libcni.RuntimeConf
	ns     *netlab.NS
	result *types100.Result
}

func newPod(t *testing.T, id string) *pod {
	t.Helper()
	ns := proctest.NewNS(t)
	return &pod{&libcni.RuntimeConf{ContainerID: id, NetNS: ns.Path(), IfName: "eth0"}, ns, nil}
}

func (n *network) add(p *pod) {
	n.t.Helper()
	r, err := n.cni.AddNetworkList(context.Background(), n.list, p.RuntimeConf)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", p.ContainerID, err)
	}
	if p.result, err = types100.NewResultFromResult(r); err != nil {
		n.t.Fatal(err)
	}
}

func (n *network) del(p *pod) {
	n.t.Helper()
	if err := n.cni.DelNetworkList(context.Background(), n.list, p.RuntimeConf); err != nil {
		n.t.Errorf("DEL %s: %v", p.ContainerID, err)
	}
}

func (n *network) wantError(what, words string, err error) {
	n.t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		n.t.Errorf("%s: %v; want %q", what, err, words)
	}
}

// wantLeft wants as many ports of the daemon's, and addresses of ipam's.
func (n *network) wantLeft(when string, want int) {
	n.t.Helper()
	ports := 0
	for _, row := range n.show("port") {
		if row["kind"] == "tap" {
			ports++
		}
	}
	addrs, err := filepath.Glob(n.dir + "/ipam/*")
	if err != nil {
		n.t.Fatal(err)
	}
	if ports != want || len(addrs) != want {
		n.t.Errorf("%s: %d ports and %d addresses, want %d", when, ports, len(addrs), want)
	}
}

// faces are the interfaces of a namespace, but for the loopback's.
func faces(t *testing.T, ns *netlab.NS) (names []string) {
	t.Helper()
	if err := ns.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if i.Name == "eth0" || i.Name == "rdma0" {
				names = append(names, i.Name)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// Two containers are on one switch: the kernel of one reaches the other's. CHECK tells what is
// wrong, DEL may be said twice, GC removes what is nobody's.
func TestCNI(t *testing.T) {
	n := newNetwork(t)
	n.list = n.config(n.ipam() + `, "mtu": 1400`)
	ctx := context.Background()
	if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	a, b, lost := newPod(t, "a"), newPod(t, "b"), newPod(t, "lost")
	n.add(a)
	n.add(b)
	for _, p := range []*pod{a, b} {
		r := p.result
		if len(r.Interfaces) != 1 || r.Interfaces[0].Name != "eth0" || r.Interfaces[0].Mtu != 1400 ||
			r.Interfaces[0].Sandbox != p.NetNS || len(r.IPs) != 1 || *r.IPs[0].Interface != 0 ||
			len(r.Routes) != 1 {
			t.Errorf("%s has got %v", p.ContainerID, r)
		}
		if err := n.cni.CheckNetworkList(ctx, n.list, p.RuntimeConf); err != nil {
			t.Errorf("CHECK %s: %v", p.ContainerID, err)
		}
	}
	n.reaches(a, b)

	_, err := n.cni.AddNetworkList(ctx, n.list, a.RuntimeConf)
	n.wantError("ADD again", "DEL has to come first", err)
	n.wantLeft("after two", 2)
	if err := n.cni.CheckNetworkList(ctx, n.list, a.RuntimeConf); err != nil {
		t.Errorf("CHECK after that: %v", err)
	}

	if err := b.ns.SetDown("eth0"); err != nil {
		t.Fatal(err)
	}
	n.wantError("CHECK", "eth0 is down", n.cni.CheckNetworkList(ctx, n.list, b.RuntimeConf))
	if err := b.ns.DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	n.wantError("CHECK", "interface eth0", n.cni.CheckNetworkList(ctx, n.list, b.RuntimeConf))
	n.del(b)
	n.del(b)
	n.wantLeft("after DEL of one", 1)

	n.add(lost)
	n.wantLeft("with the lost one", 2)
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: a.ContainerID, IfName: a.IfName}}}
	if err := n.cni.GCNetworkList(ctx, n.list, valid); err != nil {
		t.Errorf("GC: %v", err)
	}
	if got := faces(t, lost.ns); len(got) != 0 {
		t.Errorf("after GC the lost one has %v", got)
	}
	if out := n.run(program(), "save"); strings.Contains(out, "tap") {
		t.Errorf("a container's port is saved: %s", out)
	}
	n.run(program(), "reload") // takes none away
	n.wantLeft("after GC", 1)
	if err := n.cni.CheckNetworkList(ctx, n.list, a.RuntimeConf); err != nil {
		t.Errorf("CHECK of the one that is left: %v", err)
	}

	n.down()
	n.wantError("STATUS", "no vrnic daemon", n.cni.GetStatusNetworkList(ctx, n.list))
	n.wantError("CHECK", "no vrnic daemon", n.cni.CheckNetworkList(ctx, n.list, a.RuntimeConf))
	_, err = n.cni.AddNetworkList(ctx, n.list, newPod(t, "late").RuntimeConf)
	n.wantError("ADD", "no vrnic daemon", err)
	n.del(a)
	if got := faces(t, a.ns); len(got) != 0 {
		t.Errorf("in the end there are %v", got)
	}
	n.up()
	n.wantLeft("in the end", 0)
}

// reaches has the kernel of one send to the other's.
func (n *network) reaches(from, to *pod) {
	n.t.Helper()
	var l net.Listener
	at := to.result.IPs[0].Address.IP.String()
	if err := to.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(at, "0"))
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		got <- fmt.Sprint(string(text), err)
	}()
	if err := from.ns.Do(func() error {
		d := net.Dialer{Timeout: patience}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "hello")
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	if s := <-got; s != "hello<nil>" {
		n.t.Errorf("it gets %q", s)
	}
}

// With a device the interface is one station with it, which the container sees, and no other one;
// it comes and goes with the interface, and nothing is left of one that cannot be.
func TestCNIDevice(t *testing.T) {
	n := newNetwork(t)
	n.list = n.config(n.ipam() + `, "mtu": 1400, "device": "transport=roce"`)
	ctx := context.Background()
	d := &driver{site: n.site}
	devices := func(when string, want int) {
		t.Helper()
		n.wantLeft(when, want)
		if got := len(n.show("dev")) - 1; got != want {
			t.Errorf("%s: %d devices, want %d", when, got, want)
		}
	}
	a, b, lost := newPod(t, "a"), newPod(t, "b"), newPod(t, "lost")
	for _, p := range []*pod{a, b, lost} {
		n.add(p)
		if err := n.cni.CheckNetworkList(ctx, n.list, p.RuntimeConf); err != nil {
			t.Errorf("CHECK %s: %v", p.ContainerID, err)
		}
		if got := p.result.Interfaces[0].Mtu; got != 1400 {
			t.Errorf("%s has an interface of MTU %d, its device has 1400", p.ContainerID, got)
		}
		n.list = n.config(n.ipam() + `, "device": "transport=roce,mtu=1400"`) // says the same
	}
	devices("after three", 3)
	n.run(program(), "reload") // takes none away
	devices("after the daemon has read its file again", 3)
	n.reaches(a, b)
	seen := append(d.sees(a.ns), d.sees(b.ns)...)
	if len(seen) != 2 || seen[0] == seen[1] {
		t.Errorf("containers see %v", seen)
	}
	for _, row := range n.show("dev") {
		addr := a.result.IPs[0].Address.String()
		if row["dev"] == seen[0] && (fmt.Sprint(row["addrs"]) != "["+addr+"]" ||
			row["mac"] != a.result.Interfaces[0].Mac || row["mtu"] != 1400.0) {
			t.Errorf("the device is %v, the interface %v of %s", row, a.result.Interfaces[0], addr)
		}
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: a.ContainerID, IfName: a.IfName}, {ContainerID: b.ContainerID, IfName: b.IfName}}}
	if err := n.cni.GCNetworkList(ctx, n.list, valid); err != nil {
		t.Errorf("GC: %v", err)
	}
	devices("after GC", 2)
	n.del(a)
	n.del(a)
	devices("after DEL", 1)
	a.NetNS = "/nowhere"
	_, err := n.cni.AddNetworkList(ctx, n.list, a.RuntimeConf)
	n.wantError("ADD", "/nowhere", err)
	a.NetNS = a.ns.Path()
	_, err = n.cni.AddNetworkList(ctx, n.config(n.ipam()+
		`, "device": "transport=roce", "interface": "a/b"`), a.RuntimeConf)
	n.wantError("ADD", "a/b", err)
	devices("after what could not be", 1)
	if err := n.cni.CheckNetworkList(ctx, n.list, b.RuntimeConf); err != nil {
		t.Errorf("CHECK of the one that is left: %v", err)
	}
	n.del(b)
	devices("in the end", 0)
}

// Behind another plugin the result has what both have made.
func TestCNIChained(t *testing.T) {
	n := newNetwork(t)
	n.list = n.config(n.ipam()+`, "interface": "rdma0"`, `{"type": "`+frontName+`"}`)
	p := newPod(t, "a")
	n.add(p)
	r := p.result
	if len(r.Interfaces) != 2 || r.Interfaces[0].Name != "front0" || r.Interfaces[1].Name != "rdma0" ||
		!slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool {
			return *ip.Interface == 1 && ip.Address.IP.String() == "10.60.0.2"
		}) {
		text, _ := json.Marshal(r)
		t.Errorf("the result is %s", text)
	}
	if err := n.cni.CheckNetworkList(context.Background(), n.list, p.RuntimeConf); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	n.del(p)
	if got := faces(t, p.ns); len(got) != 0 {
		t.Errorf("in the end there are %v", got)
	}

	p.IfName = "front0" // which the first plugin has
	n.list = n.config(n.ipam(), `{"type": "`+frontName+`"}`)
	_, err := n.cni.AddNetworkList(context.Background(), n.list, p.RuntimeConf)
	n.wantError("ADD", `name another by "interface"`, err)
	n.wantLeft("in the end", 0)
}

// A configuration that cannot be is refused in words, and nothing is left.
func TestCNIRefused(t *testing.T) {
	n := newNetwork(t)
	p := newPod(t, "a")
	for config, words := range map[string]string{
		`"mtu": 1400`:                                                "no ipam",
		n.ipam() + `, "mtu": 5`:                                      "mtu 5 is not between",
		n.ipam() + `, "mtu": "big"`:                                  "configuration",
		`"ipam": {"type": "none-such"}`:                              "none-such",
		n.ipam() + `, "interface": "a-name-that-is-too-long"`:        "a-name-that-is-too-long",
		n.ipam() + `, "interface": "a/b"`:                            "a/b",
		strings.Replace(n.ipam(), "10.61.0.0/16", "10.60.0.0/24", 1): "route to 10.60.0.0/24",
	} {
		_, err := n.cni.AddNetworkList(context.Background(), n.config(config), p.RuntimeConf)
		n.wantError(config, words, err)
	}
	p.NetNS = "/nowhere"
	_, err := n.cni.AddNetworkList(context.Background(), n.config(n.ipam()), p.RuntimeConf)
	n.wantError("ADD", "/nowhere", err)
	n.wantLeft("in the end", 0)
	if got := faces(t, p.ns); len(got) != 0 {
		t.Errorf("in the end there are %v", got)
	}
}

// podman's containers on such a network: perftest's own TCP connection goes from kernel to kernel
// by the daemon's switch, its data by RoCE.
func TestCNIPodman(t *testing.T) {
	if !thorough() {
		needtest.Skip(t, "podman's networks are for make containers")
	}
	n := newNetwork(t)
	conf := fmt.Sprintf("[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [%q]\n"+
		"network_config_dir = %q\n", n.dir, n.dir+"/net.d")
	list := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "rdma", "plugins": [{"type": "vrnic-cni",
		"socket": %q, %s}]}`, n.socket, n.ipam())
	if err := os.Mkdir(n.dir+"/net.d", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"containers.conf": conf, "net.d/rdma.conflist": list} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.env = []string{"CONTAINERS_CONF=" + n.dir + "/containers.conf"}
	n.network = "rdma"
	n.generate()
	n.run(n.container("rocep0", "--detach", "--name", "server", "--", "ib_write_bw", "-F", "-n",
		"200")...)
	inspect := func(what string) string {
		return strings.TrimSpace(n.podman("inspect", "--format", "{{"+what+"}}", "server"))
	}
	proctest.Eventually(t, patience, "the server listens", func() bool {
		return listens(t, inspect(".State.Pid"))
	})
	addr := inspect(`(index .NetworkSettings.Networks "rdma").IPAddress`)
	if out := n.in("rocep0", "ib_write_bw", "-F", "-n", "200", addr); !strings.Contains(out,
		"65536      200") {
		t.Errorf("ib_write_bw:\n%s", out)
	}
	n.podman("wait", "server")
	n.podman("rm", "server")
	n.wantLeft("in the end", 0)
}

// perftestListens is a line of /proc/net/tcp: at port 18515, from anywhere.
var perftestListens = regexp.MustCompile(`:4853 0+:0000 0A`)

// listens reports whether perftest listens in the network namespace of a process.
func listens(t *testing.T, pid string) bool {
	t.Helper()
	tcp4, err4 := os.ReadFile("/proc/" + pid + "/net/tcp")
	tcp6, err6 := os.ReadFile("/proc/" + pid + "/net/tcp6")
	if err := errors.Join(err4, err6); err != nil {
		t.Fatal(err)
	}
	return perftestListens.Match(tcp4) || perftestListens.Match(tcp6)
}
