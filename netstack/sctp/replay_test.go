package sctp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

// scripted gives chosen octets first, so that tags and TSNs are those of a recording.
type scripted struct {
	script []byte
	then   io.Reader
}

func (s *scripted) Read(b []byte) (int, error) {
	if len(s.script) > 0 {
		n := copy(b, s.script)
		s.script = s.script[n:]
		return n, nil
	}
	return s.then.Read(b)
}

// A replay plays one side of a recording to a node that stands for the other side: the node's user
// does what the packets of that side show that it did.
type replay struct {
	t    *testing.T
	w    *world
	n    *node
	all  []recorded
	port uint16 // of the side that the node stands for
	sent []Datagram

	partial map[TSN]dataChunk // DATA of our side that has been recorded
	next    TSN               // of these, the next to be sent by the user
	states  map[string]bool   // what our SACK would have said at any time
}

func portOf(b []byte) uint16 { return binary.BigEndian.Uint16(b) }

// firstSetup finds the first INIT or INIT ACK.
func firstSetup(all []recorded, t ChunkType) (r recorded, s setup, ok bool) {
	for _, r := range all {
		if c, _, _ := nextChunk(r.data[headerLen:]); c.typ() == t && parseSetup(c, &s) {
			return r, s, true
		}
	}
	return
}

// newReplay makes the node. As the passive side it listens, else it dials.
func newReplay(t *testing.T, all []recorded, active bool) *replay {
	init, is, ok := firstSetup(all, chunkInit)
	ack, as, ok2 := firstSetup(all, chunkInitAck)
	if !ok || !ok2 {
		t.Fatal("no INIT, or no INIT ACK")
	}
	mine, from, key := as, ack, 32
	if active {
		mine, from, key = is, init, 0
	}
	w := newWorld(t)
	r := &replay{t: t, w: w, all: all, port: portOf(from.data), partial: map[TSN]dataChunk{},
		next: mine.tsn, states: map[string]bool{}}
	addrs := append([]netip.Addr{from.src}, slices.DeleteFunc(slices.Clone(mine.peerAddrs()),
		func(a netip.Addr) bool { return a == from.src })...)
	script := make([]byte, 32+key)
	script = binary.BigEndian.AppendUint32(script, mine.tag)
	script = binary.BigEndian.AppendUint32(script, uint32(mine.tsn))
	opt := Options{OutStreams: mine.out, InStreams: mine.in, RecvBuffer: int(max(mine.rwnd, 64_000)),
		NoSACKReserve: true}
	if mine.adapts {
		opt.Adaptation = &mine.adaptation
	}
	r.n = w.node("n", Config{Rand: &scripted{script, sctptest.Seeded(1)}, Options: opt}, addrs...)
	w.Fate = func(Datagram) []time.Duration { return nil }
	w.trace = func(_ *node, d Datagram) { r.sent = append(r.sent, d) }
	if active {
		a, err := r.n.e.Dial(w.Now, DialConfig{LocalPort: r.port, Locals: addrs,
			RemotePort: portOf(ack.data), Remotes: []netip.Addr{ack.src}})
		if err != nil {
			t.Fatal(err)
		}
		r.n.last = a
		r.n.pump()
		if a.tag != mine.tag || a.initTSN != mine.tsn {
			t.Fatalf("tag %x, TSN %d, recorded %x, %d", a.tag, a.initTSN, mine.tag, mine.tsn)
		}
	} else if err := r.n.e.Listen(r.port, ListenConfig{Locals: addrs}); err != nil {
		t.Fatal(err)
	}
	return r
}

// play goes through the recording.
func (r *replay) play() {
	for _, p := range r.all {
		if at := start.Add(p.at); at.After(r.w.Now) {
			r.w.Run(at.Sub(r.w.Now))
		}
		if portOf(p.data) == r.port {
			r.mimic(p)
			continue
		}
		data := p.data
		if c, rest, _ := nextChunk(data[headerLen:]); c.typ() == chunkCookieEcho && r.n.last == nil {
			data = r.withOurCookie(data, rest)
		}
		r.n.input(Datagram{Src: p.src, Dst: p.dst, Data: data})
		if a := r.n.last; a != nil && a.state != StateClosed {
			s := fmt.Sprint(a.have.cum)
			for _, g := range a.have.gaps(nil, 500) {
				s += fmt.Sprintf(" gap=%d-%d", g.start, g.end)
			}
			r.states[s] = true
		}
	}
}

// withOurCookie replaces the cookie in a COOKIE ECHO by the one that our INIT ACK had.
func (r *replay) withOurCookie(b, rest []byte) []byte {
	var s setup
	c, _, _ := nextChunk(r.sent[len(r.sent)-1].Data[headerLen:])
	if c.typ() != chunkInitAck || !parseSetup(c, &s) {
		r.t.Fatalf("no INIT ACK was sent: %v", r.n.sent)
	}
	h, _ := parseHeader(b)
	return sealed(h, mk(chunkCookieEcho, 0, s.cookie...), rest)
}

