// Package daemon is where all layers meet: it puts userspace network namespaces (netstack) on one
// switch, an RNIC (vnic) on each, and lends them to client processes through rings (shm).
//
// A Daemon has one netstack.Stack, one vnic.Device per device, and ports that lead out. Each client
// process is a session; on each device that it uses it has a vnic.Context of its own, so that
// handles, STags, QPs and memory of two clients never meet. Numbers of the rings and of the RNIC
// are joined by the tables of tables.go.
//
// What New makes is undone in reverse order by Close, also when New fails half way. The package
// daemontest starts daemons in tests.
package daemon
