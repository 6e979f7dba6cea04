package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Writer writes rows in one of the formats.
type Writer func(w io.Writer, rows []Row) error

// JSON writes rows as an array with a row a line.
func JSON(w io.Writer, rows []Row) error {
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
	_, err := w.Write(append(b, "\n]\n"...))
	return err
}

// csvColumns are the columns of CSV: the keys of JSON, lat_us's with its name before them.
var csvColumns = []struct {
	name  string
	value func(Row) any
}{
	{"path", func(r Row) any { return r.Path }},
	{"op", func(r Row) any { return r.Op }},
	{"size", func(r Row) any { return r.Size }},
	{"depth", func(r Row) any { return r.Depth }},
	{"qps", func(r Row) any { return r.QPs }},
	{"processes", func(r Row) any { return r.Processes }},
	{"pattern", func(r Row) any { return r.Pattern }},
	{"wait", func(r Row) any { return r.Wait }},
	{"transport", func(r Row) any { return r.Transport }},
	{"bidirectional", func(r Row) any { return r.Bidir }},
	{"verified", func(r Row) any { return r.Verified }},
	{"seconds", func(r Row) any { return r.Seconds }},
	{"messages", func(r Row) any { return r.Messages }},
	{"msg_s", func(r Row) any { return r.Rate }},
	{"gbit_s", func(r Row) any { return r.Gbits }},
	{"lat_us_min", func(r Row) any { return r.Lat.Min }},
	{"lat_us_mean", func(r Row) any { return r.Lat.Mean }},
	{"lat_us_p50", func(r Row) any { return r.Lat.P50 }},
	{"lat_us_p90", func(r Row) any { return r.Lat.P90 }},
	{"lat_us_p99", func(r Row) any { return r.Lat.P99 }},
	{"lat_us_p999", func(r Row) any { return r.Lat.P999 }},
	{"lat_us_p9999", func(r Row) any { return r.Lat.P9999 }},
	{"lat_us_max", func(r Row) any { return r.Lat.Max }},
	{"cpu_ns_per_byte", func(r Row) any { return r.CPUPerByte }},
	{"cpu_us_per_msg", func(r Row) any { return r.CPUPerMsg }},
	{"allocs_per_msg", func(r Row) any { return r.Allocs }},
	{"syscalls_per_msg", func(r Row) any {
		if r.Syscalls == nil {
			return ""
		}
		return *r.Syscalls
	}},
	{"baseline", func(r Row) any { return r.Baseline }},
	{"ratio", func(r Row) any { return r.ratio(r.Ratio) }},
	{"ratio_min", func(r Row) any { return r.ratio(r.RatioMin) }},
	{"ratio_max", func(r Row) any { return r.ratio(r.RatioMax) }},
}

// ratio is v in a comparison, and nothing elsewhere.
func (r Row) ratio(v float64) any {
	if r.Baseline == "" {
		return ""
	}
	return v
}

// CSV writes rows with a line of names above them.
func CSV(w io.Writer, rows []Row) error {
	c := csv.NewWriter(w)
	line := make([]string, len(csvColumns))
	for i, col := range csvColumns {
		line[i] = col.name
	}
	_ = c.Write(line) // Error tells
	for _, r := range rows {
		for i, col := range csvColumns {
			switch v := col.value(r).(type) {
			case float64:
				line[i] = strconv.FormatFloat(v, 'g', -1, 64)
			default:
				line[i] = fmt.Sprint(v)
			}
		}
		_ = c.Write(line)
	}
	c.Flush()
	return c.Error()
}

// Benchmarks writes rows as `go test -bench` does, for benchstat. Rows of the same thing are
// samples of it.
func Benchmarks(goos, goarch string, procs int) Writer {
	return func(w io.Writer, rows []Row) error {
		if _, err := fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: github.com/vrnic/vrnic/cmd/vrnic-bench\n",
			goos, goarch); err != nil {
			return err
		}
		for _, r := range rows {
			if _, err := fmt.Fprintln(w, r.benchmark(procs)); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r Row) benchmark(procs int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "BenchmarkVrnic/path=%s/op=%s/size=%d/depth=%d/qps=%d/processes=%d/%s/%s/%s",
		r.Path, r.Op, r.Size, r.Depth, r.QPs, r.Processes,
		r.Pattern, r.Wait, r.Transport)
	if r.Bidir {
		b.WriteString("/bidir")
	}
	if r.Baseline != "" {
		fmt.Fprintf(&b, "/beside=%s", r.Baseline)
	}
	if procs != 1 {
		fmt.Fprintf(&b, "-%d", procs)
	}
	values := []struct {
		v    float64
		unit string
	}{
		{0, "ns/op"}, {r.Gbits * 1e9 / 8e6, "MB/s"},
		{r.Lat.P50 * 1e3, "p50-ns"}, {r.Lat.P99 * 1e3, "p99-ns"}, {r.Lat.P999 * 1e3, "p99.9-ns"},
		{r.Lat.P9999 * 1e3, "p99.99-ns"},
		{r.CPUPerMsg * 1e3, "cpu-ns/op"}, {r.Allocs, "allocs/op"},
	}
	if r.Rate > 0 {
		values[0].v = 1e9 / r.Rate
	}
	fmt.Fprintf(&b, "\t%d", r.Messages)
	for _, v := range values {
		fmt.Fprintf(&b, "\t%.6g %s", v.v, v.unit)
	}
	if r.Syscalls != nil {
		fmt.Fprintf(&b, "\t%.6g syscalls/op", *r.Syscalls)
	}
	if r.Baseline != "" {
		fmt.Fprintf(&b, "\t%.6g ratio", r.Ratio)
	}
	return b.String()
}

// Percentiles writes each row's whole distribution in microseconds, in HdrHistogram's text form.
func Percentiles(w io.Writer, rows []Row) error {
	for i, r := range rows {
		if r.Times == nil {
			continue
		}
		gap := "\n"
		if i == 0 {
			gap = ""
		}
		if _, err := fmt.Fprintf(w, "%s# %s %s %s depth %d QPs %d: microseconds\n", gap, r.Path, r.Op,
			Octets(r.Size), r.Depth, r.allQPs()); err != nil {
			return err
		}
		if err := r.Times.Print(w); err != nil {
			return err
		}
	}
	return nil
}
