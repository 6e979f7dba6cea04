package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/rpc"
)

// Main is the plugin, as a program: it reads the environment and standard input, and ends.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: coded(add), Del: coded(del), Check: coded(check),
		GC: coded(gc), Status: coded(status)}, version.All,
		"vrnic-cni: an interface on the switch of a vrnic daemon")
}

// coded has each error say all that it is made of, under the specification's code of the first part
// that has one.
func coded(call func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		err := call(args)
		if of := (*types.Error)(nil); errors.As(err, &of) {
			return types.NewError(cmp.Or(of.Code, types.ErrInternal), err.Error(), "")
		}
		return err
	}
}

// dial connects to the daemon. Without one nothing can be done now, and something perhaps later.
func (c *config) dial() (*shm.Client, error) {
	client, err := shm.Dial(c.Socket)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "vrnic", err.Error())
	}
	return client, nil
}

func add(args *skel.CmdArgs) (failed error) {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := c.checkFace(args); err != nil {
		return err
	}
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	name := portName(c.Name, args.ContainerID, args.IfName)
	have, err := ports(client)
	if err != nil {
		return err
	}
	if slices.Contains(have, name) { // whose addresses are not to be given back
		return fmt.Errorf("%s has %s of this network already: DEL has to come first", args.ContainerID,
			args.IfName)
	}
	defer func() {
		if failed != nil {
			failed = errors.Join(failed, c.release(args))
		}
	}()
	from, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return fmt.Errorf("ipam %s: %w", c.IPAM.Type, err)
	}
	got, err := types100.NewResultFromResult(from)
	if err != nil {
		return err
	}
	addrs, err := prefixes(got.IPs)
	if err != nil {
		return err
	}
	tap := port.TAPConfig{Name: c.face(args), NetNS: args.Netns, Addrs: addrs, MTU: c.MTU}
	spec := "tap:" + name + ",container"
	if c.Device != "" {
		more, undo, err := c.addDevice(client, deviceName(name), &tap)
		if err != nil {
			return err
		}
		defer func() {
			if failed != nil {
				failed = errors.Join(failed, undo())
			}
		}()
		spec += more
	}
	fd, kind, end, err := port.LendTAP(tap)
	if err != nil {
		return err
	}
	face, err := configure(args.Netns, c.face(args), got)
	if err == nil {
		err = client.Change(context.Background(), shm.Change{Verb: shm.Add, Key: "port", Value: spec,
			TAP: fd, Offloads: kind.Offloads, UDP: kind.UDP})
	}
	if err := errors.Join(inWords(err), end(err != nil)); err != nil {
		return err
	}
	err = types.PrintResult(c.result(got, face), c.CNIVersion)
	if err != nil { // nobody knows of it: the runtime has not got it
		err = errors.Join(err, inWords(client.Change(context.Background(), shm.Change{Verb: shm.Del,
			Key: "port", Value: name, Force: true})))
	}
	return err
}

// addDevice makes the device that is one station with a TAP, which gets its MAC and MTU. more is
// what the port is told of it.
func (c *config) addDevice(client *shm.Client, name string, tap *port.TAPConfig) (more string,
	undo func() error, err error) {
	spec, err := c.device(name, tap.Addrs)
	if err != nil {
		return "", nil, err
	}
	cookie, err := port.NetNSCookie(tap.NetNS)
	if err != nil {
		return "", nil, err
	}
	if err := client.Change(context.Background(), shm.Change{Verb: shm.Add, Key: "device",
		Value: spec.String()}); err != nil {
		return "", nil, inWords(err)
	}
	tap.MAC, tap.MTU = spec.MAC, spec.MTU
	return fmt.Sprintf(",share=%s,netns-cookie=%d", name, cookie), func() error {
		return inWords(client.Change(context.Background(), shm.Change{Verb: shm.Del, Key: "device",
			Value: name, Force: true}))
	}, nil
}

// prefixes are the addresses of the interface.
func prefixes(ips []*types100.IPConfig) (addrs []netip.Prefix, err error) {
	for _, ip := range ips {
		p, err := netip.ParsePrefix(ip.Address.String())
		if err != nil {
			return nil, fmt.Errorf("an address of ipam: %w", err)
		}
		addrs = append(addrs, p)
	}
	if len(addrs) == 0 {
		return nil, errors.New("ipam has given no address")
	}
	return addrs, nil
}

