package check

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run runs a program and waits for it, and returns its exit status as shells have it. An error says
// that it could not be started.
func Run(path string, args, env []string) (int, error) {
	cmd := exec.Command(path)
	cmd.Args, cmd.Env = args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Before it starts: no signal is to end this process and leave the program.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed()...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			pass(cmd.Process, s)
		case err := <-done:
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return 0, err
			}
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				return 128 + int(ws.Signal()), nil
			}
			return cmd.ProcessState.ExitCode(), nil
		}
	}
}

// passed are the signals that the program is given: not those that are ignored, by nohup(1) say,
// which it ignores too as long as nobody here catches them, nor those that are about this process,
// nor those of job control: a terminal stops both, and a shell waits for this one.
func passed() (list []os.Signal) {
	const last = 64
	for s := syscall.Signal(1); s <= last; s++ {
		switch s {
		case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE, syscall.SIGKILL, syscall.SIGSTOP,
			syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
			continue
		}
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// pass gives the program a signal of this process. Those of a terminal's keys it has got itself.
func pass(p *os.Process, s os.Signal) {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH:
		if inForeground() {
			return
		}
	}
	_ = p.Signal(s) // it may have ended
}

// inForeground reports whether a terminal's keys send signals to this process and its child.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
