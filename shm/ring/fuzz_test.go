package ring

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// fuzzCaps are those of the fuzzed rings.
var fuzzCaps = rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 100,
	TxSlab: 256, RxSlab: 256}

// FuzzWQE: a send WQE of any content is refused, or what comes out lies within the QP's sizes and
// encodes to a slot that means the same; shared memory is not looked at again.
func FuzzWQE(f *testing.F) {
	slot := make([]byte, 192)
	for _, w := range []*abi.SendWQE{{}, {Op: 4, NumSGE: 3, Length: 6, SGE: [abi.MaxSGE]abi.SGE{
		{Addr: 1, Length: 2, LKey: 3}, {Addr: 2, Length: 2, LKey: 3}, {Addr: 3, Length: 2, LKey: 3}}},
		{Flags: abi.SQInline, Length: 100}, {Flags: abi.SQSlab, Length: 200, SlabOff: 56},
		{Op: 12, NumSGE: 1, Length: 8, SGE: [abi.MaxSGE]abi.SGE{{Addr: 1, Length: 8, LKey: 3}},
			CmpMask: 1, SwapMask: 2}, {Op: 8, NumSGE: 1, CmpAdd: 9, Swap: 7}} {
		w.Encode(slot)
		f.Add(slot)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, r := newTestQP(t, fuzzCaps)
		l := &r.Layout
		copy(m.mem[l.SQOff:l.SQOff+l.SQStride], b)
		abi.Word(m.mem, abi.QPSQProd).Store(1)
		abi.Word(m.mem, abi.QPTxSlabProd).Store(l.TxSlabSize)
		var w, v abi.SendWQE
		ok, err := r.SQ.Next(&w)
		if ok != (err == nil) || err != nil && !abi.IsViolation(err) {
			t.Fatalf("%v, %v", ok, err)
		}
		clear(m.mem[l.SQOff:])
		if ok {
			sum := uint64(0)
			for _, s := range w.SGEs() {
				sum += uint64(s.Length)
			}
			switch {
			case w.Flags&abi.SQInline != 0:
				if len(w.Inline()) > int(l.MaxInline) {
					t.Fatalf("%d octets inline", len(w.Inline()))
				}
			case w.Flags&abi.SQSlab != 0:
				if uint64(w.SlabOff)+uint64(w.Length) > uint64(l.TxSlabSize) {
					t.Fatalf("slab range %d of %d", w.SlabOff, w.Length)
				}
			default:
				if uint32(w.NumSGE) > l.SQMaxSGE() || sum != uint64(w.Length) || abi.Masked(w.Op) &&
					w.NumSGE > 1 {
					t.Fatalf("%d SGEs of %d octets, length %d", w.NumSGE, sum, w.Length)
				}
			}
			s := make([]byte, l.SQStride)
			w.Encode(s)
			if err := v.Decode(s, l); err != nil || w != v {
				t.Fatalf("%+v became %+v, %v", w, v, err)
			}
		}

		copy(m.mem[l.RQOff:l.RQOff+l.RQStride], b)
		abi.Word(m.mem, abi.QPRQProd).Store(1)
		var rw, rv abi.RecvWQE
		ok, err = r.RQ.Next(&rw)
		if ok != (err == nil) || err != nil && !abi.IsViolation(err) || rw.NumSGE > l.RQMaxSGE() {
			t.Fatalf("receive: %v, %v, %d SGEs", ok, err, rw.NumSGE)
		}
		if ok {
			s := make([]byte, l.RQStride)
			rw.Encode(s)
			if err := rv.Decode(s, l); err != nil || rw != rv {
				t.Fatalf("%+v became %+v, %v", rw, rv, err)
			}
		}
	})
}

// FuzzRingIndices: a client that writes any index at any time makes the daemon take at most what
// the ring holds, or ends its session; no word of the daemon's is read back.
func FuzzRingIndices(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0})
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 2, 9, 0, 0, 0, 3, 1, 1, 1, 1})
	offs := []uint32{abi.QPSQProd, abi.QPRQProd, abi.QPSQDone, abi.QPRQHead, abi.QPRQStarved,
		abi.QPSQSize, abi.QPSQStride, abi.QPSQOff, abi.QPRQOff,
		abi.QPTxSlabProd, abi.QPRxSlabCons, abi.QPTxSlabCons, abi.QPRxSlabProd}
	f.Add([]byte{9, 0, 1, 0, 0, 10, 64, 0, 0, 0, 0, 1, 0, 0, 0, 10, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		m, r := newTestQP(t, fuzzCaps)
		cqmem, chmem := make([]byte, CQMemSize(4)), make([]byte, ChannelMemSize)
		ch := NewChannelProducer(chmem, 1, func() {}, nil)
		cq := NewCQProducer(cqmem, 4, 1, ch, nil)
		var w abi.SendWQE
		var rw abi.RecvWQE
		l := abi.NewSRQLayout(4, 3)
		smem := make([]byte, l.Size())
		srq := NewDaemonSRQ(smem, l, 1, nil)
		for ; len(script) >= 5; script = script[5:] {
			v := abi.Order.Uint32(script[1:])
			switch k := int(script[0]); {
			case k < len(offs):
				abi.Word(m.mem, offs[k]).Store(v)
				abi.Word(smem, offs[k]).Store(v)
			case k < len(offs)+3:
				abi.Word(cqmem, []uint32{abi.CQCons, abi.CQArm, abi.CQProd}[k-len(offs)]).Store(v)
			case k < len(offs)+5:
				abi.Word(chmem, []uint32{abi.ChanCons, abi.ChanProd}[k-len(offs)-3]).Store(v)
			default:
				m.mem[int(v)%len(m.mem)] = script[0]
			}
			for n := 0; ; n++ {
				ok, err := r.SQ.Next(&w)
				if err != nil {
					return
				}
				if n > 4 {
					t.Fatal("more requests than slots")
				}
				if !ok {
					break
				}
			}
			if used := r.SQ.slab.taken - r.SQ.slab.cons; used > r.Layout.TxSlabSize {
				t.Fatalf("%d octets of the slab are in use", used)
			}
			r.SQ.Retire(r.SQ.Outstanding())
			if off, ok, err := r.RxSlab.Reserve(uint64(v&0xff) + 1); err != nil {
				return
			} else if ok {
				if uint64(off)+uint64(v&0xff)+1 > uint64(r.Layout.RxSlabSize) {
					t.Fatalf("%d octets at %d of the slab", v&0xff+1, off)
				}
				r.RxSlab.Commit(v & 0xff)
			}
			for n := 0; ; n++ {
				ok, err := r.RQ.Next(&rw)
				if err != nil {
					return
				}
				if n > 4 {
					t.Fatal("more receives than slots")
				}
				if !ok {
					break
				}
			}
			for n := 0; ; n++ {
				ok, err := srq.RQ.Next(&rw)
				if err != nil {
					return
				}
				if n > 4 || rw.NumSGE > 3 || srq.RQ.Pending() > 4 {
					t.Fatal("more receives than slots of the SRQ, or larger ones")
				}
				if !ok {
					break
				}
			}
			if got := abi.Word(m.mem, abi.QPSQDone).Load(); got != r.SQ.Done() {
				t.Fatalf("sq_done %d, want %d", got, r.SQ.Done())
			}
			if err := cq.Push(&abi.CQE{}, true); err != nil && !abi.IsViolation(err) && !errors.Is(err,
				ErrCQOverrun) {
				t.Fatal(err)
			}
		}
	})
}
