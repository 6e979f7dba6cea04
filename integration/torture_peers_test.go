package integration

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/lab/torture/roce"
	"github.com/vrnic/vrnic/lab/torture/sctp"
)

// A tortured guest is one that is booted anew when it is down. It is reached by a TAP of a
// namespace, which is a daemon's, as from any machine.
type tortured struct {
	t     *testing.T
	ns    *netlab.NS
	img   *peer.Image
	cfg   peer.Config
	start func(g *peer.Guest) error // has the program run that is lied to
	g     *peer.Guest
	boots int
}

// newTortured makes the network; the guest is not booted yet.
func newTortured(t *testing.T, ctx context.Context, rxe bool) *tortured {
	t.Helper()
	ns, err := netlab.NewNS()
	if err != nil {
		needtest.Lacking(t, "root", err)
	}
	t.Cleanup(func() { ns.Close() })
	x := &tortured{t: t, ns: ns, img: siwImage(t, ctx)}
	x.cfg = peer.Config{Link: filepath.Join(t.TempDir(), "link"), RoCE: rxe,
		Addrs: []netip.Prefix{netip.MustParsePrefix(guestAddrs[0] + "/24")}}
	way := up(t, nil, "--device", "way0,addr=10.77.0.9/24", "--port", "unix-listen:"+x.cfg.Link,
		"--port", "tap:ta,netns="+ns.Path()+",addr="+addrsA[0]+"/24")
	x.start = func(g *peer.Guest) error {
		_, err := g.Start("rping", "-s", "-P", "-a", guestAddrs[0])
		return err
	}
	t.Cleanup(func() {
		if x.g != nil {
			x.g.Stop()
		}
		way.stop()
	})
	return x
}

// boot boots the guest, again if it has been, and starts the program.
func (x *tortured) boot(ctx context.Context) {
	x.t.Helper()
	if x.g != nil {
		x.g.Stop()
	}
	x.boots++
	var err error
	if x.g, err = peer.Start(ctx, x.img, x.cfg); err != nil {
		x.t.Fatal(err)
	}
	if err = x.start(x.g); err != nil {
		x.t.Fatal(err)
	}
}

// ready boots the guest and waits until its program takes connections. A guest may die of the first
// ones, which are given up if it is slow: then it is booted once more.
func (x *tortured) ready(ctx context.Context, comesUp func() error) {
	x.t.Helper()
	var err error
	for range 3 {
		x.boot(ctx)
		for end := time.Now().Add(2 * patience); time.Now().Before(end) && ctx.Err() == nil; {
			if err = comesUp(); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond) // before it tries again: the program takes a moment
		}
	}
	x.t.Fatalf("no connection comes up: %v\n%s", err, x.g.Log())
}

// run has each case of a suite run, whatever dies of those before it, and reports what has come of
// it. Of a smoke test there are fewer.
func (x *tortured) run(ctx context.Context, title string, s torture.Suite) torture.Report {
	x.t.Helper()
	target := torture.Target{Addr: netip.MustParseAddrPort(guestAddrs[0] + ":7174"),
		Timeout: 10 * time.Second, Settle: 200 * time.Millisecond}
	if siwSmoke() {
		cases := s.Cases[:0:0]
		for i := 0; i < len(s.Cases); i += 8 {
			cases = append(cases, s.Cases[i])
		}
		s.Cases = cases
	}
	var r torture.Report
	for left := s.Cases; len(left) > 0 && ctx.Err() == nil; {
		x.ready(ctx, func() error {
			_, err := s.ComesUp(ctx, target)
			return err
		})
		s.Cases = left
		err := torture.Run(ctx, target, s, func(y torture.Result) {
			if y.Status != torture.Skip || !strings.Contains(y.Detail, "endpoint is down") {
				left = left[1:]
				r.Add(y)
				x.t.Logf("%s %s: %s\n%s", y.Status, y.Name, y.Detail, y.Transcript)
			}
			if y.Status == torture.Down {
				log := x.g.Log()
				x.t.Logf("the guest:\n%s", log[max(0, len(log)-4000):])
			}
		})
		if err != nil {
			x.t.Fatalf("%v\n%s", err, x.g.Log())
		}
	}
	x.report(title, &r)
	return r
}

// report is a table of what did not pass.
func (x *tortured) report(title string, r *torture.Report) {
	var b strings.Builder
	r.Ended = ""
	fmt.Fprintf(&b, "%s; booted %d times.\n\n", r.Summary(), x.boots)
	b.WriteString("| case | requirements | | what came |\n|---|---|---|---|\n")
	for _, y := range r.Results {
		if y.Status != torture.Pass {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", y.Name, strings.Join(y.IDs, ", "), y.Status,
				strings.ReplaceAll(y.Detail, "\n", " "))
		}
	}
	reportSiw(x.t, title, b.String())
}

// enough wants that most of it was tried, and came out well in part: how much is in
// docs/torture.md.
func enough(t *testing.T, r torture.Report, passed float64) {
	t.Helper()
	if n := float64(r.Counts[torture.Pass]); n < passed*float64(len(r.Results)) {
		t.Errorf("%s: that few have passed before", r.Summary())
	}
}

// TestRxeTorture has Linux's rxe lied to.
func TestRxeTorture(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	x := newTortured(t, ctx, true)
	enough(t, x.run(ctx, "vrnic torture against rxe", roce.Suite(func(remote netip.Addr) (
		l rawroce.Link, own netip.Addr, err error) {
		err = x.ns.Do(func() (err error) {
			l, own, err = roce.Host(netip.Addr{})(remote)
			return err
		})
		return insideLink{l, x.ns}, own, err
	})), 0.5)
}

// An insideLink makes sockets of a namespace for what is sent from other ports.
type insideLink struct {
	rawroce.Link
	ns *netlab.NS
}

func (l insideLink) Send(packet []byte) error {
	return l.ns.Do(func() error { return l.Link.Send(packet) })
}

// TestSiwTorture has Linux's siw lied to.
func TestSiwTorture(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	x := newTortured(t, ctx, false)
	enough(t, x.run(ctx, "vrnic torture against siw", iwarp.Suite(func(ctx context.Context,
		addr netip.AddrPort) (p *rawpeer.Peer, err error) {
		err = x.ns.Do(func() (err error) {
			p, err = iwarp.DialHost(ctx, addr)
			return err
		})
		return p, err
	})), 0.2)
}

// TestSiwTortureSCTP has Linux's SCTP lied to, of a program that says that it speaks DDP and that
// takes associations, and no more: what sessions are is not for it.
func TestSiwTortureSCTP(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	x := newTortured(t, ctx, false)
	dir := t.TempDir()
	program, err := sctppeer.Linux.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	if x.img, err = x.img.WithSCTP(dir, program); err != nil {
		t.Fatal(err)
	}
	x.start = func(g *peer.Guest) error {
		c, err := g.Pipe("sctp-peer")
		if err == nil {
			_, err = fmt.Fprintf(c, "listen 7174 %s\n", guestAddrs[0])
		}
		return err
	}
	s := sctp.Suite(func(ctx context.Context, target torture.Target) (p *rawsctp.Peer, err error) {
		err = x.ns.Do(func() (err error) {
			p, err = sctp.Host(0)(ctx, target)
			return err
		})
		return p, err
	})
	s.Cases = torture.Select(s.Cases, []string{"init/", "association/"})
	enough(t, x.run(ctx, "vrnic torture against Linux's SCTP", s), 0.5)
}
