package netstack

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	gvudp "gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/internal/ports"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/netstack/tcp"
	"github.com/vrnic/vrnic/netstack/udp"
)

// Limits of a Config.
const (
	DefaultMTU    = 1500
	MinMTU        = 1280 // RFC 8200, section 5
	MaxMTU        = 65535
	DefaultBuffer = 4 << 20

	DefaultKeepAlive   = 30 * time.Second
	DefaultUserTimeout = 60 * time.Second

	minBuffer = 64 << 10
	maxBuffer = 64 << 20
)

// Config describes a Stack.
type Config struct {
	Name     string         // of the interface and its switch port
	MAC      frame.MAC      // zero: random
	MTU      int            // octets of an IP packet; 0: DefaultMTU
	Addrs    []netip.Prefix // own addresses, each with the length of its network's prefix
	Gateways []netip.Addr   // of the default routes, one for each family at most
	// SendBuffer and ReceiveBuffer are what each TCP connection may hold, in octets; 0:
	// DefaultBuffer. They grow, up to 16 MiB, where a connection fills them on a path with a round
	// trip of more than 2 ms. A peer is offered half of the receive buffer as window.
	SendBuffer, ReceiveBuffer int
	// KeepAlive is after how much silence of its peer a connection without anything outstanding asks
	// for a sign of life (RFC 9293, section 3.8.4; RFC 9260, section 8.3). UserTimeout is after how
	// much of it a connection is lost, with ETIMEDOUT: since the peer was heard of last if it was
	// asked, since the oldest octets that are not acknowledged were sent if there are any (RFC 5482),
	// the peer's window being closed or not. 0: DefaultUserTimeout, and DefaultKeepAlive or half of
	// that, if it is less. Below 0: never.
	KeepAlive, UserTimeout time.Duration
	// Clock is for tests; nil is the real one.
	Clock tcpip.Clock
	// Rand is for tests, too: what is random in the stack comes from it, so that the same numbers give
	// the same packets. Several goroutines may read it. nil is the operating system's.
	Rand io.Reader
}

// A Stack is a userspace network namespace with one Ethernet interface. It answers ping. Its
// methods may be called from several goroutines at once.
type Stack struct {
	cfg   Config
	st    *stack.Stack
	link  *link
	tcp   *tcp.Host
	sctp  *sctphost.Host
	udp   *udp.Host
	ports ports.Table
	// mirror is for Watch
	mirror mirror
}

// NewStack makes a Stack and attaches it to sw.
func NewStack(sw *ethswitch.Switch, c Config) (*Stack, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("netstack: stack %s: %w", c.Name, err)
	}
	s := &Stack{cfg: c}
	var err error
	send := func(f *frame.Frame, d *ethswitch.Delivery) {
		_ = s.link.at.Deliver(f, d) // counts what it drops
		f.Release()
	}
	mtu := func() uint32 { return s.link.MTU() }
	ownPacket := func(pkt *stack.PacketBuffer) bool { return gvisor.TakeOwn(pkt, s.link.divertOwn) }
	s.sctp, err = sctphost.New(mtu, func(f *frame.Frame) { send(f, nil) }, ownPacket, c.Rand,
		SCTPOptions(c.KeepAlive, c.UserTimeout))
	if err != nil {
		return nil, fmt.Errorf("netstack: stack %s: %w", c.Name, err)
	}
	var own []netip.Addr
	for _, p := range c.Addrs {
		own = append(own, p.Addr())
	}
	s.tcp = tcp.New(tcp.Config{
		Name: c.Name, Addrs: own, Ports: &s.ports, SendBuffer: c.SendBuffer,
		ReceiveBuffer: c.ReceiveBuffer, MTU: mtu, Send: send, Own: ownPacket,
		Liveness: gvisor.Liveness{KeepAlive: c.KeepAlive, UserTimeout: c.UserTimeout},
	})
	s.link = newLink(c.Name, c.MAC, uint32(c.MTU), s.tcp, s.sctp)
	s.st = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocolWithOptions(ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: true}}),
			// Addresses come from the configuration, so there is nothing to detect.
			ipv6.NewProtocolWithOptions(ipv6.Options{
				AutoGenLinkLocal: true,
				MLD:              ipv6.MLDOptions{Enabled: true},
			}),
			arp.NewProtocolWithOptions(arp.Options{DADConfigs: probing}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{
			s.tcp.Protocol,
			gvudp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
			s.sctp.Protocol,
		},
		Clock:       c.Clock,
		SecureRNG:   c.Rand, // nil: gVisor's own
		HandleLocal: true,
		NUDDisp:     neighbours(func() { s.udp.NeighboursChanged() }),
	})
	s.ports.Clock = s.st.Clock()
	s.mirror.l = s.link
	s.udp = udp.New(udp.Config{Stack: s.st, MAC: c.MAC, MTU: mtu, Send: send, Ports: &s.ports,
		Own: func(f *frame.Frame) (taken bool) { return s.link.at.ToItself(f) }})
	s.link.udp, s.link.st = s.udp, s.st
	s.link.setOwn(c.Addrs)
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

