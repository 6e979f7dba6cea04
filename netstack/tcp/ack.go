package tcp

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// ackTick is how often ACKs that are held back are looked at: one waits for more than a tick, and
// less than two, as long as Linux's do. While one is held a timer runs, and whoever waits for a
// frame waits for the timer, too: one that ends before the kernel's next tick has the kernel
// program the clock at each wait and each wake-up, 16 us of a round trip in a VM whose ticks are 4
// ms apart.
const ackTick = 20 * time.Millisecond

// quickACKs is how many ACKs are not held back after one that tells of octets that are missing. Who
// has lost something has little under way, and waits for each ACK (RFC 5681, section 4.2).
const quickACKs = 16

// ackDelayer delays ACKs, as RFC 9293, section 3.8.6.3, wants: gVisor sends one for whatever came
// in at once, so that a small request and its answer would be four packets. An ACK of new octets,
// less than two full segments of them, waits until its connection has something to send, which
// carries the ACK; until the connection has another ACK, which is then sent at once; or for a
// moment. Nothing else is held back: duplicate ACKs and SACK blocks tell the peer of a loss, others
// of a window.
//
// What is held is the packet's octets: either they are sent as they are, before what the connection
// sends next, or they are replaced by a packet that acknowledges as much or more. The packet itself
// goes back to its pools at once: with many connections those would give out the memory that nobody
// has used for longest. Where the segment has acknowledged something, as answers do, the packet is
// not made in the first place: see owe.
type ackDelayer struct {
	// sends and releases; an owner of a connection's lock may call it
	send  func(*frame.Frame, *ethswitch.Delivery)
	limit func() uint32 // octets that are acknowledged at once
	clock tcpip.Clock

	stopped atomic.Bool // set with mu held

	mu      sync.Mutex
	holders []*delayedAck // guarded by mu: those with delayedAck.listed, but for what a tick looks at
	spare   []*delayedAck // guarded by mu: room for holders, while a tick has them
	ticking bool          // guarded by mu: a tick is to come, or runs
	timer   tcpip.Timer
}

// A delayedAck is what ackDelayer knows of a connection. It is in a packet as its owner, so that it
// need not be looked for: a connection that has none, or has none yet, sends everything at once.
type delayedAck struct {
	sent   ethswitch.Delivery // beside what the connection sends
	mu     sync.Mutex
	known  bool   // acked is
	ticked bool   // held has seen a tick
	listed bool   // is among ackDelayer.holders, or will be
	acked  uint32 // by what was sent last
	quick  uint8  // so many ACKs are sent at once: octets are missing, or were
	ack    uint32 // the number in what is held, or owed
	window uint16 // and the window
	edge   uint32 // where the window ends that the peer knows of
	scale  uint8  // windows are in units of 1<<scale octets

	next       atomic.Uint32 // the octet that is to come next, for all that is known
	told       atomic.Uint32 // the end of what the peer knows to have come
	duplicates atomic.Bool   // there are some in twice
	twice      []span        // that the peer is to be told of: they have come twice
	blocks     [maxBlocks]span
	nblocks    int // of blocks, which the last ACK has told of

	holding bool
	owed    bool // an ACK was not made, and nothing is held
	// Segments that have come together are being handled, and what is held has been made for one of
	// them: see gather.
	gathering, gathered bool

	n, l4  int // of octets; where the TCP header begins
	off    frame.Offload
	octets [maxACKLen]byte
}

// maxACKLen is the longest frame with an ACK that may be held.
const maxACKLen = frame.EtherHeaderLen + frame.IPv6Len + header.TCPHeaderMaximumSize

// keep has s hold the octets of f with the TCP header t, which it releases, if they are few enough.
func (s *delayedAck) keep(f *frame.Frame, t header.TCP) bool {
	if f.Len() > len(s.octets) {
		return false
	}
	s.n, _ = f.Buffer.ReadAt(s.octets[:f.Len()], 0)
	s.off, s.ticked, s.holding, s.gathered = f.Offload, false, true, false
	s.ack, s.window = t.AckNumber(), t.WindowSize()
	f.Release()
	return true
}

// frame is what s held.
func (s *delayedAck) frame() *frame.Frame {
	s.holding = false
	return frame.New(s.octets[:s.n], s.off)
}

// delivery goes beside what the connection sends. It does not change.
func (s *delayedAck) delivery() *ethswitch.Delivery {
	if s == nil {
		return nil
	}
	return &s.sent
}

// KUID and KGID implement tcpip.PacketOwner. Nobody asks.
func (*delayedAck) KUID() uint32 { return 0 }
func (*delayedAck) KGID() uint32 { return 0 }

