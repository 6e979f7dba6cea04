package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// The points of its life at which a client is killed.
const (
	stageHello      = "session"
	stageObjects    = "objects"
	stageListening  = "listening"
	stageConnecting = "connecting"
	stageRequested  = "requested"
	stageIdle       = "connected"
	stageWaiting    = "waiting"
	stageTraffic    = "traffic"
	stageOwn        = "own" // traffic with memory of its own
)

// TestHelperClient is a client that comes to a stage, says so, and stays there.
func TestHelperClient(t *testing.T) {
	args := daemontest.Child(t)
	socket, device, stage, addr := args[0], args[1], args[2], netip.MustParseAddrPort(args[3])
	if stage == stageOwn {
		ownTraffic(t, socket, device, addr)
	}
	c := daemontest.Dial(t, socket)
	stay := func() {
		daemontest.Tell("at", stage)
		time.Sleep(time.Hour) // until it is killed
	}
	if stage == stageHello {
		stay()
	}
	dev := daemontest.Open(t, c, device)
	e := daemontest.NewEnd(t, dev, 8<<20)
	others(t, e)
	peer := rdma.SendWR{RemoteAddr: 0}
	switch stage {
	case stageObjects:
		stay()
	case stageListening:
		if _, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0); err != nil {
			t.Fatal(err)
		}
		stay()
	case stageConnecting: // the peer takes the request and never answers
		daemontest.Tell("at", stage)
	case stageRequested: // a request is there that this client never takes
		l, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0)
		if err != nil {
			t.Fatal(err)
		}
		daemontest.Tell("listening", l.Addr())
		time.Sleep(time.Hour) // until it is killed
	}
	conn, err := dev.Connect(context.Background(), e.QP, addr, rdma.ConnParam{})
	if err != nil {
		t.Fatal(err)
	}
	// The peer's private data says where its memory is.
	peer.RemoteAddr, peer.RKey = parseKey(t, conn.Param().PrivateData)
	switch stage {
	case stageIdle:
		stay()
	case stageWaiting:
		go func() {
			needtest.Becomes(func() bool { return blocked("(*End).WC(") })
			daemontest.Tell("at", stage)
		}()
		e.WC("nobody completes this")
	case stageTraffic:
		for i := uint64(0); ; i++ {
			wr := rdma.SendWR{ID: i, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{
				e.SGE(0, 1<<20)},
				RemoteAddr: peer.RemoteAddr, RKey: peer.RKey}
			if i%2 == 1 {
				wr.Op = rdma.OpRead
			}
			e.Post(&wr)
			if i >= 8 {
				e.WantOK("traffic", i-8, map[bool]rdma.WCOpcode{false: rdma.WCWrite,
					true: rdma.WCRead}[i%2 == 1])
			}
			if i == 16 {
				daemontest.Tell("at", stage)
			}
		}
	}
}

// blocked reports whether a goroutine waits for a descriptor within a function.
func blocked(function string) bool {
	stacks := make([]byte, 1<<16)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for g := range strings.SplitSeq(string(stacks), "\n\n") {
		state, _, _ := strings.Cut(g, "\n")
		if strings.Contains(state, "[IO wait") && strings.Contains(g, function) {
			return true
		}
	}
	return false
}

// ownTraffic writes from memory of its own, and reads into it, for ever.
func ownTraffic(t *testing.T, socket, device string, addr netip.AddrPort) {
	const size, depth = 1 << 20, 4
	e := newRawPartsAt(t, socket, map[string]uint32{"vrnic0": 0, "vrnic1": 1}[device], depth*size)
	e.qp = e.QP(e.pd, e.cq, e.cq, rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16})
	established := e.connect(addr)
	private, _ := established.Param.PrivateData()
	there, rkey := parseKey(t, private)
	for i := 0; ; i++ {
		e.qp.PostSend(func(w *abi.SendWQE) {
			e.sge(i%depth*size, size)(w)
			w.Op, w.RemoteAddr, w.RKey = uint8(i%2*4), there, rkey // IBV_WR_RDMA_WRITE and READ
		})
		if i >= depth {
			if c := e.Next(e.cq); c.Status != 0 {
				t.Fatalf("completion %+v", c)
			}
		}
		if i == 4*depth {
			daemontest.Tell("at", stageOwn)
		}
	}
}

