package iwarp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// A stamped payload is a message of any length that is nowhere in memory: the first and the last 8
// octets of each piece say where they are in the message.
type stamped struct{ n uint32 }

func (s stamped) CopyOut(p []byte, off uint32) error {
	if uint64(off)+uint64(len(p)) > uint64(s.n) {
		return fmt.Errorf("%d octets at %d of %d", len(p), off, s.n)
	}
	stampOctets(p, uint64(off))
	return nil
}

func stampOctets(p []byte, off uint64) {
	if len(p) >= 16 {
		binary.BigEndian.PutUint64(p, off)
		binary.BigEndian.PutUint64(p[len(p)-8:], off+uint64(len(p)))
	}
}

// A virtual host stands for memory of 2^64 octets: it checks the stamps and that each piece begins
// where the one before ended.
type virtual struct {
	host
	to   uint64 // of the Write or the Read's source
	next uint64 // octets so far
	bad  error
}

func (v *virtual) place(off uint64, chunk []byte) error {
	if off != v.next && v.bad == nil {
		v.bad = fmt.Errorf("%d octets at %d, %d are there", len(chunk), off, v.next)
	}
	if n := len(chunk); n >= 16 && v.bad == nil {
		if a, b := binary.BigEndian.Uint64(chunk), binary.BigEndian.Uint64(chunk[n-8:]); a != off ||
			b != off+uint64(n) {
			v.bad = fmt.Errorf("octets of %d to %d at %d to %d", a, b, off, off+uint64(n))
		}
	}
	v.next += uint64(len(chunk))
	return v.bad
}

func (v *virtual) PlaceWrite(_ STag, to uint64, chunk []byte, last bool) error {
	return v.place(to-v.to, chunk)
}
func (v *virtual) BeginReceive() (uint32, bool) { return math.MaxUint32, true }
func (v *virtual) PlaceReceive(off uint32, chunk []byte) error {
	return v.place(uint64(off), chunk)
}
func (v *virtual) PlaceRead(off uint32, chunk []byte) error { return v.place(uint64(off), chunk) }
func (v *virtual) EndReceive(r Received) error {
	v.received = append(v.received, r)
	return nil
}
func (v *virtual) EndRead(token uint64) error { v.order = append(v.order, token); return nil }
func (v *virtual) EndReadSource(Payload)      {}
func (v *virtual) Sent(token uint64)          { v.sent = append(v.sent, token) }
func (v *virtual) ReadSource(_ STag, to uint64, n uint32) (Payload, error) {
	if to != v.to {
		return nil, fmt.Errorf("TO %#x", to)
	}
	return stamped{n}, nil
}

// An unchecked host takes octets anywhere.
type unchecked struct{ virtual }

func (*unchecked) PlaceReceive(uint32, []byte) error { return nil }

// DDP-001, RDMAP-002, RDMAP-032: Sends, Writes and Reads of 0 to 2^32-1 octets, segments as long as
// they can be, so that no MO and no TO is a round number; the TO of the longest ends at 2^64-1.
func TestLongMessages(t *testing.T) {
	buf := make([]byte, 1<<20)
	for _, n := range []uint32{0, 1, 1<<31 - 1, 1 << 31, math.MaxUint32 - 1, math.MaxUint32} {
		to := math.MaxUint64 - uint64(n)
		for name, post := range map[string]func(e *Endpoint) error{
			"Send":  func(e *Endpoint) error { return e.PostSend(7, OpSend, 0, stamped{n}, n) },
			"Write": func(e *Endpoint) error { return e.PostWrite(7, 0x10, to, stamped{n}, n) },
			"Read":  func(e *Endpoint) error { return e.PostRead(7, 0x99, to, n, 0x10, to) },
		} {
			ha, hb := &virtual{to: to}, &virtual{to: to}
			a := NewEndpoint(Params{Initiator: true, IRD: 1, ORD: 1, RTR: RTRWrite}, ha,
				Config{EMSS: 65483, BatchBytes: len(buf)})
			b := NewEndpoint(Params{IRD: 1, ORD: 1}, hb, Config{EMSS: 65483, BatchBytes: len(buf)})
			sink, source := hb, a
			if name == "Read" {
				sink, source = ha, b
			}
			move := func(from, to *Endpoint) {
				for from.Pending() {
					k, err := from.Read(buf[:from.Len()])
					from.Commit(k)
					if w, errw := to.Write(buf[:k]); err != nil || w != k || errw != nil || to.Err() != nil {
						t.Fatalf("%s of %d: %v, %v, %v", name, n, err, errw, to.Err())
					}
				}
			}
			hb.to = 0
			move(a, b) // the ready-to-receive message, to TO 0
			hb.to = to
			if err := post(a); err != nil {
				t.Fatal(err)
			}
			move(a, b)
			move(b, a)
			if sink.next != uint64(n) || sink.bad != nil || fmt.Sprint(ha.sent) != "[7]" {
				t.Errorf("%s of %d: %d octets, %v, sent %v", name, n, sink.next, sink.bad, ha.sent)
			}
			segs := source.Stats().FPDUsOut
			if per := uint64(source.MULPDU() - UntaggedHeaderLen); segs < uint64(n)/(per+4) ||
				segs > uint64(n)/per+3 {
				t.Errorf("%s of %d: %d FPDUs", name, n, segs)
			}
			switch name {
			case "Send":
				if len(hb.received) != 1 || hb.received[0].Length != n {
					t.Errorf("received %+v", hb.received)
				}
			case "Read":
				if fmt.Sprint(ha.order) != "[7]" {
					t.Errorf("answered %v", ha.order)
				}
			}
			if !a.Idle() || !b.Idle() {
				t.Errorf("%s of %d: not idle", name, n)
			}
		}
	}
}

