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

// A shownTable is one of docs/verbs.md, below a heading. What a program is run with comes from what
// is run.
type shownTable struct {
	device   string            // the heading is "On" that
	programs string            // words: a line each, in this order
	results  map[string]string // by program: those that shownResults has not
	run      func() []string   // command lines
	beside   func() []string   // and others of which options are told
}

// shownResults are the results that say the same on both.
var shownResults = map[string]string{
	"ibv_devices": "lists the devices",
	"ucmatose":    "all messages received",
	"rdma_client": "with rdma_server: synchronous ids",
	"cmtime":      "connections made and ended",
	"rstream":     "data compared by both sides (`-T v`)",
	"riostream":   "data compared by both sides (`-T v`)",
	"rcopy":       "the file compared",
	"iperf3":      "with `vrnic exec --rsockets`: both ways, no error",
	"curl": "the same, from nginx with sendfile, and through it as a proxy: the file " +
		"compared",
	"redis-cli": "the same, with redis-server: values compared, the addresses those of " +
		"the devices",
	"redis-benchmark": "the same: all requests answered",
	"sftp":            "the same, with sshd: files compared, both ways",
	"ib_send_bw":      "all messages counted",
	"ib_send_lat":     "all messages counted",
	"ib_write_bw":     "all messages counted",
	"ib_write_lat":    "all messages seen in memory",
	"ib_read_bw":      "all messages counted",
	"ib_read_lat":     "all messages counted",
	"ib_atomic_bw":    "all messages counted",
	"ib_atomic_lat":   "all messages counted",
	"fio": "no error; with `--verb=send` the server verifies the data " +
		"(`--verify=crc32c`)",
	"dapltest":             "all messages counted, connections ended in order",
	"dtest":                "Sends, Writes and Reads both ways, completed at both sides",
	"dtestsrq":             "the same by a shared receive queue",
	"fi_pingpong":          "data compared (`-c`)",
	"qemu-system-x86_64":   "a machine migrates (`rdma:ADDR:PORT`)",
	"iscsi-inq":            "a disk of tgtd's over iSER: what it is",
	"iscsi-readcapacity16": "its size",
	"iscsi-perf":           "blocks read from it",
	"iscsi-test-cu":        "blocks written to it, read and compared, by it and by tgtd",
	"gdb":                  "rping in it, data compared",
	"strace":               "rping in it, data compared",
	"valgrind":             "rping in it, data compared, and no report",
	"binding.go":           "a program of ours in Go, by cgo: data compared",
	"binding.rs":           "a program of ours in Rust: memory registered, a CQ made",
}

