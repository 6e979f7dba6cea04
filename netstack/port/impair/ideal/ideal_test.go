package ideal

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/port/impair"
)

// TestGoodput: without faults it fills the wire, and with random loss it is near what CUBIC's
// formulas say: where windows are small those of Reno with the same means, 1.31/sqrt(p) segments
// (RFC 9438, section 4.3: as much as Reno, whose mean is sqrt(3/2/p)).
func TestGoodput(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		impair.Cell
		least, most float64 // Mbit/s
	}{
		{impair.Cell{RTT: ms / 10}, 950, 965},
		{impair.Cell{RTT: 10 * ms}, 900, 965},
		{impair.Cell{RTT: 10 * ms, Jitter: 5 * ms}, 900, 965},
		{impair.Cell{Loss: 1, RTT: 50 * ms}, 2.3, 3.6},
		{impair.Cell{Loss: 1, RTT: 10 * ms}, 12, 18},
	} {
		if g := Goodput(tt.Cell, 1, 4*time.Second); g < tt.least || g > tt.most {
			t.Errorf("%v: %.1f Mbit/s, want %v to %v", tt.Cell, g, tt.least, tt.most)
		}
	}
}
