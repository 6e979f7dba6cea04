package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/badnet"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

const (
	badnetSeeds = 3
	badnetTime  = time.Second
)

// The networks of badnet's table.
var (
	badnetLoss   = []string{"0", "0.1", "1", "5", "20"}
	badnetBurst  = []string{"1", "8"}
	badnetRTT    = []string{"100us", "10ms", "50ms"}
	badnetJitter = []string{"0", "200us", "5ms"}
)

func badnetCommand() *cli.Command {
	list := func(name, usage string, def []string) cli.Flag {
		return &cli.StringSliceFlag{Name: name, Usage: usage, DefaultText: strings.Join(def, ",")}
	}
	return &cli.Command{
		Name:  "badnet",
		Usage: "measures goodput over bad networks, beside the kernel's TCP (root)",
		UsageText: "vrnic-bench badnet [--loss PERCENT,...] [--burst N,...] [--rtt D,...] " +
			"[--jitter D,...] [--rate R] [--seeds N] [--only tcp|sctp,...] [--json FILE]",
		Description: badnetDescription,
		Flags: []cli.Flag{
			list("loss", "`PERCENT` of all frames that are lost", badnetLoss),
			list("burst", "frames that are lost in a row, `N` in the mean", badnetBurst),
			list("rtt", "round trip `D`uration", badnetRTT),
			list("jitter", "what a frame may take longer, `D`uration", badnetJitter),
			&cli.Float64Flag{Name: "rate", Value: impair.Rate / 1e6,
				Usage: "the bottleneck has `R` Mbit/s"},
			&cli.IntFlag{Name: "seeds", Value: badnetSeeds, Usage: "`N` measurements of each"},
			&cli.DurationFlag{Name: "time", Value: badnetTime,
				Usage: "measure for `D` at least, and for 30 round trips"},
			&cli.StringSliceFlag{Name: "only", Usage: "`T`ransports of vrnic: tcp, sctp (default: both)"},
			&cli.StringFlag{Name: "json",
				Usage: "write all measurements as JSON to `FILE`; - is standard output, instead of the table"},
			vrnicFlag(),
		},
		Action: badnetAction,
	}
}

const badnetDescription = `Two daemons write 1 MiB Writes, 16 outstanding, one way, over TCP and
over SCTP; two kernels do the same over TCP, with CUBIC and the sizes of buffers that they have.

Between them is a program that takes frames one by one from a TAP and gives them to another: through
a bottleneck of 1 Gbit/s, or what --rate says, with a queue of 1000 frames (1514000 octets: 12 ms at
1 Gbit/s), with half of the round trip as delay, and as much longer for each frame by itself as the
jitter says (which reorders, as netem's does), and without those that are lost. Both directions are
as bad. What becomes of the n-th frame hangs on the seed.

Loss comes frame by frame (burst 1), or in bursts of so many frames in the mean, with the same share
of all frames lost (Gilbert and Elliott). A connection is made over the bad network, has 15 round
trips and at least 0.2 s to find out about it, and is measured for 30 and at least a second; payload
that is at the receiver counts. Each measurement has new daemons and connections; kernel, TCP and
SCTP take turns, for each seed.

Goodputs are in Mbit/s, medians of the seeds; busy is what all processors of the machine did
meanwhile, also for others; ratios are vrnic by kernel, median [lowest..highest]. A row that ends
in ! is perhaps limited by this machine, and says how; what seems to be is measured once more.
--vrnic names another build, to compare with. JSON has each measurement, with what the bridge has
lost, and how late and how busy it was.`

// A badPlan is what the flags ask for.
type badPlan struct {
	cells []impair.Cell
	seeds int
	least time.Duration
	only  []string
}

