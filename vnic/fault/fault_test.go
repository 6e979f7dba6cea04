package fault

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/vnic"
)

// fired are the calls, from 1, that fail of n on device d.
func fired(t *testing.T, s *Set, call string, n int) (at []int) {
	t.Helper()
	for i := range n {
		if err := s.Call("d", call); err != nil {
			at = append(at, i+1)
		}
	}
	return at
}

// anyDevice finds one under each name.
func anyDevice(t *testing.T) func(string) *Target {
	d, err := vnic.New(vnic.Config{Name: "d",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		t.Fatal(err)
	}
	return func(string) *Target { return &Target{Device: d} }
}

func begin(t *testing.T, seed uint64, text string) *Set {
	t.Helper()
	all, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s := new(Set)
	if err := s.Begin(seed, all, anyDevice(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFaults: calls fail behind so many, so often, and no others; by chance the same ones with the
// same seed.
func TestFaults(t *testing.T) {
	for text, want := range map[string][]int{
		"d reg_mr ENOMEM":                               {1, 2, 3, 4, 5, 6},
		"d reg_mr ENOMEM after 4":                       {5, 6},
		"d reg_mr EIO after 2 count 1 # once":           {3},
		"e reg_mr ENOMEM\n\nd alloc_pd EINVAL":          nil,
		"d reg_mr ENOMEM count 1\nd reg_mr EIO after 4": {1, 5, 6},
	} {
		if got := fired(t, begin(t, 1, text), RegMR, 6); !slices.Equal(got, want) {
			t.Errorf("%q: %v fail, want %v", text, got, want)
		}
	}
	const chance = "d create_qp EAGAIN percent 20%"
	first := fired(t, begin(t, 7, chance), CreateQP, 1000)
	if n := len(first); n < 150 || n > 250 || !slices.Equal(first,
		fired(t, begin(t, 7, chance), CreateQP, 1000)) {
		t.Errorf("%d of 1000 fail, or others the second time", n)
	}
	if slices.Equal(first, fired(t, begin(t, 8, chance), CreateQP, 1000)) {
		t.Error("another seed: the same fail")
	}
	s := begin(t, 1, "d create_cq EPERM\ne create_cq EIO")
	if err := s.Call("d", CreateCQ); err != syscall.EPERM {
		t.Error(err)
	}
	if err := s.End("d"); err != nil || s.Call("d", CreateCQ) != nil || s.Call("e", CreateCQ) == nil ||
		s.End("d") == nil {
		t.Errorf("behind the end: %v", err)
	}
}

// TestFaultLines: what is no fault is refused, with its line.
func TestFaultLines(t *testing.T) {
	for text, want := range map[string]string{
		"": "which fault", "# none": "which fault", "d reg_mr": "want a device", "d fly EIO": "fails, fly",
		"d reg_mr ELOOP": "error ELOOP", "d reg_mr EIO after": "how many",
		"\nd reg_mr EIO after x": "line 2",
		"d reg_mr EIO count 0":   "no fault", "d reg_mr EIO percent 0": "percent",
		"d reg_mr EIO percent 101%": "percent", "d reg_mr EIO percent nan": "percent",
		"d reg_mr EIO count -1": "line 1", "d reg_mr EIO soon 1": `"soon"`,
		strings.Repeat("d reg_mr EIO\n", maxFaults+1): "the most",
	} {
		if all, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, %v; want an error with %q", text, all, err, want)
		}
	}
	s := new(Set)
	all, err := Parse(strings.Repeat("d reg_mr EIO\n", maxFaults))
	if err != nil || s.Begin(1, all, anyDevice(t)) != nil || s.Begin(1, all[:1], anyDevice(t)) == nil {
		t.Errorf("more faults than there can be: %v", err)
	}
}
