package daemon

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// newRings makes a QP's rings on the heap: the RNIC's end and the client's.
func newRings(t *testing.T) (*ring.DaemonQP, *ring.ClientQP) {
	t.Helper()
	caps, ok := rpc.QPCaps{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4,
		MaxInline: 128}.Round(64, false)
	if !ok {
		t.Fatal("the caps do not round")
	}
	l := caps.Layout()
	mem := make([]byte, l.Size())
	rings := ring.NewDaemonQP(mem, l, 1, func(err error) { t.Errorf("violation: %v", err) })
	client, err := ring.OpenClientQP(mem)
	if err != nil {
		t.Fatal(err)
	}
	return rings, client
}

// imm is the word of a ring that holds four octets of immediate data.
func imm(octets string) uint32 { return binary.NativeEndian.Uint32([]byte(octets)) }

// What a client posts is what the RNIC gets.
func TestSendQueue(t *testing.T) {
	rings, client := newRings(t)
	q := &sendQueue{ring: &rings.SQ}
	sges := func(w *abi.SendWQE) {
		w.NumSGE = 2
		w.SGE[0] = abi.SGE{Addr: 0x1000, Length: 10, LKey: 7}
		w.SGE[1] = abi.SGE{Addr: 0x2000, Length: 20, LKey: 8}
	}
	two := []rdma.SGE{{Addr: 0x1000, Length: 10, LKey: 7}, {Addr: 0x2000, Length: 20, LKey: 8}}
	wr := rdma.SendWR{SGEs: []rdma.SGE{}, Inline: []byte{}}
	for i, tt := range []struct {
		put  func(w *abi.SendWQE)
		want rdma.SendWR
	}{
		{func(w *abi.SendWQE) {
			sges(w)
			w.WRID, w.Op, w.Flags, w.RemoteAddr, w.RKey, w.Imm = 1<<63, 0, 1|4, 1<<40, 9, 5
		},
			rdma.SendWR{ID: 1 << 63, Op: rdma.OpWrite, Flags: rdma.Signaled | rdma.Fence,
				RemoteAddr: 1 << 40, RKey: 9, SGEs: two, Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op = 2; w.Flags = 2; w.SetInline([]byte("octets")) },
			rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Solicited | rdma.Inline, SGEs: []rdma.SGE{},
				Inline: []byte("octets")}},
		{func(w *abi.SendWQE) { sges(w); w.Op, w.Imm = 9, 77 },
			rdma.SendWR{Op: rdma.OpSendInv, InvKey: 77, SGEs: two, Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op, w.Imm = 3, imm("wire"); w.SetImmLow(imm("octs")) },
			rdma.SendWR{Op: rdma.OpSendImm, Imm: 'w'<<24 | 'i'<<16 | 'r'<<8 | 'e',
				ImmLow: 'o'<<24 | 'c'<<16 | 't'<<8 | 's',
				SGEs:   []rdma.SGE{}, Inline: []byte{}}},
		{func(w *abi.SendWQE) { sges(w); w.Op, w.RemoteAddr, w.CmpAdd, w.Swap = 5, 64, 1<<63, 2 },
			rdma.SendWR{Op: rdma.OpCompareSwap, RemoteAddr: 64, Atomic: rdma.AtomicArgs{CompareAdd: 1 << 63,
				Swap: 2}, SGEs: two, Inline: []byte{}}},
		{func(w *abi.SendWQE) {
			sges(w)
			w.Op, w.NumSGE, w.CmpAdd, w.Swap, w.CmpMask, w.SwapMask = 12, 1, 1, 2, 3, 4
		},
			rdma.SendWR{Op: rdma.OpMaskedCompareSwap, Atomic: rdma.AtomicArgs{CompareAdd: 1, Swap: 2,
				CompareMask: 3, SwapMask: 4},
				SGEs: two[:1], Inline: []byte{}}},
		{func(w *abi.SendWQE) {
			w.Op, w.RKey, w.RemoteAddr, w.CmpAdd, w.Swap, w.NumSGE = 8, 0x105, 0x1000, 1<<33, 6, 1
			w.SGE[0] = abi.SGE{Addr: 0x77, LKey: 9}
		},
			rdma.SendWR{Op: rdma.OpBindMW, RKey: 0x105, RemoteAddr: 0x77, Range: rdma.MemRange{Addr: 0x1000,
				Length: 1 << 33, LKey: 9,
				Access: rdma.RemoteWrite | rdma.RemoteRead}, SGEs: []rdma.SGE{}, Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op, w.NumSGE, w.Swap = 32, 1, 1<<32|1 }, // rights that there are not
			rdma.SendWR{Op: rdma.OpRegMR, Range: rdma.MemRange{Access: ^rdma.Access(0)}, SGEs: []rdma.SGE{},
				Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op = 8 }, // of no region
			rdma.SendWR{Op: opInvalid, SGEs: []rdma.SGE{}, Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op, w.NumSGE, w.SGE[0].Length = 8, 1, 1 },
			rdma.SendWR{Op: opInvalid, SGEs: []rdma.SGE{{Length: 1}}, Inline: []byte{}}},
		{func(w *abi.SendWQE) { w.Op = 200 }, rdma.SendWR{Op: opInvalid, SGEs: []rdma.SGE{},
			Inline: []byte{}}},
	} {
		var w abi.SendWQE
		tt.put(&w)
		if err := client.SQ.Put(&w); err != nil {
			t.Fatal(err)
		}
		if ok, err := q.Next(&wr); ok || err != nil {
			t.Fatalf("%d: something is there before it is committed: %v", i, err)
		}
		client.SQ.Commit()
		if ok, err := q.Next(&wr); !ok || err != nil || !reflect.DeepEqual(wr, tt.want) {
			t.Errorf("%d: got %+v, %v, %v; want %+v", i, wr, ok, err, tt.want)
		}
		q.Retire(1)
		if got := client.SQ.Done(); got != uint32(i+1) {
			t.Errorf("%d: the client sees %d retired", i, got)
		}
	}
}

