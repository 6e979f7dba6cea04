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
	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

const (
	peerPort = 5043
	ourPort  = 4000
)

var (
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
	*sctptest.World[packet]
	tick         time.Time // to which usrsctp's clock has been brought
	cfg          sctp.Config
	e            *sctp.Endpoint
	peer         *sctppeer.Lockstep
	ours, theirs [][]byte // packets sent
	keep         bool     // messages are not released: the reader has stopped

	assoc    *sctp.Association
	events   []sctp.Event
	received []message
	held     []*sctp.Message
	post     func() // called when there may be room to send
}

// A packet goes to usrsctp, or comes from there.
type packet struct {
	toPeer bool
	b      []byte
}

type message struct {
	stream, ssn uint16
	ppid        uint32
	unordered   bool
	data        []byte
}

func newWorld(t *testing.T, o sctp.Options) *world {
	t.Helper()
	path := build(t)
	w := &world{cfg: sctp.Config{Rand: sctptest.Seeded(1), Options: o}}
	w.World = sctptest.NewWorld(t, w.deliver)
	w.Timers = []sctptest.Timer{ticks{w}, ourTimer{w}}
	w.Show = func() string { return fmt.Sprintf("our events %v", w.events) }
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
	w.T.Helper()
	e, err := sctp.NewEndpoint(w.cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	w.e, w.assoc, w.events = e, nil, nil
}

// start starts usrsctp, instead of the one there was.
func (w *world) start(path string) {
	w.T.Helper()
	if w.peer != nil {
		w.peer.Close()
	}
	p, err := sctppeer.StartLockstep(path)
	if err != nil {
		w.T.Fatal(err)
	}
	w.peer, w.tick = p, w.Now
}

// do gives usrsctp a command that must succeed.
func (w *world) do(format string, args ...any) {
	w.T.Helper()
	if err := w.peer.Do(format, args...); err != nil {
		w.T.Fatal(err)
	}
	w.flush()
}

// said waits until usrsctp says a line that begins with prefix, and takes it away.
func (w *world) said(prefix string) string {
	w.T.Helper()
	var line string
	w.Until("usrsctp: "+prefix, 5*time.Minute, func() bool {
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
	w.T.Helper()
	w.Until(fmt.Sprintf("our event %d", k), 5*time.Minute, func() bool {
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
			w.T.Errorf("usrsctp sends a bad checksum: %s", sctp.Describe(b))
		}
		w.Send(packet{false, b})
	}
	w.peer.Packets = nil
	for busy := true; busy; {
		busy = false
		if w.post != nil {
			w.post()
		}
		for {
			d, ok := w.e.Output(w.Now, nil)
			if !ok {
				break
			}
			busy = true
			w.ours = append(w.ours, d.Data)
			w.Send(packet{true, d.Data})
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

func (w *world) deliver(p packet) {
	if !p.toPeer {
		w.e.Input(w.Now, sctp.Packet{Src: peerAddr, Dst: ourAddr, Data: slices.Clone(p.b)})
	} else if err := w.peer.Input(p.b); err != nil {
		w.T.Fatal(err)
	}
	w.flush()
}

// tickLength is how often usrsctp looks at its timers.
const tickLength = 10 * time.Millisecond

// ticks are usrsctp's.
type ticks struct{ w *world }

func (k ticks) Deadline() (time.Time, bool) { return k.w.tick.Add(tickLength), true }

func (k ticks) Expire(now time.Time) {
	if err := k.w.peer.Tick(now.Sub(k.w.tick)); err != nil {
		k.w.T.Fatal(err)
	}
	k.w.tick = now
	k.w.flush()
}

// ourTimer is our endpoint's.
type ourTimer struct{ w *world }

func (o ourTimer) Deadline() (time.Time, bool) { return o.w.e.Deadline() }

func (o ourTimer) Expire(now time.Time) {
	o.w.e.Expire(now)
	o.w.flush()
}

// dial sets up an association from us.
func (w *world) dial() {
	w.T.Helper()
	w.begin()
	w.event(sctp.EventUp)
	w.said("up")
}

// begin sends the INIT.
func (w *world) begin() {
	w.T.Helper()
	a, err := w.e.Dial(w.Now, sctp.DialConfig{
		LocalPort: ourPort, Locals: []netip.Addr{ourAddr}, RemotePort: peerPort, Remotes: []netip.Addr{
			peerAddr},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.assoc = a
	w.flush()
}

// answer sets up an association from usrsctp.
func (w *world) answer() {
	w.T.Helper()
	if err := w.e.Listen(peerPort, sctp.ListenConfig{}); err != nil {
		w.T.Fatal(err)
	}
	w.do("connect %d x %d", peerPort, ourPort)
	w.event(sctp.EventUp)
	w.said("up")
}

// connect is one of them: from us, or from usrsctp, with these commands before.
func (w *world) connect(active bool, set ...string) {
	w.T.Helper()
	for _, s := range set {
		w.do("set %s", s)
	}
	if !active {
		w.answer()
		return
	}
	w.do("listen %d", peerPort)
	w.dial()
}

// sendAll sends messages as there is room for them.
func (w *world) sendAll(count int, o sctp.SendOptions, streams int, size func(n int) int) {
	n := 0
	w.post = func() {
		for n < count {
			o.Stream = uint16(n % streams)
			_, err := w.assoc.Send(w.Now, o, bytes.NewReader(sctppeer.Fill(n, size(n))))
			if err == sctp.ErrNoRoom {
				return
			}
			if err != nil {
				w.T.Fatalf("message %d: %v", n, err)
			}
			n++
		}
		w.post = nil
	}
	w.flush()
}

// bothWays has each side send count messages of size octets at once, all of which must come.
func (w *world) bothWays(count, streams, size int, unordered bool) {
	w.T.Helper()
	flags := "-"
	if unordered {
		flags = "u"
	}
	same := func(int) int { return size }
	w.do("read check")
	w.do("bulk %d %d %d %s %d", count, streams, ppid, flags, size)
	w.sendAll(count, sctp.SendOptions{PPID: ppid, Unordered: unordered}, streams, same)
	w.goodMessages(count, streams, size, ppid, unordered)
	w.goodAtPeer(count, streams, same, unordered)
}

// say sends one message of ours.
func (w *world) say(o sctp.SendOptions, data string) {
	w.T.Helper()
	if _, err := w.assoc.Send(w.Now, o, strings.NewReader(data)); err != nil {
		w.T.Fatal(err)
	}
	w.flush()
}

// goodMessages checks count messages that came from bulk.
func (w *world) goodMessages(count, streams, size int, ppid uint32, unordered bool) {
	w.T.Helper()
	w.Until(fmt.Sprintf("%d messages", count), 20*time.Minute,
		func() bool { return len(w.received) >= count })
	next := make([]int, streams)
	seen := map[int]bool{}
	for _, m := range w.received {
		n := int(binary.BigEndian.Uint32(m.data))
		if !bytes.Equal(m.data, sctppeer.Fill(n, size)) || m.ppid != ppid || m.unordered != unordered ||
			int(m.stream) != n%streams || seen[n] {
			w.T.Fatalf("message %d of stream %d, PPID %d, unordered %v, %d octets is not as it was sent", n,
				m.stream, m.ppid, m.unordered, len(m.data))
		}
		seen[n] = true
		if !unordered && n/streams != next[m.stream] {
			w.T.Fatalf("stream %d: message %d comes instead of %d", m.stream, n/streams, next[m.stream])
		}
		next[m.stream]++
	}
	if len(w.received) != count {
		w.T.Fatalf("%d messages came of %d", len(w.received), count)
	}
	w.received = nil
}

// goodAtPeer checks count messages of sendAll, which usrsctp must have found good.
func (w *world) goodAtPeer(count, streams int, size func(n int) int, unordered bool) {
	w.T.Helper()
	next := make([]int, streams)
	seen := map[int]bool{}
	for range count {
		var stream, n, order, got int
		line := w.said("good")
		if _, err := fmt.Sscanf(line, "good %d %d %d %d", &stream, &n, &order, &got); err != nil ||
			seen[n] || stream != n%streams || got != size(n) {
			w.T.Fatalf("usrsctp: %s (%v)", line, err)
		}
		seen[n] = true
		if !unordered && n/streams != next[stream] {
			w.T.Fatalf("stream %d: message %d reached usrsctp instead of %d", stream, n/streams,
				next[stream])
		}
		next[stream]++
	}
}

// chunks are the types of the chunks of a packet.
func chunks(b []byte) (types []byte) {
	for _, c := range sctptest.Chunks(b) {
		types = append(types, c.Type())
	}
	return types
}

// outstanding is how many octets were sent in DATA chunks beyond what the last SACK acknowledges,
// and the window that it tells.
func outstanding(data, sacks [][]byte) (octets, window int) {
	var cum uint32
	for _, b := range sacks {
		for _, c := range sctptest.Chunks(b) {
			if c.Type() == 3 {
				cum = binary.BigEndian.Uint32(c[4:])
				window = int(binary.BigEndian.Uint32(c[8:]))
			}
		}
	}
	seen := map[uint32]bool{}
	for _, b := range data {
		for _, c := range sctptest.Chunks(b) {
			if c.Type() != 0 {
				continue
			}
			if tsn := binary.BigEndian.Uint32(c[4:]); int32(tsn-cum) > 0 && !seen[tsn] {
				seen[tsn] = true
				octets += len(c) - 16
			}
		}
	}
	return octets, window
}

// impaired is a network that loses, doubles and delays.
func impaired(seed uint64, loss, dup, late int) func(packet) []time.Duration {
	r := rand.New(sctptest.Seeded(seed))
	return func(packet) (times []time.Duration) {
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
