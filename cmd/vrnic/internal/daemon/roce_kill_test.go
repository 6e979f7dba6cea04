package daemon_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// How ends of TestRoCEClientKilled are connected by numbers, and the group that a UD QP is in.
const killedPSN = 0x1234

var killedGroup = netip.MustParseAddr("239.1.2.3")

// numbered connects e to the QP of a number at an address. timeout is the code of the local ACK
// timeout, which passes four times before a request fails.
func numbered(t *testing.T, e *daemontest.End, to netip.Addr, qpn uint32, timeout uint8) {
	t.Helper()
	gid := uint8(0)
	for i := range e.Dev.Attr().GIDs {
		if g, err := e.Dev.GID(i); err == nil && g.GID.Addr().Is4() {
			gid = uint8(i)
		}
	}
	toInit(t, e)
	for _, x := range []struct {
		attr rdma.QPAttr
		mask rdma.QPAttrMask
	}{
		{rdma.QPAttr{State: rdma.QPRTR, PathMTU: rdma.MTU1024, DestQPN: qpn, RQPSN: killedPSN,
			MaxDestRead: 4, MinRNRTimer: 1,
			Path: rdma.AHAttr{GID: rdma.GIDOf(to), GIDIndex: gid, Port: 1, Global: true}},
			rdma.AttrState | rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN | rdma.AttrRQPSN |
				rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer},
		{rdma.QPAttr{State: rdma.QPRTS, SQPSN: killedPSN, Timeout: timeout, RetryCount: 3, RNRRetry: 7,
			MaxRead: 4},
			rdma.AttrState | rdma.AttrSQPSN | rdma.AttrTimeout | rdma.AttrRetryCount |
				rdma.AttrRNRRetry | rdma.AttrMaxRead},
	} {
		if err := e.QP.Modify(&x.attr, x.mask); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHelperRoCEClient is a client with one of everything that RoCE has, in the midst of Writes.
func TestHelperRoCEClient(t *testing.T) {
	args := daemontest.Child(t)
	socket, listener := args[0], netip.MustParseAddrPort(args[1])
	qpn, err := strconv.ParseUint(args[2], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	region, err := hex.DecodeString(args[3])
	if err != nil {
		t.Fatal(err)
	}
	there, rkey := parseKey(t, region)
	dev := daemontest.Open(t, daemontest.Dial(t, socket), "rocep1")
	e := daemontest.NewEnd(t, dev, 1<<20)
	others(t, e)
	ud := daemontest.NewEnd(t, dev, 4096, ofType(rdma.UD))
	for _, group := range []netip.Addr{killedGroup, killedGroup.Next()} {
		if err := ud.QP.AttachMulticast(rdma.GIDOf(group)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ud.PD.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(listener.Addr()), GIDIndex: 1, Port: 1,
		Global: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0); err != nil {
		t.Fatal(err)
	}
	managed := daemontest.NewEnd(t, dev, 4096)
	_, err = dev.Connect(context.Background(), managed.QP, listener, rdma.ConnParam{})
	if err != nil {
		t.Fatal(err)
	}
	daemontest.Tell("qpn", e.QP.Num())
	numbered(t, e, listener.Addr(), uint32(qpn), 21) // 8 s: the peer may not be ready yet
	for i := uint64(0); ; i++ {
		e.Post(&rdma.SendWR{ID: i, Op: rdma.OpWrite, Flags: rdma.Signaled,
			SGEs: []rdma.SGE{e.SGE(0, 1<<20)}, RemoteAddr: there, RKey: rkey})
		if i >= 8 {
			e.WantOK("traffic", i-8, rdma.WCWrite)
		}
		if i == 16 {
			daemontest.Tell("at", "traffic")
		}
	}
}

// held is what the devices of a daemon have of all kinds.
func held(t *testing.T, c *shm.Client) string {
	t.Helper()
	rows, err := c.List("dev")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%d devices, %v", len(rows), err)
	}
	var m map[string]any
	if err := json.Unmarshal(rows[0], &m); err != nil {
		t.Fatal(err)
	}
	s := ""
	for _, kind := range []string{"contexts", "pds", "mrs", "mws", "cqs", "srqs", "qps", "cm_ids",
		"keys", "ports", "pending", "ahs", "groups"} {
		s += fmt.Sprintf("%s %v, ", kind, m[kind])
	}
	return s
}

// A client of another daemon is killed by SIGKILL in the midst of traffic: the QP that is connected
// by numbers ends when nobody answers its retries, as it would with hardware, the one of rdma_cm by
// a DREQ, and nothing that the client had is left, groups and address handles neither. RCM-046.
func TestRoCEClientKilled(t *testing.T) {
	link := filepath.Join(t.TempDir(), "l")
	with := func(device, port string) func(*daemon.Config) {
		return func(cfg *daemon.Config) {
			devices(t, device)(cfg)
			p, err := daemon.ParsePort(port)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Ports = []daemon.PortSpec{p}
		}
	}
	ours := daemontest.Start(t, with("rocep0,addr=10.88.0.1/24,mtu=4200,transport=roce",
		"unix-listen:"+link))
	theirs := daemontest.Start(t, with("rocep1,addr=10.88.0.2/24,mtu=4200,transport=roce",
		"unix-connect:"+link))
	dev := daemontest.Open(t, ours.Dial(), "rocep0")
	watch := theirs.Dial()
	// What is made once is made in the first round, the link too: the daemon that listens may take it
	// only when the other's first frames wait there.
	for round := range 2 {
		x, managed := daemontest.NewEnd(t, dev, 1<<20), daemontest.NewEnd(t, dev, 4096)
		before, used := held(t, watch), daemontest.Usage()
		l, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0)
		if err != nil {
			t.Fatal(err)
		}
		child := daemontest.StartChild(t, "TestHelperRoCEClient", theirs.Socket(), l.Addr().String(),
			strconv.Itoa(int(x.QP.Num())), hex.EncodeToString(key(x.MR)))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r, err := l.Next(ctx)
		if err == nil {
			managed.Conn, err = r.Accept(ctx, managed.QP, rdma.ConnParam{})
		}
		if err != nil {
			t.Fatal(err)
		}
		qpn, err := strconv.ParseUint(child.Want("qpn"), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		numbered(t, x, netip.MustParseAddr("10.88.0.2"), uint32(qpn), 12)
		x.Recv(1, 0, 64)
		child.Want("at traffic")
		if held(t, watch) == before {
			t.Error("nothing of the child's is there")
		}
		child.Kill()
		wantDone(t, managed)
		if s := x.QP.State(); s != rdma.QPRTS {
			t.Errorf("a QP whose peer is gone, and that sends nothing, is %v", s)
		}
		x.Post(&rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled})
		x.WantStatus("nobody answers", 2, rdma.WCRetryExc)
		x.WantStatus("the receive flushes", 1, rdma.WCFlush)
		var now string
		if !needtest.Becomes(func() bool { now = held(t, watch); return now == before }) {
			t.Errorf("the daemon has %s\nhad %s", now, before)
		}
		l.Close()
		if round > 0 {
			used.WantBack(t, "after the client was killed")
		}
	}
}
