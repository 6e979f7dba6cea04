package daemon_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A rawEnd is a connected QP of a client that lends its own memory (mode 0), as the C library does.
type rawEnd struct {
	*shmtest.RawClient
	dev uint32
	pd  uint32
	cq  *shmtest.RawCQ
	qp  *shmtest.RawQP
	srq *shmtest.RawSRQ // or nil
	ext bool            // connects with the messages of RFC 7306
	buf []byte
	mr  rpc.RegMRReply
}

// rawIOVA is what a rawEnd calls the first octet of its region: not its address.
const rawIOVA = 0x7000_0000_0000

func newRawEnd(t *testing.T, d *daemontest.Daemon, size int) *rawEnd {
	return newRawEndOf(t, d, size, rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16})
}

func newRawEndOf(t *testing.T, d *daemontest.Daemon, size int, caps rpc.QPCaps) *rawEnd {
	e := newRawParts(t, d, size)
	e.qp = e.QP(e.pd, e.cq, e.cq, caps)
	return e
}

// newRawParts is a rawEnd without its QP.
func newRawParts(t *testing.T, d *daemontest.Daemon, size int) *rawEnd {
	return newRawPartsAt(t, d.Socket(), 0, size)
}

// newRawPartsAt is newRawParts on device number dev of the daemon at socket.
func newRawPartsAt(t *testing.T, socket string, dev uint32, size int) *rawEnd {
	e := &rawEnd{RawClient: shmtest.NewRaw(t, socket).Hello(), dev: dev}
	e.SetMem()
	ctx := e.Ctx(dev)
	e.pd = e.PD(ctx)
	e.cq = e.CQ(ctx, 8, 0)
	e.buf = e.Pages(size)
	e.mr = e.RegMR(e.pd, e.buf, rawIOVA,
		uint32(rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead|rdma.RemoteAtomic|rdma.MWBind))
	return e
}

// sharedQP makes an SRQ, if e has none yet, and a QP on it.
func (e *rawEnd) sharedQP(caps rpc.QPCaps) {
	e.T.Helper()
	if e.srq == nil {
		e.srq = e.SRQ(e.pd, 16, 2)
	}
	e.qp = e.NewQP(rpc.CreateQPRequest{PD: e.pd, SendCQ: e.cq.Handle, RecvCQ: e.cq.Handle,
		SRQ: e.srq.CreateSRQReply.SRQ, Caps: caps})
}

// connect connects e to a listener at addr.
func (e *rawEnd) connect(addr netip.AddrPort) (established rpc.CMEvent) {
	ch, _ := e.CM()
	id := e.ID(ch)
	e.Must(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: id, TimeoutMS: 1000,
		Src: rpc.MakeSockAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, 2 + byte(e.dev)}),
			0)), Dst: rpc.MakeSockAddr(addr)}, nil)
	e.WantEvent(ch, rpc.EvAddrResolved)
	e.Must(rpc.OpCMResolveRoute, &rpc.CMResolveRouteRequest{ID: id, TimeoutMS: 1000}, nil)
	e.WantEvent(ch, rpc.EvRouteResolved)
	if e.ext {
		opt := &rpc.CMSetOptionRequest{ID: id, Level: rpc.OptLevelVRNIC, Name: rpc.OptExtensions, Len: 4}
		opt.Value[0] = 1
		e.Must(rpc.OpCMSetOption, opt, nil)
	}
	e.Must(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: id, PD: e.pd, Param: rpc.ConnParam{
		QPN: e.qp.QPN, IRD: rpc.ReadsDefault, ORD: rpc.ReadsDefault,
	}}, nil)
	return e.WantEvent(ch, rpc.EvEstablished)
}

func (e *rawEnd) sge(off, n int) func(w *abi.SendWQE) {
	return func(w *abi.SendWQE) {
		w.Flags, w.NumSGE = abi.SQSignaled, 1
		w.SGE[0] = abi.SGE{Addr: rawIOVA + uint64(off), Length: uint32(n), LKey: e.mr.LKey}
	}
}

