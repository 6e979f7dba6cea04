package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/record"
)

// The MPA start-up: what programs ask for and are told, in iwarp's terms, and the octets of it.

// defaultReads is an IRD or ORD if nobody asks.
const defaultReads = 32

// checkPrivateData: a start frame holds 512 octets (RFC 5044, section 7.1.1), in revision 2 with 4
// of our own (RFC 6581, section 9).
func checkPrivateData(b []byte, revision uint8) error {
	limit := iwarp.MaxPrivateData
	if revision != 1 {
		limit -= 4
	}
	if len(b) > limit {
		return fmt.Errorf("%d octets of private data, at most %d: %w", len(b), limit, rdma.ErrInvalid)
	}
	return nil
}

// reads turns a user's IRD or ORD into a number.
func reads(v uint16, limit int) uint16 {
	switch v {
	case 0:
		v = defaultReads
	case rdma.NoReads:
		return 0
	}
	return uint16(min(int(v), limit))
}

// shownReads turns an IRD or ORD of the wire into a user's.
func shownReads(v uint16) uint16 {
	switch {
	case v == 0:
		return rdma.NoReads
	case v > 0x3ffe: // not negotiated
		return 0
	}
	return v
}

func agreed(p *iwarp.Params) rdma.ConnParam {
	return rdma.ConnParam{
		PrivateData: append([]byte(nil), p.PrivateData...), IRD: shownReads(p.IRD),
		ORD: shownReads(p.ORD),
		MPA: rdma.MPAParam{Revision: p.Revision},
	}
}

func (u *User) startConfig(p rdma.ConnParam) iwarp.StartConfig {
	l := &u.cfg
	c := iwarp.DefaultStartConfig()
	c.IRD, c.ORD = reads(p.IRD, l.IRD), reads(p.ORD, l.ORD)
	c.MaxIRD = uint16(max(l.IRD, 1))
	if p.MPA.Revision != 0 {
		c.Revision = p.MPA.Revision
	}
	switch p.MPA.CRC {
	case rdma.CRCOff:
		c.CRC = iwarp.CRCOff
	case rdma.CRCRequired:
		c.CRC = iwarp.CRCRequired
	}
	c.Markers, c.ClientServer = p.MPA.Markers, p.MPA.ClientServer
	c.RTR = rtrKinds(p.MPA.RTR)
	if p.Protocol == rdma.ROI {
		// Its Initiator begins with a Credit Return, and Markers are not for it.
		c.ROI, c.ClientServer, c.Markers = true, true, false
	}
	return c
}

// rtrs has iwarp's name for each kind of rdma's.
var rtrs = map[rdma.RTRKinds]iwarp.RTRKinds{
	rdma.RTRWrite: iwarp.RTRWrite, rdma.RTRRead: iwarp.RTRRead, rdma.RTRSend: iwarp.RTRSend,
}

func rtrKinds(k rdma.RTRKinds) (out iwarp.RTRKinds) {
	for from, to := range rtrs {
		if k&from != 0 {
			out |= to
		}
	}
	return out
}

func checkMPA(p rdma.MPAParam) error {
	if p.Revision > 2 || p.CRC > rdma.CRCRequired || p.RTR > rdma.RTRWrite|rdma.RTRRead|rdma.RTRSend ||
		p.MULPDU != 0 && (p.MULPDU < iwarp.MinMULPDU || p.MULPDU > iwarp.MaxMULPDU) {
		return fmt.Errorf("MPA parameters %+v: %w", p, rdma.ErrInvalid)
	}
	return nil
}

// overlay is p, with what is left open there from under.
func overlay(p, under rdma.MPAParam) rdma.MPAParam {
	under.Markers = under.Markers || p.Markers
	under.ClientServer = under.ClientServer || p.ClientServer
	if p.CRC != rdma.CRCDefault {
		under.CRC = p.CRC
	}
	if p.RTR != 0 {
		under.RTR = p.RTR
	}
	if p.MULPDU != 0 {
		under.MULPDU = p.MULPDU
	}
	return under
}

// A starter is one side of the MPA start-up: iwarp.Initiator or iwarp.Responder.
type starter interface {
	io.Writer
	iwarp.Source
	Commit(n int)
}

