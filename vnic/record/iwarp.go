package record

import (
	"io"

	"github.com/vrnic/vrnic/iwarp"
)

// An Endpoint is an iwarp.Endpoint whose calls are recorded. What only asks it is not.
type Endpoint struct {
	*iwarp.Endpoint
	t    *Tape
	emss int // as SetEMSS and SetMULPDU were last called: they are each time, and change nothing
	max  int
	ids  uint64 // of payloads
	told bool   // of the error that has ended it
}

// NewEndpoint is iwarp.NewEndpoint, recorded by t. cfg has no functions.
func NewEndpoint(t *Tape, p iwarp.Params, h iwarp.Host, cfg iwarp.Config) *Endpoint {
	s := &t.about
	p.PrivateData = nil // which is nothing to it
	s.IWARP = &IWARP{Params: p, SendQueue: cfg.SendQueue, EMSS: cfg.EMSS, MULPDU: cfg.MULPDU,
		Extensions: cfg.Extensions, Records: cfg.Records}
	t.id = t.r.open(*s)
	e := &Endpoint{t: t, emss: -1, max: -1}
	e.Endpoint = iwarp.NewEndpoint(p, endpointHost{e, h}, cfg)
	return e
}

// done ends a call.
func (e *Endpoint) done(n int, octets []byte, err error) {
	if failed := e.Endpoint.Err(); failed != nil && !e.told {
		e.told = true
		e.t.step(opEnded, nil, failed.Error())
	}
	e.t.done(uint64(n), octets, err)
}

func (e *Endpoint) Write(b []byte) (n int, err error) {
	if e.t.off() {
		return e.Endpoint.Write(b)
	}
	e.t.call(opWrite, b, "")
	n, err = e.Endpoint.Write(b)
	e.done(n, nil, err)
	return n, err
}

func (e *Endpoint) Segment(seg []byte, size int) error {
	if e.t.off() {
		return e.Endpoint.Segment(seg, size)
	}
	e.t.call(opSegment, seg, "", uint64(size))
	err := e.Endpoint.Segment(seg, size)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) Ahead(seg []byte) (keep int) {
	if e.t.off() {
		return e.Endpoint.Ahead(seg)
	}
	e.t.call(opAhead, seg, "")
	keep = e.Endpoint.Ahead(seg)
	e.done(keep, nil, nil)
	return keep
}

func (e *Endpoint) Notice(seg []byte) {
	if e.t.off() {
		e.Endpoint.Notice(seg)
		return
	}
	e.t.call(opNotice, seg, "")
	e.Endpoint.Notice(seg)
	e.done(0, nil, nil)
}

// Lookout is an iwarp.Lookout, recorded.
func (e *Endpoint) Lookout() io.Writer {
	if e.t.off() {
		return e.Endpoint.Lookout()
	}
	e.t.call(opLookout, nil, "")
	l := e.Endpoint.Lookout()
	e.done(0, nil, nil)
	return lookout{e, l}
}

type lookout struct {
	e *Endpoint
	l *iwarp.Lookout
}

func (l lookout) Write(b []byte) (n int, err error) {
	if l.e.t.off() {
		return l.l.Write(b)
	}
	l.e.t.call(opLook, b, "")
	n, err = l.l.Write(b)
	l.e.done(n, nil, err)
	return n, err
}

func (e *Endpoint) Resume() error {
	if e.t.off() {
		return e.Endpoint.Resume()
	}
	e.t.call(opResume, nil, "")
	err := e.Endpoint.Resume()
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) Fail(c iwarp.TermCode, why error) {
	if e.t.off() {
		e.Endpoint.Fail(c, why)
		return
	}
	e.t.call(opFail, nil, why.Error(), codeOf(&iwarp.LocalError{Cause: c}))
	e.Endpoint.Fail(c, why)
	e.done(0, nil, nil)
}

