package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// What a file may ask for of an engine's memory. Of RoCE none is made with more requests or Reads,
// for which there is room from the beginning.
const (
	maxQueue    = 1 << 16
	maxReads    = 1 << 14
	maxRequests = 256
	maxKept     = math.MaxUint8
	requestRoom = 128 // octets, of a request or a Read that is kept
)

// bounds says which of a Step's arguments are no more than so much.
func bounded(s *Step, i int, most uint64) error {
	if s.Args[i] > most {
		return fmt.Errorf("%w: %v of %d", errNoCall, s.Op, s.Args[i])
	}
	return nil
}

// roomFor is room for what a call is to read, as long as argument i says. It is the same for all
// engines, of which none keeps it.
func roomFor(room *[]byte, s *Step, i int) ([]byte, error) {
	if err := bounded(s, i, maxOctets); err != nil {
		return nil, err
	}
	n := s.Args[i]
	if uint64(cap(*room)) < n {
		*room = make([]byte, n)
	}
	return (*room)[:n:n], nil
}

// An endpointPlayer plays an Endpoint.
type endpointPlayer struct {
	e    *Endpoint
	look io.Writer // nil: Lookout was not called since it was good
	room *[]byte
	s    *script
}

func newEndpointPlayer(t *Tape, c *IWARP, s *script, room *[]byte) (engine, error) {
	if c.SendQueue > maxQueue || c.Params.ORD > maxReads || c.Params.IRD > maxReads {
		return nil, errNoCall
	}
	cfg := iwarp.Config{SendQueue: c.SendQueue, EMSS: c.EMSS, MULPDU: c.MULPDU,
		Extensions: c.Extensions, Records: c.Records}
	return &endpointPlayer{s: s, room: room,
		e: NewEndpoint(t, c.Params, endpointScript{s}, cfg)}, nil
}

func (p *endpointPlayer) play(s *Step) error {
	e, a := p.e, s.Args
	payload := func(id uint64) iwarp.Payload {
		if id == 0 {
			return nil
		}
		return p.s
	}
	switch s.Op {
	case opWrite:
		_, _ = e.Write(s.Octets) // as all results, it is recorded
	case opSegment:
		if err := bounded(s, 0, iwarp.MaxRecord); err != nil {
			return err
		}
		_ = e.Segment(s.Octets, int(a[0]))
	case opAhead:
		e.Ahead(s.Octets)
	case opNotice:
		e.Notice(s.Octets)
	case opLookout:
		p.look = e.Lookout()
	case opLook:
		if p.look == nil {
			return errNoCall
		}
		_, _ = p.look.Write(s.Octets)
	case opResume:
		_ = e.Resume()
	case opFail:
		e.Fail(causeOf(a[0]), errors.New(s.Text))
	case opLen:
		e.Len()
	case opRead:
		room, err := roomFor(p.room, s, 0)
		if err != nil {
			return err
		}
		_, _ = e.Read(room)
	case opCommit:
		e.Commit(int(min(a[0], maxOctets)))
	case opSetEMSS:
		e.SetEMSS(int(min(a[0], iwarp.MaxRecord)))
	case opSetMULPDU:
		e.SetMULPDU(int(min(a[0], iwarp.MaxRecord)))
	case opPostSend:
		_ = e.PostSend(a[0], iwarp.Opcode(a[1]), iwarp.STag(a[2]), payload(a[3]), uint32(a[4]))
	case opPostWrite:
		_ = e.PostWrite(a[0], iwarp.STag(a[1]), a[2], payload(a[3]), uint32(a[4]))
	case opPostRead:
		_ = e.PostRead(a[0], iwarp.STag(a[1]), a[2], uint32(a[3]), iwarp.STag(a[4]), a[5])
	case opPostAtomic:
		_ = e.PostAtomic(a[0], iwarp.Atomic{Op: iwarp.AtomicOp(a[1]), STag: iwarp.STag(a[2]), TO: a[3],
			Data: a[4], Mask: a[5], Compare: a[6], CompareMask: a[7]})
	case opPostImmediate:
		_ = e.PostImmediate(a[0], a[1] != 0, a[2])
	case opClose:
		e.Close()
	default:
		return errNoCall
	}
	return nil
}

