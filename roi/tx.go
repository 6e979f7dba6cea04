package roi

import (
	"encoding/binary"
	"io"

	"github.com/vrnic/vrnic/iwarp"
)

// A post is an operation of this end.
type post struct {
	kind      Kind // Send, Data (a Write) or ReadRequest
	notifying bool
	client    uint32
	token     uint64
	n         uint32
	payload   iwarp.Payload
	stag      iwarp.STag // of the Write's place, or of the Read's source
	to        uint64
	sink      iwarp.STag // of a Read
	sinkTo    uint64
}

// An answer is a Read Response that is owed to the peer.
type answer struct {
	sink    iwarp.STag
	to      uint64
	n       uint32
	client  uint32
	payload iwarp.Payload
}

// A reading is a Read whose request is out.
type reading struct {
	token uint64
	sink  iwarp.STag
	to    uint64
	n     uint32
}

// A sender has what is to be sent. Segments are made by Fill, in their order, and stay in out until
// the transport has taken them; nothing of what is made is made again.
type sender struct {
	open    bool // something may be sent
	greet   bool // the Initiator's first Credit Return is due
	failure bool // the Failure is due
	yield   bool // an answer was last: an operation of this end is next
	mulpdu  int
	posts   ring[post]
	answers ring[answer]
	reads   ring[reading]
	mid     bool   // the first of posts, or of answers if yield, has begun
	off     uint32 // how much of it is out
	number  uint32 // of the next Send

	out   []byte
	read  int    // of out, given by Read since the last Commit
	made  uint64 // octets, in all
	taken uint64
	marks []mark // ends of operations in out
}

// A mark says that the operation with token ends where so many octets have been made.
type mark struct{ at, token uint64 }

// CanPost says whether one more operation can be posted.
func (e *Endpoint) CanPost() bool { return e.err == nil && !e.tx.posts.full() }

func (e *Endpoint) post(p post) error {
	switch {
	case e.err != nil:
		return ErrEnded
	case e.tx.posts.full():
		return ErrQueueFull
	}
	*e.tx.posts.push() = p
	return nil
}

// PostSend posts a Send of n octets, which waits for a credit. ErrTooLong, ErrQueueFull, ErrEnded.
func (e *Endpoint) PostSend(token uint64, p iwarp.Payload, n uint32) error {
	if n > MaxSend {
		return ErrTooLong
	}
	return e.post(post{kind: Send, token: token, payload: p, n: n})
}

// PostWrite posts a Write. ErrClient, ErrQueueFull, ErrEnded.
func (e *Endpoint) PostWrite(token uint64, client uint32, stag iwarp.STag, to uint64,
	p iwarp.Payload, n uint32) error {
	return e.write(post{kind: Data, token: token, client: client, stag: stag, to: to, payload: p,
		n: n})
}

// PostNotifyingWrite posts a Write that the peer's client is told of, which waits for a credit as a
// Send does.
func (e *Endpoint) PostNotifyingWrite(token uint64, client uint32, stag iwarp.STag, to uint64,
	p iwarp.Payload, n uint32) error {
	return e.write(post{kind: Data, notifying: true, token: token, client: client, stag: stag, to: to,
		payload: p, n: n})
}

func (e *Endpoint) write(p post) error {
	if p.client > MaxClient {
		return ErrClient
	}
	return e.post(p)
}

// PostRead posts a Read of n octets, which waits for a credit of its own kind. ErrQueueFull,
// ErrEnded.
func (e *Endpoint) PostRead(token uint64, sink iwarp.STag, sinkTo uint64, n uint32,
	source iwarp.STag, from uint64) error {
	return e.post(post{kind: ReadRequest, token: token, sink: sink, sinkTo: sinkTo, n: n, stag: source,
		to: from})
}

// Fill makes segments to be sent, as far as credits go; with Config.Records one at a time.
func (e *Endpoint) Fill() {
	t := &e.tx
	most := batch
	if e.cfg.Records {
		most = 1
	}
	for len(t.out) < most && e.next() {
	}
}

// next makes the next segment; false: there is none.
func (e *Endpoint) next() bool {
	t := &e.tx
	switch {
	case !t.open || e.closed:
		return false
	case t.failure:
		t.failure = false
		e.segment(&Message{Kind: Failure, Cause: e.err.(*iwarp.LocalError).Cause}, nil, 0, 0)
		return true
	case e.err != nil:
		return false
	case t.greet:
		t.greet = false
		e.segment(&Message{Kind: CreditReturn, Credits: e.promises.tell()}, nil, 0, 0)
		return true
	}
	posts, answers := e.mayPost(), t.answers.n > 0
	switch {
	case t.mid && t.yield, !t.mid && answers && !(posts && t.yield):
		e.nextAnswer()
	case t.mid, posts:
		e.nextPost()
	case e.promises.due():
		e.segment(&Message{Kind: CreditReturn, Credits: e.promises.tell()}, nil, 0, 0)
	default:
		return false
	}
	return true
}

