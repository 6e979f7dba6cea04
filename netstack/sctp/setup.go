package sctp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// handleInit answers a lone INIT, and keeps nothing of it. Sections 5.1, 5.2.1, 5.2.2 and 8.4.
func (e *Endpoint) handleInit(in *inPacket, c chunk) {
	e.keys.rotate(in.now, e.random)
	var s setup
	if !parseSetup(c, &s) || s.tag == 0 {
		// "If the value of the Initiate Tag in a received INIT chunk is found to be 0, the
		// receiver MUST silently discard the packet." Section 3.3.2.
		e.stats.Malformed++
		return
	}
	if cause := s.objection(); cause != nil {
		e.abort(in, s.tag, true, cause)
		return
	}
	a := e.table[in.key(in.Src)]
	if a == nil {
		a = e.byAddrs(in, s.peerAddrs())
	}
	if a != nil {
		a.handleInit(in, &s)
		return
	}
	l := e.listenerFor(in)
	switch {
	case l == nil:
		e.stats.OutOfTheBlue++
		e.abort(in, s.tag, true, nil)
	case !l.opt.admits(&s):
		e.abort(in, s.tag, true, appendNotAdmitted)
	case e.count >= e.cfg.MaxAssociations:
		e.abort(in, s.tag, true, appendNoResource)
	default:
		ck := cookie{tag: e.newTag(), tsn: TSN(e.random32())}
		e.sendInitAck(in, &s, &ck, l.opt, l.localsFor(in.Dst))
	}
}

func (e *Endpoint) listenerFor(in *inPacket) *listener {
	for _, l := range e.listeners[in.dstPort] {
		if l.serves(in.Dst) {
			return l
		}
	}
	return nil
}

// localsFor are our addresses in an association that a peer begins with dst.
func (l *listener) localsFor(dst netip.Addr) []netip.Addr {
	if l.locals == nil {
		return []netip.Addr{dst}
	}
	return l.locals
}

// objection says what is wrong with an INIT or INIT ACK that can be answered: the causes for an
// ABORT, or nil.
func (s *setup) objection() func([]byte) []byte {
	switch {
	case s.rwnd < minRwnd || s.out == 0 || s.in == 0:
		return func(b []byte) []byte { return appendParam(b, uint16(CauseInvalidParameter), nil) }
	case s.hostName != nil:
		return func(b []byte) []byte {
			return appendParam(b, uint16(CauseUnresolvableAddress), s.hostName)
		}
	}
	return nil
}

func (o *Options) admits(s *setup) bool {
	return o.AdmitAdaptation == nil || o.AdmitAdaptation(s.adaptation, s.adapts)
}

var notAdmitted = []byte("adaptation indication not accepted")

func appendNotAdmitted(b []byte) []byte {
	return appendParam(b, uint16(CauseUserAbort), notAdmitted)
}
func appendNoResource(b []byte) []byte { return appendParam(b, uint16(CauseOutOfResource), nil) }

// sendInitAck answers an INIT. ck comes with our tag and TSN, and with tie-tags if there are any.
func (e *Endpoint) sendInitAck(in *inPacket, s *setup, ck *cookie, opt *Options,
	locals []netip.Addr) {
	// "The initiator may ask for a longer life": not for more than twice as long.
	life := opt.CookieLife + min(time.Duration(s.preservative)*time.Millisecond, opt.CookieLife)
	ck.created, ck.life = in.now.UnixNano(), uint32(min(life, keyLife)/time.Millisecond)
	ck.srcPort, ck.dstPort = in.srcPort, in.dstPort
	ck.src, ck.dst, ck.encap = in.Src, in.Dst, in.Encap
	ck.peerTag, ck.peerTSN, ck.rwnd = s.tag, s.tsn, s.rwnd
	ck.out, ck.in = min(opt.OutStreams, s.in), min(opt.InStreams, s.out)
	ck.adapts, ck.adaptation = s.adapts, s.adaptation
	v4, v6 := families(locals)
	for _, a := range s.peerAddrs() {
		if a != in.Src && (a.Is4() && v4 || a.Is6() && v6) {
			ck.addrs[ck.nAddrs] = a
			ck.nAddrs++
		}
	}
	e.reply(in, s.tag, false, func(b []byte) []byte {
		at := len(b)
		b = appendSetupHeader(b, chunkInitAck, ck.tag, uint32(opt.RecvBuffer), ck.out,
			opt.InStreams, ck.tsn)
		b = appendLocals(b, locals, s.wants)
		cat := len(b)
		b = e.keys.seal(beginParam(b, paramCookie, 0), ck)
		e.cookies = in.now.Add(time.Duration(ck.life) * time.Millisecond)
		binary.BigEndian.PutUint16(b[cat+2:], uint16(len(b)-cat))
		// Parameters that the peer wants to be told of, as far as the answer stays small.
		for _, p := range s.unknown[:s.nUnknown] {
			if len(p) <= maxUnrecognizedSize {
				b = appendParam(b, paramUnrecognized, p)
			}
		}
		if opt.AnswerAdaptation && s.adapts {
			return endChunk(appendParam32(b, paramAdaptation, s.adaptation), at)
		}
		return endChunk(appendAdaptation(b, opt), at)
	})
}

