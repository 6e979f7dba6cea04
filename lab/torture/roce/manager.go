package roce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

// Reasons of a REJ.
const (
	rejID       = 6
	rejService  = 8
	rejType     = 9
	rejStale    = 10
	rejGID      = 12
	rejMTU      = 26
	rejConsumer = 28
)

// manager are messages of the connection manager that are none, that do not fit, or come again.
func manager() []row {
	var rows []row
	add := func(name string, ids []string, want string, run func(a *attempt) error) {
		rows = append(rows, row{"manager/" + name, ids, want, run})
	}
	// unheard has datagrams come that nobody is to answer, whatever they say.
	unheard := func(name string, ids []string, all func(a *attempt) [][]byte) {
		add(name, ids, "nothing, and others are served", func(a *attempt) error {
			for _, b := range all(a) {
				if err := a.Octets(b); err != nil {
					return err
				}
			}
			return a.silent()
		})
	}
	header := func(name, id string, f func(m rawroce.MAD)) {
		unheard(name, []string{id}, func(a *attempt) [][]byte {
			m := a.Request().MAD(a.TID())
			f(m)
			return [][]byte{a.Datagram(m).Bytes()}
		})
	}
	header("base version 2", "RCM-004", func(m rawroce.MAD) { m[0] = 2 })
	header("class 6", "RCM-004", func(m rawroce.MAD) { m[1] = 6 })
	header("class version 1", "RCM-004", func(m rawroce.MAD) { m[2] = 1 })
	for _, method := range []byte{0, 1, 0x81} {
		header(fmt.Sprintf("method %#x", method), "RCM-004", func(m rawroce.MAD) { m[3] = method })
	}
	for _, attr := range []uint16{0x1a, 0x1f, 0xffff} {
		header(fmt.Sprintf("attribute %#x", attr), "RCM-006", func(m rawroce.MAD) {
			m[16], m[17] = byte(attr>>8), byte(attr)
		})
	}
	datagram := func(name string, ids []string, f func(q *rawroce.Packet)) {
		unheard(name, ids, func(a *attempt) [][]byte {
			q := a.Datagram(a.Request().MAD(a.TID()))
			f(&q)
			return [][]byte{q.Bytes()}
		})
	}
	datagram("another Q_Key", []string{"RCM-002", "ROCE-177"}, func(q *rawroce.Packet) {
		q.Ext = rawroce.DETH(0x80010001, 1)
	})
	datagram("Q_Key 0", []string{"RCM-002", "ROCE-177"}, func(q *rawroce.Packet) {
		q.Ext = rawroce.DETH(0, 1)
	})
	// 0 would be filled in: a queue pair that is not there has the same to say.
	unheard("to QP 0", []string{"RCM-003"}, func(a *attempt) [][]byte {
		b := a.Datagram(a.Request().MAD(a.TID())).Bytes()
		b[rawroce.HeadLen(b)+8+7] = 0
		rawroce.FixICRC(b)
		return [][]byte{b}
	})
	datagram("a wrong P_Key", []string{"ROCE-021"}, func(q *rawroce.Packet) { q.PKey = 0x8001 })
	unheard("a wrong ICRC", []string{"ROCE-033"}, func(a *attempt) [][]byte {
		b := a.Datagram(a.Request().MAD(a.TID())).Bytes()
		b[len(b)-1] ^= 1
		return [][]byte{b}
	})
	unheard("ids that there are not", []string{"RCM-029", "RCM-032", "RCM-033", "RCM-036", "RCM-047"},
		func(a *attempt) (all [][]byte) {
			for _, attr := range []uint16{rawroce.AttrRTU, rawroce.AttrREJ, rawroce.AttrMRA,
				rawroce.AttrDREP} {
				all = append(all, a.Datagram(rawroce.Pair(attr, a.TID(), a.ID, rand.Uint32())).Bytes())
			}
			return all
		})
	add("a REP that nobody asked for", []string{"RCM-029"}, "REJ 6, or nothing",
		func(a *attempt) error {
			if err := a.Say(rawroce.Pair(rawroce.AttrREP, a.TID(), a.ID, rand.Uint32())); err != nil {
				return err
			}
			m, err := a.Hear(time.Now().Add(a.settle))
			if err == nil && (m.Attr() != rawroce.AttrREJ || m.Reason() != rejID) {
				return fmt.Errorf("%v", m)
			} else if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			return a.comesUp()
		})
	add("a DREQ of ids that there are not", []string{"RCM-043", "RCM-007"},
		"a DREP, its ids the other way round", func(a *attempt) error { return a.asked() })

	// refused has a REQ come that is to be rejected.
	refused := func(name string, ids []string, orSilence bool, change func(r *rawroce.Request,
		m func() rawroce.MAD) rawroce.MAD, reasons ...uint16) {
		want := fmt.Sprint("a REJ, its reason of ", reasons)
		if orSilence {
			want += ", or nothing"
		}
		add(name, ids, want, func(a *attempt) error {
			r := a.Request()
			m := change(&r, func() rawroce.MAD { return r.MAD(a.TID()) })
			return a.rejected(m, orSilence, reasons...)
		})
	}
	setting := func(name, id string, f func(r *rawroce.Request), reasons ...uint16) {
		refused(name, []string{id}, false, func(r *rawroce.Request,
			m func() rawroce.MAD) rawroce.MAD {
			f(r)
			return m()
		}, reasons...)
	}
	setting("a service that there is not", "RCM-014", func(r *rawroce.Request) {
		r.Service ^= 0x8001
	}, rejService)
	setting("a service of no kind", "RCM-014", func(r *rawroce.Request) { r.Service = 0x1234 },
		rejService)
	for _, t := range []uint8{2, 3} {
		setting(fmt.Sprint("transport ", t), "RCM-018", func(r *rawroce.Request) { r.Transport = t },
			rejType)
	}
	for _, mtu := range []uint8{0, 6, 15} {
		setting(fmt.Sprint("path MTU ", mtu), "RCM-019", func(r *rawroce.Request) {
			r.MTU = mtu
		}, rejMTU)
	}
	refused("a P_Key that there is not", []string{"RCM-016"}, true, func(r *rawroce.Request,
		m func() rawroce.MAD) rawroce.MAD {
		r.PKey = 0x8001
		return m()
	}, rejGID)
	field := func(name string, ids []string, off, n int, v uint64, reasons ...uint16) {
		refused(name, ids, true, func(_ *rawroce.Request, m func() rawroce.MAD) rawroce.MAD {
			return m().Set(off, n, v)
		}, reasons...)
	}
	field("another GID", []string{"RCM-016"}, rawroce.ReqGID+12, 4, 0xc0000201, rejGID)
	field("IP version 5", []string{"RCM-015"}, rawroce.ReqCMA+1, 1, 0x50, rejConsumer)
	field("rdma_cm of version 1", []string{"RCM-015"}, rawroce.ReqCMA, 1, 0x10, rejConsumer)
	field("another destination", []string{"RCM-015", "RCM-017"}, rawroce.ReqCMA+32, 4, 0xc0000201,
		rejConsumer, rejService)
	refused("another source", []string{"ROCE-214"}, true, func(_ *rawroce.Request,
		m func() rawroce.MAD) rawroce.MAD {
		return m().Set(rawroce.ReqCMA+16, 4, 0xc0000201)
	}, rejConsumer)

	add("REP", []string{"RCM-007", "RCM-025", "RCM-026"}, "ids, depths and transaction of the REQ",
		(*attempt).reply)
	add("reserved bits of a REQ", []string{"RCM-008"}, "it is taken", func(a *attempt) error {
		m := a.Request().MAD(a.TID())
		m.Set(4, 1, 0xff).Set(24, 4, 1<<32-1).Set(94, 1, 0x07).Set(88+2, 1, 0x0f)
		rep, err := a.Ask(m)
		if err == nil {
			err = a.Use(rep)
		}
		if err == nil {
			err = a.alive()
		}
		return err
	})
	add("a REQ again", []string{"RCM-021", "ROCE-208"}, "the same REP again, or nothing",
		(*attempt).askedAgain)
	add("a REQ of a queue pair that is connected", []string{"RCM-022"},
		"REJ 10, or the old connection is ended", (*attempt).stale)
	add("no RTU", []string{"RCM-027"}, "the REP again", func(a *attempt) error {
		rep, err := a.Ask(a.Request().MAD(a.TID()))
		if err != nil {
			return err
		}
		m, err := a.Hear(a.Soon())
		if err != nil {
			return fmt.Errorf("the REP is not repeated: %w", err)
		}
		if m.Attr() != rawroce.AttrREP || m.Local() != rep.Local() {
			return fmt.Errorf("%v, not the same REP", m)
		}
		if err = a.Use(rep); err == nil {
			err = a.alive()
		}
		return err
	})
	add("data before the RTU", []string{"RCM-031"}, "an ACK", func(a *attempt) error {
		rep, err := a.Ask(a.Request().MAD(a.TID()))
		if err == nil {
			err = a.alive()
		}
		if err == nil {
			err = a.Use(rep)
		}
		if err == nil {
			err = a.alive()
		}
		return err
	})
	add("an RTU again", []string{"RCM-032"}, nothing, func(a *attempt) error {
		rep, err := a.Ask(a.Request().MAD(a.TID()))
		for range 3 {
			if err == nil {
				err = a.Use(rep)
			}
		}
		if err == nil {
			err = a.alive()
		}
		if err == nil {
			err = a.silent()
		}
		return err
	})
	add("a DREQ with another QPN", []string{"ROCE-216"}, nothing, func(a *attempt) error {
		err := a.connected()
		if err == nil {
			err = a.Say(a.Bye().Set(8, 3, uint64(a.RemoteQPN^1)))
		}
		if err == nil {
			err = a.silent()
		}
		if err == nil {
			err = a.alive()
		}
		return err
	})
	add("a DREQ, and again", []string{"RCM-040", "RCM-043"}, "a DREP for each",
		func(a *attempt) error {
			if err := a.comesUp(); err != nil {
				return err
			}
			for range 2 {
				if err := a.Disconnect(a.Soon()); err != nil {
					return fmt.Errorf("no DREP: %w", err)
				}
			}
			return nil
		})
	add("a REJ of a connection", []string{"RCM-044"}, "it is over", func(a *attempt) error {
		if err := a.comesUp(); err != nil {
			return err
		}
		m := rawroce.Pair(rawroce.AttrREJ, a.TID(), a.ID, a.RemoteID)
		if err := a.Say(m.Set(8, 1, 2<<6).Set(10, 2, rejConsumer)); err != nil {
			return err
		}
		// The program's part may take a moment.
		for by := a.Soon(); time.Now().Before(by); a.done() {
			if err := a.Put(a.Write()); err != nil {
				return err
			}
			_, err := a.Next(time.Now().Add(a.settle))
			if errors.Is(err, rawroce.ErrOver) || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			} else if err != nil {
				return err
			}
		}
		return fmt.Errorf("it goes on for %v", a.Patience)
	})
	add("a lookup of what there is not", []string{"RCM-052", "RCM-051"}, "SIDR_REP 1",
		func(a *attempt) error {
			id := rand.Uint32()
			service := rawroce.Service(a.Port^0x1001, true)
			err := a.Say(rawroce.Lookup(a.TID(), id, service, a.Own, a.Remote, 0xc0de))
			if err != nil {
				return err
			}
			m, err := a.Hear(a.Soon())
			switch {
			case err != nil:
				return fmt.Errorf("no SIDR_REP: %w", err)
			case m.Attr() != rawroce.AttrSIDRREP || m.Local() != id:
				return fmt.Errorf("%v, not a SIDR_REP of %#x", m, id)
			case m.SIDRStatus() != 1:
				return torture.Differf("status %d, not 1", m.SIDRStatus())
			}
			return nil
		})
	return rows
}

