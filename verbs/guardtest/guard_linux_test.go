package guardtest

import (
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

func TestMain(m *testing.M) { ctest.Main(m) }

// Memory that gets another life while another thread's request takes its pages is its next owner's,
// who can use it: the pages are not the device's by then, or the handler knows of them.
func TestForget(t *testing.T) {
	ctest.Need(t)
	ctest.Native(t, "what a fault was is asked of the processor")
	program, err := ctest.CC("forget", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wextra",
		"-pthread", "-DVRNIC_HAS_SIGMASK", "-I"+ctest.VerbsDir, filepath.Join("testdata", "forget.c"),
		filepath.Join(ctest.VerbsDir, "guard", "pages.c"),
		filepath.Join(ctest.VerbsDir, "guard", "segv.c"))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if out, err := ctest.Command(program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
