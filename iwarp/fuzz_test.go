package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// What decodes encodes to something that decodes to the same, and the length is exact.
func FuzzStartFrame(f *testing.F) {
	for _, tt := range startFrames {
		f.Add(unhex(tt.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = DescribeStartFrame(b)
		x, n, err := ParseStartFrame(b)
		if err != nil {
			return
		}
		if n > len(b) || n < 20 || n > 532 {
			t.Fatalf("%d octets of %d", n, len(b))
		}
		if _, _, err := ParseStartFrame(b[:n-1]); err == nil {
			t.Fatal("a frame without its last octet decodes")
		}
		enc, err := x.Append(nil)
		if err != nil {
			t.Fatalf("%+v does not encode: %v", x, err)
		}
		y, m, err := ParseStartFrame(enc)
		if err != nil || m != len(enc) || m > n {
			t.Fatalf("%d octets, %v", m, err)
		}
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("decoded %+v\nagain   %+v", x, y)
		}
	})
}

// Where TCP cut the octets cannot be seen in what the start-up comes to, nor in what it answers.
func FuzzStartCut(f *testing.F) {
	for _, tt := range startFrames {
		f.Add(unhex(tt.wire), uint16(3), uint8(0))
		f.Add(append(unhex(tt.wire), "more"...), uint16(21), uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, kind uint8) {
		i := int(cut) % (len(b) + 1)
		cfg := DefaultStartConfig()
		cfg.ClientServer = kind&1 != 0
		if kind&2 != 0 {
			cfg.Revision = 1
		}
		initiate := func(pieces ...[]byte) string {
			s, err := NewInitiator(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			drain(s)
			took := 0
			for _, p := range pieces {
				if n, _ := s.Write(p); n < len(p) && !s.Done() {
					t.Fatal("takes less before it is done")
				} else if !s.Done() || s.Len() == 0 {
					took += n
				}
			}
			if !s.Done() {
				return "waiting"
			}
			p, err := s.Result()
			if err != nil {
				return outcome(s) // how much of a bad frame was taken does not matter
			}
			return fmt.Sprint(took, p, p.PrivateData)
		}
		respond := func(pieces ...[]byte) string {
			s, err := NewResponder(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pieces {
				s.Write(p)
			}
			if s.Err() != nil {
				return fmt.Sprintf("failed, %x", drain(s))
			}
			r, ok := s.Request()
			if !ok {
				return "waiting"
			}
			p, err := s.Accept(8, 8, []byte("x"))
			if err != nil || p.IRD > MaxReads || p.ORD > 8 {
				t.Fatalf("%+v, %v", p, err) // EMPA-049
			}
			return fmt.Sprintf("%+v %v %x", r, p, drain(s))
		}
		if whole, split := initiate(b), initiate(b[:i], b[i:]); whole != split {
			t.Fatalf("initiator, cut at %d:\n one write:  %s\n two writes: %s", i, whole, split)
		}
		if whole, split := respond(b), respond(b[:i], b[i:]); whole != split {
			t.Fatalf("responder, cut at %d:\n one write:  %s\n two writes: %s", i, whole, split)
		}
	})
}

// Headers: what the encoders make of the fields of a segment has the same fields.
func FuzzHeaders(f *testing.F) {
	for _, tt := range segments {
		f.Add(unhex(tt.ulpdu))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = DescribeSegment(b)
		if h, body, err := ParseTagged(b); err == nil {
			op := h.RDMAP().Opcode()
			enc := AppendTagged(nil, h.DDP().Last(), op, h.STag(), h.TO())
			g, _, _ := ParseTagged(enc)
			if g.STag() != h.STag() || g.TO() != h.TO() || g.DDP().Last() != h.DDP().Last() ||
				g.RDMAP().Opcode() != op || !g.DDP().Tagged() || len(body) != len(b)-14 {
				t.Fatalf("%v encodes to %v", h, g)
			}
		}
		if h, body, err := ParseUntagged(b); err == nil {
			op := h.RDMAP().Opcode()
			enc := AppendUntagged(nil, h.DDP().Last(), op, h.Invalidate(), h.MSN(), h.MO())
			g, _, _ := ParseUntagged(enc)
			if g.MSN() != h.MSN() || g.MO() != h.MO() || g.DDP().Last() != h.DDP().Last() ||
				g.RDMAP().Opcode() != op || g.DDP().Tagged() ||
				op.Invalidates() && g.Invalidate() != h.Invalidate() || !op.Invalidates() &&
				g.Invalidate() != 0 {
				t.Fatalf("%v encodes to %v", h, g)
			}
			if r, err := ParseReadRequest(body); err == nil {
				if enc := AppendReadRequest(nil, r.SinkSTag(), r.SinkTO(), r.Size(), r.SrcSTag(),
					r.SrcTO()); !bytes.Equal(enc, body) {
					t.Fatalf("%x encodes to %x", body, enc)
				}
			}
			if r, err := ParseAtomicRequest(body); err == nil {
				a := r.Atomic()
				if a.Op == AtomicFetchAdd { // nothing of these goes out
					a.Compare, a.CompareMask = 0, ^uint64(0)
				}
				g, err := ParseAtomicRequest(AppendAtomicRequest(nil, r.ID(), r.Atomic()))
				if err != nil || g.ID() != r.ID() || g.Atomic() != a || !bytes.Equal(g[:3], []byte{0, 0, 0}) ||
					g[3]&0xf0 != 0 {
					t.Fatalf("%x encodes to %x, %v", body, []byte(g), err)
				}
			}
			if r, err := ParseAtomicResponse(body); err == nil {
				if enc := AppendAtomicResponse(nil, r.ID(), r.Old()); !bytes.Equal(enc, body) {
					t.Fatalf("%x encodes to %x", body, enc)
				}
			}
		}
	})
}

// A Terminate in any form reads the same in figure 8's.
func FuzzTerminate(f *testing.F) {
	for _, s := range []string{
		"20020000", "02020000", "12021fff", "21020300 0007 4143 00000000 00000000 00000003 00000000",
		"0100e000 002e 4141 00000000 00000001 00000001 00000000 0015be07 0000560000001000 00001000 00bad0ff 0000000000000010",
		"10000700 0000 4141 00000000 00000001 00000001 00000000 0015be07 0000560000001000 00001000 00bad0ff 0000000000000010",
		"1100c000 002e c140 00bad0ff 0000000000004000",
		"0207c000 0046 414a 00000000 00000001 00000002 00000000",
		"0102e000 0046 414a 00000000 00000001 00000002 00000000 00000000000000000000000000000000000000000000000000000000",
	} {
		f.Add(unhex(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseTerminate(b)
		if err != nil {
			if len(b) >= 4 {
				t.Fatal(err)
			}
			return
		}
		_ = x.String()
		enc := x.Append(nil)
		y, err := ParseTerminate(enc)
		if err != nil {
			t.Fatal(err)
		}
		if !x.Cause.Registered() {
			return // then figure 8's octets may mean something in siw's order
		}
		x.Swapped = false
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("decoded %+v\nagain   %+v\n%x", x, y, enc)
		}
	})
}

// A strict host panics when it is called out of order, and allows what a fuzzed peer asks for in a
// manner that depends on the octets alone.
type strict struct {
	e       *Endpoint
	log     []string
	size    uint32
	recv    bool
	sources int
	bufs    int
}

func (s *strict) in(format string, args ...any) {
	if s.e != nil && s.e.Err() != nil {
		panic(fmt.Sprintf("called behind an error: "+format, args...))
	}
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *strict) PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error {
	s.in("write %x %x %x %t", stag, to, chunk, last)
	if stag == 0xbad && len(chunk) > 0 {
		return &LocalError{Cause: TermInvalidSTag}
	}
	return nil
}

func (s *strict) BeginReceive() (uint32, bool) {
	if s.recv {
		panic("BeginReceive within a Send")
	}
	if s.bufs == 0 {
		return 0, false
	}
	s.bufs--
	s.in("begin")
	s.recv, s.size = true, 64
	return s.size, true
}

func (s *strict) PlaceReceive(off uint32, chunk []byte) error {
	if !s.recv || len(chunk) == 0 || uint64(off)+uint64(len(chunk)) > uint64(s.size) {
		panic(fmt.Sprintf("PlaceReceive(%d, %d octets) for %d", off, len(chunk), s.size))
	}
	s.in("place %d %x", off, chunk)
	return nil
}

func (s *strict) EndReceive(r Received) error {
	if !s.recv || r.Length > s.size {
		panic("EndReceive")
	}
	s.recv = false
	s.in("receive %+v", r)
	if r.Invalidate && r.STag == 0xbad {
		return &LocalError{Cause: TermCannotInvalidate}
	}
	return nil
}

func (s *strict) PlaceRead(off uint32, chunk []byte) error {
	if len(chunk) == 0 || uint64(off)+uint64(len(chunk)) > 32 {
		panic("PlaceRead")
	}
	s.in("read %d %x", off, chunk)
	return nil
}

func (s *strict) EndRead(token uint64) error { s.in("end read %d", token); return nil }

func (s *strict) ReadSource(stag STag, to uint64, n uint32) (Payload, error) {
	s.in("source %x %x %d", stag, to, n)
	if n > 4096 {
		return nil, &LocalError{Cause: TermReadBounds}
	}
	s.sources++
	return zeroes{}, nil
}

func (s *strict) EndReadSource(Payload) { s.sources-- }

func (s *strict) Atomic(a Atomic) (uint64, error) {
	s.in("%v", a)
	switch {
	case a.Op != AtomicFetchAdd && a.Op != AtomicCompareSwap:
		panic("no such operation")
	case a.STag == 0xbad:
		return 0, &LocalError{Cause: TermReadInvalidSTag}
	case a.TO%8 != 0:
		return 0, &LocalError{Cause: TermMisaligned}
	}
	return a.Apply(a.TO), nil
}

func (s *strict) EndAtomic(token, old uint64) error {
	s.in("end atomic %d %x", token, old)
	return nil
}
func (s *strict) Sent(token uint64) {}

// fuzzRun feeds pieces to an Endpoint with two Reads and, with the extensions, an atomic between
// them outstanding and bufs receive buffers, to which refills come one by one when they are wanted,
// and says what came of it: the calls, the octets that go out, the end.
func fuzzRun(t *testing.T, crc, ext bool, bufs, refills int, pieces ...[]byte) string {
	h := &strict{bufs: bufs}
	e := NewEndpoint(Params{Initiator: true, Revision: 2, CRC: crc, IRD: 2, ORD: 3}, h,
		Config{EMSS: 256, Extensions: ext})
	h.e = e
	for i := range 3 {
		if i != 1 {
			if err := e.PostRead(uint64(i), 0x99, 16, 32, 0x10, 0); err != nil {
				t.Fatal(err)
			}
		} else if err := e.PostAtomic(uint64(i), Atomic{STag: 0x10, Data: 1}); (err == nil) != ext {
			t.Fatal(err)
		}
	}
	var out []byte
	out = append(out, drain(e)...)
	stopped := false
	for _, p := range pieces {
		for len(p) > 0 && !stopped {
			n, err := e.Write(p)
			if n < len(p) != (err != nil) && !errors.Is(err, ErrNoReceive) {
				t.Fatalf("took %d of %d, %v", n, len(p), err)
			}
			p = p[n:]
			if err == nil {
				continue
			}
			if stopped = refills == 0; stopped {
				break
			}
			refills--
			h.bufs++
			if refills%2 == 0 {
				if err := e.Resume(); err != nil || e.Stalled() || h.bufs > 0 {
					t.Fatalf("Resume with a buffer: %v", err)
				}
			}
		}
	}
	if !stopped && e.Stalled() {
		e.Resume() // the last FPDU was held; there may be a buffer
	}
	for e.Pending() {
		n := e.Len()
		b := drain(e)
		if len(b) != n {
			t.Fatalf("Len said %d, Read gave %d", n, len(b))
		}
		out = append(out, b...)
	}
	if !e.Drained() {
		t.Fatal("not drained with nothing to send")
	}
	if e.Err() != nil {
		if n, err := e.Write(make([]byte, 100)); n != 100 || err != nil {
			t.Fatalf("behind the error: %d, %v", n, err)
		}
	}
	end := fmt.Sprint(e.Err())
	e.Close()
	if h.sources != 0 {
		t.Fatalf("%d sources left", h.sources)
	}
	var segs []string
	for b := out; len(b) > 0; {
		n := int(b[0])<<8 | int(b[1])
		if FPDULen(n) > 256 {
			t.Fatalf("FPDU of %d octets at EMSS 256", FPDULen(n))
		}
		segs = append(segs, DescribeSegment(b[2:2+n]))
		b = b[FPDULen(n):]
	}
	for i, s := range segs {
		if len(s) > 9 && s[:9] == "Terminate" && i != len(segs)-1 {
			t.Fatal("something behind the Terminate")
		}
	}
	return fmt.Sprintf("calls %q\nsends %q\nend %s", h.log, segs, end)
}

// The FPDU stream cut anywhere: the same calls, the same octets back, the same end; the Host is
// never called out of order nor behind an error, and a receive buffer is never overrun.
func FuzzEndpoint(f *testing.F) {
	stream := func(segs ...[]byte) (b []byte) {
		for _, s := range segs {
			b = AppendFPDU(b, s, true)
		}
		return b
	}
	f.Add(stream(sendSeg(OpSend, false, 1, 0, 5), sendSeg(OpSend, true, 1, 5, 5),
		writeSeg(OpWrite, true, 0x10, 0, 9)), uint16(3), uint8(1))
	f.Add(stream(readReq(1, 300, 0x10, 0), writeSeg(OpReadResponse, true, 0x99, 16, 32),
		readReq(2, 8, 0x10, 0)), uint16(50), uint8(1))
	f.Add(stream(sendSeg(OpSendInvalidate, true, 1, 0, 5), sendSeg(OpSend, true, 2, 0, 5),
		sendSeg(OpSend, true, 3, 0, 5)), uint16(70), uint8(5))
	f.Add(stream(sendSeg(OpSendInvalidate, true, 1, 0, 5), sendSeg(OpSend, true, 2, 0, 5),
		sendSeg(OpSend, true, 3, 0, 5)), uint16(70), uint8(0x31))
	f.Add(stream(sendSeg(OpSendInvalidate, true, 1, 0, 5), sendSeg(OpSend, true, 2, 0, 5),
		sendSeg(OpSend, true, 3, 0, 5)), uint16(64), uint8(0x23))
	f.Add(stream(writeSeg(OpWrite, false, 0x10, 0, 9), sendSeg(OpSend, true, 1, 0, 5),
		writeSeg(OpWrite, true, 0x10, 9, 9)), uint16(40), uint8(3))
	for i, tt := range fatals() {
		f.Add(stream(append(tt.good, tt.bad)...), uint16(i*7), uint8(i))
	}
	for _, tt := range segments {
		f.Add(stream(unhex(tt.ulpdu)), uint16(20), uint8(0))
	}
	f.Add(stream(atomReq(1, 7, Atomic{STag: 0x10, TO: 8, Data: 1}), immSeg(OpImmediate, 1, 5),
		readReq(2, 8, 0x10, 0)), uint16(70), uint8(0x43))
	f.Add(stream(writeSeg(OpReadResponse, true, 0x99, 16, 32), atomResp(1, 2, 9),
		writeSeg(OpReadResponse, true, 0x99, 16, 32)), uint16(60), uint8(0x41))
	f.Add(stream(writeSeg(OpWrite, false, 0x10, 0, 9), atomReq(1, 7, Atomic{STag: 0x10, TO: 8}),
		writeSeg(OpWrite, true, 0x10, 9, 9)), uint16(60), uint8(0x41))
	f.Add(stream(append(cutSeg(immSeg(OpImmediateSE, 1, 5), 3), immSeg(OpImmediate, 2, 6),
		sendSeg(OpSend, true, 3, 0, 5))...), uint16(60), uint8(0x61))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, kind uint8) {
		crc, ext, bufs, refills := kind&1 != 0, kind&0x40 != 0, int(kind>>1&3), int(kind>>4&3)
		if kind&8 != 0 {
			b = mend(b) // so that fuzzing gets past the CRC
			crc = true
		}
		i := int(cut) % (len(b) + 1)
		whole := fuzzRun(t, crc, ext, bufs, refills, b)
		if split := fuzzRun(t, crc, ext, bufs, refills, b[:i], b[i:]); whole != split {
			t.Fatalf("cut at %d:\n one write:\n%s\n two writes:\n%s", i, whole, split)
		}
		if len(b) < 300 {
			var each [][]byte
			for i := range b {
				each = append(each, b[i:i+1])
			}
			if split := fuzzRun(t, crc, ext, bufs, refills, each...); whole != split {
				t.Fatalf("octet by octet:\n one write:\n%s\n octets:\n%s", whole, split)
			}
		}
	})
}

