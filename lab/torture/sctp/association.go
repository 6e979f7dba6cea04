package sctp

import (
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
)

// inits are what comes in place of an INIT, or is an odd one, and what belongs to no association.
func inits() []row {
	var rows []row
	add := func(name, id, want string, run func(a *attempt) error) {
		rows = append(rows, row{"init/" + name, []string{id}, want, run})
	}
	// silent has something come that is not answered: the next that is heard is an INIT ACK.
	silent := func(name, id string, send func(a *attempt)) {
		add(name, id, "nothing, and an INIT is answered", func(a *attempt) error {
			send(a)
			return unlessAborted(comesUp(a))
		})
	}
	// refused has an INIT come that is answered by an ABORT with its tag.
	refused := func(name, id string, cause int, change func(*rawsctp.Setup)) {
		want := "an ABORT"
		if cause != rawsctp.AnyCause {
			want += fmt.Sprint(" for cause ", cause)
		}
		add(name, id, want, func(a *attempt) error {
			init := a.Setup()
			change(&init)
			a.Raw(0, init.Chunk())
			return a.aborted(a.Own, false, cause)
		})
	}
	// other has one come that does not say that it is about DDP, to an endpoint that does.
	other := func(name, id string, params ...[]byte) {
		add(name, id, "an ABORT", func(a *attempt) error {
			_, params0, err := a.Begin(a.Setup()) // it makes no association
			if err == nil {
				err = speaksDDP(params0)
			}
			if err != nil {
				return err
			}
			init := a.Setup()
			init.Tag++
			init.Params = params
			a.Raw(0, init.Chunk())
			return a.aborted(init.Tag, false, rawsctp.AnyCause)
		})
	}
	silent("tag 0", "SCTP-020", func(a *attempt) {
		init := a.Setup()
		init.Tag = 0
		a.Raw(0, init.Chunk())
	})
	silent("a verification tag", "SCTP-032", func(a *attempt) { a.Raw(1, a.Setup().Chunk()) })
	silent("and another chunk", "SCTP-016", func(a *attempt) {
		a.Raw(0, a.Setup().Chunk(), rawsctp.Make(rawsctp.CookieAck, 0))
	})
	silent("cut in its fields", "SCTP-012", func(a *attempt) {
		a.Raw(0, rawsctp.Make(rawsctp.Init, 0, 1, 2, 3, 4))
	})
	silent("a wrong checksum", "SCTP-005", func(a *attempt) {
		b := rawsctp.Packet(a.Src, a.Dst, 0, a.Setup().Chunk())
		b[20] ^= 1
		a.Octets(b)
	})
	silent("from port 0", "SCTP-002", func(a *attempt) {
		a.Octets(rawsctp.Packet(0, a.Dst, 0, a.Setup().Chunk()))
	})
	silent("packets that are none", "SCTP-008", func(a *attempt) {
		for n := range 20 {
			a.Octets(make([]byte, n))
		}
		a.Octets(rawsctp.Packet(a.Src, a.Dst, 0))
		a.Octets(rawsctp.Packet(a.Src, a.Dst, 0, a.Setup().Chunk().Length(3)))
		a.Octets(rawsctp.Packet(a.Src, a.Dst, 0, a.Setup().Chunk().Length(60000)))
	})
	refused("a window of 1499", "SCTP-021", rawsctp.AnyCause, func(s *rawsctp.Setup) {
		s.Window = 1499
	})
	refused("no streams out", "SCTP-021", rawsctp.AnyCause, func(s *rawsctp.Setup) { s.Out = 0 })
	refused("no streams in", "SCTP-021", rawsctp.AnyCause, func(s *rawsctp.Setup) { s.In = 0 })
	refused("a host name", "SCTP-030", rawsctp.CauseAddress, func(s *rawsctp.Setup) {
		s.Params = append(s.Params, rawsctp.Param(rawsctp.ParamHostName, []byte("localhost\x00")...))
	})
	other("no indication", "SDDP-004")
	other("another indication", "SDDP-005", rawsctp.Adaptation(7))
	other("an indication of 12 octets", "SDDP-006", rawsctp.Param(rawsctp.ParamAdaptation, 0, 0, 0, 1,
		0, 0, 0, 0))
	for _, x := range []struct {
		typ      uint16
		reported bool
	}{{0x00ff, false}, {0x40ff, true}, {0x80ff, false}, {0xc0ff, true}} {
		want := "an INIT ACK, which does not have it"
		if x.reported {
			want = "an INIT ACK, which reports it"
		}
		add(fmt.Sprintf("parameter %#04x", x.typ), "SCTP-013", want, func(a *attempt) error {
			init := a.Setup()
			odd := rawsctp.Param(x.typ, 1, 2, 3, 4)
			init.Params = append(init.Params, odd)
			cookie, params, err := a.Begin(init)
			if err != nil {
				return err
			}
			got, ok := params[rawsctp.ParamUnknown]
			if ok != x.reported || ok && string(got) != string(odd) {
				return torture.Differf("reported: % x", got)
			}
			a.Send(rawsctp.Make(rawsctp.CookieEcho, 0, cookie...))
			if _, err = a.Want(rawsctp.CookieAck); err == nil {
				err = a.Alive()
			}
			return err
		})
	}
	add("streams", "SCTP-023", "no more out than the INIT has in", func(a *attempt) error {
		init := a.Setup()
		init.In = 3
		if _, _, err := a.Begin(init); err != nil {
			return err
		}
		if a.Out == 0 || a.Out > 3 {
			return fmt.Errorf("%d streams out where 3 may be", a.Out)
		}
		return nil
	})
	add("cookies that are wrong", "SCTP-037", "nothing, and the right one is taken",
		func(a *attempt) error {
			cookie, _, err := a.Begin(a.Setup())
			if err != nil {
				return err
			}
			for i := 0; i < len(cookie); i += 7 {
				bad := append([]byte(nil), cookie...)
				bad[i] ^= 0x40
				a.Send(rawsctp.Make(rawsctp.CookieEcho, 0, bad...))
			}
			a.Send(rawsctp.Make(rawsctp.CookieEcho, 0, cookie[:len(cookie)-4]...))
			a.Send(rawsctp.Make(rawsctp.CookieEcho, 0))
			right := rawsctp.Make(rawsctp.CookieEcho, 0, cookie...)
			a.Octets(rawsctp.Packet(a.Src+1, a.Dst, a.Tag, right)) // of another port: SCTP-045
			a.Send(right)
			if _, err = a.Want(rawsctp.CookieAck); err == nil {
				err = a.Alive()
			}
			return err
		})
	add("to a port that nobody has", "SCTP-151", "an ABORT", func(a *attempt) error {
		a.Dst ^= 1
		a.Raw(0, a.Setup().Chunk())
		return a.aborted(a.Own, false, rawsctp.AnyCause)
	})
	const tag = 0xdecade
	add("DATA of no association", "SCTP-153", "an ABORT with its tag and T", func(a *attempt) error {
		a.Raw(tag, rawsctp.DataChunk(3, 1, 0, 0, 16, []byte("x")))
		return a.aborted(tag, true, rawsctp.AnyCause)
	})
	add("SHUTDOWN ACK of no association", "SCTP-152", "a SHUTDOWN COMPLETE with T",
		func(a *attempt) error {
			a.Raw(tag, rawsctp.Make(rawsctp.ShutdownAck, 0))
			c, err := a.Want(rawsctp.ShutdownComplete)
			if err == nil && c.Flags() != rawsctp.FlagT {
				err = fmt.Errorf("%v without T", c)
			}
			return err
		})
	for _, x := range []struct {
		name, id string
		typ      byte
	}{{"ABORT", "SCTP-150", rawsctp.Abort}, {"SHUTDOWN COMPLETE", "SCTP-152",
		rawsctp.ShutdownComplete}, {"COOKIE ACK", "SCTP-152", rawsctp.CookieAck}} {
		silent(x.name+" of no association", x.id, func(a *attempt) {
			a.Raw(tag, rawsctp.Make(x.typ, 0))
		})
	}
	return rows
}