func badPlanOf(c *cli.Context) (p badPlan, err error) {
	if c.Args().Present() {
		return p, usagef("unexpected argument %q", c.Args().First())
	}
	values := func(flag string, def []string, one func(string) (float64, error), lo,
		hi float64) (vs []float64) {
		texts := def
		if c.IsSet(flag) {
			texts = c.StringSlice(flag)
		}
		for _, s := range texts {
			v, e := one(s)
			if err == nil && (e != nil || !(v >= lo && v <= hi)) {
				err = usagef("--%s %q: want %v to %v", flag, s, lo, hi)
			}
			vs = append(vs, v)
		}
		return vs
	}
	number := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
	seconds := func(s string) (float64, error) {
		d, err := time.ParseDuration(s)
		return d.Seconds(), err
	}
	duration := func(s float64) time.Duration {
		return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
	}
	losses := values("loss", badnetLoss, number, 0, 90)
	bursts := values("burst", badnetBurst, number, 1, 1000)
	rtts := values("rtt", badnetRTT, seconds, 0, 10)
	jitters := values("jitter", badnetJitter, seconds, 0, 10)
	rate := c.Float64("rate")
	if !(rate >= 1 && rate <= 1e5) {
		return p, usagef("--rate %v: want 1 to 100000", rate)
	}
	if p.seeds = c.Int("seeds"); p.seeds < 1 {
		return p, usagef("--seeds %d: want more than 0", p.seeds)
	}
	if p.least = c.Duration("time"); p.least <= 0 {
		return p, usagef("--time %v: want more than 0", p.least)
	}
	p.only = []string{"tcp", "sctp"}
	if c.IsSet("only") {
		p.only = c.StringSlice("only")
	}
	for _, s := range p.only {
		if s != "tcp" && s != "sctp" {
			return p, usagef("--only %q: want tcp or sctp", s)
		}
	}
	if err != nil {
		return p, err
	}
	for _, loss := range losses {
		for i, burst := range bursts {
			if loss == 0 && i > 0 {
				continue // nothing is lost in bursts either
			}
			for _, rtt := range rtts {
				for _, jitter := range jitters {
					p.cells = append(p.cells, impair.Cell{Loss: loss, Burst: burst, RTT: duration(rtt),
						Jitter: duration(jitter), Rate: rate * 1e6})
				}
			}
		}
	}
	return p, nil
}

func badnetAction(c *cli.Context) error {
	p, err := badPlanOf(c)
	if err != nil {
		return err
	}
	out, stop, err := begin(c, []format{{flag: "json"}})
	if err != nil {
		return err
	}
	defer stop()
	if os.Geteuid() != 0 {
		return fmt.Errorf("badnet makes network namespaces and TAPs, for which it must run as root")
	}
	var length time.Duration
	for _, cell := range p.cells {
		length += time.Duration(p.seeds*(1+len(p.only))) * (cell.WarmUp() + cell.Length(p.least) +
			time.Second/4)
	}
	bar := progress.New(c.App.ErrWriter, length)
	defer bar.Done()
	print := func(line string) {
		if !out.quiet {
			bar.Clear()
			fmt.Fprintln(c.App.Writer, line)
		}
	}
	results, err := p.measure(c, bar, print)
	if err != nil {
		return err
	}
	bar.Done()
	for _, line := range badMatrix(results, p) {
		print(line)
	}
	return out.writeJSON(c.App.Writer, results)
}

// measure measures all cells, and prints a row of each.
func (p badPlan) measure(c *cli.Context, bar *progress.Line, print func(string)) (
	results []badResult,
	err error) {
	program := c.String("vrnic")
	if program == "" {
		found, remove, err := proc.FindVrnic()
		if err != nil {
			return nil, err
		}
		defer remove()
		program = found
	}
	k, err := badnet.NewKernel(selfCommand(bridgeName))
	if err != nil {
		return nil, err
	}
	defer k.Close()
	v, err := badnet.NewVrnic(program, selfCommand(bridgeName))
	if err != nil {
		return nil, err
	}
	defer v.Close()
	print(badHeading(p))
	for i, cell := range p.cells {
		bar.Step(fmt.Sprintf("%d of %d: %v", i+1, len(p.cells), cell))
		r := badResult{Cell: cell}
		for seed := range uint64(p.seeds) {
			run := badnet.Run{Cell: cell, Seed: seed + 1, Least: p.least}
			r.Kernel.add(undisturbed(run, func() (badnet.Goodput, error) {
				return k.Measure(c.Context, run)
			}))
			for _, kind := range p.only {
				r.run(kind).add(undisturbed(run, func() (badnet.Goodput, error) {
					return v.Measure(c.Context, run, kind == "sctp")
				}))
			}
			if err := c.Context.Err(); err != nil {
				return nil, err
			}
		}
		results = append(results, r)
		print(r.line(p))
	}
	return results, nil
}

// undisturbed measures once more if something else on the machine was in the way, and takes what
// was disturbed less.
func undisturbed(run badnet.Run, measure func() (badnet.Goodput, error)) (badnet.Goodput, error) {
	g, err := measure()
	if err != nil || g.Limited(run.Cell) == "" {
		return g, err
	}
	again, err := measure()
	if err != nil || again.Limited(run.Cell) != "" && again.Stolen > g.Stolen {
		return g, nil
	}
	return again, nil
}
