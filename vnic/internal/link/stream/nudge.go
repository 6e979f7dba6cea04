package stream

import (
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// Linux's siw, as responder, sends its MPA Reply before its socket is in RDMA mode, and does not
// look at what arrives in between until another TCP segment with data comes. Our first FPDU, which
// opens its sending side, follows the Reply at once and can be lost from its view: then both ends
// wait for ever. So an initiator that hears nothing after the start sends a zero-length RDMA Write
// now and then. It is legal at any time, touches no memory and completes nothing (RFC 5040, section
// 5.1; RFC 5041, section 5.2: neither STag nor TO is looked at), and a peer that has nothing to
// say gets a few octets too many. siw takes one kind of RTR and never a Send: a peer whose Reply
// takes that is another, and hears nothing (10,000 idle connections are 80,000 segments less).
const (
	nudgesMost = 4 // after Config.Nudge, doubled each time
)

// awaitPeer sets the deadline for the first octets of the peer.
func (w *Link) awaitPeer() {
	p := w.ep.Params()
	if d := w.nudge; d > 0 && p.Initiator && p.PeerRTR&iwarp.RTRSend == 0 {
		w.qp.SetDeadline(d << w.nudges)
	}
}

// Expire implements link.Link: it is time to look behind a Send that waits, or the peer has been
// silent. Of one that is not receive takes the deadline back.
func (w *Link) Expire() {
	if w.look == lookSoon {
		w.look = lookNow // in the step that follows
		if !w.stalled {
			w.look = lookNone
		}
		return
	}
	if w.qp.State() != rdma.QPRTS || w.nudges == nudgesMost {
		return
	}
	// With a full queue, or octets that the transport did not take, more segments come anyway.
	if w.ep.CanPost() && !w.blocked {
		if w.eng.PostWrite(nudgeToken, 0, 0, nil, 0) != nil {
			return
		}
	}
	w.nudges++
	w.awaitPeer()
}
