package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
)

// An upProcess is this program, started as a user starts it.
type upProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr *strings.Builder
	within func(func() error) error // calls what starts it; nil: nothing special
}

// start runs vrnic with args; it is killed at the test's end.
func startUp(t *testing.T, env []string, args ...string) *upProcess {
	t.Helper()
	p := &upProcess{t: t, cmd: vrnicCommand(t, args...), stderr: new(strings.Builder)}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.begin()
	return p
}

func (p *upProcess) begin() {
	p.t.Helper()
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	start := p.cmd.Start
	if p.within != nil {
		start = func() error { return p.within(p.cmd.Start) }
	}
	if err := start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
}

// ready waits for the line that says that programs can connect.
func (p *upProcess) ready() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.cmd.Wait()
		p.t.Fatalf("no ready line: %q, %v; stderr:\n%s", line, err, p.stderr)
	}
	return strings.TrimSuffix(line, "\n")
}

// end waits for the process and returns its status and what else it printed.
func (p *upProcess) end() (status int, rest string) {
	p.t.Helper()
	var b strings.Builder
	_, rerr := p.out.WriteTo(&b)
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if rerr != nil {
		p.t.Fatal(rerr)
	}
	return p.cmd.ProcessState.ExitCode(), b.String()
}

// socketDir is a directory whose path is short enough for a socket in it.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// --cpuprofile: a file of each daemon's own where its name has a *, and an error before there is a
// daemon where it cannot be written.
func TestUpCPUProfile(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "s")
	p := startUp(t, []string{"VRNIC_CPUPROFILE=" + filepath.Join(dir, "cpu-*.out")}, "up", "--socket",
		socket)
	p.ready()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, rest := p.end(); status != 0 {
		t.Errorf("exit %d: %s", status, rest)
	}
	files, err := filepath.Glob(filepath.Join(dir, "cpu-*.out"))
	if err != nil || len(files) != 1 || strings.Contains(files[0], "*") {
		t.Fatalf("%v, %v", files, err)
	}
	if st, err := os.Stat(files[0]); err != nil || st.Size() == 0 {
		t.Errorf("%v, %v", st, err)
	}
	status, _, stderr := vrnic("up", "--socket", socket, "--cpuprofile",
		filepath.Join(dir, "no", "dir"))
	if status != exitFailed || !strings.Contains(stderr, "no such file") {
		t.Errorf("exit %d, stderr %q", status, stderr)
	}
}

// vrnic up: one line when programs can connect, READY=1 to the service manager, a second daemon on
// the same socket is refused, SIGTERM, SIGINT and SIGHUP end it cleanly.
func TestUp(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			if signal.Ignored(sig) {
				needtest.Skip(t, "this was started with "+sig.String()+" ignored, as by nohup, and so is "+
					"the daemon")
			}
			dir := socketDir(t)
			socket, notifySocket := filepath.Join(dir, "s"), filepath.Join(dir, "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notifySocket,
				Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer os.Remove(notifySocket)
			defer manager.Close()
			p := startUp(t, []string{"NOTIFY_SOCKET=" + notifySocket}, "up", "--socket", socket,
				"--device", "a0,addr=10.1.0.2/24,addr=fd01::2/64,mtu=9000", "--device", "b0,addr=10.1.0.3/24")
			if line, want := p.ready(), "ready socket="+socket+" devices=a0,b0"; line != want {
				t.Errorf("the ready line is %q, want %q", line, want)
			}
			b := make([]byte, 64)
			manager.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := manager.Read(b); err != nil || string(b[:n]) != "READY=1" {
				t.Errorf("the service manager was told %q, %v", b[:n], err)
			}
			if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("the socket is %v, %v; want mode 0600", st.Mode(), err)
			}

			status, stdout, stderr := vrnic("show", "dev", "--json", "--socket", socket)
			var rows []map[string]any
			if err := json.Unmarshal([]byte(stdout), &rows); err != nil || status != 0 || stderr != "" ||
				len(rows) != 2 {
				t.Errorf("show dev --json: status %d, %d rows, %v, stderr %q:\n%s", status, len(rows), err,
					stderr, stdout)
			} else if rows[0]["dev"] != "a0" || rows[0]["mtu"] != 9000.0 || rows[1]["dev"] != "b0" {
				t.Errorf("show dev --json: %v", rows)
			}
			// Flags may stand before the kind, and a device's rows alone be asked for.
			for _, args := range [][]string{{"--json", "--socket", socket, "-d", "b0", "dev"},
				{"-d", "b0", "dev", "--json", "--socket", socket},
				{"--socket", "/no/such", "-d", "a0", "dev", "-d", "b0", "--socket", socket, "--json"}} {
				status, stdout, stderr := vrnic(append([]string{"show"}, args...)...)
				if status != 0 || stderr != "" || !strings.HasPrefix(stdout, "[\n  {\"dev\":\"b0\",") ||
					strings.Contains(stdout, "a0") {
					t.Errorf("show %q: status %d, stderr %q:\n%s", args, status, stderr, stdout)
				}
			}
			if status, _, stderr := vrnic("show", "qp", "-d", "c0", "--socket", socket); status !=
				exitUsage || !strings.Contains(stderr, "a0, b0") {
				t.Errorf("show qp -d c0: status %d, stderr %q; want one that names the devices", status,
					stderr)
			}
			for _, kind := range []string{"dev", "port", "qp", "pd", "mr", "mw", "cq", "srq", "gid", "cm",
				"peer", "client", "user", "daemon"} {
				status, stdout, stderr := vrnic("show", kind, "--socket", socket)
				if status != 0 || stderr != "" {
					t.Errorf("show %s: status %d, stderr %q", kind, status, stderr)
				}
				if kind == "dev" && !strings.HasPrefix(stdout, "dev a0 ") || kind == "port" &&
					strings.Count(stdout, "\n") != 2 {
					t.Errorf("show %s:\n%s", kind, stdout)
				}
			}
			if status, stdout, stderr := vrnic("stat", "-d", "b0", "--socket", socket); status != 0 ||
				!strings.Contains(stdout, "dev b0 ") || strings.Contains(stdout, "a0") {
				t.Errorf("stat -d b0: status %d, stderr %q:\n%s", status, stderr, stdout)
			}
			if status, _, stderr := vrnic("stat", "-d", "c0", "--socket", socket); status != exitUsage ||
				!strings.Contains(stderr, "a0, b0") {
				t.Errorf("stat -d c0: status %d, stderr %q; want one that names the devices", status, stderr)
			}

			second := startUp(t, nil, "up", "--socket", socket)
			if status, rest := second.end(); status != exitFailed || rest != "" ||
				!strings.Contains(second.stderr.String(), "already") {
				t.Errorf("a second daemon: status %d, stdout %q, stderr %q", status, rest, second.stderr)
			}
			if status, _, stderr := vrnic("show", "dev", "--socket", socket); status != 0 {
				t.Errorf("after that the first does not answer: %s", stderr)
			}

			p.cmd.Process.Signal(sig)
			if status, rest := p.end(); status != 0 || rest != "" {
				t.Errorf("after %v: status %d, more on stdout: %q, stderr:\n%s", sig, status, rest, p.stderr)
			}
			if left, _ := filepath.Glob(socket + "*"); len(left) != 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

// A daemon that was killed leaves its socket; the next one takes it over. What is no socket stays.
func TestUpStaleSocket(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "s")
	first := startUp(t, nil, "up", "--socket", socket)
	first.ready()
	first.cmd.Process.Kill()
	first.end()
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("the killed daemon's socket: %v", err)
	}
	if status, _, stderr := vrnic("show", "dev", "--socket", socket); status != exitFailed ||
		!strings.Contains(stderr, "vrnic up") {
		t.Errorf("show on a dead daemon's socket: status %d, %q", status, stderr)
	}
	second := startUp(t, nil, "up", "--socket", socket)
	if line, want := second.ready(), "ready socket="+socket+" devices=vrnic0"; line != want {
		t.Errorf("the ready line is %q, want %q", line, want)
	}
	second.cmd.Process.Signal(syscall.SIGTERM)
	if status, _ := second.end(); status != 0 {
		t.Errorf("status %d, stderr:\n%s", status, second.stderr)
	}

	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := startUp(t, nil, "up", "--socket", file)
	if status, rest := third.end(); status != exitFailed || rest != "" ||
		!strings.Contains(third.stderr.String(), file) {
		t.Errorf("a file in the socket's place: status %d, stdout %q, stderr %q", status, rest,
			third.stderr)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Errorf("the file is now %q, %v", b, err)
	}
}

