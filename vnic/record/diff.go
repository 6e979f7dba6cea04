package record

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/sctpddp"
)

// Two runs of a program never agree in times, in numbers of queue pairs, in keys and addresses, nor
// in how octets were cut to packets. So what is compared is what a program does, and what it gets:
// of each program, queue pair and connection there are lanes, things of one kind in their order.
// The n-th of one recording is held against the n-th of its kind and device in the other.

// A lane is what things of a subject are.
type lane uint8

const (
	laneCalls     lane = iota // of a program
	lanePosted                // send requests
	laneCompleted             // how they ended
	laneReceived              // receives
	laneSent                  // messages of a connection that have octets
	lanePlaced                // octets that came, in any number of pieces
	laneFailed                // why a connection ended
	laneStarted               // what MPA's start-up has come to
	laneManaged               // what a connection's owner is told of it
)

var laneNames = [...]string{laneCalls: "call", lanePosted: "send request",
	laneCompleted: "completion of a send request", laneReceived: "completion of a receive",
	laneSent: "message", lanePlaced: "octets that are placed", laneFailed: "end",
	laneStarted: "outcome", laneManaged: "event"}

// A thing is one of a lane.
type thing struct {
	at     time.Duration
	words  string
	octets []byte
}

// A laneKey says whose a lane is: the n-th subject of a kind and a device.
type laneKey struct {
	kind, device string
	n            int
	lane         lane
}

// A Run is what a recording has of programs, for First.
type Run struct {
	Cut error // why there is no end; nil: there is

	lanes    map[laneKey][]*thing
	order    []laneKey          // in which lanes began
	names    map[laneKey]string // of subjects, without a lane
	subjects map[uint64]laneKey // the same, by number
	count    map[laneKey]int    // of subjects, without n
	lost     map[laneKey]bool   // of which there was no room for all, without a lane
	messages map[message]*thing
	objects  map[object]laneKey  // of engines that have many connections
	engines  map[laneKey]laneKey // whose an object is, without lanes
	kinds    map[uint64]string   // of subjects
	room     int                 // for octets, and for things
}

// A message is a payload of a connection.
type message struct{ conn, payload uint64 }

// runRoom is how much memory a Run may take, and thingRoom what a thing without octets takes of it.
const (
	runRoom   = 512 << 20
	thingRoom = 128
)

// ErrBig says that a recording is too long to be compared.
var ErrBig = errors.New("the recording has too much to be compared")

// ReadRun reads a recording. octets: those of messages matter. call has the name of a call.
func ReadRun(in io.Reader, octets bool, call func(op uint16) string) (*Run, error) {
	f, err := NewReader(in)
	if err != nil {
		return nil, err
	}
	r := &Run{lanes: make(map[laneKey][]*thing), names: make(map[laneKey]string),
		subjects: make(map[uint64]laneKey), count: make(map[laneKey]int), lost: make(map[laneKey]bool),
		messages: make(map[message]*thing), objects: make(map[object]laneKey),
		engines: make(map[laneKey]laneKey), kinds: make(map[uint64]string), room: runRoom}
	for {
		rec, err := f.Next()
		switch {
		case errors.Is(err, ErrCut):
			r.Cut = err
			return r, nil
		case errors.Is(err, io.EOF):
			return r, nil
		case err != nil:
			return nil, err
		}
		if s := rec.Subject; rec.Opened {
			k := laneKey{kind: s.Kind, device: s.Device}
			r.count[k]++
			k.n = r.count[k]
			r.subjects[s.ID], r.names[k], r.kinds[s.ID] = k, s.short(), s.Kind
		}
		if rec.Lost {
			r.lost[r.subjects[rec.Subject.ID]] = true
		}
		for i := range rec.Steps {
			r.step(rec.Subject.ID, rec.At, &rec.Steps[i], octets, call)
		}
		if r.room < 0 {
			return nil, ErrBig
		}
	}
}

