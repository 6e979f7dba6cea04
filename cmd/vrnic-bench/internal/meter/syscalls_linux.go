package meter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Syscalls counts system calls by perf_event_open(2): the kernel counts each entry of each thread.
type Syscalls struct{ fds []int }

// tracefs is where the number of the tracepoint is, at one place or the other.
var tracefs = []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}

// CountSyscalls counts those of the processes from now on, threads that they start later included.
func CountSyscalls(pids []int) (s *Syscalls, err error) {
	id, err := tracepoint("raw_syscalls/sys_enter")
	if err != nil {
		return nil, fmt.Errorf("system calls cannot be counted: %w", err)
	}
	var counting Syscalls
	defer func() {
		if err != nil {
			counting.Close()
			err = fmt.Errorf("system calls cannot be counted (it takes CAP_PERFMON, or root): %w", err)
		}
	}()
	for _, pid := range pids {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
		if err != nil || len(tasks) == 0 {
			return nil, errors.Join(fmt.Errorf("no threads of process %d", pid), err)
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return nil, err
			}
			attr := unix.PerfEventAttr{
				Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Bits: unix.PerfBitInherit,
				Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
			}
			fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if errors.Is(err, unix.ESRCH) {
				continue // it has ended meanwhile
			}
			if err != nil {
				return nil, os.NewSyscallError("perf_event_open", err)
			}
			counting.fds = append(counting.fds, fd)
		}
	}
	return &counting, nil
}

func tracepoint(name string) (id uint64, err error) {
	for _, dir := range tracefs {
		var b []byte
		if b, err = os.ReadFile(filepath.Join(dir, "events", name, "id")); err == nil {
			return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
		}
	}
	return 0, fmt.Errorf("%w (mount tracefs: mount -t tracefs tracefs %s)", err, tracefs[0])
}

func (s *Syscalls) read() (sum uint64, err error) {
	var b [8]byte
	for _, fd := range s.fds {
		if _, err := unix.Read(fd, b[:]); err != nil {
			return 0, os.NewSyscallError("read a counter", err)
		}
		sum += binary.NativeEndian.Uint64(b[:])
	}
	return sum, nil
}

// Close ends the counting.
func (s *Syscalls) Close() {
	for _, fd := range s.fds {
		unix.Close(fd)
	}
	s.fds = nil
}
