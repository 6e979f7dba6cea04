// Package roce holds the protocol engines of RoCEv2: the reliable and the unreliable connection of
// InfiniBand's transport (InfiniBand Architecture Specification volume 1, chapter 9), as packets of
// roce/packet. An unreliable datagram needs no engine, as it is one packet: a UD has its rules.
//
// It is pure: packets, requests and the time in; packets, calls of a Host and the next deadline
// out; no I/O, no goroutine, no clock and no lock. Whoever runs a queue pair owns its RC or UC and
// is the only one to call it at a time:
//
//	rc := roce.NewRC(cfg, host)
//	rc.Post(&roce.Request{Token: 1, Op: roce.Write, Data: payload, Length: 4096, Addr: a, RKey: k})
//	for b, ok := rc.Append(buf[:0], now); ok; b, ok = rc.Append(buf[:0], now) {
//		... // b is all but the ICRC, and what is below it
//	}
//	rc.Receive(now, &header, payload) // a packet whose ICRC and addresses are right
//	if at, ok := rc.Deadline(); ok { ... rc.Expire(at) }
//	if f := rc.Fault(); f != nil { ... } // the queue pair goes to the error state
//
// A packet's P_Key, source and destination are checked by who finds the queue pair.
package roce
