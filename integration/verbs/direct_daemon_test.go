package verbs

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

var directAllMarks = flag.Bool("allmarks", false,
	"stop the daemon at all marks of the direct path, not at six of them; and of programs at a mark "+
		"each dies, not one")

// oneOf is all of the victims at a mark with -allmarks, and else one of them, each time another.
func oneOf(victims ...int) []int {
	if *directAllMarks {
		return victims
	}
	i := rand.IntN(len(victims))
	return victims[i : i+1]
}

// smokeMarks are one for each way to a mark.
var smokeMarks = []string{"Open", "Closed", "Rings", "Adopted", "Retired", "Gone"}

// daemonMarks are those of shm/ring/mark.go, from 1.
func daemonMarks(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(topDir, "shm/ring/mark.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\tmark([A-Z]\w+)`).FindAllSubmatch(b, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 10 {
		t.Fatalf("marks: %v", names)
	}
	return names
}

// How programs bring the daemon to a mark, if it does not come there while they are connected.
var (
	quits  = way{end: true}                                      // the second ends the connection
	caught = way{mark: "ROOM", with: syscall.SIGSTOP, end: true} // while the first is in a Send
	taken  = way{mark: "FOUND", with: syscall.SIGSTOP}           // takes memory that the first is in
	died   = way{mark: "STAMPED", with: syscall.SIGKILL}         // the first dies behind a stamp
)

// A way is what happens to the first of two programs, and then to the second. behind: the daemon
// comes to the mark when the first, which stood still, has gone on, behind this mark.
type way struct {
	mark   string
	with   syscall.Signal
	end    bool
	behind string
}

func (w way) onward(behind string) way {
	w.behind = behind
	return w
}

var waysTo = map[string]way{
	"Shut": quits, "Closed": quits, "Ended": quits,
	"Waits": caught, "Awaits": caught, "Rings": caught.onward("Awaits"),
	"Settled": caught.onward("Awaits"),
	"Hidden":  taken, "Busy": taken, "Gone": taken.onward("Busy"), "Free": taken.onward("Busy"),
	"Adopted": died,
}

// once are passed but once or twice by two programs.
var once = map[string]bool{"Made": true, "Attached": true, "Base": true, "Open": true,
	"Entry": true, "Key": true, "Joined": true}

const atPassed = 16 // in the file of marks

// A markedDaemon is one that a test stops or kills at a mark.
type markedDaemon struct {
	*pairing
	file string
}

