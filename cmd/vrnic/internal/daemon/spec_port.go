package daemon

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/netstack/port"
)

// A PortKind says what a port of the switch leads to.
type PortKind uint8

const (
	PortTap         PortKind = iota + 1 // the host kernel, or a network namespace of its
	PortUnixListen                      // one peer after the other on a stream socket of ours
	PortUnixConnect                     // a stream socket of another
	PortVXLAN                           // a segment of RFC 7348, with other hosts
)

var portKinds = [...]string{PortTap: "tap", PortUnixListen: "unix-listen",
	PortUnixConnect: "unix-connect", PortVXLAN: "vxlan"}

// PortKinds are the words that specifications begin with.
func PortKinds() []string { return slices.Clone(portKinds[PortTap:]) }

// silent reports whether a port of the kind does not tell when there is somebody behind it.
func (k PortKind) silent() bool { return k == PortTap || k == PortVXLAN }

func (k PortKind) String() string {
	if k == 0 || int(k) >= len(portKinds) {
		return fmt.Sprintf("PortKind(%d)", uint8(k))
	}
	return portKinds[k]
}

// A PortSpec says what leads out of the daemon's switch.
type PortSpec struct {
	Kind  PortKind
	Name  string         // tap: the interface
	NetNS string         // tap: path of the namespace it is made in; "" is the daemon's own
	Addrs []netip.Prefix // tap: what the kernel's side gets
	MTU   int            // tap; 0 is 1500, or that of the device with which it is shared
	// Share: the kernel's side of a tap is one station with a device, of the same addresses and MAC.
	// ShareWith names it; "" is the only one on the switch.
	Share     bool
	ShareWith string
	// Container: the tap comes and goes with a container. It is no part of what is saved, and what is
	// read again does not take it away.
	Container bool
	// Cookie is that of the network namespace in which a tap with Share is that somebody else has
	// made: port.NetNSCookie.
	Cookie uint64
	Path   string // unix-listen, unix-connect
	// VXLAN: the segment; Name is its number in words.
	VXLAN   uint32
	Local   netip.Addr
	Remotes []netip.Addr
	UDPPort uint16 // at all ends; 0: the one that is assigned
}

// ParsePort reads tap:NAME[,netns=PATH][,addr=CIDR]...[,mtu=N][,share[=DEVICE]][,container]
// [,netns-cookie=N], unix-listen:PATH, unix-connect:PATH or
// vxlan:VNI,local=ADDR,remote=ADDR[,remote=ADDR]...[,port=N]. A path is the whole rest, commas
// included.
func ParsePort(s string) (PortSpec, error) {
	kind, rest, found := strings.Cut(s, ":")
	k := slices.Index(portKinds[:], kind)
	if !found || k <= 0 {
		return PortSpec{}, fmt.Errorf("port %q: want tap:NAME, unix-listen:PATH, unix-connect:PATH or "+
			"vxlan:VNI,local=ADDR,remote=ADDR", s)
	}
	p := PortSpec{Kind: PortKind(k)}
	switch p.Kind {
	case PortVXLAN:
		if err := p.parseVXLAN(rest); err != nil {
			return PortSpec{}, fmt.Errorf("port %q: %w", s, err)
		}
		return p, nil
	case PortUnixListen, PortUnixConnect:
		p.Path = rest
		if err := checkSocketPath(rest); err != nil {
			return PortSpec{}, fmt.Errorf("port %q: %w", s, err)
		}
		return p, nil
	}
	name, options, more := strings.Cut(rest, ",")
	p.Name = name
	err := checkName(name, maxTapName)
	if err == nil {
		err = eachOption(options, more, func(key, value string) (err error) {
			switch key {
			case "share":
				if p.Share {
					return fmt.Errorf("share is given twice")
				}
				p.Share = true
				if p.ShareWith = value; value != "" {
					err = checkName(value, maxDeviceName)
				}
			case "container":
				if p.Container || value != "" {
					return fmt.Errorf("container is given once, and has no value")
				}
				p.Container = true
			case "netns-cookie":
				if p.Cookie != 0 {
					return fmt.Errorf("netns-cookie is given twice")
				}
				if p.Cookie, err = strconv.ParseUint(value, 10, 64); err != nil || p.Cookie == 0 {
					err = fmt.Errorf("netns-cookie=%s: want the number of a network namespace", value)
				}
			case "addr":
				p.Addrs, err = addAddr(p.Addrs, value)
			case "mtu":
				p.MTU, err = parseMTU(p.MTU, value)
			case "netns":
				switch {
				case p.NetNS != "":
					err = fmt.Errorf("netns is given twice")
				case value == "" || strings.ContainsRune(value, 0):
					err = fmt.Errorf("netns wants a path, for example netns=/run/netns/blue")
				default:
					p.NetNS = value
				}
			default:
				err = fmt.Errorf("unknown option %q (known: netns, addr, mtu, share, container, "+
					"netns-cookie)", key)
			}
			return err
		}, "share", "container")
	}
	if err == nil && p.Share && len(p.Addrs) > 0 {
		err = fmt.Errorf("with share the kernel's side has the addresses of the device: leave addr=%v "+
			"out", p.Addrs[0])
	}
	if err == nil && p.Cookie != 0 && !p.Share {
		err = fmt.Errorf("netns-cookie says who sees the device that shares the tap: add share")
	}
	if err != nil {
		return PortSpec{}, fmt.Errorf("port %q: %w", s, err)
	}
	return p, nil
}

