// Package hostnet is an address of the host as a vnic.Device uses it: the kernel's TCP for MPA, and
// SCTP in a UDP socket.
package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/internal/sctpnet"
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/hosttcp"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/vnic"
)

// A TCP connection of the kernel is what MPA runs on, as it is.
var _ iwarp.Stream = (*hosttcp.Conn)(nil)

// A Config describes a Network.
type Config struct {
	Addr netip.Addr // of the host
	// KeepAlive and UserTimeout are as netstack.Config has them.
	KeepAlive, UserTimeout time.Duration
	SCTP                   uint16 // the UDP port that carries SCTP; 0: none
}

// A Network is a vnic.Network, with what one can have beside.
type Network struct {
	sctpnet.Network
	at   netip.Prefix // the address, and the network that its interface is in
	mtu  int
	tcp  *hosttcp.Host
	addr netip.Addr
	bad  roads // of RoCE's packets
}

var (
	_ vnic.PortNetwork = (*Network)(nil)
	_ vnic.SCTPNetwork = (*Network)(nil)
)

// New makes a Network. An error says what to do about it.
func New(c Config) (*Network, error) {
	n := &Network{addr: c.Addr}
	var has []string
	if n.at, n.mtu, has = find(c.Addr); n.mtu == 0 {
		return nil, fmt.Errorf("%v is not an address of this host, which has %s: %w", c.Addr,
			strings.Join(has, ", "), syscall.EADDRNOTAVAIL)
	}
	keepAlive, userTimeout := netstack.Liveness(c.KeepAlive, c.UserTimeout)
	var err error
	if n.tcp, err = hosttcp.New(hosttcp.Config{Addr: c.Addr, KeepAlive: keepAlive,
		UserTimeout: userTimeout}); err != nil {
		return nil, err
	}
	if c.SCTP != 0 {
		at := netip.AddrPortFrom(c.Addr, c.SCTP)
		s, err := sctphost.NewOverUDP(at, nil, netstack.SCTPOptions(keepAlive, userTimeout))
		if err != nil {
			return nil, fmt.Errorf("UDP port %d of %v, for SCTP: %w; choose another with sctp-udp=PORT, "+
				"or do without: sctp-udp=off", c.SCTP, c.Addr, err)
		}
		n.Network = sctpnet.New(s, []netip.Addr{c.Addr})
	}
	return n, nil
}

// find is the network that an address of the host is in, and the MTU of its interface, 0 if it is
// not the host's; then has are those that are.
func find(a netip.Addr) (at netip.Prefix, mtu int, has []string) {
	ifs, _ := net.Interfaces() // none: nothing is found
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil {
				continue
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits())
			// All of the loopback's network is the host's.
			if p.Addr() == a || p.Addr().IsLoopback() && p.Contains(a) {
				return netip.PrefixFrom(a, p.Bits()), min(i.MTU, netstack.MaxMTU), nil
			}
			has = append(has, p.Addr().String())
		}
	}
	return netip.Prefix{}, 0, has
}

// An Address is one of the host's, of an interface.
type Address struct {
	netip.Addr
	Interface string
}

// Addresses are those of the host that a device can have: of interfaces that are up, and not for
// one link only; those of the loopback if there are no others.
func Addresses() ([]Address, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	var list, loopback []Address
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() {
				continue
			}
			a := Address{p.Addr().Unmap(), i.Name}
			if a.IsLoopback() {
				loopback = append(loopback, a)
			} else {
				list = append(list, a)
			}
		}
	}
	if len(list) == 0 {
		list = loopback
	}
	return list, nil
}

// Addrs are the Network's: one.
func (n *Network) Addrs() []netip.Prefix { return []netip.Prefix{n.at} }

// MTU is the interface's.
func (n *Network) MTU() int { return n.mtu }

// Reaches is the length of the prefix by which remote is reached, below 0 if the host reaches it
// from another address, or not at all.
func (n *Network) Reaches(remote netip.Addr) int {
	if n.at.Contains(remote) {
		return n.at.Bits()
	}
	if _, err := n.Source(remote); err != nil || remote.IsLinkLocalUnicast() {
		return -1
	}
	// No packet is sent.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 1)))
	if err != nil {
		return -1
	}
	defer c.Close()
	if from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); from != n.addr {
		return -1
	}
	return 0
}

// Source is the address that connections to remote start from: an error says that it is of the
// other family.
func (n *Network) Source(remote netip.Addr) (netip.Addr, error) {
	if remote.Unmap().Is4() != n.addr.Is4() {
		return netip.Addr{}, fmt.Errorf("no way from %v to %v: %w", n.addr, remote, syscall.ENETUNREACH)
	}
	return n.addr, nil
}

// TCP is the Network's.
func (n *Network) TCP() *hosttcp.Host { return n.tcp }

// Finish ends the SCTP, and returns when its peers have been told.
func (n *Network) Finish() error { return n.Network.Close() }

// Close ends what Finish has not.
func (n *Network) Close() error { return n.tcp.Close() }

// Dial implements vnic.Network.
func (n *Network) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (iwarp.Stream,
	error) {
	return n.DialFrom(ctx, netip.AddrPortFrom(local, 0), remote)
}

// DialFrom implements vnic.PortNetwork.
func (n *Network) DialFrom(ctx context.Context, local, remote netip.AddrPort) (iwarp.Stream,
	error) {
	c, err := n.tcp.Dial(ctx, local.Port(), remote)
	if err != nil {
		return nil, err // not c: a nil *hosttcp.Conn is no nil Stream
	}
	return c, nil
}

// Listen implements vnic.Network. The unspecified addresses stand for that of the device, of their
// family or of either: what other addresses of the host listen for is not the device's.
func (n *Network) Listen(addr netip.AddrPort, _ int) (vnic.StreamListener, error) {
	a := addr.Addr()
	switch {
	case a == n.addr, a == netip.IPv6Unspecified(), a == netip.IPv4Unspecified() && n.addr.Is4():
	case a.IsUnspecified():
		return &listener{addr: addr, done: make(chan struct{})}, nil
	default:
		return nil, fmt.Errorf("%v is not the address of the device: %w", a, syscall.EADDRNOTAVAIL)
	}
	l, err := n.tcp.Listen(addr.Port())
	if err != nil {
		return nil, fmt.Errorf("the kernel's TCP (another program on this host, perhaps): %w", err)
	}
	return &listener{addr: addr, l: l}, nil
}

// A listener is one of the kernel's, or one that nobody comes to.
type listener struct {
	addr netip.AddrPort
	l    *hosttcp.Listener // nil: nobody comes
	done chan struct{}
}

// Accept implements vnic.StreamListener.
func (l *listener) Accept() (iwarp.Stream, error) {
	if l.l == nil {
		<-l.done
		return nil, net.ErrClosed
	}
	c, err := l.l.Accept()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Addr implements vnic.StreamListener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close implements vnic.StreamListener. It is called once.
func (l *listener) Close() error {
	if l.l == nil {
		close(l.done)
		return nil
	}
	return l.l.Close()
}
