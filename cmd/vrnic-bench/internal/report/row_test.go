package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
)

func TestRowOfMeasurement(t *testing.T) {
	var others time.Duration
	m := StartMeter(func() time.Duration { return others })
	others = 640 * time.Microsecond
	r := load.Result{Messages: 10, Elapsed: time.Second, Times: new(hist.Hist)}
	for range 10 {
		r.Times.Add(50 * time.Microsecond)
	}
	row := m.Row("pair", load.Spec{Op: load.Write, Size: 1000, Depth: 4}, r)
	if row.Gbits != 10*1000*8/1e9 || row.Lat.P50 != 50 || row.Lat.Max != 50 || row.Seconds != 1 {
		t.Errorf("%+v", row)
	}
	// At least what the other processes have used.
	if row.CPUPerMsg < 64 || row.CPUPerByte < 64 {
		t.Errorf("cpu %v us per message, %v ns per octet; want 64 and more", row.CPUPerMsg, row.CPUPerByte)
	}
}

func TestJSONIsTheContracts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	rows := []Row{{Path: "tap", Op: "write", Size: 64, Depth: 1}, {Baseline: "memcpy", Ratio: 0.5}}
	if err := WriteJSON(file, nil, rows); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const lat = `"lat_us":{"p50":0,"p90":0,"p99":0,"p999":0,"max":0},"cpu_ns_per_byte":0,"cpu_us_per_msg":0,"allocs_per_msg":0`
	want := "[\n" +
		`  {"path":"tap","op":"write","size":64,"depth":1,"seconds":0,"messages":0,"gbit_s":0,` + lat + "},\n" +
		`  {"path":"","op":"","size":0,"depth":0,"seconds":0,"messages":0,"gbit_s":0,` + lat + `,"baseline":"memcpy","ratio":0.5}` + "\n]\n"
	if string(b) != want {
		t.Errorf("got\n%s\nwant\n%s", b, want)
	}
	var back []Row
	if err := json.Unmarshal(b, &back); err != nil || back[1] != rows[1] {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestOctets(t *testing.T) {
	for n, want := range map[int]string{64: "64 B", 1024: "1 KiB", 1500: "1500 B", 1 << 20: "1 MiB", 3 << 20: "3 MiB"} {
		if got := Octets(n); got != want {
			t.Errorf("Octets(%d) = %q, want %q", n, got, want)
		}
	}
}
