// Package session carries connections over SCTP: RFC 5043, and RFC 6581, section 10. A connection
// is a DDP stream session, here a Stream; those that go to the same listener share an SCTP
// association as long as that has free streams.
//
// A Network is what SCTP is reached by. A Pool has the associations that this end has set up, an
// Incoming is one that a peer has. What comes for a Stream waits in its inbox until the goroutine
// that owns the Stream takes it; the rest is for package sctpddp, whose Mux each association has.
package session
