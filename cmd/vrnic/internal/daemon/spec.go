package daemon

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/profile"
	"github.com/vrnic/vrnic/netstack"
)

// Bounds of what a specification may say.
const (
	maxDeviceName = 31 // octets; what a device name has room for in the control messages
	maxTapName    = 15 // octets; IFNAMSIZ without its zero
	maxSocketPath = 107
	maxAddrs      = 16   // per device or port
	minMTU        = 1280 // RFC 8200, section 5
	maxMTU        = 65535
)

// A DeviceSpec says what a userspace network namespace with a virtual RNIC on it is made of.
type DeviceSpec struct {
	Name  string
	Addrs []netip.Prefix // host addresses with the length of their network's prefix
	MTU   int            // octets of an IP packet; 0 is 1500
	MAC   [6]byte        // zero: derived from name and addresses, see HardwareAddr
	// Host is an address of the host, which the device has in place of Addrs: it is not on the switch,
	// and uses the kernel's sockets. SCTPUDP is the UDP port that carries its SCTP (RFC 6951); 0:
	// sctphost.UDPPort, below 0: it has no SCTP.
	Host    netip.Addr
	SCTPUDP int
	// RoCE: the device speaks RoCE v2, over UDP, and not iWARP. It may have the addresses of a device
	// of iWARP, all of them, as cards have that can do both: the two are one station then.
	RoCE bool
	// DCQCN has a device of RoCE give way where its packets come marked: vnic.Config.DCQCN.
	DCQCN bool
	// ForceWire has QPs of this device reach each other through TCP, SCTP or UDP, as those of two
	// devices do, and of RoCE those of other devices, too.
	ForceWire bool
	// KeepAlive is after how much silence a peer of which nothing is awaited is asked for a sign of
	// life, UserTimeout after how much of it a connection is lost. 0: netstack's defaults; below 0:
	// never.
	KeepAlive, UserTimeout time.Duration
	// Adversary is the seed of a device that places octets in any order: package adversary. 0: it
	// does not.
	Adversary uint64
	// Profile is the card that it shows itself as; nil: as what it is.
	Profile *profile.Profile
	// Container: the device comes and goes with a container. It is no part of what is saved, and what
	// is read again does not take it away.
	Container bool
}

// own are the device's addresses.
func (d DeviceSpec) own() []netip.Prefix {
	if !d.Host.IsValid() {
		return d.Addrs
	}
	return []netip.Prefix{netip.PrefixFrom(d.Host, d.Host.BitLen())}
}

// DefaultDevice is the device of a daemon that was asked for none.
func DefaultDevice() DeviceSpec {
	return DeviceSpec{Name: "vrnic0", Addrs: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.2/24"), netip.MustParsePrefix("fd77::2/64"),
	}}
}

