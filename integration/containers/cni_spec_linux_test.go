package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A reply is what a plugin prints: a result of any version, or an error.
type reply struct {
	CNIVersion        string
	SupportedVersions []string
	Interfaces        []*types100.Interface
	IPs               []struct {
		Version, Address string
		Interface        *int
	}
	Routes []*types.Route
	IP4    *struct{ IP string } // of versions before 0.3.0

	Code    uint
	Msg     string
	Details string
}

// ask calls the plugin, which says nothing beside its reply.
func (n *network) ask(stdin string, env ...string) (r reply, text string) {
	n.t.Helper()
	c := n.call(stdin, nil, env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if out.Len() > 0 {
		if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
			n.t.Fatalf("%v prints %q: %v", env, &out, jerr)
		}
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	if (err == nil) != (r.Code == 0) || errs.Len() > 0 {
		n.t.Errorf("%v: %v, it prints %q and %q", env, err, &out, &errs)
	}
	return r, out.String()
}

// inVersion is a configuration in a version of the specification.
func (n *network) inVersion(v, more string) string {
	return strings.Replace(n.text(more), "1.1.0", v, 1)
}

// In each version of the specification a result has the form of that version, is taken as
// prevResult by what that version has, and does what it does in the others.
func TestCNIVersions(t *testing.T) {
	n := newNetwork(t)
	ipam := n.ipam()
	p := newPod(t, "a")
	said, _ := n.ask(`{"cniVersion": "0.3.1"}`, "CNI_COMMAND=VERSION")
	all := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	if !slices.Equal(said.SupportedVersions, all) || said.CNIVersion != "1.1.0" {
		t.Errorf("VERSION says %+v", said)
	}
	for _, v := range all {
		r, text := n.ask(n.inVersion(v, ipam), p.env("ADD")...)
		faces := len(r.Interfaces) == 1 && r.Interfaces[0].Name == "eth0" &&
			r.Interfaces[0].Sandbox == p.NetNS && r.Interfaces[0].Mac != ""
		ips := len(r.IPs) == 1 && r.IPs[0].Address == "10.60.0.2/24" && r.IPs[0].Interface != nil &&
			*r.IPs[0].Interface == 0 && len(r.Routes) == 1
		well, family := faces && ips, "" // the family of an address was said until 0.4.0
		switch {
		case v < "0.3.0":
			well = r.IP4 != nil && r.IP4.IP == "10.60.0.2/24" && r.Interfaces == nil && r.IPs == nil
		case v < "1.0.0":
			family = "4"
		}
		if well && r.IPs != nil {
			well = r.IPs[0].Version == family
		}
		if r.CNIVersion != v || !well {
			t.Errorf("ADD in %s is %s", v, text)
		}
		prev := fmt.Sprintf(`%s, "prevResult": %s`, ipam, text)
		for _, command := range []struct{ name, since, config string }{
			{"CHECK", "0.4.0", prev},
			{"STATUS", "1.1.0", ipam},
			{"GC", "1.1.0", ipam + `, "cni.dev/valid-attachments":
				[{"containerID": "a", "ifname": "eth0"}]`},
			{"DEL", "0.1.0", prev}, // the result is told from 0.4.0 on, and does no harm before
			{"DEL", "0.1.0", ipam},
		} {
			want := types.ErrIncompatibleCNIVersion
			if v >= command.since {
				want = 0
			}
			r, text := n.ask(n.inVersion(v, command.config), p.env(command.name)...)
			if r.Code != want || want == 0 && text != "" {
				t.Errorf("%s in %s prints %s; want code %d", command.name, v, text, want)
			}
		}
		n.wantLeft("after "+v, 0)
	}
	for _, v := range []string{"2.0.0", "1.2.0"} {
		r, text := n.ask(n.inVersion(v, ipam), p.env("ADD")...)
		if r.Code != types.ErrIncompatibleCNIVersion || !strings.Contains(r.Details, `"1.1.0"`) {
			t.Errorf("ADD in %s prints %s", v, text)
		}
	}
}

// Errors have the codes of the specification, and say what is the matter. An ADD that fails has
// called DEL of the plugin for addresses, and another one is well.
func TestCNIErrors(t *testing.T) {
	n := newNetwork(t)
	ipam := n.ipam()
	p := newPod(t, "a")
	good := n.text(ipam)
	late := n.text(strings.Replace(ipam, `"ipam": {`, `"ipam": {"fail": 11, `, 1))
	blind := n.text(strings.Replace(ipam, `"ipam": {`, `"ipam": {"fail": 1, `, 1))
	nowhere := strings.Replace(good, n.socket, n.socket+".not", 1)
	for _, tt := range []struct {
		command, config, env string
		code                 uint
		words                string
	}{
		{"ADD", "{", "", types.ErrDecodingFailure, "unexpected end"},
		{"ADD", good, "CNI_CONTAINERID=", types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		{"ADD", good, "CNI_NETNS=", types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		{"ADD", good, "CNI_IFNAME=", types.ErrInvalidEnvironmentVariables, "CNI_IFNAME"},
		{"SING", good, "", types.ErrInvalidEnvironmentVariables, "SING"},
		{"ADD", good, "CNI_IFNAME=a/b", types.ErrInvalidEnvironmentVariables, "interface name"},
		{"ADD", n.text(`"mtu": 1400`), "", types.ErrInvalidNetworkConfig, "no ipam"},
		{"ADD", n.text(ipam + `, "mtu": "big"`), "", types.ErrDecodingFailure, "mtu"},
		{"ADD", n.text(ipam + `, "name": ""`), "", types.ErrInvalidNetworkConfig, "name"},
		{"ADD", late, "", types.ErrTryAgainLater, "ipam test-ipam: no address is free"},
		{"ADD", blind, "", types.ErrInternal, "ipam test-ipam: "},
		{"ADD", n.text(`"ipam": {"type": "none-such"}`), "", types.ErrInternal, "none-such"},
		{"ADD", good, "CNI_NETNS=/nowhere", types.ErrInternal, "/nowhere"},
		{"ADD", nowhere, "", types.ErrTryAgainLater, "no vrnic daemon"},
		{"CHECK", nowhere, "", types.ErrInvalidNetworkConfig, "prevResult"},
		{"STATUS", nowhere, "", types.ErrLimitedConnectivity, "no vrnic daemon"},
		{"STATUS", late, "", types.ErrPluginNotAvailable, "no address is free"},
	} {
		r, text := n.ask(tt.config, append(p.env(tt.command), tt.env)...)
		if r.Code != tt.code || !strings.Contains(r.Msg+r.Details, tt.words) {
			t.Errorf("%s %s of %s prints %s; want code %d, %q", tt.command, tt.env, tt.config, text,
				tt.code, tt.words)
		}
		n.wantLeft(fmt.Sprintf("after %s %s of %s", tt.command, tt.env, tt.config), 0)
	}
	if r, text := n.ask(good, p.env("ADD")...); r.Code != 0 {
		t.Errorf("ADD after all of them prints %s", text)
	}
	if r, text := n.ask(good, append(p.env("DEL"), "CNI_NETNS=")...); r.Code != 0 || text != "" {
		t.Errorf("DEL without a namespace prints %s", text)
	}
	n.wantLeft("in the end", 0)
}

// A device more than the daemon has room for: STATUS says it before ADD does.
func TestCNIFull(t *testing.T) {
	var spare []string
	for i := range 62 {
		spare = append(spare, fmt.Sprintf("spare%d,addr=10.62.0.%d/24", i, i+1))
	}
	n := newNetwork(t, spare...)
	n.list = n.config(n.ipam() + `, "device": "transport=roce"`)
	ctx := context.Background()
	if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
		t.Errorf("STATUS with room for one: %v", err)
	}
	a, b := newPod(t, "a"), newPod(t, "b")
	n.add(a)
	err := n.cni.GetStatusNetworkList(ctx, n.list)
	n.wantError("STATUS", "room for no other one", err)
	if of := (*types.Error)(nil); !errors.As(err, &of) || of.Code != types.ErrPluginNotAvailable {
		t.Errorf("STATUS: %#v", err)
	}
	_, err = n.cni.AddNetworkList(ctx, n.list, b.RuntimeConf)
	n.wantError("ADD", "a daemon has at most 64", err)
	n.wantLeft("after one too many", 1)
	n.del(a)
	if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
		t.Errorf("STATUS with room again: %v", err)
	}
}

// CHECK misses what has gone: an address, a route, also one to everywhere.
func TestCNICheck(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	p := newPod(t, "a")
	for _, route := range []string{"10.61.0.0/16", "0.0.0.0/0"} {
		n.list = n.config(strings.Replace(n.ipam(), "10.61.0.0/16", route, 1))
		for what, words := range map[string]string{
			"ip addr del 10.60.0.2/24 dev eth0": "eth0 has lost 10.60.0.2/24",
			"ip route del " + route:             "the route to " + route + " has gone",
		} {
			n.add(p)
			if err := n.cni.CheckNetworkList(ctx, n.list, p.RuntimeConf); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			args := strings.Fields(what)
			cmd := exec.Command(args[0], args[1:]...)
			if err := p.ns.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			n.wantError("CHECK after "+what, words, n.cni.CheckNetworkList(ctx, n.list, p.RuntimeConf))
			n.del(p)
		}
	}
}

// Between Debian's own plugins, with its host-local: the bridge in front makes eth0, vrnic-cni
// rdma0, and the one behind takes the result of both. (CHECK of this bridge wants all addresses on
// its own interface.)
func TestCNIBetween(t *testing.T) {
	const theirs = "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(theirs, "bridge")); err != nil {
		needtest.Lacking(t, "containernetworking-plugins", err)
	}
	n := newNetwork(t)
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.dir, theirs}, n.dir+"/cache", nil)
	local := func(name, subnet string) string {
		return fmt.Sprintf(`"ipam": {"type": "host-local", "subnet": %q, "dataDir": %q,
			"routes": [{"dst": %q}]}`, subnet, filepath.Join(n.dir, name),
			strings.Replace(subnet, "10.", "10.1", 1))
	}
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "rdma", "plugins": [
		{"type": "bridge", "bridge": "cni-front", %s},
		{"type": "vrnic-cni", "socket": %q, "interface": "rdma0", "device": "transport=roce", %s},
		{"type": "tuning", "sysctl": {"net.ipv4.ip_default_ttl": "33"}}]}`,
		local("front", "10.70.0.0/24"), n.socket, local("ipam", "10.60.0.0/24"))
	var err error
	if n.list, err = libcni.ConfListFromBytes([]byte(text)); err != nil {
		t.Fatal(err)
	}
	p, q := newPod(t, "a"), newPod(t, "b")
	n.add(p)
	n.add(q)
	var names []string
	for _, i := range p.result.Interfaces {
		if i.Sandbox != "" {
			names = append(names, i.Name)
		}
	}
	if !slices.Equal(names, []string{"eth0", "rdma0"}) || len(p.result.IPs) != 2 ||
		len(p.result.Routes) != 2 {
		text, _ := json.Marshal(p.result)
		t.Errorf("the result is %s", text)
	}
	for _, pod := range []*pod{p, q} {
		prev, err := json.Marshal(pod.result)
		if err != nil {
			t.Fatal(err)
		}
		if r, text := n.ask(n.inVersion("1.0.0", fmt.Sprintf(`"interface": "rdma0", "prevResult": %s, %s`,
			prev, local("ipam", "10.60.0.0/24"))), append(pod.env("CHECK"),
			"CNI_PATH="+theirs)...); r.Code != 0 {
			t.Errorf("CHECK %s: %s", pod.ContainerID, text)
		}
		pod.result.IPs = pod.result.IPs[1:] // the way of rdma0
	}
	n.reaches(p, q)
	for _, pod := range []*pod{p, q, p} {
		n.del(pod)
		if got := faces(t, pod.ns); len(got) != 0 {
			t.Errorf("after DEL there are %v", got)
		}
	}
	n.wantDevices("in the end", 0)
	if left, _ := filepath.Glob(n.dir + "/ipam/rdma/10.*"); len(left) != 0 {
		t.Errorf("in the end host-local has %v", left)
	}
}
