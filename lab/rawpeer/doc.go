// Package rawpeer is an iWARP peer made by hand: it speaks MPA, DDP and RDMAP on a TCP connection
// and can lie in any field. Tests use it against a live daemon.
//
// It shares no code with package iwarp, so that it can disagree with it: the octets are built and
// read from the figures of RFC 5044, 6581, 5041, 5040 and 7306 alone. What the daemon sends is held
// to these figures at every turn (Checker): reserved bits, versions, sequences, pads, Markers,
// CRCs.
//
// A Host is a TCP/IP stack of the peer's own on a Unix-stream port of the daemon, so no privilege
// is needed; it can also drop, delay and look at TCP segments. A kernel's TCP connection will do,
// too.
//
//	h, err := rawpeer.NewHost(path, netip.MustParsePrefix("10.77.0.9/24"))
//	p, err := h.Dial(ctx, netip.MustParseAddrPort("10.77.0.2:7174"))
//	err = p.Run(
//		rawpeer.PutStart(rawpeer.Request(rawpeer.FlagC)),
//		rawpeer.WantReply(rawpeer.FlagC),
//		rawpeer.Put(rawpeer.Write(0, 0, nil)),          // the RTR
//		rawpeer.Put(rawpeer.Send(1, 0, octets).QueueNumber(4)), // the lie
//		rawpeer.WantTerminate(1, 2, 0x01, rawpeer.WithDDP, lie),
//		rawpeer.WantFIN(),
//	)
//
// The error of Run says at which step what came instead, with all that went before, field by field.
package rawpeer