// deadly are the ones that Linux 6.1's rxe or its connection manager does not survive
// (docs/torture.md): they come last.
func deadly() []row {
	return []row{
		{"manager/a message of 260 octets", []string{"RCM-002"}, "nothing, and others are served",
			func(a *attempt) error {
				q := a.Datagram(append(a.Request().MAD(a.TID()), 0, 0, 0, 0))
				if err := a.Octets(q.Bytes()); err != nil {
					return err
				}
				return a.silent()
			}},
		{"request/Write of nothing with octets", []string{"ROCE-143"}, naks([]uint8{invalid}) +
			", and no answer to more", func(a *attempt) error {
			if err := a.connected(); err != nil {
				return err
			}
			return a.refused(rawroce.Packet{Opcode: rawroce.WriteOnly, PSN: a.PSN, Ack: rawroce.AckReq,
				Ext: rawroce.RETH(0, 0, 0), Payload: make([]byte, 4)}, false, invalid)
		}},
	}
}

// asked has a question about ids that nobody has answered: what is answered before that is about
// something else.
func (a *attempt) asked() error {
	local, remote, tid := rand.Uint32(), rand.Uint32(), a.TID()
	m := rawroce.Pair(rawroce.AttrDREQ, tid, local, remote).Set(8, 3, 0x4321)
	if err := a.Say(m); err != nil {
		return err
	}
	got, err := a.Hear(a.Soon())
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("a DREQ is not answered")
	case err != nil:
		return err
	case got.Attr() != rawroce.AttrDREP || got.TID() != tid:
		return fmt.Errorf("%v", got)
	case got.Local() != remote || got.Remote() != local:
		return torture.Differf("a DREP of %#x and %#x, not of %#x and %#x", got.Local(), got.Remote(),
			remote, local)
	}
	return nil
}

