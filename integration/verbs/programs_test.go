package verbs

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

// ibv_devices, ibv_devinfo and ibv_asyncwatch.
func TestDevicePrograms(t *testing.T) {
	need(t, "ibv_devices", "ibv_devinfo", "ibv_asyncwatch")
	note(t, onIWARP, "two devices", "ibv_devices", "ibv_devinfo -l", "ibv_devinfo -d DEV -v",
		"ibv_asyncwatch")
	d := upOrdinary(t, "--device", deviceA, "--device", deviceB1)
	d.start("ibv_devices").succeed(patience, `^\s+vrnic0\s+[0-9a-f]{16}$`,
		`^\s+vrnic1\s+[0-9a-f]{16}$`)
	d.start("ibv_devinfo", "-l").succeed(patience, `^2 HCAs found:$`, `^\s+vrnic0$`, `^\s+vrnic1$`)
	d.start("ibv_devinfo").succeed(patience, `^hca_id:\s+vrnic0$`, `^hca_id:\s+vrnic1$`,
		`transport:\s+iWARP \(1\)`, `state:\s+PORT_ACTIVE`)
	d.start("ibv_devinfo", "-d", "vrnic1", "-v").succeed(patience, `^hca_id:\s+vrnic1$`, `!vrnic0`,
		`transport:\s+iWARP \(1\)`,
		`max_qp_rd_atom:\s+[1-9]`, `state:\s+PORT_ACTIVE \(4\)`, `link_layer:\s+Ethernet`)
	d.start("ibv_devinfo", "-d", "nosuch").fail(patience, `IB device 'nosuch' wasn't found`)

	// It waits for events of the device, and for SIGINT.
	w := d.start("ibv_asyncwatch")
	w.WaitOutput("vrnic0: async event FD", 1)
	w.Signal(syscall.SIGINT)
	_ = w.Wait(patience)
	w = d.start("ibv_asyncwatch")
	w.WaitOutput("vrnic0: async event FD", 1)
	d.settleWith(1)
}

// settleWith wants n programs and nothing else of theirs; asyncwatch and such.
func (d *daemon) settleWith(n int) {
	d.T.Helper()
	proctest.Eventually(d.T, patience, fmt.Sprintf("%d programs", n),
		func() bool { return d.holding().Clients == d.before.Clients+n })
}

// With no daemon there is no device, one line says so, and the programs say what they say on a
// machine without hardware.
func TestNoDaemon(t *testing.T) {
	need(t, "ibv_devices", "ibv_devinfo", "rping")
	env := []string{"VRNIC_SOCKET=" + filepath.Join(t.TempDir(), "none"), "LD_LIBRARY_PATH=" + libs}
	p := start(t, nil, 0, env, "ibv_devices")
	_ = p.Wait(patience)
	p.wantOutput("!vrnic0", "vrnic")
	if n := strings.Count(p.Output(), "vrnic up"); n != 1 {
		t.Errorf("what to do is said %d times:\n%s", n, p.Output())
	}
	start(t, nil, 0, env, "ibv_devinfo").fail(patience,
		"No IB devices found|Failed to get IB devices list")
	start(t, nil, 0, env, "rping", "-c", "-a", addrsA[0]).fail(patience)
}

// rpingJobs: both sides verify the data. Without -V on the server's side the client compares.
var rpingJobs = []job{
	{name: "rping", quick: true,
		server: "rping -s -a ADDR -p PORT -C 10 -v -V", client: "rping -c -a ADDR -p PORT -C 10 -v -V",
		serverOut: []string{"server ping data: rdma-ping-9: ", "!mismatch"}, clientOut: []string{
			"^ping data: rdma-ping-9: ", "!mismatch"}},
	{name: "rping of 16384", server: "rping -s -a ADDR -p PORT -C 20 -S 16384 -V",
		client:    "rping -c -a ADDR -p PORT -C 20 -S 16384 -V -v",
		clientOut: []string{"ping data: rdma-ping-19: ", "!mismatch"}},
	{name: "rping of 60000", quick: true, server: "rping -s -a ADDR -p PORT -C 20 -S 60000 -V",
		client:    "rping -c -a ADDR -p PORT -C 20 -S 60000 -V -v",
		clientOut: []string{"ping data: rdma-ping-19: ", "!mismatch"}},
	{name: "rping with QPs of its own", quick: true,
		server:    "rping -s -a ADDR -p PORT -C 10 -q -v -V",
		client:    "rping -c -a ADDR -p PORT -C 10 -q -v -V",
		serverOut: []string{"server ping data: rdma-ping-9: "}, clientOut: []string{
			"ping data: rdma-ping-9: ", "!mismatch"}},
	{name: "rping from an address", server: "rping -s -a ADDR -p PORT -C 3",
		client:    "rping -c -a ADDR -I CLIENT -p PORT -C 3 -v -V",
		clientOut: []string{"ping data: rdma-ping-2: "}},
	{name: "rping, server at any address", quick: true, v4: true, server: "rping -s -p PORT -C 3",
		client:    "rping -c -a ADDR -p PORT -C 3 -v -V",
		clientOut: []string{"ping data: rdma-ping-2: "}},
	{name: "rping, persistent server", server: "rping -s -a ADDR -p PORT -P",
		client: "rping -c -a ADDR -p PORT -C 5 -v -V", forever: true,
		clientOut: []string{"ping data: rdma-ping-4: "}},
	{name: "rping of many rounds", server: "rping -s -a ADDR -p PORT -C 3000 -S 4096 -V",
		client:    "rping -c -a ADDR -p PORT -C 3000 -S 4096 -V",
		clientOut: []string{"!mismatch"}, limit: 4 * time.Minute},
}

