package session

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/record"
)

var _ llp.Stream = (*Stream)(nil)

// A Stream is a session on a DDP stream as an llp.Stream: an iwarp.Endpoint runs on it as on TCP,
// but that segments keep their bounds.
type Stream struct {
	llp.Defaults
	as    *association
	s     *sctpddp.Session
	wake  atomic.Pointer[func()]
	lost  atomic.Pointer[sctpddp.LostError]
	waits bool // guarded by as.mu: it is in as.waiting

	prompt atomic.Pointer[func(more func() bool)]
	tell   func()      // run
	told   atomic.Bool // tell will be called

	abandoned bool // guarded by as.mu: its owner hangs in a program's memory, and the program is gone

	mu    sync.Mutex
	inbox []inbound // guarded by mu; as.mu is held before it, if at all

	// The rest is the owner's.
	reused bool      // the association was there before
	taken  []inbound // out of inbox
	at     int       // of taken: those before it are done with
	to     llp.Sink
	read   int   // octets given to to in this call
	ended  bool  // the peer's Terminate has come
	err    error // the session has failed
	credit int   // octets that may be taken although they cannot be delivered
}

// stallCredit is how much a session takes out of the association while a Send waits for a receive,
// so that other streams can go on. It is less than a session holds, sctpddp.Config.HoldSession.
const stallCredit = 512 << 10

// stepOctets is how much ReadInto gives at most before others get a turn.
const stepOctets = 1 << 20

// push gives the owner a message, of which notify tells it. as.mu is held.
func (st *Stream) push(in inbound) {
	st.mu.Lock()
	st.inbox = append(st.inbox, in)
	st.mu.Unlock()
}

func (st *Stream) notify() {
	if f := st.wake.Load(); f != nil {
		(*f)()
	}
}

// brought has the owner look at messages, by the goroutine that has brought them if it can: to wake
// another one costs as much as some messages do.
func (st *Stream) brought() {
	if st.prompt.Load() == nil {
		st.notify()
		return
	}
	if st.told.Swap(true) {
		return
	}
	if d := st.as.deferrer; d == nil || !d.Defer(st.tell) {
		st.told.Store(false)
		st.notify()
	}
}

// run is what brought defers.
func (st *Stream) run() {
	st.told.Store(false)
	if f := st.prompt.Load(); f != nil {
		(*f)(nil)
		return
	}
	st.notify()
}

// next returns the oldest message that waits.
func (st *Stream) next() (in inbound, ok bool) {
	if st.at == len(st.taken) {
		st.mu.Lock()
		st.taken, st.inbox = st.inbox, st.taken[:0]
		st.mu.Unlock()
		st.at = 0
		if len(st.taken) == 0 {
			return in, false
		}
	}
	in = st.taken[st.at]
	st.taken[st.at] = inbound{}
	st.at++
	return in, true
}

// input takes one message that waits; false: there is none.
func (st *Stream) input() (n int, ok bool) {
	in, ok := st.next()
	if !ok {
		return 0, false
	}
	n = len(in.m.Data)
	st.s.Input(in.m)
	st.as.a.Release(in.token)
	return n, true
}

// events looks at what has become of the session.
func (st *Stream) events() {
	if l := st.lost.Load(); l != nil {
		st.s.Lost(l.Kind, l.Err)
	}
	for {
		ev, ok := st.s.Event()
		if !ok {
			return
		}
		switch ev.Kind {
		case sctpddp.EventClosed:
			st.ended = true
		case sctpddp.EventFailed, sctpddp.EventLost, sctpddp.EventWithdrawn, sctpddp.EventRejected,
			sctpddp.EventRefused:
			if st.err == nil {
				st.err = ev.Err
			}
			if st.err == nil {
				st.err = syscall.ECONNRESET
			}
		case sctpddp.EventRequest, sctpddp.EventAccepted:
		}
	}
}

