// Package sctp is SCTP (RFC 9260) with the adaptation layer indication of RFC 5061 as pure state
// machines: an Endpoint takes packets and the time and gives packets, events and the time it wants
// to be called next. It has no goroutine, no clock, no lock and no socket; whoever carries it to a
// network brings those.
//
// One Endpoint serves the addresses of one network stack. It knows ports: listening ones, which
// keep nothing for a peer before that peer has returned a signed state cookie, and those of
// Associations. It answers packets that belong to nothing as section 8.4 says.
//
// An Endpoint and all its Associations and Messages have one owner at a time. After each call of
// Input, ICMP, Expire, Dial, or of a method of an Association or a Message, the owner
//
//   - takes packets from Output until there is none,
//   - takes events from NextEvent until there is none,
//   - and has Expire called at Deadline.
//
// # Who owns which octets
//
// Send copies a message once, out of its Source, into the send buffer of the association; Output
// copies from there into the packet, as the packet may lie in a queue below long after the chunk
// was acknowledged and its space has been given to another message. Received messages are not
// copied: a Message is ranges of the packets it came in. A packet's owner is told of that by its
// Ref; a packet without one belongs to the Endpoint from Input on. The ranges are good until
// Message.Release, which also opens the receive window again.
//
// # What it does not do
//
// DATA behind a COOKIE ECHO (it is taken, not sent), partial delivery (a message that does not fit
// the receive buffer ends the association), dynamic addresses (RFC 5061 but for the indication),
// partial reliability, interleaving, authentication and ECN.
package sctp
