// Package cm is the connection manager of a device: connections for identifiers that behave as
// those of rdma_cm do. On iWARP it has MPA's start-up for that (RFC 5044, section 7.1, and RFC
// 6581), on RoCE the messages of roce/cm, which package gsi carries (roce.go and those beside it).
//
// A Manager is a device's, a User one context's of it, an ID one end of a connection or a listener.
// How far an ID has come is its state (state.go). What the manager needs of others it knows as
// interfaces: a Network is what streams and associations come from, a QP what is to be connected. A
// handshake is an Attempt from Connect (connect.go) or Accept (answer.go) on; it goes over a
// stream, as a session of SCTP (sctp.go), or within the device (loop.go), where it is the same
// negotiation without octets on their way. What it has come to is a Connection, of which the QP
// makes its Link.
//
// Who may ask, and how many at once, is in admit.go; in which order requests go out and are
// announced, in order.go. rdma.Listener and rdma.Conn are made of IDs in conn.go.
//
// Locks, outermost first: ID.mu; User.mu, portTable.mu, admission.mu and handshakeQueues.mu. None
// is held while a handler, a QP or a stream is called, but for the making of a listener under its
// ID.mu.
package cm
