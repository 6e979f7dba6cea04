package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// inet are the programs that need no more than an IP interface, by their names.
func inet(t *testing.T) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for _, name := range []string{"ping", "iperf3", "ssh", "sshd", "ssh-keygen"} {
		path, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrNotFound) {
			path, err = exec.LookPath("/usr/sbin/" + name)
		}
		if err != nil {
			needtest.Lacking(t, "inet", err)
		}
		paths[name] = path
	}
	return paths
}

// command runs a program in e's namespace until it ends, and returns what it has printed.
func (e *ipoibEnd) command(stdin []byte, path string, args ...string) (string, error) {
	e.T.Helper()
	cmd := exec.CommandContext(e.T.Context(), path, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	if err := e.ns.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// serve runs a server in e's namespace until the test ends. It says that it listens, again behind
// each client if it has one at a time; nobody connects to find that out, who would be a client.
func (e *ipoibEnd) serve(path string, args ...string) *proctest.Process {
	e.T.Helper()
	p := proctest.Start(e.T, proctest.Config{NS: e.ns, Patience: patience},
		append([]string{path}, args...)...)
	p.WaitOutput(listens, 1)
	return p
}

// listens is what both iperf3 and sshd say.
const listens = "Server listening on "

// ping, iperf3 and ssh run over the interfaces of two daemons, which have connections: programs
// that know nothing of RDMA.
func TestIPoIBPrograms(t *testing.T) {
	programs := inet(t)
	a, b, _ := ipoibEnds(t, "mode=connected,mtu=65520")
	for _, to := range b.addrs {
		out, err := a.command(nil, programs["ping"], "-c", "3", "-i", "0.2", "-s", "20000", to.String())
		if err != nil {
			t.Errorf("ping: %v\n%s", err, out)
		}
	}
	at := b.addrs[0].String()
	iperf3 := b.serve(programs["iperf3"], "-s", "--forceflush", "-B", at)
	for i, way := range []string{"", "-R"} {
		iperf3.WaitOutput(listens, i+1)
		args := append([]string{"-c", at, "-n", "4M"}, strings.Fields(way)...)
		if out, err := a.command(nil, programs["iperf3"], args...); err != nil {
			t.Errorf("iperf3 %s: %v\n%s", way, err, out)
		}
	}
	a.ssh(b, programs)
}

// ssh has a shell of b's namespace say back what it is told.
func (e *ipoibEnd) ssh(b *ipoibEnd, programs map[string]string) {
	t := e.T
	t.Helper()
	dir := t.TempDir()
	key, host := filepath.Join(dir, "key"), filepath.Join(dir, "host")
	for _, f := range []string{key, host} {
		if out, err := exec.Command(programs["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f",
			f).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd confines itself to
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(b.addrs[1], 2222)
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "ListenAddress %v\nHostKey %s\n"+
		"AuthorizedKeysFile %s.pub\nStrictModes no\nPermitRootLogin yes\nPidFile none\n", at, host,
		key), 0o600); err != nil {
		t.Fatal(err)
	}
	b.serve(programs["sshd"], "-D", "-e", "-f", config)
	said := bytes.Repeat([]byte("over InfiniBand\n"), 1<<14)
	out, err := e.command(said, programs["ssh"], "-F", "none", "-i", key, "-p", "2222", "-o",
		"StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"root@"+at.Addr().String(), "cat")
	if err != nil || out != string(said) {
		t.Errorf("ssh: %v, %d octets of %d: %.200s", err, len(out), len(said), out)
	}
}
