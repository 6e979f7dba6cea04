// Command vrnic-bench measures virtual RNICs: latency and bandwidth of Write, Read and Send, with
// the data verified, and beside baselines.
//
// Exit status: 0 done, 1 it failed (one line on stderr says what), 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// The first signal ends what runs, so that processes, namespaces and files go; a second one ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := newApp(stdin, stdout, stderr).RunContext(ctx, args)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "vrnic-bench: %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	if code := cli.ExitCoder(nil); errors.As(err, &code) {
		return code.ExitCode()
	}
	return exitFailed
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	onUsageError := func(_ *cli.Context, err error, _ bool) error { return usagef("%v; see vrnic-bench --help", err) }
	app := &cli.App{
		Name:      "vrnic-bench",
		Usage:     "measures virtual RNICs, with the data verified",
		UsageText: "vrnic-bench [--path loop|pair|ring|wire|tap]... [--op write|read|send]... [--size N]... [--depth N] [--time D] [--json FILE]\nvrnic-bench compare [--rounds N] [--time D] [--json FILE]",
		Description: "With no argument it runs the standard set on devices of its own, in one process.\n\n" +
			"Paths: loop, two QPs of one device; pair, two devices over TCP on an in-memory switch; ring, two\n" +
			"clients of a daemon, one device; tap (root), two daemons with TAPs in two namespaces.\n\n" +
			"At depth 1 a write or send is a ping-pong: the time is that of the round trip, and messages and\n" +
			"Gbit/s count both directions. A read, and everything deeper, goes one way with so many requests\n" +
			"outstanding: the time is from the post to the completion. Times are in microseconds; cpu is that of\n" +
			"all processes of the path, allocations those of this one.",
		Reader: stdin, Writer: stdout, ErrWriter: stderr,
		HideVersion: true, HideHelpCommand: true,
		ExitErrHandler: func(*cli.Context, error) {}, // run does it
		OnUsageError:   onUsageError,
		Flags:          runFlags(),
		Action:         runAction,
		Commands:       []*cli.Command{compareCommand(), rawPeerCommand()},
	}
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = onUsageError, true
	}
	return app
}

// usagef makes an error that says how the command was used wrongly: exit status 2.
func usagef(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), exitUsage)
}
