package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// staticProgram is one without a loader. It exits with status 42.
func staticProgram(t *testing.T) []byte {
	t.Helper()
	machine, code := elf.EM_X86_64, []byte{
		0xbf, 42, 0, 0, 0, // mov $42, %edi
		0xb8, 60, 0, 0, 0, // mov $60, %eax: exit
		0x0f, 0x05, // syscall
	}
	if runtime.GOARCH == "arm64" {
		machine, code = elf.EM_AARCH64, []byte{
			0x40, 0x05, 0x80, 0xd2, // mov x0, #42
			0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93: exit
			0x01, 0x00, 0x00, 0xd4, // svc #0
		}
	}
	const at, head = 0x400000, 64 + 56
	var b bytes.Buffer
	for _, v := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
				byte(elf.EV_CURRENT)},
			Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
			Entry:  at + head,
			Ehsize: 64, Phoff: 64, Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: at, Paddr: at,
			Align:  0x1000,
			Filesz: uint64(head + len(code)), Memsz: uint64(head + len(code)),
		},
		code,
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// A program without a loader runs, as it may start others; but the user is told.
func TestExecStatic(t *testing.T) {
	socket := pingDaemon(t)
	file := filepath.Join(filepath.Dir(socket), "static")
	if err := os.WriteFile(file, staticProgram(t), 0o755); err != nil {
		t.Fatal(err)
	}
	got := runToEnd(t, execCommandOf(t, socket, file))
	if got.status.ExitStatus() != 42 || !strings.Contains(got.stderr, "statically linked") ||
		strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("%+v; want exit 42 and a line that says why there is no device", got)
	}
}