func TestRping(t *testing.T) { inTopologies(t, rpingJobs, "one device", "two daemons", "TAP") }

func TestRpingIPv6(t *testing.T) {
	top := twoDevices(t)
	top.run(t, &rpingJobs[0], 1)
	top.settle()
}

// cmJobs are the other examples of librdmacm.
var cmJobs = []job{
	{name: "ucmatose", quick: true, server: "ucmatose -b ADDR -p PORT",
		client:    "ucmatose -s ADDR -p PORT",
		serverOut: []string{"^return status 0$"}, clientOut: []string{"^return status 0$",
			"data transfers complete"}},
	{name: "ucmatose, 10 connections", quick: true, server: "ucmatose -b ADDR -p PORT -c 10",
		client:    "ucmatose -s ADDR -p PORT -c 10",
		serverOut: []string{"^return status 0$"}, clientOut: []string{"^return status 0$"}},
	{name: "ucmatose, 50 connections, large messages",
		server:    "ucmatose -b ADDR -p PORT -c 50 -C 20 -S 20000",
		client:    "ucmatose -s ADDR -p PORT -c 50 -C 20 -S 20000",
		serverOut: []string{"^return status 0$"}, clientOut: []string{"^return status 0$"}},
	{name: "ucmatose, migrating", quick: true, server: "ucmatose -b ADDR -p PORT -c 4 -m",
		client:    "ucmatose -s ADDR -p PORT -c 4 -m",
		serverOut: []string{"migrating", "^return status 0$"}, clientOut: []string{"migrating",
			"^return status 0$"}},
	{name: "rdma_server", quick: true, server: "rdma_server -s ADDR -p PORT",
		client:    "rdma_client -s ADDR -p PORT",
		serverOut: []string{"^rdma_server: end 0$"}, clientOut: []string{"^rdma_client: end 0$"}},
	{name: "rdma_server at any address", v4: true, server: "rdma_server -p PORT",
		client:    "rdma_client -s ADDR -p PORT",
		serverOut: []string{"^rdma_server: end 0$"}, clientOut: []string{"^rdma_client: end 0$"}},
	{name: "rdma_xserver", quick: true, v4: true, server: "rdma_xserver -p PORT -c r",
		client:    "rdma_xclient -s ADDR -p PORT -c r",
		serverOut: []string{"^rdma_xserver: end 0$"}, clientOut: []string{"^rdma_xclient: end 0$"}},
	{name: "cmtime", quick: true, forever: true, server: "cmtime -b ADDR -p PORT",
		client:    "cmtime -s ADDR -p PORT -c 20",
		clientOut: []string{`^connect *:`, `^disconnect *:`}},
	{name: "cmtime, 100 connections", forever: true, server: "cmtime -b ADDR -p PORT",
		client:    "cmtime -s ADDR -p PORT -c 100",
		clientOut: []string{`^connect *:`, `^disconnect *:`}},
}

func TestCMPrograms(t *testing.T) { inTopologies(t, cmJobs, "two daemons") }

// A persistent server has several clients at the same time. Its program mixes up clients that
// arrive in the same moment, so each waits for the data of the one before it.
func TestTrap22PersistentServer(t *testing.T) {
	need(t, "rping")
	top := twoDaemons(t)
	port := fmt.Sprint(nextPort.Add(1))
	server := top.server.start("rping", "-s", "-a", addrsA[0], "-p", port, "-P", "-v", "-S", "1000")
	top.server.listens(server, 0, 1)
	var clients []*process
	for range 4 {
		c := top.client.start("rping", "-c", "-a", addrsA[0], "-p", port, "-v", "-V", "-S", "1000")
		c.WaitOutput("ping data: rdma-ping-", 2)
		clients = append(clients, c)
	}
	for _, c := range clients { // all four at once
		c.WaitOutput("ping data: rdma-ping-", strings.Count(c.Output(), "ping data: ")+3)
		c.wantOutput("!mismatch")
	}
	for i, c := range clients {
		c.Kill()
		// Its thread may leave on a completion that failed, before the event of the end has been taken,
		// which goes with the id: that is rping's way to end, and says as well that the server has
		// learned of it. So each client's QP has to go, which nothing else makes it.
		proctest.Eventually(t, patience, fmt.Sprintf("the server has freed the QPs of %d clients", i+1),
			func() bool {
				return len(top.server.show("qp")) == len(clients)-1-i
			})
	}
	server.wantOutput("server DISCONNECT EVENT") // of one of them at least
	last := top.client.start("rping", "-c", "-a", addrsA[0], "-p", port, "-C", "3", "-v", "-V")
	last.succeed(patience, "ping data: rdma-ping-2")
	server.Kill()
	top.settle()
}

