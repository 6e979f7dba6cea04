package containers

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// Two hosts, each with a daemon and a network of containers, have one Ethernet by VXLAN: a
// container of one reaches that of the other by its kernel and by RDMA, which both go over the wire
// between the hosts.
func TestTwoHosts(t *testing.T) {
	need(t)
	wires := [2]string{"192.0.2.1", "192.0.2.2"}
	hostA, hostB := proctest.NewNS(t), proctest.NewNS(t)
	if err := hostA.AddVeth("wire", hostB, "wire"); err != nil {
		t.Fatal(err)
	}
	var nets [2]*network
	var pods [2]*pod
	for i, host := range []*struct{ local, remote, device string }{
		{wires[0], wires[1], "rocep0,addr=10.60.0.100/24,transport=roce,mtu=1450"},
		{wires[1], wires[0], "rocep1,addr=10.60.0.101/24,transport=roce,mtu=1450"},
	} {
		ns := hostA
		if i == 1 {
			ns = hostB
		}
		if err := ns.AddAddr("wire", netip.MustParsePrefix(host.local+"/24")); err != nil {
			t.Fatal(err)
		}
		n := newNetworkAt(t, ns, fmt.Sprintf("device: [%q]\nport: [%q]\n", host.device,
			"vxlan:7,local="+host.local+",remote="+host.remote))
		n.list = n.config(strings.Replace(n.ipam(), `"ipam": {`, fmt.Sprintf(
			`"device": "transport=roce,mtu=1450", "ipam": {"first": %d, `, 10+10*i), 1))
		nets[i], pods[i] = n, newPod(t, fmt.Sprint("pod", i))
		n.add(pods[i])
		if err := n.cni.CheckNetworkList(context.Background(), n.list, pods[i].RuntimeConf); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}
	a, b := pods[0], pods[1]
	nets[0].reaches(a, b)
	nets[1].reaches(b, a)

	pingpong := func(i int, more ...string) *proctest.Process {
		n := nets[i]
		argv := append([]string{"env", "VRNIC_SOCKET=" + filepath.Join(n.guests(), "net", "vrnic.sock"),
			program(), "exec", "ibv_rc_pingpong", "-g", "1", "-c", "-n", "300"}, more...)
		return proctest.Start(t, proctest.Config{NS: pods[i].ns, Patience: patience}, argv...)
	}
	server := pingpong(0)
	proctest.Eventually(t, patience, "the server listens", func() bool {
		return listens(t, strconv.Itoa(server.PID()))
	})
	client := pingpong(1, a.result.IPs[0].Address.IP.String())
	for _, p := range []*proctest.Process{server, client} {
		if err := p.Wait(patience); err != nil || !strings.Contains(p.Output(), "300 iters in") {
			t.Errorf("%s: %v\n%s", p, err, p.Output())
		}
	}
	for i, n := range nets {
		n.del(pods[i])
		n.wantLeft("in the end", 0)
		n.wantDevices("in the end", 0)
	}
}
