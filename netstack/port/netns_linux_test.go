package port_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A netNS is a fresh network namespace that lives as long as a test.
type netNS struct{ fd int }

// newNetNS makes a namespace, or skips the test where that is not allowed.
func newNetNS(tb testing.TB) *netNS {
	tb.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		needtest.Lacking(tb, "root", err)
	}
	n := &netNS{fd: -1}
	errc := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			errc <- err
			return
		}
		var err error
		n.fd, err = unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()),
			unix.O_RDONLY|unix.O_CLOEXEC, 0)
		errc <- err
	}()
	if err := <-errc; err != nil {
		needtest.Lacking(tb, "root", fmt.Sprintf("network namespaces: %v", err))
	}
	tb.Cleanup(func() { unix.Close(n.fd) })
	return n
}

// path names the namespace for this process.
func (n *netNS) path() string { return fmt.Sprintf("/proc/self/fd/%d", n.fd) }

// do runs f inside the namespace; sockets that it opens stay there.
func (n *netNS) do(tb testing.TB, f func() error) {
	tb.Helper()
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			errc <- err
			return
		}
		errc <- f()
	}()
	if err := <-errc; err != nil {
		tb.Fatal(err)
	}
}
