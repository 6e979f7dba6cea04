package shm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// A stopper stands between one client and a daemon, and can stop what the client asks for on its
// way, as a daemon does that has got SIGSTOP.
type stopper struct {
	t    testing.TB
	path string

	mu      sync.Mutex
	at      rpc.Op        // +checklocks:mu
	stopped chan struct{} // closed when a request of at has come
	resume  chan struct{} // closed when it may go on
}

// newStopper stands before the daemon at path.
func newStopper(t testing.TB, daemon string) *stopper {
	t.Helper()
	s := &stopper{t: t, path: filepath.Join(t.TempDir(), "stopper.sock")}
	ln := must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.path, Net: "unixpacket"}))(t)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		s.goOn()
		wg.Wait()
	})
	wg.Go(func() {
		c, err := ln.AcceptUnix()
		if err != nil {
			return
		}
		d, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: daemon, Net: "unixpacket"})
		if err != nil {
			t.Error(err)
			c.Close()
			return
		}
		wg.Go(func() { relay(c, d, func([]byte) {}) })
		wg.Go(func() { relay(d, c, s.look) })
	})
	return s
}

// relay moves messages, with their descriptors, until either end closes; then it closes both.
func relay(to, from *net.UnixConn, look func(msg []byte)) {
	defer to.Close()
	defer from.Close()
	buf, oob := make([]byte, rpc.MaxMessage), make([]byte, 64)
	for {
		n, oobn, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		var fds []int
		if cm, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(cm) == 1 {
			fds, _ = unix.ParseUnixRights(&cm[0])
		}
		look(buf[:n])
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		_, _, err = to.WriteMsgUnix(buf[:n], rights, nil)
		closeAll(fds)
		if err != nil {
			return
		}
	}
}

// look waits at a request that is to be stopped.
func (s *stopper) look(msg []byte) {
	h, _, err := rpc.ParseMessage(msg)
	s.mu.Lock()
	stop := err == nil && s.stopped != nil && h.Op == s.at
	stopped, resume := s.stopped, s.resume
	if stop {
		s.stopped = nil
	}
	s.mu.Unlock()
	if stop {
		close(stopped)
		<-resume
	}
}

// stopAt stops the daemon when it is asked for op; what it returns is closed then.
func (s *stopper) stopAt(op rpc.Op) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.stopped, s.resume = op, make(chan struct{}), make(chan struct{})
	return s.stopped
}

// goOn ends a stop.
func (s *stopper) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume != nil {
		close(s.resume)
	}
	s.stopped, s.resume = nil, nil
}

// endsWithContext makes call and, when the daemon has stopped at op, ends its context: call must
// return that error though the daemon is still stopped.
func (s *stopper) endsWithContext(op rpc.Op, call func(context.Context) error) {
	s.t.Helper()
	stopped := s.stopAt(op)
	ctx, cancel := context.WithCancel(testContext(s.t))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case <-stopped:
	case err := <-done:
		s.t.Fatalf("%v was not asked for: %v", op, err)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			s.t.Errorf("ended while the daemon was stopped at %v: %v", op, err)
		}
	case <-testContext(s.t).Done():
		s.t.Errorf("outlives its context while the daemon is stopped at %v", op)
	}
}

