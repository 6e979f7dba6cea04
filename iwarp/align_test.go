package iwarp_test

import (
	"math/rand/v2"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// MPA-044: with a TCP that cuts each piece it is given from its start, an FPDU that fills a segment
// is one, whatever messages it is among, unless TCP takes a part of it; so nearly all segments of
// long messages begin with an FPDU.
func TestSegmentsBeginWithFPDUs(t *testing.T) {
	rng := rand.New(rand.NewPCG(5044, 2))
	all := func(n int) int { return n }
	some := func(n int) int { return min(n, 1+rng.IntN(40_000)) }
	for _, tt := range []struct {
		name  string
		size  func() int
		take  func(n int) int
		begin int // per cent of the segments begin with an FPDU
	}{
		{"1 MiB", func() int { return 1 << 20 }, all, 99},
		{"64 KiB", func() int { return 64 << 10 }, all, 99},
		{"any", func() int { return rng.IntN(20_000) }, all, 70},
		{"64 KiB, a full send buffer", func() int { return 64 << 10 }, some, 80},
	} {
		for _, emss := range []int{536, 1448, 1460} {
			e := NewEndpoint(initiator, newHost(), Config{EMSS: emss, SendQueue: 16})
			data := pattern(1<<20, 0)
			var out []byte
			var segments [][2]int // where they begin and end in out
			parts := 0
			for posted := 0; posted < 15 || e.Pending(); {
				for posted < 15 && e.CanPost() {
					n := tt.size()
					if err := e.PostWrite(uint64(posted), 1, 0, &payload{b: data[:n]}, uint32(n)); err != nil {
						t.Fatal(err)
					}
					posted++
				}
				b := make([]byte, e.Len())
				if n, err := e.Read(b); n != len(b) || err != nil {
					t.Fatal(n, err)
				}
				n := tt.take(len(b))
				e.Commit(n)
				if n < len(b) {
					parts++
				}
				for at := 0; at < n; at += emss {
					segments = append(segments, [2]int{len(out) + at, len(out) + min(at+emss, n)})
				}
				out = append(out, b[:n]...)
			}
			starts := map[int]bool{}
			cut := 0
			for at, seg := 0, 0; at < len(out); {
				starts[at] = true
				end := at + FPDULen(int(out[at])<<8|int(out[at+1]))
				for segments[seg][1] <= at {
					seg++
				}
				if end-at == emss && segments[seg] != [2]int{at, end} {
					cut++
				}
				at = end
			}
			begin := 0
			for _, s := range segments {
				if starts[s[0]] {
					begin++
				}
			}
			if cut > parts || begin*100 < len(segments)*tt.begin {
				t.Errorf("%s, EMSS %d: %d of %d segments begin with an FPDU; %d that would fill one are cut, "+
					"TCP took a part %d times",
					tt.name, emss, begin, len(segments), cut, parts)
			}
		}
	}
}
