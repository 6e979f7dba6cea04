package record

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A sink is where records go.
type sink interface {
	// put takes the content of a record, or has no room; must: it is short, and has to be there.
	put(content []byte, must bool) bool
}

// A Recorder makes a recording of one or several devices. Its methods may be called by any
// goroutine. It waits for nobody: what finds no room ends the recording of what it is about.
type Recorder struct {
	to    sink
	began time.Time
	now   func() time.Duration // since it began
	ended atomic.Bool

	mu   sync.Mutex
	next uint64 // +checklocks:mu
}

// MaxWaiting is how many octets of a recording wait to be written at most.
const MaxWaiting = 32 << 20

// New begins a recording, which Write writes. Of m it says itself when that was.
func New(m Meta) *Recorder {
	m.Began = time.Now()
	r := &Recorder{to: newQueue(), began: m.Began}
	r.now = func() time.Duration { return time.Since(m.Began) }
	r.mustPut(kindBegin, m)
	return r
}

// mustPut puts a record that is JSON.
func (r *Recorder) mustPut(kind byte, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("record: %v", err)) // it has no such values
	}
	r.to.put(append([]byte{kind}, b...), true)
}

// open begins with s.
func (r *Recorder) open(s Subject) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next >= maxSubjects { // no reader takes more
		r.end("it is about as much as a recording may be about")
	}
	s.ID, s.At = r.next, r.now()
	if !r.ended.Load() {
		r.mustPut(kindOpen, &s)
		r.next++
	}
	return s.ID
}

// offer is open for what peers begin as often as they like: it takes none of the room that other
// subjects need, nor ends the recording. False: of this one there is nothing.
func (r *Recorder) offer(s Subject) (id uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ID, s.At = r.next, r.now()
	if r.next >= maxSubjects/2 || !r.to.put(append([]byte{kindOpen}, asText(&s)...), false) {
		return 0, false
	}
	r.next++
	return s.ID, true
}

// lost says that nothing more comes of a subject.
func (r *Recorder) lost(id uint64) {
	if !r.ended.Load() {
		r.to.put(binary.AppendUvarint([]byte{kindLost}, id), true)
	}
}

// End ends the recording, and says why. Write returns when it has written what there is.
func (r *Recorder) End(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(why)
}

// +checklocks:r.mu
func (r *Recorder) end(why string) {
	if r.ended.Swap(true) {
		return
	}
	r.to.put(append([]byte{kindEnd}, why...), true)
	r.to.(*queue).close()
}

// Write writes the recording to w until it ends. An error is w's, and ends it.
func (r *Recorder) Write(w io.Writer) error {
	q := r.to.(*queue)
	err := q.writeTo(w)
	r.ended.Store(true)
	q.close()
	return err
}

// A Tape is what one connection is recorded by. It is its engine's owner's.
type Tape struct {
	r     *Recorder
	about Subject // until it is opened
	id    uint64
	c     builder
	inner int  // calls under way
	dead  bool // there was no room for what came before
}

// Tape is for a connection of queue pair qpn of dev.
func (r *Recorder) Tape(dev string, qpn uint32) *Tape {
	return &Tape{r: r, about: Subject{Kind: Connection, Device: dev, QPN: qpn}}
}

// Between says of which transport the connection is, and of whom.
func (t *Tape) Between(transport, local, remote string) {
	t.about.Transport, t.about.Local, t.about.Remote = transport, local, remote
}

// off reports that nothing more is recorded. Then the connection, which may stay for long, keeps no
// memory for that.
func (t *Tape) off() bool {
	if !t.dead && !t.r.ended.Load() {
		return false
	}
	if t.c.b != nil && t.inner == 0 {
		t.c = builder{}
	}
	return true
}

// offer opens it for what peers begin; false: there is no room.
func (t *Tape) offer() bool {
	var ok bool
	t.id, ok = t.r.offer(t.about)
	t.dead = !ok
	return ok
}

// belongs says of which queue pair the connection is, which was not known when it began.
func (t *Tape) belongs(qpn uint32) {
	if t.off() {
		return
	}
	t.c.begin(t.id, t.r.now())
	t.c.step(OpBelongs, nil, "", uint64(qpn))
	t.put()
}

// put puts a record that is whole; nothing comes behind one for which there is no room.
func (t *Tape) put() {
	if t.c.over || !t.r.to.put(t.c.b, false) {
		t.dead = true
		t.r.lost(t.id)
	}
}

// call begins a call of the engine.
func (t *Tape) call(op Op, octets []byte, text string, args ...uint64) {
	if t.inner++; t.inner > 1 {
		t.c.over = true // which could not be played again
		return
	}
	t.c.begin(t.id, t.r.now())
	t.c.step(op, octets, text, args...)
}

// step adds what the call has led to.
func (t *Tape) step(op Op, octets []byte, text string, args ...uint64) {
	if t.inner == 1 {
		t.c.step(op, octets, text, args...)
	}
}

