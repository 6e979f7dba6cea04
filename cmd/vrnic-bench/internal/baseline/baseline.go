// Package baseline measures what vrnic is compared with, on the same paths: copying in memory, TCP
// of gVisor's netstack and of the kernel, the kernel's UDP, and where they are installed libfabric
// and UCX over the kernel's TCP.
package baseline

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
)

// A Kind is what is asked of a baseline.
type Kind string

const (
	Bandwidth Kind = "bandwidth" // one way, as many messages outstanding as Slots
	RoundTrip Kind = "roundtrip" // there and back, one at a time
)

// A Request asks for a measurement.
type Request struct {
	Kind  Kind
	Size  int // octets of a message
	Slots int // pieces of memory of that size to go through, 1 or more
	Time  time.Duration
	Poll  bool // of a round trip: both ends look for it all the time, and do not sleep; see Traits
}

// A Baseline measures something else. Several goroutines may not use it at once.
type Baseline interface {
	Name() string
	// Does says whether it has a figure for requests of that kind.
	Does(Kind) bool
	Traits() Traits
	Measure(context.Context, Request) (rawtcp.Result, error)
}

// Traits are what sets a baseline apart from the others.
type Traits struct {
	OnlyMean  bool // of its round trips the mean alone is known
	OnlySends bool // it moves data as Sends do, whatever is asked
	Polls     bool // its round trips can be polled for
}

const (
	basePort    = 5001
	dialTimeout = 10 * time.Second
)

// measure does over c what req asks for, and closes it.
func measure(ctx context.Context, c net.Conn, req Request) (rawtcp.Result, error) {
	defer context.AfterFunc(ctx, func() { c.Close() })()
	switch req.Kind {
	case Bandwidth:
		return rawtcp.Throughput(c, req.Size, req.Slots, req.Time)
	case RoundTrip:
		return rawtcp.Echoes(c, req.Size, req.Time, req.Poll)
	}
	c.Close()
	return rawtcp.Result{}, fmt.Errorf("no measurement %q", req.Kind)
}
