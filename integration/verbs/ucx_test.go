package verbs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ucxSees has UCX find the devices: it wants a file of each in /dev.
var ucxSees = []string{"VRNIC_SYS=preload"}

// ucxTests are ucx_perftest's: on its transports alone, and on UCP, which chooses among them. An
// RC connection of UCP's is made over UD.
func ucxTests() (list []numbered) {
	add := func(words string) {
		// On a transport alone the client tells the server the name of its device, too.
		list = append(list, numbered{words: words, env: ucxSees, limit: time.Minute,
			named: strings.Contains(words, " -x "), out: []string{`^Final: +\d+`, "!ERROR", "!WARN"}})
	}
	direct := "ucx_perftest -p PORT -n 500 -w 10 -d DEV:1 -x "
	for _, o := range []string{"am_lat -s 64", "am_bw -s 64", "put_lat -s 64", "put_bw -s 64",
		"get -s 1024 -D bcopy", "fadd -s 8", "cswap -s 8"} {
		add(direct + "rc_verbs -t " + o)
	}
	for _, o := range []string{"am_lat -s 64", "am_bw -s 64"} {
		add(direct + "ud_verbs -t " + o)
	}
	chosen := " ucx_perftest -p PORT -w 10 -t "
	rc, ud := "UCX_TLS=rc_verbs,ud_verbs:aux"+chosen, "UCX_TLS=ud_verbs"+chosen
	for _, o := range []string{"tag_lat", "tag_bw", "stream_bw", "ucp_am_lat", "ucp_am_bw",
		"ucp_put_lat", "ucp_put_bw", "ucp_get"} {
		add(rc + o + " -n 500 -s 64")
	}
	for _, o := range []string{"tag_bw", "ucp_put_bw", "ucp_get"} {
		add(rc + o + " -n 50 -s 1000000")
	}
	for _, o := range []string{"ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"} {
		add(rc + o + " -n 500 -s 8")
	}
	for _, o := range []string{"tag_lat -n 500 -s 64", "tag_bw -n 50 -s 100000",
		"ucp_am_bw -n 500 -s 64", "ucp_put_bw -n 500 -s 64", "ucp_get -n 200 -s 64",
		"ucp_cswap -n 200 -s 8"} {
		add(ud + o)
	}
	return list
}

const (
	ucxInfo = "ucx_info -d"
	// Examples of libucx-dev, whose listener and client use rdma_cm.
	ucxExampleSource = "/usr/share/doc/libucx-dev/examples/ucp_client_server.c"
	ucxClient        = "ucp_client_server -a ADDR -p PORT -c "
)

var ucxKinds = []string{"am", "tag", "stream"}

// ucxExample is that of libucx-dev by which UCX connects with rdma_cm.
func ucxExample(t *testing.T) string {
	t.Helper()
	need(t, "gcc", ucxExampleSource)
	path := filepath.Join(workDir, "ucp_client_server")
	out, err := exec.Command("gcc", "-o", path, ucxExampleSource, "-lucp", "-lucs").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", ucxExampleSource, err, out)
	}
	return path
}

// UCX is what MPI and others are built on. It knows no iWARP: its transports are InfiniBand's.
func TestRoCEUCX(t *testing.T) {
	runs := []roceRun{{words: ucxInfo, do: func(t *testing.T, top *topology) {
		top.server.in(t).startWith(ucxSees, "ucx_info", "-d").succeed(patience,
			"Transport: rc_verbs", "Transport: ud_verbs", "Device: vrnic0:1",
			"Connection manager: rdmacm")
	}}}
	runs = append(runs, runsOf(ucxTests())...)
	for _, kind := range ucxKinds {
		do := func(t *testing.T, top *topology) {
			path, port := ucxExample(t), int(nextPort.Add(1))
			env := append([]string{"UCX_TLS=rc_verbs,ud_verbs:aux",
				"UCX_SOCKADDR_TLS_PRIORITY=rdmacm"}, ucxSees...)
			server := top.server.in(t).startWith(env, path, "-p", fmt.Sprint(port), "-c", kind)
			top.server.in(t).listens(server, port, 1)
			client := top.client.in(t).startWith(env, path, "-a", top.server.addrs[0], "-p",
				fmt.Sprint(port), "-c", kind)
			client.succeed(patience, "^ABCDEFGHIJKLMNO", "!ERROR")
			server.Kill() // it waits for more
		}
		runs = append(runs, roceRun{words: ucxClient + kind, built: true, do: do})
	}
	runRoCE(t, runs)
}
