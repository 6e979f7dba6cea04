// Package hostudp is a port of the kernel's UDP at one address of the host, for who sends and takes
// many datagrams: several go in one call, as one that the kernel cuts, or that it has put together.
//
//	s, err := hostudp.Open(addr, port, handler) // handler.Receive is called with what comes
//	err = s.Send(m, peer, pieces)               // of m.Size octets, the last may be shorter
//
// What is in the IP header is the kernel's, but for the traffic class and the hop limit, which go
// with each Message. It does not fragment (DF), and sends identifications of IPv4 that count up
// from 0 in each call: the port is not connected, and the kernel chooses others only for one that
// is.
package hostudp