// accept takes one connection for b, in the background.
func accept(t *testing.T, b *daemontest.End, change ...func(*rdma.ConnParam)) (addr netip.AddrPort,
	done func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	l, err := b.Dev.Listen(daemontest.Addr(t, b.Dev, false, 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			var p rdma.ConnParam
			for _, f := range change {
				f(&p)
			}
			b.Conn, err = req.Accept(ctx, b.QP, p)
		}
		accepted <- err
	}()
	return l.Addr(), func() {
		t.Helper()
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// A client's own memory, reached through its mem fd: Send, Write and Read in both directions, to
// another device and to another client on the same one.
func TestOwnMemory(t *testing.T) {
	const size = 1 << 20
	for _, device := range []string{"vrnic1", "vrnic0"} {
		t.Run(device, func(t *testing.T) {
			d := daemontest.Start(t)
			b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), size)
			a := newRawEnd(t, d, size)
			addr, accepted := accept(t, b)
			a.connect(addr)
			accepted()
			want := func(op uint32) {
				t.Helper()
				if e := a.Next(a.cq); e.Status != 0 || e.Opcode != op || e.QPN != a.qp.QPN {
					t.Fatalf("completion %+v, want success of %d", e, op)
				}
			}
			remote := func(op uint8) func(*abi.SendWQE) {
				return func(w *abi.SendWQE) {
					a.sge(0, size)(w)
					w.Op, w.RemoteAddr, w.RKey = op, b.MR.Addr(), b.MR.RKey()
				}
			}
			copy(a.buf, bytes.Repeat([]byte("a's own memory. "), size/16))
			a.qp.PostSend(remote(0)) // IBV_WR_RDMA_WRITE
			b.Recv(1, 0, 64)
			want(1)
			a.qp.PostSend(func(w *abi.SendWQE) { a.sge(0, 16)(w); w.Op = 2 }) // IBV_WR_SEND
			want(0)
			b.WantOK("the Send", 1, rdma.WCRecv)
			if !bytes.Equal(b.Buf.Bytes(), a.buf) {
				t.Error("the Write brought something else")
			}
			b.Fill(0, size, 9)
			a.qp.PostSend(remote(4)) // IBV_WR_RDMA_READ
			want(2)
			if !bytes.Equal(b.Buf.Bytes(), a.buf) {
				t.Error("the Read brought something else")
			}
			// And from the other side, into a's memory and out of it.
			clear(a.buf)
			there := rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{
				b.SGE(0, size)},
				RemoteAddr: rawIOVA, RKey: a.mr.RKey}
			b.Post(&there)
			b.WantOK("the Write into a's memory", 2, rdma.WCWrite)
			b.Fill(0, size, 10)
			there.Op = rdma.OpRead
			b.Post(&there)
			b.WantOK("the Read of a's memory", 2, rdma.WCRead)
			b.Check("Write and Read back", 0, size, 9)

			// A hole in it is the client's own fault: EFAULT becomes WCLocProt (ABI 6.6).
			var mr rpc.RegMRReply
			a.Must(rpc.OpRegMR, &rpc.RegMRRequest{PD: a.pd, Mode: rpc.ModeApp, Addr: 1 << 20, Length: 4096,
				IOVA: rawIOVA}, &mr)
			a.qp.PostSend(func(w *abi.SendWQE) {
				a.sge(0, 4096)(w)
				w.Op, w.SGE[0].LKey = 2, mr.LKey
			})
			if e := a.Next(a.cq); e.Status != uint32(rdma.WCLocProt) {
				t.Errorf("a Send from where nothing is mapped: completion %+v, want status %d", e,
					rdma.WCLocProt)
			}
		})
	}
}

// Why a QP ended is in the word at QPError of both sides' rings, and in an async event.
func TestCauseWord(t *testing.T) {
	d := daemontest.Start(t)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
	a := newRawEnd(t, d, 4096)
	addr, accepted := accept(t, b)
	a.connect(addr)
	accepted()
	b.Post(&rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{b.SGE(0, 64)},
		RemoteAddr: rawIOVA, RKey: a.mr.RKey + 1})
	wantDone(t, b)
	var term *rdma.TerminateError
	if err := b.Conn.Err(); !errors.As(err, &term) || !term.Remote || term.VendorErr() != 0x1100 {
		t.Errorf("the writer's connection ended with %v, want a Terminate 1/1/00 of the peer", err)
	}
	// DDP, tagged buffer error, invalid STag (RFC 5041, section 7.2); found here, so not remote.
	want := uint32(abi.ErrorValid | 0x1100)
	if !needtest.Becomes(func() bool {
		return a.qp.Ring.State() == abi.StateErr
	}) || a.qp.Ring.Cause() != want {
		t.Errorf("the ring says state %d, cause %#x; want %d, %#x", a.qp.Ring.State(), a.qp.Ring.Cause(),
			abi.StateErr, want)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ev, err := b.Dev.NextAsyncEvent(ctx)
	if err != nil || ev.Object != b.QP.Num() || ev.Cause == nil || ev.Cause.VendorErr() != 0x1100 ||
		!ev.Cause.Remote {
		t.Errorf("the writer's event is %+v, %v", ev, err)
	}
}

