package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/plot"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

// A format is a flag that names a file for the rows.
type format struct {
	flag, usage string
	write       report.Writer
}

var (
	rowFormats = []format{
		{"json", "as JSON", report.JSON},
		{"csv", "as CSV", report.CSV},
		{"benchstat", "as Go benchmarks, for benchstat", report.Benchmarks(runtime.GOOS, runtime.GOARCH,
			runtime.NumCPU())},
	}
	percentiles = format{"percentiles", "with all percentiles, as HdrHistogram prints them",
		report.Percentiles}
)

// outputFlags name the files for formats. Plots are drawn of measurements only, not of ratios.
func outputFlags(formats []format) (flags []cli.Flag) {
	for _, f := range formats {
		flags = append(flags, &cli.StringFlag{Name: f.flag, Usage: "write the rows to `FILE` " + f.usage +
			"; - is standard output, instead of the table"})
	}
	return flags
}

func plotFlag() cli.Flag {
	return &cli.StringFlag{Name: "plot",
		Usage: "draw NAME-latency.EXT and NAME-bandwidth.EXT for `NAME.EXT`, EXT being svg or png"}
}

// outputs are the files that the flags ask for.
type outputs struct {
	files []file
	plots string // NAME.EXT, or ""
	quiet bool   // standard output is one of the files
}

type file struct {
	name string
	format
}

// outputsOf reads the flags. It writes nothing, but refuses what cannot be written, before there
// are rows.
func outputsOf(c *cli.Context, formats []format) (o outputs, err error) {
	for _, f := range formats {
		name := c.String(f.flag)
		if name == "" {
			continue
		}
		if name == "-" {
			if o.quiet {
				return o, usagef("--%s -: standard output is taken by another format", f.flag)
			}
			o.quiet = true
		} else if err := writable(name); err != nil {
			return o, fmt.Errorf("--%s: %w", f.flag, err)
		}
		o.files = append(o.files, file{name, f})
	}
	if o.plots = c.String("plot"); o.plots != "" {
		if ext := filepath.Ext(o.plots); !slices.Contains(plot.Formats, ext) ||
			len(filepath.Base(o.plots)) == len(ext) {
			return o, usagef("--plot %q: want a file name that ends in %s", o.plots,
				strings.Join(plot.Formats, " or "))
		}
		if err := writable(o.plots); err != nil {
			return o, fmt.Errorf("--plot: %w", err)
		}
	}
	return o, nil
}

// writable says whether there is a directory for the file name.
func writable(name string) error {
	dir := filepath.Dir(name)
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = fmt.Errorf("%s is no directory", dir)
	}
	return err
}

// each has write called for each file.
func (o outputs) each(stdout io.Writer, write func(io.Writer, file) error) (err error) {
	for _, f := range o.files {
		if f.name == "-" {
			err = write(stdout, f)
		} else {
			err = create(f.name, func(w io.Writer) error { return write(w, f) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeJSON writes v, which is not rows, to all files.
func (o outputs) writeJSON(stdout io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return o.each(stdout, func(w io.Writer, _ file) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}

// write writes rows to all files.
func (o outputs) write(stdout io.Writer, rows []report.Row) error {
	if err := o.each(stdout, func(w io.Writer, f file) error { return f.write(w, rows) }); err != nil {
		return err
	}
	if o.plots == "" {
		return nil
	}
	for _, p := range []struct {
		name string
		draw func([]report.Row) (plot.Chart, bool, error)
	}{{"latency", plot.Latency}, {"bandwidth", plot.Bandwidth}} {
		chart, ok, err := p.draw(rows)
		if err != nil {
			return fmt.Errorf("plot %s: %w", p.name, err)
		}
		if !ok {
			continue
		}
		ext := filepath.Ext(o.plots)
		drawing, err := chart.Draw(ext)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(o.plots, ext) + "-" + p.name + ext
		if err := create(name, func(w io.Writer) error {
			_, err := drawing.WriteTo(w)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// create makes the file name with what f writes.
func create(name string, f func(io.Writer) error) error {
	w, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := f(w); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
