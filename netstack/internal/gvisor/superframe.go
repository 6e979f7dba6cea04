package gvisor

import "gvisor.dev/gvisor/pkg/tcpip/header"

// gsoHeaders is what gVisor puts on top of the TCP payload when it works out the largest
// super-frame.
const gsoHeaders = header.TCPTotalHeaderMaximumSize + 1

// GSOMaxSize is what a stack.GSOEndpoint says to have super-frames that hold a whole number of
// segments of TCP over IPv4: then the next super-frame starts where the peer would see a segment
// start. Without this a super-frame ends in the middle of an FPDU.
//
// Upstream: transport/tcp/snd.go, sendData, which takes gsoHeaders off it for the payload;
// in each segment gVisor keeps room for all options that there can
// be, SACK blocks among them. TestSuperFramesOfWholeSegments in netstack/tcp looks at the frames.
func GSOMaxSize(mtu uint32) uint32 {
	const most = 65535 - gsoHeaders
	mss := mtu - header.IPv4MinimumSize - header.TCPHeaderMaximumSize
	if mss > most {
		return most + gsoHeaders
	}
	return most/mss*mss + gsoHeaders
}
