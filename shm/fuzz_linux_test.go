package shm

import (
	"bytes"
	"errors"
	"reflect"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzControlCodec: what can be decoded encodes to the same octets (as far as the struct goes), and
// is refused as too big exactly if something is there that is not known.
func FuzzControlCodec(f *testing.F) {
	for i, m := range messages {
		f.Add(uint8(i), AppendMessage(nil, Header{Op: OpList}, m)[HeaderLen:])
	}
	f.Add(uint8(4), []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		if len(body) > MaxMessage-HeaderLen {
			return
		}
		typ := reflect.TypeOf(messages[int(which)%len(messages)]).Elem()
		v := reflect.New(typ).Interface()
		err := Decode(body, v)
		size := int(typ.Size())
		unknown := len(body) > size && len(bytes.Trim(body[size:], "\x00")) > 0
		if unknown != errors.Is(err, syscall.E2BIG) || err != nil && !unknown {
			t.Fatalf("%v from %d octets, unknown %v: %v", typ, len(body), unknown, err)
		}
		if err != nil {
			return
		}
		h, again, err := ParseMessage(AppendMessage(nil, Header{Op: OpList, Seq: 5}, v))
		if err != nil || h.Seq != 5 {
			t.Fatalf("%v: %+v, %v", typ, h, err)
		}
		want := append(bytes.Clone(body), make([]byte, size)...)[:size]
		if !bytes.Equal(again, want) {
			t.Fatalf("%v: % x\nbecame % x", typ, want, again)
		}
		w := reflect.New(typ).Interface()
		if err := Decode(again, w); err != nil || !reflect.DeepEqual(v, w) {
			t.Fatalf("%v: %+v became %+v, %v", typ, v, w, err)
		}
	})
}

// FuzzControl: whatever a client sends after its HELLO, it gets one reply to each request or its
// session ends, and another client's rings work on.
func FuzzControl(f *testing.F) {
	add := func(msgs ...[]byte) {
		var b []byte
		for _, m := range msgs {
			b = append(append(b, byte(len(m)), byte(len(m)>>8)), m...)
		}
		f.Add(b, false)
		f.Add(b, true)
	}
	msg := func(op Op, body any) []byte { return AppendMessage(nil, Header{Op: op, Seq: 1}, body) }
	setup := [][]byte{
		msg(OpCtxOpen, &CtxOpenRequest{}), msg(OpAllocPD, &AllocPDRequest{Ctx: 1}), msg(OpCreateChan, &CreateChanRequest{Ctx: 1}),
		msg(OpCreateCQ, &CreateCQRequest{Ctx: 1, CQE: 5, Chan: 1}), msg(OpCreateQP, &CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1}),
		msg(OpAddMem, &AddMemRequest{}), msg(OpRegMR, &RegMRRequest{PD: 1, Mode: ModeShared, Mem: 1, Length: 4096}),
		msg(OpCMCreateChan, &EmptyReply{}), msg(OpCMCreateID, &CMCreateIDRequest{Chan: 1, PS: PSTCP}),
		msg(OpCMConnect, &CMConnectRequest{ID: 1, PD: 1, Param: ConnParam{QPN: 1}}), msg(OpCMDestroyID, &HandleRequest{Handle: 1}),
		msg(OpCMMigrate, &CMMigrateRequest{ID: 1, Chan: 1}), msg(OpCMInitQPAttr, &CMInitQPAttrRequest{ID: 1, State: StateInit}),
		msg(OpReregMR, &ReregMRRequest{MR: 1, Flags: ReregTranslation, New: RegMRRequest{Mode: ModeShared, Mem: 1, Length: 1}}),
		msg(OpAllocMR, &AllocMRRequest{PD: 1, MaxLen: 1}), msg(OpAllocMW, &AllocMWRequest{PD: 1, Type: 2}),
		msg(OpDeallocMW, &HandleRequest{Handle: 1}), msg(OpCreateSRQ, &CreateSRQRequest{PD: 1, MaxWR: 4, MaxSGE: 1}),
		msg(OpCreateQP, &CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1, SRQ: 1, Caps: QPCaps{TxSlab: 100}}),
		msg(OpModifySRQ, &ModifySRQRequest{SRQ: 1, Mask: ModifySRQLimit, Limit: 1}), msg(OpQuerySRQ, &HandleRequest{Handle: 1}),
		msg(OpDestroySRQ, &HandleRequest{Handle: 1}),
		msg(OpDestroyQP, &HandleRequest{Handle: 1}), msg(OpDestroyCQ, &HandleRequest{Handle: 1}),
	}
	add(setup...)
	for i := range setup {
		add(setup[i])
	}
	add(msg(OpList, &ListRequest{Kind: 6}), msg(OpStat, &ListRequest{Cursor: 1}), []byte{1, 2, 3}, nil)
	ts := newServer(f)
	other := ts.client().newQP()
	f.Fuzz(func(t *testing.T, script []byte, withFD bool) {
		c := rawConnect(t, ts.path).hello()
		defer c.close()
		mem := c.memfd(4096, unix.F_SEAL_SHRINK)
		for n := 0; len(script) >= 2 && n < 40; n++ {
			l := min(int(script[0])|int(script[1])<<8, len(script)-2, MaxMessage+1)
			m := script[2 : 2+l]
			script = script[2+l:]
			var fds []int
			if withFD && len(m) > 1 && (m[0] == byte(OpAddMem) || m[0] == byte(OpSetMem)) {
				fds = append(fds, mem)
			}
			if len(m) == 0 || c.sendRaw(m, fds...) != nil {
				break
			}
			h, _, got, ended := c.recv()
			if ended {
				break
			}
			for _, fd := range got { // many objects would need many descriptors
				unix.Close(fd)
			}
			c.own = c.own[:len(c.own)-len(got)]
			if int(h.Op) != int(m[0])|int(m[1])<<8 || h.Status > 0 {
				t.Fatalf("reply %+v to % x", h, m[:min(len(m), 16)])
			}
		}
		other.roundTrip(t, 1)
	})
}

