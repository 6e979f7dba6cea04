package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// sysLines are what testdata/sysfs.c says of files, whichever way it looks, and sysFunctions what
// functions of the C library find.
var (
	sysLines = []string{
		"/sys/class/infiniband/roce0/node_type: 1: CA",
		"/sys/class/infiniband/roce0/node_guid: 5054:00ff:febe:0001",
		"/sys/class/infiniband/roce0/ports/1/state: 4: ACTIVE",
		"/sys/class/infiniband/roce0/ports/1/phys_state: 5: LinkUp",
		"/sys/class/infiniband/roce0/ports/1/rate: 100 Gb/sec (4X EDR)",
		"/sys/class/infiniband/roce0/ports/1/gids/1: 0000:0000:0000:0000:0000:ffff:0a4d:0002",
		"/sys/class/infiniband/roce0/ports/1/gid_attrs/types/1: RoCE v2",
		"/sys/class/infiniband/roce0/ports/1/gid_attrs/types/9: No such file or directory",
		"/sys/class/infiniband/roce0/ports/1/gid_attrs/ndevs/1: roce0",
		"/sys/class/infiniband/roce0/ports/1/pkeys/0: 0xffff",
		"/sys/class/infiniband/roce0/device/numa_node: -1",
		"/sys/class/infiniband/vrnic0/node_type: 4: RNIC",
		"/sys/class/infiniband_verbs/abi_version: 6",
		"/sys/class/infiniband_verbs/uverbs1/ibdev: vrnic0",
		"/sys/class/infiniband_verbs/uverbs1/dev: 231:193",
		"/sys/class/misc/rdma_cm/abi_version: 4",
		"/sys/class/net/roce0/device/vendor: 0xffff",
		"/sys/class/net/lo/address: 00:00:00:00:00:00",
		"to write: no",
		"/sys/class/infiniband/roce0: directory 755",
		"/sys/class/infiniband/roce0/fw_ver: file 444",
		"/sys/class/infiniband_cm: directory 755",
		"/sys/class/tty: directory 755",
	}
	sysFunctions = []string{
		"/sys/class:  infiniband infiniband_cm infiniband_verbs net",
		"/sys/class/infiniband:  roce0 vrnic0",
		"/sys/class/net:  lo roce0 vrnic0",
		"/dev/infiniband:  rdma_cm uverbs0 uverbs1",
		"open64: 1: CA",
		"openat: 1: CA",
		"openat of a folder: 1: CA",
		"fstatat: directory 755",
		"fopen: 1: CA",
		"opendir: yes",
		"lstat: link 777",
		"statx: 231:193",
		"access: 0 -1",
		"faccessat: 0",
		"readlink: ../../infiniband/roce0/device",
		"getxattr: none",
		"realpath: /sys/class/net/roce0",
		"getcwd: /sys/class/infiniband/roce0/ports",
		"in a folder: Ethernet",
	}
	sysDevices = []string{
		"/dev/infiniband/uverbs0: char 231:192 666",
		"/dev/infiniband/rdma_cm: char 10:255 666",
		"/dev/infiniband/uverbs0: Permission denied",
	}
)

// nobody runs programs and, with own, a daemon that is nobody's too.
const nobody = 65534

// RSYS-001, RSYS-002, RSYS-006, RSYS-007, RSYS-009 to RSYS-011, RSYS-015, RSYS-016: programs see
// the same in /sys and /dev whichever way it gets there.
func TestSys(t *testing.T) {
	if sanitize.preload != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	devices := []string{"--device", "roce0,addr=10.77.0.2/24,transport=roce,mac=52:54:00:be:00:01",
		"--device", "vrnic0,addr=10.77.0.3/24"}
	shared := sysProgram(t, "sysfs", "sysfs")
	static := sysProgram(t, "sysfs-static", "sysfs", "-static")
	for _, way := range []struct {
		name, sys string
		uid       int
		own       bool // the daemon is the user's
		mounts    bool // all see it, and not those of a C library only
	}{
		{"root's mounts", "auto", 0, true, true},
		{"root's functions", "preload", 0, true, false},
		{"a user's functions", "auto", nobody, false, false},
		{"a user's functions on a daemon of its own", "auto", nobody, true, false},
		{"a user's mounts", "mount", nobody, true, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				needtest.Lacking(t, "root", "it takes root to run programs of several users")
			}
			if way.mounts && way.uid != 0 && !mayNest() {
				needtest.Lacking(t, "userns", "this machine lets no user make a user namespace")
			}
			d := sysDaemon(t, way.uid, way.own, devices...)
			env := []string{"VRNIC_SYS=" + way.sys}
			want := slices.Concat(sysLines, sysFunctions, sysDevices)
			sysWant(t, d.startEnv(env, shared), want)
			// What a program starts sees it too, and an exec in an exec.
			sysWant(t, d.startEnv(env, "sh", "-c", shared+"; true"), want)
			sysWant(t, d.startEnv(env, program, "exec", "--", shared), want)
			want = sysLines
			if way.uid == 0 {
				want = slices.Concat(sysLines, sysDevices)
			}
			args := []string{"calls"}
			if way.uid != 0 {
				args = append(args, "no devices")
			}
			if way.mounts {
				sysWant(t, d.startEnv(env, append([]string{shared}, args...)...), want)
				// A static one mounts nothing itself, and sees what its parent has mounted.
				sysWant(t, d.startEnv(env, append([]string{"sh", "-c", static + ` "$@"; true`, "sh"},
					args...)...), want)
			}
		})
	}
}

