package port

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/vrnic/vrnic/netstack/frame"
)

// tunOffloads have the kernel leave it to the TUN to cut segments of TCP, of which it gives up to
// 64 KiB at a time then, and to fill their checksums in.
const tunOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6

// A tunReader reads packets of a TUN with IFF_VNET_HDR, and cuts them. It belongs to who reads.
type tunReader struct {
	raw  syscall.RawConn
	read func(fd uintptr) bool // readv of iovs

	head [frame.VirtioHeaderLen]byte
	iovs [2][]byte
	n    int
	err  error

	super   []byte // the packet, as long as it can be
	segment segmentCutter
}

func newTUNReader(f *os.File) (*tunReader, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &tunReader{raw: raw, super: make([]byte, 65535)}
	r.iovs = [2][]byte{r.head[:], r.super}
	r.read = func(fd uintptr) bool {
		r.n, r.err = unix.Readv(int(fd), r.iovs[:])
		return !errors.Is(r.err, unix.EAGAIN)
	}
	return r, nil
}

// next reads the next packet into b.
func (r *tunReader) next(b []byte) (int, error) {
	for !r.segment.more() {
		if err := r.raw.Read(r.read); err != nil {
			return 0, err
		}
		if errors.Is(r.err, unix.EINTR) {
			continue
		}
		if r.err != nil {
			return 0, r.err
		}
		if r.n <= len(r.head) {
			return 0, fmt.Errorf("a packet of %d octets", r.n)
		}
		packet := r.super[:r.n-len(r.head)]
		off, err := frame.ParseVirtio(r.head[:])
		if err != nil {
			return 0, err
		}
		if off.GSO == frame.GSONone {
			if off.Csum == frame.CsumPartial {
				finishSum(packet, int(off.CsumStart), int(off.CsumOffset))
			}
			return copy(b, packet), nil
		}
		r.segment.start(packet, &off) // one that makes no sense is dropped
	}
	return r.segment.next(b), nil
}

// finishSum completes a checksum that covers the pseudo header.
func finishSum(packet []byte, start, offset int) {
	if start+offset+2 > len(packet) {
		return
	}
	sum := ^checksum.Checksum(packet[start:], 0)
	if sum == 0 {
		sum = 0xffff // of UDP 0 is none (RFC 768), and of all others the same
	}
	binary.BigEndian.PutUint16(packet[start+offset:], sum)
}

// A segmentCutter makes the segments of a super-segment of TCP.
type segmentCutter struct {
	packet  []byte
	tcp     int // where its header begins
	headers int // the length of all headers
	size    int // of the payload of each segment but the last
	at      int // octets of payload that are cut
	number  uint16
}

const (
	tcpFin, tcpPsh, tcpCwr = 0x01, 0x08, 0x80
	tcpFlags, tcpSum       = 13, 16 // offsets
)

// start takes a packet, if it is what the kernel says it is.
func (c *segmentCutter) start(packet []byte, off *frame.Offload) {
	tcp := int(off.CsumStart)
	least := frame.IPv4MinLen
	if off.GSO == frame.GSOTCPv6 {
		least = frame.IPv6Len
	}
	if off.Csum != frame.CsumPartial || off.GSO == frame.GSOUDP || off.GSOSize == 0 || tcp < least ||
		tcp+frame.TCPMinLen > len(packet) {
		return
	}
	headers := tcp + int(packet[tcp+12]>>4)*4
	if headers < tcp+frame.TCPMinLen || headers >= len(packet) {
		return
	}
	*c = segmentCutter{packet: packet, tcp: tcp, headers: headers, size: int(off.GSOSize)}
}

// more reports whether there are segments left.
func (c *segmentCutter) more() bool { return c.headers+c.at < len(c.packet) }

// next writes the next segment into b, which has room for it.
func (c *segmentCutter) next(b []byte) int {
	payload := c.packet[c.headers+c.at:]
	last := len(payload) <= c.size
	payload = payload[:min(c.size, len(payload))]
	if c.headers+len(payload) > len(b) {
		c.at = len(c.packet)
		return 0
	}
	n := copy(b, c.packet[:c.headers])
	n += copy(b[n:], payload)
	b = b[:n]
	if b[0]>>4 == 4 {
		binary.BigEndian.PutUint16(b[2:], uint16(n))
		binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+c.number)
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^checksum.Checksum(b[:int(b[0]&15)*4], 0))
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(n-frame.IPv6Len))
	}
	t := b[c.tcp:]
	binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(c.at))
	if !last {
		t[tcpFlags] &^= tcpFin | tcpPsh
	}
	if c.at > 0 {
		t[tcpFlags] &^= tcpCwr
	}
	// The kernel's sum is that of the pseudo header with the length of all segments together.
	whole, part := uint16(len(c.packet)-c.tcp), uint16(n-c.tcp)
	sum := checksum.Combine(binary.BigEndian.Uint16(t[tcpSum:]), checksum.Combine(^whole, part))
	binary.BigEndian.PutUint16(t[tcpSum:], sum)
	finishSum(b, c.tcp, tcpSum)
	c.at += len(payload)
	c.number++
	return n
}

// A tunWriter writes a packet behind a header that says nothing.
type tunWriter struct {
	write func(fd uintptr) bool
	iovs  [2][]byte
	n     int
	err   error
}

var tunWriters = sync.Pool{New: func() any {
	w := &tunWriter{}
	w.iovs[0] = make([]byte, frame.VirtioHeaderLen)
	w.write = func(fd uintptr) bool {
		w.n, w.err = unix.Writev(int(fd), w.iovs[:])
		return !errors.Is(w.err, unix.EAGAIN)
	}
	return w
}}

// writeTUN writes a packet to a TUN with IFF_VNET_HDR.
func writeTUN(raw syscall.RawConn, packet []byte) error {
	w := tunWriters.Get().(*tunWriter)
	defer tunWriters.Put(w)
	w.iovs[1] = packet
	err := raw.Write(w.write)
	w.iovs[1] = nil
	return cmp.Or(err, w.err)
}
