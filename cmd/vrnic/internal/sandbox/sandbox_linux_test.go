//go:build amd64 || arm64

package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// asChild in the environment makes the test binary a process that gives up what a Config in JSON
// says, and then tries what the others of its arguments name.
const asChild = "VRNIC_TEST_SANDBOX"

// filterOnly in its environment has it install the filter and do nothing else.
const filterOnly = "VRNIC_TEST_FILTER_ONLY"

func TestMain(m *testing.M) {
	if c := os.Getenv(asChild); c != "" {
		child(c)
	}
	os.Exit(m.Run())
}

// child says how each attempt went, and then `ready`; it ends when stdin does.
func child(config string) {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		panic(err)
	}
	// One thread that is there before, and one that comes later, try the same.
	old := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range old {
			f()
		}
	}()
	if os.Getenv(filterOnly) != "" {
		missing, err := restrictCalls(c, false)
		fmt.Printf("seccomp=%v %v\n", missing, err)
	} else {
		r, err := Enter(c)
		fmt.Printf("%v %v\n", r, err)
	}
	for _, name := range os.Args[1:] {
		results := make(chan error)
		try := func() { results <- attempts[name]() }
		old <- try
		first := <-results
		go func() {
			runtime.LockOSThread() // it ends with its thread
			try()
		}()
		fmt.Printf("%s: %v, %v\n", name, first, <-results)
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// attempts are what a child can try.
var attempts = map[string]func() error{
	"tcp":     func() error { return socket(unix.AF_INET, unix.SOCK_STREAM, 0) },
	"udp":     func() error { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0) },
	"sctp":    func() error { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP) },
	"ping":    func() error { return socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP) },
	"packet":  func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"unix":    func() error { return socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) },
	"netlink": func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) },
	"netfilter": func() error {
		return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	},
	"exec": func() error { return syscall.Exec("/bin/true", []string{"true"}, nil) },
	"fork": func() error {
		return raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	},
	"clone3":  func() error { return raw(unix.SYS_CLONE3, 0, 0, 0) },
	"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"setns":   func() error { return unix.Setns(0, 0) },
	"ptrace":  func() error { return unix.PtraceAttach(os.Getppid()) },
	"signal":  func() error { return unix.Kill(1, 0) },
	"mmap": func() error {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC,
			unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			unix.Munmap(b)
		}
		return err
	},
	"mprotect": func() error {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return fmt.Errorf("mmap: %w", err)
		}
		defer unix.Munmap(b)
		return unix.Mprotect(b, unix.PROT_READ|unix.PROT_EXEC)
	},
	"dumpable": func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	"ioctl":    func() error { return unix.IoctlSetInt(0, unix.TIOCSTI, 0) },
	"tuniff":   func() error { return unix.IoctlSetInt(0, unix.TUNSETIFF, 0) },
	"io_uring": func() error { return raw(unix.SYS_IO_URING_SETUP, 1, 0, 0) },
	// The number of another ABI of amd64, and of no call of arm64.
	"x32":    func() error { return raw(1<<30|unix.SYS_GETPID, 0, 0, 0) },
	"perf":   func() error { return raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0) },
	"secret": func() error { return raw(unix.SYS_MEMFD_SECRET, 0, 0, 0) },
	"module": func() error { return raw(unix.SYS_FINIT_MODULE, 0, 0, 0) },
	"bpf":    func() error { return raw(unix.SYS_BPF, 0, 0, 0) },
	"keys":   func() error { return raw(unix.SYS_KEYCTL, 0, 0, 0) },
	"mount":  func() error { return unix.Mount("", "/", "tmpfs", 0, "") },
	"setuid": func() error { return raw(unix.SYS_SETUID, 0, 0, 0) },
	"vm": func() error {
		_, err := unix.ProcessVMReadv(os.Getpid(), nil, nil, 0)
		return err
	},
	"pidfd":  func() error { return raw(unix.SYS_PIDFD_OPEN, uintptr(os.Getpid()), 0, 0) },
	"read":   func() error { return open("/etc/shadow", unix.O_RDONLY) },
	"create": func() error { return open("/tmp/vrnic-sandbox-test", unix.O_CREAT|unix.O_WRONLY) },
	"tun":    func() error { return open("/dev/net/tun", unix.O_RDWR) },
	"remove": func() error { return unix.Unlink(os.Getenv("VRNIC_TEST_FILE")) },
	"memfd": func() error {
		fd, err := unix.MemfdCreate("x", unix.MFD_ALLOW_SEALING)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			unix.Close(fd)
		}
		return err
	},
	"gc": func() error { runtime.GC(); return nil },
}

