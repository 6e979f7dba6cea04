package tcp

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/tcp/recovery"
)

// A lossControl finds out what a connection has to send again and how much it may have under way,
// with a recovery.Sender, in place of gVisor. gVisor sees ACKs without their SACK blocks, and does
// nothing about losses then but to time out. What the blocks say is kept here until somebody has
// the endpoint locked: gVisor, which tells of each ACK that acknowledges anything (Update), or the
// goroutine of the Host that looks after losses.
//
// Its methods need the endpoint locked, unless they say otherwise.
type lossControl struct {
	c     *Conn
	clock tcpip.Clock
	snd   gvisor.Sender
	rec   recovery.Sender

	window     int  // what SndCwnd was set to last
	timed      bool // gVisor has timed out, and has begun to send all again
	measuring  bool // a round trip
	measured   tcpip.MonotonicTime
	again      uint32 // timestamp of the first retransmission of this recovery
	stamped    bool   // there is one
	giveUp     bool   // gVisor counts the time until it gives up, since a timeout
	sendBuffer int    // octets
	troubled   bool   // something was lost lately: tail losses are looked for at once
	quiet      bool   // it is among losses.silent, unless it is gone
	alone      bool   // gVisor fills the peer's window by itself
	gone       bool   // guarded by losses.mu: the user has given the connection back
	scale      int    // the peer's window is in units of 1<<scale octets
	timer      tcpip.Timer
	silence    time.Duration // when the first timeout was since something was acknowledged
	retried    time.Duration // when retry has done something
	due        time.Duration // when timer will run; 0: it will not

	bound  atomic.Bool   // the peer's window holds the sender back
	edge   atomic.Uint32 // where that ended when gVisor was told of it
	number atomic.Uint32 // what the peer has acknowledged in segments that are queued
	opened atomic.Bool   // a segment is queued that has opened it, perhaps

	busy   atomic.Bool // ACKs are to be looked at, be there SACK blocks or not
	queued atomic.Bool // for the goroutine, which has not begun with it
	nudged atomic.Bool // the peer may be there again

	growSend atomic.Bool // the window wants a larger send buffer

	watched atomic.Bool   // it is in losses.watched: something is under way, perhaps
	una     atomic.Uint32 // what the peer has acknowledged
	lastUna uint32        // una at the last tick

	heard atomic.Bool // there is something in acks
	mu    sync.Mutex
	acks  []heardACK // guarded by mu
	spare []heardACK // room for acks, while run looks at some
}

// A heardACK is an ACK that was taken from a segment.
type heardACK struct {
	at        time.Duration
	number    recovery.Seq
	timestamp uint32 // the one that it answers; 0: none
	n         int
	blocks    [maxBlocks]recovery.Block
}

// maxBlocks is how many SACK blocks a header has room for.
const maxBlocks = 4

// maxACKs bounds the ACKs that wait. What one says is in those behind it, but for the SACK blocks
// that have no room there.
const maxACKs = 256

// start takes over from gVisor's congestion control.
func (l *lossControl) start(c *Conn, clock tcpip.Clock) {
	l.c, l.clock, l.snd = c, clock, gvisor.SenderOf(c.ep)
	if !l.snd.Exists() {
		return
	}
	l.sendBuffer = int(c.ep.SocketOptions().GetSendBufferSize())
	st := l.snd.State()
	l.scale = int(st.SndWndScale)
	l.rec.Init(recovery.Seq(st.SndUna), st.MaxPayloadSize)
	l.rec.Whole = func(from recovery.Seq, most int) int { return l.snd.Whole(uint32(from), most) }
	switch r := l.snd.RTT(); {
	case r.SRTTInited && r.SRTT >= tcp.InitialRTO-time.Millisecond:
		// A SYN was sent again, with the timestamp of the first one: what was measured is the time that
		// it was lost for (Karn). RFC 6298, section 5.7, wants 3 s then, until a round trip is known;
		// docs/decisions.md#N1.
		*r, st.RTTState, st.RTO = tcp.TCPRTTState{}, tcp.TCPRTTState{}, tcp.InitialRTO
	case r.SRTTInited && r.SRTT > tcp.MinSRTT:
		l.rec.RTT(l.now(), r.SRTT)
	}
	l.window = st.SndCwnd
	l.snd.SetControl((*control)(l))
}

// now is the time as a recovery.Sender sees it.
func (l *lossControl) now() time.Duration {
	return l.clock.NowMonotonic().Sub(tcpip.MonotonicTime{})
}

