package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/relay"
	"github.com/vrnic/vrnic/internal/hostnet"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
)

// A station is what devices have their addresses of: a stack of the daemon's on its switch, or the
// kernel at one address of the host. What more it can do for a device than a vnic.Network the
// device finds out.
type station interface {
	vnic.Network
	// Addrs are the station's, each with the length of its network's prefix.
	Addrs() []netip.Prefix
	// MTU is the most octets of an IP packet.
	MTU() int
	// Reaches is the length of the prefix by which remote is reached, below 0: it is not.
	Reaches(remote netip.Addr) int
	// Route is as vnic.Config has it.
	Route() func(remote netip.Addr) (local netip.Addr, err error)
	// OnSwitch reports whether the ports of the daemon are its network. LinkUp tells that one of them
	// has a link again.
	OnSwitch() bool
	LinkUp()
	// Watch has what it sends to itself be seen at its port of the switch, until stop is called.
	Watch() (stop func())
	// Copied is as vnic.Config has OnCopied.
	Copied() func(from, to netip.AddrPort, segment []byte)
	// FindDuplicates tells, later, which of its addresses somebody else on the link has, too.
	FindDuplicates(found func(addr netip.Addr, holder frame.MAC))
	// OpenUDP opens a UDP port; what comes there is given to receive, which does not wait.
	OpenUDP(at netip.AddrPort, receive func(from netip.AddrPort, data []byte)) (relay.Port, error)
	// Stat adds the totals of TCP and SCTP.
	Stat(row *DevStat)
	// Finish ends what outlives queue pairs for a moment, while there is a network still; Close the
	// rest.
	Finish() error
	Close() error
}

// newStation makes the station of s, of stationOf.
func newStation(sw *ethswitch.Switch, s DeviceSpec) (station, error) {
	if s.Host.IsValid() {
		c := hostnet.Config{Addr: s.Host, KeepAlive: s.KeepAlive, UserTimeout: s.UserTimeout}
		if c.SCTP = uint16(max(s.SCTPUDP, 0)); s.SCTPUDP == 0 && !s.RoCE {
			c.SCTP = sctphost.UDPPort
		}
		n, err := hostnet.New(c)
		if err != nil {
			return nil, err // not n: a nil *hostnet.Network is no nil station
		}
		return hostStation{n}, nil
	}
	st, err := netstack.NewStack(sw, netstack.Config{Name: s.Name, MAC: s.MAC, MTU: s.MTU,
		Addrs: s.Addrs, KeepAlive: s.KeepAlive, UserTimeout: s.UserTimeout})
	if err != nil {
		return nil, err
	}
	return stackStation{stacknet.New(st), st}, nil
}

// A stackStation is a stack of the daemon's.
type stackStation struct {
	*stacknet.Network
	stack *netstack.Stack
}

func (s stackStation) Addrs() []netip.Prefix { return s.stack.Addrs() }
func (s stackStation) MTU() int              { return s.stack.MTU() }
func (s stackStation) OnSwitch() bool        { return true }
func (s stackStation) LinkUp()               { s.stack.LinkUp() }
func (s stackStation) Watch() (stop func())  { return s.stack.Watch() }
func (s stackStation) Copied() func(from, to netip.AddrPort, segment []byte) {
	return capture.NewCopies(s.stack.MTU(), s.stack.ShowTCP).Segment
}
func (s stackStation) FindDuplicates(found func(netip.Addr, frame.MAC)) {
	s.stack.FindDuplicates(found)
}

func (s stackStation) OpenUDP(at netip.AddrPort, receive func(netip.AddrPort, []byte)) (relay.Port,
	error) {
	p, err := s.Network.OpenUDP(at, receive)
	if err != nil {
		return nil, err // not p: a nil *stacknet.UDPPort is no nil Port
	}
	return p, nil
}

func (s stackStation) Finish() error { return s.Network.Close() }
func (s stackStation) Close() error  { return s.stack.Close() }

func (s stackStation) Reaches(remote netip.Addr) int {
	bits := -1
	for _, p := range s.stack.Addrs() {
		if p.Contains(remote.WithZone("")) {
			bits = max(bits, p.Bits())
		}
	}
	return bits
}

