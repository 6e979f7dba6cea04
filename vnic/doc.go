// Package vnic is the RNIC: devices, protection domains, memory regions and their STags,
// completion queues, queue pairs and the connection manager.
//
// A Device is one virtual RNIC. Open gives one user's view of it, a Context, with quotas and
// handles of its own; a Context implements rdma.Device for users in this process, and has the
// lower calls (NewQP with foreign queues, RegisterRegion, NewCMID) that a daemon needs to lend
// the device to other processes. Two Contexts share nothing but the device's ports.
//
// # What is where
//
// From the bottom up, in internal: handle gives out numbers; mem is registered memory, queue what
// users post to and poll from, stats what is counted, wqe the requests of a QP under way. link
// says how a QP and its link see each other; its links are loop, within a device, stream, which
// runs iwarp's Endpoint over what llp describes: TCP, a session of SCTP (session), or a pipe in
// memory, credit, which runs roi's there, and for RoCE packets, which runs roce's engines, and
// datagrams. cm makes connections.
//
// Of RoCE there are also attr, the attributes that a QP takes with each state; ah and mcast, to
// whom datagrams go and who gets those for a group; datagram, what carries packets below; inbox,
// where they wait for a QP that is being run; and gsi, QP 1.
//
// Here are the device, its users' contexts, and the QP: its state (qp_state.go, modify.go), its
// end (qp_end.go), who runs it (run.go), and which QP a packet is for (dispatch.go). Links are
// chosen in connection.go. A type that is an alias has its methods' documentation below: go doc
// ./vnic/internal/mem MR.
//
// # Who runs what
//
// Each QP has one owner at a time: whoever holds its run token (run.go). A poster takes the token
// and runs the QP inline, for a bounded amount of work; what the transport notices wakes the QP's
// own goroutine. In contexts with memory that can block (AllowBlocking) a QP that could touch it is
// run by its own goroutine only, at most eight at once, and takes received octets out of the
// transport before they are placed.
//
// Two QPs of one device are joined directly: the requester's owner copies between the two
// registrations, with the checks, completions and events that the wire would give. When one needs
// memory that can block, they are handed over to a pipe.
//
// Locks, outermost first: Device.mu; Context.mu; wqe.Receives; SRQ.mu; PD.keyMu; CQ.mu. None is
// held while a Stream or a CMID handler is called; foreign queues, a CQSink, OnAsync and OnState
// are called with some of them held, so they must not call back.
//
// # Sources
//
// RFC 5040, 5041 and 5042 for access checks, completion order and the states of a stream; RFC 7306
// for atomics and immediate data; the InfiniBand Architecture Specification, volume 1, chapters 9
// to 11, for queue pairs of RoCE; the numbers of rdma-core for what applications see.
package vnic
