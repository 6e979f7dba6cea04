package meter

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

var sink []*int

// use uses the processor until this process has used d more.
func use(t *testing.T, d time.Duration) {
	t.Helper()
	begin, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := CPUTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now < begin {
			t.Fatal("the clock goes backwards")
		}
		if now-begin >= d {
			return
		}
	}
}

// The clock is what getrusage(2) tells of this process.
func TestCPUTimeIsRusages(t *testing.T) {
	rusage := func() time.Duration {
		var ru unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	before := rusage()
	got, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// The kernel counts a tick of a running thread in the one before it does in the other.
	const tick = 10 * time.Millisecond
	if after := rusage(); got < before-tick || got > after+tick {
		t.Errorf("%v, getrusage says %v before and %v after", got, before, after)
	}
}

// startChild starts a process that waits, and lets it end with the test.
func startChild(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	return c
}

// The meter has all processes, and what they cost since it was made only.
func TestMeter(t *testing.T) {
	child := startChild(t)
	m, err := New([]int{child.Process.Pid}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const d = 5 * time.Millisecond
	use(t, d)
	for range 100 {
		sink = append(sink, new(int))
	}
	c, err := m.Read()
	if err != nil || c.CPU < d || c.Allocs < 100 || c.Counted {
		t.Errorf("%+v, %v", c, err)
	}
	again, err := m.Read()
	if err != nil || again.CPU < c.CPU || again.Allocs < c.Allocs {
		t.Errorf("%+v after %+v, %v", again, c, err)
	}
	late, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := late.Read(); err != nil || c.CPU > again.CPU && c.Allocs > again.Allocs {
		t.Errorf("a new one begins with %+v, %v", c, err)
	}
}

func TestProcessThatIsNotThere(t *testing.T) {
	child := startChild(t)
	m, err := New([]int{child.Process.Pid}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait()
	if _, err := m.Read(); err == nil {
		t.Error("a process that has ended has a clock")
	}
	if _, err := New([]int{child.Process.Pid}, nil); err == nil {
		t.Error("it can be measured, too")
	}
}

// Each call of this thread counts.
func TestSyscalls(t *testing.T) {
	s, err := CountSyscalls([]int{os.Getpid()})
	if err != nil {
		needtest.Lacking(t, "perf", err)
	}
	defer s.Close()
	m, err := New(nil, s)
	if err != nil {
		t.Fatal(err)
	}
	const calls = 1000
	for range calls {
		unix.Getppid()
	}
	c, err := m.Read()
	if err != nil || !c.Counted || c.Syscalls < calls {
		t.Errorf("%+v, %v: want %d calls", c, err, calls)
	}
	if _, err := CountSyscalls([]int{1 << 22}); err == nil {
		t.Error("a process that is not there is counted")
	}
}
