package containers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/proctest"
)

// call starts the plugin as a runtime does, with whatever it is given.
func (n *network) call(stdin string, stdout *os.File, env ...string) *exec.Cmd {
	n.t.Helper()
	c := exec.Command(filepath.Join(n.dir, "vrnic-cni"))
	c.Stdin, c.Env = strings.NewReader(stdin), append([]string{"CNI_PATH=" + n.dir}, env...)
	if stdout != nil { // else the caller's
		c.Stdout = stdout
	}
	return c
}

// text is a configuration as a plugin gets it.
func (n *network) text(more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "rdma", "type": "vrnic-cni",
		"socket": %q, %s}`, n.socket, more)
}

func (p *pod) env(command string) []string {
	return []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.ContainerID,
		"CNI_NETNS=" + p.NetNS, "CNI_IFNAME=" + p.IfName}
}

// Rubbish is refused with an error as the specification has it, and nothing is left, here or in the
// daemon.
func TestCNIRubbish(t *testing.T) {
	n := newNetwork(t)
	p := newPod(t, "a")
	good := n.text(n.ipam() + `, "device": "transport=roce"`)
	deep := n.text(`"ipam": ` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000))
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		for what, stdin := range map[string]string{
			"nothing": "", "half of it": good[:len(good)/2], "a list": "[]", "a number": "7",
			"octets": "\x00\xff\x7fELF", "depth": deep,
			"no version known":        strings.Replace(good, "1.1.0", "99.0.0", 1),
			"a device that cannot be": n.text(n.ipam() + `, "device": "transport=smoke"`),
			"a result that is none":   n.text(n.ipam() + `, "prevResult": {"ips": "all"}`),
		} {
			n.wantRefused(command+" with "+what, n.call(stdin, nil, p.env(command)...))
		}
	}
	for _, change := range []string{"CNI_COMMAND=SING", "CNI_CONTAINERID=../../etc",
		"CNI_CONTAINERID=", "CNI_NETNS=", "CNI_IFNAME=", "CNI_IFNAME=..", "CNI_IFNAME=a/b",
		"CNI_IFNAME=a-name-that-is-too-long"} {
		n.wantRefused(change, n.call(good, nil, append(p.env("ADD"), change)...))
	}
	n.wantLeft("after rubbish", 0)
	n.wantDevices("after rubbish", 0)
	if got := faces(t, p.ns); len(got) != 0 {
		t.Errorf("after rubbish there are %v", got)
	}
}

// wantRefused wants an error of the specification's.
func (n *network) wantRefused(what string, c *exec.Cmd) {
	n.t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var reply struct {
		Code uint
		Msg  string
	}
	if jerr := json.Unmarshal(out.Bytes(), &reply); err == nil || jerr != nil || reply.Code == 0 ||
		reply.Msg == "" || strings.Contains(errs.String(), "panic") {
		n.t.Errorf("%s: %v, it prints %.300q and %.300q", what, err, &out, &errs)
	}
}

// wantDevices wants as many devices of containers in the daemon.
func (n *network) wantDevices(when string, want int) {
	n.t.Helper()
	if got := len(n.show("dev")) - 1; got != want {
		n.t.Errorf("%s: %d devices of containers, want %d", when, got, want)
	}
}

// A runtime that does not get the result of ADD has no interface: nothing is left of it.
func TestCNIUnheard(t *testing.T) {
	n := newNetwork(t)
	p := newPod(t, "a")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, more := range []string{"", `, "device": "transport=roce"`} {
		if err := n.call(n.text(n.ipam()+more), full, p.env("ADD")...).Run(); err == nil {
			t.Errorf("ADD that cannot be heard is well")
		}
		n.wantLeft("after ADD that nobody heard", 0)
		n.wantDevices("after ADD that nobody heard", 0)
		proctest.Eventually(t, patience, "the interface has gone", func() bool {
			return len(faces(t, p.ns)) == 0
		})
	}
}

// ADD is killed while it waits for addresses, and when all is made but its result is not heard: the
// DEL that a runtime then makes takes away whatever there is, and another ADD is well.
func TestCNIKilled(t *testing.T) {
	n := newNetwork(t)
	n.list = n.config(n.ipam() + `, "device": "transport=roce"`)
	p := newPod(t, "a")
	fifo := filepath.Join(n.dir, "wait")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	early := n.call(n.text(strings.Replace(n.ipam(), `"ipam": {`, fmt.Sprintf(`"ipam": {"wait": %q, `,
		fifo), 1)+`, "device": "transport=roce"`), nil, p.env("ADD")...)
	start(t, early)
	in, err := os.OpenFile(fifo, os.O_WRONLY, 0) // the other plugin has begun
	if err != nil {
		t.Fatal(err)
	}
	kill(t, early)
	in.Close() // it goes on, for nobody
	proctest.Eventually(t, patience, "an address is taken", func() bool {
		addrs, _ := filepath.Glob(n.dir + "/ipam/*")
		return len(addrs) == 1
	})
	n.del(p)
	n.wantLeft("after ADD was killed early", 0)
	n.wantDevices("after ADD was killed early", 0)

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil { // it is full: who writes there waits
		t.Fatal(err)
	}
	late := n.call(n.text(n.ipam()+`, "device": "transport=roce"`), w, p.env("ADD")...)
	start(t, late)
	proctest.Eventually(t, patience, "all is made", func() bool {
		for _, row := range n.show("port") {
			if row["kind"] == "tap" {
				return true
			}
		}
		return false
	})
	kill(t, late)
	n.wantLeft("when ADD was killed late", 1)
	n.del(p)
	n.wantLeft("after ADD was killed late", 0)
	n.wantDevices("after ADD was killed late", 0)
	if got := faces(t, p.ns); len(got) != 0 {
		t.Errorf("after ADD was killed late there are %v", got)
	}
	n.add(p)
	n.wantLeft("after another ADD", 1)
	n.del(p)
	n.wantLeft("in the end", 0)
	n.wantDevices("in the end", 0)
}

func start(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}

func kill(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Errorf("%s was not killed", c)
	}
}
