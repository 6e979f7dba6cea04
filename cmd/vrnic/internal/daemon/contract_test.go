package daemon_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// This file runs one program, written against package rdma, on both implementations: a device in
// this process (vnic.Context), and a device of a daemon through the rings (shm.Device). What it
// sees must be the same, completion by completion.

// worlds give two open devices that can reach each other.
var worlds = []struct {
	name string
	open func(t *testing.T) contract
}{
	{"in process, wire", func(t *testing.T) contract {
		x, y := vnictest.Pair(t)
		return inProcess(t, x, y)
	}},
	{"in process, loopback", func(t *testing.T) contract {
		x, _ := vnictest.Pair(t)
		return inProcess(t, x, x)
	}},
	{"rings, wire", func(t *testing.T) contract { return onDaemon(t, "vrnic0", "vrnic1") }},
	{"rings, loopback", func(t *testing.T) contract { return onDaemon(t, "vrnic0", "vrnic0") }},
}

func inProcess(t *testing.T, x, y *vnic.Device) contract {
	return contract{T: t, a: vnictest.Open(t, x, vnic.ContextConfig{}),
		b: vnictest.Open(t, y, vnic.ContextConfig{}), stalled: func() (n uint64) {
			for _, qp := range y.QPs(nil) {
				n += qp.Counters.Stalls
			}
			return n
		}}
}

func onDaemon(t *testing.T, x, y string) contract {
	d := daemontest.Start(t)
	a, b := d.Dial(), d.Dial()
	return contract{T: t, a: daemontest.Open(t, a, x), b: daemontest.Open(t, b, y),
		stalled: func() (n uint64) {
			rows, err := b.Stat()
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				var of struct {
					Kind   string
					Stalls uint64
				}
				if err := json.Unmarshal(row, &of); err != nil {
					t.Fatal(err)
				}
				if of.Kind == "qp" {
					n += of.Stalls
				}
			}
			return n
		}}
}

// contract is what a test body gets: two devices, and helpers.
type contract struct {
	*testing.T
	a, b rdma.Device
	// stalled is how many Sends to QPs of b have waited for a receive.
	stalled func() uint64
}

func onBoth(t *testing.T, body func(c *contract)) {
	t.Helper()
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			c := w.open(t)
			body(&c)
		})
	}
}

// onRings is onBoth for what the rings only promise.
func onRings(t *testing.T, body func(c *contract)) {
	t.Helper()
	for _, w := range worlds[2:] {
		t.Run(w.name, func(t *testing.T) {
			c := w.open(t)
			body(&c)
		})
	}
}

const everyRight = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic |
	rdma.MWBind

// open registers e's buffer anew, with every right.
func (c *contract) open(e *daemontest.End) *daemontest.End {
	c.Helper()
	mr, err := e.PD.RegisterMemory(e.Buf.Bytes(), everyRight)
	c.ok(err)
	e.MR = mr
	return e
}

// connected makes an end on each device, connects them with the messages of RFC 7306, and says
// which.
func (c *contract) connected(
	change ...func(e *daemontest.End, cfg *rdma.QPConfig),
) (x, y *daemontest.End) {
	c.Helper()
	x = c.open(daemontest.NewEnd(c, c.a, 1<<16))
	y = c.open(daemontest.NewEnd(c, c.b, 1<<16, change...))
	c.connect(x, y)
	return x, y
}

func (c *contract) connect(x, y *daemontest.End) {
	c.Helper()
	daemontest.Connect(c, x, y, daemontest.Addr(c, y.Dev, false, 0),
		func(p *rdma.ConnParam) { p.Extensions = true })
	for _, e := range []*daemontest.End{x, y} {
		if !e.Conn.Param().Extensions {
			c.Error("the connection does not say that it has the messages of RFC 7306")
		}
	}
}

func (c *contract) ok(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *contract) is(what string, err, want error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("%s: %v, want %v", what, err, want)
	}
}

// event waits for the next async event of a device, which must be of a type and about an object.
func (c *contract) event(dev rdma.Device, typ rdma.AsyncEventType, object uint32) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ev, err := dev.NextAsyncEvent(ctx)
	if err != nil || ev.Type != typ || ev.Object != object {
		c.Fatalf("event %v of %d, %v; want %v of %d", ev.Type, ev.Object, err, typ, object)
	}
}

