package cni

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inside asks the kernel in the container's network namespace.
func inside(path string, ask func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer h.Close()
	return ask(h)
}

// gateway is where a route of got leads that names no gateway: that of the first address of its
// family; nil: to the interface itself.
func gateway(r *types.Route, got *types100.Result) net.IP {
	if r.GW != nil {
		return r.GW
	}
	for _, ip := range got.IPs {
		if ip.Gateway != nil && (ip.Gateway.To4() == nil) == (r.Dst.IP.To4() == nil) {
			return ip.Gateway
		}
	}
	return nil
}

// configure gives the interface called name its routes, and says what it is.
func configure(path, name string, got *types100.Result) (face *types100.Interface, err error) {
	err = inside(path, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		a := link.Attrs()
		face = &types100.Interface{Name: name, Mac: a.HardwareAddr.String(), Mtu: a.MTU, Sandbox: path}
		for _, r := range got.Routes {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: a.Index, Dst: &r.Dst, Gw: gateway(r, got),
				MTU: r.MTU, Priority: r.Priority}); err != nil {
				return fmt.Errorf("route to %s: %w", &r.Dst, err)
			}
		}
		return nil
	})
	return face, err
}

// checkInterface says what of the interface is not as ADD made it.
func checkInterface(path, name string, was *types100.Result) error {
	at := slices.IndexFunc(was.Interfaces, func(i *types100.Interface) bool {
		return i.Name == name && i.Sandbox == path
	})
	if at < 0 {
		return fmt.Errorf("the result of ADD has no interface %s", name)
	}
	return inside(path, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		a := link.Attrs()
		if a.HardwareAddr.String() != was.Interfaces[at].Mac {
			return fmt.Errorf("interface %s has the address %s, not %s", name, a.HardwareAddr,
				was.Interfaces[at].Mac)
		}
		if a.Flags&net.FlagUp == 0 {
			return fmt.Errorf("interface %s is down", name)
		}
		have, err := h.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		var errs []error
		for _, ip := range was.IPs {
			if ip.Interface != nil && *ip.Interface == at &&
				!slices.ContainsFunc(have, func(h netlink.Addr) bool {
					return h.IPNet.String() == ip.Address.String()
				}) {
				errs = append(errs, fmt.Errorf("interface %s has lost %s", name, &ip.Address))
			}
		}
		return errors.Join(append(errs, checkRoutes(h, was.Routes)...)...)
	})
}

// checkRoutes says which routes of a container have gone. A plugin behind may have moved one to
// another interface or gateway.
func checkRoutes(h *netlink.Handle, want []*types.Route) (errs []error) {
	have, err := h.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return []error{err}
	}
	for _, r := range want {
		if !slices.ContainsFunc(have, func(h netlink.Route) bool {
			return h.Dst != nil && h.Dst.String() == r.Dst.String()
		}) {
			errs = append(errs, fmt.Errorf("the route to %s has gone", &r.Dst))
		}
	}
	return errs
}