// SCTPOptions are those of associations with a Config's KeepAlive and UserTimeout, which are not 0.
func SCTPOptions(keepAlive, userTimeout time.Duration) sctp.Options {
	o := sctphost.DefaultOptions()
	o.HeartbeatInterval, o.UserTimeout = keepAlive, max(userTimeout, 0)
	return o
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
	c.KeepAlive, c.UserTimeout = Liveness(c.KeepAlive, c.UserTimeout)
	switch {
	case c.Name == "":
		return errors.New("no name")
	case c.MAC.IsGroup():
		return fmt.Errorf("%v is a group address", c.MAC)
	case c.UserTimeout > 0 && c.KeepAlive >= c.UserTimeout:
		return fmt.Errorf("keep-alive after %v and the end after %v of silence: there is no time to ask",
			c.KeepAlive, c.UserTimeout)
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

// Liveness fills in the defaults of Config.KeepAlive and Config.UserTimeout.
func Liveness(keepAlive, userTimeout time.Duration) (time.Duration, time.Duration) {
	if userTimeout == 0 {
		userTimeout = DefaultUserTimeout
	}
	if keepAlive == 0 {
		if keepAlive = DefaultKeepAlive; userTimeout > 0 {
			keepAlive = min(keepAlive, userTimeout/2)
		}
	}
	return keepAlive, userTimeout
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
	s.udp.Close()
	s.sctp.Close() // sends the ABORTs
	s.link.silence()
	if s.link.at != nil {
		s.link.at.Deafen()
	}
	// What is queued is handled before gVisor ends who does that. What came afterwards, or was left
	// with a connection that is closed already, would keep its memory for ever.
	s.st.Pause()
	s.st.Resume()
	s.st.Close() // sends the RSTs
	s.tcp.Close()
	if s.link.at != nil {
		s.link.at.Detach()
	}
	s.link.shutdown()
	s.st.Wait()
	_ = s.ports.Share(nil) // that never fails
	return nil
}

// TCP is the stack's.
func (s *Stack) TCP() *tcp.Host { return s.tcp }

// LinkUp says that the way to the network is there again after it was not (a TAP has come back, a
// port is connected again): what waits for a retransmission timer with back-off is sent at once. It
// does not block; any goroutine may call it.
func (s *Stack) LinkUp() {
	s.tcp.LinkUp()
	s.sctp.LinkUp()
}

// UDP is the stack's: ports that are served past gVisor's UDP.
func (s *Stack) UDP() *udp.Host { return s.udp }

// SCTP is the stack's.
func (s *Stack) SCTP() *sctphost.Host { return s.sctp }

// neighbours is called when something has become of a neighbour. gVisor holds locks.
type neighbours func()

func (f neighbours) OnNeighborAdded(tcpip.NICID, stack.NeighborEntry)   { f() }
func (f neighbours) OnNeighborChanged(tcpip.NICID, stack.NeighborEntry) { f() }
func (f neighbours) OnNeighborRemoved(tcpip.NICID, stack.NeighborEntry) { f() }

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
	UDPBadChecksums                                    uint64 // datagrams dropped for it, or for IP's
}

// Stats returns the stack's totals.
func (s *Stack) Stats() StackStats {
	t, u := s.st.Stats().TCP, s.st.Stats().UDP
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
		UDPBadChecksums:     u.ChecksumErrors.Value(),
	}
}