// result is what plugins in front have made, and the interface of this one behind it.
func (c *config) result(got *types100.Result, face *types100.Interface) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: got.DNS}
	if c.prev != nil {
		r = c.prev
	}
	at := len(r.Interfaces)
	r.Interfaces = append(r.Interfaces, face)
	for _, ip := range got.IPs {
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: &at, Address: ip.Address,
			Gateway: ip.Gateway})
	}
	r.Routes = append(r.Routes, got.Routes...)
	return r
}

// release gives the addresses back.
func (c *config) release(args *skel.CmdArgs) error {
	return invoke.DelegateDel(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

// del is done whether there is something or not, with a daemon or without: what is not there is
// gone. The TAP goes with the port, and with the daemon.
func del(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	ours := portName(c.Name, args.ContainerID, args.IfName)
	err = c.remove(func(name string) bool { return name == ours })
	return errors.Join(err, c.release(args))
}

// remove takes ports from the daemon, if there is one: those of which gone says so, and the devices
// beside them.
func (c *config) remove(gone func(name string) bool) error {
	client, err := shm.Dial(c.Socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	names, err := ports(client)
	errs := []error{err}
	for _, name := range names {
		if gone(name) {
			errs = append(errs, inWords(client.Change(context.Background(), shm.Change{Verb: shm.Del,
				Key: "port", Value: name, Force: true})))
		}
	}
	for _, name := range client.Devices() {
		if of, ours := strings.CutPrefix(name, devicePrefix); ours && gone("c"+of) {
			errs = append(errs, inWords(client.Change(context.Background(), shm.Change{Verb: shm.Del,
				Key: "device", Value: name, Force: true})))
		}
	}
	return errors.Join(errs...)
}

// ports are the names of the daemon's.
func ports(client *shm.Client) (names []string, err error) {
	rows, err := client.List("port")
	for _, row := range rows {
		var p struct{ Port string }
		if err := json.Unmarshal(row, &p); err != nil {
			return nil, err
		}
		names = append(names, p.Port)
	}
	return names, err
}

// inWords is the daemon's answer as it is.
func inWords(err error) error {
	if refused := (*shm.CallError)(nil); errors.As(err, &refused) && refused.Why != "" {
		return errors.New(refused.Why)
	}
	return err
}

func check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if c.prev == nil {
		return invalid(errors.New("CHECK wants the result of ADD (prevResult)"))
	}
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	names, err := ports(client)
	if err != nil {
		return err
	}
	name := portName(c.Name, args.ContainerID, args.IfName)
	if !slices.Contains(names, name) {
		return fmt.Errorf("the daemon has no port %s: it has started anew, or the port was deleted", name)
	}
	if c.Device != "" && !slices.Contains(client.Devices(), deviceName(name)) {
		return fmt.Errorf("the daemon has no device %s any more", deviceName(name))
	}
	if err := checkInterface(args.Netns, c.face(args), c.prev); err != nil {
		return err
	}
	return invoke.DelegateCheck(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

// gc removes what is left of containers that are none any more.
func gc(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	valid := make(map[string]bool)
	for _, a := range c.ValidAttachments {
		valid[portName(c.Name, a.ContainerID, a.IfName)] = true
	}
	err = c.remove(func(name string) bool {
		return strings.HasPrefix(name, networkMark(c.Name)) && !valid[name]
	})
	return errors.Join(err, invoke.DelegateGC(context.Background(), c.IPAM.Type, args.StdinData, nil))
}

// status says whether ADD could be done now. Interfaces that there are have lost the switch with
// the daemon.
func status(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	client, err := shm.Dial(c.Socket)
	if err != nil {
		return types.NewError(types.ErrLimitedConnectivity, "vrnic", err.Error())
	}
	defer client.Close()
	settings, err := client.Settings()
	if err == nil && len(settings) == 0 {
		err = errors.New("this user may not change the daemon: only root and the daemon's own user may")
	}
	if n := len(client.Devices()); err == nil && c.Device != "" && n >= rpc.MaxDevices {
		err = fmt.Errorf("the daemon has %d devices, and room for no other one", n)
	}
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "vrnic", err.Error())
	}
	return invoke.DelegateStatus(context.Background(), c.IPAM.Type, args.StdinData, nil)
}