// A client that breaks the ABI is ended, and only it: its peer sees the disconnect, another client
// of the same daemon works on.
func TestViolation(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(e *rawEnd)
	}{
		{"send index beyond the ring",
			func(e *rawEnd) { shmtest.Word(e.qp.Mem, abi.QPSQProd).Store(1000) }},
		{"receive index beyond the ring", func(e *rawEnd) {
			shmtest.Word(e.qp.Mem, abi.QPRQProd).Store(1 << 31)
		}},
		{"more SGEs than there is room for", func(e *rawEnd) {
			wqe := make([]byte, abi.SQSGE+abi.SGELen)
			wqe[abi.SQOp], wqe[abi.SQNumSGE], wqe[abi.SQNumSGE+1] = 2, 0xff, 0xff
			e.qp.PostRaw(wqe, 1)
		}},
		{"SGEs over the masks of an atomic", func(e *rawEnd) {
			wqe := make([]byte, abi.SQSGE+2*abi.SGELen)
			wqe[abi.SQOp], wqe[abi.SQNumSGE] = 12, 2
			e.qp.PostRaw(wqe, 1)
		}},
		{"SRQ index beyond the ring", func(e *rawEnd) {
			shmtest.Word(e.srq.Mem, abi.QPRQProd).Store(1 << 31)
		}},
		{"SRQ index that goes back", func(e *rawEnd) {
			shmtest.Word(e.srq.Mem, abi.QPRQProd).Store(^uint32(0))
		}},
		{"more SGEs in an SRQ than there is room for", func(e *rawEnd) {
			shmtest.Word(e.srq.Mem, e.srq.Ring.Layout.RQOff+abi.RQNumSGE).Store(1 << 16)
			shmtest.Word(e.srq.Mem, abi.QPRQProd).Store(1)
		}},
		{"completion index in the future", func(e *rawEnd) {
			shmtest.Word(e.cq.Mem, abi.CQCons).Store(1 << 20)
			for range 16 { // more than the CQ has room for by now
				e.qp.PostSend(func(w *abi.SendWQE) { e.sge(0, 1)(w); w.Op = 0xfe })
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := daemontest.Start(t)
			x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
			daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
			wantSoon(t, time.Second, func() time.Duration {
				peer := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
				e := newRawParts(t, d, 4096)
				caps := rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16}
				if strings.Contains(tt.name, "SRQ") {
					e.sharedQP(caps)
				} else {
					e.qp = e.QP(e.pd, e.cq, e.cq, caps)
				}
				addr, accepted := accept(t, peer)
				e.connect(addr)
				accepted()
				tt.do(e)
				e.RingBell(e.qp.Bell)
				if e.srq != nil || tt.name == "receive index beyond the ring" {
					peer.Send(1, 0, 64) // it is looked at when something comes
				}
				e.WantEnd(tt.name)
				return wantDone(t, peer)
			})

			y.Recv(1, 0, 64)
			x.Send(2, 0, 64)
			x.WantOK("the others' Send", 2, rdma.WCSend)
			y.WantOK("the others' receive", 1, rdma.WCRecv)
		})
	}
}

// Connection requests beyond the room on a client's event channel are refused; those that it has
// not taken when it goes are too.
func TestEventsNotTaken(t *testing.T) {
	const room = 4
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Limits = server.DefaultLimits()
		if err := c.Limits.Set("cm-events=4"); err != nil {
			t.Fatal(err)
		}
	})
	e := shmtest.NewRaw(t, d.Socket()).Hello()
	ch, _ := e.CM()
	id := e.ID(ch)
	addr := netip.MustParseAddrPort("10.77.0.2:4000")
	e.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: id, Addr: rpc.MakeSockAddr(addr)}, nil)
	e.Must(rpc.OpCMListen, &rpc.CMListenRequest{ID: id}, nil)

	dev := daemontest.Open(t, d.Dial(), "vrnic1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	refused := make(chan error, 2*room)
	for range 2 * room {
		end := daemontest.NewEnd(t, dev, 4096)
		go func() {
			_, err := dev.Connect(ctx, end.QP, addr, rdma.ConnParam{})
			refused <- err
		}()
	}
	wantRefused := func(n int, why string) {
		t.Helper()
		for range n {
			err := <-refused
			if r := (*rdma.RejectedError)(nil); !errors.As(err, &r) {
				t.Errorf("%s: %v, want a refusal", why, err)
			}
		}
	}
	wantRefused(room, "a request without room")
	select {
	case err := <-refused:
		t.Fatalf("a request with room was answered: %v", err)
	default:
	}
	e.Close()
	wantRefused(room, "a request to a client that has gone")
}

