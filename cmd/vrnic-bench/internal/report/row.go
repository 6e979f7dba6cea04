// Package report makes rows of measurements, and prints them.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
)

// A Row is one measurement. Its JSON is part of the command line's contract.
type Row struct {
	Path     string  `json:"path"`
	Op       string  `json:"op"`
	Size     int     `json:"size"`  // octets of a message
	Depth    int     `json:"depth"` // 1: a ping-pong, but for read
	Seconds  float64 `json:"seconds"`
	Messages uint64  `json:"messages"` // in both directions
	Gbits    float64 `json:"gbit_s"`
	Lat      Lat     `json:"lat_us"`

	CPUPerByte float64 `json:"cpu_ns_per_byte"`
	CPUPerMsg  float64 `json:"cpu_us_per_msg"`
	Allocs     float64 `json:"allocs_per_msg"` // of this process

	Baseline string  `json:"baseline,omitempty"` // of a comparison: what it is compared with,
	Ratio    float64 `json:"ratio,omitempty"`    // and this divided by that
}

// Lat holds times in microseconds.
type Lat struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// A Meter measures what a measurement costs. CPU time is that of this process and of others.
type Meter struct {
	others func() time.Duration
	cpu    time.Duration
	allocs uint64
}

// StartMeter starts measuring. others returns the CPU time of other processes; it may be nil.
func StartMeter(others func() time.Duration) *Meter {
	if others == nil {
		others = func() time.Duration { return 0 }
	}
	m := &Meter{others: others}
	m.cpu, m.allocs = m.read()
	return m
}

func (m *Meter) read() (cpu time.Duration, allocs uint64) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err == nil {
		cpu = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	return cpu + m.others(), s[0].Value.Uint64()
}

// Row ends the measurement of spec on path and makes a row of it.
func (m *Meter) Row(path string, spec load.Spec, r load.Result) Row {
	cpu, allocs := m.read()
	row := Row{
		Path: path, Op: string(spec.Op), Size: spec.Size, Depth: spec.Depth,
		Seconds: r.Elapsed.Seconds(), Messages: r.Messages, Gbits: r.BitsPerSecond(spec.Size) / 1e9,
		Lat: Lat{
			P50: micros(r.Times.Quantile(0.5)), P90: micros(r.Times.Quantile(0.9)), P99: micros(r.Times.Quantile(0.99)),
			P999: micros(r.Times.Quantile(0.999)), Max: micros(r.Times.Max()),
		},
	}
	if n := float64(r.Messages); n > 0 {
		row.CPUPerMsg = micros(cpu-m.cpu) / n
		row.CPUPerByte = float64(cpu-m.cpu) / n / float64(spec.Size)
		row.Allocs = float64(allocs-m.allocs) / n
	}
	return row
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// WriteJSON writes rows to the file name, "-" for standard output, as an array with a row a line.
func WriteJSON(name string, stdout io.Writer, rows []Row) error {
	b := []byte("[")
	for i, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, "\n  "...), line...)
	}
	b = append(b, "\n]\n"...)
	if name == "-" {
		_, err := stdout.Write(b)
		return err
	}
	return os.WriteFile(name, b, 0o644)
}

// Heading heads lines of Line.
const Heading = "path  op         size  depth   messages    Gbit/s  us:  p50      p90      p99    p99.9  cpu ns/B  us/msg  allocs/msg"

// Line is r for people.
func (r Row) Line() string {
	return fmt.Sprintf("%-5s %-5s %9s %6d %10d %9.3f %9.1f %8.1f %8.1f %8.1f  %8.3f %7.2f %11.3f",
		r.Path, r.Op, Octets(r.Size), r.Depth, r.Messages, r.Gbits, r.Lat.P50, r.Lat.P90, r.Lat.P99, r.Lat.P999,
		r.CPUPerByte, r.CPUPerMsg, r.Allocs)
}

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
