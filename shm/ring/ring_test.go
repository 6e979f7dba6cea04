package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// newTestQP is both ends of a QP on the Go heap.
func newTestQP(t testing.TB, c rpc.QPCaps) (*ClientQP, *DaemonQP) {
	t.Helper()
	c, ok := c.Round(16384, false)
	if !ok {
		t.Fatalf("caps %+v refused", c)
	}
	l := c.Layout()
	mem := make([]byte, l.Size())
	r := NewDaemonQP(mem, l, 1, nil)
	r.SetQPN(7)
	m, err := OpenClientQP(mem)
	if err != nil {
		t.Fatal(err)
	}
	if m.Layout != l || m.QPN != 7 {
		t.Fatalf("client reads %+v, QPN %d; want %+v, 7", m.Layout, m.QPN, l)
	}
	return m, r
}

func TestSendRingRoundTrip(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxSendWR: 3, MaxSendSGE: 4, MaxInline: 200, TxSlab: 4096})
	rnd := rand.New(rand.NewPCG(1, 2))
	var in, out abi.SendWQE
	for i := range 200 {
		in = abi.SendWQE{WRID: rnd.Uint64(), Op: uint8(rnd.Uint32() % 10), Flags: abi.SQSignaled,
			RemoteAddr: rnd.Uint64(), RKey: rnd.Uint32(),
			Imm: rnd.Uint32(), CmpAdd: rnd.Uint64(), Swap: rnd.Uint64()}
		var sent []byte
		switch i % 4 {
		case 0:
			in.NumSGE = uint16(rnd.IntN(5))
			for k := range in.SGEs() {
				in.SGE[k] = abi.SGE{Addr: rnd.Uint64(), Length: rnd.Uint32() >> 4, LKey: rnd.Uint32()}
			}
		case 1:
			in.SetInline(bytes.Repeat([]byte{byte(i)}, rnd.IntN(201)))
		case 2:
			sent = bytes.Repeat([]byte{byte(i)}, 1+rnd.IntN(2000))
			off, ok, err := m.TxSlab.Put(sent)
			if !ok || err != nil {
				t.Fatalf("slab put %d: %v, %v", i, ok, err)
			}
			in.Flags |= abi.SQSlab
			in.SlabOff, in.Length = off, uint32(len(sent))
		case 3: // an atomic with masks
			in.Op, in.NumSGE, in.CmpMask, in.SwapMask = uint8(rdma.OpMaskedCompareSwap+rdma.Opcode(i/4%2)),
				1, rnd.Uint64(), rnd.Uint64()
			in.SGE[0] = abi.SGE{Addr: rnd.Uint64(), Length: 8, LKey: rnd.Uint32()}
		}
		if err := m.SQ.Put(&in); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
		if ok, err := r.SQ.Next(&out); ok || err != nil {
			t.Fatalf("before the commit the daemon saw %v, %v", ok, err)
		}
		m.SQ.Commit()
		if ok, err := r.SQ.Next(&out); !ok || err != nil {
			t.Fatalf("next %d: %v, %v", i, ok, err)
		}
		if in.WRID != out.WRID || in.Op != out.Op || in.Flags != out.Flags || in.Length != out.Length ||
			in.RemoteAddr != out.RemoteAddr ||
			in.RKey != out.RKey || in.Imm != out.Imm || in.CmpAdd != out.CmpAdd || in.Swap != out.Swap ||
			in.SlabOff != out.SlabOff ||
			in.CmpMask != out.CmpMask || in.SwapMask != out.SwapMask ||
			!bytes.Equal(r.TxSlabMem()[out.SlabOff:][:len(sent)], sent) ||
			!reflect.DeepEqual(in.SGEs(), out.SGEs()) || in.Flags&abi.SQInline != 0 &&
			!bytes.Equal(in.Inline(), out.Inline()) {
			t.Fatalf("round %d: sent %+v\ngot %+v", i, in, out)
		}
		if got := r.SQ.Retire(1); got != uint32(i+1) || m.SQ.Done() != got {
			t.Fatalf("retired %d, client sees %d, want %d", got, m.SQ.Done(), i+1)
		}
	}
}

