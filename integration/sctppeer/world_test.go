package sctppeer_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/sctp"
)

const (
	port    = 5043
	ourPort = 4000
)

var (
	epoch    = time.Unix(1_000_000_000, 0)
	ourAddr  = netip.MustParseAddr("10.1.0.1")
	peerAddr = netip.MustParseAddr("10.1.0.2")
)

// build compiles the program once for all tests, or skips the test.
func build(t *testing.T) string {
	t.Helper()
	if m := sctppeer.Usrsctp.Missing(); len(m) > 0 {
		needtest.Lacking(t, "usrsctp", "as root: apt-get install "+strings.Join(m, " "))
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	dir     string
	program = sync.OnceValues(func() (string, error) { return sctppeer.Usrsctp.Build(dir) })
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if dir, err = os.MkdirTemp("", "sctppeer-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		return m.Run()
	}())
}

// A world is our endpoint, usrsctp, and the network between them, on one clock of its own.
type world struct {
	t     *testing.T
	now   time.Time
	tick  time.Time // to which usrsctp's clock has been brought
	cfg   sctp.Config
	e     *sctp.Endpoint
	peer  *sctppeer.Lockstep
	wires []flight
	// fate says when copies of a packet arrive; nil: one, after a millisecond.
	fate         func(toPeer bool) []time.Duration
	ours, theirs [][]byte // packets sent
	keep         bool     // messages are not released: the reader has stopped

	assoc    *sctp.Association
	events   []sctp.Event
	received []message
	held     []*sctp.Message
	post     func() // called when there may be room to send
}

type flight struct {
	at     time.Time
	toPeer bool
	b      []byte
}

type message struct {
	stream, ssn uint16
	ppid        uint32
	unordered   bool
	data        []byte
}

type seeded struct{ *rand.ChaCha8 }

func newSeeded(n uint64) seeded {
	var s [32]byte
	binary.BigEndian.PutUint64(s[:], n)
	return seeded{rand.NewChaCha8(s)}
}

func newWorld(t *testing.T, o sctp.Options) *world {
	t.Helper()
	path := build(t)
	w := &world{t: t, now: epoch, tick: epoch, cfg: sctp.Config{Rand: newSeeded(1), Options: o}}
	w.reboot()
	w.start(path)
	t.Cleanup(func() {
		w.peer.Close()
		if t.Failed() {
			for _, l := range w.peer.Said {
				t.Logf("usrsctp: %.200s", l)
			}
		}
	})
	return w
}

