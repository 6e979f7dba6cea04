package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// octets is the memory of a message.
type octets []byte

func (o octets) CopyOut(p []byte, off uint32) error {
	copy(p, o[off:])
	return nil
}

// A host is a Host of both kinds of engine, that has a receive for each message.
type host struct {
	iwarp.Host
	got []byte
}

func (h *host) BeginReceive() (uint32, bool) { return 1 << 16, true }
func (h *host) PlaceReceive(_ uint32, b []byte) error {
	h.got = append(h.got, b...)
	return nil
}
func (h *host) EndReceive(iwarp.Received) error { return nil }
func (h *host) Sent(uint64)                     {}

// A packetsOf is host for RoCE.
type packetsOf struct {
	roce.Host
	h *host
}

func (p packetsOf) BeginReceive() (uint32, bool)                  { return p.h.BeginReceive() }
func (p packetsOf) PlaceReceive(o uint32, b []byte, _ bool) error { return p.h.PlaceReceive(o, b) }
func (packetsOf) EndReceive(roce.Received) error                  { return nil }
func (packetsOf) Receives() (uint32, bool)                        { return 0, false }
func (packetsOf) Done(uint64)                                     {}

// sample is a recording of two connections within a process, one of each kind, over which messages
// with these octets go one way.
func sample(t testing.TB, messages ...[]byte) []byte {
	t.Helper()
	return written(t, func(r *Recorder) { connections(t, r, messages...) })
}

// written is the recording of what f has recorded.
func written(t testing.TB, f func(r *Recorder)) []byte {
	t.Helper()
	r := New(Meta{Version: "test", Devices: []string{"vrnic0"}})
	f(r)
	r.End("it is over")
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func connections(t testing.TB, r *Recorder, messages ...[]byte) {
	t.Helper()
	q := r.Requests("vrnic0", 3)
	calls := r.Program("rping", 77)
	calls.Call(3, 0, []byte{1, 2, 3}, nil, "")
	from, to := &host{}, &host{}
	cfg := iwarp.Config{EMSS: 1460}
	a := NewEndpoint(r.Tape("vrnic0", 3), iwarp.Params{Initiator: true, CRC: true}, from, cfg)
	b := NewEndpoint(r.Tape("vrnic1", 4), iwarp.Params{CRC: true}, to, cfg)
	rc := roce.Config{MTU: 1024, Dest: 9, SQPSN: 5, RQPSN: 7, SendQueue: 8, Timeout: 14, Retries: 7}
	x := NewRC(r.Tape("rocep0", 8), rc, packetsOf{h: from})
	rc.SQPSN, rc.RQPSN = rc.RQPSN, rc.SQPSN
	y := NewRC(r.Tape("rocep1", 9), rc, packetsOf{h: to})
	var want []byte
	for i, m := range messages {
		wr := &rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Inline, Inline: m}
		q.Taken(time.Now(), wr, 0)
		if err := a.PostSend(uint64(i), iwarp.OpSend, 0, octets(m), uint32(len(m))); err != nil {
			t.Fatal(err)
		}
		room := make([]byte, a.Len())
		n, err := a.Read(room)
		if err != nil {
			t.Fatal(err)
		}
		a.Commit(n)
		if _, err := b.Write(room[:n]); err != nil || b.Err() != nil {
			t.Fatal(err, b.Err())
		}
		now := time.Now()
		if err := x.Post(&roce.Request{Token: uint64(i), Length: uint32(len(m)),
			Data: octets(m)}); err != nil {
			t.Fatal(err)
		}
		carry(t, x, y, now)
		carry(t, y, x, now)
		q.Completed(now, wr, rdma.WCSuccess, time.Microsecond)
		want = append(append(want, m...), m...)
	}
	a.Close()
	if !bytes.Equal(to.got, want) {
		t.Fatalf("%d octets came, want %d", len(to.got), len(want))
	}
}

