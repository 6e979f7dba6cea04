package verbs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

// qperfTests are those of qperf that rdma_cm connects (-cm1). Its others, of UC and UD and of queue
// pairs that it connects itself, give no global route, without which no device of RoCE takes them.
var qperfTests = []string{"rc_bw", "rc_bi_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_read_lat",
	"rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "rc_compare_swap_mr",
	"rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"}

const qperfWords = "qperf 127.0.0.1 -lp PORT -t 1 "

// qperfTooEarly is what a client says that came before its server listened: the server tells it the
// port first.
const qperfTooEarly = "unexpected event from RDMA CM: Event rejected"

// qperfOnItsOwn are tests whose queue pairs qperf connects by itself.
var qperfOnItsOwn = []string{"rc_bw", "uc_bw", "ud_bw", "ud_lat"}

// qperf runs a client by these words, of which PORT is a port, with a server of its own, and has
// look look at how it ended, while the server is there.
func qperf(t *testing.T, top *topology, words string, look func(client, server *process)) {
	for range 10 {
		port := fmt.Sprint(nextPort.Add(1))
		server := top.server.in(t).start("qperf", "-lp", port)
		listensTCP(t, server)
		client := top.client.in(t).start(strings.Fields(strings.ReplaceAll(words, "PORT", port))...)
		_ = client.Wait(time.Minute) // look looks at how it ended
		early := strings.Contains(client.Output(), qperfTooEarly)
		if !early {
			look(client, server)
		}
		server.Kill()
		if !early {
			return
		}
	}
	t.Error("ten clients came before their server listened")
}

// qperfMeasures looks at a client that has measured by the test of that name.
func qperfMeasures(name string) func(client, server *process) {
	return func(client, _ *process) {
		client.succeed(time.Minute, "^"+name+":$", `^ +(bw|latency|msg_rate) += +[1-9]`, "!failed")
	}
}

var refusals = regexp.MustCompile("failed to modify QP|failed to create address handle")

// Its server takes one name for the kernel's TCP and for rdma_cm, which 127.0.0.1 is on one device.
func TestRoCEQperf(t *testing.T) {
	run := func(words string, look func(client, server *process)) func(*testing.T, *topology) {
		return func(t *testing.T, top *topology) { qperf(t, top, words, look) }
	}
	var runs []roceRun
	for _, name := range qperfTests {
		words := qperfWords + "-cm1 " + name
		runs = append(runs, roceRun{words: words, alone: true, quick: name == "rc_lat",
			do: run(words, qperfMeasures(name))})
	}
	for _, name := range qperfOnItsOwn {
		words := qperfWords + name
		runs = append(runs, roceRun{words: words, alone: true, more: ", refused", refused: true,
			do: run(words, func(client, server *process) {
				client.fail(time.Minute)
				// Who was first says so, and the other one that it hears no more.
				proctest.Eventually(client.T, patience, "one of them is refused", func() bool {
					return refusals.MatchString(client.Output() + server.Output())
				})
			})})
	}
	runRoCE(t, runs, "one device")
}