// received looks at the segment p, with a header of n octets, before gVisor gets it. It reports
// whether gVisor must not see the SACK blocks. The endpoint need not be locked.
func (l *lossControl) received(p *frame.Packet, n int) (strip bool) {
	t := header.TCP(p.Headers[p.L4 : p.L4+n])
	plain := plainOptions(t)
	if !l.snd.Exists() || !l.c.ep.SACKPermitted || plain && !l.busy.Load() ||
		t.Flags()&header.TCPFlagAck == 0 {
		return false
	}
	o := header.ParseTCPOptions(t.Options())
	if len(o.SACKBlocks) == 0 && !l.busy.Load() {
		return false
	}
	a := heardACK{at: l.now(), number: recovery.Seq(t.AckNumber()), timestamp: o.TSEcr}
	for _, b := range o.SACKBlocks[:min(len(o.SACKBlocks), maxBlocks)] {
		a.blocks[a.n] = recovery.Block{Start: recovery.Seq(b.Start), End: recovery.Seq(b.End)}
		a.n++
	}
	l.keep(a)
	return len(o.SACKBlocks) > 0
}

// keep has a wait for run. Where too many do the older half goes: the latest says most.
func (l *lossControl) keep(a heardACK) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.acks) >= maxACKs {
		l.acks = append(l.acks[:0], l.acks[maxACKs/2:]...)
	}
	l.acks = append(l.acks, a)
	l.heard.Store(true)
}

// run deals with what was heard and with the time, sends again what is lost, and sets the window.
func (l *lossControl) run(now time.Duration) {
	st := l.snd.State()
	if l.timed {
		l.timed = false
		l.snd.Rewind()
		if n := l.snd.Forward(); n > 0 {
			l.rec.Again(n, now)
		}
	}
	l.rec.Sent(recovery.Seq(st.SndNxt), st.MaxPayloadSize)
	l.hear()
	l.rec.Acked(recovery.Ack{At: now, Number: recovery.Seq(st.SndUna)})
	next := l.rec.Look(now)
	l.rec.Pace()
	if !l.rec.Recovering() {
		l.stamped = false
	}
	if l.quiet && !l.rec.Silent() {
		l.quiet = false
		l.c.host.losses.setSilent(l, false)
	}
	l.snd.Rewind()
	for {
		b, ok := l.rec.Next(now)
		if !ok {
			break
		}
		if !l.stamped {
			l.again, l.stamped = gvisor.Timestamp(l.c.ep), true
		}
		l.snd.Resend(uint32(b.Start), uint32(b.End))
	}
	tail, due, then := l.rec.Tail(now, st.LastSendTime.Sub(tcpip.MonotonicTime{}))
	if due {
		l.snd.Resend(l.snd.Begin(uint32(tail.Start)), uint32(tail.End))
	}
	l.snd.Rewind()
	l.setWindow(st)
	l.busy.Store(l.rec.Active())
	if l.troubled = l.rec.Troubled(now); l.troubled && next == 0 {
		next = then // else what is watched is looked at in time
	}
	l.wakeAt(now, next)
}

// hear passes on what was heard.
func (l *lossControl) hear() {
	if !l.heard.Load() {
		return
	}
	l.mu.Lock()
	acks := l.acks
	l.acks = l.spare[:0]
	l.heard.Store(false)
	l.mu.Unlock()
	for i := range acks {
		a := &acks[i]
		l.rec.Acked(recovery.Ack{At: a.at, Number: a.number, Blocks: a.blocks[:a.n], Seen: true,
			Early: l.stamped && a.timestamp != 0 && int32(a.timestamp-l.again) < 0})
	}
	l.spare = acks
}

// setWindow tells gVisor how much may be under way.
func (l *lossControl) setWindow(st *tcp.TCPSenderState) {
	room, segment := l.rec.Room(), max(st.MaxPayloadSize, 1)
	if room < 0 {
		room -= segment - 1
	}
	st.SndCwnd = max(st.Outstanding+l.withinWindow(st, room/segment, segment), 1)
	st.Ssthresh = max(l.rec.Threshold()/segment, 2)
	l.window = st.SndCwnd
	if l.rec.MinRTT() > longPath && l.sendBuffer < gvisor.MaxBuffer &&
		l.rec.Window() > l.sendBuffer*3/4 {
		l.growSend.Store(true)
	}
}

// longPath is the round trip above which buffers grow. On a shorter one the first size is enough
// for any rate, and the caches like it better.
const longPath = 2 * time.Millisecond