// ParseDevice reads
// NAME,addr=CIDR[,addr=CIDR]...[,transport=iwarp|roce][,dcqcn=on|off][,mtu=N][,mac=MAC]
// [,loopback=copy|wire][,keepalive=TIME|off][,user-timeout=TIME|off][,adversary=SEED]
// [,profile=CARD][,container],
// or with an address of the host NAME,host=ADDR[,sctp-udp=PORT|off] and the other options, but for
// mtu. An error names the part that is wrong; String prints a specification back.
func ParseDevice(s string) (DeviceSpec, error) {
	name, rest, _ := strings.Cut(s, ",")
	d := DeviceSpec{Name: name}
	loopback, transport, dcqcn, card := "", "", "", ""
	if err := checkName(name, maxDeviceName); err != nil {
		return DeviceSpec{}, fmt.Errorf("device %q: %w", s, err)
	}
	err := eachOption(rest, strings.Contains(s, ","), func(key, value string) (err error) {
		switch key {
		case "addr":
			d.Addrs, err = addAddr(d.Addrs, value)
		case "mtu":
			d.MTU, err = parseMTU(d.MTU, value)
		case "mac":
			d.MAC, err = parseMAC(d.MAC, value)
		case "sctp-udp":
			d.SCTPUDP, err = parseSCTPUDP(d.SCTPUDP, value)
		case "host":
			d.Host, err = parseHost(d.Host, value)
		case "transport":
			transport, err = parseChoice(key, transport, value, "iwarp", "(RDMA over TCP or SCTP)",
				"roce", "(RoCE v2, over UDP)")
			d.RoCE = transport == "roce"
		case "dcqcn":
			dcqcn, err = parseChoice(key, dcqcn, value, "on", "(queue pairs slow down where packets "+
				"come marked)", "off", "")
			d.DCQCN = dcqcn == "on"
		case "loopback":
			loopback, err = parseChoice(key, loopback, value, "copy", "(from one registration to the "+
				"other)", "wire", "(through TCP, or UDP of RoCE)")
			d.ForceWire = loopback == "wire"
		case "container":
			if d.Container || value != "" {
				return fmt.Errorf("container is given once, and has no value")
			}
			d.Container = true
		case "keepalive":
			d.KeepAlive, err = parseTime(key, d.KeepAlive, value)
		case "user-timeout":
			d.UserTimeout, err = parseTime(key, d.UserTimeout, value)
		case "adversary":
			d.Adversary, err = parseSeed(d.Adversary, value)
		case "profile":
			if card != "" || value == "" {
				return fmt.Errorf("profile is given once, with a card: %s",
					strings.Join(profile.Names(), ", "))
			}
			card = value
		default:
			err = fmt.Errorf("unknown option %q (known: addr, host, transport, dcqcn, mtu, mac, "+
				"sctp-udp, loopback, keepalive, user-timeout, adversary, profile, container)", key)
		}
		return err
	}, "container")
	if err == nil && len(d.own()) == 0 {
		err = fmt.Errorf("no address; add one of its own with ,addr=CIDR, for example " +
			",addr=10.77.0.2/24, or one that this host has with ,host=ADDR")
	}
	if err == nil {
		err = d.checkHost()
	}
	if err == nil && d.RoCE {
		err = d.checkRoCE()
	}
	if err == nil && dcqcn != "" && !d.RoCE {
		err = fmt.Errorf("dcqcn is a way of RoCE to heed congestion, TCP and SCTP have their own: " +
			"leave it out, or add ,transport=roce")
	}
	if err == nil && card != "" {
		d.Profile, err = profile.Find(card, d.RoCE)
	}
	if lost := orDefault(d.UserTimeout, netstack.DefaultUserTimeout); err == nil && lost > 0 &&
		d.KeepAlive >= lost {
		err = fmt.Errorf(
			"keepalive=%v has to be less than user-timeout=%v, so that a peer that is asked "+
				"can answer", d.KeepAlive, lost)
	}
	if err != nil {
		return DeviceSpec{}, fmt.Errorf("device %q: %w", s, err)
	}
	return d, nil
}

// parseChoice reads one of two words; each has what it means behind it, for who gives another.
func parseChoice(key, was, value, one, means, other, otherMeans string) (string, error) {
	switch {
	case was != "":
		return "", fmt.Errorf("%s is given twice", key)
	case value != one && value != other:
		return "", fmt.Errorf("%s=%s: want %s", key, value,
			strings.TrimSpace(one+" "+means+" or "+other+" "+otherMeans))
	}
	return value, nil
}

// transport is what the device speaks, as ParseDevice reads it.
func (d DeviceSpec) transport() string {
	if d.RoCE {
		return "roce"
	}
	return "iwarp"
}

// checkRoCE says what a device of RoCE cannot have.
func (d DeviceSpec) checkRoCE() error {
	switch {
	case d.SCTPUDP != 0:
		return fmt.Errorf("sctp-udp is a way of iWARP: leave it out with transport=roce")
	case d.KeepAlive != 0 || d.UserTimeout != 0:
		return fmt.Errorf("keepalive and user-timeout are times of TCP: leave them out with " +
			"transport=roce, where each program sets the timeout of its queue pairs")
	}
	return nil
}

// checkHost says what a device with an address of the host cannot have, and another one neither.
func (d DeviceSpec) checkHost() error {
	switch {
	case !d.Host.IsValid() && d.SCTPUDP != 0:
		return fmt.Errorf("sctp-udp is for a device with an address of the host: add ,host=ADDR, or " +
			"leave it out, since over ,addr=CIDR there is SCTP as it is")
	case !d.Host.IsValid():
		return nil
	case len(d.Addrs) > 0:
		return fmt.Errorf("host=%v is an address that this host has, addr=%v one of the device's own: "+
			"make two devices", d.Host, d.Addrs[0])
	case d.MTU != 0:
		return fmt.Errorf("the MTU is that of the interface which has %v: leave mtu=%d out", d.Host,
			d.MTU)
	}
	return nil
}

