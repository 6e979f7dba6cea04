package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// helperProcess is what the test binary does when it runs as another process.
func helperProcess(what string) {
	f := proctest.Exit{}
	name, path, _ := strings.Cut(what, " ")
	c := rawConnect(f, path)
	switch name {
	case "connected":
	case "hello":
		c.hello()
	case "busy":
		c.hello()
		q := c.newQP()
		c.do(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: c.nonceAddr()}, nil, c.openMem())
		fd := c.memfd(1<<20, unix.F_SEAL_SHRINK)
		var m rpc.AddMemReply
		c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &m, fd)
		for range 10 {
			c.do(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeShared, Mem: m.Mem, Length: 1 << 20},
				nil)
			c.do(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeApp, Addr: 1 << 20, Length: 1 << 20},
				nil)
			c.newQP()
		}
		var ch rpc.CMCreateChanReply
		c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
		c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP}, nil)
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

// A client killed at any point: the handler is told once, and descriptors, goroutines and mappings
// are what they were before it came, while the server runs on.
func TestKilledClient(t *testing.T) {
	for _, what := range []string{"connected", "hello", "busy"} {
		t.Run(what, func(t *testing.T) {
			ts := newServer(t)
			other := ts.client()
			oq := other.newQP()
			before := proctest.TakeUsage()
			cmd := proctest.StartHelper(t, what+" "+ts.path)
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
			if diff := before.Settle(); diff != "" && !strings.HasPrefix(diff, "1 x pipe") &&
				!strings.HasPrefix(diff, "2 x pipe") {
				t.Errorf("left behind: %s", diff)
			}
			oq.roundTrip(t, 5)
		})
	}
}

// What a killed client leaves in its address space cannot be reached any more.
func TestAppMemoryOfTheDead(t *testing.T) {
	ts := newServer(t)
	cmd := proctest.StartHelper(t, "busy "+ts.path)
	var m, held *osmem.Memory
	ts.want("a region of mode 0", func() bool {
		ts.f.mu.Lock()
		defer ts.f.mu.Unlock()
		for h := range ts.f.sessions {
			for _, x := range h.mrs {
				if !x.Shared() {
					m, held = x, osmem.AppMemory(h.s.app, 1<<20, 1) // its descriptor outlives the session
					return true
				}
			}
		}
		return false
	})
	cmd.Process.Kill()
	cmd.Wait()
	ts.want("the client is gone", func() bool { return len(ts.srv.Clients()) == 0 })
	if err := held.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read by the descriptor: %v", err)
	}
	held.Close()
	if err := m.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read: %v", err)
	}
}
