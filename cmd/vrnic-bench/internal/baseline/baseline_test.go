package baseline

import (
	"context"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/vnic"
)

// TestMain is also a peer: this program again, with the flags of one.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "be-peer" {
		os.Exit(m.Run())
	}
	p := Peer{}
	fs := flag.NewFlagSet("be-peer", flag.PanicOnError)
	fs.TextVar(&p.Addr, "addr", netip.Prefix{}, "")
	fs.TextVar(&p.Peer, "peer", netip.AddrPort{}, "")
	fs.BoolVar(&p.UDP, "udp", false, "")
	_ = fs.Parse(os.Args[2:]) // it panics
	if err := p.Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
	os.Exit(0)
}

var loopback = netip.MustParsePrefix("127.0.0.1/8")

// contextOf is for what takes no time; programs that poll on both sides take some while others have
// the processors.
func contextOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// measures has b do what it can, and refuse the rest.
func measures(t *testing.T, b Baseline, name string, kinds ...Kind) {
	t.Helper()
	if b.Name() != name {
		t.Errorf("its name is %q, want %q", b.Name(), name)
	}
	for _, k := range []Kind{Bandwidth, RoundTrip} {
		does := false
		for _, want := range kinds {
			does = does || want == k
		}
		if b.Does(k) != does {
			t.Errorf("%s does %s: %v", name, k, b.Does(k))
		}
		r, err := b.Measure(contextOf(t), Request{Kind: k, Size: 4096, Slots: 2,
			Time: 5 * time.Millisecond})
		switch {
		case !does:
			if err == nil {
				t.Errorf("%s measures %s", name, k)
			}
		case err != nil || r.Octets == 0 || r.Messages == 0 || r.Elapsed <= 0 || r.BitsPerSecond() <= 0:
			t.Errorf("%s, %s: %+v, %v", name, k, r, err)
		case k == RoundTrip && (r.P50 <= 0 || r.Mean <= 0 || r.P999 < r.P50):
			t.Errorf("%s, %s: %+v", name, k, r)
		}
	}
	polls := name == "kernel-tcp"
	if b.Traits() != (Traits{Polls: polls}) {
		t.Errorf("%s: %+v", name, b.Traits())
	}
	if slices.Contains(kinds, RoundTrip) {
		r, err := b.Measure(contextOf(t), Request{Kind: RoundTrip, Size: 64, Slots: 1,
			Time: 5 * time.Millisecond, Poll: true})
		if (err == nil) != polls || polls && (r.Messages == 0 || r.P50 <= 0 || r.P999 < r.P50) {
			t.Errorf("%s, polled: %+v, %v", name, r, err)
		}
	}
}

