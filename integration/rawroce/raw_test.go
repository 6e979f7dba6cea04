package rawroce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/rdma"
)

func TestMain(m *testing.M) { netstacktest.Main(m) }

// both runs body over IPv4 and IPv6.
func both(t *testing.T, body func(c *conn)) {
	for v6, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) { body(newRig(t).connect(rdma.RC, v6, rdma.QPRTS)) })
	}
}

// ROCE-001, ROCE-002, ROCE-003, ROCE-009: requests from any port are answered to port 4791, from
// one port of a QP's own, with the TTL and traffic class of its path.
func TestPorts(t *testing.T) {
	both(t, func(c *conn) {
		ports := map[uint16]bool{}
		for _, from := range []uint16{5555, 0xc000, 1, 0xffff} {
			p := c.write()
			p.SrcPort = from
			c.octets(p.Bytes())
			a := c.next()
			ports[a.SrcPort] = true
			if a.PSN != c.psn&0xffffff || a.Src != p.Dst || a.Dst != p.Src || a.TTL != 64 || a.TOS != 0 ||
				a.PKey != 0xffff || a.Flags != rawroce.Migrated {
				t.Errorf("from port %d: %+v", from, a)
			}
			c.psn, c.done = c.psn+1, c.done+1
		}
		other := c.rig.connect(rdma.RC, c.v6, rdma.QPRTS)
		other.octets(other.write().Bytes())
		ports[other.next().SrcPort] = true
		if len(ports) != 2 {
			t.Errorf("two QPs send from the ports %v", ports)
		}
	})
}

