// Package paths makes the pairs of devices that vrnic-bench measures between.
//
//	loop  two QPs of one device in this process
//	pair  two devices in this process, on two stacks joined by a switch
//	wire  two devices in this process, each with a TAP in a namespace of its own, whose bridges are
//	      joined (root)
//	ring  two QPs of one device of a daemon, another process, each of a client process of its own
//	direct  the same, of a daemon that lets messages go without it: vrnic up --direct=user
//	host  two daemons on addresses of the host's loopback, and client processes of each
//	tap   two daemons with a TAP each, as wire has them, and client processes of each (root)
package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/worker"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// A Path is two devices that reach each other.
type Path struct {
	Name string
	opts Options

	addrB netip.Addr // B's, for A to connect to
	a, b  side

	pids    []int         // of the daemons
	control []*shm.Client // of the daemons, to ask what they have allocated
	workers map[place]*worker.Process

	lab     *netlab.Lab       // of wire and tap
	stacks  []*netstack.Stack // of pair and wire
	closers []func()          // in the order in which things were made
}

// A side is where one end is: its devices as this process has them, and where workers find them.
type side struct {
	iwarp, roce dev // roce is nil unless Options.RoCE is set
	socket      string
}

// A dev opens a device. Those of daemons are opened here only when they are wanted.
type dev = func() (rdma.Device, error)

// A place is that of a worker: an end of the n-th pair, on the device that speaks RoCE or not.
type place struct {
	role load.Role
	n    int
	roce bool
}

// Names are the paths there are; those for root are the last.
var Names = []string{"loop", "pair", "ring", "direct", "host", "wire", "tap"}

// Known says whether there is a path of that name.
func Known(name string) bool { return slices.Contains(Names, name) }

// NeedsRoot says whether only root can open the path of that name.
func NeedsRoot(name string) bool { return name == "wire" || name == "tap" }

// HasDaemon says whether its devices are a daemon's, so that processes can be its clients.
func HasDaemon(name string) bool {
	return name == "ring" || name == "direct" || name == "host" || name == "tap"
}

// OneDevice says whether both ends are on one device, with no network in between.
func OneDevice(name string) bool { return name == "loop" || name == "ring" || name == "direct" }

// HasMTU says whether the MTU can be chosen: there is a network, and not the host's.
func HasMTU(name string) bool { return !OneDevice(name) && name != "host" }

// Options say how to make a path.
type Options struct {
	Vrnic string // the vrnic program, for ring and tap; "" looks for it, see proc.FindVrnic
	// Processes is how many client processes each end has, on paths with daemons; 0: this process is
	// both ends.
	Processes int
	// Worker is the program and arguments that begin a worker; socket and device are put behind it.
	Worker []string
	MTU    int // where there is a network; 0: the default
	// RoCE has a device of RoCE beside each one of iWARP, with the same address.
	RoCE bool
}

// Open makes the path of that name.
func Open(name string, o Options) (p *Path, err error) {
	open := map[string]func(*Path) error{
		"loop": (*Path).openLoop, "pair": (*Path).openPair, "ring": (*Path).openRing,
		"wire": (*Path).openWire, "tap": (*Path).openTap, "host": (*Path).openHost,
		"direct": (*Path).openDirect,
	}[name]
	if open == nil {
		return nil, fmt.Errorf("path %q: want one of %s", name, strings.Join(Names, ", "))
	}
	if HasDaemon(name) {
		o.Processes = max(o.Processes, 0)
	} else {
		o.Processes = 0
	}
	if !HasMTU(name) {
		o.MTU = 0
	}
	p = &Path{Name: name, opts: o, workers: make(map[place]*worker.Process)}
	if err := open(p); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// OnClose has f called by Close, before what was made until now goes.
func (p *Path) OnClose(f func()) { p.onClose(f) }

// Lab is the network of wire and tap, else nil.
func (p *Path) Lab() *netlab.Lab { return p.lab }

// Stacks are those of the devices of pair and wire, A's first.
func (p *Path) Stacks() []*netstack.Stack { return p.stacks }

// AddrB is the address of end B's device.
func (p *Path) AddrB() netip.Addr { return p.addrB }

func (p *Path) onClose(f func()) { p.closers = append(p.closers, f) }

// Close ends everything that was made for p.
func (p *Path) Close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	p.closers = nil
}

