package netstack

import (
	"crypto/rand"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
)

// A MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// RandomMAC returns a locally administered unicast address.
func RandomMAC() MAC {
	var m MAC
	rand.Read(m[:]) // never fails: crypto/rand
	m[0] = m[0]&^1 | 2
	return m
}

func (m MAC) group() bool { return m[0]&1 != 0 }

// GSO says how the TCP segment of a super-frame is to be cut.
type GSO uint8

const (
	GSONone  GSO = iota // an ordinary frame
	GSOTCPv4            // TCP over IPv4
	GSOTCPv6            // TCP over IPv6
)

// CsumState says what is known of a frame's transport checksum.
type CsumState uint8

const (
	CsumUnverified CsumState = iota // it is complete, and nobody has looked at it
	CsumValid                       // it is complete and right
	CsumPartial                     // it covers the pseudo-header only; the rest is to be added
)

// Offload describes a Frame as a virtio-net header does. The zero value is an ordinary frame with
// complete checksums.
type Offload struct {
	GSO        GSO
	Csum       CsumState
	GSOSize    uint16 // octets of TCP payload in each segment; 0 without GSO
	HdrLen     uint16 // octets of all headers together; 0 without GSO
	CsumStart  uint16 // where the sum begins; 0 unless Csum is CsumPartial
	CsumOffset uint16 // where it goes, counted from CsumStart
}

// Sizes of frames, in octets.
const (
	etherHeaderLen = 14
	vlanTagLen     = 4
	// MaxFrameLen is the longest frame or super-frame: the largest IP packet in a tagged frame.
	MaxFrameLen = etherHeaderLen + vlanTagLen + 65535
)

// A Frame is an Ethernet frame without its FCS, or a super-frame. Whoever made it releases it; those
// it is passed to may use it during that call only.
type Frame struct {
	Offload
	buf    buffer.Buffer
	shared bool // several ports are to see it: none may take buf
}

var framePool = sync.Pool{New: func() any { return new(Frame) }}

func newFrame() *Frame { return framePool.Get().(*Frame) }

// NewFrame makes a frame of a copy of octets.
func NewFrame(octets []byte, off Offload) *Frame {
	f := newFrame()
	f.Offload = off
	for len(octets) > 0 {
		n := min(len(octets), buffer.MaxChunkSize)
		f.append(buffer.NewViewWithData(octets[:n]))
		octets = octets[n:]
	}
	return f
}

// append adds v, which f owns from then on.
func (f *Frame) append(v *buffer.View) { _ = f.buf.Append(v) } // fails only on memory it grows itself

// Release gives the frame's memory back.
func (f *Frame) Release() {
	f.buf.Release()
	*f = Frame{}
	framePool.Put(f)
}

// Len is the length of the frame in octets.
func (f *Frame) Len() int { return int(f.buf.Size()) }

// AppendTo appends the octets of the frame to b.
func (f *Frame) AppendTo(b []byte) []byte {
	for v := range f.views() {
		b = append(b, v...)
	}
	return b
}

// views yields the pieces of the frame in order. They may not be written to.
func (f *Frame) views() func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		l := f.buf.AsViewList()
		for v := l.Front(); v != nil; v = v.Next() {
			if !yield(v.AsSlice()) {
				return
			}
		}
	}
}

// take gives f's octets to the caller: f's own if nobody else is to see the frame.
func (f *Frame) take() buffer.Buffer {
	if f.shared {
		return f.buf.Clone()
	}
	b := f.buf
	f.buf = buffer.Buffer{}
	return b
}

// dst and src are the addresses of a frame of at least etherHeaderLen octets.
func (f *Frame) addresses() (dst, src MAC) {
	if v := f.buf.AsViewList(); v.Front().Size() >= 12 {
		b := v.Front().AsSlice()
		return MAC(b[:6]), MAC(b[6:12])
	}
	var b [12]byte
	f.buf.ReadAt(b[:], 0)
	return MAC(b[:6]), MAC(b[6:12])
}
