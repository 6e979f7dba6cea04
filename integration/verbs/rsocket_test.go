package verbs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
)

// rsocketJobs are librdmacm's examples of sockets over RDMA. With -T v both sides compare what has
// come; each side sends as much as the other, and so has to have the same options (V24).
func rsocketJobs() (jobs []job) {
	add := func(program, options, out string, quick bool) {
		words := program + " %s ADDR -p PORT " + options
		jobs = append(jobs, job{name: program + " " + options, quick: quick,
			server: fmt.Sprintf(words, "-b"), client: fmt.Sprintf(words, "-s"),
			serverOut: []string{out, "!data verification"}, clientOut: []string{out,
				"!data verification"}})
	}
	const custom = `^custom +[\d.]+\w* +[\d.]+\w* +[\d.]+\w* +`
	add("rstream", "-S 4096 -C 100 -I 20 -T v", custom, true)
	add("rstream", "-S 70000 -C 20 -I 5 -T v -T n", custom, true)
	add("rstream", "-S 100 -C 1000 -I 5 -T v -T b", custom, false)
	add("rstream", "-S 5000 -C 100 -I 20 -T v -T a", custom, true)
	add("rstream", "-S 5000 -C 100 -I 20 -T r", custom, false)
	add("rstream", "-S 300000 -C 10 -I 4 -B 8192 -T v", custom, false)
	add("rstream", "-S 1000 -C 100 -I 20 -i 256 -k 1", custom, false)
	add("rstream", "-S 64 -C 1 -I 500 -T v", custom, false)
	// They look at the last octet that comes until it does, and give up no processor.
	add("riostream", "-S 50000 -C 3 -I 20 -T v", custom, true)
	add("riostream", "-S 300 -C 5 -I 20 -T v -T n", custom, false)
	return jobs
}

// The other half of what this trap is about, that fio's client writes whatever the verb, is in
// fioJobs.
func TestTrap24Rsocket(t *testing.T) { inTopologies(t, rsocketJobs(), "two daemons") }

func TestRoCERsocket(t *testing.T) { runRoCE(t, runsOfJobs(rsocketJobs()), "two devices") }

// rcopyWords is a client's command line; the server's is rcopy -p PORT.
const rcopyWords = "rcopy FILE ADDR:FILE -p PORT"

// A file as a whole, on either kind of device: what is sent last arrives, too.
func TestRsocketCopy(t *testing.T) {
	need(t, "rcopy")
	for _, kind := range []struct {
		device string
		makers []maker
	}{{onIWARP, iwarpTopologies}, {onRoCE, roceTopologies}} {
		for _, make := range kind.makers {
			if !thorough() && make.name != "two devices" {
				continue
			}
			t.Run(kind.device+"/"+make.name, func(t *testing.T) {
				note(t, kind.device, make.name, rcopyWords)
				top := make.make(t)
				dir := ownDir(t, ordinary())
				from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
				content := bytes.Repeat([]byte("sockets over RDMA\n"), 100_003)
				if err := os.WriteFile(from, content, 0o644); err != nil {
					t.Fatal(err)
				}
				port := int(nextPort.Add(1))
				server := top.server.in(t).startWith(nil, "rcopy", "-p", fmt.Sprint(port))
				top.server.in(t).listens(server, port, 1)
				client := top.client.in(t).startWith(nil, "rcopy", from, top.server.addrs[0]+":"+to, "-p",
					fmt.Sprint(port))
				client.succeed(patience, `^\d+ bytes in `)
				server.WaitOutput("done", 1)
				server.Kill()
				got, err := os.ReadFile(to)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, content) {
					t.Errorf("%d octets have come, not the %d that were sent", len(got), len(content))
				}
			})
		}
	}
}

// The other side dies in the middle: who is left hears of it, and ends.
func TestRsocketPeerKilled(t *testing.T) {
	need(t, "rstream")
	for _, make := range []maker{iwarpTopologies[1], roceTopologies[1]} {
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			const size = "-S 4096 -C 1000 -I 1000000"
			port := int(nextPort.Add(1))
			at := []string{"ADDR", top.server.addrs[0], "PORT", fmt.Sprint(port)}
			server := top.server.in(t).startWith(nil, words("rstream -b ADDR -p PORT "+size, at...)...)
			top.server.in(t).listens(server, port, 1)
			client := top.client.in(t).startWith(nil, words("rstream -s ADDR -p PORT "+size, at...)...)
			proctest.Eventually(t, patience, "two connected QPs", func() bool {
				qps := top.server.show("qp")
				return len(qps) == 2 && qps[0]["state"] == "RTS" && qps[1]["state"] == "RTS"
			})
			client.Kill()
			server.WaitOutput("Connection reset by peer", 1)
			server.Kill() // it may go on
		})
	}
}

// What the functions return, a stream that is full, and peers that say what no socket says.
func TestRsocketCalls(t *testing.T) {
	need(t)
	for _, make := range []maker{iwarpTopologies[1], roceTopologies[1]} {
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			top.server.dev, top.client.dev = "", ""
			top.runC(t, "rsocket", "calls", "full", "refused", "ends", "nothing",
				"normal", "lingers", "full_memory", "hostile", "unheard")
			top.runC(t, "rsocket_ends", "accepted", "cut", "woken", "handler", "locked")
		})
	}
}

// udpongJobs are sockets of datagrams: a client asks until it hears of the server, which goes on.
// Its echoes (-T e) are not among them: what is not there in a millisecond it asks for again, with
// the number of the last answer, and so never ends where that takes longer.
func udpongJobs() (jobs []job) {
	add := func(options string, quick bool) {
		jobs = append(jobs, job{name: "udpong " + options, quick: quick, forever: true, listeners: -1,
			server: "udpong -b ADDR -p PORT", client: "udpong -s ADDR -p PORT " + options,
			clientOut: []string{`^custom +\d+ +[1-9]\w* +[\d.]+\w* +[\d.]+s`}})
	}
	add("-S 1000 -C 200", true)
	add("-S 64 -C 1000", false)
	add("-S 1000 -C 100 -T b", false)
	add("-S 200 -C 200 -T a", false)
	return jobs
}

func TestRoCEUDPong(t *testing.T) { runRoCE(t, runsOfJobs(udpongJobs()), "two daemons") }

// Sockets of datagrams: what the functions return, and strangers at the UDP port that they ask each
// other by; at an address of the host, too. An RNIC has none.
func TestRsocketDatagrams(t *testing.T) {
	need(t)
	t.Run("RoCE", func(t *testing.T) {
		top := roceTopologies[1].make(t)
		top.server.dev, top.client.dev = "", ""
		top.runC(t, "rsocket", "datagrams")
	})
	t.Run("host", func(t *testing.T) {
		const addr = "127.77.6.2"
		d := upAs(t, nil, someUser(), "--device", "vrnic0,host="+addr+",transport=roce")
		d.uid = someUser()
		p := &place{d, "", [2]string{addr}}
		top := &topology{"host", p, p}
		top.runC(t, "rsocket", "datagrams", "strangers", "crowd")
	})
	t.Run("iWARP", func(t *testing.T) {
		top := iwarpTopologies[0].make(t)
		top.runC(t, "rsocket", "no_datagrams")
	})
}
