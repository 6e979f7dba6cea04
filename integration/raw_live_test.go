package integration

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// Things that a peer may do and that few do: the connection goes on. DDP-023, 043, 048, 052, 053,
// 054; RDMAP-025, 026, 030, 048, 054, 056, 057, 070, 127; MPA-013; SEC-020.
func TestRawOddities(t *testing.T) {
	r := newRig(t)
	mine := rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 1<<64 - 1}
	for _, tt := range []struct {
		name   string
		send   func(v *victim) []seg
		answer func(v *victim) []seg
		lens   []int // of the Sends
		expect func(v *victim)
	}{
		{name: "empty Writes to nowhere", send: func(v *victim) (s []seg) {
			for _, stag := range []uint32{0, 0xffffffff, v.gone.RKey(), v.foreign.RKey(), v.ro.RKey()} {
				s = append(s, rawpeer.Write(stag, 1<<64-1, nil), rawpeer.Write(stag, 0, nil))
			}
			return s
		}},
		{name: "empty Reads from nowhere", send: func(v *victim) (s []seg) {
			for i, stag := range []uint32{0, 0xffffffff, v.gone.RKey(), v.foreign.RKey(), v.wo.RKey()} {
				q := mine
				q.SrcSTag, q.SrcTO = stag, 1<<64-1
				s = append(s, rawpeer.ReadRequest(uint32(i+1), q))
			}
			return s
		}, answer: func(*victim) (s []seg) {
			for range 5 {
				s = append(s, rawpeer.ReadResponse(0xdeadbeef, 1<<64-1, nil))
			}
			return s
		}},
		{name: "reserved bits of DDP", send: func(v *victim) (s []seg) {
			for i := range byte(16) {
				s = append(s, rawpeer.Write(v.rw.RKey(), v.rw.Addr()+uint64(i), octets(1, i)).DDPReserved(i))
			}
			return append(s, rawpeer.Send(1, 0, octets(3, 3)).DDPReserved(15))
		}, lens: []int{3}, expect: func(v *victim) {
			for i := range byte(16) {
				v.expect(atRW+int(i), octets(1, i))
			}
			v.expect(atRecv, octets(3, 3))
		}},
		{name: "reserved bits of RDMAP", send: func(v *victim) []seg {
			return []seg{rawpeer.Send(1, 0, nil).RDMAPReserved(3), rawpeer.Write(v.rw.RKey(), v.rw.Addr(),
				octets(9, 1)).RDMAPReserved(2),
				rawpeer.ReadRequest(1, readOf(v.ro, 5, 3)).RDMAPReserved(1)}
		}, lens: []int{0}, expect: func(v *victim) { v.expect(atRW, octets(9, 1)) },
			answer: func(v *victim) []seg {
				return []seg{rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO+5:atRO+8])}
			}},
		{name: "an STag where none belongs", send: func(v *victim) []seg {
			return []seg{rawpeer.Send(1, 0, nil).Reserved(v.rw.RKey()),
				rawpeer.ReadRequest(1, readOf(v.ro, 0, 1)).Reserved(v.rw.RKey()),
				rawpeer.Send(2, 0, nil).Opcode(rawpeer.OpSendSE).Reserved(0xaaaaaaaa),
				rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(4, 4))}
		}, lens: []int{0, 0}, expect: func(v *victim) { v.expect(atRW, octets(4, 4)) },
			answer: func(v *victim) []seg {
				return []seg{rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+1])}
			}},
		{name: "segments of a Send in any order", send: func(*victim) []seg {
			d := octets(90, 1)
			return []seg{rawpeer.Send(1, 40, d[40:60]).More(), rawpeer.Send(1, 0, d[:40]).More(),
				rawpeer.Send(1, 60, d[60:])}
		}, lens: []int{90}, expect: func(v *victim) { v.expect(atRecv, octets(90, 1)) }},
		{name: "segments of a Write in any order, some twice", send: func(v *victim) []seg {
			d, k, at := octets(90, 1), v.rw.RKey(), v.rw.Addr()
			return []seg{rawpeer.Write(k, at+40, d[40:60]).More(), rawpeer.Write(k, at, d[:41]).More(),
				rawpeer.Write(k, at+40, d[40:60]).More(), rawpeer.Write(k, at+60, d[60:])}
		}, expect: func(v *victim) { v.expect(atRW, octets(90, 1)) }},
		{name: "empty segments within messages", send: func(v *victim) []seg {
			return []seg{rawpeer.Send(1, 0, nil).More(), rawpeer.Send(1, 0, octets(4, 1)).More(),
				rawpeer.Send(1, 4, nil).More(), rawpeer.Send(1, 4, nil),
				rawpeer.Write(0, 0, nil).More(), rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(4, 2)).More(),
				rawpeer.Write(1, 1, nil)}
		}, lens: []int{4}, expect: func(v *victim) {
			v.expect(atRecv, octets(4, 1))
			v.expect(atRW, octets(4, 2))
		}},
		{name: "a Send that fills the receive", send: func(*victim) []seg {
			return []seg{rawpeer.Send(1, 0, octets(recvLen, 1))}
		},
			lens: []int{recvLen}, expect: func(v *victim) { v.expect(atRecv, octets(recvLen, 1)) }},
		{name: "the region to its ends", send: func(v *victim) []seg {
			k, at := v.wo.RKey(), v.wo.Addr()
			return []seg{rawpeer.Write(k, at, octets(1, 1)), rawpeer.Write(k, at+4095, octets(1, 2)),
				rawpeer.ReadRequest(1, readOf(v.ro, 4095, 1)), rawpeer.ReadRequest(2, readOf(v.ro, 0, 1))}
		}, expect: func(v *victim) { v.expect(atWO, octets(1, 1)); v.expect(atWO+4095, octets(1, 2)) },
			answer: func(v *victim) []seg {
				return []seg{rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO+4095:atRO+4096]),
					rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+1])}
			}},
		{name: "an octet a thousand times", send: func(v *victim) (s []seg) {
			for i := range 1000 {
				s = append(s, rawpeer.Write(v.rw.RKey(), v.rw.Addr()+9, octets(1, byte(i))))
			}
			return s
		}, expect: func(v *victim) { v.expect(atRW+9, octets(1, 999%256)) }},
		{name: "a Read Request in two segments", send: func(v *victim) []seg {
			return rawpeer.ReadRequest(1, readOf(v.ro, 0, 2)).Split(20)
		},
			answer: func(v *victim) []seg {
				return []seg{rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+2])}
			}},
		{name: "a Read Request octet by octet", send: func(v *victim) []seg {
			return rawpeer.ReadRequest(1, readOf(v.ro, 0, 2)).Split(1)
		},
			answer: func(v *victim) []seg {
				return []seg{rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+2])}
			}},
		{name: "a Send with SE", send: func(*victim) []seg {
			return []seg{rawpeer.Send(1, 0, octets(2, 1)).Opcode(rawpeer.OpSendSE)}
		},
			lens: []int{2}, expect: func(v *victim) { v.expect(atRecv, octets(2, 1)) }},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 4)
			p := v.ready()
			v.run(p, rawpeer.PutTogether(tt.send(v)...))
			if tt.answer != nil {
				for _, a := range tt.answer(v) {
					v.run(p, rawpeer.Want(a))
				}
			}
			for i, n := range tt.lens {
				wc := v.want("a Send", uint64(i+1), rdma.WCSuccess)
				v.recvs--
				if int(wc.ByteLen) != n {
					t.Errorf("a Send of %d octets: %+v", n, wc)
				}
			}
			if tt.expect != nil {
				tt.expect(v)
			}
			n := len(tt.lens) + 1
			v.alive(p, uint32(n), uint64(n))
			if !r.noEvent(v.qp.Num()) {
				t.Error("there was an event")
			}
			v.leave(p)
		})
	}
	r.by.moves(t)
}

