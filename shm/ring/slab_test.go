package ring

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A slab carries messages of any length in their order, whole, and never gives an octet away before
// it is free; when all is taken it has room again. Indices wrap on the way.
func TestSlabs(t *testing.T) {
	m, r := newTestQP(t, rpc.QPCaps{MaxSendWR: 16, TxSlab: 1024, RxSlab: 1000})
	if r.Layout.RxSlabSize != 1024 {
		t.Fatalf("rx slab of %d octets, asked for 1000", r.Layout.RxSlabSize)
	}
	// Near the end of the indices, as after 4 GiB.
	near := ^uint32(0) - 2000
	for _, off := range []uint32{abi.QPTxSlabProd, abi.QPTxSlabCons, abi.QPRxSlabProd,
		abi.QPRxSlabCons} {
		abi.Word(m.mem, off).Store(near)
	}
	m.TxSlab.prod, r.SQ.slab.taken, r.SQ.slab.cons, r.RxSlab.prod, m.RxSlab.cons = near, near, near,
		near, near
	rnd := rand.New(rand.NewPCG(3, 4))
	type sent struct {
		w    abi.SendWQE
		want []byte
	}
	var out []sent // taken by the daemon and not retired
	var in []struct {
		e    abi.CQE
		want []byte
	}
	full := 0
	for i := range 3000 {
		msg := make([]byte, 1+rnd.IntN(300))
		for k := range msg {
			msg[k] = byte(rnd.Uint32())
		}
		if off, ok, err := m.TxSlab.Put(msg); err != nil {
			t.Fatal(err)
		} else if ok && m.SQ.Put(&abi.SendWQE{Flags: abi.SQSlab, SlabOff: off,
			Length: uint32(len(msg))}) == nil {
			m.SQ.Commit()
			var s sent
			if ok, err := r.SQ.Next(&s.w); !ok || err != nil {
				t.Fatalf("round %d: %v, %v", i, ok, err)
			}
			s.want = msg
			out = append(out, s)
		} else {
			full++
		}
		for n := rnd.IntN(3); n > 0 && len(out) > 0 || len(out) >= 8; n-- {
			if got := r.TxSlabMem()[out[0].w.SlabOff:][:out[0].w.Length]; !bytes.Equal(got, out[0].want) {
				t.Fatalf("round %d: a message changed before it was retired", i)
			}
			r.SQ.Retire(1)
			out = out[1:]
		}
		if off, ok, err := r.RxSlab.Reserve(uint64(len(msg))); err != nil {
			t.Fatal(err)
		} else if ok {
			n := rnd.IntN(len(msg) + 1) // the message is shorter than the receive
			copy(r.RxSlabMem()[off:], msg[:n])
			if n > 0 {
				r.RxSlab.Commit(uint32(n))
				in = append(in, struct {
					e    abi.CQE
					want []byte
				}{abi.CQE{SlabOff: off, SlabLen: uint32(n)}, msg[:n]})
			}
		} else {
			full++
		}
		for n := rnd.IntN(3); n > 0 && len(in) > 0; n-- {
			got := make([]byte, 300)
			n, err := m.RxSlab.Take(&in[0].e, got)
			if err != nil || !bytes.Equal(got[:n], in[0].want) {
				t.Fatalf("round %d: took %d octets, %v; want %d", i, n, err, len(in[0].want))
			}
			in = in[1:]
		}
	}
	if full == 0 {
		t.Error("no slab was ever full")
	}
	r.SQ.Retire(100)
	for _, x := range in {
		m.RxSlab.Take(&x.e, nil)
	}
	for what, n := range map[string]uint32{
		"tx": abi.Word(m.mem, abi.QPTxSlabProd).Load() - abi.Word(m.mem, abi.QPTxSlabCons).Load(),
		"rx": abi.Word(m.mem, abi.QPRxSlabProd).Load() - abi.Word(m.mem, abi.QPRxSlabCons).Load(),
	} {
		if n != 0 {
			t.Errorf("%s slab: %d octets in use when all is taken", what, n)
		}
	}
}