// fuzzCaps are those of the fuzzed rings.
var fuzzCaps = QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 100, TxSlab: 256, RxSlab: 256}

// FuzzWQE: a send WQE of any content is refused, or what comes out lies within the QP's sizes and
// encodes to a slot that means the same; shared memory is not looked at again.
func FuzzWQE(f *testing.F) {
	slot := make([]byte, 192)
	for _, w := range []*SendWQE{{}, {Op: 4, NumSGE: 3, Length: 6, SGE: [MaxSGE]SGE{{1, 2, 3}, {2, 2, 3}, {3, 2, 3}}}, {Flags: SQInline, Length: 100}, {Flags: SQSlab, Length: 200, SlabOff: 56},
		{Op: 12, NumSGE: 1, Length: 8, SGE: [MaxSGE]SGE{{1, 8, 3}}, CmpMask: 1, SwapMask: 2}, {Op: 8, NumSGE: 1, CmpAdd: 9, Swap: 7}} {
		w.encode(slot)
		f.Add(slot)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, r := newTestQP(t, fuzzCaps)
		l := &r.Layout
		copy(m.mem[l.SQOff:l.SQOff+l.SQStride], b)
		wordAt(m.mem, QPSQProd).Store(1)
		wordAt(m.mem, QPTxSlabProd).Store(l.TxSlabSize)
		var w, v SendWQE
		ok, err := r.SQ.Next(&w)
		if ok != (err == nil) || err != nil && !IsViolation(err) {
			t.Fatalf("%v, %v", ok, err)
		}
		clear(m.mem[l.SQOff:])
		if ok {
			sum := uint64(0)
			for _, s := range w.SGEs() {
				sum += uint64(s.Length)
			}
			switch {
			case w.Flags&SQInline != 0:
				if len(w.Inline()) > int(l.MaxInline) {
					t.Fatalf("%d octets inline", len(w.Inline()))
				}
			case w.Flags&SQSlab != 0:
				if uint64(w.SlabOff)+uint64(w.Length) > uint64(l.TxSlabSize) {
					t.Fatalf("slab range %d of %d", w.SlabOff, w.Length)
				}
			default:
				if uint32(w.NumSGE) > l.SQMaxSGE() || sum != uint64(w.Length) || masked(w.Op) && w.NumSGE > 1 {
					t.Fatalf("%d SGEs of %d octets, length %d", w.NumSGE, sum, w.Length)
				}
			}
			s := make([]byte, l.SQStride)
			w.encode(s)
			if err := v.decode(s, l); err != nil || w != v {
				t.Fatalf("%+v became %+v, %v", w, v, err)
			}
		}

		copy(m.mem[l.RQOff:l.RQOff+l.RQStride], b)
		wordAt(m.mem, QPRQProd).Store(1)
		var rw, rv RecvWQE
		ok, err = r.RQ.Next(&rw)
		if ok != (err == nil) || err != nil && !IsViolation(err) || rw.NumSGE > l.RQMaxSGE() {
			t.Fatalf("receive: %v, %v, %d SGEs", ok, err, rw.NumSGE)
		}
		if ok {
			s := make([]byte, l.RQStride)
			rw.encode(s)
			if err := rv.decode(s, l); err != nil || rw != rv {
				t.Fatalf("%+v became %+v, %v", rw, rv, err)
			}
		}
	})
}