// withSRQ makes a QP whose receives come from an SRQ for n receives.
func withSRQ(c *contract, n int, srq *rdma.SRQ) func(*daemontest.End, *rdma.QPConfig) {
	return func(e *daemontest.End, cfg *rdma.QPConfig) {
		var err error
		*srq, err = e.PD.CreateSRQ(rdma.SRQConfig{MaxWR: n, MaxSGE: 2, MaxPerQP: -1})
		c.ok(err)
		cfg.SRQ = *srq
	}
}

// sibling is one more end with y's SRQ, buffer and CQ, connected to a new one.
func (c *contract) sibling(y *daemontest.End, srq rdma.SRQ) (x2, y2 *daemontest.End) {
	c.Helper()
	z := *y
	qp, err := y.PD.CreateQP(rdma.QPConfig{SendCQ: y.CQ, RecvCQ: y.CQ, MaxSendWR: 16, SRQ: srq})
	c.ok(err)
	z.QP = qp
	x2 = c.open(daemontest.NewEnd(c, c.a, 1<<16))
	c.connect(x2, &z)
	return x2, &z
}

// One SRQ feeds two QPs, in the order of the posts; who waits for a receive gets it when it comes,
// all that wait; the QPs refuse receives of their own.
func TestContractSRQ(t *testing.T) {
	onBoth(t, func(c *contract) {
		var srq rdma.SRQ
		x, y := c.connected(withSRQ(c, 8, &srq))
		x2, y2 := c.sibling(y, srq)
		c.is("a receive on the QP", y.QP.PostRecv(&rdma.RecvWR{}), rdma.ErrInvalid)
		_, err := y.QP.PostRecvs([]rdma.RecvWR{{}})
		c.is("receives on the QP", err, rdma.ErrInvalid)
		c.is("too many SGEs", srq.PostRecv(&rdma.RecvWR{SGEs: make([]rdma.SGE, srq.Config().MaxSGE+1)}),
			rdma.ErrInvalid)
		if cfg := srq.Config(); cfg.MaxWR != 8 || cfg.MaxSGE < 2 {
			c.Errorf("the SRQ is %+v", cfg)
		}
		recv := func(id uint64) rdma.RecvWR {
			return rdma.RecvWR{ID: id, SGEs: []rdma.SGE{y.SGE(int(id)*100, 100)}}
		}
		n, err := srq.PostRecvs([]rdma.RecvWR{recv(1), recv(2), recv(3)})
		if n != 3 || err != nil {
			c.Fatalf("%d posted: %v", n, err)
		}
		for id, from := range []struct{ x, y *daemontest.End }{{x, y}, {x2, y2}, {x, y}} {
			from.x.Fill(0, 50, byte(id))
			from.x.Send(7, 0, 50)
			from.x.WantOK("the Send", 7, rdma.WCSend)
			if wc := y.WantOK("a receive of the SRQ", uint64(id+1),
				rdma.WCRecv); wc.QPN != from.y.QP.Num() || wc.ByteLen != 50 {
				c.Errorf("completion %+v, want one of QP %d", wc, from.y.QP.Num())
			}
			y.Check("the message", (id+1)*100, 50, byte(id))
		}
		before := c.stalled()
		x.Send(8, 0, 10)
		x2.Send(8, 0, 20)
		needtest.Eventually(c, "both wait", func() bool { return c.stalled() == before+2 })
		r4, r5 := recv(4), recv(5)
		c.ok(srq.PostRecv(&r4))
		c.ok(srq.PostRecv(&r5))
		got := map[uint32]uint32{}
		ids := map[uint64]bool{}
		for range 2 { // between QPs there is no order
			wc := y.WC("who waited")
			got[wc.QPN], ids[wc.ID] = wc.ByteLen, wc.Status == rdma.WCSuccess
		}
		if got[y.QP.Num()] != 10 || got[y2.QP.Num()] != 20 || !ids[4] || !ids[5] {
			c.Errorf("octets by QP: %v; receives %v", got, ids)
		}
		x.WantOK("the Send that waited", 8, rdma.WCSend)
		x2.WantOK("the Send that waited", 8, rdma.WCSend)

		c.is("destroy with QPs", srq.Close(), rdma.ErrBusy)
		c.is("free its PD", y.PD.Close(), rdma.ErrBusy)
		c.ok(y.QP.Close())
		c.ok(y2.QP.Close())
		c.ok(srq.Close())
		c.ok(srq.Close())
		c.is("post to what is gone", srq.PostRecv(&r4), rdma.ErrClosed)
	})
}