func (e *Endpoint) Len() int {
	if e.t.off() {
		return e.Endpoint.Len()
	}
	e.t.call(opLen, nil, "")
	n := e.Endpoint.Len()
	e.done(n, nil, nil)
	return n
}

func (e *Endpoint) Read(p []byte) (n int, err error) {
	if e.t.off() {
		return e.Endpoint.Read(p)
	}
	e.t.call(opRead, nil, "", uint64(len(p)))
	n, err = e.Endpoint.Read(p)
	e.done(n, p[:n], err)
	return n, err
}

func (e *Endpoint) Commit(n int) {
	if e.t.off() {
		e.Endpoint.Commit(n)
		return
	}
	e.t.call(opCommit, nil, "", uint64(max(n, 0)))
	e.Endpoint.Commit(n)
	e.done(0, nil, nil)
}

func (e *Endpoint) SetEMSS(n int) {
	if e.t.off() || n == e.emss {
		e.Endpoint.SetEMSS(n)
		return
	}
	e.emss = n
	e.t.call(opSetEMSS, nil, "", uint64(max(n, 0)))
	e.Endpoint.SetEMSS(n)
	e.done(0, nil, nil)
}

func (e *Endpoint) SetMULPDU(n int) {
	if e.t.off() || n == e.max {
		e.Endpoint.SetMULPDU(n)
		return
	}
	e.max = n
	e.t.call(opSetMULPDU, nil, "", uint64(max(n, 0)))
	e.Endpoint.SetMULPDU(n)
	e.done(0, nil, nil)
}

// A payload is an iwarp.Payload or a roce.Payload whose octets are recorded. Those that there are
// have numbers from 1 on.
type payload struct {
	of interface {
		CopyOut(p []byte, off uint32) error
	}
	t  *Tape
	id uint64
}

func (p *payload) CopyOut(b []byte, off uint32) error {
	err := p.of.CopyOut(b, off)
	got := b
	if err != nil {
		got = nil
	}
	p.t.step(opCopyOut, got, textOf(err), p.id, uint64(off), uint64(len(b)), codeOf(err))
	return err
}

// payload is p, recorded, and its number.
func (e *Endpoint) payload(p iwarp.Payload) (iwarp.Payload, uint64) {
	if p == nil {
		return nil, 0
	}
	e.ids++
	return &payload{p, e.t, e.ids}, e.ids
}

func (e *Endpoint) PostSend(token uint64, op iwarp.Opcode, inv iwarp.STag, p iwarp.Payload,
	n uint32) error {
	if e.t.off() {
		return e.Endpoint.PostSend(token, op, inv, p, n)
	}
	p, id := e.payload(p)
	e.t.call(opPostSend, nil, "", token, uint64(op), uint64(inv), id, uint64(n))
	err := e.Endpoint.PostSend(token, op, inv, p, n)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) PostWrite(token uint64, stag iwarp.STag, to uint64, p iwarp.Payload,
	n uint32) error {
	if e.t.off() {
		return e.Endpoint.PostWrite(token, stag, to, p, n)
	}
	p, id := e.payload(p)
	e.t.call(opPostWrite, nil, "", token, uint64(stag), to, id, uint64(n))
	err := e.Endpoint.PostWrite(token, stag, to, p, n)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) PostRead(token uint64, sink iwarp.STag, sinkTO uint64, n uint32,
	src iwarp.STag, srcTO uint64) error {
	if e.t.off() {
		return e.Endpoint.PostRead(token, sink, sinkTO, n, src, srcTO)
	}
	e.t.call(opPostRead, nil, "", token, uint64(sink), sinkTO, uint64(n), uint64(src), srcTO)
	err := e.Endpoint.PostRead(token, sink, sinkTO, n, src, srcTO)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) PostAtomic(token uint64, a iwarp.Atomic) error {
	if e.t.off() {
		return e.Endpoint.PostAtomic(token, a)
	}
	e.t.call(opPostAtomic, nil, "", token, uint64(a.Op), uint64(a.STag), a.TO, a.Data, a.Mask,
		a.Compare, a.CompareMask)
	err := e.Endpoint.PostAtomic(token, a)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) PostImmediate(token uint64, se bool, data uint64) error {
	if e.t.off() {
		return e.Endpoint.PostImmediate(token, se, data)
	}
	e.t.call(opPostImmediate, nil, "", token, bit(se), data)
	err := e.Endpoint.PostImmediate(token, se, data)
	e.done(0, nil, err)
	return err
}

