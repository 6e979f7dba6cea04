// Package llp is what a link runs on: a lower layer protocol (RFC 5041, section 1.3) with all that
// a link can make use of. TCP, SCTP and the pipe between two QPs of one device differ in what they
// do of it.
package llp

import (
	"io"

	"github.com/vrnic/vrnic/iwarp"
)

// A Transport says what carries a Stream.
type Transport uint8

const (
	TCP Transport = iota
	SCTP
	Memory
)

func (t Transport) String() string {
	return [...]string{TCP: "tcp", SCTP: "sctp", Memory: "loop"}[t]
}

// Properties of a Stream, of which only a Mover's Transport changes. The zero value is TCP's.
type Properties struct {
	Transport Transport
	Number    int // of an SCTP association's stream
	// segments keep their bounds, and WriteFrom takes one at a time: iwarp.Config.Records
	Records bool
	// Ahead: segments may come ahead of order, and are placed then; in their turn they come without
	// octets.
	Ahead bool
}

// A Stream is a connection with what a link can make use of. A kind of stream that has nothing of
// it embeds Defaults. The goroutine that runs the link calls its methods, but for Abandon.
type Stream interface {
	iwarp.Stream
	Properties() Properties
	// Attach has segments given to to, by the calls of ReadInto. By default ReadInto gives them to its
	// Writer.
	Attach(to Sink) error
	// Peek is for while a Send waits for a receive. It shows to what is there and was not taken, from
	// the first octet on, and takes none of it; a Stream that has shown it to its Sink need not. What
	// others wait behind it takes in. Like ReadInto it says how the connection has ended, but at once:
	// io.EOF is the peer's end, be it behind octets that wait, and after another error they are of no
	// use any more. By default it shows nothing, and the end waits, too.
	Peek(to Watcher) error
	// Flush sends what WriteFrom has taken. By default that is on its way.
	Flush()
	// Abandon gives up a Stream whose link does not come back. Any goroutine may call it.
	Abandon()
	// SetPrompt has f called by the goroutine that has brought octets, which holds no lock then. f
	// must not wait, but for what the program answers, if more is not nil: more reports whether that
	// goroutine has more to bring, and f returns soon then. By default nobody calls it; SetNotify's
	// function is called in any case where f is not.
	SetPrompt(f func(more func() bool))
	// SetPrefetch has f called by who asks the caches for what the Stream needs; false, which is the
	// default: nobody does, and Prefetch does nothing.
	SetPrefetch(f func()) (can bool)
	// Prefetch asks the caches for what the Stream needs, at both ends if it has both. Any goroutine
	// may call it.
	Prefetch()
}

// A Sink takes segments, as an iwarp.Endpoint does.
type Sink interface {
	Ahead(seg []byte) (keep int)
	Segment(seg []byte, size int) error
	Fail(c iwarp.TermCode, err error)
}

// A Watcher is shown what waits: octets by Write, segments by Notice.
type Watcher interface {
	io.Writer
	Notice(seg []byte)
}

// Defaults are those of a Stream.
type Defaults struct{}

func (Defaults) Properties() Properties           { return Properties{} }
func (Defaults) Attach(Sink) error                { return nil }
func (Defaults) Peek(Watcher) error               { return nil }
func (Defaults) Flush()                           {}
func (Defaults) SetPrompt(func(more func() bool)) {}
func (Defaults) SetPrefetch(func()) (can bool)    { return false }
func (Defaults) Prefetch()                        {}

// Of is a Network's stream as a Stream. Here alone it is asked what it can do.
func Of(s iwarp.Stream) Stream {
	p := &plain{Stream: s}
	p.prompter, _ = s.(prompter)
	p.prefetcher, _ = s.(prefetcher)
	p.peeker, _ = s.(peeker)
	return p
}

type peeker interface{ Peek(w io.Writer) error }

type prompter interface {
	SetPrompt(f func(more func() bool))
}

type prefetcher interface {
	SetPrefetch(f func())
	Prefetch()
}

// plain is a stream of octets.
type plain struct {
	iwarp.Stream
	Defaults
	prompter   prompter   // nil: by default
	prefetcher prefetcher // nil: by default
	peeker     peeker     // nil: by default
}

func (p *plain) Peek(to Watcher) error {
	if p.peeker == nil {
		return nil
	}
	return p.peeker.Peek(to)
}

func (p *plain) Abandon() { p.Abort() }

func (p *plain) SetPrompt(f func(more func() bool)) {
	if p.prompter != nil {
		p.prompter.SetPrompt(f)
	}
}

func (p *plain) SetPrefetch(f func()) (can bool) {
	if p.prefetcher == nil {
		return false
	}
	p.prefetcher.SetPrefetch(f)
	return true
}

func (p *plain) Prefetch() {
	if p.prefetcher != nil {
		p.prefetcher.Prefetch()
	}
}
