package shm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// helperProcess is what the test binary does when it runs as another process.
func helperProcess(what string) {
	f := exitFailer{}
	name, path, _ := strings.Cut(what, " ")
	if name == "memory" {
		helperMemory(path)
		return
	}
	c := rawConnect(f, path)
	switch name {
	case "connected":
	case "hello":
		c.hello()
	case "busy":
		c.hello()
		q := c.newQP()
		c.do(OpSetMem, &SetMemRequest{NonceAddr: c.nonceAddr()}, nil, c.openMem())
		fd := c.memfd(1<<20, unix.F_SEAL_SHRINK)
		var m AddMemReply
		c.do(OpAddMem, &AddMemRequest{}, &m, fd)
		for range 10 {
			c.do(OpRegMR, &RegMRRequest{PD: q.pd, Mode: ModeShared, Mem: m.Mem, Length: 1 << 20}, nil)
			c.do(OpRegMR, &RegMRRequest{PD: q.pd, Mode: ModeApp, Addr: 1 << 20, Length: 1 << 20}, nil)
			c.newQP()
		}
		var ch CMCreateChanReply
		c.do(OpCMCreateChan, &EmptyReply{}, &ch)
		c.do(OpCMCreateID, &CMCreateIDRequest{Chan: ch.Chan, PS: PSTCP}, nil)
		fmt.Println("ready")
		for i := uint64(0); ; i++ {
			q.roundTrip(f, i)
		}
	default:
		f.Fatal("unknown helper ", what)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin) // until killed
}

// startHelper runs a client in a process of its own and returns when it says that it is ready.
func startHelper(t testing.TB, what string, change ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "VRNIC_SHM_HELPER="+what)
	cmd.Stderr = os.Stderr
	for _, f := range change {
		f(cmd)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("helper said %q, %v", line, err)
	}
	return cmd
}

// A client killed at any point: the handler is told once, and descriptors, goroutines and mappings
// are what they were before it came, while the server runs on.
func TestKilledClient(t *testing.T) {
	for _, what := range []string{"connected", "hello", "busy"} {
		t.Run(what, func(t *testing.T) {
			ts := newServer(t)
			other := ts.client()
			oq := other.newQP()
			before := takeUsage()
			cmd := startHelper(t, what+" "+ts.path)
			var row ClientRow
			ts.want("the client is there", func() bool {
				rows := ts.srv.Clients()
				if len(rows) == 2 {
					row = rows[1]
				}
				return len(rows) == 2
			})
			if row.PID != int32(cmd.Process.Pid) || row.UID != uint32(os.Getuid()) {
				t.Errorf("client %+v, want pid %d", row, cmd.Process.Pid)
			}
			if what == "busy" && (row.QPs != 11 || row.MRs != 20 || row.Mems != 1 || row.IDs != 1) {
				t.Errorf("client %+v", row)
			}
			cmd.Process.Signal(syscall.SIGKILL)
			cmd.Wait()
			ts.want("the client is gone", func() bool { return len(ts.srv.Clients()) == 1 })
			if what != "connected" && !slices.Equal(ts.f.causes(), []error{nil}) {
				t.Errorf("causes %v", ts.f.causes())
			}
			// The helper's own pipes are ours until the test ends.
			if diff := before.settle(); diff != "" && !strings.HasPrefix(diff, "1 x pipe") && !strings.HasPrefix(diff, "2 x pipe") {
				t.Errorf("left behind: %s", diff)
			}
			oq.roundTrip(t, 5)
		})
	}
}

// What a killed client leaves in its address space cannot be reached any more.
func TestAppMemoryOfTheDead(t *testing.T) {
	ts := newServer(t)
	cmd := startHelper(t, "busy "+ts.path)
	var m *Memory
	ts.want("a region of mode 0", func() bool {
		ts.f.mu.Lock()
		defer ts.f.mu.Unlock()
		for h := range ts.f.sessions {
			for _, x := range h.mrs {
				if !x.Shared() {
					m = x
					x.app.acquire() // the descriptor outlives the session for this test
					return true
				}
			}
		}
		return false
	})
	cmd.Process.Kill()
	cmd.Wait()
	ts.want("the client is gone", func() bool { return len(ts.srv.Clients()) == 0 })
	if n, err := preadRetry(m.app.fd, make([]byte, 1), 1<<20); n != 0 {
		t.Errorf("read %d, %v", n, err)
	}
	m.app.release()
	if err := m.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read: %v", err)
	}
}
