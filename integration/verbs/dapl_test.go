package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// daplJobs are dapltest's transaction test, which ends its connections in order, and its
// performance test. The server goes on for other clients. A client that fails ends with status 0.
var daplJobs = []job{
	{name: "dapltest -T T", quick: true, fixed: true, forever: true,
		server:    "dapltest -T S -D server",
		client:    "dapltest -T T -D client -s ADDR -i 100 -t 1 -w 1 client SR 256 1 server SR 256 1",
		clientOut: []string{"^Total Send "}, limit: time.Minute},
	{name: "dapltest -T P", fixed: true, forever: true, server: "dapltest -T S -D server",
		client:    "dapltest -T P -D client -s ADDR -i 1000 RW 4096 1",
		clientOut: []string{`^raw: RW, 1000, 4096, `}, limit: time.Minute},
	{name: "dtestsrq", fixed: true, server: "dtestsrq -P server",
		client: "dtestsrq -P client -h ADDR", clientOut: []string{"DAPL RC SRQ Test Complete"},
		serverOut: []string{"DAPL RC SRQ Test Complete"}, limit: time.Minute},
}

// daplTests are programs of DAPL's whose client asks the server by the kernel's TCP first, at the
// name at which it connects: on one device that is the loopback's.
var daplTests = []struct{ program, said, device string }{
	{"dtest", "DAPL Test Complete. PASSED", onIWARP},
	{"dtest", "DAPL Test Complete. PASSED", onRoCE},
	{"dtestx", "immed/atomic test PASSED", onRoCE}, // it wants an InfiniBand device
	{"dtestcm", "DAPL Connection Test Complete", onRoCE},
}

// daplAlone are daplTests on a kind of device.
func daplAlone(device string) (runs []roceRun) {
	for _, x := range daplTests {
		if x.device != device {
			continue
		}
		words := x.program + " -P client -h 127.0.0.1"
		runs = append(runs, roceRun{words: words, alone: true, do: func(t *testing.T, top *topology) {
			daplDevices(t, top)
			server := top.server.in(t).start(x.program, "-P", "server")
			listensTCP(t, server)
			const limit = 5 * time.Minute // dtest writes 8 GB
			top.client.in(t).start(strings.Fields(words)...).succeed(limit, x.said)
			server.succeed(limit, x.said)
		}})
	}
	return runs
}

// daplDevices has uDAPL call the devices of top server and client.
func daplDevices(t *testing.T, top *topology) {
	t.Helper()
	file := filepath.Join(ownDir(t, 0), "dat.conf")
	var text string
	for name, p := range map[string]*place{"server": top.server, "client": top.client} {
		text += fmt.Sprintf("%s u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"%s 0\" \"\"\n",
			name, p.addrs[0])
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DAT_OVERRIDE", file)
}

// DAPL's own programs, on its provider that uses rdma_cm.
func TestDAPL(t *testing.T) {
	need(t, "dapltest")
	for _, make := range iwarpTopologies[:3] { // without IPv4 of the kernel's it finds no server
		if !thorough() && make.name != "two daemons" {
			continue
		}
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			daplDevices(t, top)
			top.runAll(t, daplJobs)
		})
	}
	runOn(t, onIWARP, iwarpTopologies[:1], daplAlone(onIWARP))
}

func TestRoCEDAPL(t *testing.T) {
	runs := daplAlone(onRoCE)
	for i := range daplJobs {
		runs = append(runs, roceRun{words: daplJobs[i].client, do: func(t *testing.T, top *topology) {
			daplDevices(t, top)
			top.run(t, &daplJobs[i], 0)
		}})
	}
	runRoCE(t, runs)
}
