package integration

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/rdma"
)

// extended accepts a connection on which both ends know RFC 7306.
func (v *victim) extended() *rawpeer.Peer {
	v.t.Helper()
	p := v.accept(rdma.ConnParam{Extensions: true}, plain(16, 16))
	v.run(p, rtr())
	return p
}

// word is the host's number at off of v's memory, as it should be.
func (v *victim) word(off int) uint64 { return binary.NativeEndian.Uint64(v.image[off:]) }

func (v *victim) expectWord(off int, n uint64) { binary.NativeEndian.PutUint64(v.image[off:], n) }

func fetchAdd(m rdma.MR, off int64, id uint32, n uint64) rawpeer.Atomic {
	return rawpeer.Atomic{Op: rawpeer.FetchAdd, ID: id, STag: m.RKey(), TO: m.Addr() + uint64(off),
		Data: n, CmpMask: 1<<64 - 1}
}

// atomicVictim has a region with the right to atomics, and one without any offset that is a
// multiple of 8.
type atomicVictim struct {
	*victim
	cells, odd, foreignCells rdma.MR
}

func newAtomicVictim(t testing.TB, r *rig, recvs int) *atomicVictim {
	t.Helper()
	a := &atomicVictim{victim: newVictim(t, r, recvs)}
	const all = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
	b := a.buf.Bytes()
	a.cells = got[rdma.MR](t)(a.pd.RegisterMemory(b[atBig:atBig+4096], all))
	a.odd = got[rdma.MR](t)(a.pd.RegisterMemory(b[atBig+8195:atBig+8195+4096], all))
	a.foreignCells = got[rdma.MR](t)(a.other.RegisterMemory(b[atBig+16384:atBig+16384+64], all))
	return a
}

func (a *atomicVictim) close() {
	a.t.Helper()
	for _, m := range []rdma.MR{a.cells, a.odd, a.foreignCells} {
		if err := m.Close(); err != nil {
			a.t.Error(err)
		}
	}
	a.victim.close()
}

