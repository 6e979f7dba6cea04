package main

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/netstack"
)

// A plan is what the flags ask for.
type plan struct {
	paths    []string
	specs    []load.Spec // measured on each path
	count    int
	amount   load.Amount
	warmUp   time.Duration
	verify   bool
	syscalls bool
	opts     paths.Options
	// leftOut says why what nobody has asked for by name is missing.
	leftOut []string
}

// maxSpecs is where a plan is a mistake.
const maxSpecs = 10000

// planOf reads the flags. Its errors are wrong usage.
func planOf(c *cli.Context) (p plan, err error) {
	if p.paths, err = pathsOf(c); err != nil {
		return p, err
	}
	p.verify, p.syscalls = !c.Bool("no-verify"), c.Bool("syscalls")
	p.opts = paths.Options{Vrnic: c.String("vrnic"), Worker: selfCommand(workerName),
		MTU: c.Int("mtu"), Processes: 1, RoCE: c.Bool("roce")}
	if c.IsSet("processes") {
		if p.opts.Processes, err = parseNumber(c.String("processes")); err != nil ||
			p.opts.Processes > maxProcesses {
			return p, usagef("--processes %q: want 0 to %d", c.String("processes"), maxProcesses)
		}
	}
	if err := p.checkPaths(c); err != nil {
		return p, err
	}
	if err := p.readLength(c); err != nil {
		return p, err
	}
	return p, p.readSpecs(c)
}

// maxProcesses at each end: the daemon's sessions are limited.
const maxProcesses = 64

func pathsOf(c *cli.Context) ([]string, error) {
	if !c.IsSet("path") {
		if c.Bool("sctp") || c.Bool("roce") || c.Int("mtu") != 0 {
			return []string{"pair"}, nil
		}
		if c.IsSet("processes") {
			return []string{"ring"}, nil
		}
		return standardPaths, nil
	}
	for _, name := range c.StringSlice("path") {
		if !paths.Known(name) {
			return nil, usagef("--path %q: want one of %s", name, strings.Join(paths.Names, ", "))
		}
	}
	return c.StringSlice("path"), nil
}

// checkPaths refuses what a path cannot do.
func (p *plan) checkPaths(c *cli.Context) error {
	for _, name := range p.paths {
		switch {
		case c.Bool("sctp") && paths.OneDevice(name):
			return usagef("--sctp: the path %s is on one device, which needs no transport; take pair, "+
				"wire or tap", name)
		case c.IsSet("no-crc") && c.Bool("sctp"):
			return usagef("--no-crc: SCTP's checksum cannot be left out")
		case c.IsSet("processes") && !paths.HasDaemon(name):
			return usagef("--processes: the devices of the path %s are vrnic-bench's own, which no other "+
				"process reaches; take ring, host or tap, or --qps", name)
		case p.opts.MTU != 0 && !paths.HasMTU(name):
			return usagef("--mtu: the path %s has no packets, or the host's; take pair, wire or tap", name)
		}
	}
	return checkMTU(p.opts.MTU)
}

func checkMTU(mtu int) error {
	if mtu != 0 && (mtu < netstack.MinMTU || mtu > netstack.MaxMTU) {
		return usagef("--mtu %d: want %d to %d", mtu, netstack.MinMTU, netstack.MaxMTU)
	}
	return nil
}

// readLength reads for how long each measurement is.
func (p *plan) readLength(c *cli.Context) error {
	p.amount = load.Amount{Time: c.Duration("time"), Messages: c.Int("messages")}
	p.warmUp, p.count = c.Duration("warmup"), c.Int("count")
	switch {
	case c.IsSet("messages") && c.IsSet("time"):
		return usagef("--time and --messages: each is where a measurement ends; take one")
	case c.IsSet("messages") && p.amount.Messages < 1:
		return usagef("--messages %d: want more than 0", p.amount.Messages)
	case p.amount.Time <= 0:
		return usagef("--time %v: want more than 0", p.amount.Time)
	case p.warmUp < 0:
		return usagef("--warmup %v: want 0 or more", p.warmUp)
	case p.count < 1:
		return usagef("--count %d: want more than 0", p.count)
	}
	if p.amount.Messages > 0 {
		p.amount.Time = 0
		if !c.IsSet("warmup") {
			p.warmUp = 0
		}
	}
	return nil
}

// readSpecs makes all combinations.
func (p *plan) readSpecs(c *cli.Context) error {
	ops, err := opsOf(c)
	if err != nil {
		return err
	}
	sizes, err := listOf(c, "size", parseSize, standardSizes...)
	if err != nil {
		return err
	}
	depths, err := listOf(c, "depth", parseNumber, 0)
	if err != nil {
		return err
	}
	qps, err := listOf(c, "qps", parseNumber, 1)
	if err != nil {
		return err
	}
	pattern := c.String("pattern")
	if c.IsSet("pattern") && !slices.Contains(load.Patterns, load.Pattern(pattern)) {
		return usagef("--pattern %q: want one of %s", pattern, names(load.Patterns))
	}
	if w := load.Wait(c.String("wait")); !slices.Contains(load.Waits, w) {
		return usagef("--wait %q: want one of %s", w, names(load.Waits))
	}
	if !slices.ContainsFunc(ops, func(op load.Op) bool {
		return !op.Atomic()
	}) && c.IsSet("size") && !slices.Equal(sizes, []int{load.MinSize}) {
		return usagef("--size: an atomic has %d octets", load.MinSize)
	}
	seen := make(map[load.Spec]bool)
	for _, n := range qps {
		for _, size := range sizes {
			for _, op := range ops {
				for _, depth := range depths {
					spec := load.Spec{
						Op: op, Size: size, QPs: n, Bidir: c.Bool("bidir"), Wait: load.Wait(c.String("wait")),
						RoCE: c.Bool("roce"), SCTP: c.Bool("sctp"), NoCRC: c.Bool("no-crc"),
					}
					if op.Atomic() {
						spec.Size = load.MinSize
					}
					if spec.Depth = depth; !c.IsSet("depth") {
						spec.Depth = 1
						if spec.Size > deepFrom {
							spec.Depth = standardDepth
						}
					}
					if spec.Pattern = load.Pattern(pattern); pattern == "" {
						spec.Pattern = load.PatternFor(op, spec.Depth)
						if spec.Bidir {
							spec.Pattern = load.Stream
						}
					}
					if seen[spec] {
						continue // atomics, of each size
					}
					seen[spec] = true
					switch err := spec.Check(); {
					case err == nil:
						p.specs = append(p.specs, spec)
					case c.IsSet("op") || !otherOp(spec):
						return usagef("%v", err)
					default:
						p.leftOut = append(p.leftOut, err.Error())
					}
				}
			}
		}
	}
	switch n := len(p.specs); {
	case n == 0:
		return usagef("%s", p.leftOut[0])
	case n > maxSpecs:
		return usagef("%d combinations of --op, --size, --depth and --qps: at most %d", n, maxSpecs)
	}
	return nil
}

// otherOp says whether another operation could do what spec's cannot.
func otherOp(spec load.Spec) bool {
	spec.Op = load.Send
	return spec.Check() == nil
}

// length is about how long the plan takes.
func (p *plan) length() time.Duration {
	return time.Duration(p.count*len(p.paths)*len(p.specs)) * (p.amount.Time + p.warmUp)
}
