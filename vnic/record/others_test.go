package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
)

// others is a recording of all other engines.
func others(t testing.TB) []byte {
	t.Helper()
	return written(t, func(r *Recorder) {
		setUps(t, r)
		datagrams(t, r)
		managers(t, r)
		associate(t, r, 9)
		streams(t, r)
	})
}

// setUps records the start-up of a connection.
func setUps(t testing.TB, r *Recorder) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in, err := NewInitiator(r.Tape("vrnic0", 3), iwarp.DefaultStartConfig(), []byte("who is there?"))
	check(err)
	re, err := NewResponder(r.Tape("vrnic1", 0), iwarp.DefaultStartConfig())
	check(err)
	move := func(to, from interface {
		io.ReadWriter
		Len() int
		Commit(n int)
	}) {
		b := make([]byte, from.Len())
		_, err := from.Read(b)
		check(err)
		from.Commit(len(b))
		_, err = to.Write(b)
		check(err)
	}
	move(re, in)
	re.Belongs(4)
	check(re.Reconfigure(iwarp.DefaultStartConfig()))
	_, err = re.Accept(7, 8, []byte("nobody"))
	check(err)
	move(in, re)
}

// datagrams records some, of IPv4 and IPv6.
func datagrams(t testing.TB, r *Recorder) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	from := NewDatagrams(r.Tape("rocep0", 10), &roce.UD{Num: 10, PKey: 0xffff, MTU: 1024})
	to := NewDatagrams(r.Tape("rocep1", 11), &roce.UD{Num: 11, PKey: 0xffff, MTU: 1024})
	from.SetPSN(9)
	to.SetQKey(77)
	ip := make([]byte, ipv6Len)
	for v, n := range map[byte]int{4: ipv4Len, 6: ipv6Len} {
		m := []byte("a datagram that is longer than a few octets")
		b, _, err := from.Append(nil, &roce.Datagram{Dest: 11, QKey: 77, Length: uint32(len(m)),
			Data: octets(m)})
		check(err)
		var h packet.Header
		payload, err := h.Parse(append(b, 0, 0, 0, 0))
		check(err)
		ip[0] = v<<4 | 5
		to.Receive(packetsOf{h: &host{}}, &h, ip[:n], payload)
	}
}