// What an end that knows RFC 7306 refuses of it. EXT-005, 006, 008, 011, 014, 019, 030, 040, 045,
// 046, 047, 048.
func TestRawExtensionLies(t *testing.T) {
	r := newRig(t)
	type row struct {
		name               string
		bad                func(a *atomicVictim) []seg // the last is refused
		layer, etype, code byte
		event              rdma.AsyncEventType
	}
	add := func(a *atomicVictim) rawpeer.Atomic { return fetchAdd(a.cells, 8, 7, 1) }
	atomic := func(f func(a *atomicVictim, q *rawpeer.Atomic)) func(a *atomicVictim) []seg {
		return func(a *atomicVictim) []seg {
			q := add(a)
			f(a, &q)
			return []seg{rawpeer.AtomicRequest(1, q)}
		}
	}
	request := func(f func(s seg) seg) func(a *atomicVictim) []seg {
		return func(a *atomicVictim) []seg { return []seg{f(rawpeer.AtomicRequest(1, add(a)))} }
	}
	fixed := func(s ...seg) func(*atomicVictim) []seg { return func(*atomicVictim) []seg { return s } }
	imm, resp := rawpeer.Immediate(1, octets(8, 1)), rawpeer.AtomicResponse(1, 0, 0)
	rows := []row{
		{"target never given", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.STag = unknownSTag(a.victim) ^ 0x4000_0000
		}), 0, 1, 0x00, access},
		{"target with another key", atomic(func(_ *atomicVictim, q *rawpeer.Atomic) { q.STag ^= 1 }), 0,
			1, 0x00, access},
		{"target gone", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.STag, q.TO = a.gone.RKey(), a.gone.Addr()
		}), 0, 1, 0x00, access},
		{"target of another PD", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.STag, q.TO = a.foreignCells.RKey(), a.foreignCells.Addr()
		}), 0, 1, 0x03, access},
		{"TO wraps", atomic(func(_ *atomicVictim, q *rawpeer.Atomic) { q.TO = 1<<64 - 8 }), 0, 1,
			0x04, access},
		{"no right to atomics", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.STag, q.TO = a.rw.RKey(), a.rw.Addr()
		}), 0, 1, 0x02, access},
		{"before the region", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.TO = a.cells.Addr() - 8
		}), 0, 1, 0x01, access},
		{"behind the region", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.TO = a.cells.Addr() + 4096
		}), 0, 1, 0x01, access},
		{"over the end", atomic(func(a *atomicVictim, q *rawpeer.Atomic) {
			q.TO = a.cells.Addr() + 4092
		}), 0, 1, 0x01, access},
		{"target not aligned", atomic(func(_ *atomicVictim, q *rawpeer.Atomic) { q.TO += 4 }), 0, 2,
			0x07, access},
		{"RV 0", request(func(s seg) seg { return s.RDMAPVersion(0) }), 0, 2, 0x05, fatal},
		{"DV 2", request(func(s seg) seg { return s.DDPVersion(2) }), 1, 2, 0x06, fatal},
		{"Atomic Request with T=1", request(func(s seg) seg { return s.FlipT() }), 0, 2, 0x06, fatal},
		{"Atomic Request on QN 0", request(func(s seg) seg { return s.QueueNumber(0) }), 0, 2,
			0x06, fatal},
		{"Atomic Request on QN 3", request(func(s seg) seg { return s.QueueNumber(3) }), 0, 2,
			0x06, fatal},
		{"Atomic Request on QN 4", request(func(s seg) seg { return s.QueueNumber(4) }), 1, 2,
			0x01, fatal},
		{"Atomic Request with MSN 2", request(func(s seg) seg { return s.Sequence(2) }), 1, 2,
			0x03, fatal},
		{"Atomic Request of 51 octets", request(func(s seg) seg { return s.Cut(18 + 51) }), 0, 2,
			0xff, fatal},
		{"Atomic Request of 53 octets", request(func(s seg) seg { return s.Longer(0) }), 0, 2,
			0xff, fatal},
		{"Atomic Request of 28 octets", request(func(s seg) seg { return s.Cut(18 + 28) }), 0, 2,
			0xff, fatal},
		{"Atomic Request of nothing", request(func(s seg) seg { return s.Cut(18) }), 0, 2, 0xff, fatal},
		{"Atomic Response for nothing", fixed(resp), 1, 2, 0x02, fatal},
		{"Atomic Response on QN 0", fixed(resp.QueueNumber(0)), 0, 2, 0x06, fatal},
		{"Atomic Response on QN 1", fixed(resp.QueueNumber(1)), 0, 2, 0x06, fatal},
		{"Atomic Response with T=1", fixed(resp.FlipT()), 0, 2, 0x06, fatal},
		{"Immediate Data on QN 1", fixed(imm.QueueNumber(1)), 0, 2, 0x06, fatal},
		{"Immediate Data on QN 3", fixed(imm.QueueNumber(3)), 0, 2, 0x06, fatal},
		{"Immediate Data with T=1", fixed(imm.FlipT()), 0, 2, 0x06, fatal},
		{"Immediate Data with SE and T=1", fixed(imm.Opcode(rawpeer.OpImmediateSE).FlipT()), 0, 2,
			0x06, fatal},
		{"Immediate Data with RV 3", fixed(imm.RDMAPVersion(3)), 0, 2, 0x05, fatal},
		{"Immediate Data with MSN 2", fixed(imm.Sequence(2)), 1, 2, 0x03, fatal},
		{"Immediate Data of 4 and 5", fixed(rawpeer.Immediate(1, octets(9, 1)).Split(4)[:2]...), 0, 2,
			0xff, fatal},
	}
	for _, op := range []uint32{1, 3, 0xf} {
		rows = append(rows, row{fmt.Sprintf("AOpCode %X", op),
			atomic(func(_ *atomicVictim, q *rawpeer.Atomic) { q.Op = op }), 0, 2, 0x06, fatal})
	}
	for _, n := range []int{0, 4, 7, 9, 16} {
		rows = append(rows, row{fmt.Sprintf("Immediate Data of %d octets", n),
			fixed(rawpeer.Immediate(1, octets(n, 1))), 0, 2, 0xff, fatal})
	}
	for op := byte(12); op < 16; op++ {
		rows = append(rows, row{fmt.Sprintf("opcode %X", op),
			fixed(rawpeer.Send(1, 0, octets(8, 1)).Opcode(op)), 0, 2, 0x06, fatal})
	}
	for _, tt := range rows {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			a := newAtomicVictim(t, r, 3)
			p := a.extended()
			bad := tt.bad(a)
			if tt.name == "Immediate Data of 4 and 5" {
				bad[1].Body, bad[1].DDP = octets(5, 1), bad[1].DDP|0x40
			}
			a.run(p, rawpeer.Put(bad...), rawpeer.WantTerminate(tt.layer, tt.etype, tt.code, ddp,
				bad[len(bad)-1]), rawpeer.WantFIN())
			p.Close()
			a.over(rdma.WCFlush, tt.event, false, tt.layer, tt.etype, tt.code)
			a.unharmed()
			r.by.moves(t)
			a.close()
		})
	}
}

