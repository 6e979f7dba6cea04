package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// Two clients of one daemon move data by Send, Write and Read in both directions: over TCP between
// two devices, IPv4 and IPv6, through the loopback of one, and over TCP between QPs of a device
// that is told so.
func TestTransfer(t *testing.T) {
	d := daemontest.Start(t, func(cfg *daemon.Config) {
		wire := daemon.DeviceSpec{Name: "wire0", Addrs: []netip.Prefix{
			netip.MustParsePrefix("10.78.0.2/24"), netip.MustParsePrefix("fd78::2/64")}, ForceWire: true}
		cfg.Devices = append(slices.Clone(cfg.Devices), wire)
	})
	for _, tt := range []struct {
		name, a, b string
		v6         bool
		mpa        uint8 // the revision that LIST shows; 0: no TCP
	}{
		{"TCP over IPv4", "vrnic0", "vrnic1", false, 2},
		{"TCP over IPv6", "vrnic0", "vrnic1", true, 2},
		{"loopback", "vrnic0", "vrnic0", false, 0},
		{"wire forced, IPv4", "wire0", "wire0", false, 2},
		{"wire forced, IPv6", "wire0", "wire0", true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const half = 3 << 20
			a := daemontest.NewEnd(t, daemontest.Open(t, daemontest.Dial(t, d.Socket()), tt.a), 2*half)
			b := daemontest.NewEnd(t, daemontest.Open(t, daemontest.Dial(t, d.Socket()), tt.b), 2*half)
			daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, tt.v6, 0))
			if p := a.Conn.Param(); string(p.PrivateData) != "yes" {
				t.Errorf("the reply's private data is %q", p.PrivateData)
			}
			if p := b.Conn.Param(); string(p.PrivateData) != "please" {
				t.Errorf("the request's private data is %q", p.PrivateData)
			}
			if a.Conn.RemoteAddr() != b.Conn.LocalAddr() || b.Conn.RemoteAddr() != a.Conn.LocalAddr() {
				t.Errorf("one end is %v to %v, the other %v to %v",
					a.Conn.LocalAddr(), a.Conn.RemoteAddr(), b.Conn.LocalAddr(), b.Conn.RemoteAddr())
			}
			for i, q := range listQPs(t, d.Dial()) {
				if q.MPA != tt.mpa {
					t.Errorf("QP %d of %s: MPA revision %d, want %d", i, q.Dev, q.MPA, tt.mpa)
				}
			}
			seed := byte(1)
			for _, dir := range []struct{ from, to *daemontest.End }{{a, b}, {b, a}} {
				for _, n := range []int{1, 64, 1460, 4096, 65537, half} {
					seed++
					from, to := dir.from, dir.to
					to.Recv(1, half, half)
					from.Fill(0, n, seed)
					from.Send(2, 0, n)
					from.WantOK("the Send", 2, rdma.WCSend)
					if wc := to.WantOK("the receive", 1, rdma.WCRecv); int(wc.ByteLen) != n {
						t.Fatalf("a Send of %d octets was received as %d", n, wc.ByteLen)
					}
					to.Check(fmt.Sprintf("Send of %d", n), half, n, seed)

					// A Write is seen when a Send behind it has been received.
					seed++
					from.Fill(0, n, seed)
					to.Recv(3, half, 64)
					from.Write(4, 0, n, to, 0)
					from.Send(5, 0, 1)
					from.WantOK("the Write", 4, rdma.WCWrite)
					from.WantOK("the Send behind it", 5, rdma.WCSend)
					to.WantOK("the receive behind the Write", 3, rdma.WCRecv)
					to.Check(fmt.Sprintf("Write of %d", n), 0, n, seed)

					seed++
					to.Fill(0, n, seed)
					from.Read(6, half, n, to, 0)
					from.WantOK("the Read", 6, rdma.WCRead)
					from.Check(fmt.Sprintf("Read of %d", n), half, n, seed)
				}
			}
			// Octets that the post itself takes.
			b.Recv(7, 0, 64)
			a.Post(&rdma.SendWR{ID: 8, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline | rdma.Solicited,
				Inline: []byte("inline")})
			a.WantOK("the inline Send", 8, rdma.WCSend)
			b.WantOK("its receive", 7, rdma.WCRecv)
			if got := string(b.Buf.Bytes()[:6]); got != "inline" {
				t.Errorf("an inline Send brought %q", got)
			}
			disconnect(t, a, b)
		})
	}
}

