package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/rdma"
)

// traffic moves data of all kinds between v and its peer, cut into DDP segments of at most n octets
// of payload, and checks every octet: Writes, Sends and Reads of the peer, and the victim's. put
// sends the peer's segments. The victim has receives 1 to 3; none of the peer's queues has been
// used.
func (v *victim) traffic(p *rawpeer.Peer, n int, put func(...seg) error) {
	v.t.Helper()
	const big = 40_000
	first, second, third := octets(big, 1), octets(recvLen, 2), octets(0, 0)
	fourth := octets(60, 4)
	var segs []seg
	segs = append(segs, rawpeer.Write(v.big.RKey(), v.big.Addr()+17, first).Split(n)...)
	segs = append(segs, rawpeer.Send(1, 0, second).Split(n)...)
	segs = append(segs, rawpeer.Send(2, 0, third))
	segs = append(segs, rawpeer.Send(3, 0, fourth).Opcode(rawpeer.OpSendSE).Split(n)...)
	segs = append(segs, rawpeer.ReadRequest(1, readOf(v.big, 17, big)).Split(max(n, 1))...)
	segs = append(segs, rawpeer.ReadRequest(2, readOf(v.rw, 0, 0)))
	v.run(p, rawpeer.Step{Name: "send data of all kinds", Do: func(*rawpeer.Peer) error {
		return put(segs...)
	}})
	v.run(p, rawpeer.WantMessage(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, first)),
		rawpeer.Want(rawpeer.ReadResponse(0xdeadbeef, 0x1122334455667788, nil)))
	for i, want := range [][]byte{second, third, fourth} {
		wc := v.want("a Send", uint64(i+1), rdma.WCSuccess)
		v.recvs--
		v.expect(atRecv+i*recvLen, want)
		if int(wc.ByteLen) != len(want) {
			v.t.Errorf("a Send of %d octets: %+v", len(want), wc)
		}
	}
	v.expect(atBig+17, first)
	v.unharmed()

	// The other way.
	out := octets(big, 9)
	copy(v.buf.Bytes()[atBig+100_000:], out)
	v.expect(atBig+100_000, out)
	from := sge(v.big, 100_000, big)
	v.send(rdma.SendWR{ID: 11, Op: rdma.OpWrite, SGEs: from, RemoteAddr: 1<<63 + 5, RKey: 0xabcdef01})
	v.send(rdma.SendWR{ID: 12, Op: rdma.OpSend, SGEs: from})
	v.send(rdma.SendWR{ID: 13, Op: rdma.OpRead, SGEs: sge(v.big, 200_000, big), RemoteAddr: 77,
		RKey: 0x77})
	v.run(p, rawpeer.WantMessage(rawpeer.Write(0xabcdef01, 1<<63+5, out)),
		rawpeer.WantMessage(rawpeer.Send(1, 0, out)))
	req := got[seg](v.t)(p.Next())
	read, ok := req.Read()
	if !ok || read.Size != big || read.SrcSTag != 0x77 || read.SrcTO != 77 {
		v.t.Fatalf("want a Read Request, got %s", rawpeer.DumpSeg(req.ULPDU()))
	}
	answer := octets(big, 33)
	v.run(p, rawpeer.Step{Name: "answer the Read", Do: func(*rawpeer.Peer) error {
		return put(rawpeer.ReadResponse(read.SinkSTag, read.SinkTO, answer).Split(n)...)
	}})
	for _, id := range []uint64{11, 12, 13} {
		v.want("the victim's requests", id, rdma.WCSuccess)
	}
	v.expect(atBig+200_000, answer)
	v.unharmed()
}

