// Package sctpddp is the adaptation layer that carries DDP on an SCTP association: RFC 5043, and
// the SCTP part of RFC 6581.
//
// A DDP stream is SCTP stream k out together with SCTP stream k in. A session binds a QP to one for
// a time: the active side sends Initiate, the passive side answers Accept, Reject or Terminate,
// then both send segments, and Terminate ends it. All messages are unordered for SCTP and carry a
// number of their own, the DDP-SSN: what has come is placed at once, and delivered in the order of
// the numbers.
//
// A Mux stands on an Association and has the streams; a Session is one session on one of them:
//
//	mux, err := sctpddp.NewMux(assoc, sctpddp.Config{Initiator: true})
//	s, err := mux.Open(iwarp.DefaultStartConfig(), []byte("hello"))
//	...                                        // what comes in: mux.Input(now, message)
//	if ev, ok := s.Event(); ok && ev.Kind == sctpddp.EventAccepted {
//		ep := iwarp.NewEndpoint(s.Params(), host, iwarp.Config{Records: true, MULPDU: s.MULPDU()})
//		s.Attach(ep)
//	}
//	n, err := s.WriteFrom(ep)                  // one segment
//	ep.Commit(n)
//	s.Close()                                  // behind the last segment
//
// It is pure: messages, calls and the time in; messages, events and the next deadline out. It
// starts no goroutine, reads no clock and takes no lock. A Mux has one owner at a time, and so has
// each Session: that of the Mux, until Open or Request hands it out, and again after Release. What
// they share, the Association and the Budget of held octets, may be used by several owners at once.
//
// A Journal, if there is one, hears of each call and of what came of it: enough to make them again.
//
// SCTP itself is elsewhere, and so are the timers of a session: how long an answer, or the peer's
// Terminate, may take is its owner's to say (Abandon).
package sctpddp
