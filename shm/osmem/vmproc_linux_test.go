package osmem

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/proctest"
)

// The helper's memory: pages at an address that the test knows, of which the last is not there.
const (
	helperAddr  = 0x6000_0000_0000
	helperPages = 64 << 10
)

// helperMemory is a process with the nonce in its memory.
func helperMemory(nonce string) {
	if _, _, errno := unix.Syscall6(unix.SYS_MMAP, helperAddr, helperPages-4096,
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0); errno != 0 {
		proctest.Exit{}.Fatal("mmap: ", errno)
	}
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR, 0)
	if err != nil {
		proctest.Exit{}.Fatal(err)
	}
	if _, err := pwriteRetry(fd, []byte(nonce), helperAddr); err != nil {
		proctest.Exit{}.Fatal(err)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin) // until killed
}

var vmNonce = [abi.NonceLen]byte([]byte("sixteen octets.."))

// unprivileged are a daemon's rights, of the user who runs the test, with which process_vm_* is
// allowed.
func unprivileged() ProcessRights { return ProcessRights{ruid: os.Getuid(), euid: os.Getuid()} }

func vmHelper(t *testing.T) (cmd *exec.Cmd, peer Peer) {
	cmd = proctest.StartHelper(t, string(vmNonce[:]))
	return cmd, Peer{PID: int32(cmd.Process.Pid), UID: uint32(os.Getuid())}
}

// The end of a message that programs poll is a word, if one is there.
func TestLastWord(t *testing.T) {
	for _, tt := range []struct {
		addr uint64
		n    int
		want int
	}{
		{0, 1, 1}, {0, 2, 2}, {0, 4, 4}, {0, 8, 8}, {4, 4, 4}, {6, 2, 2}, {7, 1, 1}, {0, 64, 8},
		{0, 100, 4}, {8, 9, 1}, {8, 10, 2},
		{0, 3, 1}, {0, 7, 1}, {1, 2, 1}, {3, 2, 1}, {2, 4, 2}, {4, 8, 4}, {1, 7, 4}, {5, 4096, 1},
		{6, 4096, 2}, {1, 65535, 8},
	} {
		if got := abi.LastWord(tt.addr, tt.n); got != tt.want {
			t.Errorf("%d octets at %d: %d, want %d", tt.n, tt.addr, got, tt.want)
		}
	}
}