func (s stackStation) Route() func(netip.Addr) (netip.Addr, error) { return nil }

func (s stackStation) Stat(row *DevStat) {
	if row.roceStat != nil {
		row.BadChecksum = s.stack.Stats().UDPBadChecksums
		return
	}
	row.tcpStat, row.sctpStat = newTCPStat(s.stack.Stats()), newSCTPStat(s.SCTP())
}

// HostDevices are a device of each kind for each address of the host, named after its interface:
// those of iWARP, and then those of RoCE, where nobody else has that one's port.
func HostDevices() ([]DeviceSpec, error) {
	addrs, err := hostnet.Addresses()
	if err != nil {
		return nil, err
	}
	var specs []DeviceSpec
	for _, roce := range []bool{false, true} {
		kind := "vrnic-"
		if roce {
			kind = "roce-"
		}
		seen := make(map[string]int)
		for _, a := range addrs {
			name := hostDeviceName(kind, a.Interface)
			if seen[name]++; seen[name] > 1 {
				name = fmt.Sprintf("%s-%d", name, seen[name])
			}
			if roce && (len(specs) == rpc.MaxDevices || !hostnet.RoCEFree(a.Addr)) {
				continue
			}
			specs = append(specs, DeviceSpec{Name: name, Host: a.Addr, RoCE: roce})
		}
	}
	return specs, nil
}

// hostDeviceName is a name that a device of a kind can have, made of its interface's.
func hostDeviceName(kind, ifname string) string {
	return kind + strings.Map(func(r rune) rune {
		if checkName("x"+string(r), maxDeviceName) != nil {
			return '_'
		}
		return r
	}, ifname)
}

// A hostStation is an address of the host.
type hostStation struct{ *hostnet.Network }

func (s hostStation) OnSwitch() bool { return false }

// What is on the link the kernel knows.
func (s hostStation) LinkUp()                                    {}
func (s hostStation) Watch() (stop func())                       { return func() {} }
func (s hostStation) FindDuplicates(func(netip.Addr, frame.MAC)) {}

func (s hostStation) Copied() func(from, to netip.AddrPort, segment []byte) { return nil }

func (s hostStation) Route() func(netip.Addr) (netip.Addr, error) { return s.Source }

func (s hostStation) OpenUDP(at netip.AddrPort, receive func(netip.AddrPort, []byte)) (relay.Port,
	error) {
	p, err := s.Network.OpenUDP(at, receive)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s hostStation) Stat(row *DevStat) {
	if row.roceStat != nil {
		return
	}
	row.tcpStat = newHostTCPStat(s.TCP().Stats())
	if sctp := s.SCTP(); sctp != nil {
		row.sctpStat = newSCTPStat(sctp)
	}
}

// shares is the device before i whose addresses device i has too, -1 if there is none. Two may have
// the same addresses if one speaks iWARP and the other RoCE: they are one station of the network,
// with one stack, since UDP port 4791 is in nobody's way.
func shares(devices []DeviceSpec, i int) (other int, err error) {
	d := &devices[i]
	other = -1
	for j := range devices[:i] {
		o := &devices[j]
		addr, both := commonAddr(o.own(), d.own())
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
		case !sameAddrs(o.own(), d.own()):
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

// stationOf is what the station of device i is made of: of the device alone, or of the two that
// share it, the first of which names it. RoCE: it is of no other.
func stationOf(devices []DeviceSpec, i int) DeviceSpec {
	s := devices[i]
	for j := range devices {
		if other, _ := shares(devices, j); j != i && other == i { // checkSpecs has had the error
			d := &devices[j]
			s.MTU = max(s.MTU, d.MTU)
			if s.MAC == ([6]byte{}) {
				s.MAC = d.MAC
			}
			if s.RoCE { // the other is of iWARP, and has these
				s.KeepAlive, s.UserTimeout = d.KeepAlive, d.UserTimeout
				s.SCTPUDP, s.RoCE = d.SCTPUDP, false
			}
		}
	}
	s.MAC = s.HardwareAddr()
	return s
}
