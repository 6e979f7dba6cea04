package frame

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

// IsGroup reports whether frames to m go to several stations.
func (m MAC) IsGroup() bool { return m[0]&1 != 0 }

// GSO says how the payload of a super-frame is to be cut.
type GSO uint8

const (
	GSONone  GSO = iota // an ordinary frame
	GSOTCPv4            // a segment of TCP over IPv4
	GSOTCPv6            // a segment of TCP over IPv6
	GSOUDP              // datagrams of UDP, one behind the other, of which the last may be shorter
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
	GSOSize    uint16 // octets of payload in each segment or datagram; 0 without GSO
	HdrLen     uint16 // octets of all headers together; 0 without GSO
	CsumStart  uint16 // where the sum begins; 0 unless Csum is CsumPartial
	CsumOffset uint16 // where it goes, counted from CsumStart
}

// Sizes of frames, in octets.
const (
	EtherHeaderLen = 14
	vlanTagLen     = 4
	// MaxLen is the longest frame or super-frame: the largest IP packet in a tagged frame.
	MaxLen = EtherHeaderLen + vlanTagLen + 65535
)

// A Frame is an Ethernet frame without its FCS, or a super-frame. Whoever made it releases it;
// those it is passed to may use it during that call only.
type Frame struct {
	Offload
	Buffer buffer.Buffer // the octets
	Shared bool          // several ports are to see it: none may take Buffer
}

var framePool = sync.Pool{New: func() any { return new(Frame) }}

// Empty is a frame without octets: append some.
func Empty() *Frame { return framePool.Get().(*Frame) }

// New makes a frame of a copy of octets.
func New(octets []byte, off Offload) *Frame {
	f := Empty()
	f.Offload = off
	for len(octets) > 0 {
		n := min(len(octets), buffer.MaxChunkSize)
		f.Append(buffer.NewViewWithData(octets[:n]))
		octets = octets[n:]
	}
	return f
}

// Append adds v, which f owns from then on.
// fails only on memory it grows itself
func (f *Frame) Append(v *buffer.View) { _ = f.Buffer.Append(v) }

// Release gives the frame's memory back.
func (f *Frame) Release() {
	f.Buffer.Release()
	*f = Frame{}
	framePool.Put(f)
}

// Len is the length of the frame in octets.
func (f *Frame) Len() int { return int(f.Buffer.Size()) }

// AppendTo appends the octets of the frame to b.
func (f *Frame) AppendTo(b []byte) []byte {
	for v := range f.Views() {
		b = append(b, v...)
	}
	return b
}

// Views yields the pieces of the frame in order. They may not be written to.
func (f *Frame) Views() func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		l := f.Buffer.AsViewList()
		for v := l.Front(); v != nil; v = v.Next() {
			if !yield(v.AsSlice()) {
				return
			}
		}
	}
}

// Take gives f's octets to the caller: f's own if nobody else is to see the frame.
func (f *Frame) Take() buffer.Buffer {
	if f.Shared {
		return f.Buffer.Clone()
	}
	b := f.Buffer
	f.Buffer = buffer.Buffer{}
	return b
}

// Addresses are those of a frame of at least etherHeaderLen octets.
func (f *Frame) Addresses() (dst, src MAC) {
	if v := f.Buffer.AsViewList(); v.Front().Size() >= 12 {
		b := v.Front().AsSlice()
		return MAC(b[:6]), MAC(b[6:12])
	}
	var b [12]byte
	_, _ = f.Buffer.ReadAt(b[:], 0)
	return MAC(b[:6]), MAC(b[6:12])
}
