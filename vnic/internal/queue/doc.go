// Package queue is what users post work requests to and poll completions from: send and receive
// queues, in this process (Local) or filled by somebody else (SendQueue, RecvQueue), shared receive
// queues (SRQ), and completion queues (CQ).
//
// A Pair is what one QP has of them. Who posts, who takes and who polls are different goroutines
// without a common lock, on lines of the cache of their own; each side takes and completes one at a
// time.
//
// Nothing here knows queue pairs, links or memory, but for the PD that an SRQ counts in. Locks,
// outermost first: Space.mu; SRQ.mu; CQ.mu, inside of which polls have one of their own. Foreign
// queues, sinks, Config.Event and a Pair's wake function are called with some of them held.
package queue
