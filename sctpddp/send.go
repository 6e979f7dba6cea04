package sctpddp

import (
	"bytes"
	"fmt"
	"io"

	"github.com/vrnic/vrnic/iwarp"
)

// maxUnacked is how many messages of a stream may be without acknowledgement: "the sending DDP must
// simply refrain from sending more than 32767 Data Chunks for a single stream without
// acknowledgment" (RFC 5043, section 10).
const maxUnacked = 32767

// A sender is the sending half of a Session.
type sender struct {
	next     int       // messages sent; its low 16 bits are the next DDP-SSN
	ids      idQueue   // of those that are not acknowledged
	controls []Control // to be sent, at most an Accept and a Terminate
	final    Control   // the last of all messages, once closed
	segment  []byte    // an RDMAP Terminate to be sent before the last of controls
	last     uint64    // id of the control message that was sent last; 0: none
	answered bool      // the peer has answered it
	closed   bool      // our last message is queued or sent
	mulpdu   int       // as it was last told
	numbered numbered
}

// A numbered is a message with its DDP-SSN before it. It is the Source of one Send.
type numbered struct {
	ssn SSN
	at  int
	src iwarp.Source
}

func (n *numbered) Len() int { return max(ssnLen-n.at, 0) + n.src.Len() }

func (n *numbered) Read(p []byte) (k int, err error) {
	for ; n.at < ssnLen && k < len(p); n.at++ {
		p[k] = byte(n.ssn >> (8 * (ssnLen - 1 - n.at)))
		k++
	}
	if k == len(p) {
		return k, nil
	}
	m, err := n.src.Read(p[k:])
	return k + m, err
}

// send gives SCTP one message. false and nil: there is no room.
func (s *Session) send(ppid uint32, src iwarp.Source) (ok bool, err error) {
	o := &s.out
	o.numbered = numbered{ssn: SSN(o.next), src: src}
	id, err := s.assoc.Send(s.id, ppid, &o.numbered)
	o.numbered.src = nil
	if id == 0 || err != nil {
		return false, err
	}
	o.next++
	o.ids.push(id)
	if ppid == PPIDControl {
		o.last, o.answered = id, false
	}
	s.stats.Out++
	return true, nil
}

// Unacked is how many messages of the session SCTP has and the peer has not acknowledged.
func (s *Session) Unacked() int { return s.out.ids.acked(s.assoc.Acked()) }