// The same messages however TCP cuts them, and however DDP does. DDP-008, 011, 028, 046, 047;
// MPA-046, 048, 101; RDMAP-127.
func TestRawSegmentation(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name     string
		ddp, tcp int // 0: as they come
	}{
		{"whole FPDUs", 1400, 0},
		{"7 octets in a TCP segment", 1400, 7},
		{"13 octets in a TCP segment", 333, 13},
		{"1447 octets in a TCP segment", 1400, 1447},
		{"4097 octets of data in an FPDU", 4097, 0},
		{"60000 octets of data in an FPDU", 60000, 0},
		{"60000 octets, 1000 in a TCP segment", 60000, 1000},
		{"an octet of data in an FPDU", 1, 0},
		{"5 octets of data in an FPDU", 5, 500},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 3)
			p := v.ready()
			put := p.PutTogether
			if tt.tcp != 0 {
				put = func(s ...seg) error { return p.PutCut(tt.tcp, s...) }
			}
			v.traffic(p, tt.ddp, put)
			v.leave(p)
		})
	}
	r.each(t, "one octet in a TCP segment", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 3)
		p := v.ready()
		data := octets(500, 1)
		v.run(p, rawpeer.PutCut(1, rawpeer.Write(v.rw.RKey(), v.rw.Addr(), data),
			rawpeer.Send(1, 0, data[:7])))
		v.want("the Send", 1, rdma.WCSuccess)
		v.recvs--
		v.expect(atRW, data)
		v.expect(atRecv, data[:7])
		v.alive(p, 2, 2)
		v.leave(p)
	})
	r.each(t, "at random", func(t *testing.T, r *rig) {
		rnd := rand.New(rand.NewPCG(7, 7))
		v := newVictim(t, r, 3)
		p := v.ready()
		v.traffic(p, 900, func(segs ...seg) error {
			var b []byte
			for _, s := range segs {
				b = p.Out.Append(b, s.ULPDU(), rawpeer.Lie{})
			}
			for len(b) > 0 {
				n := min(1+rnd.IntN(3000), len(b))
				if err := p.Write(b[:n]); err != nil {
					return err
				}
				b = b[n:]
			}
			return nil
		})
		v.leave(p)
	})
}

// Payloads of all lengths around the pad and the segment: the lengths are exact and no pad is
// placed. DDP-011; MPA-006, 012, 013, 014.
func TestRawLengths(t *testing.T) { newRig(t).both(t, rawLengths) }

func rawLengths(t *testing.T, r *rig) {
	v := newVictim(t, r, 0)
	p := v.ready()
	msn, id := uint32(0), uint64(0)
	for _, n := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1423, 1424, 1425, 1442, 64768 - 18,
		65535 - 18} {
		id, msn = id+1, msn+1
		v.post(id, 0, recvRoom)
		data := octets(n, byte(n))
		v.run(p, rawpeer.PutLie(rawpeer.Send(msn, 0, data), rawpeer.Lie{Pad: 0xff}))
		wc := v.want("a Send", id, rdma.WCSuccess)
		v.recvs--
		if int(wc.ByteLen) != n {
			t.Errorf("a Send of %d octets: %+v", n, wc)
		}
		v.expect(atRecv, data)
		v.unharmed()
	}
	for _, n := range []int{64768 - 14, 65535 - 14} {
		data := octets(n, byte(n))
		msn++
		id++
		v.post(id, 0, 0)
		v.run(p, rawpeer.Put(rawpeer.Write(v.big.RKey(), v.big.Addr(), data), rawpeer.Send(msn, 0, nil)))
		v.want("a Send", id, rdma.WCSuccess)
		v.recvs--
		v.expect(atBig, data)
		v.unharmed()
	}
	v.pong(p)
	v.leave(p)
}

