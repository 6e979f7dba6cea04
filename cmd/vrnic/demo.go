package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/shm"
)

const (
	demoDeadline = 60 * time.Second // for all of it
	demoGrace    = 5 * time.Second  // for a process to end when asked to

	demoServerDevice = "right"
	demoClientDevice = "left"
)

// The devices of the demo's daemon. Nothing outside of that process sees the addresses.
var demoDevices = []string{
	demoClientDevice + ",addr=10.77.0.1/24,addr=fd77::1/64",
	demoServerDevice + ",addr=10.77.0.2/24,addr=fd77::2/64",
}

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "show it working: a daemon, a server and a client process; no root, no set-up",
		Description: "Starts a daemon with two devices on a socket of its own, and a server and a " +
			"client process on them,\n" +
			"moves data with Send, RDMA Write and RDMA Read in both directions, verifies it, shows what happened,\n" +
			"and cleans up. It ends with PASS, or with what went wrong and status 1.",
		Flags: []cli.Flag{
			// The two processes are the same program: see demoRole.
			&cli.StringFlag{Name: "role", Hidden: true},
			&cli.StringFlag{Name: "device", Hidden: true},
			&cli.StringFlag{Name: "peer", Hidden: true},
			&cli.StringFlag{Name: "socket", Hidden: true},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.IsSet("role") {
				return demoRole(c)
			}
			for _, name := range []string{"device", "peer", "socket"} {
				if c.IsSet(name) {
					return usagef("demo has a daemon of its own and takes no --%s", name)
				}
			}
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runDemo(ctx, c.App.Writer)
		},
	}
}

// demoRole is the server's and the client's process. Its stdin tells it, by its end, that it may
// disconnect; so a demo that is no more leaves none behind.
func demoRole(c *cli.Context) error {
	ctx, cancel := context.WithTimeout(c.Context, demoDeadline)
	defer cancel()
	release := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends it
		close(release)
	}()
	out := json.NewEncoder(c.App.Writer)
	emit := func(e demoEvent) { _ = out.Encode(e) } // without the parent nobody reads
	dev, done, err := openDevice(c, c.String("device"))
	if err != nil {
		return err
	}
	defer done()
	switch c.String("role") {
	case "server":
		return demoServer(ctx, dev, netip.AddrPortFrom(dev.Attr().Addrs[0].Addr(), 0), emit)
	case "client":
		peer, err := netip.ParseAddrPort(c.String("peer"))
		if err != nil {
			return usagef("--peer: %v", err)
		}
		return demoClient(ctx, dev, peer, release, emit)
	}
	return usagef("--role %q", c.String("role"))
}

// runDemo is the demo. Whatever happens, its processes are gone and its files removed when it
// returns.
func runDemo(ctx context.Context, w io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	dir, err := os.MkdirTemp("", "vrnic-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{socket: filepath.Join(dir, "vrnic.sock"), start: time.Now()}
	defer func() {
		// Without an error all have ended already.
		for _, p := range []*child{d.client, d.server, d.daemon} {
			if p != nil {
				p.kill()
			}
		}
		switch {
		case err == nil:
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf("demo: not done within %v: %w", demoDeadline, err)
		case ctx.Err() != nil:
			err = errors.New("demo: interrupted")
		default:
			err = fmt.Errorf("demo: %w", err)
		}
	}()

	if err := d.launch(ctx); err != nil {
		return err
	}
	serverSteps, clientSteps, err := d.transfer(ctx)
	if err != nil {
		return err
	}
	seen, err := d.look()
	if err != nil {
		return err
	}
	if err := d.finish(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(d.socket); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the daemon has left its socket behind (%v)", err)
	}
	return d.report(w, clientSteps, serverSteps, seen)
}

// A demo is the state of one run.
type demo struct {
	socket                 string
	start                  time.Time
	daemon, server, client *child
	ready                  string // the daemon's line
	listen                 netip.AddrPort
	agreed                 demoEvent // what the client's connection came to
}

// launch starts the three processes.
func (d *demo) launch(ctx context.Context) error {
	args := []string{"up", "--socket", d.socket}
	for _, dev := range demoDevices {
		args = append(args, "--device", dev)
	}
	var err error
	if d.daemon, err = startChild("daemon", args...); err != nil {
		return err
	}
	if d.ready, err = d.daemon.line(ctx); err != nil {
		return err
	}
	if !strings.HasPrefix(d.ready, "ready ") {
		return fmt.Errorf("the daemon says %q instead of ready", d.ready)
	}
	role := func(name, device string, more ...string) (*child, error) {
		return startChild(name, append([]string{"demo", "--role", name, "--device", device, "--socket",
			d.socket}, more...)...)
	}
	if d.server, err = role("server", demoServerDevice); err != nil {
		return err
	}
	e, err := d.server.event(ctx, "listening")
	if err != nil {
		return err
	}
	d.listen = e.Addr
	d.client, err = role("client", demoClientDevice, "--peer", e.Addr.String())
	return err
}

// transfer follows the two until both have done their part, and returns what each moved.
func (d *demo) transfer(ctx context.Context) (server, client []demoEvent, err error) {
	if d.agreed, err = d.client.event(ctx, "connected"); err != nil {
		return nil, nil, err
	}
	if _, err := d.server.event(ctx, "connected"); err != nil {
		return nil, nil, err
	}
	if client, err = d.client.steps(ctx); err != nil {
		return nil, nil, err
	}
	if server, err = d.server.steps(ctx); err != nil {
		return nil, nil, err
	}
	return server, client, nil
}

// demoSeen is what the daemon showed while both were still connected.
type demoSeen struct{ qps, stats []json.RawMessage }

func (d *demo) look() (seen demoSeen, err error) {
	c, err := shm.Dial(d.socket)
	if err != nil {
		return seen, err
	}
	defer c.Close()
	if seen.qps, err = c.List("qp"); err != nil {
		return seen, err
	}
	seen.stats, err = c.Stat()
	return seen, err
}

// finish has the client disconnect and waits for the end of all three.
func (d *demo) finish(ctx context.Context) error {
	d.client.stdin.Close()
	if err := d.client.wait(ctx); err != nil {
		return err
	}
	if err := d.server.wait(ctx); err != nil {
		return err
	}
	if err := d.daemon.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return d.daemon.wait(ctx)
}

// event reads the child's next line, which is to be that event.
func (p *child) event(ctx context.Context, want string) (e demoEvent, err error) {
	line, err := p.line(ctx)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Event != want {
		return e, fmt.Errorf("the %s says %q instead of %s", p.name, line, want)
	}
	return e, nil
}

// steps reads events until the child is done.
func (p *child) steps(ctx context.Context) (steps []demoEvent, err error) {
	for {
		line, err := p.line(ctx)
		if err != nil {
			return nil, err
		}
		var e demoEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("the %s says %q: %w", p.name, line, err)
		}
		switch e.Event {
		case "step":
			steps = append(steps, e)
		case "done":
			return steps, nil
		default:
			return nil, fmt.Errorf("the %s says %q", p.name, line)
		}
	}
}
