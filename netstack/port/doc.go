// Package port has the ports of an ethswitch.Switch that lead out of the process.
//
//	// the host's kernel, a container
//	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: "vtap0"})
//	// another daemon, a QEMU guest
//	peer, err := port.ListenUnix(sw, port.UnixConfig{Path: "/run/x"})
//	// other hosts
//	segment, err := port.OpenVXLAN(sw, port.VXLANConfig{VNI: 7, Local: here, Remotes: others})
//
// A TAP takes and gives super-frames where the kernel does; a Unix stream carries ordinary frames,
// each behind its length, and VXLAN one in each datagram. What a port reads its own goroutine
// brings through the switch, with the offer of ethswitch.Courier; what it is given to transmit it
// writes at once or drops. Package porttest has a port in memory.
package port