// mend puts right CRCs into a stream of FPDUs.
func mend(b []byte) []byte {
	b = bytes.Clone(b)
	for r := b; len(r) >= 2; {
		n := FPDULen(int(r[0])<<8 | int(r[1]))
		if len(r) < n {
			break
		}
		CRC(0).Add(r[:n-4]).Put(r[n-4:])
		r = r[n:]
	}
	return b
}

// What is posted comes out as messages with those octets, however the transport reads and takes.
func FuzzSender(f *testing.F) {
	f.Add([]byte{0, 10, 1, 200, 2, 50, 3, 0}, uint16(100), uint16(33), uint8(0))
	f.Add([]byte{4, 255, 5, 255, 0, 255}, uint16(7), uint16(1), uint8(1))
	f.Add([]byte{6, 255, 7, 255, 1, 9, 8, 3, 6, 1}, uint16(7), uint16(90), uint8(1))
	f.Fuzz(func(t *testing.T, ops []byte, piece, take uint16, emss uint8) {
		if len(ops) > 24 {
			return
		}
		a := NewEndpoint(Params{Initiator: true, CRC: true, ORD: 128, IRD: 2}, &strict{},
			Config{EMSS: 140 + int(emss), BatchBytes: 700, Extensions: true})
		h := &recorder{}
		b := NewEndpoint(Params{CRC: true, IRD: 128}, h, Config{Extensions: true})
		var want []string
		msn := 0
		for i := 0; i+1 < len(ops); i += 2 {
			n := uint32(ops[i+1]) * 3
			p := &payload{b: pattern(int(n), byte(i))}
			switch op := ops[i] % 9; op {
			case 0:
				if a.PostWrite(1, STag(i), uint64(i), p, n) == nil {
					want = append(want, fmt.Sprintf("write %d %x", i, p.b))
				}
			case 1:
				if a.PostRead(1, 7, 8, n, STag(i), 9) == nil {
					want = append(want, fmt.Sprintf("source %d %d", i, n))
				}
			case 6:
				x := Atomic{Op: AtomicOp(n & 2), STag: STag(i), TO: uint64(n), Data: 1, Mask: 2, Compare: 0,
					CompareMask: ^uint64(0)}
				if a.PostAtomic(1, x) == nil {
					want = append(want, x.String())
				}
			case 7, 8:
				if a.PostImmediate(1, op == 8, uint64(n)) == nil {
					want = append(want, fmt.Sprintf("immediate %d %t", n, op == 8))
				}
			default:
				if a.PostSend(1, OpSend+Opcode(op-2), STag(i), p, n) == nil {
					msn++
					want = append(want, fmt.Sprintf("send %x", p.b))
				}
			}
		}
		for rounds := 0; a.Pending(); rounds++ {
			if rounds > 1_000_000 {
				t.Fatal("no end")
			}
			buf := make([]byte, a.Len())
			for at := 0; at < len(buf); {
				n, err := a.Read(buf[at:min(at+1+int(piece), len(buf))])
				if err != nil || n == 0 {
					t.Fatal(n, err)
				}
				at += n
			}
			n := min(len(buf), 1+int(take))
			a.Commit(n)
			if k, err := b.Write(buf[:n]); k != n || err != nil || b.Err() != nil {
				t.Fatal(k, err, b.Err())
			}
			drain(b)
		}
		if !reflect.DeepEqual(h.log, want) {
			t.Fatalf("got  %q\nwant %q", h.log, want)
		}
	})
}

