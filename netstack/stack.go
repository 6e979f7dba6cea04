package netstack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// Limits of a Config.
const (
	DefaultMTU    = 1500
	MinMTU        = 1280 // RFC 8200, section 5
	MaxMTU        = 65535
	DefaultBuffer = 4 << 20
	minBuffer     = 64 << 10
	maxBuffer     = 64 << 20
)

// Config describes a Stack.
type Config struct {
	Name     string         // of the interface and its switch port
	MAC      frame.MAC      // zero: random
	MTU      int            // octets of an IP packet; 0: DefaultMTU
	Addrs    []netip.Prefix // own addresses, each with the length of its network's prefix
	Gateways []netip.Addr   // of the default routes, one for each family at most
	// SendBuffer and ReceiveBuffer are what each TCP connection may hold, in octets; 0:
	// DefaultBuffer. They do not change during a connection. A peer is offered half of
	// ReceiveBuffer as window.
	SendBuffer, ReceiveBuffer int
	// Clock is for tests; nil is the real one.
	Clock tcpip.Clock
}

// A Stack is a userspace network namespace with one Ethernet interface. It answers ping. Its
// methods may be called from several goroutines at once.
type Stack struct {
	cfg  Config
	st   *stack.Stack
	link *link
	tcp  *tcp.Host
	sctp *sctphost.Host
}

// NewStack makes a Stack and attaches it to sw.
func NewStack(sw *ethswitch.Switch, c Config) (*Stack, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("netstack: stack %s: %w", c.Name, err)
	}
	s := &Stack{cfg: c}
	var err error
	if s.sctp, err = sctphost.New(func() uint32 { return s.link.MTU() },
		sctphost.DefaultOptions()); err != nil {
		return nil, fmt.Errorf("netstack: stack %s: %w", c.Name, err)
	}
	s.tcp = tcp.New(tcp.Config{
		Name: c.Name, SendBuffer: c.SendBuffer, ReceiveBuffer: c.ReceiveBuffer,
		MTU: func() uint32 { return s.link.MTU() },
		Send: func(f *frame.Frame, d *ethswitch.Delivery) {
			_ = s.link.at.Deliver(f, d) // counts what it drops
			f.Release()
		},
	})
	s.link = newLink(c.Name, c.MAC, uint32(c.MTU), s.tcp)
	s.st = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocolWithOptions(ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: true}}),
			// Addresses come from the configuration, so there is nothing to detect.
			ipv6.NewProtocolWithOptions(ipv6.Options{
				AutoGenLinkLocal: true,
				MLD:              ipv6.MLDOptions{Enabled: true},
			}),
			arp.NewProtocol,
		},
		TransportProtocols: []stack.TransportProtocolFactory{
			s.tcp.Protocol,
			udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
			s.sctp.Protocol,
		},
		Clock:       c.Clock,
		HandleLocal: true,
	})
	if err = s.tcp.Tune(); err == nil {
		// The port comes first: gVisor sends as soon as it has the interface.
		s.link.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "stack", MAC: c.MAC}, s.link)
	}
	if err == nil {
		err = s.bringUp()
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("netstack: stack %s: %w", c.Name, err)
	}
	return s, nil
}

// complete fills in defaults and checks c.
func (c *Config) complete() error {
	if c.MAC == (frame.MAC{}) {
		c.MAC = frame.RandomMAC()
	}
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = DefaultBuffer
	}
	if c.ReceiveBuffer == 0 {
		c.ReceiveBuffer = DefaultBuffer
	}
	switch {
	case c.Name == "":
		return errors.New("no name")
	case c.MAC.IsGroup():
		return fmt.Errorf("%v is a group address", c.MAC)
	case c.MTU < MinMTU || c.MTU > MaxMTU:
		return fmt.Errorf("MTU %d is not in [%d, %d]", c.MTU, MinMTU, MaxMTU)
	case min(c.SendBuffer, c.ReceiveBuffer) < minBuffer ||
		max(c.SendBuffer, c.ReceiveBuffer) > maxBuffer:
		return fmt.Errorf("buffers of %d and %d octets are not in [%d, %d]",
			c.SendBuffer, c.ReceiveBuffer, minBuffer, maxBuffer)
	}
	for _, p := range c.Addrs {
		if !p.IsValid() || p.Addr().IsUnspecified() || p.Addr().IsMulticast() || p.Addr().Is4In6() {
			return fmt.Errorf("%v is not an address for an interface", p)
		}
	}
	for _, g := range c.Gateways {
		if !slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return p.Contains(g) }) {
			return fmt.Errorf("gateway %v is in none of the interface's networks", g)
		}
	}
	c.Addrs, c.Gateways = slices.Clone(c.Addrs), slices.Clone(c.Gateways)
	return nil
}

