//go:build amd64 || arm64

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// always are the system calls of any daemon, whatever their arguments: those of Go's runtime, of a
// C library that it may be linked with, and of the data path. The kernel decides on these without
// the filter (since 5.11). Those that differ between architectures are in archCalls.
var always = []uintptr{
	// Memory.
	unix.SYS_BRK, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE,
	unix.SYS_MEMFD_CREATE, unix.SYS_FTRUNCATE,
	// Threads, signals to itself, time.
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_GETTID, unix.SYS_GETPID,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_GETATTR,
	unix.SYS_SCHED_SETATTR, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_RT_SIGACTION,
	unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES,
	unix.SYS_GETTIMEOFDAY, unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME,
	unix.SYS_TIMER_DELETE, unix.SYS_GETRANDOM, unix.SYS_GETCPU, unix.SYS_MEMBARRIER,
	// Who it is.
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_UNAME,
	unix.SYS_GETRUSAGE,
	// How much memory the machine has, for a stack that is made later.
	unix.SYS_SYSINFO,
	// Descriptors that it has.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64,
	unix.SYS_PWRITE64, unix.SYS_PREADV2, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FSTATFS,
	unix.SYS_LSEEK, unix.SYS_PIPE2, unix.SYS_EVENTFD2, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT, unix.SYS_PPOLL,
	// Sockets that it has, and those that come to it.
	unix.SYS_ACCEPT4, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT,
	unix.SYS_SETSOCKOPT, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG,
	unix.SYS_SHUTDOWN,
	// To remove its sockets.
	unix.SYS_UNLINKAT,
}

// absent are system calls for which Go and C libraries have another way if the kernel has them not.
// It is said not to have them, since the filter cannot look into what some of them point to.
var absent = []uintptr{
	unix.SYS_CLONE3, unix.SYS_OPENAT2, unix.SYS_FACCESSAT2, unix.SYS_EPOLL_PWAIT2, unix.SYS_STATX,
	unix.SYS_FUTEX_WAITV, unix.SYS_CLOSE_RANGE, unix.SYS_COPY_FILE_RANGE,
}

// hot are the system calls of the data path, the most frequent first: for kernels that ask the
// filter each time.
var hot = []uintptr{
	unix.SYS_FUTEX, unix.SYS_WRITEV, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_READ,
	unix.SYS_EPOLL_PWAIT, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_SENDTO,
}

