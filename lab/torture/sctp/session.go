package sctp

import (
	"fmt"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
)

// streams are what comes on a stream that has no session.
func streams() []row {
	var rows []row
	const stream = 3
	refused := func(name, id string, send func(a *attempt)) {
		rows = append(rows, row{"stream/" + name, []string{id},
			"a Terminate of the session that it is none of, and the association goes on",
			func(a *attempt) error {
				if err := a.associated(); err != nil {
					return err
				}
				send(a)
				if err := a.WantControl(stream, 0, rawsctp.Terminate); err != nil {
					return err
				}
				return a.Alive()
			}})
	}
	refused("a segment", "SDDP-035", func(a *attempt) {
		a.Segment(stream, rawpeer.Send(1, 0, []byte("x")).ULPDU())
	})
	refused("an Accept", "SDDP-035", func(a *attempt) { a.Control(stream, rawsctp.Accept) })
	refused("a Reject", "SDDP-035", func(a *attempt) { a.Control(stream, rawsctp.Reject) })
	for _, n := range []uint16{0, 8, 0xffff} {
		refused(fmt.Sprintf("function %#x", n), "SDDP-020", func(a *attempt) { a.Control(stream, n) })
	}
	refused("an Initiate with 513 octets", "SDDP-023", func(a *attempt) {
		a.Control(stream, rawsctp.Initiate, make([]byte, 513)...)
	})
	for _, n := range []int{0, 1, 3} {
		refused(fmt.Sprintf("an enhanced Initiate with %d octets", n), "ESDDP-005", func(a *attempt) {
			a.Control(stream, 5, make([]byte, n)...)
		})
	}
	for _, ppid := range []uint32{0, 50, 18} {
		refused(fmt.Sprint("PPID ", ppid), "SDDP-011", func(a *attempt) {
			a.Send(a.Next(stream, ppid, rawsctp.Control(0, rawsctp.Initiate)))
		})
	}
	for n := 1; n < 4; n++ {
		refused(fmt.Sprintf("a control message of %d octets", n), "SDDP-018", func(a *attempt) {
			a.Send(a.Next(stream, rawsctp.PPIDControl, make([]byte, n)))
		})
	}
	return rows
}

