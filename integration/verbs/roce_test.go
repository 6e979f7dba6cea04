package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Devices of RoCE, at the addresses of deviceA and deviceB.
const (
	roceA  = deviceA + ",transport=roce"
	roceB  = deviceB + ",transport=roce"
	roceB1 = deviceB1 + ",transport=roce"
)

// ordinary is the user that has the daemons and the programs of people's: nobody, or who runs the
// test if that is not root.
func ordinary() int {
	if os.Getuid() != 0 {
		return 0
	}
	return 65534
}

// upOrdinary is up of that user, and of programs of the same.
func upOrdinary(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := upAs(t, nil, ordinary(), args...)
	d.uid = ordinary()
	return d
}

// A maker makes a topology.
type maker struct {
	name string
	make func(t *testing.T) *topology
}

// makersOf make topologies of an ordinary user's, of devices at addrsA and addrsB: b1 is b beside
// a.
func makersOf(a, b, b1 string) []maker {
	return []maker{
		{"one device", func(t *testing.T) *topology {
			p := &place{upOrdinary(t, "--device", a), "", addrsA}
			return &topology{"one device", p, p}
		}},
		{"two devices", func(t *testing.T) *topology {
			d := upOrdinary(t, "--device", a, "--device", b1)
			return &topology{"two devices", &place{d, "vrnic0", addrsA}, &place{d, "vrnic1", addrsB}}
		}},
		{"two daemons", func(t *testing.T) *topology {
			link := filepath.Join(ownDir(t, ordinary()), "link")
			one := upOrdinary(t, "--device", a, "--port", "unix-listen:"+link)
			other := upOrdinary(t, "--device", b, "--port", "unix-connect:"+link)
			return &topology{"two daemons", &place{one, "", addrsA}, &place{other, "", addrsB}}
		}},
	}
}

var roceTopologies = makersOf(roceA, roceB, roceB1)

// iwarpTopologies are those in which programs run on iWARP. Daemons with TAPs are root's, the
// programs are not.
var iwarpTopologies = append(makersOf(deviceA, deviceB, deviceB1),
	maker{"TAP", func(t *testing.T) *topology {
		top := overTAP(t, "--socket-mode", "0666")
		top.server.uid, top.client.uid = ordinary(), ordinary()
		return top
	}})

// inRoCE calls f in the topologies that are named, and in all if everything is asked for.
func inRoCE(t *testing.T, f func(t *testing.T, top *topology), quick ...string) {
	t.Helper()
	need(t)
	for _, make := range roceTopologies {
		if thorough() || slices.Contains(quick, make.name) {
			t.Run(make.name, func(t *testing.T) { f(t, make.make(t)) })
		}
	}
}

// A roceRun is a program on devices of RoCE, with daemons of its own.
type roceRun struct {
	words    string // the client's command line
	more     string // tells it from another one with the same words
	quick    bool   // belongs to every test run
	notAlone bool   // not with both ends on one device
	alone    bool   // only so
	local    bool   // only within one daemon
	refused  bool   // what is wanted is that it fails
	named    bool   // only between devices of the same name
	built    bool   // the program is one that do builds
	do       func(t *testing.T, top *topology)
}

// runRoCE runs programs in the topologies that are named, and all of them in all if everything is
// asked for.
func runRoCE(t *testing.T, runs []roceRun, quick ...string) {
	t.Helper()
	runOn(t, onRoCE, roceTopologies, runs, quick...)
}

// runOn is runRoCE on a kind of device, in some topologies of it.
func runOn(t *testing.T, device string, in []maker, runs []roceRun, quick ...string) {
	t.Helper()
	need(t)
	for _, make := range in {
		if !thorough() && !slices.Contains(quick, make.name) {
			continue
		}
		for i := range runs {
			r := &runs[i]
			one := make.name == "one device"
			if !r.quick && !thorough() || r.notAlone && one || r.alone && !one ||
				r.local && make.name == "two daemons" || r.named && make.name == "two devices" {
				continue
			}
			t.Run(make.name+"/"+strings.ReplaceAll(r.words+r.more, " -p PORT", ""), func(t *testing.T) {
				if !r.built {
					need(t, programOf(r.words))
				}
				if !r.refused {
					note(t, device, make.name, r.words)
				}
				r.do(t, make.make(t))
			})
		}
	}
}

