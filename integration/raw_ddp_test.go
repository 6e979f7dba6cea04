package integration

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

type seg = rawpeer.Seg

// A lie is a fault of a peer's: what the raw peer sends and what must come of it.
type lie struct {
	name string
	// what is before the last of these is right; the Terminate is about the last
	bad func(v *victim) []seg

	layer, etype, code byte
	copies             rawpeer.Copies
	silent             bool          // the stream ends without a Terminate
	status             rdma.WCStatus // of the first receive; 0: flushed
	event              rdma.AsyncEventType
	expect             func(v *victim) // what the right ones leave in memory
	took               int             // receives that complete well before
}

// liesOf are lies that need not know the victim.
func liesOf(rows []iwarp.Lie) (lies []lie) {
	for _, l := range rows {
		tt := lie{name: l.Name, bad: func(*victim) []seg { return l.Bad }, layer: l.Layer, etype: l.Type,
			code: l.Code, copies: l.Copies, silent: l.Silent, event: fatal}
		if l.Layer == 1 && l.Type == 1 && l.Code <= 0x03 {
			tt.event = access
		}
		if l.TooLong {
			tt.status = rdma.WCLocLen
		}
		if len(l.Bad) != 1 {
			panic("what comes before the lie may leave something in memory")
		}
		lies = append(lies, tt)
	}
	return lies
}

func one(f func(v *victim) seg) func(v *victim) []seg {
	return func(v *victim) []seg { return []seg{f(v)} }
}

// run has a peer of its own tell the lie and looks at all that must and must not follow: exactly
// one Terminate (or none), octet for octet, then a FIN and no RST; the completions and the event
// that docs/qp-states.md lists; no other octet of memory changed; bystanders who notice nothing.
func (tt *lie) run(t *testing.T, r *rig) {
	v := newVictim(t, r, 3)
	p := v.ready()
	bad := tt.bad(v)
	steps := []rawpeer.Step{rawpeer.Put(bad...)}
	if !tt.silent {
		steps = append(steps,
			rawpeer.WantTerminate(tt.layer, tt.etype, tt.code, tt.copies, bad[len(bad)-1]))
	}
	v.run(p, append(steps, rawpeer.WantFIN())...)
	p.Close()
	for range tt.took {
		v.recvs--
		if wc := v.wc("a receive before"); wc.Status != rdma.WCSuccess {
			t.Errorf("a receive before completed with %v", wc.Status)
		}
	}
	status := tt.status
	if status == 0 {
		status = rdma.WCFlush
	}
	v.over(status, tt.event, false, tt.layer, tt.etype, tt.code)
	if tt.expect != nil {
		tt.expect(v)
	}
	v.unharmed()
	r.by.moves(t)
	v.close()
}

func runLies(t *testing.T, lies []lie) {
	t.Helper()
	r := newRig(t)
	seen := map[string]bool{}
	for _, tt := range lies {
		if seen[tt.name] {
			t.Errorf("two rows %q", tt.name)
		}
		seen[tt.name] = true
		r.each(t, tt.name, tt.run)
	}
}

const (
	fatal  = rdma.EventQPFatal
	access = rdma.EventQPAccessErr

	ddp     = rawpeer.WithDDP
	ddpRead = rawpeer.WithRead
	bare    = rawpeer.Bare
)

// unknownSTag is one that nobody was given, whatever the source of STags does: v has eight of 2^32.
func unknownSTag(v *victim) uint32 {
	for stag := uint32(0x00c0ffee); ; stag += 0x100 {
		taken := false
		for _, m := range []rdma.MR{v.rw, v.ro, v.wo, v.foreign, v.local, v.recv, v.big} {
			taken = taken || m.RKey()>>8 == stag>>8
		}
		if !taken {
			return stag
		}
	}
}

func write(m func(v *victim) rdma.MR, delta int64, n int) func(v *victim) []seg {
	return one(func(v *victim) seg {
		mr := m(v)
		return rawpeer.Write(mr.RKey(), mr.Addr()+uint64(delta), octets(n, 3))
	})
}

func rw(v *victim) rdma.MR { return v.rw }

