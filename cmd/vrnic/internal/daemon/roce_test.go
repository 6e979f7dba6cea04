package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// devices makes a daemon's devices.
func devices(t testing.TB, specs ...string) func(*daemon.Config) {
	return func(cfg *daemon.Config) {
		cfg.Devices = nil
		for _, s := range specs {
			spec, err := daemon.ParseDevice(s)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Devices = append(cfg.Devices, spec)
		}
	}
}

// bothKinds has a device of RoCE that is one station with one of iWARP, and another of RoCE.
var bothKinds = []string{
	"iw0,addr=10.77.0.2/24,addr=fd77::2/64,mtu=4200",
	"rocep0,addr=fd77::2/64,addr=10.77.0.2/24,transport=roce",
	"rocep1,addr=10.77.0.3/24,transport=roce,mtu=1500",
}

// RSYS-002, RSYS-007, RSYS-009, RSYS-010, RVB-049: what a program sees of a device of RoCE, beside
// one of iWARP at the same addresses.
func TestRoCEDevice(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	c := d.Dial()
	iw, roce := daemontest.Open(t, c, "iw0"), daemontest.Open(t, c, "rocep0")
	other := daemontest.Open(t, c, "rocep1")
	if a := iw.Attr(); a.RoCE || a.GIDs != 0 || a.ActiveMTU != 0 || a.MTU != 4200 {
		t.Errorf("iw0: %+v", a)
	}
	a := roce.Attr()
	if !a.RoCE || a.GIDs < 3 || a.ActiveMTU != rdma.MTU4096 || a.MTU != 4200 || a.MaxAH < 1024 ||
		a.MaxGroups < 64 || a.MAC != iw.Attr().MAC {
		t.Errorf("rocep0: %+v, and iw0's MAC is %x", a, iw.Attr().MAC)
	}
	if a := other.Attr(); a.ActiveMTU != rdma.MTU1024 {
		t.Errorf("rocep1 has an active MTU of %d octets", a.ActiveMTU.Octets())
	}
	// The link-local address of the MAC, then the addresses in the order of the specification.
	for i, want := range []string{"", "fd77::2", "10.77.0.2"} {
		e, err := roce.GID(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != rdma.GIDRoCEv2 || want != "" && e.GID.Addr() != netip.MustParseAddr(want) ||
			want == "" && !e.GID.Addr().IsLinkLocalUnicast() {
			t.Errorf("GID %d is %v of type %d", i, e.GID.Addr(), e.Type)
		}
	}
	if e, err := roce.GID(a.GIDs - 1); err != nil || e != (rdma.GIDEntry{}) {
		t.Errorf("the last GID: %v, %v", e, err)
	}
	for _, dev := range []rdma.Device{roce, iw} {
		if _, err := dev.GID(a.GIDs); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a GID behind the table: %v", err)
		}
	}
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	var dev rpc.QueryDeviceReply
	r.Must(rpc.OpQueryDevice, &rpc.QueryDeviceRequest{Device: 1}, &dev)
	if dev.NodeType != rpc.NodeCA || dev.GUID == 0 {
		t.Errorf("QUERY_DEVICE: node type %d, GUID %x", dev.NodeType, dev.GUID)
	}
	var port rpc.QueryPortReply
	r.Must(rpc.OpQueryPort, &rpc.QueryPortRequest{Device: 1, Port: 1}, &port)
	if port.State != 4 || port.PhysState != 5 || port.LinkLayer != 2 || port.MaxMTU != 5 ||
		port.ActiveMTU != 5 || port.CapFlags != 1<<16 || port.Width != 2 || port.Speed != 32 {
		t.Errorf("QUERY_PORT: %+v", port)
	}
	for _, q := range []rpc.QueryGIDRequest{{Device: 1, Port: 2}, {Device: 1}, {Device: 1, Port: 1,
		Index: 1 << 31}, {Device: 1, Port: 1, Index: ^uint32(0)}} {
		if _, err := r.Call(rpc.OpQueryGID, &q, &rpc.QueryGIDReply{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	rows, err := c.List("gid")
	if err != nil || len(rows) != 5 {
		t.Fatalf("%d rows of GIDs, %v: want 5", len(rows), err)
	}
	var row struct {
		Dev   string
		Index int
		GID   string
		Type  string
	}
	if err := json.Unmarshal(rows[2], &row); err != nil || row.Dev != "rocep0" || row.Index != 2 ||
		row.GID != "::ffff:10.77.0.2" || row.Type != "RoCE v2" {
		t.Errorf("%s: %+v, %v", rows[2], row, err)
	}
}

// A peer that does not answer keeps a client from nothing else: the daemon says that it is looked
// for, does what it is asked meanwhile, and says in the end that nobody is there. RVB-006.
func TestRoCEDeadPeer(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	dead := func(addr string) rdma.GID { return rdma.GIDOf(netip.MustParseAddr(addr)) }
	pd, err := daemontest.Open(t, d.Dial(), "rocep0").AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { // a client of ours waits
		_, err := pd.CreateAH(rdma.AHAttr{GID: dead("10.77.0.98"), GIDIndex: 2, Port: 1, Global: true})
		waited <- err
	}()
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	ctx := r.Ctx(1)
	ask := func(r *shmtest.RawClient, pd uint32) error {
		_, err := r.Call(rpc.OpCreateAH, &rpc.CreateAHRequest{PD: pd, Attr: rpc.AHAttr{
			Flags: rpc.AHGlobal, GIDIndex: 2, Port: 1, GID: dead("10.77.0.99")}}, &rpc.CreateAHReply{})
		return err
	}
	old := shmtest.NewRaw(t, d.Socket()) // does not know EINPROGRESS, and waits, too
	old.Must(rpc.OpHello, &rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major}, &old.Reply)
	oldPD := old.PD(old.Ctx(1))
	late := make(chan error, 1)
	go func() { late <- ask(old, oldPD) }()
	rpd := r.PD(ctx)
	if err = ask(r, rpd); !errors.Is(err, syscall.EINPROGRESS) {
		t.Fatalf("at first: %v", err)
	}
	for errors.Is(err, syscall.EINPROGRESS) {
		r.Must(rpc.OpDeallocPD, &rpc.HandleRequest{Handle: r.PD(ctx)}, nil)
		time.Sleep(20 * time.Millisecond) // before it asks again
		err = ask(r, rpd)
	}
	for _, err := range []error{err, <-waited, <-late} {
		if !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("in the end: %v", err)
		}
	}
}

// toInit moves an end's QP to INIT.
func toInit(t testing.TB, e *daemontest.End) {
	t.Helper()
	a := rdma.QPAttr{State: rdma.QPInit, Port: 1, Access: rdma.RemoteWrite | rdma.RemoteRead,
		QKey: 0x1234}
	mask := rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess
	if e.QP.Config().Type == rdma.UD {
		mask ^= rdma.AttrAccess | rdma.AttrQKey
	}
	if err := e.QP.Modify(&a, mask); err != nil {
		t.Fatal(err)
	}
}

// A program without rdma_cm sees the states of its QPs, and what it may post in each; RESET forgets
// all, also what has completed and not been polled.
func TestRoCEStates(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	dev := daemontest.Open(t, d.Dial(), "rocep0")
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
		e := daemontest.NewEnd(t, dev, 4096, func(_ *daemontest.End, cfg *rdma.QPConfig) {
			cfg.Type, cfg.MaxRecvWR = typ, 4
		})
		if got := e.QP.Config().Type; got != typ || e.QP.State() != rdma.QPReset {
			t.Fatalf("a QP of type %v is of %v, in state %v", typ, got, e.QP.State())
		}
		recv := func() error { return e.QP.PostRecv(&rdma.RecvWR{ID: 7}) }
		send := func() error { return e.QP.PostSend(&rdma.SendWR{Op: rdma.OpSend}) }
		for name, f := range map[string]func() error{"receive": recv, "Send": send} {
			if err := f(); !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("%v: a %s in RESET: %v", typ, name, err)
			}
		}
		for range 3 {
			toInit(t, e)
			a, err := e.QP.Query()
			if err != nil || a.State != rdma.QPInit || a.Port != 1 {
				t.Errorf("%v: %+v, %v", typ, a, err)
			}
			if err := send(); !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("%v: a Send in INIT: %v", typ, err)
			}
			for i := range 4 { // all of them: those before RESET are forgotten
				if err := recv(); err != nil {
					t.Fatalf("%v: receive %d: %v", typ, i, err)
				}
			}
			if err := recv(); !errors.Is(err, rdma.ErrQueueFull) {
				t.Errorf("%v: a fifth receive: %v", typ, err)
			}
			if err := e.QP.Abort(); err != nil {
				t.Fatal(err)
			}
			e.WantStatus("a receive of a QP in ERR", 7, rdma.WCFlush)
			if err := e.QP.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState); err != nil {
				t.Fatal(err)
			}
			if n, err := e.CQ.Poll(make([]rdma.WC, 8)); n != 0 || err != nil {
				t.Errorf("%v: %d completions behind RESET, %v", typ, n, err)
			}
		}
	}
}