// appendLocals lists our addresses if there is more than one; a single one is that of the packet.
func appendLocals(b []byte, locals []netip.Addr, wants func(netip.Addr) bool) []byte {
	if len(locals) < 2 {
		return b
	}
	for _, a := range locals {
		if wants == nil || wants(a) {
			b = appendAddr(b, a)
		}
	}
	return b
}

// wants says whether the peer takes addresses of a's family: those it lists as supported, and those
// that it shows by using them (section 5.1.2).
func (s *setup) wants(a netip.Addr) bool {
	if !s.types || a.Is4() && s.types4 || a.Is6() && s.types6 {
		return true
	}
	v4, v6 := families(s.peerAddrs())
	return a.Is4() && v4 || a.Is6() && v6
}

func families(addrs []netip.Addr) (v4, v6 bool) {
	for _, a := range addrs {
		v4, v6 = v4 || a.Is4(), v6 || a.Is6()
	}
	return v4, v6
}

// appendAdaptation appends the indication of RFC 5061, section 4.2.6.
func appendAdaptation(b []byte, opt *Options) []byte {
	if opt.Adaptation == nil {
		return b
	}
	return appendParam32(b, paramAdaptation, *opt.Adaptation)
}

// handleInit answers an INIT from the peer that a is for. The association does not change.
func (a *Association) handleInit(in *inPacket, s *setup) {
	e := a.e
	if a.state == StateShutdownAckSent {
		// "It SHOULD discard the INIT chunk and retransmit the SHUTDOWN ACK chunk." Section 9.2.
		a.shutdownDue = true
		e.changed(a)
		return
	}
	if a.state != StateCookieWait && a.refuseNewAddrs(in, s) {
		return
	}
	if !a.opt.admits(s) {
		e.abort(in, s.tag, true, appendNotAdmitted)
		return
	}
	var ck cookie
	switch a.state {
	case StateCookieWait, StateCookieEchoed:
		// "Using the same parameters it sent in its original INIT chunk": section 5.2.1.
		if a.path(in.Src) == nil {
			return // nor may the INIT ACK go elsewhere than where the INIT has gone
		}
		ck.tag, ck.tsn = a.tag, a.initTSN
		if a.state == StateCookieEchoed {
			ck.tie, ck.peerTie = a.tieTags()
		}
	default:
		ck.tag, ck.tsn = e.newTag(), TSN(e.random32())
		ck.tie, ck.peerTie = a.tieTags()
	}
	e.sendInitAck(in, s, &ck, a.opt, a.locals)
}

// tieTags makes the tie-tags if there are none.
func (a *Association) tieTags() (local, peer uint32) {
	if a.tie == 0 {
		a.tie, a.peerTie = a.e.newTag(), a.e.newTag()
	}
	return a.tie, a.peerTie
}

// refuseNewAddrs aborts the attempt of a restart that brings addresses with it: it would take over
// an association by knowing one of its addresses. Section 5.2.2.
func (a *Association) refuseNewAddrs(in *inPacket, s *setup) bool {
	v4, v6 := families(a.locals)
	isNew := func(x netip.Addr) bool { return (x.Is4() && v4 || x.Is6() && v6) && a.path(x) == nil }
	if !isNew(in.Src) && !slices.ContainsFunc(s.peerAddrs(), isNew) {
		return false
	}
	a.e.abort(in, s.tag, true, func(b []byte) []byte {
		at := len(b)
		b = appendParam(b, uint16(CauseRestartNewAddresses), nil)
		if isNew(in.Src) {
			b = appendAddr(b, in.Src)
		}
		for _, x := range s.peerAddrs() {
			if x != in.Src && isNew(x) {
				b = appendAddr(b, x)
			}
		}
		binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
		return b
	})
	return true
}