// A message is delivered with its L segment and not before, and behind all that came before it.
// DDP-021; RDMAP-089, 091.
func TestRawUnfinished(t *testing.T) { newRig(t).both(t, rawUnfinished) }

func rawUnfinished(t *testing.T, r *rig) {
	v := newVictim(t, r, 3)
	p := v.ready()
	w := rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(30, 1)).Split(10)
	s := rawpeer.Send(1, 0, octets(30, 2)).Split(10)
	v.run(p, rawpeer.Put(s[0], s[1]))
	v.pong(p)
	v.none("a Send without its last segment")
	v.run(p, rawpeer.Put(s[2]))
	v.want("the Send", 1, rdma.WCSuccess)
	v.recvs--
	v.expect(atRecv, octets(30, 2))
	// A whole Send behind an unfinished Write, and a Read Request in the same place.
	v.run(p, rawpeer.Put(w[0], w[1], rawpeer.Send(2, 0, octets(5, 3))))
	v.send(rdma.SendWR{ID: 50, Op: rdma.OpSend})
	v.run(p, rawpeer.Want(rawpeer.Send(2, 0, nil)))
	v.want("the victim's Send", 50, rdma.WCSuccess)
	v.none("a Send behind an unfinished Write")
	v.run(p, rawpeer.Put(w[2]))
	v.want("the Send", 2, rdma.WCSuccess)
	v.recvs--
	v.expect(atRecv+recvLen, octets(5, 3))
	v.expect(atRW, octets(30, 1))
	v.unharmed()
	v.run(p, rawpeer.Put(w[0], w[1], rawpeer.ReadRequest(1, readOf(v.rw, 0, 30))),
		rawpeer.WantSilence(50*time.Millisecond),
		rawpeer.Put(rawpeer.Write(v.rw.RKey(), v.rw.Addr()+20, octets(10, 7))))
	v.expect(atRW+20, octets(10, 7))
	v.run(p, rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRW:atRW+30])))
	v.leave(p)
}