// ROCE-004 to ROCE-008, ROCE-012, ROCE-017, ROCE-019 to ROCE-022, ROCE-026, ROCE-027, ROCE-033 to
// ROCE-035, ROCE-219, ROCE-220, ROCE-224, ROCE-227: which requests are answered, and that nothing
// comes of the others, the QP as it was.
func TestRequests(t *testing.T) {
	be := binary.BigEndian
	both(t, func(c *conn) {
		head := 28
		if c.v6 == 1 {
			head = 48
		}
		field := func(f func(p *rawroce.Packet)) func() []byte {
			return func() []byte {
				p := c.write()
				f(&p)
				return p.Bytes()
			}
		}
		octets := func(f func(b []byte) []byte) func() []byte {
			return func() []byte { return f(c.write().Bytes()) }
		}
		bth := func(at int, to byte) func() []byte {
			return octets(func(b []byte) []byte { b[head+at] = to; rawroce.FixICRC(b); return b })
		}
		v4 := c.v6 == 0
		type row struct {
			name string
			make func() []byte
			good bool
		}
		rows := []row{
			{"TTL 3", field(func(p *rawroce.Packet) { p.TTL = 3 }), true},
			{"CE", field(func(p *rawroce.Packet) { p.TOS = 3 }), true},
			{"identification", field(func(p *rawroce.Packet) { p.ID = 0xabcd }), true},
			{"SE", field(func(p *rawroce.Packet) { p.Flags = rawroce.Solicited }), true},
			{"M", field(func(p *rawroce.Packet) { p.Flags = rawroce.Migrated }), true},
			{"FECN, BECN, reserved", field(func(p *rawroce.Packet) { p.Bits = 0xff }), true},
			{"reserved", field(func(p *rawroce.Packet) { p.Ack = 0xff }), true},
			{"a partial member's P_Key", field(func(p *rawroce.Packet) { p.PKey = 0x7fff }), true},
			{"padding of ones", field(func(p *rawroce.Packet) {
				p.Payload, p.Pad = []byte("g"), []byte{255, 255, 255}
				p.Ext = rawroce.RETH(c.MR.Addr(), c.MR.RKey(), 1)
			}), true},
			{"octets behind the packet", octets(func(b []byte) []byte {
				return append(b, make([]byte, 20)...)
			}), true},
			{"version 1", bth(1, 1), false},
			{"version 15", bth(1, 15), false},
			{"P_Key 8001", field(func(p *rawroce.Packet) { p.PKey = 0x8001 }), false},
			{"P_Key 1", field(func(p *rawroce.Packet) { p.PKey = 1 }), false},
			{"QP 0", bth(7, 0), c.QP.Num()&0xff == 0},
			{"padding of nothing", field(func(p *rawroce.Packet) {
				p.Payload, p.Pad, p.Ext = nil, nil, rawroce.RETH(0, 0, 0)
				p.Flags = 0x30
			}), false},
			{"other port", field(func(p *rawroce.Packet) { p.DstPort = 4790 }), false},
			{"UDP length above", octets(func(b []byte) []byte { b[head-3]++; return b }), false},
			{"UDP length of 23", octets(func(b []byte) []byte { b[head-3] = 23; return b }), false},
			{"ICRC: one bit", octets(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), false},
			{"ICRC: complement", octets(func(b []byte) []byte {
				for i := range 4 {
					b[len(b)-1-i] ^= 0xff
				}
				return b
			}), false},
			{"ICRC: reversed", octets(func(b []byte) []byte {
				slices.Reverse(b[len(b)-4:])
				return b
			}), false},
			{"ICRC: 0", octets(func(b []byte) []byte { return append(b[:len(b)-4], 0, 0, 0, 0) }), false},
			{"PSN after the ICRC", octets(func(b []byte) []byte { b[head+11]++; return b }), false},
			{"QPN after the ICRC", octets(func(b []byte) []byte { b[head+7]++; return b }), false},
			{"port after the ICRC", octets(func(b []byte) []byte { b[head-7]++; return b }), false},
			{"CNP", func() []byte {
				return c.to(rawroce.Packet{Opcode: rawroce.CNP, Bits: 0x40, Payload: make([]byte, 16)}).Bytes()
			}, false},
			{"CNP to nobody", func() []byte {
				return c.to(rawroce.Packet{Opcode: rawroce.CNP, QPN: 77, Payload: make([]byte, 16)}).Bytes()
			}, false},
		}
		if v4 {
			rows = append(rows,
				row{"a fragment", octets(func(b []byte) []byte {
					b[6] = 0x20
					rawroce.FixIPv4(b)
					rawroce.FixICRC(b)
					return b
				}), false},
				row{"options", field(func(p *rawroce.Packet) { p.Options = []byte{1, 1, 1, 0} }), true},
				row{"options changed", func() []byte {
					p := c.write()
					p.Options = []byte{1, 1, 1, 0}
					b := p.Bytes()
					b[21] = 0
					rawroce.FixIPv4(b)
					return b
				}, false},
				row{"octets between UDP and IP", octets(func(b []byte) []byte {
					be.PutUint16(b[2:], uint16(len(b)+8))
					rawroce.FixIPv4(b)
					rawroce.FixICRC(b)
					return append(b, 9, 9, 9, 9, 9, 9, 9, 9)
				}), true},
				row{"IPv4 checksum", octets(func(b []byte) []byte { b[10]++; return b }), false})
		}
		for _, qpn := range []uint32{2, 0xfffffe, 0xffffff, 1} {
			rows = append(rows, row{fmt.Sprintf("QP %#x", qpn), func() []byte {
				p := c.write()
				p.QPN = qpn
				return p.Bytes()
			}, false})
		}
		for _, r := range rows {
			c.octets(r.make())
			if r.good {
				c.wantACK(r.name)
			}
			c.clean(r.name)
		}
	})
}

// ROCE-018: of the opcodes that are none of a reliable connection's nothing comes.
func TestOpcodes(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	for op := range 256 {
		if op <= 0x17 && op != 0x15 {
			continue
		}
		b := c.write().Bytes()
		b[28] = byte(op)
		rawroce.FixICRC(b)
		c.octets(b)
		c.clean(fmt.Sprintf("opcode %#02x", op))
	}
}

// ROCE-014, ROCE-199: what has the right QPN and PSN, but another source or destination, is as if
// it had not come.
func TestForeign(t *testing.T) {
	both(t, func(c *conn) {
		other := c.peer(8)
		for what, p := range map[string]rawroce.Packet{
			"another source": {Src: other.Addrs[c.v6], Dst: rawAddrs(1)[c.v6]},
			"another family": {Src: c.raw.Addrs[1-c.v6], Dst: rawAddrs(1)[1-c.v6]},
		} {
			q := c.write()
			q.Src, q.Dst = p.Src, p.Dst
			other.Send(c.st.MAC(), q.Bytes())
			q.PSN += 5
			other.Send(c.st.MAC(), q.Bytes()) // no NAK
			c.clean(what)
		}
		if q, ok, err := other.Take(); ok {
			t.Errorf("the other station is sent %v, %v", q, err)
		}
	})
}

