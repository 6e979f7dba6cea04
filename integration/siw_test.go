package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/integration/proctest"
)

// siwLab is a daemon and a guest on one Unix-stream link, and what the tests saw.
type siwLab struct {
	*siwNet
	t     *testing.T
	img   *peer.Image
	table []siwRow
}

// A siwRow is one line of the report.
type siwRow struct {
	what, addr string
	size       int
	rounds     int
	retries    int
	took       time.Duration
}

// siwTries is how often a connection to siw is tried. Its responder does not see a message that
// arrives while it hands the socket over behind its own reply, until more comes; with a peer
// that then waits for an answer, nothing does. On an emulated processor that is every second
// connection. An attempt that gets no answer for siwSilence has met this.
const (
	siwTries   = 20
	siwSilence = 1500 * time.Millisecond
)

// TestSiw runs rping of a Linux guest, on the kernel's siw, against `vrnic ping`, both ways.
func TestSiw(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	img := siwImage(t, ctx)
	l := &siwLab{siwNet: newSiwNet(t, ctx, img, true, false), t: t, img: img}

	// In this order: one guest, and what goes wrong first is the simplest case of it.
	t.Run("rping to vrnic", func(t *testing.T) { l.rpingToVrnic(t, ctx) })
	t.Run("vrnic to rping", func(t *testing.T) { l.vrnicToRping(t, ctx) })
	t.Run("at once", func(t *testing.T) { l.atOnce(t, ctx) })
	t.Run("show", func(t *testing.T) { l.show(t, ctx) })
	t.Run("disconnect", func(t *testing.T) { l.disconnects(t, ctx) })

	l.stop()
	t.Run("wire", func(t *testing.T) {
		pcap := l.pcap
		checkIWARP(t, pcap, true)
		// Siw resets a connection when something comes that it cannot take. Vrnic may reset one
		// that it gives up.
		for _, frame := range earlyResets(t, pcap) {
			t.Errorf("siw reset a connection by frame %s", frame)
		}
	})
	l.report()
}

// earlyResets are the frames by which the guest resets a connection that either end has not closed
// yet, other than those to killPort. A connection that both have closed is gone, for the guest,
// with the first ACK of its FIN; the ACK of a FIN that it had to repeat it answers by a reset.
func earlyResets(t *testing.T, pcap string) (frames []string) {
	t.Helper()
	out := tshark(t, pcap, "-Y",
		"(tcp.flags.reset == 1 || tcp.flags.fin == 1) && tcp.port != "+killPort, "-T", "fields",
		"-E", "separator=,", "-e", "frame.number", "-e", "tcp.stream", "-e", "ip.src",
		"-e", "ipv6.src", "-e", "tcp.flags.reset")
	type end struct{ stream, addr string }
	closed := make(map[end]bool)
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) != 5 {
			t.Fatalf("tshark says %q", line)
		}
		from := end{f[1], f[2] + f[3]}
		guest := slices.Index(guestAddrs, from.addr)
		switch {
		case f[4] != "1" && f[4] != "True":
			closed[from] = true
		case guest >= 0 && !(closed[from] && closed[end{f[1], addrsA[guest]}]):
			frames = append(frames, f[0])
		}
	}
	return frames
}

// try calls f with a limit of its own until it succeeds, siwTries times at most, and returns how
// often it had to be called again.
func try(t *testing.T, ctx context.Context, f func(ctx context.Context) error) (retries int) {
	t.Helper()
	var err error
	for retries = range siwTries {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		err = f(ctx)
		cancel()
		if err == nil {
			return retries
		}
	}
	t.Errorf("failed %d times; at last: %v", siwTries, err)
	return siwTries
}

const siwRounds = 5

// killPort is the server's where a test kills rping in the middle: what is on its way then finds
// nobody and is answered by a reset, so that the check for resets leaves that port out.
const killPort = "7175"

