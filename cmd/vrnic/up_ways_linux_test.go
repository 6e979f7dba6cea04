package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// lookFor makes an address handle of a RoCE device, for an address of its subnet.
func lookFor(t *testing.T, socket string, to netip.Addr) error {
	t.Helper()
	dev := daemontest.Open(t, daemontest.Dial(t, socket), "")
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pd.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(to), GIDIndex: 1, Port: 1, Global: true})
	return err
}

// TestHelperLooker is a client that looks for a peer until that has not answered for long enough.
func TestHelperLooker(t *testing.T) {
	args := daemontest.Child(t)
	t.Error(lookFor(t, args[0], netip.MustParseAddr(args[1])))
}

// wantARP waits until somebody behind a Unix port asks who has an address.
func wantARP(t *testing.T, port net.Conn, target netip.Addr) {
	t.Helper()
	_ = port.SetDeadline(time.Now().Add(time.Minute)) // a connection that is new
	for {
		var n [4]byte
		_, err := io.ReadFull(port, n[:])
		b := make([]byte, binary.BigEndian.Uint32(n[:]))
		if err == nil {
			_, err = io.ReadFull(port, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		const arp = 0x0806
		if len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == arp && [4]byte(b[38:]) == target.As4() {
			return
		}
	}
}

// A client that is killed while the daemon looks for a peer that does not answer it is gone
// before the search would end, and so is a daemon that gets SIGTERM then. On a machine that is busy
// it may be one time out of some.
func TestUpEndsSearches(t *testing.T) {
	lost := netip.MustParseAddr("10.77.0.77")
	up := func(t *testing.T) (p *upProcess, socket string, port net.Conn) {
		dir := socketDir(t)
		socket = filepath.Join(dir, "s")
		p = startUp(t, nil, "up", "--socket", socket, "--port", "unix-listen:"+filepath.Join(dir, "l"),
			"--device", "rocep0,addr=10.77.0.2/24,transport=roce")
		p.ready()
		port, err := net.Dial("unix", filepath.Join(dir, "l"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { port.Close() })
		return p, socket, port
	}
	p, socket, port := up(t)
	start := time.Now()
	if err := lookFor(t, socket, lost.Prev()); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Fatalf("nobody answers: %v", err)
	}
	whole := time.Since(start)
	prompt := func(t *testing.T, end func(t *testing.T) time.Duration) {
		t.Helper()
		var took time.Duration
		for range 5 {
			if took = end(t); took < whole/2 {
				return
			}
		}
		t.Errorf("it took %v, where the search takes %v", took, whole)
	}
	t.Run("client killed", func(t *testing.T) {
		watch := daemontest.Dial(t, socket)
		prompt(t, func(t *testing.T) time.Duration {
			lost = lost.Next() // nobody has looked for it yet
			c := daemontest.StartChild(t, "TestHelperLooker", socket, lost.String())
			wantARP(t, port, lost)
			start := time.Now()
			c.Kill()
			needtest.Eventually(t, "the client has gone", func() bool {
				return !hasClient(t, watch, c.PID())
			})
			return time.Since(start)
		})
	})
	t.Run("SIGTERM", func(t *testing.T) {
		prompt(t, func(t *testing.T) time.Duration {
			p, socket, port := up(t)
			daemontest.StartChild(t, "TestHelperLooker", socket, lost.String())
			wantARP(t, port, lost)
			start := time.Now()
			p.stop()
			return time.Since(start)
		})
	})
	p.stop()
}

// hasClient reports whether a process is a client of a daemon.
func hasClient(t *testing.T, c *shm.Client, pid int) bool {
	t.Helper()
	rows, err := c.List("client")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		var row struct{ PID int }
		if err := json.Unmarshal(r, &row); err != nil {
			t.Fatal(err)
		}
		if row.PID == pid {
			return true
		}
	}
	return false
}
