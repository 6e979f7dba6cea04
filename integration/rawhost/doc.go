// Package rawhost is where raw peers of tests are at home: a TCP/IP stack of its own on a
// Unix-stream port of a daemon, so no privilege is needed. It can also drop, delay and look at
// frames.
//
//	h, err := rawhost.New(rawhost.Config{Path: path, Addrs: addrs})
//	p, err := h.Dial(ctx, netip.MustParseAddrPort("10.77.0.2:7174"))
//	err = p.Run(rawpeer.PutStart(rawpeer.Request(rawpeer.FlagC)), ...)
package rawhost
