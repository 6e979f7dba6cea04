package roi

import (
	"errors"

	"github.com/vrnic/vrnic/iwarp"
)

// A Host is the RNIC above an Endpoint, with the rules of iwarp.Host: its methods are called from
// inside the Endpoint's, a slice is good for the call only, and an error that is a
// *iwarp.LocalError goes to the peer as the cause for which the stream ends.
type Host interface {
	// PlaceWrite places a message of a peer's Write; last ends it. chunk may be empty: then
	// nothing is checked.
	PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error
	// EndWrite delivers a notifying Write of n octets, with the client's part of its
	// identifier, into the receive that BeginReceive has given.
	EndWrite(client uint32, n uint32) error

	// BeginReceive takes the next receive, for a Send or a notifying Write, and says how long
	// it is. false: none is posted.
	BeginReceive() (size uint32, ok bool)
	PlaceReceive(off uint32, chunk []byte) error
	EndReceive(n uint32) error

	// ReadSource checks what a peer's Read asks for and returns its content, with the client's
	// part of the identifier for the answer (docs/decisions.md#W6). n may be 0: then nothing is
	// checked. EndReadSource gives it back.
	ReadSource(stag iwarp.STag, to uint64, n uint32) (p iwarp.Payload, client uint32, err error)
	EndReadSource(p iwarp.Payload)
	// PlaceRead places octets of the answer to the Read that was posted with token, EndRead
	// delivers it with the client's part of its identifier.
	PlaceRead(token uint64, off uint32, chunk []byte) error
	EndRead(token uint64, client uint32) error

	// Sent says that the transport owns every octet of the Send, Write or Read Request that was
	// posted with token.
	Sent(token uint64)
}

// A Config is what an Endpoint has to know.
type Config struct {
	Own, Peer Setup
	Carrier   Carrier
	// Initiator has this end send first: a Credit Return, which says that it is ready. The
	// other end is silent until something has come: docs/decisions.md#W8.
	Initiator bool
	// Records says that the transport keeps the bounds of segments, which Segment takes and
	// Read gives one at a time. Otherwise they are FPDUs, with CRCs or without.
	Records bool
	CRC     bool
	// MULPDU is the length of the longest segment that is sent; 0: 1024. SetMULPDU changes it.
	MULPDU int
	// SendQueue is how many operations may be posted and not sent, Reads how many Reads of this
	// end may be unanswered, and Answers, without flow control of Reads, how many of the
	// peer's; 0: 64, of Answers below 0: none.
	SendQueue, Reads, Answers int
}

const (
	defaultMULPDU = 1024
	defaultQueue  = 64
	// batch is how many octets Fill makes before it is asked again.
	batch = 64 << 10
)

// Errors of posting.
var (
	ErrQueueFull = errors.New("roi: send queue is full")
	ErrTooLong   = errors.New("roi: a Send has at most 2^31-1 octets")
	ErrClient    = errors.New("roi: the client's part of a Message Identifier has 20 bits")
	ErrEnded     = errors.New("roi: the stream has ended")
)

// An Endpoint is one end of a stream. It has one owner at a time. A Host must not call back, but to
// post and to Grant.
type Endpoint struct {
	cfg    Config
	host   Host
	err    error // the first: a *iwarp.LocalError, a *iwarp.PeerError or ErrEnded
	closed bool
	left   bool // nothing more is sent

	sends    pool // what this end may begin
	reads    pool
	promises promises // what the peer may

	tx sender
	rx receiver
}

// NewEndpoint begins a stream on which own and peer have been exchanged. ErrSetup.
func NewEndpoint(h Host, cfg Config) (*Endpoint, error) {
	if err := cfg.Own.Agree(&cfg.Peer); err != nil {
		return nil, err
	}
	if err := cfg.Carrier.Check(&cfg.Own); err != nil {
		return nil, err
	}
	if cfg.SendQueue <= 0 {
		cfg.SendQueue = defaultQueue
	}
	if cfg.Reads <= 0 {
		cfg.Reads = defaultQueue
	}
	if cfg.Answers == 0 {
		cfg.Answers = defaultQueue
	}
	cfg.Answers = max(cfg.Answers, 0)
	if cfg.Own.Reads {
		cfg.Answers = int(cfg.Own.ReadCredits)
	}
	e := &Endpoint{cfg: cfg, host: h}
	e.sends = pool{cfg.Own.Sends, int(cfg.Peer.SendCredits)}
	e.reads = pool{cfg.Own.Reads, int(cfg.Peer.ReadCredits)}
	e.promises = promises{on: cfg.Own.Sends, made: int(cfg.Own.SendCredits)}
	e.tx.posts.init(cfg.SendQueue)
	e.tx.reads.init(cfg.Reads)
	e.tx.answers.init(cfg.Answers)
	e.tx.open, e.tx.greet = cfg.Initiator, cfg.Initiator
	if cfg.MULPDU == 0 {
		cfg.MULPDU = defaultMULPDU
	}
	e.SetMULPDU(cfg.MULPDU)
	return e, nil
}

