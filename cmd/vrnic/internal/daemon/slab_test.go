package daemon_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// slabCaps ask for slabs of 4 KiB, so that they are full soon.
var slabCaps = rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16, TxSlab: 4096, RxSlab: 4096}

// slabPair connects a raw client with slabs to an end on a device.
func slabPair(t *testing.T, device string) (*rawEnd, *daemontest.End) {
	d := daemontest.Start(t)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), 1<<16)
	a := newRawEndOf(t, d, 1<<16, slabCaps)
	addr, accepted := accept(t, b)
	a.connect(addr)
	accepted()
	return a, b
}

// postSlab posts a request whose octets are in the slab.
func (e *rawEnd) postSlab(op rdma.Opcode, octets []byte, set func(w *abi.SendWQE)) {
	e.T.Helper()
	off, ok, err := e.qp.Ring.TxSlab.Put(octets)
	if !ok || err != nil {
		e.T.Fatalf("no room in the slab for %d octets: %v", len(octets), err)
	}
	e.qp.PostSend(func(w *abi.SendWQE) {
		w.Op, w.Flags, w.SlabOff, w.Length = uint8(op), abi.SQSignaled|abi.SQSlab, off,
			uint32(len(octets))
		if set != nil {
			set(w)
		}
	})
}

// postRecv posts n octets of the end's memory.
func (e *rawEnd) postRecv(cookie uint32, off, n int) {
	e.T.Helper()
	w := &abi.RecvWQE{WRID: uint64(cookie), Cookie: cookie, NumSGE: 1}
	w.SGE[0] = abi.SGE{Addr: rawIOVA + uint64(off), Length: uint32(n), LKey: e.mr.LKey}
	e.qp.PostRecv(w)
}

// Small messages of a program with memory of its own go through slabs in both directions, over the
// wire and within the device: no octet of its memory is touched by the daemon, the slab is free
// again when it has been used, and what finds no room in it, or is too long, goes the other way.
func TestSlabs(t *testing.T) {
	for _, device := range []string{"vrnic1", "vrnic0"} {
		t.Run(device, func(t *testing.T) {
			a, b := slabPair(t, device)
			for i := range 40 { // 40 * 1000 octets: the slab goes round
				msg := bytes.Repeat([]byte{byte(i + 1)}, 1000)
				id := uint64(i + 1)
				b.Recv(id, 0, 1000)
				a.postSlab(rdma.OpSend, msg, nil)
				if e := a.Next(a.cq); e.Status != 0 || e.SlabOff != abi.NoSlab {
					t.Fatalf("Send %d: %+v", i, e)
				}
				b.WantOK("a Send from the slab", id, rdma.WCRecv)
				if !bytes.Equal(b.Buf.Bytes()[:1000], msg) {
					t.Fatalf("Send %d brought something else", i)
				}

				a.postRecv(uint32(i+1), 0, 1200)
				copy(b.Buf.Bytes(), bytes.Repeat([]byte{byte(i + 101)}, 1000))
				b.Send(id, 0, 1000)
				e := a.Next(a.cq)
				got := make([]byte, 2000)
				if e.Status != 0 || e.Cookie != uint32(i+1) || e.ByteLen != 1000 || e.SlabOff == abi.NoSlab ||
					e.SlabLen != 1000 {
					t.Fatalf("receive %d: %+v", i, e)
				}
				if n, err := a.qp.Ring.RxSlab.Take(&e, got); err != nil ||
					!bytes.Equal(got[:n], b.Buf.Bytes()[:1000]) {
					t.Fatalf("receive %d: %d octets, %v", i, n, err)
				}
				b.WantOK("the Send", id, rdma.WCSend)
			}
			if a.buf[0] != 0 {
				t.Error("the program's memory was written")
			}

			// A Write, with the octets from the slab.
			a.postSlab(rdma.OpWrite, []byte("written from the slab"), func(w *abi.SendWQE) {
				w.RemoteAddr, w.RKey = b.MR.Addr()+5000, b.MR.RKey()
			})
			if e := a.Next(a.cq); e.Status != 0 {
				t.Fatalf("Write: %+v", e)
			}
			b.Recv(99, 0, 1)
			a.postSlab(rdma.OpSend, []byte{1}, nil)
			a.Next(a.cq)
			b.WantOK("the Send behind it", 99, rdma.WCRecv)
			if got := b.Buf.Bytes()[5000:5021]; string(got) != "written from the slab" {
				t.Errorf("the Write brought %q", got)
			}

			// Messages that nobody takes out of the slab, until there is no room for one more. Nor is there
			// ever for a receive of more than the limit.
			for i := range 5 {
				a.postRecv(uint32(i+1), 10000*i, 1200)
			}
			a.postRecv(6, 50000, abi.MaxSlabRecv+1)
			inSlab := 0
			for i := range 6 {
				copy(b.Buf.Bytes(), fmt.Sprintf("message %d", i+1))
				b.Send(uint64(i+1), 0, 1024)
				b.WantOK("a Send", uint64(i+1), rdma.WCSend)
				e := a.Next(a.cq)
				if e.Status != 0 || e.Cookie != uint32(i+1) || e.ByteLen != 1024 {
					t.Fatalf("message %d: %+v", i+1, e)
				}
				got := make([]byte, 1024)
				if e.SlabOff != abi.NoSlab {
					inSlab++
					copy(got, a.qp.Mem[a.qp.Ring.Layout.RxSlabOff+e.SlabOff:][:e.SlabLen])
				} else {
					copy(got, a.buf[10000*i:])
				}
				if !bytes.Equal(got, b.Buf.Bytes()[:1024]) {
					t.Errorf("message %d came as %q", i+1, got[:20])
				}
			}
			if inSlab == 0 || inSlab > 4 {
				t.Errorf("%d messages of 1 KiB in a slab of 4 KiB", inSlab)
			}
		})
	}
}