// done ends the call. err is one that it returned.
func (t *Tape) done(n uint64, octets []byte, err error) {
	if t.inner == 1 {
		t.c.step(opReturn, octets, textOf(err), n, codeOf(err))
		t.put()
	}
	t.inner--
}

// drop ends a call that is not recorded.
func (t *Tape) drop() { t.inner-- }

// Requests records what becomes of requests of queue pair qpn of dev. It is a vnic.RequestWatcher.
func (r *Recorder) Requests(dev string, qpn uint32) *Requests {
	return &Requests{r: r, id: r.open(Subject{Kind: QueuePair, Device: dev, QPN: qpn})}
}

// Requests are those of a queue pair.
type Requests notes

// notes are of one subject: things that are only looked at, by any goroutine.
type notes struct {
	r    *Recorder
	id   uint64
	dead atomic.Bool // there was no room for one
}

// put records one record of Steps.
func (n *notes) put(steps ...Step) {
	if n.dead.Load() || n.r.ended.Load() {
		return
	}
	var c builder
	c.begin(n.id, n.r.now())
	for i := range steps {
		s := &steps[i]
		c.step(s.Op, s.Octets, s.Text, s.Args...)
	}
	if (c.over || !n.r.to.put(c.b, false)) && !n.dead.Swap(true) {
		n.r.lost(n.id)
	}
}

// Taken implements vnic.RequestWatcher.
func (q *Requests) Taken(_ time.Time, wr *rdma.SendWR, behind int) {
	(*notes)(q).put(Step{Op: OpTaken, Args: []uint64{wr.ID, uint64(wr.Op), lengthOf(wr),
		uint64(wr.Flags), uint64(behind), uint64(wr.Imm)}})
}

// Completed implements vnic.RequestWatcher.
func (q *Requests) Completed(_ time.Time, wr *rdma.SendWR, st rdma.WCStatus,
	took time.Duration) {
	(*notes)(q).put(Step{Op: OpCompleted, Args: []uint64{wr.ID, uint64(wr.Op), lengthOf(wr),
		uint64(st), uint64(took)}})
}

// Received implements vnic.RequestWatcher.
func (q *Requests) Received(_ time.Time, wc *rdma.WC) {
	(*notes)(q).put(Step{Op: OpReceived, Args: []uint64{wc.ID, uint64(wc.Op), uint64(wc.ByteLen),
		uint64(wc.Status), uint64(wc.Flags), uint64(wc.Imm)}})
}

// lengthOf is how many octets a request names.
func lengthOf(wr *rdma.SendWR) (n uint64) {
	if wr.Flags&rdma.Inline != 0 {
		return uint64(len(wr.Inline))
	}
	for i := range wr.SGEs {
		n += uint64(wr.SGEs[i].Length)
	}
	return n
}

// Calls records calls of a program.
type Calls notes

// Program is for a program that has the daemon's session of that number.
func (r *Recorder) Program(name string, pid int) *Calls {
	return &Calls{r: r, id: r.open(Subject{Kind: Session, Program: name, PID: pid})}
}

// Call records one, with the octets of the request and of the reply, and why it was refused.
func (c *Calls) Call(op uint16, errno uint64, request, reply []byte, why string) {
	(*notes)(c).put(Step{Op: OpCall, Args: []uint64{uint64(op)}, Octets: request},
		Step{Op: OpReply, Args: []uint64{uint64(op), errno}, Octets: reply, Text: why})
}

// A queue is a bounded sink that somebody writes.
type queue struct {
	mu     sync.Mutex
	more   sync.Cond
	b      []byte // +checklocks:mu
	spare  []byte // +checklocks:mu
	closed bool   // +checklocks:mu
}

func newQueue() *queue {
	q := &queue{b: []byte(magic)}
	q.more.L = &q.mu
	return q
}

// slack is the room for records that have to be there: there are few, of which a Subject is the
// longest.
const slack = 1 << 20

func (q *queue) put(content []byte, must bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	most := MaxWaiting
	if must {
		most += slack
	}
	if q.closed || len(q.b)+len(content) > most {
		q.closed = q.closed || must // a recording without it would be none
		return false
	}
	if len(q.b) == 0 {
		q.more.Signal()
	}
	q.b = appendRecord(q.b, content)
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.more.Signal()
}

// writeTo writes what there is until q is closed.
func (q *queue) writeTo(w io.Writer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.b) == 0 && !q.closed {
			q.more.Wait()
		}
		if len(q.b) == 0 {
			return nil
		}
		b := q.b
		q.b = q.spare[:0]
		q.mu.Unlock()
		_, err := w.Write(b)
		q.mu.Lock()
		if err != nil {
			return err
		}
		if q.spare = b; cap(b) > keptRoom {
			q.spare = nil
		}
	}
}