// SetMULPDU says how long a segment may be.
func (e *Endpoint) SetMULPDU(n int) {
	most := iwarp.MaxMULPDU
	if e.cfg.Records {
		most = iwarp.MaxRecord
	}
	e.tx.mulpdu = min(max(n, iwarp.MinMULPDU), most)
}

// Grant gives the peer n credits for Sends and notifying Writes: so many receives more are there
// for it. They go out with what is sent, or by themselves when the peer may want for them. What the
// peer could not count, beyond 65535, is not granted: Promised says.
func (e *Endpoint) Grant(n int) {
	if e.promises.on {
		e.promises.owed += min(n, maxPool-e.Promised())
	}
}

// Promised is how many credits the peer has, or will have, and has not used.
func (e *Endpoint) Promised() int { return e.promises.made + e.promises.owed }

// Err is what has ended the stream: a *iwarp.LocalError for a fault found here, a *iwarp.PeerError
// for a Failure of the peer; nil while it is well.
func (e *Endpoint) Err() error { return e.err }

// Fail ends the stream for a fault of the owner's, and tells the peer. Only the first error counts.
func (e *Endpoint) Fail(c iwarp.TermCode, err error) {
	e.fail(&iwarp.LocalError{Cause: c, Err: err})
}

func (e *Endpoint) fail(err *iwarp.LocalError) {
	if e.err == nil {
		e.err = err
		e.tx.failure = true
	}
}

// failed is fail for what a Host has returned.
func (e *Endpoint) failed(err error, otherwise iwarp.TermCode) {
	var le *iwarp.LocalError
	if !errors.As(err, &le) {
		le = &iwarp.LocalError{Cause: otherwise, Err: err}
	}
	e.fail(le)
}

// Leave says that this end sends nothing more. What the peer may still send is a Credit Return,
// which can have crossed the end of the stream.
func (e *Endpoint) Leave() { e.left = true }

// Idle says that nothing is outstanding either way.
func (e *Endpoint) Idle() bool {
	t := &e.tx
	return t.Len() == 0 && !t.greet && t.posts.n == 0 && t.answers.n == 0 && t.reads.n == 0 &&
		!e.InMessage()
}

// InMessage says that an operation of the peer has come in part: an end of the stream would cut it.
func (e *Endpoint) InMessage() bool {
	r := &e.rx
	return r.n > 0 || r.openSend || r.openWrite || r.readGot > 0
}

// Close gives back what answers hold. Nothing is sent or taken any more.
func (e *Endpoint) Close() {
	if e.closed {
		return
	}
	e.closed = true
	if e.err == nil {
		e.err = ErrEnded
	}
	for t := &e.tx; t.answers.n > 0; {
		if a := t.answers.pop(); a.payload != nil {
			e.host.EndReadSource(a.payload)
		}
	}
}

// A ring is a queue of bounded length.
type ring[T any] struct {
	all     []T
	head, n int
	most    int
}

func (r *ring[T]) init(most int) { r.most = most }
func (r *ring[T]) full() bool    { return r.n == r.most }
func (r *ring[T]) first() *T     { return &r.all[r.head] }

// push makes room at the end. Most streams never have as much under way as they may.
func (r *ring[T]) push() *T {
	if r.n == len(r.all) {
		wider := make([]T, min(max(2*r.n, 8), r.most))
		for i := range r.n {
			wider[i] = r.all[(r.head+i)%r.n]
		}
		r.all, r.head = wider, 0
	}
	r.n++
	return &r.all[(r.head+r.n-1)%len(r.all)]
}

func (r *ring[T]) pop() (v T) {
	var zero T
	v, r.all[r.head] = r.all[r.head], zero
	r.head = (r.head + 1) % len(r.all)
	r.n--
	return v
}