// Terminates of the peer in every form: the program learns the cause, what is posted flushes, and
// nothing is sent any more but the FIN. RDMAP-035, 075, 076, 078, 079, 080, 126; SEC-029.
func TestRawTerminated(t *testing.T) {
	r := newRig(t)
	for _, tt := range iwarp.Terminates() {
		r.each(t, tt.Name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p := v.ready()
			v.run(p, rawpeer.PutTogether(tt.Send...), rawpeer.WantFIN())
			p.Close()
			if tt.Name == "within a Send" {
				v.expect(atRecv, octets(5, 1))
			}
			v.over(rdma.WCFlush, v.terminatedEvent(tt.Layer, tt.Type, tt.Code), true, tt.Layer,
				tt.Type, tt.Code)
			v.unharmed()
			v.close()
		})
	}
	// Without any receive, and with requests that have not been answered.
	r.each(t, "no receive, Reads outstanding", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 0)
		p := v.connected(2, 2)
		for id := range uint64(4) {
			v.send(rdma.SendWR{ID: id, Op: rdma.OpRead, SGEs: sge(v.rw, int(id)*8, 8), RemoteAddr: id,
				RKey: 5})
		}
		req := got[seg](t)(p.Next())
		second := got[seg](t)(p.Next())
		read, _ := second.Read()
		v.run(p, rawpeer.Put(rawpeer.Terminate(0, 1, 0x02, ddpRead, second)), rawpeer.WantFIN())
		if first, _ := req.Read(); first.SrcTO != 0 || read.SrcTO != 1 {
			t.Errorf("the Read Requests are %+v and %+v", first, read)
		}
		p.Close()
		v.over(rdma.WCFlush, fatalAnd(v, 0, rdma.WCFlush, 1, rdma.WCRemAccess, 2, rdma.WCFlush, 3,
			rdma.WCFlush), true, 0, 1, 0x02)
		v.unharmed()
		v.close()
	})
	r.by.moves(t)
}

// terminatedEvent is the event for a Terminate of the peer.
func (v *victim) terminatedEvent(layer, etype, code byte) rdma.AsyncEventType {
	if layer == 1 && etype == 2 && code == 0x05 {
		return rdma.EventQPReqErr
	}
	return rdma.EventQPFatal
}

// fatalAnd takes the completions of requests, id and status in turn.
func fatalAnd(v *victim, pairs ...any) rdma.AsyncEventType {
	v.t.Helper()
	v.ended()
	for i := 0; i < len(pairs); i += 2 {
		v.want("a request", uint64(pairs[i].(int)), pairs[i+1].(rdma.WCStatus))
	}
	return rdma.EventQPFatal
}

// Terminates that are none. RDMAP-023, 077.
func TestRawBadTerminates(t *testing.T) {
	runLies(t, liesOf(iwarp.TerminateLies()))
}

