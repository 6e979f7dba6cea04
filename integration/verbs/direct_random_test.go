package verbs

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/shm"
)

var (
	directSeed  = flag.Uint64("seed", 1, "the first seed of random programs with the direct path")
	directSeeds = flag.Int("seeds", 12, "how many of them there are")
)

// The same random programs of two ends, with the direct path and without it, see the same: what
// completes, in which order, with what status and octets; memory, events, counters and how the
// connection ends. Each program ends in another way, and somebody looks at it in the midst of some.
//
// A seed that fails is printed with what is left of its program when all has been left out that
// makes no difference: go test ./integration/verbs -run TestDirectRandom -seed N -seeds 1
func TestDirectRandom(t *testing.T) {
	for i := range 4 {
		lent, device := i%2 == 1, deviceA
		if i >= 2 {
			device = roceA
		}
		t.Run(fmt.Sprintf("roce=%v/lent=%v", i >= 2, lent), func(t *testing.T) {
			on, off := newStage(t, device, "user", lent), newStage(t, device, "off", lent)
			ops := 0
			for i := range *directSeeds {
				seed := *directSeed + uint64(i)
				program := randomProgram(seed)
				ops += len(program)
				saw, err := compare(off, on, program)
				if err != nil {
					t.Fatalf("seed %d: %v\n%v", seed, err, program)
				}
				if saw != "" {
					program, saw = shrink(off, on, program, saw)
					t.Fatalf("seed %d: %sthe program:\n%v", seed, saw, program)
				}
			}
			t.Logf("%d seeds from %d on, %d steps", *directSeeds, *directSeed, ops)
			for _, name := range []string{"sends", "immediates", "writes", "reads", "atomics"} {
				n, _ := on.counter("direct_" + name)
				all, _ := on.counter(name)
				t.Logf("%v of %v %s were direct", n, all, name)
				// What is not lent only the daemon can reach, and most immediate data are behind that: a few
				// programs may have none directly.
				if n == 0 && *directSeeds > 8 &&
					(lent || name == "sends" || name == "immediates" && *directSeeds >= 100) {
					t.Errorf("none of the %s was direct", name)
				}
			}
		})
	}
}

// compare runs a program on two stages, and returns what is different, if anything is.
func compare(off, on *stage, program []step) (string, error) {
	was, err := off.run(program)
	if err != nil {
		return "", fmt.Errorf("off: %w", err)
	}
	now, err := on.run(program)
	if err != nil {
		return "", fmt.Errorf("on: %w", err)
	}
	return difference(was, now), nil
}

// shrink leaves out of a program what its difference does not need.
func shrink(off, on *stage, program []step, saw string) ([]step, string) {
	for n := len(program) / 2; n > 0; n /= 2 {
		for i := 0; i+n <= len(program); {
			less := slices.Concat(program[:i], program[i+n:])
			now, err := compare(off, on, less)
			if err != nil { // neither stage is of use any more
				return program, saw
			}
			if now == "" {
				i += n
			} else {
				program, saw = less, now
			}
		}
	}
	return program, saw
}

// difference shows where two texts are different.
func difference(off, on string) string {
	a, b := strings.Split(off, "\n"), strings.Split(on, "\n")
	var s strings.Builder
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			fmt.Fprintf(&s, "off: %s\non:  %s\n", x, y)
		}
	}
	return s.String()
}

// A stage is two ends of connections, each in a process, on a device.
type stage struct {
	*topology
	t     *testing.T
	roce  bool
	lent  bool // the programs' memory
	cut   bool // a connection ended at once, while a Send waited for a receive
	seen  bool // somebody has looked at the connection: it goes through the daemon's from then on
	ends  [2]*end
	port  string
	watch io.Closer
	saw   strings.Builder
}

