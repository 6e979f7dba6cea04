// Package soak connects, moves data and disconnects, again and again, and looks for what grows.
package soak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// cycles is what `make soak` sets VRNIC_SOAK_CYCLES to; a test run does a smoke.
func cycles(t *testing.T) int {
	s := os.Getenv("VRNIC_SOAK_CYCLES")
	if s == "" {
		return 300
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("VRNIC_SOAK_CYCLES=%s is no number of cycles", s)
	}
	return n
}

// A lab is two devices, each on a stack of its own, on one switch.
type lab struct {
	t      *testing.T
	clock  *faketime.ManualClock // of TCP: it stands still but for settle
	stacks [2]*netstack.Stack
	devs   [2]*vnic.Device
	ctxs   [2]*vnic.Context
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, clock: faketime.NewManualClock()}
	sw := ethswitch.New(ethswitch.Config{})
	t.Cleanup(func() { sw.Close() })
	for i := range l.stacks {
		addr := netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", i+1))
		st, err := netstack.NewStack(sw, netstack.Config{Name: fmt.Sprintf("vrnic%d", i),
			Addrs: []netip.Prefix{addr}, Clock: l.clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		d, err := vnic.New(vnic.Config{Name: st.Name(), MAC: st.MAC(), Addrs: st.Addrs(),
			Network: stacknet.New(st)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		l.stacks[i], l.devs[i] = st, d
		// Nobody waits for events here: those that nobody takes would be kept, up to a limit.
		l.ctxs[i] = vnictest.Open(t, d, vnic.ContextConfig{OnAsync: func(rdma.AsyncEvent) {}})
	}
	return l
}

// A census is what must not grow.
type census struct {
	Endpoints [2]int
	Dev       [2]counts
}

type counts struct {
	PDs, MRs, CQs, SRQs, QPs, CMIDs, Keys, Ports int
	Pending                                      int64
}

func (l *lab) census() (c census) {
	for i, st := range l.stacks {
		c.Endpoints[i] = st.Endpoints()
		d := l.devs[i].DevInfo()
		c.Dev[i] = counts{d.PDs, d.MRs, d.CQs, d.SRQs, d.QPs, d.CMIDs, d.Keys, d.Ports, d.Pending}
	}
	return c
}

// settle lets TCP forget the connections that are over, and waits until there is no more than want
// and at most so many goroutines.
func (l *lab) settle(want census, goroutines int) {
	l.t.Helper()
	var c census
	for late := time.Now().Add(30 * time.Second); ; {
		l.clock.Advance(2 * time.Minute) // TIME-WAIT is half of it
		c = l.census()
		n := runtime.NumGoroutine()
		if c == want && n <= goroutines {
			return
		}
		if time.Now().After(late) {
			buf := make([]byte, 1<<16)
			l.t.Fatalf("there are %+v and %d goroutines, were %+v and %d\n%s", c, n, want, goroutines,
				buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(5 * time.Millisecond) // before it looks again
	}
}

// heap is what the program holds, in octets.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cycle connects two QPs, moves data with each kind of operation, ends the connection in one of
// several ways, and destroys all that it made.
func (l *lab) cycle(i int) {
	t := l.t
	from, to := l.ctxs[i%2], l.ctxs[1-i%2]
	if i%4 == 3 {
		from = to // within a device
	}
	cfg := vnictest.PeerConfig{
		QP: rdma.QPConfig{MaxSendWR: 8, MaxRecvWR: 4}, CQDepth: 16, Buffer: 4096, Param: rdma.ConnParam{
			Extensions: true},
	}
	x := vnictest.NewPeer(t, from, cfg)
	var srq rdma.SRQ
	if i%3 == 0 {
		pd, err := to.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		if srq, err = pd.CreateSRQ(rdma.SRQConfig{MaxWR: 4, MaxSGE: 1}); err != nil {
			t.Fatal(err)
		}
		cfg.PD, cfg.QP.SRQ = pd, srq
	}
	y := vnictest.NewPeer(t, to, cfg)
	vnictest.Connect(t, x, y)

	for j := range x.Buf {
		x.Buf[j] = byte(i + j)
	}
	recv := rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{y.SGE(1024, 512)}}
	var err error
	if srq != nil {
		err = srq.PostRecv(&recv)
	} else {
		err = y.QP.PostRecv(&recv)
	}
	if err != nil {
		t.Fatal(err)
	}
	x.Write(2, 0, 1024, y, 0)
	x.Read(3, 2048, 1024, y, 0)
	x.Post(rdma.SendWR{ID: 4, Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr() + 2048, RKey: y.MR.RKey(),
		Atomic: rdma.AtomicArgs{CompareAdd: 1}}, 4088, 8)
	x.Send(5, 512, 512)
	for j, wc := range x.Next(x.SendCQ, 4) {
		if wc.Status != rdma.WCSuccess || wc.ID != uint64(2+j) {
			t.Fatalf("cycle %d: %+v", i, wc)
		}
	}
	if wc := y.Next(y.RecvCQ, 1)[0]; wc.Status != rdma.WCSuccess || wc.ByteLen != 512 {
		t.Fatalf("cycle %d: %+v", i, wc)
	}
	if !bytes.Equal(y.Buf[:1024], x.Buf[:1024]) || !bytes.Equal(x.Buf[2048:3072], x.Buf[:1024]) ||
		!bytes.Equal(y.Buf[1024:1536], x.Buf[512:1024]) || binary.NativeEndian.Uint64(y.Buf[2048:]) != 1 {
		t.Fatalf("cycle %d: the data differs", i)
	}

	switch i % 5 {
	case 0, 1:
		err = x.Conn.Disconnect()
	case 2, 3:
		err = y.Conn.Disconnect()
	case 4:
		err = x.QP.Abort()
	}
	if err != nil {
		t.Fatal(err)
	}
	x.WantDone("disconnected")
	y.WantDone("disconnected")
	for _, p := range []*vnictest.Peer{x, y} {
		closers := []interface{ Close() error }{p.QP, p.MR, p.SendCQ, p.RecvCQ}
		if p == y && srq != nil {
			closers = append(closers, srq)
		}
		for _, c := range append(closers, p.PD) {
			if err := c.Close(); err != nil {
				t.Fatalf("cycle %d: %v", i, err)
			}
		}
	}
}

// Connections come and go, and nothing is left of them: no goroutine, no socket of the TCP/IP
// stack, no entry of a table, no memory. `make soak` runs 100,000.
func TestCycles(t *testing.T) {
	const batch = 100
	n := cycles(t)
	l := newLab(t)
	start := l.census()
	goroutines := runtime.NumGoroutine() + 4 // the runtime's own come and go
	warm := max(batch, n/10)                 // pools and maps have their size by then
	var before int64
	begin := time.Now()
	for i := range n {
		l.cycle(i)
		if (i+1)%batch == 0 || i+1 == n {
			l.settle(start, goroutines)
		}
		if i+1 == warm {
			before = heap()
		}
	}
	if n <= warm {
		return
	}
	// A leak of 16 octets in each cycle shows in 100,000.
	grown, allowed := heap()-before, int64(512<<10+16*(n-warm))
	t.Logf("%d cycles in %v; the heap has grown from %d by %d octets, %d goroutines", n,
		time.Since(begin).Round(time.Millisecond), before, grown, runtime.NumGoroutine())
	if grown > allowed {
		t.Errorf("the heap has grown by %d octets in %d cycles, at most %d are well", grown,
			n-warm, allowed)
	}
}