// growSendBuffer lets the send buffer grow if the window wants more. The endpoint is not locked.
func (l *lossControl) growSendBuffer() {
	if l.growSend.Swap(false) {
		gvisor.GrowSendBuffer(l.c.ep)
		n := int(l.c.ep.SocketOptions().GetSendBufferSize())
		l.c.ep.LockUser()
		l.sendBuffer = n
		l.c.ep.UnlockUser()
	}
}

// wakeAt has run called at a time; 0: at none.
func (l *lossControl) wakeAt(now, at time.Duration) {
	if at == 0 || l.due != 0 && l.due <= at {
		return
	}
	l.due = at
	if l.timer == nil {
		l.timer = l.clock.AfterFunc(at-now, l.expired)
	} else {
		l.timer.Reset(at - now)
	}
}

// expired runs when the timer does.
func (l *lossControl) expired() {
	l.c.ep.LockUser()
	defer l.c.ep.UnlockUser()
	l.due = 0
	l.step()
}

// step is run, and sends what the window allows then.
func (l *lossControl) step() {
	if l.snd.Exists() && sending(l.c.ep.EndpointState()) {
		now := l.now()
		if l.nudged.Swap(false) {
			l.retry(now)
		}
		l.run(now)
		if !l.snd.ZeroWindow() { // else each look would put off the next question
			l.snd.SendData()
		}
	}
}

// look is step, for somebody who has not locked the endpoint.
func (l *lossControl) look() {
	l.c.ep.LockUser()
	l.queued.Store(false)
	over := false
	if l.opened.Swap(false) && sending(l.c.ep.EndpointState()) {
		over = l.c.handle()
	}
	l.step()
	l.c.ep.UnlockUser()
	if over {
		l.c.drain()
	}
}

// retry has a connection that has timed out, and has heard nothing since, not wait any longer.
func (l *lossControl) retry(now time.Duration) {
	st := l.snd.State()
	// Who answers to what may have come from anybody sends little, and not often: gVisor counts what
	// it sends, and gives up a segment that was sent too often, before the user timeout.
	wait := max(2*l.rec.SRTT(), minRetry, (now-l.silence)/16)
	if !l.timed && now-l.retried >= wait && l.rec.Retry() {
		l.retried = now
		r := l.snd.RTT()
		st.RTO = min(st.RTO, max(r.SRTT+4*r.RTTVar, tcp.MinRTO))
	}
}

// minRetry is how long after a nudge a connection is not to be nudged again.
const minRetry = 20 * time.Millisecond

// sending reports whether an endpoint may have to send something again.
func sending(s tcp.EndpointState) bool {
	switch s {
	case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateFinWait1, tcp.StateLastAck,
		tcp.StateClosing:
		return true
	default:
		return false
	}
}

// A control is a lossControl as gVisor sees it: its congestion control.
type control lossControl

// HandleLossDetected is called when gVisor has found a loss by itself: the peer has no SACK.
func (k *control) HandleLossDetected() {
	st := k.snd.State()
	st.Ssthresh = max(st.Outstanding*7/10, 2)
}

// HandleRTOExpired is called when gVisor has timed out.
func (k *control) HandleRTOExpired() {
	l := (*lossControl)(k)
	st := l.snd.State()
	if l.snd.ZeroWindow() {
		// It is time to ask again whether the window is open: nothing was lost. What the peer has had no
		// room for gVisor sends when there is some.
		l.snd.WindowShut()
		r := l.snd.RTT()
		st.RTO = min(st.RTO, max(l.c.host.cfg.Liveness.AskWindow(), r.SRTT+4*r.RTTVar, tcp.MinRTO))
		return
	}
	if !l.c.ep.SACKPermitted {
		st.Ssthresh = max(st.Outstanding/2, 2)
		st.SndCwnd = 1
		return
	}
	l.rec.Sent(recovery.Seq(st.SndNxt), st.MaxPayloadSize)
	if !l.rec.Silent() {
		l.silence = l.now()
	}
	l.rec.Timeout(l.now())
	l.again, l.stamped = gvisor.Timestamp(l.c.ep), true
	l.timed, l.giveUp = true, true
	st.SndCwnd, l.window = 1, 1
	l.busy.Store(true)
	l.quiet = true
	l.c.host.losses.setSilent(l, true)
	l.c.host.losses.see(l)
}

