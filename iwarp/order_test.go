package iwarp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A model of what RFC 5040, section 5.5, and RFC 7306, section 7, promise about order, made from
// their texts: it knows what was posted, and judges each call of a Host by the rules; their numbers
// are in the comments. What they leave open, it leaves open, and counts.

type modelKind uint8

const (
	modelSend modelKind = iota
	modelImmediate
	modelWrite
	modelRead
	modelAtomic
	modelKinds
)

// A modelOp is an operation that one end has posted, and what has come of it.
type modelOp struct {
	kind   modelKind
	op     Opcode // of a Send
	data   []byte // of a Send, Write or Read
	imm    uint64
	atomic Atomic
	from   *modelOp // Read: the Write whose target it reads back, or nil

	to     uint64 // of a Write
	target []byte // of a Write or Read, with a guard zone on either side
	tick   int    // when it was posted

	whole     bool // Write: its last segment is placed
	delivered bool // Send, Immediate Data: at the other end; request: its processing has begun
	answered  bool
	placed    int // octets of the answer to a Read
	sent      bool
	old       uint64 // of an atomic, by the model
}

const modelGuard = 16

func newTarget(n int) []byte { return bytes.Repeat([]byte{0xa5}, n+2*modelGuard) }

// inside is the part of a target between its guard zones; intact says that they are as they were.
func inside(b []byte) []byte { return b[modelGuard : len(b)-modelGuard] }

func intact(b []byte) bool {
	guard := bytes.Repeat([]byte{0xa5}, modelGuard)
	return bytes.Equal(b[:modelGuard], guard) && bytes.Equal(b[len(b)-modelGuard:], guard)
}

// A modelWorld holds two streams; all four ends share one cell for atomics.
type modelWorld struct {
	t     *testing.T
	name  string
	ends  [4]*modelEnd // 0 and 1 are one stream
	mem   uint64       // the cell, as the hosts keep it
	cell  uint64       // and as the model does
	clock int

	// What is allowed and was seen: a Send delivered before an earlier Read was answered (18), by
	// which end crossing messages were delivered first (2), and which stream went ahead (1).
	sendFirst int
	crossing  [2]int
	ahead     [2]int

	// What was placed ahead of order: segments, and of these those not of the oldest message.
	placedAhead             uint64
	aheadReceive, aheadRead int
}

// A modelEnd is a Host that judges.
type modelEnd struct {
	w     *modelWorld
	id    int
	e     *Endpoint
	late  *iwarptest.Late // nil: placed at once
	ops   []*modelOp
	wire  []byte             // sent and not taken by the peer
	recs  *iwarptest.Records // nil: a stream
	bufs  int
	begun [][]byte // buffers of Sends in progress, oldest first
	came  []modelKind
	dup   [2]MSN // the last of QN 0 and QN 1 that is in came
}

func (m *modelEnd) peer() *modelEnd { return m.w.ends[m.id^1] }

func (m *modelEnd) bad(format string, args ...any) {
	m.w.t.Helper()
	m.w.t.Fatalf("%s, end %d: %s", m.w.name, m.id, fmt.Sprintf(format, args...))
}

// earlier judges that what the peer posted before its op i has come to what op i rests on: Writes
// are placed, with their octets (5, 10, 12, 17; Write and Immediate Data, Write and atomic), and
// Sends and Immediate Data are delivered.
func (m *modelEnd) earlier(i int, why string) {
	m.w.t.Helper()
	for k, o := range m.peer().ops[:i] {
		switch {
		case o.kind == modelWrite && (!o.whole || !bytes.Equal(inside(o.target), o.data)):
			m.bad("%s %d, but Write %d before it is not placed", why, i, k)
		case o.kind <= modelImmediate && !o.delivered:
			m.bad("%s %d, but message %d before it is not delivered", why, i, k)
		}
	}
}

// next is the first op of ops that one of kinds has not come to.
func next(ops []*modelOp, come func(*modelOp) bool, kinds ...modelKind) (int, *modelOp) {
	for i, o := range ops {
		for _, k := range kinds {
			if o.kind == k && !come(o) {
				return i, o
			}
		}
	}
	return -1, nil
}

func isDelivered(o *modelOp) bool { return o.delivered }
func isAnswered(o *modelOp) bool  { return o.answered }