func (p *endpointPlayer) memory() int { return p.e.Memory() }

// An endpointScript is the iwarp.Host of one.
type endpointScript struct{ *script }

func (s endpointScript) PlaceWrite(iwarp.STag, uint64, []byte, bool) error {
	return s.answer(opPlaceWrite, 3)
}

func (s endpointScript) BeginReceive() (size uint32, ok bool) { return s.receive(opBeginReceive) }

// receive is the answer to who wants a receive.
func (s *script) receive(op Op) (size uint32, ok bool) {
	if step := s.next(op); step != nil {
		return uint32(step.Args[0]), step.Args[1] != 0
	}
	return 0, false
}

func (s endpointScript) PlaceReceive(uint32, []byte) error { return s.answer(opPlaceReceive, 1) }
func (s endpointScript) EndReceive(iwarp.Received) error   { return s.answer(opEndReceive, 6) }
func (s endpointScript) PlaceRead(uint32, []byte) error    { return s.answer(opPlaceRead, 1) }
func (s endpointScript) EndRead(uint64) error              { return s.answer(opEndRead, 1) }

func (s endpointScript) ReadSource(iwarp.STag, uint64, uint32) (iwarp.Payload, error) {
	return s.source(opReadSource)
}

// source is the answer to who wants to read.
func (s *script) source(op Op) (iwarp.Payload, error) {
	step := s.next(op)
	if step == nil {
		return nil, errOther
	}
	if err := errorOf(step.Args[4], step.Text); err != nil || step.Args[3] == 0 {
		return nil, err
	}
	return s, nil
}

func (s endpointScript) EndReadSource(iwarp.Payload) { s.next(opEndReadSource) }

func (s endpointScript) Atomic(iwarp.Atomic) (old uint64, err error) {
	return s.original(opAtomic, 7)
}

// original is the answer to an atomic operation; what was there stands at i, and the error behind.
func (s *script) original(op Op, i int) (uint64, error) {
	step := s.next(op)
	if step == nil {
		return 0, errOther
	}
	return step.Args[i], errorOf(step.Args[i+1], step.Text)
}

func (s endpointScript) EndAtomic(_, _ uint64) error { return s.answer(opEndAtomic, 2) }
func (s endpointScript) Sent(uint64)                 { s.next(opSent) }

// A packetsPlayer plays Packets.
type packetsPlayer struct {
	p    *Packets
	s    *script
	room *[]byte
	kept int // Reads of the peer
	most int // requests
}

func newRCPlayer(t *Tape, c *roce.Config, s *script, room *[]byte) (engine, error) {
	if err := checkConfig(c); err != nil {
		return nil, err
	}
	return &packetsPlayer{p: NewRC(t, *c, packetScript{s}), s: s, room: room, kept: c.MaxDestRead,
		most: c.SendQueue}, nil
}

func newUCPlayer(t *Tape, c *roce.Config, s *script, room *[]byte) (engine, error) {
	if err := checkConfig(c); err != nil {
		return nil, err
	}
	return &packetsPlayer{p: NewUC(t, *c, packetScript{s}), s: s, room: room, most: c.SendQueue}, nil
}

// memory is that of the rings: the one of requests has a power of two.
func (p *packetsPlayer) memory() int {
	return (1<<bits.Len(uint(max(p.most, 1)-1)) + p.kept) * requestRoom
}

// checkConfig checks what is checked before there is an engine.
func checkConfig(c *roce.Config) error {
	mtu := c.MTU >= roce.MinMTU && c.MTU <= roce.MaxMTU && c.MTU&(c.MTU-1) == 0
	within := func(n, most int) bool { return n >= 0 && n <= most }
	if !mtu || !within(c.SendQueue, maxRequests) || !within(c.Window, maxQueue) ||
		!within(c.MaxRead, maxKept) || !within(c.MaxDestRead, maxKept) {
		return errNoCall
	}
	return nil
}