// Update is called when an ACK has acknowledged octets.
func (k *control) Update(packets int, rtt time.Duration) {
	l := (*lossControl)(k)
	st := l.snd.State()
	if r := l.snd.Receiver(); r.RcvNxt != st.MaxSentAck && l.c.receiving() &&
		l.c.host.acks.owe(&l.c.acks, uint32(r.RcvNxt)) {
		st.MaxSentAck = r.RcvNxt
	}
	if !l.c.ep.SACKPermitted {
		l.updatePlain(st, packets)
		return
	}
	if st.SndCwnd < l.window {
		l.rec.Restart() // gVisor has seen that the connection was idle
	}
	if l.measuring && st.RTTMeasureSeqNum.LessThan(st.SndUna) {
		now := l.clock.NowMonotonic()
		l.rec.RTT(now.Sub(tcpip.MonotonicTime{}), now.Sub(st.RTTMeasureTime))
		l.measuring, l.measured = false, now
	}
	if !l.measuring && st.LastSendTime.Sub(l.measured) >= 0 {
		st.RTTMeasureSeqNum, l.measuring = st.SndNxt, true
	}
	l.una.Store(uint32(st.SndUna))
	if l.giveUp {
		l.giveUp = false
		l.snd.Heard()
	}
	if l.heard.Load() || l.timed || l.troubled || l.rec.Active() {
		l.run(l.now())
		return
	}
	var now time.Duration
	if l.rec.WantsTime() {
		now = l.now()
	}
	l.rec.Sent(recovery.Seq(st.SndNxt), st.MaxPayloadSize)
	l.rec.Acked(recovery.Ack{At: now, Number: recovery.Seq(st.SndUna)})
	l.rec.Pace()
	l.setWindow(st)
}

// updatePlain is Update without SACK: Reno.
func (l *lossControl) updatePlain(st *tcp.TCPSenderState, packets int) {
	if st.SndCwnd < st.Ssthresh {
		st.SndCwnd = min(st.SndCwnd+packets, st.Ssthresh)
		return
	}
	st.SndCAAckCount += packets
	if st.SndCAAckCount >= st.SndCwnd {
		st.SndCwnd += st.SndCAAckCount / st.SndCwnd
		st.SndCAAckCount %= st.SndCwnd
	}
}

// PostRecovery is called when a recovery of gVisor's own has ended: the segments have come another
// way than past received.
func (k *control) PostRecovery() {
	l := (*lossControl)(k)
	st := l.snd.State()
	l.rec.Resize(st.SndCwnd * max(st.MaxPayloadSize, 1))
	l.window = st.SndCwnd
}

// withoutSACK is pkt, which is p and was stripped by strip, with a header of n octets, as a packet
// whose SACK blocks are not there. It takes pkt. What pkt is made of may be others', too.
func withoutSACK(p *frame.Packet, n int, pkt *stack.PacketBuffer) *stack.PacketBuffer {
	var h [frame.IPv6Len + header.TCPHeaderMaximumSize]byte
	l3 := p.L4 - p.L3
	headers := h[:copy(h[:], p.Headers[p.L3:p.L4+n])]
	clearSACK(headers[l3+header.TCPMinimumSize:])
	b, data := buffer.MakeWithData(headers), pkt.Data().ToBuffer()
	b.Merge(&data)
	q := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: b})
	q.NetworkProtocolNumber, q.PktType = pkt.NetworkProtocolNumber, pkt.PktType
	q.TransportProtocolNumber, q.NICID = pkt.TransportProtocolNumber, pkt.NICID
	q.RXChecksumValidated = pkt.RXChecksumValidated
	q.NetworkHeader().Consume(l3)
	q.TransportHeader().Consume(n)
	pkt.DecRef()
	return q
}

// clearSACK makes SACK options in o, the options of a segment, ones of no meaning. Behind one that
// ends within a block gVisor reads no further, and so it stays.
func clearSACK(o []byte) {
	for i := 0; i < len(o); {
		switch {
		case o[i] == header.TCPOptionEOL:
			return
		case o[i] == header.TCPOptionNOP:
			i++
			continue
		case i+1 >= len(o) || o[i+1] < 2 || int(o[i+1]) > len(o)-i:
			return
		}
		n := int(o[i+1])
		if o[i] == header.TCPOptionSACK {
			if (n-2)%8 != 0 {
				return
			}
			for k := range n {
				o[i+k] = header.TCPOptionNOP
			}
		}
		i += n
	}
}

// losses are the connections of a Host to whose ACKs somebody has to look.
type losses struct {
	clock   tcpip.Clock
	mu      sync.Mutex
	list    []*lossControl // guarded by mu
	wake    chan struct{}
	stopped bool // guarded by mu
	wg      sync.WaitGroup

	// silent are those that have timed out and have heard nothing since, by their peers
	silent map[netip.Addr]*silentPeer // guarded by mu
	n      atomic.Int32               // of these

	// watched are those that may have something under way
	watched []*lossControl // guarded by mu
	ticking bool           // guarded by mu: timer will run, or tick does
	timer   tcpip.Timer    // guarded by mu
}