// sysDaemon starts a daemon for programs of a user: root's, or with own the user's.
func sysDaemon(t *testing.T, uid int, own bool, devices ...string) *daemon {
	t.Helper()
	daemonUID := 0
	if own {
		daemonUID = uid
	}
	d := upAs(t, nil, daemonUID, append(devices, "--socket-mode", "0666")...)
	d.uid = uid
	return d
}

func sysWant(t *testing.T, p *process, want []string) {
	t.Helper()
	p.succeed(patience)
	got := strings.Split(strings.TrimSpace(p.Output()), "\n")
	for i := range max(len(got), len(want)) {
		if line(got, i) != line(want, i) {
			t.Errorf("%s: line %d is %q, want %q", p, i+1, line(got, i), line(want, i))
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// sysProgram compiles a program of testdata as name.
func sysProgram(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	need(t, "gcc")
	path := filepath.Join(workDir, "c-"+name)
	args := append([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-o", path,
		"testdata/" + source + ".c"}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, out)
	}
	return path
}

// A program that loads the library, unloads it and loads it again keeps one session: it loses
// neither descriptors nor sessions to that.
func TestLoadedAgain(t *testing.T) {
	if sanitize.preload != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer's library stays loaded, too")
	}
	d := up(t, nil, "--device", deviceA)
	d.startEnv(nil, sysProgram(t, "loaded", "loaded", "-ldl")).succeed(patience, "^1 devices$",
		"^0 descriptors more$")
	d.settle()
}

// A program that opens files where there is little room for it does so under `vrnic exec`,
// and one that is left without devices has the kernel's files.
func TestSysTight(t *testing.T) {
	if sanitize.preload != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	path := sysProgram(t, "tight", "tight", "-rdynamic", "-pthread")
	library := sysProgram(t, "tight.so", "tight", "-DLIBRARY", "-shared", "-fPIC")
	d := up(t, nil, "--device", deviceA)
	for what, want := range map[string]string{"stack": "1", "lock": "0", "nothing": "-1, Bad address",
		"gone": "the kernel's"} {
		t.Run(what, func(t *testing.T) {
			sysWant(t, d.startEnv([]string{"VRNIC_SYS=preload"}, path, what, library),
				[]string{what + ": " + want})
		})
	}
}

// Where a program cannot mount all of what it is to see, without /proc, it finds what it
// found before.
func TestSysNoProc(t *testing.T) {
	need(t, "unshare")
	if sanitize.preload != nil || os.Geteuid() != 0 {
		needtest.Lacking(t, "root", "it takes root to unmount, and plain libraries")
	}
	d := up(t, nil, "--device", deviceA)
	w := d.startEnv([]string{"VRNIC_SYS=preload"}, "unshare", "-m", "sh", "-c",
		"umount -l /proc && VRNIC_SYS=auto ls -d /sys/class/net/lo/address /sys/class/mem/null/dev "+
			"/sys/class/infiniband/vrnic0")
	sysWant(t, w, []string{"/sys/class/infiniband/vrnic0", "/sys/class/mem/null/dev",
		"/sys/class/net/lo/address"})
}

// mayNest says whether ordinary users may make user namespaces here.
func mayNest() bool {
	return exec.Command("setpriv", "--reuid="+strconv.Itoa(nobody), "--clear-groups", "unshare",
		"--user", "--mount", "true").Run() == nil
}

// RSYS-012, RSYS-013, RSYS-014: counters that a program reads move while it runs; what it has been
// given ends with it.
func TestSysCounters(t *testing.T) {
	need(t, "rping")
	if sanitize.preload != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	d := up(t, nil, "--device", "roce0,addr=10.77.0.2/24,transport=roce")
	const port = "/sys/class/infiniband/roce0/ports/1/"
	script := `rping -s -a 10.77.0.2 -p 7174 -C 10 &
until rping -c -a 10.77.0.2 -p 7174 -C 10; do sleep 0.1; done; wait
until [ $(cat PORThw_counters/sends) -ge 20 ] && [ $(cat PORTcounters/port_xmit_data) -ge 100 ] &&
[ $(cat PORTcm_tx_msgs/req) -ge 1 ] && [ $(cat PORThw_counters/lifespan) = 1000 ]; do sleep 0.1; done; echo moved`
	w := d.startEnv([]string{"VRNIC_SYS=auto"}, "sh", "-c", strings.ReplaceAll(script, "PORT", port))
	w.succeed(patience, "^moved$")
	d.settle() // when the keeper has ended, too
}
