// Package report makes rows of measurements, and writes them: for people, as JSON, as CSV, as Go
// benchmark text, as percentiles.
package report

import (
	"fmt"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
)

// A Row is one measurement. Its JSON is part of the command line's contract: keys are added, never
// changed.
type Row struct {
	Path     string  `json:"path"`
	Op       string  `json:"op"`
	Size     int     `json:"size"` // octets of a message
	Depth    int     `json:"depth"`
	Seconds  float64 `json:"seconds"`
	Messages uint64  `json:"messages"` // in both directions
	Gbits    float64 `json:"gbit_s"`
	Lat      Lat     `json:"lat_us"`

	CPUPerByte float64 `json:"cpu_ns_per_byte"`
	CPUPerMsg  float64 `json:"cpu_us_per_msg"`
	// of vrnic-bench's processes and of daemons; not those of any run
	Allocs float64 `json:"allocs_per_msg"`

	Syscalls  *float64 `json:"syscalls_per_msg,omitempty"` // where they were counted
	Rate      float64  `json:"msg_s"`
	QPs       int      `json:"qps"`       // of each client process
	Processes int      `json:"processes"` // clients of each end; 0: both ends are in vrnic-bench
	Pattern   string   `json:"pattern"`
	Wait      string   `json:"wait"`
	Transport string   `json:"transport"` // tcp, sctp, roce, or none on one device
	Bidir     bool     `json:"bidirectional"`
	Verified  bool     `json:"verified"` // the data were compared

	Baseline string  `json:"baseline,omitempty"`  // of a comparison: what it is compared with,
	Ratio    float64 `json:"ratio,omitempty"`     // this divided by that, the median of the rounds,
	RatioMin float64 `json:"ratio_min,omitempty"` // the lowest,
	RatioMax float64 `json:"ratio_max,omitempty"` // and the highest

	Times *hist.Hist `json:"-"` // all of Lat; it is nil in a Row that was read
}

// Lat holds times in microseconds.
type Lat struct {
	Min   float64 `json:"min"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	P9999 float64 `json:"p9999"`
	Max   float64 `json:"max"`
}

// latOf summarizes h.
func latOf(h *hist.Hist) Lat {
	q := func(q float64) float64 { return micros(h.Quantile(q)) }
	return Lat{
		Min: micros(h.Min()), Mean: micros(h.Mean()), P50: q(0.5), P90: q(0.9), P99: q(0.99),
		P999: q(0.999), P9999: q(0.9999),
		Max: micros(h.Max()),
	}
}

// NewRow makes the row of a measurement of spec on path that came to r and cost c. On a path of one
// device of iWARP there is no transport.
func NewRow(path string, oneDevice bool, processes int, spec load.Spec, r load.Result,
	c meter.Cost) Row {
	row := Row{
		Path: path, Op: string(spec.Op), Size: spec.Size, Depth: spec.Depth, QPs: spec.QPs,
		Processes: processes,
		Pattern:   string(spec.Pattern), Wait: string(spec.Wait), Bidir: spec.Bidir, Transport: "tcp",
		Seconds: r.Elapsed().Seconds(), Messages: r.Messages, Gbits: r.BitsPerSecond() / 1e9,
		Lat: latOf(r.Times), Times: r.Times,
	}
	switch {
	case spec.RoCE:
		row.Transport = "roce"
	case oneDevice:
		row.Transport = "none"
	case spec.SCTP:
		row.Transport = "sctp"
	}
	if n := float64(r.Messages); n > 0 {
		row.CPUPerMsg = micros(c.CPU) / n
		row.CPUPerByte = float64(c.CPU) / float64(r.Octets)
		row.Allocs = float64(c.Allocs) / n
		if c.Counted {
			calls := float64(c.Syscalls) / n
			row.Syscalls = &calls
		}
		if row.Seconds > 0 {
			row.Rate = n / row.Seconds
		}
	}
	return row
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Octets is n with a binary unit where it fits.
func Octets(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
