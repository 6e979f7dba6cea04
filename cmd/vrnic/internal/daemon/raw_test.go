package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A rawEnd is a connected QP of a client that lends its own memory (mode 0), as the C library does.
type rawEnd struct {
	*shmtest.RawClient
	pd  uint32
	cq  *shmtest.RawCQ
	qp  *shmtest.RawQP
	buf []byte
	mr  shm.RegMRReply
}

// rawIOVA is what a rawEnd calls the first octet of its region: not its address.
const rawIOVA = 0x7000_0000_0000

func newRawEnd(t *testing.T, d *daemontest.Daemon, size int) *rawEnd {
	return newRawEndOf(t, d, size, shm.QPCaps{MaxSendWR: 16, MaxRecvWR: 16})
}

func newRawEndOf(t *testing.T, d *daemontest.Daemon, size int, caps shm.QPCaps) *rawEnd {
	e := &rawEnd{RawClient: shmtest.NewRaw(t, d.Socket()).Hello()}
	e.SetMem()
	ctx := e.Ctx(0)
	e.pd = e.PD(ctx)
	e.cq = e.CQ(ctx, 8, 0)
	e.qp = e.QP(e.pd, e.cq, e.cq, caps)
	e.buf = e.Pages(size)
	e.mr = e.RegMR(e.pd, e.buf, rawIOVA, uint32(rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
	return e
}

// connect connects e to a listener at addr.
func (e *rawEnd) connect(addr netip.AddrPort) {
	ch, _ := e.CM()
	id := e.ID(ch)
	e.Must(shm.OpCMResolveAddr, &shm.CMResolveAddrRequest{ID: id, TimeoutMS: 1000,
		Src: shm.MakeSockAddr(netip.MustParseAddrPort("10.77.0.2:0")), Dst: shm.MakeSockAddr(addr)}, nil)
	e.WantEvent(ch, shm.EvAddrResolved)
	e.Must(shm.OpCMResolveRoute, &shm.CMResolveRouteRequest{ID: id, TimeoutMS: 1000}, nil)
	e.WantEvent(ch, shm.EvRouteResolved)
	e.Must(shm.OpCMConnect, &shm.CMConnectRequest{ID: id, PD: e.pd, Param: shm.ConnParam{
		QPN: e.qp.QPN, IRD: shm.ReadsDefault, ORD: shm.ReadsDefault,
	}}, nil)
	e.WantEvent(ch, shm.EvEstablished)
}

func (e *rawEnd) sge(off, n int) func(w *shm.SendWQE) {
	return func(w *shm.SendWQE) {
		w.Flags, w.NumSGE = shm.SQSignaled, 1
		w.SGE[0] = shm.SGE{Addr: rawIOVA + uint64(off), Length: uint32(n), LKey: e.mr.LKey}
	}
}

// accept takes one connection for b, in the background.
func accept(t *testing.T, b *daemontest.End) (addr netip.AddrPort, done func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	l, err := b.Dev.Listen(daemontest.Addr(t, b.Dev, false, 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			b.Conn, err = req.Accept(ctx, b.QP, rdma.ConnParam{})
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
			remote := func(op uint8) func(*shm.SendWQE) {
				return func(w *shm.SendWQE) {
					a.sge(0, size)(w)
					w.Op, w.RemoteAddr, w.RKey = op, b.MR.Addr(), b.MR.RKey()
				}
			}
			copy(a.buf, bytes.Repeat([]byte("a's own memory. "), size/16))
			a.qp.PostSend(remote(0)) // IBV_WR_RDMA_WRITE
			b.Recv(1, 0, 64)
			want(1)
			a.qp.PostSend(func(w *shm.SendWQE) { a.sge(0, 16)(w); w.Op = 2 }) // IBV_WR_SEND
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
			there := rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{b.SGE(0, size)},
				RemoteAddr: rawIOVA, RKey: a.mr.RKey}
			b.Post(&there)
			b.WantOK("the Write into a's memory", 2, rdma.WCWrite)
			b.Fill(0, size, 10)
			there.Op = rdma.OpRead
			b.Post(&there)
			b.WantOK("the Read of a's memory", 2, rdma.WCRead)
			b.Check("Write and Read back", 0, size, 9)

			// A hole in it is the client's own fault: EFAULT becomes WCLocProt (ABI 6.6).
			var mr shm.RegMRReply
			a.Must(shm.OpRegMR, &shm.RegMRRequest{PD: a.pd, Mode: shm.ModeApp, Addr: 1 << 20, Length: 4096, IOVA: rawIOVA}, &mr)
			a.qp.PostSend(func(w *shm.SendWQE) {
				a.sge(0, 4096)(w)
				w.Op, w.SGE[0].LKey = 2, mr.LKey
			})
			if e := a.Next(a.cq); e.Status != uint32(rdma.WCLocProt) {
				t.Errorf("a Send from where nothing is mapped: completion %+v, want status %d", e, rdma.WCLocProt)
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
	wantDone(t, b, callTime)
	var term *rdma.TerminateError
	if err := b.Conn.Err(); !errors.As(err, &term) || !term.Remote || term.VendorErr() != 0x1100 {
		t.Errorf("the writer's connection ended with %v, want a Terminate 1/1/00 of the peer", err)
	}
	// DDP, tagged buffer error, invalid STag (RFC 5041, section 7.2); found here, so not remote.
	want := uint32(shm.ErrorValid | 0x1100)
	if !daemontest.Eventually(func() bool { return a.qp.Ring.State() == shm.StateErr }) || a.qp.Ring.Cause() != want {
		t.Errorf("the ring says state %d, cause %#x; want %d, %#x", a.qp.Ring.State(), a.qp.Ring.Cause(), shm.StateErr, want)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ev, err := b.Dev.NextAsyncEvent(ctx)
	if err != nil || ev.Object != b.QP.Num() || ev.Cause == nil || ev.Cause.VendorErr() != 0x1100 || !ev.Cause.Remote {
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
		{"send index beyond the ring", func(e *rawEnd) { shmtest.Word(e.qp.Mem, shm.QPSQProd).Store(1000) }},
		{"receive index beyond the ring", func(e *rawEnd) { shmtest.Word(e.qp.Mem, shm.QPRQProd).Store(1 << 31) }},
		{"more SGEs than there is room for", func(e *rawEnd) {
			wqe := make([]byte, shm.SQSGE+shm.SGELen)
			wqe[shm.SQOp], wqe[shm.SQNumSGE], wqe[shm.SQNumSGE+1] = 2, 0xff, 0xff
			e.qp.PostRaw(wqe, 1)
		}},
		{"completion index in the future", func(e *rawEnd) {
			shmtest.Word(e.cq.Mem, shm.CQCons).Store(1 << 20)
			for range 16 { // more than the CQ has room for by now
				e.qp.PostSend(func(w *shm.SendWQE) { e.sge(0, 1)(w); w.Op = 0xfe })
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := daemontest.Start(t)
			peer := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
			x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
			daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
			e := newRawEnd(t, d, 4096)
			addr, accepted := accept(t, peer)
			e.connect(addr)
			accepted()
			tt.do(e)
			e.RingBell(e.qp.Bell)
			if tt.name == "receive index beyond the ring" {
				peer.Send(1, 0, 64) // it is looked at when something comes
			}
			e.WantEnd(tt.name)
			wantDone(t, peer, time.Second)

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
		c.Limits = shm.DefaultLimits()
		if err := c.Limits.Set("cm-events=4"); err != nil {
			t.Fatal(err)
		}
	})
	e := shmtest.NewRaw(t, d.Socket()).Hello()
	ch, _ := e.CM()
	id := e.ID(ch)
	addr := netip.MustParseAddrPort("10.77.0.2:4000")
	e.Must(shm.OpCMBind, &shm.CMBindRequest{ID: id, Addr: shm.MakeSockAddr(addr)}, nil)
	e.Must(shm.OpCMListen, &shm.CMListenRequest{ID: id}, nil)

	dev := daemontest.Open(t, d.Dial(), "vrnic1")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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