// The limit fires once, names the SRQ, and is off then; the end of a QP with an SRQ is told.
func TestContractSRQEvents(t *testing.T) {
	onBoth(t, func(c *contract) {
		var srq rdma.SRQ
		x, y := c.connected(withSRQ(c, 8, &srq))
		for id := range uint64(4) {
			c.ok(srq.PostRecv(&rdma.RecvWR{ID: id, SGEs: []rdma.SGE{y.SGE(100*int(id%8), 100)}}))
		}
		c.is("a limit beyond the SRQ", srq.SetLimit(9), rdma.ErrInvalid)
		c.is("a limit below 0", srq.SetLimit(-1), rdma.ErrInvalid)
		c.ok(srq.SetLimit(3))
		if n, err := srq.Limit(); n != 3 || err != nil {
			c.Errorf("limit %d, %v", n, err)
		}
		for id := range uint64(3) { // the second brings it below
			x.Send(id, 0, 10)
			y.WantOK("a receive", id, rdma.WCRecv)
			x.WantOK("a Send", id, rdma.WCSend)
		}
		c.event(y.Dev, rdma.EventSRQLimitReached, srq.Num())
		if n, err := srq.Limit(); n != 0 || err != nil {
			c.Errorf("limit %d after its event, %v", n, err)
		}
		c.ok(y.QP.Abort())
		c.event(y.Dev, rdma.EventLastWQEReached, y.QP.Num())
	})
}

// Immediate data of eight octets, with a Send and behind a Write.
func TestContractImmediate(t *testing.T) {
	onBoth(t, func(c *contract) {
		x, y := c.connected()
		y.Recv(1, 0, 100)
		y.Recv(2, 200, 100)
		x.Fill(0, 50, 3)
		x.Post(&rdma.SendWR{ID: 1, Op: rdma.OpWriteImm, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			x.SGE(0, 50)},
			RemoteAddr: y.MR.Addr() + 1000, RKey: y.MR.RKey(), Imm: 0x01020304, ImmLow: 0xfeedbeef})
		x.Post(&rdma.SendWR{ID: 2, Op: rdma.OpSendImm, Flags: rdma.Signaled, Imm: 0xffffffff, ImmLow: 1})
		x.WantOK("the Write", 1, rdma.WCWrite)
		x.WantOK("the Send", 2, rdma.WCSend)
		wc := y.WantOK("behind the Write", 1, rdma.WCRecvImm)
		if wc.Imm != 0x01020304 || wc.ImmLow != 0xfeedbeef || wc.Flags != rdma.WCWithImm ||
			wc.ByteLen != 0 {
			c.Errorf("completion %+v", wc)
		}
		y.Check("the Write", 1000, 50, 3)
		if wc = y.WantOK("alone", 2, rdma.WCRecvImm); wc.Imm != 0xffffffff || wc.ImmLow != 1 ||
			wc.Flags != rdma.WCWithImm {
			c.Errorf("completion %+v", wc)
		}
	})
}

