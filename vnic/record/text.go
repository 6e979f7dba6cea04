package record

import (
	"fmt"
	"strings"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/sctpddp"
)

// A Text has records in words.
type Text struct {
	// Call has the octets of a program's call, or of the reply, in words; nil: their number.
	Call func(op uint16, octets []byte, reply bool) string

	conns map[uint64]*wire
	kept  int // octets, of all wires
}

// A wire is the octets of a connection of TCP, both ways.
type wire struct {
	in, out framer
	read    []byte // since the last Commit
	full    bool   // there was no room for more: FPDUs are not looked for any more
}

func (w *wire) size() int { return cap(w.in.part) + cap(w.out.part) + cap(w.read) }

// A framer finds FPDUs in octets. It does not know of Markers.
type framer struct{ part []byte }

// take is what FPDUs, which end in b, have.
func (f *framer) take(b []byte) (segments []string) {
	f.part = append(f.part, b...)
	for len(f.part) >= 2 {
		ulpdu := int(f.part[0])<<8 | int(f.part[1])
		n := iwarp.FPDULen(ulpdu)
		if len(f.part) < n {
			break
		}
		segments = append(segments, iwarp.DescribeSegment(f.part[2:2+ulpdu]))
		f.part = f.part[n:]
	}
	return segments
}

// Lines are rec in words, of a call the first one, and what it has led to behind it. Of an engine
// that was asked in vain whether it has something to send there are none.
func (t *Text) Lines(rec *Record) []string {
	switch {
	case rec.Subject == nil:
		return []string{"end: " + rec.End}
	case rec.Opened:
		return []string{fmt.Sprintf("%s begins: %v", rec.Subject.Kind, rec.Subject)}
	case rec.Lost:
		return []string{fmt.Sprintf("%s %v: the daemon had no room for what comes behind this",
			rec.Subject.Kind, rec.Subject)}
	}
	if op := rec.Steps[0].Op; op == opLen || op == opAppend && rec.idle() {
		return nil
	}
	w := t.wire(rec.Subject)
	before := w.size()
	var lines []string
	for i := range rec.Steps {
		s := &rec.Steps[i]
		line := t.step(s)
		if i == 0 {
			line = rec.Subject.short() + ": " + line
		}
		for _, more := range w.what(&rec.Steps[0], s) {
			line += "; " + more
		}
		if s.Op != opReturn || line != s.Op.String() {
			lines = append(lines, line)
		}
	}
	if rec.Subject.Kind == Connection {
		if t.kept += w.size() - before; t.kept > heldRoom {
			t.kept -= w.size()
			*w = wire{full: true}
		}
	}
	return lines
}

// idle reports that a call has led to nothing.
func (rec *Record) idle() bool {
	return len(rec.Steps) == 2 && rec.Steps[1].Op == opReturn && rec.Steps[1].Args[0] == 0
}

// short is how a line begins that is about s.
func (s *Subject) short() string {
	switch s.Kind {
	case Session:
		return fmt.Sprintf("%q (%d)", s.Program, s.PID)
	case DDPStreams, DDPSession: // whose calls have names that those of others have
		return s.name() + ", DDP"
	}
	return s.name()
}

// wire is the connection of s.
func (t *Text) wire(s *Subject) *wire {
	w := t.conns[s.ID]
	if w == nil {
		w = &wire{}
		if t.conns == nil {
			t.conns = make(map[uint64]*wire)
		}
		if s.Kind == Connection {
			t.conns[s.ID] = w
		}
	}
	return w
}

// what says what the octets of a step are, if they are something; call is that of the step.
func (w *wire) what(call, s *Step) []string {
	if w.full && (call.Op == opWrite || call.Op == opRead || call.Op == opCommit) {
		return nil
	}
	switch s.Op {
	case opReturn:
		switch call.Op {
		case opWrite:
			return w.in.take(call.Octets[:min(s.Args[0], uint64(len(call.Octets)))])
		case opRead:
			if len(w.read) < maxOctets { // more nobody reads without a Commit, but a file may say so
				w.read = append(w.read, s.Octets...)
			}
		case opAppend, opAppendDatagram:
			return packetText(s.Octets)
		}
	case opCommit:
		n := min(s.Args[0], uint64(len(w.read)))
		segments := w.out.take(w.read[:n])
		w.read = w.read[:0]
		return segments
	case opSegment, opAhead, opNotice:
		return []string{iwarp.DescribeSegment(s.Octets)}
	case opReceive:
		return packetText(s.Octets)
	case opSCTP + Op(sctp.CallInput), opSCTPPacket:
		return []string{sctp.Describe(s.Octets)}
	case opDDP + Op(sctpddp.CallMuxInput), opDDP + Op(sctpddp.CallInput), opDDPSend:
		return []string{sctpddp.Describe(uint32(s.arg("ppid")), s.Octets)}
	case opManager, opSentMAD:
		return madText(s.Octets)
	case opReceiveDatagram:
		return packetText(s.Octets[min(s.Args[0], uint64(len(s.Octets))):])
	}
	return nil
}

