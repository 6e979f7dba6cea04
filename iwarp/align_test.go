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

// MPA-044: with a TCP that cuts each piece it is given from its start, no pad or CRC is cut,
// whatever the lengths of messages and of FPDUs. A peer has to take such a cut; siw does
// not: docs/interop.md#S5.
func TestTrailersStayWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(5044, 5))
	for _, mulpdu := range []int{0, 128, 512, 1000, 16384} {
		for _, emss := range []int{536, 1370, 1400, 1420, 8920} {
			p := initiator
			p.CRC = true
			e := NewEndpoint(p, newHost(), Config{EMSS: emss, MULPDU: mulpdu, SendQueue: 16})
			data := pattern(1<<16, 0)
			var out []byte
			cuts := map[int]bool{} // where segments end in out
			for posted := uint64(0); posted < 3000 || e.Pending(); {
				for posted < 3000 && e.CanPost() {
					n := rng.IntN(200)
					if posted%8 == 0 {
						n = rng.IntN(len(data))
					}
					if err := e.PostWrite(posted, 1, 0, &payload{b: data[:n]}, uint32(n)); err != nil {
						t.Fatal(err)
					}
					posted++
				}
				b := make([]byte, e.Len())
				if n, err := e.Read(b); n != len(b) || err != nil {
					t.Fatal(n, err)
				}
				e.Commit(len(b))
				for at := 0; at < len(b); at += emss {
					cuts[len(out)+min(at+emss, len(b))] = true
				}
				out = append(out, b...)
			}
			bad, fpdus := 0, 0
			for at := 0; at < len(out); fpdus++ {
				ulpdu := int(out[at])<<8 | int(out[at+1])
				end := at + FPDULen(ulpdu)
				for i := at + 2 + ulpdu + 1; i < end; i++ {
					if cuts[i] {
						bad++
					}
				}
				at = end
			}
			if bad > 0 || len(cuts) < 1000 {
				t.Errorf("MULPDU %d, EMSS %d: the pad and CRC of %d of %d FPDUs are cut, in %d segments",
					mulpdu, emss, bad, fpdus, len(cuts))
			}
		}
	}
}
