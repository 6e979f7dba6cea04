// Package ring has the queues that two processes share, with both ends of each: send and receive
// queues, completion queues and their channels, slabs for the octets of small messages, and the
// bells that say which of them to look at.
//
// The daemon's ends believe nothing: they work from their own copies of sizes, offsets and indices,
// load each shared word once, and copy a work request before they check it. The client's ends check
// what the daemon writes as well.
//
// Rings take plain slices, so tests run them on the Go heap under the race detector. Posting,
// polling and pushing do not allocate.
//
// # Waking
//
// Whoever posts sets a bit of the session page's bells, always, and writes to the doorbell only if
// the daemon sleeps. A completion queue raises one event when it has been armed. Four places store
// a word and then load another, and neither side may miss the other's store: SessionPage.Sleep,
// RecvConsumer.Starve, CQProducer.Push and RecvProducer.Commit. sync/atomic is sequentially
// consistent by its promise, so a Store would do. But the race detector's Store is a release only,
// which lets the load overtake it when the word is in mapped memory: a binary built with -race lost
// wake-ups. So these four Swap, which is a full fence in every build, and on amd64 what a Store
// compiles to. Package search walks through every interleaving of these steps.
package ring
