package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A host is an RNIC with memory behind each STag and a log of what happened.
type host struct {
	mem      map[STag][]byte
	posted   [][]byte // receive buffers
	cur      []byte
	sinks    map[uint64][]byte
	order    []uint64
	log      []string
	sent     []uint64
	sources  int
	silent   bool // no log, nothing is allocated: for benchmarks
	broken   func(op string) error
	received []Received
	last     *payload // of the last Read Request
	base     uint64   // address of TO 0
}

func newHost() *host { return &host{mem: map[STag][]byte{}, sinks: map[uint64][]byte{}} }

func (h *host) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *host) fault(op string) error {
	if h.broken == nil {
		return nil
	}
	return h.broken(op)
}

func (h *host) check(stag STag, to uint64, n int, none, bounds, wrap TermCode) ([]byte, error) {
	m, ok := h.mem[stag]
	switch {
	case !ok:
		return nil, &LocalError{Cause: none, Err: fmt.Errorf("no STag %#x", stag)}
	case to+uint64(n) < to:
		return nil, &LocalError{Cause: wrap, Err: fmt.Errorf("wrap")}
	case to > uint64(len(m)) || uint64(n) > uint64(len(m))-to:
		return nil, &LocalError{Cause: bounds, Err: fmt.Errorf("bounds")}
	}
	return m[to:][:n], nil
}

func (h *host) PlaceWrite(stag STag, to uint64, chunk []byte, last bool) error {
	if err := h.fault("PlaceWrite"); err != nil {
		return err
	}
	if len(chunk) > 0 {
		m, err := h.check(stag, to, len(chunk), TermInvalidSTag, TermBounds, TermTOWrap)
		if err != nil {
			return err
		}
		copy(m, chunk)
	}
	if !h.silent {
		h.note("write %#x+%d %d last=%t", uint32(stag), to, len(chunk), last)
	}
	return nil
}

func (h *host) BeginReceive() (uint32, bool) {
	if len(h.posted) == 0 {
		return 0, false
	}
	h.cur = h.posted[0]
	if !h.silent {
		h.posted = h.posted[1:]
		h.note("begin %d", len(h.cur))
	}
	return uint32(len(h.cur)), true
}

func (h *host) PlaceReceive(off uint32, chunk []byte) error {
	if err := h.fault("PlaceReceive"); err != nil {
		return err
	}
	copy(h.cur[off:][:len(chunk)], chunk)
	return nil
}

func (h *host) EndReceive(r Received) error {
	if err := h.fault("EndReceive"); err != nil {
		return err
	}
	if h.silent {
		return nil
	}
	h.received = append(h.received, r)
	if r.Immediate {
		h.note("immediate %#x in %d octets %x se=%t", r.Data, len(h.cur), h.cur, r.Solicited)
	} else {
		h.note("receive %d %x se=%t inv=%t %#x", r.Length, h.cur[:r.Length], r.Solicited, r.Invalidate,
			uint32(r.STag))
	}
	h.cur = nil
	return nil
}

func (h *host) PlaceRead(off uint32, chunk []byte) error {
	if err := h.fault("PlaceRead"); err != nil {
		return err
	}
	copy(h.sinks[h.order[0]][off:][:len(chunk)], chunk)
	return nil
}

func (h *host) EndRead(token uint64) error {
	if h.order[0] != token {
		panic("Reads out of order")
	}
	h.order = h.order[1:]
	if !h.silent {
		h.note("read %d", token)
	}
	return h.fault("EndRead")
}

func (h *host) ReadSource(stag STag, to uint64, n uint32) (Payload, error) {
	if err := h.fault("ReadSource"); err != nil {
		return nil, err
	}
	var m []byte
	if n > 0 {
		var err error
		if m, err = h.check(stag, to, int(n), TermReadInvalidSTag, TermReadBounds,
			TermReadTOWrap); err != nil {
			return nil, err
		}
	}
	h.sources++
	if !h.silent {
		h.note("source %d", n)
	}
	if h.silent {
		h.last.b = m
		return h.last, nil
	}
	h.last = &payload{b: m}
	return h.last, nil
}

func (h *host) EndReadSource(Payload) { h.sources-- }

func (h *host) Atomic(a Atomic) (uint64, error) {
	if err := h.fault("Atomic"); err != nil {
		return 0, err
	}
	m, err := h.check(a.STag, a.TO, 8, TermReadInvalidSTag, TermReadBounds, TermReadTOWrap)
	if err != nil {
		return 0, err
	}
	if (a.TO+h.base)%8 != 0 {
		return 0, &LocalError{Cause: TermMisaligned, Err: fmt.Errorf("TO %#x", a.TO)}
	}
	old := word(m).get()
	word(m).set(a.Apply(old))
	if !h.silent {
		h.note("atomic %v, was %#x", a, old)
	}
	return old, nil
}

