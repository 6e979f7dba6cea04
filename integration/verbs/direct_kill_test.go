package verbs

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

var directKills = flag.Int("kills", 30, "how many programs die at random with the direct path")

// marks are the names of verbs/pair/mark.h, from 1.
func marks(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(topDir, "verbs/pair/mark.h"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\tVRNIC_MARK_(\w+)`).FindAllSubmatch(b, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 10 {
		t.Fatalf("marks: %v", names)
	}
	return names
}

// A pairing is two programs, testdata/marked.c, that send each other messages.
type pairing struct {
	*topology
	t       *testing.T
	program string
	libs    string   // libibverbs with marks, in front of the others
	many    bool     // of that what finds each direct path by its CQ's bitmap
	wrap    []string // what the second is run by
	lent    bool     // they reach each other's memory, too
	asleep  string   // $ASLEEP
}

func newPairing(t *testing.T, mode string, args ...string) *pairing {
	t.Helper()
	need(t)
	p := &pairing{topology: direct(t, mode, args...), t: t,
		program: cProgram(t, "marked", "-rdynamic"), libs: filepath.Join(workDir, "marks")}
	for dir, flags := range map[string]string{p.libs: "", p.libs + manyDir: " -DVRNIC_ALL_MANY"} {
		build := exec.Command("make", "-s", "-C", filepath.Join(topDir, "verbs"), "BUILD="+dir,
			"CFLAGS=-DVRNIC_MARKS"+flags, filepath.Join(dir, "libibverbs.so.1"))
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return p
}

// manyDir is behind the folder of libraries that have not a few direct paths but many.
const manyDir = "-many"

// A told is what one of them has said: struct record of marked.c.
type told struct {
	posting, completed, received, marks, over, reaching, reached, taking, taken uint64
}

const (
	toldLen = 8 * 11
	atTake  = 2*toldLen + 8
	atQuit  = atTake + 8
)

func toldBy(t *testing.T, path string) (r [2]told) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r {
		w := func(k int) uint64 { return binary.NativeEndian.Uint64(b[toldLen*i+8*k:]) }
		r[i] = told{w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7), w(8)}
	}
	return r
}

// begin starts both. mark, if it is not "", is for who.
func (p *pairing) begin(t *testing.T, who int, mark string) (ends [2]*process, path string) {
	t.Helper()
	f, err := os.CreateTemp(workDir, "record-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Truncate(4096), f.Chmod(0o666)); err != nil { // for any user
		t.Fatal(err)
	}
	d := p.server.in(t)
	dir := p.libs
	if p.many {
		dir += manyDir
	}
	for i, name := range []string{"a", "b"} {
		env := append(p.cEnv(), "RECORD="+f.Name(), "VRNIC_SOCKET="+d.socket, "VRNIC_SYS=off",
			"LD_LIBRARY_PATH="+dir+":"+libs)
		if p.lent {
			env = append(env, "LENT=1", "LD_PRELOAD="+filepath.Join(libs, "libvrnic-heap.so"))
		}
		if p.asleep != "" {
			env = append(env, "ASLEEP="+p.asleep)
		}
		if mark != "" && i == who {
			env = append(env, "MARK="+mark)
		}
		argv := []string{p.program, name}
		if i == 1 {
			argv = slices.Concat(p.wrap, argv)
		}
		ends[i] = d.begin(env, argv...)
	}
	return ends, f.Name()
}

// ends waits until both have ended, which of them, if any, has been killed, and wants nothing lost:
// what was complete for the one has come to the other, and nothing else than was sent. what says
// what has been done.
func (p *pairing) ends(t *testing.T, ends [2]*process, path, what string) (r [2]told) {
	t.Helper()
	var killed [2]bool
	for i, e := range ends {
		if err := e.Wait(patience + 10*time.Second); err != nil {
			if killed[i] = strings.Contains(err.Error(), "killed"); !killed[i] {
				t.Fatalf("%s: %s: %v", what, e, err)
			}
		}
	}
	r = toldBy(t, path)
	for i := range r {
		from, to := r[1-i], r[i]
		if to.over == 0 && !killed[i] || to.received > from.posting ||
			to.over != 0 && to.received < from.completed {
			t.Fatalf("%s: end %d has received %d of %d messages, of which %d are complete", what, i,
				to.received, from.posting, from.completed)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return r
}

// A program that dies at any step of the direct path leaves its peer what it has without the direct
// path: all that was complete has come, in order and whole, and the rest is flushed. So it is if it
// stands still there for a while, before it dies or goes on. The daemon answers meanwhile, and has
// nothing of them afterwards.
func TestDirectMarks(t *testing.T) {
	p := newPairing(t, "user")
	p.lend(t)
	p.asleep = "library"
	names := marks(t)
	var passed uint64
	for step := 1; step <= len(names); step++ {
		t.Run(names[step-1], func(t *testing.T) {
			for _, who := range oneOf(0, 1) {
				nth := 1 + rand.IntN(100)
				p.many = rand.IntN(2) == 0
				switch names[step-1] {
				case "MARKED":
					p.many = true
				case "HEARD", "ASLEEP", "AWAKE": // of many the daemon wakes who sleeps
					p.many = false
				case "PAIR", "TABLE", "MAPPED":
					nth = 1
				case "PART":
					nth = 1 + rand.IntN(20)
				}
				t.Logf("end %d, for the %dth time, many: %v", who, nth, p.many)
				ends, path := p.begin(t, who, fmt.Sprint(step, nth, int(syscall.SIGKILL)))
				r := p.ends(t, ends, path, "killed")
				passed |= r[0].marks | r[1].marks

				ends, path = p.begin(t, who, fmt.Sprint(step, nth, int(syscall.SIGSTOP)))
				p.stopped(t, ends[who])
				p.server.in(t).show("qp")
				if who == 0 {
					ends[who].Signal(syscall.SIGCONT)
				} else {
					ends[who].Signal(syscall.SIGKILL)
				}
				p.ends(t, ends, path, "stopped")
			}
			p.server.in(t).settle()
		})
	}
	for i, name := range names {
		if passed>>(i+1)&1 == 0 {
			t.Errorf("no program has come to %s", name)
		}
	}
}

// lend has the programs reach each other's memory.
func (p *pairing) lend(t *testing.T) {
	t.Helper()
	needHeap(t)
	p.lent = true
}

// A program's memory is its own again only when a peer that stands still in the midst of a request
// to it has gone on, or has died. The daemon answers meanwhile.
func TestDirectStopped(t *testing.T) {
	p := newPairing(t, "user")
	p.lend(t)
	for _, name := range []string{"ENTERED", "FOUND", "PART", "MOVED", "MODIFIED"} {
		for _, then := range []syscall.Signal{syscall.SIGCONT, syscall.SIGKILL} {
			t.Run(fmt.Sprint(name, " ", then), func(t *testing.T) {
				ends, path := p.standing(t, name)
				p.takeBack(t, path)
				p.server.in(t).show("qp")
				time.Sleep(20 * time.Millisecond) // it must not return, however long that takes
				if r := toldBy(t, path)[1]; r.taken != 0 {
					t.Errorf("the memory is taken back while its peer stands still there: %+v", r)
				}
				ends[0].Signal(then)
				proctest.Eventually(t, patience, "the memory is taken back", func() bool {
					return toldBy(t, path)[1].taken == 1
				})
				p.ends(t, ends, path, name)
				p.server.in(t).settle()
			})
		}
	}
}

// takeBack has the second deregister what the first writes to, and waits until it is about to.
func (p *pairing) takeBack(t *testing.T, path string) {
	t.Helper()
	tell(t, path, atTake, 1)
	proctest.Eventually(t, patience, "memory is being taken back", func() bool {
		return toldBy(t, path)[1].taking == 1
	})
}

// A program whose peer stands still in the midst of a request has all that it has posted flushed
// when it ends the connection, and the queue pair destroyed, as without the direct path.
func TestDirectStoppedEnd(t *testing.T) {
	p := newPairing(t, "user")
	p.lend(t)
	for _, name := range []string{"ROOM", "STAMPED", "PART"} {
		for how, what := range []string{1: "disconnects", 2: "has an error"} {
			if what == "" {
				continue
			}
			t.Run(name+" "+what, func(t *testing.T) {
				ends, path := p.standing(t, name)
				tell(t, path, atQuit, byte(how))
				if err := ends[1].Wait(patience); err != nil {
					t.Errorf("%s: %v", ends[1], err)
				}
				ends[0].Signal(syscall.SIGCONT)
				if err := ends[0].Wait(patience); err != nil {
					t.Errorf("%s: %v", ends[0], err)
				}
				p.server.in(t).settle()
			})
		}
	}
}

// quit has the second end the connection.
func (p *pairing) quit(t *testing.T, path string) {
	t.Helper()
	tell(t, path, atQuit, 1)
}

func tell(t *testing.T, path string, at int64, what byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{what}, at); err != nil {
		t.Fatal(err)
	}
}

// standing starts two of which the first stands still at a mark. It may be over before: on a busy
// machine, without a direct path. Then it is for the next two.
func (p *pairing) standing(t *testing.T, mark string) (ends [2]*process, path string) {
	t.Helper()
	step := 1 + slices.Index(marks(t), mark)
	for range 20 {
		ends, path = p.begin(t, 0, fmt.Sprint(step, 1+rand.IntN(20), int(syscall.SIGSTOP)))
		p.stopped(t, ends[0])
		if !ends[0].Ended() {
			return ends, path
		}
		t.Logf("it has ended before: %+v", p.ends(t, ends, path, "not stopped"))
	}
	t.Fatalf("no program comes to %s", mark)
	return ends, path
}

// stopped waits until a program stands still, or has ended.
func (p *pairing) stopped(t *testing.T, e *process) {
	t.Helper()
	proctest.Eventually(t, patience, "it stands still", func() bool { return standsStill(e) })
}

// standsStill reports whether a program does, or has ended.
func standsStill(e *process) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.PID()))
	return err != nil || e.Ended() || strings.Contains(string(b), ") T ")
}

// The same at any moment, without the direct path, too.
func TestDirectKills(t *testing.T) {
	for mode, n := range map[string]int{"user": *directKills, "off": *directKills / 10} {
		t.Run(mode, func(t *testing.T) {
			p := newPairing(t, mode)
			heap := os.Getenv("VRNIC_TEST_SANITIZE") == "" // else malloc is another's
			names := marks(t)
			var sent, died uint64
			for k := range n {
				who, mark := rand.IntN(2), ""
				p.many = k%3 == 0
				p.lent, p.asleep = heap && k%4 < 2, []string{"library", "", "", "poll", "", ""}[k%6]
				if k%2 == 0 && mode == "user" {
					mark = fmt.Sprint(1+rand.IntN(len(names)), 1+rand.IntN(2000), int(syscall.SIGKILL))
				}
				ends, path := p.begin(t, who, mark)
				if mark == "" {
					p.later(t, ends, path)
					ends[who].Signal(syscall.SIGKILL)
				}
				r := p.ends(t, ends, path, fmt.Sprintf("kill %d, of end %d, mark %q", k, who, mark))
				sent += r[0].received + r[1].received
				died += 2 - r[0].over - r[1].over
				if k%500 == 499 {
					p.server.in(t).settle()
					t.Logf("%d of %d, %d messages", k+1, n, sent)
				}
			}
			p.server.in(t).settle()
			direct, _ := p.counter("direct_sends")
			t.Logf("%d of %d programs died, %d messages came, %v went directly", died, n, sent, direct)
			if direct == 0 && mode == "user" || died < uint64(n)/2 {
				t.Error("these are too few")
			}
		})
	}
}

// later waits until messages go, and then for up to some milliseconds.
func (p *pairing) later(t *testing.T, ends [2]*process, path string) {
	t.Helper()
	proctest.Eventually(t, patience, "messages go", func() bool {
		return toldBy(t, path)[0].posting > 0 || ends[0].Ended()
	})
	time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // at any moment
}

// Programs whose daemon dies have all that is outstanding flushed, and of what came before nothing
// is torn, twice or out of order.
func TestDirectDaemonKilled(t *testing.T) {
	for k := range max(2, *directKills/100) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			p := newPairing(t, "user")
			ends, path := p.begin(t, 0, "")
			p.later(t, ends, path)
			if k%2 == 1 {
				p.server.Signal(syscall.SIGSTOP)
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // they go on meanwhile
			}
			p.server.Kill()
			for _, e := range ends {
				e.succeed(patience + 10*time.Second)
			}
			r := toldBy(t, path)
			for i := range r {
				if r[i].over == 0 || r[i].received > r[1-i].posting {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// Two programs that are not of one user, or not in the same namespaces of users and processes,
// exchange the same messages by the daemon. A debugger is no hindrance.
func TestDirectWho(t *testing.T) {
	if os.Getuid() != 0 {
		needtest.Lacking(t, "root", "programs are run as other users, and in namespaces")
	}
	need(t, "unshare", "setpriv", "gdb")
	for _, c := range []struct {
		name, wrap string
		direct     bool
	}{
		{"one user", "", true},
		{"another user", "setpriv --reuid=65534 --clear-groups", false},
		{"another user namespace", "unshare --user --map-root-user", false},
		{"another pid namespace", "unshare --pid --fork", false},
		{"another container", "unshare --user --map-root-user --pid --fork --mount --ipc", false},
		{"another network", "unshare --net", true}, // sockets have names in the file system
		{"a debugger", "gdb -batch -nx -return-child-result -ex run --args", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPairing(t, "user", "--socket-mode", "0666")
			p.wrap = strings.Fields(c.wrap)
			ends, path := p.begin(t, 0, "")
			r := p.ends(t, ends, path, c.name)
			n, _ := p.counter("direct_sends")
			if (n > 0) != c.direct || r[1].received < 3000 {
				t.Errorf("%v Sends went directly: want some: %v. %+v", n, c.direct, r)
			}
		})
	}
}
