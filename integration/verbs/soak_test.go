package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm"
	recording "github.com/vrnic/vrnic/vnic/record"
)

// What `make lab-soak` sets: for how long, and the seed; a test run is a smoke of some rounds.
// soakOnly is the one round that is to run, again as often as there is time for.
const (
	soakTime = "VRNIC_LAB_SOAK"
	soakSeed = "VRNIC_LAB_SEED"
	soakOnly = "VRNIC_LAB_ROUND"
)

// smokeRounds is how many programs a smoke runs.
const smokeRounds = 6

// soakNets are networks that are bad, and let a connection live; "" is a good one.
var soakNets = []string{"", "", "delay 2ms 1ms", "loss 0.5%", "loss 1% burst 4", "duplicate 2%",
	"reorder 10%\ndelay 1ms", "corrupt 0.5%", "rate 100mbit\nqueue 256k",
	"delay 500us\nloss 0.3%\nduplicate 1%\nreorder 5%"}

// soakFaults are what a card does wrong; "" is nothing. DEV stands for a device.
var soakFaults = []string{"", "", "", "", "DEV send retry_exc_err after NTH count 1",
	"DEV write rem_access_err after NTH count 1", "DEV recv loc_prot_err after NTH count 1",
	"DEV write cq_err after NTH count 1", "DEV read ird after NTH count 1",
	"DEV reg_mr ENOMEM count 1", "DEV create_qp ENOSPC count 1", "DEV connect reject count 1",
	"DEV write invalidate after NTH count 1", "DEV device port_down for 50ms",
	"DEV doorbell late 2ms percent 5"}

// soakHarmless are those of the faults that a program has to survive.
var soakHarmless = []string{"port_down", "doorbell late"}

// A soakRound is what one program meets.
type soakRound struct {
	dev     string // the first of two devices, the other one's name ends in 1
	net     string
	fault   string
	kill    time.Duration // after this long; 0: not
	check   bool
	record  bool   // what is done is recorded, and played again
	program uint64 // its seed
	rounds  int
}

// soakDevices are pairs of devices: of either transport, one of each with an adversary.
var soakDevices = []string{"iw", "adv", "ro", "radv"}

// roundOf is the n-th round of a seed: it hangs on nothing else.
func roundOf(seed uint64, n int) soakRound {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	out := soakRound{dev: soakDevices[r.IntN(len(soakDevices))], net: soakNets[r.IntN(len(soakNets))],
		fault: soakFaults[r.IntN(len(soakFaults))], check: r.IntN(2) == 0, program: r.Uint64(),
		rounds: 10 + r.IntN(60)}
	if loss, _, ok := strings.Cut(out.net, " burst"); ok && out.onRoCE() {
		out.net = loss + soakBurst
	}
	out.fault = strings.NewReplacer("DEV", out.dev+"0", "NTH",
		fmt.Sprint(r.IntN(40))).Replace(out.fault)
	if r.IntN(6) == 0 {
		out.kill = time.Duration(1+r.IntN(400)) * time.Millisecond
	}
	out.record = r.IntN(3) == 0
	return out
}

// onRoCE says that the devices are of RoCE.
func (r soakRound) onRoCE() bool { return strings.HasPrefix(r.dev, "r") }

// Of RoCE a retry is one packet, and a burst has a length in packets: it takes the retries of a
// request that waits alone, one after the other, however long the timeouts between them are. So a
// program on RoCE may find its retries exceeded in a burst: with bursts of four packets three of
// four do. With rdma_cm's timeout, of which an adversary makes thrice as much, eight in a row are
// 45 s, and some twenty packets that are lost alone in one program two minutes: on a bad network it
// has a shorter one. With bursts it is patient with the connection manager, too, which repeats its
// messages after 6 s.
const (
	soakBurst      = " burst 2"
	soakACKTimeout = 14     // 67 ms
	soakPatience   = 110000 // milliseconds, less than cLimit
)

