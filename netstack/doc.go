// Package netstack holds the userspace network namespaces of vrnic and the Ethernet switch between
// them.
//
// A Stack is one namespace: a gVisor network stack with IPv4, IPv6, ARP, neighbour discovery, ICMP,
// TCP, UDP and SCTP behind one virtual Ethernet interface. A Switch joins stacks with each other and with
// the world outside: a TAP (the host kernel or a container), a Unix stream socket (another daemon
// or a QEMU guest), or memory (tests).
//
//	sw := netstack.NewSwitch(netstack.SwitchConfig{})
//	st, err := netstack.NewStack(sw, netstack.Config{Name: "vrnic0", Addrs: prefixes})
//	tap, err := netstack.OpenTAP(sw, netstack.TAPConfig{Name: "vtap0"})
//	conn, err := st.TCP().Dial(ctx, netip.Addr{}, remote)
//
// SCTP is that of package netstack/sctp, which a Stack (Stack.SCTP), or a UDP socket of the host
// (NewSCTPOverUDP), gives a clock, a network and a lock.
//
// # Frames
//
// What crosses the switch is a Frame: an Ethernet frame, or a super-frame that holds one TCP segment
// of up to 64 KiB together with the size it is to be cut to, described as a virtio-net header does
// (VIRTIO 1.2, section 5.1.6). Stacks and offloading TAPs exchange super-frames whose TCP checksum
// covers the pseudo-header only; the Switch cuts them and fills the checksums in for ports that
// cannot take them. A frame's octets live in gVisor's buffers and are passed by reference.
//
// # Goroutines
//
// A frame is carried by the goroutine that found it, from one port through the switch into the
// next: out of a stack by whoever called the stack, out of a TAP or socket by its reader. No lock is
// held while a port transmits. Frames that a stack would answer on the spot (ARP, ICMP, UDP) are
// handed to a goroutine of that stack, TCP goes to gVisor's own. SCTP's packets and events are given out
// by whoever has changed something, unless somebody is at that already, who does it then.
//
// The package knows nothing of RDMA and imports no other package of vrnic.
package netstack
