package trace

import (
	"fmt"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
)

// String is l for people.
func (l *Line) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %-8s", l.Time.Format("15:04:05.000000"), l.Event)
	switch l.Event {
	case capture.Post, capture.Complete, capture.Receive:
		fmt.Fprintf(&b, " %s wr %d, %d octets", l.Op, *l.WRID, *l.Length)
		if l.Status != "" {
			b.WriteString(", " + l.Status)
		}
		if l.Took != 0 {
			b.WriteString(", " + latency.Short(l.Took))
		}
	case Lost:
		fmt.Fprintf(&b, " %d packets or events: the daemon had no room for them", l.Count)
	default:
		b.WriteString(" " + l.Text)
		if l.Length != nil && *l.Length != 0 {
			fmt.Fprintf(&b, " payload %d", *l.Length)
		}
		if l.WRID != nil {
			fmt.Fprintf(&b, " (wr %d)", *l.WRID)
		}
	}
	return b.String()
}