// Answers to a Read that it did not ask for. RDMAP-049, 062, 068, 097; DDP-054.
func TestRawReadResponses(t *testing.T) {
	r := newRig(t)
	for _, tt := range iwarp.Answers() {
		r.each(t, tt.Name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p := v.connected(4, 4)
			v.send(rdma.SendWR{ID: 60, Op: rdma.OpRead, SGEs: sge(v.local, 100, iwarp.ReadSize),
				RemoteAddr: 0x1234, RKey: 5})
			v.send(rdma.SendWR{ID: 61, Op: rdma.OpSend})
			req := got[seg](t)(p.Next())
			read, ok := req.Read()
			if want := rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: read.SinkSTag, SinkTO: read.SinkTO,
				Size: iwarp.ReadSize, SrcSTag: 5, SrcTO: 0x1234}); !ok ||
				!bytes.Equal(req.ULPDU(), want.ULPDU()) {
				t.Fatalf("the Read Request is %s", rawpeer.DumpSeg(req.ULPDU()))
			}
			v.run(p, rawpeer.Want(rawpeer.Send(1, 0, nil)))
			v.none("a Read without an answer, and a Send behind it")
			bad := tt.Answer(read)
			// The answer is counted as octets of one message.
			v.expect(atLocal+100, octets(tt.Placed, 1))
			v.run(p, rawpeer.Put(bad...))
			if tt.Right() {
				v.want("the Read", 60, rdma.WCSuccess)
				v.want("the Send", 61, rdma.WCSuccess)
				v.pong(p)
				v.unharmed()
				v.leave(p)
				return
			}
			v.run(p, rawpeer.WantTerminate(tt.Layer, tt.Type, tt.Code, ddp, bad[len(bad)-1]),
				rawpeer.WantFIN())
			p.Close()
			v.ended()
			if tt.Name == "twice" {
				v.want("the Read", 60, rdma.WCSuccess)
				v.want("the Send", 61, rdma.WCSuccess)
			} else {
				v.want("the Read", 60, rdma.WCBadResp)
				v.want("the Send", 61, rdma.WCFlush) // it had gone out, and may not have been taken
			}
			v.over(rdma.WCFlush, fatal, false, tt.Layer, tt.Type, tt.Code)
			v.unharmed()
			v.close()
		})
	}
	r.by.moves(t)
}

// The number of Reads outstanding keeps to what was agreed, RTR included, and no more than the peer
// may ask for are served. EMPA-023; RDMAP-050, 059, 061, 098, 101; SEC-035.
func TestRawReadDepth(t *testing.T) {
	r := newRig(t)
	for _, depth := range []uint16{1, 2, 3, 5, 8} {
		r.each(t, fmt.Sprint(depth), func(t *testing.T, r *rig) {
			v := newVictim(t, r, 0)
			p := v.connected(depth, 4)
			const reads = 20
			for id := range uint64(reads) {
				v.send(rdma.SendWR{ID: id, Op: rdma.OpRead, SGEs: sge(v.rw, int(id)*8, 8), RemoteAddr: id,
					RKey: 5})
			}
			var open []rawpeer.Read
			next := func() {
				s := got[seg](t)(p.Next())
				read, ok := s.Read()
				if !ok {
					t.Fatalf("want a Read Request, got %s", rawpeer.DumpSeg(s.ULPDU()))
				}
				open = append(open, read)
			}
			for range depth {
				next()
			}
			v.run(p, rawpeer.WantSilence(30*time.Millisecond))
			for id := range uint64(reads) {
				v.run(p, rawpeer.Put(rawpeer.ReadResponse(open[id].SinkSTag, open[id].SinkTO,
					octets(8, byte(id)))))
				v.expect(atRW+int(id)*8, octets(8, byte(id)))
				v.want("a Read", id, rdma.WCSuccess)
				if int(id)+int(depth) < reads {
					next()
				}
			}
			v.unharmed()
			v.leave(p)
		})
	}
	r.each(t, "RTR counted", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 0)
		reply := rawpeer.Reply(rawpeer.FlagC).Enhanced(rawpeer.WordA|2, rawpeer.WordD|3)
		p, err := v.connect(rdma.ConnParam{IRD: 1}, rawpeer.PutStart(reply),
			rawpeer.Want(rawpeer.ReadRequest(1, rawpeer.Read{SrcSTag: 1})))
		if err != nil {
			t.Fatal(err)
		}
		v.heard(p)
		for id := range uint64(5) {
			v.send(rdma.SendWR{ID: id, Op: rdma.OpRead, SGEs: sge(v.rw, int(id)*8, 8), RemoteAddr: id,
				RKey: 5})
		}
		second := got[seg](t)(p.Next())
		v.run(p, rawpeer.WantSilence(30*time.Millisecond))
		if read, _ := second.Read(); second.MSN != 2 || read.SrcTO != 0 {
			t.Errorf("the second Read Request is %s", rawpeer.DumpSeg(second.ULPDU()))
		}
		// Three of ours at once, as the Reply's ORD says.
		var b []seg
		for i := range uint32(3) {
			b = append(b, rawpeer.ReadRequest(i+2, readOf(v.ro, int64(i), 4)))
		}
		v.run(p, rawpeer.PutTogether(b...))
		for i := range 3 {
			v.run(p, rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788,
				v.image[atRO+i:atRO+i+4])))
		}
		p.Close()
		v.ended()
		v.close()
	})
}

