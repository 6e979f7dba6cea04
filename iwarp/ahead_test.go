package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A queueHost is a host with several receives in progress.
type queueHost struct {
	*host
	begun [][]byte
}

func (q *queueHost) BeginReceive() (uint32, bool) {
	if len(q.posted) == 0 {
		return 0, false
	}
	b := q.posted[0]
	q.posted = q.posted[1:]
	q.begun = append(q.begun, b)
	return uint32(len(b)), true
}

func (q *queueHost) PlaceReceive(off uint32, chunk []byte) error {
	return q.placeReceiveAt(0, off, chunk)
}

func (q *queueHost) placeReceiveAt(i int, off uint32, chunk []byte) error {
	if err := q.fault("PlaceReceive"); err != nil {
		return err
	}
	copy(q.begun[i][off:][:len(chunk)], chunk)
	return nil
}

func (q *queueHost) EndReceive(r Received) error {
	q.cur = q.begun[0]
	q.begun = q.begun[1:]
	return q.host.EndReceive(r)
}

func (q *queueHost) placeReadAt(token uint64, off uint32, chunk []byte) error {
	copy(q.sinks[token][off:][:len(chunk)], chunk)
	return nil
}

// newRecordEnd is an Endpoint on an LLP that keeps segments.
func newRecordEnd(p Params, cfg Config) (*Endpoint, *queueHost) {
	q := &queueHost{host: newHost()}
	cfg.Records = true
	if cfg.MULPDU == 0 {
		cfg.MULPDU = 516
	}
	cfg.PlaceReceive, cfg.PlaceRead = q.placeReceiveAt, q.placeReadAt
	return NewEndpoint(p, q, cfg), q
}

// What one end sends is bare segments, the MULPDU long, one at a time, and the passive end may send
// at once. ESDDP-030.
func TestRecordsSent(t *testing.T) {
	e, q := newRecordEnd(Params{CRC: true, MarkersOut: true, IRD: 1, ORD: 1}, Config{MULPDU: 128})
	if !e.Established() {
		t.Error("the passive end waits")
	}
	data := pattern(300, 1)
	e.PostSend(7, OpSend, 0, &payload{b: data}, 300)
	var got []byte
	for i := 0; e.Pending(); i++ {
		seg := make([]byte, e.Len())
		if i == 1 {
			e.SetMULPDU(200) // between segments
			seg = make([]byte, e.Len())
		}
		if n, err := e.Read(seg); n != len(seg) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		want := []int{128, 200, 18 + 300 - 110 - 182}[i]
		h, chunk, err := ParseUntagged(seg)
		if err != nil || len(seg) != want || int(h.MO()) != len(got) || h.DDP().Last() != (i == 2) {
			t.Errorf("segment %d: % x, %v", i, seg[:min(18, len(seg))], err)
		}
		if i == 2 {
			e.Commit(0) // there was no room: once more
			if e.Len() != want {
				t.Errorf("%d octets the second time", e.Len())
			}
			e.Read(seg)
		}
		e.Commit(len(seg))
		got = append(got, chunk...)
	}
	if !bytes.Equal(got, data) || fmt.Sprint(q.sent) != "[7]" || !e.Drained() {
		t.Errorf("%d octets, sent %v", len(got), q.sent)
	}
	if e.MULPDU() != 200 || e.Stats().OctetsOut != 300+3*18 {
		t.Errorf("MULPDU %d, %d octets", e.MULPDU(), e.Stats().OctetsOut)
	}
}

