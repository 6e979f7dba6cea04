// Package ddpsctp tests DDP over SCTP on the SCTP that the program has: sctpddp, netstack/sctp and
// iwarp together, on a network in memory that loses, doubles, delays and spoils packets, under a
// clock that jumps to whatever comes next.
package ddpsctp