// RVB-001, RVB-002: MODIFY_QP with attributes that cannot be changes nothing, and a client that
// sends any number gets an errno for it.
func TestHostileModify(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	q := newRawQP(t, r, 1, rpc.TypeRC)
	init := rpc.ModifyQPRequest{QP: q, Mask: 1 | 1<<3 | 1<<4 | 1<<5, State: abi.StateInit,
		Attr: rpc.QPAttr{Port: 1, Access: 7}}
	r.Must(rpc.OpModifyQP, &init, nil)
	var was, is rpc.QueryQPReply
	r.Must(rpc.OpQueryQP, &rpc.HandleRequest{Handle: q}, &was)
	if was.State != abi.StateInit || was.Attr.Port != 1 || was.Access != 7 {
		t.Fatalf("QUERY_QP in INIT: %+v", was)
	}
	rtr := rpc.ModifyQPRequest{QP: q, State: abi.StateRTR,
		Mask: 1 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20,
		Attr: rpc.QPAttr{PathMTU: 3, DestQPN: 77, MinRNRTimer: 12, MaxDestRead: 1, Path: rpc.AHAttr{
			GID: netip.MustParseAddr("10.77.0.2").As16(), Flags: rpc.AHGlobal, GIDIndex: 2, Port: 1}}}
	for why, change := range map[string]func(*rpc.ModifyQPRequest){
		"no such state":     func(m *rpc.ModifyQPRequest) { m.State = 7 },
		"state 2^32-1":      func(m *rpc.ModifyQPRequest) { m.State = ^uint32(0) },
		"a bit that is not": func(m *rpc.ModifyQPRequest) { m.Mask |= 1 << 21 },
		"all bits":          func(m *rpc.ModifyQPRequest) { m.Mask = ^uint32(0) },
		"RTS":               func(m *rpc.ModifyQPRequest) { m.State = abi.StateRTS },
		"no path":           func(m *rpc.ModifyQPRequest) { m.Mask &^= 1 << 7 },
		"an alternate path": func(m *rpc.ModifyQPRequest) { m.Mask |= 1 << 14 },
		"capacities":        func(m *rpc.ModifyQPRequest) { m.Mask |= 1 << 19 },
		"a Q_Key of RC":     func(m *rpc.ModifyQPRequest) { m.Mask |= 1 << 6 },
		"path MTU 0":        func(m *rpc.ModifyQPRequest) { m.Attr.PathMTU = 0 },
		"path MTU 6":        func(m *rpc.ModifyQPRequest) { m.Attr.PathMTU = 6 },
		"path MTU 256+3":    func(m *rpc.ModifyQPRequest) { m.Attr.PathMTU = 256 + 3 },
		"RNR timer 32":      func(m *rpc.ModifyQPRequest) { m.Attr.MinRNRTimer = 32 },
		"255 Reads":         func(m *rpc.ModifyQPRequest) { m.Attr.MaxDestRead = 255 },
		"P_Key 65536": func(m *rpc.ModifyQPRequest) {
			m.Mask, m.Attr.PKeyIndex = m.Mask|1<<4,
				1<<16
		},
		"P_Key 1": func(m *rpc.ModifyQPRequest) {
			m.Mask, m.Attr.PKeyIndex = m.Mask|1<<4,
				1
		},
		"no GRH":                 func(m *rpc.ModifyQPRequest) { m.Attr.Path.Flags = 0 },
		"flags of a path":        func(m *rpc.ModifyQPRequest) { m.Attr.Path.Flags = ^uint32(0) },
		"an empty GID":           func(m *rpc.ModifyQPRequest) { m.Attr.Path.GIDIndex = 30 },
		"a GID behind the table": func(m *rpc.ModifyQPRequest) { m.Attr.Path.GIDIndex = 255 },
		"port 0 of a path":       func(m *rpc.ModifyQPRequest) { m.Attr.Path.Port = 0 },
		"port 257 of a path":     func(m *rpc.ModifyQPRequest) { m.Attr.Path.Port = 257 },
		"rights": func(m *rpc.ModifyQPRequest) {
			m.Mask, m.Attr.Access = m.Mask|1<<3,
				1<<9
		},
		"migration": func(m *rpc.ModifyQPRequest) { m.Mask, m.Attr.MigState = m.Mask|1<<18, 1 },
		"another current state": func(m *rpc.ModifyQPRequest) {
			m.Mask, m.Attr.CurState = m.Mask|1<<1, abi.StateRTS
		},
	} {
		m := rtr
		change(&m)
		if _, err := r.Call(rpc.OpModifyQP, &m, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", why, err)
		}
		r.Must(rpc.OpQueryQP, &rpc.HandleRequest{Handle: q}, &is)
		if is != was {
			t.Errorf("%s: the QP is %+v, was %+v", why, is, was)
		}
	}
	m := rtr
	m.QP = q + 1
	if _, err := r.Call(rpc.OpModifyQP, &m, nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a QP that is not there: %v", err)
	}
	ud := newRawQP(t, r, 1, rpc.TypeUD)
	controlled := rpc.ModifyQPRequest{QP: ud, State: abi.StateInit, Mask: 1 | 1<<4 | 1<<5 | 1<<6,
		Attr: rpc.QPAttr{Port: 1, QKey: 1 << 31}}
	var want error
	if os.Getuid() != 0 {
		want = syscall.EPERM
	}
	if _, err := r.Call(rpc.OpModifyQP, &controlled, nil); !errors.Is(err, want) {
		t.Errorf("a Q_Key with the top bit set: %v, want %v", err, want)
	}
}

