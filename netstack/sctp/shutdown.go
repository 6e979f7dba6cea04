package sctp

import "time"

// Shutdown ends the association when all that was sent has arrived: section 9.2. EventDown says
// when.
func (a *Association) Shutdown(now time.Time) (err error) {
	if j := a.e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallShutdown, Now: now, Of: a.num})
		defer func() { j.End(&Result{Err: err}) }()
	}
	switch a.state {
	case StateClosed:
		return ErrClosed
	case StateCookieWait, StateCookieEchoed:
		a.abort(CauseUserAbort, nil, ErrNotConnected)
	case StateEstablished:
		a.setState(StateShutdownPending)
		a.mayBurst()
		a.progress(now)
		a.e.changed(a)
		a.e.timers.set(a)
	default:
		// "Once an endpoint has reached the SHUTDOWN-RECEIVED state, it MUST ignore ULP shutdown
		// requests."
	}
	return nil
}

// progress takes the next step of a shutdown once all data has been acknowledged.
func (a *Association) progress(now time.Time) {
	if a.queue.len() > 0 || a.chunks.len() > 0 {
		return
	}
	switch a.state {
	case StateShutdownPending:
		a.setState(StateShutdownSent)
		a.t5 = now.Add(5 * a.opt.RTOMax)
		a.startT2(now)
	case StateShutdownReceived:
		a.setState(StateShutdownAckSent)
		a.startT2(now)
	default:
	}
}

// startT2 sends the SHUTDOWN or SHUTDOWN ACK that belongs to the state.
func (a *Association) startT2(now time.Time) {
	a.errors = 0
	a.shutdownDue = true
	a.t2RTO = a.dataPath().rto
	a.t2 = now.Add(a.t2RTO)
	for _, p := range a.paths {
		p.beatAt, p.beatLost, p.beatDue = time.Time{}, time.Time{}, false
		p.prober.at, p.prober.due = time.Time{}, false
	}
}

// shutdownTimeout is T2-shutdown: the chunk again, with the TSN as it is now, elsewhere if
// possible.
func (a *Association) shutdownTimeout(now time.Time) {
	p := a.dataPath()
	if a.fails(p, now.Add(-a.t2RTO), true); a.state == StateClosed {
		return
	}
	a.t2RTO = min(2*a.t2RTO, a.opt.RTOMax)
	a.t2 = now.Add(a.t2RTO)
	a.shutdownDue = true
}

// handleShutdown takes a SHUTDOWN.
func (a *Association) handleShutdown(now time.Time, cum TSN) {
	if a.state < StateEstablished || a.state == StateShutdownAckSent {
		return
	}
	if a.state != StateShutdownSent && !a.ackCum(now, cum) {
		return
	}
	switch a.state {
	case StateEstablished, StateShutdownPending:
		a.setState(StateShutdownReceived)
		a.event(Event{Kind: EventPeerShutdown})
		a.progress(now)
	case StateShutdownSent:
		// "Respond immediately with a SHUTDOWN ACK chunk and move into the SHUTDOWN-ACK-SENT state,
		// restarting its T2-shutdown timer."
		a.setState(StateShutdownAckSent)
		a.startT2(now)
	default: // SHUTDOWN-RECEIVED: its acknowledgement was all
		a.progress(now)
	}
}

// handleShutdownAck ends the association with a SHUTDOWN COMPLETE.
func (a *Association) handleShutdownAck() {
	if a.state != StateShutdownSent && a.state != StateShutdownAckSent {
		return
	}
	p := a.dataPath()
	a.e.push(p.src, p.addr, p.encap, a.header(), func(b []byte) []byte {
		return appendChunk(b, chunkShutdownComplete, 0, nil)
	})
	a.down(nil)
}
