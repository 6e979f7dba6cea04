package tcp

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/tcp/recovery"
)

// Within the peer's window whole segments are sent. gVisor would fill it to its edge, and what is
// behind that would not begin where a segment does: each FPDU of a long message would be cut (RFC
// 5044, section 5.1). So it is told of room for whole segments, in its congestion window. It tells
// of each ACK of new octets, when the room is worked out, but not of a window that opens without
// one: queueSegment looks for those. And whoever writes looks again: messages that are shorter than
// a segment take less room than they were counted for.

// withinWindow is for how many of room segments the peer's window has room, or 1: gVisor waits with
// that until it fits.
func (l *lossControl) withinWindow(st *tcp.TCPSenderState, room, segment int) int {
	if l.alone {
		return room
	}
	edge := st.SndUna.Add(st.SndWnd)
	fit := max(int(int32(edge-st.SndNxt))/segment, 1)
	switch was, is := l.bound.Load(), fit < room; {
	case is:
		l.edge.Store(uint32(edge))
		if !was {
			// From long ago, or never set, it may seem to be ahead.
			if n := seqnum.Value(l.number.Load()); !n.InRange(st.SndUna, st.SndNxt.Add(1)) {
				l.number.Store(uint32(st.SndUna))
			}
			l.bound.Store(true)
			l.opened.Store(true) // by a segment that is queued already, perhaps
			l.c.host.losses.see(l)
		}
	case was:
		l.bound.Store(false)
	}
	return min(room, fit)
}

// givenBack has gVisor fill the peer's window by itself, up to its edge, from now on: of a
// connection that was given back nobody sees the segments but gVisor. The endpoint is not locked.
func (l *lossControl) givenBack() {
	l.c.ep.LockUser()
	defer l.c.ep.UnlockUser()
	if l.alone = true; l.bound.Swap(false) {
		st := l.snd.State()
		l.rec.Sent(recovery.Seq(st.SndNxt), st.MaxPayloadSize)
		l.setWindow(st)
	}
}

// opens reports whether the segment with header t, which is to be queued, moves the edge of the
// peer's window and acknowledges nothing else. The endpoint need not be locked.
func (l *lossControl) opens(t header.TCP) bool {
	if t.Flags()&header.TCPFlagAck == 0 {
		return false
	}
	number := t.AckNumber()
	if int32(number-l.una.Load()) > 0 && int32(number-l.number.Load()) > 0 {
		l.number.Store(number)
		return false // gVisor tells
	}
	edge := number + uint32(t.WindowSize())<<l.scale
	return int32(edge-l.edge.Load()) > 0
}

// sendWithin sends what the peer's window has room for. The endpoint is not locked.
func (l *lossControl) sendWithin() {
	l.c.ep.LockUser()
	defer l.c.ep.UnlockUser()
	st := l.snd.State()
	if l.timed || !l.snd.Unsent() || !sending(l.c.ep.EndpointState()) {
		return
	}
	l.rec.Sent(recovery.Seq(st.SndNxt), st.MaxPayloadSize)
	l.setWindow(st)
	l.snd.SendData()
}

// windowOctets is after how many octets that were read the window is looked at: so many do not open
// one that is nearly shut.
const windowOctets = 2 << 10

// tellWindow tells the peer of the window if reading has opened it to twice what the peer knows of,
// and that is less than half of what it may be. Who has filled it may wait for that, and its
// segments may be too few for an ACK at once.
func (c *Conn) tellWindow() {
	size := int(c.ep.SocketOptions().GetReceiveBufferSize())
	if c.acks.left() > size/4 { // a window is half of the buffer at most
		return
	}
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	if !c.receiving() {
		return
	}
	least := min(c.loss.snd.State().MaxPayloadSize, size/4)
	if int(gvisor.Window(c.ep)) >= max(2*c.acks.left(), least) {
		c.acks.hurry()
		c.loss.snd.SendAck()
	}
}

// receiving reports whether the peer may send more. The endpoint is locked.
func (c *Conn) receiving() bool {
	switch c.ep.EndpointState() {
	case tcp.StateEstablished, tcp.StateFinWait1, tcp.StateFinWait2:
		return c.loss.snd.Exists()
	default:
		return false
	}
}

// setEdge notes what a segment tells the peer of the window. s.mu is held.
func (s *delayedAck) setEdge(number uint32, window uint16) {
	s.edge = number + uint32(window)<<s.scale
}

// left is how many more octets the peer may send for all that it knows.
func (s *delayedAck) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(int32(s.edge - s.next.Load()))
}

// hurry has the next ACK not be held back.
func (s *delayedAck) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quick = max(s.quick, 1)
}
