package gvisor

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Whoever brings a segment handles it, so that no other thread has to wake up for it. gVisor
// handles what is queued on processor goroutines of its own only, and exports no way to do as they
// do. Without this everything works, and each message wakes up more threads (see
// ethswitch.Delivery).
//
// Upstream: transport/tcp/dispatcher.go, handleConnected, which does with an endpoint that is
// locked and connected what the callers of these do, and startTimeWait; connect.go has the others.
// Where one is missing or renamed the linker says so; where one does something else
// TestHandleSegments does.

// HandleSegments handles the segments that are queued at ep, which the caller has locked
// (LockUser), and which is established or in one of the states between that and TIME-WAIT.
//
//go:linkname HandleSegments gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).handleSegmentsLocked
func HandleSegments(ep *tcp.Endpoint) tcpip.Error

// ResetConnection ends the connection of ep, which is locked, for an error of HandleSegments.
//
//go:linkname ResetConnection gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).resetConnectionLocked
func ResetConnection(ep *tcp.Endpoint, err tcpip.Error)

// StartTimeWait is to follow HandleSegments, behind which ep is in TIME-WAIT. ep is locked still.
//
//go:linkname StartTimeWait gvisor.dev/gvisor/pkg/tcpip/transport/tcp.startTimeWait
func StartTimeWait(ep *tcp.Endpoint)

// DrainSegments gives what is queued at ep, which has ended, to whom it is for now. ep is not
// locked.
//
//go:linkname DrainSegments gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).drainClosingSegmentQueue
func DrainSegments(ep *tcp.Endpoint)
