package llp

import (
	"io"
	"net/netip"
	"sync/atomic"
	"time"
)

// An End is what a link of octets has of its Stream, which it owns. The goroutine that runs the
// link uses it.
type End struct {
	S        Stream
	Props    Properties // of S
	Endpoint interface {
		Close() // it ends with S
	}
	Over  bool // Close or Abort was called
	Stage Stage

	changed atomic.Bool // set by S: more can be read or written, or it has ended
}

// Init makes e the End of s.
func (e *End) Init(s Stream) { e.S, e.Props = s, s.Properties() }

// A Runner is the queue pair of a link.
type Runner interface {
	Wake()
	Run(more func() bool)
	// Carried is told that what is within a device goes over TCP from now on. wire: as FPDUs with CRCs
	// and without markers, whatever the ends have agreed on.
	Carried(local, remote netip.AddrPort, emss int, wire bool)
}

// Watch has r run the link when something changes.
func (e *End) Watch(r Runner) {
	e.S.SetNotify(func() {
		e.changed.Store(true)
		r.Wake()
	})
	e.S.SetPrompt(func(more func() bool) {
		e.changed.Store(true)
		r.Run(more)
	})
	if m, ok := e.S.(Mover); ok {
		m.OnMoved(func(local, remote netip.AddrPort, emss int) { r.Carried(local, remote, emss, true) })
	}
	e.changed.Store(true) // what came before is found by the first step
}

// Changed reports whether S has changed since TakeChange was called, which says that too.
func (e *End) Changed() bool    { return e.changed.Load() }
func (e *End) TakeChange() bool { return e.changed.Swap(false) }

// Close ends the stream behind what was written.
func (e *End) Close() {
	e.Over = true
	e.S.SetNotify(nil)
	_ = e.S.Close() // it has ended then, too
	e.Endpoint.Close()
}

// CloseWithin is Close, and after d Abort. What others wait behind is bounded by those who share
// it.
func (e *End) CloseWithin(d time.Duration) {
	e.Close()
	if e.S.Properties().Transport == TCP { // a pipe may be by now
		time.AfterFunc(d, e.S.Abort)
	}
}

// Abort ends the stream at once.
func (e *End) Abort() {
	e.Over = true
	e.S.SetNotify(nil)
	e.S.Abort()
	e.Endpoint.Close()
}

// stageSize is how many octets are taken at once out of a transport that lends them with a lock
// held, for memory that can block.
const stageSize = 64 << 10

// A Stage takes octets under the transport's lock, where memory that can block may not be touched.
type Stage struct {
	b         []byte
	off, fill int
}

// Write implements io.Writer.
func (g *Stage) Write(p []byte) (int, error) {
	n := copy(g.b[g.fill:], p)
	g.fill += n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Waiting is what has been taken out of the transport, and not by who it is for.
func (g *Stage) Waiting() []byte { return g.b[g.off:g.fill] }

// ReadStaged gives to what waits in the Stage, for which it fills that if it is empty: no lock of
// the transport's is held meanwhile. n is above 0 if there was something.
func (e *End) ReadStaged(to io.Writer) (n int, err error) {
	g := &e.Stage
	if g.b == nil {
		g.b = make([]byte, stageSize)
	}
	if g.off == g.fill {
		g.off, g.fill = 0, 0
		if n, err = e.S.ReadInto(g); n == 0 {
			return 0, err
		}
	}
	n, _ = to.Write(g.Waiting()) // who does not take all of it comes again
	g.off += n
	return max(n, 1), nil // it has to be looked at again, also if all of it waits for a receive
}
