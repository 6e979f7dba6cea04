package latency

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Write prints rows as a table.
func Write(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "DEVICE\tQP\tOPERATION\tCOUNT\tFAILED\tP50\tP90\tP99\tP99.9\tMAX\t")
	for i := range rows {
		r := &rows[i]
		dev, qp := r.Dev, fmt.Sprint(r.QPN)
		if dev == "" {
			dev, qp = "others", "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t\n", dev, qp, r.Op, r.Count, r.Failed,
			Short(r.P50), Short(r.P90), Short(r.P99), Short(r.P999), Short(r.Max))
	}
	return t.Flush()
}

// Short is d with three digits; "-": none.
func Short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d.Nanoseconds())
	case d < time.Millisecond:
		return short(float64(d)/float64(time.Microsecond)) + "us"
	case d < time.Second:
		return short(float64(d)/float64(time.Millisecond)) + "ms"
	}
	return short(d.Seconds()) + "s"
}

func short(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
