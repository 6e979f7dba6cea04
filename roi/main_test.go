package roi_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
)

// octets are an iwarp.Payload.
type octets []byte

func (o octets) CopyOut(p []byte, off uint32) error {
	if copy(p, o[off:]) < len(p) {
		return errors.New("beyond the end")
	}
	return nil
}

func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	return b
}

// An end is an Endpoint with the program above it: buffers by STag, receives, and what was
// delivered. It fails the test for what a Host is never to be asked.
type end struct {
	t    testing.TB
	ep   *roi.Endpoint
	mem  map[iwarp.STag][]byte
	recv [][]byte // posted receives
	cur  []byte   // the one that is being filled; nil: none

	sends  [][]byte  // delivered
	told   []told    // notifying Writes
	writes int       // ended, of all
	reads  []told    // finished: token and identifier
	client uint32    // of the next answer, counted
	sent   []uint64  // tokens
	log    []string  // of what was delivered, in order
	source int       // Payloads given and not taken back
	gave   []message // segments that it has sent
}

type told struct {
	client uint32
	n      uint64
}

type message struct {
	roi.Message
	n int // octets of data
}

func (h *end) buffer(stag iwarp.STag, to uint64, n int, code iwarp.TermCode) ([]byte, error) {
	b := h.mem[stag]
	if to > uint64(len(b)) || uint64(n) > uint64(len(b))-to {
		return nil, &iwarp.LocalError{Cause: code}
	}
	return b[to:][:n], nil
}

func (h *end) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	if len(chunk) > 0 {
		b, err := h.buffer(stag, to, len(chunk), iwarp.TermBounds)
		if err != nil {
			return err
		}
		copy(b, chunk)
	}
	if last {
		h.writes++
		h.log = append(h.log, "write")
	}
	return nil
}

func (h *end) EndWrite(client uint32, n uint32) error {
	if h.cur == nil {
		h.t.Error("a notifying Write is delivered without a receive")
	}
	h.cur = nil
	h.told = append(h.told, told{client, uint64(n)})
	h.log = append(h.log, "notified")
	return nil
}

func (h *end) BeginReceive() (uint32, bool) {
	if h.cur != nil {
		h.t.Error("a receive is begun before the last one has ended")
	}
	if len(h.recv) == 0 {
		return 0, false
	}
	h.cur, h.recv = h.recv[0], h.recv[1:]
	return uint32(len(h.cur)), true
}

func (h *end) PlaceReceive(off uint32, chunk []byte) error {
	if h.cur == nil || int(off)+len(chunk) > len(h.cur) {
		h.t.Fatalf("%d octets at %d of a receive of %d", len(chunk), off, len(h.cur))
	}
	copy(h.cur[off:], chunk)
	return nil
}

func (h *end) EndReceive(n uint32) error {
	if h.cur == nil {
		h.t.Fatal("a Send is delivered without a receive")
	}
	h.sends = append(h.sends, h.cur[:n])
	h.cur = nil
	h.log = append(h.log, "send")
	return nil
}

func (h *end) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, uint32, error) {
	h.client++
	if n == 0 {
		return nil, h.client, nil
	}
	b, err := h.buffer(stag, to, int(n), iwarp.TermReadBounds)
	if err != nil {
		return nil, 0, err
	}
	h.source++
	return octets(b), h.client, nil
}

func (h *end) EndReadSource(iwarp.Payload) { h.source-- }

func (h *end) PlaceRead(token uint64, off uint32, chunk []byte) error {
	b, err := h.buffer(iwarp.STag(token), uint64(off), len(chunk), iwarp.TermBounds)
	if err != nil {
		h.t.Fatalf("octets %d to %d of Read %d, which has %d", off, int(off)+len(chunk), token,
			len(h.mem[iwarp.STag(token)]))
	}
	copy(b, chunk)
	return nil
}

func (h *end) EndRead(token uint64, client uint32) error {
	h.reads = append(h.reads, told{client, token})
	h.log = append(h.log, "read")
	return nil
}

func (h *end) Sent(token uint64) { h.sent = append(h.sent, token) }

// post posts so many receives of n octets each and grants credits for them.
func (h *end) post(count, n int) {
	for range count {
		h.recv = append(h.recv, make([]byte, n))
	}
	h.ep.Grant(count)
}

// A setting is what a pair is made with.
type setting struct {
	x, y    roi.Setup
	records bool
	mulpdu  int
	cut     func() int // how many octets a stream gives at once; nil: all
}

// both is flow control of both kinds without a credit for Sends, and four for Reads.
var both = roi.Setup{Sends: true, Reads: true, ReadCredits: 4}

