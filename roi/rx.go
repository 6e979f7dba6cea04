package roi

import (
	"encoding/binary"
	"errors"

	"github.com/vrnic/vrnic/iwarp"
)

// A receiver has what has come in part. The operations of the peer come whole, one behind the
// other; its answers, and its Credit Returns, may stand between the messages of one.
type receiver struct {
	openSend  bool
	number    uint32 // of the Send that is open, or comes next
	got, size uint32 // octets of it, and of its receive
	openWrite bool
	stag      iwarp.STag // of the Write that is open
	written   uint32
	readGot   uint32 // octets of the answer to the oldest Read
	stalled   bool   // an operation waits for a receive

	// buf gathers an FPDU that came in parts; whole says that it waits for a receive.
	buf   []byte
	n     int
	whole bool
}

// Stalled says that a Send or notifying Write waits for a receive, without flow control. How long
// it may is for the owner to say; it comes again with what is read next, or with Resume.
func (e *Endpoint) Stalled() bool { return e.rx.stalled && e.err == nil }

// Ahead has a segment that came ahead of order kept until its turn.
func (e *Endpoint) Ahead(seg []byte) (keep int) { return len(seg) }

// Segment takes the next segment in order, of which seg is all. iwarp.ErrNoReceive: it has to come
// again. Other faults are in Err.
func (e *Endpoint) Segment(seg []byte, _ int) error {
	if e.err != nil {
		return nil // what comes behind an error is for nobody
	}
	m, data, err := Parse(seg)
	if err != nil {
		e.failed(err, iwarp.TermRemoteOperation)
		return nil
	}
	if e.left && m.Kind != CreditReturn {
		e.Fail(iwarp.TermClosed, errLeft)
		return nil
	}
	if e.needsReceive(&m) {
		if err := e.promises.use(); err != nil {
			e.fail(err)
			return nil
		}
		size, ok := e.host.BeginReceive()
		switch {
		case ok:
			e.rx.size = size
		case e.promises.on:
			e.Fail(iwarp.TermNoBuffer, errPromise)
			return nil
		default:
			e.rx.stalled = true
			return iwarp.ErrNoReceive
		}
	}
	e.rx.stalled, e.tx.open = false, true
	if err := e.sends.add(int(m.Credits)); err != nil {
		e.fail(err)
		return nil
	}
	switch m.Kind {
	case Data:
		if m.Response {
			e.response(&m, data)
		} else {
			e.written(&m, data)
		}
	case ReadRequest:
		e.readRequest(&m)
	case Send:
		e.send(&m, data)
	case Failure:
		e.err = &iwarp.PeerError{Cause: m.Cause}
	case CreditReturn:
	}
	return nil
}

// needsReceive looks whether m is the message of an operation that takes its receive, and may. What
// is wrong with it otherwise comes to light in its turn.
func (e *Endpoint) needsReceive(m *Message) bool {
	r := &e.rx
	begins := m.Kind == Send && !r.openSend && !r.openWrite && m.Number == r.number &&
		m.SendOffset == 0
	notifies := m.Kind == Data && !m.Response && m.Notifying && m.Final && m.Notify && !r.openSend
	if !begins && !notifies {
		return false
	}
	return true
}

var errLeft = errors.New("a message behind the end of the stream")

var errPromise = errors.New("no receive stands behind a credit")

// marked checks Notify and N of a decorated message: sections 4 and 5, docs/decisions.md#W9.
// Without it DDPP would not show the message to iWarp, and what it says would be lost.
func (e *Endpoint) marked(m *Message) bool {
	must := m.Credits > 0 || m.Final && m.Response || m.Notifying
	switch {
	case must && !m.Notify:
		e.fail(fault(iwarp.TermRemoteOperation, "a decorated message without Notify: %+v", *m))
	case m.Notifying && (m.Response || !m.Final):
		e.fail(fault(iwarp.TermRemoteOperation, "N on a message that ends no Write: %+v", *m))
	}
	return e.err == nil
}

// between says that an operation of the peer may begin here: no other is open.
func (e *Endpoint) between(k Kind) bool {
	r := &e.rx
	if r.openSend && k != Send || r.openWrite && k != Data {
		e.fail(fault(iwarp.TermRemoteOperation, "a %v within another operation", k))
	}
	return e.err == nil
}

// written takes a message of a Write.
func (e *Endpoint) written(m *Message, data []byte) {
	r := &e.rx
	if e.err != nil || !e.marked(m) || !e.between(Data) {
		return
	}
	switch {
	case r.openWrite && m.STag != r.stag:
		e.fail(fault(iwarp.TermRemoteOperation, "a Write to %#x goes on with %#x", r.stag, m.STag))
		return
	case uint64(r.written)+uint64(len(data)) > 1<<32-1:
		e.fail(fault(iwarp.TermMessageTooLong, "a Write of more than 2^32-1 octets"))
		return
	}
	if err := e.host.PlaceWrite(m.STag, m.Offset, data, m.Final); err != nil {
		e.failed(err, iwarp.TermDDPCatastrophic)
		return
	}
	r.openWrite, r.stag = !m.Final, m.STag
	r.written += uint32(len(data))
	if !m.Final {
		return
	}
	n := r.written
	r.written = 0
	if m.Notifying {
		if err := e.host.EndWrite(m.Client, n); err != nil {
			e.failed(err, iwarp.TermDDPCatastrophic)
		}
	}
}

