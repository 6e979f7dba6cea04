// Package packet is the codec of RoCEv2's packets: the Base Transport Header, the extension headers
// that each opcode has behind it, payload, padding and the invariant CRC (InfiniBand Architecture
// Specification volume 1, chapters 5 and 9, with annex A17; what each bit means is told by the
// recordings of Linux's rxe in testdata).
//
// A RoCEv2 packet is what a UDP datagram to Port carries:
//
//	IPv4 or IPv6 | UDP | BTH 12 | extension headers 0..32 | payload | pad 0..3 | ICRC 4
//
// Parse takes one apart without copying; a Header's Append makes its headers. An ICRC is computed
// over all of the packet from the IP header on, but for what routers change, so that who sends and
// who checks one needs the IP and UDP headers too.
//
// The package is pure: octets in, octets out, and nothing is kept. All numbers are big-endian on
// the wire, the ICRC excepted. Nothing here knows a QP: whether a packet fits its QP's state,
// transport and path MTU is the engine's business.
package packet
