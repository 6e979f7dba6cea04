// Package load puts load on two connected QPs and measures it.
//
// Both ends are in this process, whatever their devices are. A Spec of depth 1 is a ping-pong for
// Write and Send: end A sends, end B answers with the same, and the time is that of the round
// trip; of a Write an end learns by watching the last octets of its memory, as perftest does. A
// Read of depth 1, and everything of a greater depth, goes from A's queue with that many requests
// outstanding; the time is that from the post to the completion. A bandwidth is of what has
// arrived: the clock stops when B knows that it has all.
//
// Before and after the measured messages a lap of each slot goes over with fresh content and is
// compared, in both directions of a ping-pong.
//
// An end that waits looks at its queue a few times, lets others run, and at last sleeps on the
// queue's event; watching memory there is no event, so it goes on yielding.
package load