// Under --check a program is a child, which ends as it would: with its status, by its signals, and
// scripts without a first line are the shell's.
func TestExecCheck(t *testing.T) {
	socket := pingDaemon(t)
	script := filepath.Join(filepath.Dir(socket), "script")
	if err := os.WriteFile(script, []byte("echo script $1; exit 5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		status int
		stdout string
	}{
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		// A signal to vrnic is one to the program, which it has there as its parent.
		{[]string{"sh", "-c", "trap 'echo told; exit 3' TERM; kill -TERM $PPID; while :; do " +
			"sleep 0.1; done"}, 3, "told\n"},
		{[]string{script, "runs"}, 5, "script runs\n"},
	} {
		args := slices.Concat([]string{"--check", "--"}, tt.args)
		got := runToEnd(t, execCommandOf(t, socket, args...))
		if got.status.ExitStatus() != tt.status || got.stdout != tt.stdout ||
			!strings.Contains(got.stderr, "vrnic check: nothing found\n") {
			t.Errorf("%q: %+v, want status %d and %q", tt.args, got, tt.status, tt.stdout)
		}
	}
}

// What nohup(1) has had vrnic ignore the program ignores, too, under --check as without.
func TestExecCheckIgnored(t *testing.T) {
	cmd := execCommandOf(t, pingDaemon(t), "--check", "--", "sh", "-c", "kill -HUP $$; echo lives")
	cmd.Args = slices.Concat([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", cmd.Path},
		cmd.Args[1:])
	cmd.Path = "/bin/sh"
	if got := runToEnd(t, cmd); got.status.ExitStatus() != 0 || got.stdout != "lives\n" {
		t.Errorf("%+v", got)
	}
}

// forNobody makes a command one of another user's. Its program is copied to where that user can
// read it.
func forNobody(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	content, err := os.ReadFile(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	dir := socketDir(t)
	cmd.Path = filepath.Join(dir, "vrnic")
	if err := errors.Join(os.WriteFile(cmd.Path, content, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

// Two users: root's daemon is everybody's whom it lets in; another user's gets nobody else's
// memory.
func TestExecUsers(t *testing.T) {
	needtest.Root(t)
	for _, mode := range []string{"0600", "0666"} {
		dir := socketDir(t)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(dir, "s")
		startUp(t, nil, "up", "--socket", socket, "--socket-mode", mode).ready()
		got := runToEnd(t, forNobody(t, execCommandOf(t, socket, "sh", "-c", "id -u")))
		if mode == "0600" {
			if got.status.ExitStatus() != exitFailed || got.stdout != "" || strings.Count(got.stderr,
				"\n") != 1 || !strings.Contains(got.stderr, "--socket-mode") {
				t.Errorf("nobody at a socket of root's: %+v", got)
			}
		} else if got.status != 0 || got.stdout != "65534\n" || got.stderr != "" {
			t.Errorf("nobody at a socket for all: %+v", got)
		}
	}

	theirs := socketDir(t)
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(theirs, "s")
	up := forNobody(t, vrnicCommand(t, "up", "--socket", socket))
	stdout, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	defer up.Wait()
	defer up.Process.Kill()
	if _, err := stdout.Read(make([]byte, 256)); err != nil {
		t.Fatal(err)
	}
	got := runToEnd(t, execCommandOf(t, socket, "sh", "-c", "exit 4"))
	if got.status.ExitStatus() != 4 || strings.Count(got.stderr, "\n") != 1 ||
		!strings.Contains(got.stderr, "runs as nobody") {
		t.Errorf("root at a socket of nobody's: %+v; want a line that says that there is no device", got)
	}
}

// inNamespaces runs a script of sh in mount, network and user namespaces of its own, as root there.
func inNamespaces(t *testing.T, cmd *exec.Cmd) execEnd {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		needtest.Lacking(t, "root", err)
	}
	cmd.Wait()
	return execEnd{cmd.ProcessState.Sys().(syscall.WaitStatus), stdout.String(), stderr.String()}
}

// In another mount and network namespace, as in a container: all that is needed is the program and
// the socket. Where no directory takes executables, the libraries are in memory.
func TestExecNamespaces(t *testing.T) {
	needVerbs(t)
	socket := pingDaemon(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("ibv_devices"); err != nil {
		needtest.Lacking(t, "rdma-core", err)
	}
	// Of the host's interfaces there is none: two lines of heading, and lo. Of the devices there is
	// one.
	const look = `$VRNIC exec -d left -- sh -c 'cat /proc/self/maps; wc -l </proc/net/dev; ibv_devices'`
	for _, tt := range []struct{ name, script, from string }{
		{"a place for executables", "mount -t tmpfs -o mode=755 none $TMPDIR && mount -t tmpfs none -o " +
			"mode=755,ro /run && " + look, "TMPDIR/vrnic-0/"},
		{"none", "mount -t tmpfs -o mode=755,noexec none $TMPDIR && mount -t tmpfs -o mode=755,noexec " +
			"none /run && " + look, "memfd:vrnic-"},
	} {
		cmd := exec.Command("sh", "-c", tt.script)
		temp := socketDir(t)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), asProgram + "=1", "VRNIC=" + self,
			"VRNIC_SOCKET=" + socket, "TMPDIR=" + temp}
		got := inNamespaces(t, cmd)
		from := strings.ReplaceAll(tt.from, "TMPDIR", temp)
		maps, devices, _ := strings.Cut(got.stdout, "\n3\n")
		if got.status != 0 || got.stderr != "" || !strings.Contains(maps, from) ||
			!strings.Contains(maps, launch.IfAddrs) {
			t.Errorf("%s: %+v; want libraries of %s", tt.name, got, from)
		}
		if !strings.Contains(devices, " left ") || strings.Contains(devices, " right ") {
			t.Errorf("%s: ibv_devices prints\n%s", tt.name, devices)
		}
	}
}

// compile makes a program, or with -shared a library, of C source.
func compile(t *testing.T, out string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		needtest.Lacking(t, "verbs", err)
	}
	for _, source := range args {
		if strings.HasSuffix(source, ".c") {
			// here, so that go test knows what its result rests on
			if _, err := os.ReadFile(source); err != nil {
				t.Fatal(err)
			}
		}
	}
	args = append([]string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror",
		"-fvisibility=hidden", "-o", out}, args...)
	if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %q: %v\n%s", args, err, said)
	}
}

// A program that names the directory of other verbs libraries (DT_RPATH) gets ours all the same.
func TestExecRPath(t *testing.T) {
	socket := pingDaemon(t)
	theirs, ours := standIns(t), standIns(t)
	source := filepath.Join(theirs, "lib.c")
	for dir, text := range map[string]string{theirs: "theirs", ours: "ours"} {
		code := "__attribute__((visibility(\"default\"))) const char *whose(void) { return \"" + text +
			"\"; }\n"
		if err := os.WriteFile(source, []byte(code), 0o644); err != nil {
			t.Fatal(err)
		}
		compile(t, filepath.Join(dir, launch.Verbs), "-shared", "-fPIC", "-Wl,-soname,"+launch.Verbs,
			source)
	}
	main := filepath.Join(theirs, "main.c")
	if err := os.WriteFile(main, []byte("#include <stdio.h>\nextern const char *whose(void);\nint "+
		"main(void) { puts(whose()); return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tags := range []string{"--disable-new-dtags", "--enable-new-dtags"} {
		program := filepath.Join(theirs, "program"+tags)
		compile(t, program, main, filepath.Join(theirs, launch.Verbs), "-Wl,"+tags+",-rpath,"+theirs)
		if out, err := exec.Command(program).Output(); err != nil || string(out) != "theirs\n" {
			t.Fatalf("%s: %q, %v", tags, out, err)
		}
		got := runToEnd(t, vrnicCommand(t, "exec", "--socket", socket, "--lib-dir", ours, program))
		if got.status != 0 || got.stdout != "ours\n" {
			t.Errorf("%s: %+v; want the library of vrnic", tags, got)
		}
	}
}

// What getifaddrs lists for a program: the kernel's addresses, and the devices' behind them. The
// list can be freed; a program with the address sanitizer, which wants to be preloaded first,
// agrees.
func TestExecIfAddrs(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	startUp(t, nil, "up", "--socket", socket, "--device", "left,addr=10.1.0.1/20,addr=fd01::1/61",
		"--device", "a-name-longer-than-interfaces,addr=10.1.16.1/31").ready()
	dir := standIns(t)
	program, sanitized := filepath.Join(dir, "program"), filepath.Join(dir, "sanitized")
	verbs := filepath.Join("..", "..", "verbs")
	compile(t, filepath.Join(dir, launch.IfAddrs), "-shared", "-fPIC", "-Wl,-z,defs", "-I"+verbs,
		filepath.Join(verbs, "preload", "ifaddrs.c"), filepath.Join(verbs, "setting", "setting.c"))
	compile(t, program, filepath.Join("testdata", "ifaddrs.c"))

	const want = "left 0x43 10.1.0.1/255.255.240.0 10.1.15.255\n" +
		"left 0x43 fd01::1/ffff:ffff:ffff:fff8:: -\n" +
		"a-name-longer-t 0x43 10.1.16.1/255.255.255.254 -\n"
	run := func(name string, args ...string) string {
		t.Helper()
		got := runToEnd(t, vrnicCommand(t, append([]string{"exec", "--socket", socket, "--lib-dir", dir},
			args...)...))
		if got.status != 0 || got.stderr != "" {
			t.Fatalf("%s: %+v", name, got)
		}
		return got.stdout
	}
	kernel, err := exec.Command(program).Output()
	if err != nil || len(kernel) == 0 {
		t.Fatalf("without vrnic exec: %q, %v", kernel, err)
	}
	if got := run("a program", program); got != string(kernel)+want {
		t.Errorf("with devices:\n%swithout:\n%s", got, kernel)
	}
	if got := run("one device", "-d", "left", program); got != string(kernel)+strings.Join(
		strings.SplitAfter(want, "\n")[:2], "") {
		t.Errorf("with one device:\n%s", got)
	}

	// An address that the kernel has too is listed once.
	cmd := exec.Command(program)
	cmd.Env = []string{"LD_PRELOAD=" + filepath.Join(dir, launch.IfAddrs)}
	for _, line := range strings.Split(string(kernel), "\n") {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "lo" {
			addr, _, _ := strings.Cut(f[2], "/")
			cmd.Env = append(cmd.Env, "VRNIC_IFADDRS=left="+addr+
				"/8,not/an,address,1.2.3.4/33,::1/129,1.2.3.4/,1.2.3.4/1x;=1.2.3.4/8;;x;y=")
			break
		}
	}
	if got, err := cmd.Output(); err != nil || string(got) != string(kernel) {
		t.Errorf("with %q: %v\n%s", cmd.Env, err, got)
	}

	if exec.Command("cc", "-fsanitize=address", "-o", sanitized, filepath.Join("testdata",
		"ifaddrs.c")).Run() != nil {
		t.Log("the address sanitizer is not there")
	} else if got := run("a program with the sanitizer", sanitized); got != string(kernel)+want {
		t.Errorf("with the sanitizer:\n%s", got)
	}
	t.Run("aside", func(t *testing.T) { testIfAddrsAside(t, socket, dir, program) })
}

// An address that the kernel has where programs do not look, on the loopback interface or one that
// is down, is listed for the device too.
func testIfAddrsAside(t *testing.T, socket, dir, program string) {
	ns, err := netlab.NewNS()
	if errors.Is(err, os.ErrPermission) {
		needtest.Lacking(t, "root", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = errors.Join(
		ns.AddVeth("aside0", ns, "aside1"),
		ns.AddAddr("lo", netip.MustParsePrefix("10.1.0.1/20")),
		ns.AddAddr("aside0", netip.MustParsePrefix("10.1.16.1/31")),
		ns.AddAddr("aside1", netip.MustParsePrefix("fd01::1/64")),
		ns.Do(func() error { return setDown("aside0") }),
	)
	if err != nil {
		t.Fatal(err)
	}
	cmd := vrnicCommand(t, "exec", "--socket", socket, "--lib-dir", dir, program)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for line, want := range map[string]int{
		"\nlo 0x10049 10.1.0.1/": 1, "\nleft 0x43 10.1.0.1/": 1, // on both
		" 10.1.16.1/": 2, "\na-name-longer-t 0x43 10.1.16.1/": 1,
		" fd01::1/": 1, "\nleft 0x43 fd01::1/": 0, // that one the kernel has for programs
	} {
		if got := strings.Count("\n"+out.String(), line); got != want {
			t.Errorf("%q is there %d times, want %d:\n%s", line, got, want, &out)
		}
	}
}

// setDown sets a link of this namespace down.
func setDown(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(link)
	if err != nil {
		return err
	}
	ifr.SetUint16(0)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
