// Package paths makes the pairs of devices that vrnic-bench measures between.
//
//	loop  two QPs of one device in this process
//	pair  two devices in this process, on two stacks joined by a switch
//	wire  two devices in this process, each with a TAP in a namespace of its own, whose bridges are
//	      joined (root)
//	ring  two QPs of one device of a daemon, another process, each of a client of its own
//	tap   two daemons with a TAP each, as wire has them, and a client of each (root)
package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/rdma"
)

// A Path is two devices that reach each other.
type Path struct {
	Name  string
	A, B  rdma.Device
	AddrB netip.Addr // B's, for A to connect to
	// CPU is the time that other processes of the path have used; nil if there are none.
	CPU func() time.Duration

	lab     *netlab.Lab       // of wire and tap
	stacks  []*netstack.Stack // of pair and wire
	closers []func()          // in the order in which things were made
}

// Names are the paths there are; those for root are the last.
var Names = []string{"loop", "pair", "ring", "wire", "tap"}

// NeedsRoot says whether only root can open the path of that name.
func NeedsRoot(name string) bool { return name == "wire" || name == "tap" }

// Options say how to make a path.
type Options struct {
	Vrnic string // the vrnic program, for ring and tap; "" looks for it, see FindVrnic
}

// Open makes the path of that name.
func Open(name string, o Options) (*Path, error) {
	switch name {
	case "loop":
		return openLoop()
	case "pair":
		return openPair()
	case "ring":
		return openRing(o)
	case "wire":
		return openWire()
	case "tap":
		return openTap(o)
	}
	return nil, fmt.Errorf("path %q: want one of %v", name, Names)
}

func (p *Path) onClose(f func()) { p.closers = append(p.closers, f) }

// Close ends everything that was made for p.
func (p *Path) Close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	p.closers = nil
}

// Known says whether there is a path of that name.
func Known(name string) bool { return slices.Contains(Names, name) }