// What is placed ahead of order and what is not, and that a fault shows in its turn only.
//
// DDP-082: a window of posted buffers.
func TestAhead(t *testing.T) {
	write := func(stag STag, to uint64, text string) []byte {
		return append(AppendTagged(nil, true, OpWrite, stag, to), text...)
	}
	send := func(last bool, msn MSN, mo uint32, text string) []byte {
		return append(AppendUntagged(nil, last, OpSend, 0, msn, mo), text...)
	}
	resp := func(stag STag, to uint64, text string) []byte {
		return append(AppendTagged(nil, true, OpReadResponse, stag, to), text...)
	}
	spoil := func(b []byte, i int, x byte) []byte { b[i] ^= x; return b }
	for name, tt := range map[string]struct {
		seg    []byte
		placed bool
		code   TermCode // of the same segment in order, if it is the first
	}{
		"Write":                {seg: write(0x10, 4, "data"), placed: true},
		"Write, no STag":       {seg: write(0x11, 4, "data"), code: TermInvalidSTag},
		"Write, out of bounds": {seg: write(0x10, 62, "data"), code: TermBounds},
		"Write, wraps":         {seg: write(0x10, ^uint64(0), "data"), code: TermTOWrap},
		"Write, empty":         {seg: write(0x10, 4, "")},
		"Write, DDP version":   {seg: spoil(write(0x10, 4, "data"), 0, 2), code: TermTaggedVersion},
		"Write, RDMAP version": {seg: spoil(write(0x10, 4, "data"), 1, 0x40), code: TermRDMAPVersion},
		"Send":                 {seg: send(true, 1, 0, "data"), placed: true},
		"Send, next":           {seg: send(true, 2, 0, "data"), placed: true, code: TermMSNRange},
		"Send, no buffer":      {seg: send(true, 4, 0, "data"), code: TermMSNRange},
		"Send, far":            {seg: send(true, 1<<31, 0, "data"), code: TermMSNRange},
		"Send, before":         {seg: send(true, 0, 0, "data"), code: TermMSNRange},
		"Send, middle":         {seg: send(false, 1, 10, "data"), placed: true},
		"Send, MO":             {seg: send(true, 1, 21, "data"), code: TermInvalidMO},
		"Send, MO far":         {seg: send(true, 1, ^uint32(0), "data"), code: TermInvalidMO},
		"Send, too long":       {seg: send(true, 1, 17, "data"), code: TermMessageTooLong},
		"Send, QN":             {seg: spoil(send(true, 1, 0, "data"), 9, 1), code: TermUnexpectedOpcode},
		"Send as tagged": {seg: spoil(send(true, 1, 0, "data"), 0, 0x80),
			code: TermUnexpectedOpcode},
		"opcode": {seg: spoil(send(true, 1, 0, "data"), 1, 0x0f),
			code: TermUnexpectedOpcode},
		"response":            {seg: resp(0x99, 0, "data"), placed: true, code: TermBounds},
		"response, second":    {seg: resp(0x98, 4, "data"), placed: true, code: TermInvalidSTag},
		"response, which?":    {seg: resp(0x97, 4, "data"), code: TermInvalidSTag},
		"response, STag":      {seg: resp(0x11, 0, "data"), code: TermInvalidSTag},
		"response, behind it": {seg: resp(0x99, 30, "data"), code: TermBounds},
		"response, before it": {seg: resp(0x99, ^uint64(0), "data"), code: TermBounds},
		"too short":           {seg: []byte{0xc1}, code: TermMarker},
		"untagged and short":  {seg: send(true, 1, 0, "")[:17], code: TermMarker},
		"Read Request": {seg: append(AppendUntagged(nil, true, OpReadRequest, 0, 1, 0),
			make([]byte, 28)...)},
		"Terminate": {seg: append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0), 0,
			0, 0, 0)},
		"Immediate Data (none)": {seg: append(AppendUntagged(nil, true, OpImmediate, 0, 1, 0),
			make([]byte, 8)...), code: TermUnexpectedOpcode},
	} {
		setup := func() (*Endpoint, *queueHost) {
			e, q := newRecordEnd(Params{Initiator: true, IRD: 4, ORD: 8}, Config{})
			q.mem[0x10] = make([]byte, 64)
			q.posted = [][]byte{make([]byte, 20), make([]byte, 20), make([]byte, 20)}
			for i, stag := range []STag{0x99, 0x98, 0x97, 0x97} {
				q.sinks[uint64(i)] = make([]byte, 20)
				q.order = append(q.order, uint64(i))
				e.PostRead(uint64(i), stag, 0, 20, 1, 0)
			}
			for e.Pending() {
				b := make([]byte, e.Len())
				e.Read(b)
				e.Commit(len(b))
			}
			return e, q
		}
		e, q := setup()
		keep := e.Ahead(slices.Clone(tt.seg))
		hdr := UntaggedHeaderLen
		if tt.seg[0]&0x80 != 0 {
			hdr = TaggedHeaderLen
		}
		if want := map[bool]int{true: hdr, false: len(tt.seg)}[tt.placed]; keep != want ||
			e.Err() != nil {
			t.Errorf("%s: keeps %d of %d octets, want %d; %v", name, keep, len(tt.seg), want, e.Err())
		}
		where := slices.Concat(q.mem[0x10], q.sinks[0], q.sinks[1], slices.Concat(q.begun...))
		if bytes.Contains(where, []byte("data")) != tt.placed {
			t.Errorf("%s: placed: %q", name, where)
		}
		if n := len(q.received) + len(q.sinks) - len(q.order); n != 0 {
			t.Errorf("%s: %d deliveries", name, n)
		}
		// In its turn it is what it would have been.
		e.Segment(tt.seg[:keep], len(tt.seg))
		plain, _ := setup()
		plain.Segment(tt.seg, len(tt.seg))
		cause := func(e *Endpoint) (c TermCode, s string) {
			var le *LocalError
			if errors.As(e.Err(), &le) {
				return le.Cause, fmt.Sprintf("%v %x", le, terminateOf(e))
			}
			return c, fmt.Sprint(e.Err())
		}
		c1, s1 := cause(e)
		c2, s2 := cause(plain)
		if c1 != c2 || s1 != s2 || c1 != tt.code && tt.code != (TermCode{}) {
			t.Errorf("%s: %s\nin order %s\nwant %v", name, s1, s2, tt.code)
		}
	}
}