// More Reads at once than were agreed on end their own stream, and no other's; A5. RDMAP-102;
// SEC-036.
func TestRawReadOverrun(t *testing.T) {
	r := newRig(t)
	for _, depth := range []uint16{1, 2, 4, 8, 128} {
		r.each(t, fmt.Sprint(depth), func(t *testing.T, r *rig) {
			v := newVictim(t, r, 1)
			p := v.accept(rdma.ConnParam{IRD: depth}, plain(depth, depth))
			if ird, _, ok := p.Got.Words(); !ok || ird&0x3fff != depth {
				t.Fatalf("the Reply is %+v", p.Got)
			}
			v.run(p, rtr())
			// As many as were agreed on are served, twice.
			msn := uint32(0)
			ask := func(n int) (segs []seg) {
				for range n {
					msn++
					segs = append(segs, rawpeer.ReadRequest(msn, readOf(v.ro, int64(msn), 5)))
				}
				return segs
			}
			for range 2 {
				from := msn
				v.run(p, rawpeer.PutTogether(ask(int(depth))...))
				for i := range int(depth) {
					at := atRO + int(from) + i + 1
					v.run(p, rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[at:at+5])))
				}
			}
			if depth > 8 {
				v.leave(p)
				return // one more would not come in the same TCP segment
			}
			from := msn
			bad := ask(int(depth) + 1)
			steps := []rawpeer.Step{rawpeer.PutTogether(bad...)}
			for i := range int(depth) { // those that were agreed on are answered first: RDMAP-053
				at := atRO + int(from) + i + 1
				steps = append(steps,
					rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[at:at+5])))
			}
			v.run(p, append(steps, rawpeer.WantTerminate(1, 2, 0x02, ddp, bad[depth]),
				rawpeer.WantFIN())...)
			p.Close()
			v.over(rdma.WCFlush, fatal, false, 1, 2, 0x02)
			v.unharmed()
			v.close()
		})
	}
	r.by.moves(t)
}

// A peer that does not take the answers to its Reads holds up nobody else: its own Sends come
// through, and another stream is served to its full depth. DDP-002; RDMAP-096; SEC-034.
func TestRawBlockedAnswers(t *testing.T) {
	// what is not read stays there
	newRig(t, func(c *rawhost.Config) { c.ReceiveBuffer = 128 << 10 }).both(t, rawBlockedAnswers)
}

func rawBlockedAnswers(t *testing.T, r *rig) {
	// The answers are more than the victim's TCP keeps for a peer that does not read.
	const depth = 8
	v, w := newVictim(t, r, 1), newVictim(t, r, 2)
	p := v.accept(rdma.ConnParam{IRD: depth}, plain(depth, depth))
	q := w.accept(rdma.ConnParam{IRD: depth}, plain(depth, depth))
	v.run(p, rtr())
	w.run(q, rtr())
	for i := range uint32(depth) {
		v.run(p, rawpeer.Put(rawpeer.ReadRequest(i+1, readOf(v.big, 0, bigLen))))
	}
	v.run(p, rawpeer.Put(rawpeer.Send(1, 0, octets(4, 1))))
	v.want("a Send behind Reads that are not answered", 1, rdma.WCSuccess)
	v.recvs--
	v.expect(atRecv, octets(4, 1))
	v.unharmed()
	for i := range uint32(depth) {
		w.run(q, rawpeer.Put(rawpeer.ReadRequest(i+1, readOf(w.ro, int64(i), 100))))
	}
	for i := range depth {
		w.run(q, rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788,
			w.image[atRO+i:atRO+i+100])))
	}
	w.alive(q, 1, 1)
	r.by.moves(t)
	for range depth {
		v.run(p, rawpeer.WantMessage(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788,
			v.image[atBig:atBig+bigLen])))
	}
	v.leave(p)
	w.leave(q)
}