// An end is a process that runs testdata/script.c, and what it has been told.
type end struct {
	*process
	conn net.Conn
	from *bufio.Reader

	depth   [2]int
	inline  int
	all     bool      // signaled
	one     bool      // CQ
	sent    []request // not known to be over
	over    int       // requests up to the last one that is signaled and over
	known   int       // as many as the process has known of, when it was last waited for
	posted  int       // receives
	free    int       // of them, those that no message has taken
	done    [2]int    // completions, of sends and receives
	polled  [2]int    // of them, what the process has waited for
	armed   [2]int    // for any, 1, or solicited ones, 2
	events  int
	read    int // requests up to its last Read: what that reads may not be written before it is over
	chained int
	ids     int
}

// A request is one that was posted.
type request struct{ signaled, solicited, receives bool }

func newStage(t *testing.T, device, mode string, lent bool) *stage {
	t.Helper()
	s := &stage{topology: directOn(t, device, mode), t: t, roce: device == roceA, lent: lent}
	for i := range s.ends {
		s.ends[i] = s.start(lent)
	}
	var err error
	if s.port, err = s.ends[1].ask("listen"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) start(lent bool) *end {
	s.t.Helper()
	path := filepath.Join(ownDir(s.t, 0), "c")
	l, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	argv := []string{program, "exec"}
	if lent {
		argv = append(argv, "--lend-heap")
	}
	env := append(s.cEnv(), append(s.server.env(), "SCRIPT="+path)...)
	e := &end{process: s.server.in(s.t).begin(env, append(argv, "--", cProgram(s.t, "script"))...)}
	_ = l.(*net.UnixListener).SetDeadline(time.Now().Add(patience))
	if e.conn, err = l.Accept(); err != nil {
		s.t.Fatalf("%s does not come: %v\n%s", e, err, e.Output())
	}
	e.from = bufio.NewReader(e.conn)
	s.t.Cleanup(func() {
		e.conn.Close()
		if !s.t.Failed() {
			e.succeed(patience)
		}
	})
	return e
}

func (e *end) tell(format string, args ...any) {
	fmt.Fprintf(e.conn, format+"\n", args...) // that it has gone is found where it is to answer
}

func (e *end) answer() (string, error) {
	_ = e.conn.SetReadDeadline(time.Now().Add(patience + 10*time.Second)) // it has waits of its own
	line, err := e.from.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s does not answer: %w\n%s", e, err, e.Output())
	}
	return strings.TrimSpace(line), nil
}

func (e *end) ask(format string, args ...any) (string, error) {
	e.tell(format, args...)
	return e.answer()
}

// askBoth asks both ends at once.
func (s *stage) askBoth(what func(*end) string) (answers [2]string, err error) {
	for _, e := range s.ends {
		e.tell("%s", what(e))
	}
	for i, e := range s.ends {
		var more error
		answers[i], more = e.answer()
		err = errors.Join(err, more)
	}
	return answers, err
}

// run does what a program says, and returns all that both ends have seen. What does not fit, since
// something was left out before or a queue is full, is left out.
func (s *stage) run(program []step) (string, error) {
	s.saw.Reset()
	s.cut = false
	before := s.counters()
	open := false
	for _, st := range program {
		var err error
		switch {
		case st.do == "open" && !open:
			open = true
			err = s.open(st)
		case !open || st.do == "open":
		case st.do == "end":
			open = false
			err = s.end(st)
		default:
			err = s.step(st)
		}
		if err != nil {
			return "", fmt.Errorf("%v: %w", st, err)
		}
	}
	if open {
		if err := s.end(step{do: "end", how: len(endings) - 1}); err != nil {
			return "", err
		}
	}
	for name, n := range s.counters() {
		before[name] = n - before[name]
	}
	if s.cut { // it may have been on its way already, and count as sent
		delete(before, "sends")
		delete(before, "sent_octets")
	}
	fmt.Fprintln(&s.saw, before)
	return s.saw.String(), nil
}

