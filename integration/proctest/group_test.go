package proctest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The group of a process is killed while any of it is there, also without the process, and not when
// its number may be somebody else's.
func TestKillGroup(t *testing.T) {
	gone := Start(t, Config{}, "true")
	<-gone.Done
	if gone.left {
		t.Errorf("group %d is left", gone.PID())
	}
	// Somebody else has that number now.
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	gone.Cmd.Process.Pid = other.Process.Pid
	gone.KillGroup()

	parent := Start(t, Config{}, "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
	<-parent.Done
	if !parent.left {
		t.Errorf("nothing of group %d is left", parent.PID())
	}
	parent.KillGroup()
	stat := "/proc/" + strings.TrimSpace(parent.Output()) + "/stat"
	Eventually(t, time.Minute, "its child has ended", func() bool {
		b, err := os.ReadFile(stat)
		return err != nil || strings.Contains(string(b), ") Z ") // nobody may wait for it
	})
	select {
	case err := <-ended:
		t.Errorf("a stranger has ended: %v", err)
	default:
	}
	_ = other.Process.Kill()
	<-ended
}