// sending sends what has to be sent before f, the frame of pkt, and reports whether f itself
// is kept: then it need not be sent.
func (a *ackDelayer) sending(pkt *stack.PacketBuffer, f *frame.Frame, s *delayedAck) (kept bool) {
	if s == nil {
		return false
	}
	duplicate := s.duplicates.Load()
	if duplicate {
		s.addDuplicate(pkt, f)
	}
	kept, first, list := a.hold(pkt, f, s, duplicate)
	if first != nil {
		a.send(first, &s.sent)
	}
	if list != nil {
		a.list(list)
	}
	return kept
}

// hold looks at a packet that is to be sent, and at f, which is its frame. If it has kept f, f need
// not be sent. What was held before and has to be sent before f is first. list, if not nil, is for
// ackDelayer.list, which must not be called with the lock of a delayedAck.
func (a *ackDelayer) hold(pkt *stack.PacketBuffer, f *frame.Frame, s *delayedAck,
	duplicate bool) (kept bool, first *frame.Frame, list *delayedAck) {
	t := header.TCP(pkt.TransportHeader().Slice())
	if len(t) < header.TCPMinimumSize {
		return false, nil, nil
	}
	ack, flags, data := t.AckNumber(), t.Flags(), pkt.Data().Size() > 0
	options := !plainOptions(t)
	plain := flags == header.TCPFlagAck && !data && !options

	s.mu.Lock()
	defer s.mu.Unlock()
	owed := s.owed
	s.owed = owed && int32(ack-s.ack) < 0 // else this says as much
	l4 := frame.EtherHeaderLen + len(pkt.NetworkHeader().Slice())
	if s.gathering && s.known && flags == header.TCPFlagAck && !data && !duplicate &&
		f.Len() == l4+len(t) && f.Len() <= len(s.octets) && !a.stopped.Load() {
		if (s.holding || s.owed) && int32(ack-s.ack) < 0 {
			return false, nil, nil // it was overtaken: the newer one keeps its place
		}
		if s.holding && s.gathered && !s.saidBy(t) {
			first = s.takeGathered()
		}
		ticked := s.ticked && (s.holding || owed) // its place is the other one's, in time, too
		s.keep(f, t)
		s.l4, s.gathered, s.ticked = l4, true, ticked
		return true, first, nil
	}
	if !s.known || flags&header.TCPFlagAck == 0 {
		// of a RST without an ACK the number means nothing
		s.tells(t, options)
		s.known, s.acked = flags&header.TCPFlagAck != 0, ack
		if s.holding {
			first = s.frame()
		}
		return false, first, nil
	}
	held := plain
	switch {
	case options:
		s.quick = quickACKs
	case s.quick > 0 && plain:
		s.quick--
		held = false
	}
	if !s.holding && !owed && held && ack != s.acked && ack-s.acked < a.limit() && !a.stopped.Load() &&
		s.keep(f, t) {
		if s.listed {
			return true, nil, nil
		}
		s.listed = true
		return true, nil, s
	}
	if s.holding {
		// A plain ACK with the number of the one that is held is a duplicate, or tells of a window: then
		// it says all that the other one does.
		window := plain && s.window != t.WindowSize()
		if (data || window) && ack == s.ack || (data || plain) && int32(ack-s.ack) > 0 {
			s.holding = false
		} else {
			first = s.frame()
		}
	}
	s.acked = ack
	s.tells(t, options)
	return false, first, nil
}

// saidBy reports whether the ACK with header t says all that the gathered one does.
func (s *delayedAck) saidBy(t header.TCP) bool {
	held := header.TCP(s.octets[s.l4:s.n])
	if plainOptions(held) {
		return true
	}
	var were, are [maxBlocks]span
	next := are[:sackBlocks(t, &are)]
	for _, b := range were[:sackBlocks(held, &were)] {
		if int32(t.AckNumber()-b.end) < 0 && !slices.ContainsFunc(next, b.in) {
			return false
		}
	}
	return true
}

// takeGathered is the gathered ACK, which is to be sent.
func (s *delayedAck) takeGathered() *frame.Frame {
	t := header.TCP(s.octets[s.l4:s.n])
	options := !plainOptions(t)
	switch {
	case options:
		s.quick = quickACKs
	case s.quick > 0:
		s.quick--
	}
	s.gathered, s.acked = false, s.ack
	s.tells(t, options)
	return s.frame()
}

// gather has the ACKs of a connection that knows SACK take each other's place until settle, where
// the later one says all that the earlier one did: for a segment that comes before its turn gVisor
// sends one at once: docs/decisions.md#N5. One that tells of duplicates is sent all the same.
func (s *delayedAck) gather() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gathering = true
}

// settle ends gather: the last ACK is sent, or held as if it were the only one.
func (a *ackDelayer) settle(s *delayedAck) {
	f, list := a.settled(s)
	if f != nil {
		a.send(f, &s.sent)
	}
	if list {
		a.list(s)
	}
}