// others makes objects of all further kinds: an SRQ with a QP and receives, a window, a region
// without memory.
func others(t *testing.T, e *daemontest.End) {
	srq, err := e.PD.CreateSRQ(rdma.SRQConfig{MaxWR: 4})
	if err == nil {
		_, err = e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, SRQ: srq})
	}
	if err == nil {
		err = srq.PostRecv(&rdma.RecvWR{SGEs: []rdma.SGE{e.SGE(0, 8)}})
	}
	if err == nil {
		_, err = e.PD.AllocMW(rdma.MWType1)
	}
	if err == nil {
		_, err = e.PD.AllocMR(4096)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// key is a region as its owner tells its peer; parseKey reads it.
func key(mr rdma.MR) []byte {
	b := make([]byte, 12)
	for i := range 8 {
		b[i] = byte(mr.Addr() >> (8 * i))
	}
	for i := range 4 {
		b[8+i] = byte(mr.RKey() >> (8 * i))
	}
	return b
}

func parseKey(t *testing.T, b []byte) (addr uint64, rkey uint32) {
	t.Helper()
	if len(b) < 12 {
		t.Fatalf("private data %q is no key", b)
	}
	for i := range 8 {
		addr |= uint64(b[i]) << (8 * i)
	}
	for i := range 4 {
		rkey |= uint32(b[8+i]) << (8 * i)
	}
	return addr, rkey
}

// A client killed by SIGKILL at any point: its peer sees the disconnect within a second, all its
// objects are gone from LIST, and the daemon holds what it held before.
func TestClientKilled(t *testing.T) {
	for _, path := range []struct{ name, child string }{{"TCP", "vrnic0"}, {"loopback", "vrnic1"}} {
		t.Run(path.name, func(t *testing.T) {
			d := daemontest.Start(t)
			c := d.Dial()
			dev := daemontest.Open(t, c, "vrnic1")
			for _, stage := range []string{stageHello, stageObjects, stageListening, stageConnecting,
				stageRequested, stageIdle, stageWaiting, stageTraffic, stageOwn} {
				t.Run(stage, func(t *testing.T) {
					wantSoon(t, time.Second, func() time.Duration {
						return testClientKilled(t, d, c, dev, path.child, stage)
					})
				})
			}
		})
	}
}

// testClientKilled kills a client at a stage, and returns how long its peer took to see that, if it
// had one.
func testClientKilled(t *testing.T, d *daemontest.Daemon, c *shm.Client, dev rdma.Device, device,
	stage string) (took time.Duration) {
	peer := daemontest.NewEnd(t, dev, 8<<20)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		l.Close()
		peer.QP.Close()
		peer.CQ.Close()
		peer.MR.Close()
		peer.Buf.Close()
		peer.PD.Close()
	}()
	objects := list(t, c)
	before := daemontest.Usage()

	child := daemontest.StartChild(t, "TestHelperClient", d.Socket(), device, stage, l.Addr().String())
	finish := func() {} // what is left of it on this side
	switch stage {
	case stageConnecting:
		req, err := l.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		child.Want("at " + stage)
		finish = func() { req.Reject(nil) } // gives it back; whoever asked has gone
	case stageRequested:
		addr := netip.MustParseAddrPort(child.Want("listening"))
		refused := make(chan error, 1)
		go func() {
			_, err := dev.Connect(ctx, peer.QP, addr, rdma.ConnParam{})
			refused <- err
		}()
		// The request is there when the daemon shows it.
		var rows []json.RawMessage
		if !needtest.Becomes(func() bool {
			rows, err = c.List("cm")
			return err != nil || slices.ContainsFunc(rows,
				func(r json.RawMessage) bool { return strings.Contains(string(r), `"state":"REQUEST"`) })
		}) {
			t.Fatalf("no connection request in LIST cm: %v\n%s", err, rows)
		}
		finish = func() {
			select {
			case err := <-refused:
				if err == nil {
					t.Error("a dead client has accepted a connection")
				}
			case <-ctx.Done(): // how soon is a matter of vnic's tests, which have a clock of their own
				t.Error("the connection request to a dead client was not refused")
			}
		}
	case stageIdle, stageWaiting, stageTraffic, stageOwn:
		req, err := l.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		peer.Recv(1, 0, 64)
		if peer.Conn, err = req.Accept(ctx, peer.QP, rdma.ConnParam{PrivateData: key(peer.MR)}); err !=
			nil {
			t.Fatal(err)
		}
		child.Want("at " + stage)
	default:
		child.Want("at " + stage)
	}
	if stage != stageHello && list(t, c) == objects {
		t.Fatal("nothing of the child's is listed")
	}

	child.Kill()
	if peer.Conn != nil {
		took = wantDone(t, peer)
		peer.WantStatus("the peer's receive flushes", 1, rdma.WCFlush)
	}
	finish()
	var now string
	if !needtest.Becomes(func() bool { now = list(t, c); return now == objects }) {
		t.Errorf("objects that are left:\n%s\nbefore it were\n%s", now, objects)
	}
	before.WantBack(t, "after the client was killed")
	return took
}

// A daemon of an ordinary user reaches its user's programs by their processes. One is killed in the
// midst of that: its peer sees it, and the daemon goes on.
func TestOwnMemoryByProcess(t *testing.T) {
	if os.Getuid() != 0 {
		ownMemoryByProcess(t)
		return
	}
	if err := startNobody(t, "TestHelperByProcess").Wait(); err != nil {
		t.Error(err)
	}
}

// TestHelperByProcess is TestOwnMemoryByProcess for root, as somebody else.
func TestHelperByProcess(t *testing.T) {
	daemontest.Child(t)
	ownMemoryByProcess(t)
}

