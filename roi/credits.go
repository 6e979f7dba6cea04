package roi

import "github.com/vrnic/vrnic/iwarp"

// maxPool is how many credits an end can have: what a Setup can grant.
const maxPool = 1<<16 - 1

// A pool is what an end may begin of one kind of operation: one for each credit. Off is no limit.
type pool struct {
	on   bool
	left int
}

func (p *pool) empty() bool { return p.on && p.left == 0 }

// take is for an operation that begins.
func (p *pool) take() {
	if p.on {
		p.left--
	}
}

// add is for credits that have come.
func (p *pool) add(n int) *iwarp.LocalError {
	switch {
	case n == 0:
		return nil
	case !p.on:
		return fault(iwarp.TermRemoteOperation, "%d credits of a pool that is not used", n)
	case p.left+n > maxPool:
		return fault(iwarp.TermRemoteOperation, "%d credits, and %d are there", n, p.left)
	}
	p.left += n
	return nil
}

// Promises are the credits for Sends that this end has given, which a receive each stands behind.
type promises struct {
	on   bool
	made int // the peer has them, or they are on their way, and are not used
	owed int // granted and not told yet
}

// tell is how many credits a message takes to the peer.
func (p *promises) tell() uint8 {
	n := min(p.owed, maxReturn)
	p.owed -= n
	p.made += n
	return uint8(n)
}

// due says that the peer may soon want for credits: it has no more than it is owed. So what is owed
// goes out at once to one that may have none, and otherwise when it has come to half of all:
// docs/decisions.md#W7.
func (p *promises) due() bool { return p.owed > 0 && p.owed >= p.made }

// use is for an operation of the peer that takes a receive.
func (p *promises) use() *iwarp.LocalError {
	if !p.on {
		return nil
	}
	if p.made == 0 {
		return fault(iwarp.TermNoBuffer, "a Send or notifying Write without a credit")
	}
	p.made--
	return nil
}