// connection is the lane key of a connection that an engine has beside others: the n-th that
// anything happens to.
func (r *Run) connection(o object) laneKey {
	k, ok := r.objects[o]
	if !ok {
		engine := r.subjects[o.engine]
		k = laneKey{kind: engine.kind + " connection", device: engine.device}
		r.count[k]++
		k.n = r.count[k]
		r.objects[o], r.engines[k] = k, engine
		r.names[k] = fmt.Sprintf("%s, its connection %d", r.names[engine], k.n)
	}
	return k
}

// add adds a thing to a lane of a subject.
func (r *Run) add(id uint64, l lane, t thing) *thing { return r.addTo(r.subjects[id], l, t) }

func (r *Run) addTo(k laneKey, l lane, t thing) *thing {
	k.lane = l
	if r.lanes[k] == nil {
		r.order = append(r.order, k)
	}
	r.lanes[k] = append(r.lanes[k], &t)
	r.room -= thingRoom + len(t.words) + len(t.octets)
	return &t
}

// step takes a Step of a subject.
func (r *Run) step(id uint64, at time.Duration, s *Step, octets bool, call func(uint16) string) {
	a := s.Args
	say := func(l lane, format string, args ...any) {
		r.add(id, l, thing{at: at, words: fmt.Sprintf(format, args...)})
	}
	switch s.Op {
	case OpReply:
		say(laneCalls, "%s, errno %d", call(uint16(a[0])), a[1])
	case OpTaken:
		say(lanePosted, "%v of %d octets, flags %#x, immediate data %#x", rdma.Opcode(a[1]), a[2], a[3],
			a[5])
	case OpCompleted:
		say(laneCompleted, "%v of %d octets: %v", rdma.Opcode(a[1]), a[2], rdma.WCStatus(a[3]))
	case OpReceived:
		say(laneReceived, "%d octets, immediate data %#x: %v", a[2], a[5], rdma.WCStatus(a[3]))
	case opEnded:
		say(laneFailed, "%s", s.Text)
	case opStarted, opAgreed:
		say(laneStarted, "%s", s.Text)
	case opDDPEvent:
		switch k := sctpddp.EventKind(a[0]); k {
		case sctpddp.EventClosed, sctpddp.EventLost: // which of them hangs on who is first
		default:
			say(laneManaged, "%v %s", k, s.Text)
		}
	case opTold:
		r.addTo(r.connection(object{id, a[1] | a[3] | a[4]}), laneManaged, thing{at: at,
			words: fmt.Sprintf("%d, reason %d, status %d", a[0], a[13], a[14])})
	case opSCTPEvent:
		switch sctp.EventKind(a[0]) {
		case sctp.EventUp, sctp.EventPeerShutdown, sctp.EventPeerError, sctp.EventDown:
			r.addTo(r.connection(object{id, a[1]}), laneManaged, thing{at: at,
				words: fmt.Sprintf("%d %s", a[0], s.Text)})
		default: // when there is which hangs on how packets come
		}
	}
	if !octets {
		return
	}
	switch s.Op {
	case opPostSend, opPostWrite, opPost, opAppendDatagram:
		p := a[3]
		if s.Op == opPost {
			p = a[5]
		}
		if p != 0 {
			r.messages[message{id, p}] = r.add(id, laneSent, thing{at: at})
		}
	case opCopyOut: // of what goes out again the first time counts
		if m := r.messages[message{id, a[0]}]; m != nil && a[1] <= uint64(len(m.octets)) {
			n := min(len(m.octets)-int(a[1]), len(s.Octets))
			m.octets = append(m.octets, s.Octets[n:]...)
			r.room -= len(s.Octets) - n
		}
	case opFillReceive:
		if r.kinds[id] == DatagramQP && a[0] == 0 { // the network's header
			return
		}
		fallthrough
	case opPlaceWrite, opPlaceReceive, opPlaceRead, opPlaceAnswer, opFillWrite:
		if len(s.Octets) > 0 {
			r.add(id, lanePlaced, thing{at: at, octets: slices.Clone(s.Octets)})
		}
	}
}

