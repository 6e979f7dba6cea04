package gvisor

import (
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// A Liveness says when a connection whose peer is not heard of is lost: docs/decisions.md#M17.
type Liveness struct {
	// KeepAlive is for how long nothing may come before the peer is asked for a sign (RFC 9293,
	// section 3.8.4); 0 or less: it is not asked.
	KeepAlive time.Duration
	// UserTimeout is for how long what was sent may go without an acknowledgement (RFC 5482), and how
	// long a peer is asked in vain since it was heard of, for a sign or whether its window is open; 0
	// or less: a quarter of an hour, after maxRetries.
	UserTimeout time.Duration
}

// keepAliveProbes is how often a peer is asked before it is given up. gVisor gives it up when a
// UserTimeout is over and one question is open, as Linux does, so there has to be time for all.
const keepAliveProbes = 6

// interval is the time between two questions.
func (l *Liveness) interval() time.Duration {
	left := l.UserTimeout - l.KeepAlive
	if left <= 0 {
		left = l.KeepAlive
	}
	return max(left/keepAliveProbes, time.Millisecond)
}

// AskWindow is for how long at most a peer whose window is shut is not asked whether it is open.
func (l *Liveness) AskWindow() time.Duration {
	if l.UserTimeout <= 0 {
		return maxAskWindow
	}
	return min(l.UserTimeout/(2*keepAliveProbes), maxAskWindow)
}

// maxAskWindow is what RFC 9293 leaves open: the interval grows, and has a bound in every TCP.
const maxAskWindow = time.Minute

// Apply has ep, which is connected, obey l: the timer of a keep-alive that was asked for before
// does not run.
//
// Upstream: transport/tcp/connect.go, keepaliveTimerExpired, and transport/tcp/snd.go,
// retransmitTimerExpired, which counts a UserTimeout also while the peer's window is closed, but
// for what Sender.WindowShut does.
func (l *Liveness) Apply(ep tcpip.Endpoint) tcpip.Error {
	if l.UserTimeout > 0 {
		d := tcpip.TCPUserTimeoutOption(l.UserTimeout)
		if err := ep.SetSockOpt(&d); err != nil {
			return err
		}
	}
	if l.KeepAlive <= 0 {
		return nil
	}
	idle, interval := tcpip.KeepaliveIdleOption(l.KeepAlive),
		tcpip.KeepaliveIntervalOption(l.interval())
	if err := ep.SetSockOpt(&idle); err != nil {
		return err
	}
	if err := ep.SetSockOpt(&interval); err != nil {
		return err
	}
	if err := ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepAliveProbes); err != nil {
		return err
	}
	ep.SocketOptions().SetKeepAlive(true)
	return nil
}
