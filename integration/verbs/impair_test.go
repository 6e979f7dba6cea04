package verbs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm"
)

// An impairment has done so much to the packets of one direction: a row of LIST impair.
type impairment struct {
	Packets, Lost, Duplicated, Corrupted, Reordered, Marked int
	NoRoom                                                  int `json:"no_room"`
}

// did are the names of what it has done to any.
func (i *impairment) did() (names []string) {
	for _, c := range []struct {
		name string
		n    int
	}{{"lost", i.Lost}, {"no_room", i.NoRoom}, {"duplicated", i.Duplicated},
		{"corrupted", i.Corrupted}, {"reordered", i.Reordered}, {"marked", i.Marked}} {
		if c.n > 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// impairments are all there are, both directions as one.
func (d *daemon) impairments(t *testing.T) (sum impairment) {
	t.Helper()
	rows, err := d.client.List("impair")
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range rows {
		var r impairment
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		sum.Packets += r.Packets
		sum.Lost += r.Lost
		sum.NoRoom += r.NoRoom
		sum.Duplicated += r.Duplicated
		sum.Corrupted += r.Corrupted
		sum.Reordered += r.Reordered
		sum.Marked += r.Marked
	}
	return sum
}

// impair has the network of target be a bad one, both ways; words "": a good one.
func (d *daemon) impair(t *testing.T, target, words string) {
	t.Helper()
	c := shm.Change{Verb: shm.Set, Key: "impair", Value: "both 7 " + target + "\n" + words}
	if words == "" {
		c = shm.Change{Verb: shm.Del, Key: "impair", Value: target}
	}
	if err := d.client.Change(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// counted is the sum of what all devices of d have counted under some names.
func (d *daemon) counted(names ...string) (n float64) {
	d.T.Helper()
	for _, row := range d.stat() {
		for _, name := range names {
			v, _ := row[name].(float64)
			n += v
		}
	}
	return n
}

// badPaths are those of TestImpairments: two ends each, which see by counters what has happened.
var badPaths = []struct {
	name             string
	dev              string // of the one that connects, which is impaired
	client, server   string
	env              []string
	again, twice     []string // what has been sent again, what has come twice
	wrong, congested []string // what was found wrong, what was marked, and told of
}{
	{"TCP", "iw0", "10.77.0.2", "10.77.0.3", nil, []string{"tcp_retransmits"}, nil, nil, nil},
	{"SCTP", "iw0", "10.77.0.2", "10.77.0.3", []string{"VRNIC_CM=transport=sctp"},
		[]string{"sctp_retransmits"}, []string{"sctp_duplicates"}, []string{"sctp_bad_checksums"}, nil},
	{"RoCE", "ro0", "10.78.0.2", "10.78.0.3", nil, resent, again, wrongICRC, cnps},
	{"RoCE within a device", "ro0", "10.78.0.2", "10.78.0.2", nil, resent, again, wrongICRC, cnps},
	// Copied until it is impaired; and through the device's stack.
	{"TCP within a device", "iw0", "10.77.0.2", "10.77.0.2", nil, []string{"tcp_retransmits"}, nil,
		nil, nil},
	// What the program has sent is in memory of its own, so it went through the daemon's by then.
	{"TCP behind memory within a device", "iw0", "10.77.0.2", "10.77.0.2", []string{"VT_BEFORE=1"},
		[]string{"tcp_retransmits"}, nil, nil, nil},
	{"SCTP within a device", "wi0", "10.79.0.2", "10.79.0.2", []string{"VRNIC_CM=transport=sctp"},
		[]string{"sctp_retransmits"}, []string{"sctp_duplicates"}, []string{"sctp_bad_checksums"}, nil},
	{"RoCE on addresses of the host", "ho0", "127.77.12.2", "127.77.12.3", nil, resent, again,
		wrongICRC, cnps},
}

var (
	resent    = []string{"rcvd_seq_err", "completer_retry_err"}
	again     = []string{"duplicate_request"}
	wrongICRC = []string{"drop_bad_icrc", "drop_bad_checksum"}
	cnps      = []string{"ecn_marked", "cnps_sent", "cnps_handled"}
)

// every reports whether each test run has these words on this path. Of iWARP it has none that lose
// packets: its transports then do little but wait until they send again.
func every(words, path string) bool {
	switch path {
	case "TCP", "SCTP":
		return words == "duplicate"
	case "TCP within a device", "TCP behind memory within a device", "SCTP within a device":
		return words == "reorder"
	case "RoCE":
		return words == "all" || words == "queue" || words == "mark"
	}
	return words == "all"
}

// Each word of `vrnic impair` is met by a program, which gets all its octets in their places and
// has each atomic done once; what was done is what was asked for, and no more; and what is below
// the program has noticed.
func TestImpairments(t *testing.T) {
	const more = ",transport=roce,dcqcn=on,mtu=4200"
	d := up(t, nil, "--device", "iw0,addr=10.77.0.2/24", "--device", "iw1,addr=10.77.0.3/24",
		"--device", "wi0,addr=10.79.0.2/24,loopback=wire", "--device", "ro0,addr=10.78.0.2/24"+more, "--device", "ro1,addr=10.78.0.3/24"+more,
		"--device", "ho0,host=127.77.12.2,transport=roce,dcqcn=on",
		"--device", "ho1,host=127.77.12.3,transport=roce,dcqcn=on")
	const rounds = 20
	for _, tt := range []struct {
		name, words string
		did         string // in the rows of `vrnic impair show`, of some packets; all else of none
		saw         string // what of a path's counters has moved
		// least is how many milliseconds it takes when a has sent so many octets: no machine is faster.
		least func(octets int) int
	}{
		// Three round trips a round.
		{"delay", "delay 2ms", "", "", func(int) int { return rounds * 3 * 4 }},
		{"jitter", "delay 2ms 1ms", "", "", func(int) int { return rounds * 3 * 2 }},
		{"jitter that hangs on the last one", "delay 2ms 1ms 50% distribution uniform", "", "",
			func(int) int { return rounds * 3 * 2 }},
		{"normal jitter", "delay 2ms 200us distribution normal", "", "", nil},
		{"loss", "loss 4%", "lost", "again", nil},
		{"loss that hangs on the last one", "loss 4% 10%", "lost", "again", nil},
		{"burst", "loss 4% burst 2", "lost", "again", nil},
		{"gemodel", "loss gemodel 3% 60% 90% 1%", "lost", "again", nil},
		{"duplicate", "duplicate 10% 20%", "duplicated", "twice", nil},
		{"corrupt", "corrupt 4% 10%", "corrupted", "again wrong", nil},
		{"reorder", "delay 1ms\nreorder 20% 10% gap 3", "reordered", "",
			func(int) int { return rounds }},
		{"rate", "rate 40mbit", "", "", func(octets int) int { return octets * 8 / 40000 }},
		// SCTP sends four packets of 1500 octets at once, RoCE all that there is, in packets of 4200.
		{"queue", "rate 10mbit queue 5k", "no_room", "again",
			func(octets int) int { return octets * 8 / 20000 }},
		{"mark", "rate 20mbit mark 6k", "marked", "congested", nil},
		{"ecn", "loss 4% ecn", "marked", "congested", nil},
		{"limit", "delay 2ms limit 6", "no_room", "again", nil},
		{"schedule", "delay 100us\nat 0 for 600min duplicate 10%\nat 500min loss 100%", "duplicated",
			"twice", nil},
		{"all", "delay 500us 100us\nloss 1%\nduplicate 2%\ncorrupt 1%\nreorder 5%\nrate 1gbit",
			"lost duplicated corrupted reordered", "again", nil},
	} {
		for _, p := range badPaths {
			if !thorough() && !every(tt.name, p.name) {
				continue
			}
			t.Run(tt.name+"/"+p.name, func(t *testing.T) {
				q := *d
				q.T = t
				seen := map[string][]string{"again": p.again, "twice": p.twice, "wrong": p.wrong,
					"congested": p.congested}
				before := make(map[string]float64)
				for _, names := range seen {
					for _, n := range names {
						before[n] = q.counted(n)
					}
				}
				words := tt.words
				if p.congested != nil {
					words = strings.Replace(words, "10mbit queue 5k", "20mbit queue 16k", 1)
				}
				r := q.disturbed(t, "data", rounds, append(slices.Clone(p.env), "VT_CLIENT="+p.client,
					"VT_SERVER="+p.server),
					func(*daemon) string { return p.dev }, words)
				did, saw := tt.did, tt.saw
				if did == "marked" && p.congested == nil {
					did = "" // neither TCP nor SCTP listens to ECN: what is to be lost is lost
					if strings.Contains(tt.words, "loss") {
						did, saw = "lost", "again"
					}
				}
				if got := strings.Join(r.did(), " "); r.Packets < 100 || got != did {
					t.Errorf("it was done %q, want %q: %+v", got, did, r.impairment)
				}
				for _, what := range strings.Fields(saw) {
					if names := seen[what]; names != nil && !slices.ContainsFunc(names,
						func(n string) bool { return q.counted(n) > before[n] }) {
						t.Errorf("none of %v has moved: %+v", names, r.impairment)
					}
				}
				if tt.least != nil && r.took < tt.least(r.octets) {
					t.Errorf("%d octets of a took %d ms, want %d at least", r.octets, r.took,
						tt.least(r.octets))
				}
			})
		}
	}
}

// A disturbance is what became of a program.
type disturbance struct {
	impairment
	octets, took int // of what it has sent, in milliseconds
}

// disturbed runs a case of testdata/impaired.c. Between its "opened" and its "done", which comes
// after so many rounds, what target finds is impaired.
func (d *daemon) disturbed(t *testing.T, name string, rounds int, env []string,
	target func(*daemon) string, words string) (r disturbance) {
	t.Helper()
	stdin, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer say.Close()
	q := *d
	q.T, q.stdin = t, stdin
	p := q.startEnv(append(env, fmt.Sprint("VT_ROUNDS=", rounds)), cProgram(t, "impaired"), name)
	stdin.Close()
	p.WaitOutput("opened", 1)
	at := target(&q)
	q.impair(t, at, words)
	fmt.Fprintln(say)
	for n := range rounds { // each has a time of its own: there is no limit to what all of them take
		p.WaitOutput("\nround ", n+1)
	}
	p.WaitOutput("done", 1)
	r.impairment = q.impairments(t)
	q.impair(t, at, "")
	out := p.Output()
	if _, err := fmt.Sscanf(out[strings.Index(out, "done"):], "done %d %d", &r.octets,
		&r.took); err != nil {
		t.Fatal(err, out)
	}
	fmt.Fprintln(say)
	p.succeed(cLimit, "^ok "+name+"$")
	q.settle()
	return r
}

// Where nothing gets through a request fails, in the way of the transport, and the connection is
// over; of RoCE when its retries are, of TCP and SCTP after the time that the device was given.
func TestImpairedCut(t *testing.T) {
	d := up(t, nil, "--device", "iw0,addr=10.77.0.2/24,user-timeout=2s", "--device",
		"iw1,addr=10.77.0.3/24,user-timeout=2s", "--device", "ro0,addr=10.78.0.2/24,transport=roce",
		"--device", "ro1,addr=10.78.0.3/24,transport=roce", "--device",
		"wi0,addr=10.79.0.2/24,loopback=wire,user-timeout=2s")
	for _, p := range badPaths[:7] {
		if !thorough() && p.name != "SCTP" && p.name != "RoCE" {
			continue // TCP has tests of its user-timeout in Go
		}
		t.Run(p.name, func(t *testing.T) {
			q := *d
			q.T = t
			const flushed, retriesExceeded = 5, 12 // enum ibv_wc_status
			want, exceeded := flushed, q.counted("retry_exceeded_err")
			if p.dev == "ro0" {
				want = retriesExceeded
				exceeded++
			}
			r := q.disturbed(t, "cut", 0, append(slices.Clone(p.env), "VT_CLIENT="+p.client,
				"VT_SERVER="+p.server, fmt.Sprint("VT_WANT=", want)),
				func(*daemon) string { return p.dev }, "loss 100%")
			if r.Lost == 0 || r.Lost != r.Packets {
				t.Errorf("%+v, want all lost", r.impairment)
			}
			if got := q.counted("retry_exceeded_err"); got != exceeded {
				t.Errorf("%v requests have run out of retries, want %v", got, exceeded)
			}
		})
	}
}

// A queue pair by its number has a bad network, over iWARP and RoCE, and within a device.
func TestImpairedQP(t *testing.T) {
	d := up(t, nil, "--device", "iw0,addr=10.77.0.2/24", "--device", "iw1,addr=10.77.0.3/24",
		"--device", "ro0,addr=10.78.0.2/24,transport=roce", "--device",
		"ro1,addr=10.78.0.3/24,transport=roce", "--device", "wi0,addr=10.79.0.2/24,loopback=wire")
	for _, p := range badPaths[:7] {
		if !thorough() && p.name != "TCP" && !strings.HasSuffix(p.name, "within a device") {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := d.disturbed(t, "data", 10, append(slices.Clone(p.env), "VT_CLIENT="+p.client,
				"VT_SERVER="+p.server), func(q *daemon) string {
				for _, row := range q.show("qp") {
					if row["dev"] == p.dev {
						return fmt.Sprintf("%s/%.0f", p.dev, row["qpn"])
					}
				}
				t.Fatalf("no queue pair of %s", p.dev)
				return ""
			}, "delay 200us\nloss 2%\nduplicate 5%")
			if did := strings.Join(r.did(), " "); r.Packets < 50 || did != "lost duplicated" {
				t.Errorf("it was done %q: %+v", did, r.impairment)
			}
		})
	}
}

// Of two programs that talk within a device one is killed, at any time around that at which their
// connection goes to its network: the other one hears of it, and nothing of them stays.
func TestImpairedKill(t *testing.T) {
	need(t, "rping")
	d := up(t, nil, "--device", "iw0,addr=10.77.0.2/24")
	for i := range 8 {
		port := fmt.Sprint(nextPort.Add(1))
		line := func(end string) *process {
			return d.start("rping", end, "-a", "10.77.0.2", "-p", port, "-S", "20000", "-V", "-v")
		}
		server := line("-s")
		d.listens(server, 0, 1)
		client := line("-c")
		client.WaitOutput("ping data", 3)
		killed, other := server, client
		if i%2 == 0 {
			killed, other = client, server
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			time.Sleep(time.Duration(i/2) * 500 * time.Microsecond) // sooner or later
			killed.Kill()
		}()
		d.impair(t, "iw0", "delay 300us")
		<-gone
		_ = other.Wait(patience) // it may end with either status
		other.wantOutput("!mismatch")
		d.impair(t, "iw0", "")
		d.settle()
	}
}

// What goes through a port of each kind that leads out of a daemon has a bad network there.
func TestImpairedPorts(t *testing.T) {
	need(t, "rping")
	vxlan := func(t *testing.T, a, b string) *topology {
		host := func(n int) string { // nobody else's, while this process runs
			return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()>>8%254, os.Getpid()&0xff, n)
		}
		ends := func(local, remote int) string {
			return fmt.Sprintf("vxlan:7,local=%s,remote=%s", host(local), host(remote))
		}
		return &topology{"VXLAN", &place{up(t, nil, "--device", a, "--port", ends(1, 2)), "", addrsA},
			&place{up(t, nil, "--device", b, "--port", ends(2, 1)), "", addrsB}}
	}
	unix := func(t *testing.T, a, b string) *topology {
		link := filepath.Join(t.TempDir(), "link")
		return &topology{"Unix", &place{up(t, nil, "--device", a, "--port", "unix-listen:"+link), "",
			addrsA}, &place{up(t, nil, "--device", b, "--port", "unix-connect:"+link), "", addrsB}}
	}
	tap := func(t *testing.T, a, b string) *topology { return devicesOverTAP(t, a, b) }
	for kind, top := range map[string]func(t *testing.T, a, b string) *topology{"unix": unix,
		"tap": tap, "vxlan": vxlan} {
		for _, tt := range []struct{ name, a, b, words, did string }{
			{"iWARP", deviceA, deviceB, "delay 300us 100us\nloss 3%\nduplicate 5%\ncorrupt 3%",
				"lost duplicated corrupted"},
			// rping has the timeout of rdma_cm, some seconds: nothing is lost, or comes in another order.
			{"RoCE", roceA, roceB, "delay 300us\nduplicate 20%", "duplicated"},
		} {
			if !thorough() && (kind == "tap" || tt.name != "RoCE") {
				continue // where packets get lost TCP does little but wait until it sends again
			}
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				top := top(t, tt.a, tt.b)
				d := top.server.in(t).daemon
				name := ""
				for _, row := range d.show("port") {
					if row["kind"] == kind {
						name = row["port"].(string)
					}
				}
				d.impair(t, name, tt.words)
				top.run(t, &job{server: "rping -s -a ADDR -p PORT -C 20 -S 20000 -V -v",
					client:    "rping -c -a ADDR -p PORT -C 20 -S 20000 -V -v",
					serverOut: []string{"!mismatch"}, clientOut: []string{"!mismatch"},
					limit: cLimit}, 0)
				r := d.impairments(t)
				if did := strings.Join(r.did(), " "); r.Packets < 200 || did != tt.did {
					t.Errorf("it was done %q, want %q: %+v", did, tt.did, r)
				}
				d.impair(t, name, "")
				top.settle()
			})
		}
	}
}