// ROCE-036: a wrong ICRC has no effect, so that a gap behind it draws the NAK still.
func TestICRCFirst(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	for range 3 {
		p := c.write()
		p.PSN++
		b := p.Bytes()
		b[len(b)-2] ^= 4
		c.octets(b)
		if a, ok, err := c.raw.Take(); ok {
			t.Fatalf("the answer to a wrong ICRC: %v, %v", a, err)
		}
		c.octets(p.Bytes())
		if a := c.next(); a.Opcode != rawroce.Ack || a.Syndrome() != 0x60 || a.PSN != c.psn&0xffffff {
			t.Fatalf("%v, want a NAK of PSN %#x", a, c.psn)
		}
		c.clean("a gap")
	}
}

// ROCE-200, ROCE-201: guessed PSNs draw one answer at most, and the QP goes on.
func TestGuesses(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	c.clean("nothing")
	rnd := rand.New(rand.NewPCG(1, 2))
	answers := 0
	for range 1000 {
		p := c.write()
		p.PSN = c.psn + 1 + rnd.Uint32N(1<<24-1)
		p.Payload = []byte("evil")
		c.octets(p.Bytes())
		for n := 0; ; n++ {
			a, ok, err := c.raw.Take()
			if err != nil || n > 1 {
				t.Fatalf("%d answers to one: %v, %v", n, a, err)
			}
			if !ok {
				break
			}
			answers++
		}
	}
	if answers == 0 || answers > 1000 {
		t.Errorf("%d answers to 1000 guesses", answers)
	}
	if string(c.Buf[:4]) != "good" {
		t.Errorf("a guess has written %q", c.Buf[:4])
	}
	c.clean("guesses")
}

// ROCE-154, ROCE-202, ROCE-203, ROCE-205, ROCE-212: forged answers: of what was not sent nothing
// comes, NAKs repeat no more than comes, and a Read's memory is not left.
func TestForgedAnswers(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	for _, op := range []uint8{0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12} {
		for _, syndrome := range []uint8{0x1f, 0, 0x21, 0x60, 0x61, 0x62, 0x63, 0x7f, 0x9f} {
			ext := rawroce.AETH(syndrome, 7)
			if op == 0x12 {
				ext = append(ext, make([]byte, 8)...)
			} else if op == 0x0e {
				ext = nil
			}
			c.put(rawroce.Packet{Opcode: op, PSN: startPSN + 3, Ext: ext})
			c.put(rawroce.Packet{Opcode: op, PSN: startPSN - 3, Ext: ext})
		}
	}
	c.clean("answers to nothing")

	copy(c.Buf, bytes.Repeat([]byte("x"), 4096))
	c.Send(1, 0, 8)
	if p := c.next(); p.Opcode != rawroce.SendOnly || p.PSN != startPSN {
		t.Fatalf("%v, want a Send", p)
	}
	for range 1000 {
		c.put(rawroce.Packet{Opcode: rawroce.Ack, PSN: startPSN, Ext: rawroce.AETH(0x60, 0)})
	}
	sent := 0
	for {
		_, ok, err := c.raw.Take()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		sent++
	}
	if sent > 1000 {
		t.Errorf("%d packets for 1000 NAKs", sent)
	}
}