// What an end that knows RFC 7306 does not look at, and what it answers. EXT-007, 012, 013, 015,
// 016, 018, 020, 021, 022, 024, 026, 028, 032, 035, 040.
func TestRawExtensions(t *testing.T) { newRig(t).both(t, rawExtensions) }

func rawExtensions(t *testing.T, r *rig) {
	a := newAtomicVictim(t, r, 8)
	p := a.extended()
	msn, resp := uint32(0), uint32(0)
	do := func(name string, q rawpeer.Atomic, old uint64, change func(s seg) []seg) {
		t.Helper()
		msn++
		resp++
		segs := []seg{rawpeer.AtomicRequest(msn, q)}
		if change != nil {
			segs = change(segs[0])
		}
		a.run(p, rawpeer.Step{Name: name, Do: func(p *rawpeer.Peer) error {
			return p.PutTogether(segs...)
		}}, rawpeer.Want(rawpeer.AtomicResponse(resp, q.ID, old)))
		a.unharmed()
	}
	cell := func(off int64, f func(q *rawpeer.Atomic)) rawpeer.Atomic {
		q := fetchAdd(a.cells, off, 1, 0)
		f(&q)
		return q
	}
	at := atBig
	old := a.word(at)
	do("a probe", fetchAdd(a.cells, 0, 0, 0), old, nil)
	a.expectWord(at, old+5)
	do("FetchAdd", fetchAdd(a.cells, 0, 0xffffffff, 5), old, nil)
	a.expectWord(at, old+10)
	do("the same identifier, reserved bits, Compare Data, a live STag in octets 2 to 5",
		cell(0, func(q *rawpeer.Atomic) {
			q.Op, q.ID, q.Data, q.Compare, q.CmpMask = 0xfffffff0|rawpeer.FetchAdd, 0xffffffff, 5, 99, 0
		}), old+5, func(s seg) []seg { return []seg{s.Reserved(a.rw.RKey())} })
	a.expectWord(at, old+11)
	do("in two segments", fetchAdd(a.cells, 0, 3, 1), old+10, func(s seg) []seg { return s.Split(32) })
	a.expectWord(at, old+12)
	do("octet by octet", fetchAdd(a.cells, 0, 3, 1), old+11, func(s seg) []seg { return s.Split(1) })
	// Fields that are added apart; section 5.1.1.
	a.expectWord(at, 0x00000000ffffffff)
	do("CmpSwap", cell(0, func(q *rawpeer.Atomic) {
		q.Op, q.Data, q.Mask, q.Compare, q.CmpMask = rawpeer.CmpSwap, 0x00000000ffffffff, 1<<64-1,
			old+12, 1<<64-1
	}), old+12, nil)
	a.expectWord(at, 0)
	do("FetchAdd of fields", cell(0, func(q *rawpeer.Atomic) { q.Data, q.Mask = 1, 0x80000000 }),
		0x00000000ffffffff, nil)
	do("CmpSwap that does not match", cell(0, func(q *rawpeer.Atomic) {
		q.Op, q.Data, q.Mask, q.Compare, q.CmpMask = rawpeer.CmpSwap, 7, 1<<64-1, 1, 1<<64-1
	}), 0, nil)
	a.expectWord(at, 0x0f00)
	do("CmpSwap of some bits, whatever they were", cell(0, func(q *rawpeer.Atomic) {
		q.Op, q.Data, q.Mask, q.Compare, q.CmpMask = rawpeer.CmpSwap, 0xffff, 0x0f00, 1234, 0
	}), 0, nil)
	do("CmpSwap that swaps nothing", cell(0, func(q *rawpeer.Atomic) {
		q.Op, q.Data, q.Mask, q.Compare, q.CmpMask = rawpeer.CmpSwap, 0xffff, 0, 0x0f00, 1<<64-1
	}), 0x0f00, nil)
	// The address decides, not TO: this region begins at 3 above a multiple of 8.
	odd := (8 - int64(a.odd.Addr())&7) & 7
	off := atBig + 8195 + int(odd)
	was := a.word(off)
	a.expectWord(off, was+1)
	do("in a region that begins anywhere", fetchAdd(a.odd, odd, 1, 1), was, nil)
	last := atBig + 4088
	was = a.word(last)
	a.expectWord(last, was-1)
	do("the last cell", fetchAdd(a.cells, 4088, 1, 1<<64-1), was, nil)

	// Reads and atomics in one burst, all that IRD allows: answered in order, with an MSN of their
	// own.
	var segs, want []seg
	n := a.word(at)
	for i := range uint64(16) {
		msn++
		if i%4 == 3 {
			segs = append(segs, rawpeer.Write(a.cells.RKey(), a.cells.Addr()+16, octets(8, byte(i))),
				rawpeer.ReadRequest(msn, readOf(a.cells, 16, 8)))
			want = append(want, rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, octets(8, byte(i))))
			a.expect(at+16, octets(8, byte(i)))
			continue
		}
		resp++
		segs = append(segs, rawpeer.AtomicRequest(msn, fetchAdd(a.cells, 0, uint32(i), 1)))
		want = append(want, rawpeer.AtomicResponse(resp, uint32(i), n))
		n++
	}
	a.expectWord(at, n)
	a.run(p, rawpeer.PutTogether(segs...))
	for i, s := range want {
		if s.Op() == rawpeer.OpReadResponse && i+4 < len(want) {
			// A later Write may be in it already: RFC 5040, section 5.5 (12).
			a.run(p, rawpeer.WantSeg("a Read Response", func(s seg) bool {
				return s.Op() == rawpeer.OpReadResponse && len(s.Body) == 8
			}))
			continue
		}
		a.run(p, rawpeer.Want(s))
	}
	a.unharmed()
	a.none("an atomic completes nothing here")

	// Immediate Data: in the completion, not in the receive; with Sends in one sequence.
	data := []byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4}
	a.run(p, rawpeer.PutTogether(rawpeer.Send(1, 0, octets(3, 1)), rawpeer.Immediate(2, data),
		rawpeer.Immediate(3, data).Opcode(rawpeer.OpImmediateSE).Reserved(a.rw.RKey())),
		rawpeer.Put(rawpeer.Immediate(4, data).Split(4)...),
		rawpeer.Put(rawpeer.Send(5, 0, octets(4, 2))))
	a.expect(atRecv, octets(3, 1))
	a.expect(atRecv+4*recvLen, octets(4, 2))
	for id := range uint64(5) {
		wc := a.want("Sends and Immediate Data", id+1, rdma.WCSuccess)
		a.recvs--
		if imm := id > 0 && id < 4; imm != (wc.Op == rdma.WCRecvImm) ||
			imm != (wc.Flags&rdma.WCWithImm != 0) || imm && (wc.Imm != 0xdeadbeef ||
			wc.ImmLow != 0x01020304) {
			t.Errorf("completion %+v", wc)
		}
	}
	a.unharmed()
	a.pong(p)
	p.Close()
	a.ended()
	a.close()
}