// WriteFrom takes one segment from src and says how many octets that were: all of src.Len(), or 0.
// 0 and nil: not now; try again when something was acknowledged or has come in. ErrTooLong,
// ErrState, or an error of src or the association.
func (s *Session) WriteFrom(src iwarp.Source) (n int, err error) {
	if s.journal != nil {
		c := &Call{Kind: CallWriteFrom, Source: src}
		s.noted(c, func(r *Result) {
			n, err = s.WriteFrom(c.Source)
			r.N, r.Err = n, err
		})
		return n, err
	}
	if s.out.closed || s.state != StateOpen && s.state != StatePeerClosed {
		return 0, fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	if n = src.Len(); n == 0 {
		return 0, nil
	}
	if n > s.out.mulpdu && n > s.MULPDU() {
		// "The SCTP adaptation layer MUST reject DDP Segments that are larger than the maximum
		// size specified." RFC 5043, section 9. One that was cut before the path became narrower
		// is SCTP's to fragment.
		return 0, fmt.Errorf("%w: %d octets, at most %d", ErrTooLong, n, s.out.mulpdu)
	}
	if err := s.Step(); err != nil || len(s.out.controls) > 0 || s.Unacked() >= maxUnacked {
		return 0, err
	}
	if ok, err := s.send(PPIDSegment, src); !ok {
		return 0, err
	}
	return n, nil
}

// MULPDU is the length of the longest segment to be cut from now on. It changes with the paths; ask
// before each segment.
func (s *Session) MULPDU() int {
	if s.journal != nil {
		was := s.out.mulpdu
		s.noted(&Call{Kind: CallMULPDU}, func(r *Result) {
			r.N = s.MULPDU()
			r.Idle = r.N == was
		})
		return s.out.mulpdu
	}
	s.out.mulpdu = MULPDU(s.assoc.MaxPayload())
	return s.out.mulpdu
}

// queue has c sent. It is the last message of this end, if it is a Reject or Terminate.
func (s *Session) queue(c Control) {
	o := &s.out
	o.controls = append(o.controls, c)
	o.closed = c.Function == FuncTerminate || c.Function == FuncReject ||
		c.Function == FuncEnhancedReject
	if o.closed {
		o.final = c
	}
}

// withdraw takes back what is not on its way yet. The numbers of these messages are free again, and
// if the last message of all was among them it is to be sent once more.
func (o *sender) withdraw(s *Session) {
	// What the stream's last session had waiting goes, too, and is none of these: it was before them,
	// so that none of them is on its way then.
	n := min(s.assoc.Drop(s.id), o.ids.len())
	if n == 0 {
		return
	}
	first := o.ids.dropLast(n)
	o.next -= n
	if o.last >= first {
		o.last = 0 // the one before it was answered
	}
	if o.closed && len(o.controls) == 0 {
		o.controls = append(o.controls, o.final)
	}
}

// clear drops what was not sent.
func (o *sender) clear() { o.controls, o.segment, o.closed = nil, nil, true }

// breakOff ends sending with a Terminate, if our last message is not out and the peer knows of us.
func (o *sender) breakOff(s *Session) {
	if o.closed && len(o.controls) == 0 {
		return
	}
	o.clear()
	if s.active && o.next == 0 {
		return // the Initiate never went out
	}
	s.queue(Control{Function: FuncTerminate})
}

// Pending says that control messages wait to be sent: call Step when there is room or something was
// acknowledged.
func (s *Session) Pending() bool { return len(s.out.controls) > 0 }

// Step sends control messages as far as possible. An error is the association's.
func (s *Session) Step() error {
	o := &s.out
	if s.journal != nil && s.Pending() {
		return s.notedError(&Call{Kind: CallStep}, s.Step)
	}
	for len(o.controls) > 0 {
		c := &o.controls[0]
		if o.segment != nil && len(o.controls) == 1 {
			if ok, err := s.send(PPIDSegment, bytes.NewReader(o.segment)); !ok {
				return err
			}
			o.segment = nil
		}
		// "A DDP Stream Session Control message MUST NOT be sent if it may be received before a prior
		// DDP Stream Session Control message within the same DDP Stream Session." RFC 5043, section 6.6.
		if o.last != 0 && !o.answered && o.last > s.assoc.Acked() {
			return nil
		}
		b, err := c.Append(nil)
		if err != nil {
			return err
		}
		if ok, err := s.send(PPIDControl, bytes.NewReader(b[ssnLen:])); !ok {
			return err
		}
		o.controls = o.controls[1:]
	}
	return nil
}

// Accept opens the session that was asked for. cfg is what this connection wants and can; the
// result, also of Params, is what came out. The Accept goes out with Step; segments may follow at
// once. ErrState, iwarp.ErrConfig, iwarp.ErrPrivateData.
func (s *Session) Accept(cfg iwarp.StartConfig, privateData []byte) (p iwarp.Params, err error) {
	if s.journal != nil {
		start := cfg
		s.noted(&Call{Kind: CallAccept, Start: &start, PrivateData: privateData}, func(r *Result) {
			p, err = s.Accept(cfg, privateData)
			r.Err = err
		})
		return p, err
	}
	if s.state != StateAsked {
		return iwarp.Params{}, fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	if cfg, err = cfg.WithDefaults(); err != nil {
		return iwarp.Params{}, err
	}
	p = iwarp.Params{Revision: 1, IRD: cfg.IRD, ORD: cfg.ORD, PeerIRD: iwarp.NotNegotiated,
		PeerORD: iwarp.NotNegotiated, PrivateData: s.request.PrivateData}
	c := Control{Function: FuncAccept, PrivateData: append([]byte(nil), privateData...)}
	if s.enhanced {
		p.Revision = 2
		c.Function, c.HasData = FuncEnhancedAccept, true
		c.Data = cfg.Answer(&p, s.request.data)
	}
	if _, err := c.Append(nil); err != nil {
		return iwarp.Params{}, err
	}
	s.setState(StateOpen)
	s.params = p
	s.queue(c)
	return p, s.Step()
}

// Reject refuses the request, for the program. ErrState, iwarp.ErrPrivateData.
func (s *Session) Reject(privateData []byte) error {
	if s.journal != nil {
		return s.notedError(&Call{Kind: CallReject, PrivateData: privateData},
			func() error { return s.Reject(privateData) })
	}
	if s.state != StateAsked {
		return fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	f := FuncReject
	if s.enhanced {
		f = FuncEnhancedReject
	}
	c := Control{Function: f, HasData: s.enhanced, PrivateData: privateData}
	if _, err := c.Append(nil); err != nil {
		return err
	}
	s.refuse(f, privateData)
	return s.Step()
}

// Refuse refuses the request with a Terminate: nothing above has seen it, or could do with it.
// ErrState.
func (s *Session) Refuse() error {
	if s.journal != nil {
		return s.notedError(&Call{Kind: CallRefuse}, s.Refuse)
	}
	if s.state != StateAsked {
		return fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	s.refuse(FuncTerminate, nil)
	return s.Step()
}

// refuse ends a session that was asked for.
func (s *Session) refuse(f Function, privateData []byte) {
	c := Control{Function: f, PrivateData: append([]byte(nil), privateData...)}
	if f == FuncEnhancedReject {
		c.HasData = true
		c.Data = iwarp.EnhancedData{PeerToPeer: s.request.PeerToPeer, IRD: s.start.IRD,
			ORD: s.start.ORD}
		if c.Data.PeerToPeer {
			c.Data.RTR = s.start.RTR
		}
	}
	s.setState(StateOver)
	s.refused, s.blocked = true, false
	s.in.clear()
	s.queue(c)
}

// Close ends the session behind what was sent (docs/decisions.md#D3). The peer may go on until its
// own Terminate comes: EventClosed. A request that is not answered is withdrawn. Then Step, until
// Pending says no.
func (s *Session) Close() error {
	if s.journal != nil {
		return s.notedError(&Call{Kind: CallClose}, s.Close)
	}
	switch s.state {
	case StateClosing, StateWithdrawing, StateOver, StateFailed:
		return nil
	case StateInitiating:
		if s.out.next == 0 { // nothing of it went out
			s.fail(ErrAbandoned)
			return nil
		}
		s.setState(StateWithdrawing)
	case StateAsked:
		return s.Refuse()
	case StateOpen:
		s.setState(StateClosing)
	case StatePeerClosed:
		s.setState(StateOver)
	default:
		return fmt.Errorf("%w: it is %v", ErrState, s.state)
	}
	s.discard = s.discard || s.sink == nil
	s.queue(Control{Function: FuncTerminate})
	err := s.Step()
	s.Resume() // what waited for a Sink is for nobody now
	return err
}

// Abort is Close for a program that is gone: what was not sent yet is not sent any more, but for
// the Terminate.
func (s *Session) Abort() error {
	if s.journal != nil {
		return s.notedError(&Call{Kind: CallAbort}, s.Abort)
	}
	if s.state == StateFailed {
		return nil
	}
	s.out.withdraw(s)
	if err := s.Close(); err != nil {
		return err
	}
	return s.Step()
}

// Abandon gives the session up: the peer did not answer, or did not end it, in time. What can still
// be said of that is sent; the stream is not used again.
func (s *Session) Abandon() {
	if s.journal != nil {
		s.noted(&Call{Kind: CallAbandon}, func(*Result) { s.Abandon() })
		return
	}
	if s.state != StateOver && s.state != StateFailed {
		s.fail(ErrAbandoned)
	}
}

// Quiet says that the session has ended and no message of it can be under way: the stream can be
// used again. "A DDP Stream Identifier MUST NOT be reused for another DDP Stream Session while any
// Data Chunk from a prior session might be outstanding." RFC 5043, section 6.6.
func (s *Session) Quiet() bool {
	return s.state == StateOver && !s.Pending() && s.Unacked() == 0
}

// An idQueue holds the numbers of messages that are not acknowledged, oldest first.
type idQueue struct {
	ring       []uint64 // a power of two
	head, tail uint32
}

func (q *idQueue) push(id uint64) {
	if int(q.tail-q.head) == len(q.ring) {
		ring := make([]uint64, max(2*len(q.ring), 8))
		n := q.tail - q.head
		for i := range n {
			ring[i] = q.ring[(q.head+i)&uint32(len(q.ring)-1)]
		}
		q.ring, q.head, q.tail = ring, 0, n
	}
	q.ring[q.tail&uint32(len(q.ring)-1)] = id
	q.tail++
}

func (q *idQueue) len() int { return int(q.tail - q.head) }

// dropLast drops the newest n, of at least one and no more than there are, and gives the first of
// them.
func (q *idQueue) dropLast(n int) (first uint64) {
	q.tail -= uint32(n)
	return q.ring[q.tail&uint32(len(q.ring)-1)]
}

// acked drops those up to id and says how many are left.
func (q *idQueue) acked(id uint64) int {
	for q.head != q.tail && q.ring[q.head&uint32(len(q.ring)-1)] <= id {
		q.head++
	}
	return q.len()
}

var _ io.Reader = (*numbered)(nil)
