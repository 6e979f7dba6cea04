package vnic_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rawRoCE is the peer of x's QP: it sends what it is told, and keeps the answers.
type rawRoCE struct {
	t     *testing.T
	x     *vnictest.Peer
	route vnic.RoCERoute
	next  [][]byte
	got   []packet.Header
	ttl   []uint8    // hop limits of all that came
	psn   packet.PSN // of the next request that is right
	// comes, if not nil, is called for each packet of the device's, within its Send
	comes func(h *packet.Header)
}

var (
	xAddr    = netip.MustParseAddr("10.0.0.1")
	rawAddr  = netip.MustParseAddr("10.0.0.2")
	elseAddr = netip.MustParseAddr("10.0.0.9")
)

// newRawRoCE is a QP of type RC that is connected to a rawRoCE.
func newRawRoCE(t *testing.T) *rawRoCE {
	n := vnictest.NewNet()
	d := n.Device(t, "rocep0", []string{"10.0.0.1/24", "fd00::1/64"}, vnictest.RoCE)
	r := &rawRoCE{t: t, psn: 0x1000}
	r.x = vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.PeerConfig{})
	port, err := n.Host(rawAddr, elseAddr).OpenRoCE([]netip.Addr{rawAddr, elseAddr}, r)
	if err != nil {
		t.Fatal(err)
	}
	if r.route, err = port.Route(t.Context(), rawAddr, xAddr); err != nil {
		t.Fatal(err)
	}
	return r
}

// attrs are those of x's connection to r.
func (r *rawRoCE) attrs() rdma.QPAttr {
	return rdma.QPAttr{
		Port: 1, Access: vnictest.Full, PathMTU: rdma.MTU1024,
		DestQPN: 0x77, RQPSN: 0x1000, SQPSN: 0x2000,
		Path:        rdma.AHAttr{GID: rdma.GIDOf(rawAddr), GIDIndex: 1, Port: 1, Global: true},
		MaxDestRead: 4, MaxRead: 4, MinRNRTimer: 1, RetryCount: 3, RNRRetry: 7,
	}
}

func (r *rawRoCE) ReceiveRoCE(p *vnic.RoCEPacket) {
	var h packet.Header
	if _, err := h.Parse(p.Datagram); err != nil || !p.Valid() {
		r.t.Errorf("the device sends a packet that is none: %v", err)
	}
	r.got = append(r.got, h)
	r.ttl = append(r.ttl, p.HopLimit())
	if r.comes != nil {
		r.comes(&h)
	}
}

// NextPacket implements vnic.RoCESource.
func (r *rawRoCE) NextPacket(b []byte) ([]byte, bool) {
	if len(r.next) == 0 {
		return nil, false
	}
	b = append(b, r.next[0]...)
	r.next = r.next[1:]
	return b, true
}

// make makes a packet of h and payload; change, if not nil, has all from the IP header on before
// the ICRC is computed.
func (r *rawRoCE) make(src netip.Addr, h packet.Header, payload []byte,
	change func([]byte) []byte) []byte {
	t := udp.NewTemplate(udp.Flow{Src: src, Dst: xAddr, SrcPort: 5555})
	h.Pad = packet.PadOf(len(payload))
	b := append(h.Append(t.Append(nil)), payload...)
	b = append(b, make([]byte, h.Pad)...)
	if change != nil {
		b = change(b)
	}
	return t.Finish(b)
}

// send sends packets and returns what the device says to them.
func (r *rawRoCE) send(ips ...[]byte) []packet.Header {
	r.t.Helper()
	r.got, r.next = nil, ips
	if err := r.route.Send(r); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	return r.got
}

// write is a Write of one octet that is right, to offset 0.
func (r *rawRoCE) write() packet.Header {
	return packet.Header{Opcode: packet.WriteOnly, PKey: packet.DefaultPKey, AckReq: true,
		Dest: packet.QPN(r.x.QP.Num()), PSN: r.psn, Addr: r.x.MR.Addr(), RKey: r.x.MR.RKey(), DMA: 1}
}