// A numbered is a program whose two sides connect queue pairs by themselves: they tell each other
// numbers and GIDs over a TCP connection of the kernel's. Both sides have the same words, and the
// client a name to connect to behind them.
type numbered struct {
	words    string // with PORT, and DEV for the device
	env      []string
	out      []string
	quick    bool
	limit    time.Duration // of each side; 0: patience
	notAlone bool          // not with both ends on one device
	local    bool          // only within one daemon
	named    bool          // only between devices of the same name
	again    []string      // as of a job
}

// device is what libraries call p's.
func (p *place) device() string {
	if p.dev != "" {
		return p.dev
	}
	return "vrnic0"
}

func (top *topology) runNumbered(t *testing.T, n *numbered) {
	t.Helper()
	for try := 0; ; try++ {
		if top.tryNumbered(t, n, try < 9) {
			break
		}
	}
}

func (top *topology) tryNumbered(t *testing.T, n *numbered, again bool) bool {
	t.Helper()
	port := fmt.Sprint(nextPort.Add(1))
	limit := n.limit
	if limit == 0 {
		limit = patience
	}
	env, argv := settings(n.words)
	line := strings.Join(argv, " ")
	server := top.server.in(t).startWith(slices.Concat(n.env, env), words(line, "PORT", port, "DEV",
		top.server.device())...)
	listensTCP(t, server)
	client := top.client.in(t).startWith(slices.Concat(n.env, env), words(line+" 127.0.0.1", "PORT",
		port, "DEV", top.client.device())...)
	if again && len(n.again) > 0 {
		_ = client.Wait(limit) // succeed looks at how it ended
		if out := client.Output(); slices.ContainsFunc(n.again,
			func(s string) bool { return strings.Contains(out, s) }) {
			server.Kill()
			return false
		}
	}
	client.succeed(limit, n.out...)
	server.succeed(limit)
	return true
}

// runsOf are numbered programs as runs.
func runsOf(list []numbered) (runs []roceRun) {
	for i := range list {
		n := &list[i]
		runs = append(runs, roceRun{words: n.words, quick: n.quick, notAlone: n.notAlone,
			local: n.local, named: n.named, do: func(t *testing.T, top *topology) { top.runNumbered(t, n) }})
	}
	return runs
}

// pingpongs are libibverbs's examples. -c compares what has come with what was to come.
var pingpongs = []numbered{
	{words: "ibv_rc_pingpong -p PORT -g 1 -c", quick: true},
	{words: "ibv_rc_pingpong -p PORT -g 1 -e -n 200"},
	{words: "ibv_rc_pingpong -p PORT -g 1 -N -c"},
	{words: "ibv_rc_pingpong -p PORT -g 1 -t"},
	{words: "ibv_rc_pingpong -p PORT -g 2 -m 256 -s 100000 -c -n 100"}, // by IPv6
	{words: "ibv_rc_pingpong -p PORT -g 0 -m 512 -c", notAlone: true},  // by link-local addresses
	{words: "ibv_uc_pingpong -p PORT -g 1", quick: true},
	{words: "ibv_uc_pingpong -p PORT -g 2 -e -s 60000 -n 100"},
	{words: "ibv_ud_pingpong -p PORT -g 1 -s 1024", quick: true},
	{words: "ibv_ud_pingpong -p PORT -g 2 -s 100 -e"},
	{words: "ibv_srq_pingpong -p PORT -g 1 -q 8", quick: true},
	{words: "ibv_srq_pingpong -p PORT -g 1 -q 16 -e -n 200"},
}

func init() {
	for i := range pingpongs {
		pingpongs[i].out = []string{`^\d+ bytes in [\d.]+ seconds`, "!invalid data"}
	}
}

func TestRoCEPingpong(t *testing.T) {
	runRoCE(t, runsOf(pingpongs), "two devices")
}