// await takes messages until done says so, the session has failed, or ctx ends. It is for the time
// before a QP has the stream.
func (st *Stream) await(ctx context.Context, done func() bool) error {
	wake := make(chan struct{}, 1)
	st.SetNotify(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer st.SetNotify(nil)
	for {
		for {
			if _, ok := st.input(); !ok {
				break
			}
		}
		st.step()
		st.events()
		switch {
		case st.err != nil:
			return st.err
		case done():
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// step sends control messages that wait.
func (st *Stream) step() {
	_ = st.s.Step() // an error is the association's, and comes as its end
	if st.s.Pending() {
		st.as.wait(st)
		_ = st.s.Step() // what has changed before it waited
	}
	st.as.a.Flush()
}

// Attach implements llp.Stream. What waits is taken at once.
func (st *Stream) Attach(to llp.Sink) error {
	st.to = to
	return st.s.Attach(sinkOf{st})
}

// sinkOf is the sctpddp.Sink of a Stream.
type sinkOf struct{ st *Stream }

func (k sinkOf) Ahead(seg []byte) int { return k.st.to.Ahead(seg) }

func (k sinkOf) Segment(seg []byte, size int) error {
	err := k.st.to.Segment(seg, size)
	if err == nil {
		k.st.read += size
	}
	return err
}

func (k sinkOf) Fail(c iwarp.TermCode, err error) { k.st.to.Fail(c, err) }

// ReadInto implements iwarp.Stream. w is the Endpoint that was attached, or it counts what comes
// though nothing should, and is for nobody.
func (st *Stream) ReadInto(w io.Writer) (int, error) {
	st.read, st.credit = 0, stallCredit
	if st.s.Blocked() {
		st.s.Resume()
	}
	_, wanted := w.(llp.Sink)
	if !wanted {
		defer func(to llp.Sink) { st.to = to }(st.to)
		st.to = nowhere{}
	}
	for took := 0; st.read < stepOctets && !st.s.Blocked(); {
		n, ok := st.input()
		if !ok {
			break
		}
		// Messages ahead of order are not read, but take their time, too.
		if took += n; took >= 2*stepOctets && st.read == 0 {
			st.notify()
			break
		}
	}
	st.step()
	st.events()
	if !wanted && st.read > 0 {
		return w.Write([]byte{0}) // it only wants to know that there was something
	}
	switch {
	case st.read > 0:
		return st.read, nil
	case st.err != nil:
		return 0, st.err
	case st.ended:
		return 0, io.EOF
	}
	return 0, nil
}

// Peek implements llp.Stream: it takes messages although a Send waits for a receive, as far as the
// credit goes. The Sink is shown those by Ahead.
func (st *Stream) Peek(llp.Watcher) error {
	for st.credit > 0 {
		n, ok := st.input()
		if !ok {
			break
		}
		st.credit -= n
	}
	st.step()
	st.events()
	if st.err == nil && (st.ended || st.s.Ending()) {
		return io.EOF
	}
	return st.err
}

// WriteFrom implements iwarp.Stream: it takes all of src, which is one segment, or nothing.
func (st *Stream) WriteFrom(src iwarp.Source) (int, error) {
	n, err := st.s.WriteFrom(src)
	if n == 0 && err == nil {
		st.as.wait(st)
		n, err = st.s.WriteFrom(src) // what has changed before it waited
	}
	return n, err
}

// SetPrompt implements llp.Stream.
func (st *Stream) SetPrompt(f func(more func() bool)) {
	if f == nil {
		st.prompt.Store(nil)
		return
	}
	st.prompt.Store(&f)
}

// SetNotify implements iwarp.Stream.
func (st *Stream) SetNotify(f func()) {
	if f == nil {
		st.wake.Store(nil)
		return
	}
	st.wake.Store(&f)
}

// EMSS implements iwarp.Stream: it is the longest segment.
func (st *Stream) EMSS() int { return st.s.MULPDU() }

// CloseWrite implements iwarp.Stream.
func (st *Stream) CloseWrite() error {
	err := st.s.Close()
	st.step()
	return err
}

// nowhere is who has the segments of a session that nobody wants any more.
type nowhere struct{}

func (nowhere) Ahead([]byte) int           { return 0 }
func (nowhere) Segment([]byte, int) error  { return nil }
func (nowhere) Fail(iwarp.TermCode, error) {}

// Close implements iwarp.Stream.
func (st *Stream) Close() error {
	st.end(st.s.Close)
	return nil
}

// Abort implements iwarp.Stream. What SCTP has and has not sent yet is not sent any more, so that
// it is in nobody's way. Like Close it does not wait, and the Mux gives the stream up if the peer
// does not end the session in its turn.
func (st *Stream) Abort() { st.end(st.s.Abort) }

// end gives the stream back; how says how its session ends.
func (st *Stream) end(how func() error) {
	st.to = nowhere{}
	st.SetNotify(nil)
	st.SetPrompt(nil)
	_ = how() // an error is that of the association, and comes as its end
	st.as.release(st)
}

// rest is what was not taken. as.mu is held.
func (st *Stream) rest() []inbound {
	st.mu.Lock()
	defer st.mu.Unlock()
	left := append(st.taken[st.at:], st.inbox...)
	st.taken, st.at, st.inbox = nil, 0, nil
	return left
}

// LocalAddr implements iwarp.Stream.
func (st *Stream) LocalAddr() netip.AddrPort { return st.as.a.LocalAddr() }

// RemoteAddr implements iwarp.Stream.
func (st *Stream) RemoteAddr() netip.AddrPort { return st.as.a.RemoteAddr() }

// Properties implements llp.Stream.
func (st *Stream) Properties() llp.Properties {
	return llp.Properties{Transport: llp.SCTP, Number: int(st.s.Stream()), Records: true, Ahead: true}
}

// Flush implements llp.Stream: the association sends what WriteFrom and others have left with it.
func (st *Stream) Flush() { st.as.a.Flush() }

// Params is what the two ends have agreed on, once the session is open.
func (st *Stream) Params() iwarp.Params { return st.s.Params() }

// Belongs says of which queue pair st is.
func (st *Stream) Belongs(qpn uint32) {
	if j, ok := st.s.Journal().(*record.DDP); ok {
		j.Belongs(qpn)
	}
}

// Use is what the association is for.
func (st *Stream) Use() Use { return st.as.use }

// Request is what the peer asks for; false: it has withdrawn that.
func (st *Stream) Request() (sctpddp.Request, bool) { return st.s.Request() }

// Refuse answers a request without a program's word, and is the end of st.
func (st *Stream) Refuse() {
	_ = st.s.Refuse() // an error: it has gone already
	_ = st.Close()
}

// Accept answers the request. After an error st is over.
func (st *Stream) Accept(start iwarp.StartConfig, privateData []byte) (p iwarp.Params, err error) {
	// What has come meanwhile may have withdrawn the request.
	for {
		if _, ok := st.input(); !ok {
			break
		}
	}
	st.events()
	if err = st.err; err == nil {
		p, err = st.s.Accept(start, privateData)
	}
	if err != nil {
		st.Abort()
	}
	return p, err
}

// Reject refuses the request for a program, and is the end of st.
func (st *Stream) Reject(privateData []byte) error {
	if err := st.s.Reject(privateData); err != nil {
		st.Abort()
		return err
	}
	return st.Close()
}

// Abandon implements llp.Stream. When nobody else uses the association it is aborted. Otherwise the
// others go on, and the peer sees the end of st when its owner is back.
func (st *Stream) Abandon() { st.as.abandon(st) }
