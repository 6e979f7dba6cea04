// Package plot draws rows: latency by percentile, and bandwidth by size.
package plot

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/brewer"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/report"
)

const (
	width  = 24 * vg.Centimeter
	height = 15 * vg.Centimeter
	dpi    = 120 // of a PNG
)

// Formats are the file names' endings that can be drawn.
var Formats = []string{".svg", ".png"}

// canvas makes what is drawn on for an ending out of Formats.
func canvas(format string) (vg.CanvasWriterTo, error) {
	switch format {
	case ".svg":
		return vgsvg.New(width, height), nil
	case ".png":
		return vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi))}, nil
	}
	return nil, fmt.Errorf("a plot in the format %q: want one of %v", format, Formats)
}

// A Chart is one drawing, with its legend beside it: lines go anywhere.
type Chart struct {
	p      *plot.Plot
	legend plot.Legend
}

// Draw makes it a file of that format.
func (c Chart) Draw(format string) (vg.CanvasWriterTo, error) {
	cv, err := canvas(format)
	if err != nil {
		return nil, err
	}
	all := draw.New(cv)
	const gap = vg.Centimeter / 2
	wide := c.legend.Rectangle(all).Size().X + 2*gap
	c.p.Draw(draw.Crop(all, 0, -wide, 0, 0))
	c.legend.Draw(draw.Crop(all, width-wide+gap, -gap, 0, -gap))
	return cv, nil
}

func newChart(title, x, y string) Chart {
	c := Chart{p: plot.New(), legend: plot.NewLegend()}
	c.p.Title.Text, c.p.X.Label.Text, c.p.Y.Label.Text = title, x, y
	c.p.Add(plotter.NewGrid())
	c.legend.Top, c.legend.Left = true, true
	return c
}

// colors are easy to tell apart; there are eight, and then they begin again with dashes.
func lineStyle(i int) draw.LineStyle {
	var colors []color.Color
	if pal, err := brewer.GetPalette(brewer.TypeQualitative, "Dark2", 8); err == nil {
		colors = pal.Colors()
	} else {
		colors = []color.Color{color.Black}
	}
	s := draw.LineStyle{Color: colors[i%len(colors)], Width: vg.Points(1.5)}
	if n := i / len(colors); n > 0 {
		s.Dashes = []vg.Length{vg.Points(6), vg.Points(float64(2 * n))}
	}
	return s
}

// percentiles are the points of a latency line, and those that the axis names.
var (
	percentiles = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97,
		0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999}
	named = []float64{0, 0.5, 0.9, 0.99, 0.999, 0.9999}
)

// nines is where a percentile is on the axis: each 9 more is as far away as the one before.
func nines(q float64) float64 { return -math.Log10(1 - q) }

// Latency draws a line for each row that has its times; ok is false if none has.
func Latency(rows []report.Row) (c Chart, ok bool, err error) {
	c = newChart("latency by percentile", "percentile", "microseconds")
	p := c.p
	var ticks []plot.Tick
	for _, q := range named {
		ticks = append(ticks, plot.Tick{Value: nines(q), Label: strconv.FormatFloat(100*q, 'g', 6, 64) +
			" %"})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	n := 0
	for _, r := range rows {
		if r.Times == nil || r.Times.Count() == 0 {
			continue
		}
		var pts plotter.XYs
		for _, q := range percentiles {
			if n := float64(r.Times.Count()); (1-q)*n < 1 && q > 0 {
				break // so few lie beyond that it says nothing
			}
			pts = append(pts, plotter.XY{X: nines(q), Y: max(float64(r.Times.Quantile(q))/1e3, 1e-3)})
		}
		if err := c.add(report.Octets(r.Size), r, pts, n); err != nil {
			return c, false, err
		}
		n++
	}
	return c, n > 0, nil
}

// Bandwidth draws a line for each thing that was measured with several sizes, and a point for
// others.
func Bandwidth(rows []report.Row) (c Chart, ok bool, err error) {
	c = newChart("bandwidth by message size", "octets of a message", "Gbit/s")
	p := c.p
	p.X.Scale = plot.LogScale{}
	p.Y.Min = 0
	type key struct {
		path, op, pattern, transport, wait string
		depth, qps, processes              int
		bidir                              bool
	}
	var keys []key
	lines := make(map[key][]report.Row)
	var sizes []int
	for _, r := range rows {
		if r.Messages == 0 {
			continue
		}
		k := key{r.Path, r.Op, r.Pattern, r.Transport, r.Wait, r.Depth, r.QPs, r.Processes, r.Bidir}
		if lines[k] == nil {
			keys = append(keys, k)
		}
		lines[k] = append(lines[k], r)
		sizes = append(sizes, r.Size)
	}
	slices.Sort(sizes)
	var ticks []plot.Tick
	for _, s := range slices.Compact(sizes) {
		ticks = append(ticks, plot.Tick{Value: float64(s), Label: report.Octets(s)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	if n := len(ticks); n > 0 && sizes[0] == sizes[len(sizes)-1] {
		p.X.Min, p.X.Max = float64(sizes[0])/2, float64(sizes[0])*2
	}
	for i, k := range keys {
		rs := lines[k]
		slices.SortStableFunc(rs, func(a, b report.Row) int { return a.Size - b.Size })
		var pts plotter.XYs
		for _, r := range rs {
			pts = append(pts, plotter.XY{X: float64(r.Size), Y: r.Gbits})
		}
		if err := c.add(k.pattern, rs[0], pts, i); err != nil {
			return c, false, err
		}
	}
	return c, len(keys) > 0, nil
}

// add adds the i-th line, with its points.
func (c *Chart) add(what string, r report.Row, pts plotter.XYs, i int) error {
	line, points, err := plotter.NewLinePoints(pts)
	if err != nil {
		return err
	}
	line.LineStyle = lineStyle(i)
	points.GlyphStyle = draw.GlyphStyle{Color: line.Color, Radius: vg.Points(2),
		Shape: draw.CircleGlyph{}}
	c.p.Add(line, points)
	name := fmt.Sprintf("%s %s, %s, depth %d", r.Path, r.Op, what, r.Depth)
	if n := r.QPs * max(r.Processes, 1); n > 1 {
		name += fmt.Sprintf(", %d QPs", n)
	}
	if r.Bidir {
		name += ", both ways"
	}
	switch r.Transport {
	case "sctp":
		name += ", SCTP"
	case "roce":
		name += ", RoCE"
	}
	if r.Wait == "poll" || r.Wait == "event" {
		name += ", " + r.Wait
	}
	c.legend.Add(name, line, points)
	return nil
}
