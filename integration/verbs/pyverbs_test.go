package verbs

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// pythonTests is where python3-pyverbs has rdma-core's own tests, some of them compressed.
const pythonTests = "/usr/share/doc/rdma-core/tests"

// pyverbsModules are those tests but for what is for one maker's devices only.
var pyverbsModules = []string{"addr", "atomic", "cq", "cq_events", "cqex", "device", "flow", "fork",
	"mr", "odp", "parent_domain", "pd", "qp", "qpex", "rdmacm", "relaxed_ordering", "rss_traffic",
	"shared_pd", "tag_matching"}

// pyverbsWords, with a module behind them, run its tests.
const pyverbsWords = "/usr/bin/python3 run_tests.py --dev vrnic0 -v tests.test_"

// pyverbsFails are the tests that fail, with the reason.
var pyverbsFails = map[string]string{
	"test_imported_rc_ex_rdma_write": "it shares the kernel's descriptor of a device; there is none",
	"test_resize_cq":                 "at times: it does not wait until what it has sent completes",
}

// copyPythonTests puts the tests into dir as python can import them.
func copyPythonTests(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(pythonTests)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".gz")
		if module, ok := strings.CutPrefix(name, "test_"); ok &&
			!slices.Contains(pyverbsModules, strings.TrimSuffix(module, ".py")) {
			continue // run_tests.py imports all that are there
		}
		if !strings.HasSuffix(name, ".py") {
			continue
		}
		in, err := os.Open(filepath.Join(pythonTests, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var r io.Reader = in
		if name != f.Name() {
			if r, err = gzip.NewReader(in); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// python3-pyverbs has the tests of rdma-core's authors, which run on any device.
func TestRoCEPyverbs(t *testing.T) {
	need(t, "/usr/bin/python3", pythonTests)
	dir := ownDir(t, 0)
	copyPythonTests(t, dir)
	var runs []roceRun
	for _, m := range pyverbsModules {
		words := pyverbsWords + m
		runs = append(runs, roceRun{words: words, alone: true, quick: m == "qpex",
			do: func(t *testing.T, top *topology) {
				argv := strings.Fields(words)
				argv[1] = filepath.Join(dir, argv[1])
				wantPyverbs(t, top.server.in(t).startEnv([]string{"PYTHONDONTWRITEBYTECODE=1"}, argv...))
			}})
	}
	runRoCE(t, runs, "one device")
}

// Those of rdma_cm want to know the network interface that a device's address is on: of an address
// of the host it is the kernel's, in /sys, too. None of them skips. RSYS-006.
func TestPyverbsRDMACM(t *testing.T) {
	if !thorough() {
		needtest.Lacking(t, "time", "make verbs-programs runs python3-pyverbs whole")
	}
	need(t, "/usr/bin/python3", pythonTests)
	ns, err := netlab.NewNS()
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	t.Cleanup(func() { ns.Close() })
	addr := netip.MustParsePrefix("10.77.6.2/24")
	if err := errors.Join(ns.AddVeth("here", ns, "there"), ns.AddAddr("here", addr), ns.SetUp("here"),
		ns.SetUp("there"), ns.SetUp("lo")); err != nil {
		t.Fatal(err)
	}
	dir := ownDir(t, 0)
	copyPythonTests(t, dir)
	d := up(t, ns, "--device", fmt.Sprintf("vrnic0,host=%v,transport=roce", addr.Addr()))
	p := d.startEnv([]string{"PYTHONDONTWRITEBYTECODE=1", "VRNIC_SYS=preload"}, "/usr/bin/python3",
		filepath.Join(dir, "run_tests.py"), "--dev", "vrnic0", "-v", "tests.test_rdmacm")
	p.succeed(4*time.Minute, `^Ran \d\d tests`, "^OK$")
	proctest.Eventually(t, patience, "the keeper of /sys has gone",
		func() bool { return d.holding().Clients == d.before.Clients })
}

var (
	pyverbsFailed = regexp.MustCompile(`(?m)^(?:FAIL|ERROR): (\w+)`)
	pyverbsRan    = regexp.MustCompile(`(?m)^Ran \d+ tests? in .*\n\n(?:OK|FAILED).*$`)
)

// wantPyverbs wants those tests to fail, and no others, that cannot but fail.
func wantPyverbs(t *testing.T, p *process) {
	t.Helper()
	_ = p.Wait(4 * time.Minute) // its status says whether any has failed
	out := p.Output()
	ran := pyverbsRan.FindString(out)
	if ran == "" {
		t.Fatalf("%s has not run its tests", p)
	}
	t.Log(strings.ReplaceAll(ran, "\n\n", ": "))
	for _, m := range pyverbsFailed.FindAllStringSubmatch(out, -1) {
		if reason, ok := pyverbsFails[m[1]]; ok {
			t.Logf("%s fails: %s", m[1], reason)
		} else {
			t.Errorf("%s fails", m[1])
		}
	}
}
