package verbs

import (
	"debug/elf"
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

// A trap is something that existing programs do, or rely on, that is easily missed. Those whose
// program needs more than a table's line have a file with a test of that name.

// All programs start with all symbols bound at once: they and the libraries that they drag in find
// each name in the version that they ask for. No provider is loaded.
func TestTrap01Symbols(t *testing.T) {
	programs := []string{"ibv_devices", "ibv_devinfo", "ibv_asyncwatch", "ibv_rc_pingpong", "rping",
		"ucmatose", "rdma_server", "rdma_client",
		"rdma_xserver", "rdma_xclient", "cmtime", "rstream", "ib_send_bw", "ib_send_lat", "ib_write_bw",
		"ib_write_lat", "ib_read_bw",
		"ib_read_lat", "ib_atomic_bw", "ib_atomic_lat", "fio", "fi_info", "fi_pingpong"}
	need(t, programs...)
	d := up(t, nil, "--device", deviceA)
	for _, p := range programs {
		// Whatever it says to --help: the loader has bound all it needs by then.
		c := d.startEnv([]string{"LD_BIND_NOW=1"}, p, "--help")
		_ = c.Wait(patience)
		c.wantOutput(
			"!symbol lookup error|undefined symbol|version .* not found|cannot open shared object")
	}
	// The libraries of providers that programs are linked to find theirs in ours, data too.
	for _, lib := range []string{"libmlx5.so.1", "libefa.so.1", "libmlx4.so.1"} {
		c := d.startEnv([]string{"LD_BIND_NOW=1", "LD_PRELOAD=" + lib}, "ibv_devices")
		c.succeed(patience, "vrnic0", "!cannot be preloaded|undefined symbol|not found")
	}
	w := d.start("ibv_asyncwatch")
	w.WaitOutput("async event FD", 1)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "rdmav") || strings.Contains(line, "/usr/lib") && strings.Contains(line,
			"libibverbs") {
			t.Errorf("a provider, or Debian's library, is loaded: %s", line)
		}
	}
	w.Kill()
}

// oldABI are what versions of symbols are called that programs before 2006 used, with structs of
// their own.
const oldABI = "IBVERBS_1.0"

// What Debian's libraries export, ours do, in the same versions; save the ABI of IBVERBS_1.0 where
// there is a later one.
func TestTrap01Exports(t *testing.T) {
	need(t)
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		dirs, _ := filepath.Glob("/usr/lib/*/" + name)
		if len(dirs) == 0 {
			needtest.Lacking(t, "verbs", "apt-get install libibverbs1 librdmacm1")
		}
		theirs, ours := exports(t, dirs[0]), exports(t, filepath.Join(libs, name))
		for s := range theirs {
			sym, version, _ := strings.Cut(s, "@")
			later := false
			for o := range theirs {
				other, v, _ := strings.Cut(o, "@")
				later = later || other == sym && v != version
			}
			if !ours[s] && !(version == oldABI && later) {
				t.Errorf("%s: no %s", name, s)
			}
		}
	}
}

// exports are the names that a library defines, each with its version.
func exports(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS &&
			elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			out[s.Name+"@"+s.Version] = true
		}
	}
	return out
}

// cTraps are those that a case of a program in C falls into.
var cTraps = []struct {
	name, program string
	cases         string
}{
	{"Trap02Providers", "providers", "efa mlx5 log"},
	{"Trap03OneContext", "cm", "one_context"},
	{"Trap04Bind", "cm", "binding mapped wildcard"},
	{"Trap06Capacities", "objects", "capacities posting"},
	{"Trap07Busy", "objects", "busy"},
	{"Trap07Acks", "events", "too_many_acks"},
	{"Trap08Events", "events", "acknowledging undelivered"},
	{"Trap09NoInfiniBand", "objects", "no_infiniband modify_connected"},
	{"Trap10DanglingQP", "objects", "destroy_orders destroyed_connected qp_by_number " +
		"connected_again"},
	{"Trap11Waits", "events", "cancelled channel_goes"},
	{"Trap12Order", "cm", "events_in_order"},
	{"Trap13Completions", "transfer", "order unsignaled"},
	{"Trap14ResponderFirst", "transfer", "responder_first"},
	{"Trap15LateReceives", "transfer", "late_receives leaves_at_once"},
	{"Trap16LastOctet", "transfer", "last_octet"},
	{"Trap17Yield", "yield", "yields"},
	{"Trap18Attributes", "objects", "attributes"},
	{"Trap19PrivateData", "cm", "private_data"},
	{"Trap20Refused", "cm", "refused"},
	{"Trap21Threads", "threads", "share objects connections no_helper_threads"},
	{"Trap23Sysfs", "objects", "lists"},
}

// Each trap of the list, between two ends on one device and on two.
func TestTraps(t *testing.T) {
	inOneDaemon(t, func(t *testing.T, top *topology) {
		for _, trap := range cTraps {
			t.Run(trap.name, func(t *testing.T) { top.runC(t, trap.program, strings.Fields(trap.cases)...) })
		}
	})
}

