// Package sctphost runs the SCTP endpoints of package netstack/sctp: it gives one a clock, a
// network, a lock and somebody who hands out its events.
//
//	host := stack.SCTP() // on a netstack.Stack
//	// or on a UDP socket of the host:
//	host, err := sctphost.NewOverUDP(addr, nil, sctphost.DefaultOptions())
//
//	l, err := host.Listen(sctphost.ListenConfig{Addr: addr, Accept: accept})
//	c, err := host.Dial(ctx, sctphost.DialConfig{Remote: remote, Handler: handler})
//	id, err := c.Send(sctp.SendOptions{Stream: 1}, message, false)
//
// Whoever changes something in a Host, under its one lock, sends afterwards what there is to send
// and calls the handlers, with no lock held, unless somebody is at that already, who does it then.
package sctphost