// A program that connects by itself, and knows nothing of any of this, compares its data.
func TestImpairedPingpong(t *testing.T) {
	if !thorough() {
		needtest.Lacking(t, "time", "it has half a second for all its retries, which other work may take")
	}
	need(t, "ibv_rc_pingpong")
	d := up(t, nil, "--device", "rocep0,addr=10.78.0.2/24,mtu=4200,transport=roce", "--device",
		"rocep1,addr=10.78.0.3/24,mtu=4200,transport=roce")
	for _, peer := range []string{"rocep1", "rocep0"} {
		t.Run(peer, func(t *testing.T) {
			q := *d
			q.T = t
			q.impair(t, "rocep0", "delay 200us\nloss 1%\nduplicate 2%\ncorrupt 1%\nreorder 2%")
			port := fmt.Sprint(nextPort.Add(1))
			line := "ibv_rc_pingpong -p " + port + " -g 1 -c -n 150 -s 8192"
			server := q.startOn("rocep0", strings.Fields(line)...)
			listensTCP(t, server)
			client := q.startOn(peer, strings.Fields(line+" 127.0.0.1")...)
			client.succeed(2*time.Minute, `^\d+ bytes in [\d.]+ seconds`, "!invalid data")
			// Of its last message it may hear nothing: the client has ended.
			if server.Wait(2*time.Minute) != nil {
				server.wantOutput("^Failed status transport retries exceeded")
			}
			server.wantOutput("!invalid data")
			r := q.impairments(t)
			if did := strings.Join(r.did(), " "); r.Packets < 600 ||
				did != "lost duplicated corrupted reordered" {
				t.Errorf("it was done %q: %+v", did, r)
			}
			q.impair(t, "rocep0", "")
		})
	}
}
