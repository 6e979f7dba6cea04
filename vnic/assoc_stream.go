package vnic

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
)

// A sessionStream is a session on a DDP stream as an iwarp.Stream: a wire runs on it as on TCP, but
// that segments keep their bounds (iwarp.Config.Records) and that WriteFrom takes one at a time.
type sessionStream struct {
	as    *association
	s     *sctpddp.Session
	wake  atomic.Pointer[func()]
	lost  atomic.Pointer[sctpddp.LostError]
	waits bool // guarded by as.mu: it is in as.waiting

	abandoned bool // guarded by as.mu: its owner hangs in a program's memory, and the program is gone

	mu    sync.Mutex
	inbox []inbound // guarded by mu; as.mu is held before it, if at all

	// The rest is the owner's.
	reused bool      // the association was there before
	taken  []inbound // out of inbox
	at     int       // of taken: those before it are done with
	to     recordSink
	read   int   // octets given to to in this call
	ended  bool  // the peer's Terminate has come
	err    error // the session has failed
	credit int   // octets that may be taken although they cannot be delivered
}

// A recordSink takes segments; iwarp.Endpoint is one.
type recordSink interface {
	Ahead(seg []byte) (keep int)
	Segment(seg []byte, size int) error
	Fail(c iwarp.TermCode, err error)
}

// aheadOf is the Endpoint of a wire. What it finds ahead of order it finds again in order, so that it is no
// fault before.
type aheadOf struct {
	*iwarp.Endpoint
	w *wire
}

func (a aheadOf) Ahead(seg []byte) (keep int) {
	was := a.w.refused
	keep = a.Endpoint.Ahead(seg)
	a.w.refused = was
	return keep
}

// stallCredit is how much a session takes out of the association while a Send waits for a receive, so
// that other streams can go on. It is less than a session holds, sctpddp.Config.HoldSession.
const stallCredit = 512 << 10

// push gives the owner a message, of which notify tells it. as.mu is held.
func (st *sessionStream) push(in inbound) {
	st.mu.Lock()
	st.inbox = append(st.inbox, in)
	st.mu.Unlock()
}

func (st *sessionStream) notify() {
	if f := st.wake.Load(); f != nil {
		(*f)()
	}
}

// next returns the oldest message that waits.
func (st *sessionStream) next() (in inbound, ok bool) {
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
func (st *sessionStream) input() (n int, ok bool) {
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
func (st *sessionStream) events() {
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
		case sctpddp.EventFailed, sctpddp.EventLost, sctpddp.EventWithdrawn, sctpddp.EventRejected, sctpddp.EventRefused:
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

// await takes messages until done says so, the session has failed, or ctx ends. It is for the time before
// a QP has the stream.
func (st *sessionStream) await(ctx context.Context, done func() bool) error {
	wake := make(chan struct{}, 1)
	st.SetNotify(func() { signal(wake) })
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
func (st *sessionStream) step() {
	_ = st.s.Step() // an error is the association's, and comes as its end
	if st.s.Pending() {
		st.as.wait(st)
		_ = st.s.Step() // what has changed before it waited
	}
	st.as.a.Flush()
}

// attach has segments given to to. What waits is taken at once.
func (st *sessionStream) attach(to recordSink) error {
	st.to = to
	return st.s.Attach(sinkOf{st})
}

// sinkOf is the sctpddp.Sink of a sessionStream.
type sinkOf struct{ st *sessionStream }

func (k sinkOf) Ahead(seg []byte) int { return k.st.to.Ahead(seg) }

func (k sinkOf) Segment(seg []byte, size int) error {
	err := k.st.to.Segment(seg, size)
	if err == nil {
		k.st.read += size
	}
	return err
}

func (k sinkOf) Fail(c iwarp.TermCode, err error) { k.st.to.Fail(c, err) }

// ReadInto implements iwarp.Stream. w is the Endpoint that was attached, or it counts what comes though
// nothing should, and is for nobody.
func (st *sessionStream) ReadInto(w io.Writer) (int, error) {
	st.read, st.credit = 0, stallCredit
	if st.s.Blocked() {
		st.s.Resume()
	}
	_, wanted := w.(recordSink)
	if !wanted {
		defer func(to recordSink) { st.to = to }(st.to)
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

// absorb takes messages although a Send waits for a receive, as far as the credit goes.
func (st *sessionStream) absorb() {
	for st.credit > 0 {
		n, ok := st.input()
		if !ok {
			break
		}
		st.credit -= n
	}
	st.step()
	st.events()
}

// WriteFrom implements iwarp.Stream: it takes all of src, which is one segment, or nothing.
func (st *sessionStream) WriteFrom(src iwarp.Source) (int, error) {
	n, err := st.s.WriteFrom(src)
	if n == 0 && err == nil {
		st.as.wait(st)
		n, err = st.s.WriteFrom(src) // what has changed before it waited
	}
	return n, err
}

// SetNotify implements iwarp.Stream.
func (st *sessionStream) SetNotify(f func()) {
	if f == nil {
		st.wake.Store(nil)
		return
	}
	st.wake.Store(&f)
}

// EMSS implements iwarp.Stream: it is the longest segment.
func (st *sessionStream) EMSS() int { return st.s.MULPDU() }

// CloseWrite implements iwarp.Stream.
func (st *sessionStream) CloseWrite() error {
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
func (st *sessionStream) Close() error {
	st.to = nowhere{}
	st.SetNotify(nil)
	_ = st.s.Close()
	st.as.release(st)
	return nil
}

// Abort implements iwarp.Stream. It is Close: neither waits, what SCTP has is its own to send, and the
// Mux gives the stream up if the peer does not end the session in its turn.
func (st *sessionStream) Abort() { _ = st.Close() }

// rest is what was not taken. as.mu is held.
func (st *sessionStream) rest() []inbound {
	st.mu.Lock()
	defer st.mu.Unlock()
	left := append(st.taken[st.at:], st.inbox...)
	st.taken, st.at, st.inbox = nil, 0, nil
	return left
}

// LocalAddr implements iwarp.Stream.
func (st *sessionStream) LocalAddr() netip.AddrPort { return st.as.a.LocalAddr() }

// RemoteAddr implements iwarp.Stream.
func (st *sessionStream) RemoteAddr() netip.AddrPort { return st.as.a.RemoteAddr() }