func socket(domain, kind, proto int) error {
	fd, err := unix.Socket(domain, kind, proto)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func raw(nr, a, b, c uintptr) error {
	if _, _, errno := unix.RawSyscall(nr, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// A confined is a child that has said all it had to say, and still runs.
type confined struct {
	cmd   *exec.Cmd
	lines []string
	errs  strings.Builder
}

// confine starts a child. It ends with the test.
func confine(t *testing.T, c Config, env []string, try ...string) *confined {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &confined{cmd: exec.Command(self, try...)}
	p.cmd.Env = append(append(os.Environ(), asChild+"="+string(config)), env...)
	p.cmd.Stderr = &p.errs
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		p.cmd.Wait()
	})
	for s := bufio.NewScanner(stdout); s.Scan() && s.Text() != "ready"; {
		p.lines = append(p.lines, s.Text())
	}
	if len(p.lines) > 0 && strings.Contains(p.lines[0], "seccomp=no") {
		needtest.Skip(t, "the kernel has no seccomp: "+p.lines[0])
	}
	return p
}

// want compares what the child said of its attempts, each of which has one outcome on every thread.
func (p *confined) want(t *testing.T, outcome error, names ...string) {
	t.Helper()
	for _, name := range names {
		want, got := fmt.Sprintf("%s: %v, %v", name, outcome, outcome), ""
		for _, l := range p.lines {
			if strings.HasPrefix(l, name+": ") {
				got = l
			}
		}
		if got != want {
			t.Errorf("%q, want %q\n%s", got, want, p.errs.String())
		}
	}
}

// status returns a field of /proc/PID/status, which must be the same for all threads.
func (p *confined) status(t *testing.T, field string) (value string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	if err != nil || len(threads) < 3 {
		t.Fatalf("threads: %v, %v\n%v %s", threads, err, p.lines, p.errs.String())
	}
	for i, file := range threads {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "\n"+field+":\t")
		v, _, _ := strings.Cut(rest, "\n")
		if i > 0 && v != value {
			t.Errorf("%s: %s is %q, elsewhere %q", file, field, v, value)
		}
		value = v
	}
	return value
}

func (p *confined) wantStatus(t *testing.T, want map[string]string) {
	t.Helper()
	for field, value := range want {
		if got := p.status(t, field); got != value {
			t.Errorf("%s is %q, want %q", field, got, value)
		}
	}
}

// TestNoNewPrivileges: the filter comes with no_new_privs, also where no Landlock sets that; root
// could install one without.
func TestNoNewPrivileges(t *testing.T) {
	p := confine(t, Config{}, []string{filterOnly + "=1"})
	switch {
	case len(p.lines) == 1 && strings.HasPrefix(p.lines[0], "seccomp=this kernel"):
		needtest.Skip(t, p.lines[0])
	case len(p.lines) != 1 || p.lines[0] != "seccomp= <nil>":
		t.Fatalf("installing the filter: %q, %s", p.lines, p.errs.String())
	}
	p.wantStatus(t, map[string]string{"NoNewPrivs": "1", "Seccomp": "2"})
}

// everywhere is what is forbidden to every daemon.
var everywhere = []string{"tcp", "packet", "netfilter", "exec", "fork", "unshare", "ptrace",
	"signal",
	"mmap", "mprotect", "dumpable", "ioctl", "io_uring", "x32", "perf", "secret", "module",
	"bpf", "keys", "mount", "setuid", "create"}

// TestCalls: system calls that a daemon does not need are errors, on threads that were there and on
// those that came later, and what it needs works.
func TestCalls(t *testing.T) {
	mine := []string{"memfd", "gc"}
	all := append(append([]string{"unix", "netlink", "setns", "read", "tun", "clone3", "vm"},
		everywhere...), mine...)
	p := confine(t, Config{Files: true}, nil, all...)
	p.want(t, unix.EPERM, everywhere...)
	p.want(t, unix.EPERM, "unix", "netlink", "setns", "read", "tun", "vm")
	p.want(t, unix.ENOSYS, "clone3") // a C library has another way
	p.want(t, nil, mine...)
	p.wantStatus(t, map[string]string{"NoNewPrivs": "1", "Seccomp": "2"})

	// Who connects to Unix sockets can make them, and nothing else.
	p = confine(t, Config{Connects: true}, nil, all...)
	p.want(t, unix.EPERM, everywhere...)
	p.want(t, unix.EPERM, "netlink", "setns", "read", "tun")
	p.want(t, nil, "unix")
	p.want(t, nil, mine...)

	// With TAPs the devices that it has open can be made anew, and nothing opened.
	p = confine(t, Config{TAPs: true, Files: true}, nil, append(all, "tuniff")...)
	p.want(t, unix.EPERM, everywhere...)
	p.want(t, unix.EPERM, "unix", "netlink", "setns", "read", "tun", "vm")
	p.want(t, unix.ENOTTY, "tuniff") // the kernel was asked
	p.want(t, nil, mine...)

	// A profile begins with reading, of which Landlock leaves nothing.
	p = confine(t, Config{Reads: true, Files: true}, nil, all...)
	p.want(t, unix.EPERM, everywhere...)
	p.want(t, unix.EPERM, "unix", "netlink", "setns", "tun", "vm")
	if version, err := llsys.LandlockGetABIVersion(); err == nil && version > 0 {
		p.want(t, unix.EACCES, "read")
	}
}

