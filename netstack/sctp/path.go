package sctp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp/internal/congestion"
	"github.com/vrnic/vrnic/netstack/sctp/internal/rack"
)

// A path is an address of the peer and what is known of the way there. Section 7.2: "an SCTP sender
// MUST keep a set of the control variables cwnd, ssthresh, and partial_bytes_acked for each
// destination address".
type path struct {
	addr      netip.Addr
	src       netip.Addr // ours
	encap     uint16
	pmtu      int
	confirmed bool // section 5.4
	active    bool // section 8.2
	errors    int

	// Octets of DATA chunks, with headers and padding.
	cwnd, ssthresh, flight int
	full                   bool // when all was sent that could be, cwnd was in the way of more
	cubic                  congestion.Cubic
	undo                   undo // the losses that may have been none
	timeout                undo // the last T3 expiry
	// after a timeout: one packet in flight until something is acknowledged
	alone    bool
	force    bool // one packet of retransmissions is due whatever cwnd is
	extra    bool // one packet of new data is
	lastData time.Time
	decays   bool // cwnd has been cut since then, for idling

	srtt, rttvar, rto time.Duration
	timing            bool // TSN timed was sent, and not again: its round trip is measured
	timed             TSN
	t3                time.Time

	rack           rack.Detector
	oldest, newest TSN       // of the chunks in flight, in the order of their transmission
	listed         int       // those
	lateAt         time.Time // when the oldest counts as lost
	tailAt         time.Time // the next tail loss probe
	probes         int       // of these since something has arrived
	prompt         bool      // the last packet has asked for its SACK at once

	silent   bool // no heartbeats but to verify
	interval time.Duration
	beatAt   time.Time // the next HEARTBEAT
	beatLost time.Time // when the last one counts as lost
	beatDue  bool
	beatOpen bool // nonce has not been answered
	nonce    uint64
	beatSent time.Time

	prober prober

	// While a SACK is looked at.
	acked   int           // newly acknowledged octets
	waits   bool          // a chunk has been met that is still outstanding
	doubts  bool          // one has been said to have arrived, and not by this SACK
	restart bool          // the earliest outstanding chunk was acknowledged
	lost    bool          // a chunk has been found lost
	sample  time.Duration // a round trip; -1: none
	// what was thought to be lost at a T3 expiry has arrived, and was not sent again
	intact bool
}

// An undo is what a path had before its window was cut for losses.
type undo struct {
	valid          bool
	cwnd, ssthresh int
	cubic          congestion.Cubic
}

// instant is now as the packages below count time.
func instant(now time.Time) time.Duration { return time.Duration(now.UnixNano()) }

// pmdcs is the largest DATA chunk that fits a packet.
func (p *path) pmdcs() int { return (p.pmtu - headerLen) &^ 3 }

// resetCongestion sets the congestion state of a way that nothing is known of. Section 7.2.1.
func (p *path) resetCongestion() {
	floor := 4404
	if p.addr.Is6() {
		floor = 4344
	}
	d := p.pmdcs()
	p.cwnd = min(4*d, max(2*d, floor))
	p.ssthresh = 1 << 30
	p.cubic, p.undo, p.timeout = congestion.Cubic{}, undo{}, undo{}
	p.rack.Forget()
}

// cut makes the window smaller for losses, and remembers what it was.
func (p *path) cut() {
	if !p.undo.valid {
		p.undo = p.windows()
	}
	p.ssthresh = p.cubic.Shrink(p.cwnd, p.pmdcs(), 4*p.pmdcs())
	p.cwnd = min(p.cwnd, p.ssthresh)
}

// windows is what there is to give back once it turns out that what is lost now is not.
func (p *path) windows() undo { return undo{true, p.cwnd, p.ssthresh, p.cubic} }

// restore gives back what there was before losses that were none. What there was before earlier
// ones, of which that is not known yet, is still remembered.
func (p *path) restore(u undo) {
	p.cwnd, p.ssthresh, p.cubic = max(p.cwnd, u.cwnd), max(p.ssthresh, u.ssthresh), u.cubic
	if p.timeout = (undo{}); p.undo == u {
		p.undo = undo{}
	}
}

// addPath makes x an address of a's peer. src may be invalid: then one of ours is chosen.
func (a *Association) addPath(now time.Time, x, src netip.Addr, encap uint16, confirmed bool) {
	if p := a.path(x); p != nil {
		return
	}
	if !src.IsValid() {
		src = nearest(a.locals, x)
	}
	p := &path{
		addr: x, src: src, encap: encap, pmtu: a.e.mtu(x, encap), confirmed: confirmed, active: true,
		rto: a.opt.RTOInitial, interval: a.opt.HeartbeatInterval, silent: a.opt.HeartbeatInterval < 0,
		lastData: now,
	}
	p.resetCongestion()
	a.paths = append(a.paths, p)
	if a.primary == nil {
		a.primary = p
	}
	a.e.table[peerKey{a.lport, a.rport, x}] = a
}

