// Package trace shows the conversation of one queue pair as it happens: its requests when they are
// posted and complete, and between them what is on the wire, message by message.
package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/sctpddp"
)

// Kinds of lines beside those of capture.Event.
const (
	Out  = "out"  // a packet, or an FPDU of a TCP stream, from here
	In   = "in"   // from the peer
	Lost = "lost" // what the daemon has seen and could not hand over
	Note = "note"
)

// A Line is one thing that has happened.
type Line struct {
	Time   time.Time     `json:"time"`
	Event  string        `json:"event"`
	WRID   *uint64       `json:"wr_id,omitempty"` // of which request it is, as far as that is known
	Op     string        `json:"op,omitempty"`
	Length *uint64       `json:"length,omitempty"`
	Status string        `json:"status,omitempty"`
	Took   time.Duration `json:"took_ns,omitempty"`
	Text   string        `json:"text,omitempty"` // of a packet: its headers
	Count  uint64        `json:"count,omitempty"`
}

// A Tracer makes lines of what the daemon hands over.
type Tracer struct {
	dev     string
	num     uint32
	table   *capture.Table
	parser  *capture.Parser
	emit    func(*Line) error
	err     error // the first of emit
	now     time.Time
	dropped uint64

	requests requests
	current  *uint64 // the request whose message is on its way out
	// Of iWARP: a Write of several segments is on its way out, immediate data belong to the Write
	// before them, a message can go out behind its completion.
	writing, behindWrite, late bool

	flow    [2]netip.AddrPort // of iWARP: here and there
	ways    [2]stream         // of TCP: out, in
	noted   string            // why FPDUs are not shown
	highest [2]uint32         // TSN of SCTP
	tsns    [2]bool           // there was one
	psns    psns
	peer    roceConn
}

// A roceConn is what tells connections of a queue pair of RoCE apart: the peer's queue pair, and
// the number of the first packet.
type roceConn struct{ dest, first uint32 }

// New is a Tracer of queue pair num of dev, whose lines go to emit.
func New(dev string, num uint32, table *capture.Table, emit func(*Line) error) *Tracer {
	return &Tracer{dev: dev, num: num, table: table, parser: capture.NewParser(), emit: emit}
}

// Take takes the next packet or event.
func (t *Tracer) Take(p *capture.Packet) error {
	t.now = p.Time
	t.lost(p.Dropped)
	q, err := t.table.QP(t.dev, t.num)
	if err != nil {
		return err
	}
	if q != nil {
		t.connected(q)
	}
	if p.Event != nil {
		t.event(p.Event)
		return t.err
	}
	parsed := t.parser.Parse(p.Data)
	if q == nil || !parsed.Verbs() {
		return t.err
	}
	if parsed.BTH != nil {
		err = t.roce(&parsed)
	} else {
		t.iwarp(&parsed, q)
	}
	if err == nil {
		err = t.err
	}
	return err
}

// lost says how many are lost until now.
func (t *Tracer) lost(dropped uint64) {
	if n := dropped - t.dropped; n > 0 {
		t.dropped = dropped
		t.forget()
		t.line(&Line{Event: Lost, Count: n})
	}
}

// forget says that something has not been seen.
func (t *Tracer) forget() {
	t.requests.forget()
	t.current, t.writing, t.behindWrite = nil, false, false
}

// End is for the end, until when so many were lost.
func (t *Tracer) End(dropped uint64) error {
	t.lost(dropped)
	return t.err
}

func (t *Tracer) line(l *Line) {
	l.Time = t.now
	if err := t.emit(l); t.err == nil {
		t.err = err
	}
}

func (t *Tracer) event(e *capture.Event) {
	switch e.Kind {
	case capture.Post:
		t.requests.post(e)
	case capture.Complete:
		t.requests.complete(e, t.late)
	}
	t.line(&Line{Event: e.Kind, WRID: &e.WRID, Op: e.Op, Length: &e.Length, Status: e.Status,
		Took: e.Took})
}

// way is 0 out, 1 in.
func wayName(way int) string { return [...]string{Out, In}[way] }

func (t *Tracer) note(format string, args ...any) {
	t.line(&Line{Event: Note, Text: fmt.Sprintf(format, args...)})
}