// cut reports that the recording may not have all of a subject, or of a connection of one's.
func (r *Run) cut(who, engine laneKey) bool { return r.Cut != nil || r.lost[who] || r.lost[engine] }

// A found is a difference of two lanes.
type found struct {
	at    time.Duration // in the first recording, if it has that thing
	words string
}

// First is the first difference of b from a, in words, by the time of a; "": there is none.
func First(a, b *Run) string {
	var first *found
	keys := slices.Clone(a.order)
	for _, k := range b.order {
		if a.lanes[k] == nil {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		compare := compareThings
		if k.lane == lanePlaced {
			compare = compareOctets
		}
		who := k
		who.lane = 0
		engine, ok := a.engines[who]
		if !ok {
			engine = b.engines[who]
		}
		f := compare(a.lanes[k], b.lanes[k], a.cut(who, engine), b.cut(who, engine))
		if f == nil || first != nil && first.at <= f.at {
			continue
		}
		name, other := a.names[who], b.names[who]
		switch {
		case name == "":
			name = other + " of the second recording"
		case other != "" && other != name:
			name += " (" + other + " in the second recording)"
		}
		f.words = fmt.Sprintf("at %v, %s, %s %s", f.at, name, laneNames[k.lane], f.words)
		first = f
	}
	if first == nil {
		return ""
	}
	return first.words
}

// compareThings compares lanes one by one. What a recording that is cut does not have is no
// difference.
func compareThings(a, b []*thing, aCut, bCut bool) *found {
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			if aCut {
				return nil
			}
			return &found{b[i].at, fmt.Sprintf("%d: the first recording has no more, the second has %s",
				i+1, b[i].text())}
		case i >= len(b):
			if bCut {
				return nil
			}
			return &found{a[i].at, fmt.Sprintf("%d: the first recording has %s, the second has no more",
				i+1, a[i].text())}
		case a[i].words != b[i].words:
			return &found{a[i].at, fmt.Sprintf("%d: %s in the first recording, %s in the second", i+1,
				a[i].words, b[i].words)}
		}
		last := i == len(a)-1 && aCut || i == len(b)-1 && bCut // which may be there in part
		x, y := a[i].octets, b[i].octets
		if n := min(len(x), len(y)); !last && len(x) != len(y) || string(x[:n]) != string(y[:n]) {
			return &found{a[i].at, fmt.Sprintf("%d: %s", i+1, octetsDiffer(x, y))}
		}
	}
	return nil
}

// text is t in words.
func (t *thing) text() string {
	if t.words != "" {
		return t.words
	}
	return fmt.Sprintf("one of %d octets", len(t.octets))
}

// compareOctets compares lanes as strings of octets, however they are cut.
func compareOctets(a, b []*thing, aCut, bCut bool) *found {
	at, x, y := 0, []byte(nil), []byte(nil)
	var when, then time.Duration // in a and in b
	for {
		if len(x) == 0 && len(a) > 0 {
			x, when, a = a[0].octets, a[0].at, a[1:]
		}
		if len(y) == 0 && len(b) > 0 {
			y, then, b = b[0].octets, b[0].at, b[1:]
		}
		n := min(len(x), len(y))
		for i := range n {
			if x[i] != y[i] {
				return &found{when, fmt.Sprintf("by the peer: octet %d of all is %#02x in the first "+
					"recording, %#02x in the second", at+i, x[i], y[i])}
			}
		}
		if n == 0 {
			break
		}
		at, x, y = at+n, x[n:], y[n:]
	}
	switch {
	case len(x) > 0 && !bCut:
		return &found{when, fmt.Sprintf("by the peer: the second recording has %d, the first more", at)}
	case len(y) > 0 && !aCut:
		return &found{then, fmt.Sprintf("by the peer: the first recording has %d, the second more", at)}
	}
	return nil
}
