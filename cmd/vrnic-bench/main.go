// Command vrnic-bench measures virtual RNICs: latency and bandwidth of all operations, with the
// data verified, and beside baselines.
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

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
	"github.com/vrnic/vrnic/internal/completion"
	"github.com/vrnic/vrnic/internal/manual"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// The first signal ends what runs, so that processes, namespaces and files go; a second one ends
	// at once.
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
	fmt.Fprintf(stderr, "vrnic-bench: %s\n", oneLine(err))
	if code := cli.ExitCoder(nil); errors.As(err, &code) {
		return code.ExitCode()
	}
	return exitFailed
}

// oneLine is what err says, on one line.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	onUsageError := func(_ *cli.Context, err error,
		_ bool) error {
		return usagef("%v; see vrnic-bench --help", err)
	}
	app := &cli.App{
		Name:  "vrnic-bench",
		Usage: "measures virtual RNICs, with the data verified",
		UsageText: "vrnic-bench [--path PATH,...] [--op OP,...] [--size SIZE,...] [--depth N,...] " +
			"[--time D] [--json FILE] ...\n" +
			"vrnic-bench compare [--path PATH,...] [--rounds N] [--time D] [--json FILE] ...\n" +
			"vrnic-bench scale [--path PATH,...] [--qps N] [--mrs N] [--json FILE]\n" +
			"vrnic-bench badnet [--loss PERCENT,...] [--rtt D,...] [--seeds N] [--json FILE] ...\n" +
			"vrnic-bench neighbours [--path PATH,...] [--size N] [--qps N] [--time D] [--json FILE]",
		Description: description,
		Reader:      stdin, Writer: stdout, ErrWriter: stderr,
		HideVersion: true, HideHelpCommand: true,
		ExitErrHandler: func(*cli.Context, error) {}, // run does it
		OnUsageError:   onUsageError,
		Flags:          runFlags(),
		Action:         runAction,
		Commands: []*cli.Command{compareCommand(), scaleCommand(), badnetCommand(),
			neighboursCommand(), peerCommand(), workerCommand(), bridgeCommand()},
	}
	app.Commands = append(app.Commands, completion.Commands(app.Name, completions)...)
	app.Commands = append(app.Commands, manual.Manual{}.Command())
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = onUsageError, true
	}
	return app
}

const description = `With no argument it runs the standard set on devices of its own, in one process.

PATHS
   loop   two QPs of one device of vrnic-bench
   pair   two devices of vrnic-bench, on netstacks joined by a switch in memory
   ring   one device of a daemon, and two client processes of it
   host   two daemons on addresses of the host's loopback, and a client process of each
   wire   two devices of vrnic-bench, with TAPs on bridges in two network namespaces (root)
   tap    two daemons with TAPs on such bridges, and a client process of each (root)

OPERATIONS
   write, read, send
   write-imm            a Write with RFC 7306 Immediate Data behind it, two messages in one request: iWARP has
                        no write-with-immediate; the peer gets a completion with 32 bits
   fetch-add, cmp-swap  atomics on 8 octets, each on a word of its own

Lists have commas: --size 64,64k,1M. A range LO..HI doubles, LO..HI*F multiplies by F, LO..HI+N adds N:
--size 8..1M --depth 1..64*4 --qps 1..9+4. All combinations are measured, in one table.

A ping-pong sends a message there and one back: its time is that of the round trip, and messages and
Gbit/s count both directions; with several QPs they take turns. A stream goes one way (--bidir: both) with
depth requests outstanding on each QP: its time is from the post to the completion. A Write completes when
it has been handed to the network, so that only its ping-pong tells when it arrives; bandwidth is always of what
has arrived. A read or an atomic is a round trip in itself: at depth 1 its time is that.

Times are in microseconds. cpu is the processor time of all processes of the path, client processes and daemons;
allocations are those of the same processes on their heaps, less what a run of one message has. Data are compared
before and after each measurement, and each atomic by the value that it brings back.`

// usagef makes an error that says how the command was used wrongly: exit status 2.
func usagef(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), exitUsage)
}

// completions are what the value called name in help may be.
func completions(name string) []string {
	switch name {
	case "PATH":
		return paths.Names
	case "OP":
		ops := []string{"all"}
		for _, op := range load.Ops {
			ops = append(ops, string(op))
		}
		return ops
	}
	return nil
}
