package sctpddp_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// A sink logs the segments it gets. It places tagged ones ahead of order.
type sink struct {
	log    []string // what was delivered, in order
	placed []string // what was placed ahead
	stall  bool     // there is no receive buffer
	failed error
	calls  int
}

func (k *sink) Ahead(seg []byte) int {
	if k.failed != nil {
		return 0
	}
	if !iwarp.DDPControl(seg[0]).Tagged() {
		return len(seg)
	}
	k.placed = append(k.placed, string(seg[iwarp.TaggedHeaderLen:]))
	return iwarp.TaggedHeaderLen
}

func (k *sink) Segment(seg []byte, size int) error {
	k.calls++
	if k.failed != nil {
		return nil
	}
	hdr := iwarp.UntaggedHeaderLen
	if iwarp.DDPControl(seg[0]).Tagged() {
		hdr = iwarp.TaggedHeaderLen
	}
	if k.stall && hdr == iwarp.UntaggedHeaderLen {
		return iwarp.ErrNoReceive
	}
	if len(seg) < size {
		k.log = append(k.log, fmt.Sprintf("placed %d", size-hdr))
	} else {
		k.log = append(k.log, string(seg[hdr:]))
	}
	return nil
}

func (k *sink) Fail(c iwarp.TermCode, err error) {
	k.failed = &iwarp.LocalError{Cause: c, Err: err}
}

var epoch = time.Unix(1e9, 0)

// An end is a Mux with its association, and what has happened to its sessions.
type end struct {
	t *testing.T
	*Mux
	a   *sctpddptest.Assoc
	now time.Time
}

func newEnd(t *testing.T, a *sctpddptest.Assoc, cfg Config) *end {
	t.Helper()
	m, err := NewMux(a, cfg, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return &end{t: t, Mux: m, a: a, now: epoch}
}

// newEnds makes two ends of an association; a has opened it.
func newEnds(t *testing.T, l sctpddptest.Link) (a, b *end) {
	x, y := sctpddptest.NewPair(l)
	return newEnd(t, x, Config{Initiator: true, Backlog: 16}), newEnd(t, y, Config{Backlog: 16})
}

// run lets everything arrive that is under way, at all ends.
func run(ends ...*end) {
	for moved := true; moved; {
		moved = false
		for _, e := range ends {
			for {
				m, ok := e.a.Next()
				if !ok {
					break
				}
				e.Input(e.now, m)
				moved = true
			}
			e.Sessions(func(s *Session) {
				before := len(e.a.Log())
				s.Step()
				moved = moved || len(e.a.Log()) > before
			})
			e.Step(e.now)
		}
	}
}

// inject sends a message of a crafted peer.
func inject(a *sctpddptest.Assoc, stream uint16, ppid uint32, data string) {
	a.Inject(sctpddptest.Sent{Stream: stream, PPID: ppid, Data: unhex(data)})
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// ctl is a control message of a crafted peer.
func ctl(ssn int, f Function, pd string) string {
	return fmt.Sprintf("%04x%04x%x", ssn&0xffff, uint16(f), pd)
}

// write is a segment of a Write with that content, send one of a Send.
func write(ssn int, text string) string {
	return fmt.Sprintf("%04x%x%x", ssn&0xffff, iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0),
		text)
}

func send(ssn int, text string) string {
	return fmt.Sprintf("%04x%x%x", ssn&0xffff, iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0),
		text)
}

// sent is what a has sent since the from-th message, one word each.
func sent(a *sctpddptest.Assoc, from int) string {
	var out []string
	for _, s := range a.Log()[from:] {
		if s.PPID == PPIDControl {
			c, err := ParseControl(s.Data)
			if err != nil {
				out = append(out, err.Error())
				continue
			}
			out = append(out, fmt.Sprintf("%d:%d", c.SSN, c.Function))
			continue
		}
		ssn, _, err := ParseSegment(s.Data)
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		out = append(out, fmt.Sprintf("%d:seg", ssn))
	}
	return strings.Join(out, " ")
}

// events takes a session's events, one word each.
func events(s *Session) string {
	var out []string
	for {
		ev, ok := s.Event()
		if !ok {
			return strings.Join(out, " ")
		}
		w := ev.Kind.String()
		if len(ev.PrivateData) > 0 {
			w += "(" + string(ev.PrivateData) + ")"
		}
		out = append(out, w)
	}
}

// plain asks for nothing enhanced.
var plain = iwarp.StartConfig{Revision: 1, IRD: 4, ORD: 4}

// requested is the session that a has asked b for.
func requested(t *testing.T, a, b *end) *Session {
	t.Helper()
	run(a, b)
	y, ok := b.Request()
	if !ok {
		t.Fatal("no request")
	}
	return y
}

// opened is a session that has been opened on both sides, with its sinks.
func opened(t *testing.T, a, b *end) (x, y *Session, kx, ky *sink) {
	t.Helper()
	x, err := a.Open(plain, nil)
	if err != nil {
		t.Fatal(err)
	}
	y = requested(t, a, b)
	if _, err := y.Accept(plain, nil); err != nil {
		t.Fatal(err)
	}
	run(a, b)
	kx, ky = &sink{}, &sink{}
	if err := errors.Join(x.Attach(kx), y.Attach(ky)); err != nil {
		t.Fatal(err)
	}
	if got := events(x) + " " + events(y); got != "Accepted Request" {
		t.Fatalf("events %s", got)
	}
	return x, y, kx, ky
}

// writeText sends a segment of a Write.
func writeText(t *testing.T, s *Session, text string) {
	t.Helper()
	seg := append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0), text...)
	if n, err := s.WriteFrom(strings.NewReader(string(seg))); n != len(seg) || err != nil {
		t.Fatalf("WriteFrom: %d, %v", n, err)
	}
}

// crafted is a Mux under test, b, whose peer is made of injected messages.
func crafted(t *testing.T, l sctpddptest.Link, cfg Config) (peer *sctpddptest.Assoc, b *end) {
	x, y := sctpddptest.NewPair(l)
	return x, newEnd(t, y, cfg)
}

// asked is a passive session on stream 3 that waits for an answer.
func asked(t *testing.T, f Function, pd string) (peer *sctpddptest.Assoc, b *end, s *Session) {
	t.Helper()
	peer, b = crafted(t, sctpddptest.Link{}, Config{Backlog: 4})
	inject(peer, 3, PPIDControl, ctl(0, f, pd))
	run(b)
	s, ok := b.Request()
	if !ok {
		t.Fatal("no request")
	}
	return peer, b, s
}

func wantState(t *testing.T, s *Session, want State) {
	t.Helper()
	if s.State() != want {
		t.Errorf("state %v, want %v (%v)", s.State(), want, s.Err())
	}
}

func wantSent(t *testing.T, a *sctpddptest.Assoc, from int, want string) {
	t.Helper()
	if got := sent(a, from); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}

func wantLog(t *testing.T, k *sink, want ...string) {
	t.Helper()
	if !slices.Equal(k.log, want) {
		t.Errorf("delivered %q, want %q", k.log, want)
	}
}