// allowed are the rules for a daemon that does what c says. processes: it may copy to and from
// memory of processes that it names by their number.
func allowed(c Config, processes bool) seccomp.SyscallRules {
	rules := seccomp.NewSyscallRules()
	for _, nr := range slices.Concat(always, archCalls) {
		rules.Set(nr, seccomp.MatchAll{})
	}
	anyOf := func(nr uintptr, arg int, values ...uintptr) {
		var or seccomp.Or
		for _, v := range values {
			var args seccomp.PerArg
			for i := range args {
				args[i] = seccomp.AnyValue{}
			}
			args[arg] = seccomp.EqualTo(v)
			or = append(or, args)
		}
		rules.Set(nr, or)
	}
	any, self := seccomp.AnyValue{}, seccomp.EqualTo(os.Getpid())
	rules.Set(unix.SYS_TGKILL, seccomp.PerArg{self})
	rules.Set(unix.SYS_KILL, seccomp.PerArg{self})
	rules.Set(unix.SYS_PRLIMIT64, seccomp.PerArg{seccomp.EqualTo(0), any, seccomp.EqualTo(0)}) // get
	// Threads, no processes and no namespaces.
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
		unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	const thread = unix.CLONE_VM | unix.CLONE_SIGHAND | unix.CLONE_THREAD
	rules.Set(unix.SYS_CLONE, seccomp.PerArg{seccomp.MaskedEqual(thread|namespaces, thread)})
	// No code but its own.
	for _, nr := range []uintptr{unix.SYS_MMAP, unix.SYS_MPROTECT} {
		rules.Set(nr, seccomp.PerArg{any, any, seccomp.MaskedEqual(unix.PROT_EXEC, 0)})
	}
	anyOf(unix.SYS_PRCTL, 0, unix.PR_SET_VMA, unix.PR_SET_NAME, unix.PR_SET_TIMERSLACK)
	anyOf(unix.SYS_FCNTL, 1, unix.F_GETFL, unix.F_SETFL, unix.F_GETFD, unix.F_SETFD,
		unix.F_DUPFD_CLOEXEC, unix.F_ADD_SEALS, unix.F_GET_SEALS)
	anyOf(unix.SYS_SOCKETPAIR, 0, unix.AF_UNIX) // of which a program gets one end
	if processes {
		for _, nr := range []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
			unix.SYS_PIDFD_OPEN, unix.SYS_READLINKAT} {
			rules.Set(nr, seccomp.MatchAll{})
		}
	}
	var sockets seccomp.Or
	if c.Connects {
		sockets = append(sockets, seccomp.PerArg{seccomp.EqualTo(unix.AF_UNIX)})
	}
	if c.Internet { // TCP and UDP, and no other protocols of the kernel's
		for _, domain := range []uintptr{unix.AF_INET, unix.AF_INET6} {
			for _, p := range [][2]uintptr{{unix.SOCK_STREAM, 0}, {unix.SOCK_STREAM, unix.IPPROTO_TCP},
				{unix.SOCK_DGRAM, 0}, {unix.SOCK_DGRAM, unix.IPPROTO_UDP}} {
				const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
				sockets = append(sockets, seccomp.PerArg{seccomp.EqualTo(domain),
					seccomp.MaskedEqual(^uintptr(flags), p[0]), seccomp.EqualTo(p[1])})
			}
		}
		rules.Set(unix.SYS_RECVMMSG, seccomp.MatchAll{})
		rules.Set(unix.SYS_BIND, seccomp.MatchAll{})
		rules.Set(unix.SYS_LISTEN, seccomp.MatchAll{})
	}
	if len(sockets) > 0 {
		rules.Set(unix.SYS_SOCKET, sockets)
		rules.Set(unix.SYS_CONNECT, seccomp.MatchAll{})
	}
	if c.TAPs { // those that it has, when their devices are made anew
		anyOf(unix.SYS_IOCTL, 1, unix.TUNSETIFF, unix.TUNSETPERSIST, unix.TUNSETVNETHDRSZ,
			unix.TUNSETOFFLOAD)
	}
	if c.Reads || c.File != "" {
		const making = unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
		rules.Set(unix.SYS_OPENAT, seccomp.PerArg{any, any,
			seccomp.MaskedEqual(making|unix.O_ACCMODE, unix.O_RDONLY)})
	}
	return rules
}

// program is the filter for a daemon that does what c says.
func program(c Config, processes bool) ([]bpf.Instruction, error) {
	missing := seccomp.NewSyscallRules()
	for _, nr := range absent {
		missing.Set(nr, seccomp.MatchAll{})
	}
	refuse := seccomp.ReturnError.Code(uint16(unix.EPERM))
	if c.Trap {
		refuse = seccomp.Trap
	}
	// A daemon asks for a process that it may name, and does without.
	asked := seccomp.NewSyscallRules()
	if !processes {
		asked.Set(unix.SYS_PIDFD_OPEN, seccomp.MatchAll{})
	}
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{
			{Rules: allowed(c, processes), Action: seccomp.Allow},
			{Rules: missing, Action: seccomp.ReturnError.Code(uint16(unix.ENOSYS))},
			{Rules: asked, Action: seccomp.ReturnError.Code(uint16(unix.EPERM))},
		},
		Options: seccomp.ProgramOptions{DefaultAction: refuse, BadArchAction: refuse,
			HotSyscalls: hot},
	}
	code, _, err := p.Build()
	return code, err
}

// restrictCalls installs the filter on all threads, with no_new_privs. missing says why it could
// not be, where that is the machine's.
func restrictCalls(c Config, processes bool) (missing string, err error) {
	code, err := program(c, processes)
	if err != nil {
		return "", fmt.Errorf("seccomp: %w", err)
	}
	// no_new_privs is this thread's first; with the filter it becomes that of all.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", fmt.Errorf("no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(code)),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(code)))}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_LOG
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno == 0 && thread == 0:
		return "", nil
	case errno == 0:
		return "", fmt.Errorf("seccomp: thread %d has a filter of its own", thread)
	case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EINVAL), errors.Is(errno, unix.EPERM):
		return fmt.Sprintf("this kernel or container refuses a filter (%v)", errno), nil
	}
	return "", fmt.Errorf("seccomp: %w", errno)
}
