// Package vnic is the RNIC: devices, protection domains, memory regions and their STags,
// completion queues, queue pairs and the connection manager.
//
// A Device is one virtual RNIC. Open gives one user's view of it, a Context, with quotas and
// handles of its own; a Context implements rdma.Device for users in this process, and has the
// lower calls (NewQP with foreign queues, RegisterRegion, NewCMID) that a daemon needs to lend
// the device to other processes. Two Contexts share nothing but the device's ports.
//
// # Who runs what
//
// Each QP has one owner at a time: whoever holds its run token (run.go). A poster takes the token
// and runs the QP inline, for a bounded amount of work; what the transport notices wakes the QP's
// own goroutine. In contexts with memory that can block (SetStaged) a QP that could touch it is run by its own
// goroutine only, at most eight at once, and takes received octets out of the transport before they are
// placed. Such memory costs a call for each copy, so segments are put together (far.go).
//
// Two QPs of one device are joined directly (loop.go): the requester's owner copies between the
// two registrations, with the checks, completions and events that the wire would give. When one needs
// memory that can block, they are handed over to a pipe (loop_stage.go). Other connections run
// iwarp's Endpoint over a Stream of the Network (wire.go).
//
// Connections are made by internal/cm, over SCTP with internal/session, both of which see a QP and the Network as
// interfaces (cm.go).
//
// Locks, outermost first: Device.mu; Context.mu; QP.rx.mu; SRQ.mu; PD.keyMu; CQ.mu. None is held while a Stream
// or a CMID handler is called; foreign queues, a CQSink, OnAsync and OnState are called with some of them held, so
// they must not call back.
//
// # Sources
//
// RFC 5040, 5041 and 5042 for access checks, completion order and the states of a stream; RFC 7306
// for atomics and immediate data; the numbers of rdma-core for what applications see.
package vnic
