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

var update = flag.Bool("update", false, "write the table of programs into docs/verbs.md")

// shownPrograms are the table's lines, in its order: what they are run with comes from the jobs.
var shownPrograms = []struct{ program, version, result string }{
	{"ibv_devices", "44.0", "lists the devices"},
	{"ibv_devinfo", "44.0", "attributes of devices and ports, transport iWARP"},
	{"ibv_asyncwatch", "44.0", "waits for events"},
	{"rping", "44.0", "data compared by both sides; either side killed: the other disconnects, " +
		"flushes, ends"},
	{"ucmatose", "44.0", "all messages received"},
	{"rdma_client", "44.0", "with rdma_server: synchronous ids"},
	{"rdma_xclient", "44.0",
		"with rdma_xserver: synchronous ids; XRC (`-c x`) does not exist on iWARP"},
	{"cmtime", "44.0", "connections made and ended"},
	{"ib_send_bw", "4.5-0.17", "all messages counted"},
	{"ib_send_lat", "4.5-0.17", "all messages counted"},
	{"ib_write_bw", "4.5-0.17", "all messages counted"},
	{"ib_write_lat", "4.5-0.17", "all messages seen in memory"},
	{"ib_read_bw", "4.5-0.17", "all messages counted"},
	{"ib_read_lat", "4.5-0.17", "all messages counted"},
	{"ib_atomic_bw", "4.5-0.17", "all messages counted"},
	{"ib_atomic_lat", "4.5-0.17", "all messages counted"},
	{"fio", "3.33", "no error; with `--verb=send` the server verifies the data (`--verify=crc32c`)"},
	{"fi_info", "1.17.0", "endpoints of type FI_EP_MSG, FI_PROTO_IWARP, for each address"},
	{"fi_pingpong", "1.17.0", "data compared (`-c`)"},
	{"ibv_rc_pingpong", "44.0", "on RoCE: data compared (`-c`)"},
	{"ibv_uc_pingpong", "44.0", "on RoCE: all messages received"},
	{"ibv_ud_pingpong", "44.0", "on RoCE: all datagrams received"},
	{"ibv_srq_pingpong", "44.0", "on RoCE: all messages received"},
	{"udaddy", "44.0", "on RoCE: all datagrams received"},
	{"mckey", "44.0", "on RoCE: all datagrams received"},
}

// otherOptions are those of programs that are in no table of jobs.
var otherOptions = map[string]string{
	"ibv_devices": "", "ibv_devinfo": "-l -v -d", "ibv_asyncwatch": "", "fi_info": "-p verbs",
	"fi_pingpong": "-c -d " + strings.Join(fabricAll, " "),
}

const (
	tableStart = "| program | version | options | result |\n|---|---|---|---|\n"
	docsFile   = "docs/verbs.md"
)

// table is that of docs/verbs.md.
func table(t *testing.T) string {
	t.Helper()
	options := make(map[string][]string)
	add := func(program string, more []string) {
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
			case slices.Contains([]string{"ADDR", "PORT", "CLIENT"}, value):
				o = name
			}
			if o = "`" + o + "`"; !slices.Contains(options[program], o) {
				options[program] = append(options[program], o)
			}
		}
	}
	for _, jobs := range [][]job{rpingJobs, cmJobs, roceCMJobs, perfJobs(), fioJobs()} {
		for _, j := range jobs {
			for _, side := range []string{j.client, j.server} {
				w := strings.Fields(side)
				if w[0] == "rping" || side == j.client {
					add(w[0], w[1:])
				}
			}
		}
	}
	for _, n := range slices.Concat(pingpongs, numberedPerf()) {
		w := strings.Fields(n.words)
		add(w[0], w[1:])
	}
	for p, o := range otherOptions {
		options[p] = nil
		add(p, strings.Fields(o))
	}
	var s strings.Builder
	s.WriteString(tableStart)
	for _, p := range shownPrograms {
		o, ok := options[p.program]
		if !ok {
			t.Errorf("no test runs %s", p.program)
		}
		delete(options, p.program)
		fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", p.program, p.version, strings.Join(o, " "), p.result)
	}
	for p := range options {
		t.Errorf("%s is run, and not in the table", p)
	}
	return s.String()
}

// The table of docs/verbs.md says what these tests run; `go test -run TestDocs ./integration/verbs
// -update` writes it.
func TestDocs(t *testing.T) {
	path := filepath.Join(topDir, docsFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, want := string(b), table(t)
	start := strings.Index(text, tableStart)
	if start < 0 {
		t.Fatalf("%s has no table of programs", docsFile)
	}
	end := start
	for strings.HasPrefix(text[end:], "|") {
		end += strings.Index(text[end:], "\n") + 1
	}
	if text[start:end] == want {
		return
	}
	if !*update {
		t.Fatalf("%s: its table of programs is not what is run; want:\n%s", docsFile, want)
	}
	if err := os.WriteFile(path, []byte(text[:start]+want+text[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}
