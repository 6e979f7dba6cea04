package record

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/roce/cm"
)

// About says what of a recording is about one queue pair: beside its own engines the start-up of
// its connection, and what the connection manager, SCTP and DDP's streams of its device have done
// for that. A QP may share an association with others, and have a stream of it after them.
type About struct {
	subjects map[uint64]bool
	objects  map[object]bool // connections, associations and messages
	ports    map[ports]bool  // of associations
	streams  map[object]bool // of DDP, on one
}

// Empty reports whether the recording has nothing of that queue pair.
func (a *About) Empty() bool { return len(a.subjects) == 0 }

// An object is one of an engine that has many.
type object struct{ engine, number uint64 }

// ports are those of an association, at a device.
type ports struct {
	device        string
	local, remote uint16
}

// ReadAbout reads a recording, as far as it goes.
func ReadAbout(in *Reader, qpn uint32) (*About, error) {
	a := &About{subjects: map[uint64]bool{}, objects: map[object]bool{}, ports: map[ports]bool{},
		streams: map[object]bool{}}
	associations := map[object]ports{}
	messages := map[object]uint64{} // the association of each
	for {
		rec, err := in.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, ErrCut):
			for o, p := range associations {
				if a.ports[p] {
					a.objects[o] = true
				}
			}
			for o, n := range messages {
				if a.objects[object{o.engine, n}] {
					a.objects[o] = true
				}
			}
			return a, nil
		case err != nil:
			return nil, err
		}
		s := rec.Subject
		switch {
		case s == nil:
		case s.QPN == qpn && s.Kind != Session:
			a.own(s)
		case s.Kind == ConnManager && len(rec.Steps) > 0:
			for _, n := range managed(rec.Steps, qpn) {
				a.objects[object{s.ID, n}] = true
			}
		case s.Kind == SCTPEndpoint:
			for i := range rec.Steps {
				e := &rec.Steps[i]
				if e.Op != opSCTPEvent {
					continue
				}
				association := e.arg("association")
				associations[object{s.ID, association}] = ports{s.Device, uint16(e.arg("local")),
					uint16(e.arg("remote"))}
				if n := e.arg("message"); n != 0 {
					messages[object{s.ID, n}] = association
				}
			}
		}
	}
}

// own notes what is the queue pair's alone, and between which ports its connection is.
func (a *About) own(s *Subject) {
	a.subjects[s.ID] = true
	if s.DDP != nil {
		a.streams[object{s.DDP.Streams, uint64(s.DDP.Stream)}] = true
	}
	local, err := netip.ParseAddrPort(s.Local)
	remote, e := netip.ParseAddrPort(s.Remote)
	if err == nil && e == nil && s.Transport == "sctp" {
		a.ports[ports{s.Device, local.Port(), remote.Port()}] = true
	}
}

// managed are the connections that a call of a connection manager is to make of queue pair qpn, or
// that it has as the recording begins.
func managed(steps []Step, qpn uint32) (numbers []uint64) {
	var r struct{ QPN uint32 }
	var number uint64
	call, last := &steps[0], &steps[len(steps)-1]
	switch {
	case call.Op == opRestore:
		if s, err := stateOf(call.Octets); err == nil {
			for i := range s.Conns {
				if s.Conns[i].QPN == qpn {
					numbers = append(numbers, s.Conns[i].Number)
				}
			}
		}
		return numbers
	case call.Op == opManager+Op(cm.CallConnect) && last.Op == opReturn:
		number = last.arg("n")
	case call.Op == opManager+Op(cm.CallAccept):
		number = call.arg("of")
	default:
		return nil
	}
	if unmarshal([]byte(call.Text), &r) == nil && r.QPN == qpn {
		numbers = append(numbers, number)
	}
	return numbers
}

// Has says whether rec is about the queue pair, or about the recording itself.
func (a *About) Has(rec *Record) bool {
	s := rec.Subject
	if s == nil || a.subjects[s.ID] {
		return true
	}
	for i := range rec.Steps {
		if a.step(s, rec.Steps[0].Op, &rec.Steps[i]) {
			return true
		}
	}
	return false
}

// step says whether a Step of that call is about the queue pair.
func (a *About) step(s *Subject, call Op, step *Step) bool {
	var number uint64
	switch op := step.Op; {
	case s.Kind == DDPStreams:
		i := slices.Index(op.info().args, "stream")
		return i >= 0 && a.streams[object{s.ID, step.Args[i]}]
	case op == opTold:
		number = step.arg("conn")
	case op == opSCTPEvent:
		number = step.arg("association")
	case op == opSCTP+Op(sctp.CallInput), op == opSCTPPacket:
		b := step.Octets
		if len(b) < 4 {
			return false
		}
		from, to := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		return a.ports[ports{s.Device, from, to}] || a.ports[ports{s.Device, to, from}]
	case op == opSentMAD, op >= opManager && op <= opManager+Op(cm.CallAnswer),
		op >= opSCTP && op <= opSCTP+Op(sctp.CallRelease):
		number = step.arg("of")
	case op == opReturn && (s.Kind == ConnManager || call == opSCTP+Op(sctp.CallDial)):
		number = step.arg("n") // of what was made: other calls of SCTP's return counts
	}
	return number != 0 && a.objects[object{s.ID, number}]
}