// Tagged segments that must not be placed. DDP-025, 042, 053, 083, 084, 085, 086, 087, 088, 089,
// 090; SEC-005, 010, 011, 013, 021.
func TestRawTagged(t *testing.T) {
	lies := []lie{
		{name: "STag that was never given",
			bad:   one(func(v *victim) seg { return rawpeer.Write(unknownSTag(v), 0, octets(32, 1)) }),
			layer: 1, etype: 1, code: 0x00, copies: ddp, event: access},
		{name: "STag with another key", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey()^1, v.rw.Addr(), octets(32, 1))
		}),
			layer: 1, etype: 1, code: 0x00, copies: ddp, event: access},
		{name: "STag of a region that is gone", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.gone.RKey(), v.gone.Addr(), octets(32, 1))
		}),
			layer: 1, etype: 1, code: 0x00, copies: ddp, event: access},
		{name: "STag of another PD", bad: write(func(v *victim) rdma.MR { return v.foreign }, 0, 8),
			layer: 1, etype: 1, code: 0x02, copies: ddp, event: access},
		{name: "read-only region", bad: write(func(v *victim) rdma.MR { return v.ro }, 0, 8),
			layer: 1, etype: 1, code: 0x00, copies: ddp, event: access},
		{name: "local region", bad: write(func(v *victim) rdma.MR { return v.local }, 0, 8),
			layer: 1, etype: 1, code: 0x00, copies: ddp, event: access},
		{name: "an octet before the region", bad: write(rw, -1, 8), layer: 1, etype: 1, code: 0x01,
			copies: ddp, event: access},
		{name: "behind the region", bad: write(rw, 4096, 1), layer: 1, etype: 1, code: 0x01, copies: ddp,
			event: access},
		{name: "an octet over its end", bad: write(rw, 4096-31, 32), layer: 1, etype: 1, code: 0x01,
			copies: ddp, event: access},
		{name: "longer than the region", bad: write(rw, 4095, 1400), layer: 1, etype: 1, code: 0x01,
			copies: ddp, event: access},
		{name: "TO wraps", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), 1<<64-4, octets(8, 1))
		}),
			layer: 1, etype: 1, code: 0x03, copies: ddp, event: access},
		{name: "TO ends at 2^64", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), 1<<64-8, octets(8, 1))
		}),
			layer: 1, etype: 1, code: 0x03, copies: ddp, event: access},
		{name: "TO far away", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr()+1<<32, octets(8, 1))
		}),
			layer: 1, etype: 1, code: 0x01, copies: ddp, event: access},
		{name: "second segment over the end", bad: func(v *victim) []seg {
			a := v.rw.Addr() + 4096 - 16
			return []seg{rawpeer.Write(v.rw.RKey(), a, octets(16, 5)).More(), rawpeer.Write(v.rw.RKey(),
				a+16, octets(1, 5))}
		}, layer: 1, etype: 1, code: 0x01, copies: ddp, event: access,
			expect: func(v *victim) { v.expect(atRW+4096-16, octets(16, 5)) }},
		{name: "first segment of a message over the end", bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr()+4095, octets(2, 5)).More()
		}), layer: 1, etype: 1, code: 0x01, copies: ddp, event: access},
	}
	for _, dv := range []byte{0, 2, 3} {
		lies = append(lies, lie{name: fmt.Sprint("DV ", dv), bad: one(func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(8, 1)).DDPVersion(dv)
		}), layer: 1, etype: 1, code: 0x04, copies: ddp, event: fatal})
	}
	runLies(t, append(lies, liesOf(iwarp.TaggedLies())...))
}