// bringUp makes the interface, its addresses and routes.
func (s *Stack) bringUp() error {
	opts := stack.NICOptions{Name: s.cfg.Name, QDisc: s.link}
	if err := s.st.CreateNICWithOptions(gvconv.NIC, s.link, opts); err != nil {
		return fmt.Errorf("interface: %w", gvconv.Error(err))
	}
	var routes []tcpip.Route
	for _, p := range s.cfg.Addrs {
		pa := tcpip.ProtocolAddress{
			Protocol:          gvconv.Protocol(p.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: gvconv.Addr(p.Addr()), PrefixLen: p.Bits()},
		}
		if err := s.st.AddProtocolAddress(gvconv.NIC, pa, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("address %v: %w", p, gvconv.Error(err))
		}
		routes = append(routes, tcpip.Route{Destination: pa.AddressWithPrefix.Subnet(), NIC: gvconv.NIC})
	}
	routes = append(routes, tcpip.Route{Destination: header.IPv6LinkLocalPrefix.Subnet(),
		NIC: gvconv.NIC})
	for _, g := range s.cfg.Gateways {
		all := header.IPv4EmptySubnet
		if g.Is6() {
			all = header.IPv6EmptySubnet
		}
		routes = append(routes, tcpip.Route{Destination: all, Gateway: gvconv.Addr(g), NIC: gvconv.NIC})
	}
	s.st.SetRouteTable(routes)
	return nil
}

// Close resets every connection, ends every listener, takes the stack off its switch and returns
// when none of its goroutines is left. It must not be called from a function given to SetNotify.
func (s *Stack) Close() error {
	if !s.tcp.Shut() {
		return nil
	}
	s.sctp.Close() // sends the ABORTs
	s.link.silence()
	s.st.Close() // sends the RSTs
	s.tcp.Close()
	if s.link.at != nil {
		s.link.at.Detach()
	}
	s.link.shutdown()
	s.st.Wait()
	return nil
}

// TCP is the stack's.
func (s *Stack) TCP() *tcp.Host { return s.tcp }

// SCTP is the stack's.
func (s *Stack) SCTP() *sctphost.Host { return s.sctp }

// Name is the name of the interface.
func (s *Stack) Name() string { return s.cfg.Name }

// MAC is the address of the interface.
func (s *Stack) MAC() frame.MAC { return s.cfg.MAC }

// MTU is the largest IP packet the interface takes, in octets.
func (s *Stack) MTU() int { return int(s.link.MTU()) }

// Addrs are the addresses the stack was configured with.
func (s *Stack) Addrs() []netip.Prefix { return slices.Clone(s.cfg.Addrs) }

// PortStats counts the interface's frames as its switch port does: Rx is what the stack sent.
func (s *Stack) PortStats() ethswitch.PortStats { return s.link.at.Stats() }

// StackStats are totals over the life of a Stack.
type StackStats struct {
	TCPActiveOpens, TCPPassiveOpens, TCPFailedConnects uint64
	TCPEstablished                                     uint64 // at present
	TCPSegmentsReceived, TCPSegmentsSent               uint64
	TCPRetransmits, TCPTimeouts, TCPFastRecoveries     uint64
	TCPResetsSent, TCPResetsReceived                   uint64
}

// Stats returns the stack's totals.
func (s *Stack) Stats() StackStats {
	t := s.st.Stats().TCP
	return StackStats{
		TCPActiveOpens:      t.ActiveConnectionOpenings.Value(),
		TCPPassiveOpens:     t.PassiveConnectionOpenings.Value(),
		TCPFailedConnects:   t.FailedConnectionAttempts.Value(),
		TCPEstablished:      t.CurrentEstablished.Value(),
		TCPSegmentsReceived: t.ValidSegmentsReceived.Value(),
		TCPSegmentsSent:     t.SegmentsSent.Value(),
		TCPRetransmits:      t.Retransmits.Value(),
		TCPTimeouts:         t.Timeouts.Value(),
		TCPFastRecoveries:   t.FastRecovery.Value() + t.SACKRecovery.Value(),
		TCPResetsSent:       t.ResetsSent.Value(),
		TCPResetsReceived:   t.ResetsReceived.Value(),
	}
}