// newRawQP makes a QP of a type on a device, and says its handle.
func newRawQP(t testing.TB, r *shmtest.RawClient, device, typ uint32) uint32 {
	t.Helper()
	pd, cq := rawPD(r, device)
	var rep rpc.CreateQPReply
	r.Must(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd, SendCQ: cq, RecvCQ: cq, Type: typ}, &rep)
	return rep.QP
}

func rawPD(r *shmtest.RawClient, device uint32) (pd, cq uint32) {
	var ctx rpc.CtxOpenReply
	r.Must(rpc.OpCtxOpen, &rpc.CtxOpenRequest{Device: device}, &ctx)
	var p rpc.AllocPDReply
	r.Must(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &p)
	var c rpc.CreateCQReply
	r.Must(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 16}, &c)
	return p.PD, c.CQ
}

// What a device of iWARP has not it says: types of QPs, address handles, groups, attributes.
func TestIWARPRefuses(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	pd, cq := rawPD(r, 0)
	for typ, want := range map[uint32]syscall.Errno{rpc.TypeUC: syscall.EOPNOTSUPP,
		rpc.TypeUD: syscall.EOPNOTSUPP, 1: syscall.EOPNOTSUPP, ^uint32(0): syscall.EOPNOTSUPP} {
		req := &rpc.CreateQPRequest{PD: pd, SendCQ: cq, RecvCQ: cq, Type: typ}
		if _, err := r.Call(rpc.OpCreateQP, req, nil); !errors.Is(err, want) {
			t.Errorf("a QP of type %d: %v, want %v", typ, err, want)
		}
	}
	q := newRawQP(t, r, 0, rpc.TypeRC)
	for _, tt := range []struct {
		op   rpc.Op
		req  rpc.Message
		want syscall.Errno
	}{
		{rpc.OpCreateAH, &rpc.CreateAHRequest{PD: pd, Attr: rpc.AHAttr{Flags: 1, Port: 1}},
			syscall.EOPNOTSUPP},
		{rpc.OpAttachMcast, &rpc.AttachMcastRequest{QP: q, GID: [16]byte{0xff}}, syscall.EINVAL},
		{rpc.OpDetachMcast, &rpc.AttachMcastRequest{QP: q, GID: [16]byte{0xff}}, syscall.EINVAL},
		{rpc.OpModifyQP, &rpc.ModifyQPRequest{QP: q, Mask: 1 | 1<<5, State: abi.StateErr},
			syscall.EINVAL},
	} {
		if _, err := r.Call(tt.op, tt.req, nil); !errors.Is(err, tt.want) {
			t.Errorf("%v: %v, want %v", tt.op, err, tt.want)
		}
	}
	dev := daemontest.Open(t, d.Dial(), "iw0")
	e := daemontest.NewEnd(t, dev, 4096)
	if _, err := e.PD.CreateAH(rdma.AHAttr{}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("an address handle: %v", err)
	}
	if err := e.QP.AttachMulticast(rdma.GID{0xff}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a group: %v", err)
	}
	err := e.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState|rdma.AttrPort)
	if !errors.Is(err, rdma.ErrInvalid) || e.QP.State() != rdma.QPIdle {
		t.Errorf("attributes: %v, the QP is in state %v", err, e.QP.State())
	}
	if err := e.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState); err != nil ||
		e.QP.State() != rdma.QPError {
		t.Errorf("to Error: %v, the QP is in state %v", err, e.QP.State())
	}
}

