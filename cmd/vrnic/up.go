package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/logs"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/metrics"
	"github.com/vrnic/vrnic/internal/cpuprofile"
	"github.com/vrnic/vrnic/internal/version"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
)

func upCommand() *cli.Command {
	var limits strings.Builder
	for _, l := range server.LimitTable {
		fmt.Fprintf(&limits, "\n   %-16s %12d  %s", l.Name, l.Default, l.Help)
	}
	for _, l := range daemon.PeerLimitTable {
		fmt.Fprintf(&limits, "\n   %-16s %12d  %s", l.Name, l.Default, l.Help)
	}
	return &cli.Command{
		Name:  "up",
		Usage: "run the daemon in the foreground",
		UsageText: "vrnic up [--config FILE] [--device SPEC]... [--host] [--port SPEC]... " +
			"[--ipoib SPEC]... [--socket-mode 0600] [--socket-group NAME] [--containers DIR] " +
			"[--user NAME] [--limit NAME=N]... [--metrics ADDR]",
		Description: "Runs virtual RNICs until SIGINT, SIGTERM or, without --config, SIGHUP. " +
			"Prints one line `ready socket=... devices=...`\n" +
			"when programs can connect, and tells systemd (READY=1).\n\n" +
			"A device is NAME,addr=CIDR[,addr=CIDR]... and what else it has:\n\n" +
			"   ,transport=iwarp|roce     what it speaks (iwarp)\n" +
			"   ,dcqcn=on|off             RoCE: slow down where packets come marked (off)\n" +
			"   ,mtu=N                    octets of an IP packet (1500)\n" +
			"   ,mac=MAC                  (made from name and addresses)\n" +
			"   ,loopback=copy|wire       how its QPs reach each other (copy)\n" +
			"   ,keepalive=TIME|off       (30s)\n" +
			"   ,user-timeout=TIME|off    (60s)\n" +
			"   ,adversary=SEED           places octets in any order: docs/laboratory.md\n" +
			"   ,profile=CARD             says and allows what siw, rxe, cxgb4, irdma or mlx5 does\n\n" +
			"or NAME,host=ADDR with an address that this host has: it uses the kernel's sockets (TCP,\n" +
			"UDP that carries SCTP, or RoCE), and needs no port. It has the same, but no mtu, and beside\n\n" +
			"   ,sctp-udp=PORT|off        the UDP port of its SCTP (9899)\n\n" +
			"An interface of IP over InfiniBand is NAME,dev=DEVICE,addr=CIDR[,addr=CIDR]..., and what\n" +
			"else it has:\n\n" +
			"   ,tun=NAME                 the kernel's network device that it becomes (none: it is a\n" +
			"                             device NAME of iWARP)\n" +
			"   ,mode=datagram|connected  whether it has connections (datagram)\n" +
			"   ,stream=tcp|sctp          over iWARP: what connections are made of (tcp)\n" +
			"   ,mtu=N                    octets of an IP packet (2044)\n" +
			"   ,pkey=N ,qkey=N ,scope=N  of the link (0xffff, 0x80000b1b, 2)\n\n" +
			"QPs of one device reach each other without a network, by a copy from one's memory to the\n" +
			"other's, and so do those of two devices that speak RoCE; with loopback=wire they do so\n" +
			"through TCP, or UDP, as if they were of two daemons.\n\n" +
			"With transport=roce a device speaks RoCE v2 in place of iWARP; a device of each kind may\n" +
			"have the same addresses. With dcqcn=on its RC and UC queue pairs slow down where packets\n" +
			"come marked, as hardware does that is set up so.\n\n" +
			"A connection whose peer is silent for user-timeout (60s) is lost, if the peer owes an\n" +
			"acknowledgement or was asked for a sign of life; it is asked after keepalive (30s).\n\n" +
			"Limits for --limit, with their defaults:" + limits.String(),
		Flags: []cli.Flag{
			socketFlag(),
			&cli.StringFlag{Name: "config", Usage: "read what is not given here from `FILE`, which has " +
				"these flags as keys, in YAML; vrnic config check looks it over"},
			&cli.StringSliceFlag{Name: "device",
				Usage: "a device, `SPEC`; see above (default: " + daemon.DefaultDevice().String() + ")"},
			&cli.BoolFlag{Name: "host", DisableDefaultText: true, Usage: "a device of each kind for each " +
				"address of this host, but for link-local ones, and the loopback's if there are others"},
			&cli.StringSliceFlag{Name: "port", Usage: "a port of the switch, `SPEC`: " +
				"tap:NAME[,netns=PATH][,addr=CIDR]...[,mtu=N][,share[=DEVICE]], unix-listen:PATH or " +
				"unix-connect:PATH or vxlan:VNI,local=ADDR,remote=ADDR[,remote=ADDR]...[,port=N]"},
			&cli.StringSliceFlag{Name: "ipoib",
				Usage: "an IP interface over a device, `SPEC`; see above"},
			&cli.StringFlag{Name: "socket-mode", Value: "0600",
				Usage: "who may connect: the socket's file `MODE`, octal"},
			&cli.StringFlag{Name: "socket-group", Usage: "give the socket to group `NAME`"},
			&cli.StringFlag{Name: "containers",
				Usage: "make sockets for containers in `DIR`, one for each device; see vrnic cdi"},
			&cli.StringFlag{Name: "direct", Value: config.DirectOff,
				Usage: "whose programs exchange messages without the daemon, `WHO`: user (those of one " +
					"user) or off; see docs/direct.md"},
			&cli.StringFlag{Name: "user", Usage: "as root: run as user `NAME` when all has been made, and " +
				"give the socket to it"},
			&cli.StringFlag{Name: "sandbox", Value: sandboxOn,
				Usage: "what to give up when all has been made, `MODE`: on, full (files too, of a daemon " +
					"without root) or off"},
			&cli.StringSliceFlag{Name: "limit", Usage: "set a limit, `NAME=N`; see above"},
			&cli.StringFlag{Name: "metrics", Usage: "answer Prometheus at `ADDR`, ADDRESS:PORT or the " +
				"path of a Unix socket, with totals of all programs; see docs/observing.md"},
			&cli.BoolFlag{Name: "metrics-latency", DisableDefaultText: true, Usage: "metrics have " +
				"histograms of what requests take, which costs each of them two looks at the clock"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"},
				Usage: "log each connection and each client"},
			&cli.StringFlag{Name: "log-level", DefaultText: "info", Usage: "log from `LEVEL` on: debug, " +
				"info, warn or error; or PART=LEVEL, for one of " + strings.Join(logs.Parts, ", ") +
				"; several with commas"},
			&cli.StringFlag{Name: "log-format", DefaultText: logs.Text,
				Usage: "log as `FORMAT`: text, or json, an object a line"},
			cpuprofile.Flag(),
		},
		Action: up,
	}
}

