package verbs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of programs into docs/verbs.md")

// A shownProgram is a line of a table: what it is run with comes from what is run.
type shownProgram struct{ program, result string }

// A shownTable is one of docs/verbs.md, below a heading.
type shownTable struct {
	heading  string
	programs []shownProgram
	run      func() []string // command lines
}

var shownTables = []shownTable{
	{"### On iWARP", []shownProgram{
		{"ibv_devices", "lists the devices"},
		{"ibv_devinfo", "attributes of devices and ports, transport iWARP"},
		{"ibv_asyncwatch", "waits for events"},
		{"rping", "data compared by both sides; either side killed: the other disconnects, " +
			"flushes, ends"},
		{"ucmatose", "all messages received"},
		{"rdma_client", "with rdma_server: synchronous ids"},
		{"rdma_xclient", "with rdma_xserver: synchronous ids; XRC (`-c x`) does not exist on iWARP"},
		{"cmtime", "connections made and ended"},
		{"ib_send_bw", "all messages counted"},
		{"ib_send_lat", "all messages counted"},
		{"ib_write_bw", "all messages counted"},
		{"ib_write_lat", "all messages seen in memory"},
		{"ib_read_bw", "all messages counted"},
		{"ib_read_lat", "all messages counted"},
		{"ib_atomic_bw", "all messages counted"},
		{"ib_atomic_lat", "all messages counted"},
		{"fio", "no error; with `--verb=send` the server verifies the data (`--verify=crc32c`)"},
		{"fi_info", "endpoints of type FI_EP_MSG, FI_PROTO_IWARP, for each address"},
		{"fi_pingpong", "data compared (`-c`)"},
	}, func() []string {
		lines := []string{"ibv_devices", "ibv_devinfo -l -v -d", "ibv_asyncwatch", "fi_info -p verbs"}
		for _, o := range fabricAll {
			lines = append(lines, "fi_pingpong -c -d DEV "+o)
		}
		return append(lines, linesOf(rpingJobs, cmJobs, perfJobs(), fioJobs())...)
	}},
	{"### On RoCE", []shownProgram{
		{"ibv_devices", "lists the devices"},
		{"ibv_devinfo", "attributes of devices and ports, transport InfiniBand, the GIDs"},
		{"ibv_rc_pingpong", "data compared (`-c`)"},
		{"ibv_uc_pingpong", "all messages received"},
		{"ibv_ud_pingpong", "all datagrams received"},
		{"ibv_srq_pingpong", "all messages received"},
		{"rping", "data compared by both sides"},
		{"ucmatose", "all messages received"},
		{"rdma_client", "with rdma_server: synchronous ids"},
		{"rdma_xclient", "with rdma_xserver: synchronous ids"},
		{"cmtime", "connections made and ended"},
		{"udaddy", "all datagrams received"},
		{"mckey", "all datagrams received"},
		{"ib_send_bw", "all messages counted"},
		{"ib_send_lat", "all messages counted"},
		{"ib_write_bw", "all messages counted"},
		{"ib_write_lat", "all messages seen in memory"},
		{"ib_read_bw", "all messages counted"},
		{"ib_read_lat", "all messages counted"},
		{"ib_atomic_bw", "all messages counted"},
		{"ib_atomic_lat", "all messages counted"},
		{"qperf", "a rate or a time; `ver_...` compares what comes of atomics"},
		{"fio", "no error; with `--verb=send` the server verifies the data (`--verify=crc32c`)"},
		{"fi_info", "endpoints of type FI_EP_MSG and FI_EP_DGRAM"},
		{"fi_pingpong", "data compared (`-c`)"},
		{"run_tests.py", "the tests of python3-pyverbs but for those of one maker's devices, see below"},
	}, func() []string {
		lines := []string{"ibv_devices", "ibv_devinfo -v -d", "fi_info -p verbs"}
		for _, o := range roceFabric {
			lines = append(lines, "fi_pingpong -c "+o)
		}
		for _, n := range slices.Concat(pingpongs, numberedPerf()) {
			lines = append(lines, n.words)
		}
		for _, name := range qperfTests {
			lines = append(lines, qperfWords+"-cm1 "+name)
		}
		lines = append(lines, linesOf(roceIDJobs(), rocePerfJobs(), roceFioJobs())...)
		return append(lines, "run_tests.py --dev DEV")
	}},
}

