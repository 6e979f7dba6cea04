package tcp

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// These are what gVisor's processor goroutines handle the segments of a connection with (dispatcher.go there); it has no exported
// way. Where one is missing or renamed the linker says so.

// handleSegments handles what is queued. The caller has locked the endpoint, as for the next.
//
//go:linkname handleSegments gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).handleSegmentsLocked
func handleSegments(*tcp.Endpoint) tcpip.Error

// resetConnection ends the connection for an error of handleSegments.
//
//go:linkname resetConnection gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).resetConnectionLocked
func resetConnection(*tcp.Endpoint, tcpip.Error)

// drainSegments gives what is queued at an endpoint that has ended to whom it is for now. The endpoint is not locked.
//
//go:linkname drainSegments gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).drainClosingSegmentQueue
func drainSegments(*tcp.Endpoint)