// connectRoCE connects two ends by what programs tell each other: GIDs, numbers and PSNs.
func connectRoCE(t testing.TB, a, b *daemontest.End, gidA, gidB uint8) {
	t.Helper()
	const mtu = rdma.MTU1024
	for _, x := range []struct {
		e, peer   *daemontest.End
		mine, its uint8
		psn, its0 uint32
	}{{a, b, gidA, gidB, 0xfffffe, 77}, {b, a, gidB, gidA, 77, 0xfffffe}} {
		to, err := x.peer.Dev.GID(int(x.its))
		if err != nil {
			t.Fatal(err)
		}
		attr := rdma.QPAttr{
			State: rdma.QPInit, Port: 1,
			Access: rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic,
		}
		mask := rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrAccess
		if err := x.e.QP.Modify(&attr, mask); err != nil {
			t.Fatal(err)
		}
		attr = rdma.QPAttr{
			State: rdma.QPRTR, PathMTU: mtu, DestQPN: x.peer.QP.Num(), RQPSN: x.its0, MaxDestRead: 4,
			MinRNRTimer: 1,
			Path:        rdma.AHAttr{GID: to.GID, GIDIndex: x.mine, Port: 1, Global: true},
		}
		mask = rdma.AttrState | rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN | rdma.AttrRQPSN
		if x.e.QP.Config().Type == rdma.RC {
			mask |= rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer
		}
		if err := x.e.QP.Modify(&attr, mask); err != nil {
			t.Fatal(err)
		}
		attr = rdma.QPAttr{State: rdma.QPRTS, SQPSN: x.psn, Timeout: 14, RetryCount: 7, RNRRetry: 7,
			MaxRead: 4}
		mask = rdma.AttrState | rdma.AttrSQPSN
		if x.e.QP.Config().Type == rdma.RC {
			mask |= rdma.AttrTimeout | rdma.AttrRetryCount | rdma.AttrRNRRetry | rdma.AttrMaxRead
		}
		if err := x.e.QP.Modify(&attr, mask); err != nil {
			t.Fatal(err)
		}
	}
}