// roce shows a packet of RoCE, if it is the queue pair's.
func (t *Tracer) roce(p *capture.Parsed) error {
	from, to, err := t.table.Find(p)
	is := func(q *capture.QP) bool { return q != nil && q.Dev == t.dev && q.Num == t.num }
	way := 0
	switch {
	case err != nil || !is(from) && !is(to):
		return err
	case is(to):
		way = 1
	}
	var h packet.Header
	payload, err := h.Parse(p.Payload)
	if err != nil {
		t.line(&Line{Event: wayName(way), Text: err.Error()})
		return nil
	}
	n := uint64(len(payload))
	t.line(&Line{Event: wayName(way), WRID: t.ofPacket(way, &h), Length: &n, Text: h.String()})
	return nil
}

// connected looks whether q has another connection now, of RoCE, or of iWARP on a network.
func (t *Tracer) connected(q *capture.QP) {
	if q.Dest != nil && q.SQPSN != nil {
		if peer := (roceConn{*q.Dest, *q.SQPSN}); peer != t.peer {
			if t.peer = peer; t.psns.began { // which packets of it have gone out is not known
				t.forget()
			}
			t.psns = psns{}
		}
	}
	flow := [2]netip.AddrPort{q.Local, q.Remote}
	if !q.Local.IsValid() || strings.HasPrefix(q.Transport, "loop") || flow == t.flow {
		return
	}
	if t.late {
		t.forget()
	}
	t.flow, t.ways, t.tsns, t.noted, t.late = flow, [2]stream{}, [2]bool{}, "", true
}

// iwarp shows what a segment of TCP or a packet of SCTP brings, if it is the queue pair's.
func (t *Tracer) iwarp(p *capture.Parsed, q *capture.QP) {
	way := 0
	switch {
	case p.Src == q.Local && p.Dst == q.Remote:
	case p.Src == q.Remote && p.Dst == q.Local:
		way = 1
	default:
		return
	}
	why := ""
	if strings.HasSuffix(q.Transport, "+roi") {
		why = "this connection speaks ROI, whose messages are not shown"
	} else if q.Markers != "" {
		why = "this connection has MPA's markers: FPDUs are not shown"
	}
	switch {
	case why != "":
		if why != t.noted {
			t.noted = why
			t.note("%s", why)
		}
	case p.Proto == "sctp":
		t.chunks(way, q.Stream, p.Payload)
	default:
		t.segment(way, p.Seq, p.Payload)
	}
}

func (t *Tracer) segment(way int, seq uint32, b []byte) {
	again, lost := t.ways[way].add(seq, b,
		func(s string) { t.line(&Line{Event: wayName(way), Text: s}) },
		func(ulpdu []byte) { t.ulpdu(way, ulpdu, "") })
	if again {
		t.line(&Line{Event: wayName(way), Text: fmt.Sprintf("TCP again: %d octets", len(b))})
	}
	if lost {
		t.forget()
		t.note("octets are missing: the next FPDU is looked for")
	}
}

// chunks shows the DATA chunks of a stream (RFC 9260, section 3.3.1).
func (t *Tracer) chunks(way int, stream uint16, b []byte) {
	const chunkLen, dataLen, whole = 4, 16, 3
	for len(b) >= chunkLen {
		n := int(b[2])<<8 | int(b[3])
		if n < chunkLen || n > len(b) {
			return
		}
		if b[0] == 0 && n >= dataLen && uint16(b[8])<<8|uint16(b[9]) == stream {
			tsn := uint32(b[4])<<24 | uint32(b[5])<<16 | uint32(b[6])<<8 | uint32(b[7])
			ppid := uint32(b[12])<<24 | uint32(b[13])<<16 | uint32(b[14])<<8 | uint32(b[15])
			again := t.tsns[way] && int32(tsn-t.highest[way]) <= 0
			if !again {
				t.tsns[way], t.highest[way] = true, tsn
			}
			t.chunk(way, b[1]&whole == whole, again, ppid, b[dataLen:n])
		}
		b = b[min(len(b), (n+3)&^3):]
	}
}

func (t *Tracer) chunk(way int, whole, again bool, ppid uint32, msg []byte) {
	switch ssn, seg, err := sctpddp.ParseSegment(msg); {
	case again:
		t.line(&Line{Event: wayName(way), Text: "SCTP again: " + sctpddp.Describe(ppid, msg)})
	case !whole:
		t.line(&Line{Event: wayName(way), Text: fmt.Sprintf("a part of a message, %d octets", len(msg))})
	case ppid == sctpddp.PPIDSegment && err == nil:
		t.ulpdu(way, seg, fmt.Sprintf("ssn=%d ", ssn))
	default:
		t.line(&Line{Event: wayName(way), Text: sctpddp.Describe(ppid, msg)})
	}
}