// What is late of a connection that the queue pairs had before does not establish this one, nor
// does what is no request of theirs, whatever its PSN. ROCE-164.
func TestLatePacketsEstablishNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRawRoCE(t)
		a := r.attrs()
		r.x.Move(rdma.QPInit, a, vnictest.ToInit)
		r.x.Move(rdma.QPRTR, a, vnictest.ToRTR)
		late := r.write()
		late.PSN = r.psn - 500
		r.send(r.make(rawAddr, late, []byte{1}, nil))
		late.PSN = r.psn.Add(500)
		r.send(r.make(rawAddr, late, []byte{1}, nil))
		r.send(r.make(rawAddr, packet.Header{Opcode: packet.Acknowledge, PKey: packet.DefaultPKey,
			Dest: late.Dest, PSN: r.psn}, nil, nil))
		for _, op := range []packet.Opcode{packet.CNP, packet.SendOnly.Of(packet.UC)} {
			r.send(r.make(rawAddr, packet.Header{Opcode: op, PKey: packet.DefaultPKey, Dest: late.Dest,
				PSN: r.psn}, nil, nil))
		}
		wantEvents(t, r.x, "late packets")
		r.wantClean("late packets")
		wantEvents(t, r.x, "the first request", rdma.EventCommEst)
	})
}

// wantClean says that x's QP goes on as if nothing had been.
func (r *rawRoCE) wantClean(why string) {
	r.t.Helper()
	got := r.send(r.make(rawAddr, r.write(), []byte{1}, nil))
	if len(got) != 1 || got[0].Opcode != packet.Acknowledge || !got[0].Syndrome.IsACK() ||
		got[0].PSN != r.psn || got[0].Dest != 0x77 {
		r.t.Fatalf("%s: afterwards a Write is answered by %v", why, got)
	}
	r.psn = r.psn.Add(1)
}

// inBubble runs f with a rawRoCE and a QP in RTS.
func inBubble(t *testing.T, f func(t *testing.T, r *rawRoCE)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRawRoCE(t)
		r.x.ToRTS(r.attrs())
		f(t, r)
	})
}

// ROCE-002, ROCE-013, ROCE-014, ROCE-017 to 021, ROCE-033, ROCE-036, ROCE-199, ROCE-217, ROCE-219:
// packets that are not for the QP, or are none, have no answer and change nothing.
func TestPacketsDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rawRoCE) {
		silent := func(why string, ip []byte) {
			t.Helper()
			if got := r.send(ip); len(got) != 0 {
				t.Errorf("%s: answered by %v", why, got)
			}
			if r.x.Buf[0] == 9 {
				t.Errorf("%s: was written", why)
			}
			r.wantClean(why)
		}
		with := func(f func(*packet.Header)) []byte {
			h := r.write()
			f(&h)
			return r.make(rawAddr, h, []byte{9}, nil)
		}
		nine := []byte{9}
		silent("from another address", r.make(elseAddr, r.write(), nine, nil))
		for _, n := range []packet.QPN{0, 2, 0xfffffe, 0xffffff, packet.QPN(r.x.QP.Num() ^ 1)} {
			silent("another QPN", with(func(h *packet.Header) { h.Dest = n }))
		}
		for _, k := range []uint16{0, 0x8001, 0x7ffe} {
			silent("another P_Key", with(func(h *packet.Header) { h.PKey = k }))
		}
		if n := r.x.Ctx.Device().DevInfo().Packets.WrongPKey; n != 3 {
			t.Errorf("%d packets of another partition were counted, want 3", n)
		}
		silent("UC", with(func(h *packet.Header) { h.Opcode = packet.WriteOnly.Of(packet.UC) }))
		silent("UD", with(func(h *packet.Header) { h.Opcode = packet.SendOnly.Of(packet.UD) }))
		silent("a CNP", with(func(h *packet.Header) { h.Opcode = packet.CNP }))
		bth := udp.IPv4Len + udp.HeaderLen
		for _, v := range []byte{1, 15} {
			silent("another version", r.make(rawAddr, r.write(), nine, func(b []byte) []byte {
				b[bth+1] |= v
				return b
			}))
		}
		for _, op := range []byte{0x15, 0x18, 0x1f, 0xa0, 0xff} {
			silent("a reserved opcode", r.make(rawAddr, r.write(), nine, func(b []byte) []byte {
				b[bth] = op
				return b
			}))
		}
		for _, bit := range []int{0, 100, 8 * (bth + 9), 8 * (bth + 28)} { // IP, BTH, payload
			bad := r.make(rawAddr, r.write(), nine, nil)
			bad[len(bad)-1-bit/8%4] ^= 1 << (bit % 8)
			silent("a wrong ICRC", bad)
		}
		ahead := r.write()
		ahead.PSN = ahead.PSN.Add(5)
		bad := r.make(rawAddr, ahead, nine, nil)
		bad[len(bad)-1] ^= 0xff
		silent("a wrong ICRC, and a gap", bad)
		full := len(r.make(rawAddr, r.write(), nil, nil)) - packet.ICRCLen
		for n := bth; n < full; n++ {
			silent("headers that are cut", r.make(rawAddr, r.write(), nil, func(b []byte) []byte {
				return b[:max(n, bth+packet.BTHLen)]
			}))
		}
		limited := r.write()
		limited.PKey = 0x7fff
		if got := r.send(r.make(rawAddr, limited, []byte{1}, nil)); len(got) != 1 {
			t.Errorf("a limited member of the partition: answered by %v", got)
		}
		r.psn = r.psn.Add(1)
		r.wantClean("all of that")
	})
}

