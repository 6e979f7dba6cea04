// Package ping speaks rping's protocol over the rdma interfaces, so that either end can be the
// rping of rdma-core.
//
// The client has two buffers of one size: a source and a sink. A round goes
//
//	client                                       server
//	Send {address, key, size} of the source  ->
//	                                         <-  RDMA Read of the source
//	                                         <-  Send: go ahead
//	Send {address, key, size} of the sink    ->
//	                                         <-  RDMA Write of what was read
//	                                         <-  Send: done
//
// Every Send carries 16 octets (see info); the client looks at no octet of the server's. The
// client ends the connection when it has had its rounds, the server serves until then. Both ends
// have one Read outstanding at most (IRD and ORD 1), and a receive is posted before the
// connection is made and again before each Send that can be answered.
//
// What the peer sends is checked: the length of a message, and the size of a buffer against the
// own one. The data is made of printable characters; others are shown as dots.
package ping
