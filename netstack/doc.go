// Package netstack has the userspace network namespaces of vrnic.
//
// A Stack is one namespace: a gVisor network stack with IPv4, IPv6, ARP, neighbour discovery, ICMP,
// TCP, UDP and SCTP behind one virtual Ethernet interface, which is a port of a switch.
//
//	sw := ethswitch.New(ethswitch.Config{})
//	st, err := netstack.NewStack(sw, netstack.Config{Name: "vrnic0", Addrs: prefixes})
//	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: "vtap0"})
//	conn, err := st.TCP().Dial(ctx, netip.Addr{}, remote)
//
// The packages below, from the bottom up, each of which knows those before it only:
//
//   - frame: Ethernet frames and super-frames, and the headers in them
//   - ethswitch: the switch, and who may do what with a frame that it brings (Delivery)
//   - port: TAPs, Unix sockets, and for tests memory (port/porttest)
//   - tcp: connections and listeners on gVisor's TCP
//   - udp: datagrams past gVisor's UDP, whole packets of RoCE
//   - sctp, sctphost: SCTP, and what drives it on a stack or a UDP socket of the host
//
// A frame is carried by the goroutine that found it: out of a stack by whoever called the stack,
// out of a TAP or socket by its reader. Frames that a stack would answer on the spot (ARP, ICMP,
// UDP) are handed to a goroutine of that stack.
//
// None of these packages knows of RDMA.
package netstack
