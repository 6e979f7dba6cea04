package proctest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// MuslHeaders makes a folder with the headers of verbs and of the kernel, and none of glibc's, for
// musl-gcc.
func MuslHeaders(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	asm, err := filepath.Glob("/usr/include/*/asm")
	if err != nil || len(asm) == 0 {
		needtest.Lacking(t, "verbs", "the kernel's headers are missing: apt-get install linux-libc-dev")
	}
	for _, from := range []string{"/usr/include/infiniband", "/usr/include/rdma",
		"/usr/include/linux", "/usr/include/asm-generic", asm[0]} {
		if err := os.Symlink(from, filepath.Join(dir, filepath.Base(from))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