// A word is 8 octets of memory in this machine's octet order.
type word []byte

func (w word) get() uint64  { return binary.NativeEndian.Uint64(w) }
func (w word) set(x uint64) { binary.NativeEndian.PutUint64(w, x) }

func (h *host) EndAtomic(token, old uint64) error {
	if h.order[0] != token {
		panic("answers out of order")
	}
	h.order = h.order[1:]
	if err := h.fault("EndAtomic"); err != nil {
		return err
	}
	if !h.silent {
		h.note("atomic %d %#x", token, old)
	}
	return nil
}

func (h *host) Sent(token uint64) {
	if !h.silent {
		h.sent = append(h.sent, token)
		h.note("sent %d", token)
	}
}

// A payload is a message in memory that fails from offset failAt on, if fail is set.
type payload struct {
	b      []byte
	fail   error
	failAt uint32
}

func (p *payload) CopyOut(b []byte, off uint32) error {
	if p.fail != nil && off+uint32(len(b)) > p.failAt {
		return p.fail
	}
	copy(b, p.b[off:][:len(b)])
	return nil
}

// A side is an Endpoint on a Stream with its host.
type side struct {
	*Endpoint
	h *host
	s *iwarptest.Stream
}

// newSides makes two Endpoints without the start-up: a is the Initiator.
func newSides(l iwarptest.Link, edit func(a, b *Params), cfg Config) (a, b *side) {
	sa, sb := iwarptest.NewPair(l)
	pa := Params{Initiator: true, Revision: 2, CRC: true, IRD: 4, ORD: 4}
	pb := Params{Revision: 2, CRC: true, IRD: 4, ORD: 4}
	if edit != nil {
		edit(&pa, &pb)
	}
	if cfg.EMSS == 0 {
		cfg.EMSS = sa.EMSS()
	}
	a, b = &side{h: newHost(), s: sa}, &side{h: newHost(), s: sb}
	a.Endpoint, b.Endpoint = NewEndpoint(pa, a.h, cfg), NewEndpoint(pb, b.h, cfg)
	return a, b
}

// step moves octets once each way for d and says whether any moved.
func (d *side) step() bool {
	in, _ := d.s.ReadInto(d.Endpoint)
	out, _ := d.s.WriteFrom(d.Endpoint)
	d.Commit(out)
	return in+out > 0
}

// run moves octets until none move.
func run(a, b *side) {
	for idle := 0; idle < 2; {
		if a.step() || b.step() {
			idle = 0
		} else {
			idle++
		}
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	return b
}

func TestSendWriteRead(t *testing.T) {
	for _, l := range []iwarptest.Link{
		{}, {CutEvery: 1}, {CutEvery: 7, WriteMax: 13}, {WriteMax: 1000}, {Buffer: 61}, {TakeLess: 3},
		{TakeLess: 700, WriteMax: 100, EMSS: 200},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			for _, n := range []int{0, 1, 2, 3, 4, 1435, 1436, 1437, 1440, 1441, 5000, 20_000} {
				a, b := newSides(l, nil, Config{})
				data := pattern(n, 1)
				b.h.mem[0x10] = make([]byte, n)
				b.h.posted = [][]byte{make([]byte, n+1)}
				a.h.sinks[3], a.h.order = make([]byte, n), []uint64{3}
				if err := a.PostWrite(1, 0x10, 0, &payload{b: data}, uint32(n)); err != nil {
					t.Fatal(err)
				}
				if err := a.PostSend(2, OpSendSEInvalidate, 0x77, &payload{b: data}, uint32(n)); err != nil {
					t.Fatal(err)
				}
				if err := a.PostRead(3, 0x99, 55, uint32(n), 0x10, 0); err != nil {
					t.Fatal(err)
				}
				run(a, b)
				if a.Err() != nil || b.Err() != nil {
					t.Fatalf("n=%d: %v / %v", n, a.Err(), b.Err())
				}
				if !bytes.Equal(b.h.mem[0x10], data) {
					t.Errorf("n=%d: the Write differs", n)
				}
				if len(b.h.received) != 1 || b.h.received[0] != (Received{Length: uint32(n), Solicited: true,
					Invalidate: true, STag: 0x77}) || !bytes.Equal(b.h.cur[:0], nil) {
					t.Errorf("n=%d: received %v", n, b.h.received)
				}
				if !bytes.Equal(a.h.sinks[3], data) || len(a.h.order) != 0 {
					t.Errorf("n=%d: the Read differs", n)
				}
				if fmt.Sprint(a.h.sent) != "[1 2 3]" {
					t.Errorf("n=%d: sent %v", n, a.h.sent)
				}
				if !a.Idle() || !b.Idle() || b.h.sources != 0 {
					t.Errorf("n=%d: not idle: %t %t, %d sources", n, a.Idle(), b.Idle(), b.h.sources)
				}
			}
		})
	}
}
