package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A kernelIf changes a network interface of the kernel. Its socket belongs to the namespace in
// which it was made, so it can be used from anywhere.
type kernelIf struct {
	name string
	nl   *netlink.Handle
}

func newKernelIf(name string) (*kernelIf, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &kernelIf{name, nl}, nil
}

func (k *kernelIf) close() { k.nl.Close() }

// link is the interface as it is now; ENODEV: there is none of that name.
func (k *kernelIf) link() (netlink.Link, error) {
	l, err := k.nl.LinkByName(k.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, unix.ENODEV
	}
	return l, err
}

func (k *kernelIf) setMTU(mtu int) error {
	l, err := k.link()
	if err == nil {
		err = k.nl.LinkSetMTU(l, mtu)
	}
	if err != nil {
		return fmt.Errorf("set MTU %d: %w", mtu, err)
	}
	return nil
}

func (k *kernelIf) setMAC(mac net.HardwareAddr) error {
	l, err := k.link()
	if err == nil {
		err = k.nl.LinkSetHardwareAddr(l, mac)
	}
	if err != nil {
		return fmt.Errorf("set address %v: %w", mac, err)
	}
	return nil
}

// lacks is the first of addrs that the interface does not have, an invalid one if there is none.
func (k *kernelIf) lacks(l netlink.Link, addrs []netip.Prefix) (netip.Prefix, error) {
	list, err := k.nl.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, p := range addrs {
		if !slices.ContainsFunc(list, func(a netlink.Addr) bool {
			return a.IP.Equal(p.Addr().AsSlice())
		}) {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

func (k *kernelIf) setUp(up bool) error {
	l, err := k.link()
	if err == nil && up {
		err = k.nl.LinkSetUp(l)
	} else if err == nil {
		err = k.nl.LinkSetDown(l)
	}
	if err != nil {
		return fmt.Errorf("set link up: %w", err)
	}
	return nil
}

// addAddr gives the interface an address. added is false if it has it already.
func (k *kernelIf) addAddr(p netip.Prefix) (added bool, err error) {
	l, err := k.link()
	if err == nil {
		err = k.nl.AddrAdd(l, kernelAddress(p))
	}
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add address %v: %w", p, err)
	}
	return true, nil
}

func (k *kernelIf) delAddr(p netip.Prefix) error {
	l, err := k.link()
	if err == nil {
		err = k.nl.AddrDel(l, kernelAddress(p))
	}
	if err != nil {
		return fmt.Errorf("remove address %v: %w", p, err)
	}
	return nil
}

// kernelAddress is p without a broadcast address. One of IPv6 is usable at once, without duplicate
// address detection: the other end is ours.
func kernelAddress(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{
		IPNet: &net.IPNet{
			IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		},
		Broadcast: net.IPv4zero,
		Scope:     unix.RT_SCOPE_UNIVERSE,
	}
	if p.Addr().Is6() {
		a.Broadcast, a.Flags = nil, unix.IFA_F_NODAD
	}
	if p.Addr().IsLinkLocalUnicast() {
		a.Scope = unix.RT_SCOPE_LINK
	}
	return a
}

// remove deletes the interface; ENODEV: it is gone.
func (k *kernelIf) remove() error {
	l, err := k.link()
	if err != nil {
		return err
	}
	return k.nl.LinkDel(l)
}