// mimic has our user do what a packet of our side shows.
func (r *replay) mimic(p recorded) {
	a, now := r.n.last, r.w.Now
	for rest := p.data[headerLen:]; a != nil; {
		c, x, ok := nextChunk(rest)
		if !ok {
			break
		}
		switch rest = x; c.typ() {
		case chunkData:
			d := dataChunk(c)
			r.partial[d.tsn()] = d
			r.sendRecorded()
		case chunkShutdown:
			if a.state == StateEstablished {
				a.Shutdown(now)
			}
		case chunkAbort:
			causes, _ := parseCauses(c.value())
			a.Abort(now, string(causes[0].Info))
		}
	}
	r.n.pump()
}

// sendRecorded sends the messages whose chunks have all been recorded.
func (r *replay) sendRecorded() {
	for {
		var msg []byte
		tsn := r.next
		for {
			d, ok := r.partial[tsn]
			if !ok {
				return
			}
			msg = append(msg, d.data()...)
			if tsn++; d.flags()&flagE != 0 {
				o := SendOptions{Stream: d.stream(), PPID: d.ppid(), Unordered: d.flags()&flagU != 0}
				if _, err := r.n.last.Send(r.w.Now, o, bytes.NewReader(msg)); err != nil {
					r.t.Fatalf("send: %v", err)
				}
				r.next = tsn
				break
			}
		}
		r.n.pump()
	}
}

// messages puts together what a side of a recording has sent: stream, U, PPID and octets, sorted.
func recordedMessages(all []recorded, port uint16) (msgs []string) {
	chunks := map[TSN]dataChunk{}
	for _, p := range all {
		if portOf(p.data) != port {
			continue
		}
		for rest := p.data[headerLen:]; ; {
			c, x, ok := nextChunk(rest)
			if !ok {
				break
			}
			if rest = x; c.typ() == chunkData {
				chunks[dataChunk(c).tsn()] = dataChunk(c)
			}
		}
	}
	for tsn, d := range chunks {
		if d.flags()&flagB == 0 {
			continue
		}
		var b []byte
		for ; ; tsn++ {
			x, ok := chunks[tsn]
			if !ok {
				break // the rest was never sent
			}
			if b = append(b, x.data()...); x.flags()&flagE != 0 {
				msgs = append(msgs, messageWords(d.stream(), d.flags()&flagU != 0, d.ppid(), b))
				break
			}
		}
	}
	slices.Sort(msgs)
	return msgs
}

// run plays a recording and looks at what came up, and at the end.
func (r *replay) run(all []recorded) {
	r.watch()
	r.play()
	r.checkMessages(all)
	r.checkEnd()
	r.checkHeartbeatAcks()
}

func messageWords(sid uint16, u bool, ppid uint32, b []byte) string {
	return fmt.Sprintf("%d %t %d %x", sid, u, ppid, b)
}

// Linux dials: its packets, our answers. All that it sent comes up; each SACK that Linux's own peer
// gave is one that ours could have given; the association ends as it did there. SCTP-031, SCTP-047,
// SCTP-085, 086, SCTP-102, SCTP-134, SCTP-158, SCTP-161.
func TestReplayPassive(t *testing.T) {
	for _, name := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			all := readPcap(t, "testdata/"+name+".pcap")
			r := newReplay(t, all, false)
			r.run(all)
			if name != "sctp-window" { // there Linux dropped what came: its user did not read
				r.checkSacks()
			}
		})
	}
}

// Linux listens: our INIT, our COOKIE ECHO with its cookie octet for octet, our DATA octet for
// octet what Linux's own peer sent, its SACKs, its shutdown. SCTP-042, SCTP-070, SCTP-081,
// SCTP-111, SCTP-157.
func TestReplayActive(t *testing.T) {
	// Without those in which what was sent depends on the sender's congestion control or a smaller
	// chunk, or went behind the COOKIE ECHO.
	skip := []string{"sctp-loss", "sctp-reorder", "sctp-window", "sctp-maxseg", "sctp-fragment",
		"sctp-bundle", "sctp-darn"}
	for _, name := range recordings(t) {
		if slices.Contains(skip, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			all := readPcap(t, "testdata/"+name+".pcap")
			r := newReplay(t, all, true)
			r.run(all)
			r.checkSacks()
			ours := map[string]bool{}
			for _, d := range r.sent {
				ours[string(d.Data)] = true
			}
			n := 0
			for i, p := range all {
				if portOf(p.data) != r.port {
					continue
				}
				s := survey(p.data[headerLen:])
				if s.kinds == 1<<chunkData && s.chunks == 1 {
					if n++; !ours[string(p.data)] {
						t.Errorf("packet %d was not sent as recorded: %s", i+1, Describe(p.data))
					}
				}
				if s.has(chunkCookieEcho) {
					c, _, _ := nextChunk(p.data[headerLen:])
					if !slices.ContainsFunc(r.sent, func(d Datagram) bool {
						x, _, _ := nextChunk(d.Data[headerLen:])
						return bytes.Equal(x, c) && bytes.Equal(d.Data[:8], p.data[:8])
					}) {
						t.Error("the COOKIE ECHO differs")
					}
				}
			}
			if n == 0 && name != "sctp-heartbeat" {
				t.Error("no DATA to compare")
			}
		})
	}
}