// PIDs are the processes of the path, this one excepted.
func (p *Path) PIDs() []int {
	pids := slices.Clone(p.pids)
	for _, w := range p.workers {
		pids = append(pids, w.PID())
	}
	return pids
}

// DevicePIDs are the processes that the devices are in: the daemons, or this one.
func (p *Path) DevicePIDs() []int {
	if len(p.pids) == 0 {
		return []int{os.Getpid()}
	}
	return slices.Clone(p.pids)
}

// DaemonAllocs is how many objects the daemons have allocated on their heaps since they began.
func (p *Path) DaemonAllocs() (sum uint64, err error) {
	for _, c := range p.control {
		rows, err := c.List("daemon")
		if err != nil {
			return 0, fmt.Errorf("what the daemon has allocated (is this vrnic-bench of the same "+
				"version?): %w", err)
		}
		var row struct{ Allocs *uint64 }
		if len(rows) != 1 || json.Unmarshal(rows[0], &row) != nil || row.Allocs == nil {
			return 0, fmt.Errorf("the daemon does not tell what it has allocated: %q", rows)
		}
		sum += *row.Allocs
	}
	return sum, nil
}

// Processes is how many client processes each end has; 0: the ends are in this process.
func (p *Path) Processes() int { return p.opts.Processes }

// Device is A's that speaks iWARP, in this process.
func (p *Path) Device() (rdma.Device, error) { return p.a.iwarp() }

// Connect makes the pairs that measure spec: one, or one for each client process of an end.
func (p *Path) Connect(ctx context.Context, spec load.Spec) (pairs []*load.Pair, err error) {
	spec.Elsewhere = HasDaemon(p.Name)
	defer func() {
		if err != nil {
			for _, pair := range pairs {
				pair.Close()
			}
			pairs = nil
		}
	}()
	for n := range max(p.opts.Processes, 1) {
		a, err := p.end(ctx, spec, load.A, n)
		if err != nil {
			return pairs, err
		}
		b, err := p.end(ctx, spec, load.B, n)
		if err != nil {
			a.Close()
			return pairs, err
		}
		pair, err := load.Connect(ctx, a, b, p.addrB, spec)
		if err != nil {
			return pairs, err
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}

// end makes an end of the n-th pair.
func (p *Path) end(ctx context.Context, spec load.Spec, role load.Role, n int) (load.End, error) {
	at := &p.a
	if role == load.B {
		at = &p.b
	}
	if spec.RoCE && at.roce == nil {
		return nil, fmt.Errorf("the path %s was made without devices of RoCE", p.Name)
	}
	if p.opts.Processes == 0 {
		open := at.iwarp
		if spec.RoCE {
			open = at.roce
		}
		dev, err := open()
		if err != nil {
			return nil, err
		}
		e, err := load.NewLocal(dev, spec, role)
		if err != nil {
			return nil, err // not e: a nil *Local is no nil End
		}
		return e, nil
	}
	w, err := p.worker(at.socket, place{role, n, spec.RoCE})
	if err != nil {
		return nil, fmt.Errorf("client process %d of end %s: %w", n+1, role, err)
	}
	return w.Open(ctx, spec, role)
}

// worker is the one at pl, a client of the daemon at socket.
func (p *Path) worker(socket string, pl place) (*worker.Process, error) {
	if w := p.workers[pl]; w != nil {
		return w, nil
	}
	args := append(p.opts.Worker[1:len(p.opts.Worker):len(p.opts.Worker)], "--socket", socket)
	if pl.roce {
		args = append(args, "--device", roceDevice)
	}
	w, err := worker.Start(p.opts.Worker[0], args...)
	if err != nil {
		return nil, err
	}
	p.onClose(w.Close)
	p.workers[pl] = w
	return w, nil
}