// ofType makes QPs of a type.
func ofType(typ rdma.QPType) func(*daemontest.End, *rdma.QPConfig) {
	return func(_ *daemontest.End, cfg *rdma.QPConfig) { cfg.Type = typ }
}

// exchange moves data in both directions by all that the type of the QPs has.
func exchange(t testing.TB, a, b *daemontest.End) {
	t.Helper()
	const n = 5000 // some packets
	rc := a.QP.Config().Type == rdma.RC
	for i, x := range []struct{ from, to *daemontest.End }{{a, b}, {b, a}} {
		seed := byte(i)
		x.from.Fill(0, n, seed)
		x.to.Recv(1, 0, n)
		x.from.Send(2, 0, n)
		x.from.WantOK("a Send", 2, rdma.WCSend)
		if wc := x.to.WantOK("its receive", 1, rdma.WCRecv); wc.ByteLen != n {
			t.Errorf("a receive of %d octets", wc.ByteLen)
		}
		x.to.Check("Send", 0, n, seed)
		x.to.Recv(3, 0, n)
		x.from.Fill(0, n, seed+1)
		x.from.Post(&rdma.SendWR{ID: 4, Op: rdma.OpWriteImm, Flags: rdma.Signaled, Imm: 0x01020304,
			SGEs: []rdma.SGE{x.from.SGE(0, n)}, RemoteAddr: x.to.MR.Addr() + n, RKey: x.to.MR.RKey()})
		x.from.WantOK("a Write with immediate data", 4, rdma.WCWrite)
		wc := x.to.WantOK("its receive", 3, rdma.WCRecvImm)
		if wc.ByteLen != n || wc.Imm != 0x01020304 || wc.Flags != rdma.WCWithImm {
			t.Errorf("%+v of a Write of %d octets", wc, n)
		}
		x.to.Check("Write", n, n, seed+1)
		if !rc {
			continue
		}
		x.to.Fill(2*n, n, seed+2)
		x.from.Read(5, 2*n, n, x.to, 2*n)
		x.from.WantOK("a Read", 5, rdma.WCRead)
		x.from.Check("Read", 2*n, n, seed+2)
	}
}