// An INIT to a port where nobody listens: our answer is Linux's, octet for octet. SCTP-151.
func TestReplayRefused(t *testing.T) {
	all := readPcap(t, "testdata/sctp-refused.pcap")
	w := newWorld(t)
	n := w.node("n", Config{}, all[0].dst)
	var sent []Datagram
	w.trace = func(_ *node, d Datagram) { sent = append(sent, d) }
	n.input(Datagram{Src: all[0].src, Dst: all[0].dst, Data: all[0].data})
	if len(sent) != 1 || !bytes.Equal(sent[0].Data, all[1].data) {
		t.Errorf("%v, want %s", n.sent, Describe(all[1].data))
	}
	// And Linux's answer ends a set-up of ours.
	_, is, _ := firstSetup(all, chunkInit)
	script := make([]byte, 32)
	script = binary.BigEndian.AppendUint32(script, is.tag)
	m := w.node("m", Config{Rand: &scripted{script, sctptest.Seeded(1)}}, all[0].src)
	if _, err := m.e.Dial(w.Now, DialConfig{LocalPort: portOf(all[0].data), Locals: m.addrs,
		RemotePort: portOf(all[1].data), Remotes: []netip.Addr{all[0].dst}}); err != nil {
		t.Fatal(err)
	}
	m.pump()
	m.input(Datagram{Src: all[1].src, Dst: all[1].dst, Data: all[1].data})
	if ev := m.wantEvent("refused", EventDown); !ev.Err.(*PeerAbort).Refused() {
		t.Error(ev.Err)
	}
}

func recordings(t *testing.T) (names []string) {
	all, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(all) < 15 {
		t.Fatal(all, err)
	}
	for _, f := range all {
		if n := strings.TrimSuffix(filepath.Base(f), ".pcap"); n != "sctp-refused" {
			names = append(names, n)
		}
	}
	return names
}

// watch has messages noted in the words of recordedMessages.
func (r *replay) watch() {
	r.n.onMsg = func(m *Message) {
		r.n.msgs = append(r.n.msgs, messageWords(m.Stream, m.Unordered, m.PPID, m.Append(nil)))
	}
}

func (r *replay) checkMessages(all []recorded) {
	r.t.Helper()
	peer := portOf(all[0].data)
	if peer == r.port {
		peer = binary.BigEndian.Uint16(all[0].data[2:])
	}
	got := slices.Sorted(slices.Values(r.n.msgs))
	if want := recordedMessages(all, peer); !slices.Equal(got, want) {
		r.t.Errorf("%d messages came up, %d were sent", len(got), len(want))
	}
	if r.n.last == nil || r.n.last.e.Stats().BadTag+r.n.e.Stats().BadChecksum+
		r.n.e.Stats().OutOfTheBlue > 0 {
		r.t.Errorf("%+v", r.n.e.Stats())
	}
}

// checkSacks: each SACK of the side that we stand for says what our books said at some time.
func (r *replay) checkSacks() {
	r.t.Helper()
	for i, p := range r.all {
		c, _, _ := nextChunk(p.data[headerLen:])
		if s, ok := parseSack(c); ok && c.typ() == chunkSack && portOf(p.data) == r.port {
			words := fmt.Sprint(s.cum())
			for i := range s.blocks() {
				start, end := s.block(i)
				words += fmt.Sprintf(" gap=%d-%d", start, end)
			}
			if !r.states[words] {
				r.t.Errorf("packet %d: Linux's SACK %s was never ours to give", i+1, words)
			}
		}
	}
}

// checkEnd: the association is gone, by a shutdown or an ABORT as recorded.
func (r *replay) checkEnd() {
	r.t.Helper()
	aborted := false
	for _, p := range r.all {
		aborted = aborted || survey(p.data[headerLen:]).has(chunkAbort)
	}
	i := slices.IndexFunc(r.n.events, func(ev Event) bool { return ev.Kind == EventDown })
	if i < 0 {
		r.t.Errorf("the association is in %v: %v", r.n.last.State(), r.n.sent[max(0, len(r.n.sent)-5):])
	} else if (r.n.events[i].Err != nil) != aborted {
		r.t.Errorf("ended with %v, recorded an ABORT: %t", r.n.events[i].Err, aborted)
	}
}

// checkHeartbeatAcks: Linux's HEARTBEATs are answered as its own peer answered them, octet for
// octet.
func (r *replay) checkHeartbeatAcks() {
	r.t.Helper()
	for i, p := range r.all {
		if s := survey(p.data[headerLen:]); s.kinds == 1<<chunkHeartbeatAck && portOf(p.data) == r.port {
			// Only those to a HEARTBEAT that was recorded: the other side's, not ours.
			if !slices.ContainsFunc(r.sent, func(d Datagram) bool {
				return bytes.Equal(d.Data, p.data) && d.Dst == p.dst && d.Src == p.src
			}) {
				r.t.Errorf("packet %d was not answered so: %s", i+1, Describe(p.data))
			}
		}
	}
}
