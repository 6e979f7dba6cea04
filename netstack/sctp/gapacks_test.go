package sctp

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkManyOutstanding is what a SACK costs where so many chunks are outstanding, of which the
// first is missing: of a long path, or of a peer that likes it so.
func BenchmarkManyOutstanding(b *testing.B) {
	for _, n := range []int{10, 1000, maxOutstanding - 2} {
		b.Run(fmt.Sprint("chunks=", n), func(b *testing.B) {
			w, node, p := established(b, Config{Options: Options{SendBuffer: 1 << 20}})
			w.quiet = true
			p.ack(-1) // with a large window
			a := p.a
			for range n {
				a.primary.cwnd, a.burst = 1<<30, 1<<30
				if _, err := a.Send(w.Now, SendOptions{Unordered: true},
					strings.NewReader("x")); err != nil {
					b.Fatal(err)
				}
				node.pump()
			}
			if a.chunks.len() != n {
				b.Fatalf("%d chunks are outstanding", a.chunks.len())
			}
			sack := mkSack(p.first()-1, 1<<20, gap{2, uint16(n)})
			for b.Loop() {
				p.send(sack)
			}
		})
	}
}
