package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// roceCMJobs are librdmacm's examples of datagrams. A receiver of mckey's is ready when it has
// joined the group, which it says at once if its output is line buffered.
var roceCMJobs = []job{
	{name: "udaddy", quick: true, fixed: true, server: "udaddy -b ADDR",
		client: "udaddy -s ADDR", serverOut: []string{"^return status 0$"},
		clientOut: []string{"^return status 0$", "data transfers complete"}},
	{name: "udaddy, 8 ids, 1000 octets", fixed: true, server: "udaddy -b ADDR -c 8 -S 900 -C 50",
		client: "udaddy -s ADDR -c 8 -S 900 -C 50", serverOut: []string{"^return status 0$"},
		clientOut: []string{"^return status 0$"}},
	{name: "mckey", quick: true, v4: true, listeners: -1, ready: "joined dgid",
		server:    "stdbuf -oL mckey -m 239.77.1.1 -b ADDR -C 5",
		client:    "mckey -m 239.77.1.1 -b CLIENT -s -C 5",
		serverOut: []string{"^test complete$", "^return status 0$"},
		clientOut: []string{"^test complete$", "^return status 0$"}},
	{name: "mckey, 4 ids", v4: true, listeners: -1, ready: "receiving data transfers",
		server:    "stdbuf -oL mckey -m 239.77.1.2 -b ADDR -c 4",
		client:    "mckey -m 239.77.1.2 -b CLIENT -s -c 4",
		serverOut: []string{"^return status 0$"}, clientOut: []string{"^return status 0$"}},
}

// What rdma_cm has on RoCE beside iWARP, by programs in C: RCM-030, 031, 034, 056, 060, 066.
func TestRoCECMCalls(t *testing.T) {
	need(t)
	for _, make := range roceTopologies[:2] { // both ends are in one program
		t.Run(make.name, func(t *testing.T) {
			make.make(t).runC(t, "roce_cm", "own_qps", "own_rejects", "own_notify", "own_waits",
				"options", "reuse", "one_family")
		})
	}
}

// runsOfJobs are jobs as runs, by IPv4 and IPv6.
func runsOfJobs(jobs []job) (runs []roceRun) {
	for i := range jobs {
		j := &jobs[i]
		for family := range 2 {
			if family == 1 && (j.limit != 0 || j.v4) {
				continue
			}
			runs = append(runs, roceRun{words: j.client, more: fmt.Sprintf(" IPv%d", 4+2*family),
				quick: j.quick && family == 0,
				do:    func(t *testing.T, top *topology) { top.run(t, j, family) }})
		}
	}
	return runs
}

// roceIDJobs are those of librdmacm's examples. What iWARP shows in every test run is enough of
// most of them.
func roceIDJobs() []job {
	jobs := slices.Concat(rpingJobs, cmJobs)
	for i := range jobs {
		jobs[i].quick = slices.Contains([]string{"rping", "rping with QPs of its own",
			"ucmatose, 10 connections"}, jobs[i].name)
	}
	return append(jobs, roceCMJobs...)
}

// Programs that connect by rdma_cm do on RoCE what they do on iWARP.
func TestRoCECM(t *testing.T) { runRoCE(t, runsOfJobs(roceIDJobs()), "two devices") }

// rocePerfJobs are perftest's programs with -R: a job's listener is one of rdma_cm. With that they
// refuse -c UC themselves.
func rocePerfJobs() []job {
	jobs := perfJobs()
	for i := range jobs { // every test run has one of them
		jobs[i].quick = jobs[i].name == "ib_write_bw -n 200 -q 4 -b -s 4096"
	}
	return append(jobs, perfJob("ib_send_bw", "-n 200 -c UD -s 1024", false))
}

// RCM-061, RVB-049: what an id of rdma_cm knows of the way to its peer, and of the port's speed.
func TestRoCERoute(t *testing.T) {
	need(t)
	for _, make := range roceTopologies[:2] {
		t.Run(make.name, func(t *testing.T) { make.make(t).runC(t, "roce_route", "route") })
	}
}

func TestRoCEPerftestCM(t *testing.T) { runRoCE(t, runsOfJobs(rocePerfJobs()), "two devices") }

// roceFioJobs are fioJobs, where a server of Sends posts all its receives before it begins: fio
// asks for no retries (rnr_retry_count 0), so on RoCE a message that finds no receive ends the
// connection.
func roceFioJobs() []job {
	jobs := fioJobs()
	for i := range jobs {
		for bs, depths := range map[string][2]string{"4k": {"16", "512"}, "64k": {"8", "256"},
			"1m": {"2", "64"}} {
			if jobs[i].name == "fio send "+bs {
				jobs[i].server = strings.Replace(jobs[i].server, "--iodepth="+depths[0],
					"--iodepth="+depths[1], 1)
			}
		}
	}
	return jobs
}

func TestRoCEFio(t *testing.T) { runRoCE(t, runsOfJobs(roceFioJobs()), "two devices") }

// roceFabric are fi_pingpong's options on a RoCE device.
var roceFabric = []string{"-p verbs -e msg -I 20 -S 4096", "-p verbs -e msg -S all",
	"-p verbs -e dgram -d DEV-dgram -I 20 -S 512", "-p verbs;ofi_rxm -e rdm -S all",
	"-p verbs;ofi_rxd -e rdm -d DEV-dgram -I 20 -S 4096"}

func TestRoCEFabric(t *testing.T) {
	runs := []roceRun{{words: "fi_info -p verbs", do: func(t *testing.T, top *topology) {
		top.server.in(t).start("fi_info", "-p", "verbs").succeed(patience, "provider: verbs",
			"type: FI_EP_MSG", "protocol: FI_PROTO_RDMA_CM_IB_RC", "type: FI_EP_DGRAM",
			"protocol: FI_PROTO_IB_UD")
	}}}
	for _, o := range roceFabric {
		runs = append(runs, roceRun{words: "fi_pingpong " + o, do: func(t *testing.T, top *topology) {
			fabricJob(t, top, o, 2*time.Minute)
		}})
	}
	runRoCE(t, runs)
}
