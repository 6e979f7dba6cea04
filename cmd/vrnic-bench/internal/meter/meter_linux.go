package meter

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// A Cost is what a run has cost, of all processes together but for the allocations, which are this
// one's as far as a Meter counts.
type Cost struct {
	CPU      time.Duration
	Allocs   uint64
	Syscalls uint64 // if they were counted
	Counted  bool
}

// A Meter measures from New on.
type Meter struct {
	pids     []int
	cpu      time.Duration
	allocs   uint64
	syscalls *Syscalls
	calls    uint64
}

// New begins a measurement of this process and of pids. syscalls, if not nil, counts theirs.
func New(pids []int, syscalls *Syscalls) (m *Meter, err error) {
	m = &Meter{pids: append([]int{os.Getpid()}, pids...), syscalls: syscalls, allocs: Allocs()}
	if syscalls != nil {
		if m.calls, err = syscalls.read(); err != nil {
			return nil, err
		}
	}
	m.cpu, err = m.time()
	return m, err
}

// Read says what it has cost so far.
func (m *Meter) Read() (c Cost, err error) {
	cpu, err := m.time()
	if err != nil {
		return c, err
	}
	c.CPU, c.Allocs = cpu-m.cpu, Allocs()-m.allocs
	if m.syscalls != nil {
		n, err := m.syscalls.read()
		if err != nil {
			return c, err
		}
		c.Syscalls, c.Counted = n-m.calls, true
	}
	return c, nil
}

func (m *Meter) time() (sum time.Duration, err error) {
	for _, pid := range m.pids {
		d, err := CPUTime(pid)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// CPUTime is the processor time that all threads of a process have used, also those that have
// ended: what getrusage(2) tells a process of itself, to the nanosecond.
func CPUTime(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3): the clock of a process is its number, inverted, above three bits, of
	// which 2 stands for the time that the scheduler has counted.
	const cpuclockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &ts); err != nil {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// RSS is the memory that the processes have at present, in octets.
func RSS(pids []int) (sum uint64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)) // proc(5): size, resident, ... in pages
		if err != nil {
			return 0, err
		}
		var size, resident uint64
		if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
			return 0, fmt.Errorf("/proc/%d/statm: %w", pid, err)
		}
		sum += resident * uint64(os.Getpagesize())
	}
	return sum, nil
}

// Allocs is how many objects this process has allocated on the Go heap. It stops the world for a
// moment; what runtime/metrics tells misses those that a P has counted for itself so far.
func Allocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// KeepPools has this process collect no garbage until restore is called: a collection empties what
// is in pools.
func KeepPools() (restore func()) {
	before := debug.SetGCPercent(-1)
	return func() { debug.SetGCPercent(before) }
}