// String is the form that ParseDevice reads.
func (d DeviceSpec) String() string {
	b := appendAddrs([]byte(d.Name), d.Addrs)
	if d.Host.IsValid() {
		b = fmt.Appendf(b, ",host=%v", d.Host)
	}
	if d.RoCE {
		b = append(b, ",transport=roce"...)
	}
	if d.DCQCN {
		b = append(b, ",dcqcn=on"...)
	}
	if d.MTU != 0 {
		b = fmt.Appendf(b, ",mtu=%d", d.MTU)
	}
	if d.MAC != ([6]byte{}) {
		b = fmt.Appendf(b, ",mac=%v", net.HardwareAddr(d.MAC[:]))
	}
	switch {
	case d.SCTPUDP < 0:
		b = append(b, ",sctp-udp=off"...)
	case d.SCTPUDP > 0:
		b = fmt.Appendf(b, ",sctp-udp=%d", d.SCTPUDP)
	}
	if d.ForceWire {
		b = append(b, ",loopback=wire"...)
	}
	b = appendTime(b, "keepalive", d.KeepAlive)
	b = appendTime(b, "user-timeout", d.UserTimeout)
	if d.Adversary != 0 {
		b = fmt.Appendf(b, ",adversary=%d", d.Adversary)
	}
	if d.Profile != nil {
		b = append(b, ",profile="+d.Profile.Name...)
	}
	if d.Container {
		b = append(b, ",container"...)
	}
	return string(b)
}

func parseSeed(old uint64, value string) (uint64, error) {
	seed, err := strconv.ParseUint(value, 10, 64)
	if err != nil || seed == 0 || old != 0 {
		return 0, fmt.Errorf("adversary=%s: it is given once, a number from 1 to 2^64-1, which it "+
			"does the same with again", value)
	}
	return seed, nil
}

// HardwareAddr is MAC, or a locally administered unicast address made from the name and the
// addresses: the same at each start, so that neighbours need not learn it anew, and another one
// for each device of a network, also across daemons.
func (d DeviceSpec) HardwareAddr() [6]byte {
	if d.MAC != ([6]byte{}) {
		return d.MAC
	}
	h := fnv.New64a()
	h.Write(appendAddrs([]byte(d.Name), d.own()))
	sum := h.Sum64()
	return [6]byte{0x02, byte(sum >> 32), byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
}

// Bounds of a time of silence: less than a second is what a busy machine takes, and gVisor counts
// keep-alives in 16 bits of seconds.
const minSilence, maxSilence = time.Second, 9 * time.Hour

// parseTime reads the time of an option that is old so far: below 0 if it is off.
func parseTime(option string, old time.Duration, s string) (time.Duration, error) {
	if old != 0 {
		return old, fmt.Errorf("%s is given twice", option)
	}
	if s == "off" {
		return -1, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < minSilence || d > maxSilence {
		return 0, fmt.Errorf("%s=%s: want a time such as 30s, from %v to %v, or off", option, s,
			minSilence, maxSilence)
	}
	return d, nil
}

// appendTime is the way back.
func appendTime(b []byte, option string, d time.Duration) []byte {
	switch {
	case d < 0:
		return fmt.Appendf(b, ",%s=off", option)
	case d > 0:
		return fmt.Appendf(b, ",%s=%v", option, d)
	}
	return b
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// parseHost reads an address that the host may have.
func parseHost(old netip.Addr, s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case old.IsValid():
		return old, fmt.Errorf("host is given twice; make two devices")
	case err != nil:
		return old, fmt.Errorf("host=%s: want an address of this host, without a prefix length", s)
	case a.Is4In6():
		return old, fmt.Errorf("host=%s: write it as IPv4", s)
	case a.IsUnspecified(), a.IsMulticast():
		return old, fmt.Errorf("host=%s: want one address of this host", s)
	case a.IsLinkLocalUnicast():
		return old, fmt.Errorf("host=%s is for one link only; take another address of this host", s)
	}
	return a, nil
}

// parseSCTPUDP reads a port, or off.
func parseSCTPUDP(old int, s string) (int, error) {
	if old != 0 {
		return old, fmt.Errorf("sctp-udp is given twice")
	}
	if s == "off" {
		return -1, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("sctp-udp=%s: want a UDP port, or off; the address is host=ADDR", s)
	}
	return int(n), nil
}

// checkSpecs says what of several devices and ports cannot stand together.
func checkSpecs(devices []DeviceSpec, ports []PortSpec) error {
	names := make(map[string]bool)
	macs := make(map[[6]byte]string)
	owner := make(map[netip.Addr]string)
	takeAddrs := func(who string, addrs []netip.Prefix) error {
		for _, a := range addrs {
			if other, taken := owner[a.Addr()]; taken {
				return fmt.Errorf("address %v is given to %s and to %s; give each its own", a.Addr(),
					other, who)
			}
			owner[a.Addr()] = who
		}
		return nil
	}
	for i, d := range devices {
		if names[d.Name] {
			return fmt.Errorf("device name %q is given twice; give each device its own", d.Name)
		}
		names[d.Name] = true
		if other, err := shares(devices, i); err != nil {
			return err
		} else if other >= 0 {
			continue // its addresses and its MAC are the other's
		}
		if err := takeAddrs("device "+d.Name, d.own()); err != nil {
			return err
		}
		mac := stationOf(devices, i).MAC
		if other, taken := macs[mac]; taken {
			return fmt.Errorf("devices %s and %s have the same MAC %v; set another with mac=", other, d.Name,
				net.HardwareAddr(mac[:]))
		}
		macs[mac] = d.Name
	}
	seen := make(map[string]bool)
	for _, p := range ports {
		id := p.Kind.String() + ":" + p.NetNS + ":" + p.Name + p.Path
		if p.Kind == PortTap && names[p.Name] {
			return fmt.Errorf("port and device are both named %q; name the TAP differently", p.Name)
		}
		if seen[id] {
			return fmt.Errorf("port %q is given twice", p)
		}
		seen[id] = true
		if err := takeAddrs("port "+p.Name, p.Addrs); err != nil {
			return err
		}
	}
	return checkShare(devices, ports)
}

// eachOption calls f for each key=value of a list with commas, and for words, which need no value.
// any says whether there is a list; an empty part is an error.
func eachOption(list string, any bool, f func(key, value string) error, words ...string) error {
	if !any {
		return nil
	}
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		n++
		key, value, found := strings.Cut(part, "=")
		if !found && !slices.Contains(words, part) {
			return &PartError{n, part, fmt.Errorf("%q is not of the form option=value", part)}
		}
		if err := f(key, value); err != nil {
			return &PartError{n, key, err}
		}
	}
	return nil
}

// A PartError is about one part of a specification, which begins with part 0, its name.
type PartError struct {
	Part   int
	Option string
	Err    error
}

func (e *PartError) Error() string { return e.Err.Error() }
func (e *PartError) Unwrap() error { return e.Err }

func checkName(name string, limit int) error {
	if name == "" {
		return fmt.Errorf("no name")
	}
	if len(name) > limit {
		return fmt.Errorf("name %q is longer than %d characters", name, limit)
	}
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_' && c != '.') {
			return fmt.Errorf("name %q may hold letters, digits, and behind the first also . _ -", name)
		}
	}
	return nil
}