// Each atomic, through the rings' words for operands and masks.
func TestContractAtomics(t *testing.T) {
	onBoth(t, func(c *contract) {
		x, y := c.connected()
		target, old := y.Buf.Bytes()[64:72], x.Buf.Bytes()[128:136]
		for i, tt := range []struct {
			op       rdma.Opcode
			wc       rdma.WCOpcode
			args     rdma.AtomicArgs
			old, new uint64
		}{
			{rdma.OpFetchAdd, rdma.WCFetchAdd, rdma.AtomicArgs{CompareAdd: 1<<40 + 5}, 1 << 50,
				1<<50 + 1<<40 + 5},
			{rdma.OpCompareSwap, rdma.WCCompareSwap, rdma.AtomicArgs{CompareAdd: 7, Swap: 1 << 63}, 7,
				1 << 63},
			{rdma.OpCompareSwap, rdma.WCCompareSwap, rdma.AtomicArgs{CompareAdd: 8, Swap: 1 << 63}, 7, 7},
			{rdma.OpMaskedFetchAdd, rdma.WCFetchAdd, rdma.AtomicArgs{CompareAdd: 1<<32 | 1,
				SwapMask: 1<<63 | 1<<31}, ^uint64(0), 0},
			{rdma.OpMaskedCompareSwap, rdma.WCCompareSwap, rdma.AtomicArgs{CompareAdd: 0x11, Swap: 0xabcd,
				CompareMask: 0xff, SwapMask: 0xff00}, 0x2211, 0xab11},
		} {
			binary.NativeEndian.PutUint64(target, tt.old)
			clear(old)
			x.Post(&rdma.SendWR{ID: uint64(i), Op: tt.op, Flags: rdma.Signaled, SGEs: []rdma.SGE{
				x.SGE(128, 8)},
				RemoteAddr: y.MR.Addr() + 64, RKey: y.MR.RKey(), Atomic: tt.args})
			if wc := x.WantOK("an atomic", uint64(i), tt.wc); wc.ByteLen != 8 {
				c.Errorf("%v: %+v", tt.op, wc)
			}
			if got := binary.NativeEndian.Uint64(old); got != tt.old {
				c.Errorf("%v brought %#x, want %#x", tt.op, got, tt.old)
			}
			if got := binary.NativeEndian.Uint64(target); got != tt.new {
				c.Errorf("%v left %#x, want %#x", tt.op, got, tt.new)
			}
		}
	})
}

// bind is a BindMW or RegMR request of y's for n octets of its buffer; the peer calls the first at.
func bind(op rdma.Opcode, y *daemontest.End, key uint32, off int, n uint64, access rdma.Access,
	at uint64) *rdma.SendWR {
	return &rdma.SendWR{ID: 50, Op: op, Flags: rdma.Signaled, RKey: key, RemoteAddr: at,
		Range: rdma.MemRange{Addr: y.MR.Addr() + uint64(off), Length: n, LKey: y.MR.LKey(),
			Access: access}}
}

func writeTo(x *daemontest.End, key uint32, at uint64, n int) *rdma.SendWR {
	return &rdma.SendWR{ID: 60, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.SGE(0, n)},
		RemoteAddr: at, RKey: key}
}

// readFrom reads what is written before: a Write is complete when it has been sent.
func readFrom(x *daemontest.End, key uint32, at uint64, n int) *rdma.SendWR {
	return &rdma.SendWR{ID: 61, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		x.SGE(1000, n)}, RemoteAddr: at, RKey: key}
}

// Windows of both types: bound, zero based and not, used, and ended by each means.
func TestContractWindows(t *testing.T) {
	onBoth(t, func(c *contract) {
		x, y := c.connected()
		x.Fill(0, 100, 5)
		for _, typ := range []rdma.MWType{rdma.MWType1, rdma.MWType2} {
			mw, err := y.PD.AllocMW(typ)
			c.ok(err)
			if mw.Type() != typ {
				c.Errorf("type %d, want %d", mw.Type(), typ)
			}
			key := rdma.NextKey(mw.RKey())
			for i, at := range []uint64{0, y.MR.Addr() + 500, 1 << 60} { // zero based, by address, by a name
				y.Post(bind(rdma.OpBindMW, y, key, 500, 100, rdma.RemoteWrite|rdma.RemoteRead, at))
				y.WantOK("bind", 50, rdma.WCBindMW)
				x.Post(writeTo(x, key, at, 100))
				x.Post(readFrom(x, key, at+10, 50))
				x.WantOK("a Write through the window", 60, rdma.WCWrite)
				x.WantOK("a Read through it", 61, rdma.WCRead)
				y.Check("the Write", 500, 100, 5)
				clear(y.Buf.Bytes()[500:600])
				if i == 0 {
					c.is("the region under a window", y.MR.Close(), rdma.ErrBusy)
				}
				switch {
				case typ == rdma.MWType1 && i < 2: // bound anew
				case typ == rdma.MWType1:
					y.Post(bind(rdma.OpBindMW, y, rdma.NextKey(key), 0, 0, 0, 0))
					y.WantOK("unbind", 50, rdma.WCBindMW)
				case i < 2:
					y.Post(&rdma.SendWR{ID: 51, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvKey: key})
					y.WantOK("invalidate", 51, rdma.WCLocalInv)
				default:
					y.Recv(52, 2000, 10)
					x.Post(&rdma.SendWR{ID: 62, Op: rdma.OpSendInv, Flags: rdma.Signaled, SGEs: []rdma.SGE{
						x.SGE(0, 5)}, InvKey: key})
					x.WantOK("Send with Invalidate", 62, rdma.WCSend)
					if wc := y.WantOK("the Send", 52, rdma.WCRecv); wc.Flags != rdma.WCWithInv || wc.Imm != key {
						c.Errorf("completion %+v, want key %#x", wc, key)
					}
				}
				key = rdma.NextKey(key)
			}
			c.is("free its PD", y.PD.Close(), rdma.ErrBusy)
			c.ok(mw.Close())
		}
		if _, err := y.PD.AllocMW(3); !errors.Is(err, rdma.ErrInvalid) {
			c.Errorf("a window of type 3: %v", err)
		}
	})
}