// QPs of RoCE that programs connect by themselves, over the switch, between two devices and on one,
// through a Send, a Write with immediate data and a Read each way.
func TestRoCETransfer(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	for _, tt := range []struct {
		name       string
		to         string
		typ        rdma.QPType
		gidA, gidB uint8
	}{
		{"RC", "rocep1", rdma.RC, 2, 1}, {"UC", "rocep1", rdma.UC, 2, 1},
		{"one device, IPv6", "rocep0", rdma.RC, 1, 1}, {"one device, link-local", "rocep0",
			rdma.UC, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 1<<16, ofType(tt.typ))
			b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), tt.to), 1<<16, ofType(tt.typ))
			connectRoCE(t, a, b, tt.gidA, tt.gidB)
			exchange(t, a, b)
			rows, err := d.Dial().List("qp")
			var row struct {
				Type    string
				Remote  netip.Addr
				PathMTU int     `json:"path_mtu"`
				Dest    uint32  `json:"dest_qpn"`
				SQPSN   uint32  `json:"sq_psn"`
				Retry   *uint32 `json:"retry_cnt"`
			}
			i := slices.IndexFunc(rows, func(r json.RawMessage) bool {
				return strings.Contains(string(r), fmt.Sprintf(`"qpn":%d,`, a.QP.Num()))
			})
			if err == nil && i >= 0 {
				err = json.Unmarshal(rows[i], &row)
			}
			if err != nil || row.Type != tt.typ.String() || row.Dest != b.QP.Num() ||
				row.PathMTU != 1024 || row.SQPSN != 0xfffffe || !row.Remote.IsValid() ||
				(row.Retry != nil) != (tt.typ == rdma.RC) {
				t.Errorf("%s: %+v, %v", rows, row, err)
			}
			q, err := a.QP.Query()
			if err != nil || q.State != rdma.QPRTS || q.DestQPN != b.QP.Num() || q.PathMTU != rdma.MTU1024 {
				t.Errorf("%+v, %v", q, err)
			}
		})
	}
}