var shownTables = []shownTable{
	{onIWARP, "ibv_devices ibv_devinfo ibv_asyncwatch rping ucmatose rdma_client rdma_xclient " +
		"cmtime rstream riostream rcopy iperf3 curl redis-cli redis-benchmark sftp ib_send_bw " +
		"ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw " +
		"ib_atomic_lat fio dapltest dtest dtestsrq fi_info fi_pingpong mpirun.openmpi " +
		"qemu-system-x86_64 iscsi-inq iscsi-readcapacity16 iscsi-perf iscsi-test-cu gdb " +
		"strace valgrind binding.go binding.rs", map[string]string{
		"ibv_devinfo":    "attributes of devices and ports, transport iWARP",
		"ibv_asyncwatch": "waits for events",
		"rping": "data compared by both sides; either side killed: the other disconnects, " +
			"flushes, ends",
		"rdma_xclient":   "with rdma_xserver: synchronous ids; XRC (`-c x`) does not exist on iWARP",
		"fi_info":        "endpoints of type FI_EP_MSG, FI_PROTO_IWARP, for each address",
		"mpirun.openmpi": "data compared by a program of ours, hello and ping-pong; over libfabric",
	}, func() []string {
		lines := []string{"ibv_devices", "ibv_devinfo -l", "ibv_devinfo -d DEV -v", "ibv_asyncwatch",
			"fi_info -p verbs", rcopyWords}
		lines = append(lines, wordsOf(plainRuns())...)
		for _, o := range fabricAll {
			lines = append(lines, "fi_pingpong "+o)
		}
		lines = append(append(lines, mpiLines...), wordsOf(otherRuns())...)
		lines = append(lines, wordsOf(daplAlone(onIWARP))...)
		return append(lines, linesOf(rpingJobs, cmJobs, rsocketJobs(), perfJobs(), fioJobs(),
			daplJobs)...)
	}, func() []string { return append(serversOf(rpingJobs), "fi_pingpong -c -d DEV") }},
	{onRoCE, "ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong " +
		"ibv_srq_pingpong rping ucmatose rdma_client rdma_xclient cmtime udaddy mckey rstream " +
		"riostream udpong rcopy iperf3 curl redis-cli redis-benchmark sftp ib_send_bw " +
		"ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw " +
		"ib_atomic_lat qperf fio dapltest dtest dtestsrq dtestx dtestcm fi_info fi_pingpong " +
		"ucx_info ucx_perftest ucp_client_server mpirun.openmpi mpirun.mpich " +
		"qemu-system-x86_64 iscsi-inq iscsi-readcapacity16 iscsi-perf iscsi-test-cu gdb " +
		"strace valgrind binding.go binding.rs run_tests.py", map[string]string{
		"ibv_devinfo":      "attributes of devices and ports, transport InfiniBand, the GIDs",
		"ibv_rc_pingpong":  "data compared (`-c`)",
		"ibv_uc_pingpong":  "all messages received",
		"ibv_ud_pingpong":  "all datagrams received",
		"ibv_srq_pingpong": "all messages received",
		"rping":            "data compared by both sides",
		"rdma_xclient":     "with rdma_xserver: synchronous ids",
		"udaddy":           "all datagrams received",
		"mckey":            "all datagrams received",
		"udpong":           "sockets of datagrams: answers counted",
		"qperf":            "a rate or a time; `ver_...` compares what comes of atomics",
		"dtestx":           "Writes with immediate data, Compare & Swap, Fetch & Add: values compared",
		"dtestcm":          "1000 connections made and ended",
		"fi_info":          "endpoints of type FI_EP_MSG and FI_EP_DGRAM",
		"ucx_info":         "transports rc_verbs and ud_verbs, rdmacm to connect by",
		"ucx_perftest": "on RC and UD alone, and on UCP: tagged and active messages, streams, puts, " +
			"gets, atomics",
		"ucp_client_server": "libucx-dev's example: connected by rdma_cm, data shown",
		"mpirun.openmpi": "data compared by a program of ours, hello and ping-pong; over libfabric " +
			"and over UCX",
		"mpirun.mpich": "the same, over UCX",
		"run_tests.py": "the tests of python3-pyverbs but for those of one maker's devices, see below",
	}, func() []string {
		lines := []string{"ibv_devices", "ibv_devinfo -d DEV -v", "fi_info -p verbs", rcopyWords}
		lines = append(lines, wordsOf(plainRuns())...)
		for _, o := range roceFabric {
			lines = append(lines, "fi_pingpong "+o)
		}
		for _, n := range slices.Concat(pingpongs, numberedPerf(), ucxTests()) {
			lines = append(lines, n.words)
		}
		lines = append(lines, ucxInfo)
		for _, kind := range ucxKinds {
			lines = append(lines, ucxClient+kind)
		}
		lines = append(append(lines, roceMPILines...), wordsOf(otherRuns())...)
		lines = append(lines, wordsOf(daplAlone(onRoCE))...)
		for _, name := range qperfTests {
			lines = append(lines, qperfWords+"-cm1 "+name)
		}
		lines = append(lines, linesOf(roceIDJobs(), rsocketJobs(), udpongJobs(), rocePerfJobs(),
			roceFioJobs(), daplJobs)...)
		for _, m := range pyverbsModules {
			lines = append(lines, pyverbsWords+m)
		}
		return lines
	}, func() []string { return append(serversOf(rpingJobs), "fi_pingpong -c") }},
}

// wordsOf are the command lines of runs.
func wordsOf(runs []roceRun) (lines []string) {
	for _, r := range runs {
		lines = append(lines, r.words)
	}
	return lines
}

// linesOf are the clients' command lines of jobs.
func linesOf(lists ...[]job) (lines []string) {
	for _, j := range slices.Concat(lists...) {
		lines = append(lines, j.client)
	}
	return lines
}

// serversOf are the servers'.
func serversOf(jobs []job) (lines []string) {
	for _, j := range jobs {
		lines = append(lines, j.server)
	}
	return lines
}

const (
	tableStart = "| program | version | options | runs | result |\n|---|---|---|---|---|\n"
	docsFile   = "docs/verbs.md"
)