// arrived notes the messages whose last segment has come, to judge that deliveries follow the order
// of the stream (10, 11; DDP delivers in order).
func (m *modelEnd) arrived(sent bool, seg []byte) {
	if sent || seg[0]&0x40 == 0 {
		return
	}
	kind := map[byte]modelKind{1: modelRead, 2: modelKinds + modelRead, 3: modelSend, 4: modelSend,
		5: modelSend, 6: modelSend,
		8: modelImmediate, 9: modelImmediate, 10: modelAtomic, 11: modelKinds + modelAtomic}
	k, ok := kind[seg[1]&15]
	if !ok {
		return
	}
	if seg[0]&0x80 == 0 {
		h := UntaggedHeader(seg)
		if h.QN() < 2 {
			if m.dup[h.QN()] == h.MSN() {
				return // it was held for a buffer and comes again
			}
			m.dup[h.QN()] = h.MSN()
		}
	}
	m.came = append(m.came, k)
}

func (m *modelEnd) inOrder(k modelKind) {
	m.w.t.Helper()
	if len(m.came) == 0 || m.came[0] != k {
		m.bad("delivers kind %d, the stream has %v", k, m.came)
	}
	m.came = m.came[1:]
}

func (m *modelEnd) PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error {
	if stag == 1 && len(chunk) == 0 {
		return nil // the ready-to-receive message
	}
	o := m.peer().ops[stag-0x1000]
	if o.kind != modelWrite || to-o.to+uint64(len(chunk)) > uint64(len(o.data)) {
		m.bad("Write of %d octets to %#x+%#x", len(chunk), stag, to)
	}
	copy(inside(o.target)[to-o.to:], chunk)
	o.whole = o.whole || last
	return nil
}

func (m *modelEnd) BeginReceive() (uint32, bool) {
	if m.bufs == 0 {
		return 0, false
	}
	m.bufs--
	m.begun = append(m.begun, newTarget(2000))
	return 2000, true
}

func (m *modelEnd) PlaceReceive(off uint32, chunk []byte) error {
	return m.placeReceiveAt(0, off, chunk)
}

func (m *modelEnd) placeReceiveAt(i int, off uint32, chunk []byte) error {
	if i > 0 {
		m.w.aheadReceive++
	}
	copy(inside(m.begun[i])[off:], chunk)
	return nil
}

// EndReceive: in the order of posting (10, 16; Send and Immediate Data complete in order).
func (m *modelEnd) EndReceive(r Received) error {
	i, o := next(m.peer().ops, isDelivered, modelSend, modelImmediate)
	if o == nil {
		m.bad("a delivery of nothing: %+v", r)
	}
	m.earlier(i, "delivery of")
	m.inOrder(o.kind)
	buf := m.begun[0]
	m.begun = m.begun[1:]
	want := Received{Immediate: true, Data: o.imm, Solicited: o.imm&1 != 0}
	if o.kind == modelSend {
		want = Received{Length: uint32(len(o.data)), Solicited: o.op.Solicited()}
		if o.op.Invalidates() {
			want.Invalidate, want.STag = true, STag(i)
		}
		if !bytes.Equal(inside(buf)[:len(o.data)], o.data) {
			m.bad("Send %d is %x, want %x", i, inside(buf)[:len(o.data)], o.data)
		}
	}
	if r != want || !intact(buf) {
		m.bad("message %d: %+v, want %+v, guards intact %t", i, r, want, intact(buf))
	}
	o.delivered = true
	if _, a := next(m.peer().ops[:i], isAnswered, modelRead, modelAtomic); a != nil {
		m.w.sendFirst++
	}
	if _, x := next(m.ops, isDelivered, modelSend, modelImmediate); x != nil && x.tick < m.w.clock {
		m.w.crossing[m.id&1]++
	}
	other := m.w.ends[m.id^2]
	if _, x := next(other.peer().ops, isDelivered, modelSend, modelImmediate); x != nil &&
		x.tick < o.tick {
		m.w.ahead[m.id>>1]++
	}
	return nil
}

// ReadSource begins the processing of a Read: only behind the delivery of all that came before it
// (12, 17), in the order of the requests.
func (m *modelEnd) ReadSource(stag STag, _ uint64, n uint32) (Payload, error) {
	i, o := next(m.peer().ops, isDelivered, modelRead, modelAtomic)
	if o == nil || o.kind != modelRead || STag(i)+0x2000 != stag || int(n) != len(o.data) {
		m.bad("Read of %d octets from %#x out of turn", n, stag)
	}
	m.earlier(i, "processing of Read")
	m.inOrder(modelRead)
	o.delivered = true
	if o.from != nil {
		return &payload{b: inside(o.from.target)}, nil
	}
	return &payload{b: o.data}, nil
}

