package report

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
)

func TestRowOfMeasurement(t *testing.T) {
	r := load.Result{Messages: 10, Octets: 10_000, Start: time.Minute,
		End: time.Minute + 2*time.Second, Times: hist.New()}
	for range 9 {
		r.Times.Add(50 * time.Microsecond)
	}
	r.Times.Add(100 * time.Microsecond)
	spec := load.Spec{Op: load.Write, Size: 1000, Depth: 4, QPs: 3, Pattern: load.Stream,
		Wait: load.Poll, Bidir: true, SCTP: true}
	row := NewRow("pair", false, 2, spec, r, meter.Cost{CPU: 640 * time.Microsecond, Allocs: 30,
		Syscalls: 15, Counted: true})
	calls := 1.5
	want := Row{
		Path: "pair", Op: "write", Size: 1000, Depth: 4, Seconds: 2, Messages: 10,
		Gbits:      10_000 * 8 / 2e9,
		CPUPerByte: 64, CPUPerMsg: 64, Allocs: 3, Syscalls: &calls, Rate: 5, QPs: 3, Processes: 2,
		Pattern: "stream", Wait: "poll",
		Transport: "sctp", Bidir: true,
		Lat: Lat{Min: 50, Mean: 55, P50: row.Lat.P50, P90: row.Lat.P90, P99: 100, P999: 100, P9999: 100,
			Max: 100},
	}
	if *row.Syscalls != calls {
		t.Errorf("%v system calls a message", *row.Syscalls)
	}
	row.Syscalls, row.Times = &calls, nil
	if row != want {
		t.Errorf("got  %+v\nwant %+v", row, want)
	}
	for _, p := range []float64{row.Lat.P50, row.Lat.P90} { // nine of ten
		if p < 50 || p > 50*1.001 {
			t.Errorf("%+v", row.Lat)
		}
	}
	if row := NewRow("loop", true, 0, spec, r, meter.Cost{}); row.Transport != "none" ||
		row.Syscalls != nil {
		t.Errorf("%+v", row)
	}
	if row := NewRow("pair", false, 0, load.Spec{}, r, meter.Cost{}); row.Transport != "tcp" {
		t.Errorf("%+v", row)
	}
}

// A measurement of nothing has no figures, rather than nonsense that JSON cannot hold.
func TestRowOfNothing(t *testing.T) {
	row := NewRow("loop", true, 0, load.Spec{}, load.Result{Times: hist.New()},
		meter.Cost{CPU: time.Second})
	if row.CPUPerMsg != 0 || row.Gbits != 0 || row.Rate != 0 {
		t.Errorf("%+v", row)
	}
}

func TestOctets(t *testing.T) {
	for n, want := range map[int]string{64: "64 B", 1024: "1 KiB", 1500: "1500 B", 1 << 20: "1 MiB",
		3 << 20: "3 MiB"} {
		if got := Octets(n); got != want {
			t.Errorf("Octets(%d) = %q, want %q", n, got, want)
		}
	}
}