func (l *siwLab) rpingToVrnic(t *testing.T, ctx context.Context) {
	for _, addr := range addrsA {
		server := l.d.serve("-a", addr)
		for n, size := range sizes {
			begin := time.Now()
			retries := try(t, ctx, func(ctx context.Context) error {
				_, err := l.g.Run(ctx, rping("-c", addr, size, "-C", fmt.Sprint(siwRounds), "-V")...)
				return err
			})
			l.row("rping -> vrnic", addr, size, siwRounds, retries, begin)
			// The client's disconnect arrives as one.
			server.WaitOutput(fmt.Sprintf(" disconnected after %d rounds", siwRounds), n+1)
		}
		server.interrupt()
	}
}

func (l *siwLab) vrnicToRping(t *testing.T, ctx context.Context) {
	for _, addr := range guestAddrs {
		server := l.rpingServer(t, ctx, addr, "-P")
		for _, size := range sizes {
			begin := time.Now()
			retries := try(t, ctx, func(ctx context.Context) error {
				return l.vrnicClient(ctx, addr, size, siwRounds)
			})
			l.row("vrnic -> rping", addr, size, siwRounds, retries, begin)
		}
		l.kill(t, ctx, server)
	}
}

// rping is a command line of rping for one end.
func rping(role, addr string, size int, more ...string) []string {
	return append([]string{"rping", role, "-a", addr, "-S", fmt.Sprint(size), "-v"}, more...)
}

// rpingServer starts a server in the guest and waits until it listens.
func (l *siwLab) rpingServer(t *testing.T, ctx context.Context, addr string,
	more ...string) *peer.Command {
	t.Helper()
	c, err := l.g.Start(rping("-s", addr, sizes[len(sizes)-1], more...)...)
	if err != nil {
		t.Fatal(err)
	}
	// It does not say when it listens; siw's listener is a socket of the kernel's.
	port := 7174
	if slices.Contains(more, killPort) {
		port = 7175
	}
	want := fmt.Sprintf(":%04X ", port)
	proctest.Eventually(t, patience, "rping listens", func() bool {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			out, err := l.g.ReadFile(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1]+" ", want) && f[3] == "0A" {
					return true
				}
			}
		}
		return false
	})
	return c
}

// vrnicClient runs a client against a server in the guest.
func (l *siwLab) vrnicClient(ctx context.Context, addr string, size, rounds int) error {
	p := l.d.start("ping", "-c", "-a", addr, "-S", fmt.Sprint(size), "-C", fmt.Sprint(rounds), "-V",
		"--timeout", siwSilence.String())
	select {
	case <-p.Done:
	case <-ctx.Done():
		p.Signal(syscall.SIGKILL)
		<-p.Done
	}
	if p.Err != nil {
		return fmt.Errorf("%s: %w\n%s", p, p.Err, p.Output())
	}
	return nil
}

// kill ends a server in the guest.
func (l *siwLab) kill(t *testing.T, ctx context.Context, c *peer.Command) {
	t.Helper()
	if err := c.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait(ctx) // by a signal, as asked
}

