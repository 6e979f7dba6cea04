package verbs

import (
	"bufio"
	"encoding/json"
	"errors"
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

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm"
)

// A finding is a line of --check-json, as far as tests look at it.
type finding struct {
	What, Title, Text string
	Sites             []struct {
		Role   string
		Frames []struct {
			Function, File string
			Line           int
		}
	}
}

// mistakesOf returns the facts that mistakes.c has to be told of, by its functions and the lines.
func mistakesOf(t *testing.T) map[string]map[int]string {
	t.Helper()
	f, err := os.Open("testdata/mistakes.c")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := regexp.MustCompile(`^static void (\w+)\(bool right\)`)
	here := regexp.MustCompile(`/\* HERE ([a-z-]+) \*/$`)
	found, function := make(map[string]map[int]string), ""
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		if m := head.FindStringSubmatch(in.Text()); m != nil {
			function = m[1]
			found[function] = make(map[int]string)
		}
		if m := here.FindStringSubmatch(in.Text()); m != nil {
			found[function][n] = m[1]
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// Each mistake is found, once, at its line, and nothing is found in its right twin.
func TestCheckMistakes(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	mistakes := mistakesOf(t)
	if len(mistakes) < 20 {
		t.Fatalf("only %d mistakes", len(mistakes))
	}
	one := oneDevice(t)
	roce := &place{up(t, nil, "--device", "vrnic0,transport=roce,addr="+addrsA[0]+"/24"), "", addrsA}
	for name, lines := range mistakes {
		if len(lines) == 0 {
			t.Errorf("%s says of no line what is wrong there", name)
		}
		if name == "many_reads" { // of which iWARP says nothing to a queue pair
			(&topology{"RoCE", roce, roce}).findMistake(t, name, lines)
			continue
		}
		t.Run(name, func(t *testing.T) { one.findMistake(t, name, lines) })
	}
	// Who waits for a receive, and who refuses a peer, are other parts of the daemon where there is a
	// network between.
	t.Run("two devices", func(t *testing.T) {
		two := twoDevices(t)
		for _, name := range []string{"no_receive", "dead_rkey", "stranger", "peer_outside", "no_right",
			"refused_key"} {
			two.findMistake(t, name, mistakes[name])
		}
	})
}

// Who calls exit(3) in the handler of a signal ends, wherever the checker was then.
func TestCheckExits(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	top := oneDevice(t)
	d := top.server.in(t)
	p := d.begin(slices.Concat(d.env(), top.cEnv()), program, "exec", "--check", "--",
		cProgram(t, "exits", "-rdynamic"))
	err := p.Wait(cLimit)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%s ended with %v, want status 3", p, err)
	}
	top.settle()
}

func (top *topology) findMistake(t *testing.T, name string, lines map[int]string) {
	t.Helper()
	found := top.runMistake(t, name+"_wrong")
	for line, what := range lines {
		if len(found) != 1 || found[0].What != what || !found[0].isAt(name, line) {
			t.Errorf("found %+v, want %s in line %d alone", found, what, line)
		}
	}
	if found := top.runMistake(t, name+"_right"); len(found) != 0 {
		t.Errorf("found %+v in what is right", found)
	}
}

// isAt reports whether a place that is told is in a line of a function.
func (f finding) isAt(function string, line int) bool {
	for _, s := range f.Sites {
		for _, frame := range s.Frames {
			if frame.Function == function && frame.Line == line && filepath.Base(
				frame.File) == "mistakes.c" {
				return true
			}
		}
	}
	return false
}

// runMistake runs a case of mistakes.c under --check, and returns what was found.
func (top *topology) runMistake(t *testing.T, name string) []finding {
	t.Helper()
	d := top.server.in(t)
	stdin, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer say.Close()
	file := filepath.Join(t.TempDir(), "found")
	d.stdin = stdin
	args := []string{program, "exec", "--check", "--check-json", file}
	if slices.ContainsFunc([]string{"long_", "draining_", "wide_", "out_of_error_", "many_reads_"},
		func(note string) bool { return strings.HasPrefix(name, note) }) {
		args = append(args, "--pedantic")
	}
	p := d.begin(slices.Concat(d.env(), top.cEnv()), append(args, "--", cProgram(t, "mistakes"),
		name)...)
	stdin.Close()
	d.stdin = nil
	switch {
	case strings.HasPrefix(name, "no_receive"):
		p.WaitOutput("sent", 1)
		if name == "no_receive_wrong" {
			proctest.Eventually(t, patience, "the message waits for a receive", func() bool {
				return slices.ContainsFunc(d.stat(), func(row map[string]any) bool {
					n, _ := row["stalls"].(float64)
					return row["kind"] == "qp" && n > 0
				})
			})
		}
		fmt.Fprintln(say, "go on")
	case name == "unacked_wrong":
		p.WaitOutput("vrnic check: 1.", 1)
		p.Signal(syscall.SIGTERM)
	}
	want := 0
	if strings.HasSuffix(name, "_wrong") {
		want = 66
	}
	err = p.Wait(cLimit)
	exit := (*exec.ExitError)(nil)
	if want == 0 && err != nil || want != 0 && (!errors.As(err, &exit) || exit.ExitCode() != want) {
		t.Errorf("%s ended with %v, want status %d", p, err, want)
	}
	found := findings(t, file)
	top.settle()
	return found
}

// findings are those of a file of --check-json.
func findings(t *testing.T, file string) []finding {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []finding
	for line := range strings.Lines(string(b)) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found = append(found, f)
	}
	return found
}