func (a *Association) dropPath(p *path) {
	a.paths = slices.DeleteFunc(a.paths, func(q *path) bool { return q == p })
	delete(a.e.table, peerKey{a.lport, a.rport, p.addr})
	if a.primary == p {
		a.primary = a.paths[0]
	}
	if a.ctlPath == p {
		a.ctl = a.ctl[:0]
	}
}

func (a *Association) path(x netip.Addr) *path {
	for _, p := range a.paths {
		if p.addr == x {
			return p
		}
	}
	return nil
}

func (a *Association) confirmed() (ps []*path) {
	for _, p := range a.paths {
		if p.confirmed {
			ps = append(ps, p)
		}
	}
	return ps
}

// nearest chooses the address of ours that has most leading bits in common with x.
func nearest(locals []netip.Addr, x netip.Addr) (best netip.Addr) {
	most := -1
	for _, l := range locals {
		if l.Is4() != x.Is4() {
			continue
		}
		n := 0
		for n < l.BitLen() && netip.PrefixFrom(l, n+1).Contains(x) {
			n++
		}
		if n > most {
			best, most = l, n
		}
	}
	return best
}

// dataPath is where new data goes: the primary path, or an active one if that is not. Section
// 6.4.1.
func (a *Association) dataPath() *path {
	if a.primary.active && a.primary.confirmed {
		return a.primary
	}
	for _, p := range a.paths {
		if p.active && p.confirmed {
			return p
		}
	}
	return a.primary
}

// alternate is an active path other than p; nil if there is none.
func (a *Association) alternate(p *path) *path {
	if a.primary != p && a.primary.active && a.primary.confirmed {
		return a.primary
	}
	for _, q := range a.paths {
		if q != p && q.active && q.confirmed {
			return q
		}
	}
	return nil
}

// measure takes a round trip time. Section 6.3.1.
func (p *path) measure(r time.Duration, o *Options) {
	if p.srtt == 0 { // rule C2 of section 6.3.1
		p.srtt, p.rttvar = r, r/2
	} else { // rule C3
		p.rttvar += ((p.srtt - r).Abs() - p.rttvar) / 4
		p.srtt += (r - p.srtt) / 8
	}
	p.srtt, p.rttvar = max(p.srtt, 1), max(p.rttvar, 1) // rule G1: docs/decisions.md#P3
	p.baseRTO(o)
}

// baseRTO sets the RTO without any back-off; only where a round trip is known.
func (p *path) baseRTO(o *Options) {
	if p.srtt > 0 {
		p.rto = min(max(p.srtt+4*p.rttvar, o.RTOMin), o.RTOMax)
	}
}

// backOff is rule E2 of section 6.3.3.
func (p *path) backOff(o *Options) { p.rto = min(2*p.rto, o.RTOMax) }

// fails counts an error of p, and one of the association if it is to suffer: nothing has answered
// to what was sent at asked. Silence before that counts only for as long as heartbeats leave
// between them: without these the peer had nothing to say. Section 8.1, 8.2.
func (a *Association) fails(p *path, asked time.Time, association bool) {
	if p.active {
		p.errors++
		if p.errors > a.opt.PathMaxRetrans {
			p.active = false
			a.event(Event{Kind: EventPath, Addr: p.addr, Path: PathInactive})
		}
	}
	if association {
		if d := a.opt.UserTimeout; d > 0 && !a.heard.IsZero() && a.silentAt.IsZero() {
			if !p.silent {
				asked = asked.Add(-p.interval - 2*p.rto)
			}
			if a.heard.After(asked) {
				asked = a.heard
			}
			a.silentAt = asked.Add(d)
		}
		if a.errors++; a.errors > a.opt.AssociationMaxRetrans {
			a.down(ErrTimeout)
		}
	}
}

// works clears the errors of p.
func (a *Association) works(p *path) {
	p.errors = 0
	if !p.active {
		p.active = true
		a.event(Event{Kind: EventPath, Addr: p.addr, Path: PathActive})
	}
}

// beginHeartbeats starts the timer of p. Section 5.4: probing begins when the association is
// established; section 8.3: so does the watch on idle addresses.
func (a *Association) beginHeartbeats(now time.Time, p *path) {
	if !p.confirmed {
		p.beatAt = now
		return
	}
	a.idle(now, p)
}

