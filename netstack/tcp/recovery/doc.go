// Package recovery is how a sender of TCP finds out what is lost, and how much it may have under
// way: RACK (RFC 8985) on a scoreboard of what was acknowledged selectively, retransmissions that
// are lost again, proportional rate reduction (RFC 6937), timeouts and losses that were none (RFC
// 5682, 3522, 3708), and CUBIC (RFC 9438).
//
// A Sender has no clock, timer or packet: it is told what was acknowledged and the time, and tells
// what to send again, the window, and when to ask it next. One goroutine uses it at a time.
package recovery