func checkSocketPath(path string) error {
	if path == "" {
		return fmt.Errorf("no path")
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("path is longer than the %d octets that a Unix socket can have", maxSocketPath)
	}
	if strings.ContainsRune(path, 0) {
		return fmt.Errorf("path holds a zero octet")
	}
	return nil
}

func addAddr(addrs []netip.Prefix, value string) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(value)
	if err != nil {
		return nil, fmt.Errorf("addr %q is not an address with a prefix length such as 10.77.0.2/24",
			value)
	}
	a := p.Addr()
	switch {
	case a.Is4In6():
		return nil, fmt.Errorf("addr %q: write it as IPv4", value)
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), p.Bits() == 0:
		return nil, fmt.Errorf("addr %q is not the address of a host on a network", value)
	case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == lastAddr(p)):
		return nil,
			fmt.Errorf("addr %q is the network's own or its broadcast address; take one in between", value)
	case len(addrs) == maxAddrs:
		return nil, fmt.Errorf("more than %d addresses", maxAddrs)
	}
	for _, other := range addrs {
		if other.Addr() == a {
			return nil, fmt.Errorf("address %v is given twice", a)
		}
	}
	return append(addrs, p), nil
}

// lastAddr is the highest address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

func parseMTU(old int, value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < minMTU || n > maxMTU {
		return 0, fmt.Errorf("mtu %q is not a number from %d to %d", value, minMTU, maxMTU)
	}
	if old != 0 {
		return 0, fmt.Errorf("mtu is given twice")
	}
	return n, nil
}

func parseMAC(old [6]byte, value string) (mac [6]byte, err error) {
	hw, err := net.ParseMAC(value)
	if err != nil || len(hw) != len(mac) {
		return mac, fmt.Errorf("mac %q is not of the form 02:00:00:00:00:01", value)
	}
	copy(mac[:], hw)
	if mac == ([6]byte{}) || mac[0]&1 != 0 {
		return mac, fmt.Errorf("mac %q is not the address of one station", value)
	}
	if old != ([6]byte{}) {
		return mac, fmt.Errorf("mac is given twice")
	}
	return mac, nil
}

func appendAddrs(b []byte, addrs []netip.Prefix) []byte {
	for _, a := range addrs {
		b = append(b, ",addr="...)
		b = a.AppendTo(b)
	}
	return b
}