// counters are those of the device that must not depend on which way messages go.
func (s *stage) counters() map[string]float64 {
	c := make(map[string]float64)
	for _, name := range []string{"sends", "writes", "reads", "atomics", "immediates", "sent_octets",
		"read_octets", "receives", "in_writes", "in_reads", "in_atomics", "in_immediates",
		"received_octets", "served_octets", "solicited", "errors", "terminates_out", "terminates_in"} {
		c[name], _ = s.counter(name)
	}
	return c
}

func (s *stage) open(st step) error {
	s.seen = s.watch != nil
	for i, e := range s.ends {
		*e = end{process: e.process, conn: e.conn, from: e.from, depth: [2]int{st.size, st.at},
			inline: st.n, one: st.how>>(2*i)&1 != 0, all: st.how>>(2*i)&2 != 0}
		how := st.how >> (2 * i) & 3
		to := "accept"
		if i == 0 {
			to = "connect " + s.port
		}
		e.tell("%s %d %d %d %d", to, st.size, st.at, st.n, how)
	}
	for i, e := range s.ends {
		a, err := e.answer()
		if err != nil {
			return err
		}
		_, where, _ := strings.Cut(a, " ")
		s.ends[1-i].tell("peer %s", where)
	}
	return nil
}

// copies reports whether messages are copied from one memory to the other. Else the daemon may have
// handed the connection over to a stream, without the direct path: a Send is over when that has it,
// and what waits there for a receive has answers to Reads wait behind it.
func (s *stage) copies() bool { return s.lent && !s.seen }

// sync waits for all that completes. Where nothing is copied no Send is left to wait for a receive.
func (s *stage) sync() error {
	for {
		for i, e := range s.ends {
			s.flush(e)
			if !s.copies() {
				s.serve(s.ends[1-i], e)
			}
		}
		if s.copies() || len(s.ends[0].sent)+len(s.ends[1].sent) == 0 {
			return s.await(true)
		}
		if err := s.await(false); err != nil {
			return err
		}
	}
}

// await waits until all receives have completed that must, and all Sends.
func (s *stage) await(sends bool) error {
	all, err := s.askBoth(func(e *end) string {
		n := 0
		if sends {
			n = e.done[0]
		}
		return fmt.Sprintf("want %d %d", n, e.done[1])
	})
	if all != [2]string{"ok", "ok"} && err == nil {
		all, err = s.askBoth(func(*end) string { return "report" })
		return errors.Join(fmt.Errorf("what should have completed is flushed: %v", all), err)
	}
	if err == nil && sends {
		_, err = s.askBoth(func(e *end) string { return fmt.Sprintf("events %d", e.events) })
	}
	for _, e := range s.ends {
		e.polled[1] = e.done[1]
		if sends {
			e.polled[0], e.known = e.done[0], e.over
		}
	}
	return err
}

// serve posts receives for Sends of from that wait for them.
func (s *stage) serve(to, from *end) {
	for len(from.sent) > 0 && to.posted-to.polled[1] < to.depth[1] {
		s.receive(to, slotLen, 0)
	}
}

// flush posts what is to be posted together.
func (s *stage) flush(e *end) {
	if e.chained > 0 {
		e.chained = 0
		e.tell("post")
	}
}