// A pair is two ends and the wire between them.
type pair struct {
	t    testing.TB
	s    setting
	x, y *end
	wire [2][]byte // to x and to y
}

func newPair(t testing.TB, s setting) *pair {
	p := &pair{t: t, s: s}
	p.x = p.end(s.x, s.y, true)
	p.y = p.end(s.y, s.x, false)
	return p
}

func (p *pair) end(own, peer roi.Setup, initiator bool) *end {
	h := &end{t: p.t, mem: map[iwarp.STag][]byte{}}
	var err error
	if h.ep, err = roi.NewEndpoint(h, roi.Config{Own: own, Peer: peer, Initiator: initiator,
		Records: p.s.records, CRC: true, MULPDU: p.s.mulpdu, SendQueue: 256}); err != nil {
		p.t.Fatal(err)
	}
	return h
}

// run moves what there is until nothing moves any more.
func (p *pair) run() {
	for moved := true; moved; {
		a, b := p.move(p.x, p.y, 1), p.move(p.y, p.x, 0)
		moved = a || b
	}
}

// move sends what from has, one batch, and has to take it.
func (p *pair) move(from, to *end, at int) (moved bool) {
	from.ep.Fill()
	if n := from.ep.Len(); n > 0 {
		b := make([]byte, n)
		if k, err := from.ep.Read(b); k != n || err != nil {
			p.t.Fatalf("Read gives %d of %d octets, %v", k, n, err)
		}
		if p.s.records {
			from.note(b)
			if to.ep.Segment(b, n) != nil {
				from.gave = from.gave[:len(from.gave)-1]
				from.ep.Commit(0)
				return false
			}
		} else {
			p.wire[at] = append(p.wire[at], b...)
			for f := b; len(f) > 0; {
				k := int(f[0])<<8 | int(f[1])
				from.note(f[2:][:k])
				f = f[iwarp.FPDULen(k):]
			}
		}
		from.ep.Commit(n)
		moved = true
	}
	if held := to.ep.Stalled() && !p.s.records; held && to.ep.Resume() == nil && !to.ep.Stalled() {
		moved = true
	}
	for len(p.wire[at]) > 0 {
		n := len(p.wire[at])
		if p.s.cut != nil {
			n = min(n, p.s.cut())
		}
		k, err := to.ep.Write(p.wire[at][:n])
		p.wire[at] = p.wire[at][k:]
		moved = moved || k > 0
		if err != nil {
			if !to.ep.Stalled() {
				p.t.Fatalf("Write: %v", err)
			}
			break
		}
	}
	return moved
}

func (h *end) note(seg []byte) {
	m, data, err := roi.Parse(seg)
	if err != nil {
		h.t.Fatalf("% x: %v", seg, err)
	}
	h.gave = append(h.gave, message{m, len(data)})
}

// well fails the test if a stream has ended.
func (p *pair) well() {
	p.t.Helper()
	for _, h := range []*end{p.x, p.y} {
		if err := h.ep.Err(); err != nil {
			p.t.Fatal(err)
		}
	}
}

// kinds are the messages of a kind that h has sent.
func (h *end) kinds(k roi.Kind) (out []message) {
	for _, m := range h.gave {
		if m.Kind == k {
			out = append(out, m)
		}
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onBoth runs a test over FPDUs that come in odd pieces, and over records.
func onBoth(t *testing.T, f func(t *testing.T, s setting)) {
	n := 0
	cut := func() int { n++; return []int{1, 2, 7, 1500, 40000}[n%5] }
	for _, records := range []bool{false, true} {
		t.Run(map[bool]string{false: "FPDUs", true: "records"}[records], func(t *testing.T) {
			f(t, setting{x: both, y: both, cut: cut, mulpdu: 500, records: records})
		})
	}
}

func wantErr(t *testing.T, h *end, c iwarp.TermCode) {
	t.Helper()
	var le *iwarp.LocalError
	if err := h.ep.Err(); !errors.As(err, &le) || le.Cause != c {
		t.Errorf("the stream ended with %v, want %v", err, c)
	}
}

func sizes(msgs []message) (out []int) {
	for _, m := range msgs {
		out = append(out, m.n)
	}
	return out
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("%s: %d octets, want %d; they differ at %d", what, len(got), len(want), i)
	}
}

func equal[T any](t *testing.T, what string, got, want []T) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

// only keeps those of msgs that f holds for.
func only(msgs []message, f func(m message) bool) []message {
	return slices.DeleteFunc(slices.Clone(msgs), func(m message) bool { return !f(m) })
}
