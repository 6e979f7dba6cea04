package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/check"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/vnic/record"
)

// Tools are what commands share.
type Tools struct {
	Usage  func(format string, args ...any) error // what is wrong in how it was used
	Socket cli.Flag
	Dial   func(*cli.Context) (*shm.Client, error)
	// InWords is an error of a call with what the daemon says of it.
	InWords func(error) error
}

// defaultSize is how many MB a recording has at most, if nobody says, and maxSize if somebody does.
const (
	defaultSize = 1000
	maxSize     = 1_000_000
	mega        = 1_000_000
)

// RecordCommand is `vrnic record`.
func RecordCommand(t *Tools) *cli.Command {
	return &cli.Command{
		Name:  "record",
		Usage: "keep what programs and connections do, to be replayed",
		UsageText: "vrnic record [-d DEVICE]... [--size MB] -o FILE\n" +
			"vrnic record [-d DEVICE]... [--size MB] -o FILE -- PROGRAM [ARGUMENT]...",
		Description: "Writes to FILE what becomes of devices' requests, what programs ask the daemon " +
			"for, and all that goes\ninto the protocol engine of each connection that begins meanwhile, with " +
			"its octets and times, and what\ncomes out. vrnic replay shows it, plays it again and compares " +
			"two. It lasts until interrupted, or until\nPROGRAM has ended, whose exit status it has then. " +
			"The file has what programs exchange: it is its\nowner's alone.\nRoot and the daemon's own " +
			"user may do it, one at a time. The daemon does not wait for who records: the\nrecording of a " +
			"connection for which there is no room ends.",
		Flags: []cli.Flag{
			t.Socket,
			&cli.StringSliceFlag{Name: "device", Aliases: []string{"d"}, DefaultText: "all",
				Usage: "of `DEVICE`"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "to `FILE`"},
			&cli.Int64Flag{Name: "size", Value: defaultSize, Usage: "end when FILE has `MB`"},
		},
		Action: func(c *cli.Context) error { return t.record(c) },
	}
}

func (t *Tools) record(c *cli.Context) error {
	path, size := c.String("output"), c.Int64("size")
	switch {
	case path == "":
		return t.Usage("where to? --output names a file")
	case size < 1 || size > maxSize:
		return t.Usage("--size: from 1 to %d", maxSize)
	}
	program := c.Args().Slice()
	var exe string
	if len(program) > 0 {
		var err error
		if exe, err = exec.LookPath(program[0]); err != nil {
			return err
		}
	}
	client, err := t.Dial(c)
	if err != nil {
		return err
	}
	defer client.Close()
	conn, err := client.Record(c.Context, c.StringSlice("device"))
	if err != nil {
		return fmt.Errorf("record: %w", t.InWords(err))
	}
	defer conn.Close()
	f, err := capture.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, stop := context.WithCancel(c.Context)
	defer stop()
	if len(program) == 0 {
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		// A second signal ends the program: who reads a pipe may never take what is written to it.
		context.AfterFunc(ctx, stop)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })() // it may be closed already
	done := make(chan error, 1)
	go func() { done <- keep(f, conn, size*mega, c.App.ErrWriter) }()
	status := 0
	if len(program) > 0 {
		status, err = check.Run(exe, program, os.Environ())
		stop()
	}
	err = errors.Join(err, <-done)
	if status != 0 {
		if err != nil {
			fmt.Fprintf(c.App.ErrWriter, "vrnic: %v\n", err)
		}
		return cli.Exit("", status)
	}
	return err
}

// keep writes a recording to a file, and says how it has ended.
func keep(f *os.File, conn *net.UnixConn, most int64, told io.Writer) error {
	n, why, err := record.Copy(f, conn, most)
	conn.Close() // the daemon need not go on
	if e := f.Close(); err == nil {
		err = e
	}
	switch {
	case errors.Is(err, record.ErrCut):
		return fmt.Errorf("%s has no end: the daemon has gone, or had no room", f.Name())
	case err != nil:
		return err
	}
	fmt.Fprintf(told, "recorded %d octets: %s\n", n, why)
	return nil
}
