package hist

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantileAgainstSorted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, top := range []int64{1, 50, 64, 1000, 1e6, 1e12, 1<<63 - 1} {
		var h Hist
		all := make([]time.Duration, 10_000)
		for i := range all {
			all[i] = time.Duration(rng.Int64N(top))
			h.Add(all[i])
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
			want := all[max(int(q*float64(len(all))+0.5), 1)-1]
			got := h.Quantile(q)
			if got < want || float64(got) > float64(want)*(1+1.0/subs)+1 {
				t.Errorf("values to %d, q %v: %d, exact is %d", top, q, got, want)
			}
		}
		if h.Min() != all[0] || h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) {
			t.Errorf("values to %d: min %d max %d count %d", top, h.Min(), h.Max(), h.Count())
		}
	}
}

func TestBucketsCoverEverythingInOrder(t *testing.T) {
	for i := 1; i < buckets; i++ {
		if bucket(upper(i-1)+1) != i || bucket(upper(i)) != i {
			t.Fatalf("bucket %d is not %d to %d", i, upper(i-1)+1, upper(i))
		}
	}
	if upper(buckets-1) != 1<<64-1 {
		t.Errorf("the last bucket ends at %d", upper(buckets-1))
	}
}

func TestEmptyAndNegative(t *testing.T) {
	var h Hist
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("an empty one has values")
	}
	h.Add(-time.Second)
	if h.Quantile(1) != 0 || h.Count() != 1 {
		t.Error("a negative duration does not count as 0")
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	var h Hist
	if n := testing.AllocsPerRun(1000, func() { h.Add(time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
