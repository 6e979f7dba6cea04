package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A PortKind says what a port of the switch leads to.
type PortKind uint8

const (
	PortTap         PortKind = iota + 1 // the host kernel, or a network namespace of its
	PortUnixListen                      // one peer after the other on a stream socket of ours
	PortUnixConnect                     // a stream socket of another
)

var portKinds = [...]string{PortTap: "tap", PortUnixListen: "unix-listen",
	PortUnixConnect: "unix-connect"}

// PortKinds are the words that specifications begin with.
func PortKinds() []string { return slices.Clone(portKinds[PortTap:]) }

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
}

// ParsePort reads tap:NAME[,netns=PATH][,addr=CIDR]...[,mtu=N][,share[=DEVICE]][,container]
// [,netns-cookie=N], unix-listen:PATH or unix-connect:PATH. A path of the latter two is the whole
// rest, commas included.
func ParsePort(s string) (PortSpec, error) {
	kind, rest, found := strings.Cut(s, ":")
	k := slices.Index(portKinds[:], kind)
	if !found || k <= 0 {
		return PortSpec{}, fmt.Errorf("port %q: want tap:NAME, unix-listen:PATH or unix-connect:PATH", s)
	}
	p := PortSpec{Kind: PortKind(k)}
	if p.Kind != PortTap {
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

// name is what LIST port calls it.
func (p PortSpec) name() string {
	if p.Kind == PortTap {
		return p.Name
	}
	return p.String()
}

// String is the form that ParsePort reads.
func (p PortSpec) String() string {
	if p.Kind != PortTap {
		return p.Kind.String() + ":" + p.Path
	}
	b := []byte(p.Kind.String() + ":" + p.Name)
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
