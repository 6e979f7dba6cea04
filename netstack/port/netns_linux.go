package port

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetNS runs f in the network namespace that path names, or in the caller's if path is empty.
// What f opens stays in that namespace wherever it is used afterwards.
//
// f runs on a thread that enters the namespace and ends with f: it never serves other goroutines.
func inNetNS(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer unix.Close(ns)
	return inNetNSOf(ns, path, f)
}

// inNetNSOf is inNetNS of an open one, which errors call name.
func inNetNSOf(ns int, name string, f func() error) error {
	errc := make(chan error, 1)
	go onOwnThread(func() {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			errc <- fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}
		errc <- f()
	})
	return <-errc
}

// NetNSCookie is the number by which the kernel tells sockets of the network namespace that path
// names from those of others (SO_NETNS_COOKIE, of Linux 5.14): no other one has it until the
// machine's next start. An empty path is the caller's.
func NetNSCookie(path string) (cookie uint64, err error) {
	err = inNetNS(path, func() (err error) {
		cookie, err = cookieHere()
		return err
	})
	return cookie, err
}

// TAPCookie is that of the namespace in which the device of a TAP is now. It takes CAP_NET_ADMIN
// and CAP_SYS_ADMIN there.
func TAPCookie(fd int) (cookie uint64, err error) {
	ns, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return 0, os.NewSyscallError("TUNGETDEVNETNS", err)
	}
	defer unix.Close(ns)
	err = inNetNSOf(ns, "of the TAP", func() (err error) {
		cookie, err = cookieHere()
		return err
	})
	return cookie, err
}

func cookieHere() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, os.NewSyscallError("SO_NETNS_COOKIE", err)
}

// onOwnThread runs f on a thread that ends when the calling goroutine does, which must be at once.
// The process's first thread cannot end, and /proc/self shows its namespaces: it is not used.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // still locked: the thread ends with the goroutine
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // on another thread: this one is taken
		f()
	}()
	<-done
	runtime.UnlockOSThread()
}
