package hist

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var quantiles = []float64{0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1}

func TestQuantileAgainstSorted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, top := range []int64{1, 50, 64, 1000, 1e6, int64(highest)} {
		h := New()
		var sum time.Duration
		all := make([]time.Duration, 10_000)
		for i := range all {
			all[i] = time.Duration(rng.Int64N(top))
			sum += all[i]
			h.Add(all[i])
		}
		slices.Sort(all)
		for _, q := range quantiles {
			want := all[max(int(q*float64(len(all))+0.5), 1)-1]
			got := h.Quantile(q)
			if got < want || float64(got) > float64(want)*1.001+1 {
				t.Errorf("values to %d, q %v: %d, exact is %d", top, q, got, want)
			}
		}
		if h.Min() != all[0] || h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) ||
			h.Mean() != sum/time.Duration(len(all)) {
			t.Errorf("values to %d: min %d max %d mean %d count %d", top, h.Min(), h.Max(), h.Mean(),
				h.Count())
		}
	}
}

// What is longer than any bucket counts, and Max tells how long it was.
func TestBeyondTheHighest(t *testing.T) {
	h := New()
	h.Add(time.Hour)
	h.Add(time.Microsecond)
	if h.Count() != 2 || h.Max() != time.Hour || h.Quantile(1) < highest ||
		h.Quantile(0.5) > time.Microsecond*101/100 {
		t.Errorf("max %v, p100 %v, p50 %v", h.Max(), h.Quantile(1), h.Quantile(0.5))
	}
}

func TestMergeIsAddingAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	parts, all := []*Hist{New(), New(), New()}, New()
	for range 1000 {
		d := time.Duration(rng.Int64N(1e6))
		all.Add(d)
		parts[1+rng.IntN(2)].Add(d) // the first stays empty
	}
	merged := New()
	for _, p := range parts {
		merged.Merge(p)
	}
	same(t, merged, all)
}

func same(t *testing.T, got, want *Hist) {
	t.Helper()
	if got.Count() != want.Count() || got.Min() != want.Min() || got.Max() != want.Max() ||
		got.Mean() != want.Mean() {
		t.Errorf("count %d min %v max %v mean %v, want %d %v %v %v",
			got.Count(), got.Min(), got.Max(), got.Mean(), want.Count(), want.Min(), want.Max(), want.Mean())
	}
	for _, q := range quantiles {
		if got.Quantile(q) != want.Quantile(q) {
			t.Errorf("q %v: %v, want %v", q, got.Quantile(q), want.Quantile(q))
		}
	}
}

func TestJSONGoesAndComesBack(t *testing.T) {
	full := New()
	for i := range 10_000 {
		full.Add(time.Duration(i * i))
	}
	full.Add(time.Hour)
	for _, h := range []*Hist{New(), full} {
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var back Hist
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		same(t, &back, h)
	}
	var h Hist
	for _, bad := range []string{`{}`, `[]`, `{"Counts":"AAAA"}`} {
		if err := json.Unmarshal([]byte(bad), &h); err == nil {
			t.Errorf("%s is a histogram", bad)
		}
	}
}

func TestPrint(t *testing.T) {
	h := New()
	for range 99 {
		h.Add(10 * time.Microsecond)
	}
	h.Add(time.Millisecond)
	var b strings.Builder
	if err := h.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Percentile", "10.0", "1000.", "#[Mean"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestEmptyAndNegative(t *testing.T) {
	h := New()
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("an empty one has values")
	}
	h.Add(-time.Second)
	if h.Quantile(1) != 0 || h.Count() != 1 {
		t.Error("a negative duration does not count as 0")
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	h := New()
	if n := testing.AllocsPerRun(1000, func() { h.Add(time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