// Markers and CRCs, in each direction apart, and data of all kinds with each choice. MPA-015, 019,
// 020, 021, 022, 023, 024, 031, 033, 038.
func TestRawMarkers(t *testing.T) {
	r := newRig(t)
	for _, in := range []bool{false, true} { // Markers in what the victim gets
		for _, out := range []bool{false, true} {
			for _, crc := range []bool{true, false} {
				for _, initiator := range []bool{false, true} {
					r.each(t, fmt.Sprintf("in %t out %t CRC %t initiator %t", in, out, crc, initiator),
						func(t *testing.T, r *rig) {
							v := newVictim(t, r, 3)
							cp := rdma.ConnParam{MPA: rdma.MPAParam{Markers: in}}
							flags := byte(rawpeer.FlagC)
							if !crc {
								cp.MPA.CRC, flags = rdma.CRCOff, 0
							}
							if out {
								flags |= rawpeer.FlagM
							}
							var p *rawpeer.Peer
							if initiator {
								reply := accepting(8, 8)
								reply.Flags = rawpeer.FlagS | flags
								var err error
								if p, err = v.connect(cp, rawpeer.PutStart(reply),
									rawpeer.Want(rawpeer.Write(1, 0, nil))); err != nil {
									t.Fatal(err)
								}
								// It is not silent; but the victim may have found it so.
								v.run(p, rawpeer.Put(rawpeer.Write(0, 0, nil)))
								p.Skip = func(s seg) bool { return s.Op() == rawpeer.OpWrite && len(s.Body) == 0 }
							} else {
								req := plain(8, 8)
								req.Flags = rawpeer.FlagS | flags
								p = v.accept(cp, req)
								v.run(p, rtr())
							}
							if p.In.CRC != crc || p.In.Markers != out || p.Out.Markers != in {
								t.Fatalf("agreed on CRC %t, Markers %t and %t", p.In.CRC, p.In.Markers, p.Out.Markers)
							}
							v.traffic(p, 1300, p.PutTogether)
							v.leave(p)
						})
				}
			}
		}
	}
}

// What is in a Marker: the reserved half and the low bits do not matter, the pointer does. MPA-016,
// 018, 091, 097.
func TestRawMarkerLies(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name string
		lie  func(i int, m uint32) uint32
		bad  bool
	}{
		{"reserved half", func(_ int, m uint32) uint32 { return m | 0xffff0000 }, false},
		{"low bits", func(_ int, m uint32) uint32 { return m | 3 }, false},
		{"4 more", func(i int, m uint32) uint32 { return m + 4 }, true},
		{"4 less", func(i int, m uint32) uint32 { return m - 4 }, true},
		{"zero within", func(int, uint32) uint32 { return 0 }, true},
		{"far away", func(int, uint32) uint32 { return 0xfffc }, true},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p := v.accept(rdma.ConnParam{MPA: rdma.MPAParam{Markers: true}}, plain(4, 4))
			v.run(p, rtr())
			data := octets(1000, 1)
			// From octet 24 on: Markers at 512 and 1024.
			v.run(p, rawpeer.PutLie(rawpeer.Write(v.rw.RKey(), v.rw.Addr(), data),
				rawpeer.Lie{Marker: tt.lie}))
			if tt.bad {
				v.run(p, rawpeer.WantTerminate(2, 0, 0x03, bare, seg{}), rawpeer.WantFIN())
				p.Close()
				v.over(rdma.WCFlush, fatal, false, 2, 0, 0x03)
				v.unharmed()
				v.close()
				return
			}
			v.expect(atRW, data)
			v.alive(p, 1, 1)
			v.leave(p)
		})
	}
}

// Without CRCs the field means nothing, and an FPDU counts only when all of it is there. MPA-032,
// 048.
func TestRawNoCRC(t *testing.T) { newRig(t).both(t, rawNoCRC) }

