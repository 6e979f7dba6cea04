// Command vrnic runs virtual RNICs and shows what they do.
//
// Exit status: 0 done, 1 it failed (one line on stderr says what and what to do), 2 wrong usage.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cni"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/doctor"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/recorder"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/torture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/usage"
	"github.com/vrnic/vrnic/internal/version"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/verbs/build"
)

// Exit statuses, part of the command line's contract.
const (
	exitFailed = 1
	exitUsage  = 2
)

// pluginName is how a runtime of the Container Network Interface calls this program.
const pluginName = "vrnic-cni"

func main() {
	if filepath.Base(os.Args[0]) == pluginName {
		cni.Main()
		return
	}
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	err := newApp(stdout, stderr).Run(args)
	if err == nil {
		return 0
	}
	if text := oneLine(err.Error()); text != "" {
		fmt.Fprintf(stderr, "vrnic: %s\n", text)
	}
	if code := cli.ExitCoder(nil); errors.As(err, &code) {
		return code.ExitCode()
	}
	return exitFailed
}

func newApp(stdout, stderr io.Writer) *cli.App {
	cli.HelpPrinter = usage.Print
	app := &cli.App{
		Name: "vrnic",
		Usage: "virtual RNICs: iWARP and RoCE for local programs, " +
			"without hardware or kernel modules",
		UsageText: "vrnic COMMAND [OPTION]...",
		Writer:    stdout,
		ErrWriter: stderr,
		// Values such as vrnic0,addr=10.77.0.2/24 have commas of their own.
		DisableSliceFlagSeparator: true,
		HideVersion:               true,
		ExitErrHandler:            func(*cli.Context, error) {}, // run does it
		Action:                    noCommand,
		Commands: []*cli.Command{
			upCommand(),
			configCommand(),
			showCommand(),
			statCommand(),
			topCommand(),
			captureCommand(),
			impairCommand(),
			traceCommand(),
			faultCommand(),
			torture.Command(usagef),
			recorder.RecordCommand(recordTools),
			recorder.ReplayCommand(recordTools),
			extcapCommand(),
			pingCommand(),
			demoCommand(),
			execCommand(),
			cdiCommand(),
			dockerCommand(),
			k8sCommand(),
			sysKeeperCommand(),
			doctorCommand(),
			versionCommand(),
		},
	}
	app.Commands = slices.Insert(app.Commands, 2, changeCommands()...)
	app.Commands = append(app.Commands, shellCommands()...)
	app.OnUsageError = onUsageError
	for _, c := range app.Commands {
		prepare(c)
	}
	return app
}

// recordTools are what the commands of recordings share with others.
var recordTools = &recorder.Tools{Usage: usagef, Socket: socketFlag(), Dial: dial,
	InWords: inWords}

// prepare gives c and what is below it the habits that all commands share.
func prepare(c *cli.Command) {
	c.Description = usage.Description(c.Description)
	c.OnUsageError = onUsageError
	c.HideHelpCommand = true
	if c.Action == nil {
		c.Action = noCommand
	}
	for _, sub := range c.Subcommands {
		prepare(sub)
	}
}

// noCommand is what runs where a command is missing or unknown.
func noCommand(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("unknown command %q; see %s --help", c.Args().First(), commandName(c))
	}
	return usagef("which command? See %s --help", commandName(c))
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	return usagef("%v; see %s --help", err, commandName(c))
}

// commandName is the command as it is typed, with those above it.
func commandName(c *cli.Context) string {
	if c.Command == nil || c.Command.HelpName == "" {
		return "vrnic"
	}
	return c.Command.HelpName
}

// usagef makes an error that says how the command was used wrongly: exit status 2.
func usagef(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), exitUsage)
}

// noArgs refuses arguments of a command that takes none.
func noArgs(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("unexpected argument %q; see %s --help", c.Args().First(), commandName(c))
	}
	return nil
}

// oneLine makes s fit for one line of a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
}

// socketFlag is the --socket of every command; socketPath reads it.
func socketFlag() cli.Flag {
	return &cli.StringFlag{
		Name:        "socket",
		Usage:       "the daemon's control socket `PATH`",
		DefaultText: "$VRNIC_SOCKET, else $XDG_RUNTIME_DIR/vrnic.sock, else /run/vrnic.sock",
	}
}

func socketPath(c *cli.Context) string {
	if s := given(c, "socket").String("socket"); s != "" {
		return s
	}
	return shm.DefaultSocket()
}

// given is where a flag was given that a command has and those below it: in front of the last word
// of the command, or behind it.
func given(c *cli.Context, flag string) *cli.Context {
	for _, at := range c.Lineage() {
		if at.IsSet(flag) {
			return at
		}
	}
	return c
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "look this host over for what vrnic uses, and say what to do",
		UsageText: "vrnic doctor [--json]",
		Description: "A line is ok, a note (something works less well, or is not there) or bad (vrnic " +
			"does not work, which is\nexit status 1). It changes nothing.",
		Flags: []cli.Flag{socketFlag(), jsonFlag()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			found := examine(c)
			var err error
			if c.Bool("json") {
				e := json.NewEncoder(c.App.Writer)
				e.SetIndent("", "  ")
				err = e.Encode(found)
			} else {
				err = doctor.Write(c.App.Writer, found)
			}
			if err == nil && doctor.Bad(found) {
				err = cli.Exit("", exitFailed)
			}
			return err
		},
	}
}

// examine looks at this host, this program and its daemon.
func examine(c *cli.Context) []doctor.Finding {
	h := doctor.ThisHost()
	h.Version = fmt.Sprintf("%s abi %d.%d", version.String(), abi.Major, abi.Minor)
	if libs, err := build.Libraries(false); err == nil {
		h.Libraries = len(libs)
	}
	h.Socket = socketPath(c)
	client, err := shm.Dial(h.Socket)
	if err == nil {
		client.Close()
	}
	h.Daemon = err
	h.NoDaemon = errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	return doctor.Look(h)
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print what this is built from, and the version of the ABI to programs",
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.App.Writer, "vrnic %s abi %d.%d\n", version.String(), abi.Major,
				abi.Minor)
			return err
		},
	}
}