func ownMemoryByProcess(t *testing.T) {
	d := daemontest.Start(t)
	ownMemoryHoles(t, d)
	c := d.Dial()
	kill := func(child string) time.Duration {
		peer := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic1"), 8<<20)
		peer.Fill(0, 8<<20, 1)
		addr, accepted := accept(t, peer, func(p *rdma.ConnParam) { p.PrivateData = key(peer.MR) })
		client := daemontest.StartChild(t, "TestHelperClient", d.Socket(), child, stageOwn, addr.String())
		accepted()
		client.Want("at " + stageOwn)
		rows, err := c.List("client")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if row := clientRow(t, r); int(row.PID) == client.PID() && row.Own != "process" {
				t.Errorf("the client's memory is reached by %q", row.Own)
			}
		}
		client.Kill()
		return wantDone(t, peer)
	}
	for _, child := range []string{"vrnic0", "vrnic1"} { // over TCP, and within the device
		wantSoon(t, time.Second, func() time.Duration { return kill(child) })
	}
}

// list is what the daemon shows of all its objects, without what changes by itself. The QP of the
// test's own that was connected is in another state, so states are left out.
func list(t *testing.T, c *shm.Client) string {
	t.Helper()
	var b strings.Builder
	for _, kind := range []string{"client", "mr", "cq", "qp", "cm"} {
		rows, err := c.List(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			b.WriteString(kind + " " + stable(t, row) + "\n")
		}
	}
	return b.String()
}

// TestHelperDaemon is a daemon in a process of its own.
func TestHelperDaemon(t *testing.T) {
	args := daemontest.Child(t)
	cfg := daemon.Config{Socket: args[0]}
	for _, s := range daemontest.Devices {
		spec, err := daemon.ParseDevice(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Devices = append(cfg.Devices, spec)
	}
	if _, err := daemon.New(cfg); err != nil {
		t.Fatal(err)
	}
	daemontest.Tell("ready")
	time.Sleep(time.Hour) // until it is killed
}

// A daemon killed by SIGKILL: clients get errors and events, nothing hangs; and the next daemon
// takes the socket over.
func TestDaemonKilled(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "sock")
	child := daemontest.StartChild(t, "TestHelperDaemon", socket)
	child.Want("ready")
	before := daemontest.Usage()

	ca, cb := daemontest.Dial(t, socket), daemontest.Dial(t, socket)
	a := daemontest.NewEnd(t, daemontest.Open(t, ca, "vrnic0"), 8<<20)
	b := daemontest.NewEnd(t, daemontest.Open(t, cb, "vrnic1"), 8<<20)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	b.Recv(1, 0, 64)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	events := make(chan error, 2)
	go func() { // blocked in NextAsyncEvent
		for {
			ev, err := a.Dev.NextAsyncEvent(ctx)
			if err == nil && ev.Type != rdma.EventDeviceFatal {
				err = errors.New("event " + ev.Type.String() + ", want DEVICE_FATAL")
			}
			events <- err
			if err != nil {
				return
			}
		}
	}()
	listened := make(chan error, 1)
	l, err := a.Dev.Listen(daemontest.Addr(t, a.Dev, false, 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // blocked in Next
		_, err := l.Next(ctx)
		listened <- err
	}()
	waited := make(chan error, 1)
	go func() { // blocked in Wait
		wc, err := b.NextWC()
		if err == nil && (wc.ID != 1 || wc.Status != rdma.WCFlush) {
			err = errors.New("completion with " + wc.Status.String() + ", want a flush")
		}
		waited <- err
	}()
	for i := range uint64(8) {
		a.Write(i, 0, 1<<20, b, 0)
	}

	child.Kill()
	for what, c := range map[string]chan error{"CQ.Wait": waited, "NextAsyncEvent": events} {
		select {
		case err := <-c:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s hangs", what)
		}
	}
	if err := <-events; !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("NextAsyncEvent after DEVICE_FATAL: %v", err)
	}
	if err := <-listened; !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("Listener.Next: %v", err)
	}
	for _, e := range []*daemontest.End{a, b} {
		wantDone(t, e)
		if err := e.Conn.Err(); !errors.Is(err, rdma.ErrDeviceGone) {
			t.Errorf("Conn.Err: %v", err)
		}
	}
	for done := 0; ; done++ { // what was posted completes, by success or flush, and then no more
		wc, err := a.NextWC()
		if err != nil {
			if !errors.Is(err, rdma.ErrDeviceGone) || done != 8 {
				t.Errorf("after %d completions of 8: %v", done, err)
			}
			break
		}
		if wc.ID != uint64(done) || wc.Status != rdma.WCSuccess && wc.Status != rdma.WCFlush {
			t.Fatalf("completion %d is %+v", done, wc)
		}
	}
	if _, err := a.Dev.AllocPD(); !errors.Is(err, rdma.ErrDeviceGone) {
		t.Errorf("AllocPD: %v", err)
	}
	ca.Close()
	cb.Close()
	before.WantBack(t, "after both clients have been closed")

	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("the killed daemon's socket: %v", err)
	}
	again, err := daemon.New(daemon.Config{Socket: socket})
	if err != nil {
		t.Fatalf("a second daemon on the socket of a dead one: %v", err)
	}
	daemontest.Dial(t, socket).Close()
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
