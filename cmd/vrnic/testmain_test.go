package main

import (
	"os"
	"os/exec"
	"testing"
)

// asProgram in the environment makes the test binary the vrnic program, so that tests have it as
// processes of its own, the race detector included; and so that what these start is the program
// too.
const asProgram = "VRNIC_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	// Keepers would be clients of daemons, and write into folders of tests.
	os.Setenv("VRNIC_SYS", sysOff)
	os.Exit(m.Run())
}

// vrnicCommand is a process of the program with args.
func vrnicCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", trapVariable+"=1")
	return cmd
}
