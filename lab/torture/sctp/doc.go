// Package sctp has the cases of SCTP, in UDP or on IP, and of DDP on it (RFC 5043): what peers may
// do wrong, and right, and what an endpoint has to answer. Those of sessions are skipped where the
// endpoint does not say that it speaks DDP.
//
// Nothing here needs to know a key of the endpoint's memory: a segment without octets is not held
// against any (RFC 5041, section 5.2).
package sctp
