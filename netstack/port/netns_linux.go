package port

import (
	"fmt"
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
	errc := make(chan error, 1)
	go onOwnThread(func() {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			errc <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		errc <- f()
	})
	return <-errc
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
