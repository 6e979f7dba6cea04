package gvisor

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/internal/prefetch"
)

// With thousands of connections what a segment needs of its own comes from memory: a hundred lines
// of the cache, most of them found through others. What is asked for together comes together.
// Without this, or where a pointer is not found, handling a segment is slower with many
// connections, and right.
//
// Upstream: transport/tcp/endpoint.go, the fields of Endpoint that endpointPaths names; they stay
// as they are from when the connection is established. TestTCPParts says which are not there.

// endpointPaths are what gVisor has of a connection and each segment needs: its endpoint, and what
// hangs on that by pointers of these names.
var endpointPaths = [...][]string{
	nil, {"snd"}, {"rcv"}, {"route"}, {"waiterQueue"}, {"scoreboard"}, {"scoreboard", "ranges"},
}

// A part is where one of them is found: at the offsets, one pointer after the other. One that this
// gVisor does not have has len 0.
type part struct {
	offsets []uintptr
	len     uintptr
}

var parts = func() (parts [len(endpointPaths)]part) {
	for i, path := range endpointPaths {
		parts[i] = findPart(reflect.TypeFor[tcp.Endpoint](), path)
	}
	return parts
}()

// findPart follows path from a struct of type t.
func findPart(t reflect.Type, path []string) part {
	var found part
	for _, name := range path {
		f, ok := t.FieldByName(name)
		if !ok || len(f.Index) != 1 || f.Type.Kind() != reflect.Pointer ||
			f.Type.Elem().Kind() != reflect.Struct {
			return part{}
		}
		found.offsets = append(found.offsets, f.Offset)
		t = f.Type.Elem()
	}
	found.len = t.Size()
	return found
}

// Memory is where those of one connection lie.
type Memory [len(endpointPaths)]unsafe.Pointer

// MemoryOf needs ep locked, and established.
func MemoryOf(ep *tcp.Endpoint) (m Memory) {
	for i, part := range parts {
		p := unsafe.Pointer(ep)
		for _, offset := range part.offsets {
			if p = *(*unsafe.Pointer)(unsafe.Add(p, offset)); p == nil {
				break
			}
		}
		m[i] = p
	}
	return m
}

// Prefetch asks the caches for it.
func (m *Memory) Prefetch() {
	for i, p := range m {
		if p != nil {
			prefetch.Read(unsafe.Slice((*byte)(p), parts[i].len))
		}
	}
}