// TestProcesses: a daemon without privileges that keeps its files can name processes by their
// number still; one of root's cannot.
func TestProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		p := confine(t, Config{}, nil, "vm")
		p.want(t, nil, "vm")
		return
	}
	p := confine(t, Config{}, nil, "vm")
	p.want(t, unix.EPERM, "vm")
	needtest.AsNobody(t, "TestProcesses")
}

// TestTrap: for tests, a call that is not allowed ends the process and shows where it was made.
func TestTrap(t *testing.T) {
	p := confine(t, Config{Files: true, Trap: true}, nil, "clone3", "pidfd", "keys", "gc")
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Success() {
		t.Errorf("it ended with %v", err)
	}
	if s := p.errs.String(); !strings.Contains(s, "SIGSYS: bad system call") ||
		!strings.Contains(s, "sandbox_linux_test.go") {
		t.Errorf("it did not say where:\n%s", s)
	}
	p.want(t, unix.ENOSYS, "clone3") // which is no mistake
	p.want(t, unix.EPERM, "pidfd")   // nor is this
}

// TestPrivileges: root keeps what TAPs need, or nothing, on every thread; and becomes somebody
// else.
func TestPrivileges(t *testing.T) {
	needtest.Root(t)
	none, netAdmin := "0000000000000000", fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN)
	nobody, err := LookupUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		Config
		caps, uid, groups string
	}{
		{Config{}, none, "0\t0\t0\t0", ""},
		{Config{TAPs: true}, netAdmin, "0\t0\t0\t0", ""},
		{Config{User: nobody}, none, "65534\t65534\t65534\t65534", "65534"},
		{Config{User: nobody, TAPs: true}, netAdmin, "65534\t65534\t65534\t65534", "65534"},
	} {
		p := confine(t, c.Config, nil)
		p.wantStatus(t, map[string]string{"CapEff": c.caps, "CapPrm": c.caps, "CapBnd": none,
			"CapAmb": none, "CapInh": none, "Uid": c.uid, "NoNewPrivs": "1", "Seccomp": "2"})
		if c.User != nil {
			p.wantStatus(t, map[string]string{"Gid": c.uid})
		}
	}
}

// TestFiles: root's daemon can remove what is in the directories of its sockets, and no other file.
func TestFiles(t *testing.T) {
	needtest.Root(t)
	if version, err := llsys.LandlockGetABIVersion(); err != nil || version <= 0 {
		needtest.Skip(t, "the kernel has no Landlock")
	}
	for _, c := range []struct {
		socket string
		want   error
	}{{"s", nil}, {"elsewhere/s", unix.EACCES}} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "elsewhere"), 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p := confine(t, Config{Sockets: []string{filepath.Join(dir, c.socket)}},
			[]string{"VRNIC_TEST_FILE=" + file}, "remove")
		_, err := os.Stat(file)
		if gone := errors.Is(err, os.ErrNotExist); gone != (c.want == nil) {
			t.Errorf("with a socket %s, a file beside: gone %v\n%v", c.socket, gone, p.lines)
		}
	}
}

// TestReport: a line for an operator.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		r    Report
		want string
	}{
		{Report{User: "0"}, "user=0 capabilities=none landlock=no seccomp=no"},
		{Report{User: "nobody", Capabilities: []string{"net_admin"}, Landlock: 7, Seccomp: true},
			"user=nobody capabilities=net_admin landlock=v7 seccomp=yes"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestLookupUser: by name, by number, with all groups; or an error that names who is missing.
func TestLookupUser(t *testing.T) {
	byName, err := LookupUser("root")
	byNumber, nerr := LookupUser("0")
	if err != nil || nerr != nil || byName.UID != 0 || byNumber.UID != 0 || byName.Name != "root" ||
		byNumber.Name != "root" {
		t.Errorf("root is %+v, %v; 0 is %+v, %v", byName, err, byNumber, nerr)
	}
	for _, name := range []string{"no such user", "4294967295", ""} {
		if u, err := LookupUser(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q is %+v, %v", name, u, err)
		}
	}
}

// With an address of the host there are TCP and UDP, and nothing else of the kernel's.
func TestInternet(t *testing.T) {
	p := confine(t, Config{Internet: true}, nil, "tcp", "udp", "sctp", "ping", "packet", "unix")
	p.want(t, nil, "tcp", "udp")
	p.want(t, syscall.EPERM, "sctp", "ping", "packet", "unix")
}
