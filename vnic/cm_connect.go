package vnic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// checkPrivateData: a start frame holds 512 octets (RFC 5044, section 7.1.1), in revision 2 with 4 of
// our own (RFC 6581, section 9).
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
		PrivateData: append([]byte(nil), p.PrivateData...), IRD: shownReads(p.IRD), ORD: shownReads(p.ORD),
		MPA: rdma.MPAParam{Revision: p.Revision},
	}
}

func startConfig(p rdma.ConnParam, l Limits) iwarp.StartConfig {
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

// positive is d, or a very long time for "off".
func positive(d time.Duration) time.Duration {
	if d <= 0 {
		return math.MaxInt64 / 2
	}
	return d
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

// Connect connects qp to the address that was resolved. ESTABLISHED follows, or REJECTED,
// UNREACHABLE or CONNECT_ERROR. If the peer was reached and it came to nothing, qp is in Error.
func (id *CMID) Connect(qp *QP, p rdma.ConnParam) error {
	if err := checkPrivateData(p.PrivateData, p.MPA.Revision); err != nil {
		return err
	}
	if err := checkMPA(p.MPA); err != nil {
		return fmt.Errorf("connect with %w", err)
	}
	id.mu.Lock()
	if id.state != cmRouted && id.state != cmResolved {
		defer id.mu.Unlock()
		return id.stateError("connect")
	}
	was := id.state
	id.state = cmConnecting
	id.mu.Unlock()

	b, err := id.claim(qp)
	if err != nil {
		id.mu.Lock()
		if id.state == cmConnecting {
			id.state = was
		}
		id.mu.Unlock()
		return err
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	ctx, cancel := context.WithCancel(context.Background())
	t := id.ctx.turns.take(id.Remote(), netip.AddrPort{})
	if !id.begin(b, cancel) || !id.ctx.start(func() {
		defer cancel()
		defer t.done()
		id.connect(ctx, b, p, t)
	}) {
		t.done()
		cancel()
		b.release(false, nil)
		return fmt.Errorf("connect: %w", rdma.ErrClosed)
	}
	return nil
}

// begin notes the attempt of b, unless id was closed.
func (id *CMID) begin(b *binding, cancel func()) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmConnecting {
		return false
	}
	id.binding, id.cancel = b, cancel
	return true
}

// fail ends the attempt of b, and says so.
func (id *CMID) fail(b *binding, mpa bool, ev CMEvent) {
	b.release(mpa, ev.Err)
	id.mu.Lock()
	if id.state == cmConnecting {
		id.state = cmOver
	}
	if id.binding == b {
		id.binding = nil
	}
	id.mu.Unlock()
	id.emit(ev)
}

// connect runs on a goroutine of the context, and ends its turn when the request has been sent.
func (id *CMID) connect(ctx context.Context, b *binding, p rdma.ConnParam, t *turn) {
	d := id.dev
	_, ordered := d.cfg.Network.(OrderedNetwork)
	if ordered = ordered && !p.SCTP; !ordered {
		t.wait(ctx) // with the opening of the stream, too
	}
	if !d.cfg.ForceWire && d.owns(id.Remote().Addr()) {
		l := d.listener(id.Remote())
		if l == nil && d.cfg.Network == nil {
			id.fail(b, false, connectFailed(errno(syscall.ECONNREFUSED, "nobody listens on %v", id.Remote())))
			return
		}
		if l != nil {
			t.wait(ctx)
			id.connectLoop(ctx, b, l, p, t)
			return
		}
	}
	if d.cfg.Network == nil {
		id.fail(b, false, connectFailed(errno(syscall.ENETUNREACH, "%s has no network to reach %v", d.cfg.Name, id.Remote())))
		return
	}
	if p.SCTP {
		id.connectSCTP(ctx, b, p, t)
		return
	}
	t.open(ctx)
	dctx, cancel := context.WithTimeoutCause(ctx, positive(d.cfg.Timeouts.Connect), syscall.ETIMEDOUT)
	s, err := id.dial(dctx)
	if err != nil && dctx.Err() != nil {
		err = context.Cause(dctx)
	}
	cancel()
	if err != nil {
		id.fail(b, false, connectFailed(err))
		return
	}
	id.connectedFrom(unmap(s.LocalAddr()))
	t.wait(ctx)
	if ev, ok := id.initiate(ctx, b, s, p, t); !ok {
		id.fail(b, true, ev)
	}
}

// dial opens a stream to the peer, from id's port if that is free below too: it is the port of a
// connection that lingers, or of one that the network has chosen itself.
func (id *CMID) dial(ctx context.Context) (iwarp.Stream, error) {
	local, remote := id.Local(), id.Remote()
	if n, ok := id.dev.cfg.Network.(PortNetwork); ok && local.Port() != 0 {
		s, err := n.DialFrom(ctx, local, remote)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
	return id.dev.cfg.Network.Dial(ctx, local.Addr(), remote)
}

// initiate runs the Initiator on s and connects the QP; ok is false with an event if it came to
// nothing, and s is closed then.
func (id *CMID) initiate(ctx context.Context, b *binding, s iwarp.Stream, p rdma.ConnParam, t *turn) (ev CMEvent, ok bool) {
	abort := func(err error) (CMEvent, bool) {
		abort(s)
		return connectFailed(err), false
	}
	m, err := iwarp.NewInitiator(startConfig(p, id.ctx.limits), p.PrivateData)
	if err != nil {
		return abort(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, positive(id.dev.cfg.Timeouts.MPAReply), syscall.ETIMEDOUT)
	defer cancel()
	err = flushStart(s, m) // all of it: there is room in a new stream
	t.done()
	if err != nil {
		return abort(lostError(err))
	}
	if err := runStart(ctx, s, m, m.Done); err != nil {
		return abort(err)
	}
	params, err := m.Result()
	if err != nil { // what it has to say (a Terminate 2/0/6 or 2/0/7) has been sent
		s.SetNotify(nil)
		s.Close()
		return connectFailed(err), false
	}
	if err := b.attachWire(s, params, p, nil); err != nil {
		return connectFailed(err), false
	}
	return CMEvent{}, true
}

// connectFailed is the event for an attempt that failed, as the kernel reports it (T20).
func connectFailed(err error) CMEvent {
	var rej *iwarp.RejectedError
	var local *iwarp.LocalError
	switch {
	case errors.As(err, &rej):
		pd := append([]byte(nil), rej.PrivateData...)
		return CMEvent{
			Type: CMRejected, Status: -int32(syscall.ECONNRESET), Err: &rdma.RejectedError{PrivateData: pd},
			Param: rdma.ConnParam{PrivateData: pd},
		}
	case errors.As(err, &local):
		return CMEvent{Type: CMConnectError, Status: -int32(syscall.EPROTO), Err: err}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return CMEvent{Type: CMRejected, Status: status(err, 0), Err: err}
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		return CMEvent{Type: CMUnreachable, Status: -int32(syscall.ETIMEDOUT), Err: err}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return CMEvent{Type: CMUnreachable, Status: status(err, 0), Err: err}
	}
	return CMEvent{Type: CMConnectError, Status: status(err, syscall.ECONNABORTED), Err: err}
}
