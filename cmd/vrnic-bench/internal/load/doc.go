// Package load puts load on connected QPs and measures it.
//
// An End is one side: the QPs, memory and queues of one process. A Pair drives two of them through
// the same steps at the same time. A Local does the work on a device that this process has; an End
// may as well be a process of its own that has a Local (package worker).
//
// Of a ping-pong end A sends a message, end B answers with the same, and the time is that of the
// round trip. Of a Write an end learns by watching the last octets of its memory, as perftest does;
// of a Send, or of a Write with immediate data, by a completion. With several QPs the rounds take
// them in turn.
//
// A stream keeps Depth requests outstanding on each QP, from A to B, or with Bidir both ways; the
// time is that from the post to the completion. A bandwidth is of what has arrived: the clock stops
// when the end that it goes to knows that it has all, by a notice, a Send of nothing behind the
// last message.
//
// Between measurements a lap of each slot goes over with fresh content and is compared
// (Pair.Verify). Each atomic is compared, too: the old value that it brings back is the one that
// the atomic before has left.
package load
