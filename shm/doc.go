// Package shm lends an RNIC to other processes: work requests, completions and registered memory
// go through shared memory, everything else through a Unix socket.
//
// It holds the ABI (layout.go, control*.go), the rings of both sides (ring*.go), the server
// (Listen) that a daemon puts in front of its devices, and the client (Dial). It knows no RDMA:
// what lies above the server implements the interfaces of handler.go.
//
// # Trust
//
// The daemon believes nothing that a client writes or sends. It works from its own copies of
// sizes, offsets and indices, loads each shared word once, copies a work request before it checks
// it, and looks handles up in the session's own tables. An impossible value is a violation: a
// *ProtocolError, which ends that session as if the program had died. An honest mistake gets an
// error reply or an error completion.
//
// # Waking
//
// Whoever posts sets a bit of the session page's bells, always, and writes to the doorbell
// eventfd only if the daemon sleeps. A completion queue raises one event when it has been armed.
// Each store that the other side must see before a load comes with a sequentially consistent
// atomic operation, which is what sync/atomic gives. search_test.go walks through every
// interleaving of these steps.
//
// # Ownership
//
// Memory that is shared belongs to a Region, which counts references and is unmapped at zero,
// never by a finalizer: the garbage collector does not know mappings. Rings take plain slices, so
// tests run them on the Go heap under the race detector.
package shm