// handleCookieEcho takes a packet that a COOKIE ECHO leads. Sections 5.1.5 and 5.2.4.
func (e *Endpoint) handleCookieEcho(in *inPacket, c chunk, rest []byte) {
	var ck cookie
	e.keys.rotate(in.now, e.random)
	if !e.keys.open(c.value(), &ck) || ck.srcPort != in.srcPort || ck.dstPort != in.dstPort ||
		ck.tag != in.tag || !ck.has(in.Src) {
		e.stats.BadCookie++
		return
	}
	a := e.table[in.key(in.Src)]
	if a == nil {
		a = e.table[in.key(ck.src)]
	}
	local := a != nil && ck.tag == a.tag
	peer := a != nil && a.peerTag != 0 && ck.peerTag == a.peerTag
	if stale := ck.stale(in.now); stale > 0 && !(local && peer) {
		e.stats.StaleCookie++
		e.reply(in, ck.peerTag, true, func(b []byte) []byte {
			at := len(b)
			us := uint32(min((stale+time.Microsecond-1)/time.Microsecond, 1<<32-1))
			return endChunk(appendCause32(beginChunk(b, chunkError, 0), CauseStaleCookie, us), at)
		})
		return
	}
	if a == nil {
		e.acceptCookie(in, &ck)
		return
	}
	// Table 12.
	switch {
	case local && peer: // D
		a.establishedBy(in)
	case local: // B
		a.adoptCookie(in, &ck)
	case !peer && a.tie != 0 && ck.tie == a.tie && ck.peerTie == a.peerTie: // A
		if a.state == StateShutdownAckSent {
			a.shutdownDue = true
			a.control(in, func(b []byte) []byte {
				at := len(b)
				return endChunk(appendParam(beginChunk(b, chunkError, 0), uint16(CauseShuttingDown), nil), at)
			})
			e.changed(a)
			return
		}
		listener, locals := a.opt, a.locals
		a.down(ErrRestarted)
		e.associate(in, &ck, listener, locals)
		return
	default: // C, and what the table has not
		e.stats.BadCookie++
		return
	}
	a.control(in, appendCookieAck)
	a.inputRest(in, rest)
}

func appendCookieAck(b []byte) []byte { return appendChunk(b, chunkCookieAck, 0, nil) }

// acceptCookie makes an association of a cookie that has been found good.
func (e *Endpoint) acceptCookie(in *inPacket, ck *cookie) {
	l := e.listenerFor(in)
	switch {
	case l == nil:
		e.abort(in, ck.peerTag, true, nil)
	case e.spent.set[ck.tag]:
		e.stats.BadCookie++
	case e.count >= e.cfg.MaxAssociations:
		e.abort(in, ck.peerTag, true, appendNoResource)
	default:
		e.associate(in, ck, l.opt, l.localsFor(ck.dst))
	}
}

// associate makes the association of a good cookie and goes on with the rest of its packet.
func (e *Endpoint) associate(in *inPacket, ck *cookie, opt *Options, locals []netip.Addr) {
	for _, x := range ck.addrs[:ck.nAddrs] {
		if e.table[in.key(x)] != nil {
			e.stats.BadCookie++ // one of the addresses has come into use since the INIT
			return
		}
	}
	a := e.newAssociation(opt, locals, in.dstPort, in.srcPort)
	a.tag = ck.tag
	a.addPath(in.now, ck.src, sourceFor(ck, locals), ck.encap, true)
	a.fromCookie(in, ck)
	a.establish(in.now)
	a.control(in, appendCookieAck)
	_, rest, _ := nextChunk(in.Data[headerLen:])
	a.inputRest(in, rest)
}

// sourceFor is where packets to the address are sent from that the INIT came from: where the INIT
// went, as that is known to work, unless what is nearer to another of the peer's addresses. Then
// the pair has parts of two paths, and would break with either.
func sourceFor(ck *cookie, locals []netip.Addr) netip.Addr {
	for _, x := range ck.addrs[:ck.nAddrs] {
		if x != ck.src && nearest(locals, x) == ck.dst {
			return nearest(locals, ck.src)
		}
	}
	return ck.dst
}

// fromCookie takes over what a cookie says of the peer. An address that leads to another
// association stays with that.
func (a *Association) fromCookie(in *inPacket, ck *cookie) {
	for _, x := range ck.addrs[:ck.nAddrs] {
		if a.e.table[in.key(x)] == nil {
			a.addPath(in.now, x, netip.Addr{}, ck.encap, false)
		}
	}
	a.peerTag = ck.peerTag
	a.peerAdapts, a.peerAdaptation = ck.adapts, ck.adaptation
	a.start(ck.tsn, ck.peerTSN, ck.rwnd, ck.out, ck.in)
}

