package verbs

import (
	"fmt"
	"strings"
	"testing"
)

// A device that places octets in any order finds out who polls the last one of a Write; a program
// that waits for a completion survives each seed.
func TestAdversary(t *testing.T) {
	const seeds = 6
	args := []string{"--device", deviceA}
	for seed := 1; seed <= seeds; seed++ {
		args = append(args, "--device", fmt.Sprintf("adverse%d,addr=10.%d.0.2/24,adversary=%d", seed,
			100+seed, seed))
	}
	d := up(t, nil, args...)
	on := func(t *testing.T, addr, name string) *process {
		q := *d
		q.T = t
		p := q.startEnv([]string{"VT_SERVER=" + addr, "VT_CLIENT=" + addr}, cProgram(t, "lastbyte"),
			name)
		p.succeed(cLimit, "^ok "+name+"$")
		q.settle()
		return p
	}
	torn := 0
	for seed := 1; seed <= seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			addr := fmt.Sprintf("10.%d.0.2", 100+seed)
			on(t, addr, "right")
			if strings.Contains(on(t, addr, "wrong").Output(), "torn") {
				torn++
			}
		})
	}
	if torn == 0 {
		t.Errorf("who polls the last octet survives %d seeds", seeds)
	}
	// Another device of the same daemon does as ever.
	if strings.Contains(on(t, addrsA[0], "wrong").Output(), "torn") {
		t.Error("a device without an adversary places the last octet early")
	}
}
