package tcp

import (
	"unsafe"

	"github.com/vrnic/vrnic/internal/prefetch"
)

// prefetchAll asks the caches for what handling a segment needs of c, and its user for what comes
// then.
func (c *Conn) prefetchAll() {
	prefetch.Read(unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c)))
	c.memory.Prefetch()
	if f := c.userPrefetch.Load(); f != nil {
		(*f)()
	}
}

// SetPrefetch sets a function that asks the caches for what c's user needs when there is more to
// read. Any goroutine calls it, with any lock held.
func (c *Conn) SetPrefetch(f func()) { c.userPrefetch.Store(&f) }

// Prefetch asks the caches for what WriteFrom is going to need, and the other end, too, if it is in
// this process.
func (c *Conn) Prefetch() {
	c.prefetchAll()
	if p := c.peer.Load(); p != nil {
		p.prefetchAll()
	}
}
