package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/shm"
)

// cPrograms are the programs of testdata, compiled when the first test wants them.
var cPrograms = struct {
	sync.Mutex
	built map[string]error
}{built: make(map[string]error)}

// cProgram compiles a program of testdata against Debian's headers and its libraries' names, with
// extra flags if there are any, and returns its path.
func cProgram(t *testing.T, name string, flags ...string) string {
	t.Helper()
	need(t, "gcc", "/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h")
	cPrograms.Lock()
	defer cPrograms.Unlock()
	path := filepath.Join(workDir, "c-"+name)
	err, ok := cPrograms.built[name]
	if !ok {
		args := slices.Concat([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror",
			"-o", path,
			"testdata/" + name + ".c", "testdata/vt.c"}, flags, []string{"-lrdmacm", "-libverbs",
			"-pthread", "-ldl"})
		if name == "providers" {
			args = append(args, "-lefa", "-lmlx5")
		}
		if out, e := exec.Command("gcc", args...).CombinedOutput(); e != nil {
			err = fmt.Errorf("gcc %v: %w\n%s", args, e, out)
		}
		cPrograms.built[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cLimit is for a case: each of its waits has a limit of 30 seconds, and says where it was.
const cLimit = 2 * time.Minute

// startC starts cases of a program of testdata with the client at one place and the server at
// another, of one daemon.
func (top *topology) startC(t *testing.T, name string, cases ...string) *process {
	t.Helper()
	return top.server.in(t).startEnv(top.cEnv(), append([]string{cProgram(t, name)}, cases...)...)
}

// cEnv says where the ends of a program of testdata are.
func (top *topology) cEnv() []string {
	return []string{"VT_SERVER=" + top.server.addrs[0], "VT_CLIENT=" + top.client.addrs[0]}
}

// runC runs cases, each as a subtest with a process of its own, and wants nothing to be left.
func (top *topology) runC(t *testing.T, name string, cases ...string) {
	t.Helper()
	for _, c := range cases {
		t.Run(c, func(t *testing.T) {
			top.startC(t, name, c).succeed(cLimit, "^ok "+c+"$", "^all done$")
			if !t.Failed() {
				top.server.in(t).settle()
			}
		})
	}
}

// inOneDaemon calls f for two ends on one device, whose connections need no network, and on two
// devices of one daemon, whose connections are TCP's.
func inOneDaemon(t *testing.T, f func(t *testing.T, top *topology)) {
	t.Helper()
	for _, make := range topologies[:2] {
		t.Run(make.name, func(t *testing.T) {
			t.Parallel() // much of it is waiting for what must not come
			f(t, make.make(t))
		})
	}
}

// Devices that come and go are seen by a program that runs, also by one that asks for addresses
// alone, and those that stay are not disturbed.
func TestDevicesComeAndGo(t *testing.T) {
	need(t)
	const later = "vrnic2,addr=10.77.0.4/24"
	top := twoDevices(t)
	d := top.server.daemon
	change := func(verb shm.ChangeVerb, value string) {
		t.Helper()
		if err := d.client.Change(t.Context(), shm.Change{Verb: verb, Key: "device",
			Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	all := &place{d, "", addrsA}
	signal := filepath.Join(t.TempDir(), "go")
	start := func(server, name string) *process {
		t.Helper()
		p := all.in(t).startEnv([]string{"VT_LATER=vrnic2", "VT_GO=" + signal, "VT_SERVER=" + server,
			"VT_CLIENT=" + addrsA[0]}, cProgram(t, "hotplug"), name)
		p.WaitOutput("waits for it to ", 1)
		return p
	}
	for _, name := range []string{"comes", "by_address"} {
		p := start("10.77.0.4", name)
		change(shm.Add, later)
		p.succeed(cLimit, "^ok "+name+"$")
		top.settle() // its session ends behind it
		change(shm.Del, "vrnic2")
	}
	change(shm.Add, later)
	p := start(addrsB[0], "goes")
	change(shm.Del, "vrnic2")
	p.WaitOutput("waits for it to come again", 1)
	change(shm.Add, later)
	p.succeed(cLimit, "^ok goes$")
	top.settle()
	change(shm.Del, "vrnic2")

	p = start(addrsB[0], "unheard")
	change(shm.Add, later)
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.WaitOutput("has numbered it", 1)
	change(shm.Del, "vrnic2")
	change(shm.Add, "next,addr=10.77.0.4/24")
	p.succeed(cLimit, "^ok unheard$")
	top.settle()
}