// FuzzRingIndices: a client that writes any index at any time makes the daemon take at most what the
// ring holds, or ends its session; no word of the daemon's is read back.
func FuzzRingIndices(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0})
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 2, 9, 0, 0, 0, 3, 1, 1, 1, 1})
	offs := []uint32{QPSQProd, QPRQProd, QPSQDone, QPRQHead, QPRQStarved, QPSQSize, QPSQStride, QPSQOff, QPRQOff,
		QPTxSlabProd, QPRxSlabCons, QPTxSlabCons, QPRxSlabProd}
	f.Add([]byte{9, 0, 1, 0, 0, 10, 64, 0, 0, 0, 0, 1, 0, 0, 0, 10, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		m, r := newTestQP(t, fuzzCaps)
		cqmem, chmem := make([]byte, CQMemSize(4)), make([]byte, ChannelMemSize)
		ch := NewChannelRing(chmem, 1, func() {}, nil)
		cq := NewCQRing(cqmem, 4, 1, ch, nil)
		var w SendWQE
		var rw RecvWQE
		l := NewSRQLayout(4, 3)
		smem := make([]byte, l.Size())
		srq := NewSRQRings(smem, l, 1, nil)
		for ; len(script) >= 5; script = script[5:] {
			v := ne.Uint32(script[1:])
			switch k := int(script[0]); {
			case k < len(offs):
				wordAt(m.mem, offs[k]).Store(v)
				wordAt(smem, offs[k]).Store(v)
			case k < len(offs)+3:
				wordAt(cqmem, []uint32{CQCons, CQArm, CQProd}[k-len(offs)]).Store(v)
			case k < len(offs)+5:
				wordAt(chmem, []uint32{ChanCons, ChanProd}[k-len(offs)-3]).Store(v)
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
			if got := wordAt(m.mem, QPSQDone).Load(); got != r.SQ.Done() {
				t.Fatalf("sq_done %d, want %d", got, r.SQ.Done())
			}
			if err := cq.Push(&CQE{}, true); err != nil && !IsViolation(err) && !errors.Is(err, ErrCQOverrun) {
				t.Fatal(err)
			}
		}
	})
}

// FuzzDoorbell: forged bells and a forged sleeping word cost looks and no more; a real bell is
// always answered, and the forger's own session lives.
func FuzzDoorbell(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 1, 2, 3})
	f.Add([]byte{1, 0, 0, 0, 1})
	ts := newServer(f)
	c := ts.client()
	q := c.newQP()
	id := uint64(0)
	f.Fuzz(func(t *testing.T, b []byte) {
		words := wordsAt(c.page, wordAt(c.page, SessBellOff).Load(), wordAt(c.page, SessBellWords).Load())
		for i := 0; i+4 <= len(b); i += 4 {
			words[i/4%len(words)].Or(ne.Uint32(b[i:]))
			if b[i]&1 != 0 {
				c.Ring()
			}
			if b[i]&2 != 0 {
				wordAt(c.page, SessSleeping).Store(uint32(b[i]))
			}
		}
		if len(b) > 4 && b[4]&1 != 0 {
			c.Ring()
		}
		// A forged "awake" can lose a ring of its own forger: ring the bell until it is heard.
		q.c.Arm(false)
		id++
		if err := q.m.SQ.Put(&SendWQE{WRID: id}); err != nil {
			t.Fatal(err)
		}
		q.m.SQ.Commit()
		q.ringer.Ring(q.bell)
		c.Ring()
		q.wantEvent(t)
		var e CQE
		if ok, err := q.c.Poll(&e); !ok || err != nil || e.WRID != id {
			t.Fatalf("%v, %v, %+v; want %d", ok, err, e, id)
		}
	})
}