// reboot gives us a new endpoint that knows nothing.
func (w *world) reboot() {
	w.t.Helper()
	e, err := sctp.NewEndpoint(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.e, w.assoc, w.events = e, nil, nil
}

// start starts usrsctp, instead of the one there was.
func (w *world) start(path string) {
	w.t.Helper()
	if w.peer != nil {
		w.peer.Close()
	}
	p, err := sctppeer.StartLockstep(path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.peer, w.tick = p, w.now
}

// do gives usrsctp a command that must succeed.
func (w *world) do(format string, args ...any) {
	w.t.Helper()
	if err := w.peer.Do(format, args...); err != nil {
		w.t.Fatal(err)
	}
	w.flush()
}

// said waits until usrsctp says a line that begins with prefix, and takes it away.
func (w *world) said(prefix string) string {
	w.t.Helper()
	var line string
	w.until("usrsctp: "+prefix, 5*time.Minute, func() bool {
		i := slices.IndexFunc(w.peer.Said, func(s string) bool { return strings.HasPrefix(s, prefix) })
		if i >= 0 {
			line = w.peer.Said[i]
			w.peer.Said = slices.Delete(w.peer.Said, i, i+1)
		}
		return i >= 0
	})
	return line
}

// event waits for an event of ours, and takes it away.
func (w *world) event(k sctp.EventKind) (ev sctp.Event) {
	w.t.Helper()
	w.until(fmt.Sprintf("our event %d", k), 5*time.Minute, func() bool {
		i := slices.IndexFunc(w.events, func(ev sctp.Event) bool { return ev.Kind == k })
		if i >= 0 {
			ev = w.events[i]
			w.events = slices.Delete(w.events, i, i+1)
		}
		return i >= 0
	})
	return ev
}

// flush takes packets and events out of both.
func (w *world) flush() {
	for _, b := range w.peer.Packets {
		w.theirs = append(w.theirs, b)
		if !sctp.GoodChecksum(b) {
			w.t.Errorf("usrsctp sends a bad checksum: %s", sctp.Describe(b))
		}
		w.send(false, b)
	}
	w.peer.Packets = nil
	for busy := true; busy; {
		busy = false
		if w.post != nil {
			w.post()
		}
		for {
			d, ok := w.e.Output(w.now, nil)
			if !ok {
				break
			}
			busy = true
			w.ours = append(w.ours, d.Data)
			w.send(true, d.Data)
		}
		for {
			ev, ok := w.e.NextEvent()
			if !ok {
				break
			}
			busy = true
			w.take(ev)
		}
	}
}

func (w *world) take(ev sctp.Event) {
	if ev.Kind == sctp.EventMessage {
		m := ev.Msg
		w.received = append(w.received, message{m.Stream, m.SSN, m.PPID, m.Unordered, m.Append(nil)})
		if w.keep {
			w.held = append(w.held, m)
		} else {
			m.Release()
		}
		return
	}
	if ev.Kind == sctp.EventUp {
		w.assoc = ev.Assoc
	}
	w.events = append(w.events, ev)
}

func (w *world) send(toPeer bool, b []byte) {
	times := []time.Duration{time.Millisecond}
	if w.fate != nil {
		times = w.fate(toPeer)
	}
	for _, d := range times {
		f := flight{w.now.Add(d), toPeer, b}
		i := len(w.wires)
		for i > 0 && f.at.Before(w.wires[i-1].at) {
			i--
		}
		w.wires = slices.Insert(w.wires, i, f)
	}
}

// tickLength is how often usrsctp looks at its timers.
const tickLength = 10 * time.Millisecond

// step goes to whatever comes next.
func (w *world) step() {
	at := w.tick.Add(tickLength)
	if len(w.wires) > 0 && w.wires[0].at.Before(at) {
		at = w.wires[0].at
	}
	if d, ok := w.e.Deadline(); ok && d.Before(at) {
		at = d
	}
	if at.After(w.now) {
		w.now = at
	}
	var err error
	switch {
	case len(w.wires) > 0 && !w.wires[0].at.After(w.now):
		f := w.wires[0]
		w.wires = slices.Delete(w.wires, 0, 1)
		if f.toPeer {
			err = w.peer.Input(f.b)
		} else {
			w.e.Input(w.now, sctp.Packet{Src: peerAddr, Dst: ourAddr, Data: slices.Clone(f.b)})
		}
	case w.now.Sub(w.tick) >= tickLength:
		err = w.peer.Tick(w.now.Sub(w.tick))
		w.tick = w.now
	default:
		w.e.Expire(w.now)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.flush()
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.step()
	}
}

// until runs until cond holds; it fails the test if that takes longer than d.
func (w *world) until(what string, d time.Duration, cond func() bool) {
	w.t.Helper()
	for end := w.now.Add(d); !cond(); w.step() {
		if w.now.After(end) {
			w.t.Fatalf("not within %v: %s; our events %v", d, what, w.events)
		}
	}
}

// dial sets up an association from us.
func (w *world) dial() {
	w.t.Helper()
	w.begin()
	w.event(sctp.EventUp)
	w.said("up")
}

// begin sends the INIT.
func (w *world) begin() {
	w.t.Helper()
	a, err := w.e.Dial(w.now, sctp.DialConfig{
		LocalPort: ourPort, Locals: []netip.Addr{ourAddr}, RemotePort: port, Remotes: []netip.Addr{peerAddr},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.assoc = a
	w.flush()
}

// answer sets up an association from usrsctp.
func (w *world) answer() {
	w.t.Helper()
	if err := w.e.Listen(port, sctp.ListenConfig{}); err != nil {
		w.t.Fatal(err)
	}
	w.do("connect %d x %d", port, ourPort)
	w.event(sctp.EventUp)
	w.said("up")
}

// connect is one of them: from us, or from usrsctp, with these commands before.
func (w *world) connect(active bool, set ...string) {
	w.t.Helper()
	for _, s := range set {
		w.do("set %s", s)
	}
	if !active {
		w.answer()
		return
	}
	w.do("listen %d", port)
	w.dial()
}

// sendAll sends messages as there is room for them.
func (w *world) sendAll(count int, o sctp.SendOptions, streams int, size func(n int) int) {
	n := 0
	w.post = func() {
		for n < count {
			o.Stream = uint16(n % streams)
			_, err := w.assoc.Send(w.now, o, bytes.NewReader(sctppeer.Fill(n, size(n))))
			if err == sctp.ErrNoRoom {
				return
			}
			if err != nil {
				w.t.Fatalf("message %d: %v", n, err)
			}
			n++
		}
		w.post = nil
	}
	w.flush()
}

// say sends one message of ours.
func (w *world) say(o sctp.SendOptions, data string) {
	w.t.Helper()
	if _, err := w.assoc.Send(w.now, o, strings.NewReader(data)); err != nil {
		w.t.Fatal(err)
	}
	w.flush()
}

// goodMessages checks count messages that came from bulk.
func (w *world) goodMessages(count, streams, size int, ppid uint32, unordered bool) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d messages", count), 20*time.Minute, func() bool { return len(w.received) >= count })
	next := make([]int, streams)
	seen := map[int]bool{}
	for _, m := range w.received {
		n := int(binary.BigEndian.Uint32(m.data))
		if !bytes.Equal(m.data, sctppeer.Fill(n, size)) || m.ppid != ppid || m.unordered != unordered || int(m.stream) != n%streams || seen[n] {
			w.t.Fatalf("message %d of stream %d, PPID %d, unordered %v, %d octets is not as it was sent", n, m.stream, m.ppid, m.unordered, len(m.data))
		}
		seen[n] = true
		if !unordered && n/streams != next[m.stream] {
			w.t.Fatalf("stream %d: message %d comes instead of %d", m.stream, n/streams, next[m.stream])
		}
		next[m.stream]++
	}
	if len(w.received) != count {
		w.t.Fatalf("%d messages came of %d", len(w.received), count)
	}
	w.received = nil
}

// goodAtPeer checks count messages of sendAll, which usrsctp must have found good.
func (w *world) goodAtPeer(count, streams int, size func(n int) int, unordered bool) {
	w.t.Helper()
	next := make([]int, streams)
	seen := map[int]bool{}
	for range count {
		var stream, n, order, got int
		line := w.said("good")
		if _, err := fmt.Sscanf(line, "good %d %d %d %d", &stream, &n, &order, &got); err != nil || seen[n] || stream != n%streams || got != size(n) {
			w.t.Fatalf("usrsctp: %s (%v)", line, err)
		}
		seen[n] = true
		if !unordered && n/streams != next[stream] {
			w.t.Fatalf("stream %d: message %d reached usrsctp instead of %d", stream, n/streams, next[stream])
		}
		next[stream]++
	}
}

// each calls f with the chunks of packets.
func each(packets [][]byte, f func(chunk []byte)) {
	for _, b := range packets {
		for b = b[12:]; len(b) >= 4; {
			n := int(binary.BigEndian.Uint16(b[2:]))
			if n < 4 || n > len(b) {
				break
			}
			f(b[:n])
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

// chunks are the types of the chunks of a packet.
func chunks(b []byte) (types []byte) {
	each([][]byte{b}, func(c []byte) { types = append(types, c[0]) })
	return types
}

// outstanding is how many octets were sent in DATA chunks beyond what the last SACK acknowledges, and the window
// that it tells.
func outstanding(data, sacks [][]byte) (octets, window int) {
	var cum uint32
	each(sacks, func(c []byte) {
		if c[0] == 3 {
			cum, window = binary.BigEndian.Uint32(c[4:]), int(binary.BigEndian.Uint32(c[8:]))
		}
	})
	seen := map[uint32]bool{}
	each(data, func(c []byte) {
		if c[0] != 0 {
			return
		}
		if tsn := binary.BigEndian.Uint32(c[4:]); int32(tsn-cum) > 0 && !seen[tsn] {
			seen[tsn] = true
			octets += len(c) - 16
		}
	})
	return octets, window
}

// impaired is a network that loses, doubles and delays.
func impaired(seed uint64, loss, dup, late int) func(bool) []time.Duration {
	r := rand.New(newSeeded(seed))
	return func(bool) (times []time.Duration) {
		if r.IntN(100) < loss {
			return nil
		}
		d := time.Duration(1+r.IntN(4)) * time.Millisecond
		if r.IntN(100) < late {
			d += time.Duration(r.IntN(60)) * time.Millisecond
		}
		times = append(times, d)
		if r.IntN(100) < dup {
			times = append(times, d+time.Duration(r.IntN(20))*time.Millisecond)
		}
		return times
	}
}
