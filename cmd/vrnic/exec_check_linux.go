package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/check"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/shm"
)

// statusFound is how a program ends in which --check has found mistakes.
const statusFound = 66

func checkFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "check", Usage: "look for mistakes in how the program uses verbs"},
		&cli.BoolFlag{Name: "pedantic", Usage: "with --check: say what may be meant, too"},
		&cli.StringFlag{Name: "check-json", Usage: "with --check: write each finding to `FILE`, a line " +
			"of JSON"},
		&cli.IntFlag{Name: "check-status", Value: statusFound, Usage: "with --check: end with `STATUS` " +
			"if there are findings; 0: with the program's own"},
	}
}

// wantsCheck reports whether the program is to be looked at.
func wantsCheck(c *cli.Context) (bool, error) {
	for _, name := range []string{"pedantic", "check-json", "check-status"} {
		if c.IsSet(name) && !c.Bool("check") {
			return false, usagef("--%s goes with --check", name)
		}
	}
	if s := c.Int("check-status"); s < 0 || s > 255 {
		return false, usagef("--check-status is from 0 to 255")
	}
	if c.Bool("check") && c.Bool("rsockets") {
		return false, usagef("--check is for programs that use verbs themselves, --rsockets for others")
	}
	return c.Bool("check"), nil
}

// runChecked runs the program as a child, and says what is wrong with it.
func runChecked(c *cli.Context, args []string, set launch.Settings) error {
	opts := check.Options{Out: c.App.ErrWriter, Pedantic: c.Bool("pedantic"),
		Stalls: func(device string, qpn uint32) uint64 { return stallsOf(set.Socket, device, qpn) }}
	if name := c.String("check-json"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		opts.JSON = f
	}
	l, err := check.Listen(opts)
	if err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	set.Check = l.Name
	status, err := runChild(set.Program.Path, args, launch.Env(os.Environ(), set))
	n, closeErr := l.Close()
	if err != nil {
		return err
	}
	if closeErr != nil {
		return closeErr
	}
	summary(c.App.ErrWriter, n)
	if own := c.Int("check-status"); n > 0 && own != 0 {
		status = own
	}
	if status != 0 {
		return cli.Exit("", status)
	}
	return nil
}

func summary(w io.Writer, n int) {
	switch n {
	case 0:
		fmt.Fprintln(w, "vrnic check: nothing found")
	case 1:
		fmt.Fprintln(w, "vrnic check: 1 finding")
	default:
		fmt.Fprintf(w, "vrnic check: %d findings\n", n)
	}
}

// stallsOf asks the daemon how many messages found no receive at a queue pair.
func stallsOf(socket, device string, qpn uint32) uint64 {
	client, err := shm.Dial(socket)
	if err != nil {
		return 0 // it has gone, and so has the queue pair
	}
	defer client.Close()
	rows, err := client.Stat()
	if err != nil {
		return 0
	}
	for _, raw := range rows {
		var row struct {
			Kind, Dev string
			QPN       uint32
			Stalls    uint64
		}
		if json.Unmarshal(raw, &row) == nil && row.Kind == "qp" && row.Dev == device && row.QPN == qpn {
			return row.Stalls
		}
	}
	return 0
}

// runChild runs a program and waits for it, and returns its exit status as shells have it.
func runChild(path string, args, env []string) (int, error) {
	cmd := exec.Command(path)
	cmd.Args, cmd.Env = args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Before it starts: no signal is to end this process and leave the program.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		if !errors.Is(err, syscall.ENOEXEC) || !isText(path) {
			return 0, cannotRun(path, err)
		}
		cmd = exec.Command("/bin/sh", append([]string{path}, args[1:]...)...)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return 0, cannotRun(path, err)
		}
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

// pass gives the program a signal of this process. Those of a terminal's keys it has got itself.
func pass(p *os.Process, s os.Signal) {
	switch s {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		return
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGWINCH:
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