func (p *packetsPlayer) play(s *Step) error {
	e, a := p.p, s.Args
	now := func() time.Time { return e.began.Add(time.Duration(a[0])) }
	config := func() (c roce.Config, err error) {
		if err = unmarshal([]byte(s.Text), &c); err == nil {
			err = checkConfig(&c)
		}
		return c, err
	}
	switch s.Op {
	case opPost:
		r := roce.Request{Token: a[0], Op: roce.Op(a[1]), Solicited: a[2] != 0, Fence: a[3] != 0,
			Length: uint32(a[4]), Addr: a[6], RKey: uint32(a[7]), Swap: a[9], Compare: a[10],
			Imm: immOctets(a[8])}
		if a[1] > uint64(roce.FetchAdd) || a[5] == 0 && r.Op < roce.Read && r.Length > 0 {
			return errNoCall
		}
		if a[5] != 0 {
			r.Data = p.s
		}
		_ = e.Post(&r) // as all results, it is recorded
	case opAppend:
		*p.room, _ = e.Append((*p.room)[:0], now())
	case opReceive:
		var h packet.Header
		octets, err := h.Parse(append(bytes.Clone(s.Octets), make([]byte, packet.ICRCLen)...))
		if err != nil {
			return err
		}
		e.Receive(now(), &h, octets)
	case opExpire:
		e.Expire(now())
	case opStart, opUpdate:
		c, err := config()
		if err != nil {
			return err
		}
		if s.Op == opStart {
			e.Start(c)
		} else {
			e.Update(c)
		}
		p.kept = c.MaxDestRead
	case opDrain:
		e.Drain()
	case opResumeSends:
		e.Resume()
	case opHold:
		e.Hold(a[0] != 0)
	case opPass:
		e.Pass(uint32(a[0]))
	case opPassed:
		e.Passed(uint32(a[0]), uint32(a[1]))
	case opRefuse:
		e.Refuse(packet.Syndrome(a[0]))
	case opRecover:
		e.Recover()
	default:
		return errNoCall
	}
	return nil
}

// A packetScript is the roce.Host of one.
type packetScript struct{ *script }

func (s packetScript) Done(uint64) { s.next(opDone) }

func (s packetScript) PlaceRead(uint64, uint32, []byte) error {
	return s.answer(opPlaceAnswer, 2)
}

func (s packetScript) PlaceOriginal(_, _ uint64) error { return s.answer(opPlaceOriginal, 2) }

func (s packetScript) BeginReceive() (size uint32, ok bool) { return s.receive(opTakeReceive) }

func (s packetScript) PlaceReceive(uint32, []byte, bool) error {
	return s.answer(opFillReceive, 2)
}

func (s packetScript) EndReceive(roce.Received) error {
	return s.answer(opFinishReceive, 8)
}

func (s packetScript) FailReceive(roce.Status)                 { s.next(opFailReceive) }
func (s packetScript) KeepReceive()                            { s.next(opKeepReceive) }
func (s packetScript) Receives() (n uint32, ok bool)           { return s.receive(opReceives) }
func (s packetScript) BeginWrite(uint32, uint64, uint32) error { return s.answer(opBeginWrite, 3) }

func (s packetScript) PlaceWrite(uint32, []byte, bool) error { return s.answer(opFillWrite, 2) }

func (s packetScript) ReadSource(uint32, uint64, uint32) (roce.Payload, error) {
	return s.source(opFindSource)
}

func (s packetScript) EndReadSource(roce.Payload) { s.next(opEndReadSource) }

func (s packetScript) Atomic(roce.Atomic) (original uint64, err error) {
	return s.original(opCarryOut, 5)
}
