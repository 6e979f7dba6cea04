package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// VRNIC_TEST_SANITIZE has every program run with libraries under a tool that looks at what they do
// with memory: address (AddressSanitizer and UndefinedBehaviorSanitizer), thread (ThreadSanitizer),
// or valgrind. A program that passes its test and of which the tool says something fails. `make
// sanitize` runs what is worth the time.
//
// Programs are Debian's and know nothing of the tools, so only what the libraries do with the
// programs' memory is seen, not what the programs do.
type sanitizer struct {
	build    []string // of the libraries, for make
	preload  []string // libraries of gcc's that have to come first
	wrapper  []string // what a program is run by
	env      []string
	reports  []string // what reports begin with
	slowness int      // how much longer things take
}

var sanitizers = map[string]*sanitizer{
	"": {slowness: 1},
	"address": {
		build:   []string{"SAN=address,undefined"},
		preload: []string{"libasan.so", "libubsan.so"},
		// Programs of Debian's do not free all that they have, on exit.
		env: []string{
			"ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
			"UBSAN_OPTIONS=print_stacktrace=1"},
		reports:  []string{"ERROR: AddressSanitizer", "runtime error: "},
		slowness: 3,
	},
	"thread": {
		build:   []string{"SAN=thread"},
		preload: []string{"libtsan.so"},
		env: []string{"TSAN_OPTIONS=exitcode=0:second_deadlock_stack=1:suppressions=" +
			absolute("testdata/tsan.supp")},
		reports:  []string{"WARNING: ThreadSanitizer", "FATAL: ThreadSanitizer"},
		slowness: 5,
	},
	"valgrind": {
		build: []string{"DEBUG=1"},
		wrapper: []string{"valgrind", "-q", "--error-exitcode=99", "--fair-sched=try",
			"--suppressions=" + absolute("testdata/valgrind.supp")},
		reports:  []string{"==    at 0x"},
		slowness: 10,
	},
}

// libraries are ours, as reports name them.
var libraries = []string{"libibverbs.so", "librdmacm.so"}

// sanitize is the one of this run.
var sanitize = sanitizers[os.Getenv("VRNIC_TEST_SANITIZE")]

func absolute(name string) string {
	path, err := filepath.Abs(name)
	if err != nil {
		panic(err)
	}
	return path
}

// sanitized returns the environment and the words that run argv, which begins with `vrnic exec ...
// --`, under the tool. vrnic itself is linked statically then, so the environment means nothing to
// it.
func sanitized(t *testing.T, env, argv []string) (newEnv, newArgv []string) {
	t.Helper()
	newEnv = slices.Concat(env, sanitize.env)
	if len(sanitize.preload) > 0 {
		var list []string
		for _, name := range sanitize.preload {
			out, err := exec.Command("gcc", "-print-file-name="+name).Output()
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, strings.TrimSpace(string(out)))
		}
		for _, e := range env {
			if own, ok := strings.CutPrefix(e, "LD_PRELOAD="); ok {
				list = append(list, own)
			}
		}
		newEnv = append(newEnv, "LD_PRELOAD="+strings.Join(list, ":"))
	}
	if len(sanitize.wrapper) == 0 {
		return newEnv, argv
	}
	i := slices.Index(argv, "--")
	if i < 0 {
		t.Fatalf("%v does not run by vrnic exec", argv)
	}
	return newEnv, slices.Concat(argv[:i+1], sanitize.wrapper, argv[i+1:])
}

// sanitizerSays fails a test if the tool has said something of a program that has to do with our
// libraries.
func sanitizerSays(p *proctest.Process) {
	p.T.Helper()
	out := p.Output()
	if strings.Contains(out, perfTooEarly) {
		return // perftest's own use of memory after it has freed it
	}
	for _, r := range sanitize.reports {
		for rest := out; ; {
			i := strings.Index(rest, r)
			if i < 0 {
				break
			}
			report := rest[strings.LastIndex(rest[:i], "\n")+1:]
			rest = rest[i+len(r):]
			// Races of a program's own, fio's, are found where it calls libc.
			whole, _, _ := strings.Cut(report, "SUMMARY: ")
			if !strings.Contains(r, "WARNING: ") || strings.Contains(whole, libraries[0]) ||
				strings.Contains(whole, libraries[1]) {
				p.T.Errorf("%s:\n%s", p, firstLines(report, 60))
				return
			}
		}
	}
}

func firstLines(s string, n int) string {
	lines := strings.SplitAfterN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}
