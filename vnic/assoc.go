package vnic

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/sctpddp"
)

// An SCTPNetwork is a Network that has SCTP, too.
type SCTPNetwork interface {
	// DialSCTP sets up an association and blocks until that is done, failed, or ctx ends. Errors are
	// those of Network.Dial. h hears of it at once, maybe before DialSCTP has returned.
	DialSCTP(ctx context.Context, local netip.Addr, remote netip.AddrPort, h AssociationHandler) (Association, error)
	// ListenSCTP takes associations for addr, whose port is never 0, until it is closed. accept is
	// called with each, under the rules of AssociationHandler; nil refuses it.
	ListenSCTP(addr netip.AddrPort, accept func(Association) AssociationHandler) (io.Closer, error)
}

// An Association is an SCTP association with a peer that speaks DDP, as an SCTPNetwork gives it. Its
// methods may be called from several goroutines at once, do not block, and call no handler, but for
// Flush and Abort.
type Association interface {
	sctpddp.Association // what Send and Shutdown ask for is done by Flush
	Flush()
	// Release gives a message back; Flush tells the peer. Its data is not used any more.
	Release(token any)
	Abort(reason string)
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// An AssociationHandler hears of what happens to an Association. It is called by one goroutine at a
// time, with no lock held, and does not block.
type AssociationHandler interface {
	// Message gives a message, whose data is good until Association.Release(token).
	Message(m sctpddp.Message, token any)
	// Notify says that something was acknowledged, that there is more room, or that MaxPayload has
	// changed.
	Notify()
	// Down is the last call.
	Down(kind sctpddp.LossKind, err error)
}

// An association has the DDP streams of an Association: those that QPs have, and by its Mux the
// others. QPs of all contexts of the device share it.
type association struct {
	dev  *Device
	l    *cmListen // who takes the peer's requests; nil: nobody
	key  assocKey  // of one that we have dialled
	peer peerKey   // of one that the peer has
	nth  int       // of one that the peer has: it was the peer's nth when it came
	up   chan struct{}

	mu      sync.Mutex
	a       Association               // guarded by mu until up is closed
	err     error                     // guarded by mu until up is closed: why it did not come up
	givenUp bool                      // guarded as err: only because who set it up waited no longer
	mux     *sctpddp.Mux              // guarded by mu; nil before it is up
	streams map[uint16]*sessionStream // guarded by mu: those that the Mux has given out
	waiting []*sessionStream          // guarded by mu: those to be told when something changes
	early   []inbound                 // guarded by mu: what came before it was up
	timer   *time.Timer               // guarded by mu
	loss    *sctpddp.LostError        // guarded by mu: it is down
}

// An inbound is a message that has not been taken yet.
type inbound struct {
	m     sctpddp.Message
	token any
}

// An assocKey names the association that connections to a peer share.
type assocKey struct {
	local  netip.Addr
	remote netip.AddrPort
}

// holdOf is how many octets an association may keep of what has come ahead of order: 16 MiB, but for those of
// a peer that has others less and less, so that many are of no use to it.
func holdOf(nth int) int {
	const most, least = 16 << 20, 1 << 20
	return max(most/max(nth, 1), least)
}

func newAssociation(d *Device, l *cmListen) *association {
	return &association{dev: d, l: l, up: make(chan struct{}), streams: map[uint16]*sessionStream{}}
}

// associate returns the i-th association with remote, or sets that one up, which is fresh then.
func (d *Device) associate(ctx context.Context, n SCTPNetwork, local netip.Addr, remote netip.AddrPort, i int) (as *association, fresh bool, err error) {
	key := assocKey{local, remote}
	d.assocMu.Lock()
	for i < len(d.assocs[key]) {
		as := d.assocs[key][i]
		d.assocMu.Unlock()
		select {
		case <-as.up:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		if !as.givenUp {
			return as, false, as.err
		}
		d.assocMu.Lock() // it has left the table
	}
	as = newAssociation(d, nil)
	as.key = key
	if d.assocs == nil {
		d.assocs = map[assocKey][]*association{}
	}
	d.assocs[key] = append(d.assocs[key], as)
	d.assocMu.Unlock()
	a, err := n.DialSCTP(ctx, local, remote, as)
	if err != nil {
		as.failed(err, ctx.Err() != nil)
		return nil, false, err
	}
	return as, true, as.established(a, true)
}

// forget takes as out of the device's table.
func (as *association) forget() {
	d := as.dev
	d.assocMu.Lock()
	defer d.assocMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(d.assocs[as.key]), func(x *association) bool { return x == as })
	if len(list) == 0 {
		delete(d.assocs, as.key)
		return
	}
	d.assocs[as.key] = list
}

// failed ends the wait for as.
func (as *association) failed(err error, givenUp bool) {
	as.forget()
	as.mu.Lock()
	as.err, as.givenUp = err, givenUp
	as.mu.Unlock()
	close(as.up)
}

// established begins DDP on a, or aborts it.
func (as *association) established(a Association, initiator bool) error {
	cfg := sctpddp.Config{Initiator: initiator, HoldAll: holdOf(as.nth)}
	if as.l != nil {
		cfg.Backlog = as.l.backlog
		cfg.Start = as.l.startConfig()
	}
	as.mu.Lock()
	mux, err := sctpddp.NewMux(a, cfg, time.Now())
	as.a, as.mux = a, mux
	early := as.early
	as.early = nil
	if mux != nil && as.loss != nil {
		mux.Down() // it was lost before we came to know it
	}
	as.mu.Unlock()
	if err != nil {
		for _, in := range early {
			a.Release(in.token)
		}
		a.Abort("no DDP")
		err = fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
		as.failed(err, false)
		return err
	}
	close(as.up)
	for _, in := range early {
		as.Message(in.m, in.token)
	}
	as.changed()
	return nil
}

// open begins a session on a free stream. sctpddp.ErrNoStream, ErrDown: another association is needed.
func (as *association) open(begin func(*sctpddp.Mux) (*sctpddp.Session, error)) (*sessionStream, error) {
	as.mu.Lock()
	s, err := begin(as.mux)
	var st *sessionStream
	if err == nil {
		st = as.giveLocked(s)
	}
	as.mu.Unlock()
	as.a.Flush()
	return st, err
}

// giveLocked makes a stream of a session that the Mux has given out.
func (as *association) giveLocked(s *sctpddp.Session) *sessionStream {
	st := &sessionStream{as: as, s: s}
	as.streams[s.Stream()] = st
	return st
}

// Message implements AssociationHandler.
func (as *association) Message(m sctpddp.Message, token any) {
	as.mu.Lock()
	if as.mux == nil {
		as.early = append(as.early, inbound{m, token})
		as.mu.Unlock()
		return
	}
	if st := as.streams[m.Stream]; st != nil {
		st.push(inbound{m, token})
		as.mu.Unlock()
		st.notify()
		return
	}
	as.mux.Input(time.Now(), m)
	as.mu.Unlock()
	as.a.Release(token)
	as.changed()
}

// Notify implements AssociationHandler.
func (as *association) Notify() {
	as.mu.Lock()
	if as.mux == nil {
		as.mu.Unlock()
		return
	}
	as.mux.Step(time.Now())
	waiting := as.waiting
	as.waiting = nil
	for _, st := range waiting {
		st.waits = false
	}
	as.mu.Unlock()
	for _, st := range waiting {
		st.notify()
	}
	as.changed()
}

// wait has st told of the next change.
func (as *association) wait(st *sessionStream) {
	as.mu.Lock()
	if !st.waits {
		st.waits = true
		as.waiting = append(as.waiting, st)
	}
	as.mu.Unlock()
}

// changed sends what the Mux has to say, gives the peer's requests out, and sets the timer.
func (as *association) changed() {
	as.mu.Lock()
	var asked []*sessionStream
	for {
		s, ok := as.mux.Request()
		if !ok {
			break
		}
		asked = append(asked, as.giveLocked(s))
	}
	if at, ok := as.mux.Deadline(); ok {
		d := max(time.Until(at), 0)
		if as.timer == nil {
			as.timer = time.AfterFunc(d, as.Notify)
		} else {
			as.timer.Reset(d)
		}
	}
	as.mu.Unlock()
	as.a.Flush()
	for _, st := range asked {
		as.listener().asked(st)
	}
}

// listener is who takes the peer's requests: whoever listens there now, if the one who took the
// association does so no more.
func (as *association) listener() *cmListen {
	if as.l.ctx.Err() == nil {
		return as.l
	}
	if id := as.dev.listener(unmap(as.a.LocalAddr())); id != nil {
		id.mu.Lock()
		defer id.mu.Unlock()
		if id.listen != nil {
			return id.listen
		}
	}
	return as.l
}

// release gives the session of st back. What st has not taken it takes before, so that whatever comes
// next is for the Mux.
func (as *association) release(st *sessionStream) {
	as.mu.Lock()
	left := st.rest()
	for _, in := range left {
		st.s.Input(in.m)
	}
	if as.streams[st.s.Stream()] == st {
		delete(as.streams, st.s.Stream())
	}
	if as.loss == nil {
		as.mux.Release(time.Now(), st.s)
	}
	as.mu.Unlock()
	for _, in := range left {
		as.a.Release(in.token)
	}
	as.changed()
}

// abandon is told of a stream whose owner does not come back. When nobody else uses the association it is aborted.
// Otherwise the others go on, and the peer sees the end of st when its owner is back.
func (as *association) abandon(st *sessionStream) {
	as.mu.Lock()
	st.abandoned = true
	alone := as.loss == nil
	as.mux.Sessions(func(s *sctpddp.Session) {
		other := as.streams[s.Stream()]
		alone = alone && (other != nil && other.abandoned || other == nil && s.State() == sctpddp.StateIdle)
	})
	as.mu.Unlock()
	if alone {
		as.a.Abort("the program is gone")
	}
}

// Down implements AssociationHandler.
func (as *association) Down(kind sctpddp.LossKind, err error) {
	if as.l != nil {
		as.uncount()
	} else {
		as.forget()
	}
	as.mu.Lock()
	as.loss = &sctpddp.LostError{Kind: kind, Err: err}
	if as.mux != nil {
		as.mux.Down()
	}
	if as.timer != nil {
		as.timer.Stop()
	}
	streams := as.streams
	as.streams = map[uint16]*sessionStream{}
	as.mu.Unlock()
	for _, st := range streams {
		st.lost.Store(as.loss)
		st.notify()
	}
}