func up(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	socket, err := inherited()
	if err != nil {
		return err
	}
	u, err := upConfig(c, socket)
	if err != nil {
		return err
	}
	cfg := u.Daemon
	file := c.String("config")
	confine, err := sandboxConfig(u, file)
	if err != nil {
		return err
	}
	manager, merr := dialManager()
	if file != "" {
		cfg.Reload = func() (daemon.Config, error) {
			u, err := upConfig(c, socket)
			if err != nil {
				return daemon.Config{}, err
			}
			return u.Daemon, nil
		}
	}
	if cfg.Log, err = u.Log(c.App.ErrWriter); err != nil {
		return err
	}

	stopProfile, err := cpuprofile.Start(u.CPUProfile)
	if err != nil {
		return err
	}
	defer stopProfile()

	// From here on a signal ends the daemon cleanly; a second one ends it at once.
	ctx, stop := signal.NotifyContext(c.Context, endSignals(cfg.Reload != nil)...)
	defer stop()
	again := make(chan os.Signal, 1)
	if cfg.Reload != nil {
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
	}
	daemon.RaiseProcs()
	daemon.PromptThreads(max(16, 2*runtime.GOMAXPROCS(0)))
	d, err := daemon.New(cfg)
	if err != nil {
		return asUsage(err)
	}
	var scrapes *metrics.Server
	if u.Metrics != "" {
		if scrapes, err = metrics.Listen(u.Metrics); err != nil {
			return errors.Join(err, d.Close())
		}
		defer scrapes.Close()
		if scrapes.Strangers() {
			cfg.Log.Warn("whoever reaches this address can read the metrics, which are not encrypted",
				"metrics", scrapes.Addr())
		}
	}
	if err := confine.enter(d, cfg.Log); err != nil {
		return errors.Join(err, d.Close())
	}
	if scrapes != nil {
		scrapes.Serve(metrics.NewCollector(d.Metrics), version.String(),
			cfg.Log.With(logs.Part, "metrics"))
	}
	names := make([]string, 0, len(cfg.Devices))
	for _, device := range d.Devices() {
		names = append(names, device.Name)
	}
	if _, err := fmt.Fprintf(c.App.Writer, "ready socket=%s devices=%s\n", d.Socket(),
		strings.Join(names, ",")); err != nil {
		return errors.Join(err, d.Close())
	}
	if err := errors.Join(merr, manager.tell("READY=1")); err != nil {
		cfg.Log.Warn("cannot tell the service manager", "err", err)
	}
	defer context.AfterFunc(ctx, stop)()
	for ctx.Err() == nil {
		select {
		case <-again:
			manager.reload(ctx, d, cfg.Log)
		case <-ctx.Done():
		}
	}
	_ = manager.tell("STOPPING=1")
	return d.Close()
}

// endSignals are those that end the daemon: the end of its terminal too, unless it was started to
// outlive that, as nohup(1) does it, or reloads at that signal.
func endSignals(reloads bool) []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !reloads && !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// upConfig is what the flags ask for, and the file that they name, for a daemon on the socket of
// the service manager, if there is one.
func upConfig(c *cli.Context, socket string) (*config.Up, error) {
	var settings []config.Setting
	if path := c.String("config"); path != "" {
		var err error
		if settings, err = config.ReadFile(path); err != nil {
			return nil, asUsage(err)
		}
	}
	u, err := config.Build(append(settings, flagSettings(c)...))
	if err != nil {
		return nil, asUsage(err)
	}
	if socket == "" {
		return u, nil
	}
	if u.Daemon.Socket != socket && u.Daemon.Socket != shm.DefaultSocket() {
		return nil, usagef("the service manager hands over %s: leave --socket %s out", socket,
			u.Daemon.Socket)
	}
	u.Daemon.Socket, u.Daemon.SocketFD = socket, inheritedFD
	return u, nil
}

// asUsage makes err wrong usage if it is about what was asked for.
func asUsage(err error) error {
	if usage := (*daemon.ConfigError)(nil); errors.As(err, &usage) ||
		errors.Is(err, config.ErrWrong) {
		return usagef("%v", err)
	}
	return err
}

// flagSettings are the flags that are given, as settings.
func flagSettings(c *cli.Context) (settings []config.Setting) {
	for _, key := range config.Keys() {
		at := given(c, key)
		if !at.IsSet(key) {
			continue
		}
		switch v := at.Value(key).(type) {
		case cli.StringSlice:
			for _, s := range v.Value() {
				settings = append(settings, config.Flag(key, s))
			}
		default:
			settings = append(settings, config.Flag(key, fmt.Sprint(v)))
		}
	}
	return settings
}