// Untagged segments that fit no receive. DDP-026, 054, 076, 080, 081, 082, 089, 090, 093;
// RDMAP-011, 065.
func TestRawUntagged(t *testing.T) {
	first := octets(40, 7) // of a Send in two segments
	placed := func(v *victim) { v.expect(atRecv, first) }
	twice := func(second seg) func(v *victim) []seg {
		return func(*victim) []seg { return []seg{rawpeer.Send(1, 0, first).More(), second} }
	}
	lies := []lie{
		{name: "MSN once more", bad: func(*victim) []seg {
			return []seg{rawpeer.Send(1, 0, first), rawpeer.Send(1, 0, first)}
		},
			layer: 1, etype: 2, code: 0x03, copies: ddp, event: fatal, took: 1, expect: placed},
		{name: "next MSN before L", bad: twice(rawpeer.Send(2, 40, octets(8, 1))), layer: 1, etype: 2,
			code: 0x03, copies: ddp, event: fatal, expect: placed},
		{name: "MO is the length of the receive",
			bad:   one(func(*victim) seg { return rawpeer.Send(1, recvLen, octets(8, 1)) }),
			layer: 1, etype: 2, code: 0x04, copies: ddp, event: fatal},
		{name: "gap", bad: twice(rawpeer.Send(1, 41, nil)), layer: 1, etype: 2, code: 0x04, copies: ddp,
			event: fatal, expect: placed},
		{name: "octets twice", bad: twice(rawpeer.Send(1, 39, octets(1, 0))), layer: 1, etype: 2,
			code: 0x04, copies: ddp, event: fatal,
			expect: placed},
		{name: "last segment is empty with a false MO", bad: twice(rawpeer.Send(1, 39, nil)), layer: 1,
			etype: 2, code: 0x04, copies: ddp, event: fatal, expect: placed},
		{name: "too long", bad: one(func(*victim) seg {
			return rawpeer.Send(1, 0, octets(recvLen+1, 1))
		}),
			layer: 1, etype: 2, code: 0x05, copies: ddp, event: fatal, status: rdma.WCLocLen},
		{name: "too long in two segments", bad: twice(rawpeer.Send(1, 40, octets(recvLen-39, 1))),
			layer: 1, etype: 2, code: 0x05, copies: ddp, event: fatal, status: rdma.WCLocLen,
			expect: placed},
	}
	for _, dv := range []byte{0, 2, 3} {
		lies = append(lies,
			lie{name: fmt.Sprint("DV ", dv, " in the second segment"),
				bad:   twice(rawpeer.Send(1, 40, octets(8, 1)).DDPVersion(dv)),
				layer: 1, etype: 2, code: 0x06, copies: ddp, event: fatal, expect: placed})
	}
	runLies(t, append(lies, liesOf(iwarp.UntaggedLies())...))
}

// What RDMAP refuses. RDMAP-005, 006, 021, 023, 027, 033, 034, 036, 037, 068, 105, 113, 117, 118;
// EXT-003: without an agreement on them, the messages of RFC 7306 are of unknown opcodes.
func TestRawRDMAP(t *testing.T) {
	var lies []lie
	add := func(name string, etype, code byte, bad func(v *victim) seg) {
		lies = append(lies, lie{name: name, bad: one(bad), layer: 0, etype: etype, code: code,
			copies: ddp, event: fatal})
	}
	for _, rv := range []byte{0, 2, 3} {
		add(fmt.Sprint("RV ", rv, ", tagged"), 2, 0x05, func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(8, 1)).RDMAPVersion(rv)
		})
	}
	for op := byte(8); op < 16; op++ {
		add(fmt.Sprintf("opcode %X, tagged", op), 2, 0x06, func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(8, 1)).Opcode(op)
		})
	}
	for op := byte(rawpeer.OpSend); op <= rawpeer.OpTerminate; op++ {
		add(fmt.Sprintf("opcode %X with T=1", op), 2, 0x06, func(v *victim) seg {
			return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(8, 1)).Opcode(op)
		})
	}
	add("Read Request with T=1", 2, 0x06, func(v *victim) seg {
		return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(8, 1)).Opcode(rawpeer.OpReadRequest)
	})
	add("Read Response for nothing", 2, 0x06,
		func(v *victim) seg { return rawpeer.ReadResponse(v.rw.RKey(), v.rw.Addr(), octets(8, 1)) })
	runLies(t, append(lies, liesOf(iwarp.RDMAPLies())...))
}

// readOf asks for n octets at off of a region, to be put at a place that the peer made up.
func readOf(m rdma.MR, off int64, n uint32) rawpeer.Read {
	return rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 0x1122334455667788, Size: n, SrcSTag: m.RKey(),
		SrcTO: m.Addr() + uint64(off)}
}