// retry sends what p waits to send again, at once and as if nothing had been lost before: the way
// may be good again.
func (a *Association) retry(now time.Time, p *path) {
	switch {
	case a.state == StateCookieWait || a.state == StateCookieEchoed:
		a.t1RTO = a.opt.RTOInitial
		a.sendSetup(now)
		return
	case !a.t2.IsZero():
		a.t2RTO = a.opt.RTOInitial
		a.t2, a.shutdownDue = now.Add(a.t2RTO), true
		return
	case !p.active || !p.confirmed:
		p.rto = a.opt.RTOInitial
		a.beat(now, p)
	}
	if !p.alone {
		return // what is late is the business of T3 and the probes before it
	}
	p.rto = a.opt.RTOInitial
	p.baseRTO(a.opt)
	for i := range a.chunks.len() {
		if c := a.chunks.at(i); c.path == p && c.outstanding() {
			a.mark(c, a.ackTSN+1+TSN(i))
		}
	}
	p.t3 = time.Time{}
	if c := a.firstMarked(); c != nil {
		a.target(c).force = true
		a.mayBurst()
	}
}

// hears has what waits for a T3 with back-off sent again when the peer is heard, but once in a
// round trip only.
func (a *Association) hears(now time.Time, p *path) {
	if p.alone && now.Sub(p.lastData) >= max(p.srtt+4*p.rttvar, minTailWait) {
		a.retry(now, p)
	}
}

// LinkUp says that our link is there again after it was not: whatever waits for a timer with
// back-off is sent at once, to every peer.
func (e *Endpoint) LinkUp(now time.Time) {
	if j := e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallLinkUp, Now: now})
		defer j.End(&Result{})
	}
	for _, a := range e.timers.all() {
		for _, p := range a.paths {
			a.retry(now, p)
		}
		e.changed(a)
		e.timers.set(a)
	}
}

// idle sets when p counts as idle: RTO + HB.interval, +/- 50 % of RTO, from now.
func (a *Association) idle(now time.Time, p *path) {
	p.beatAt = time.Time{}
	if !p.silent {
		half := int64(p.rto / 2)
		p.beatAt = now.Add(p.rto + p.interval + time.Duration(a.e.jitter.Int64N(2*half+1)-half))
	}
}

// heartbeat has a HEARTBEAT sent to p, if it is time for one.
func (a *Association) heartbeat(now time.Time, p *path) {
	if !a.state.sends() {
		return // "is discontinued after sending either a SHUTDOWN chunk or SHUTDOWN ACK chunk"
	}
	if a.beatHold.After(now) {
		p.beatAt = a.beatHold // HB.Max.Burst is 1
		return
	}
	if p.beatLost.After(now) {
		p.beatAt = p.beatLost // the last one is not lost yet
		return
	}
	a.beatHold = now.Add(min(p.rto, a.opt.RTOInitial))
	a.beat(now, p)
	if p.confirmed || !p.active {
		a.idle(now, p)
	} else {
		p.beatAt = now.Add(p.rto)
	}
}

func (a *Association) beat(now time.Time, p *path) {
	a.e.random(a.e.scratch[:8])
	p.nonce = binary.BigEndian.Uint64(a.e.scratch[:])
	p.beatDue, p.beatOpen, p.beatSent, p.beatLost = true, true, now, now.Add(p.rto)
}

// heartbeatTimeout counts a HEARTBEAT that was not acknowledged in time. "Unacknowledged HEARTBEAT
// chunks observed on paths different from the path currently used for data transfer SHOULD NOT
// increment the association error counter": section 8.1.
func (a *Association) heartbeatTimeout(now time.Time, p *path) {
	if !a.state.sends() {
		return
	}
	used := p.confirmed && p == a.dataPath()
	p.backOff(a.opt)
	a.fails(p, p.beatSent, used)
	// A peer whose silence is counted is asked more often, so that it is not lost for one answer.
	if used && !a.silentAt.IsZero() && !p.beatAt.IsZero() {
		p.beatAt = earliest(p.beatAt, now.Add(a.opt.UserTimeout/silenceBeats))
	}
}

// silenceBeats is how often a silent peer is asked in a UserTimeout, if round trips are short.
const silenceBeats = 12

// A HEARTBEAT of ours carries a nonce(8) and the address(16) it goes to.
const heartbeatInfo = 24

func (p *path) appendHeartbeat(b []byte, nonce uint64) []byte {
	at := len(b)
	b = beginChunk(b, chunkHeartbeat, 0)
	var info [heartbeatInfo]byte
	binary.BigEndian.PutUint64(info[:], nonce)
	v := p.addr.As16()
	copy(info[8:], v[:])
	return endChunk(appendParam(b, paramHeartbeatInfo, info[:]), at)
}

