package verbs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// heapJobs are programs of Debian's whose buffers are large or aligned to pages. Without perftest's
// Sends with events: the faster they are, the likelier a sender has used up its credit and waits
// for ever, see perfJobs.
func heapJobs() (jobs []job) {
	add := func(j job) {
		j.name = "lent, " + j.name
		jobs = append(jobs, j)
	}
	for _, j := range rpingJobs {
		if strings.Contains(j.name, "60000") {
			add(j)
		}
	}
	for i, o := range []string{"write_bw -n 600", "read_bw -n 600", "send_bw -n 600",
		"write_lat -n 200 -s 65536",
		"write_bw -n 200 -q 4 -b", "write_bw -n 100 -s 1048576", "send_bw -n 200 --use-srq",
		"read_lat -n 200 -s 64", "send_lat -n 200 -s 65536"} {
		tool, options, _ := strings.Cut(o, " ")
		add(perfJob("ib_"+tool, options, i < 4))
	}
	for _, j := range fioJobs() { // of which send verifies the data
		if strings.HasSuffix(j.name, " 64k") || strings.HasSuffix(j.name, " 1m") {
			j.quick = j.quick && !strings.Contains(j.name, "read")
			add(j)
			if strings.Contains(j.name, "send") {
				j.name += ", jobs that are forked"
				j.server, j.client = strings.Replace(j.server, "--thread ", "", 1), strings.Replace(j.client,
					"--thread ", "", 1)
				add(j)
			}
		}
	}
	return jobs
}

// needHeap skips a test where programs have a malloc of a tool's.
func needHeap(t *testing.T) {
	t.Helper()
	need(t)
	if kind := os.Getenv("VRNIC_TEST_SANITIZE"); kind != "" {
		needtest.Skip(t, kind+" has a malloc of its own")
	}
}

// With vrnic exec --lend-heap programs do what they do without.
func TestLendHeap(t *testing.T) {
	needHeap(t)
	t.Setenv("VRNIC_LEND_HEAP", "1")
	for _, make := range topologies[:3] {
		if make.name == "two devices" && !thorough() {
			continue
		}
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			jobs := heapJobs()
			if make.name == "two daemons" { // see TestFio
				jobs = slices.DeleteFunc(jobs, func(j job) bool { return strings.Contains(j.name, "fio send") })
			}
			top.runAll(t, jobs)
			if make.name == "two daemons" {
				return // the programs in C are for one
			}
			for _, c := range []struct{ program, cases string }{
				{"memory", "kinds many shared threads"},
				{"transfer", "sends writes_and_reads gather inlined atomics shared_receives chains mixed"},
				{"errors", "local_key local_bounds local_pd local_unmapped_large receive_rights too_long " +
					"read_refused write_refused disconnected"},
				{"life", "forks forks_while_busy forks_first execs exec_disconnects main_thread_ends"},
			} {
				top.runC(t, c.program, strings.Fields(c.cases)...)
			}
		})
	}
}

// What --lend-heap is for: the daemon maps a program's buffer, and has no way into the rest of its
// memory. A program that is killed leaves nothing.
func TestLendHeapMaps(t *testing.T) {
	needHeap(t)
	need(t, "ib_write_bw")
	for _, lend := range []string{"0", "1"} {
		t.Run("VRNIC_LEND_HEAP="+lend, func(t *testing.T) {
			t.Setenv("VRNIC_LEND_HEAP", lend)
			top := oneDevice(t)
			port := int(nextPort.Add(1))
			server := top.server.start("ib_write_bw", "-R", "-F", "-p", fmt.Sprint(port), "-D", "60")
			top.server.listens(server, port, 1)
			client := top.client.start("ib_write_bw", "-R", "-F", "-p", fmt.Sprint(port), "-D", "60",
				top.server.addrs[0])
			clients := func() (programs []map[string]any) {
				for _, row := range top.server.show("client") {
					if row["mr"].(float64) > 0 {
						programs = append(programs, row)
					}
				}
				return programs
			}
			proctest.Eventually(t, patience, "two programs with memory regions",
				func() bool { return len(clients()) == 2 || client.Ended() })
			for _, row := range clients() {
				lent, own := row["mem"].(float64), row["own_memory"]
				if lend == "1" && (lent != 1 || own != "" && own != nil) || lend == "0" && (lent != 0 ||
					own == "" || own == nil) {
					t.Errorf("with VRNIC_LEND_HEAP=%s: %v", lend, row)
				}
			}
			client.Kill()
			server.Kill()
			top.settle()
		})
	}
}