// Atomic: processing starts as that of a Read, in the order of delivery (RFC 7306, section 5.4).
func (m *modelEnd) Atomic(a Atomic) (uint64, error) {
	i, o := next(m.peer().ops, isDelivered, modelRead, modelAtomic)
	if a.Op == AtomicFetchAdd {
		a.Compare, a.CompareMask = 0, 0 // not used
	}
	if o == nil || o.kind != modelAtomic || a != o.atomic {
		m.bad("%v out of turn", a)
	}
	m.earlier(i, "processing of atomic")
	m.inOrder(modelAtomic)
	o.delivered, o.old = true, m.w.cell
	if a.Op == AtomicFetchAdd {
		m.w.cell = fetchAddBits(m.w.cell, a.Data, a.Mask)
	} else {
		m.w.cell = compareSwapBits(m.w.cell, a.Compare, a.CompareMask, a.Data, a.Mask)
	}
	old := m.w.mem
	m.w.mem = a.Apply(old)
	if m.w.mem != m.w.cell {
		m.bad("%v of %#x is %#x, want %#x", a, old, m.w.mem, m.w.cell)
	}
	return old, nil
}

func (m *modelEnd) EndReadSource(Payload) {}

func (m *modelEnd) PlaceRead(off uint32, chunk []byte) error {
	i, o := next(m.ops, isAnswered, modelRead, modelAtomic)
	if o == nil || o.kind != modelRead || !o.delivered || int(off)+len(chunk) > len(o.data) {
		m.bad("an answer to %d out of turn: %d octets at %d", i, len(chunk), off)
	}
	copy(inside(o.target)[off:], chunk)
	o.placed += len(chunk)
	return nil
}

func (m *modelEnd) placeReadAt(token uint64, off uint32, chunk []byte) error {
	o := m.ops[token]
	if o.kind != modelRead || o.answered || int(off)+len(chunk) > len(o.data) {
		m.bad("an answer to %d ahead of its turn: %d octets at %d", token, len(chunk), off)
	}
	m.w.aheadRead++
	copy(inside(o.target)[off:], chunk)
	o.placed += len(chunk)
	return nil
}

// EndRead: answers come in the order of the requests (20), and are complete when they do (6, 11,
// 19).
func (m *modelEnd) EndRead(token uint64) error {
	i, o := next(m.ops, isAnswered, modelRead, modelAtomic)
	if o == nil || uint64(i) != token || o.kind != modelRead || !o.delivered ||
		o.placed != len(o.data) ||
		!bytes.Equal(inside(o.target), o.data) || !intact(o.target) {
		m.bad("Read %d ends, op %d is next", token, i)
	}
	m.inOrder(modelKinds + modelRead)
	o.answered = true
	return nil
}

func (m *modelEnd) EndAtomic(token, old uint64) error {
	i, o := next(m.ops, isAnswered, modelRead, modelAtomic)
	if o == nil || uint64(i) != token || o.kind != modelAtomic || !o.delivered || old != o.old {
		m.bad("atomic %d ends with %#x, op %d is next", token, old, i)
	}
	m.inOrder(modelKinds + modelAtomic)
	o.answered = true
	return nil
}

// Sent: in the order of posting (13, 15), and not before the octets are out (14).
func (m *modelEnd) Sent(token uint64) {
	i, o := next(m.ops, func(o *modelOp) bool { return o.sent }, modelSend, modelImmediate, modelWrite,
		modelRead, modelAtomic)
	if uint64(i) != token {
		m.bad("op %d is sent, %d is next", token, i)
	}
	o.sent = true
}

// A script gives one octet after the other; zeroes behind its end.
type script []byte

func (s *script) next() (b byte) {
	if len(*s) > 0 {
		b, *s = (*s)[0], (*s)[1:]
	}
	return b
}