// watch has somebody look, soon and again, at l, which has sent something, until nothing is under
// way: the last of what was sent may be lost.
func (s *losses) watch(l *lossControl) {
	if !l.snd.Exists() || !l.c.ep.SACKPermitted || l.watched.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = append(s.watched, l)
	if !s.ticking && !s.stopped {
		s.ticking = true
		if s.timer == nil {
			s.timer = l.clock.AfterFunc(ackTick, s.tick)
		} else {
			s.timer.Reset(ackTick)
		}
	}
}

// tick looks at those of watched of which nothing was acknowledged since the last tick.
func (s *losses) tick() {
	s.mu.Lock()
	list := s.watched
	s.watched = nil
	s.mu.Unlock()
	left := list[:0]
	for _, l := range list {
		if una := l.una.Load(); una != l.lastUna {
			l.lastUna = una
			left = append(left, l)
			continue
		}
		l.c.ep.LockUser()
		st := l.snd.State()
		// What waits for a window goes out when that opens, and nobody else says so.
		if st.SndUna == st.SndNxt && !l.snd.Unsent() || !sending(l.c.ep.EndpointState()) {
			l.watched.Store(false)
		} else {
			l.step()
			left = append(left, l)
		}
		l.c.ep.UnlockUser()
	}
	clear(list[len(left):])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = append(left, s.watched...)
	if s.ticking = len(s.watched) > 0 && !s.stopped; s.ticking {
		s.timer.Reset(ackTick)
	}
}

// A silentPeer is the connections to one peer that are silent.
type silentPeer struct {
	conns map[*lossControl]struct{}
	next  tcpip.MonotonicTime // they are not nudged again before
}

// setSilent notes whether l is among silent.
func (s *losses) setSilent(l *lossControl, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr := l.c.flow.remote.Addr()
	p := s.silent[addr]
	switch {
	case is && !l.gone:
		if p == nil {
			if s.silent == nil {
				s.silent = make(map[netip.Addr]*silentPeer)
			}
			p = &silentPeer{conns: make(map[*lossControl]struct{})}
			s.silent[addr] = p
		}
		if _, was := p.conns[l]; !was {
			p.conns[l], p.next = struct{}{}, tcpip.MonotonicTime{}
		}
	case p != nil:
		if delete(p.conns, l); len(p.conns) == 0 {
			delete(s.silent, addr)
		}
	}
	s.n.Store(int32(len(s.silent)))
}

// forget keeps l out of silent from now on.
func (s *losses) forget(l *lossControl) {
	s.mu.Lock()
	l.gone = true
	s.mu.Unlock()
	s.setSilent(l, false)
}

// nudge has connections to peer that have timed out send again at once; the zero Addr: to any. Any
// lock may be held. It is called for each segment that comes in while any connection is silent, so
// that those to other peers must not be looked at, nor the same ones each time.
func (s *losses) nudge(peer netip.Addr) {
	if s.n.Load() == 0 {
		return
	}
	now := s.clock.NowMonotonic()
	var list []*lossControl
	s.mu.Lock()
	if p := s.silent[peer]; p != nil {
		list = p.nudge(list, now)
	} else if !peer.IsValid() {
		for _, p := range s.silent {
			list = p.nudge(list, now)
		}
	}
	s.mu.Unlock()
	for _, l := range list {
		l.nudged.Store(true)
		s.see(l)
	}
}

// nudge appends the connections of p, unless that was done lately.
func (p *silentPeer) nudge(list []*lossControl, now tcpip.MonotonicTime) []*lossControl {
	if now.Before(p.next) {
		return list
	}
	p.next = now.Add(minRetry)
	for l := range p.conns {
		list = append(list, l)
	}
	return list
}

// see has somebody look at l's connection soon. Any lock may be held.
func (s *losses) see(l *lossControl) {
	if l.queued.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.list = append(s.list, l)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// start has a goroutine look at what see is called for.
func (s *losses) start(clock tcpip.Clock) {
	s.clock, s.wake = clock, make(chan struct{}, 1)
	s.wg.Go(s.serve)
}

func (s *losses) serve() {
	for range s.wake {
		for {
			s.mu.Lock()
			list := s.list
			s.list = nil
			s.mu.Unlock()
			if len(list) == 0 {
				break
			}
			for _, l := range list {
				l.look()
			}
		}
	}
}

// stop ends it.
func (s *losses) stop() {
	s.mu.Lock()
	if !s.stopped {
		close(s.wake)
	}
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