func rawNoCRC(t *testing.T, r *rig) {
	v := newVictim(t, r, 4)
	req := plain(4, 4)
	req.Flags &^= rawpeer.FlagC
	p := v.accept(rdma.ConnParam{MPA: rdma.MPAParam{CRC: rdma.CRCOff}}, req)
	set := func(crc uint32) rawpeer.Lie { return rawpeer.Lie{CRC: func(uint32) uint32 { return crc }} }
	v.run(p, rawpeer.PutLie(rawpeer.Write(0, 0, nil), set(0xffffffff)),
		rawpeer.PutLie(rawpeer.Send(1, 0, octets(5, 1)), set(0)),
		rawpeer.PutLie(rawpeer.Send(2, 0, octets(6, 2)), set(0x12345678)))
	for i := range 2 {
		v.want("a Send", uint64(i+1), rdma.WCSuccess)
		v.recvs--
		v.expect(atRecv+i*recvLen, octets(5+i, byte(i+1)))
	}
	whole := p.Out.Append(nil, rawpeer.Send(3, 0, octets(7, 3)).ULPDU(), rawpeer.Lie{})
	// the last octet of the CRC is missing
	v.run(p, rawpeer.PutOctets(whole[:len(whole)-1]), rawpeer.Put())
	v.pong(p) // the victim has had every chance to see it
	v.none("an FPDU without its last octet")
	v.run(p, rawpeer.PutOctets(whole[len(whole)-1:]))
	v.want("a Send", 3, rdma.WCSuccess)
	v.recvs--
	v.expect(atRecv+2*recvLen, octets(7, 3))
	v.unharmed()
	v.leave(p)
}

// ULPDU_Length says something else, so that the FPDU ends elsewhere. What is then taken for a CRC
// is none; nothing is placed. MPA-047, 090; DDP-042.
func TestRawLengthLies(t *testing.T) {
	r := newRig(t)
	for _, n := range []int{0, 1, 13, 18, 23, 27, 1000, 65535} {
		r.each(t, fmt.Sprint(n), func(t *testing.T, r *rig) {
			v := newVictim(t, r, 1)
			p := v.ready()
			s := rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(7, 1)) // 21 octets
			lie := rawpeer.Lie{Length: func(uint16) uint16 { return uint16(n) }}
			v.run(p, rawpeer.PutLie(s, lie), rawpeer.Put(rawpeer.Send(1, 0, make([]byte, 1000))))
			if n == 65535 { // it waits for more
				v.run(p, rawpeer.WantSilence(50*time.Millisecond), rawpeer.CloseWrite(), rawpeer.WantClosed())
				v.ended()
				v.flushed(rdma.WCFlush)
			} else {
				v.run(p, rawpeer.WantTerminate(2, 0, 0x02, bare, seg{}), rawpeer.WantFIN())
				p.Close()
				v.over(rdma.WCFlush, fatal, false, 2, 0, 0x02)
			}
			v.unharmed()
			v.close()
		})
	}
	r.each(t, "0 with its CRC", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 1)
		p := v.ready()
		v.run(p, rawpeer.PutOctets(p.Out.Append(nil, nil, rawpeer.Lie{})), rawpeer.WantTerminate(2, 0,
			0x03, bare, seg{}), rawpeer.WantFIN())
		p.Close()
		v.over(rdma.WCFlush, fatal, false, 2, 0, 0x03)
		v.close()
	})
	r.by.moves(t)
}

// Start frames and RTR, cut at every octet, and an FPDU of a Responder that comes with its Reply.
// MPA-055, 070, 075; M6; MPA-079.
func TestRawStartCuts(t *testing.T) { newRig(t).both(t, rawStartCuts) }