// An id that is asked for a way to nowhere, again and again, by a program that takes no events, is
// soon refused, whether a device or the daemon says that there is none.
func TestWaysToNowhere(t *testing.T) {
	const enough = 1000
	d := daemontest.Start(t)
	e := shmtest.NewRaw(t, d.Socket()).Hello()
	ch, _ := e.CM()
	nowhere := rpc.MakeSockAddr(netip.MustParseAddrPort("192.0.2.1:7"))
	for what, bound := range map[string]string{"bound": "10.77.0.2:4000", "not bound": ""} {
		id := e.ID(ch)
		if bound != "" {
			e.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: id,
				Addr: rpc.MakeSockAddr(netip.MustParseAddrPort(bound))}, nil)
		}
		resolve := func() error {
			_, err := e.Call(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: id, Dst: nowhere}, nil)
			return err
		}
		n, err := 0, error(nil)
		for ; n < enough && err == nil; n++ {
			err = resolve()
		}
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v behind %d ways to nowhere", what, err, n)
		}
		for range n - 1 {
			e.WantEvent(ch, rpc.EvAddrError)
		}
		if err := resolve(); err != nil {
			t.Errorf("%s: %v when all events have been taken", what, err)
		}
		e.WantEvent(ch, rpc.EvAddrError)
	}
}

// Ids on an address of the host count as pipes, for the sockets that they may have; others do not.
func TestHostSockets(t *testing.T) {
	d := daemontest.Start(t, devices(t, "vrnic0,addr=10.77.0.2/24", "host0,host=127.77.9.1"),
		func(c *daemon.Config) {
			c.Limits = server.DefaultLimits()
			c.Limits.Pipes = 3
		})
	e := shmtest.NewRaw(t, d.Socket()).Hello()
	ch, _ := e.CM()
	bind := func(addr string) (id uint32, err error) {
		id = e.ID(ch)
		_, err = e.Call(rpc.OpCMBind, &rpc.CMBindRequest{ID: id,
			Addr: rpc.MakeSockAddr(netip.MustParseAddrPort(addr))}, nil)
		return id, err
	}
	var last uint32
	for _, addr := range []string{"10.77.0.2:0", "127.77.9.1:0", "127.77.9.1:0"} {
		id, err := bind(addr)
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		last = id
	}
	if _, err := bind("127.77.9.1:0"); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := bind("10.77.0.2:0"); err != nil {
		t.Errorf("one that has no socket: %v", err)
	}
	e.Must(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: last}, nil)
	if _, err := bind("127.77.9.1:0"); err != nil {
		t.Errorf("when one is gone: %v", err)
	}
}