// bursts says that such a burst may come.
func (r soakRound) bursts() bool { return strings.Contains(r.net, "burst") }

// byBurst says that a program has ended so because of one: on RoCE its requests, and of iWARP the
// questions after an address, three in three seconds, or TCP's SYN, sent again after 1, 2, 4 and
// 8 s: the peer's request to connect, which the program waits for, has not come then.
// TCP has given a connection up then.
func (r soakRound) byBurst(output string, gaveUp bool) bool {
	if r.onRoCE() {
		return r.bursts() && strings.Contains(output, "transport retries exceeded")
	}
	return r.bursts() && gaveUp && strings.Contains(output, "no event of the connection manager")
}

// mayFail says that the program may end with an error, though never with wrong octets.
func (r soakRound) mayFail() bool {
	return r.fault != "" && !slices.ContainsFunc(soakHarmless, func(s string) bool {
		return strings.Contains(r.fault, s)
	})
}

// A daemon whose devices fail, lie within the rules, and are on bad networks, and programs of which
// some are killed, some looked at by --check: no octet is wrong, nothing that is right is called a
// mistake, nothing hangs, and of none of them anything is left.
func TestLabSoak(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	seed, only, lasts := max(soakNumber(t, soakSeed), 1), soakNumber(t, soakOnly), time.Duration(0)
	if s := os.Getenv(soakTime); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("%s: %v", soakTime, err)
		}
		lasts = d
	}
	var args []string
	for i, name := range soakDevices {
		more := ""
		if strings.HasPrefix(name, "r") {
			more = ",transport=roce,mtu=4200"
		}
		if strings.HasSuffix(name, "adv") {
			more += fmt.Sprint(",adversary=", seed)
		}
		for end := range 2 {
			args = append(args, "--device", fmt.Sprintf("%s%d,addr=10.%d.0.%d/24%s", name, end, 90+i, 2+end,
				more))
		}
	}
	d := up(t, nil, args...)
	var warm soakUse
	counts := make(map[string]int)
	begin := time.Now()
	for n := 1; ; n++ {
		if lasts == 0 && n > smokeRounds || lasts != 0 && time.Since(begin) >= lasts {
			t.Logf("seed %d: %d rounds in %v: %v", seed, n-1, time.Since(begin).Round(time.Second), counts)
			break
		}
		r := roundOf(seed, n)
		if only != 0 {
			r = roundOf(seed, int(only))
		}
		counts[d.soak(t, r)]++
		if t.Failed() {
			t.Fatalf("round %d of seed %d: %+v", n, seed, r)
		}
		if n == smokeRounds*5 {
			warm = d.use(t)
		}
		if lasts != 0 && n%100 == 0 {
			t.Logf("%v: %d rounds, %v; %+v", time.Since(begin).Round(time.Second), n, counts, d.use(t))
		}
	}
	if warm.Goroutines != 0 {
		d.wantUse(t, warm)
	}
}