// Reads of what may not be read. RDMAP-032, 039, 055, 114, 120, 121, 122, 123, 124; SEC-005, 012,
// 019.
func TestRawReads(t *testing.T) {
	var lies []lie
	add := func(name string, code byte, read func(v *victim) rawpeer.Read) {
		lies = append(lies, lie{name: name, bad: one(func(v *victim) seg {
			return rawpeer.ReadRequest(1, read(v))
		}),
			layer: 0, etype: 1, code: code, copies: ddpRead, event: access})
	}
	with := func(r rawpeer.Read, f func(*rawpeer.Read)) rawpeer.Read { f(&r); return r }
	add("STag that was never given", 0x00, func(v *victim) rawpeer.Read {
		return with(readOf(v.rw, 0, 8), func(r *rawpeer.Read) { r.SrcSTag = unknownSTag(v) })
	})
	add("STag with another key", 0x00, func(v *victim) rawpeer.Read {
		return with(readOf(v.rw, 0, 8), func(r *rawpeer.Read) { r.SrcSTag ^= 0x80 })
	})
	add("STag of a region that is gone", 0x00,
		func(v *victim) rawpeer.Read { return readOf(v.gone, 0, 8) })
	add("STag of another PD", 0x03, func(v *victim) rawpeer.Read { return readOf(v.foreign, 0, 8) })
	add("write-only region", 0x02, func(v *victim) rawpeer.Read { return readOf(v.wo, 0, 8) })
	add("local region", 0x02, func(v *victim) rawpeer.Read { return readOf(v.local, 0, 8) })
	add("an octet before the region", 0x01, func(v *victim) rawpeer.Read {
		return readOf(v.rw, -1, 8)
	})
	add("an octet over its end", 0x01, func(v *victim) rawpeer.Read { return readOf(v.rw, 1, 4096) })
	add("behind the region", 0x01, func(v *victim) rawpeer.Read { return readOf(v.rw, 4096, 1) })
	add("2 GiB", 0x01, func(v *victim) rawpeer.Read { return readOf(v.rw, 0, 1<<31) })
	add("4 GiB - 1", 0x01, func(v *victim) rawpeer.Read { return readOf(v.rw, 0, 1<<32-1) })
	add("TO wraps", 0x04, func(v *victim) rawpeer.Read {
		return with(readOf(v.rw, 0, 32), func(r *rawpeer.Read) { r.SrcTO = 1<<64 - 16 })
	})
	add("TO ends at 2^64", 0x04, func(v *victim) rawpeer.Read {
		return with(readOf(v.rw, 0, 16), func(r *rawpeer.Read) { r.SrcTO = 1<<64 - 16 })
	})
	runLies(t, lies)
}

// Invalidations that are refused. RDMAP-073, 119; SEC-005. The region of the other PD is still good
// for its own stream.
func TestRawInvalidate(t *testing.T) {
	inv := func(stag func(v *victim) uint32) func(v *victim) []seg {
		return one(func(v *victim) seg { return rawpeer.SendInv(1, stag(v), octets(12, 2)) })
	}
	placed := func(v *victim) { v.expect(atRecv, octets(12, 2)) }
	runLies(t, []lie{
		{name: "STag that was never given", bad: inv(unknownSTag), layer: 0, etype: 2, code: 0x09,
			copies: ddp,
			event:  access, status: rdma.WCRemInvReq, expect: placed},
		{name: "STag with another key", bad: inv(func(v *victim) uint32 { return v.rw.RKey() ^ 2 }),
			layer: 0, etype: 2, code: 0x09, copies: ddp,
			event: access, status: rdma.WCRemInvReq, expect: placed},
		{name: "STag of a region that is gone", bad: inv(func(v *victim) uint32 { return v.gone.RKey() }),
			layer: 0, etype: 2, code: 0x09, copies: ddp,
			event: access, status: rdma.WCRemInvReq, expect: placed},
		{name: "STag of another PD", bad: inv(func(v *victim) uint32 { return v.foreign.RKey() }),
			layer: 0, etype: 1, code: 0x09, copies: ddp,
			event: access, status: rdma.WCRemInvReq, expect: func(v *victim) {
				placed(v)
				v.stillGood()
			}},
		{name: "STag of a region that only its owner may end", bad: inv(func(v *victim) uint32 {
			return v.rw.RKey()
		}), layer: 0, etype: 2, code: 0x09, copies: ddp,
			event: access, status: rdma.WCRemInvReq, expect: placed},
		{name: "STag 0", bad: inv(func(*victim) uint32 { return 0 }), layer: 0, etype: 2, code: 0x09,
			copies: ddp,
			event:  access, status: rdma.WCRemInvReq, expect: placed},
	})
}