func (a *ackDelayer) settled(s *delayedAck) (f *frame.Frame, list bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gathering = false
	if !s.holding || !s.gathered {
		return nil, false
	}
	if plainOptions(header.TCP(s.octets[s.l4:s.n])) && s.quick == 0 && s.ack != s.acked &&
		s.ack-s.acked < a.limit() && !a.stopped.Load() {
		s.gathered = false
		list = !s.listed
		s.listed = true
		return nil, list
	}
	return s.takeGathered(), false
}

// plainOptions reports whether t has no options, or a timestamp only.
func plainOptions(t header.TCP) bool {
	switch int(t.DataOffset()) {
	case header.TCPMinimumSize:
		return true
	case header.TCPMinimumSize + frame.TCPTimestampLen:
		return len(t) >= header.TCPMinimumSize+frame.TCPTimestampLen &&
			[4]byte(t[header.TCPMinimumSize:]) ==
				[4]byte{header.TCPOptionNOP, header.TCPOptionNOP, header.TCPOptionTS, header.TCPOptionTSLength}
	}
	return false
}

// list sees to it that what s holds does not wait for ever.
func (a *ackDelayer) list(s *delayedAck) {
	if !a.enlist(s) {
		a.expire(s)
	}
}

// enlist has ticks look at s. false: there are none any more.
func (a *ackDelayer) enlist(s *delayedAck) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped.Load() {
		return false
	}
	a.holders = append(a.holders, s)
	if !a.ticking {
		a.armLocked()
	}
	return true
}

// owe reports whether gVisor need not make an ACK with that number now, as it would be held. It is
// made when it is due, if nothing is sent before: most ACKs are never made. The endpoint is locked.
func (a *ackDelayer) owe(s *delayedAck, number uint32) bool {
	s.mu.Lock()
	if !s.known || s.holding || s.owed && !s.gathering || s.quick > 0 || s.duplicates.Load() ||
		number == s.acked || number-s.acked >= a.limit() {
		s.mu.Unlock()
		return false
	}
	s.ticked = s.ticked && s.owed
	list := !s.listed
	s.owed, s.listed, s.ack = true, true, number
	s.mu.Unlock()
	if list && !a.enlist(s) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.owed, s.listed = false, false
		return false
	}
	return true
}

// payOwed sends an ACK that is owed. The endpoint is not locked.
func (c *Conn) payOwed() {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	if c.acks.due() && c.receiving() {
		c.loss.snd.SendAck()
	}
}

// due reports whether s owes an ACK still, which is then to be sent at once.
func (s *delayedAck) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owed {
		return false
	}
	s.owed, s.quick = false, max(s.quick, 1)
	return true
}

func (a *ackDelayer) armLocked() {
	a.ticking = true
	if a.timer == nil {
		a.timer = a.clock.AfterFunc(ackTick, a.tick)
	} else {
		a.timer.Reset(ackTick)
	}
}

// tick sends what was there at the last tick already. Who holds nothing any more is taken off the
// list here only, so that a busy connection is on it once and puts itself there once in a tick.
func (a *ackDelayer) tick() {
	for a.tickOnce() { // once, but when all is to be sent
	}
}

func (a *ackDelayer) tickOnce() (again bool) {
	a.mu.Lock()
	were := a.holders
	a.holders, a.spare = a.spare, nil
	a.mu.Unlock()
	left := were[:0]
	for _, s := range were {
		if a.expire(s) {
			left = append(left, s)
		}
	}
	clear(were[len(left):])

	a.mu.Lock()
	defer a.mu.Unlock()
	// What came meanwhile has its ticks, too.
	came := a.holders
	a.holders = append(left, came...)
	clear(came)
	a.spare = came[:0]
	if len(a.holders) == 0 {
		a.ticking = false
		return false
	}
	if a.stopped.Load() {
		return true
	}
	a.armLocked()
	return false
}

// stop sends what is held; nothing is from then on.
func (a *ackDelayer) stop() {
	a.mu.Lock()
	a.stopped.Store(true)
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.tick()
}

// expire sends what s holds, if it is old or all are to be sent. true: it holds something still.
func (a *ackDelayer) expire(s *delayedAck) (left bool) {
	var f *frame.Frame
	owed := false
	s.mu.Lock()
	switch {
	case !s.holding && !s.owed:
		s.listed = false
	case s.owed && (s.ticked || a.stopped.Load()):
		owed, s.listed = true, false
	case (s.ticked || a.stopped.Load()) && s.gathered:
		s.listed = false
		f = s.takeGathered()
	case s.ticked || a.stopped.Load():
		s.acked, s.listed = s.ack, false
		s.told.Store(s.ack)
		s.setEdge(s.ack, s.window)
		f = s.frame()
	default:
		s.ticked, left = true, true
	}
	s.mu.Unlock()
	switch {
	case f != nil:
		a.send(f, &s.sent)
	case owed:
		senderOf(&s.sent).payOwed()
	}
	return left
}
