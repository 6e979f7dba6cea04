package cni

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
)

// A config is what the network's configuration says to the plugin.
type config struct {
	types.PluginConf
	Socket string `json:"socket"` // of the daemon; "": where one is expected
	MTU    int    `json:"mtu"`    // of the interface; 0: as it is
	// Interface is its name, behind a plugin that has made the one that the runtime wants; "": that.
	Interface string `json:"interface"`
	// Device has the options of a device that is one station with the interface, in the words of
	// daemon.ParseDevice; "": there is none.
	Device string `json:"device"`

	prev *types100.Result // of the plugins in front of this one; nil: it is the first
}

// The smallest MTU that both protocols of the Internet take, and the largest that the switch does.
const (
	minMTU = 1280
	maxMTU = 65521
)

func parse(stdin []byte) (*config, error) {
	c := &config{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network's configuration", err.Error())
	}
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return nil, invalid(fmt.Errorf("mtu %d is not between %d and %d", c.MTU, minMTU, maxMTU))
	}
	if c.IPAM.Type == "" {
		return nil, invalid(errors.New("no ipam: the interface would have no address"))
	}
	if _, err := c.device("rnic", []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}); err != nil {
		return nil, invalid(err)
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, invalid(err)
	}
	if c.PrevResult != nil {
		var err error
		if c.prev, err = types100.NewResultFromResult(c.PrevResult); err != nil {
			return nil, invalid(err)
		}
	}
	return c, nil
}

// device is the one that is a station with an interface of these addresses. Its MAC is said, since
// the interface has it, too.
func (c *config) device(name string, addrs []netip.Prefix) (daemon.DeviceSpec, error) {
	s := name + ",container"
	for _, a := range addrs {
		s += ",addr=" + a.String()
	}
	if c.MTU != 0 {
		s += fmt.Sprintf(",mtu=%d", c.MTU)
	}
	if c.Device != "" {
		s += "," + c.Device
	}
	spec, err := daemon.ParseDevice(s)
	spec.MAC = spec.HardwareAddr()
	return spec, err
}

// face is the name of the interface. The runtime knows the attachment by the one that it wants.
func (c *config) face(args *skel.CmdArgs) string { return cmp.Or(c.Interface, args.IfName) }

// checkFace says whether a plugin in front has an interface of that name already.
func (c *config) checkFace(args *skel.CmdArgs) error {
	if c.prev != nil && slices.ContainsFunc(c.prev.Interfaces, func(i *types100.Interface) bool {
		return i.Name == c.face(args) && i.Sandbox != ""
	}) {
		return invalid(fmt.Errorf("a plugin in front has made %s: name another by \"interface\"",
			c.face(args)))
	}
	return nil
}

func invalid(err error) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "vrnic", err.Error())
}

// Names of the daemon's ports: networkMark begins all of a network, portName is one of them.
// Interfaces and ports have names of 15 octets at most.
func networkMark(network string) string { return "c" + digest(network)[:6] }

func portName(network, container, ifname string) string {
	return networkMark(network) + digest(container + " " + ifname)[:8]
}

// deviceName is the name of the device beside a port.
func deviceName(port string) string { return devicePrefix + port[1:] }

const devicePrefix = "rnic"

func digest(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }
