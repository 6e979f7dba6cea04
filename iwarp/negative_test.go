package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// A raw is an Endpoint whose peer is the test, octet by octet.
type raw struct {
	*Endpoint
	h *host
}

// newRaw makes the Endpoint under test. open lets one good FPDU in first, so that a Responder may
// send a Terminate.
func newRaw(p Params, open bool) *raw { return newRawExt(p, open, false) }

// newRawExt is newRaw with the extensions of RFC 7306, if ext is set.
func newRawExt(p Params, open, ext bool) *raw {
	r := &raw{h: newHost()}
	r.Endpoint = NewEndpoint(p, r.h, Config{EMSS: 1460, Extensions: ext})
	r.h.mem[0x10] = make([]byte, 64)
	if open {
		r.Write(AppendFPDU(nil, AppendTagged(nil, true, OpWrite, 0, 0), p.CRC))
		r.h.log = nil
	}
	return r
}

var responder = Params{Revision: 2, CRC: true, IRD: 2, ORD: 2}

func sendSeg(op Opcode, last bool, msn MSN, mo uint32, n int) []byte {
	return append(AppendUntagged(nil, last, op, 0x77, msn, mo), pattern(n, 0)...)
}

func writeSeg(op Opcode, last bool, stag STag, to uint64, n int) []byte {
	return append(AppendTagged(nil, last, op, stag, to), pattern(n, 0)...)
}

func readReq(msn MSN, n uint32, src STag, to uint64) []byte {
	return AppendReadRequest(AppendUntagged(nil, true, OpReadRequest, 0, msn, 0), 0xdead, 0xbeef,
		n, src, to)
}

// with changes octet i of seg.
func with(seg []byte, i int, to byte) []byte {
	seg = slices.Clone(seg)
	seg[i] = to
	return seg
}

// withQN changes the queue of an untagged segment.
func withQN(seg []byte, qn uint32) []byte {
	seg = slices.Clone(seg)
	binary.BigEndian.PutUint32(seg[6:], qn)
	return seg
}

// A fatal case: good segments, then a bad one, and the control field of the one Terminate that is
// to come back, as figure 8 has it. mdr is 0, or says which copies follow: "d" or "dr".
type fatal struct {
	name    string
	ids     string // of docs/conformance.md
	good    [][]byte
	bad     []byte
	control string
	mdr     string
	setup   func(r *raw)
	only    string // "off" or "on": not the same with and without extensions
}

func fatals() (tt []fatal) {
	add := func(ids, name, control, mdr string, bad []byte, good ...[]byte) *fatal {
		tt = append(tt, fatal{name: name, ids: ids, good: good, bad: bad, control: control, mdr: mdr})
		return &tt[len(tt)-1]
	}
	refuse := func(c TermCode, on string) func(*raw) {
		return func(r *raw) {
			r.h.posted = [][]byte{make([]byte, 100)}
			r.h.broken = func(op string) error {
				if op == on {
					return &LocalError{Cause: c, Err: errors.New("refused")}
				}
				return nil
			}
		}
	}
	// a Read of 8 octets into (0x99, 5)
	read := func(n uint32) func(*raw) {
		return func(r *raw) {
			r.h.order, r.h.sinks[7] = []uint64{7}, make([]byte, n)
			if err := r.PostRead(7, 0x99, 5, n, 0x10, 0); err != nil {
				panic(err)
			}
			drain(r)
		}
	}
	write, send := writeSeg(OpWrite, true, 0x10, 0, 8), sendSeg(OpSend, true, 1, 0, 5)

	// versions and opcodes
	for dv := range byte(4) {
		if dv == 1 {
			continue
		}
		add("DDP-025", fmt.Sprintf("tagged DV %d", dv), "1104c000", "d", with(write, 0, 0xc0|dv))
		add("DDP-026", fmt.Sprintf("untagged DV %d", dv), "1206c000", "d", with(send, 0, 0x40|dv))
		add("DDP-026", fmt.Sprintf("untagged DV %d in the second segment", dv), "1206c000", "d",
			with(sendSeg(OpSend, true, 1, 5, 5), 0, 0x40|dv), sendSeg(OpSend, false, 1, 0, 5)).setup =
			post(100)
		add("RDMAP-118", fmt.Sprintf("tagged RV %d", dv), "0205c000", "d", with(write, 1, dv<<6))
		add("RDMAP-118", fmt.Sprintf("untagged RV %d", dv), "0205c000", "d", with(send, 1, dv<<6|3))
	}
	for op := byte(8); op < 16; op++ {
		row := add("RDMAP-117, EXT-003", fmt.Sprintf("untagged opcode %d", op), "0206c000", "d",
			with(send, 1, 0x40|op))
		if op < 12 {
			row.only = "off"
		}
		add("RDMAP-117", fmt.Sprintf("tagged opcode %d", op), "0206c000", "d", with(write, 1, 0x40|op))
	}
	for op := range byte(8) {
		seg := sendSeg(OpSend, true, 1, 0, 8)
		if op != byte(OpWrite) && op != byte(OpReadResponse) {
			seg = writeSeg(OpWrite, true, 0x10, 0, 8)
		}
		add("RDMAP-021", fmt.Sprintf("%v with the wrong T", Opcode(op)), "0206c000", "d",
			with(seg, 1, 0x40|op))
	}
	// queues
	for _, qn := range []uint32{3, 4, 0xffffffff} {
		row := add("DDP-076", fmt.Sprintf("QN %#x", qn), "1201c000", "d", withQN(send, qn))
		if qn == 3 { // Atomic Responses, which the extensions have
			row.only = "off"
		}
	}
	for _, x := range []struct {
		op Opcode
		qn uint32
	}{{OpSend, 1}, {OpSend, 2}, {OpSendSEInvalidate, 1}, {OpReadRequest, 0}, {OpReadRequest, 2},
		{OpTerminate, 0}, {OpTerminate, 1}} {
		add("RDMAP-023, RDMAP-077", fmt.Sprintf("%v on QN %d", x.op, x.qn), "0206c000", "d",
			withQN(sendSeg(x.op, true, 1, 0, 28), x.qn))
	}
	// order of the checks: A20
	add("A20", "DV before RV", "1104c000", "d", with(with(write, 0, 0xc2), 1, 0))
	add("A20", "RV before opcode", "0205c000", "d", with(send, 1, 0x0f))
	add("A20", "opcode before QN", "0206c000", "d", with(withQN(send, 9), 1, 0x4c))
	add("A20", "T before QN", "0206c000", "d", with(withQN(send, 9), 1, 0x40))
	add("A20", "QN before MSN", "1201c000", "d", withQN(sendSeg(OpSend, true, 5, 0, 1), 9))
	add("A20", "MSN before buffer", "1203c000", "d", sendSeg(OpSend, true, 5, 0, 1))

	// Sends
	add("DDP-082", "MSN 0", "1203c000", "d", sendSeg(OpSend, true, 0, 0, 5)).setup = post(100)
	add("DDP-082", "MSN skipped", "1203c000", "d", sendSeg(OpSend, true, 2, 0, 5)).setup = post(100,
		100)
	add("DDP-082", "MSN again", "1203c000", "d", send, send).setup = post(100, 100)
	add("DDP-082", "next MSN before L", "1203c000", "d", sendSeg(OpSend, true, 2, 0, 5),
		sendSeg(OpSend, false, 1, 0, 5)).setup = post(100, 100)
	add("DDP-080", "MO at the end", "1204c000", "d", sendSeg(OpSend, true, 1, 100, 5)).setup =
		post(100)
	add("DDP-080", "MO far", "1204c000", "d", sendSeg(OpSend, true, 1, 0xfffffff0, 32)).setup =
		post(100)
	add("A9", "empty, MO far", "1204c000", "d", sendSeg(OpSend, true, 1, 101, 0)).setup = post(100)
	add("A9", "empty with a false MO", "1204c000", "d", sendSeg(OpSend, true, 1, 5, 0)).setup =
		post(100)
	add("DDP-054", "gap", "1204c000", "d", sendSeg(OpSend, true, 1, 6, 5), sendSeg(OpSend, false, 1, 0,
		5)).setup = post(100)
	add("DDP-054", "octets again", "1204c000", "d", sendSeg(OpSend, true, 1, 5, 5),
		sendSeg(OpSend, false, 1, 0, 5), sendSeg(OpSend, false, 1, 0, 5)).setup = post(100)
	add("DDP-081, RDMAP-065", "too long", "1205c000", "d", sendSeg(OpSend, true, 1, 0, 101)).setup =
		post(100)
	add("DDP-081", "too long, in two", "1205c000", "d", sendSeg(OpSend, true, 1, 60, 41),
		sendSeg(OpSend, false, 1, 0, 60)).setup = post(100)
	add("DDP-081", "too long for nothing", "1205c000", "d", send).setup = post(0)
	add("RDMAP-073", "invalidate of a foreign STag", "0109c000", "d", sendSeg(OpSendInvalidate, true,
		1, 0, 5)).setup = refuse(TermInvalidateNotAssociated, "EndReceive")
	add("RDMAP-073, SEC-038", "invalidate of an unknown STag", "0209c000", "d",
		sendSeg(OpSendSEInvalidate, true, 1, 0, 5)).setup = refuse(TermCannotInvalidate, "EndReceive")
	add("A23", "receive buffer lost", "10000000", "", send).setup = refuse(TermDDPCatastrophic,
		"PlaceReceive")
	add("RDMAP-041", "anything else", "10000000", "", send).setup = func(r *raw) {
		r.h.posted = [][]byte{make([]byte, 100)}
		r.h.broken = func(string) error { return errors.New("no LocalError") }
	}

	// Writes
	for code, c := range []TermCode{TermInvalidSTag, TermBounds, TermNotAssociated, TermTOWrap} {
		add("DDP-083..088", c.String(), fmt.Sprintf("11%02xc000", code), "d", write).setup = refuse(c,
			"PlaceWrite")
	}
	add("DDP-083, E6", "unknown STag", "1100c000", "d", writeSeg(OpWrite, true, 0xbad0ff, 0x4000, 32))
	add("DDP-087", "an octet beyond", "1101c000", "d", writeSeg(OpWrite, true, 0x10, 57, 8))
	add("DDP-088", "TO wraps", "1103c000", "d", writeSeg(OpWrite, true, 0x10, ^uint64(3), 8))

	// Read Requests
	for code, c := range []TermCode{TermReadInvalidSTag, TermReadBounds, TermReadAccess,
		TermReadNotAssociated, TermReadTOWrap} {
		add("RDMAP-114, 120..124", c.String(), fmt.Sprintf("01%02xe000", code), "dr",
			readReq(1, 8, 0x10, 0)).setup = refuse(c, "ReadSource")
	}
	add("RDMAP-120, E7", "unknown STag", "0100e000", "dr", readReq(1, 4096, 0xbad0ff, 0x10))
	add("A22", "remote operation error", "0207c000", "d", readReq(1, 8, 0x10, 0)).setup = refuse(
		TermStreamCatastrophic, "ReadSource")
	add("RDMAP-112", "source lost", "00ff0000", "", readReq(1, 8, 0x10, 0)).setup = func(r *raw) {
		r.h.broken = func(string) error { return errors.New("no LocalError") }
	}
	add("DDP-082", "Read with MSN 2", "1203c000", "d", readReq(2, 8, 0x10, 0))
	add("DDP-082", "Read with MSN 1 again", "1203c000", "d", readReq(1, 8, 0x10, 0),
		readReq(1, 8, 0x10, 0))
	add("A5, RDMAP-102, SEC-036", "more Reads than IRD", "1202c000", "d", readReq(3, 8, 0x10, 0),
		readReq(1, 8, 0x10, 0), readReq(2, 8, 0x10, 0))
	for _, n := range []int{0, 27} {
		add("A16, RDMAP-005", fmt.Sprintf("Read Request of %d octets", n), "02ffc000", "d",
			readReq(1, 8, 0x10, 0)[:18+n])
	}
	add("A16, RDMAP-027", "Read Request of 29 octets", "02ffc000", "d",
		append(readReq(1, 8, 0x10, 0), 0))
	add("A16", "Read Request of 32 octets", "02ffc000", "d", append(readReq(1, 8, 0x10, 0), 0,
		0, 0, 0))
	add("A16", "Read Request of 20 and 9 octets", "02ffc000", "d",
		append(AppendUntagged(nil, true, OpReadRequest, 0, 1, 20), make([]byte, 9)...),
		with(readReq(1, 8, 0x10, 0)[:38], 0, 1))
	add("A10", "Read Request with a gap", "1204c000", "d",
		append(AppendUntagged(nil, true, OpReadRequest, 0, 1, 20), make([]byte, 8)...))
	add("DDP-080", "Read Request with MO 29", "1204c000", "d",
		append(AppendUntagged(nil, true, OpReadRequest, 0, 1, 29), make([]byte, 8)...))

	// Read Responses
	add("RDMAP-068", "unsolicited Response", "0206c000", "d", writeSeg(OpReadResponse, true,
		0x99, 5, 8))
	add("RDMAP-068", "second Response", "0206c000", "d", writeSeg(OpReadResponse, true, 0x99, 5, 8),
		writeSeg(OpReadResponse, true, 0x99, 5, 8)).setup = read(8)
	add("RDMAP-062", "Response with another STag", "1100c000", "d", writeSeg(OpReadResponse, true,
		0x98, 5, 8)).setup = read(8)
	add("RDMAP-062", "Response with another TO", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99,
		6, 8)).setup = read(8)
	add("A10", "Response with a gap", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99, 10, 3),
		writeSeg(OpReadResponse, false, 0x99, 5, 4)).setup = read(8)
	add("RDMAP-068", "Response too long", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99, 5,
		9)).setup = read(8)
	add("RDMAP-068", "Response too long, in two", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99,
		10, 4), writeSeg(OpReadResponse, false, 0x99, 5, 5)).setup = read(8)
	add("RDMAP-068, SEC-011", "Response too long, not the last", "1101c000", "d",
		writeSeg(OpReadResponse, false, 0x99, 5, 9)).setup = read(8)
	add("RDMAP-068, SEC-011", "Response that goes on", "1101c000", "d", writeSeg(OpReadResponse, false,
		0x99, 13, 1), writeSeg(OpReadResponse, false, 0x99, 5, 8)).setup = read(8)
	add("RDMAP-068", "Response too short", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99, 5,
		7)).setup = read(8)
	add("A25", "empty Response to a Read of 8", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99,
		5, 0)).setup = read(8)
	add("A25", "Response of 1 to an empty Read", "1101c000", "d", writeSeg(OpReadResponse, true, 0x99,
		5, 1)).setup = read(0)
	add("A23", "sink lost", "10000000", "", writeSeg(OpReadResponse, true, 0x99, 5, 8)).setup =
		func(r *raw) {
			read(8)(r)
			r.h.broken = func(string) error { return errors.New("gone") }
		}

	// messages within others
	add("A7", "Send within a Send of another kind", "0206c000", "d", sendSeg(OpSendSE, true, 1, 5, 5),
		sendSeg(OpSend, false, 1, 0, 5)).setup = post(100)
	add("A7", "Read Request within a Send", "0206c000", "d", readReq(1, 8, 0x10, 0),
		sendSeg(OpSend, false, 1, 0, 5)).setup = post(100)
	add("A7", "Response within a Write", "0206c000", "d", writeSeg(OpReadResponse, true, 0x99, 5, 8),
		writeSeg(OpWrite, false, 0x10, 0, 8)).setup = read(8)
	add("A7", "Write within a Response", "0206c000", "d", write, writeSeg(OpReadResponse, false, 0x99,
		5, 4)).setup = read(8)
	add("A7", "two Sends behind an unfinished Write", "0206c000", "d", sendSeg(OpSend, true, 2, 0, 5),
		writeSeg(OpWrite, false, 0x10, 0, 8), send).setup = post(100, 100)

	// Terminates
	add("RDMAP-077", "Terminate with MSN 2", "1203c000", "d", sendSeg(OpTerminate, true, 2, 0, 4))
	add("RDMAP-077", "Terminate with MO 4", "1204c000", "d", sendSeg(OpTerminate, true, 1, 4, 4))

	// too short for a header
	add("DDP-042", "ULPDU of 0", "20030000", "", nil)
	for _, n := range []int{1, 2, 13} {
		add("DDP-042", fmt.Sprintf("tagged ULPDU of %d", n), "20030000", "", write[:n])
	}
	for _, n := range []int{1, 14, 17} {
		add("DDP-042", fmt.Sprintf("untagged ULPDU of %d", n), "20030000", "", send[:n])
	}
	return append(tt, extFatals()...)
}

// wantTerminate is the FPDU of the Terminate for seg, built apart from the engine.
func wantTerminate(control, mdr string, seg []byte) []byte {
	b := unhex("4147 00000000 00000002 00000001 00000000" + control)
	if mdr != "" {
		hdr := 18
		if seg[0]&0x80 != 0 {
			hdr = 14
		}
		b = append(b, byte(len(seg)>>8), byte(len(seg)))
		b = append(b, seg[:hdr]...)
	}
	if mdr == "dr" {
		b = append(b, seg[18:46]...)
	}
	return AppendFPDU(nil, b, true)
}

// Every cause of a Terminate that the engine raises: exactly one Terminate, octet for octet
// (DDP-093, RDMAP-034, RDMAP-105); nothing of the bad segment nor of what follows is placed
// (DDP-089, DDP-091); the same wherever TCP cut the octets.
func TestFatal(t *testing.T) {
	for _, tt := range fatals() {
		for _, ext := range []bool{false, true} {
			if ext && tt.only == "off" || !ext && tt.only == "on" {
				continue
			}
			t.Run(fmt.Sprintf("%s (%s), extensions %t", tt.name, tt.ids, ext),
				func(t *testing.T) { testFatal(t, tt, ext) })
		}
	}
}

// asked is how many Reads and atomics were asked for, by the host's log: each is answered ahead of
// a Terminate (RDMAP-053).
func asked(log []string) (n int) {
	for _, s := range log {
		if strings.HasPrefix(s, "source ") || strings.Contains(s, ", was ") {
			n++
		}
	}
	return n
}

func wantAnswer(t *testing.T, seg []byte) {
	t.Helper()
	if op := RDMAPControl(seg[1]).Opcode(); op != OpReadResponse && op != OpAtomicResponse {
		t.Errorf("sent %s, want an answer", DescribeSegment(seg))
	}
}

func testFatal(t *testing.T, tt fatal, ext bool) {
	for _, cut := range []int{1 << 20, 1, 17} {
		r := newRawExt(responder, true, ext)
		if tt.setup != nil {
			tt.setup(r)
		}
		var in []byte
		for _, seg := range tt.good {
			in = AppendFPDU(in, seg, true)
		}
		feed := func(b []byte) {
			for ; len(b) > 0; b = b[min(cut, len(b)):] {
				if n, err := r.Write(b[:min(cut, len(b))]); n != min(cut, len(b)) || err != nil {
					t.Fatalf("took %d, %v", n, err)
				}
			}
		}
		feed(in)
		if r.Err() != nil {
			t.Fatalf("the good segments: %v", r.Err())
		}
		log, mem := slices.Clone(r.h.log), slices.Clone(r.h.mem[0x10])
		in = AppendFPDU(nil, tt.bad, true)
		for range 10 { // DDP-091
			in = AppendFPDU(in, append(AppendTagged(nil, true, OpWrite, 0x10, 0), 0xee, 0xee, 0xee), true)
		}
		feed(in)

		var le *LocalError
		if !errors.As(r.Err(), &le) {
			t.Fatalf("Err() = %v", r.Err())
		}
		// Taking a buffer is no delivery.
		got := slices.DeleteFunc(slices.Clone(r.h.log[len(log):]),
			func(s string) bool { return s[:5] == "begin" })
		if len(got) > 0 || !bytes.Equal(mem, r.h.mem[0x10]) {
			t.Errorf("still did %q", got)
		}
		if !r.Terminating() || r.Drained() {
			t.Error("no Terminate is waiting")
		}
		want := wantTerminate(tt.control, tt.mdr, tt.bad)
		out := drain(r)
		for range asked(log) {
			n := FPDULen(int(binary.BigEndian.Uint16(out)))
			wantAnswer(t, out[2:n])
			out = out[n:]
		}
		if !bytes.Equal(out, want) {
			t.Errorf("cut %d: sent\n%x\nwant\n%x\n(%v)", cut, out, want, le)
		}
		if r.Terminating() || !r.Drained() || r.Pending() {
			t.Error("not over behind the Terminate") // RDMAP-079
		}
		if err := r.PostWrite(1, 1, 1, nil, 0); !errors.Is(err, ErrEnded) {
			t.Errorf("post: %v", err)
		}
	}
}

// DDP-010, MPA-090, 094, 095, 097, RDMAP-041: each bit of an FPDU behind its length.
func TestCRCErrors(t *testing.T) {
	good := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 9), true)
	for bit := 16; bit < len(good)*8; bit++ {
		r := newRaw(responder, true)
		b := slices.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		r.Write(append(b, good...))
		if len(r.h.log) > 0 || !bytes.Equal(r.h.mem[0x10], make([]byte, 64)) {
			t.Errorf("bit %d: placed %q", bit, r.h.log)
		}

		if out := drain(r); !bytes.Equal(out,
			unhex("0016 4147 00000000 00000002 00000001 00000000 20020000 7fe42585")) {
			t.Errorf("bit %d: sent %x", bit, out)
		}
		if r.Stats().CRCErrors != 1 {
			t.Errorf("bit %d: %+v", bit, r.Stats())
		}
	}
}

// MPA-084, M12: a Responder whose first FPDU is not valid says nothing; an
// Initiator does; and a valid FPDU with a bad segment opens the gate for its Terminate.
func TestFirstFPDUInvalid(t *testing.T) {
	bad := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 9), true)
	bad[20] ^= 1
	r := newRaw(responder, false)
	r.Write(bad)
	if r.Err() == nil || r.Pending() || r.Terminating() || !r.Drained() || r.Established() {
		t.Errorf("responder: %v, %x", r.Err(), drain(r))
	}
	p := responder
	p.Initiator = true
	r = newRaw(p, false)
	r.Write(bad)
	if out := drain(r); !bytes.Equal(out, wantTerminate("20020000", "", nil)) {
		t.Errorf("initiator sent %x", out)
	}
	r = newRaw(responder, false)
	seg := writeSeg(OpWrite, true, 0xbad, 0, 9)
	r.Write(AppendFPDU(nil, seg, true))
	if out := drain(r); !bytes.Equal(out, wantTerminate("1100c000", "d", seg)) || !r.Established() {
		t.Errorf("responder sent %x", out)
	}
}

// MPA-032: with CRCs off any content of the field is good; MPA-013: the pad is not looked at.
func TestCRCOffAndPad(t *testing.T) {
	p := responder
	p.CRC = false
	r := newRaw(p, false)
	for _, crc := range []string{"ffffffff", "00000000", "12345678"} {
		b := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 8), false)
		copy(b[len(b)-4:], unhex(crc))
		r.Write(b)
	}
	if r.Err() != nil || len(r.h.log) != 3 {
		t.Errorf("%v, %q", r.Err(), r.h.log)
	}
	r = newRaw(responder, false)
	r.h.posted = [][]byte{make([]byte, 10)}
	b := AppendFPDU(nil, sendSeg(OpSend, true, 1, 0, 5), true)
	copy(b[25:28], "\xff\xff\xff")
	CRC(0).Add(b[:28]).Put(b[28:])
	r.Write(b)
	if r.Err() != nil || len(r.h.received) != 1 || r.h.received[0].Length != 5 {
		t.Errorf("pad ffffff: %v, %v", r.Err(), r.h.received)
	}
}

// MPA-014, MPA-101, M7: the longest FPDUs, whole and octet by octet.
func TestLongFPDU(t *testing.T) {
	for _, ulpdu := range []int{64768, 65474, 65535} {
		for _, cut := range []int{1 << 20, 1, 4096} {
			r := newRaw(responder, false)
			r.h.mem[0x10] = make([]byte, 70000)
			b := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 3, ulpdu-14), true)
			for ; len(b) > 0; b = b[min(cut, len(b)):] {
				r.Write(b[:min(cut, len(b))])
			}
			if r.Err() != nil || !bytes.Equal(r.h.mem[0x10][3:][:ulpdu-14], pattern(ulpdu-14, 0)) {
				t.Errorf("%d octets in pieces of %d: %v", ulpdu, cut, r.Err())
			}
		}
	}
}

// RDMAP-076, 080, 126, A26, S8: inbound Terminates end the stream at once.
func TestPeerTerminate(t *testing.T) {
	term := append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0),
		unhex("0100e000 002e 4141 00000000 00000001 00000001 00000000"+
			"00000099 0000000000000005 00000008 00000010 0000000000000000")...)
	swapped := append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0),
		unhex("21020300 0007 4143 00000000 00000000 00000003 00000000")...)
	for _, tt := range []struct {
		name string
		seg  []byte
		want PeerError
	}{
		{"figure 8", term, PeerError{TermReadInvalidSTag, false}},
		{"siw", swapped, PeerError{TermNoBuffer, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRaw(responder, true)
			r.h.order, r.h.sinks[7] = []uint64{7}, make([]byte, 8)
			if err := r.PostRead(7, 0x99, 5, 8, 0x10, 0); err != nil {
				t.Fatal(err)
			}
			drain(r)
			if err := r.PostSend(8, OpSend, 0, &payload{b: make([]byte, 5)}, 5); err != nil {
				t.Fatal(err)
			}
			// in the middle of the Response and of a Send, and cut in two (A24)
			r.h.posted = [][]byte{make([]byte, 100)}
			in := AppendFPDU(nil, sendSeg(OpSend, false, 1, 0, 5), true)
			first := with(tt.seg[:28], 0, 0x01)
			second := append(AppendUntagged(nil, true, OpTerminate, 0, 1, 10), tt.seg[28:]...)
			in = AppendFPDU(AppendFPDU(in, first, true), second, true)
			in = AppendFPDU(in, writeSeg(OpWrite, true, 0x10, 0, 8), true)
			r.Write(in)
			var pe *PeerError
			if !errors.As(r.Err(), &pe) || *pe != tt.want {
				t.Fatalf("Err() = %v", r.Err())
			}
			if r.Pending() || r.Terminating() || !r.Drained() {
				t.Error("still sends")
			}
			if c, sent, ok := r.Terminate(); !ok || sent || c.Cause != tt.want.Cause || len(c.Header) != 18 {
				t.Errorf("Terminate() = %v, %t, %t", c, sent, ok)
			}
			if len(r.h.log) != 2 { // the Read Request went out, a buffer was taken
				t.Errorf("did %q", r.h.log)
			}
		})
	}
}

// RDMAP-077: a Terminate that is too short or too long is an error, ends the stream, and is not
// answered.
func TestBadTerminate(t *testing.T) {
	for _, segs := range [][][]byte{
		{sendSeg(OpTerminate, true, 1, 0, 0)},
		{sendSeg(OpTerminate, true, 1, 0, 3)},
		{sendSeg(OpTerminate, true, 1, 0, 81)},
		{sendSeg(OpTerminate, false, 1, 0, 80), sendSeg(OpTerminate, true, 1, 80, 1)},
	} {
		r := newRaw(responder, true)
		if err := r.PostSend(8, OpSend, 0, &payload{b: make([]byte, 5)}, 5); err != nil {
			t.Fatal(err)
		}
		in := AppendFPDU(nil, readReq(1, 10, 0x10, 0), true) // what it waits for is not sent either
		for _, seg := range segs {
			in = AppendFPDU(in, seg, true)
		}
		r.Write(AppendFPDU(in, writeSeg(OpWrite, true, 0x10, 0, 8), true))
		var le *LocalError
		if !errors.As(r.Err(), &le) || le.Cause != TermRemoteOperation {
			t.Fatalf("%x: Err() = %v", segs, r.Err())
		}
		if r.Pending() || r.Terminating() || !r.Drained() || len(r.h.log) != 1 ||
			r.Stats().LocalErrors != 1 {
			t.Errorf("%x: still sends %x, did %q", segs, drain(r), r.h.log)
		}
	}
}

// S8: siw's Terminates of the set-up carry no CRC; other FPDUs without one are damaged.
func TestStartupTerminateWithoutCRC(t *testing.T) {
	r := newRaw(responder, false)
	r.Write(AppendFPDU(nil, append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0),
		unhex("02070000")...), false))
	var pe *PeerError
	if !errors.As(r.Err(), &pe) || pe.Cause != TermNoRTR || !pe.Swapped {
		t.Errorf("Err() = %v", r.Err())
	}
	p := responder
	p.CRC = false // then it is told by the phase alone
	r = newRaw(p, false)
	r.Write(AppendFPDU(nil, append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0),
		unhex("02060000")...), false))
	if !errors.As(r.Err(), &pe) || pe.Cause != TermInsufficientIRD || !pe.Swapped {
		t.Errorf("without CRCs: Err() = %v", r.Err())
	}
	for name, in := range map[string][]byte{
		"not LLP": AppendFPDU(nil, append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0),
			unhex("00ff0000")...), false),
		"a Send": AppendFPDU(nil, sendSeg(OpSend, true, 1, 0, 5), false),
		"too late": append(AppendFPDU(nil, writeSeg(OpWrite, true, 0, 0, 0), true),
			AppendFPDU(nil, append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0), unhex("20070000")...),
				false)...),
	} {
		r := newRaw(responder, false)
		r.Write(in)
		var le *LocalError
		if !errors.As(r.Err(), &le) || le.Cause != TermCRC {
			t.Errorf("%s: %v", name, r.Err())
		}
	}
}
