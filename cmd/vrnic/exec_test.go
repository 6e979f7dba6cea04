package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/verbs/build"
)

// needVerbs skips a test that wants the libraries which `make -C verbs` builds.
func needVerbs(t *testing.T) {
	t.Helper()
	libs, err := build.Libraries(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range launch.Names {
		if libs[name] == nil {
			needtest.Lacking(t, "verbs", name+" was not built when this was: make verbs")
		}
	}
}

// standIns is a directory with files that are called like the libraries. A loader says that they
// are none, and goes on.
func standIns(t *testing.T) string {
	t.Helper()
	dir := socketDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range launch.Names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("no library"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An execEnd is how a program ended.
type execEnd struct {
	status         syscall.WaitStatus
	stdout, stderr string
}

// runToEnd runs cmd. Of stderr it leaves out what a loader says about stand-ins.
func runToEnd(t *testing.T, cmd *exec.Cmd) execEnd {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(line, "ERROR: ld.so: object ") {
			said.WriteString(line)
		}
	}
	return execEnd{cmd.ProcessState.Sys().(syscall.WaitStatus), stdout.String(), said.String()}
}

// execCommandOf is vrnic exec with stand-ins, and the daemon at socket.
func execCommandOf(t *testing.T, socket string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := vrnicCommand(t, slices.Concat([]string{"exec", "--socket", socket, "--lib-dir",
		standIns(t)}, args)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+socketDir(t))
	return cmd
}

// wantFailure runs cmd and wants a status and one line with words. Not in this process: if it
// should succeed, that would be another program from then on.
func wantFailure(t *testing.T, cmd *exec.Cmd, status int, words string) {
	t.Helper()
	got := runToEnd(t, cmd)
	if got.status.ExitStatus() != status || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 ||
		!strings.Contains(got.stderr, words) {
		t.Errorf("%q: exit %d, stdout %q, stderr %q; want %d and %q in one line", cmd.Args[1:],
			got.status.ExitStatus(), got.stdout, got.stderr, status, words)
	}
}

func TestExecWrongUse(t *testing.T) {
	for _, args := range [][]string{{"exec"}, {"exec", "--"}, {"exec", "-x", "true"}, {"exec", "-d"},
		{"exec", "-d", "vrnic0"}} {
		wantFailure(t, vrnicCommand(t, args...), exitUsage, "exec")
	}
	for _, args := range [][]string{{"--pedantic"}, {"--check-json", "f"}, {"--check-status", "1"},
		{"--check", "--check-status", "256"}, {"--check", "--rsockets"}} {
		args = slices.Concat([]string{"exec"}, args, []string{"true"})
		wantFailure(t, vrnicCommand(t, args...), exitUsage, "--check")
	}
}

// What keeps a program from being run, before there is one: one line that says what to do.
func TestExecFails(t *testing.T) {
	socket := pingDaemon(t)
	libs, nowhere := standIns(t), t.TempDir()
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--socket", nowhere + "/s", "sh"}, exitFailed, "vrnic up"},
		{[]string{"--socket", socket, "--lib-dir", libs, "-d", "middle", "sh"}, exitFailed,
			`"middle"; it has left, right`},
		{[]string{"--socket", socket, "--lib-dir", nowhere, "sh"}, exitFailed, "--lib-dir: open " +
			nowhere + "/libibverbs.so.1"},
		{[]string{"--socket", socket, "--lib-dir", libs, "no-such-program-here", "-x"},
			launch.StatusNotFound, "no-such-program-here: no such program"},
		{[]string{"--socket", socket, "--lib-dir", libs, nowhere}, launch.StatusCannotRun, "directory"},
	} {
		wantFailure(t, vrnicCommand(t, slices.Concat([]string{"exec"}, tt.args)...), tt.status, tt.want)
	}
	wantFailure(t, execCommandOf(t, socket, "--sys", "both", "sh"), exitUsage,
		`--sys "both" is neither auto, mount, preload nor off`)
	cmd := execCommandOf(t, socket, "sh")
	cmd.Env = append(cmd.Env, "VRNIC_DEVICE=middle")
	wantFailure(t, cmd, exitFailed, `"middle"`)
}

// A daemon of another release is named as such.
func TestExecOtherVersion(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		b := make([]byte, rpc.MaxMessage)
		n, err := conn.Read(b)
		if err != nil {
			served <- err
			return
		}
		h, _, err := rpc.ParseMessage(b[:n])
		if err != nil {
			served <- err
			return
		}
		h.Status = -int32(syscall.EPROTONOSUPPORT)
		_, err = conn.Write(rpc.AppendMessage(nil, h, &rpc.HelloReply{Magic: abi.MagicHello,
			Major: abi.Major + 1, Minor: 4}))
		served <- err
	}()
	wantFailure(t, execCommandOf(t, socket, "sh"), exitFailed,
		fmt.Sprintf("version %d.4 of the ring ABI, this program %d.%d", abi.Major+1, abi.Major,
			abi.Minor))
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// The program has this process: its number, its descriptors, its status; and an environment.
func TestExec(t *testing.T) {
	socket := pingDaemon(t)
	dir := filepath.Dir(socket)
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("echo $1-$2\nexit 5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		stdout string
	}{
		{"status", []string{"--", "sh", "-c", "exit 7"}, 7, ""},
		{"no dashes are needed, and the program's own flags are its", []string{"sh", "-c", "echo $0 $1",
			"-d", "--help"}, 0, "-d --help\n"},
		{"a second -- is the program's", []string{"-d", "left", "--", "sh", "-c", "echo $0", "--"},
			0, "--\n"},
		{"stdin", []string{"sh", "-c", "cat"}, 0, "from the test"},
		{"a script without a first line", []string{script, "a", "b"}, 5, "a-b\n"},
		{"no descriptor of ours", []string{"sh", "-c",
			"for f in 3 4 5 6 7 8 9; do [ ! -e /proc/$$/fd/$f ] || readlink /proc/$$/fd/$f; done"}, 0, ""},
		{"all devices", []string{"sh", "-c", "echo $VRNIC_SOCKET $VRNIC_DEVICE $VRNIC_IFADDRS"}, 0,
			socket + " left=10.1.0.1/24,fd01::1/64;right=10.1.0.2/24,fd01::2/64\n"},
		{"one", []string{"-d", "right", "sh", "-c", "echo $VRNIC_SOCKET $VRNIC_DEVICE $VRNIC_IFADDRS"}, 0,
			socket + " right right=10.1.0.2/24,fd01::2/64\n"},
	} {
		cmd := execCommandOf(t, socket, tt.args...)
		cmd.Stdin = strings.NewReader("from the test")
		got := runToEnd(t, cmd)
		if got.status.ExitStatus() != tt.status || got.stdout != tt.stdout || got.stderr != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d, %q", tt.name, got.status.ExitStatus(),
				got.stdout, got.stderr, tt.status, tt.stdout)
		}
	}

	// A relative socket is where it was, wherever the program goes.
	cmd := execCommandOf(t, "s", "sh", "-c", "cd / && echo $VRNIC_SOCKET")
	cmd.Dir = dir
	if got := runToEnd(t, cmd); got.stdout != socket+"\n" {
		t.Errorf("a relative socket: %+v", got)
	}

	// What the user has set stays, and exec in exec adds nothing twice.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	libs := standIns(t)
	cmd = vrnicCommand(t, "exec", "--socket", socket, "--lib-dir", libs, self, "exec", "--lib-dir",
		libs, "-d", "right",
		"sh", "-c", "echo $LD_LIBRARY_PATH $LD_PRELOAD $VRNIC_IFADDRS")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH=/mine", "LD_PRELOAD=libc.so.6")
	want := libs + ":/mine libc.so.6:" + libs + "/libvrnic-ifaddrs.so right=10.1.0.2/24,fd01::2/64\n"
	if got := runToEnd(t, cmd); got.status != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exec in exec: %+v, want %q", got, want)
	}
}

// Signals come to the program itself, and what ends it is seen.
func TestExecSignals(t *testing.T) {
	socket := pingDaemon(t)
	if got := runToEnd(t, execCommandOf(t, socket, "sh", "-c",
		"kill -USR1 $$")); !got.status.Signaled() || got.status.Signal() != syscall.SIGUSR1 {
		t.Errorf("a program that SIGUSR1 ends: %+v", got)
	}
	p := startUp(t, nil, "exec", "--socket", socket, "--lib-dir", standIns(t), "sh", "-c",
		`trap 'echo caught; exit 3' TERM; echo pid $$; while :; do sleep 0.01; done`)
	if line, want := p.ready(), fmt.Sprintf("pid %d", p.cmd.Process.Pid); line != want {
		t.Errorf("the program says %q, want %q", line, want)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, rest := p.end(); status != 3 || rest != "caught\n" {
		t.Errorf("after SIGTERM: exit %d, %q", status, rest)
	}
}