func (s *stage) step(st step) error {
	e := s.ends[st.side]
	switch st.do {
	case "send":
		return s.send(st)
	case "recv":
		if e.posted-e.polled[1] == e.depth[1] {
			if err := s.sync(); err != nil {
				return err
			}
		}
		if e.posted-e.polled[1] < e.depth[1] {
			s.receive(e, st.size, 0)
		}
	case "poll":
		e.tell("poll %d", st.n)
	case "sync":
		return s.sync()
	case "arm":
		if err := s.sync(); err != nil {
			return err
		}
		which, how := st.how&1, 1+st.how>>1&1
		if len(e.sent) > 0 && (which == 0 || e.one) {
			return nil // what waits for a receive may have completed, or not
		}
		e.tell("arm %d %d", which, how-1)
		if e.one {
			which = 0
		}
		if e.armed[which] != 1 {
			e.armed[which] = how
		}
		_, err := e.ask("want 0 0") // it is armed before anything else is posted
		return err
	case "watch":
		return s.look(st.how)
	case "renew":
		return s.renew(st.side, min(st.n, areaTarget+1), areaAccess[min(st.n, areaAnswers)], st.how)
	case "pause":
		if !s.roce { // iWARP has no such state
			return nil
		}
		if err := s.quiet(); err != nil {
			return err
		}
		_, err := e.ask("pause")
		return err
	case "window":
		if err := s.quiet(); err != nil {
			return err
		}
		err := s.give(st.side, fmt.Sprintf("window %d %d", st.n, e.ids))
		e.ids++
		s.sentOne(e, request{signaled: true})
		return err
	}
	return nil
}

// renew registers an area of an end anew, between requests.
func (s *stage) renew(side, area, access, how int) error {
	if err := s.quiet(); err != nil {
		return err
	}
	if e := s.ends[side]; area == areaInto && e.free > 0 {
		return nil // it is in the receives that are posted
	}
	what := fmt.Sprintf("renew %d %d %d", area, access, how)
	if area == areaTarget {
		return s.give(side, what)
	}
	_, err := s.ends[side].ask("%s", what)
	return err
}

// give tells a peer what to write to from now on, as the end answers.
func (s *stage) give(side int, what string) error {
	a, err := s.ends[side].ask("%s", what)
	s.ends[1-side].tell("peer %s", a)
	return err
}

// quiet waits until all that both have posted is over, and known to be. On a stream a Write is over
// before it is at the peer; a Read behind it is not.
func (s *stage) quiet() error {
	for i, e := range s.ends {
		if err := s.quietOf(i, e); err != nil {
			return err
		}
		if s.copies() {
			continue
		}
		if err := s.sync(); err != nil {
			return err
		}
		if err := s.send(step{side: i, op: 'r', size: 1, n: 1, how: howSignaled}); err != nil {
			return err
		}
	}
	return s.sync()
}

func (s *stage) quietOf(i int, e *end) error {
	for len(e.sent) > 0 {
		s.serve(s.ends[1-i], e)
		if err := s.sync(); err != nil {
			return err
		}
	}
	return s.ask(i, e)
}

// ask asks after a last request that is not signaled. Behind a Read that is another one: a Write is
// not posted before the Read is known to be over.
func (s *stage) ask(i int, e *end) error {
	if e.used() == len(e.sent) {
		return nil
	}
	st := step{side: i, op: 'w', n: 1, how: howSignaled}
	if e.read > e.known {
		st.op, st.size = 'r', 1
	}
	return s.send(st)
}

// look has somebody look at what goes on, or not any more.
func (s *stage) look(how int) (err error) {
	if s.watch != nil {
		s.watch.Close()
		s.watch = nil
		return nil
	}
	s.seen = s.seen || how == 1 || how == 2
	c, ctx := s.server.client, s.t.Context()
	var conn *net.UnixConn
	switch how {
	case 0:
		conn, err = c.Latency(ctx, nil)
	case 1:
		conn, err = c.Capture(ctx, []string{"vrnic0"}, 64, false)
	case 2:
		qp := s.server.show("qp")[0]
		conn, err = c.Trace(ctx, fmt.Sprintf("%v,qp=%.0f", qp["dev"], qp["qpn"]))
	case 3:
		err = c.Change(ctx, shm.Change{Verb: shm.Set, Key: "fault",
			Value: "1\nvrnic0 write loc_prot_err after 100000000"})
		s.watch = noFault{s}
		return err
	default:
		return nil
	}
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // until it is closed
	s.watch = conn
	return nil
}

type noFault struct{ s *stage }

