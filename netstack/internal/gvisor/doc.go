// Package gvisor is all that netstack does with gVisor beyond what gVisor exports or promises: one
// file for each, which says what, why, what breaks without it, and the upstream lines it depends
// on, below gvisor.dev/gvisor/pkg/tcpip. Its tests are the contract: after an update of gVisor they
// say what has changed.
//
//   - handle_unsafe.go: handle a connection's queued segments on the caller's goroutine
//   - queue.go: give a segment to a connection's TCP, past IP and the demultiplexer
//   - ownpackets.go: take what a stack sends to itself off its way, and bring it back
//   - segmentsize.go: how many octets TCP puts into a segment
//   - memory_unsafe.go: where the memory of a connection lies, for the caches
//   - sender_unsafe.go: another congestion control, and sending again what it says
//   - options.go: no RACK, buffers that keep their size, no SYN cookies
//   - liveness.go: when a connection whose peer is silent is lost
//   - superframe.go: how long a super-frame becomes
//   - pathmtu.go: path MTUs that gVisor would believe
package gvisor