// associations are what comes in one.
func associations() []row {
	var rows []row
	add := func(name, want string, ids []string, run func(a *attempt) error) {
		rows = append(rows, row{"association/" + name, ids, want, func(a *attempt) error {
			if err := a.Establish(); err != nil {
				return err
			}
			return run(a)
		}})
	}
	ignored := func(name string, ids []string, send func(a *attempt)) {
		add(name, "nothing, and the association goes on", ids, func(a *attempt) error {
			send(a)
			return unlessAborted(a.Alive())
		})
	}
	reported := func(name, id string, cause uint16, send func(a *attempt)) {
		add(name, fmt.Sprintf("an ERROR of cause %d, and the association goes on", cause), []string{id},
			func(a *attempt) error {
				send(a)
				c, err := a.Want(rawsctp.Error)
				if err != nil {
					return err
				}
				if got := c.Causes(); len(got) != 1 || got[0] != cause {
					return torture.Differf("causes %d, not %d", got, cause)
				}
				return a.Alive()
			})
	}
	aborted := func(name, id string, cause int, send func(a *attempt)) {
		add(name, fmt.Sprintf("an ABORT for cause %d", cause), []string{id}, func(a *attempt) error {
			send(a)
			err := a.aborted(a.Own, false, cause)
			if err != nil && !torture.Differing(err) {
				return err
			}
			// It is gone: RFC 9260, section 8.4 (8).
			a.Send(a.Next(0, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
			return behind(err, a.aborted(a.Tag, true, rawsctp.AnyCause))
		})
	}
	heartbeat := rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, 9)...)
	ignored("a wrong tag", []string{"SCTP-145", "SCTP-146"}, func(a *attempt) {
		a.Raw(a.Tag+1, heartbeat)
		a.Raw(a.Tag+1, rawsctp.Make(rawsctp.Abort, 0))
		a.Raw(a.Tag, rawsctp.Make(rawsctp.Abort, rawsctp.FlagT))
	})
	ignored("a wrong checksum", []string{"SCTP-005"}, func(a *attempt) {
		for i := 12; i < 20; i++ {
			b := rawsctp.Packet(a.Src, a.Dst, a.Tag, rawsctp.Make(rawsctp.Abort, 0, 0, 12, 0, 4))
			b[i] ^= 0x80
			a.Octets(b)
		}
	})
	ignored("an ABORT with a format error", []string{"SCTP-155"}, func(a *attempt) {
		a.Send(rawsctp.Make(rawsctp.Abort, 0, 0, 1, 0, 99))
	})
	ignored("unknown chunks that end a packet", []string{"SCTP-009"}, func(a *attempt) {
		a.Send(rawsctp.Make(0x3e, 0), heartbeat)
	})
	reported("unknown chunks that end it and are reported", "SCTP-009", rawsctp.CauseUnrecognized,
		func(a *attempt) { a.Send(rawsctp.Make(0x7e, 0), heartbeat) })
	reported("unknown chunks that are skipped and reported", "SCTP-010", rawsctp.CauseUnrecognized,
		func(a *attempt) { a.Send(rawsctp.Make(0xdf, 0), rawsctp.Make(0x84, 0, 0, 0)) })
	ignored("chunks that are cut", []string{"SCTP-008"}, func(a *attempt) {
		for _, n := range []int{0, 3, 100, 65535} {
			a.Send(heartbeat.Length(n))
		}
		a.Send(rawsctp.Make(rawsctp.Data, 3, 1, 2, 3, 4))
		a.Send(rawsctp.Make(rawsctp.Sack, 0, 1, 2, 3, 4))
		a.Send(rawsctp.Make(rawsctp.Shutdown, 0, 1))
	})
	aborted("DATA without data", "SCTP-099", rawsctp.CauseNoUserData, func(a *attempt) {
		a.Send(a.Next(0, rawsctp.PPIDControl, nil))
	})
	reported("a stream that there is not", "SCTP-098", rawsctp.CauseInvalidStream, func(a *attempt) {
		a.Send(a.Next(60000, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
	})
	ignored("a TSN far ahead, and one long ago", []string{"SCTP-071"}, func(a *attempt) {
		a.Send(rawsctp.DataChunk(rawsctp.Unordered, a.TSN+70000, 0, 0, 17, []byte("xxxx")))
		a.Send(rawsctp.DataChunk(rawsctp.Unordered, a.TSN-1, 0, 0, 17, []byte("xxxx")))
	})
	aborted("fragments of no message", "SCTP-103", rawsctp.CauseProtocol, func(a *attempt) {
		const begin = rawsctp.FlagB | rawsctp.FlagU
		a.Send(rawsctp.DataChunk(begin, a.TSN, 0, 0, 17, []byte("xxxx")),
			rawsctp.DataChunk(begin, a.TSN+1, 0, 0, 17, []byte("xxxx")))
		a.TSN += 2
	})
	aborted("a SACK of what was not sent", "SCTP-108", rawsctp.CauseProtocol, func(a *attempt) {
		a.Send(rawsctp.SackChunk(a.Cum()+5, 1<<20))
	})
	aborted("a SACK with a block of what was not sent", "SCTP-109", rawsctp.CauseProtocol,
		func(a *attempt) { a.Send(rawsctp.SackChunk(a.Cum(), 1<<20, 3, 4)) })
	aborted("a SHUTDOWN that acknowledges what was not sent", "SCTP-108", rawsctp.CauseProtocol,
		func(a *attempt) {
			a.Send(rawsctp.Make(rawsctp.Shutdown, 0, rawsctp.Uint32(a.Cum()+9)...))
		})
	ignored("a SACK with fewer blocks than it says", []string{"SCTP-012"}, func(a *attempt) {
		c := rawsctp.SackChunk(a.Cum(), 1<<20)
		c[13] = 200
		a.Send(c)
	})
	ignored("what nobody asked for", []string{"SCTP-048", "SCTP-057", "SCTP-156"},
		func(a *attempt) {
			a.Send(rawsctp.Make(rawsctp.CookieAck, 0))
			a.Send(rawsctp.Make(rawsctp.HeartbeatAck, 0, rawsctp.Param(1, make([]byte, 24)...)...))
			init := a.Setup().Chunk()
			init[0] = rawsctp.InitAck
			a.Send(init)
			for cause := range uint16(20) {
				a.Send(rawsctp.Make(rawsctp.Error, 0, rawsctp.Param(cause, 0, 0, 0, 0)...))
			}
			a.Send(rawsctp.Make(rawsctp.ShutdownAck, 0))
			a.Send(rawsctp.Make(rawsctp.ShutdownComplete, 0))
		})
	add("twenty HEARTBEATs in a packet", "one packet with the answers", []string{"SCTP-018"},
		func(a *attempt) error {
			var all []rawsctp.Chunk
			for i := range 20 {
				all = append(all, rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, byte(i))...))
			}
			a.Send(all...)
			if _, err := a.Want(rawsctp.HeartbeatAck); err != nil {
				return err
			}
			if err := a.Alive(); err != nil { // another packet of answers would disturb it
				return torture.Differf("more than one packet: %w", err)
			}
			return nil
		})
	add("an INIT in it", "an INIT ACK with another tag, and it goes on", []string{"SCTP-055"},
		func(a *attempt) error {
			tag, init := a.Tag, a.Setup()
			init.Tag++
			_, _, err := a.Begin(init)
			if err == nil && a.Tag == tag {
				err = errors.New("the tag is the same")
			}
			if a.Tag = tag; err == nil {
				err = a.Alive()
			}
			return err
		})
	add("an INIT in it that adds an address", "an ABORT with its tag, and it goes on",
		[]string{"SCTP-056"}, func(a *attempt) error {
			init := a.Setup()
			init.Tag++
			init.Params = append(init.Params, rawsctp.Param(rawsctp.ParamIPv4, 192, 0, 2, 7),
				rawsctp.Param(rawsctp.ParamIPv6, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7))
			a.Raw(0, init.Chunk())
			err := a.aborted(init.Tag, false, rawsctp.CauseNewAddresses)
			if err == nil || torture.Differing(err) {
				err = behind(err, a.Alive())
			}
			return err
		})
	add("an ABORT", "it is gone, and nothing is said", []string{"SCTP-155", "SCTP-153"},
		func(a *attempt) error {
			a.Send(rawsctp.Make(rawsctp.Abort, 0))
			a.Send(a.Next(0, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
			return a.aborted(a.Tag, true, rawsctp.AnyCause)
		})
	add("a SHUTDOWN", "a SHUTDOWN ACK", []string{"SCTP-158"}, func(a *attempt) error {
		a.Send(rawsctp.Make(rawsctp.Shutdown, 0, rawsctp.Uint32(a.Cum())...))
		if _, err := a.Want(rawsctp.ShutdownAck); err != nil {
			return err
		}
		a.Send(rawsctp.Make(rawsctp.ShutdownComplete, 0))
		return nil
	})
	return rows
}
