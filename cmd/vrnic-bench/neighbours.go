package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/paths"
)

const neighbourTime = 2 * time.Second

func neighboursCommand() *cli.Command {
	return &cli.Command{
		Name:  "neighbours",
		Usage: "measures what small messages wait for somebody else's bulk on the same device",
		UsageText: "vrnic-bench neighbours [--path PATH,...] [--size N] [--qps N] [--depth N] " +
			"[--op OP] [--time D] [--json FILE]",
		Description: "On each path: the round trip of a 64-octet Send alone, bulk alone, and both " +
			"at the same time,\neach on QPs of its own. What the bulk moves meanwhile is given, too: to " +
			"let small messages pass must not\ncost it much.",
		Flags: figureFlags(neighbourTime,
			&cli.StringFlag{Name: "op", Value: string(load.Write), Usage: "the bulk's `OP`eration"},
			&cli.IntFlag{Name: "size", Value: 100_000, Usage: "`N` octets of each message of the bulk"},
			&cli.IntFlag{Name: "qps", Value: 1, Usage: "`N` QPs with bulk"},
			&cli.IntFlag{Name: "depth", Value: 16, Usage: "`N` messages outstanding on each of them"},
			&cli.BoolFlag{Name: "sctp", DisableDefaultText: true, Usage: "over SCTP instead of TCP"},
		),
		Action: neighboursAction,
	}
}

func neighboursAction(c *cli.Context) error {
	bulk := load.Spec{Op: load.Op(c.String("op")), Size: c.Int("size"), Depth: c.Int("depth"),
		QPs: c.Int("qps"), Pattern: load.Stream, Wait: load.Event, SCTP: c.Bool("sctp"),
		RoCE: c.Bool("roce")}
	small := load.Spec{Op: load.Send, Size: 64, Depth: 1, QPs: 1, Pattern: load.PingPong,
		Wait: load.Adaptive, SCTP: bulk.SCTP, RoCE: bulk.RoCE}
	if err := bulk.Check(); err != nil {
		return usagef("%v", err)
	}
	s := scaling{c: c}
	return s.measureFigures(func(path string) error { return s.neighbours(path, small, bulk) })
}

// neighbours measures on one path.
func (s *scaling) neighbours(name string, small, bulk load.Spec) error {
	ctx := s.c.Context
	path, err := paths.Open(name, paths.Options{Vrnic: s.c.String("vrnic"), RoCE: s.roce})
	if err != nil {
		return err
	}
	defer path.Close()
	var pairs [2]*load.Pair
	for i, spec := range []load.Spec{small, bulk} {
		p, err := path.Connect(ctx, spec)
		if err != nil {
			return err
		}
		pairs[i] = p[0]
		defer p[0].Close()
		if err := p[0].Verify(ctx); err != nil {
			return err
		}
	}
	s.progress.Step(name)
	alone, err := pairs[0].Measure(ctx, load.Amount{Time: s.time})
	if err != nil {
		return err
	}
	bulkAlone, err := pairs[1].Measure(ctx, load.Amount{Time: s.time})
	if err != nil {
		return err
	}
	beside, bulkBeside, err := together(ctx, pairs[0], pairs[1], s.time)
	if err != nil {
		return err
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, m := range []struct {
		what string
		r    load.Result
	}{{"alone", alone}, {"beside bulk", beside}} {
		for _, q := range []float64{0.5, 0.99} {
			s.add(name, fmt.Sprintf("64 octets %s, p%g", m.what, 100*q), us(m.r.Times.Quantile(q)), "us", 0,
				false)
		}
	}
	s.add(name, "bulk alone", bulkAlone.BitsPerSecond()/1e9, "Gbit/s", 0, false)
	s.add(name, "bulk beside 64 octets", bulkBeside.BitsPerSecond()/1e9, "Gbit/s", 0, false)
	return nil
}

// settling is how long bulk runs before and after what is measured beside it.
const settling = 200 * time.Millisecond

// together measures small for d while bulk goes on before, meanwhile and after.
func together(ctx context.Context, small, bulk *load.Pair, d time.Duration) (s, b load.Result,
	err error) {
	done := make(chan error, 1)
	go func() {
		var err error
		b, err = bulk.Measure(ctx, load.Amount{Time: d + 2*settling})
		done <- err
	}()
	time.Sleep(settling)
	s, err = small.Measure(ctx, load.Amount{Time: d})
	if bulkErr := <-done; err == nil {
		err = bulkErr
	}
	return s, b, err
}
