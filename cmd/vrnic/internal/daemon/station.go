package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// shares is the device before i whose addresses device i has too, -1 if there is none. Two may have
// the same addresses if one speaks iWARP and the other RoCE: they are one station of the network,
// with one stack, since UDP port 4791 is in nobody's way.
func shares(devices []DeviceSpec, i int) (other int, err error) {
	d := &devices[i]
	other = -1
	for j := range devices[:i] {
		o := &devices[j]
		addr, both := commonAddr(o.Reach(), d.Reach())
		if !both {
			continue
		}
		switch {
		case o.RoCE == d.RoCE && d.RoCE:
			return -1, fmt.Errorf("address %v is given to device %s and to device %s, which both speak "+
				"RoCE; give each its own", addr, o.Name, d.Name)
		case o.RoCE == d.RoCE:
			return -1, fmt.Errorf("address %v is given to device %s and to device %s; give each its own "+
				"(only one with transport=roce may have those of another)", addr, o.Name, d.Name)
		case !sameAddrs(o.Addrs, d.Addrs):
			return -1, fmt.Errorf("devices %s and %s share address %v, but not all addresses; to be one "+
				"station of the network they need the same ones", o.Name, d.Name, addr)
		case o.MTU != d.MTU && o.MTU != 0 && d.MTU != 0:
			return -1,
				fmt.Errorf("devices %s and %s share their addresses and have an MTU of %d and of %d; "+
					"leave mtu= out at one of them", o.Name, d.Name, o.MTU, d.MTU)
		case o.MAC != d.MAC && o.MAC != [6]byte{} && d.MAC != [6]byte{}:
			return -1, fmt.Errorf("devices %s and %s share their addresses and have MACs %v and %v; leave "+
				"mac= out at one of them", o.Name, d.Name, net.HardwareAddr(o.MAC[:]),
				net.HardwareAddr(d.MAC[:]))
		}
		other = j
	}
	return other, nil
}

func commonAddr(a, b []netip.Prefix) (netip.Addr, bool) {
	for _, p := range a {
		if slices.ContainsFunc(b, func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// sameAddrs reports whether a and b hold the same, in whatever order.
func sameAddrs(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool {
		return !slices.Contains(b, p)
	})
}

// stationOf is what the stack of device i is made of: of the device alone, or of the two that share
// it, the first of which names it.
func stationOf(devices []DeviceSpec, i int) DeviceSpec {
	s := devices[i]
	for j := range devices {
		if other, _ := shares(devices, j); j != i && other == i { // checkSpecs has had the error
			d := &devices[j]
			s.MTU = max(s.MTU, d.MTU)
			if s.MAC == ([6]byte{}) {
				s.MAC = d.MAC
			}
			if s.RoCE { // these are of iWARP
				s.KeepAlive, s.UserTimeout = d.KeepAlive, d.UserTimeout
				s.SCTPOverUDP = d.SCTPOverUDP
			}
		}
	}
	s.MAC = s.HardwareAddr()
	return s
}
