package osmem

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
)

// A Peer is who is at the other end of a session's socket, by the kernel's word when it connected.
type Peer struct {
	PID      int32
	UID, GID uint32
	// NetNS is the cookie of the network namespace that its socket was made in; 0: the kernel does not
	// say.
	NetNS uint64
}

// vmMin is the length from which on process_vm_readv(2) and process_vm_writev(2) are used. Below it
// the mem descriptor is as fast.
const vmMin = 4097

// A vmProc is a client's process, to copy from and to by its number. A number names whatever runs
// under it: after an execve(2) another program, after the process's end another process. So it is
// used only where a client cannot gain by that: if the daemon may do no more to processes than the
// client's user may, and the client lives in the same user namespace. The memory behind the number
// was the session's when it was lent, and the number is given up when the process ends.
type vmProc struct {
	pid   int
	off   atomic.Bool
	pidfd *os.File // readable when the process has ended
}

// openVM returns the process of a session's peer, if self, the daemon, may use it and it has the
// session's nonce at addr; else nil.
func openVM(peer Peer, self ProcessRights, addr uint64, nonce [abi.NonceLen]byte) *vmProc {
	if !mayUseVM(peer, self) {
		return nil
	}
	fd, err := unix.PidfdOpen(int(peer.PID), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	v := &vmProc{pid: int(peer.PID), pidfd: os.NewFile(uintptr(fd), "pidfd")}
	// In this order: what the descriptor stands for is what had the nonce, if it lives still.
	var got [abi.NonceLen]byte
	n, err := v.copy(got[:], addr, copyOut)
	if err != nil || n != abi.NonceLen || got != nonce || !sameUserNS(v.pid) || v.ended() {
		v.pidfd.Close()
		return nil
	}
	go v.watch()
	return v
}

// A ProcessRights is what decides what a process may do to others.
type ProcessRights struct {
	ruid, euid int
	ptrace     bool // has CAP_SYS_PTRACE
}

func ThisProcess() ProcessRights {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	ptrace := true // if it cannot be known
	if err := unix.Capget(&hdr, &caps[0]); err == nil {
		ptrace = caps[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
	}
	return ProcessRights{os.Getuid(), os.Geteuid(), ptrace}
}

// mayUseVM says whether the daemon, which is self, may name the process of peer by its number. With
// CAP_SYS_PTRACE a client could have it write into a setuid program, or into anybody's process.
func mayUseVM(peer Peer, self ProcessRights) bool {
	return !self.ptrace && self.ruid == self.euid && peer.UID == uint32(self.ruid) && peer.PID > 0
}

// sameUserNS reports whether a process is in the daemon's user namespace. Over those below its own,
// the user who made them has every capability.
func sameUserNS(pid int) bool {
	ours, err1 := os.Readlink("/proc/self/ns/user")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return err1 == nil && err2 == nil && ours == its
}

// watch ends the use of v when the process has ended. It returns then, or after close.
func (v *vmProc) watch() {
	if c, err := v.pidfd.SyscallConn(); err == nil {
		_ = c.Read(func(fd uintptr) bool { return exited(int(fd)) }) // closed: v.end was called
	}
	v.end()
}

// ended reports whether the process has ended.
func (v *vmProc) ended() (yes bool) {
	yes = true
	if c, err := v.pidfd.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { yes = exited(int(fd)) }) // closed: ended
	}
	return yes
}

func exited(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// usable says whether v is to be used; v may be nil.
func (v *vmProc) usable() bool { return v != nil && !v.off.Load() }

// end stops the use of v, for good.
func (v *vmProc) end() { v.off.Store(true) }

// close gives v back; v may be nil.
func (v *vmProc) close() {
	if v != nil {
		v.end()
		v.pidfd.Close() // nothing to lose
	}
}

// copy moves p, and says how much: less than all if a page is missing. The pieces of a call are
// copied one behind the other.
func (v *vmProc) copy(p []byte, addr uint64, dir copyDir) (n int, err error) {
	local := [1]unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	remote := [2]unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}
	pieces := remote[:1]
	if dir == copyLast {
		if k := len(p) - abi.LastWord(addr, len(p)); k > 0 {
			remote[0].Len = k
			remote[1] = unix.RemoteIovec{Base: uintptr(addr) + uintptr(k), Len: len(p) - k}
			pieces = remote[:]
		}
	}
	for {
		if dir == copyOut {
			n, err = unix.ProcessVMReadv(v.pid, local[:], pieces, 0)
		} else {
			n, err = unix.ProcessVMWritev(v.pid, local[:], pieces, 0)
		}
		if err != unix.EINTR {
			return n, err
		}
	}
}
