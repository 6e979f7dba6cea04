// Package hosttcp has connections on the kernel's TCP that never block, as package tcp has them on
// gVisor's: for who uses an address that the host has.
//
//	h := hosttcp.New(hosttcp.Config{Addr: addr})
//	conn, err := h.Dial(ctx, remote)
//	conn.SetNotify(wake)
//
// A connection has a goroutine, its watcher, which waits in Go's poller. It reads what has come
// when nothing was there before, and tells who owns the connection, who takes that and goes on
// reading by himself until nothing is left. So a message that is awaited is read by whoever looks
// for it, without a wake-up, and of a stream that is read in one go nobody is told.
//
// What the kernel does not take at once it is given by another goroutine when it has room.
package hosttcp
