package verbs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// Programs whose C library is musl, as Alpine's are, run on libraries that are built for it:
// `vrnic exec` takes these for them by itself. Those cases are left out that start programs of
// this machine's, which have another C library.
func TestMusl(t *testing.T) {
	if !thorough() {
		needtest.Lacking(t, "time", "make verbs-programs builds for musl")
	}
	need(t, "musl-gcc", "/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h")
	lib, headers := filepath.Join(workDir, "musl"), proctest.MuslHeaders(t)
	build := func(argv ...string) {
		t.Helper()
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	build("make", "-s", "-C", filepath.Join(topDir, "verbs"), "BUILD="+lib, "CC=musl-gcc")
	chosen := []string{"VRNIC_LIB_DIR=" + lib}
	top := twoDevices(t)
	for _, c := range []struct{ program, cases string }{
		{"transfer", "sends writes_and_reads gather inlined immediate atomics shared_receives chains"},
		{"cm", "events_in_order private_data refused synchronous abandoned"},
		{"objects", "capacities busy lists"},
		{"events", "nonblocking solicited no_lost_event cancelled channel_goes"},
		{"memory", "kinds many shared threads"},
		{"threads", "share objects connections"},
		{"extended", "cq_fields wr_calls windows parent_domains advice"},
	} {
		path := filepath.Join(workDir, "musl-"+c.program)
		build("musl-gcc", "-std=gnu11", "-O1", "-g", "-I"+headers, "-o", path,
			"testdata/"+c.program+".c", "testdata/vt.c", "-L"+lib, "-l:librdmacm.so.1",
			"-l:libibverbs.so.1")
		for _, name := range strings.Fields(c.cases) {
			t.Run(c.program+"/"+name, func(t *testing.T) {
				env := append([]string{"VT_SERVER=" + addrsA[0], "VT_CLIENT=" + addrsB[0]}, chosen...)
				top.server.in(t).startEnv(env, path, name).succeed(cLimit, "^ok "+name+"$", "^all done$")
				top.server.in(t).settle()
			})
		}
		chosen = []string{"VRNIC_LIB_DIR="} // from here on its own choice
	}
	path := filepath.Join(workDir, "musl-loaded")
	build("musl-gcc", "-o", path, "testdata/loaded.c")
	t.Run("loaded", func(t *testing.T) {
		top.server.in(t).startEnv(chosen, path).succeed(cLimit, "^[1-9] devices$")
	})
}
