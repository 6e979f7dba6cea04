package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// program is the vrnic under test, built once for all tests, and daemonProgram the one that runs
// daemons: with the race detector if the tests have it. Clients come by the hundred, and take ten
// times as long to start with it.
var program, daemonProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vrnic-integration-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "vrnic")
		daemonProgram = program
		builds := [][]string{{"-o", program}}
		if raceDetector {
			daemonProgram = filepath.Join(dir, "vrnic-race")
			builds = append(builds, []string{"-race", "-o", daemonProgram})
		}
		for _, args := range builds {
			cmd := exec.Command("go", slices.Concat([]string{"build"}, args,
				[]string{"github.com/vrnic/vrnic/cmd/vrnic"})...)
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s", cmd, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// newLab returns two namespaces with joined bridges, or skips the test.
func newLab(t *testing.T) *netlab.Lab {
	t.Helper()
	proctest.NewNS(t) // tells whether it can be done
	lab, err := netlab.NewLab()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	return lab
}