// packetText has the headers of a packet of RoCE.
func packetText(b []byte) []string {
	var h packet.Header
	if len(b) == 0 {
		return nil
	}
	payload, err := h.Parse(append(b[:len(b):len(b)], make([]byte, packet.ICRCLen)...))
	if err != nil {
		return []string{err.Error()}
	}
	return []string{fmt.Sprintf("%v payload %d", &h, len(payload))}
}

// shown is how many octets of a step are.
const shown = 16

// step is s in words.
func (t *Text) step(s *Step) string {
	a := s.Args
	switch s.Op {
	case OpTaken:
		return fmt.Sprintf("post %v wr %d, %d octets, %d before it", rdma.Opcode(a[1]), a[0], a[2], a[4])
	case OpCompleted:
		return fmt.Sprintf("complete %v wr %d, %d octets, %v, %v", rdma.Opcode(a[1]), a[0], a[2],
			rdma.WCStatus(a[3]), time.Duration(a[4]))
	case OpReceived:
		return fmt.Sprintf("receive wr %d, %d octets, %v", a[0], a[2], rdma.WCStatus(a[3]))
	case OpCall, OpReply:
		what := octetsText(s.Octets)
		if t.Call != nil {
			what = t.Call(uint16(a[0]), s.Octets, s.Op == OpReply)
		}
		if s.Op == OpReply && a[1] != 0 {
			return fmt.Sprintf("reply errno %d %s", a[1], s.Text)
		}
		return fmt.Sprintf("%v %s", s.Op, what)
	}
	return s.String()
}

// String is s by its names.
func (s *Step) String() string {
	if s.Op == opNone {
		return "nothing"
	}
	var b strings.Builder
	b.WriteString(s.Op.String())
	info := s.Op.info()
	for i, name := range info.args {
		switch n := s.Args[i]; {
		case strings.HasPrefix(name, "err"):
			if n != codeNone {
				fmt.Fprintf(&b, " error %q", s.Text)
			}
		case s.Op == opReturn && n == 0:
		case name == "now":
			fmt.Fprintf(&b, " at=%v", time.Duration(n))
		case strings.HasSuffix(name, "!"):
			fmt.Fprintf(&b, " %s=%#x", strings.TrimSuffix(name, "!"), n)
		default:
			fmt.Fprintf(&b, " %s=%d", name, n)
		}
	}
	if s.Text != "" && !hasError(info) {
		fmt.Fprintf(&b, " %q", s.Text)
	}
	if info.octets && (len(s.Octets) > 0 || s.Op != opReturn) {
		b.WriteString(", " + octetsText(s.Octets))
	}
	return b.String()
}

func hasError(info *opInfo) bool {
	return len(info.args) > 0 && info.args[len(info.args)-1] == "err!"
}

func octetsText(b []byte) string {
	more := ""
	if len(b) > shown {
		more = "..."
	}
	return fmt.Sprintf("%d octets %x%s", len(b), b[:min(len(b), shown)], more)
}

// String is d in words.
func (d *Difference) String() string {
	what := ""
	switch {
	case d.Is.Op != d.Was.Op:
		what = "another thing happens"
	case string(d.Is.Octets) != string(d.Was.Octets):
		what = octetsDiffer(d.Was.Octets, d.Is.Octets)
	default:
		what = "the same with other values"
	}
	return fmt.Sprintf("%v, call %d, at %v: %s\n  recorded: %v\n  replayed: %v", d.Subject, d.Call,
		d.At, what, &d.Was, &d.Is)
}

// octetsDiffer says where two strings of octets do, which do.
func octetsDiffer(a, b []byte) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("octet %d is %#02x in the one and %#02x in the other", i, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d octets in the one and %d in the other", len(a), len(b))
}