// stillGood writes to the region of v's other PD, through a QP of that PD.
func (v *victim) stillGood() {
	v.t.Helper()
	w := &victim{end: newEnd(v.t, v.r.dev), r: v.r}
	w.qp.Close()
	w.qp = got[rdma.QP](v.t)(v.other.CreateQP(rdma.QPConfig{SendCQ: w.cq, RecvCQ: w.cq}))
	p := w.accept(rdma.ConnParam{}, plain(1, 1))
	data := octets(16, 8)
	w.run(p, rtr(), rawpeer.Put(rawpeer.Write(v.foreign.RKey(), v.foreign.Addr(), data),
		rawpeer.ReadRequest(1, readOf(v.foreign, 0, 16))),
		rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, data)))
	v.expect(atOther, data)
	p.Close()
	w.ended()
	for _, c := range []interface{ Close() error }{w.qp, w.cq, w.pd} {
		if err := c.Close(); err != nil {
			v.t.Error(err)
		}
	}
}

// What follows a bad segment is dropped, however good it is, and the first error is the one that is
// told. DDP-089, 091; RDMAP-079, 115; MPA-094.
func TestRawFirstError(t *testing.T) {
	r := newRig(t)
	for name, badFrame := range map[string]bool{"segment": false, "FPDU": true} {
		r.each(t, name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 3)
			p := v.ready()
			bad := rawpeer.Write(v.rw.RKey(), v.rw.Addr()+4090, octets(10, 1))
			good := rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(64, 9))
			worse := rawpeer.Send(9, 0, nil).DDPVersion(3)
			term := rawpeer.Terminate(1, 1, 0x01, ddp, bad)
			layer, etype, code, event := uint8(1), uint8(1), uint8(0x01), access
			var b []byte
			if badFrame {
				b = p.Out.Append(b, good.ULPDU(), rawpeer.Lie{CRC: func(c uint32) uint32 { return c ^ 1 }})
				term = rawpeer.Terminate(2, 0, 0x02, bare, bad)
				layer, etype, code, event = 2, 0, 0x02, fatal
			} else {
				b = p.Out.Append(b, bad.ULPDU(), rawpeer.Lie{})
			}
			for range 100 {
				b = p.Out.Append(b, good.ULPDU(), rawpeer.Lie{})
				b = p.Out.Append(b, rawpeer.Send(1, 0, octets(8, 1)).ULPDU(), rawpeer.Lie{})
				b = p.Out.Append(b, worse.ULPDU(), rawpeer.Lie{})
			}
			v.run(p, rawpeer.PutOctets(b), rawpeer.Want(term), rawpeer.WantFIN())
			p.Close()
			v.over(rdma.WCFlush, event, false, layer, etype, code)
			v.unharmed()
			r.by.moves(t)
			v.close()
		})
	}
}

// Any octet of an FPDU that is wrong is found, and nothing of it is placed or delivered. DDP-010;
// MPA-031, 037, 090, 097.
func TestRawBitErrors(t *testing.T) {
	r := newRig(t)
	frame := func(v *victim) []byte {
		f := rawpeer.Framer{CRC: true}
		return f.Append(nil, rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(5, 1)).ULPDU(), rawpeer.Lie{})
	}
	n := len(frame(newVictimOnce(t, r)))
	for i := 2; i < n; i++ { // behind the length field, which would make the FPDU another
		r.each(t, fmt.Sprint("octet ", i), func(t *testing.T, r *rig) {
			v := newVictim(t, r, 1)
			p := v.ready()
			b := frame(v)
			b[i] ^= 1 << (i % 8)
			v.run(p, rawpeer.PutOctets(b), rawpeer.WantTerminate(2, 0, 0x02, bare, seg{}), rawpeer.WantFIN())
			p.Close()
			v.over(rdma.WCFlush, fatal, false, 2, 0, 0x02)
			v.unharmed()
			v.close()
		})
	}
	r.by.moves(t)
}

// newVictimOnce makes a victim and takes it apart again, for its keys' sizes.
func newVictimOnce(t *testing.T, r *rig) *victim {
	v := newVictim(t, r, 0)
	t.Cleanup(v.close)
	return v
}
