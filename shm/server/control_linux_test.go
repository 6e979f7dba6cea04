package server

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/rpc"
)

// Only who looks after the daemon may change it, with flags that there are; a descriptor that is
// not wanted is closed.
func TestControl(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	memfd, err := unix.MemfdCreate("no TAP", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	ask := func(value string, flags uint32, fds ...int) error {
		req := &rpc.ControlRequest{Verb: rpc.ControlAdd, Flags: flags}
		copy(req.Value[:], value)
		_, err := c.try(rpc.OpControl, req, &rpc.Empty{}, fds...)
		return err
	}
	if err := ask("good", rpc.ControlForce); err != nil {
		t.Error(err)
	}
	if err := ask("a flag that is not known", rpc.ControlKnown+1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a flag that is not known: %v", err)
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	if err := ask("with a descriptor", 0, memfd); err != nil {
		t.Error(err)
	}
	ts.want("the descriptor is closed", func() bool { return open() == before })
	// As a client of a later version may.
	if _, err := c.try(999, &rpc.Empty{}, &rpc.Empty{}, memfd); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("a descriptor with a call that is not known: %v; want EOPNOTSUPP", err)
	}
	ts.want("the descriptor is closed", func() bool { return open() == before })
	ts.strangers.Store(true)
	if err := ask("somebody else's", 0, memfd); !errors.Is(err, syscall.EPERM) {
		t.Errorf("of somebody else: %v; want EPERM", err)
	}
	ts.want("the descriptor is closed", func() bool { return open() == before })
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	if want := []string{"good", "with a descriptor"}; !slices.Equal(ts.f.changes, want) {
		t.Errorf("changes %q, want %q", ts.f.changes, want)
	}
}
