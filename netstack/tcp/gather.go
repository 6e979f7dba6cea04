package tcp

import (
	"cmp"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// Segments that are brought together are given to gVisor in their order, and those that follow one
// another as one segment, as Linux's GRO does. A segment costs gVisor more than its octets, and one
// that comes before its turn an ACK with SACK blocks, which it makes at once: docs/decisions.md#N5.

// A run is segments that are still to be queued.
type run struct {
	list []part
}

// A part is a segment of a run.
type part struct {
	seq  uint32
	n    int  // octets of payload
	join bool // it may be one with those beside it
	pkt  *stack.PacketBuffer
}

// add appends pkt, which it takes and which is p, with a header of n octets.
func (r *run) add(p *frame.Packet, n int, pkt *stack.PacketBuffer) {
	t := header.TCP(p.Headers[p.L4 : p.L4+n])
	octets := p.End - p.L4 - n
	r.list = append(r.list, part{t.SequenceNumber(), octets,
		octets > 0 && octets <= ethswitch.ShortFrame && plainOptions(t) &&
			t.Flags()&^header.TCPFlagPsh == header.TCPFlagAck, pkt})
}

// full reports whether the run is to be queued before there are more.
func (r *run) full() bool { return len(r.list) >= ethswitch.SettleFrames }

// queueRun queues c's run.
func (c *Conn) queueRun() {
	list := c.run.list
	for len(list) > 0 {
		n := 0
		for n < len(list) && list[n].join {
			n++
		}
		first := list[0].seq
		slices.SortStableFunc(list[:n], func(a, b part) int {
			return cmp.Compare(int32(a.seq-first), int32(b.seq-first))
		})
		n = max(n, 1)
		for i := 0; i < n; {
			head := list[i]
			for i++; i < n && head.precedes(list[i]); i++ {
				b := list[i].pkt.Data().ToBuffer()
				head.pkt.Data().MergeBuffer(&b)
				list[i].pkt.DecRef()
				head.n += list[i].n
			}
			c.queuePacket(head.pkt)
		}
		list = list[n:]
	}
	clear(c.run.list)
	c.run.list = c.run.list[:0]
}

// precedes reports whether b is what follows a, with the same header but for the number.
func (a part) precedes(b part) bool {
	s, t := a.pkt.TransportHeader().Slice(), b.pkt.TransportHeader().Slice()
	const window, sum, options = header.TCPWinSizeOffset, header.TCPChecksumOffset,
		header.TCPMinimumSize
	return a.seq+uint32(a.n) == b.seq && len(s) == len(t) &&
		header.TCP(s).AckNumber() == header.TCP(t).AckNumber() &&
		[2]byte(s[window:sum]) == [2]byte(t[window:sum]) && string(s[options:]) == string(t[options:])
}