// atOnce has several connections each way at the same time.
func (l *siwLab) atOnce(t *testing.T, ctx context.Context) {
	const n = 3
	server := l.d.serve("-a", addrsA[0])
	begin := time.Now()
	done := make(chan error)
	for range n {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := l.g.Run(ctx, rping("-c", addrsA[0], 4096, "-C", "20", "-V")...)
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	l.row("3 x rping -> vrnic", addrsA[0], 4096, 20, 0, begin)
	server.WaitOutput(" disconnected after 20 rounds", n)
	server.interrupt()

	// Rping loses a connection request that comes before it has taken up the one before, so here
	// they start one after the other.
	guest := l.rpingServer(t, ctx, guestAddrs[0], "-P")
	begin = time.Now()
	var clients []*process
	retries := 0
	for range n {
		var c *process
		retries += try(t, ctx, func(context.Context) error {
			c = l.d.start("ping", "-c", "-a", guestAddrs[0], "-S", "4096", "-V", "-v", "--timeout",
				siwSilence.String())
			proctest.Eventually(t, patience, "the client pings or gives up", func() bool {
				return strings.Contains(c.Output(), "ping data: ") || c.Ended()
			})
			if c.Ended() {
				return fmt.Errorf("%s: %v", c, c.Err)
			}
			return nil
		})
		clients = append(clients, c)
	}
	if rows := l.d.show("qp"); len(rows) != n {
		t.Errorf("%d QPs, want the %d that ping", len(rows), n)
	}
	for _, c := range clients {
		c.WaitOutput("ping data: ", 20)
	}
	l.row("3 x vrnic -> rping", guestAddrs[0], 4096, 20, retries, begin)
	for _, c := range clients {
		c.interrupt()
	}
	l.kill(t, ctx, guest)
}

// show looks at a live connection with siw.
func (l *siwLab) show(t *testing.T, ctx context.Context) {
	server := l.d.serve("-a", addrsA[0], "-p", killPort)
	c, err := l.g.Start(rping("-c", addrsA[0], 64, "-p", killPort)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitOutput(ctx, "ping data: rdma-ping-3"); err != nil {
		t.Fatal(err)
	}
	row := checkLiveQP(t, l.d, "vrnic0")
	t.Logf("show qp: %v", row)
	l.kill(t, ctx, c)
	// A peer that dies is one that disconnects: siw closes its stream. A Read that it does not answer
	// any more is reset.
	server.WaitOutput("server: client ", 1)
	server.interrupt()
	proctest.Eventually(t, patience, "the QP is gone", func() bool { return len(l.d.show("qp")) == 0 })
}

// disconnects has each of the four ends be the one that ends a connection first.
func (l *siwLab) disconnects(t *testing.T, ctx context.Context) {
	// The client's end of rping and of vrnic, with servers for one client: all succeed.
	server := l.d.start("ping", "-s", "-a", addrsA[0])
	server.WaitOutput("listening on", 1)
	try(t, ctx, func(ctx context.Context) error {
		_, err := l.g.Run(ctx, rping("-c", addrsA[0], 64, "-C", "3")...)
		return err
	})
	server.succeed()

	try(t, ctx, func(ctx context.Context) error {
		guest := l.rpingServer(t, ctx, guestAddrs[0], "-C", "3")
		if err := l.vrnicClient(ctx, guestAddrs[0], 64, 3); err != nil {
			l.kill(t, ctx, guest)
			return err
		}
		return guest.Wait(ctx)
	})

	// The server's end of vrnic: rping sees the disconnect and ends.
	server = l.d.serve("-a", addrsA[0])
	c, err := l.g.Start(rping("-c", addrsA[0], 64)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitOutput(ctx, "ping data: rdma-ping-3"); err != nil {
		t.Fatal(err)
	}
	server.interrupt()
	if err := c.WaitOutput(ctx, "DISCONNECT EVENT"); err != nil {
		t.Error(err)
	}
	_ = c.Wait(ctx) // its status depends on what it was doing

	// The server's end of rping: vrnic says that the server has disconnected.
	try(t, ctx, func(ctx context.Context) error {
		guest := l.rpingServer(t, ctx, guestAddrs[0], "-p", killPort)
		client := l.d.start("ping", "-c", "-a", guestAddrs[0], "-p", killPort, "-v", "--timeout",
			siwSilence.String())
		proctest.Eventually(t, patience, "the client pings or gives up", func() bool {
			return strings.Count(client.Output(), "ping data: ") >= 3 || client.Ended()
		})
		l.kill(t, ctx, guest)
		if err := client.Wait(patience); err == nil || !strings.Contains(client.Output(), "disconnect") {
			return fmt.Errorf("the client ended with %v:\n%s", err, client.Output())
		}
		return nil
	})
}

func (l *siwLab) row(what, addr string, size, rounds, retries int, begin time.Time) {
	l.table = append(l.table, siwRow{what, addr, size, rounds, retries, time.Since(begin)})
}

// report is what the pings took.
func (l *siwLab) report() {
	var s strings.Builder
	fmt.Fprintf(&s, "Linux %s (kernel and siw of package version %s), in QEMU.\n\n", l.img.Release,
		l.img.Version)
	s.WriteString("| direction | server | octets | rounds | retries | seconds " +
		"|\n|---|---|--:|--:|--:|--:|\n")
	for _, r := range l.table {
		fmt.Fprintf(&s, "| %s | %s | %d | %d | %d | %.2f |\n", r.what, r.addr, r.size, r.rounds,
			r.retries, r.took.Seconds())
	}
	reportSiw(l.t, "rping and vrnic ping", s.String())
}
