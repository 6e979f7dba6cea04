// Vrnic-peer builds and boots the guest with siw, or with rxe (--roce), by hand:
//
//	vrnic-peer build
//	vrnic-peer run --link /tmp/link --addr 10.77.0.1/24 -c 'rping -c -a 10.77.0.2 -C 3 -v'
//
// Commands run one after the other, those ending in & beside the next ones, and the guest is
// stopped when the last one ends. There is no shell in the guest: words are split at spaces.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/vrnic/vrnic/integration/peer"
)

const usage = `usage: vrnic-peer [--cache DIR] build
       vrnic-peer [--cache DIR] run --link SOCKET [--listen] [--mac MAC] [--mtu N] [--pcap FILE] [--roce]
                  [--addr CIDR]... -c COMMAND [-c COMMAND]...`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vrnic-peer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	top := flag.NewFlagSet("vrnic-peer", flag.ExitOnError)
	top.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	cache := top.String("cache", "", "")
	_ = top.Parse(args) // exits by itself
	if top.NArg() == 0 || top.Arg(0) != "build" && top.Arg(0) != "run" {
		top.Usage()
		os.Exit(2)
	}
	var cfg peer.Config
	var commands []string
	f := flag.NewFlagSet("vrnic-peer run", flag.ExitOnError)
	f.Usage = top.Usage
	f.StringVar(&cfg.Link, "link", "", "")
	f.BoolVar(&cfg.Listen, "listen", false, "")
	f.StringVar(&cfg.MAC, "mac", "", "")
	f.StringVar(&cfg.Pcap, "pcap", "", "")
	f.IntVar(&cfg.MTU, "mtu", 0, "")
	f.BoolVar(&cfg.RoCE, "roce", false, "")
	f.Func("addr", "", func(s string) error {
		p, err := netip.ParsePrefix(s)
		cfg.Addrs = append(cfg.Addrs, p)
		return err
	})
	f.Func("c", "", func(s string) error { commands = append(commands, s); return nil })
	_ = f.Parse(top.Args()[1:])

	img, err := peer.Build(ctx, *cache, os.Stderr)
	if err != nil {
		return err
	}
	if top.Arg(0) == "build" {
		fmt.Printf("kernel %s\ninitrd %s\nrelease %s (%s)\n", img.Kernel, img.Initrd, img.Release,
			img.Version)
		return nil
	}
	if cfg.Link == "" || len(commands) == 0 {
		f.Usage()
		os.Exit(2)
	}
	g, err := peer.Start(ctx, img, cfg)
	if err != nil {
		return err
	}
	defer g.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, c := range commands {
		line, behind := strings.CutSuffix(strings.TrimSpace(c), "&")
		one := func() error {
			out, err := g.Run(ctx, strings.Fields(line)...)
			fmt.Print(out)
			return err
		}
		if behind {
			wg.Go(func() {
				if err := one(); err != nil {
					fmt.Fprintln(os.Stderr, "vrnic-peer:", err)
				}
			})
			continue
		}
		if err := one(); err != nil {
			return err
		}
	}
	return nil
}
