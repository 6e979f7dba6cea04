package verbs

import (
	"slices"
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

// Programs that connect by rdma_cm do on RoCE what they do on iWARP.
func TestRoCECM(t *testing.T) {
	inRoCE(t, func(t *testing.T, top *topology) {
		jobs := slices.Concat(rpingJobs, cmJobs)
		for i := range jobs { // what iWARP shows in every test run is enough of most
			jobs[i].quick = i == 0 || jobs[i].name == "ucmatose, 10 connections"
		}
		top.runAll(t, append(jobs, roceCMJobs...))
	}, "two devices")
}

// RCM-061, RVB-049: what an id of rdma_cm knows of the way to its peer, and of the port's speed.
func TestRoCERoute(t *testing.T) {
	need(t)
	for _, make := range roceTopologies[:2] {
		t.Run(make.name, func(t *testing.T) { make.make(t).runC(t, "roce_route", "route") })
	}
}

// perftest's programs with -R: a job's listener is one of rdma_cm.
func TestRoCEPerftestCM(t *testing.T) {
	inRoCE(t, func(t *testing.T, top *topology) {
		jobs := perfJobs()
		for i := range jobs { // every test run has one of them
			jobs[i].quick = jobs[i].name == "ib_write_bw -n 200 -q 4 -b -s 4096"
		}
		top.runAll(t, append(jobs, perfJob("ib_send_bw", "-n 200 -c UD -s 1024", false),
			perfJob("ib_write_bw", "-n 200 -c UC", false)))
	}, "two devices")
}

func TestRoCEFio(t *testing.T) {
	inRoCE(t, func(t *testing.T, top *topology) { top.runAll(t, fioJobs()) })
}

// roceFabric are fi_pingpong's options on a RoCE device.
var roceFabric = []string{"-p verbs -e msg -I 20 -S 4096", "-p verbs -e msg -S all",
	"-p verbs -e dgram -I 20 -S 512", "-p verbs;ofi_rxm -e rdm -S all",
	"-p verbs;ofi_rxd -e rdm -I 20 -S 4096"}

func TestRoCEFabric(t *testing.T) {
	need(t, "fi_info", "fi_pingpong")
	inRoCE(t, func(t *testing.T, top *topology) {
		top.server.in(t).start("fi_info", "-p", "verbs").succeed(patience, "provider: verbs",
			"type: FI_EP_MSG", "protocol: FI_PROTO_RDMA_CM_IB_RC", "type: FI_EP_DGRAM",
			"protocol: FI_PROTO_IB_UD")
		for _, o := range roceFabric {
			t.Run(o, func(t *testing.T) { fabricJob(t, top, o, 2*time.Minute) })
		}
	})
}