// docs/abi.md#slabs: a client's index that cannot be is a violation.
func TestSlabViolations(t *testing.T) {
	caps := rpc.QPCaps{MaxSendWR: 4, TxSlab: 1024, RxSlab: 1024}
	t.Run("rxslab_cons jumps", func(t *testing.T) {
		m, r := newTestQP(t, caps)
		var told error
		r.RxSlab.fail = func(err error) { told = err }
		abi.Word(m.mem, abi.QPRxSlabCons).Store(1)
		if _, ok, err := r.RxSlab.Reserve(10); ok || !abi.IsViolation(err) || told != err {
			t.Errorf("%v, %v; the session was told %v", ok, err, told)
		}
	})
	t.Run("octets of a request that is not retired", func(t *testing.T) {
		m, r := newTestQP(t, caps)
		put := func(off, n uint32) {
			if err := m.SQ.Put(&abi.SendWQE{Flags: abi.SQSlab, SlabOff: off, Length: n}); err != nil {
				t.Fatal(err)
			}
			m.SQ.Commit()
		}
		put(0, 1000)
		abi.Word(m.mem, abi.QPTxSlabProd).Store(1024)
		if ok, err := r.SQ.Next(new(abi.SendWQE)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		put(0, 10) // would be octets 1024 to 1034
		if ok, err := r.SQ.Next(new(abi.SendWQE)); ok || !abi.IsViolation(err) {
			t.Errorf("%v, %v", ok, err)
		}
	})
	t.Run("txslab_prod goes back", func(t *testing.T) {
		m, r := newTestQP(t, caps)
		m.TxSlab.Put(make([]byte, 100))
		for range 2 {
			m.SQ.Put(&abi.SendWQE{Flags: abi.SQSlab, Length: 100})
			m.SQ.Commit()
		}
		if ok, err := r.SQ.Next(new(abi.SendWQE)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		abi.Word(m.mem, abi.QPTxSlabProd).Store(50)
		if ok, err := r.SQ.Next(new(abi.SendWQE)); ok || !abi.IsViolation(err) {
			t.Errorf("%v, %v", ok, err)
		}
	})
	t.Run("a slab request without a slab", func(t *testing.T) {
		m, r := newTestQP(t, rpc.QPCaps{})
		m.mem[r.Layout.SQOff+abi.SQFlags] = abi.SQSlab
		abi.Order.PutUint32(m.mem[r.Layout.SQOff+abi.SQLength:], 1)
		abi.Word(m.mem, abi.QPSQProd).Store(1)
		if ok, err := r.SQ.Next(new(abi.SendWQE)); ok || !abi.IsViolation(err) {
			t.Errorf("%v, %v", ok, err)
		}
	})
	// The other way round.
	t.Run("the daemon's indices", func(t *testing.T) {
		m, _ := newTestQP(t, caps)
		abi.Word(m.mem, abi.QPTxSlabCons).Store(1)
		if _, _, err := m.TxSlab.Put([]byte{1}); !abi.IsViolation(err) {
			t.Errorf("txslab_cons ahead: %v", err)
		}
		abi.Word(m.mem, abi.QPRxSlabProd).Store(20)
		for _, e := range []abi.CQE{{SlabOff: 1025}, {SlabOff: 1000, SlabLen: 25},
			{SlabOff: 4, SlabLen: ^uint32(0)}, {SlabOff: 0, SlabLen: 21}, {SlabOff: 20, SlabLen: 1}} {
			if _, err := m.RxSlab.Take(&e, nil); !abi.IsViolation(err) {
				t.Errorf("%d octets at %d: %v", e.SlabLen, e.SlabOff, err)
			}
		}
	})
}

// Receives that are no business of a slab, or that have no room in it now, are left alone.
func TestSlabReserveDeclines(t *testing.T) {
	_, r := newTestQP(t, rpc.QPCaps{RxSlab: 16384})
	for _, n := range []uint64{0, abi.MaxSlabRecv + 1, 1 << 40} {
		if _, ok, err := r.RxSlab.Reserve(n); ok || err != nil {
			t.Errorf("%d octets: %v, %v", n, ok, err)
		}
	}
	for range 2 {
		if _, ok, _ := r.RxSlab.Reserve(abi.MaxSlabRecv); !ok {
			t.Fatal("no room in an empty slab")
		}
		r.RxSlab.Commit(abi.MaxSlabRecv)
	}
	if _, ok, err := r.RxSlab.Reserve(1); ok || err != nil {
		t.Errorf("room in a full slab: %v, %v", ok, err)
	}
	_, none := newTestQP(t, rpc.QPCaps{})
	if _, ok, err := none.RxSlab.Reserve(1); ok || err != nil {
		t.Errorf("room in no slab: %v, %v", ok, err)
	}
}