func TestSendRingFull(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxSendWR: 4})
	var w abi.SendWQE
	for i := range 4 {
		if err := m.SQ.Put(&w); err != nil {
			t.Fatalf("put %d of 4: %v", i, err)
		}
	}
	m.SQ.Commit()
	if err := m.SQ.Put(&w); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("fifth put: %v", err)
	}
	r.SQ.Next(&w)
	if err := m.SQ.Put(&w); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("a slot was reused that is taken but not retired: %v", err)
	}
	r.SQ.Retire(1)
	if err := m.SQ.Put(&w); err != nil {
		t.Errorf("put after one was retired: %v", err)
	}
	if n := r.SQ.Retire(100); n != 1 {
		t.Errorf("retired %d of 1 taken", n)
	}
}

func TestPutRefuses(t *testing.T) {
	m, _ := newTestQP(t, rpc.QPCaps{MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64, TxSlab: 64})
	over := int(m.Layout.SQMaxSGE()) + 1
	for name, w := range map[string]*abi.SendWQE{
		"too many SGEs":   {NumSGE: uint16(over)},
		"inline too long": {Flags: abi.SQInline, Length: m.Layout.MaxInline + 1},
		"inline and SGEs": {Flags: abi.SQInline, NumSGE: 1},
		"outside of slab": {Flags: abi.SQSlab, SlabOff: 60, Length: 5},
		"slab wraps":      {Flags: abi.SQSlab, SlabOff: 1, Length: ^uint32(0)},
		"inline and slab": {Flags: abi.SQInline | abi.SQSlab},
		"masks and SGEs":  {Op: uint8(rdma.OpMaskedFetchAdd), NumSGE: 2},
		"4 GiB":           {NumSGE: 2, SGE: [abi.MaxSGE]abi.SGE{{Length: 1 << 31}, {Length: 1 << 31}}},
	} {
		if err := m.SQ.Put(w); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.RQ.Put(&abi.RecvWQE{NumSGE: 3}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("receive with 3 SGEs of 2: %v", err)
	}
	if m.SQ.Posted() != 0 {
		t.Error("a refused request was put")
	}
}

// docs/abi.md#threat-model: what a client writes into a ring that cannot be is a violation, found
// on the copy.
func TestRingViolations(t *testing.T) {
	caps := rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64,
		TxSlab: 64}
	slot := func(mem []byte, r *DaemonQP) []byte { return mem[r.Layout.SQOff:] }
	for _, tt := range []struct {
		name string
		do   func(mem []byte, r *DaemonQP)
		recv bool
	}{
		{"sq_prod jumps", func(mem []byte, r *DaemonQP) { abi.Word(mem, abi.QPSQProd).Store(5) }, false},
		{"sq_prod goes back", func(mem []byte, r *DaemonQP) {
			abi.Word(mem, abi.QPSQProd).Store(^uint32(0))
		}, false},
		{"sq_prod far", func(mem []byte, r *DaemonQP) { abi.Word(mem, abi.QPSQProd).Store(1 << 31) },
			false},
		{"absurd nsge", func(mem []byte, r *DaemonQP) {
			abi.Order.PutUint16(slot(mem, r)[abi.SQNumSGE:], 0xffff)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"one SGE too many", func(mem []byte, r *DaemonQP) {
			abi.Order.PutUint16(slot(mem, r)[abi.SQNumSGE:], uint16(r.Layout.SQMaxSGE()+1))
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"one octet too many inline", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQInline
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], r.Layout.MaxInline+1)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"inline with SGEs", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQInline
			slot(mem, r)[abi.SQNumSGE] = 1
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"inline beyond the slot", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQInline
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], 0xffffffff)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"slab range wraps", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQSlab
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], 0xfffffff0)
			abi.Order.PutUint32(slot(mem, r)[abi.SQSGE:], 0x20)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"inline and slab", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQSlab | abi.SQInline
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"masked atomic with SGEs over its masks", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQOp] = uint8(rdma.OpMaskedCompareSwap)
			slot(mem, r)[abi.SQNumSGE] = 2
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"slab octets that were not put", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQSlab
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], 9)
			abi.Word(mem, abi.QPTxSlabProd).Store(8)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"txslab_prod jumps", func(mem []byte, r *DaemonQP) {
			slot(mem, r)[abi.SQFlags] = abi.SQSlab
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], 9)
			abi.Word(mem, abi.QPTxSlabProd).Store(65)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"length is not the sum", func(mem []byte, r *DaemonQP) {
			abi.Order.PutUint32(slot(mem, r)[abi.SQLength:], 1)
			abi.Word(mem, abi.QPSQProd).Store(1)
		}, false},
		{"rq_prod jumps", func(mem []byte, r *DaemonQP) { abi.Word(mem, abi.QPRQProd).Store(5) }, true},
		{"receive with absurd nsge", func(mem []byte, r *DaemonQP) {
			abi.Order.PutUint32(mem[r.Layout.RQOff+abi.RQNumSGE:], 0x10000002)
			abi.Word(mem, abi.QPRQProd).Store(1)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, r := newTestQP(t, caps)
			var told error
			r.SQ.fail = func(err error) { told = err }
			r.RQ.fail = r.SQ.fail
			tt.do(m.mem, r)
			var ok bool
			var err error
			if tt.recv {
				ok, err = r.RQ.Next(new(abi.RecvWQE))
			} else {
				ok, err = r.SQ.Next(new(abi.SendWQE))
			}
			if ok || !abi.IsViolation(err) || told != err {
				t.Errorf("got %v, %v; the session was told %v", ok, err, told)
			}
		})
	}
}