func TestMemcpy(t *testing.T) {
	dev, err := vnic.New(vnic.Config{Name: "m", Addrs: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.1/8")}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c, err := dev.Open(vnic.ContextConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := NewMemcpy(c)
	measures(t, m, "memcpy", Bandwidth)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Measure(ctx, Request{Kind: Bandwidth, Size: 64, Slots: 1, Time: time.Hour}); err ==
		nil {
		t.Error("it goes on")
	}
}

func TestBestStacks(t *testing.T) {
	s, err := NewBestStacks(contextOf(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.HasPrefix(s.Name(), "netstack-tcp-mtu-") {
		t.Error(s.Name())
	}
	measures(t, s, s.Name(), Bandwidth, RoundTrip)
}

func TestKernelInThisProcess(t *testing.T) {
	here, err := netlab.Here()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	k, err := NewKernel(here, here, loopback.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	measures(t, k, "kernel-tcp", Bandwidth, RoundTrip)
	if _, err := NewKernel(here, here, netip.MustParseAddr("203.0.113.1")); err == nil {
		t.Error("it listens at an address that is not here")
	}
}

func TestPeers(t *testing.T) {
	plugged := 0
	site := PeerSite{Addr: loopback, Plug: func() error { plugged++; return nil }}
	p, err := StartPeers("kernel-tcp", []string{os.Args[0], "be-peer"}, site, site)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	measures(t, p, "kernel-tcp", Bandwidth, RoundTrip)
	if plugged != 2 {
		t.Errorf("plugged %d times", plugged)
	}
	if _, err := p.Measure(contextOf(t), Request{Kind: "nonsense"}); err == nil ||
		!strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v", err) // what the peer says
	}
	p.server.Close()
	if _, err := p.Measure(contextOf(t), Request{Kind: RoundTrip, Size: 64, Slots: 1,
		Time: time.Millisecond}); err == nil {
		t.Error("nobody is there, and it measures")
	}
	if _, err := StartPeers("x", []string{"/nonexistent"}, site, site); err == nil {
		t.Error("what is not there starts")
	}
}

func TestUDPPeers(t *testing.T) {
	site := PeerSite{Addr: loopback, UDP: true}
	p, err := StartPeers("kernel-udp", []string{os.Args[0], "be-peer"}, site, site)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	measures(t, p, "kernel-udp", RoundTrip)
	p.server.Close()
	if _, err := p.Measure(contextOf(t), Request{Kind: RoundTrip, Size: 64, Slots: 1,
		Time: time.Millisecond}); err == nil {
		t.Error("nobody is there, and it measures")
	}
}

func TestPeerRefusesNonsense(t *testing.T) {
	for name, p := range map[string]Peer{
		"namespace":       {NetNS: "/nonexistent", Addr: loopback},
		"address":         {Addr: netip.MustParsePrefix("203.0.113.1/8")},
		"tap's namespace": {NetNS: "/nonexistent", Tap: "t0", Addr: netip.MustParsePrefix("10.0.0.1/8")},
	} {
		if err := p.Run(contextOf(t), strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// script is all that is in the $PATH, under that name: the real ones are TestInstalledPrograms'.
func script(t *testing.T, name, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

func installed(t *testing.T, name string) Baseline {
	t.Helper()
	b, left := tried(t, name)
	if left != nil {
		t.Error(left)
	}
	return b
}

// tried is a program that works, or why it does not.
func tried(t *testing.T, name string) (b Baseline, leftOut error) {
	t.Helper()
	here, err := netlab.Here()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	for _, b := range Installed(contextOf(t), here, here, loopback.Addr(), func(n string, err error) {
		if n == name {
			leftOut = err
		}
	}) {
		if b.Name() == name {
			return b, nil
		}
	}
	return nil, leftOut
}

// fi_pingpong tells the mean of one way; each measurement is as long as was asked for, by the one
// before.
func TestFiPingpong(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	script(t, "fi_pingpong", `echo "$@" >> `+log+`
case "$*" in *127.0.0.1) ;; *) exec /bin/sleep 0.05;; esac
echo 'bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec'
echo '1k      200     =200     12k         0.00s      7.10       5.00       0.11'
`)
	b := installed(t, "libfabric-tcp")
	if b == nil || b.Traits() != (Traits{OnlyMean: true, OnlySends: true}) || b.Does(Bandwidth) ||
		!b.Does(RoundTrip) {
		t.Fatalf("%+v", b)
	}
	r, err := b.Measure(contextOf(t), Request{Kind: RoundTrip, Size: 1024, Slots: 1,
		Time: 4 * time.Millisecond})
	if err != nil || r.Mean != 10*time.Microsecond || r.Messages != 400 {
		t.Errorf("%+v, %v", r, err)
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "-p tcp -e msg -I 400 -S 1024 -P ") ||
		!strings.Contains(string(text), "-p tcp -e msg -I 200 -S 1024 -B ") {
		t.Errorf("it was called with\n%s %v", text, err)
	}
}

func TestUCX(t *testing.T) {
	script(t, "ucx_perftest", `case "$*" in 127.0.0.1*-f?-v) ;; *) exec /bin/sleep 0.05;; esac
[ "$UCX_TLS" = tcp,self ] || exit 1
echo 'iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr'
case "$*" in
*ucp_put_lat*) echo 20000,10.335,22,21,2.87,2.87,47013,47013;;
*ucp_put_bw*) echo 20000,10.335,22,21,90,100,47013,47013;;
esac
`)
	b := installed(t, "ucx-tcp")
	if b == nil || b.Traits() != (Traits{OnlyMean: true}) || !b.Does(Bandwidth) || !b.Does(RoundTrip) {
		t.Fatalf("%+v", b)
	}
	r, err := b.Measure(contextOf(t), Request{Kind: RoundTrip, Size: 64, Slots: 1,
		Time: time.Millisecond})
	if err != nil || r.Mean != 42*time.Microsecond {
		t.Errorf("%+v, %v", r, err)
	}
	if args := b.(*program).client(netip.MustParseAddrPort("10.0.0.1:5"), Request{Kind: Bandwidth,
		Size: 1 << 20, Slots: 16}, 9); strings.Join(args,
		" ") != "10.0.0.1 -p 5 -t ucp_put_bw -s 1048576 -n 9 -O 16 -f -v" {
		t.Errorf("%q", args)
	}
	r, err = b.Measure(contextOf(t), Request{Kind: Bandwidth, Size: 1 << 20, Slots: 16,
		Time: time.Millisecond})
	if want := 100 * float64(1<<20) * 8; err != nil || r.BitsPerSecond() < 0.999*want ||
		r.BitsPerSecond() > 1.001*want {
		t.Errorf("%+v, %v", r, err)
	}
}

// A program that fails, or says what nobody understands, is an error with its words.
func TestProgramsThatFail(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"fails":    {"echo 'no such provider' >&2; exit 1", "no such provider"},
		"nonsense": {"case \"$*\" in *127.0.0.1) echo hello;; *) exec /bin/sleep 0.05;; esac", "hello"},
		"zero": {"case \"$*\" in *127.0.0.1) echo 64 1 =1 1 0.00s 0.0 0.00 0.0;; *) exec " +
			"/bin/sleep 0.05;; esac", "usec/xfer"},
	} {
		t.Run(name, func(t *testing.T) {
			script(t, "fi_pingpong", tt.text)
			_, err := tried(t, "libfabric-tcp")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// The real ones, where they are.
func TestInstalledPrograms(t *testing.T) {
	for _, name := range []string{"libfabric-tcp", "ucx-tcp"} {
		b := installed(t, name)
		if b == nil {
			t.Logf("no %s here", name)
			continue
		}
		for _, k := range []Kind{RoundTrip, Bandwidth} {
			if !b.Does(k) {
				continue
			}
			r, err := b.Measure(contextOf(t), Request{Kind: k, Size: 1024, Slots: 4,
				Time: 5 * time.Millisecond})
			if err != nil || r.Elapsed <= 0 || r.Octets == 0 || k == RoundTrip && r.Mean <= 0 {
				t.Errorf("%s, %s: %+v, %v", name, k, r, err)
			}
		}
	}
}