// A process is named by its number only if that gives its user nothing that he does not have: the
// table of the ABI's threat model.
func TestMayUseVM(t *testing.T) {
	for _, tt := range []struct {
		name string
		peer Peer
		self ProcessRights
		want bool
	}{
		{"same user", Peer{PID: 7, UID: 1000}, ProcessRights{1000, 1000, false}, true},
		{"root without the capability", Peer{PID: 7}, ProcessRights{0, 0, false}, true},
		{"with the capability", Peer{PID: 7, UID: 1000}, ProcessRights{1000, 1000, true}, false},
		{"root", Peer{PID: 7}, ProcessRights{0, 0, true}, false},
		{"another user", Peer{PID: 7, UID: 1001}, ProcessRights{1000, 1000, false}, false},
		{"root's client", Peer{PID: 7, UID: 0}, ProcessRights{1000, 1000, false}, false},
		{"setuid daemon", Peer{PID: 7, UID: 1000}, ProcessRights{1000, 0, false}, false},
		{"of another pid namespace", Peer{PID: 0, UID: 1000}, ProcessRights{1000, 1000, false}, false},
	} {
		if got := mayUseVM(tt.peer, tt.self); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, caps, _ := bytes.Cut(status, []byte("CapEff:\t"))
	eff, err := strconv.ParseUint(string(caps[:16]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := ProcessRights{os.Getuid(), os.Geteuid(), eff>>unix.CAP_SYS_PTRACE&1 != 0}
	if got := ThisProcess(); got != want {
		t.Errorf("this process has %+v, want %+v", got, want)
	}
}

// needVM skips the test where the system does not have what a vmProc is made of, or forbids it.
func needVM(t *testing.T) {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
		b := []byte("from here")
		_, err = unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{
			{Base: uintptr(unsafe.Pointer(&b[4])), Len: 1}}, 0)
	}
	if err != nil {
		needtest.Lacking(t, "pidfd", err)
	}
}

// The process that a session's memory is reached by is the one that has the session's page, and no
// longer than it lives.
func TestVMProcess(t *testing.T) {
	cmd, peer := vmHelper(t)
	if v := openVM(peer, unprivileged(), helperAddr+1, vmNonce); v != nil {
		t.Error("a process without the nonce is used")
	}
	if v := openVM(Peer{PID: int32(os.Getpid()), UID: peer.UID}, unprivileged(), helperAddr,
		vmNonce); v != nil {
		t.Error("another process is used")
	}
	if v := openVM(peer, ProcessRights{ruid: os.Getuid(), euid: os.Getuid(), ptrace: true}, helperAddr,
		vmNonce); v != nil {
		t.Error("it is used in spite of the daemon's capability")
	}
	v := openVM(peer, unprivileged(), helperAddr, vmNonce)
	if v == nil {
		needVM(t)
		t.Fatal("it is not used")
	}
	defer v.close()
	// Without a descriptor, so that what arrives has come by the process.
	a := &AppMem{fd: -1, slots: make(chan struct{}, maxAppCopies)}
	a.proc.Store(v)
	a.refs.Store(1)
	data, got := make([]byte, 40000), make([]byte, 40000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	for _, dir := range []copyDir{copyIn, copyLast} {
		data[len(data)-1]++
		if err := a.copy(data, helperAddr+100, dir); err != nil {
			t.Fatal(err)
		}
		if err := a.copy(got, helperAddr+100, copyOut); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read back: %v", err)
		}
	}
	if err := a.copy(got[:vmMin-1], helperAddr, copyOut); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("a short piece does not go by the descriptor: %v", err)
	}
	for _, dir := range []copyDir{copyOut, copyIn, copyLast} {
		if err := a.copy(got, helperAddr+helperPages-20000, dir); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("over a page that is not there: %v", err)
		}
	}
	if !v.usable() {
		t.Error("a missing page ended the use of the process")
	}
	if n := testing.AllocsPerRun(100, func() {
		a.copy(got, helperAddr, copyOut)
		a.copy(got, helperAddr, copyLast)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	cmd.Process.Kill()
	cmd.Wait()
	proctest.Want(t, "the end is noticed", func() bool { return !v.usable() })
	if !v.ended() {
		t.Error("it has not ended")
	}
}

// A process in a user namespace below the daemon's is not used: who made the namespace has every
// capability in there, so the daemon could write into a setuid program of the container's.
func TestVMProcessOfContainer(t *testing.T) {
	if err := exec.Command("unshare", "--user", "true").Run(); err != nil {
		needtest.Lacking(t, "userns", err)
	}
	cmd := proctest.StartHelper(t, string(vmNonce[:]), func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}}
	})
	peer := Peer{PID: int32(cmd.Process.Pid), UID: uint32(os.Getuid())}
	if v := openVM(peer, unprivileged(), helperAddr, vmNonce); v != nil {
		v.close()
		t.Error("the process of a container is used")
	}
}

// ownMem is the memory of this process by its descriptor, and by calls on the process pid.
func ownMem(t *testing.T, pid int) *AppMem {
	t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	a := &AppMem{fd: fd, slots: make(chan struct{}, maxAppCopies)}
	a.proc.Store(&vmProc{pid: pid, pidfd: pidfd})
	a.refs.Store(1)
	t.Cleanup(a.Release)
	return a
}

// A process that is not to be had any more (its first thread has ended, it is not dumpable) is
// given up, and the descriptor goes on.
func TestVMProcessGivenUp(t *testing.T) {
	cmd, peer := vmHelper(t)
	cmd.Process.Kill()
	cmd.Wait()
	a := ownMem(t, int(peer.PID))
	mem, err := unix.Mmap(-1, 0, 20000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	data := bytes.Repeat([]byte("hello"), 4000)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	if err := a.copy(data, addr, copyLast); err != nil || !bytes.Equal(mem, data) {
		t.Errorf("written by the descriptor: %v", err)
	}
	if a.ByProcess() {
		t.Error("the process is still used")
	}
	clear(data)
	if err := a.copy(data, addr, copyOut); err != nil || !bytes.Equal(mem, data) {
		t.Errorf("read by the descriptor: %v", err)
	}
}

// Pages that a program has taken from itself for a while the descriptor reaches, whatever the
// length; what is not there nothing does. The process is used on.
func TestVMProcessProtected(t *testing.T) {
	needVM(t)
	a := ownMem(t, os.Getpid())
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	data := bytes.Repeat([]byte("octets!!"), 3*page/8)
	if err := unix.Mprotect(mem[page:2*page], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []copyDir{copyIn, copyLast} {
		if err := a.copy(data, addr, dir); err != nil {
			t.Errorf("%d octets into pages of which one is taken: %v", len(data), err)
		}
	}
	got := make([]byte, len(data))
	if err := a.copy(got, addr, copyOut); err != nil || !bytes.Equal(got, data) {
		t.Errorf("out of them: %v", err)
	}
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[:len(data)], data) {
		t.Error("other octets are there")
	}
	if err := a.copy(make([]byte, vmMin), 4096, copyOut); err != syscall.EFAULT || !a.ByProcess() {
		t.Errorf("out of what is not there: %v", err)
	}
}
