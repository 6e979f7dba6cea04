package main

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A second signal ends what is kept in a pipe that nobody reads, which waits for its reader.
func TestIntoFullPipe(t *testing.T) {
	for _, args := range [][]string{{"capture", "-w", "-"}, {"record", "-o", "/dev/stdout"}} {
		t.Run(args[0], func(t *testing.T) { intoFullPipe(t, args) })
	}
}

// intoFullPipe runs a command that keeps what goes on at the device left.
func intoFullPipe(t *testing.T, args []string) {
	t.Helper()
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p", port,
		"-C", "100000000", "-S", "65536")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := vrnicCommand(t, append(args, "--socket", socket, "-d", "left")...)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // how is of no interest
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	needtest.Eventually(t, "the pipe is full", func() bool {
		room := []unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLOUT}}
		n, err := unix.Poll(room, 0)
		return n == 0 && err == nil
	})
	needtest.Eventually(t, "its end", func() bool {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Log(err)
		}
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}
