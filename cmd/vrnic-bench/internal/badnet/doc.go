// Package badnet measures how much goes over a bad network: 1 MiB Writes between the devices of
// two daemons, over TCP and over SCTP, and beside them the kernel's TCP.
//
// A Bridge, a process of its own, carries frames one by one between two TAPs and does to each what
// package impair says. One pair of TAPs has the addresses of two kernels; another one is on a
// bridge of the kernel with the TAP of a daemon at each side.
//
//	kernel, CUBIC ── TAP ─┐          ┌─ TAP ── kernel
//	                      ├─ Bridge ─┤
//	daemon ── TAP ── br0 ─┘          └─ br0 ── TAP ── daemon
//
// A goodput is of octets that the receiver's memory has, or its program has read, within a time
// that begins when the connection has had some round trips to find out about the path. Each
// measurement has daemons and connections of its own, which nothing is left in from the one before.
package badnet