// The client cannot make the daemon see a line 0 of its own: sizes are the daemon's copies.
func TestLine0IsNotReadBack(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4})
	if err := m.SQ.Put(&abi.SendWQE{WRID: 5}); err != nil {
		t.Fatal(err)
	}
	m.SQ.Commit()
	for off := uint32(0); off < 64; off += 4 {
		abi.Word(m.mem, off).Store(0xffffffff)
	}
	abi.Word(m.mem, abi.QPSQDone).Store(77) // nor its own words
	var w abi.SendWQE
	if ok, err := r.SQ.Next(&w); !ok || err != nil || w.WRID != 5 {
		t.Errorf("got %v, %v, wr_id %d", ok, err, w.WRID)
	}
}

func TestRecvRing(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxRecvWR: 4, MaxRecvSGE: 3})
	var w abi.RecvWQE
	if ok, err := r.RQ.Next(&w); ok || err != nil {
		t.Fatalf("empty ring gave %v, %v", ok, err)
	}
	put := func(id uint64) (bell bool) {
		t.Helper()
		in := abi.RecvWQE{WRID: id, NumSGE: 3, Cookie: uint32(id) * 3, SGE: [abi.MaxSGE]abi.SGE{
			{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}, {Addr: 7, Length: 8, LKey: 9}}}
		if err := m.RQ.Put(&in); err != nil {
			t.Fatal(err)
		}
		return m.RQ.Commit()
	}
	if put(1) {
		t.Error("a bell is wanted although nobody starves")
	}
	if r.RQ.Pending() != 1 {
		t.Errorf("pending %d", r.RQ.Pending())
	}
	if ok, err := r.RQ.Next(&w); !ok || err != nil || w.WRID != 1 || w.Cookie != 3 || w.NumSGE != 3 ||
		w.SGE[2] != (abi.SGE{Addr: 7, Length: 8, LKey: 9}) || w.Capacity() != 15 {
		t.Errorf("got %v, %v, %+v", ok, err, w)
	}
	if !r.RQ.Starve() {
		t.Error("ring is not empty")
	}
	if !put(2) {
		t.Error("no bell is wanted although the daemon starves")
	}
	if r.RQ.Starve() {
		t.Error("Starve overlooked a receive")
	}
	r.RQ.Next(&w)
	for i := range 4 {
		if put(uint64(i)) {
			t.Error("the daemon took a receive and still starves")
		}
	}
	if err := m.RQ.Put(&w); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("fifth of four: %v", err)
	}
}

// newTestCQ is both ends of a CQ with a channel, on the Go heap. *tokens counts.
func newTestCQ(t testing.TB, size uint32) (*CQConsumer, *CQProducer, *ChannelConsumer, *int) {
	t.Helper()
	tokens := new(int)
	chmem := make([]byte, ChannelMemSize)
	ch := NewChannelProducer(chmem, 3, func() { *tokens++ }, nil)
	mem := make([]byte, CQMemSize(size))
	ring := NewCQProducer(mem, size, 9, ch, nil)
	c, err := OpenCQConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	cc, err := OpenChannelConsumer(chmem)
	if err != nil {
		t.Fatal(err)
	}
	return c, ring, cc, tokens
}

