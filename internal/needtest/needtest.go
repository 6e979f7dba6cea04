// Package needtest has the rule by which tests skip for want of something that the machine does not
// have.
//
// $VRNIC_TEST_REQUIRE lists what must be there ("root tshark"): for want of that a test fails.
// Tests ask for
//
//	root       network namespaces, TAPs, other users
//	verbs      a C compiler, make, and Debian's programs and headers of RDMA
//	rdma-core  Debian's libibverbs
//	usrsctp    its library and header
//	tshark     of Wireshark
//	qemu       and what else boots a guest
//	ipv6       ::1
//	fuse       file systems of a process
//	userns     user namespaces
//	pidfd      and process_vm_readv(2)
//	perf       perf_event_open(2) for system calls
//	terminals  /dev/ptmx
//	glibc      its loader, in /lib*
//	cpio       to compare with
//	python     3.9 or later
//	inet       ping, iperf3, ssh and sshd
//	docker     its daemon, containerd and runc
//	older      a vrnic of an older commit, $VRNIC_TEST_OLD
//	podman     and crun; newuidmap, for containers of other users than root
//	promtool   of Prometheus
//
// `go test` prints nothing of tests that pass, nor why some were skipped: each skip is a line of
// the file $VRNIC_TEST_SKIPS, if that is set, which `make race` prints at its end.
package needtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Lacking skips a test for want of what, or fails it where what must be there.
func Lacking(t testing.TB, what string, why any) {
	t.Helper()
	if slices.Contains(strings.Fields(os.Getenv("VRNIC_TEST_REQUIRE")), what) {
		t.Fatalf("VRNIC_TEST_REQUIRE asks for %s: %v", what, why)
	}
	Skip(t, fmt.Sprintf("needs %s: %v", what, why))
}

// Skip skips a test for another reason than want of something.
func Skip(t testing.TB, why string) {
	t.Helper()
	if name := os.Getenv("VRNIC_TEST_SKIPS"); name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = fmt.Fprintf(f, "%s %s: %s\n", strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"),
				t.Name(), why)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Logf("VRNIC_TEST_SKIPS: %v", err)
		}
	}
	t.Skip(why)
}

// Root skips a test that only root can run.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, "root", "this is another user")
	}
}

// Missing returns the first of some programs, and files with absolute names, that is not there, or
// nil.
func Missing(names ...string) (err error) {
	for _, n := range names {
		if filepath.IsAbs(n) {
			_, err = os.Stat(n)
		} else {
			_, err = exec.LookPath(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