// ROCE-019, ROCE-165: QPs in Reset, Init and Error take nothing.
func TestPacketsInStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRawRoCE(t)
		silent := func(s rdma.QPState) {
			t.Helper()
			if got := r.send(r.make(rawAddr, r.write(), []byte{9}, nil)); len(got) != 0 || r.x.Buf[0] != 0 {
				t.Errorf("in %v: answered by %v", s, got)
			}
			r.x.WantState("nothing has changed", s)
		}
		silent(rdma.QPReset)
		r.x.Move(rdma.QPInit, r.attrs(), vnictest.ToInit)
		silent(rdma.QPInit)
		r.x.Move(rdma.QPRTR, r.attrs(), vnictest.ToRTR)
		r.x.Move(rdma.QPError, r.attrs(), 0)
		silent(rdma.QPError)
		r.x.Move(rdma.QPReset, r.attrs(), 0)
		r.x.ToRTS(r.attrs())
		r.wantClean("connected")
		num := r.write()
		r.x.QP.Close()
		if got := r.send(r.make(rawAddr, num, []byte{9}, nil)); len(got) != 0 {
			t.Errorf("destroyed: answered by %v", got)
		}
	})
}

// ROCE-111, ROCE-200, ROCE-201, ROCE-212: who guesses PSNs draws one NAK, or an ACK for
// each duplicate, and harms nobody.
func TestGuessedPSNs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rawRoCE) {
		r.wantClean("before")
		random := rand.New(rand.NewPCG(1, 2))
		naks, acks := 0, 0
		for range 1000 {
			h := r.write()
			h.PSN = h.PSN.Add(1 + random.Uint32N(1<<23-2))
			for _, a := range r.send(r.make(rawAddr, h, []byte{9}, nil)) {
				if a.Syndrome != packet.NAKSequence || a.PSN != r.psn {
					t.Fatalf("ahead: %v", &a)
				}
				naks++
			}
		}
		for range 1000 {
			h := r.write()
			h.PSN = h.PSN.Add(1<<24 - 1 - random.Uint32N(1<<23-1))
			for _, a := range r.send(r.make(rawAddr, h, []byte{9}, nil)) {
				if !a.Syndrome.IsACK() || a.PSN != r.psn.Add(1<<24-1) {
					t.Fatalf("behind: %v", &a)
				}
				acks++
			}
		}
		if naks != 1 || acks > 1000 {
			t.Errorf("%d NAKs for 1000 packets ahead, %d ACKs for 1000 behind", naks, acks)
		}
		if r.x.Buf[0] != 1 {
			t.Error("a packet out of sequence was carried out")
		}
		r.wantClean("all of that")
	})
}

