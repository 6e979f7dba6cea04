package daemon

import (
	"fmt"
	"net/netip"
	"slices"
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
	MTU   int            // tap; 0 is 1500
	Path  string         // unix-listen, unix-connect
}

// ParsePort reads tap:NAME[,netns=PATH][,addr=CIDR]...[,mtu=N], unix-listen:PATH or
// unix-connect:PATH. A path of the latter two is the whole rest, commas included.
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
				err = fmt.Errorf("unknown option %q (known: netns, addr, mtu)", key)
			}
			return err
		})
	}
	if err != nil {
		return PortSpec{}, fmt.Errorf("port %q: %w", s, err)
	}
	return p, nil
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
	return string(b)
}
