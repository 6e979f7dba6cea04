package plot

import (
	"bytes"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

func rowOf(op string, size, n int) report.Row {
	h := hist.New()
	for i := range n {
		h.Add(time.Duration(i+1) * time.Microsecond)
	}
	return report.Row{Path: "pair", Op: op, Size: size, Depth: 1, Messages: uint64(n),
		Gbits: float64(size) / 100, QPs: 1, Pattern: "stream", Transport: "tcp", Times: h}
}

func drawn(t *testing.T, draw func([]report.Row) (Chart, bool, error), rows []report.Row,
	format string) []byte {
	t.Helper()
	c, ok, err := draw(rows)
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	cv, err := c.Draw(format)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := cv.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestLatency(t *testing.T) {
	many := rowOf("write", 64, 20000)
	many.Bidir, many.Transport, many.QPs = true, "sctp", 7
	svg := string(drawn(t, Latency, []report.Row{many, rowOf("read", 1024, 150)}, ".svg"))
	for _, want := range []string{"99.99 %", "50 %",
		"pair write, 64 B, depth 1, 7 QPs, both ways, SCTP", "pair read, 1 KiB, depth 1", "microseconds",
		"</svg>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q", want)
		}
	}
	if again := string(drawn(t, Latency, []report.Row{many, rowOf("read", 1024, 150)},
		".svg")); again != svg {
		t.Error("the same rows make another drawing")
	}
}

func TestBandwidth(t *testing.T) {
	rows := []report.Row{rowOf("write", 1<<20, 10), rowOf("write", 64, 10), rowOf("read", 64, 10)}
	svg := string(drawn(t, Bandwidth, rows, ".svg"))
	for _, want := range []string{"1 MiB", "64 B", "pair write, stream", "pair read, stream",
		"Gbit/s"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(svg, "pair write"); n != 1 {
		t.Errorf("two sizes of one thing make %d lines", n)
	}
	deep := rows[0]
	deep.Depth, deep.Wait = 16, "event"
	if svg := string(drawn(t, Bandwidth, append(rows, deep), ".svg")); !strings.Contains(svg,
		"pair write, stream, depth 16, event") || strings.Count(svg, "pair write") != 2 {
		t.Error("another depth is not another line")
	}
	sorted := []report.Row{rows[1], rows[0], rows[2]}
	if string(drawn(t, Bandwidth, sorted, ".svg")) != svg {
		t.Error("a line goes from size to size as they were measured, not in their order")
	}
	if rows[0].Size != 1<<20 {
		t.Error("drawing has moved the rows")
	}
	drawn(t, Bandwidth, rows[:1], ".svg") // one point has an axis, too
}

// More lines than there are colors.
func TestManyLines(t *testing.T) {
	var rows []report.Row
	for i := range 20 {
		r := rowOf("write", 64, 10)
		r.QPs = i + 1
		rows = append(rows, r)
	}
	drawn(t, Bandwidth, rows, ".svg")
	drawn(t, Latency, rows, ".svg")
}

func TestPNG(t *testing.T) {
	for _, draw := range []func([]report.Row) (Chart, bool, error){Latency, Bandwidth} {
		img, err := png.Decode(bytes.NewReader(drawn(t, draw, []report.Row{rowOf("send", 64, 100)},
			".png")))
		if err != nil || img.Bounds().Dx() < 1000 {
			t.Errorf("%v", err)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	read := rowOf("read", 64, 0)
	for _, rows := range [][]report.Row{nil, {read}, {{Path: "loop"}}} {
		if _, ok, err := Latency(rows); ok || err != nil {
			t.Errorf("latency of %v: %v, %v", rows, ok, err)
		}
		if _, ok, err := Bandwidth(rows); ok || err != nil {
			t.Errorf("bandwidth of %v: %v, %v", rows, ok, err)
		}
	}
	c, _, _ := Latency([]report.Row{rowOf("read", 64, 10)})
	if _, err := c.Draw(".gif"); err == nil {
		t.Error("a GIF is drawn")
	}
}