// response takes a message of a Read Response. Reads are answered in the order of their requests,
// each with as many octets as it asked for, and go where it said: docs/decisions.md#W5.
func (e *Endpoint) response(m *Message, data []byte) {
	r, t := &e.rx, &e.tx
	if e.err != nil || !e.marked(m) {
		return
	}
	if t.reads.n == 0 {
		e.fail(fault(iwarp.TermUnexpectedOpcode, "a Read Response to no Read"))
		return
	}
	rd := t.reads.first()
	got := uint64(r.readGot) + uint64(len(data))
	switch {
	case m.STag != rd.sink || m.Offset != rd.to+uint64(r.readGot):
		e.fail(fault(iwarp.TermInvalidSTag, "a Read Response to %#x, %d, not to %#x, %d", m.STag,
			m.Offset, rd.sink, rd.to+uint64(r.readGot)))
		return
	case got > uint64(rd.n), m.Final != (got == uint64(rd.n)):
		e.fail(fault(iwarp.TermRemoteOperation, "%d octets of a Read Response of %d, final %t", got, rd.n,
			m.Final))
		return
	}
	if len(data) > 0 {
		if err := e.host.PlaceRead(rd.token, r.readGot, data); err != nil {
			e.failed(err, iwarp.TermDDPCatastrophic)
			return
		}
	}
	r.readGot = uint32(got)
	if !m.Final {
		return
	}
	r.readGot = 0
	done := t.reads.pop()
	if e.reads.on {
		e.reads.left++ // it cannot have more than it began with
	}
	if err := e.host.EndRead(done.token, m.Client); err != nil {
		e.failed(err, iwarp.TermDDPCatastrophic)
	}
}

// readRequest takes a Read Request.
func (e *Endpoint) readRequest(m *Message) {
	t := &e.tx
	if e.err != nil || !e.between(ReadRequest) {
		return
	}
	if t.answers.full() {
		e.fail(fault(iwarp.TermNoBuffer, "more than %d Reads outstanding", t.answers.most))
		return
	}
	p, client, err := e.host.ReadSource(m.STag, m.Offset, m.Size)
	if err != nil {
		e.failed(err, iwarp.TermLocalCatastrophic)
		return
	}
	*t.answers.push() = answer{m.Sink, m.SinkOffset, m.Size, client & MaxClient, p}
}

// send takes a message of a Send.
func (e *Endpoint) send(m *Message, data []byte) {
	r := &e.rx
	if e.err != nil || !e.between(Send) {
		return
	}
	switch {
	case m.Number != r.number:
		e.fail(fault(iwarp.TermMSNRange, "Send %d, expected %d", m.Number, r.number))
		return
	case m.SendOffset != r.got:
		e.fail(fault(iwarp.TermInvalidMO, "Send Offset %d, expected %d", m.SendOffset, r.got))
		return
	case uint64(r.got)+uint64(len(data)) > uint64(min(r.size, MaxSend)):
		e.fail(fault(iwarp.TermMessageTooLong, "a Send of more than %d octets", min(r.size, MaxSend)))
		return
	}
	if len(data) > 0 {
		if err := e.host.PlaceReceive(r.got, data); err != nil {
			e.failed(err, iwarp.TermDDPCatastrophic)
			return
		}
	}
	r.got += uint32(len(data))
	r.openSend = !m.Final
	if !m.Final {
		return
	}
	n := r.got
	r.number, r.got = r.number+1, 0
	if err := e.host.EndReceive(n); err != nil {
		e.failed(err, iwarp.TermDDPCatastrophic)
	}
}

// Write takes octets of a stream of FPDUs. It takes all of b, but for an operation without a
// receive: then it stops before that FPDU, or keeps it if it had been cut, and returns
// iwarp.ErrNoReceive.
func (e *Endpoint) Write(b []byte) (n int, err error) {
	r := &e.rx
	if err := e.Resume(); err != nil {
		return 0, err
	}
	for n < len(b) {
		if e.err != nil {
			return len(b), nil
		}
		if r.n == 0 && len(b)-n >= 2 {
			if size := iwarp.FPDULen(int(binary.BigEndian.Uint16(b[n:]))); len(b)-n >= size {
				if err := e.fpdu(b[n:][:size]); err != nil {
					return n, err
				}
				n += size
				continue
			}
		}
		n += r.gather(b[n:])
		if r.n >= 2 && r.n == iwarp.FPDULen(int(binary.BigEndian.Uint16(r.buf))) {
			r.whole = true
			if err := e.Resume(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// Resume takes an operation that has waited for a receive, if it is kept here. iwarp.ErrNoReceive:
// there is none yet.
func (e *Endpoint) Resume() error {
	r := &e.rx
	if !r.whole {
		return nil
	}
	if err := e.fpdu(r.buf[:r.n]); err != nil {
		return err
	}
	r.n, r.whole = 0, false
	return nil
}

// gather adds octets of b to buf, up to the end of the FPDU, and says how many.
func (r *receiver) gather(b []byte) int {
	want := 2
	if r.n >= 2 {
		want = iwarp.FPDULen(int(binary.BigEndian.Uint16(r.buf)))
	}
	if len(r.buf) < want {
		size := 2048
		if want > size {
			size = iwarp.MaxFPDU // at most once more
		}
		wider := make([]byte, size)
		copy(wider, r.buf[:r.n])
		r.buf = wider
	}
	k := copy(r.buf[r.n:want], b)
	r.n += k
	return k
}

// fpdu takes a whole FPDU.
func (e *Endpoint) fpdu(b []byte) error {
	if e.err != nil {
		return nil
	}
	end := len(b) - 4
	if e.cfg.CRC {
		if want := binary.LittleEndian.Uint32(b[end:]); uint32(iwarp.CRC(0).Add(b[:end])) != want {
			e.fail(fault(iwarp.TermCRC, "an FPDU of %d octets with CRC %08x", len(b), want))
			return nil
		}
	}
	n := int(binary.BigEndian.Uint16(b))
	return e.Segment(b[2:2+n:2+n], n)
}