// A receive and its completion: the cookie comes back.
func TestRecvQueue(t *testing.T) {
	rings, client := newRings(t)
	q := &recvQueue{ring: &rings.RQ}
	q.Starve(true)
	w := abi.RecvWQE{WRID: 5, NumSGE: 1, Cookie: 42}
	w.SGE[0] = abi.SGE{Addr: 0x1000, Length: 10, LKey: 7}
	if err := client.RQ.Put(&w); err != nil {
		t.Fatal(err)
	}
	if !client.RQ.Commit() {
		t.Error("a starved queue asks for no bell")
	}
	var wr rdma.RecvWR
	cookie, ok, err := q.Next(&wr)
	if !ok || err != nil || cookie != 42 || wr.ID != 5 || !reflect.DeepEqual(wr.SGEs,
		[]rdma.SGE{{Addr: 0x1000, Length: 10, LKey: 7}}) {
		t.Errorf("got %+v, cookie %d, %v, %v", wr, cookie, ok, err)
	}
	if err := client.RQ.Put(&w); err != nil || client.RQ.Commit() {
		t.Errorf("a queue that has been fed still asks for a bell, %v", err)
	}
}

// A completion reaches the client whole; one too many is an overrun.
func TestCQSink(t *testing.T) {
	mem := make([]byte, ring.CQMemSize(2))
	s := &cqSink{ring: ring.NewCQProducer(mem, 2, 3, nil, nil)}
	client, err := ring.OpenCQConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	wc := rdma.WC{ID: 1 << 60, Status: rdma.WCRemAccess, Op: rdma.WCRead, VendorErr: 0x100, ByteLen: 9,
		Imm: 4, QPN: 77, Flags: rdma.WCWithInv}
	before := osmem.MonotonicNS()
	for range 2 {
		if !s.Push(&wc, 11, 12, true) {
			t.Fatal("no room for two")
		}
	}
	var e abi.CQE
	if n := s.Unpolled(); n != 2 {
		t.Errorf("%d are not polled, of 2", n)
	}
	if ok, err := client.Poll(&e); !ok || err != nil || s.Unpolled() != 1 {
		t.Fatal(ok, err, s.Unpolled())
	}
	if e.Timestamp < before || e.Timestamp > osmem.MonotonicNS() {
		t.Errorf("the time is %d, between %d and %d", e.Timestamp, before, osmem.MonotonicNS())
	}
	var i abi.CQE
	client.Poll(&i)
	s.Push(&rdma.WC{Op: rdma.WCRecvImm, Flags: rdma.WCWithImm, Imm: 'w'<<24 | 'i'<<16 | 'r'<<8 | 'e',
		ImmLow: 1}, 0, 0, false)
	if ok, err := client.Poll(&i); !ok || err != nil || i.Imm != imm("wire") ||
		i.SrcQP != imm("\x00\x00\x00\x01") || i.Opcode != 129 || i.WCFlags != 2 {
		t.Errorf("immediate data came as %+v, %v, %v", i, ok, err)
	}
	e.Timestamp = 0
	for i := range 3 {
		if got := s.Push(&wc, 11, 12, true); got != (i < 2) {
			t.Errorf("completion %d of a CQ for two: %v", i, got)
		}
	}
	want := abi.CQE{WRID: 1 << 60, Status: 10, Opcode: 2, VendorErr: 0x100, ByteLen: 9, Imm: 4,
		QPN: 77, WCFlags: 8,
		SQDone: 12, Cookie: 11, SlabOff: abi.NoSlab}
	if e != want {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

// Only the receive that went through the slab, and only if it has come, is said to be there.
func TestRecvSlabComplete(t *testing.T) {
	rings, _ := newRings(t)
	s := &recvSlab{ring: &rings.RxSlab}
	for _, tt := range []struct {
		name string
		e    abi.CQE
		wc   rdma.WC
		off  uint32
		done bool
	}{
		{"another receive", abi.CQE{Cookie: 6}, rdma.WC{Op: rdma.WCRecv, ByteLen: 10}, abi.NoSlab, false},
		{"a send", abi.CQE{Cookie: 5}, rdma.WC{Op: rdma.WCRead, ByteLen: 10}, abi.NoSlab, false},
		{"it", abi.CQE{Cookie: 5}, rdma.WC{Op: rdma.WCRecv, ByteLen: 10}, 64, true},
		{"failed", abi.CQE{Cookie: 5}, rdma.WC{Op: rdma.WCRecv, Status: rdma.WCLocLen, ByteLen: 10},
			abi.NoSlab, true},
		{"empty", abi.CQE{Cookie: 5}, rdma.WC{Op: rdma.WCRecvImm}, abi.NoSlab, true},
	} {
		s.taken, s.cookie, s.off = true, 5, 64
		tt.e.SlabOff = abi.NoSlab
		if s.complete(&tt.e, &tt.wc); tt.e.SlabOff != tt.off || s.taken == tt.done {
			t.Errorf("%s: at %d, still taken: %v", tt.name, tt.e.SlabOff, s.taken)
		}
	}
}

// The way of a work request through the adapters and of its completion back allocates nothing.
func TestQueuesDoNotAllocate(t *testing.T) {
	rings, client := newRings(t)
	sq, rq := &sendQueue{ring: &rings.SQ}, &recvQueue{ring: &rings.RQ}
	mem := make([]byte, ring.CQMemSize(64))
	sink := &cqSink{ring: ring.NewCQProducer(mem, 64, 3, nil, nil)}
	cq, err := ring.OpenCQConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	send, recv := &abi.SendWQE{Op: 2, NumSGE: 2}, &abi.RecvWQE{NumSGE: 2}
	wr := &rdma.SendWR{SGEs: make([]rdma.SGE, 0, 4), Inline: make([]byte, 0, 128)}
	rwr := &rdma.RecvWR{SGEs: make([]rdma.SGE, 0, 4)}
	wc, e := new(rdma.WC), new(abi.CQE)
	ok := true
	n := testing.AllocsPerRun(1000, func() {
		ok = ok && client.SQ.Put(send) == nil && client.RQ.Put(recv) == nil
		client.SQ.Commit()
		client.RQ.Commit()
		a, err1 := sq.Next(wr)
		_, b, err2 := rq.Next(rwr)
		sq.Retire(1)
		c := sink.Push(wc, 0, 1, false)
		d, err3 := cq.Poll(e)
		ok = ok && a && b && c && d && err1 == nil && err2 == nil && err3 == nil
	})
	if n != 0 || !ok {
		t.Errorf("%v allocations per request, all went well: %v", n, ok)
	}
}
