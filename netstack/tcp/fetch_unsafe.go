package tcp

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/internal/prefetch"
)

// With thousands of connections what a segment needs of its own comes from memory: a hundred lines of the cache, most of them found
// through others. What is asked for together comes together.

// tcpPaths are what gVisor has of a connection and each segment needs: its endpoint, and what hangs on that by pointers of these names.
var tcpPaths = [...][]string{nil, {"snd"}, {"rcv"}, {"route"}, {"waiterQueue"}, {"scoreboard"}, {"scoreboard", "ranges"}}

// A tcpPart is where one of them is found: at the offsets, one pointer after the other. One that this gVisor does not have has len 0.
type tcpPart struct {
	offsets []uintptr
	len     uintptr
}

var tcpPartsOf = func() (parts [len(tcpPaths)]tcpPart) {
	for i, path := range tcpPaths {
		parts[i] = findPart(reflect.TypeFor[tcp.Endpoint](), path)
	}
	return parts
}()

// findPart follows path from a struct of type t.
func findPart(t reflect.Type, path []string) tcpPart {
	var part tcpPart
	for _, name := range path {
		f, ok := t.FieldByName(name)
		if !ok || len(f.Index) != 1 || f.Type.Kind() != reflect.Pointer || f.Type.Elem().Kind() != reflect.Struct {
			return tcpPart{}
		}
		part.offsets = append(part.offsets, f.Offset)
		t = f.Type.Elem()
	}
	part.len = t.Size()
	return part
}

// tcpParts are those of one connection.
type tcpParts [len(tcpPaths)]unsafe.Pointer

// partsOf needs ep locked, and established: they stay from then on.
func partsOf(ep *tcp.Endpoint) (parts tcpParts) {
	for i, part := range tcpPartsOf {
		p := unsafe.Pointer(ep)
		for _, offset := range part.offsets {
			if p = *(*unsafe.Pointer)(unsafe.Add(p, offset)); p == nil {
				break
			}
		}
		parts[i] = p
	}
	return parts
}

// prefetchAll asks the caches for what handling a segment needs of c, and its user for what comes then.
func (c *Conn) prefetchAll() {
	ask(unsafe.Pointer(c), unsafe.Sizeof(*c))
	for i, p := range c.parts {
		if p != nil {
			ask(p, tcpPartsOf[i].len)
		}
	}
	if f := c.userPrefetch.Load(); f != nil {
		(*f)()
	}
}

func ask(p unsafe.Pointer, n uintptr) { prefetch.Read(unsafe.Slice((*byte)(p), n)) }

// SetPrefetch sets a function that asks the caches for what c's user needs when there is more to read. Any goroutine calls it, with any
// lock held.
func (c *Conn) SetPrefetch(f func()) { c.userPrefetch.Store(&f) }

// Prefetch asks the caches for what WriteFrom is going to need, and the other end, too, if it is in this process.
func (c *Conn) Prefetch() {
	c.prefetchAll()
	if p := c.peer.Load(); p != nil {
		p.prefetchAll()
	}
}
