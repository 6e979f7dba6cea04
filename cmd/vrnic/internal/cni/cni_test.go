package cni

import (
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Names of ports say which network they are of, and differ with all that an attachment is.
func TestPortName(t *testing.T) {
	seen := make(map[string]bool)
	for _, network := range []string{"n", "m", strings.Repeat("n", 200)} {
		for _, a := range [][2]string{{"c", "eth0"}, {"c", "eth1"}, {"d", "eth0"}, {"c e", "th0"}} {
			name := portName(network, a[0], a[1])
			if len(name) > 15 || seen[name] || !strings.HasPrefix(name, networkMark(network)) {
				t.Errorf("%.10s %v is %s", network, a, name)
			}
			if name != portName(network, a[0], a[1]) {
				t.Errorf("%.10s %v has another name the next time", network, a)
			}
			seen[name] = true
		}
	}
}

func TestParse(t *testing.T) {
	for text, words := range map[string]string{
		`{`:                                    "configuration",
		`{"name": 7}`:                          "configuration",
		`{"name": "n"}`:                        "no ipam",
		`{"ipam": {}}`:                         "no ipam",
		`{"ipam": {"type": "x"}, "mtu": 1279}`: "mtu 1279",
		`{"ipam": {"type": "x"}, "mtu": -1}`:   "mtu -1",
		`{"ipam": {"type": "x"}, "device": "colour=red"}`:                          "unknown option",
		`{"ipam": {"type": "x"}, "device": "container"}`:                           "container is given once",
		`{"ipam": {"type": "x"}, "mtu": 65522}`:                                    "mtu 65522",
		`{"cniVersion": "1.0.0", "ipam": {"type": "x"}, "prevResult": {"ips": 7}}`: "prevResult",
		`{"cniVersion": "1.1.0", "name": "n", "type": "vrnic-cni", "socket": "/s", "mtu": 1280,
			"ipam": {"type": "x"}, "prevResult": {"cniVersion": "1.1.0"}}`: "",
	} {
		c, err := parse([]byte(text))
		switch {
		case words == "" && (err != nil || c.Socket != "/s" || c.MTU != 1280 || c.prev == nil):
			t.Errorf("%s is %+v, %v", text, c, err)
		case words != "" && (err == nil || !strings.Contains(err.Error(), words)):
			t.Errorf("%s: %v, want %q", text, err, words)
		}
	}
}

// The interface has the name that the runtime wants, or one of its own behind a plugin that has
// made that.
func TestFace(t *testing.T) {
	prev := &types100.Result{Interfaces: []*types100.Interface{{Name: "br0"},
		{Name: "eth0", Sandbox: "/ns"}}}
	for _, tt := range []struct {
		c    config
		want string
		bad  bool
	}{
		{config{}, "eth0", false},
		{config{prev: prev}, "eth0", true},
		{config{prev: prev, Interface: "rdma0"}, "rdma0", false},
		{config{prev: prev, Interface: "br0"}, "br0", false}, // one of the host's
	} {
		args := &skel.CmdArgs{IfName: "eth0"}
		if got, err := tt.c.face(args), tt.c.checkFace(args); got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%+v: %s, %v", tt.c, got, err)
		}
	}
}

// A route without a gateway leads to that of the addresses of its family.
func TestGateway(t *testing.T) {
	ip := func(s string) *types100.IPConfig { return &types100.IPConfig{Gateway: net.ParseIP(s)} }
	route := func(dst, gw string) *types.Route {
		_, to, err := net.ParseCIDR(dst)
		if err != nil {
			t.Fatal(err)
		}
		return &types.Route{Dst: *to, GW: net.ParseIP(gw)}
	}
	got := &types100.Result{IPs: []*types100.IPConfig{ip(""), ip("fd00::1"), ip("10.0.0.1"),
		ip("10.0.0.2")}}
	for _, tt := range []struct {
		route *types.Route
		want  string
	}{
		{route("0.0.0.0/0", ""), "10.0.0.1"}, {route("::/0", ""), "fd00::1"},
		{route("10.1.0.0/16", "10.0.0.9"), "10.0.0.9"},
	} {
		if gw := gateway(tt.route, got); gw.String() != tt.want {
			t.Errorf("%s leads to %s, want %s", tt.route, gw, tt.want)
		}
	}
	if gw := gateway(route("0.0.0.0/0", ""), &types100.Result{}); gw != nil {
		t.Errorf("without a gateway it leads to %s", gw)
	}
}