func (n noFault) Close() error {
	return n.s.server.client.Change(n.s.t.Context(), shm.Change{Verb: shm.Del, Key: "fault"})
}

// Of step.how, for a request.
const (
	howSignaled = 1 << iota
	howSolicited
	howInline
	howChained
	howFenced
)

// Flags of ibv_send_flags.
const (
	flagFence = 1 << iota
	flagSignaled
	flagSolicited
	flagInline
)

func (s *stage) send(st step) error {
	e := s.ends[st.side]
	full := func() bool {
		return e.used() >= e.depth[0] || e.read > e.known && (st.op == 'w' || st.op == 'i')
	}
	if full() {
		if err := s.sync(); err != nil {
			return err
		}
	}
	if full() {
		return nil // a Send waits for a receive
	}
	flags := 0
	signaled := e.all || st.how&howSignaled != 0
	if e.used() == e.depth[0]-1 && !signaled { // nothing else would say that there is room again
		signaled = true
	}
	if signaled {
		flags |= flagSignaled
	}
	if st.how&howSolicited != 0 {
		flags |= flagSolicited
	}
	if st.how&howFenced != 0 && s.copies() { // on a stream the answer that it waits for may wait
		flags |= flagFence
	}
	if s.roce && (st.op == 'w' || st.op == 'r') { // as packets none of no octets is counted
		st.size = max(st.size, 1)
	}
	receives := false
	switch st.op {
	case 's', 'i':
		receives = true
	case 'm':
		receives = true
		if !s.roce { // there it has octets, too
			st.size = 0
		}
	case 'r':
		e.read = e.ids + 1
	case 'f', 'c':
		st.size, st.n = 8, 1
	}
	at := st.at % (atWords - st.size + 1)
	if st.op == 'f' || st.op == 'c' {
		at = atWords + st.at/8*8%(areaLen-atWords)
	}
	off := min(e.ids%16*slotLen, areaLen-st.size)
	if st.op == 'r' || st.op == 'f' || st.op == 'c' {
		flags &^= flagSolicited
	} else if st.how&howInline != 0 && st.size <= e.inline {
		flags |= flagInline
	}
	e.tell("send %c %d %d %d %d %d 0 %d", st.op, e.ids, off, st.size, flags, at, st.n)
	e.ids++
	if e.chained++; st.how&howChained == 0 || e.chained == 60 {
		s.flush(e)
	}
	s.sentOne(e, request{signaled, st.how&howSolicited != 0 && st.op != 'w', receives})
	return nil
}

func (s *stage) sentOne(e *end, r request) {
	e.sent = append(e.sent, r)
	s.goOn()
}

func (s *stage) receive(e *end, size, bad int) {
	e.tell("recv %d %d %d", e.posted, size, bad)
	e.posted++
	if bad == 0 {
		e.free++
		s.goOn()
	}
}

// goOn is what must come of what has been posted.
func (s *stage) goOn() {
	for i, e := range s.ends {
		to := s.ends[1-i]
		for len(e.sent) > 0 {
			r := e.sent[0]
			if r.receives {
				if to.free == 0 {
					break
				}
				to.free--
				to.complete(1, r.solicited)
			}
			e.sent = e.sent[1:]
			if r.signaled {
				e.complete(0, false)
				e.over = e.ids - len(e.sent)
			}
		}
	}
}

// used is how much of the send queue may be taken.
func (e *end) used() int { return e.ids - e.known }

func (e *end) complete(queue int, solicited bool) {
	e.done[queue]++
	if e.one {
		queue = 0
	}
	if e.armed[queue] == 1 || e.armed[queue] == 2 && solicited {
		e.armed[queue] = 0
		e.events++
	}
}

// Kinds of requests and receives that are wrong: as in script.c.
const (
	badKey = 1 + iota
	badBounds
	badRights
	badRemoteKey
	badRemoteBounds
	badRemoteBelow
)