// The rest of what the programs in C do.
var cCases = []struct {
	program, cases string
	slow           bool
}{
	{program: "transfer", cases: "sends writes_and_reads gather inlined immediate atomics " +
		"shared_receives addresses chains mixed"},
	{program: "errors", cases: "local_key local_bounds local_wrap local_pd local_unmapped_large " +
		"receive_rights too_long read_refused " +
		"write_refused read_sink disconnected moved_to_error overrun"},
	{program: "errors", cases: "no_receive", slow: true},
	{program: "events", cases: "nonblocking solicited no_lost_event"},
	{program: "cm", cases: "wrong_states migrating synchronous abandoned"},
	{program: "cm", cases: "unreachable", slow: true},
	{program: "extended", cases: "cq_fields wr_calls no_wr_calls windows windows1 bind_refused " +
		"parent_domains advice"},
	{program: "memory", cases: "kinds many shared threads deregistered no_room"},
	{program: "later", cases: "regions buffers speed"},
	{program: "life", cases: "forks forks_while_busy forks_first closes_all execs exec_disconnects " +
		"main_thread_ends"},
}

func TestC(t *testing.T) {
	inOneDaemon(t, func(t *testing.T, top *topology) {
		for _, c := range cCases {
			if c.slow && !thorough() {
				continue
			}
			t.Run(c.program, func(t *testing.T) { top.runC(t, c.program, strings.Fields(c.cases)...) })
		}
	})
}

// A daemon dies under programs that wait, poll, and come and go: all calls return.
func TestDaemonKilled(t *testing.T) {
	for _, c := range []string{"daemon_dies", "daemon_dies_polling", "daemon_dies_busy",
		"daemon_dies_destroying"} {
		t.Run(c, func(t *testing.T) {
			rounds := 1
			if c == "daemon_dies_busy" {
				rounds = 5
			}
			for i := range rounds {
				top := oneDevice(t)
				p := top.startC(t, "life", c)
				p.WaitOutput("kill the daemon", 1)
				time.Sleep(time.Duration(i*7) * time.Millisecond) // the point of the kill does not matter
				top.server.Kill()
				p.succeed(cLimit, "^ok "+c+"$")
			}
		})
	}
}

// A device is deleted under the same programs: to them it is as if the daemon had died, which goes
// on, and gives up nothing of what it had before.
func TestDeviceDeleted(t *testing.T) {
	for _, c := range []string{"daemon_dies", "daemon_dies_polling", "daemon_dies_busy"} {
		t.Run(c, func(t *testing.T) {
			top := oneDevice(t)
			change := func(ch shm.Change) {
				t.Helper()
				if err := top.server.client.Change(t.Context(), ch); err != nil {
					t.Error(err)
				}
			}
			change(shm.Change{Verb: shm.Add, Key: "device", Value: deviceB1})
			p := top.startC(t, "life", c)
			p.WaitOutput("kill the daemon", 1)
			change(shm.Change{Verb: shm.Del, Key: "device", Value: "vrnic0", Force: true})
			p.succeed(cLimit, "^ok "+c+"$")
			// Whoever begins then finds the device, which is another one.
			change(shm.Change{Verb: shm.Add, Key: "device", Value: deviceA})
			change(shm.Change{Verb: shm.Del, Key: "device", Value: "vrnic1"})
			top.runC(t, "life", "exec_disconnects")
		})
	}
}

// A program that writes nonsense into its rings ends its own session, and none but its own.
func TestHostileRings(t *testing.T) {
	top := oneDevice(t)
	victim := top.startVictim(t)
	seeds := 12
	if thorough() {
		seeds = 200
	}
	for seed := range seeds {
		for _, c := range []string{"scribble", "bad_requests"} {
			env := []string{"VT_SERVER=" + addrsA[0], "VT_CLIENT=" + addrsA[0], fmt.Sprint("VT_SEED=", seed)}
			top.server.startEnv(env, cProgram(t, "hostile"), c).succeed(cLimit)
		}
	}
	victim.unharmed()
	top.settle()
}

// Programs are killed at random points of everything that they do; another one goes on, and the
// daemon keeps nothing of theirs.
func TestKilledAnywhere(t *testing.T) {
	top := oneDevice(t)
	victim := top.startVictim(t)
	rounds := 15
	if thorough() {
		rounds = 200
	}
	for i := range rounds {
		p := top.startC(t, []string{"transfer", "cm", "memory", "threads", "extended"}[i%5])
		time.Sleep(time.Duration(5+i*13%120) * time.Millisecond) // some point
		p.Kill()
	}
	victim.unharmed()
	top.settle()
}

// Every trap has a test of its number.
func TestTrapsAreTested(t *testing.T) {
	var names []string
	for _, trap := range cTraps {
		names = append(names, trap.name)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "func Test"); ok {
				names = append(names, name)
			}
		}
	}
	for i := range 24 {
		want := fmt.Sprintf("Trap%02d", i+1)
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("no test is called %s...", want)
		}
	}
}
