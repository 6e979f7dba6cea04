package roce

import (
	"fmt"

	"github.com/vrnic/vrnic/roce/packet"
)

// A Status is how a request or a receive ended, in the words of verbs (ibv_wc_status).
type Status uint8

// The statuses.
const (
	Success Status = iota
	LocalLength
	LocalOperation
	LocalProtection
	BadResponse
	RemoteInvalid
	RemoteAccess
	RemoteOperation
	RetryExceeded
	RNRRetryExceeded
)

var statusNames = [...]string{"success", "local length error", "local QP operation error",
	"local protection error", "bad response", "remote invalid request", "remote access error",
	"remote operation error", "retry count exceeded", "RNR retry count exceeded"}

func (s Status) String() string { return statusNames[s] }

// A Fault is why a connection is over: its queue pair goes to the error state, and what was posted
// and is not done is flushed.
type Fault struct {
	// Requester says that a request of this side failed: the oldest that is not done, with Status.
	Requester bool
	Token     uint64
	Status    Status
	// Sent is what the peer was told, if it was the peer's request that failed.
	Sent packet.Syndrome
	Err  error // what the Host said, or what was wrong with a packet
}

func (f *Fault) Error() string {
	if f.Requester {
		return fmt.Sprintf("request %d: %v: %v", f.Token, f.Status, f.Err)
	}
	return fmt.Sprintf("a request of the peer: %v: %v", f.Sent, f.Err)
}

func (f *Fault) Unwrap() error { return f.Err }
