package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/internal/golden"
)

// sampleRows are rows with something in every field, and one with as little as there can be.
func sampleRows() []Row {
	h := hist.New()
	for i := range 1000 {
		h.Add(time.Duration(i+1) * time.Microsecond)
	}
	calls := 2.25
	return []Row{
		{
			Path: "ring", Op: "write-imm", Size: 65536, Depth: 16, Seconds: 0.5, Messages: 123456,
			Gbits: 129.454,
			Lat:   latOf(h), CPUPerByte: 0.0125, CPUPerMsg: 0.8192, Allocs: 0.001, Syscalls: &calls,
			Rate: 246912, QPs: 4, Processes: 2,
			Pattern: "stream", Wait: "event", Transport: "none", Bidir: true, Verified: true, Times: h,
		},
		{
			Path: "tap", Op: "send", Size: 64, Depth: 1, Seconds: 1, Messages: 10000, Gbits: 0.00512,
			Rate: 10000, QPs: 1, Processes: 1,
			Pattern: "pingpong", Wait: "adaptive", Transport: "sctp", Baseline: "kernel-tcp", Ratio: 2.5,
			RatioMin: 2, RatioMax: 3.25,
		},
		{Path: "loop", Op: "read", Size: 8, Depth: 1, QPs: 1, Pattern: "stream", Wait: "adaptive",
			Transport: "none", Verified: true},
	}
}

func table(w io.Writer, rows []Row) error {
	if _, err := io.WriteString(w, Heading+SyscallHeading+"\n"); err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := io.WriteString(w, r.Line()+"\n"); err != nil {
			return err
		}
	}
	return nil
}

var formats = map[string]Writer{
	"rows.table": table, "rows.json": JSON, "rows.csv": CSV, "rows.benchmarks": Benchmarks("linux",
		"amd64", 2), "rows.percentiles": Percentiles,
}

func TestFormats(t *testing.T) {
	for name, write := range formats {
		var b bytes.Buffer
		if err := write(&b, sampleRows()); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join("testdata", name), b.String())
	}
}

func TestJSONComesBack(t *testing.T) {
	var b bytes.Buffer
	rows := sampleRows()
	if err := JSON(&b, rows); err != nil {
		t.Fatal(err)
	}
	var back []Row
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	rows[0].Times = nil
	if !reflect.DeepEqual(back, rows) {
		t.Errorf("got  %+v\nwant %+v", back, rows)
	}
	b.Reset()
	if err := JSON(&b, nil); err != nil || json.Unmarshal(b.Bytes(), &back) != nil {
		t.Errorf("no rows: %v, %q", err, b.Bytes())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

// What cannot be written is an error.
func TestFullDisk(t *testing.T) {
	for name, write := range formats {
		if write(full{}, sampleRows()) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
