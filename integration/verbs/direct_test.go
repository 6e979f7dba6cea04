package verbs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

// direct is two ends on one device, whose programs exchange messages without the daemon, or do not.
func direct(t *testing.T, mode string, args ...string) *topology {
	t.Helper()
	return directOn(t, deviceA, mode, args...)
}

func directOn(t *testing.T, device, mode string, args ...string) *topology {
	t.Helper()
	p := &place{up(t, nil, append(args, "--device", device, "--direct="+mode)...), "", addrsA}
	return &topology{"direct=" + mode, p, p}
}

// What programs do, and what they are told, is the same without the daemon: what they expect of
// data, order, errors, events and ends stands in them. That the direct path was taken is counted.
func TestDirect(t *testing.T) {
	top := direct(t, "user")
	for _, c := range []struct{ program, cases string }{
		{"transfer", "sends writes_and_reads gather inlined immediate atomics shared_receives " +
			"late_receives leaves_at_once order unsignaled last_octet chains mixed"},
		{"errors", "local_key local_bounds receive_rights too_long disconnected moved_to_error overrun"},
		{"events", "nonblocking solicited no_lost_event acknowledging two_channels"},
		{"threads", "share objects connections"},
		{"objects", "connected_again"},
		{"extended", "cq_fields wr_calls"},
		{"life", "forks forks_while_busy execs exec_disconnects main_thread_ends"},
	} {
		t.Run(c.program, func(t *testing.T) { top.runC(t, c.program, strings.Fields(c.cases)...) })
	}
	if n, _ := top.counter("direct_sends"); n < 500 {
		t.Errorf("%v Sends were direct, want most of those of the programs", n)
	}
}

// A thousand queue pairs that complete on one CQ have a direct path, all of them; of these and of
// some that have an error amid the traffic each completion comes once, and who waits for an event
// of any has it.
func TestDirectMany(t *testing.T) {
	top := direct(t, "user")
	top.runC(t, "many", "errors", "events")
	p := top.startC(t, "many", "thousand")
	p.WaitOutput("warm", 1)
	n := 0
	for _, row := range top.server.show("qp") {
		if row["path"] == "direct" && (row["why"] == nil || row["why"] == "") {
			n++
		}
	}
	if n != 2000 {
		t.Errorf("%d queue pairs of 2000 have a direct path", n)
	}
	p.Signal(syscall.SIGUSR1)
	p.succeed(cLimit, "^ok thousand$", "^all done$")
	sends, _ := top.counter("sends")
	if n, _ := top.counter("direct_sends"); n < 50000 || n < sends*9/10 {
		t.Errorf("%v of %v Sends were direct", n, sends)
	}
}

// Of many on one CQ each may stop sending (IBV_QPS_SQD) and go on, amid the traffic of all: nothing
// of it goes meanwhile, what comes is taken, and nothing is lost.
func TestDirectManyPause(t *testing.T) {
	top := directOn(t, roceA, "user")
	top.runC(t, "many", "pauses")
	if n, _ := top.counter("direct_sends"); n < 1000 {
		t.Errorf("%v Sends were direct", n)
	}
}

// Of memory that is lent Writes, Reads and atomic operations go directly, too, and nothing else is
// different.
func TestDirectLent(t *testing.T) {
	needHeap(t)
	t.Setenv("VRNIC_LEND_HEAP", "1")
	top := direct(t, "user")
	for _, c := range []struct{ program, cases string }{
		{"memory", "kinds many shared threads deregistered"},
		{"transfer", "writes_and_reads gather inlined immediate atomics late_receives order unsignaled " +
			"last_octet chains mixed"},
		{"errors", "local_key local_bounds local_pd read_refused write_refused revoked read_sink " +
			"disconnected moved_to_error overrun"},
		{"events", "no_lost_event"},
		{"threads", "share objects"},
		{"extended", "wr_calls"},
		{"life", "forks forks_while_busy execs"},
	} {
		t.Run(c.program, func(t *testing.T) { top.runC(t, c.program, strings.Fields(c.cases)...) })
	}
	for name, least := range map[string]float64{"direct_writes": 300, "direct_reads": 100,
		"direct_atomics": 5} {
		if n, _ := top.counter(name); n < least {
			t.Errorf("%s: %v, want most of those of the programs", name, n)
		}
	}
}

// Queue pairs of RoCE, connected by number or by rdma_cm, do what they do without the direct path,
// also while they are moved to and fro; and what goes by it is counted.
func TestDirectRoCE(t *testing.T) {
	needHeap(t)
	t.Setenv("VRNIC_LEND_HEAP", "1")
	top := directOn(t, roceA, "user")
	for _, c := range []struct{ program, cases string }{
		{"roce_states", "transitions values nobody_there posting queries"},
		{"roce_data", "operations failures draining established"},
		{"roce_cm", "own_qps own_rejects own_notify own_waits"},
	} {
		t.Run(c.program, func(t *testing.T) { top.runC(t, c.program, strings.Fields(c.cases)...) })
	}
	for _, name := range []string{"direct_sends", "direct_writes"} {
		if n, _ := top.counter(name); n == 0 {
			t.Errorf("%s: none", name)
		}
	}
}

