package verbs

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

var record = flag.Bool("record", false, "keep in "+outcomesFile+" what has come of the programs")

// outcomesFile has what came of each command line when it was last run with -record, a line each:
// the tables of docs/verbs.md are made of it.
const outcomesFile = "testdata/programs.txt"

// Kinds of devices.
const (
	onIWARP = "iWARP"
	onRoCE  = "RoCE"
)

// places are names of topologies, in the order in which tables have them.
var places = []string{"one device", "two devices", "two daemons", "TAP"}

// A commandLine is a program's, on a kind of device.
type commandLine struct{ device, words string }

// An outcome is what has come of a command line: by topology, whether all was well.
type outcome struct {
	version string // of the package that the program is from
	in      map[string]bool
}

// outcomes are those of this run.
var outcomes = struct {
	sync.Mutex
	of map[commandLine]*outcome
}{of: make(map[commandLine]*outcome)}

// shown is a command line as tables have it.
func shown(words string) string {
	return strings.TrimPrefix(strings.ReplaceAll(words, " -p PORT", ""), "/usr/bin/python3 ")
}

// settings are those of the environment that a command line begins with, as a shell's may.
func settings(words string) (env, argv []string) {
	argv = strings.Fields(words)
	n := slices.IndexFunc(argv, func(w string) bool { return !strings.Contains(w, "=") })
	return argv[:n:n], argv[n:]
}

// programOf is the program of a command line.
func programOf(words string) string {
	_, argv := settings(words)
	return argv[0]
}

// note has the end of the test t say what has come of programs: it is called first.
func note(t *testing.T, device, topology string, lines ...string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		outcomes.Lock()
		defer outcomes.Unlock()
		for _, words := range lines {
			key := commandLine{device, shown(words)}
			o := outcomes.of[key]
			if o == nil {
				o = &outcome{in: make(map[string]bool)}
				outcomes.of[key] = o
			}
			was, known := o.in[topology]
			o.in[topology] = !t.Failed() && (was || !known) // IPv4 and IPv6 are one
		}
	})
}

var packageVersions = make(map[string]string) // guarded by outcomes

// versionOf is that of the package which a command line's program is from. outcomes is locked.
func versionOf(words string) string {
	pkg := packageOf(programOf(words))
	if v, ok := packageVersions[pkg]; ok {
		return v
	}
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", pkg).Output()
	if err != nil {
		out = []byte("?")
	}
	packageVersions[pkg] = string(out)
	return string(out)
}

// sorted are the command lines in an order that stays the same.
func sorted(of map[commandLine]*outcome) []commandLine {
	return slices.SortedFunc(maps.Keys(of), func(a, b commandLine) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.words, b.words))
	})
}

// result says in which topologies all was well, and in which not.
func (o *outcome) result() string {
	var list []string
	for _, p := range places {
		if ok, ran := o.in[p]; ran && ok {
			list = append(list, p+": ok")
		} else if ran {
			list = append(list, p+": FAILED")
		}
	}
	return strings.Join(list, ", ")
}

// printTable says what ran, of which version, and what came of it.
func printTable(w io.Writer) {
	outcomes.Lock()
	defer outcomes.Unlock()
	for _, l := range sorted(outcomes.of) {
		outcomes.of[l].version = versionOf(l.words)
		writeOutcome(w, l, outcomes.of[l])
	}
}

func writeOutcome(w io.Writer, l commandLine, o *outcome) {
	fmt.Fprintf(w, "%s | %s | %s | %s\n", l.device, l.words, o.version, o.result())
}

// readOutcomes reads what was kept.
func readOutcomes() (map[commandLine]*outcome, error) {
	of := make(map[commandLine]*outcome)
	b, err := os.ReadFile(outcomesFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if len(f) != 4 {
			return nil, fmt.Errorf("%s: %q is not of four parts", outcomesFile, line)
		}
		o := &outcome{version: f[2], in: make(map[string]bool)}
		for place := range strings.SplitSeq(f[3], ", ") {
			name, result, _ := strings.Cut(place, ": ")
			o.in[name] = result == "ok"
		}
		of[commandLine{f[0], f[1]}] = o
	}
	return of, nil
}

// keepOutcomes puts those of this run in the place of what was kept, if that was asked for.
func keepOutcomes() error {
	if !*record {
		return nil
	}
	of, err := readOutcomes()
	if err != nil {
		return err
	}
	outcomes.Lock()
	defer outcomes.Unlock()
	for l, o := range outcomes.of {
		o.version = versionOf(l.words)
		if old := of[l]; old != nil && old.version == o.version {
			for place, ok := range old.in {
				if _, again := o.in[place]; !again {
					o.in[place] = ok
				}
			}
		}
		of[l] = o
	}
	return writeOutcomes(of)
}

func writeOutcomes(of map[commandLine]*outcome) error {
	var b strings.Builder
	for _, l := range sorted(of) {
		writeOutcome(&b, l, of[l])
	}
	return os.WriteFile(outcomesFile, []byte(b.String()), 0o644)
}