// A Send without a receive waits for one, for five seconds, and nobody else does; A29. DDP-044,
// 077, 079; RDMAP-070; SEC-029.
func TestRawNoReceive(t *testing.T) {
	r := newRig(t)
	family := 0
	next := func() *rig { // in turn: each takes some seconds
		family ^= 1
		return r.over(family)
	}
	t.Run("all", func(t *testing.T) { rawNoReceive(t, next) })
	r.by.moves(t)
}

func rawNoReceive(t *testing.T, next func() *rig) {
	for name, s := range map[string]seg{"Send": rawpeer.Send(1, 0, octets(9, 1)),
		"empty Send": rawpeer.Send(1, 0, nil), "half a Send": rawpeer.Send(1, 0, octets(9, 1)).More()} {
		t.Run(name, func(t *testing.T) {
			r := next()
			t.Parallel()
			v := newVictim(t, r, 0)
			p := v.ready()
			// A Read and a Write before it are served without any receive.
			v.run(p, rawpeer.Put(rawpeer.ReadRequest(1, readOf(v.ro, 0, 4)), rawpeer.Write(v.rw.RKey(),
				v.rw.Addr(), octets(4, 4))),
				rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+4])))
			v.expect(atRW, octets(4, 4))
			begin := time.Now()
			v.run(p, rawpeer.Put(s, rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(4, 8))),
				rawpeer.WantTerminate(1, 2, 0x02, ddp, s), rawpeer.WantFIN())
			if d := time.Since(begin); d < 4900*time.Millisecond || d > 5*time.Second+atOnce {
				t.Errorf("the Terminate came after %v, want 5 s", d)
			}
			p.Close()
			v.over(rdma.WCFlush, fatal, false, 1, 2, 0x02)
			v.unharmed() // what is behind the Send was not placed
			v.close()
		})
	}
	t.Run("a receive in time", func(t *testing.T) {
		r := next()
		t.Parallel()
		v := newVictim(t, r, 0)
		p := v.ready()
		v.run(p, rawpeer.PutTogether(rawpeer.Send(1, 0, octets(9, 1)), rawpeer.Write(v.rw.RKey(),
			v.rw.Addr(), octets(4, 8)), rawpeer.Send(2, 0, octets(8, 2))))
		v.run(p, rawpeer.WantSilence(time.Second))
		v.unharmed()
		v.post(1, 0, recvLen)
		v.want("the Send", 1, rdma.WCSuccess)
		v.post(2, recvLen, recvLen)
		v.want("the second Send", 2, rdma.WCSuccess)
		v.recvs -= 2
		v.expect(atRecv, octets(9, 1))
		v.expect(atRecv+recvLen, octets(8, 2))
		v.expect(atRW, octets(4, 8))
		v.post(3, 2*recvLen, recvLen)
		v.alive(p, 3, 3)
		v.leave(p)
	})
	// The end of the connection does not wait with the Send, and has the cause that it has.
	for name, end := range map[string]func(v *victim, p *rawpeer.Peer){
		"a FIN meanwhile": func(v *victim, p *rawpeer.Peer) {
			v.run(p, rawpeer.CloseWrite(), rawpeer.WantFIN())
			v.ended()
			if errors.As(v.conn.Err(), new(*rdma.TerminateError)) {
				v.t.Errorf("the end is %v", v.conn.Err())
			}
		},
		"a RST meanwhile": func(v *victim, p *rawpeer.Peer) {
			v.run(p, rawpeer.Reset())
			v.ended()
			if !errors.Is(v.conn.Err(), syscall.ECONNRESET) {
				v.t.Errorf("the end is %v", v.conn.Err())
			}
		},
		"a Terminate meanwhile": func(v *victim, p *rawpeer.Peer) {
			v.run(p, rawpeer.Put(rawpeer.Terminate(1, 2, 0x05, bare, seg{})), rawpeer.WantFIN())
			v.over(rdma.WCFlush, rdma.EventQPReqErr, true, 1, 2, 0x05)
			p.Close()
		},
		"a disconnect meanwhile": func(v *victim, p *rawpeer.Peer) {
			if err := v.conn.Disconnect(); err != nil {
				v.t.Fatal(err)
			}
			v.run(p, rawpeer.WantFIN(), rawpeer.CloseWrite())
			v.ended()
			if err := v.conn.Err(); err != nil {
				v.t.Errorf("the end is %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := next()
			t.Parallel()
			v := newVictim(t, r, 0)
			p := v.ready()
			// They come in one TCP segment with a Read, whose answer says that they are there: behind
			// a disconnect of the victim's they would be the peer's fault (Q14).
			v.run(p, rawpeer.PutTogether(rawpeer.ReadRequest(1, readOf(v.ro, 0, 4)),
				rawpeer.Send(1, 0, octets(9, 1)), rawpeer.Send(2, 0, octets(9, 1))),
				rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, v.image[atRO:atRO+4])))
			within(t, atOnce, func() { end(v, p) })
			v.none("nothing was posted")
			v.close()
		})
	}
}

