package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm"
)

// barePackages are programs of RDMA and what they load, but for the libraries that are ours.
var barePackages = []string{"libc6", "libgcc-s1", "rdmacm-utils", "ibverbs-utils", "perftest",
	"libibumad3", "libpci3", "libnl-3-200", "libnl-route-3-200", "libudev1", "zlib1g", "libcap2",
	"libibverbs1", "librdmacm1"}

// bareScript gives a folder what a container has beside its image, and goes there for good as
// nobody: root, and a command.
const bareScript = `mount --make-rprivate / || exit
for d in proc dev sys; do mount --rbind /$d "$1/$d" || exit; done
root=$1; shift; exec chroot --userspec=65534:65534 "$root" "$@"`

// A newcomer on a bare image has one file of ours: no compiler, make, shell or root.
func TestBareImage(t *testing.T) {
	if !thorough() {
		needtest.Lacking(t, "time", "make verbs-programs fetches packages of Debian")
	}
	needtest.Root(t)
	need(t, "apt-get", "dpkg-deb", "unshare", "chroot")
	root := unpackedRoot(t, "bookworm", barePackages)
	for _, dir := range []string{"proc", "dev", "sys", "tmp", "usr/local/bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", program, filepath.Join(root, "usr/local/bin/vrnic")).
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(argv ...string) *process {
		return start(t, nil, 0, []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp",
			"TMPDIR=/tmp", "XDG_RUNTIME_DIR=", "VRNIC_SOCKET=/tmp/vrnic.sock"},
			slices.Concat([]string{"unshare", "-m", "sh", "-c", bareScript, "sh", root}, argv)...)
	}
	d := &daemon{process: run("vrnic", "up", "--device", "vrnic0,addr=10.77.0.2/24", "--device",
		"rocep0,addr=10.77.0.3/24,transport=roce")}
	d.WaitOutput("ready socket=/tmp/vrnic.sock", 1)
	var err error
	if d.client, err = shm.Dial(filepath.Join(root, "tmp/vrnic.sock")); err != nil {
		t.Fatal(err)
	}
	defer d.client.Close()
	program := func(line string) *process {
		return run(append([]string{"vrnic", "exec", "--"}, strings.Fields(line)...)...)
	}
	program("ibv_devices").succeed(patience, "vrnic0", "rocep0", "!vrnic: ")
	for _, addr := range []string{"10.77.0.2", "10.77.0.3"} {
		server := program("rping -s -C 5 -v -a " + addr)
		d.listens(server, 0, 1)
		client := program("rping -c -C 5 -v -V -a " + addr)
		client.succeed(patience, "ping data: rdma-ping-4", "!mismatch|vrnic: ")
		server.succeed(patience, "server ping data: rdma-ping-4", "!vrnic: ")
	}
	// What ends threads wants this library, which a folder of packages may lack.
	gcc, err := filepath.Glob(filepath.Join(root, "lib/*/libgcc_s.so.1"))
	if err != nil || len(gcc) != 1 {
		t.Fatalf("%q, %v", gcc, err)
	}
	if err := os.Remove(gcc[0]); err != nil {
		t.Fatal(err)
	}
	program("ibv_devices").succeed(patience, "^vrnic: libgcc_s.so.1 .* install libgcc-s1", "vrnic0")
	d.Kill()
}
