// Package ethswitch is an Ethernet switch in memory, whose ports are whatever implements Port: a
// stack, a TAP, a socket, a double of a test.
//
//	sw := ethswitch.New(ethswitch.Config{})
//	at, err := sw.Attach(ethswitch.PortOptions{Name: "tap0", Kind: "tap"}, port)
//	err = at.Input(f) // f has come in at the port
//
// A frame is carried by the goroutine that found it, from one port through the Switch into the
// next, as a super-frame as long as the ports take those; for one that does not the Switch cuts it
// and fills the checksums in. No lock is held while a port transmits. What that goroutine may do
// beyond carrying the frame says a Delivery, which goes beside it; a Courier is such a goroutine
// that brings frames from outside.
package ethswitch