func TestClientStoppedDial(t *testing.T) {
	h := newHost(t)
	s := newStopper(t, h.path)
	s.endsWithContext(rpc.OpHello, func(ctx context.Context) error {
		c, err := shm.DialContext(ctx, s.path)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// No call outlives its context while the daemon is stopped, and nothing is left of it when the
// daemon goes on.
func TestClientStopped(t *testing.T) {
	h := newHost(t)
	s := newStopper(t, h.path)
	a := newNode(t, must(dialAt(t, s.path).Open("loop0"))(t), 4)
	b := newNode(t, h.open("loop1"), 4)
	idle := h.ids()
	l := must(b.dev.Listen(addrPort(b, 0), 4))(t)
	for _, op := range []rpc.Op{rpc.OpCMCreateID, rpc.OpCMSetOption, rpc.OpCMResolveAddr} {
		s.endsWithContext(op, func(ctx context.Context) error {
			_, err := a.dev.Connect(ctx, a.qp, l.Addr(), rdma.ConnParam{Extensions: true})
			return err
		})
		s.goOn()
	}
	check(t, l.Close()) // with the requests of attempts that got so far
	needtest.Eventually(t, "the ids of the attempts have gone", func() bool { return h.ids() == idle })
	connect(t, a, b)

	for range 2 {
		s.endsWithContext(rpc.OpGetAsyncEvent, func(ctx context.Context) error {
			_, err := a.dev.NextAsyncEvent(ctx)
			return err
		})
		// An event that the call brings which was given up is the next one's.
		h.loop.Async(rpc.AsyncEvent{Type: uint32(rdma.EventPortActive)})
		s.goOn()
		if ev := must(a.dev.NextAsyncEvent(testContext(t)))(t); ev.Type != rdma.EventPortActive {
			t.Errorf("event %v", ev.Type)
		}
		must(b.dev.NextAsyncEvent(testContext(t)))(t)
	}
}

func TestClientStoppedAccept(t *testing.T) {
	h := newHost(t)
	s := newStopper(t, h.path)
	a := newNode(t, h.open("loop0"), 4)
	b := newNode(t, must(dialAt(t, s.path).Open("loop1"))(t), 4)
	l := must(b.dev.Listen(addrPort(b, 0), 4))(t)
	idle := h.ids()
	connected := make(chan error, 1)
	go func() {
		_, err := a.dev.Connect(testContext(t), a.qp, l.Addr(), rdma.ConnParam{})
		connected <- err
	}()
	s.endsWithContext(rpc.OpCMAccept, func(ctx context.Context) error {
		r, err := l.Next(ctx)
		if err == nil {
			_, err = r.Accept(ctx, b.qp, rdma.ConnParam{})
		}
		return err
	})
	s.goOn()
	<-connected // or reset at once: the daemon has accepted, and then the id has ended
	check(t, a.qp.Close())
	needtest.Eventually(t, "the ids of the connection have gone",
		func() bool { return h.ids() == idle })
}

// ids is how many ids of the connection manager there are.
func (h *host) ids() (n int) {
	for _, r := range h.srv.Clients() {
		n += r.IDs
	}
	return n
}

// clientRow is what the daemon says of the session of c.
func clientRow(t testing.TB, c *shm.Client) (row server.ClientRow) {
	t.Helper()
	for _, raw := range must(c.List("client"))(t) {
		row = server.ClientRow{}
		check(t, json.Unmarshal(raw, &row))
		if row.Me {
			row.Seconds = 0
			return row
		}
	}
	t.Fatal("the daemon does not list the session")
	return row
}

// fillDescriptors leaves this process only so many free descriptors until the test ends, or what
// it returns is called.
func fillDescriptors(t testing.TB, free int) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	top := 0
	for _, e := range must(os.ReadDir("/proc/self/fd"))(t) {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil {
			top = max(top, fd)
		}
	}
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(top + 8), Max: was.Max}))
	var fds []int
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	closeAll(fds[:free])
	fds = slices.Clone(fds[free:])
	var once sync.Once
	restore = func() {
		once.Do(func() {
			closeAll(fds)
			check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
		})
	}
	t.Cleanup(restore)
	return restore
}

// A program that is out of descriptors is told so by the call that brings one, and goes on when it
// has some again: nothing is left in the daemon meanwhile.
func TestClientOutOfDescriptors(t *testing.T) {
	checkLeaks(t)
	path, _ := startServerProcess(t)
	c := dialAt(t, path)
	d := must(c.Open("loop0"))(t)
	pd := must(d.AllocPD())(t)
	n := must(d.CreateCQ(4))(t)
	row := func() server.ClientRow { return clientRow(t, c) }
	want := row()
	for free := range 2 {
		for what, call := range map[string]func() error{
			"open device": func() error { _, err := c.Open("loop1"); return err },
			"create CQ":   func() error { _, err := d.CreateCQ(4); return err },
			"create QP": func() error {
				_, err := pd.CreateQP(rdma.QPConfig{SendCQ: n, RecvCQ: n, MaxSendWR: 4, MaxRecvWR: 4})
				return err
			},
			"create SRQ": func() error { _, err := pd.CreateSRQ(rdma.SRQConfig{MaxWR: 4}); return err },
		} {
			restore := fillDescriptors(t, free)
			err := call()
			restore()
			// A CQ shares another one's channel if it cannot have its own.
			fits := free == 1 && what != "open device"
			if !fits && !errors.Is(err, syscall.EMFILE) || fits && err != nil {
				t.Errorf("%s with %d descriptors free: %v", what, free, err)
			}
			if errors.Is(err, rdma.ErrDeviceGone) {
				t.Fatalf("%s with %d descriptors free ended the session: %v", what, free, err)
			}
			if fits {
				want = row()
			}
			if got := row(); got != want {
				t.Errorf("%s with %d descriptors free left\n%+v, want\n%+v", what, free, got, want)
			}
		}
	}
	newNode(t, d, 4)
	restore := fillDescriptors(t, 1) // for the socket
	_, err := shm.Dial(path)
	restore()
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("dial: %v", err)
	}
}
