package netstack

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// ackTick is how often ACKs that are held back are looked at: one waits for more than a tick, and less than two, as long
// as Linux's do. While one is held a timer runs, and whoever waits for a frame waits for the timer, too: one
// that ends before the kernel's next tick has the kernel program the clock at each wait and each wake-up, 16 us of a round trip in a
// VM whose ticks are 4 ms apart.
const ackTick = 20 * time.Millisecond

// acks delays ACKs, as RFC 9293, section 3.8.6.3, wants: gVisor sends one for whatever came in at once, so
// that a small request and its answer would be four packets. An ACK of new octets, less than two full
// segments of them, waits until its connection has something to send, which carries the ACK; until the
// connection has another ACK, which is then sent at once; or for a moment. Nothing else is held
// back: duplicate ACKs and SACK blocks tell the peer of a loss, others of a window.
//
// What is held is the packet itself: either it is sent as it is, before what its connection sends next, or it is
// replaced by a packet that acknowledges as much or more.
type acks struct {
	send  func(*Frame)  // sends and releases; an owner of a connection's lock may call it
	limit func() uint32 // octets that are acknowledged at once
	clock tcpip.Clock

	slots   [64]ackSlot
	stopped atomic.Bool
	due     atomic.Bool // a tick is to come
	mu      sync.Mutex  // guards timer
	timer   tcpip.Timer
}

// An ackSlot belongs to the one of the connections that share it that has sent last: others do not wait.
type ackSlot struct {
	mu    sync.Mutex
	flow  ackFlow
	acked uint32 // by what was sent last
	held  *Frame // or nil
	ack   uint32 // the number in held
	old   bool   // held has seen a tick
}

// An ackFlow is a TCP connection.
type ackFlow struct {
	local, remote tcpip.Address
	ports         [4]byte
}

// slot picks by the ports.
func (f *ackFlow) slot() uint32 {
	v := binary.BigEndian.Uint32(f.ports[:])
	return (v ^ v>>16) * 0x9e3779b1 >> 26 // Fibonacci hashing, to 6 bits
}

// hold looks at a packet that is to be sent, and at f, which is its frame. If it has kept f, f need not be sent. What was
// held before and has to be sent before f is first.
func (a *acks) hold(pkt *stack.PacketBuffer, f *Frame) (kept bool, first *Frame) {
	t := header.TCP(pkt.TransportHeader().Slice())
	if pkt.TransportProtocolNumber != tcp.ProtocolNumber || len(t) < header.TCPMinimumSize {
		return false, nil
	}
	flow := ackFlow{pkt.EgressRoute.LocalAddress, pkt.EgressRoute.RemoteAddress, [4]byte(t)}
	ack, flags, data := t.AckNumber(), t.Flags(), pkt.Data().Size() > 0
	plain := flags == header.TCPFlagAck && !data && plainOptions(t)

	s := &a.slots[flow.slot()]
	s.mu.Lock()
	defer s.mu.Unlock()
	first, s.held = s.held, nil
	if s.flow != flow || flags&header.TCPFlagAck == 0 {
		if flags&header.TCPFlagAck == 0 {
			flow = ackFlow{} // a SYN: the number means nothing
		}
		s.flow, s.acked = flow, ack
		return false, first
	}
	if first == nil && plain && ack != s.acked && ack-s.acked < a.limit() && !a.stopped.Load() {
		s.held, s.ack, s.old = f, ack, false
		return true, nil
	}
	// A plain ACK with the number of the one that is held is a duplicate, or tells of a window.
	if first != nil && (data && ack == s.ack || (data || plain) && int32(ack-s.ack) > 0) {
		first.Release()
		first = nil
	}
	s.acked = ack
	return false, first
}

// plainOptions reports whether t has no options, or a timestamp only.
func plainOptions(t header.TCP) bool {
	switch int(t.DataOffset()) {
	case header.TCPMinimumSize:
		return true
	case header.TCPMinimumSize + tcpTimestampLen:
		return len(t) >= header.TCPMinimumSize+tcpTimestampLen && [4]byte(t[header.TCPMinimumSize:]) ==
			[4]byte{header.TCPOptionNOP, header.TCPOptionNOP, header.TCPOptionTS, header.TCPOptionTSLength}
	}
	return false
}

// held sees to it that a frame that hold has kept does not wait for ever. It must not be called with the lock of a slot.
func (a *acks) held() {
	if a.due.Load() || !a.due.CompareAndSwap(false, true) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stopped.Load():
	case a.timer == nil:
		a.timer = a.clock.AfterFunc(ackTick, a.tick)
	default:
		a.timer.Reset(ackTick)
	}
}

// tick sends what was there at the last tick already.
func (a *acks) tick() {
	a.due.Store(false) // before the look: what is held from here on has a tick of its own
	if a.flush(false) {
		a.held()
	}
}

// stop sends what is held; nothing is from then on.
func (a *acks) stop() {
	a.stopped.Store(true)
	a.mu.Lock()
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.flush(true)
}

// flush sends what is held, or what is old of it. left: there is more.
func (a *acks) flush(all bool) (left bool) {
	for i := range a.slots {
		s := &a.slots[i]
		var f *Frame
		s.mu.Lock()
		switch {
		case s.held == nil:
		case all || s.old:
			f, s.held, s.acked = s.held, nil, s.ack
		default:
			s.old, left = true, true
		}
		s.mu.Unlock()
		if f != nil {
			a.send(f)
		}
	}
	return left
}