// handleHeartbeat answers with all that came, unchanged, to where it came from. Section 8.3.
func (a *Association) handleHeartbeat(in *inPacket, c chunk) {
	p := a.path(in.Src)
	if p == nil || a.state == StateShutdownSent || a.state == StateShutdownAckSent {
		return
	}
	a.controlTo(p, func(b []byte) []byte { return appendChunk(b, chunkHeartbeatAck, 0, c.value()) })
}

// handleHeartbeatAck takes an answer to the last HEARTBEAT of one path; others prove nothing.
func (a *Association) handleHeartbeatAck(now time.Time, c chunk) {
	info, _, ok := nextParam(c.value())
	if !ok || info.typ() != paramHeartbeatInfo || len(info) != paramLen+heartbeatInfo ||
		a.state < StateEstablished {
		return
	}
	nonce := binary.BigEndian.Uint64(info.value())
	i := slices.IndexFunc(a.paths,
		func(p *path) bool { return p.addr.As16() == [16]byte(info.value()[8:]) })
	if i < 0 {
		return
	}
	p := a.paths[i]
	if p.prober.size != 0 && p.prober.nonce == nonce {
		a.probed(now, p)
		return
	}
	if !p.beatOpen || p.nonce != nonce {
		return
	}
	p.beatOpen, p.beatLost = false, time.Time{}
	p.measure(now.Sub(p.beatSent), a.opt)
	// "The receiver of the HEARTBEAT ACK chunk MAY choose not to clear the counter if there is
	// outstanding data": a way that takes heartbeats and no data is not one.
	if a.chunks.len() == 0 {
		a.errors = 0
	}
	if !p.confirmed {
		p.confirmed = true
		a.idle(now, p)
		a.event(Event{Kind: EventPath, Addr: p.addr, Path: PathConfirmed})
		a.checkMaxPayload()
	}
	a.works(p)
}

// PathInfo is what is known of one of the peer's addresses.
type PathInfo struct {
	Addr, Local                    netip.Addr
	Primary, Confirmed, Active     bool
	PMTU, Cwnd, Ssthresh, InFlight int
	SRTT, RTTVar, RTO              time.Duration
	Errors                         int
}

// Paths describes the peer's addresses.
func (a *Association) Paths() []PathInfo {
	infos := make([]PathInfo, len(a.paths))
	for i, p := range a.paths {
		infos[i] = PathInfo{
			p.addr, p.src, p == a.primary, p.confirmed, p.active, p.pmtu, p.cwnd, p.ssthresh, p.flight,
			p.srtt, p.rttvar, p.rto, p.errors,
		}
	}
	return infos
}

// SetPrimary makes addr the address that new data goes to. Section 11.1.6.
func (a *Association) SetPrimary(addr netip.Addr) error {
	p := a.path(addr)
	if p == nil || !p.confirmed {
		return ErrAddress
	}
	a.primary = p
	a.e.changed(a)
	return nil
}

// SetHeartbeat sets the interval between heartbeats to addr, to which the RTO is added; a negative
// one stops them. Section 11.1.9.
func (a *Association) SetHeartbeat(now time.Time, addr netip.Addr, interval time.Duration) error {
	p := a.path(addr)
	if p == nil {
		return ErrAddress
	}
	p.silent, p.interval = interval < 0, max(interval, 0)
	if p.confirmed && a.state.sends() {
		a.idle(now, p)
	}
	a.e.changed(a)
	a.e.timers.set(a)
	return nil
}

// RequestHeartbeat sends a HEARTBEAT to addr now. Section 11.1.10.
func (a *Association) RequestHeartbeat(now time.Time, addr netip.Addr) error {
	p := a.path(addr)
	if p == nil {
		return ErrAddress
	}
	if !a.state.sends() {
		return ErrNotConnected
	}
	a.beat(now, p)
	a.e.changed(a)
	a.e.timers.set(a)
	return nil
}

// SetRetransmitLimits sets how many losses in a row end the association, and make a path inactive.
// Section 11.1.12.
func (a *Association) SetRetransmitLimits(association, path int) {
	o := *a.opt
	o.AssociationMaxRetrans, o.PathMaxRetrans = association, path
	a.opt = &o
}

// Rerouted says that packets to addr take another way now, or have another code point: what was
// learnt of congestion on the old one is forgotten. Section 7.2.5. local is our address there.
func (a *Association) Rerouted(addr, local netip.Addr) error {
	p := a.path(addr)
	if p == nil {
		return ErrAddress
	}
	if local.IsValid() {
		p.src = local
	}
	p.pmtu = a.e.mtu(p.addr, p.encap)
	p.resetCongestion()
	a.checkMaxPayload()
	return nil
}
