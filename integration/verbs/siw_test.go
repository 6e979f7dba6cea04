package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// guestAddr is the address of the guest with siw.
const guestAddr = "10.77.0.1"

// A siwLab is a daemon and a guest with the kernel's siw, or its rxe, on one Unix-stream link.
type siwLab struct {
	*daemon
	g   *peer.Guest
	rxe bool
}

func newSiwLab(t *testing.T, ctx context.Context) *siwLab {
	t.Helper()
	return newLinuxLab(t, ctx, false)
}

func newLinuxLab(t *testing.T, ctx context.Context, rxe bool) *siwLab {
	t.Helper()
	if os.Getenv("VRNIC_TEST_INTEROP") == "" {
		needtest.Skip(t, "boots a guest, which takes a minute: run `make interop`")
	}
	if m := peer.Missing(); len(m) > 0 {
		needtest.Lacking(t, "qemu", "packages are missing: apt-get install "+strings.Join(m, " "))
	}
	img, err := peer.Build(ctx, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	device := deviceA
	if rxe {
		device = roceA
	}
	l := &siwLab{daemon: up(t, nil, "--device", device, "--port", "unix-listen:"+link), rxe: rxe}
	l.g, err = peer.Start(ctx, img, peer.Config{Link: link, RoCE: rxe, Addrs: []netip.Prefix{
		netip.MustParsePrefix(guestAddr + "/24")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guest:\n%s", l.g.Log())
		}
		l.g.Stop()
	})
	return l
}

// A siwJob has one and the same program of Debian's on both sides, on vrnic's libraries here and on
// rdma-core's and the kernel's driver in the guest.
type siwJob struct {
	server, client string
	out            string // what the client's output must match
	smoke          bool   // belongs to the quick part
	// The server speaks first, which MPA does not allow before the client has said something: siw's
	// client has to send a ready-to-receive message, as it does when it is told to.
	serverFirst bool
}

func siwJobs() (jobs []siwJob) {
	for i, size := range []int{64, 4096, 60000} {
		jobs = append(jobs, siwJob{
			server: fmt.Sprintf("rping -s -a ADDR -p PORT -C 10 -S %d -v -V", size),
			client: fmt.Sprintf("rping -c -a ADDR -p PORT -C 10 -S %d -v -V", size),
			out:    "ping data: rdma-ping-9: ", smoke: i == 2,
		})
	}
	jobs = append(jobs, siwJob{server: "ucmatose -b ADDR -p PORT -c 4",
		client: "ucmatose -s ADDR -p PORT -c 4", out: "return status 0", serverFirst: true})
	for _, tool := range []string{"ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat"} {
		for _, o := range []string{"-n 100 -s 4096", "-n 50 -s 65536"} {
			s := fmt.Sprintf("%s -R -F -p PORT %s", tool, o)
			jobs = append(jobs, siwJob{server: s, client: s + " ADDR", out: `^ *(4096|65536) +\d+ +[\d.]+ +`,
				smoke: tool == "ib_send_bw" && strings.Contains(o, "4096")})
		}
	}
	return append(jobs, linuxRsocketJobs()...)
}

const (
	siwTries = 12
	siwLimit = 15 * time.Second // for a program in an emulated machine, and for one that siw lets wait
)

// Debian's programs on vrnic's libraries against themselves on siw, as client and as server.
func TestSiwPrograms(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	need(t, "rping", "ucmatose", "ib_send_bw")
	l := newSiwLab(t, ctx)
	smoke := os.Getenv("VRNIC_TEST_INTEROP") == "smoke"
	for _, j := range siwJobs() {
		if smoke && !j.smoke {
			continue
		}
		t.Run("client of siw's/"+j.client, func(t *testing.T) { l.client(t, ctx, &j) })
		if !j.serverFirst {
			t.Run("server of siw's/"+j.server, func(t *testing.T) { l.server(t, ctx, &j) })
		}
	}
	if err := l.g.LoadSiw(ctx, "peer_to_peer=1", "rtr_type=0x8000"); err != nil {
		t.Fatal(err)
	}
	for _, j := range siwJobs() {
		if j.serverFirst && !smoke {
			t.Run("server of siw's/"+j.server, func(t *testing.T) { l.server(t, ctx, &j) })
		}
	}
	l.g.Stop()
}

// refused is what a socket's client says where nobody listens.
var refused = regexp.MustCompile("rpoll: |rconnect: ")

// client runs the job's client here and its server in the guest.
func (l *siwLab) client(t *testing.T, ctx context.Context, j *siwJob) {
	d := *l.daemon
	d.T = t
	for try := 1; ; try++ {
		port := fmt.Sprint(nextPort.Add(1))
		s, err := l.g.Start(words(j.server, "ADDR", guestAddr, "PORT", port)...)
		if err != nil {
			t.Fatal(err)
		}
		// It does not say when it listens. A listener of siw's is a socket of the kernel's; one of
		// rxe's nobody sees, so that clients are refused until it is there.
		if !l.rxe {
			proctest.Eventually(t, patience, j.server+" listens",
				func() bool { return l.guestListens(t, ctx, port) })
		}
		start := func() *process {
			c := d.start(words(j.client, "ADDR", guestAddr, "PORT", port)...)
			select {
			case <-c.Done:
			case <-time.After(siwLimit):
			}
			return c
		}
		c := start()
		for end := time.Now().Add(patience); l.rxe && time.Now().Before(end) &&
			refused.MatchString(c.Output()); c = start() {
			time.Sleep(100 * time.Millisecond) // before it is tried again
		}
		ok := c.Ended() && c.Err == nil
		if !ok && try < siwTries {
			c.KillGroup()
			<-c.Done
			t.Logf("try %d: %v\n%s", try, c.Err, c.Tail())
			_ = s.Signal(9)
			_ = s.Wait(ctx) // by a signal, as asked
			continue
		}
		c.succeed(siwLimit, j.out, "!mismatch")
		sctx, cancel := context.WithTimeout(ctx, siwLimit)
		defer cancel()
		if err := s.Wait(sctx); err != nil {
			t.Errorf("the guest's server: %v\n%s", err, s.Output())
		}
		t.Logf("%d tries", try)
		return
	}
}

// guestListens reports whether a port has a listener in the guest.
func (l *siwLab) guestListens(t *testing.T, ctx context.Context, port string) bool {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		out, err := l.g.ReadFile(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if w := strings.Fields(line); len(w) > 3 && strings.HasSuffix(w[1], fmt.Sprintf(":%04X", n)) &&
				w[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// server runs the job's server here and its client in the guest.
func (l *siwLab) server(t *testing.T, ctx context.Context, j *siwJob) {
	d := *l.daemon
	d.T = t
	for try := 1; ; try++ {
		port := int(nextPort.Add(1))
		s := d.start(words(j.server, "ADDR", addrsA[0], "PORT", fmt.Sprint(port))...)
		d.listens(s, port, 1)
		cctx, cancel := context.WithTimeout(ctx, siwLimit)
		out, err := l.g.Run(cctx, words(j.client, "ADDR", addrsA[0], "PORT", fmt.Sprint(port))...)
		cancel()
		if err != nil && try < siwTries {
			t.Logf("try %d: %v", try, err)
			s.KillGroup()
			<-s.Done
			continue
		}
		if err != nil {
			t.Fatalf("the guest's client: %v\n%s", err, out)
		}
		s.succeed(siwLimit, "!mismatch")
		t.Logf("%d tries", try)
		return
	}
}
