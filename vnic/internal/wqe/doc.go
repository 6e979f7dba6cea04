// Package wqe is the elements of one QP's work queues that are under way: from the queue, through a
// link, to their completion in the order in which they were posted.
//
// Requests has all of them. A link takes send requests (Next, Ready), says when each is on its way
// (Posted) and done (Done), and has those completed that can be (Retire). A Request is the
// iwarp.Payload of its message. What the peer sends goes into Receives: Begin, Place, End; what it
// reads or writes by itself is found by Memory.
//
// The send side, and all that is not said to have a lock, belongs to who runs the QP. Receives has
// a lock: within a device the peer's owner delivers there. Of the lock order of package vnic:
// Receives before those of queues, CQs and memory.
package wqe