// A peer that begins many Sends and ends none holds a bounded number of receive buffers. SEC-028.
func TestAheadBuffers(t *testing.T) {
	for _, tt := range []struct {
		several bool // the owner can place into others than the oldest
		want    int
	}{{true, 16}, {false, 1}} {
		q := &queueHost{host: newHost()}
		cfg := Config{Records: true, MULPDU: 516}
		if tt.several {
			cfg.PlaceReceive = q.placeReceiveAt
		}
		e := NewEndpoint(Params{}, q, cfg)
		for range 100 {
			q.posted = append(q.posted, make([]byte, 20))
		}
		for msn := 100; msn > 0; msn-- {
			e.Ahead(append(AppendUntagged(nil, false, OpSend, 0, MSN(msn), 4), "data"...))
		}
		for msn := 1; msn <= 100; msn++ {
			e.Ahead(append(AppendUntagged(nil, false, OpSend, 0, MSN(msn), 8), "data"...))
		}
		if n := 100 - len(q.posted); n != tt.want || e.Err() != nil {
			t.Errorf("%d buffers are begun, want %d; %v", n, tt.want, e.Err())
		}
	}
}

// terminateOf is the Terminate that e has made.
func terminateOf(e *Endpoint) []byte {
	t, _, _ := e.Terminate()
	return t.Append(nil)
}