// Where a request to send has failed, receives go on if there are no acknowledgements: who reads
// their buffers is told. Behind IBV_QPS_ERR nobody is.
func TestCheckFailedSends(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	d := up(t, nil, "--device", roceA)
	for name, early := range map[string]bool{"completed": true, "asked": true, "over": false} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "found")
			p := d.begin(d.env(), program, "exec", "--check", "--check-json", file, "--check-status=0", "--",
				cProgram(t, "sendfail"), name)
			p.succeed(cLimit, "^ok "+name+"$")
			if got := slices.ContainsFunc(findings(t, file), func(f finding) bool {
				return f.What == "early-read"
			}); got != early {
				t.Errorf("told %v, want %v: %v", got, early, findings(t, file))
			}
			d.settle()
		})
	}
}

// That pages are taken from a program changes nothing in it but what is told.
func TestCheckGuards(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	top := oneDevice(t)
	d := top.server.in(t)
	for name, want := range map[string][]string{
		"handler_before": {"early-read"}, "handler_after": {"early-read"}, "no_handler": nil,
		"blocked": {"early-read"}, "in_child": nil, "another_life": nil, "shared_buffer": nil,
		"calls": {"early-read"}, "event": nil, "device_event": nil, "shared_queue": nil,
		"threads": {"early-read"}, "inherited": {"early-read"},
		"vectors": {"early-read"}, "asked": nil, "rejected": nil,
		"refused": nil, "again": {"early-read"},
	} {
		ways := []string{"--check-status=0", "--lend-heap"}
		if !thorough() { // in one of them, each time another
			i := rand.IntN(len(ways))
			ways = ways[i : i+1]
		}
		for _, how := range ways {
			t.Run(name+how, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "found")
				p := d.begin(slices.Concat(d.env(), top.cEnv()), program, "exec", "--check", "--check-json",
					file, "--check-status=0", how, "--", cProgram(t, "guarded"), name)
				if name == "device_event" {
					p.WaitOutput("opened", 1)
					d.fault(t, shm.Set, "1\nvrnic0 device fatal")
					defer d.fault(t, shm.Del, "")
				}
				if err := p.Wait(cLimit); err != nil {
					t.Fatalf("%s ended with %v", p, err)
				}
				var got []string
				for _, f := range findings(t, file) {
					got = append(got, f.What)
				}
				if !slices.Equal(got, want) {
					t.Errorf("found %v, want %v", got, want)
				}
				top.settle()
			})
		}
	}
}
