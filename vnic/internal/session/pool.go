package session

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Network sets associations up.
type Network interface {
	// DialSCTP sets up an association of use and blocks until that is done, failed, or ctx ends. An
	// error wraps a syscall.Errno or is ctx's. h hears of it at once, maybe before DialSCTP has
	// returned.
	DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort, use Use, h Handler) (
		Association, error)
	// ListenSCTP takes associations of each Use for addr, whose port is never 0, until it is closed.
	// accept is called with each, under the rules of Handler; nil refuses it.
	ListenSCTP(addr netip.AddrPort, accept func(Association) Handler) (io.Closer, error)
}

// A Pool has the associations that a device has set up, for the connections to a peer to share. The
// zero value is ready.
type Pool struct {
	// Tape records what is of no queue pair yet, for which it is asked with 0; nil, both: nobody wants
	// that.
	Tape func(qpn uint32) *record.Tape

	mu  sync.Mutex
	all map[key][]*association // +checklocks:mu
}

// A key names the associations that connections to a peer share.
type key struct {
	local  netip.Addr
	remote netip.AddrPort
	use    Use
}

// A Call is a request for a session.
type Call struct {
	QPN         uint32 // that of who asks
	Local       netip.Addr
	Remote      netip.AddrPort
	Use         Use
	Start       iwarp.StartConfig
	PrivateData []byte
	Connect     time.Duration // for an association, if there is none
	Reply       time.Duration // for the peer's answer
	Sent        func()        // called when the peer has been asked
}

// Open asks the peer for a session, in an association with free streams or in a new one, and waits
// for its answer.
func (p *Pool) Open(ctx context.Context, n Network, c *Call) (st *Stream, err error) {
	const tries = 3
	for try := 1; ; try++ {
		if st, err = p.ask(ctx, n, c); err != nil {
			return nil, err
		}
		c.Sent()
		replyCtx, cancel := context.WithTimeoutCause(ctx, c.Reply, syscall.ETIMEDOUT)
		err = st.await(replyCtx, func() bool { return st.s.State() == sctpddp.StateOpen })
		cancel()
		if err == nil {
			return st, nil
		}
		st.Abort()
		// The peer may shut an association down, for want of sessions, at the moment at which it is
		// asked for one more; or it has come back from a crash and knows nothing of an old one.
		var lost *sctpddp.LostError
		gone := errors.As(err, &lost) && (lost.Kind == sctpddp.LossShutdown || st.reused &&
			lost.Kind != sctpddp.LossFailure)
		if try == tries || !gone {
			return nil, err
		}
	}
}

// ask begins a session in an association that is there, or in a new one.
func (p *Pool) ask(ctx context.Context, n Network, c *Call) (*Stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Connect, syscall.ETIMEDOUT)
	defer cancel()
	for i := 0; ; i++ {
		as, fresh, err := p.association(ctx, n, key{c.Local, c.Remote, c.Use}, i)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		st, err := as.open(c)
		if st != nil {
			st.reused = !fresh
		}
		again := errors.Is(err, sctpddp.ErrNoStream) || errors.Is(err, sctpddp.ErrDown) && !fresh
		if !again {
			return st, err
		}
	}
}

// association returns the i-th association of k, or sets that one up, which is fresh then.
func (p *Pool) association(ctx context.Context, n Network, k key, i int) (as *association,
	fresh bool, err error) {
	p.mu.Lock()
	for i < len(p.all[k]) {
		as := p.all[k][i]
		p.mu.Unlock()
		select {
		case <-as.up:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		if !as.givenUp {
			return as, false, as.err
		}
		p.mu.Lock() // it has left the pool
	}
	as = newAssociation()
	as.out, as.key, as.use, as.tape = p, k, k.use, p.Tape
	if p.all == nil {
		p.all = map[key][]*association{}
	}
	p.all[k] = append(p.all[k], as)
	p.mu.Unlock()
	a, err := n.DialSCTP(ctx, k.local, k.remote, k.use, as)
	if err != nil {
		as.failed(err, ctx.Err() != nil)
		return nil, false, err
	}
	return as, true, as.established(a)
}

// forget takes as out of p.
func (p *Pool) forget(as *association) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(p.all[as.key]),
		func(x *association) bool { return x == as })
	if len(list) == 0 {
		delete(p.all, as.key)
		return
	}
	p.all[as.key] = list
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