// A fast registration: a key of its own for a part of a region, for the peer and for SGEs.
func TestContractRegMR(t *testing.T) {
	onBoth(t, func(c *contract) {
		x, y := c.connected()
		fast, err := y.PD.AllocMR(100)
		c.ok(err)
		if fast.Bytes() != nil {
			c.Error("a region without memory has octets")
		}
		key := rdma.NextKey(fast.RKey())
		x.Fill(0, 100, 6)
		y.Post(bind(rdma.OpRegMR, y, key, 300, 100, rdma.LocalWrite|rdma.RemoteWrite, 0x5000))
		y.WantOK("register", 50, rdma.WCRegMR)
		x.Post(writeTo(x, key, 0x5000, 100))
		x.WantOK("a Write under the new key", 60, rdma.WCWrite)
		// It is a local key too.
		x.Recv(1, 3000, 100)
		y.Recv(2, 4000, 1)
		x.Send(3, 0, 1)
		y.WantOK("what comes behind the Write", 2, rdma.WCRecv)
		x.WantOK("", 3, rdma.WCSend)
		y.Post(&rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			{Addr: 0x5000, Length: 100, LKey: key}}})
		y.WantOK("a Send from it", 4, rdma.WCSend)
		x.WantOK("the Send", 1, rdma.WCRecv)
		if !bytes.Equal(x.Buf.Bytes()[3000:3100], x.Buf.Bytes()[:100]) {
			c.Error("what came back is something else")
		}
		c.is("the region that it stands on", y.MR.Close(), rdma.ErrBusy)
		y.Post(&rdma.SendWR{ID: 5, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvKey: key})
		y.WantOK("invalidate", 5, rdma.WCLocalInv)
		c.ok(fast.Close())
		c.ok(y.MR.Close())
	})
}