// sessions are what comes in one that is no segment, and odd ones that are right.
func sessions() []row {
	var rows []row
	add := func(name, id, want string, run func(a *attempt) error) {
		rows = append(rows, row{"session/" + name, []string{id}, want, run})
	}
	const goesOn = "it is taken, and the session goes on"
	// ended has something come that ends the session, and no other one of the association.
	ended := func(name, id string, send func(a *attempt)) {
		add(name, id, "a Terminate of the session, and another one goes on", func(a *attempt) error {
			err := a.session()
			if err == nil {
				err = a.began(4)
			}
			if err != nil {
				return err
			}
			send(a)
			if err := a.WantControl(0, 1, rawsctp.Terminate); err != nil {
				return err
			}
			return a.moves(4, 1)
		})
	}
	ended("a second Initiate", "SDDP-035", func(a *attempt) { a.Control(0, rawsctp.Initiate) })
	ended("an Accept of the active side", "SDDP-035", func(a *attempt) {
		a.Control(0, rawsctp.Accept)
	})
	ended("function 9", "SDDP-020", func(a *attempt) { a.Control(0, 9) })
	ended("PPID 50", "SDDP-011", func(a *attempt) {
		a.Send(a.Next(0, 50, rawsctp.Segment(1, make([]byte, 20))))
	})
	ended("a DDP-SSN for the second time", "SDDP-078", func(a *attempt) {
		a.Send(a.Next(0, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
	})
	ended("a DDP-SSN far ahead", "SDDP-075", func(a *attempt) {
		a.Send(a.Next(0, rawsctp.PPIDSegment, rawsctp.Segment(9000, make([]byte, 20))))
	})
	ended("a message of one octet", "SDDP-018", func(a *attempt) {
		a.Send(a.Next(0, rawsctp.PPIDSegment, []byte{0}))
	})
	ended("a Terminate", "SDDP-084", func(a *attempt) { a.Control(0, rawsctp.Terminate) })

	for _, n := range []int{0, 1, 512} {
		add(fmt.Sprintf("an Initiate with %d octets", n), "SDDP-021", goesOn, func(a *attempt) error {
			if err := a.associated(); err != nil {
				return err
			}
			a.Control(0, rawsctp.Initiate, make([]byte, n)...)
			if err := a.WantControl(0, 0, rawsctp.Accept); err != nil {
				return err
			}
			return a.moves(0, 1)
		})
	}
	add("enhanced", "ESDDP-013", "an enhanced Accept, and the session goes on",
		func(a *attempt) error {
			if err := a.associated(); err != nil {
				return err
			}
			a.Control(0, 5, 0, 4, 0, 4)
			const accept = 6
			if err := a.WantControl(0, 0, accept); err != nil {
				return err
			}
			return a.moves(0, 1)
		})
	add("in the other order", "SDDP-070", goesOn, func(a *attempt) error {
		if err := a.session(); err != nil {
			return err
		}
		read := a.Next(0, rawsctp.PPIDSegment, rawsctp.Segment(2, rawpeer.ReadRequest(1,
			rawpeer.Read{SinkSTag: 1, SinkTO: 2}).ULPDU()))
		write := a.Next(0, rawsctp.PPIDSegment, rawsctp.Segment(1, rawpeer.Write(0, 0, nil).ULPDU()))
		a.Send(read, write)
		_, err := a.WantSegment(0, 1)
		return err
	})
	add("in fragments", "SDDP-067", goesOn, func(a *attempt) error {
		if err := a.session(); err != nil {
			return err
		}
		m := rawsctp.Segment(1, rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: 1, SinkTO: 2}).ULPDU())
		for i := range m { // the last one comes first
			i = len(m) - 1 - i
			flags := byte(rawsctp.FlagU)
			if i == 0 {
				flags |= rawsctp.FlagB
			}
			if i == len(m)-1 {
				flags |= rawsctp.FlagE
			}
			a.Send(rawsctp.DataChunk(flags, a.TSN+uint32(i), 0, 0, rawsctp.PPIDSegment, m[i:i+1]))
		}
		a.TSN += uint32(len(m))
		_, err := a.WantSegment(0, 1)
		return err
	})
	add("ordered", "SDDP-068", goesOn, func(a *attempt) error { // reading R5 of docs/decisions.md
		if err := a.session(); err != nil {
			return err
		}
		m := rawsctp.Segment(1, rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: 1, SinkTO: 2}).ULPDU())
		a.Send(rawsctp.DataChunk(rawsctp.FlagB|rawsctp.FlagE, a.TSN, 0, 0, rawsctp.PPIDSegment, m))
		_, err := a.WantSegment(0, 1)
		return err
	})
	return rows
}

// segments are those of iWARP that DDP and RDMAP refuse, whatever is below them.
func segments() []row {
	var rows []row
	for _, l := range iwarp.Lies() {
		if l.Layer == 2 { // MPA's
			continue
		}
		want := fmt.Sprintf("Terminate %d/%d/%02x, and one of the session", l.Layer, l.Type, l.Code)
		if l.Silent {
			want = "a Terminate of the session alone"
		}
		rows = append(rows, row{l.Name, append([]string{"SDDP-038"}, l.IDs...), want,
			func(a *attempt) error { return a.lies(&l) }})
	}
	return rows
}

// lies has a bad segment come on a session.
func (a *attempt) lies(l *iwarp.Lie) error {
	if err := a.session(); err != nil {
		return err
	}
	for _, s := range l.Bad {
		a.Segment(0, s.ULPDU())
	}
	m, err := a.Message(0)
	if err != nil {
		return err
	}
	if m.PPID == rawsctp.PPIDControl {
		switch {
		case !m.IsControl(1, rawsctp.Terminate):
			return fmt.Errorf("% x, not a Terminate of the session", m.Data)
		case !l.Silent:
			err = torture.Differf("the session is ended without a Terminate of RDMAP")
		}
		return behind(err, a.Alive())
	}
	got, ok := rawpeer.ParseSeg(m.Data[min(2, len(m.Data)):])
	switch {
	case m.PPID != rawsctp.PPIDSegment || !ok || got.Op() != rawpeer.OpTerminate:
		return fmt.Errorf("it was taken: PPID %d, % x", m.PPID, m.Data)
	case l.Silent:
		err = torture.Differf("a Terminate of RDMAP, not that of the session alone")
	case string(got.ULPDU()) != string(l.Terminate().ULPDU()):
		err = torture.Differf("Terminate % x, not % x", got.Body, l.Terminate().Body)
	}
	if end := a.WantControl(0, 2, rawsctp.Terminate); end != nil {
		return end
	}
	return behind(err, a.Alive())
}