// managers records two connection managers, of which one asks the other for connections.
func managers(t testing.TB, r *Recorder) {
	t.Helper()
	now, drawn := time.Now(), uint32(100)
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	var m [2]*cm.Manager
	carry := func() (told []cm.Event) {
		for range 4 {
			for i := range m {
				for _, p := range m[i].Packets() {
					m[1-i].Receive(now, p.From, p.To, p.MAD)
				}
				told = append(told, m[i].Events()...)
			}
		}
		return told
	}
	service, lookup := cm.Service{Space: mad.PortSpaceTCP, Port: 9}, cm.Service{
		Space: mad.PortSpaceUDP, Port: 9}
	user := &cm.Account{Max: 7}
	for i := range m {
		cfg := cm.Config{GUID: uint64(i + 1), PathMTU: func() uint8 { return 3 },
			Rand: func() uint32 { drawn++; return drawn }}
		m[i] = cm.New(cfg)
		for _, s := range []cm.Service{service, lookup} {
			if _, err := m[i].Listen(now, &cm.ListenRequest{Service: s, Addr: addrs[i], Backlog: 3,
				Account: user}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range m { // there is something under way
		if _, err := m[i].Connect(now, &cm.Request{From: addrs[i], To: addrs[1-i], Service: service,
			QPN: 20, Account: user}); err != nil {
			t.Fatal(err)
		}
		m[i].Packets()
		NewManager(r.Tape([]string{"rocep0", "rocep1"}[i], 0), m[i], &cm.Config{GUID: uint64(i + 1)})
	}
	now = now.Add(time.Minute)
	for i := range m {
		m[i].Expire(now) // each asks again
	}
	for _, e := range carry() {
		if e.Kind == cm.EventRequest {
			if err := e.Conn.Accept(now, &cm.Reply{QPN: 21, PrivateData: []byte("welcome")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, e := range carry() {
		if e.Kind == cm.EventReplied {
			if err := e.Conn.Ready(now, nil); err != nil {
				t.Fatal(err)
			}
			if err := e.Conn.Disconnect(now); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := m[0].Lookup(now, &cm.LookupRequest{From: addrs[0], To: addrs[1],
		Service: lookup}); err != nil {
		t.Fatal(err)
	}
	for _, e := range carry() {
		if e.Kind == cm.EventAsked {
			if err := e.Query.Answer(now, &cm.Answer{QPN: 22, QKey: 5}); err != nil {
				t.Fatal(err)
			}
		}
	}
	carry()
}

// associate records two endpoints of SCTP, one of which sends the other messages from each of these
// ports, and ends that.
func associate(t testing.TB, r *Recorder, from ...uint16) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1, 0)
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	opt := &sctp.Options{AdmitAdaptation: func(uint32, bool) bool { return true }}
	var e [2]*sctp.Endpoint
	for i := range e {
		var err error
		j := NewSCTP(r.Tape([]string{"vrnic0", "vrnic1"}[i], 0))
		e[i], err = sctp.NewEndpoint(sctp.Config{Rand: rand.NewChaCha8([32]byte{byte(i)}), Journal: j,
			Options: sctp.Options{OutStreams: 3}})
		check(err)
	}
	check(e[1].Listen(7, sctp.ListenConfig{Options: opt}))
	carry := func() (told []sctp.Event) {
		for range 10 {
			now = now.Add(time.Millisecond)
			for i := range e {
				e[i].Expire(now)
				for {
					d, ok := e[i].Output(now, nil)
					if !ok {
						break
					}
					e[1-i].Input(now, sctp.Packet{Src: d.Src, Dst: d.Dst, Data: d.Data})
				}
				for ev, ok := e[i].NextEvent(); ok; ev, ok = e[i].NextEvent() {
					told = append(told, ev)
					if ev.Msg != nil {
						ev.Msg.Release()
					}
				}
			}
		}
		return told
	}
	for _, port := range from {
		a, err := e[0].Dial(now, sctp.DialConfig{LocalPort: port, Locals: addrs[:1], RemotePort: 7,
			Remotes: addrs[1:], Options: opt})
		check(err)
		carry()
		for range 3 {
			_, err := a.Send(now, sctp.SendOptions{Stream: 2, PPID: 16}, bytes.NewReader(
				bytes.Repeat([]byte("something to say, "), 100)))
			check(err)
		}
		carry()
		e[0].LinkUp(now)
		check(a.Shutdown(now))
		if told := carry(); len(told) == 0 || told[len(told)-1].Kind != sctp.EventDown {
			t.Fatalf("%+v", told)
		}
	}
	e[1].StopListening(7, nil)
}

// What sets up connections, and datagrams, is played without a difference, and each time with the
// same outcome.
func TestReplayOthers(t *testing.T) {
	b := others(t)
	o, again := play(b), play(b)
	if !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 || o.calls < 100 {
		t.Errorf("%v, %v, %d calls", o.err, o.diffs, o.calls)
	}
	if fmt.Sprint(o) != fmt.Sprint(again) {
		t.Error("played again it is another")
	}
	all := strings.Join(o.lines, "\n")
	for _, want := range []string{"start-up begins: QP 3 of vrnic0", "QP 11 of rocep1: Receive", "RTU",
		"SIDRREP", "COOKIE ECHO", "tells event=1 ",
		"DDP session begins: vrnic0, DDP session 1, on stream", "vrnic1, DDP: Accept ",
		"vrnic0, DDP: Open ", "QP 41 of vrnic1, DDP: Input ", "; ssn=0 Enhanced Initiate p2p=true"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}

func readRun(t *testing.T, b []byte) *Run {
	t.Helper()
	r, err := ReadRun(bytes.NewReader(b), true, func(op uint16) string { return fmt.Sprint(op) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What sets up connections, and datagrams, can be compared between two runs.
func TestDiffOthers(t *testing.T) {
	b := others(t)
	if s := First(readRun(t, b), readRun(t, others(t))); s != "" {
		t.Errorf("the same: %s", s)
	}
	for _, tt := range []struct {
		name string
		f    func(s *Step) bool
		want string
	}{
		{"a start-up", func(s *Step) bool {
			if s.Op != opStarted {
				return false
			}
			s.Text = "another"
			return true
		}, "outcome 1: "},
		{"an event", func(s *Step) bool {
			if s.Op != opTold {
				return false
			}
			s.Args[13] = 77
			return true
		}, "reason 77"},
		{"an octet of a datagram", func(s *Step) bool {
			if s.Op != opFillReceive || s.Args[0] == 0 {
				return false
			}
			s.Octets[2] ^= 1
			return true
		}, "octet 2 of all"},
		{"the end of an association", func(s *Step) bool {
			if s.Op != opSCTPEvent || sctp.EventKind(s.Args[0]) != sctp.EventDown {
				return false
			}
			s.Text = "aborted"
			return true
		}, "its connection 1, event 2: "},
	} {
		if s := First(readRun(t, b), readRun(t, change(t, b, tt.f))); !strings.Contains(s, tt.want) {
			t.Errorf("%s: %q is without %q", tt.name, s, tt.want)
		}
	}
}

// What a connection has done behind an engine's loss is no difference, nor is what it has not done.
func TestDiffLost(t *testing.T) {
	b := others(t)
	for _, tt := range []struct {
		kind string
		op   Op
	}{{SCTPEndpoint, opSCTPEvent}, {ConnManager, opTold}} {
		cut := lose(t, b, tt.kind, tt.op)
		if a, b := readRun(t, b), readRun(t, cut); First(a, b) != "" || First(b, a) != "" {
			t.Errorf("%s: %q, %q", tt.kind, First(a, b), First(b, a))
		}
	}
}

// lose is b without what engines of that kind did behind the first Step of op.
func lose(t *testing.T, b []byte, kind string, op Op) []byte {
	t.Helper()
	lost := map[uint64]bool{}
	b = edit(t, b, func(out []byte, rec *Record, content []byte) []byte {
		s := rec.Subject
		if s != nil && lost[s.ID] {
			return out
		}
		out = appendRecord(out, content)
		if s != nil && s.Kind == kind && slices.ContainsFunc(rec.Steps, func(s Step) bool {
			return s.Op == op
		}) {
			lost[s.ID] = true
			out = appendRecord(out, binary.AppendUvarint([]byte{kindLost}, s.ID))
		}
		return out
	})
	if len(lost) == 0 {
		t.Fatal("there is no such step")
	}
	return b
}

// edit is a recording of what f adds for each record of b, whose content it gets.
func edit(t *testing.T, b []byte, f func(out []byte, rec *Record, content []byte) []byte) []byte {
	t.Helper()
	in, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out := appendRecord([]byte(magic), in.content)
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = f(out, &rec, in.content)
	}
}

// A call that an engine does not make any more is a difference, also if the one before was the
// same.
func TestReplayNothing(t *testing.T) {
	done := false
	o := play(edit(t, others(t), func(out []byte, rec *Record, content []byte) []byte {
		out = appendRecord(out, content)
		if !done && len(rec.Steps) > 0 && rec.Steps[0].Op == opSCTP+Op(sctp.CallEvent) {
			done = true
			out = appendRecord(out, content)
		}
		return out
	}))
	if !errors.Is(o.err, io.EOF) || len(o.diffs) != 1 ||
		!strings.Contains(o.diffs[0], "recorded: NextEvent") ||
		!strings.Contains(o.diffs[0], "replayed: nothing") {
		t.Errorf("%v, %q", o.err, o.diffs)
	}
}

// What a connection manager begins with is no more than memory that a replay may take.
func TestHostileState(t *testing.T) {
	for name, b := range map[string][]byte{
		"much of nothing": slices.Concat([]byte(`{"Conns":[{}`), bytes.Repeat([]byte(",{}"), mostValues),
			[]byte("]}")),
		"nothing":                        []byte("null"),
		"a connection without an end":    []byte(`{"Conns":[{"Every":0}]}`),
		"a timer of what is not there":   []byte(`{"Timers":[{"Of":1}]}`),
		"something that is over already": []byte(`{"Kept":[7]}`),
	} {
		o := play(written(t, func(r *Recorder) {
			tape := r.Tape("rocep0", 0)
			tape.about.Kind, tape.about.CM = ConnManager, &CM{}
			tape.id = r.open(tape.about)
			tape.call(opRestore, b, "")
			tape.done(0, nil, nil)
		}))
		if o.err == nil || errors.Is(o.err, io.EOF) ||
			errors.Is(o.err, errNoCall) != strings.HasSuffix(name, "nothing") {
			t.Errorf("%s: %v", name, o.err)
		}
	}
}

// Of associations that share an endpoint those are a queue pair's that have its ports.
func TestAboutAssociation(t *testing.T) {
	b := written(t, func(r *Recorder) {
		own := r.Tape("vrnic0", 30)
		own.Between("sctp", "10.0.0.1:9", "10.0.0.2:7")
		own.id = r.open(own.about)
		associate(t, r, 9, 10)
	})
	for _, qpn := range []uint32{30, 31} {
		got := map[Op]int{}
		for _, rec := range recordsAbout(t, b, qpn) {
			if rec.Subject.Device != "vrnic0" {
				t.Errorf("%v is about another device", rec.Subject)
			}
			if op := rec.Steps[0].Op; op != opSCTP+Op(sctp.CallInput) &&
				op != opSCTP+Op(sctp.CallOutput) && op != opSCTP+Op(sctp.CallEvent) {
				got[op]++
			}
		}
		want := map[Op]int{}
		if qpn == 30 {
			want = map[Op]int{opSCTP + Op(sctp.CallDial): 1, opSCTP + Op(sctp.CallSend): 3,
				opSCTP + Op(sctp.CallShutdown): 1}
		}
		if !maps.Equal(got, want) {
			t.Errorf("about QP %d there is %v, want %v", qpn, got, want)
		}
	}
}

// recordsAbout are the records with Steps that are about a queue pair; of their Steps the first
// one has its Op only.
func recordsAbout(t *testing.T, b []byte, qpn uint32) (all []Record) {
	t.Helper()
	in, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	a, err := ReadAbout(in, qpn)
	if err != nil {
		t.Fatal(err)
	}
	if in, err = NewReader(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.Subject != nil && len(rec.Steps) > 0 && a.Has(&rec) {
			rec.Steps = []Step{{Op: rec.Steps[0].Op}}
			all = append(all, rec)
		}
	}
}

// What is about one queue pair is found, be it with those of others in one engine.
func TestAbout(t *testing.T) {
	b := others(t)
	for qpn, want := range map[uint32]map[string]int{
		3:  {StartUp: 2},     // the Initiator's
		4:  {StartUp: 4},     // the Responder's, before that is known, too
		20: {ConnManager: 6}, // who asks
		21: {ConnManager: 6}, // who accepts
		// Who asks, and who accepts, with the association.
		40: {DDPSession: 12, DDPStreams: 2, SCTPEndpoint: 5},
		41: {DDPSession: 12, DDPStreams: 2, SCTPEndpoint: 5},
		10: {DatagramQP: 3}, 99: {},
	} {
		got := map[string]int{}
		for _, rec := range recordsAbout(t, b, qpn) {
			got[rec.Subject.Kind]++
		}
		for k, n := range want {
			if got[k] < n {
				t.Errorf("QP %d: %d records of kind %s, want %d", qpn, got[k], k, n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("QP %d: %v, want %v", qpn, got, want)
		}
	}
}
