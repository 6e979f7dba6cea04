// Package shm is the client of a vrnic daemon: Dial opens a session, Client.Open a device, and a
// Device is an rdma.Device. Work requests, completions and registered memory go through memory that
// is shared with the daemon, everything else through a Unix socket.
//
// The packages below it are for the two ends. From the bottom up: abi has the layout of all that
// two processes share, ring the queues in shared memory, osmem what is asked of the operating
// system, and server the daemon's end. None of them knows RDMA: what lies above the server
// implements the interfaces of its handler.go.
//
// # Waiting
//
// CQ.Poll does not block. CQ.Arm and CQ.Wait sleep on a pipe that the daemon writes one octet to
// for each event; a Device's events and its connections' come the same way. A call that takes a
// context returns when that ends, whatever the daemon does; one that takes none waits until the
// daemon has answered, and Client.Close ends it.
//
// # The end
//
// When the daemon goes, or writes into shared memory what makes no sense, the session is over: see
// Client.Done.
package shm
