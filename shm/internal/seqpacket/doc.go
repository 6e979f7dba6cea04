// Package seqpacket is the control socket: a Unix socket of packets, with descriptors as ancillary
// data, and the kernel's word on who is at the other end.
package seqpacket