// linesOf are the command lines of jobs.
func linesOf(lists ...[]job) (lines []string) {
	for _, j := range slices.Concat(lists...) {
		lines = append(lines, j.client)
		if strings.HasPrefix(j.server, "rping ") {
			lines = append(lines, j.server)
		}
	}
	return lines
}

const (
	tableStart = "| program | version | options | result |\n|---|---|---|---|\n"
	docsFile   = "docs/verbs.md"
)

// versions are those of Debian's packages that the table tells of.
var versions = map[string]string{
	"rdmacm-utils": "44.0", "ibverbs-utils": "44.0", "python3-pyverbs": "44.0", "perftest": "4.5-0.17",
	"qperf": "0.4.11", "fio": "3.33", "libfabric-bin": "1.17.0",
}

// options are those that command lines have, by program.
func options(lines []string) map[string][]string {
	options := make(map[string][]string)
	for _, line := range lines {
		w := strings.Fields(line)
		program, more := w[0], w[1:]
		if options[program] == nil {
			options[program] = []string{}
		}
		for i := 0; i < len(more); i++ {
			o := more[i]
			if !strings.HasPrefix(o, "-") {
				continue
			}
			if i+1 < len(more) && !strings.HasPrefix(more[i+1], "-") {
				i++
				o += " " + more[i]
			}
			name, value, _ := strings.Cut(strings.Replace(o, "=", " ", 1), " ")
			switch {
			case slices.Contains([]string{"-n", "-C", "-F", "--name", "--thread", "--rw", "--size",
				"--iodepth_batch_complete", "--do_verify"}, name):
				continue // how many, or how fio puts it
			case slices.Contains([]string{"ADDR", "PORT", "CLIENT", "DEV"}, value):
				o = name
			}
			if o = "`" + o + "`"; !slices.Contains(options[program], o) {
				options[program] = append(options[program], o)
			}
		}
	}
	return options
}

// text is the table as docs/verbs.md has it.
func (s *shownTable) text(t *testing.T) string {
	t.Helper()
	run := options(s.run())
	var b strings.Builder
	b.WriteString(tableStart)
	for _, p := range s.programs {
		o, ok := run[p.program]
		if !ok {
			t.Errorf("no test runs %s", p.program)
		}
		delete(run, p.program)
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.program, versions[packageOf(p.program)],
			strings.Join(o, " "), p.result)
	}
	for p := range run {
		t.Errorf("%s is run, and not in the table", p)
	}
	return b.String()
}

// The tables of docs/verbs.md say what these tests run; `go test -run TestDocs ./integration/verbs
// -update` writes them.
func TestDocs(t *testing.T) {
	path := filepath.Join(topDir, docsFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := range shownTables {
		s := &shownTables[i]
		want := s.text(t)
		start := strings.Index(text, s.heading+"\n")
		if start < 0 {
			t.Fatalf("%s has no heading %q", docsFile, s.heading)
		}
		n := strings.Index(text[start:], tableStart)
		if n < 0 {
			t.Fatalf("%s has no table of programs below %q", docsFile, s.heading)
		}
		start += n
		end := start
		for strings.HasPrefix(text[end:], "|") {
			end += strings.Index(text[end:], "\n") + 1
		}
		if text[start:end] != want && !*update {
			t.Errorf("%s: the table below %q is not what is run; want:\n%s", docsFile, s.heading, want)
		}
		text = text[:start] + want + text[end:]
	}
	if !*update || text == string(b) {
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