func newMarkedDaemon(t *testing.T) *markedDaemon {
	t.Helper()
	marked := filepath.Join(workDir, "vrnic-marks")
	if _, err := os.Stat(marked); err != nil {
		args := []string{"build", "-tags", "vrnic_marks", "-o", marked}
		if raceDetector {
			args = append(args, "-race")
		}
		args = append(args, "github.com/vrnic/vrnic/cmd/vrnic")
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	d := &markedDaemon{file: filepath.Join(ownDir(t, 0), "marks")}
	if err := os.WriteFile(d.file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VRNIC_MARKS", d.file)
	usual := daemonProgram
	daemonProgram = marked
	defer func() { daemonProgram = usual }()
	d.pairing = newPairing(t, "user")
	t.Cleanup(func() { d.server.Signal(syscall.SIGCONT) }) // also if the test has failed
	d.lend(t)
	return d
}

// arm has the daemon get a signal when it passes mark step for the nth time.
func (d *markedDaemon) arm(t *testing.T, step, nth int, sig syscall.Signal) {
	t.Helper()
	f, err := os.OpenFile(d.file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	word := func(at int64, v int) {
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(v)), at); err != nil {
			t.Fatal(err)
		}
	}
	word(4, nth)
	word(8, int(sig))
	word(atPassed, 0)
	word(0, step) // last
}

// passed reports whether the daemon has passed a mark since it was armed.
func (d *markedDaemon) passed(t *testing.T, name string) bool {
	t.Helper()
	b, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint32(b[atPassed:])>>(1+slices.Index(daemonMarks(t), name))&1 != 0
}

// bring starts two programs that have the daemon come to the mark that it has been armed for, and
// waits until it has. after is to be done when it may go on. Two may be over before: on a busy
// machine, without a direct path. Then it is for the next two.
func (d *markedDaemon) bring(t *testing.T, w way) (ends [2]*process, path string, after func()) {
	t.Helper()
	for range 20 {
		if ends, path, after = d.start(t, w); d.stands(t, ends) {
			return ends, path, after
		}
		t.Logf("two programs have ended before: %+v", toldBy(t, path))
	}
	t.Fatal("the daemon does not come to the mark, whoever connects")
	return ends, path, after
}

// stands waits until the daemon stands still. It does not if it has not a second behind the end of
// both programs.
func (d *markedDaemon) stands(t *testing.T, ends [2]*process) (still bool) {
	t.Helper()
	var over time.Time
	proctest.Eventually(t, patience, "the daemon is at the mark", func() bool {
		if still = standsStill(d.server.process); still || !ends[0].Ended() || !ends[1].Ended() {
			return still
		}
		if over.IsZero() {
			over = time.Now()
		}
		return time.Since(over) > time.Second
	})
	return still
}

// start starts two programs for bring.
func (d *markedDaemon) start(t *testing.T, w way) (ends [2]*process, path string, after func()) {
	t.Helper()
	mark := ""
	if w.mark != "" {
		mark = fmt.Sprint(1+slices.Index(marks(t), w.mark), 1+rand.IntN(20), int(w.with))
	}
	d.asleep = "poll"
	if w.with == syscall.SIGSTOP {
		d.asleep = "" // who waits for the first does not hear what it is to do
	}
	ends, path = d.begin(t, 0, mark)
	after = func() {}
	if w.with == syscall.SIGSTOP {
		d.stopped(t, ends[0])
		after = func() { ends[0].Signal(syscall.SIGCONT) }
		if !w.end {
			d.takeBack(t, path)
		}
	}
	if w.end {
		d.quit(t, path)
	}
	if w.behind != "" {
		proctest.Eventually(t, patience, "the daemon waits", func() bool { return d.passed(t, w.behind) })
		after()
		after = func() {}
	}
	return ends, path, after
}

// A daemon that stands still at any step of the direct path, and goes on, has lost nothing, also if
// a program has died meanwhile. One that dies there leaves the programs what a daemon's death
// leaves them: what has come is whole and in order, and the rest is flushed.
func TestDirectDaemonMarks(t *testing.T) {
	for i, name := range daemonMarks(t) {
		if !*directAllMarks && !slices.Contains(smokeMarks, name) {
			continue
		}
		w, nth := waysTo[name], 1
		if w == (way{}) && !once[name] {
			nth += rand.IntN(20)
		}
		t.Run(name, func(t *testing.T) {
			t.Logf("for the %dth time", nth)
			d := newMarkedDaemon(t)
			for _, who := range oneOf(-1, 0, 1) { // -1: nobody dies
				d.arm(t, i+1, nth, syscall.SIGSTOP)
				ends, path, after := d.bring(t, w)
				// The programs go on, or wait, and whatever they do meanwhile, it must not matter.
				time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				if who >= 0 {
					ends[who].Kill()
				}
				d.server.Signal(syscall.SIGCONT)
				after()
				d.ends(t, ends, path, fmt.Sprintf("with %d dead", who))
				d.server.in(t).settle()
			}
			d.arm(t, i+1, nth, syscall.SIGKILL)
			ends, path, after := d.bring(t, w)
			after()
			d.alone(t, w, ends, path)
		})
	}
}

// alone waits until both have ended whose daemon has died.
func (d *markedDaemon) alone(t *testing.T, w way, ends [2]*process, path string) {
	t.Helper()
	<-d.server.Done
	var errs [2]error
	for i, e := range ends {
		errs[i] = e.Wait(patience + 10*time.Second)
	}
	r := toldBy(t, path)
	for i := range r {
		switch {
		case errs[i] != nil && r[i].posting == 0: // it was not yet connected, or had not registered
		case i == 0 && w.with == syscall.SIGKILL:
		case errs[i] != nil || r[i].over == 0 || r[i].received > r[1-i].posting:
			t.Errorf("end %d: %v, %+v", i, errs[i], r)
		}
	}
}
