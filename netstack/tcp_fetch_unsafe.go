package netstack

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/internal/prefetch"
)

// With thousands of connections what a segment needs of its own comes from memory: a hundred lines of the cache, most of them found
// through others. What is asked for together comes together.

// tcpParts are what gVisor has of a connection: its endpoint, and what that points to and each segment needs.
type tcpParts [4]struct {
	at  unsafe.Pointer
	len uintptr
}

// partsOf needs ep locked, and established: they stay from then on.
func partsOf(ep *tcp.Endpoint) tcpParts {
	var parts tcpParts
	parts[0].at, parts[0].len = unsafe.Pointer(ep), unsafe.Sizeof(*ep)
	for i, name := range [...]string{"snd", "rcv", "route"} {
		p := reflect.ValueOf(ep).Elem().FieldByName(name)
		parts[i+1].at, parts[i+1].len = p.UnsafePointer(), p.Type().Elem().Size()
	}
	return parts
}

// fetch asks the caches for what handling a segment needs of c, and its user for what comes then.
func (c *TCPConn) fetch() {
	ask(unsafe.Pointer(c), unsafe.Sizeof(*c))
	for _, p := range c.parts {
		ask(p.at, p.len)
	}
	if f := c.fetches.Load(); f != nil {
		(*f)()
	}
}

func ask(p unsafe.Pointer, n uintptr) { prefetch.Read(unsafe.Slice((*byte)(p), n)) }

// SetPrefetch sets a function that asks the caches for what c's user needs when there is more to read. Any goroutine calls it, with any
// lock held.
func (c *TCPConn) SetPrefetch(f func()) { c.fetches.Store(&f) }

// Prefetch asks the caches for what WriteFrom is going to need, and the other end, too, if it is in this process.
func (c *TCPConn) Prefetch() {
	c.fetch()
	if p := c.peer.Load(); p != nil {
		p.fetch()
	}
}
