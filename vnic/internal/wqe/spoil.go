package wqe

import (
	"errors"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// A Spoiler is a Watcher that has requests fail on purpose, as those of a broken card do. Who calls
// it may hold locks: it only decides, and has the rest done by the queue pair's owner.
type Spoiler interface {
	Watcher
	// Spoil says what becomes of a send request whose turn it is.
	Spoil(wr *rdma.SendWR) Fate
	// SpoilReceive says with which status a receive completes that is done. What is no success does
	// not end the connection.
	SpoilReceive(wc *rdma.WC) rdma.WCStatus
}

// A Fate is how a send request ends on purpose; the zero value: it does as ever.
type Fate struct {
	Status rdma.WCStatus  // of its completion, and the connection ends behind it
	Cause  iwarp.TermCode // what ends one of iWARP; zero: a local catastrophic error
	Peer   bool           // as if the peer had sent that in a Terminate
}

// ErrMade is in the error of a connection that a Fate ends, ErrByPeer if it is to look as if the
// peer had.
var (
	ErrMade   = errors.New("a fault that was asked for")
	ErrByPeer = errors.New("a Terminate of the peer that was asked for")
)

// opSpoiled is no operation: Check refuses the request that has it.
const opSpoiled rdma.Opcode = 0xff

// spoil decides on a request: all are asked, and the first that has it fail says how.
func (r *Requests) spoil(w *watch, wr *rdma.SendWR) {
	for _, s := range w.spoilers {
		if f := s.Spoil(wr); f.Status != rdma.WCSuccess && !r.send.spoiled {
			r.fate, r.send.spoiled = f, true
			wr.Op = opSpoiled
		}
	}
}

// spoilReceive decides on a receive.
func (w *watch) spoilReceive(wc *rdma.WC) {
	for _, s := range w.spoilers {
		if st := s.SpoilReceive(wc); wc.Status == rdma.WCSuccess {
			wc.Status = st
		}
	}
}

// fated is the fate of the request that was taken last, though its Spoiler may have gone since.
func (r *Requests) fated() (f Fate, ok bool) {
	if !r.send.spoiled {
		return f, false
	}
	return r.fate, true
}

// unfit is how a request fails that Check refuses.
func (r *Requests) unfit() rdma.WCStatus {
	if f, ok := r.fated(); ok {
		return f.Status
	}
	return rdma.WCLocQPOp
}

// ending is what ends the connection of a request that has failed for err.
func (r *Requests) ending(err error) *iwarp.LocalError {
	e := &iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: err}
	f, ok := r.fated()
	if !ok {
		return e
	}
	if f.Cause != (iwarp.TermCode{}) {
		e.Cause = f.Cause
	}
	if e.Err = ErrMade; f.Peer {
		e.Err = ErrByPeer
	}
	return e
}
