package iwarp

import (
	"errors"
	"io"
)

// startOut holds the octets that a start-up machine wants sent. It is a Source whose octets are
// gone only by Commit.
type startOut struct {
	b    []byte
	read int // octets of b given by Read since the last Commit
}

// Len is how many octets there are to send and not read yet.
func (o *startOut) Len() int { return len(o.b) - o.read }

// Read gives octets to send. They stay until Commit.
func (o *startOut) Read(p []byte) (int, error) {
	if o.Len() == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.b[o.read:])
	o.read += n
	return n, nil
}

// Commit says that the transport owns the first n of the octets read since the last Commit.
// Call it after every WriteFrom, also with 0.
func (o *startOut) Commit(n int) {
	o.b = o.b[min(max(n, 0), len(o.b)):]
	o.read = 0
}

// putTerminate queues a Terminate for a fault of the set-up: an ordinary FPDU with MSN 1.
func (o *startOut) putTerminate(c TermCode, p *Params) {
	t := Terminate{Cause: c}
	seg := t.Append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0))
	if p.MarkersOut {
		o.b = AppendMarkedFPDU(o.b, seg, p.CRC, 0)
		return
	}
	o.b = AppendFPDU(o.b, seg, p.CRC)
}

// An Initiator runs the start-up of the end that sends the Request (RFC 5044, section 7.1.2).
//
//	Request queued -> Reply awaited -> accepted | rejected | failed
type Initiator struct {
	startOut
	cfg    StartConfig
	req    StartFrame
	in     startReader
	done   bool
	params Params
	err    error
}

// NewInitiator queues the Request. ErrPrivateData, ErrConfig.
func NewInitiator(cfg StartConfig, privateData []byte) (*Initiator, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Initiator{cfg: cfg}
	s.req = StartFrame{Revision: cfg.Revision, Markers: cfg.Markers, CRC: cfg.CRC != CRCOff,
		ROI: cfg.ROI, PrivateData: privateData}
	s.req.Data, s.req.Enhanced = cfg.Offer()
	var err error
	if s.b, err = s.req.Append(nil); err != nil {
		return nil, err
	}
	s.req.PrivateData = nil
	return s, nil
}

// Done says whether Result has something to say.
func (s *Initiator) Done() bool { return s.done }

// Result is what came out: nil, a *RejectedError or a *LocalError, and ErrState before Done. With
// an error octets may be left to send (a Terminate): send them, then close.
func (s *Initiator) Result() (Params, error) {
	if !s.done {
		return Params{}, ErrState
	}
	return s.params, s.err
}