func rawStartCuts(t *testing.T, r *rig) {
	v := newVictim(t, r, 1)
	l := v.listen(1)
	p := got[*rawpeer.Peer](t)(r.host.Dial(t.Context(), l.Addr()))
	t.Cleanup(func() { p.Close() })
	req := rawpeer.Request(rawpeer.FlagC, octets(9, 1)...).Enhanced(rawpeer.WordA|1, rawpeer.WordC|1)
	for _, o := range req.Append(nil) {
		v.run(p, rawpeer.PutOctets([]byte{o}))
	}
	p.Sent = req
	cr := got[rdma.ConnRequest](t)(l.Next(t.Context()))
	if pd := cr.Param().PrivateData; !bytes.Equal(pd, octets(9, 1)) {
		t.Errorf("private data % x", pd)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		v.conn, err = cr.Accept(t.Context(), v.qp, rdma.ConnParam{})
		accepted <- err
	}()
	v.run(p, rawpeer.WantReply(rawpeer.FlagC|rawpeer.FlagS),
		rawpeer.PutCut(1, rawpeer.Write(0, 0, nil)))
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	v.alive(p, 1, 1)
	l.Close()
	v.leave(p)

	w := newVictim(t, r, 2)
	early := accepting(4, 4)
	f := rawpeer.Framer{CRC: true}
	early.Behind = f.Append(nil, rawpeer.Send(1, 0, octets(20, 1)).ULPDU(), rawpeer.Lie{})
	q, err := w.connect(rdma.ConnParam{}, rawpeer.Step{Name: "a Reply in pieces, an FPDU behind it",
		Do: func(q *rawpeer.Peer) error {
			q.Sent = early
			b := early.Append(nil)
			for _, o := range b[:15] {
				if err := q.Write([]byte{o}); err != nil {
					return err
				}
			}
			return q.Write(b[15:])
		}})
	if err != nil {
		t.Fatal(err)
	}
	q.In.CRC, q.Out = true, f
	w.run(q, rawpeer.Want(rawpeer.Write(1, 0, nil)))
	w.want("the early Send", 1, rdma.WCSuccess)
	w.recvs--
	w.expect(atRecv, octets(20, 1))
	w.unharmed()
	w.leave(q)
}

// FPDUs that come with the Reply, in one TCP segment with it or cut anywhere, with Markers and
// without: their stream begins behind the Reply, whatever its length. MPA-016, 050; M6.
func TestRawBehindReply(t *testing.T) {
	r := newRig(t)
	for _, markers := range []bool{false, true} {
		for _, crc := range []bool{true, false} {
			for _, private := range []int{0, 399} {
				for _, cut := range []int{-1, 600} { // octets behind the Reply that come with it
					r.each(t, fmt.Sprintf("Markers %t, CRC %t, private data %d, cut %d", markers, crc, private,
						cut), func(t *testing.T, r *rig) {
						v := newVictim(t, r, 2)
						reply := accepting(4, 4)
						reply.Data = append(reply.Data, octets(private, 5)...)
						cp := rdma.ConnParam{MPA: rdma.MPAParam{Markers: markers}}
						flags := byte(rawpeer.FlagS | rawpeer.FlagC | rawpeer.FlagM)
						if !crc {
							cp.MPA.CRC = rdma.CRCOff
							flags &^= rawpeer.FlagC
						}
						reply.Flags = flags
						data := octets(1200, 3)
						p, err := v.connect(cp, rawpeer.Step{Name: "a Reply, FPDUs behind it",
							Do: func(p *rawpeer.Peer) error {
								p.Agree(flags)
								b := reply.Append(nil)
								at := len(b)
								for _, s := range []seg{
									rawpeer.Write(v.big.RKey(), v.big.Addr(), data), rawpeer.Send(1, 0, octets(20, 1)),
								} {
									b = p.Out.Append(b, s.ULPDU(), rawpeer.Lie{})
								}
								if cut < 0 {
									return p.Write(b)
								}
								if err := p.Write(b[:at+cut]); err != nil {
									return err
								}
								return p.Write(b[at+cut:])
							}})
						if err != nil {
							t.Fatal(err)
						}
						if p.In.CRC != crc || p.Out.Markers != markers || !p.In.Markers {
							t.Fatalf("agreed on CRC %t, Markers %t and %t", p.In.CRC, p.In.Markers, p.Out.Markers)
						}
						v.run(p, rawpeer.Want(rawpeer.Write(1, 0, nil)))
						v.want("the early Send", 1, rdma.WCSuccess)
						v.recvs--
						v.expect(atBig, data)
						v.expect(atRecv, octets(20, 1))
						v.unharmed()
						v.alive(p, 2, 2)
						v.leave(p)
					})
				}
			}
		}
	}
}