func (e *Endpoint) Close() {
	if e.t.off() {
		e.Endpoint.Close()
		return
	}
	e.t.call(opClose, nil, "")
	e.Endpoint.Close()
	e.done(0, nil, nil)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// An endpointHost is the iwarp.Host of an Endpoint: what its own is asked is recorded.
type endpointHost struct {
	e *Endpoint
	h iwarp.Host
}

func (h endpointHost) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	err := h.h.PlaceWrite(stag, to, chunk, last)
	h.e.t.step(opPlaceWrite, chunk, textOf(err), uint64(stag), to, bit(last), codeOf(err))
	return err
}

func (h endpointHost) BeginReceive() (size uint32, ok bool) {
	size, ok = h.h.BeginReceive()
	h.e.t.step(opBeginReceive, nil, "", uint64(size), bit(ok))
	return size, ok
}

func (h endpointHost) PlaceReceive(off uint32, chunk []byte) error {
	err := h.h.PlaceReceive(off, chunk)
	h.e.t.step(opPlaceReceive, chunk, textOf(err), uint64(off), codeOf(err))
	return err
}

func (h endpointHost) EndReceive(r iwarp.Received) error {
	err := h.h.EndReceive(r)
	h.e.t.step(opEndReceive, nil, textOf(err), uint64(r.Length), bit(r.Solicited), bit(r.Invalidate),
		uint64(r.STag), bit(r.Immediate), r.Data, codeOf(err))
	return err
}

func (h endpointHost) PlaceRead(off uint32, chunk []byte) error {
	err := h.h.PlaceRead(off, chunk)
	h.e.t.step(opPlaceRead, chunk, textOf(err), uint64(off), codeOf(err))
	return err
}

func (h endpointHost) EndRead(token uint64) error {
	err := h.h.EndRead(token)
	h.e.t.step(opEndRead, nil, textOf(err), token, codeOf(err))
	return err
}

func (h endpointHost) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	p, err := h.h.ReadSource(stag, to, n)
	p, id := h.e.payload(p)
	h.e.t.step(opReadSource, nil, textOf(err), uint64(stag), to, uint64(n), id, codeOf(err))
	return p, err
}

func (h endpointHost) EndReadSource(p iwarp.Payload) {
	of, id := unwrap(p)
	h.h.EndReadSource(of)
	h.e.t.step(opEndReadSource, nil, "", id)
}

// unwrap is the payload that p records, and its number.
func unwrap(p iwarp.Payload) (iwarp.Payload, uint64) {
	if r, ok := p.(*payload); ok {
		return r.of, r.id
	}
	return p, 0
}

func (h endpointHost) Atomic(a iwarp.Atomic) (old uint64, err error) {
	old, err = h.h.Atomic(a)
	h.e.t.step(opAtomic, nil, textOf(err), uint64(a.Op), uint64(a.STag), a.TO, a.Data, a.Mask,
		a.Compare, a.CompareMask, old, codeOf(err))
	return old, err
}

func (h endpointHost) EndAtomic(token, old uint64) error {
	err := h.h.EndAtomic(token, old)
	h.e.t.step(opEndAtomic, nil, textOf(err), token, old, codeOf(err))
	return err
}

func (h endpointHost) Sent(token uint64) {
	h.h.Sent(token)
	h.e.t.step(opSent, nil, "", token)
}