// post posts an op that the script describes, if there is room for it.
func (m *modelEnd) post(s *script) {
	i := len(m.ops)
	kind, n := s.next(), int(s.next())
	o := &modelOp{kind: modelKind(kind) % modelKinds, tick: m.w.clock}
	if kind&0x80 != 0 {
		n *= 5
	}
	var err error
	switch o.kind {
	case modelSend:
		o.op, o.data = OpSend+Opcode(kind>>4&3), pattern(n, byte(i))
		err = m.e.PostSend(uint64(i), o.op, STag(i), &payload{b: o.data}, uint32(n))
	case modelImmediate:
		o.imm = uint64(i)<<32 | uint64(n)
		err = m.e.PostImmediate(uint64(i), n&1 != 0, o.imm)
	case modelWrite:
		o.data, o.to, o.target = pattern(n, byte(i)), uint64(n)<<40, newTarget(n)
		err = m.e.PostWrite(uint64(i), STag(i)+0x1000, o.to, &payload{b: o.data}, uint32(n))
	case modelRead:
		o.data = pattern(n, byte(i))
		if k := i - 1 - n%8; k >= 0 && m.ops[k].kind == modelWrite {
			o.from, o.data = m.ops[k], m.ops[k].data
		}
		o.target = newTarget(len(o.data))
		err = m.e.PostRead(uint64(i), 0x99, uint64(i), uint32(len(o.data)), STag(i)+0x2000, 0)
	case modelAtomic:
		o.atomic = Atomic{STag: 0x3000, Data: uint64(n) << (kind >> 4), Mask: uint64(kind) << 7}
		if n&1 != 0 {
			o.atomic.Op, o.atomic.Compare, o.atomic.CompareMask = AtomicCompareSwap, uint64(n),
				uint64(kind>>4)
		}
		err = m.e.PostAtomic(uint64(i), o.atomic)
	}
	if err == nil {
		m.ops = append(m.ops, o)
	}
}

// Segment takes a segment in order, and notes it as Trace does on a stream.
func (m *modelEnd) Segment(seg []byte, size int) error {
	m.arrived(false, seg)
	err := m.e.Segment(seg, size)
	if err != nil && !m.e.Stalled() {
		m.bad("Segment: %v", err)
	}
	if m.e.Err() != nil {
		m.bad("%v", m.e.Err())
	}
	return err
}

func (m *modelEnd) Ahead(seg []byte) int { return m.e.Ahead(seg) }

// send lets the transport read in pieces and take some of what it read.
func (m *modelEnd) send(piece, take int) {
	if m.recs != nil {
		for ; take > 0 && m.e.Pending(); take -= 200 {
			n, err := m.recs.WriteFrom(m.e)
			if n == 0 || err != nil {
				m.bad("WriteFrom: %d, %v", n, err)
			}
			m.e.Commit(n)
		}
		return
	}
	b := make([]byte, 0, m.e.Len())
	for len(b) < cap(b) {
		p := make([]byte, min(piece, cap(b)-len(b)))
		n, err := m.e.Read(p)
		if err != nil || n != len(p) {
			m.bad("Read: %d, %v", n, err)
		}
		b = append(b, p...)
	}
	b = b[:min(take, len(b))]
	m.wire = append(m.wire, b...)
	m.e.Commit(len(b))
}

// receive takes at most n octets of what the peer has sent.
func (m *modelEnd) receive(n int) {
	if m.recs != nil {
		for ; n > 0 && m.recs.Arrive(m); n -= 200 {
		}
		return
	}
	from := m.peer()
	b := bytes.Clone(from.wire[:min(n, len(from.wire))])
	k, err := m.e.Write(b)
	if err != nil && !m.e.Stalled() {
		m.bad("Write: %v", err)
	}
	from.wire = from.wire[k:]
	if m.e.Err() != nil {
		m.bad("%v", m.e.Err())
	}
}

// resume goes on with segments that have arrived.
func (m *modelEnd) resume() {
	if m.recs != nil {
		m.recs.Resume(m)
	}
}

