package gvisor

import "gvisor.dev/gvisor/pkg/tcpip/stack"

// A SegmentQueue is gVisor's TCP as its demultiplexer uses it. A segment of a connection that is
// known goes there directly: gVisor would ask IP whose the addresses are, and look for the
// connection in three maps, whose lines come from memory when there are many connections. Without
// this segments go through IP, and nothing else changes.
//
// Upstream: transport/tcp/protocol.go, (*protocol).QueuePacket, which stack/transport_demuxer.go
// finds by a type assertion, too. The caller has parsed the headers and checked what IP would.
type SegmentQueue interface {
	QueuePacket(stack.TransportEndpoint, stack.TransportEndpointID, *stack.PacketBuffer)
}

// SegmentQueueOf is p, gVisor's TCP, as a SegmentQueue, or nil if this gVisor has none.
func SegmentQueueOf(p stack.TransportProtocol) SegmentQueue {
	q, _ := p.(SegmentQueue)
	return q
}