// A device of iWARP and one of RoCE are one station: connections of both, at the same address,
// carry data at the same time.
func TestSharedAddress(t *testing.T) {
	d := daemontest.Start(t, devices(t, append([]string{"iw1,addr=10.77.0.3/24,mtu=1500"},
		bothKinds...)...))
	ra := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 1<<16)
	rb := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep1"), 1<<16)
	ia := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "iw0"), 1<<16)
	ib := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "iw1"), 1<<16)
	connectRoCE(t, ra, rb, 2, 1)
	daemontest.Connect(t, ia, ib, netip.MustParseAddrPort("10.77.0.3:0"))
	for i := range 20 {
		seed := byte(i)
		ra.Fill(0, 30000, seed)
		ra.Write(1, 0, 30000, rb, 0)
		ia.Fill(0, 30000, seed+1)
		ia.Write(2, 0, 30000, ib, 0)
		ra.WantOK("a Write of RoCE", 1, rdma.WCWrite)
		ia.WantOK("a Write of iWARP", 2, rdma.WCWrite)
		rb.Check("RoCE", 0, 30000, seed)
		ia.Read(3, 32768, 30000, ib, 0)
		ia.WantOK("a Read of iWARP", 3, rdma.WCRead)
		ia.Check("iWARP", 32768, 30000, seed+1)
	}
}

// Datagrams between two devices, by address handles, with and without immediate data, and to a
// group: each has the network's header in front, and tells who has sent it.
func TestDatagrams(t *testing.T) {
	const qkey, grh = 0x1234, 40
	d := daemontest.Start(t, devices(t, bothKinds...))
	var ends []*daemontest.End
	for _, name := range []string{"rocep0", "rocep1"} {
		e := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), name), 1<<14, ofType(rdma.UD))
		toInit(t, e)
		for _, s := range []rdma.QPState{rdma.QPRTR, rdma.QPRTS} {
			mask := rdma.AttrState
			if s == rdma.QPRTS {
				mask |= rdma.AttrSQPSN
			}
			if err := e.QP.Modify(&rdma.QPAttr{State: s}, mask); err != nil {
				t.Fatal(err)
			}
		}
		ends = append(ends, e)
	}
	a, b := ends[0], ends[1]
	handle := func(e *daemontest.End, to string, index uint8) rdma.AH {
		t.Helper()
		ah, err := e.PD.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr(to)), GIDIndex: index,
			Port: 1, Global: true})
		if err != nil {
			t.Fatal(err)
		}
		return ah
	}
	toB := handle(a, "10.77.0.3", 2)
	if err := a.PD.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a PD with an address handle closes: %v", err)
	}
	if _, err := a.PD.CreateAH(rdma.AHAttr{GIDIndex: 30, Port: 1, Global: true}); !errors.Is(err,
		rdma.ErrInvalid) {
		t.Errorf("a handle of an empty GID: %v", err)
	}
	send := func(ah rdma.AH, to uint32, op rdma.Opcode, n int) {
		t.Helper()
		a.Post(&rdma.SendWR{ID: 2, Op: op, Flags: rdma.Signaled, Imm: 7, SGEs: []rdma.SGE{a.SGE(0, n)},
			To: rdma.Datagram{AH: ah.Handle(), QPN: to, QKey: qkey}})
		a.WantOK("a datagram", 2, rdma.WCSend)
	}
	want := func(why string, n int, flags rdma.WCFlags) {
		t.Helper()
		wc := b.WantOK(why, 1, rdma.WCRecv)
		if wc.ByteLen != uint32(grh+n) || wc.SrcQP != a.QP.Num() || wc.Flags != rdma.WCGRH|flags ||
			flags != 0 && wc.Imm != 7 {
			t.Errorf("%s: %+v, want %d octets of QP %d", why, wc, grh+n, a.QP.Num())
		}
		b.Check(why, grh, n, byte(n))
	}
	for _, n := range []int{0, 1, 1024} {
		a.Fill(0, n, byte(n))
		b.Recv(1, 0, 4096)
		send(toB, b.QP.Num(), rdma.OpSend, n)
		want("a Send", n, 0)
		b.Recv(1, 0, 4096)
		send(toB, b.QP.Num(), rdma.OpSendImm, n)
		want("a Send with immediate data", n, rdma.WCWithImm)
	}
	group := rdma.GIDOf(netip.MustParseAddr("239.1.2.3"))
	for range 2 {
		if err := b.QP.AttachMulticast(group); err != nil {
			t.Fatal(err)
		}
	}
	b.Recv(1, 0, 4096)
	a.Fill(0, 9, 9)
	send(handle(a, "239.1.2.3", 2), 0xffffff, rdma.OpSend, 9)
	want("a Send to a group", 9, 0)
	if err := b.QP.DetachMulticast(group); err != nil {
		t.Error(err)
	}
	if err := b.QP.DetachMulticast(group); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("detached twice: %v", err)
	}
	if err := toB.Close(); err != nil {
		t.Error(err)
	}
	for op, want := range map[rdma.Opcode]error{rdma.OpWrite: rdma.ErrInvalid,
		rdma.OpRead: rdma.ErrInvalid} {
		if err := a.QP.PostSend(&rdma.SendWR{Op: op}); !errors.Is(err, want) {
			t.Errorf("%v on a QP of datagrams: %v", op, err)
		}
	}
}