// end ends the connection in a way, and reports what both have seen.
func (s *stage) end(st step) error {
	if err := s.sync(); err != nil {
		return err
	}
	e, peer := s.ends[st.side], s.ends[1-st.side]
	how := endings[st.how]
	if !s.copies() && st.how > 1 && how != "error" {
		how = "disconnect" // on a stream a request is over before the peer refuses it
	}
	if s.roce && how == "misaligned" {
		how = "disconnect" // it is refused where it is posted
	}
	// What ends the connection comes behind what waits; but who ends it at once has that flushed. All
	// that is over must be known to be: a last request that is not signaled is asked after.
	for i, of := range s.ends {
		wait := s.quietOf
		if how == "error" && of == e {
			wait = s.ask
			s.cut = s.cut || len(e.sent) > 0
		}
		if err := wait(i, of); err != nil {
			return err
		}
	}
	if err := s.sync(); err != nil {
		return err
	}
	at := 0
	wrong := func(op byte, bad int) {
		size := max(st.size, 1)
		if op == 'f' || op == 'c' {
			size = 8
		}
		e.tell("send %c %d %d %d %d %d %d 1", op, e.ids, 0, size, flagSignaled, at, bad)
		e.tell("post")
	}
	op, sink := "wrfc"[st.n%4], "rfc"[st.n%3]
	room := e.used() < e.depth[0]
	switch {
	case how == "error":
		e.tell("error")
	case how == "disconnect" || !room: // or what was posted last has not been seen to be over
		e.tell("disconnect")
	case how == "key":
		wrong("sw"[st.size%2], badKey)
	case how == "bounds":
		wrong("sw"[st.size%2], badBounds)
	case how == "remote_key":
		wrong(op, badRemoteKey)
	case how == "remote_bounds":
		wrong(op, badRemoteBounds)
	case how == "remote_below":
		wrong(op, badRemoteBelow)
	case how == "remote_rights":
		access := accessAll &^ []int{accessWrite, accessRead, accessAtomic, accessAtomic}[st.n%4]
		if err := s.renew(1-st.side, areaTarget, access, st.at%3); err != nil {
			return err
		}
		wrong(op, 0)
	case how == "misaligned":
		at = atWords + 4
		wrong("fc"[st.n%2], 0)
	case how == "revoked":
		if _, err := peer.ask("revoke"); err != nil {
			return err
		}
		wrong(op, 0)
	case how == "sink_key":
		wrong(sink, badKey)
	case how == "sink_bounds":
		wrong(sink, badBounds)
	case how == "sink_rights":
		wrong(sink, badRights)
	case peer.free > 0: // what follows needs the next receive
		e.tell("disconnect")
	default:
		bad := map[string]int{"recv_key": badKey, "recv_bounds": badBounds,
			"recv_rights": badRights}[how]
		size := max(st.size, 2)
		if how == "too_long" {
			size = st.size - 1
		}
		s.receive(peer, size, bad)
		if _, err := peer.ask("want 0 0"); err != nil {
			return err
		}
		wrong('s', 0)
	}
	if s.roce && how != "disconnect" { // an error does not end what the connection manager has
		e.tell("hang_up")
	}
	return s.over()
}

func (s *stage) over() error {
	if _, err := s.askBoth(func(*end) string { return "over" }); err != nil {
		return err
	}
	if _, err := s.askBoth(func(e *end) string {
		for _, a := range e.armed {
			e.events += min(a, 1) // what is flushed is of both queues
		}
		return fmt.Sprintf("events %d", e.events)
	}); err != nil {
		return err
	}
	for _, what := range []string{"report", "close"} {
		saw, err := s.askBoth(func(*end) string { return what })
		if err != nil {
			return err
		}
		fmt.Fprintf(&s.saw, "%s\n%s\n", saw[0], saw[1])
	}
	if s.watch != nil {
		return s.look(0)
	}
	return nil
}