// ROCE-205: answers to a Read that are longer than it, out of order or for another PSN do not leave
// its memory.
func TestForgedRead(t *testing.T) {
	for _, forged := range []rawroce.Packet{
		{Opcode: rawroce.ReadOnly, PSN: startPSN, Ext: rawroce.AETH(0x1f, 1),
			Payload: bytes.Repeat([]byte("y"), 1024)},
		{Opcode: 0x0d, PSN: startPSN, Ext: rawroce.AETH(0x1f, 1),
			Payload: bytes.Repeat([]byte("y"), 1024)},
		{Opcode: 0x0e, PSN: startPSN, Payload: bytes.Repeat([]byte("y"), 1024)},
		{Opcode: rawroce.ReadOnly, PSN: startPSN + 9, Ext: rawroce.AETH(0x1f, 1),
			Payload: []byte("yyyyyyyy")},
		{Opcode: 0x12, PSN: startPSN, Ext: append(rawroce.AETH(0x1f, 1), "yyyyyyyy"...)},
	} {
		c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
		copy(c.Buf, bytes.Repeat([]byte("x"), 4096))
		c.Post(rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, RemoteAddr: 64, RKey: 5}, 8, 8)
		if p := c.next(); p.Opcode != rawroce.ReadReq || binary.BigEndian.Uint32(p.Ext[12:]) != 8 {
			t.Fatalf("%v, want a Read of 8 octets", p)
		}
		c.put(forged)
		// The QP may be in the error state; that its memory is whole is what counts.
		c.put(rawroce.Packet{Opcode: rawroce.WriteOnly, QPN: 99})
		if got := c.Buf[:4096]; string(got[:8]) != "xxxxxxxx" ||
			bytes.ContainsRune(got[16:], 'y') {
			t.Errorf("%v has written outside of the Read's memory", forged)
		}
	}
}

// ROCE-206: packets for QPs that are not there cost no memory, and are not answered.
func TestUnknownQPs(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	c.clean("nothing")
	p := c.write()
	p.QPN = c.QP.Num() ^ 0x5555
	b := p.Bytes()
	n := 100000
	if netstacktest.RaceEnabled || testing.Short() {
		n = 5000
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range n {
		c.octets(b)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("%d packets for nobody: the heap has grown by %d octets", n, grown)
	}
	c.clean("packets for nobody")
}

// ROCE-165: a QP that is not in RTR or behind it takes nothing, and one in RTR answers (ROCE-164).
func TestStates(t *testing.T) {
	r := newRig(t)
	c := r.connect(rdma.RC, 0, rdma.QPInit)
	c.octets(c.write().Bytes())
	other := r.connect(rdma.RC, 0, rdma.QPRTR)
	other.clean("a QP in Init")
	if err := other.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState); err != nil {
		t.Fatal(err)
	}
	other.octets(other.write().Bytes())
	r.connect(rdma.RC, 0, rdma.QPRTS).clean("a QP in the error state")
}

// ROCE-217: each kind of packet, cut anywhere, its lengths those of what is left and its ICRC
// right, leads to nothing but an answer that says so.
func TestCut(t *testing.T) {
	r := newRig(t)
	c := r.connect(rdma.RC, 0, rdma.QPRTS)
	kinds := []rawroce.Packet{
		c.write(),
		{Opcode: rawroce.ReadReq, Ext: rawroce.RETH(c.MR.Addr(), c.MR.RKey(), 8)},
		{Opcode: rawroce.FetchAdd, Ext: rawroce.AtomicETH(c.MR.Addr(), c.MR.RKey(), 1, 0)},
		{Opcode: rawroce.Ack, Ext: rawroce.AETH(0x1f, 0)},
		{Opcode: 0x12, Ext: make([]byte, 12)},
		{Opcode: 0x17, Ext: make([]byte, 4)},
		{Opcode: rawroce.UDSendOnly, Ext: rawroce.DETH(1, 2), Payload: make([]byte, 8)},
	}
	for _, kind := range kinds {
		kind.PSN = c.psn + 1<<23 // of nothing that is expected
		whole := c.to(kind).Bytes()
		for n := range len(whole) {
			b := bytes.Clone(whole[:n])
			c.octets(b) // the frame ends early
			if n >= 28+16 {
				binary.BigEndian.PutUint16(b[2:], uint16(n))
				binary.BigEndian.PutUint16(b[24:], uint16(n-20))
				rawroce.FixIPv4(b)
				rawroce.FixICRC(b)
				c.octets(b)
			}
		}
	}
	for { // NAKs of what was long enough
		if _, ok, err := c.raw.Take(); err != nil {
			t.Fatal(err)
		} else if !ok {
			break
		}
	}
	c.clean("packets that are cut")
}