// options are those that command lines have, by program.
func options(lines []string) map[string][]string {
	options := make(map[string][]string)
	for _, line := range lines {
		env, argv := settings(line)
		program, more := argv[0], argv[1:]
		if options[program] == nil {
			options[program] = []string{}
		}
		for _, e := range env {
			if e = "`" + e + "`"; !slices.Contains(options[program], e) {
				options[program] = append(options[program], e)
			}
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
			case strings.HasPrefix(value, "tests."): // python3-pyverbs's -v is in front of them
				o = value
			case slices.Contains([]string{"ADDR", "PORT", "CLIENT", "DEV", "vrnic0"}, value):
				o = name
			}
			if o = "`" + o + "`"; !slices.Contains(options[program], o) {
				options[program] = append(options[program], o)
			}
		}
	}
	return options
}

// runs says how many of the command lines, which have been run, did well in which topology.
func runs(lines []string, of map[string]*outcome) string {
	var list []string
	for _, place := range places {
		ran, failed := 0, []string(nil)
		for _, l := range lines {
			if ok, there := of[l].in[place]; there {
				ran++
				if !ok {
					failed = append(failed, "`"+l+"`")
				}
			}
		}
		switch {
		case ran > 0 && failed == nil:
			list = append(list, fmt.Sprintf("%s: %d", place, ran))
		case ran > 0:
			list = append(list, fmt.Sprintf("%s: %d of %d, but for %s", place, ran-len(failed), ran,
				strings.Join(failed, ", ")))
		}
	}
	return strings.Join(list, "; ")
}

// text is the table as docs/verbs.md has it, of what has come of the programs.
func (s *shownTable) text(t *testing.T, of map[string]*outcome) string {
	t.Helper()
	lines := make(map[string][]string) // by program
	for _, words := range s.run() {
		words = shown(words)
		p := programOf(words)
		if of[words] == nil {
			t.Errorf("on %s nobody has run %q: make verbs-programs", s.device, words)
		} else if !slices.Contains(lines[p], words) {
			lines[p] = append(lines[p], words)
		}
	}
	var all []string
	for _, words := range slices.Concat(s.run(), s.beside()) {
		all = append(all, shown(words))
	}
	told := options(all)
	var b strings.Builder
	b.WriteString(tableStart)
	for p := range strings.FieldsSeq(s.programs) {
		result := s.results[p]
		if result == "" {
			result = shownResults[p]
		}
		list := lines[p]
		if list == nil || result == "" {
			t.Errorf("no test runs %s, or nothing is said of it", p)
			continue
		}
		delete(lines, p)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", p, of[list[0]].version,
			strings.Join(told[p], " "), runs(list, of), result)
	}
	for p := range lines {
		t.Errorf("%s is run, and not in the table", p)
	}
	return b.String()
}

// known are the outcomes of the command lines that the tables have, by device. Others are of
// programs that nobody runs any more: an update forgets them.
func known(t *testing.T, all map[commandLine]*outcome) map[string]map[string]*outcome {
	t.Helper()
	of := make(map[string]map[string]*outcome)
	for i := range shownTables {
		s := &shownTables[i]
		of[s.device] = make(map[string]*outcome)
		for _, words := range s.run() {
			if o := all[commandLine{s.device, shown(words)}]; o != nil {
				of[s.device][shown(words)] = o
			}
		}
	}
	for l := range all {
		if of[l.device][l.words] == nil {
			delete(all, l)
			if !*update {
				t.Errorf("%s: on %s no test runs %q any more", outcomesFile, l.device, l.words)
			}
		}
	}
	return of
}

// The tables of docs/verbs.md say what these tests run, and what came of it when that was kept:
// `make verbs-programs` does both, `go test -run TestDocs ./integration/verbs -update` writes the
// tables alone.
func TestDocs(t *testing.T) {
	path := filepath.Join(topDir, docsFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readOutcomes()
	if err != nil {
		t.Fatal(err)
	}
	of := known(t, all)
	text := string(b)
	for i := range shownTables {
		s := &shownTables[i]
		want := s.text(t, of[s.device])
		heading := "### On " + s.device
		start := strings.Index(text, heading+"\n")
		if start < 0 {
			t.Fatalf("%s has no heading %q", docsFile, heading)
		}
		n := strings.Index(text[start:], "| program |")
		if n < 0 {
			t.Fatalf("%s has no table of programs below %q", docsFile, heading)
		}
		start += n
		end := start
		for strings.HasPrefix(text[end:], "|") {
			end += strings.Index(text[end:], "\n") + 1
		}
		if text[start:end] != want && !*update {
			t.Errorf("%s: the table below %q is not what is run; want:\n%s", docsFile, heading, want)
		}
		text = text[:start] + want + text[end:]
	}
	if !*update || t.Failed() {
		return
	}
	if err := writeOutcomes(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
