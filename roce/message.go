package roce

import (
	"slices"

	"github.com/vrnic/vrnic/roce/packet"
)

// MaxMessage is how many octets a message may have.
const MaxMessage = 1 << 31

// The path MTUs there are: octets of payload of each packet of a message but the last.
const (
	MinMTU = 256
	MaxMTU = 4096
)

// packets is how many packets a message of n octets takes. Nothing takes one, too.
func packets(n, mtu uint32) uint32 { return max(1, (n+mtu-1)/mtu) }

// psns is how many PSNs r takes: a Read as many as its answer has packets.
func (r *Request) psns(mtu uint32) uint32 {
	if r.Op == CompareSwap || r.Op == FetchAdd {
		return 1
	}
	return packets(r.Length, mtu)
}

// opcodes has those of a message by where its packet stands.
var opcodes = [...]struct{ first, middle, last, only packet.Opcode }{
	Send:     {packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly},
	SendImm:  {packet.SendFirst, packet.SendMiddle, packet.SendLastImm, packet.SendOnlyImm},
	SendInv:  {packet.SendFirst, packet.SendMiddle, packet.SendLastInv, packet.SendOnlyInv},
	Write:    {packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteOnly},
	WriteImm: {packet.WriteFirst, packet.WriteMiddle, packet.WriteLastImm, packet.WriteOnlyImm},
	Read: {packet.ReadResponseFirst, packet.ReadResponseMiddle, packet.ReadResponseLast,
		packet.ReadResponseOnly},
}

// opcodeAt is the opcode of packet i of n.
func opcodeAt(op Op, i, n uint32) packet.Opcode {
	o := &opcodes[op]
	switch {
	case n == 1:
		return o.only
	case i == 0:
		return o.first
	case i == n-1:
		return o.last
	}
	return o.middle
}

// appendPacket adds a packet: h, n octets of p from off on, and the padding that makes them a
// multiple of four. p is nil if n is 0.
func appendPacket(b []byte, h *packet.Header, p Payload, off, n uint32) ([]byte, error) {
	h.Pad = packet.PadOf(int(n))
	b = h.Append(b)
	if n == 0 {
		return b, nil
	}
	from, to := len(b), len(b)+int(n)
	b = slices.Grow(b, int(n)+3)[:to+int(h.Pad)]
	clear(b[to:])
	return b, p.CopyOut(b[from:to], off)
}
