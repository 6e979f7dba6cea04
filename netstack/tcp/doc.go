// Package tcp is the TCP of a stack: gVisor's, with connections that never block.
//
//	c, err := stack.TCP().Dial(ctx, netip.Addr{}, remote)
//	c.SetNotify(wake)         // called when more can be read or written: it may only mark and wake
//	n, err := c.WriteFrom(source)  // straight into buffers that TCP keeps
//	n, err = c.ReadInto(sink)      // straight out of the segments
//
// A Host stands between gVisor's TCP and the stack's interface. What comes for a connection that it
// knows goes straight to that connection's TCP, and is handled by whoever brings it where that may
// be: ethswitch.Delivery has the rules, Conn.SetPrompt what a user can make of them. What goes out
// it looks at, too: an ACK waits a moment for octets that could carry it.
package tcp