// adoptCookie is action B of table 12: both sides have begun, or the peer began anew with our tag.
func (a *Association) adoptCookie(in *inPacket, ck *cookie) {
	switch a.state {
	case StateCookieWait, StateCookieEchoed:
		a.fromCookie(in, ck)
		a.establish(in.now)
	default:
		a.peerTag = ck.peerTag
		if !a.gotData {
			a.have.init(ck.peerTSN - 1)
		}
	}
}

// establishedBy is action D: the peer has not seen our COOKIE ACK, or has both our tags by a
// collision.
func (a *Association) establishedBy(in *inPacket) {
	if a.state == StateCookieEchoed {
		a.establish(in.now)
	}
}

// A DialConfig says with whom to set up an association.
type DialConfig struct {
	LocalPort  uint16       // the caller chooses it
	Locals     []netip.Addr // our addresses; the first is that of the first INIT
	RemotePort uint16
	Remotes    []netip.Addr // the peer's as far as they are known, all of them good to be sent data
	Encap      uint16       // UDP port of the peer (RFC 6951); 0: bare
	Options    *Options     // nil: the Endpoint's
	User       any          `json:"-"` // put into the Association
}

// Dial begins to set up an association. EventUp or EventDown says what came of it.
func (e *Endpoint) Dial(now time.Time, c DialConfig) (a *Association, err error) {
	if j := e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallDial, Now: now, What: &c})
		defer func() {
			r := Result{Err: err}
			if err == nil {
				r.N = a.num
			}
			j.End(&r)
		}()
	}
	return e.dial(now, c)
}

func (e *Endpoint) dial(now time.Time, c DialConfig) (*Association, error) {
	if c.LocalPort == 0 || c.RemotePort == 0 || len(c.Remotes) == 0 || len(c.Remotes) > maxAddrs ||
		len(c.Locals) == 0 {
		return nil, ErrAddress
	}
	v4, v6 := families(c.Locals)
	for _, x := range c.Remotes {
		if !isUnicast(x) || x.Is4() && !v4 || x.Is6() && !v6 || x.Is4In6() {
			return nil, ErrAddress
		}
		if e.table[peerKey{c.LocalPort, c.RemotePort, x}] != nil {
			return nil, ErrPortInUse
		}
	}
	if slices.ContainsFunc(c.Locals, func(x netip.Addr) bool { return !isUnicast(x) || x.Is4In6() }) {
		return nil, ErrAddress
	}
	if e.count >= e.cfg.MaxAssociations {
		return nil, ErrTooMany
	}
	opt, err := e.options(c.Options)
	if err != nil {
		return nil, err
	}
	a := e.newAssociation(opt, slices.Clone(c.Locals), c.LocalPort, c.RemotePort)
	a.User = c.User
	a.tag, a.initTSN = e.newTag(), TSN(e.random32())
	for _, x := range c.Remotes {
		a.addPath(now, x, netip.Addr{}, c.Encap, true)
	}
	a.setState(StateCookieWait)
	a.sendSetup(now)
	return a, nil
}

// sendSetup has the INIT or COOKIE ECHO sent, and starts T1.
func (a *Association) sendSetup(now time.Time) {
	a.setupDue = true
	a.setupSent = now
	a.t1 = now.Add(a.t1RTO)
	a.e.changed(a)
	a.e.timers.set(a)
}

// setupTimeout is T1-init or T1-cookie: the same chunk again, to the next address. Section 5.1.6.
func (a *Association) setupTimeout(now time.Time) {
	if a.setupTries++; a.setupTries > a.opt.MaxInitRetransmits {
		a.down(ErrTimeout)
		return
	}
	a.t1RTO = min(2*a.t1RTO, a.opt.RTOMax)
	// "Retransmissions of INIT chunks and COOKIE ECHO chunks SHOULD use all addresses of the peer",
	// but an address that is not confirmed gets none.
	for i := 1; i <= len(a.paths); i++ {
		if p := a.paths[(a.setupPath+i)%len(a.paths)]; p.confirmed {
			a.setupPath = (a.setupPath + i) % len(a.paths)
			break
		}
	}
	a.sendSetup(now)
}

// appendInit appends our INIT.
func (a *Association) appendInit(b []byte) []byte {
	at := len(b)
	b = appendSetupHeader(b, chunkInit, a.tag, uint32(a.opt.RecvBuffer), a.opt.OutStreams,
		a.opt.InStreams, a.initTSN)
	b = appendLocals(b, a.locals, nil)
	if a.preservative > 0 {
		b = appendParam32(b, paramPreservative, a.preservative)
	}
	return endChunk(appendAdaptation(b, a.opt), at)
}