// Either side dies in the middle: the other one learns of it, flushes, and ends.
func TestRpingKilled(t *testing.T) {
	need(t, "rping")
	for _, make := range topologies {
		if !thorough() && make.name != "two daemons" && make.name != "one device" {
			continue
		}
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			for _, who := range []string{"server", "client"} {
				for _, size := range []string{"64", "60000"} {
					port := int(nextPort.Add(1))
					server := top.server.start("rping", "-s", "-a", addrsA[0], "-p", fmt.Sprint(port), "-v",
						"-S", size)
					top.server.listens(server, port, 1)
					client := top.client.start("rping", "-c", "-a", addrsA[0], "-p", fmt.Sprint(port), "-v",
						"-S", size)
					client.WaitOutput("ping data: rdma-ping-", 20)
					killed, left := server, client
					if who == "client" {
						killed, left = client, server
					}
					killed.Kill()
					// Its exit status depends on what it was doing.
					_ = left.Wait(patience)
					left.wantOutput("DISCONNECT EVENT|cq completion failed") // whichever of its threads is first
					top.settle()
				}
			}
		})
	}
}

// The daemon dies: programs learn of it and end. The other side's peer disconnects.
func TestRpingDaemonKilled(t *testing.T) {
	need(t, "rping")
	top := twoDaemons(t)
	port := int(nextPort.Add(1))
	server := top.server.start("rping", "-s", "-a", addrsA[0], "-p", fmt.Sprint(port), "-v")
	top.server.listens(server, port, 1)
	client := top.client.start("rping", "-c", "-a", addrsA[0], "-p", fmt.Sprint(port), "-v")
	client.WaitOutput("ping data: rdma-ping-", 20)
	top.client.Kill()
	_ = client.Wait(patience)
	client.wantOutput("DISCONNECT|REMOVAL|flush|wc error|status")
	// The link is gone with the daemon, and so nobody says anything to the server's: it would find out
	// by TCP's timers. Its own daemon's end it hears of at once.
	top.server.Kill()
	_ = server.Wait(patience)
}

// saysOnce wants one line of the libraries on stderr, and what it says.
func (p *process) saysOnce(want string) {
	p.T.Helper()
	p.wantOutput("^vrnic: " + want)
	if n := strings.Count(p.Output(), "vrnic: "); n != 1 {
		p.T.Errorf("%s: the libraries say %d lines, want one", p, n)
	}
}

// What cannot work on iWARP fails at once, and says once why: nobody waits for a peer that cannot
// come.
func TestTrap09NoIWARP(t *testing.T) {
	need(t, "ib_send_bw", "ibv_rc_pingpong")
	d := up(t, nil, "--device", deviceA)
	// They exchange their addresses over the kernel's TCP, here on the loopback device.
	for _, words := range [][]string{{"ibv_rc_pingpong", "-g", "0", "-p"}, {"ib_send_bw", "-F", "-x",
		"0", "-p"}, {"ib_write_lat", "-F", "-p"}} {
		argv := append(slices.Clone(words), fmt.Sprint(nextPort.Add(1)))
		server := d.start(argv...)
		listensTCP(t, server)
		client := d.start(append(argv, "127.0.0.1")...)
		client.fail(patience, "Failed to modify QP|Unable to Connect|Couldn't")
		server.fail(patience, "Failed to modify QP|Unable to Connect|Couldn't")
		server.saysOnce("vrnic0 speaks iWARP, where rdma_cm connects .*transport=roce")
	}
	// Nor are there unreliable datagrams and connections.
	for line, says := range map[string]string{
		"udaddy -b ADDR":          "no device .* datagrams .*transport=roce",
		"mckey -b ADDR -m ADDR":   "no device .* datagrams .*transport=roce",
		"ibv_ud_pingpong -g 0":    "vrnic0 speaks iWARP, .* no UC or UD: .*transport=roce",
		"ibv_uc_pingpong -g 0":    "vrnic0 speaks iWARP, .* no UC or UD: .*transport=roce",
		"ibv_xsrq_pingpong -g 0":  "no device here has XRC",
		"ib_send_bw -c UD -F -x0": "vrnic0 speaks iWARP, .* no UC or UD: .*transport=roce",
	} {
		argv := words(line, "ADDR", addrsA[0])
		need(t, argv[0])
		p := d.start(argv...)
		if argv[0] == "ib_send_bw" { // it wants a peer first
			listensTCP(t, p)
			p = d.start(append(argv, "127.0.0.1")...)
		}
		p.fail(patience)
		p.saysOnce(says)
	}
}
