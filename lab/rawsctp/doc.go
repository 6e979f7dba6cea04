// Package rawsctp is an SCTP peer made by hand, with RFC 5043's session control on it: it speaks
// SCTP in UDP (RFC 6951), or on what else carries packets, and can lie in any field. Tests use it
// against a live daemon.
//
// It shares no code with packages sctp and sctpddp, so that it can disagree with them: the octets
// are built and read from the figures of RFC 9260, 5061, 5043 and 6951 alone.
package rawsctp