// ROCE-061, ROCE-154, ROCE-202, ROCE-203, ROCE-212: answers to what nobody asked for are nothing,
// and a NAK in the window has all sent again as often as was set, not for each copy.
func TestForgedAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rawRoCE) {
		answer := func(op packet.Opcode, s packet.Syndrome, psn packet.PSN) []byte {
			return r.make(rawAddr, packet.Header{Opcode: op, PKey: packet.DefaultPKey, Syndrome: s,
				Dest: packet.QPN(r.x.QP.Num()), PSN: psn}, nil, nil)
		}
		for s := range 256 {
			for _, psn := range []packet.PSN{0x1fff, 0x2000, 0x2001, 0x2400, 0x802000} {
				for _, op := range []packet.Opcode{packet.Acknowledge, packet.AtomicAcknowledge,
					packet.ReadResponseOnly, packet.ReadResponseMiddle} {
					if got := r.send(answer(op, packet.Syndrome(s), psn)); len(got) != 0 {
						t.Fatalf("%v with syndrome %#x: answered by %v", op, s, got)
					}
				}
			}
		}
		r.wantClean("answers to nothing")
		r.got = nil
		for i := range uint64(3) {
			r.x.Post(rdma.SendWR{ID: i, Op: rdma.OpWrite}, 0, 8)
		}
		synctest.Wait()
		naks := slices.Repeat([][]byte{answer(packet.Acknowledge, packet.NAKSequence, 0x2000)}, 1000)
		if got := r.send(naks...); len(got) > 3*3 {
			t.Errorf("1000 forged NAKs: %d packets", len(got))
		}
		r.x.WantState("forged NAKs", rdma.QPRTS)
		r.send(answer(packet.Acknowledge, packet.Unlimited, 0x2000+500))
		r.x.WantNone("an ACK of what was not sent")
		r.send(answer(packet.Acknowledge, packet.Unlimited, 0x2002))
		r.x.WantSend("acknowledged", is(0, ok), is(1, ok), is(2, ok))
		r.wantClean("all of that")
	})
}

// ROCE-137, ROCE-159, ROCE-221: a length that no memory has is refused, whatever it is.
func TestImpossibleLengths(t *testing.T) {
	for _, h := range []packet.Header{
		{Opcode: packet.WriteFirst, DMA: 0xffffffff}, {Opcode: packet.WriteFirst, DMA: 1<<31 - 1},
		{Opcode: packet.WriteFirst, DMA: 1 << 16, Addr: 1 << 15},
		{Opcode: packet.WriteFirst, DMA: 2048, Addr: 1<<64 - 1024},
		{Opcode: packet.ReadRequest, DMA: 0xffffffff}, {Opcode: packet.ReadRequest, DMA: 1<<31 - 1},
	} {
		inBubble(t, func(t *testing.T, r *rawRoCE) {
			w := r.write()
			w.Opcode, w.DMA, w.Addr = h.Opcode, h.DMA, w.Addr+h.Addr
			var payload []byte
			if h.Opcode == packet.WriteFirst {
				payload = bytes.Repeat([]byte{9}, 1024)
			}
			got := r.send(r.make(rawAddr, w, payload, nil))
			if len(got) != 1 || !got[0].Syndrome.IsNAK() || got[0].PSN != w.PSN {
				t.Errorf("%v: answered by %v", &w, got)
			}
			if bytes.Contains(r.x.Buf, []byte{9}) {
				t.Errorf("%v: was written", &w)
			}
			r.x.WantState("refused", rdma.QPError)
		})
	}
}

// ROCE-206: a packet for nobody costs no memory.
func TestUnknownQPN(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rawRoCE) {
		h := r.write()
		h.Dest ^= 1
		ip := r.make(rawAddr, h, make([]byte, 1024), nil)
		q, err := udp.Parse(ip)
		if err != nil {
			t.Fatal(err)
		}
		p := vnic.RoCEPacket{Packet: q}
		to := r.x.Ctx.Device().Receiver()
		if n := testing.AllocsPerRun(1000, func() { to.ReceiveRoCE(&p) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if n := r.x.Ctx.Device().DevInfo().Dropped.Unknown; n != 1001 {
			t.Errorf("%d packets were counted, want 1001", n)
		}
	})
}