// DDP-001, 080, 081: MO at the border of 2^32 does not wrap.
func TestMOBorder(t *testing.T) {
	const end = math.MaxUint32
	for _, tt := range []struct {
		mo   uint32
		n    int
		last bool
		want TermCode // zero: placed
	}{
		{end - 1, 1, false, TermCode{}},
		{end, 0, false, TermCode{}},
		{end, 1, false, TermInvalidMO},
		{end - 1, 2, false, TermMessageTooLong},
		{0xfffffff0, 15, false, TermCode{}},
		{0xfffffff0, 16, false, TermMessageTooLong},
		{0xfffffff0, 32, true, TermMessageTooLong}, // MO + n is 16, modulo 2^32
		{end - 1, 1, true, TermInvalidMO},          // the rest has not come
		{end, 0, true, TermInvalidMO},
	} {
		h := &virtual{next: uint64(tt.mo)}
		e := NewEndpoint(responder, h, Config{})
		seg := append(AppendUntagged(nil, tt.last, OpSend, 0, 1, tt.mo), make([]byte, tt.n)...)
		if tt.n >= 16 {
			stampOctets(seg[18:], uint64(tt.mo))
		}
		e.Write(AppendFPDU(nil, seg, true))
		var le *LocalError
		errors.As(e.Err(), &le)
		switch {
		case tt.want == TermCode{} && (e.Err() != nil || h.next != uint64(tt.mo)+uint64(tt.n)):
			t.Errorf("%d octets at %#x: %v, %#x", tt.n, tt.mo, e.Err(), h.next)
		case tt.want != TermCode{} && (le == nil || le.Cause != tt.want || h.next != uint64(tt.mo) ||
			len(h.received) > 0):
			t.Errorf("%d octets at %#x: %v, want %v", tt.n, tt.mo, e.Err(), tt.want)
		}
	}
	// The count of octets does not wrap either: 2^32 too many are not none.
	e := NewEndpoint(Params{}, &unchecked{}, Config{})
	again := AppendFPDU(nil, append(AppendUntagged(nil, false, OpSend, 0, 1, 0),
		make([]byte, 1<<15)...), false)
	for range 1 << 17 {
		e.Write(again)
	}
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	e.Write(AppendFPDU(nil, sendSeg(OpSend, true, 1, 0, 5), false))
	if got := cause(e.Err()); got != "1/2/04" {
		t.Errorf("2^32 octets twice: %s", got)
	}
	// A Read may ask for more than the region has, up to all there can be.
	for _, n := range []uint32{65, 1 << 31, end} {
		r := newRaw(responder, true)
		req := readReq(1, n, 0x10, 0)
		r.Write(AppendFPDU(nil, req, true))
		if out := drain(r); string(out) != string(wantTerminate("0101e000", "dr", req)) {
			t.Errorf("Read of %d octets: sent %x", n, out)
		}
	}
}
