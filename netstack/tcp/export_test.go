package tcp

import (
	"fmt"
	"runtime"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/internal/gvisor"
)

// Settle returns when what has come in for c has been dealt with.
func (c *Conn) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	_ = gvisor.HandleSegments(c.ep) // an error ends the connection, and with it the test
	c.loss.step()
}

// SettleAsked is Settle, but that c's losses are looked at only if somebody has asked for that.
func (c *Conn) SettleAsked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	_ = gvisor.HandleSegments(c.ep) // an error ends the connection, and with it the test
	if c.loss.queued.Load() {
		c.loss.step()
	}
}

// Handle calls deliver, which brings segments of c, and deals with them before it returns: none of
// gVisor's goroutines has to do with them.
func (c *Conn) Handle(deliver func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	deliver()
	_ = gvisor.HandleSegments(c.ep) // an error ends the connection, and with it the test
	c.loss.step()
}

// Hold takes hold of c, as one of its calls does; LetGo lets it go.
//
// +checklocksignore: until LetGo.
func (c *Conn) Hold() { c.mu.Lock() }

// +checklocksignore: from Hold.
func (c *Conn) LetGo() { c.mu.Unlock() }

// WithoutSACK has c take its peer for one that does not know SACK.
func (c *Conn) WithoutSACK() {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	c.ep.SACKPermitted = false
}

// Direct reports whether segments may come straight to c.
func (c *Conn) Direct() bool { return c.queue != nil }

// LossState describes c's loss recovery.
func (c *Conn) LossState() string {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	st := c.loss.snd.State()
	return fmt.Sprintf("%d packets of %d, RTO %v, %v", st.Outstanding, st.SndCwnd, st.RTO, &c.loss.rec)
}

// WindowShut reports whether c asks the peer whether its window is open.
func (c *Conn) WindowShut() bool {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	return c.loss.snd.ZeroWindow()
}

// Room is how many octets the peer's window has room for.
func (c *Conn) Room() int {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	st := c.loss.snd.State()
	return int(int32(st.SndUna.Add(st.SndWnd) - st.SndNxt))
}

// AwaitLook returns when the goroutine that looks after losses has begun with what it was asked for
// about c: it has the endpoint locked until it is done.
func (c *Conn) AwaitLook() {
	for c.loss.queued.Load() {
		runtime.Gosched()
	}
}

// State is gVisor's.
func (c *Conn) State() tcp.EndpointState { return c.ep.EndpointState() }

// Unsent reports whether c has octets that were not sent.
func (c *Conn) Unsent() bool {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	return c.loss.snd.Unsent()
}

// Watched reports whether somebody looks at what c has under way.
func (c *Conn) Watched() bool { return c.loss.watched.Load() }

// RTO is c's retransmission timeout.
func (c *Conn) RTO() time.Duration {
	c.ep.LockUser()
	defer c.ep.UnlockUser()
	return c.loss.snd.State().RTO
}

// Buffers are how many octets c may hold, to send and received.
func (c *Conn) Buffers() (send, receive int64) {
	o := c.ep.SocketOptions()
	return o.GetSendBufferSize(), o.GetReceiveBufferSize()
}