// ROCE-221: a length of 32 bits is checked before anything is made of it.
func TestLongLength(t *testing.T) {
	for _, p := range []rawroce.Packet{
		{Opcode: rawroce.WriteFirst, Payload: make([]byte, mtu)},
		{Opcode: rawroce.ReadReq},
	} {
		for _, n := range []uint32{0xffffffff, 0x80000001, 1 << 31} {
			c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
			p.PSN, p.Ack = c.psn, rawroce.AckReq
			p.Ext = rawroce.RETH(c.MR.Addr(), c.MR.RKey(), n)
			c.put(p)
			if a := c.next(); a.Opcode != rawroce.Ack || a.Syndrome() != 0x62 && a.Syndrome() != 0x61 {
				t.Errorf("opcode %#x of %#x octets: %v, want a NAK", p.Opcode, n, a)
			}
		}
	}
}

// ROCE-213: nothing of all that draws an ICMP message.
func TestNoICMP(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	c.raw.Others()
	p := c.write()
	p.QPN = 77
	b := p.Bytes()
	c.octets(b)
	b[6] = 0x20 // a fragment
	rawroce.FixIPv4(b)
	c.octets(b)
	c.octets(b[:40])
	c.clean("packets for nobody")
	for _, o := range c.raw.Others() {
		if o[0]>>4 == 4 && o[9] == 1 {
			t.Errorf("an ICMP message: % x", o)
		}
	}
}

// ROCE-010, ROCE-044, ROCE-046: what the device sends is cut at the path MTU, with PSNs in a row,
// and fits the interface.
func TestSizes(t *testing.T) {
	both(t, func(c *conn) {
		psn := uint32(startPSN)
		for _, n := range []int{0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu} {
			c.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: 4096, RKey: 7},
				0, n)
			for left := n; ; {
				p := c.next()
				want := min(left, mtu)
				if left -= want; p.PSN != psn&0xffffff || len(p.Payload) != want {
					t.Fatalf("a Write of %d octets: %v, want PSN %#x with %d octets", n, p, psn, want)
				}
				psn++
				if left == 0 {
					c.put(rawroce.Packet{Opcode: rawroce.Ack, PSN: p.PSN, Ext: rawroce.AETH(0x1f, 0)})
					break
				}
			}
			if wc := c.Next(c.SendCQ, 1)[0]; wc.Status != rdma.WCSuccess {
				t.Fatalf("a Write of %d octets: %v", n, wc.Status)
			}
		}
	})
}

// ROCE-210: Reads that are repeated again and again are answered one after the other, and hold
// nothing up.
func TestRepeatedReads(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(rdma.RC, 0, rdma.QPRTS), r.connect(rdma.RC, 0, rdma.QPRTS)
	const n, packets = 200, 16
	read := c.to(rawroce.Packet{Opcode: rawroce.ReadReq, PSN: c.psn, Ack: rawroce.AckReq,
		Ext: rawroce.RETH(c.MR.Addr(), c.MR.RKey(), packets*mtu)})
	answers := 0
	for range n {
		c.octets(read.Bytes())
		for {
			p, ok, err := c.raw.Take()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if p.Opcode < 0x0d || p.Opcode > 0x10 {
				t.Fatalf("%v", p)
			}
			answers++
		}
	}
	if answers > n*packets || answers < packets {
		t.Errorf("%d packets for %d Reads of %d", answers, n, packets)
	}
	other.clean("another QP's Reads")
}

// ROCE-222: the longest datagram there can be draws a NAK, or nothing.
func TestLongDatagram(t *testing.T) {
	c := newRig(t).connect(rdma.RC, 0, rdma.QPRTS)
	p := c.write()
	p.Payload = make([]byte, 65488)
	p.Ext = rawroce.RETH(c.MR.Addr(), c.MR.RKey(), uint32(len(p.Payload)))
	c.octets(p.Bytes())
	if a, ok, err := c.raw.Take(); err != nil || ok && a.Syndrome()&0x60 != 0x60 {
		t.Errorf("%v, %v", a, err)
	}
	if c.Buf[0] != 0 {
		t.Error("it was written")
	}
}
