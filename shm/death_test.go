package shm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A deathWatch is a client that blocks in every call that can block, with work posted.
type deathWatch struct {
	t    testing.TB
	a, b *node
	n    int // what blocks
	wg   sync.WaitGroup
	out  chan string // what went wrong
}

// watchDeath sets up everything that the end of the daemon must end.
func watchDeath(t testing.TB, da, db *shm.Device) *deathWatch {
	t.Helper()
	a, b := newNode(t, da, 8), newNode(t, db, 8)
	connect(t, a, b)
	w := &deathWatch{t: t, a: a, b: b, out: make(chan string, 64)}
	// What was completed before the end and not polled is still there; so are requests that wait
	// for a receive, which the peer never posts, and receives that nothing comes for.
	check(t, b.qp.PostRecv(&rdma.RecvWR{ID: 100, SGEs: []rdma.SGE{b.sge(0, 8)}}))
	for i := range 4 {
		check(t, a.qp.PostSend(&rdma.SendWR{ID: uint64(i), Op: rdma.OpSend,
			Flags: rdma.Inline | rdma.Signaled, Inline: []byte{1}}))
		check(t, a.qp.PostRecv(&rdma.RecvWR{ID: uint64(10 + i), SGEs: []rdma.SGE{a.sge(0, 8)}}))
	}
	if wc := next(t, a.scq); wc.ID != 0 || wc.Status != rdma.WCSuccess {
		t.Fatalf("%+v", wc)
	}
	l := must(a.dev.Listen(netip.AddrPortFrom(a.dev.Attr().Addrs[0].Addr(), 9000), 4))(t)
	for range 3 {
		w.blocks("wait", func(ctx context.Context) error { return a.rcq.Wait(ctx) })
	}
	w.blocks("listener", func(ctx context.Context) error { _, err := l.Next(ctx); return err })
	w.blocks("connect", func(ctx context.Context) error {
		q, err := a.pd.CreateQP(a.qp.Config())
		if err != nil {
			return err
		}
		defer q.Close()
		_, err = a.dev.Connect(ctx, q, netip.MustParseAddrPort("10.9.0.2:1"), rdma.ConnParam{})
		return err
	})
	w.blocks("async event", func(ctx context.Context) error {
		ev, err := a.dev.NextAsyncEvent(ctx)
		if err != nil || ev.Type != rdma.EventDeviceFatal {
			return fmt.Errorf("event %v, %w, want DEVICE_FATAL first", ev.Type, err)
		}
		_, err = a.dev.NextAsyncEvent(ctx)
		return err
	})
	w.blocks("spinning poll", func(ctx context.Context) error {
		wc := make([]rdma.WC, 1)
		cq, err := a.dev.CreateCQ(4)
		for err == nil && ctx.Err() == nil {
			_, err = cq.Poll(wc)
		}
		return err
	})
	w.blocks("connection", func(ctx context.Context) error {
		select {
		case <-a.conn.Done():
			return a.conn.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return w
}

// blocks runs f, which must end with rdma.ErrDeviceGone.
func (w *deathWatch) blocks(what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	w.n++
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer cancel()
		if err := f(ctx); !errors.Is(err, rdma.ErrDeviceGone) {
			w.out <- fmt.Sprintf("%s ended with: %v", what, err)
		}
	}()
}

// gone checks that everything has ended.
func (w *deathWatch) gone() {
	w.t.Helper()
	t, a := w.t, w.a
	w.wg.Wait()
	close(w.out)
	for s := range w.out {
		t.Error(s)
	}
	flushed := func(cq rdma.CQ, want ...uint64) {
		t.Helper()
		for i, id := range want {
			wc := next(t, cq)
			if wc.ID != id || wc.QPN != a.qp.Num() || wc.Status != rdma.WCFlush {
				t.Errorf("completion %d: %+v, want request %d flushed", i, wc, id)
			}
		}
		if n, err := cq.Poll(make([]rdma.WC, 4)); n != 0 || !errors.Is(err, rdma.ErrDeviceGone) {
			t.Errorf("poll after the flush: %d, %v", n, err)
		}
	}
	flushed(a.scq, 1, 2, 3)
	flushed(a.rcq, 10, 11, 12, 13)
	if a.qp.State() != rdma.QPError {
		t.Errorf("QP is %v", a.qp.State())
	}
	gone := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rdma.ErrDeviceGone) {
			t.Errorf("%s: %v", what, err)
		}
	}
	gone("post send", a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend}))
	gone("post receive", a.qp.PostRecv(&rdma.RecvWR{}))
	gone("arm", a.scq.Arm(false))
	gone("wait", a.scq.Wait(testContext(t)))
	_, err := a.dev.AllocPD()
	gone("alloc PD", err)
	_, err = a.dev.AllocBuffer(1)
	gone("alloc buffer", err)
	_, err = a.dev.Client().List("qp")
	gone("list", err)
	// Closing works as always.
	check(t, a.mr.Close())
	check(t, a.qp.Close())
	check(t, a.scq.Close())
	check(t, a.buf.Close())
	check(t, a.dev.Close())
	check(t, a.dev.Client().Close())
	check(t, w.b.dev.Client().Close())
}

func TestClientServerCloses(t *testing.T) {
	h := newHost(t)
	w := watchDeath(t, h.open("loop0"), h.open("loop1"))
	check(t, h.srv.Close())
	w.gone()
	_, err := shm.Dial(h.path)
	if err == nil || !strings.Contains(err.Error(), `start one with "vrnic up"`) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("dial: %v", err)
	}
}

// serverVariable tells this test binary, run again, to be a daemon on the socket that it names.
const serverVariable = "VRNIC_TEST_SERVER_SOCKET"

// TestClientServerProcess is the daemon of TestClientServerKilled.
func TestClientServerProcess(t *testing.T) {
	path := os.Getenv(serverVariable)
	if path == "" {
		return
	}
	loop := shmtest.NewLoop()
	srv, err := server.Listen(path, server.Config{NewSession: loop.NewSession})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n') // the parent closes it, or has died
	srv.Close()
	os.Exit(0)
}

// startServerProcess runs a daemon in a process of its own, which ends with the test, and returns
// its socket.
func startServerProcess(t testing.TB) (path string, daemon *os.Process) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "vrnic.sock")
	cmd := exec.Command(os.Args[0], "-test.run=^TestClientServerProcess$")
	cmd.Env = append(os.Environ(), serverVariable+"="+path)
	in := must(cmd.StdinPipe())(t)
	out := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Wait() // it may have been killed
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("the daemon said %q", line)
	}
	return path, cmd.Process
}

// A daemon that is killed leaves no client hanging, and everything that was posted is flushed:
// docs/abi.md#life.
func TestClientServerKilled(t *testing.T) {
	checkLeaks(t)
	path, daemon := startServerProcess(t)
	open := func(name string) *shm.Device { return must(dialAt(t, path).Open(name))(t) }
	w := watchDeath(t, open("loop0"), open("loop1"))
	needtest.Eventually(t, "all block, but the one that polls",
		func() bool { return blocked("shm_test.(*deathWatch).blocks.func1") == w.n-1 })
	check(t, daemon.Kill())
	w.gone()
	// The process closes its connections before its listener, or behind it.
	needtest.Eventually(t, "who dials is told to start a daemon", func() bool {
		c, err := shm.Dial(path)
		if err == nil {
			c.Close()
		}
		return err != nil && strings.Contains(err.Error(), `start one with "vrnic up"`)
	})
}