// Write takes octets of the Reply from b and says how many; what is behind the Reply is not taken
// and belongs to the Endpoint (docs/decisions.md#M6). Fewer than len(b) go with io.ErrShortWrite.
// Other errors are in Result only.
func (s *Initiator) Write(b []byte) (n int, err error) {
	if !s.done {
		var f StartFrame
		var got bool
		if n, f, got, err = s.in.add(b, keyReply); err != nil {
			s.fail(&LocalError{TermStartFrame, err})
		} else if got {
			s.reply(&f)
		}
	}
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func (s *Initiator) fail(err error) { s.done, s.err, s.params = true, err, Params{} }

// failWith ends the set-up with a Terminate: RFC 6581, section 8.
func (s *Initiator) failWith(c TermCode, p *Params, err error) {
	s.fail(&LocalError{c, err})
	s.putTerminate(c, p)
}

func (s *Initiator) reply(f *StartFrame) {
	switch {
	case !f.Reply:
		s.fail(localErrorf(TermStartFrame, "a Request in place of a Reply"))
		return
	case f.Revision == 0 || f.Revision > 2:
		s.fail(localErrorf(TermStartFrame, "Reply with revision %d", f.Revision))
		return
	case f.Rejected:
		r := &RejectedError{Revision: f.Revision, Enhanced: f.Enhanced, IRD: f.Data.IRD, ORD: f.Data.ORD,
			PrivateData: f.PrivateData}
		s.fail(r)
		return
	case f.Enhanced != s.req.Enhanced:
		// EMPA-016
		s.fail(localErrorf(TermStartFrame, "Reply with S=%t to a Request with S=%t", f.Enhanced,
			s.req.Enhanced))
		return
	}
	p := Params{
		Initiator: true, Revision: min(s.cfg.Revision, f.Revision), CRC: s.req.CRC || f.CRC,
		MarkersIn: s.req.Markers, MarkersOut: f.Markers,
		IRD: s.cfg.IRD, ORD: s.cfg.ORD, PeerIRD: NotNegotiated, PeerORD: NotNegotiated,
		ROI: f.ROI, PrivateData: f.PrivateData,
	}
	if s.cfg.CRC == CRCRequired && !f.CRC {
		err := errors.New("the peer does not confirm CRCs, which are required")
		if f.Enhanced {
			s.failWith(TermMPACatastrophic, &p, err) // RFC 6581, section 9.3
		} else {
			s.fail(&LocalError{TermMPACatastrophic, err})
		}
		return
	}
	if f.Enhanced {
		if err := s.cfg.Conclude(&p, f.Data); err != nil {
			s.fail(err)
			s.putTerminate(localError(err, TermMPACatastrophic).Cause, &p) // RFC 6581, section 8
			return
		}
	}
	s.done, s.params = true, p
}

// A Request is what a peer asked for.
type Request struct {
	Revision    uint8
	CRC         bool
	Markers     bool // it wants them in what we send
	Enhanced    bool
	ROI         bool // see StartConfig
	PeerToPeer  bool
	RTR         RTRKinds
	IRD, ORD    uint16 // the peer's; NotNegotiated if it did not say
	PrivateData []byte
}

// A Responder runs the start-up of the end that answers a Request (RFC 5044, section 7.1.2).
//
//	Request awaited -> asked -> accepted | rejected
//	       any but accepted -> failed
type Responder struct {
	startOut
	cfg   StartConfig
	in    startReader
	frame StartFrame
	state respState
	err   error
}

type respState uint8

const (
	respWait respState = iota
	respAsked
	respAnswered
	respFailed
)

// NewResponder waits for a Request. ErrConfig.
func NewResponder(cfg StartConfig) (*Responder, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Responder{cfg: cfg}, nil
}

// Err is the fault that ended the start-up, a *LocalError, or nil. Send what Len says, then close.
func (s *Responder) Err() error { return s.err }

// Write takes octets of the Request. An Initiator sends nothing behind it before our Reply, so more
// octets make the frame malformed (MPA-072). Once answered, nothing is taken: io.ErrShortWrite.
func (s *Responder) Write(b []byte) (n int, err error) {
	if s.state == respWait && len(b) > 0 {
		var f StartFrame
		var got bool
		if n, f, got, err = s.in.add(b, keyRequest); err != nil {
			s.fail(&LocalError{TermStartFrame, err})
		} else if got {
			s.request(&f)
		}
	}
	if s.state == respAsked && n < len(b) {
		s.fail(localErrorf(TermStartFrame, "octets behind the Request"))
	}
	if s.state == respFailed {
		return len(b), nil // drained: the connection is about to be closed
	}
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func (s *Responder) fail(err error) { s.state, s.err = respFailed, err }

func (s *Responder) request(f *StartFrame) {
	s.frame = *f
	switch {
	case f.Reply:
		s.fail(localErrorf(TermStartFrame, "a Reply in place of a Request"))
	case f.Revision == 0 || f.Revision > 2:
		s.fail(localErrorf(TermStartFrame, "Request with revision %d", f.Revision))
	case f.Enhanced && s.cfg.Revision < 2:
		// EMPA-013: without enhanced support such a Request is malformed.
		s.fail(localErrorf(TermStartFrame, "enhanced Request at revision 1"))
	default:
		s.state = respAsked
	}
}

// Reconfigure replaces what NewResponder was given, for an answer that is to differ: CRC, Markers,
// RTR, MaxIRD and ROI. The revision stays. Call it before Accept or Reject. ErrState, ErrConfig.
func (s *Responder) Reconfigure(cfg StartConfig) error {
	if s.state != respWait && s.state != respAsked {
		return ErrState
	}
	if err := cfg.check(); err != nil {
		return err
	}
	cfg.Revision = s.cfg.Revision
	s.cfg = cfg
	return nil
}

// Request is the peer's wish once it has come and until it has been answered.
func (s *Responder) Request() (r Request, ok bool) {
	if s.state != respAsked {
		return r, false
	}
	f := &s.frame
	r = Request{Revision: f.Revision, CRC: f.CRC, Markers: f.Markers, Enhanced: f.Enhanced,
		ROI: f.ROI, IRD: NotNegotiated, ORD: NotNegotiated, PrivateData: f.PrivateData}
	if f.Enhanced {
		r.PeerToPeer, r.IRD, r.ORD = f.Data.PeerToPeer, f.Data.IRD, f.Data.ORD
		if r.PeerToPeer {
			r.RTR = f.Data.RTR
		}
	}
	return r, true
}

// base is the frame common to all answers: the form of the Request, the lower revision
// (docs/decisions.md#M5).
func (s *Responder) base(ird, ord uint16) (StartFrame, Params) {
	req := &s.frame
	f := StartFrame{
		Reply: true, Revision: min(s.cfg.Revision, req.Revision), Enhanced: req.Enhanced,
		// C is set whenever the Request had it: siw looks at the Reply only (docs/interop.md#S7).
		CRC: req.CRC || s.cfg.CRC != CRCOff, Markers: s.cfg.Markers, ROI: s.cfg.ROI,
	}
	p := Params{Revision: f.Revision, CRC: f.CRC, MarkersIn: f.Markers, MarkersOut: req.Markers,
		ROI: req.ROI, IRD: ird, ORD: ord, PeerIRD: NotNegotiated, PeerORD: NotNegotiated,
		PrivateData: req.PrivateData}
	if !req.Enhanced {
		return f, p
	}
	f.Data = s.cfg.Answer(&p, req.Data)
	return f, p
}

// Accept queues an accepting Reply. ird and ord are what this connection wants; the result holds
// what came out: ORD at most the peer's IRD (docs/decisions.md#M3), IRD raised to the peer's ORD
// where MaxIRD allows. Be ready for FPDUs before the Reply goes out. ErrState, ErrPrivateData,
// ErrConfig.
func (s *Responder) Accept(ird, ord uint16, privateData []byte) (Params, error) {
	if s.state != respAsked {
		return Params{}, ErrState
	}
	if err := checkReads(ird, ord); err != nil {
		return Params{}, err
	}
	f, p := s.base(ird, ord)
	f.PrivateData = privateData
	b, err := f.Append(nil)
	if err != nil {
		return Params{}, err
	}
	s.b, s.state = b, respAnswered
	return p, nil
}

// Reject queues a rejecting Reply. TCP stays open for the caller to close. ErrState,
// ErrPrivateData.
func (s *Responder) Reject(privateData []byte) error {
	if s.state != respAsked {
		return ErrState
	}
	f, _ := s.base(s.cfg.IRD, s.cfg.ORD)
	f.Rejected, f.Markers, f.PrivateData = true, false, privateData
	b, err := f.Append(nil)
	if err != nil {
		return err
	}
	s.b, s.state = b, respAnswered
	return nil
}