// A receive through the slab is checked as any other: memory that may not be written is an error
// once something comes for it, a message that is longer than the receive is, and one that flushes
// leaves the slab alone. ABI 6.6.
func TestSlabErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		post func(a *rawEnd)
		n    int
		want rdma.WCStatus
	}{
		{"a wrong key", func(a *rawEnd) {
			w := &abi.RecvWQE{Cookie: 1, NumSGE: 1}
			w.SGE[0] = abi.SGE{Addr: rawIOVA, Length: 100, LKey: a.mr.LKey + 1}
			a.qp.PostRecv(w)
		}, 10, rdma.WCLocProt},
		{"beyond the region", func(a *rawEnd) { a.postRecv(1, 1<<16-50, 100) }, 10, rdma.WCLocProt},
		{"too long", func(a *rawEnd) { a.postRecv(1, 0, 100) }, 101, rdma.WCLocLen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := slabPair(t, "vrnic1")
			tt.post(a)
			b.Send(1, 0, tt.n)
			if e := a.Next(a.cq); e.Status != uint32(tt.want) || e.SlabOff != abi.NoSlab {
				t.Errorf("%+v, want status %d", e, tt.want)
			}
		})
	}
	t.Run("a Read into it", func(t *testing.T) {
		a, b := slabPair(t, "vrnic1")
		a.postSlab(rdma.OpRead, []byte{1}, func(w *abi.SendWQE) {
			w.RemoteAddr, w.RKey = b.MR.Addr(), b.MR.RKey()
		})
		if e := a.Next(a.cq); e.Status != uint32(rdma.WCLocQPOp) {
			t.Errorf("%+v, want status %d", e, rdma.WCLocQPOp)
		}
	})
	t.Run("flushed", func(t *testing.T) {
		a, b := slabPair(t, "vrnic1")
		a.postRecv(1, 0, 100)
		b.QP.Abort()
		if e := a.Next(a.cq); e.Status != uint32(rdma.WCFlush) || e.Cookie != 1 ||
			e.SlabOff != abi.NoSlab {
			t.Errorf("%+v, want a flush", e)
		}
	})
}

