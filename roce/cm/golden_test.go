package cm_test

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"testing"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

// A recorded is a MAD of a recording.
type recorded struct {
	from, to    netip.Addr
	mad         []byte
	transaction uint64
	msg         mad.Message
}

func recording(t *testing.T, name string) (all []recorded) {
	t.Helper()
	for _, ip := range rocetest.Packets(t, name) {
		var h packet.Header
		payload, err := h.Parse(rocetest.Datagram(ip))
		if err != nil || h.Dest != mad.QPN {
			continue
		}
		r := recorded{mad: payload}
		if ip[0]>>4 == 4 {
			r.from, r.to = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		} else {
			r.from, r.to = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		}
		if r.transaction, r.msg, err = mad.Parse(payload); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// A replay is a Manager that takes the part of one end of a recording.
type replay struct {
	*sut
	all     []recorded
	self    netip.Addr
	random  []uint32 // what Rand gives
	conns   map[uint32]*Conn
	queries map[uint32]*Query
	said    [][]byte
}

// drain takes what has come of a call.
func (r *replay) drain() {
	for _, p := range r.Packets() {
		// Each DREQ is answered here, and at once; rxe's answer waits for its program.
		if p.MAD[17] != byte(mad.AttrDREP) || r.times(p.MAD) == 0 {
			r.said = append(r.said, p.MAD)
		}
	}
	for _, e := range r.Events() {
		switch e.Kind {
		case EventReplied:
			if err := e.Conn.Ready(r.now, nil); err != nil {
				r.t.Fatal(err)
			}
			r.drain()
		case EventAsked:
			r.queries[r.id] = e.Query
		case EventRequest:
			r.conns[r.id] = e.Conn
		default: // the recording tells what follows
		}
	}
}

// times is how often b has been said.
func (r *replay) times(b []byte) (n int) {
	for _, s := range r.said {
		if bytes.Equal(s, b) {
			n++
		}
	}
	return n
}

// asked is the REQ of an id.
func (r *replay) asked(id uint32) *mad.REQ {
	for _, x := range r.all {
		if m, ok := x.msg.(*mad.REQ); ok && m.LocalID == id {
			return m
		}
	}
	return nil
}

// answers finds what the recording answers to a REQ.
func (r *replay) answers(id uint32) mad.Message {
	for _, x := range r.all {
		switch m := x.msg.(type) {
		case *mad.REP:
			if m.RemoteID == id {
				return m
			}
		case *mad.REJ:
			if m.RemoteID == id {
				return m
			}
		}
	}
	return nil
}

// hears gives the peer's message to the Manager, whose numbers will be those of the recording.
func (r *replay) hears(x recorded) {
	switch m := x.msg.(type) {
	case *mad.REQ:
		r.id = m.LocalID
		if r.conns[m.LocalID] == nil {
			switch a := r.answers(m.LocalID).(type) {
			case *mad.REP:
				r.random = append(r.random, a.LocalID, a.StartingPSN)
			case *mad.REJ:
				r.random = append(r.random, a.LocalID, 0)
			}
		}
	case *mad.SIDRREQ:
		r.id = m.RequestID
	default: // needs nothing
	}
	r.Receive(r.now, x.from, x.to, x.mad)
	r.drain()
}

// does what has the Manager say x, unless it has.
func (r *replay) does(x recorded) {
	var err error
	hi, lo := uint32(x.transaction>>32), uint32(x.transaction)
	r.id = 0
	switch m := x.msg.(type) {
	case *mad.REQ:
		if r.conns[m.LocalID] != nil {
			r.repeat()
			return
		}
		head, rest, perr := mad.ParseAddress(m.PrivateData)
		if perr != nil {
			r.t.Fatal(perr)
		}
		_, port, _ := mad.ServiceOf(m.ServiceID)
		r.random = append(r.random, m.LocalID, hi, lo, m.StartingPSN, m.Primary.FlowLabel)
		r.conns[m.LocalID], err = r.Connect(r.now, &Request{
			From: x.from, To: x.to, SourcePort: head.Port,
			Service: Service{Space: mad.PortSpaceTCP, Port: port}, QPN: m.QPN, SRQ: m.SRQ,
			ResponderResources: m.ResponderResources, InitiatorDepth: m.InitiatorDepth,
			Retries: m.Retries, RNRRetries: m.RNRRetries, FlowControl: m.FlowControl, PathMTU: m.PathMTU,
			PrivateData: rest,
		})
	case *mad.REP:
		if r.times(x.mad) > 0 {
			r.repeat()
			return
		}
		err = r.conns[m.RemoteID].Accept(r.now, &Reply{
			QPN: m.QPN, SRQ: m.SRQ, ResponderResources: m.ResponderResources,
			InitiatorDepth: m.InitiatorDepth, RNRRetries: m.RNRRetries, FlowControl: m.FlowControl,
			PrivateData: m.PrivateData,
		})
		r.conns[m.LocalID] = r.conns[m.RemoteID]
	case *mad.REJ:
		if c := r.conns[m.RemoteID]; c != nil {
			err = c.Reject(r.now, m.PrivateData)
		}
	case *mad.DREQ:
		if r.times(x.mad) > 0 {
			r.repeat()
			return
		}
		r.random = append(r.random, hi, lo)
		err = r.conns[m.LocalID].Disconnect(r.now)
		r.random = nil
	case *mad.SIDRREQ:
		head, rest, _ := mad.ParseAddress(m.PrivateData)
		_, port, _ := mad.ServiceOf(m.ServiceID)
		r.random = append(r.random, m.RequestID, hi, lo)
		_, err = r.Lookup(r.now, &LookupRequest{From: x.from, To: x.to, SourcePort: head.Port,
			Service: Service{Space: mad.PortSpaceUDP, Port: port}, PrivateData: rest})
	case *mad.SIDRREP:
		if q := r.queries[m.RequestID]; q != nil {
			err = q.Answer(r.now, &Answer{Status: m.Status, QPN: m.QPN, QKey: m.QKey,
				PrivateData: m.PrivateData})
		}
	default: // it has been said
	}
	if err != nil {
		r.t.Fatalf("%T: %v", x.msg, err)
	}
	r.drain()
}

// repeat lets time pass until something is said again.
func (r *replay) repeat() {
	for n := len(r.said); n == len(r.said); {
		at, ok := r.Deadline()
		if !ok {
			r.t.Fatal("nothing is repeated")
		}
		r.now = at
		r.Expire(at)
		r.drain()
	}
}

// Either end of what two of Linux's connection managers said to each other is played, and says the
// same, octet for octet: RCM-001, 009, 011, 014, 030, 037, 040, 051, 062.
func TestGolden(t *testing.T) {
	for _, name := range rocetest.Recordings(t) {
		all := recording(t, name)
		if len(all) == 0 || filepath.Base(name) == "duplicate.pcap" { // what doubles there is the network
			continue
		}
		for end, self := range []netip.Addr{all[0].from, all[0].to} {
			t.Run(filepath.Base(name)+" "+[]string{"active", "passive"}[end], func(t *testing.T) {
				play(t, all, self)
			})
		}
	}
}

func play(t *testing.T, all []recorded, self netip.Addr) {
	r := &replay{all: all, self: self, conns: map[uint32]*Conn{}, queries: map[uint32]*Query{}}
	cfg := Config{PathMTU: func() uint8 { return 5 }, Rand: func() (v uint32) {
		if len(r.random) == 0 {
			return 1 << 31
		}
		v, r.random = r.random[0], r.random[1:]
		return v
	}}
	listens := map[Service]bool{}
	for _, x := range all {
		switch m := x.msg.(type) {
		case *mad.REQ:
			rej, _ := r.answers(m.LocalID).(*mad.REJ)
			if x.from == self {
				cfg.GUID = m.GUID
			} else if rej == nil || rej.Reason != mad.InvalidServiceID {
				space, port, _ := mad.ServiceOf(m.ServiceID)
				listens[Service{Space: space, Port: port}] = true
			}
		case *mad.REP:
			if x.from == self {
				cfg.GUID = m.GUID
			}
		case *mad.SIDRREP:
			if x.from == self && m.Status == mad.SIDRValid {
				space, port, _ := mad.ServiceOf(m.ServiceID)
				listens[Service{Space: space, Port: port}] = true
			}
		default:
		}
	}
	r.sut = &sut{t: t, Manager: New(cfg), now: epoch}
	for s := range listens {
		if _, err := r.listen(s, self, 8); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{}
	for i, x := range all {
		if x.from != self {
			if i+1 == len(all) || !bytes.Equal(x.mad, all[i+1].mad) { // else it was lost
				r.hears(x)
			}
			continue
		}
		if rep, ok := x.msg.(*mad.REP); ok { // Linux gives what its program says
			rep.InitiatorDepth = min(rep.InitiatorDepth, r.asked(rep.RemoteID).ResponderResources)
			x.mad = mad.Append(nil, x.transaction, rep)
		}
		want[string(x.mad)]++
		if r.times(x.mad) < want[string(x.mad)] {
			r.does(x)
		}
		if n := r.times(x.mad); n != want[string(x.mad)] {
			t.Errorf("%T is said %d times, want %d:\n% x\namong\n% x", x.msg, n, want[string(x.mad)], x.mad,
				r.said)
		}
	}
	for _, b := range r.said {
		if want[string(b)] == 0 {
			t.Errorf("said, and not recorded:\n% x", b)
		}
	}
}
