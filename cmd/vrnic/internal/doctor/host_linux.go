package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// roceUDP is the UDP port of RoCEv2.
const roceUDP = 4791

// ThisHost asks this one. What it makes to see whether it can is gone when it returns.
func ThisHost() *Host {
	h := &Host{Arch: runtime.GOARCH, Root: os.Geteuid() == 0, Read: read, Open: open,
		Sealing: sealing(), UserNS: userNS(), RoCEPort: roceFree()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		h.Descriptors = [2]uint64{l.Cur, l.Max}
	}
	if unix.Getrlimit(unix.RLIMIT_CORE, &l) == nil {
		h.Cores = l.Cur
	}
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	if v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version); errno == 0 {
		h.Landlock = int(v)
	}
	h.NetAdmin = capable(unix.CAP_NET_ADMIN)
	_, err := exec.LookPath("make")
	for _, cc := range []string{"cc", "gcc", "clang"} {
		if _, ccErr := exec.LookPath(cc); ccErr == nil && err == nil {
			h.Compiler = true
		}
	}
	return h
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

func open(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

// capable says whether this process has a capability in effect.
func capable(number int) bool {
	status, err := read("/proc/self/status")
	_, rest, found := strings.Cut(status, "\nCapEff:\t")
	hex, _, _ := strings.Cut(rest, "\n")
	caps, perr := strconv.ParseUint(hex, 16, 64)
	return err == nil && found && perr == nil && caps&(1<<number) != 0
}

func sealing() error {
	fd, err := unix.MemfdCreate("vrnic-doctor", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	return errors.Join(os.NewSyscallError("seal", err), unix.Close(fd))
}

// userNS makes a process in a user namespace of its own, which is to find nothing to execute there.
func userNS() error {
	const nothing = "/proc/self/none"
	_, err := syscall.ForkExec(nothing, []string{nothing},
		&syscall.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}})
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return fmt.Errorf("user namespace: %w", err)
}

// roceFree takes the port of RoCEv2 on the loopback for a moment.
func roceFree() error {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: roceUDP})
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return syscall.EADDRINUSE
	}
	return err
}