// A recorder notes whole messages.
type recorder struct {
	strict
	log []string
	msg []byte
	to  uint64
	mid bool
}

func (r *recorder) PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error {
	if !r.mid {
		r.msg, r.to = nil, to
	}
	if len(chunk) > 0 && to != r.to+uint64(len(r.msg)) {
		return errors.New("TO jumps")
	}
	r.msg, r.mid = append(r.msg, chunk...), !last
	if last {
		r.log = append(r.log, fmt.Sprintf("write %d %x", stag, r.msg))
	}
	return nil
}
func (r *recorder) BeginReceive() (uint32, bool) { r.msg = nil; return 1 << 20, true }
func (r *recorder) PlaceReceive(off uint32, chunk []byte) error {
	if int(off) != len(r.msg) {
		return errors.New("MO jumps")
	}
	r.msg = append(r.msg, chunk...)
	return nil
}
func (r *recorder) EndReceive(d Received) error {
	if d.Immediate {
		r.log = append(r.log, fmt.Sprintf("immediate %d %t", d.Data, d.Solicited))
	} else {
		r.log = append(r.log, fmt.Sprintf("send %x", r.msg))
	}
	return nil
}
func (r *recorder) Atomic(a Atomic) (uint64, error) {
	r.log = append(r.log, a.String())
	return 0, nil
}
func (r *recorder) ReadSource(stag STag, _ uint64, n uint32) (Payload, error) {
	r.log = append(r.log, fmt.Sprintf("source %d %d", stag, n))
	return zeroes{}, nil
}