// mayPost says that an operation waits and has the credit that it needs. One without holds back
// what was posted behind it: docs/decisions.md#W3.
func (e *Endpoint) mayPost() bool {
	t := &e.tx
	if t.posts.n == 0 {
		return false
	}
	switch p := t.posts.first(); {
	case p.kind == ReadRequest:
		return !e.reads.empty() && !t.reads.full()
	case p.kind == Send, p.notifying:
		return !e.sends.empty()
	}
	return true
}

// nextPost makes the next segment of the oldest operation.
func (e *Endpoint) nextPost() {
	t := &e.tx
	p := t.posts.first()
	if !t.mid {
		t.yield = false
		switch {
		case p.kind == ReadRequest:
			e.reads.take()
		case p.kind == Send, p.notifying:
			e.sends.take()
		}
	}
	m := Message{Kind: p.kind, STag: p.stag, Offset: p.to + uint64(t.off)}
	if p.kind == ReadRequest {
		m.Size, m.Sink, m.SinkOffset = p.n, p.sink, p.sinkTo
		*t.reads.push() = reading{p.token, p.sink, p.sinkTo, p.n}
		m.Credits = e.promises.tell()
		e.segment(&m, nil, 0, 0)
		e.ends(p.token)
		return
	}
	chunk := min(p.n-t.off, uint32(t.mulpdu-p.kind.Len()))
	m.Final = t.off+chunk == p.n
	m.Credits = e.promises.tell()
	if p.kind == Send {
		m.Number, m.SendOffset = t.number, t.off
	} else {
		m.Client, m.Notifying = p.client, p.notifying && m.Final
		m.Notify = m.Notifying || m.Credits > 0
	}
	if !e.segment(&m, p.payload, t.off, chunk) {
		return
	}
	t.mid, t.off = !m.Final, t.off+chunk
	if m.Final {
		if p.kind == Send {
			t.number++
		}
		e.ends(p.token)
	}
}

// ends notes that all of the oldest operation is made.
func (e *Endpoint) ends(token uint64) {
	t := &e.tx
	t.marks = append(t.marks, mark{t.made, token})
	t.posts.pop()
	t.mid, t.off = false, 0
}

// nextAnswer makes the next segment of the oldest answer.
func (e *Endpoint) nextAnswer() {
	t := &e.tx
	a := t.answers.first()
	t.yield = true
	chunk := min(a.n-t.off, uint32(t.mulpdu-dataLen))
	m := Message{
		Response: true, Client: a.client, STag: a.sink, Offset: a.to + uint64(t.off),
		Final: t.off+chunk == a.n, Credits: e.promises.tell(),
	}
	m.Notify = m.Final || m.Credits > 0
	if !e.segment(&m, a.payload, t.off, chunk) {
		return
	}
	t.mid, t.off = !m.Final, t.off+chunk
	if m.Final {
		t.off = 0
		if a := t.answers.pop(); a.payload != nil {
			e.host.EndReadSource(a.payload)
		}
	}
}

// segment makes a segment of m and n octets of p. false: p cannot be read, and the stream ends.
func (e *Endpoint) segment(m *Message, p iwarp.Payload, off, n uint32) bool {
	t := &e.tx
	start := len(t.out)
	if !e.cfg.Records {
		t.out = append(t.out, 0, 0)
	}
	t.out = m.Append(t.out)
	if n > 0 {
		at := len(t.out)
		t.out = grow(t.out, int(n))
		if err := p.CopyOut(t.out[at:], off); err != nil {
			t.out = t.out[:start]
			e.failed(err, iwarp.TermLocalCatastrophic)
			return false
		}
	}
	if !e.cfg.Records {
		t.out = seal(t.out, start, e.cfg.CRC)
	}
	t.made += uint64(len(t.out) - start)
	return true
}

// grow appends n octets.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, max(2*cap(b), len(b)+n)), b...)
	}
	return b[:len(b)+n]
}

// seal completes the FPDU that begins at start: RFC 5044, section 4.1.
func seal(b []byte, start int, crc bool) []byte {
	n := len(b) - start - 2
	binary.BigEndian.PutUint16(b[start:], uint16(n))
	for len(b)-start < iwarp.FPDULen(n)-4 {
		b = append(b, 0)
	}
	var c iwarp.CRC
	if crc {
		c = c.Add(b[start:])
	}
	b = append(b, 0, 0, 0, 0)
	if crc {
		c.Put(b[len(b)-4:])
	}
	return b
}

func (t *sender) Len() int { return len(t.out) - t.read }

// Len is how many octets Read will give until the next Commit.
func (e *Endpoint) Len() int { return e.tx.Len() }

// Read gives octets that Fill has made.
func (e *Endpoint) Read(p []byte) (int, error) {
	t := &e.tx
	if t.Len() == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.out[t.read:])
	t.read += n
	return n, nil
}

// Commit says that the transport owns the first n of the octets read since the last Commit. Call it
// after every WriteFrom, also with 0.
func (e *Endpoint) Commit(n int) {
	t := &e.tx
	n = min(max(n, 0), len(t.out))
	t.out = t.out[:copy(t.out, t.out[n:])]
	t.read = 0
	t.taken += uint64(n)
	done := 0
	for done < len(t.marks) && t.marks[done].at <= t.taken {
		e.host.Sent(t.marks[done].token)
		done++
	}
	t.marks = t.marks[:copy(t.marks, t.marks[done:])]
}
