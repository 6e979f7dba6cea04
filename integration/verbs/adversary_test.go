package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What the adversary does to the memory of a program it does to a heap that is lent, too.
func TestAdversaryLentHeap(t *testing.T) {
	adverse(t, "lastbyte", "wrong", "right", "--lend-heap")
}

// Completions of two queue pairs come in any order, and events when what they tell of has been
// polled: who counts on the one or the other fails, who does not survives each seed.
func TestAdversaryCompletions(t *testing.T) {
	adverse(t, "adverse", "order_wrong", "order_right")
}

func TestAdversaryEvents(t *testing.T) {
	adverse(t, "adverse", "events_wrong", "events_right")
}

// Numbers of queue pairs are any: who has a table with a place for each fails.
func TestAdversaryNumbers(t *testing.T) {
	adverse(t, "adverse", "numbers_wrong", "numbers_right")
}

// adverse runs two cases of a program on devices with adversaries, of which one has to be torn by
// some seed, and the other one by none; and the wrong one on a device without, where all is well.
func adverse(t *testing.T, name, wrong, right string, flags ...string) {
	t.Helper()
	const seeds = 4
	args := []string{"--device", deviceA}
	for seed := 1; seed <= seeds; seed++ {
		args = append(args, "--device", fmt.Sprintf("adverse%d,addr=10.%d.0.2/24,adversary=%d", seed,
			100+seed, seed))
	}
	d := up(t, nil, args...)
	run := func(addr, test string) string {
		t.Helper()
		env := append(d.env(), "VT_SERVER="+addr, "VT_CLIENT="+addr)
		p := d.begin(env, slices.Concat([]string{program, "exec"}, flags,
			[]string{"--", cProgram(t, name), test})...)
		p.succeed(cLimit, "^ok "+test+"$")
		d.settle()
		return p.Output()
	}
	torn := 0
	for seed := 1; seed <= seeds; seed++ {
		addr := fmt.Sprintf("10.%d.0.2", 100+seed)
		if strings.Contains(run(addr, right), "torn") {
			t.Errorf("seed %d: what is right is torn", seed)
		}
		if torn == 0 && strings.Contains(run(addr, wrong), "torn") {
			torn++
		}
	}
	if torn == 0 {
		t.Errorf("%s survives %d seeds", wrong, seeds)
	}
	for n := 1; strings.Contains(run(addrsA[0], wrong), "torn"); n++ {
		if n == 4 { // on a busy machine it has bad luck there, too, but not again and again
			t.Fatalf("%s fails %d times on a device without an adversary", wrong, n)
		}
	}
}

// A device that places octets in any order finds out who polls the last one of a Write, or of what
// a Read brings; a program that waits for a completion survives each seed.
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
	torn := make(map[string]bool)
	for seed := 1; seed <= seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			addr := fmt.Sprintf("10.%d.0.2", 100+seed)
			for right, wrong := range map[string]string{"right": "wrong", "read_right": "read_wrong"} {
				on(t, addr, right)
				torn[wrong] = strings.Contains(on(t, addr, wrong).Output(), "torn") || torn[wrong]
			}
		})
	}
	for wrong, found := range torn {
		if !found {
			t.Errorf("who polls the last octet, %s, survives %d seeds", wrong, seeds)
		}
	}
	// Another device of the same daemon does as ever.
	if strings.Contains(on(t, addrsA[0], "wrong").Output(), "torn") {
		t.Error("a device without an adversary places the last octet early")
	}
}

// A request of RoCE that nobody answers fails when its retries are over, of a device that has an
// adversary after three times as long for each as others wait for the first. No machine is faster.
func TestAdversaryRetries(t *testing.T) {
	d := up(t, nil, "--device", "ro0,addr=10.78.0.2/24,transport=roce", "--device",
		"ro1,addr=10.78.0.3/24,transport=roce", "--device",
		"ad0,addr=10.78.0.4/24,transport=roce,adversary=1")
	const tries, timeout = 3, 67.1 // milliseconds: 4.096 us << 14
	for _, tt := range []struct {
		dev, addr string
		least     float64
	}{{"ro0", "10.78.0.2", (1 + 2 + 3) * timeout}, {"ad0", "10.78.0.4", tries * 3 * timeout}} {
		t.Run(tt.dev, func(t *testing.T) {
			q := *d
			q.T = t
			r := q.disturbed(t, "cut", 0, []string{"VT_CLIENT=" + tt.addr, "VT_SERVER=10.78.0.3",
				"VT_WANT=12"}, func(*daemon) string { return tt.dev }, "loss 100%")
			if float64(r.took+1) < tt.least {
				t.Errorf("it took %d ms, want %.0f at least", r.took, tt.least)
			}
		})
	}
}
