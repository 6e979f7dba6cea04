package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// ipamName is how a plugin calls this program for addresses: Debian's host-local is too old to know
// GC and STATUS. An address is a file, named after its attachment.
const ipamName = "test-ipam"

// frontName is how a runtime calls it as a plugin in front of others, which says that it has made
// an interface.
const frontName = "test-front"

func frontMain() {
	nothing := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Del: nothing, Check: nothing, GC: nothing, Status: nothing,
		Add: func(args *skel.CmdArgs) error {
			var c types.NetConf
			if err := json.Unmarshal(args.StdinData, &c); err != nil {
				return err
			}
			return types.PrintResult(&types100.Result{CNIVersion: types100.ImplementedSpecVersion,
				Interfaces: []*types100.Interface{{Name: "front0", Sandbox: args.Netns}}}, c.CNIVersion)
		}}, version.All, "a plugin in front of others")
}

type ipamConfig struct {
	types.NetConf
	IPAM struct {
		Dir   string `json:"dataDir"`
		Route string `json:"route"`
		First int    `json:"first"` // the first address; 0: 2
		Wait  string `json:"wait"`  // a FIFO that ADD reads to its end before it does anything
		// Fail is the code of the error that it has when all is made; 1: it ends without a word.
		Fail uint `json:"fail"`
	} `json:"ipam"`
}

func ipamMain() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: ipamAdd, Del: ipamDel, Check: ipamCheck, GC: ipamGC,
		Status: func(args *skel.CmdArgs) error {
			c, err := parseIPAM(args)
			if err == nil && c.IPAM.Fail != 0 {
				err = types.NewError(types.ErrPluginNotAvailable, "no address is free", "")
			}
			return err
		},
	}, version.All, "addresses for tests")
}

func parseIPAM(args *skel.CmdArgs) (*ipamConfig, error) {
	c := &ipamConfig{}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, err
	}
	return c, os.MkdirAll(c.IPAM.Dir, 0o700)
}

func (c *ipamConfig) file(id, ifname string) string {
	return filepath.Join(c.IPAM.Dir, id+"-"+ifname)
}

func ipamAdd(args *skel.CmdArgs) error {
	c, err := parseIPAM(args)
	if err != nil {
		return err
	}
	if c.IPAM.Wait != "" {
		if _, err := os.ReadFile(c.IPAM.Wait); err != nil {
			return err
		}
	}
	have, err := filepath.Glob(c.IPAM.Dir + "/*")
	if err != nil {
		return err
	}
	var taken []string
	for _, file := range have {
		addr, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		taken = append(taken, string(addr))
	}
	addr := ""
	for i := max(c.IPAM.First, 2); addr == "" || slices.Contains(taken, addr); i++ {
		addr = fmt.Sprintf("10.60.0.%d", i)
	}
	file := c.file(args.ContainerID, args.IfName)
	if slices.Contains(have, file) {
		return errors.New("duplicate allocation")
	}
	if err := os.WriteFile(file, []byte(addr), 0o600); err != nil {
		return err
	}
	switch c.IPAM.Fail {
	case 0:
	case 1:
		os.Exit(1)
	default:
		return types.NewError(c.IPAM.Fail, "no address is free", "")
	}
	_, to, err := net.ParseCIDR(c.IPAM.Route)
	if err != nil {
		return err
	}
	return types.PrintResult(&types100.Result{CNIVersion: types100.ImplementedSpecVersion,
		IPs: []*types100.IPConfig{{Gateway: net.IPv4(10, 60, 0, 1),
			Address: net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(24, 32)}}},
		Routes: []*types.Route{{Dst: *to}}}, c.CNIVersion)
}

func ipamDel(args *skel.CmdArgs) error {
	c, err := parseIPAM(args)
	if err != nil {
		return err
	}
	if err := os.Remove(c.file(args.ContainerID, args.IfName)); !os.IsNotExist(err) {
		return err
	}
	return nil
}

func ipamCheck(args *skel.CmdArgs) error {
	c, err := parseIPAM(args)
	if err != nil {
		return err
	}
	_, err = os.Stat(c.file(args.ContainerID, args.IfName))
	return err
}

func ipamGC(args *skel.CmdArgs) error {
	c, err := parseIPAM(args)
	if err != nil {
		return err
	}
	var valid []string
	for _, a := range c.ValidAttachments {
		valid = append(valid, c.file(a.ContainerID, a.IfName))
	}
	have, err := filepath.Glob(c.IPAM.Dir + "/*")
	for _, file := range have {
		if !slices.Contains(valid, file) {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}
