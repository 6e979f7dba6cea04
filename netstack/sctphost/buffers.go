package sctphost

import (
	"io"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
)

// A packetRef counts who uses a received packet: whoever brought it, and the messages that lie in
// it.
type packetRef struct {
	n    atomic.Int32
	buf  buffer.Buffer
	view *buffer.View // of a carrier that has no Buffer
}

var packetRefs = sync.Pool{New: func() any { return new(packetRef) }}

// newPacketRef is the caller's until it calls Release.
func newPacketRef() *packetRef {
	r := packetRefs.Get().(*packetRef)
	r.n.Store(1)
	return r
}

// Hold implements sctp.Ref.
func (r *packetRef) Hold() { r.n.Add(1) }

// Release implements sctp.Ref.
func (r *packetRef) Release() {
	if r.n.Add(-1) > 0 {
		return
	}
	r.buf.Release()
	if r.view != nil {
		r.view.Release()
		r.view = nil
	}
	packetRefs.Put(r)
}

// A gathered is a message that has been read from its source, before the lock is taken: a source
// may be memory that hangs.
type gathered struct{ b, left []byte }

var gatheredPool = sync.Pool{New: func() any { return new(gathered) }}

// gather reads all of src. It is given back with put.
func gather(src interface {
	io.Reader
	Len() int
}) (*gathered, error) {
	g := gatheredPool.Get().(*gathered)
	n := src.Len()
	if cap(g.b) < n {
		g.b = make([]byte, n)
	}
	g.b = g.b[:n]
	g.left = g.b
	if _, err := io.ReadFull(src, g.b); err != nil {
		g.put()
		return nil, err
	}
	return g, nil
}

func (g *gathered) put() { gatheredPool.Put(g) }

// Len and Read make it a source.
func (g *gathered) Len() int { return len(g.left) }

func (g *gathered) Read(p []byte) (int, error) {
	n := copy(p, g.left)
	g.left = g.left[n:]
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