// silent wants that nothing is said of what came before, now and for a while.
func (a *attempt) silent() error {
	if err := a.asked(); err != nil && !torture.Differing(err) {
		return err
	}
	m, err := a.Hear(time.Now().Add(a.settle))
	if err == nil {
		return fmt.Errorf("where nothing is due came %v", m)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// rejected wants a REJ for one of these reasons.
func (a *attempt) rejected(req rawroce.MAD, orSilence bool, reasons ...uint16) error {
	if orSilence {
		patience := a.Patience
		a.Patience = max(a.settle, 10*time.Millisecond)
		defer func() { a.Patience = patience }()
	}
	_, err := a.Ask(req)
	no := rawroce.Refused{}
	switch {
	case err == nil:
		return errors.New("it was taken: a REP came")
	case errors.Is(err, os.ErrDeadlineExceeded) && orSilence:
		return nil
	case !errors.As(err, &no):
		return err
	case no.About() != 0 || no.Remote() != a.ID:
		return torture.Differf("%v, not about the REQ", no.MAD)
	case !slices.Contains(reasons, no.Reason()):
		return torture.Differf("reason %d, not of %d", no.Reason(), reasons)
	}
	return nil
}

// reply looks at a REP.
func (a *attempt) reply() error {
	r, tid := a.Request(), a.TID()
	r.Resources, r.Depth = 2, 1
	rep, err := a.Ask(r.MAD(tid))
	switch {
	case err != nil:
		return err
	case rep.TID() != tid || rep.Remote() != a.ID:
		return fmt.Errorf("transaction %#x and id %#x, not %#x and %#x", rep.TID(), rep.Remote(), tid,
			a.ID)
	case rep.Resources() > r.Depth || rep.Depth() > r.Resources:
		return fmt.Errorf("resources %d and depth %d for %d and %d that were asked for and offered",
			rep.Resources(), rep.Depth(), r.Depth, r.Resources)
	}
	if err = a.Use(rep); err == nil {
		err = a.alive()
	}
	return err
}

// askedAgain has a REQ come four times.
func (a *attempt) askedAgain() error {
	req := a.Request().MAD(a.TID())
	for range 3 {
		if err := a.Say(req); err != nil {
			return err
		}
	}
	rep, err := a.Ask(req)
	if err != nil {
		return err
	}
	for by := time.Now().Add(a.settle); ; {
		m, err := a.Hear(by)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
		if m.Attr() == rawroce.AttrREP && m.Local() != rep.Local() {
			return fmt.Errorf("a second REP, of id %#x beside %#x", m.Local(), rep.Local())
		}
	}
	if err = a.Use(rep); err == nil {
		err = a.alive()
	}
	return err
}

// stale asks for a second connection of the same queue pair. A request that comes soon behind the
// first may be thought to be from before it, and be dropped: it is repeated, as others are.
func (a *attempt) stale() error {
	if err := a.comesUp(); err != nil {
		return err
	}
	was, qpn := a.RemoteID, a.RemoteQPN
	a.ID++
	req, by, patience := a.Request().MAD(a.TID()), a.Soon(), a.Patience
	a.Patience = min(patience, time.Second)
	_, err := a.Ask(req)
	for errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(by) {
		_, err = a.Ask(req)
	}
	a.ID, a.Patience = a.ID-1, patience
	no := rawroce.Refused{}
	switch {
	case err == nil:
		a.RemoteID, a.RemoteQPN = was, qpn
		return errors.New("it was taken: a REP came")
	case !errors.As(err, &no):
		return err
	case no.Reason() != rejStale:
		return torture.Differf("reason %d, not %d", no.Reason(), rejStale)
	}
	return nil
}