// soakNumber is a number of the environment, 0 if it is not there.
func soakNumber(t *testing.T, name string) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// soak runs a round, and says how it ended.
func (d *daemon) soak(t *testing.T, r soakRound) string {
	q := *d
	q.T = t
	q.lab(shm.Del, "impair", "")
	q.lab(shm.Del, "fault", "")
	if r.net != "" {
		for end := range 2 {
			q.lab(shm.Set, "impair", fmt.Sprintf("both %d %s%d\n%s", r.program>>1|1, r.dev, end, r.net))
		}
	}
	if r.fault != "" {
		q.lab(shm.Set, "fault", fmt.Sprintf("%d\n%s", r.program>>1|1, r.fault))
	}
	i := slices.Index(soakDevices, r.dev)
	env := append(q.env(), fmt.Sprintf("VT_SERVER=10.%d.0.2", 90+i), fmt.Sprintf("VT_CLIENT=10.%d.0.3",
		90+i), fmt.Sprint("VT_SEED=", r.program), fmt.Sprint("VT_ROUNDS=", r.rounds))
	if r.onRoCE() && r.net != "" {
		env = append(env, fmt.Sprint("VT_ACK_TIMEOUT=", soakACKTimeout))
	}
	if r.bursts() && r.onRoCE() {
		env = append(env, fmt.Sprint("VT_PATIENCE=", soakPatience))
	}
	played := func() {}
	if r.record {
		played = q.replayed(t)
	}
	failed := q.counted("tcp_failed_connects")
	argv := []string{program, "exec"}
	found := filepath.Join(t.TempDir(), "found")
	if r.check {
		argv = append(argv, "--check", "--check-json", found)
	}
	p := q.begin(env, append(argv, "--", cProgram(t, "soak"))...)
	if r.kill > 0 {
		time.Sleep(r.kill) // the moment is the seed's, where the program is then is not
		p.KillGroup()
	}
	err := p.Wait(cLimit)
	ended := "well"
	exit := (*exec.ExitError)(nil)
	switch {
	case strings.Contains(p.Output(), "wrong data"), err != nil && !errors.As(err, &exit):
		t.Errorf("%s: %v\n%s", p, err, p.Output())
	case err == nil:
	case r.kill > 0:
		ended = "killed"
	case r.mayFail():
		ended = "by a fault"
	case r.byBurst(p.Output(), q.counted("tcp_failed_connects") > failed):
		ended = "by a burst"
	default:
		t.Errorf("%s: %v\n%s", p, err, p.Output())
	}
	if b, err := os.ReadFile(found); r.check && r.kill == 0 && (err != nil || len(b) > 0) &&
		!r.mayFail() {
		t.Errorf("found %s, %v in what is right", b, err)
	}
	if p.Ended() && !d.Ended() {
		q.settle()
	}
	played()
	return ended
}

// replayed begins a recording; what it returns ends it, and plays it again: nothing may differ.
func (d *daemon) replayed(t *testing.T) (end func()) {
	t.Helper()
	stop := d.record(t)
	return func() {
		in, err := recording.NewReader(bytes.NewReader(stop()))
		if err != nil {
			t.Fatal(err)
		}
		p := recording.NewPlayer(in.Meta)
		for {
			rec, err := in.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, diff, err := p.Take(&rec); err != nil || diff != nil {
				t.Errorf("played again: %v, %v", err, diff)
			}
		}
	}
}

// lab changes what the network or the card does.
func (d *daemon) lab(verb shm.ChangeVerb, key, value string) {
	d.T.Helper()
	if err := d.client.Change(d.T.Context(), shm.Change{Verb: verb, Key: key,
		Value: value}); err != nil {
		d.T.Fatalf("%s %q: %v", key, value, err)
	}
}

// A soakUse is what the daemon uses of the machine.
type soakUse struct {
	FDs, Goroutines int
	Resident        int // KiB
}

func (d *daemon) use(t *testing.T) (u soakUse) {
	u.FDs = d.holding().FDs
	goroutines, _ := d.show("daemon")[0]["goroutines"].(float64)
	u.Goroutines = int(goroutines)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &u.Resident); err == nil {
			break
		}
	}
	return u
}

// wantUse wants the daemon to use as much as it did; memory that the runtime keeps may be some
// more.
func (d *daemon) wantUse(t *testing.T, was soakUse) {
	t.Helper()
	const more = 64 << 10 // KiB
	var now soakUse
	if !needtest.Within(patience, func() bool {
		now = d.use(t)
		return now.FDs <= was.FDs+4 && now.Goroutines <= was.Goroutines+8 &&
			now.Resident < was.Resident+more
	}) {
		t.Fatalf("the daemon uses %+v, was %+v", now, was)
	}
	t.Logf("the daemon uses %+v, was %+v", now, was)
}