// numberedPerf are perftest's programs without -R.
func numberedPerf() (list []numbered) {
	quick := map[string]bool{"ib_write_bw -n 200": true, "ib_read_bw -n 200 -q 8": true}
	add := func(tool, options string) {
		row, limit := `^ *\d+ +\d+ +[\d.]+ +`, time.Minute
		if strings.Contains(options, "-a") {
			row, limit = `^ *8388608 +\d+ +`, 12*time.Minute
			if strings.Contains(options, "UD") {
				row = `^ *1024 +\d+ +`
			}
		}
		list = append(list, numbered{words: tool + " -p PORT -x 1 -F " + options, out: []string{row},
			quick: quick[tool+" "+options], limit: limit, again: []string{perfNoClock}})
	}
	// The sender of ib_send_bw -c UC waits for nobody, and its receiver for each message: of 800
	// packets none is lost, and of 12,800 some are if the receiver's daemon gets no processor.
	add("ib_send_bw", "-n 200 -c UC -s 4096")
	add("ib_send_bw", "-n 200 -c UC")
	list[len(list)-1].local = true
	for _, op := range []string{"send", "write", "read", "atomic"} {
		bw, lat := "ib_"+op+"_bw", "ib_"+op+"_lat"
		for _, o := range []string{"-n 200", "-n 200 -q 8", "-n 200 -b"} {
			add(bw, o)
		}
		add(lat, "-n 100")
		if op == "atomic" {
			add(bw, "-n 200 -A CMP_AND_SWAP")
			continue
		}
		add(bw, "-n 20 -a")
		add(bw, "-n 200 -m 256 -s 10000")
		add(lat, "-n 100 -s 64")
		add(lat, "-n 20 -a")
		if op != "write" {
			add(bw, "-n 600 -e")
			add(lat, "-n 100 -e -s 64")
		}
		if op == "write" {
			add(bw, "-n 200 -c UC")
		}
		if op != "read" {
			add(lat, "-n 100 -c UC -s 64")
		}
	}
	for _, o := range []string{"-n 200 --use-srq", "-n 200 --use-srq -q 8", "-n 600 --use-srq -e",
		"-n 200 -c UD -s 1024", "-n 100 -c UD -a", "-n 200 -c UD -q 4 -s 64"} {
		add("ib_send_bw", o)
	}
	add("ib_send_lat", "-n 100 -c UD -s 64")
	add("ib_send_lat", "-n 100 --use-srq -s 64")
	add("ib_send_lat", "-n 100 -I 64 -s 64")
	add("ib_write_bw", "-n 200 -I 64 -s 64")
	return list
}

func TestRoCEPerftest(t *testing.T) {
	runRoCE(t, runsOf(numberedPerf()), "two devices")
}

// What ibv_devinfo says of both kinds of device, which may be in one daemon and at one address.
func TestRoCEDevinfo(t *testing.T) {
	need(t, "ibv_devices", "ibv_devinfo")
	note(t, onRoCE, "one device", "ibv_devices", "ibv_devinfo -d DEV -v")
	d := upOrdinary(t, "--device", deviceA, "--device",
		strings.Replace(roceA, "vrnic0", "rocep0", 1))
	d.start("ibv_devices").succeed(patience, `^\s+vrnic0\s+[0-9a-f]{16}$`,
		`^\s+rocep0\s+[0-9a-f]{16}$`)
	d.start("ibv_devinfo", "-d", "rocep0", "-v").succeed(patience, `transport:\s+InfiniBand \(0\)`,
		`state:\s+PORT_ACTIVE \(4\)`, `max_mtu:\s+4096 \(5\)`, `active_mtu:\s+1024 \(3\)`,
		`port_lid:\s+0$`, `link_layer:\s+Ethernet`, `active_width:\s+4X \(2\)`,
		`active_speed:\s+25\.0 Gbps \(32\)`, `atomic_cap:\s+ATOMIC_HCA \(1\)`,
		`GID\[ *0\]:\s+fe80:.*, RoCE v2`, `GID\[ *1\]:\s+::ffff:10\.77\.0\.2, RoCE v2`,
		`GID\[ *2\]:\s+fd77::2, RoCE v2`)
	d.start("ibv_devinfo", "-d", "vrnic0").succeed(patience, `transport:\s+iWARP \(1\)`)
}

// The cases of the programs in C that connect queue pairs by themselves.
func TestRoCEStates(t *testing.T) {
	inRoCE(t, func(t *testing.T, top *topology) {
		top.runC(t, "roce_states", "transitions", "values", "nobody_there", "posting", "queries",
			"creation", "device")
	}, "two devices")
}

func TestRoCEData(t *testing.T) {
	need(t)
	for _, make := range roceTopologies[:2] { // both ends are in one program
		t.Run(make.name, func(t *testing.T) {
			make.make(t).runC(t, "roce_data", "operations", "failures", "draining", "established",
				"datagrams", "groups", "resizing", "resized_often", "extended")
		})
	}
}
