package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/progress"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
	"github.com/vrnic/vrnic/internal/cpuprofile"
)

var runFormats = append(rowFormats[:len(rowFormats):len(rowFormats)], percentiles)

func runFlags() []cli.Flag {
	var flags []cli.Flag
	for _, fs := range [][]cli.Flag{whatFlags(), lengthFlags(), outputFlags(runFormats),
		{plotFlag(), syscallsFlag(), vrnicFlag(), cpuprofile.Flag()}} {
		flags = append(flags, fs...)
	}
	return flags
}

func runAction(c *cli.Context) (err error) {
	if c.Args().Present() {
		return usagef("unknown command %q; see vrnic-bench --help", c.Args().First())
	}
	p, err := planOf(c)
	if err != nil {
		return err
	}
	out, stop, err := begin(c, runFormats)
	if err != nil {
		return err
	}
	defer stop()
	for _, why := range p.leftOut {
		fmt.Fprintf(c.App.ErrWriter, "vrnic-bench: left out: %s\n", why)
	}
	r := runner{c: c, p: p, out: out, progress: progress.New(c.App.ErrWriter, p.length())}
	defer r.progress.Done()
	if !out.quiet {
		r.print(heading(p.syscalls))
	}
	for _, name := range p.paths {
		if err := r.onPath(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	r.progress.Done()
	return out.write(c.App.Writer, r.rows)
}

func heading(syscalls bool) string {
	if syscalls {
		return report.Heading + report.SyscallHeading
	}
	return report.Heading
}

// A runner has the rows of a run.
type runner struct {
	c        *cli.Context
	p        plan
	out      outputs
	progress *progress.Line
	rows     []report.Row
}

// print prints a line of the table.
func (r *runner) print(line string) {
	r.progress.Clear()
	fmt.Fprintln(r.c.App.Writer, line)
}

// onPath measures all specs on a path.
func (r *runner) onPath(name string) error {
	path, err := paths.Open(name, r.p.opts)
	if err != nil {
		return err
	}
	defer path.Close()
	for _, spec := range r.p.specs {
		for range r.p.count {
			if err := r.measure(path, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure adds one row.
func (r *runner) measure(path *paths.Path, spec load.Spec) error {
	total := len(r.p.paths) * len(r.p.specs) * r.p.count
	r.progress.Step(fmt.Sprintf("%d of %d: %s %s, %s, depth %d", len(r.rows)+1, total, path.Name,
		spec.Op, report.Octets(spec.Size), spec.Depth))
	b, err := newBench(r.c.Context, path, spec, r.p)
	if err != nil {
		return err
	}
	defer b.Close()
	row, err := b.measure(r.c.Context, r.p.amount)
	if err != nil {
		return err
	}
	r.rows = append(r.rows, row)
	if !r.out.quiet {
		r.print(row.Line())
	}
	return nil
}

// begin is what a measurement begins with: files that can be written, and a profile, if one is
// asked for.
func begin(c *cli.Context, formats []format) (out outputs, stop func(), err error) {
	if out, err = outputsOf(c, formats); err == nil {
		stop, err = cpuprofile.Start(c.String(cpuprofile.Name))
	}
	return out, stop, err
}