// A listedQP is of what LIST says of a QP.
type listedQP struct {
	Dev, State   string
	MPA          uint8
	CRC          bool
	Markers, RTR *string
}

// listQPs are the QPs that are connected; those of earlier tests may be there still, in other
// states.
func listQPs(t *testing.T, c *shm.Client) []listedQP {
	t.Helper()
	rows, err := c.List("qp")
	if err != nil {
		t.Fatal(err)
	}
	var qps []listedQP
	for _, r := range rows {
		var q listedQP
		if err := json.Unmarshal(r, &q); err != nil {
			t.Fatal(err)
		}
		if q.State == "RTS" {
			qps = append(qps, q)
		}
	}
	if len(qps) == 0 {
		t.Fatal("LIST shows no connected QP")
	}
	return qps
}

// disconnect ends a connection from a; both ends see it, in good order, and posted receives flush.
func disconnect(t *testing.T, a, b *daemontest.End) {
	t.Helper()
	b.Recv(99, 0, 1)
	if err := a.Conn.Disconnect(); err != nil {
		t.Fatalf("disconnect: %v", err)
	}
	for _, e := range []*daemontest.End{a, b} {
		wantDone(t, e)
		if err := e.Conn.Err(); err != nil {
			t.Errorf("a graceful end is %v", err)
		}
	}
	b.WantStatus("a posted receive flushes", 99, rdma.WCFlush)
}

// wantDone waits until a connection has ended, and says how long that took.
func wantDone(t *testing.T, e *daemontest.End) time.Duration {
	t.Helper()
	begin := time.Now()
	select {
	case <-e.Conn.Done():
	case <-time.After(callTime):
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Fatalf("the connection of QP %d has not ended within %v; state %v\n%s", e.QP.Num(), callTime,
			e.QP.State(), stacks.String())
	}
	return time.Since(begin)
}

// wantSoon wants a connection to end within limit, unless the machine holds it up; end has one end
// and says how long that took.
func wantSoon(t *testing.T, limit time.Duration, end func() time.Duration) {
	t.Helper()
	err := needtest.Soon(limit, func() time.Duration {
		if t.Failed() {
			return 0 // that is enough
		}
		return end()
	})
	if err != nil {
		t.Errorf("a connection ended: %v", err)
	}
}

// A request that the program refuses, and one that nobody listens for.
func TestRefused(t *testing.T) {
	d := daemontest.Start(t)
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
	b := daemontest.Open(t, d.Dial(), "vrnic1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := b.Listen(daemontest.Addr(t, b, false, 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	rejected := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			err = req.Reject([]byte("not today"))
		}
		rejected <- err
	}()
	_, err = a.Dev.Connect(ctx, a.QP, l.Addr(), rdma.ConnParam{})
	if err := <-rejected; err != nil {
		t.Fatalf("reject: %v", err)
	}
	refusal, ok := err.(*rdma.RejectedError)
	if !ok || string(refusal.PrivateData) != "not today" {
		t.Errorf("the refused side got %v", err)
	}
	addr := l.Addr()
	l.Close()
	e := daemontest.NewEnd(t, a.Dev, 4096)
	if _, err := a.Dev.Connect(ctx, e.QP, addr, rdma.ConnParam{}); err == nil {
		t.Error("connected to a port on which nobody listens")
	} else {
		t.Log(err)
	}
}