// What comes back for a program's own atomics: nothing but the right answer completes one. EXT-006,
// 011, 017, 020, 022, 029, 030, 049.
func TestRawAtomicResponses(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name               string
		answer             func(id uint32) []seg
		layer, etype, code byte
	}{
		{"right", func(id uint32) []seg {
			return []seg{rawpeer.AtomicResponse(1, id, 0x1122334455667788)}
		}, 0, 0, 0},
		{"right, in two segments", func(id uint32) []seg {
			return rawpeer.AtomicResponse(1, id, 0x1122334455667788).Split(5)
		}, 0, 0, 0},
		{"another identifier", func(id uint32) []seg { return []seg{rawpeer.AtomicResponse(1, id+1, 5)} },
			0, 2, 0xff},
		{"MSN 2", func(id uint32) []seg { return []seg{rawpeer.AtomicResponse(2, id, 5)} }, 1, 2, 0x03},
		{"MSN 0", func(id uint32) []seg { return []seg{rawpeer.AtomicResponse(0, id, 5)} }, 1, 2, 0x03},
		{"11 octets", func(id uint32) []seg {
			return []seg{rawpeer.AtomicResponse(1, id, 5).Cut(18 + 11)}
		}, 0, 2, 0xff},
		{"13 octets", func(id uint32) []seg { return []seg{rawpeer.AtomicResponse(1, id, 5).Longer(0)} },
			0, 2, 0xff},
		{"on QN 1", func(id uint32) []seg {
			return []seg{rawpeer.AtomicResponse(1, id, 5).QueueNumber(1)}
		}, 0, 2, 0x06},
		{"a Read Response", func(uint32) []seg { return []seg{rawpeer.ReadResponse(0, 0, octets(8, 1))} },
			0, 2, 0x06},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p, err := v.connect(rdma.ConnParam{Extensions: true}, rawpeer.PutStart(accepting(4, 4)),
				rawpeer.Want(rawpeer.Write(1, 0, nil)))
			if err != nil {
				t.Fatal(err)
			}
			v.heard(p)
			v.send(rdma.SendWR{ID: 60, Op: rdma.OpFetchAdd, SGEs: sge(v.local, 104, 8), RemoteAddr: 0x1230,
				RKey: 5, Atomic: rdma.AtomicArgs{CompareAdd: 9}})
			req := got[seg](t)(p.Next())
			id := uint32(0)
			if len(req.Body) == 52 {
				id = binary.BigEndian.Uint32(req.Body[4:])
			}
			v.run(p, rawpeer.Do("compare the request", func() error {
				want := rawpeer.AtomicRequest(1, rawpeer.Atomic{Op: rawpeer.FetchAdd, ID: id, STag: 5,
					TO: 0x1230, Data: 9, CmpMask: 1<<64 - 1})
				if string(want.ULPDU()) != string(req.ULPDU()) {
					return fmt.Errorf("got  %s\nwant %s", rawpeer.DumpSeg(req.ULPDU()),
						rawpeer.DumpSeg(want.ULPDU()))
				}
				return nil
			}), rawpeer.WantSilence(20*time.Millisecond))
			v.none("an atomic without its answer")
			bad := tt.answer(id)
			v.run(p, rawpeer.Put(bad...))
			if tt.layer == 0 && tt.etype == 0 {
				v.want("the atomic", 60, rdma.WCSuccess)
				v.expectWord(atLocal+104, 0x1122334455667788)
				v.unharmed()
				// A second answer is one for nothing.
				more := rawpeer.AtomicResponse(2, id, 1)
				v.run(p, rawpeer.Put(more), rawpeer.WantTerminate(1, 2, 0x02, ddp, more), rawpeer.WantFIN())
				p.Close()
				v.over(rdma.WCFlush, fatal, false, 1, 2, 0x02)
				v.unharmed()
				v.close()
				return
			}
			v.run(p, rawpeer.WantTerminate(tt.layer, tt.etype, tt.code, ddp, bad[len(bad)-1]),
				rawpeer.WantFIN())
			p.Close()
			v.ended()
			v.want("the atomic", 60, rdma.WCBadResp)
			v.over(rdma.WCFlush, fatal, false, tt.layer, tt.etype, tt.code)
			v.unharmed()
			v.close()
		})
	}
}
