package recovery

import (
	"testing"
	"time"
)

// A flat is a scoreboard as a list of octets, to compare with.
type flat struct {
	has  []bool
	una  int
	high int
}

func (f *flat) sack(from, to int) (n int) {
	for i := max(from, f.una); i < to; i++ {
		if !f.has[i] {
			f.has[i] = true
			n++
		}
	}
	if to > f.una && from < to {
		f.high = max(f.high, to)
	}
	return n
}

// FuzzScoreboard has a scoreboard say the same as a list of octets, whatever is acknowledged, lost
// and sent again, with numbers that wrap.
func FuzzScoreboard(f *testing.F) {
	f.Add([]byte{1, 10, 20, 0, 12, 30, 1, 40, 60, 2, 0, 4, 0, 25, 0, 3, 0, 0, 1, 5, 90})
	f.Add([]byte{1, 9, 3, 1, 1, 2, 1, 4, 2, 1, 1, 9, 4, 0, 0, 2, 1, 2, 0, 6, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const sent = 256
		base := Seq(0xffffff80)
		b := scoreboard{una: base, high: base}
		m := flat{has: make([]bool, sent)}
		var now time.Duration
		for ; len(ops) >= 3; ops = ops[3:] {
			now++
			x, y := int(ops[1]), int(ops[2])
			gone := 0
			count := func(_ *gap, n int) { gone += n }
			switch ops[0] % 5 {
			case 0: // a cumulative acknowledgement
				if x < m.una {
					continue
				}
				b.advance(base+Seq(x), count)
				for i := m.una; i < x; i++ {
					m.has[i] = true
				}
				m.una, m.high = x, max(m.high, x)
			case 1:
				to := min(x+y, sent)
				if to <= m.una {
					continue
				}
				if got, want := b.sack(Block{base + Seq(x), base + Seq(to)}, now, count),
					m.sack(x, to); got != want {
					t.Fatalf("[%d %d) has %d new octets, want %d", x, to, got, want)
				}
			case 2: // a gap is lost, and sent again in part
				if len(b.gaps) == 0 {
					continue
				}
				g := b.gaps[x%len(b.gaps)]
				if g.state != lost {
					b.change(g, lost, false)
				}
				b.cut(g, max(y%8, 1))
				b.change(g, resent, y%3 == 0)
			case 3:
				b.all(base+sent, now)
				if m.una < m.high && m.has[m.una] { // the peer has dropped what it had
					clear(m.has[m.una:])
				}
				m.high = sent
			}
			open, missing := 0, 0
			at := base + Seq(m.una)
			for i, g := range b.gaps {
				if g.len() <= 0 || g.start.before(at) || b.high.before(g.end) {
					t.Fatalf("gap %d is [%d %d), between %d and %d", i, g.start, g.end, at, b.high)
				}
				at = g.end
				open += g.len()
				if g.state == lost {
					missing += g.len()
				}
				for s := g.start; s != g.end; s++ {
					if m.has[s-base] {
						t.Fatalf("octet %d has arrived and is in a gap", s-base)
					}
				}
			}
			queued := len(b.missing)
			for _, q := range []*queue{&b.late, &b.again} {
				var last *gap
				for g := q.first; g != nil; g = g.next {
					if queued++; b.queue(g) != q || g.prev != last {
						t.Fatalf("gap [%d %d) is in a wrong queue", g.start, g.end)
					}
					last = g
				}
				if q.last != last {
					t.Fatal("the last is not at the end")
				}
			}
			for i, g := range b.missing {
				if g.state != lost || g.at != i {
					t.Fatalf("gap [%d %d) is %d, and not missing", g.start, g.end, g.state)
				}
			}
			if queued != len(b.gaps) {
				t.Fatalf("%d gaps, and %d in queues", len(b.gaps), queued)
			}
			want := 0
			for i := m.una; i < m.high; i++ {
				if !m.has[i] {
					want++
				}
			}
			if open != want || b.open != open || b.lost != missing || b.una != base+Seq(m.una) ||
				b.high != base+Seq(m.high) {
				t.Fatalf("%d octets open (counted %d, want %d), %d lost (counted %d), from %d to %d",
					open, b.open, want, missing, b.lost, b.una-base, b.high-base)
			}
		}
	})
}
