package tcp

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/internal/ports"
)

// Config describes a Host.
type Config struct {
	Name  string       // of the stack, for errors
	Addrs []netip.Addr // of the stack
	Ports *ports.Table // those of the stack that are in use
	// SendBuffer and ReceiveBuffer are what each connection may hold, in octets.
	SendBuffer, ReceiveBuffer int
	MTU                       func() uint32 // of the stack's interface
	Liveness                  gvisor.Liveness
	// Own is asked for each segment before it is parsed: if it takes it nobody gets it.
	Own func(*stack.PacketBuffer) (taken bool)
	// Send sends f, with d beside it, and releases it. It may be called with a connection's lock held.
	Send func(f *frame.Frame, d *ethswitch.Delivery)
}

// A Host is the TCP of one stack: it makes connections and listeners, and stands between gVisor's
// TCP and the stack's interface. Its methods may be called from several goroutines at once.
type Host struct {
	cfg    Config
	st     *stack.Stack
	queue  gvisor.SegmentQueue // gVisor's TCP, or nil: segments go through its IP then
	gate   *gate.Gate          // around the making of endpoints
	acks   ackDelayer
	conns  connTable
	firsts firstOctets
	losses losses
}

// New makes a Host for a stack that is still to be made, with Protocol among its transport
// protocols.
func New(c Config) *Host {
	h := &Host{cfg: c, gate: gate.New()}
	h.acks.send = c.Send
	h.acks.limit = func() uint32 {
		return 2 * (c.MTU() - frame.IPv6Len - header.TCPHeaderMaximumSize)
	}
	return h
}

// Protocol is a stack.TransportProtocolFactory: it puts h on st, whose clock it uses.
func (h *Host) Protocol(st *stack.Stack) stack.TransportProtocol {
	h.st, h.acks.clock = st, st.Clock()
	h.losses.start(st.Clock())
	p := gvisor.NewTCP(st, h.cfg.Own)
	h.queue = gvisor.SegmentQueueOf(p)
	return p
}

// Receive looks at p, a TCP segment for this stack that d brings, and gives pkt, which is p, to its
// connection's TCP. False: pkt has to go the usual way, through IP, and is as it was.
func (h *Host) Receive(d *ethswitch.Delivery, p *frame.Packet, pkt *stack.PacketBuffer) bool {
	h.firsts.received(p)
	c := h.conns.of(d, p)
	if c == nil {
		return false
	}
	if h.losses.n.Load() > 0 {
		h.losses.nudge(c.flow.remote.Addr()) // it is there
	}
	c.beforeSegment(d, p)
	return c.queueSegment(d, p, pkt)
}

// Sending looks at a packet that is about to leave the stack as f. It sends what has to be sent
// before f, and returns what goes beside f. kept: f is kept, to be sent later or never, and is not
// the caller's any more.
func (h *Host) Sending(pkt *stack.PacketBuffer, f *frame.Frame) (d *ethswitch.Delivery, kept bool) {
	h.firsts.sent(pkt)
	ack, _ := pkt.Owner.(*delayedAck)
	if h.acks.sending(pkt, f, ack) {
		return nil, true
	}
	return ack.delivery(), false
}

// LinkUp is to be called when packets may get through again: the link has a carrier again, or a
// neighbour has been heard. Connections that have timed out send again at once, instead of when
// their time is over. It does not wait, and any lock may be held.
func (h *Host) LinkUp() { h.losses.nudge(netip.Addr{}) }

// Shut makes no connections and listeners any more. It returns when nobody is about to, and reports
// false if it was called before.
func (h *Host) Shut() bool {
	if !h.gate.Shut() {
		return false
	}
	h.gate.Wait()
	return true
}

// Close sends what is held back. The stack is closed by then.
func (h *Host) Close() {
	h.acks.stop()
	h.losses.stop()
}

// Tune sets the options of TCP, once the stack is made.
func (h *Host) Tune() error {
	if err := gvisor.TuneTCP(h.st, h.cfg.SendBuffer, h.cfg.ReceiveBuffer); err != nil {
		return err
	}
	// Whoever listens takes free ports from 32768 on, as Linux does. A connection from here that had
	// one of them would keep it from a listener that has been promised it.
	if err := h.st.SetPortRange(firstConnectPort, lastConnectPort); err != nil {
		return fmt.Errorf("ports %d to %d: %w", firstConnectPort, lastConnectPort, gvconv.Error(err))
	}
	return nil
}

// Ports that connections from here, and listeners that name none, get.
const firstConnectPort, lastConnectPort = 16384, 32767