// How a peer can go: each end is seen as what it is. DDP-013, 069, 071; MPA-088, 089; RDMAP-007,
// 104.
func TestRawEndings(t *testing.T) {
	r := newRig(t)
	half := func(v *victim) []seg {
		return rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(30, 1)).Split(15)[:1]
	}
	cut := func(p *rawpeer.Peer) []byte {
		return p.Out.Append(nil, rawpeer.Send(1, 0, octets(9, 1)).ULPDU(), rawpeer.Lie{})[:11]
	}
	for _, tt := range []struct {
		name     string
		do       func(v *victim, p *rawpeer.Peer) []rawpeer.Step
		graceful bool
	}{
		{"FIN", func(*victim, *rawpeer.Peer) []rawpeer.Step {
			return []rawpeer.Step{rawpeer.CloseWrite(), rawpeer.WantFIN()}
		}, true},
		{"RST", func(*victim, *rawpeer.Peer) []rawpeer.Step { return []rawpeer.Step{rawpeer.Reset()} },
			false},
		{"FIN in an FPDU", func(_ *victim, p *rawpeer.Peer) []rawpeer.Step {
			return []rawpeer.Step{rawpeer.PutOctets(cut(p)), rawpeer.CloseWrite(), rawpeer.WantClosed()}
		}, false},
		{"FIN in a message", func(v *victim, p *rawpeer.Peer) []rawpeer.Step {
			v.expect(atRW, octets(15, 1))
			return []rawpeer.Step{rawpeer.Put(half(v)...), rawpeer.CloseWrite(), rawpeer.WantClosed()}
		}, false},
		{"RST in a message", func(v *victim, p *rawpeer.Peer) []rawpeer.Step {
			v.expect(atRW, octets(15, 1))
			return []rawpeer.Step{rawpeer.Put(half(v)...),
				rawpeer.Put(rawpeer.ReadRequest(1, readOf(v.ro, 0, 0))),
				rawpeer.WantSilence(20 * time.Millisecond), rawpeer.Reset()}
		}, false},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p := v.ready()
			v.run(p, tt.do(v, p)...)
			v.ended()
			if err := v.conn.Err(); (err == nil) != tt.graceful {
				t.Errorf("the connection ended with %v, graceful %t", err, tt.graceful)
			}
			var term *rdma.TerminateError
			if errors.As(v.conn.Err(), &term) {
				t.Errorf("the end is %v", term)
			}
			v.flushed(rdma.WCFlush)
			v.unharmed()
			v.close()
		})
	}
	// The program's own end: what was posted goes out first, then a FIN.
	r.each(t, "Disconnect", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 1)
		p := v.ready()
		for id := range uint64(100) {
			v.send(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Inline, Inline: octets(9, byte(id))})
		}
		if err := v.conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for id := range uint32(100) {
			v.run(p, rawpeer.Want(rawpeer.Send(id+1, 0, octets(9, byte(id)))))
		}
		v.run(p, rawpeer.WantFIN(), rawpeer.CloseWrite())
		v.ended()
		if err := v.conn.Err(); err != nil {
			t.Errorf("a graceful end: %v", err)
		}
		n := map[rdma.WCStatus]int{}
		for range 101 {
			n[v.wc("all that was posted").Status]++
		}
		if v.recvs--; n[rdma.WCSuccess] != 100 || n[rdma.WCFlush] != 1 {
			t.Errorf("completions by status: %v", n)
		}
		v.close()
	})
	r.by.moves(t)
}
