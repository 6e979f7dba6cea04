// Package cm is RoCE's connection manager: the protocol by which two ends agree on a connection, or
// one finds the QP of the other (InfiniBand Architecture Specification, volume 1, chapter 12), with
// what rdma_cm puts into it (annex A11).
//
// A Manager is that of one device: MADs, calls and the time go in; MADs, events and the next
// deadline come out. It does no I/O, has no clock and no goroutine, and its source of randomness is
// a parameter. A Conn is one end of a connection, a Listener takes requests for a service, a Lookup
// asks which QP serves by datagrams, and a Query is that question at the other end.
//
//	      active                                            passive
//	Connect ─ REQ ─────────────────────────────────▶ EventRequest
//	              ◀───────────────────────────── REP ─ Accept      (or REJ ─ Reject)
//	EventReplied
//	  Ready ─ RTU ─────────────────────────────────▶ EventEstablished
//	Disconnect ─ DREQ ─────────────────────────────▶ EventDisconnected, on either side
//	EventDisconnected ◀───────────────────────── DREP
//	EventTimeWaitOver                                  EventTimeWaitOver
//
// REQ, REP and DREQ are repeated until they are answered. A message acts on a connection only if it
// comes from the address of its peer, and what a stranger can have the manager keep is bounded: for
// each listener, for each peer, and in all.
package cm