// A Send without a buffer waits, and with it all that is delivered behind it; placing goes on.
// DDP-079 on an LLP that reorders.
func TestRecordsStall(t *testing.T) {
	a, _ := newRecordEnd(Params{Initiator: true}, Config{})
	b, q := newRecordEnd(Params{}, Config{})
	q.mem[0x10] = make([]byte, 4)
	ra, rb := iwarptest.NewRecords(1, 1)
	a.PostSend(1, OpSend, 0, &payload{b: []byte("one")}, 3)
	a.PostWrite(2, 0x10, 0, &payload{b: []byte("data")}, 4)
	a.PostSend(3, OpSend, 0, &payload{b: []byte("three")}, 5)
	for a.Pending() {
		n, _ := ra.WriteFrom(a)
		a.Commit(n)
	}
	for rb.Arrive(b) {
	}
	if !b.Stalled() || string(q.mem[0x10]) != "data" || len(q.log) != 1 || b.Stats().Stalls != 1 {
		t.Errorf("stalled %t, %q, log %q", b.Stalled(), q.mem[0x10], q.log)
	}
	q.posted = [][]byte{make([]byte, 9)}
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	rb.Resume(b)
	if len(q.received) != 1 || !b.Stalled() || rb.Held() != 1 {
		t.Errorf("received %v, %d held", q.received, rb.Held())
	}
	q.posted = [][]byte{make([]byte, 9)}
	rb.Resume(b) // without Resume of the Endpoint
	if len(q.received) != 2 || b.Stalled() || rb.Held() != 0 || b.Err() != nil {
		t.Errorf("received %v, %d held, %v", q.received, rb.Held(), b.Err())
	}
	// Behind an error nothing is placed, and nothing has to be kept.
	b.Fail(TermNoBuffer, errors.New("given up"))
	q.mem[0x10] = make([]byte, 4)
	seg := append(AppendTagged(nil, true, OpWrite, 0x10, 0), "late"...)
	if keep := b.Ahead(seg); keep != 0 || b.Segment(seg, len(seg)) != nil || q.mem[0x10][0] != 0 ||
		b.Stats().Dropped != uint64(len(seg)) {
		t.Errorf("keeps %d, placed %q, %+v", keep, q.mem[0x10], b.Stats())
	}
}

// The end of the peer's half, then a segment: as octets behind a FIN.
func TestRecordsEnd(t *testing.T) {
	e, _ := newRecordEnd(Params{}, Config{})
	e.EndInput()
	e.Segment(AppendTagged(nil, true, OpWrite, 0, 0), TaggedHeaderLen)
	var le *LocalError
	if !errors.As(e.Err(), &le) || le.Cause != TermClosed {
		t.Error(e.Err())
	}
	// 2/0/05 to 2/0/07 are read by figure 8: siw's form is one of MPA.
	e, _ = newRecordEnd(Params{}, Config{})
	seg := append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0), 0x02, 0x07, 0, 0)
	e.Segment(seg, len(seg))
	var pe *PeerError
	if !errors.As(e.Err(), &pe) || pe.Cause != TermStreamCatastrophic || pe.Swapped {
		t.Error(e.Err())
	}
}

// However segments are ordered on their way, what is delivered is the same, and so is the fault.
func FuzzAhead(f *testing.F) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(5043, seed))
		b := make([]byte, 120)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b, byte(seed*3))
	}
	f.Fuzz(func(t *testing.T, b []byte, order byte) {
		segs := scriptSegments(b[:min(len(b), 1000)])
		in, err1 := deliver(segs, 1)
		out, err2 := deliver(segs, 2+uint64(order))
		if in != out || err1 != err2 {
			t.Fatalf("in order: %s\n%s\nreordered: %s\n%s", err1, in, err2, out)
		}
	})
}

// scriptSegments makes segments that are mostly right, four octets of b for each. What an octet is
// follows from where it belongs: if two segments bring the same one, it does not matter which is
// placed last.
func scriptSegments(b []byte) (segs [][]byte) {
	msn, rmsn, mo := MSN(1), MSN(1), uint32(0)
	for ; len(b) >= 4; b = b[4:] {
		kind, n, last := b[0]%16, int(b[1]%40), b[2]&1 == 0
		at := uint64(b[3])
		var seg, text []byte
		switch {
		case kind < 5:
			at %= 64
			seg = AppendTagged(nil, last, OpWrite, 0x10, at)
		case kind < 11:
			at = uint64(msn)<<3 + uint64(mo)
			seg = AppendUntagged(nil, last, OpSend, 0, msn, mo)
			if mo += uint32(n); last {
				msn++
				mo = 0
			}
		case kind < 13:
			seg = AppendUntagged(nil, true, OpReadRequest, 0, rmsn, 0)
			text = slices.Concat(make([]byte, 12), []byte{0, 0, 0, b[1] % 16}, []byte{0, 0, 0, 0x10},
				make([]byte, 8))
			rmsn++
		case kind == 13:
			seg = AppendTagged(nil, last, OpReadResponse, 0x99, at)
		case kind == 14:
			m := msn + MSN(b[3]%4)
			at = uint64(m)<<3 + uint64(b[2])
			seg = AppendUntagged(nil, last, OpSend, 0, m, uint32(b[2]))
		default:
			seg = slices.Clone(b[:4])
		}
		if text == nil {
			for i := range n {
				text = append(text, byte(at)+byte(i))
			}
		}
		segs = append(segs, append(seg, text...))
	}
	return segs
}

