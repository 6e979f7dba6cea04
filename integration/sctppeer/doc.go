// Package sctppeer runs SCTP endpoints that share no code with vrnic: usrsctp, and Linux's in a
// guest of integration/peer. Both are behind one small C program (c/peer.c), which does what lines
// of its standard input say, as a plain SCTP peer and as one that speaks RFC 5043.
//
// With usrsctp's AF_CONN the program runs in lockstep: packets are lines too, its clock moves when
// it is told to, and nothing happens by itself (Lockstep). Over UDP, over raw sockets and in a
// guest it runs by real time (Peer).
package sctppeer
