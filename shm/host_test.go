package shm_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// testTime bounds every wait of the client tests: it is reached only by a test that fails.
const testTime = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// A host is a server with a Loop behind it, in this process.
type host struct {
	t    testing.TB
	srv  *server.Server
	loop *shmtest.Loop
	path string
}

// newHost starts a server. At the end of the test it is closed, and everything must be as before.
func newHost(t testing.TB) *host {
	t.Helper()
	checkLeaks(t)
	return startHost(t, filepath.Join(t.TempDir(), "vrnic.sock"), server.Config{})
}

// newDirectHost is newHost with a server that offers the direct path.
func newDirectHost(t testing.TB) *host {
	t.Helper()
	checkLeaks(t)
	return startHost(t, filepath.Join(t.TempDir(), "vrnic.sock"), server.Config{Direct: true})
}

func startHost(t testing.TB, path string, cfg server.Config) *host {
	t.Helper()
	loop := shmtest.NewLoop()
	cfg.NewSession = loop.NewSession
	srv, err := server.Listen(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	return &host{t: t, srv: srv, loop: loop, path: path}
}

func (h *host) dial() *shm.Client {
	h.t.Helper()
	return dialAt(h.t, h.path)
}

func dialAt(t testing.TB, path string) *shm.Client {
	t.Helper()
	c, err := shm.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (h *host) open(name string) *shm.Device {
	h.t.Helper()
	return must(h.dial().Open(name))(h.t)
}

// must returns v, or ends the test.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blocked counts the goroutines that wait for something in a function of that name.
func blocked(function string) (n int) {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		// goroutine 12 [IO wait, 3 minutes]:
		head, stack, _ := strings.Cut(g, "\n")
		if strings.Contains(stack, function) && !strings.Contains(head, "[run") && !strings.Contains(head,
			"[syscall") {
			n++
		}
	}
	return n
}

// usage is what a process holds of what can leak here.
type usage struct{ fds, mappings, goroutines int }

func usageNow(t testing.TB) (u usage) {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	u.fds = len(ents)
	maps, err := os.ReadFile("/proc/self/maps")
	check(t, err)
	u.mappings = strings.Count(string(maps), "memfd:vrnic")
	u.goroutines = runtime.NumGoroutine()
	return u
}

// checkLeaks fails the test if, at its end, descriptors, mappings or goroutines are left.
func checkLeaks(t testing.TB) {
	t.Helper()
	before := usageNow(t)
	t.Cleanup(func() {
		var now usage
		for end := time.Now().Add(testTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
			now = usageNow(t)
			if now.fds <= before.fds && now.mappings <= before.mappings &&
				now.goroutines <= before.goroutines {
				return
			}
		}
		buf := make([]byte, 1<<16)
		t.Errorf("left over: before %+v, after %+v\n%s", before, now, buf[:runtime.Stack(buf, true)])
	})
}

// A node is one end of a connection with all that it needs.
type node struct {
	t        testing.TB
	dev      *shm.Device
	pd       rdma.PD
	scq, rcq rdma.CQ
	qp       rdma.QP
	buf      rdma.Buffer
	mr       rdma.MR
	conn     rdma.Conn
}

const allRights = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead

func newNode(t testing.TB, dev *shm.Device, depth int) *node {
	t.Helper()
	n := &node{t: t, dev: dev}
	n.pd = must(dev.AllocPD())(t)
	n.scq = must(dev.CreateCQ(depth))(t)
	n.rcq = must(dev.CreateCQ(depth))(t)
	n.qp = must(n.pd.CreateQP(rdma.QPConfig{SendCQ: n.scq, RecvCQ: n.rcq, MaxSendWR: depth,
		MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}))(t)
	n.buf = must(dev.AllocBuffer(1 << 16))(t)
	n.mr = must(n.pd.RegisterMemory(n.buf.Bytes(), allRights))(t)
	return n
}

// sge names octets of the node's buffer.
func (n *node) sge(off, length int) rdma.SGE {
	return rdma.SGE{Addr: n.mr.Addr() + uint64(off), Length: uint32(length), LKey: n.mr.LKey()}
}

// pair connects two nodes of two sessions.
func (h *host) pair(depth int) (a, b *node) {
	h.t.Helper()
	return h.pairOf(h.open("loop0"), h.open("loop1"), depth)
}

func (h *host) pairOf(da, db *shm.Device, depth int) (a, b *node) {
	h.t.Helper()
	a, b = newNode(h.t, da, depth), newNode(h.t, db, depth)
	connect(h.t, a, b)
	return a, b
}

// connect connects a to b, which listens for it.
func connect(t testing.TB, a, b *node) {
	t.Helper()
	ctx := testContext(t)
	addr := b.dev.Attr().Addrs[0].Addr()
	l := must(b.dev.Listen(netip.AddrPortFrom(addr, 0), 1))(t)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(ctx)
		if err == nil {
			b.conn, err = r.Accept(ctx, b.qp, rdma.ConnParam{PrivateData: []byte("welcome")})
		}
		done <- err
	}()
	a.conn = must(a.dev.Connect(ctx, a.qp, l.Addr(), rdma.ConnParam{PrivateData: []byte("hello"),
		IRD: 4, ORD: rdma.NoReads}))(t)
	check(t, <-done)
}

// next polls cq for one completion.
func next(t testing.TB, cq rdma.CQ) rdma.WC {
	t.Helper()
	var wc [1]rdma.WC
	needtest.Eventually(t, "a completion", func() bool {
		n, err := cq.Poll(wc[:])
		check(t, err)
		return n == 1
	})
	return wc[0]
}