func TestCQRoundTrip(t *testing.T) {
	c, ring, _, _ := newTestCQ(t, 4)
	var e abi.CQE
	for i := range uint64(50) {
		in := abi.CQE{
			WRID: 1 + i, Status: 2, Opcode: 3, VendorErr: 4, ByteLen: 5, Imm: 6, QPN: 7,
			SrcQP: 8, WCFlags: 9, SQDone: 10, Cookie: 11, SlabOff: 12, SlabLen: 13, Timestamp: 14,
		}
		if err := ring.Push(&in, false); err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Poll(&e); !ok || err != nil || e != in {
			t.Fatalf("got %v, %v, %+v; want %+v", ok, err, e, in)
		}
		if ok, err := c.Poll(&e); ok || err != nil {
			t.Fatalf("empty CQ gave %v, %v", ok, err)
		}
	}
}

func TestCQOverrun(t *testing.T) {
	c, ring, _, _ := newTestCQ(t, 2)
	for i := range 2 {
		if err := ring.Push(&abi.CQE{WRID: uint64(i)}, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := ring.Push(&abi.CQE{}, false); !errors.Is(err, ErrCQOverrun) || !c.Overrun() {
		t.Errorf("third of two: %v, client sees %v", err, c.Overrun())
	}
	var e abi.CQE
	c.Poll(&e)
	if err := ring.Push(&abi.CQE{}, false); !errors.Is(err, ErrCQOverrun) {
		t.Errorf("an overrun CQ took an entry: %v", err)
	}
	ring.Close()
	if err := ring.Push(&abi.CQE{}, false); !errors.Is(err, ErrCQClosed) {
		t.Errorf("a closed CQ took an entry: %v", err)
	}
}

func TestCQViolation(t *testing.T) {
	for _, cons := range []uint32{3, 1 << 31, ^uint32(0)} {
		mem := make([]byte, CQMemSize(2))
		var told error
		ring := NewCQProducer(mem, 2, 1, nil, func(err error) { told = err })
		ring.Push(&abi.CQE{}, false)
		ring.Push(&abi.CQE{}, false)
		abi.Word(mem, abi.CQCons).Store(cons)
		if err := ring.Push(&abi.CQE{}, false); !abi.IsViolation(err) || told != err {
			t.Errorf("cons %d: %v, told %v", cons, err, told)
		}
	}
}

// One event per arming, by kind; errors count as solicited
// (docs/abi.md#waking).
func TestArm(t *testing.T) {
	c, ring, ch, tokens := newTestCQ(t, 64)
	push := func(status uint32, solicited bool) int {
		t.Helper()
		before := *tokens
		if err := ring.Push(&abi.CQE{Status: status}, solicited); err != nil {
			t.Fatal(err)
		}
		return *tokens - before
	}
	take := func() {
		t.Helper()
		if h, ok, err := ch.Pop(); h != 9 || !ok || err != nil {
			t.Fatalf("popped %d, %v, %v", h, ok, err)
		}
		c.TakeEvent()
		if h, ok, err := ch.Pop(); ok || err != nil {
			t.Fatalf("a second event: %d, %v", h, err)
		}
	}
	if push(0, true) != 0 {
		t.Error("event without arming")
	}
	c.Arm(false)
	if !ring.Armed() || push(0, false) != 1 || ring.Armed() {
		t.Error("no event for the next completion")
	}
	if push(0, true) != 0 {
		t.Error("two events for one arming")
	}
	c.Arm(false)
	if push(0, false) != 0 {
		t.Error("a second event was queued while the first waits")
	}
	take()
	c.Arm(true)
	if push(0, false) != 0 || push(0, true) != 1 {
		t.Error("solicited arming")
	}
	take()
	c.Arm(true)
	if push(5, false) != 1 {
		t.Error("an error is not solicited")
	}
	take()
	c.Arm(true)
	c.Arm(false)
	if push(0, false) != 1 {
		t.Error("armed for both kinds, next of any kind")
	}
	take()
}

// A destroyed CQ's events go, the others keep their order, and cancelled entries take no space.
func TestChannelCancel(t *testing.T) {
	mem := make([]byte, ChannelMemSize)
	var told error
	r := NewChannelProducer(mem, 1, func() {}, func(err error) { told = err })
	c, err := OpenChannelConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []uint32{1, 2, 3, 2, 4} {
		r.push(h)
	}
	if n, err := c.Cancel(2); n != 2 || err != nil {
		t.Errorf("cancelled %d, %v", n, err)
	}
	r.push(5)
	for _, want := range []uint32{1, 3, 4, 5} {
		if h, ok, err := c.Pop(); h != want || !ok || err != nil {
			t.Errorf("popped %d, %v, %v; want %d", h, ok, err, want)
		}
	}
	r.push(77) // stays at the front of the rest
	for i := range 3 * abi.ChanSlots {
		r.push(8)
		if n, err := c.Cancel(8); n != 1 || err != nil || told != nil {
			t.Fatalf("round %d: cancelled %d, %v; told %v", i, n, err, told)
		}
	}
	if h, ok, _ := c.Pop(); h != 77 || !ok {
		t.Errorf("popped %d, %v", h, ok)
	}
	abi.Word(mem, abi.ChanCons).Store(1)
	if r.push(1); !abi.IsViolation(told) {
		t.Errorf("impossible cons: told %v", told)
	}
}

func TestClientEndChecks(t *testing.T) {
	m, _ := newTestQP(t, rpc.QPCaps{MaxSendWR: 4})
	good := bytes.Clone(m.mem)
	for _, tt := range []struct {
		off, v uint32
	}{
		{abi.QPMagic, 0x51524e56}, {abi.QPSQSize, 3}, {abi.QPSQSize, 0}, {abi.QPSQSize, 1 << 17},
		{abi.QPSQStride, 8}, {abi.QPSQStride, 1 << 20}, {abi.QPSQOff, 0xfffffff8},
		{abi.QPRQOff, 4}, {abi.QPRQSize, 1 << 16}, {abi.QPTxSlabOff, 1 << 30},
		{abi.QPTxSlabSize, ^uint32(0)}, {abi.QPRxSlabSize, 1 << 20},
		{abi.QPRxSlabSize, 96}, {abi.QPRxSlabSize, 32}, {abi.QPMaxInline, 5000},
	} {
		mem := bytes.Clone(good)
		abi.Word(mem, tt.off).Store(tt.v)
		if _, err := OpenClientQP(mem); !abi.IsViolation(err) {
			t.Errorf("word %d = %#x: %v", tt.off, tt.v, err)
		}
	}
	if _, err := OpenClientQP(good[:100]); !abi.IsViolation(err) {
		t.Errorf("short memory: %v", err)
	}
	cq := make([]byte, CQMemSize(4))
	NewCQProducer(cq, 4, 1, nil, nil)
	for _, w := range [][2]uint32{{abi.CQMagic, 1}, {abi.CQSize, 8}, {abi.CQSize, 3},
		{abi.CQCQEOff, 1 << 31}} {
		mem := bytes.Clone(cq)
		abi.Word(mem, w[0]).Store(w[1])
		if _, err := OpenCQConsumer(mem); !abi.IsViolation(err) {
			t.Errorf("CQ word %d = %#x: %v", w[0], w[1], err)
		}
	}
	c, _ := OpenCQConsumer(cq)
	abi.Word(cq, abi.CQProd).Store(5)
	if _, err := c.Poll(new(abi.CQE)); !abi.IsViolation(err) {
		t.Errorf("CQ prod 5 of 4: %v", err)
	}
	ch := make([]byte, ChannelMemSize)
	NewChannelProducer(ch, 1, nil, nil)
	cc, _ := OpenChannelConsumer(ch)
	abi.Word(ch, abi.ChanProd).Store(abi.ChanSlots + 1)
	if _, _, err := cc.Pop(); !abi.IsViolation(err) {
		t.Errorf("channel prod: %v", err)
	}
	page := make([]byte, SessionPageSize(64))
	NewSessionPage(page, 1, 64, [abi.NonceLen]byte{})
	for _, w := range [][2]uint32{{abi.SessMagic, 0}, {abi.SessMajor, abi.Major + 1},
		{abi.SessBellWords, 100}, {abi.SessBellOff, 1 << 31}} {
		mem := bytes.Clone(page)
		abi.Word(mem, w[0]).Store(w[1])
		if _, err := OpenBellRinger(mem, nil); !abi.IsViolation(err) {
			t.Errorf("session word %d = %#x: %v", w[0], w[1], err)
		}
	}
}

// chanBell is a Doorbell within a process.
type chanBell chan struct{}

func (c chanBell) Ring() error {
	select {
	case c <- struct{}{}:
	default:
	}
	return nil
}
func (c chanBell) Wait() error { <-c; return nil }

func TestBells(t *testing.T) {
	mem := make([]byte, SessionPageSize(100))
	p := NewSessionPage(mem, 5, 100, [abi.NonceLen]byte{1})
	p.Use(99)
	bell := make(chanBell, 1)
	r, err := OpenBellRinger(mem, bell)
	if err != nil || r.Session != 5 || r.Bells() != 128 || r.PollYield != abi.PollYield {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, b := range []uint32{0, 31, 32, 99, 31} {
		r.Ring(b)
	}
	if len(bell) != 0 {
		t.Error("rung although the daemon is awake")
	}
	if p.Sleep() {
		t.Error("went to sleep on bells")
	}
	p.Awake()
	var got []uint32
	if !p.Collect(func(b uint32) { got = append(got, b) }) ||
		!reflect.DeepEqual(got, []uint32{0, 31, 32, 99}) {
		t.Errorf("collected %v", got)
	}
	if p.Collect(func(uint32) {}) || !p.Sleep() {
		t.Error("bells are left")
	}
	few := NewSessionPage(make([]byte, SessionPageSize(100)), 5, 100, [abi.NonceLen]byte{1})
	few.Use(40)
	few.Use(3)
	for i := range few.bells {
		few.bells[i].Store(^uint32(0))
	}
	if n := few.CollectSome(1000, func(uint32) {}); n != 64 || few.Rung() {
		t.Errorf("collected %d bells, want 64: nobody has been given those from 64 on", n)
	}
	r.Ring(1)
	r.Ring(1)
	if len(bell) != 1 {
		t.Error("a sleeping daemon was not woken exactly once")
	}
}

// Two posting threads, the daemon's loop and a polling thread move requests through all rings; the
// race detector watches.
func TestRingsConcurrently(t *testing.T) {
	const n = 3000
	page := make([]byte, SessionPageSize(32))
	p := NewSessionPage(page, 1, 32, [abi.NonceLen]byte{})
	p.Use(31)
	bell := make(chanBell, 1)
	ringer, err := OpenBellRinger(page, bell)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*ClientQP{}
	rings := [2]*DaemonQP{}
	for i := range ends {
		ends[i], rings[i] = newTestQP(t, rpc.QPCaps{MaxSendWR: 8, MaxRecvWR: 8})
	}
	cqmem, chmem := make([]byte, CQMemSize(64)), make([]byte, ChannelMemSize)
	tok := make(chan struct{}, abi.ChanSlots)
	cq := NewCQProducer(cqmem, 64, 1, NewChannelProducer(chmem, 1, func() { tok <- struct{}{} }, nil),
		nil)
	c, _ := OpenCQConsumer(cqmem)
	ch, _ := OpenChannelConsumer(chmem)

	credit := make(chan struct{}, 48) // completions that the CQ has room for
	var wg sync.WaitGroup
	for i := range ends {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := range n {
				credit <- struct{}{}
				w := abi.SendWQE{WRID: uint64(i)<<32 | uint64(k), Op: 2, Flags: abi.SQSignaled}
				w.SetInline([]byte{byte(k), byte(i)})
				for ends[i].SQ.Put(&w) != nil {
					runtime.Gosched()
				}
				ends[i].SQ.Commit()
				ringer.Ring(uint32(i))
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		var w abi.SendWQE
		for done := 0; done < 2*n; {
			if p.Collect(func(b uint32) {
				sq := &rings[b].SQ
				for {
					ok, err := sq.Next(&w)
					if err != nil {
						t.Error(err)
					}
					if !ok {
						return
					}
					if in := w.Inline(); in[0] != byte(w.WRID) || in[1] != byte(b) {
						t.Errorf("bell %d: content %v of %#x", b, in, w.WRID)
					}
					done++
					if err := cq.Push(&abi.CQE{WRID: w.WRID, SQDone: sq.Retire(1)}, false); err != nil {
						t.Error(err)
					}
				}
			}) {
				continue
			}
			if p.Sleep() && done < 2*n {
				bell.Wait()
			}
			p.Awake()
		}
	}()
	var next [2]uint64
	var e abi.CQE
	for got := 0; got < 2*n; {
		ok, err := c.Poll(&e)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			c.Arm(false)
			if c.Empty() {
				<-tok
				if _, ok, err := ch.Pop(); ok {
					c.TakeEvent()
				} else if err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		i := e.WRID >> 32
		if e.WRID != i<<32|next[i] || e.SQDone != uint32(next[i])+1 {
			t.Fatalf("completion %#x, sq_done %d; want %d of QP %d", e.WRID, e.SQDone, next[i], i)
		}
		next[i]++
		got++
		<-credit
	}
	wg.Wait()
}

func TestRingsDoNotAllocate(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2})
	c, cq, ch, _ := newTestCQ(t, 8)
	page := make([]byte, SessionPageSize(32))
	p := NewSessionPage(page, 1, 32, [abi.NonceLen]byte{})
	p.Use(31)
	ringer, _ := OpenBellRinger(page, make(chanBell, 1))
	in, out := &abi.SendWQE{NumSGE: 2}, new(abi.SendWQE)
	rin, rout := &abi.RecvWQE{NumSGE: 2}, new(abi.RecvWQE)
	e := new(abi.CQE)
	rung := 0
	look := func(uint32) { rung++ }
	if n := testing.AllocsPerRun(100, func() {
		m.RQ.Put(rin)
		m.RQ.Commit()
		m.SQ.Put(in)
		m.SQ.Commit()
		ringer.Ring(3)
		p.Collect(look)
		r.SQ.Next(out)
		r.RQ.Next(rout)
		c.Arm(false)
		e.SQDone = r.SQ.Retire(1)
		cq.Push(e, false)
		ch.Pop()
		c.TakeEvent()
		if ok, err := c.Poll(e); !ok || err != nil {
			t.Error("no completion:", err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
	if rung == 0 {
		t.Error("no bell arrived")
	}
}

func BenchmarkRings(b *testing.B) {
	m, r := newTestQP(b, rpc.QPCaps{MaxSendWR: 64})
	c, cq, _, _ := newTestCQ(b, 64)
	in, out, e := &abi.SendWQE{NumSGE: 1}, new(abi.SendWQE), new(abi.CQE)
	b.ReportAllocs()
	for b.Loop() {
		m.SQ.Put(in)
		m.SQ.Commit()
		r.SQ.Next(out)
		e.SQDone = r.SQ.Retire(1)
		cq.Push(e, false)
		c.Poll(e)
	}
}

// A QP's own receive queue is starved no more when it has given a receive; an SRQ is until it is
// told, since another QP may wait for it.
func TestStarvedUntilSated(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxRecvWR: 4})
	l := abi.NewSRQLayout(4, 1)
	mem := make([]byte, l.Size())
	srq := NewDaemonSRQ(mem, l, 1, nil)
	sm, err := OpenClientSRQ(mem)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ring *RecvConsumer
		p    *RecvProducer
		word *atomic.Uint32
		want uint32 // behind Next
	}{
		{"QP", &r.RQ, &m.RQ, abi.Word(m.mem, abi.QPRQStarved), 0},
		{"SRQ", &srq.RQ, &sm.RQ, abi.Word(mem, abi.QPRQStarved), 1},
	} {
		if !tt.ring.Starve() || tt.word.Load() != 1 {
			t.Fatalf("%s: not starved", tt.name)
		}
		if err := tt.p.Put(&abi.RecvWQE{}); err != nil || !tt.p.Commit() {
			t.Fatalf("%s: %v, or no bell", tt.name, err)
		}
		if ok, err := tt.ring.Next(new(abi.RecvWQE)); !ok || err != nil {
			t.Fatalf("%s: %v, %v", tt.name, ok, err)
		}
		if got := tt.word.Load(); got != tt.want {
			t.Errorf("%s: starved is %d when a receive has been taken, want %d", tt.name, got, tt.want)
		}
		if tt.ring.Sate(); tt.word.Load() != 0 {
			t.Errorf("%s: still starved", tt.name)
		}
	}
}