// parseVXLAN reads what stands behind vxlan:.
func (p *PortSpec) parseVXLAN(s string) error {
	name, options, more := strings.Cut(s, ",")
	vni, err := strconv.ParseUint(name, 10, 32)
	if err != nil || vni > port.MaxVNI {
		return fmt.Errorf("VNI %q is not a number from 0 to %d", name, port.MaxVNI)
	}
	p.VXLAN, p.Name = uint32(vni), strconv.FormatUint(vni, 10)
	if err := eachOption(options, more, func(key, value string) (err error) {
		switch key {
		case "local":
			p.Local, err = parseEnd(p.Local, key, value)
		case "remote":
			var end netip.Addr
			if end, err = parseEnd(netip.Addr{}, key, value); len(p.Remotes) == maxAddrs {
				err = fmt.Errorf("more than %d remote ends", maxAddrs)
			}
			p.Remotes = append(p.Remotes, end)
		case "port":
			n, nerr := strconv.ParseUint(value, 10, 16)
			if nerr != nil || n == 0 || p.UDPPort != 0 {
				return fmt.Errorf("port=%s: want one UDP port, of all ends", value)
			}
			p.UDPPort = uint16(n)
		default:
			err = fmt.Errorf("unknown option %q (known: local, remote, port)", key)
		}
		return err
	}); err != nil {
		return err
	}
	if !p.Local.IsValid() || len(p.Remotes) == 0 {
		return fmt.Errorf("a segment has two ends: add local=ADDR, an address of this host, and " +
			"remote=ADDR")
	}
	c := p.vxlan()
	return c.Check()
}

// parseEnd reads an end of a segment.
func parseEnd(old netip.Addr, key, value string) (netip.Addr, error) {
	a, err := netip.ParseAddr(value)
	switch {
	case old.IsValid():
		return old, fmt.Errorf("%s is given twice", key)
	case err != nil || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast():
		return old, fmt.Errorf("%s=%s: want the address of one host, without a prefix length", key, value)
	}
	return a, nil
}

// vxlan is the port, but for its place.
func (p PortSpec) vxlan() port.VXLANConfig {
	udp := cmp.Or(p.UDPPort, port.VXLANPort)
	c := port.VXLANConfig{VNI: p.VXLAN, Name: p.name(), Local: netip.AddrPortFrom(p.Local, udp)}
	for _, r := range p.Remotes {
		c.Remotes = append(c.Remotes, netip.AddrPortFrom(r, udp))
	}
	return c
}

// name is what LIST port calls it.
func (p PortSpec) name() string {
	switch p.Kind {
	case PortTap:
		return p.Name
	case PortVXLAN:
		return p.Kind.String() + ":" + p.Name
	}
	return p.String()
}

// String is the form that ParsePort reads.
func (p PortSpec) String() string {
	b := []byte(p.Kind.String() + ":" + p.Name + p.Path)
	switch p.Kind {
	case PortVXLAN:
		b = append(b, ",local="+p.Local.String()...)
		for _, r := range p.Remotes {
			b = append(b, ",remote="+r.String()...)
		}
		if p.UDPPort != 0 {
			b = fmt.Appendf(b, ",port=%d", p.UDPPort)
		}
		return string(b)
	case PortUnixListen, PortUnixConnect:
		return string(b)
	}
	if p.NetNS != "" {
		b = append(b, ",netns="+p.NetNS...)
	}
	b = appendAddrs(b, p.Addrs)
	if p.MTU != 0 {
		b = fmt.Appendf(b, ",mtu=%d", p.MTU)
	}
	switch {
	case p.ShareWith != "":
		b = append(b, ",share="+p.ShareWith...)
	case p.Share:
		b = append(b, ",share"...)
	}
	if p.Container {
		b = append(b, ",container"...)
	}
	if p.Cookie != 0 {
		b = fmt.Appendf(b, ",netns-cookie=%d", p.Cookie)
	}
	return string(b)
}

// sharedWith is the device, by its number, whose station p is a part of.
func (p PortSpec) sharedWith(devices []DeviceSpec) (int, error) {
	found := -1
	for i, d := range devices {
		if other, _ := shares(devices, i); d.Host.IsValid() || other >= 0 && p.ShareWith == "" {
			if d.Name == p.ShareWith {
				return -1, fmt.Errorf("port %q: %s has an address of the host, which is the kernel's "+
					"anyway: leave the port out", p, d.Name)
			}
			continue
		}
		switch {
		case p.ShareWith == d.Name:
			return i, nil
		case p.ShareWith == "" && found >= 0:
			return -1, fmt.Errorf("port %q: with whom of %s and %s? Say share=DEVICE", p,
				devices[found].Name, d.Name)
		case p.ShareWith == "":
			found = i
		}
	}
	if found < 0 {
		return -1, fmt.Errorf("port %q: there is no such device to share an address with", p)
	}
	return found, nil
}

// checkShare says what is wrong with the ports that are shared with a device.
func checkShare(devices []DeviceSpec, ports []PortSpec) error {
	with := make(map[int]string)
	for _, p := range ports {
		if !p.Share {
			continue
		}
		i, err := p.sharedWith(devices)
		if err != nil {
			return err
		}
		if other, _ := shares(devices, i); other >= 0 {
			i = other
		}
		if with[i] != "" {
			return fmt.Errorf("ports %s and %s share one address, that of device %s: one of them can",
				with[i], p.Name, devices[i].Name)
		}
		with[i] = p.Name
	}
	return nil
}
