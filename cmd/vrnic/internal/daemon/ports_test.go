package daemon_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
)

// Two daemons joined by a Unix stream: a client of one talks to a client of the other. When one
// daemon ends, in order, the other's client sees the disconnect within a second.
func TestUnixLink(t *testing.T) {
	wantSoon(t, time.Second, func() time.Duration { return unixLink(t) })
}

// unixLink returns how long the client took.
func unixLink(t *testing.T) (took time.Duration) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	link := filepath.Join(dir, "link")
	with := func(device, port string) func(*daemon.Config) {
		return func(c *daemon.Config) {
			spec, err := daemon.ParseDevice(device)
			if err != nil {
				t.Fatal(err)
			}
			p, err := daemon.ParsePort(port)
			if err != nil {
				t.Fatal(err)
			}
			c.Devices, c.Ports = []daemon.DeviceSpec{spec}, []daemon.PortSpec{p}
		}
	}
	left := daemontest.Start(t, with("left,addr=10.88.0.1/24,mtu=9000", "unix-listen:"+link))
	right := daemontest.Start(t, with("right,addr=10.88.0.2/24,mtu=9000", "unix-connect:"+link))
	a := daemontest.NewEnd(t, daemontest.Open(t, left.Dial(), "left"), 1<<20)
	b := daemontest.NewEnd(t, daemontest.Open(t, right.Dial(), "right"), 1<<20)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	a.Fill(0, 1<<20, 5)
	b.Recv(1, 0, 1)
	a.Write(2, 0, 1<<20, b, 0)
	a.Send(3, 0, 1)
	b.WantOK("the Send behind the Write", 1, rdma.WCRecv)
	b.Check("Write over the link", 0, 1<<20, 5)

	b.Recv(4, 0, 1)
	if err := left.Close(); err != nil {
		t.Errorf("close the left daemon: %v", err)
	}
	took = wantDone(t, b)
	b.WantStatus("a posted receive flushes", 4, rdma.WCFlush)
	wantDone(t, a)
	if err := a.Conn.Err(); !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("the left client's connection ended with %v", err)
	}
	if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link's socket is left: %v", err)
	}
	return took
}

// A listener of an unspecified address hears what comes to its own device, on all addresses, and
// leaves the port of the other device to others.
func TestListenUnspecified(t *testing.T) {
	d := daemontest.Start(t)
	dev0, dev1 := daemontest.Open(t, d.Dial(), "vrnic0"), daemontest.Open(t, d.Dial(), "vrnic1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addr := netip.AddrPortFrom(netip.IPv6Unspecified(), 4791)
	l0, err := dev0.Listen(addr, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l0.Close()
	l1, err := dev1.Listen(addr, 0)
	if err != nil {
		t.Fatalf("the same port of another device: %v", err)
	}
	defer l1.Close()
	if _, err := dev1.Listen(addr, 0); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("the same port of the same device: %v, want %v", err, rdma.ErrBusy)
	}
	for _, v6 := range []bool{false, true} {
		e := daemontest.NewEnd(t, dev1, 4096)
		to := daemontest.Addr(t, dev0, v6, 4791)
		go func() {
			if req, err := l0.Next(ctx); err == nil {
				if req.LocalAddr() != to {
					t.Errorf("a request to %v came to %v", to, req.LocalAddr())
				}
				req.Reject([]byte("heard"))
			}
		}()
		_, err := dev1.Connect(ctx, e.QP, to, rdma.ConnParam{})
		var r *rdma.RejectedError
		if !errors.As(err, &r) || string(r.PrivateData) != "heard" {
			t.Errorf("connect to %v: %v", to, err)
		}
	}
}