// The region of a slab is nobody's object, and it goes with its QP.
func TestSlabIsNoMR(t *testing.T) {
	a, _ := slabPair(t, "vrnic1")
	c := shmtest.NewRaw(t, a.Conn.RemoteAddr().String()).Hello()
	var rep rpc.ListReply
	c.Must(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListMR}, &rep)
	if n := bytes.Count(rep.Data[:rep.Len], []byte{'\n'}); n != 2 {
		t.Errorf("%d regions, each end has registered one:\n%s", n, rep.Data[:rep.Len])
	}
	a.Must(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: a.qp.CreateQPReply.QP}, nil)
	a.Must(rpc.OpDeregMR, &rpc.HandleRequest{Handle: a.mr.MR}, nil)
	a.Must(rpc.OpDeallocPD, &rpc.HandleRequest{Handle: a.pd}, nil) // EBUSY while anything is left
}

// docs/abi.md#slabs: ranges and indices that cannot be end the session.
func TestSlabViolation(t *testing.T) {
	raw := func(set func(wqe []byte)) func(a *rawEnd, b *daemontest.End) {
		return func(a *rawEnd, b *daemontest.End) {
			wqe := make([]byte, 64)
			wqe[abi.SQOp], wqe[abi.SQFlags] = uint8(rdma.OpSend), abi.SQSlab
			set(wqe)
			a.qp.PostRaw(wqe, 1)
		}
	}
	word := func(b []byte, v uint32) { shmtest.Word(b, 0).Store(v) }
	for name, do := range map[string]func(a *rawEnd, b *daemontest.End){
		"a range beyond the slab": raw(func(w []byte) { word(w[abi.SQLength:], 4097) }),
		"a range that wraps": raw(func(w []byte) {
			word(w[abi.SQLength:], 1<<32-1)
			word(w[abi.SQSGE:], 2)
		}),
		"an offset beyond the slab": raw(func(w []byte) { word(w[abi.SQSGE:], 1<<31) }),
		"octets never put":          raw(func(w []byte) { word(w[abi.SQLength:], 1) }),
		"inline and slab":           raw(func(w []byte) { w[abi.SQFlags] |= abi.SQInline }),
		"SGEs and slab":             raw(func(w []byte) { w[abi.SQNumSGE] = 1 }),
		"txslab_prod far ahead": func(a *rawEnd, b *daemontest.End) {
			shmtest.Word(a.qp.Mem, abi.QPTxSlabProd).Store(1 << 30)
			raw(func(w []byte) { word(w[abi.SQLength:], 1) })(a, b)
		},
		"rxslab_cons far ahead": func(a *rawEnd, b *daemontest.End) {
			shmtest.Word(a.qp.Mem, abi.QPRxSlabCons).Store(1 << 30)
			a.postRecv(1, 0, 100)
			b.Send(1, 0, 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := slabPair(t, "vrnic1")
			do(a, b)
			a.WantEnd(name)
		})
	}
	// What is written over in the slab behind the daemon's back harms nobody but its writer, and its
	// words are never read back.
	t.Run("the daemon's own words", func(t *testing.T) {
		a, b := slabPair(t, "vrnic1")
		for _, w := range []uint32{abi.QPTxSlabCons, abi.QPRxSlabProd, abi.QPTxSlabOff, abi.QPTxSlabSize,
			abi.QPRxSlabOff, abi.QPRxSlabSize} {
			shmtest.Word(a.qp.Mem, w).Store(1<<31 + 5)
		}
		b.Recv(1, 0, 64)
		raw(func(w []byte) {
			shmtest.Word(a.qp.Mem, abi.QPTxSlabProd).Store(64)
			word(w[abi.SQLength:], 64)
		})(a, b)
		b.WantOK("a Send from the slab", 1, rdma.WCRecv)
		a.postRecv(7, 0, 100)
		b.Send(2, 0, 10)
		if e := a.Next(a.cq); e.Cookie != 7 || e.Status != 0 || e.SlabOff != 0 || e.SlabLen != 10 {
			t.Errorf("%+v", e)
		}
	})
}