// handleInitAck takes a lone INIT ACK. Section 3.3.3, 5.1 C, 5.1.4 and 5.2.3.
func (a *Association) handleInitAck(in *inPacket, c chunk) {
	var s setup
	if a.state != StateCookieWait || !parseSetup(c, &s) {
		return
	}
	refuse := func(cause CauseCode, err error, causes func([]byte) []byte) {
		a.e.abort(in, s.tag, false, causes)
		a.down(&LocalAbort{cause, err})
	}
	switch {
	case s.tag == 0:
		// "It MUST destroy the TCB and SHOULD send an ABORT chunk with the T bit set."
		a.e.reply(in, in.tag, false, func(b []byte) []byte {
			return appendChunk(b, chunkAbort, flagT, nil)
		})
		a.down(&LocalAbort{CauseInvalidParameter, errors.New("INIT ACK with the tag 0")})
		return
	case s.rwnd < minRwnd:
		a.e.abort(in, s.tag, true, s.objection())
		return // and nothing changes
	case s.out == 0 || s.in == 0:
		refuse(CauseInvalidParameter, errors.New("INIT ACK with no streams"), s.objection())
		return
	case s.hostName != nil:
		refuse(CauseUnresolvableAddress, errors.New("INIT ACK with a host name"), s.objection())
		return
	case s.cookie == nil:
		refuse(CauseMissingParameter, errors.New("INIT ACK without a cookie"),
			func(b []byte) []byte { return appendMissing(b, paramCookie) })
		return
	case !a.opt.admits(&s):
		refuse(CauseUserAbort, errors.New(string(notAdmitted)), appendNotAdmitted)
		return
	}
	a.peerTag = s.tag
	a.peerAdapts, a.peerAdaptation = s.adapts, s.adaptation
	a.learnAddrs(in, &s)
	a.start(a.initTSN, s.tsn, s.rwnd, min(a.opt.OutStreams, s.in), min(a.opt.InStreams, s.out))
	a.cookie = append(a.cookie[:0], s.cookie...)
	a.setupError = a.setupError[:0]
	for _, p := range s.unknown[:s.nUnknown] {
		a.setupError = appendParam(a.setupError, p.typ(), p.value())
	}
	a.setState(StateCookieEchoed)
	a.setupTries, a.t1RTO = 0, a.opt.RTOInitial
	a.setupPath = max(0, slices.IndexFunc(a.paths, func(p *path) bool {
		return p.addr == in.Src && p.confirmed
	}))
	a.sendSetup(in.now)
}

// learnAddrs makes the peer's addresses those that it lists and the one it answers from. Those that
// came from our user are confirmed. Section 5.1.2 and 5.4.
func (a *Association) learnAddrs(in *inPacket, s *setup) {
	if s.nAddrs == 0 && a.path(in.Src) != nil {
		for len(a.paths) > 1 {
			a.dropPath(a.paths[slices.IndexFunc(a.paths, func(p *path) bool { return p.addr != in.Src })])
		}
		return
	}
	v4, v6 := families(a.locals)
	for _, x := range append([]netip.Addr{in.Src}, s.peerAddrs()...) {
		if (x.Is4() && v4 || x.Is6() && v6) && a.path(x) == nil && a.e.table[in.key(x)] == nil {
			a.addPath(in.now, x, netip.Addr{}, in.Encap, false)
		}
	}
	for i := len(a.paths) - 1; i >= 0 && len(a.paths) > 1; i-- {
		if p := a.paths[i]; p.addr != in.Src && !slices.Contains(s.peerAddrs(), p.addr) &&
			len(a.confirmed()) > 1 {
			a.dropPath(p)
		}
	}
}

// appendCookieEcho appends the COOKIE ECHO, and what the INIT ACK had that is not known.
func (a *Association) appendCookieEcho(b []byte, room int) []byte {
	b = appendChunk(b, chunkCookieEcho, 0, a.cookie)
	if n := len(a.setupError); n > 0 && len(b)+2*chunkLen+n <= room {
		at := len(b)
		b = appendParam(beginChunk(b, chunkError, 0), uint16(CauseUnrecognizedParameter), a.setupError)
		b = endChunk(b, at)
	}
	return b
}

// staleCookie is the peer's word that our cookie came too late: once more, with a wish for a longer
// life, then no more. Section 5.2.6.
func (a *Association) staleCookie(now time.Time) {
	if a.preservative > 0 {
		a.down(ErrStale)
		return
	}
	rtt := now.Sub(a.setupSent)
	a.preservative = uint32((rtt + time.Second) / time.Millisecond)
	a.setState(StateCookieWait)
	a.peerTag = 0
	a.setupTries, a.t1RTO = 0, a.opt.RTOInitial
	a.sendSetup(now)
}