// What a program leaves behind that is killed: nothing, of QPs in every state, handles and groups.
func TestRoCEClientGone(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	stays := d.Dial()
	counts := func() (rows []string) {
		for _, kind := range []string{"qp", "mr", "cq"} {
			all, err := stays.List(kind)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range all {
				rows = append(rows, string(r))
			}
		}
		return rows
	}
	peer := daemontest.NewEnd(t, daemontest.Open(t, stays, "rocep1"), 1<<16)
	before := len(counts())
	for range 3 {
		c, err := shm.Dial(d.Socket())
		if err != nil {
			t.Fatal(err)
		}
		dev := daemontest.Open(t, c, "rocep0")
		e := daemontest.NewEnd(t, dev, 1<<16)
		connectRoCE(t, e, peer, 2, 1)
		e.Recv(1, 0, 100)
		ud := daemontest.NewEnd(t, dev, 4096, ofType(rdma.UD))
		toInit(t, ud)
		if err := ud.QP.AttachMulticast(rdma.GIDOf(netip.MustParseAddr("239.1.2.4"))); err != nil {
			t.Fatal(err)
		}
		if _, err := ud.PD.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.77.0.3")),
			GIDIndex: 2, Port: 1, Global: true}); err != nil {
			t.Fatal(err)
		}
		for range 50 { // most are under way when it goes
			e.Post(&rdma.SendWR{Op: rdma.OpWrite, SGEs: []rdma.SGE{e.SGE(0, 1<<15)},
				RemoteAddr: peer.MR.Addr(), RKey: peer.MR.RKey()})
		}
		c.Close()
		if !needtest.Becomes(func() bool { return len(counts()) == before }) {
			t.Fatalf("left behind: %v", counts())
		}
		if err := peer.QP.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState); err != nil {
			t.Fatal(err)
		}
	}
}

// A CQ that is resized while completions come to it loses none, and events come behind it too.
func TestResizeUnderWay(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 1<<14)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep1"), 1<<14)
	connectRoCE(t, a, b, 2, 1)
	for i := range 60 {
		a.Write(uint64(i), 0, 100, b, 0)
		if i%10 == 9 {
			if err := a.CQ.Resize(64 << (i % 3)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 60 {
		a.WantOK("a Write", uint64(i), rdma.WCWrite)
	}
	if err := a.CQ.Resize(0); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("to no entries: %v", err)
	}
	if n := a.CQ.Depth(); n != 256 {
		t.Errorf("a depth of %d", n)
	}
}
