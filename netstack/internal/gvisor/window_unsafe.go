package gvisor

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// A peer that the window holds back has to be told when reading has opened that (RFC 9293, section
// 3.8.6.2.2). gVisor tells it only where there was room for less than a segment: with room for one
// and a half the peer sends those, and both wait until an ACK that is delayed is due. Without this
// a sender stops for 40 ms each time.
//
// Upstream: transport/tcp/endpoint.go, selectWindow, which is what an ACK would tell now, and
// windowCrossedACKThresholdLocked with its caller in Read; snd.go, sendAck. Where one is missing
// the linker says so; where one does something else TestWindow does.

// Window is how many octets the peer may send beyond what has come, if it is told now. ep is
// locked.
//
//go:linkname Window gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).selectWindow
func Window(ep *tcp.Endpoint) seqnum.Size