// counter is one of the device.
func (top *topology) counter(name string) (n float64, ok bool) {
	top.server.T.Helper()
	for _, row := range top.server.stat() {
		if row["kind"] == "dev" {
			n, ok = row[name].(float64)
		}
	}
	return n, ok
}

// With the direct path on and off the same is counted, and but for the daemon's way nothing else
// differs.
func TestDirectCounters(t *testing.T) {
	needHeap(t)
	t.Setenv("VRNIC_LEND_HEAP", "1")
	var counted [2]map[string]any
	for i, mode := range []string{"off", "user"} {
		top := direct(t, mode)
		top.runC(t, "transfer", "sends", "writes_and_reads", "gather", "inlined", "immediate", "atomics",
			"chains")
		for _, row := range top.server.stat() {
			if row["kind"] == "dev" {
				counted[i] = row
			}
		}
	}
	sends, _ := counted[1]["direct_sends"].(float64)
	imms, _ := counted[1]["direct_immediates"].(float64)
	if receives := counted[1]["direct_receives"]; receives != sends+imms {
		t.Errorf("%v direct Sends, %v immediate data, and %v receives", sends, imms, receives)
	}
	for _, name := range []string{"direct_sends", "direct_immediates", "direct_writes", "direct_reads",
		"direct_atomics"} {
		if off, on := counted[0][name], counted[1][name]; off != 0.0 || on == 0.0 {
			t.Errorf("%s: %v with the direct path off, %v with it on", name, off, on)
		}
	}
	for _, name := range []string{"sends", "receives", "sent_octets", "received_octets", "writes",
		"reads", "atomics", "read_octets", "in_writes", "in_reads", "in_atomics", "served_octets",
		"solicited", "errors", "terminates_out", "terminates_in"} {
		if counted[0][name] == nil || counted[0][name] != counted[1][name] {
			t.Errorf("%s: %v with the direct path off, %v with it on", name, counted[0][name],
				counted[1][name])
		}
	}
}

// What is posted by ibv_wr_* goes without the daemon, too.
func TestDirectCalls(t *testing.T) {
	need(t)
	top := direct(t, "user")
	top.runC(t, "extended", "wr_calls")
	if n, _ := top.counter("direct_sends"); n < 4 { // of its first call; one is posted otherwise
		t.Errorf("%v Sends were direct, want 4", n)
	}
}

// paths are how the messages of the daemon's QPs go, and why.
func (d *daemon) paths() (paths []string) {
	d.T.Helper()
	for _, row := range d.show("qp") {
		if row["path"] != nil {
			paths = append(paths, strings.TrimSuffix(fmt.Sprintf("%v: %v", row["path"], row["why"]),
				": <nil>"))
		}
	}
	return paths
}

// `vrnic show qp` says how messages go.
func TestDirectShown(t *testing.T) {
	for mode, want := range map[string]string{"user": "direct", "off": "daemon: off"} {
		t.Run(mode, func(t *testing.T) {
			top := direct(t, mode)
			v := top.startVictim(t)
			var paths []string
			t.Cleanup(func() { t.Log("last shown:", paths) })
			proctest.Eventually(t, patience, "QPs are shown", func() bool {
				paths = top.server.paths()
				return len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool { return p != want })
			})
			v.unharmed()
		})
	}
}

// A program that dies, wherever it is, or stands still before it does, leaves its peer the end of
// the connection that it has without the direct path, and nothing in the daemon.
func TestDirectKilled(t *testing.T) {
	need(t, "ib_send_lat")
	top := direct(t, "user")
	d := top.server
	for i := range 6 {
		server, client := top.exchange(t)
		dead, alive := client, server
		if i%2 == 1 {
			dead, alive = server, client
		}
		if i >= 4 { // it may be about to use a receive of its peer's
			dead.Signal(syscall.SIGSTOP)
			time.Sleep(20 * time.Millisecond) // whatever is done meanwhile, it must not matter
		}
		dead.Kill()
		_ = alive.Wait(patience) // it says that its connection has ended
		d.settle()
	}
}

// exchange starts a server and a client that exchange Sends for longer than a test takes, by the
// direct path.
func (top *topology) exchange(t *testing.T) (server, client *process) {
	t.Helper()
	d := top.server
	var last string
	t.Cleanup(func() { t.Log("last:", last) })
	for tries := 10; ; tries-- {
		port := int(nextPort.Add(1))
		args := []string{"ib_send_lat", "-R", "-F", "-s", "64", "-n", "5000000", "-p", fmt.Sprint(port)}
		server = d.start(args...)
		d.listens(server, port, 1)
		client = d.start(append(args, d.addrs[0])...)
		before, _ := top.counter("direct_sends")
		var early bool
		proctest.Eventually(t, patience, "messages go", func() bool {
			n, _ := top.counter("direct_sends")
			all, _ := top.counter("sends")
			last = fmt.Sprint(n-before, " of ", all, " ", d.paths())
			early = client.Ended() && tries > 1 && strings.Contains(client.Output(), perfTooEarly)
			return early || n > before+100 // those before the second connection are few
		})
		if !early {
			return server, client
		}
		server.Kill()
	}
}