// carry has the packets of x come to y.
func carry(t testing.TB, x, y *Packets, now time.Time) {
	for {
		b, ok := x.Append(nil, now)
		if !ok {
			return
		}
		var h packet.Header
		payload, err := h.Parse(append(b, 0, 0, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		y.Receive(now, &h, payload)
	}
}

// An outcome is what has come of playing a recording, in words.
type outcome struct {
	lines []string
	calls int
	diffs []string
	held  int // octets, by DDP's sessions, at the end
	err   error
}

func (o outcome) String() string {
	return fmt.Sprintf("%q, %d calls, %q, %v", o.lines, o.calls, o.diffs, o.err)
}

func play(b []byte) (o outcome) {
	in, err := NewReader(bytes.NewReader(b))
	if err != nil {
		o.err = err
		return o
	}
	p := NewPlayer(in.Meta)
	var text Text
	for {
		rec, err := in.Next()
		if err != nil {
			o.err, o.held = err, p.held
			return o
		}
		o.lines = append(o.lines, text.Lines(&rec)...)
		played, d, err := p.Take(&rec)
		if played {
			o.calls++
		}
		if d != nil {
			o.diffs = append(o.diffs, d.String())
		}
		if err != nil {
			o.err = err
			return o
		}
	}
}

func messages() [][]byte {
	long := make([]byte, 5000)
	for i := range long {
		long[i] = byte(i * 7)
	}
	return [][]byte{[]byte("the first"), long,
		[]byte("the last one, of which one octet will be another")}
}

// A recording is played without a difference, and each time with the same outcome; octets that are
// there several times are in the file once.
func TestReplay(t *testing.T) {
	b := sample(t, messages()...)
	o, again := play(b), play(b)
	if !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 || o.calls < 20 {
		t.Errorf("%v, %v, %d calls", o.err, o.diffs, o.calls)
	}
	if fmt.Sprint(o) != fmt.Sprint(again) {
		t.Error("played again it is another")
	}
	all := strings.Join(o.lines, "\n")
	for _, want := range []string{"connection begins: QP 3 of vrnic0", "post SEND wr 2, 48 octets",
		"Send qn=0 msn=3", "RC SEND Middle", "Acknowledge", "end: it is over", `"rping" (77): call`} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
	// Of each kind of connection what is read to be sent, and what comes.
	if n := 4*(9+5000+48) + 4000; len(b) > n {
		t.Errorf("the recording has %d octets, %d are enough", len(b), n)
	}
}

// change is b with a change to a record's Steps.
func change(t *testing.T, b []byte, f func(s *Step) bool) []byte {
	t.Helper()
	done := false
	b = edit(t, b, func(out []byte, rec *Record, content []byte) []byte {
		if len(rec.Steps) > 0 {
			var c builder
			c.begin(rec.Subject.ID, rec.At)
			for i := range rec.Steps {
				s := rec.Steps[i]
				s.Octets = bytes.Clone(s.Octets)
				done = done || f(&s)
				c.step(s.Op, s.Octets, s.Text, s.Args...)
			}
			content = c.b
		}
		return appendRecord(out, content)
	})
	if !done {
		t.Fatal("there is no such step")
	}
	return b
}

// What differs is told, with the connection, the call and the octet.
func TestDifference(t *testing.T) {
	wantDifferences(t, sample(t, messages()...), []alteration{
		{"an octet that was read", func(s *Step) bool {
			if s.Op != opCopyOut || len(s.Octets) != 48 {
				return false
			}
			s.Octets[3] ^= 1
			return true
		}, []string{"QP 3 of vrnic0", "octet 23 is 0x20 in the one and 0x21 in the other"}},
		{"a packet", func(s *Step) bool {
			if s.Op != opReturn || len(s.Octets) < 1000 || s.Octets[0] > 2 {
				return false
			}
			s.Octets[11]++
			return true
		}, []string{"QP 8 of rocep0", "octet 11 is"}},
		{"what is placed", func(s *Step) bool {
			if s.Op != opPlaceReceive {
				return false
			}
			s.Args[0]++
			return true
		}, []string{"QP 4 of vrnic1", "the same with other values", "offset=1", "offset=0"}},
		{"no receive", func(s *Step) bool {
			if s.Op != opTakeReceive {
				return false
			}
			s.Args[1] = 0
			return true
		}, []string{"QP 9 of rocep1", "another thing happens", "recorded: PlaceReceive",
			"replayed: returns"}},
	})
	wantDifferences(t, others(t), []alteration{
		{"the request of a connection", func(s *Step) bool {
			if s.Op != opTakeFrame || !bytes.Contains(s.Octets, []byte("who is there?")) {
				return false
			}
			s.Octets[len(s.Octets)-1] = '!'
			return true
		}, []string{"vrnic1, ", "the same with other values", "comes to"}},
		{"the answer to it", func(s *Step) bool {
			if s.Op != opReturn || !bytes.HasSuffix(s.Octets, []byte("nobody")) {
				return false
			}
			s.Octets[len(s.Octets)-1] ^= 1
			return true
		}, []string{"QP 4 of vrnic1", "is 0x78 in the one and 0x79 in the other"}},
		{"a datagram", func(s *Step) bool {
			if s.Op != opReceiveDatagram {
				return false
			}
			s.Octets[len(s.Octets)-2] ^= 1 // the last is padding
			return true
		}, []string{"QP 11 of rocep1, datagrams", "octet 42 is"}},
		{"the number of a datagram", func(s *Step) bool {
			if s.Op != opSetPSN {
				return false
			}
			s.Args[0]++
			return true
		}, []string{"QP 10 of rocep0, datagrams", "octet 11 is"}},
		{"a message of the connection manager", func(s *Step) bool {
			if s.Op != opSentMAD || !bytes.Contains(s.Octets, []byte("welcome")) {
				return false
			}
			s.Octets[20] ^= 1
			return true
		}, []string{"connection manager", "octet 20 is"}},
		{"a packet of SCTP that came", func(s *Step) bool {
			if s.Op != opSCTP+Op(sctp.CallInput) || !bytes.Contains(s.Octets, []byte("something")) {
				return false
			}
			s.Octets[len(s.Octets)-9] ^= 1
			return true
		}, []string{"vrnic1, SCTP", "recorded: "}},
		{"a packet of SCTP that was sent", func(s *Step) bool {
			if s.Op != opSCTPPacket || !bytes.Contains(s.Octets, []byte("something")) {
				return false
			}
			s.Octets[77] ^= 1
			return true
		}, []string{"vrnic0, SCTP", "octet 77 is"}},
		{"what an association has drawn", func(s *Step) bool {
			if s.Op != opDrewOctets || len(s.Octets) != 4 {
				return false
			}
			s.Octets[0]++
			return true
		}, []string{"SCTP", "octet"}},
		{"a message for SCTP", func(s *Step) bool {
			if s.Op != opSCTP+Op(sctp.CallSend) {
				return false
			}
			s.Octets[1] ^= 1
			return true
		}, []string{"vrnic0, SCTP", "octet "}},
		{"a number that it has drawn", func(s *Step) bool {
			if s.Op != opDrew {
				return false
			}
			s.Args[0]++
			return true
		}, []string{"connection manager", "octets"}},
	})
}

// An alteration changes a Step of a recording, and says what is told of that.
type alteration struct {
	name string
	f    func(s *Step) bool
	want []string
}

// wantDifferences wants each alteration of b to be found, and nothing else.
func wantDifferences(t *testing.T, b []byte, all []alteration) {
	t.Helper()
	for _, tt := range all {
		o := play(change(t, b, tt.f))
		if !errors.Is(o.err, io.EOF) || len(o.diffs) != 1 {
			t.Errorf("%s: %v, differences %q", tt.name, o.err, o.diffs)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(o.diffs[0], w) {
				t.Errorf("%s: %s\nis without %q", tt.name, o.diffs[0], w)
			}
		}
	}
}

// A recording that is cut anywhere is read up to there, and one that is damaged is refused.
func TestCutAndDamaged(t *testing.T) {
	b := sample(t, []byte("one message"))
	whole := play(b)
	last := -1
	for n := range b {
		o := play(b[:n])
		switch {
		case n < len(magic):
			if o.err == nil || errors.Is(o.err, ErrCut) {
				t.Fatalf("%d octets: %v", n, o.err)
			}
		case !errors.Is(o.err, ErrCut) || len(o.diffs) > 0 || o.calls < last:
			t.Fatalf("%d octets: %d calls, %v, %v", n, o.calls, o.err, o.diffs)
		}
		last = o.calls
	}
	if last != whole.calls {
		t.Errorf("all but the end has %d calls of %d", last, whole.calls)
	}
	for n := range b {
		bad := bytes.Clone(b)
		bad[n] ^= 0x10
		if o := play(bad); o.err == nil || errors.Is(o.err, io.EOF) {
			t.Fatalf("octet %d is wrong: %v", n, o.err)
		}
	}
}

// Two runs that differ do where they do, whatever is different by chance.
func TestDiff(t *testing.T) {
	run := func(b []byte, octets bool) *Run {
		t.Helper()
		r, err := ReadRun(bytes.NewReader(b), octets, func(op uint16) string { return fmt.Sprint(op) })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	m := messages()
	a := sample(t, m...)
	if s := First(run(a, true), run(sample(t, m...), true)); s != "" {
		t.Errorf("the same: %s", s)
	}
	other := messages()
	other[1][4321] ^= 0xff
	b := sample(t, other...)
	if s := First(run(a, true), run(b, true)); !strings.Contains(s,
		"QP 3 of vrnic0, message 2: octet 4321 is 0x27 in the one and 0xd8 in the other") {
		t.Errorf("an octet: %q", s)
	}
	if s := First(run(a, false), run(b, false)); s != "" {
		t.Errorf("an octet that does not matter: %s", s)
	}
	c := sample(t, m[0], m[1][:4000], m[2])
	if s := First(run(a, true), run(c, true)); !strings.Contains(s, "send request 2: SEND of 5000 "+
		"octets, flags 0x8, immediate data 0x0 in the first recording, SEND of 4000 octets") {
		t.Errorf("a length: %q", s)
	}
	d := sample(t, m[:2]...)
	if s := First(run(a, true), run(d, true)); !strings.Contains(s,
		"send request 3: the first recording has SEND of 48 octets") ||
		!strings.Contains(s, "has no more") {
		t.Errorf("one less: %q", s)
	}
	cut := run(a[:len(a)/2], true)
	if s := First(run(a, true), cut); s != "" || !errors.Is(cut.Cut, ErrCut) {
		t.Errorf("a recording that is cut: %q, %v", s, cut.Cut)
	}
}

// Who does not take the recording loses connections of it, and not the recording.
func TestNoRoom(t *testing.T) {
	r := New(Meta{})
	h := &host{}
	e := NewEndpoint(r.Tape("vrnic0", 1), iwarp.Params{Initiator: true}, h, iwarp.Config{})
	b := NewEndpoint(r.Tape("vrnic0", 2), iwarp.Params{}, h, iwarp.Config{})
	m := make(octets, 1<<16)
	for range MaxWaiting/len(m) + 10 {
		if err := e.PostSend(0, iwarp.OpSend, 0, m, uint32(len(m))); err != nil {
			t.Fatal(err)
		}
		for n := e.Len(); n > 0; n = e.Len() {
			k, err := e.Read(make([]byte, n))
			if err != nil {
				t.Fatal(err)
			}
			e.Commit(k)
		}
	}
	if !e.t.dead {
		t.Fatal("there was room for all")
	}
	b.Len()
	r.End("")
	var out bytes.Buffer
	if err := r.Write(&out); err != nil || out.Len() > MaxWaiting+slack {
		t.Fatalf("%v, %d octets", err, out.Len())
	}
	o := play(out.Bytes())
	if !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 || !strings.Contains(strings.Join(o.lines, "\n"),
		"QP 1 of vrnic0,  from  to : the daemon had no room") {
		t.Errorf("%v, %v", o.err, o.diffs)
	}
}

// A connection that outlives its recording keeps nothing of it.
func TestTapeMemory(t *testing.T) {
	r := New(Meta{})
	e := NewEndpoint(r.Tape("vrnic0", 1), iwarp.Params{}, &host{}, iwarp.Config{})
	if e.Len(); e.t.c.b == nil {
		t.Fatal("nothing is recorded")
	}
	r.End("it is over")
	if e.Len(); e.t.c.b != nil || e.t.c.all != nil {
		t.Errorf("there are %d octets still", cap(e.t.c.b)+cap(e.t.c.all))
	}
}

// Of requests and calls, too, nothing is kept behind what found no room. The recording has an end,
// however many there are then, and is not said to differ from one that has them.
func TestNoRoomForRequests(t *testing.T) {
	run := func(octets int) *Run {
		r := New(Meta{})
		q, calls := r.Requests("vrnic0", 1), r.Program("rping", 77)
		for range MaxWaiting>>20 + 1 {
			calls.Call(3, 0, make([]byte, octets), nil, "")
		}
		wr := &rdma.SendWR{Op: rdma.OpSend}
		for range 200_000 {
			q.Taken(time.Time{}, wr, 0)
		}
		r.End("it is over")
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			t.Fatal(err)
		}
		run, err := ReadRun(&out, true, func(op uint16) string { return fmt.Sprint(op) })
		if err != nil || run.Cut != nil {
			t.Fatal(err, run.Cut)
		}
		return run
	}
	few, all := run(1<<20-200), run(0)
	if len(few.lost) != 2 || len(all.lost) != 0 {
		t.Errorf("%v and %v are lost", few.lost, all.lost)
	}
	if s := First(few, all) + First(all, few); s != "" {
		t.Error(s)
	}
}

// A recording that is about too much ends by itself, and whoever writes it does, too.
func TestTooManySubjects(t *testing.T) {
	r := New(Meta{})
	r.mu.Lock()
	r.next = maxSubjects - 1
	r.mu.Unlock()
	r.Requests("vrnic0", 1)
	r.Requests("vrnic0", 2).Received(time.Time{}, &rdma.WC{})
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	r.End("it is over")
	if _, why, err := Copy(io.Discard, &out, 1<<20); err != nil || !strings.Contains(why, "as much") {
		t.Errorf("%q, %v", why, err)
	}
}

// Peers that connect without an end end no recording, neither by their number nor where nobody
// writes it: what they leave is for others.
func TestManyStartUps(t *testing.T) {
	connect := func(r *Recorder) {
		s, err := NewResponder(r.Tape("vrnic0", 0), iwarp.StartConfig{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write([]byte("no MPA Request at all"))
		if s.Err() == nil {
			t.Fatal("it is taken for one")
		}
	}
	for name, full := range map[string]func(*Recorder){
		"number": func(r *Recorder) {
			r.mu.Lock()
			r.next = maxSubjects - 2
			r.mu.Unlock()
		},
		"octets": func(r *Recorder) {
			c := r.Program("it", 1)
			for range MaxWaiting>>20 + 1 {
				c.Call(3, 0, make([]byte, 1<<20), nil, "")
			}
		},
	} {
		r := New(Meta{})
		full(r)
		for range 20_000 {
			connect(r)
		}
		r.mu.Lock()
		next := r.next
		r.mu.Unlock()
		r.Requests("vrnic0", 1)
		r.mu.Lock()
		if r.next != next+1 {
			t.Errorf("%s: of a queue pair there is nothing", name)
		}
		r.mu.Unlock()
		r.End("it is over")
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			t.Fatal(err)
		}
		// Numbers begin where the test has had them begin: no reader takes these.
		if name == "number" {
			continue
		}
		if _, why, err := Copy(io.Discard, &out, 1<<30); err != nil || why != "it is over" {
			t.Errorf("%s: %q, %v", name, why, err)
		}
	}
}

// What earlier versions have written is read, and what a later one has is not.
func TestVersions(t *testing.T) {
	b := sample(t, messages()...)
	want := play(b).calls
	for version := range byte(6) {
		b[len(magic)-2] = '0' + version
		o := play(b)
		switch {
		case version >= 1 && version <= magic[len(magic)-2]-'0':
			if !errors.Is(o.err, io.EOF) || o.calls != want {
				t.Errorf("version %d: %v, %d calls of %d", version, o.err, o.calls, want)
			}
		case o.err == nil || !strings.Contains(o.err.Error(), "of another version"):
			t.Errorf("version %d: %v", version, o.err)
		}
	}
}

// A copy has as much as it may, and an end.
func TestCopy(t *testing.T) {
	b := sample(t, messages()...)
	var out bytes.Buffer
	n, why, err := Copy(&out, bytes.NewReader(b), int64(len(b)))
	if n != int64(len(b)) || why != "it is over" || err != nil || !bytes.Equal(out.Bytes(), b) {
		t.Errorf("all: %d octets, %q, %v", n, why, err)
	}
	out.Reset()
	n, why, err = Copy(&out, bytes.NewReader(b), int64(len(b)/2))
	if n > int64(len(b)/2)+100 || n != int64(out.Len()) || !strings.Contains(why, "size") ||
		err != nil {
		t.Errorf("a half: %d octets, %q, %v", n, why, err)
	}
	if o := play(out.Bytes()); !errors.Is(o.err, io.EOF) || len(o.diffs) > 0 {
		t.Errorf("a half: %v, %v", o.err, o.diffs)
	}
	if _, _, err = Copy(io.Discard, bytes.NewReader(b[:len(b)-3]), 1<<40); !errors.Is(err, ErrCut) {
		t.Errorf("without an end: %v", err)
	}
}

// A small file may say that much was read, again and again: it is not kept.
func TestTextMemory(t *testing.T) {
	var text Text
	s := &Subject{Kind: Connection}
	octets := make([]byte, maxOctets/2)
	for range 5 {
		text.Lines(&Record{Subject: s, Steps: []Step{{Op: opRead, Args: []uint64{1}},
			{Op: opReturn, Args: []uint64{1, 0}, Octets: octets}}})
	}
	if n := len(text.wire(s).read); n > 2*maxOctets {
		t.Errorf("%d octets are kept", n)
	}
	text.kept = heldRoom - maxOctets
	for id := range uint64(20) {
		s := &Subject{Kind: Connection, ID: 1 + id}
		text.Lines(&Record{Subject: s, Steps: []Step{{Op: opRead, Args: []uint64{1}},
			{Op: opReturn, Args: []uint64{1, 0}, Octets: octets}}})
	}
	n := 0
	for id := range uint64(20) {
		n += text.conns[1+id].size()
	}
	if n > 2*maxOctets {
		t.Errorf("%d octets are kept of all connections", n)
	}
}

// Whatever is in a file: it is played, each time the same way, or refused.
func FuzzReplay(f *testing.F) {
	b := sample(f, []byte("short"), make([]byte, 1100))
	f.Add(b)
	f.Add(b[:len(b)/3])
	f.Add(others(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = summed(b)
		o, again := play(b), play(b)
		if fmt.Sprint(o) != fmt.Sprint(again) {
			t.Errorf("%+v\nand then\n%+v", o, again)
		}
		if in, err := NewReader(bytes.NewReader(b)); err == nil {
			_, _ = ReadAbout(in, 3)
		}
		_, _ = ReadRun(bytes.NewReader(b), true, func(uint16) string { return "" })
	})
}

// summed is b with the sums that its records want, so that what is in them is looked at.
func summed(b []byte) []byte {
	if len(b) < len(magic) {
		return b
	}
	out := []byte(magic)
	for b = b[len(magic):]; ; {
		n, err := number(&b)
		if err != nil || n > uint64(len(b)) {
			return append(out, b...)
		}
		out = appendRecord(out, b[:n])
		b = b[n:]
		b = b[min(4, len(b)):]
	}
}