// What goes wrong goes wrong in the same way: which post is refused, which completes with which
// status.
func TestContractErrors(t *testing.T) {
	type wrong struct {
		name string
		post func(c *contract, x, y *daemontest.End) // by x
		at   rdma.WCStatus                           // of x
	}
	for _, tt := range []wrong{
		{"bind more than there is", func(c *contract, x, y *daemontest.End) {
			mw, err := x.PD.AllocMW(rdma.MWType2)
			c.ok(err)
			x.Post(bind(rdma.OpBindMW, x, rdma.NextKey(mw.RKey()), 0, 1<<16+1, rdma.RemoteRead, 0))
		}, rdma.WCMWBind},
		{"bind with rights that there are not", func(c *contract, x, y *daemontest.End) {
			mw, err := x.PD.AllocMW(rdma.MWType2)
			c.ok(err)
			x.Post(bind(rdma.OpBindMW, x, rdma.NextKey(mw.RKey()), 0, 1, 1<<6, 0))
		}, rdma.WCMWBind},
		{"bind nothing", func(c *contract, x, y *daemontest.End) {
			x.Post(bind(rdma.OpBindMW, x, 0x12345678, 0, 1, rdma.RemoteRead, 0))
		}, rdma.WCMWBind},
		{"register more than was allocated", func(c *contract, x, y *daemontest.End) {
			mr, err := x.PD.AllocMR(10)
			c.ok(err)
			x.Post(bind(rdma.OpRegMR, x, rdma.NextKey(mr.RKey()), 0, 11, rdma.RemoteRead, 0))
		}, rdma.WCMWBind},
		{"invalidate nothing", func(c *contract, x, y *daemontest.End) {
			x.Post(&rdma.SendWR{ID: 50, Op: rdma.OpLocalInv, InvKey: 0x12345678})
		}, rdma.WCLocQPOp},
		{"an atomic that is not aligned", func(c *contract, x, y *daemontest.End) {
			x.Post(&rdma.SendWR{ID: 50, Op: rdma.OpFetchAdd, SGEs: []rdma.SGE{x.SGE(0, 8)},
				RemoteAddr: y.MR.Addr() + 4, RKey: y.MR.RKey()})
		}, rdma.WCRemOp},
		{"an atomic without the right", func(c *contract, x, y *daemontest.End) {
			mr, err := y.PD.RegisterMemory(y.Buf.Bytes(), everyRight&^rdma.RemoteAtomic)
			c.ok(err)
			x.Post(&rdma.SendWR{ID: 50, Op: rdma.OpFetchAdd, SGEs: []rdma.SGE{x.SGE(0, 8)},
				RemoteAddr: mr.Addr(), RKey: mr.RKey()})
		}, rdma.WCRemAccess},
		{"an atomic into a key that there is not", func(c *contract, x, y *daemontest.End) {
			x.Post(&rdma.SendWR{ID: 50, Op: rdma.OpFetchAdd, SGEs: []rdma.SGE{{Addr: 8, Length: 8, LKey: 1}},
				RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		}, rdma.WCLocProt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onBoth(t, func(c *contract) {
				x, y := c.connected()
				tt.post(c, x, y)
				if wc := x.WC(tt.name); wc.ID != 50 || wc.Status != tt.at || wc.QPN != x.QP.Num() {
					c.Errorf("completion %+v (%v), want %v", wc, wc.Status, tt.at)
				}
				for _, e := range []*daemontest.End{x, y} {
					wantDone(c.T, e)
				}
			})
		})
	}
	t.Run("not posted", func(t *testing.T) {
		onBoth(t, func(c *contract) {
			x, y := c.connected()
			sges := []rdma.SGE{x.SGE(0, 8)}
			for name, wr := range map[string]*rdma.SendWR{
				"bind with SGEs":         {Op: rdma.OpBindMW, SGEs: sges},
				"bind inline":            {Op: rdma.OpBindMW, Flags: rdma.Inline, Inline: []byte{1}},
				"register with SGEs":     {Op: rdma.OpRegMR, SGEs: sges},
				"invalidate with SGEs":   {Op: rdma.OpLocalInv, SGEs: sges},
				"atomic inline":          {Op: rdma.OpFetchAdd, Flags: rdma.Inline, Inline: make([]byte, 8)},
				"an atomic's half":       {Op: rdma.OpCompareSwap, SGEs: []rdma.SGE{x.SGE(0, 4)}},
				"octets beside the data": {Op: rdma.OpSendImm, SGEs: sges},
				"no opcode":              {Op: 77},
				"more inline than there": {Op: rdma.OpWriteImm, Flags: rdma.Inline, Inline: make([]byte, 2000)},
			} {
				c.is(name, x.QP.PostSend(wr), rdma.ErrInvalid)
			}
			y.Recv(1, 0, 8)
			x.Send(2, 0, 8) // and nothing has happened
			x.WantOK("a Send", 2, rdma.WCSend)
			y.WantOK("the Send", 1, rdma.WCRecv)
		})
	})
}

// Without ConnParam.Extensions nothing of RFC 7306 goes over the wire; within a device it always
// works.
func TestContractNoExtensions(t *testing.T) {
	onBoth(t, func(c *contract) {
		x, y := c.open(daemontest.NewEnd(c, c.a, 4096)), c.open(daemontest.NewEnd(c, c.b, 4096))
		daemontest.Connect(c, x, y, daemontest.Addr(c, y.Dev, false, 0))
		loop := c.a.Name() == c.b.Name()
		if got := x.Conn.Param().Extensions; got != loop {
			c.Errorf("the connection says %v, within a device: %v", got, loop)
		}
		x.Post(&rdma.SendWR{ID: 1, Op: rdma.OpFetchAdd, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			x.SGE(0, 8)}, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		want := rdma.WCLocQPOp
		if loop {
			want = rdma.WCSuccess
		}
		if wc := x.WC("an atomic"); wc.Status != want {
			c.Errorf("completion %+v (%v), want %v", wc, wc.Status, want)
		}
	})
}

// Limits are told as numbers that hold something.
func TestContractAttr(t *testing.T) {
	onBoth(t, func(c *contract) {
		if a := c.a.Attr(); a.MaxMW < 1 || a.MaxSRQ < 1 || a.MaxSRQWR < 1 || a.MaxSRQWR > a.MaxDepth {
			c.Errorf("%+v", a)
		}
		pd, err := c.a.AllocPD()
		c.ok(err)
		_, err = pd.CreateSRQ(rdma.SRQConfig{MaxWR: c.a.Attr().MaxSRQWR + 1})
		c.is("an SRQ deeper than that", err, rdma.ErrInvalid)
		_, err = pd.AllocMR(0)
		c.is("a region for nothing", err, rdma.ErrInvalid)
	})
}

// A receive of an SRQ takes its place until it has been polled, or its QP has gone, however that
// went.
func TestSRQPlaces(t *testing.T) {
	onRings(t, func(c *contract) {
		var srq rdma.SRQ
		x, y := c.connected(withSRQ(c, 4, &srq))
		fill := func(n int) {
			c.Helper()
			for i := range n + 1 {
				err := srq.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{y.SGE(0, 100)}})
				if i == n {
					c.is("one too many", err, rdma.ErrQueueFull)
				} else {
					c.ok(err)
				}
			}
		}
		fill(4)
		x.Send(1, 0, 10)
		x.WantOK("a Send", 1, rdma.WCSend)
		y.WantOK("the first", 0, rdma.WCRecv)
		fill(1)
		c.ok(y.CQ.Arm(false))
		x.Send(2, 0, 10)
		x.WantOK("a Send", 2, rdma.WCSend)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c.ok(y.CQ.Wait(ctx))
		// The second has completed, and nobody polls it before its QP goes.
		c.ok(y.QP.Close())
		if !needtest.Becomes(func() bool { return srq.PostRecv(&rdma.RecvWR{ID: 9}) == nil }) {
			c.Error("the place of a receive that went with its QP stays taken")
		}
		c.is("only that one", srq.PostRecv(&rdma.RecvWR{}), rdma.ErrQueueFull)
	})
}