// A client with memory of its own has an SRQ for two QPs, one of which sends from a slab. Who waits
// gets the receive that comes with a bell; the bell of the SRQ is rung only if somebody waits.
func TestOwnMemorySRQ(t *testing.T) {
	d := daemontest.Start(t)
	e := newRawParts(t, d, 1<<16)
	var peers [2]*daemontest.End
	var qps [2]*shmtest.RawQP
	for i := range peers {
		peers[i] = daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), []string{"vrnic0", "vrnic1"}[i]),
			4096)
		e.sharedQP(rpc.QPCaps{MaxSendWR: 4, TxSlab: 256, RxSlab: 4096})
		qps[i] = e.qp
		addr, accepted := accept(t, peers[i])
		e.connect(addr)
		accepted()
	}
	starved := shmtest.Word(e.srq.Mem, abi.QPRQStarved)
	post := func(cookie uint32) {
		w := &abi.RecvWQE{WRID: uint64(cookie), Cookie: cookie, NumSGE: 1}
		w.SGE[0] = abi.SGE{Addr: rawIOVA + uint64(cookie)*100, Length: 100, LKey: e.mr.LKey}
		e.srq.PostRecv(w)
	}
	want := func(from int, cookie uint32) {
		t.Helper()
		if c := e.Next(e.cq); c.Status != 0 || c.Cookie != cookie || c.QPN != qps[from].QPN ||
			c.SlabOff != abi.NoSlab ||
			string(e.buf[cookie*100:][:4]) != string(peers[from].Buf.Bytes()[:4]) {
			t.Fatalf("completion %+v, octets %q; want receive %d of QP %d", c, e.buf[cookie*100:][:4],
				cookie, qps[from].QPN)
		}
	}
	copy(peers[0].Buf.Bytes(), "zero")
	copy(peers[1].Buf.Bytes(), "one!")
	post(1)
	post(2)
	if starved.Load() != 0 {
		t.Error("the SRQ is starved before anything has come")
	}
	peers[1].Send(1, 0, 4)
	want(1, 1)
	peers[0].Send(1, 0, 4)
	want(0, 2)
	peers[0].Send(2, 0, 4)
	peers[1].Send(2, 0, 4)
	if !needtest.Becomes(func() bool { return starved.Load() != 0 }) {
		t.Fatal("two Sends wait for a receive and the SRQ is not starved")
	}
	post(3)
	post(4)
	got := map[uint32]bool{}
	for range 2 {
		got[e.Next(e.cq).QPN] = true
	}
	if len(got) != 2 {
		t.Errorf("both receives went to one QP: %v", got)
	}
	if !needtest.Becomes(func() bool { return starved.Load() == 0 }) {
		t.Error("nobody waits and the SRQ is still starved")
	}
	peers[0].Recv(9, 100, 10)
	e.qp = qps[0]
	e.postSlab(rdma.OpSend, []byte("slab"), nil)
	if c := e.Next(e.cq); c.Status != 0 || c.QPN != qps[0].QPN {
		t.Errorf("a Send from the slab: %+v", c)
	}
}

