package recorder

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic/record"
)

// ReplayCommand is `vrnic replay`.
func ReplayCommand(t *Tools) *cli.Command {
	return &cli.Command{
		Name:  "replay",
		Usage: "play a recording again, show it, or compare two",
		UsageText: "vrnic replay [--step] [--qp N] [--until N] FILE\n" +
			"vrnic replay --diff [--no-octets] FILE FILE",
		Description: "Makes the calls of a recording again, with its octets and at its times, of new " +
			"protocol engines, and holds\neach answer against the recorded one: packets, octets that are " +
			"placed, what is delivered and when it\nfails. What differs is told, and the exit status is 1 " +
			"then. No daemon is needed, and nothing is sent.\nWith --diff two recordings are compared, of " +
			"two runs of a program: requests, completions, calls and the\noctets of messages, but no " +
			"times, numbers, keys and addresses.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "step", Usage: "show each thing that happens"},
			&cli.UintFlag{Name: "qp", DefaultText: "all",
				Usage: "with --step: only what is of queue pair `N`, or was done to connect it"},
			&cli.Uint64Flag{Name: "until", DefaultText: "the end",
				Usage: "end behind number `N`, as --step has it"},
			&cli.BoolFlag{Name: "diff", Usage: "print the first difference of two recordings"},
			&cli.BoolFlag{Name: "no-octets",
				Usage: "with --diff: do not compare the octets of messages, which may have keys in them"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("diff") {
				return t.diff(c)
			}
			return t.replay(c)
		},
	}
}

func (t *Tools) diff(c *cli.Context) error {
	if c.NArg() != 2 || c.Bool("step") || c.IsSet("until") || c.IsSet("qp") {
		return t.Usage("--diff takes two recordings")
	}
	var runs [2]*record.Run
	for i, path := range c.Args().Slice() {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		runs[i], err = record.ReadRun(f, !c.Bool("no-octets"), callName)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if runs[i].Cut != nil {
			fmt.Fprintf(c.App.ErrWriter, "%s: %v\n", path, runs[i].Cut)
		}
	}
	first := record.First(runs[0], runs[1])
	if first == "" {
		_, err := fmt.Fprintln(c.App.Writer, "no difference")
		return err
	}
	if _, err := fmt.Fprintf(c.App.Writer, "the first difference: %s\n", first); err != nil {
		return err
	}
	return cli.Exit("", 1)
}

// callName is the name of a program's call.
func callName(op uint16) string { return rpc.Op(op).String() }

// callText is a program's call, or the reply to it, in words.
func callText(op uint16, octets []byte, reply bool) string {
	name := callName(op)
	if !rpc.Op(op).Known() {
		return fmt.Sprintf("%s, %d octets", name, len(octets))
	}
	v, rep := rpc.Op(op).Messages()
	if reply {
		v = rep
	}
	if v == nil || rpc.Decode(octets, v) != nil {
		return fmt.Sprintf("%s, %d octets", name, len(octets))
	}
	const most = 400
	s := zeros.ReplaceAllString(strings.TrimPrefix(fmt.Sprintf("%+v", v), "&"), "$1...]")
	if len(s) > most {
		s = s[:most] + "..."
	}
	return name + " " + s
}

// zeros are many at the end of an array.
var zeros = regexp.MustCompile(`([\[ ])0(?: 0){3,}\]`)

// A player plays one recording.
type player struct {
	out   *bufio.Writer
	steps bool
	about *record.About // what is shown; nil: all
	text  record.Text
	play  *record.Player
	conns []*played
	of    map[uint64]*played
}

// played is what has come of a connection.
type played struct {
	subject *record.Subject
	calls   int
	differs bool
	lost    bool
}

func (t *Tools) replay(c *cli.Context) error {
	if c.NArg() != 1 || c.Bool("no-octets") {
		return t.Usage("replay takes one recording, or two with --diff")
	}
	if c.IsSet("qp") && !c.Bool("step") {
		return t.Usage("--qp is for what --step shows")
	}
	if c.Uint("qp") > math.MaxUint32 {
		return t.Usage("--qp: at most %d", uint32(math.MaxUint32))
	}
	f, err := os.Open(c.Args().First())
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := record.NewReader(f)
	if err != nil {
		return err
	}
	p := player{out: bufio.NewWriter(c.App.Writer), steps: c.Bool("step"),
		text: record.Text{Call: callText}, play: record.NewPlayer(in.Meta), of: make(map[uint64]*played)}
	if qpn := uint32(c.Uint("qp")); p.steps && qpn != 0 {
		if p.about, err = record.ReadAbout(in, qpn); err != nil {
			return err
		}
		if p.about.Empty() {
			return fmt.Errorf("there is no queue pair %d: `vrnic replay %s` tells which there are", qpn,
				c.Args().First())
		}
		if in, err = again(f); err != nil {
			return err
		}
	}
	fmt.Fprintf(p.out, "recorded at %s by vrnic %q: %q\n", in.Meta.Began.Format("2006-01-02 15:04:05"),
		in.Meta.Version, in.Meta.Devices) // errors are Flush's
	cut, err := p.all(in, c.Uint64("until"))
	same := p.summary()
	if err := errors.Join(err, p.out.Flush()); err != nil {
		return err
	}
	if cut != nil {
		fmt.Fprintf(c.App.ErrWriter, "%v; what comes before was replayed\n", cut)
	}
	if !same {
		return cli.Exit("", 1)
	}
	return nil
}

// again reads a recording from its beginning.
func again(f *os.File) (*record.Reader, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("--qp reads a recording twice: %w", err)
	}
	return record.NewReader(f)
}

// all plays until the end, or number until, if that is not 0. cut: why there is no end.
func (p *player) all(in *record.Reader, until uint64) (cut, err error) {
	for n := uint64(1); until == 0 || n <= until; n++ {
		rec, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case errors.Is(err, record.ErrCut):
			return err, nil
		case err != nil:
			return nil, err
		}
		if p.steps && (p.about == nil || p.about.Has(&rec)) {
			for i, line := range p.text.Lines(&rec) {
				if i == 0 {
					fmt.Fprintf(p.out, "%6d %12.6f  %s\n", n, rec.At.Seconds(), line)
				} else {
					fmt.Fprintf(p.out, "%21s%s\n", "", line)
				}
			}
		}
		if err := p.take(&rec); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// take plays a record.
func (p *player) take(rec *record.Record) error {
	s := rec.Subject
	if s != nil && s.Played() && rec.Opened {
		c := &played{subject: s}
		p.conns, p.of[s.ID] = append(p.conns, c), c
	}
	did, d, err := p.play.Take(rec)
	if err != nil {
		return err
	}
	c := (*played)(nil)
	if s != nil {
		c = p.of[s.ID]
	}
	if c == nil {
		return nil
	}
	if did {
		c.calls++
	}
	if c.lost = c.lost || rec.Lost; d != nil {
		c.differs = true
		fmt.Fprintf(p.out, "difference: %v\n", d)
	}
	return nil
}

// summary tells of connections; false: there is a difference.
func (p *player) summary() (same bool) {
	same = true
	calls := 0
	for _, c := range p.conns {
		what := "the same"
		if c.differs {
			what, same = "differs", false
		} else if c.lost {
			what = "the same, until the daemon had no room"
		}
		calls += c.calls
		fmt.Fprintf(p.out, "%v: %d calls, %s\n", c.subject, c.calls, what)
	}
	words := "no difference"
	if !same {
		words = "there is a difference"
	}
	fmt.Fprintf(p.out, "%d engines, %d calls: %s\n", len(p.conns), calls, words)
	return same
}