// flushStart sends what m has to say as far as there is room.
func flushStart(s iwarp.Stream, m starter) error {
	for m.Len() > 0 {
		n, err := s.WriteFrom(m)
		m.Commit(n)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	return nil
}

// abort gives up s, of which nobody is to hear any more.
func abort(s iwarp.Stream) {
	s.SetNotify(nil)
	s.Abort()
}

// runStart moves octets between s and m until done says so and m has nothing left to send, or ctx
// ends: then the error is ctx's cause.
func runStart(ctx context.Context, s iwarp.Stream, m starter, done func() bool) error {
	wake := make(chan struct{}, 1)
	s.SetNotify(func() { signal(wake) })
	for {
		if err := flushStart(s, m); err != nil {
			return lostError(err)
		}
		if !done() {
			n, err := s.ReadInto(m)
			switch {
			case n > 0:
				continue // what follows the frame is not read
			case done(): // of itself: an error that m keeps
				continue
			case errors.Is(err, io.EOF):
				return errno(syscall.ECONNRESET, "the peer closed the connection during the start-up")
			case err != nil:
				return lostError(err)
			}
		} else if m.Len() == 0 {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lostError makes sure that there is an Errno in the error of a Stream.
func lostError(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
}

// The set-up of package roi's protocol: each end's roi.Setup is in front of the private data of the
// request and of its answer, and a bit of MPA's frames, or the association, says so
// (docs/decisions.md#W2): the private data of others are never looked at. The rest is iWARP's.

// An ROI is what the two ends of a connection with that protocol have told each other.
type ROI struct{ Own, Peer roi.Setup }

// offerROI puts what a's end brings in front of p's private data.
func (a *Attempt) offerROI(p *rdma.ConnParam) error {
	switch {
	case p.Protocol == rdma.IWARP:
		return nil
	case p.Protocol != rdma.ROI:
		return invalid(fmt.Sprintf("connect with %v", p.Protocol))
	case p.MPA.Markers:
		return invalid("ROI with markers")
	}
	s := roi.Setup{Sends: !p.ROI.NoSendCredits, Reads: !p.ROI.NoReadCredits}
	if s.Sends {
		n, shared := a.qp.Receives()
		if shared {
			return fmt.Errorf("ROI with flow control of Sends on a QP with an SRQ, whose receives nobody "+
				"can be promised: set ROIParam.NoSendCredits: %w", rdma.ErrUnsupported)
		}
		s.SendCredits = uint16(min(n, 1<<16-1))
	}
	if s.Reads {
		s.ReadCredits = a.id.user.startConfig(*p).IRD
	}
	a.roi = &s
	p.PrivateData = append(s.Append(nil), p.PrivateData...)
	return checkPrivateData(p.PrivateData, p.MPA.Revision)
}

// acceptROI is offerROI for an answer, which is in the protocol that was asked for.
func (id *ID) acceptROI(a *Attempt, p *rdma.ConnParam) error {
	q := id.Param()
	switch {
	case p.Protocol == rdma.ROI && q.Protocol != rdma.ROI:
		return invalid("accept with ROI what was asked for with iWARP")
	case p.Protocol == rdma.ROI && p.ROI != q.ROI:
		return invalid(fmt.Sprintf("accept with %+v what was asked for with %+v", p.ROI, q.ROI))
	}
	return a.offerROI(p)
}

// requestROI reads what a peer asks for, who has said that it is ROI; false: it is not.
func requestROI(p *rdma.ConnParam) bool {
	s, rest, ok := roi.ParseSetup(p.PrivateData)
	if ok {
		p.Protocol, p.PrivateData = rdma.ROI, rest
		p.ROI = rdma.ROIParam{NoSendCredits: !s.Sends, NoReadCredits: !s.Reads}
	}
	return ok
}

// agreeROI is what two ends come to of which this one has brought own. It takes the peer's Setup
// out of the private data of params. An error is a *iwarp.LocalError. marked: the peer has said
// that it is there.
func agreeROI(own roi.Setup, params *iwarp.Params, marked bool) (*ROI, error) {
	peer, rest, ok := roi.ParseSetup(params.PrivateData)
	err := errNoROI
	if ok && marked {
		err = own.Agree(&peer)
	}
	if err == nil && (params.MarkersIn || params.MarkersOut) {
		err = errMarkersROI
	}
	if err != nil {
		return nil, &iwarp.LocalError{Cause: iwarp.TermMPACatastrophic, Err: err}
	}
	params.PrivateData = rest
	if own.Reads {
		params.IRD, params.ORD = own.ReadCredits, min(params.ORD, peer.ReadCredits)
	}
	return &ROI{own, peer}, nil
}

var (
	errNoROI      = errors.New("the peer's program does not speak ROI")
	errMarkersROI = errors.New("the peer wants markers, which there are none of with ROI")
)

// agree has c be a connection with ROI, if a wants that.
func (a *Attempt) agree(c *Connection) (err error) {
	if a.roi != nil {
		// Over SCTP it is the association that is marked.
		sctp := c.Stream != nil && c.Stream.Properties().Transport == llp.SCTP
		c.ROI, err = agreeROI(*a.roi, &c.Param, c.Param.ROI || sctp)
	}
	return err
}

// An initiator is an iwarp.Initiator, or one that is recorded.
type initiator interface {
	starter
	Done() bool
	Result() (iwarp.Params, error)
}

// A responder is an iwarp.Responder, or one that is recorded.
type responder interface {
	starter
	Err() error
	Request() (iwarp.Request, bool)
	Reconfigure(cfg iwarp.StartConfig) error
	Accept(ird, ord uint16, privateData []byte) (iwarp.Params, error)
	Reject(privateData []byte) error
}

// tape records the start-up on s, of QP qpn, or of one that is not known yet; nil: nobody wants
// that.
func (m *Manager) tape(qpn uint32, s iwarp.Stream) *record.Tape {
	if m.cfg.Tape == nil {
		return nil
	}
	t := m.cfg.Tape(qpn)
	if t != nil {
		t.Between("MPA's start-up over tcp", s.LocalAddr().String(), s.RemoteAddr().String())
	}
	return t
}

// newInitiator is the Initiator of a's connection on s.
func (a *Attempt) newInitiator(cfg iwarp.StartConfig, s iwarp.Stream,
	privateData []byte) (initiator, error) {
	if t := a.id.m.tape(a.qp.Num(), s); t != nil {
		return record.NewInitiator(t, cfg, privateData)
	}
	return iwarp.NewInitiator(cfg, privateData)
}

// newResponder is the Responder on s.
func (m *Manager) newResponder(cfg iwarp.StartConfig, s iwarp.Stream) (responder, error) {
	if t := m.tape(0, s); t != nil {
		return record.NewResponder(t, cfg)
	}
	return iwarp.NewResponder(cfg)
}

// belongs says of which QP r's connection is to be.
func (r *streamRequest) belongs(a *Attempt) {
	if x, ok := r.responder.(*record.Responder); ok {
		x.Belongs(a.qp.Num())
	}
}