// deliver gives segs to an Endpoint, reordered by seed (1: not at all), and says what it delivered.
func deliver(segs [][]byte, seed uint64) (log, err string) {
	e, q := newRecordEnd(Params{Initiator: true, IRD: 100, ORD: 2}, Config{})
	q.mem[0x10] = make([]byte, 80)
	for range 12 {
		q.posted = append(q.posted, make([]byte, 100))
	}
	for i := range uint64(2) {
		q.sinks[i] = make([]byte, 40)
		q.order = append(q.order, i)
		e.PostRead(i, 0x99, 40*i, 40, 1, 0)
	}
	a, b := iwarptest.NewRecords(seed, map[bool]int{true: 1, false: 9}[seed == 1])
	for e.Pending() {
		n, _ := b.WriteFrom(e)
		e.Commit(n)
	}
	for _, s := range segs {
		a.WriteFrom(bytes.NewReader(s))
	}
	for b.Arrive(e) {
	}
	// When something is placed, and when a buffer is taken, is open; deliveries are not.
	q.log = slices.DeleteFunc(q.log, func(l string) bool {
		return strings.HasPrefix(l, "write") || strings.HasPrefix(l, "begin")
	})
	if e.Err() == nil {
		q.note("memory %x", q.mem[0x10])
	}
	return strings.Join(q.log, "\n"), fmt.Sprintf("%v %x stalled=%t", e.Err(), terminateOf(e),
		e.Stalled())
}

// No allocation per message on an LLP that keeps segments, placed ahead or not.
func TestRecordsNoAllocation(t *testing.T) {
	a, ha := newRecordEnd(Params{Initiator: true}, Config{MULPDU: 1430})
	ha.silent = true
	quiet := &counter{}
	b := NewEndpoint(Params{}, quiet, Config{Records: true})
	data := &payload{b: pattern(3000, 1)}
	var segs [4][1500]byte
	run := func() {
		a.PostWrite(1, 0x10, 0, data, 3000)
		a.PostSend(2, OpSend, 0, data, 8)
		for i := 0; a.Pending(); i++ {
			n := a.Len()
			a.Read(segs[i][:n])
			a.Commit(n)
		}
		keep := b.Ahead(segs[1][:1430])
		b.Segment(segs[0][:1430], 1430)
		b.Segment(segs[1][:keep], 1430)
		b.Segment(segs[2][:3000-2*1416+14], 3000-2*1416+14)
		b.Segment(segs[3][:26], 26)
	}
	if n := testing.AllocsPerRun(100, run); n != 0 || b.Err() != nil {
		t.Errorf("%v allocations: %v", n, b.Err())
	}
	if quiet.receives != 101 || b.Stats().Ahead != 101 {
		t.Errorf("%d received, %+v", quiet.receives, b.Stats())
	}
}

// A counter is a host that takes everything.
type counter struct {
	Host
	receives int
}

func (c *counter) PlaceWrite(STag, uint64, []byte, bool) error { return nil }
func (c *counter) BeginReceive() (uint32, bool)                { return 8, true }
func (c *counter) PlaceReceive(uint32, []byte) error           { return nil }
func (c *counter) EndReceive(Received) error                   { c.receives++; return nil }