// What a verbs program posts beyond Send, Write and Read, word by word as the C library does:
// windows, fast registration, atomics and immediate data, in memory of its own.
func TestOwnMemoryOps(t *testing.T) {
	for _, device := range []string{"vrnic1", "vrnic0"} {
		t.Run(device, func(t *testing.T) {
			d := daemontest.Start(t)
			b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), 4096)
			a := newRawEnd(t, d, 4096)
			addr, accepted := accept(t, b, func(p *rdma.ConnParam) { p.Extensions = true })
			a.ext = true
			a.connect(addr)
			accepted()
			var mw rpc.AllocMWReply
			var mr rpc.RegMRReply
			a.Must(rpc.OpAllocMW, &rpc.AllocMWRequest{PD: a.pd, Type: 2}, &mw)
			a.Must(rpc.OpAllocMR, &rpc.AllocMRRequest{PD: a.pd, MaxLen: 64}, &mr)
			want := func(op uint32) abi.CQE {
				t.Helper()
				e := a.Next(a.cq)
				if e.Status != 0 || e.Opcode != op {
					t.Fatalf("completion %+v, want success of %d", e, op)
				}
				return e
			}
			for i, key := range []uint32{rdma.NextKey(mw.RKey), rdma.NextKey(mr.RKey)} {
				op := []uint8{8, 32}[i] // IBV_WR_BIND_MW, IB_WR_REG_MR
				wqe := make([]byte, 64)
				wqe[abi.SQOp], wqe[abi.SQFlags], wqe[abi.SQNumSGE] = op, abi.SQSignaled, 1
				ne := binary.NativeEndian
				ne.PutUint32(wqe[24:], key)         // rkey
				ne.PutUint64(wqe[16:], rawIOVA+128) // remote_addr: the range begins
				ne.PutUint64(wqe[32:], 64)          // cmp_add: and has so many octets
				ne.PutUint64(wqe[40:], 7)           // swap: the access
				if op == 8 {
					ne.PutUint64(wqe[40:], 6) // a window gives nothing here
				}
				ne.PutUint64(wqe[48:], 0x1000) // SGE[0].addr: what the peer calls its first octet
				ne.PutUint32(wqe[60:], a.mr.LKey)
				a.qp.PostRaw(wqe, 1)
				want([]uint32{5, 32}[i])
				b.Fill(0, 64, byte(i))
				b.Post(&rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{
					b.SGE(0, 64)}, RemoteAddr: 0x1000, RKey: key})
				b.WantOK("a Write", 1, rdma.WCWrite)
				b.Read(2, 1000, 0, b, 0) // behind it; of nothing, anywhere
				b.WantOK("a Read", 2, rdma.WCRead)
				if !bytes.Equal(a.buf[128:192], b.Buf.Bytes()[:64]) {
					t.Errorf("the Write through key %d did not come", i)
				}
				inv := make([]byte, 64)
				inv[abi.SQOp], inv[abi.SQFlags] = 7, abi.SQSignaled // IBV_WR_LOCAL_INV
				ne.PutUint32(inv[28:], key)                         // imm_or_inv
				// PostRaw counts in shared memory, behind the producer's back: so does this.
				a.qp.PostRaw(inv, 1)
				want(6)
			}

			// Atomics from memory of its own, and in it.
			ne := binary.NativeEndian
			atomic := make([]byte, 80)
			// masked FETCH_ADD
			atomic[abi.SQOp], atomic[abi.SQFlags], atomic[abi.SQNumSGE] = 13, abi.SQSignaled, 1
			ne.PutUint32(atomic[12:], 8) // length
			ne.PutUint64(atomic[16:], b.MR.Addr()+8)
			ne.PutUint32(atomic[24:], b.MR.RKey())
			ne.PutUint64(atomic[32:], 1)
			ne.PutUint64(atomic[48:], rawIOVA)
			ne.PutUint32(atomic[56:], 8)
			ne.PutUint32(atomic[60:], a.mr.LKey)
			ne.PutUint64(atomic[64:], ^uint64(0)) // compare mask: means nothing
			ne.PutUint64(atomic[72:], 1<<31)      // swap mask: the carry ends there
			mr2, err := b.PD.RegisterMemory(b.Buf.Bytes(), rdma.LocalWrite|rdma.RemoteAtomic)
			if err != nil {
				t.Fatal(err)
			}
			ne.PutUint32(atomic[24:], mr2.RKey())
			ne.PutUint64(b.Buf.Bytes()[8:], 1<<32-1)
			a.qp.PostRaw(atomic, 1)
			want(4) // IBV_WC_FETCH_ADD
			if old, now := ne.Uint64(a.buf), ne.Uint64(b.Buf.Bytes()[8:]); old != 1<<32-1 || now != 0 {
				t.Errorf("masked add: was %#x, is %#x", old, now)
			}
			ne.PutUint64(a.buf[8:], 40)
			b.Post(&rdma.SendWR{ID: 3, Op: rdma.OpFetchAdd, Flags: rdma.Signaled, SGEs: []rdma.SGE{
				b.SGE(64, 8)},
				RemoteAddr: rawIOVA + 8, RKey: a.mr.RKey, Atomic: rdma.AtomicArgs{CompareAdd: 2}})
			b.WantOK("an atomic in the program's memory", 3, rdma.WCFetchAdd)
			if old, now := ne.Uint64(b.Buf.Bytes()[64:]), ne.Uint64(a.buf[8:]); old != 40 || now != 42 {
				t.Errorf("was %d, is %d", old, now)
			}

			// Immediate data: the octets as they are, imm_data in struct ibv_send_wr and struct ibv_wc.
			b.Recv(5, 0, 10)
			immediate := make([]byte, 64)
			immediate[abi.SQOp], immediate[abi.SQFlags] = 1, abi.SQSignaled // IBV_WR_RDMA_WRITE_WITH_IMM
			copy(immediate[28:], "wire")
			copy(immediate[32:], "low4")
			a.qp.PostRaw(immediate, 1)
			want(1)
			if wc := b.WantOK("immediate data", 5, rdma.WCRecvImm); wc.Imm != 'w'<<24|'i'<<16|'r'<<8|'e' ||
				wc.ImmLow != 'l'<<24|'o'<<16|'w'<<8|'4' {
				t.Errorf("%+v", wc)
			}
			a.postRecv(6, 0, 10)
			b.Post(&rdma.SendWR{ID: 7, Op: rdma.OpSendImm, Flags: rdma.Signaled, Imm: 'b'<<24 | 'a'<<16 |
				'c'<<8 | 'k'})
			b.WantOK("immediate data", 7, rdma.WCSend)
			a.Next(a.cq)
			cqe := a.cq.Mem[256+int(shmtest.Word(a.cq.Mem, abi.CQCons).Load()-1)%8*abi.CQELen:]
			if string(cqe[24:28]) != "back" || ne.Uint32(cqe[36:])&2 == 0 || ne.Uint32(cqe[12:]) != 129 {
				t.Errorf("the completion is % x", cqe[:40])
			}
		})
	}
}
