package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/iwarp"
)

// Copies shows what two queue pairs of one device send to each other through memory as the packets
// that it would have been: FPDUs in segments of TCP, whose octets are counted from 0.
type Copies struct {
	mtu  int
	show func(from, to netip.AddrPort, seq, ack uint32, payload []byte)

	mu   sync.Mutex
	sent map[[2]netip.AddrPort]uint32 // octets, by who sends to whom; +checklocks:mu
}

// maxCopies bounds the directions that are counted; behind it all begin at 0 again.
const maxCopies = 1 << 16

// NewCopies are those of a device with that MTU, whose segments of TCP show gets.
func NewCopies(mtu int, show func(from, to netip.AddrPort, seq, ack uint32,
	payload []byte)) *Copies {
	return &Copies{mtu: mtu, show: show, sent: make(map[[2]netip.AddrPort]uint32)}
}

// Segment shows a DDP segment, which may be longer than a packet. Any goroutine may call it.
func (c *Copies) Segment(from, to netip.AddrPort, segment []byte) {
	const ipv4, ipv6, tcp = 20, 40, 20
	room := c.mtu - tcp - ipv4
	if from.Addr().Is6() {
		room -= ipv6 - ipv4
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) >= maxCopies {
		clear(c.sent)
	}
	way, back := [2]netip.AddrPort{from, to}, [2]netip.AddrPort{to, from}
	cutSegment(segment, iwarp.MULPDU(room), func(part []byte) {
		fpdu := iwarp.AppendFPDU(nil, part, false)
		c.show(from, to, c.sent[way], c.sent[back], fpdu)
		c.sent[way] += uint32(len(fpdu))
	})
}

// cutSegment cuts a DDP segment into such of most octets, which it gives to each.
func cutSegment(segment []byte, most int, each func(part []byte)) {
	const last = 0x40 // of the DDP control octet (RFC 5041, section 4)
	header, at := iwarp.UntaggedHeaderLen, 14
	if len(segment) > 0 && iwarp.DDPControl(segment[0]).Tagged() {
		header = iwarp.TaggedHeaderLen
	}
	if len(segment) <= most || len(segment) < header {
		each(segment)
		return
	}
	payload := segment[header:]
	for done := 0; done < len(payload); {
		n := min(most-header, len(payload)-done)
		part := append(slices.Clone(segment[:header]), payload[done:done+n]...)
		if header == iwarp.TaggedHeaderLen {
			to := binary.BigEndian.Uint64(segment[6:])
			binary.BigEndian.PutUint64(part[6:], to+uint64(done))
		} else {
			mo := binary.BigEndian.Uint32(segment[at:])
			binary.BigEndian.PutUint32(part[at:], mo+uint32(done))
		}
		if done += n; done < len(payload) {
			part[0] &^= last
		}
		each(part)
	}
}