// runModel drives two streams as a script says, to the end of all that was posted.
func runModel(t *testing.T, name string, b []byte) *modelWorld {
	s := script(b)
	kind, emss := s.next(), 140+int(s.next())
	w := &modelWorld{t: t, name: name}
	var recs [4]*iwarptest.Records
	if kind&8 != 0 {
		seed := uint64(s.next())
		recs[0], recs[1] = iwarptest.NewRecords(seed, 1+int(kind>>5))
		recs[2], recs[3] = iwarptest.NewRecords(seed+1, 30)
	}
	for i := range w.ends {
		m := &modelEnd{w: w, id: i, recs: recs[i]}
		w.ends[i] = m
		p := Params{Initiator: i&1 == 0, CRC: kind&1 == 0, MarkersIn: kind&2 != 0,
			MarkersOut: kind&2 != 0, IRD: 4, ORD: 4, RTR: RTRWrite}
		if kind&4 != 0 {
			m.late = &iwarptest.Late{Host: m, Pick: func(n int) int { return int(s.next()) % n }}
		}
		var h Host = m
		if m.late != nil {
			h = m.late
		}
		cfg := Config{EMSS: emss, SendQueue: 8, BatchBytes: 700, Extensions: true, Trace: m.arrived}
		if m.recs != nil {
			cfg.Records, cfg.MULPDU, cfg.Trace = true, emss, nil
			if kind&16 != 0 {
				cfg.PlaceReceive, cfg.PlaceRead = m.placeReceiveAt, m.placeReadAt
			}
		}
		m.e = NewEndpoint(p, h, cfg)
	}
	for len(s) > 0 {
		w.clock++
		x := s.next()
		m := w.ends[x&3]
		switch x >> 2 & 7 {
		case 0, 1, 2, 3:
			m.post(&s)
		case 4, 5:
			m.send(1+4*int(s.next()), 1+4*int(s.next()))
		case 6:
			m.receive(4 * int(s.next()))
		default:
			m.bufs += 1 + int(x>>5)
			if m.bufs > 0 && m.e.Resume() != nil {
				m.bad("Resume with a buffer")
			}
			m.resume()
		}
	}
	for moved := true; moved; {
		moved = false
		for _, m := range w.ends {
			if m.e.Stalled() {
				m.bufs++
				m.e.Resume()
				m.resume()
				moved = true
			}
			if m.e.Pending() {
				m.send(1<<20, 1<<20)
				moved = true
			}
			if len(m.peer().wire) > 0 || m.recs != nil && m.peer().recs.UnderWay() > 0 {
				m.receive(1 << 20)
				moved = true
			}
		}
	}
	for _, m := range w.ends {
		if m.late != nil {
			if err := m.late.Flush(); err != nil {
				m.bad("%v", err)
			}
		}
	}
	for _, m := range w.ends {
		w.placedAhead += m.e.Stats().Ahead
		if !m.e.Idle() || len(m.came) > 0 {
			m.bad("not over: idle %t, %v undelivered", m.e.Idle(), m.came)
		}
		for i, o := range m.ops {
			over := o.sent
			switch o.kind {
			case modelWrite:
				over = over && o.whole && bytes.Equal(inside(o.target), o.data) && intact(o.target)
			case modelRead, modelAtomic:
				over = over && o.answered
			default:
				over = over && o.delivered
			}
			if !over {
				m.bad("op %d never came to its end: %+v", i, o)
			}
		}
	}
	return w
}

// DDP-002, 021, 049, RDMAP-081..086, 089..091, 093, 094, 096..098, EXT-032, 034, 043: whatever is
// posted at both ends of two streams, however TCP cuts it or an LLP that keeps segments reorders
// them, placed at once or as late as can be and in any order, the rules hold; and what they leave
// open does go either way.
func TestOrdering(t *testing.T) {
	var sendFirst, aheadReceive, aheadRead int
	var placedAhead uint64
	var crossing, ahead [2]int
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(5040, seed))
		b := make([]byte, 60+rng.IntN(1200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0] = byte(seed)
		w := runModel(t, fmt.Sprint("seed ", seed), b)
		sendFirst += w.sendFirst
		aheadReceive += w.aheadReceive
		aheadRead += w.aheadRead
		placedAhead += w.placedAhead
		for i := range 2 {
			crossing[i] += w.crossing[i]
			ahead[i] += w.ahead[i]
		}
	}
	if sendFirst == 0 || crossing[0] == 0 || crossing[1] == 0 || ahead[0] == 0 || ahead[1] == 0 {
		t.Errorf("never seen: a Send before an earlier answer %d, crossing %v, streams ahead %v",
			sendFirst, crossing, ahead)
	}
	if placedAhead == 0 || aheadReceive == 0 || aheadRead == 0 {
		t.Errorf("never placed ahead: %d segments, %d of later Sends, %d of later answers", placedAhead,
			aheadReceive, aheadRead)
	}
	t.Logf("placed ahead: %d segments, %d of later Sends, %d of later answers", placedAhead,
		aheadReceive, aheadRead)
}

// What TestOrdering says, for scripts of the fuzzer's.
func FuzzOrdering(f *testing.F) {
	rng := rand.New(rand.NewPCG(7306, 3))
	for kind := range byte(64) {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0] = kind
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		runModel(t, "script", b[:min(len(b), 2000)])
	})
}