// A port that cannot be made is a failure, and what had been made before it is gone again.
func TestUpHalfWay(t *testing.T) {
	dir := socketDir(t)
	socket, link := filepath.Join(dir, "s"), filepath.Join(dir, "link")
	p := startUp(t, nil, "up", "--socket", socket, "--port", "unix-listen:"+link, "--port",
		"tap:x,netns="+dir+"/nowhere")
	status, rest := p.end()
	if status != exitFailed || rest != "" || strings.Count(p.stderr.String(), "\n") != 1 ||
		!strings.Contains(p.stderr.String(), "nowhere") {
		t.Errorf("status %d, stdout %q, stderr %q; want 1 and one line that names the namespace", status,
			rest, p.stderr)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

// A daemon that was started to outlive its terminal does.
func TestUpNoHangup(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	p := &upProcess{t: t, cmd: vrnicCommand(t, "up", "--socket", socket), stderr: new(strings.Builder)}
	p.cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`}, p.cmd.Args...)
	p.cmd.Path = "/bin/sh"
	p.begin()
	p.ready()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGHUP} {
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if status, _, stderr := vrnic("show", "dev", "--socket", socket); status != 0 {
			t.Errorf("after SIGHUP: status %d, %s", status, stderr)
		}
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if status, _ := p.end(); status != 0 {
		t.Errorf("status %d, stderr:\n%s", status, p.stderr)
	}
}

// --log-level has each part of a daemon log from its level on, and --log-format json makes an
// object of each line.
func TestUpLog(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	p := startUp(t, nil, "up", "--socket", socket, "--log-format", "json", "--log-level",
		"warn,clients=debug", "--metrics", "0.0.0.0:0")
	p.ready()
	if status, _, stderr := vrnic("show", "dev", "--socket", socket); status != 0 {
		t.Errorf("show: %d, %s", status, stderr)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.end()
	seen := map[string]bool{}
	for line := range strings.Lines(p.stderr.String()) {
		var r struct{ Level, Msg, Part string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		seen[r.Part+" "+r.Level] = true
	}
	if !seen["clients DEBUG"] || !seen[" WARN"] || seen[" INFO"] || seen["rdma DEBUG"] {
		t.Errorf("%v, of:\n%s", seen, p.stderr)
	}
	for _, args := range [][]string{{"--log-format", "xml"}, {"--log-level", "loud"},
		{"--log-level", "nobody=info"}} {
		status, _, stderr := vrnic(append([]string{"up", "--socket", socket}, args...)...)
		if status != exitUsage || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: %d, %s", args, status, stderr)
		}
	}
}