// A QP that has its share of an SRQ goes on when its completions are polled, although nothing is
// posted: nobody tells the daemon of a poll.
func TestContractSRQShare(t *testing.T) {
	onBoth(t, func(c *contract) {
		var srq rdma.SRQ
		x, y := c.connected(func(e *daemontest.End, cfg *rdma.QPConfig) {
			var err error
			srq, err = e.PD.CreateSRQ(rdma.SRQConfig{MaxWR: 8, MaxSGE: 2})
			c.ok(err)
			cfg.SRQ = srq
		})
		x2, y2 := c.sibling(y, srq)
		for id := range uint64(8) {
			c.ok(srq.PostRecv(&rdma.RecvWR{ID: id, SGEs: []rdma.SGE{y.SGE(100*int(id), 100)}}))
		}
		for id := range uint64(5) { // its share is 4
			x.Send(id, 0, 10)
		}
		x2.Send(9, 0, 10)
		x2.WantOK("the other's Send has room", 9, rdma.WCSend)
		got := map[uint32]int{}
		for range 6 { // what nobody went on with would end the QP in five seconds, with a Terminate
			got[y.WC("a receive").QPN]++
		}
		if got[y.QP.Num()] != 5 || got[y2.QP.Num()] != 1 {
			c.Errorf("receives by QP: %v", got)
		}
		if s := y.QP.State(); s != rdma.QPRTS {
			c.Errorf("the QP is in %v", s)
		}
	})
}
