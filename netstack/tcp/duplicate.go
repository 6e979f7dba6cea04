package tcp

import (
	"encoding/binary"
	"slices"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/frame"
)

// A sender that has sent something twice for nothing learns that from nobody but the receiver, by
// the first block of a SACK option (RFC 2883): it takes back what it did about a loss that was
// none, and waits longer the next time. gVisor's receiver does not tell. So the ACK that it sends
// for octets that have come before gets the option here.

// maxDuplicates is how many ranges wait for an ACK to tell of them.
const maxDuplicates = 4

// A span is octets of a stream from start up to end.
type span struct{ start, end uint32 }

func (s span) in(t span) bool { return int32(s.start-t.start) >= 0 && int32(t.end-s.end) >= 0 }

// arrived notes that octets have come: those that had come before are to be told of. That is a
// guess until the ACK is there: addDuplicate tells only of what the ACK says to have come.
func (s *delayedAck) arrived(r span) {
	// What is next, or behind that: the usual case, without the lock.
	switch next := s.next.Load(); {
	case r.start == next:
		s.next.Store(r.end)
		return
	case int32(r.start-next) >= 0 && int32(r.start-s.told.Load()) >= 0:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return
	}
	twice := span{}
	if next := s.next.Load(); int32(r.start-next) < 0 {
		twice = r
		if int32(next-r.end) < 0 {
			twice.end = next
		}
	}
	for _, b := range s.blocks[:s.nblocks] {
		if twice == (span{}) && r.in(b) {
			twice = r
		}
	}
	if twice.start == twice.end {
		return
	}
	s.quick = quickACKs
	if n := len(s.twice); n > 0 && s.twice[n-1].end == twice.start {
		s.twice[n-1].end = twice.end
		return
	}
	if len(s.twice) < maxDuplicates {
		s.twice = append(s.twice, twice)
		s.duplicates.Store(true)
	}
}

// tells notes what an ACK with header t tells the peer. s.mu is held.
func (s *delayedAck) tells(t header.TCP, options bool) {
	told := t.AckNumber()
	if int32(told-s.next.Load()) > 0 || !s.known {
		s.next.Store(told)
	}
	s.setEdge(told, t.WindowSize())
	s.nblocks = 0
	if options {
		s.nblocks = sackBlocks(t, &s.blocks)
		for _, b := range s.blocks[:s.nblocks] {
			if int32(b.end-told) > 0 {
				told = b.end
			}
		}
	}
	s.told.Store(told)
}

// sackBlocks puts the blocks of t's SACK option into bs, and returns how many there are. (gVisor's
// ParseTCPOptions allocates.)
func sackBlocks(t header.TCP, bs *[maxBlocks]span) (n int) {
	for o := t.Options(); len(o) > 0; {
		switch {
		case o[0] == header.TCPOptionEOL:
			return n
		case o[0] == header.TCPOptionNOP:
			o = o[1:]
			continue
		case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return n
		}
		if b := o[2:o[1]]; o[0] == header.TCPOptionSACK {
			for ; len(b) >= 8 && n < len(bs); b = b[8:] {
				bs[n] = span{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
				n++
			}
		}
		o = o[o[1]:]
	}
	return n
}

// addDuplicate puts what came twice into f, the frame of pkt, if that is an ACK and nothing else.
func (s *delayedAck) addDuplicate(pkt *stack.PacketBuffer, f *frame.Frame) {
	t := header.TCP(pkt.TransportHeader().Slice())
	if len(t) < header.TCPMinimumSize || t.Flags() != header.TCPFlagAck || pkt.Data().Size() > 0 {
		return
	}
	s.mu.Lock()
	if len(s.twice) == 0 {
		s.mu.Unlock()
		return
	}
	twice := s.twice[0]
	s.twice = append(s.twice[:0], s.twice[1:]...)
	s.duplicates.Store(len(s.twice) > 0)
	s.mu.Unlock()
	if !acknowledges(t, twice) {
		return
	}

	var room [frame.EtherHeaderLen + frame.IPv6Len + header.TCPHeaderMaximumSize]byte
	l4 := frame.EtherHeaderLen + len(pkt.NetworkHeader().Slice())
	if l4+header.TCPHeaderMaximumSize > len(room) || f.Len() > l4+len(t) {
		return
	}
	was, _ := f.Buffer.ReadAt(room[:min(f.Len(), len(room))], 0)
	if was != l4+len(t) {
		return
	}
	n := header.TCPMinimumSize + withDuplicate(room[l4+header.TCPMinimumSize:], t, twice)
	b := room[:l4+n]
	more := n - len(t)
	tcp := header.TCP(b[l4:])
	tcp.SetDataOffset(uint8(n))
	ip := b[frame.EtherHeaderLen:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+uint16(more))
		h := header.IPv4(ip[:l4-frame.EtherHeaderLen])
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
	} else {
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(more))
	}
	if f.Csum == frame.CsumPartial { // what is there is the sum of the pseudo-header, with the length
		tcp.SetChecksum(checksum.Combine(tcp.Checksum(), uint16(more)))
	} else {
		tcp.SetChecksum(0)
		sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, pkt.EgressRoute.LocalAddress,
			pkt.EgressRoute.RemoteAddress, uint16(n))
		tcp.SetChecksum(^tcp.CalculateChecksum(sum))
	}
	f.Buffer.Release()
	f.Buffer = buffer.MakeWithData(b)
}

// acknowledges reports whether an ACK says that the octets r have come.
func acknowledges(t header.TCP, r span) bool {
	if int32(t.AckNumber()-r.end) >= 0 {
		return true
	}
	var bs [maxBlocks]span
	return slices.ContainsFunc(bs[:sackBlocks(t, &bs)], r.in)
}

// withDuplicate writes the options of t to o, with twice as the first SACK block, and returns their
// length.
func withDuplicate(o []byte, t header.TCP, twice span) (n int) {
	var opts header.TCPOptions
	if len(t) > header.TCPMinimumSize {
		opts = header.ParseTCPOptions(t.Options())
	}
	if opts.TS {
		n += header.EncodeNOP(o[n:])
		n += header.EncodeNOP(o[n:])
		n += header.EncodeTSOption(opts.TSVal, opts.TSEcr, o[n:])
	}
	blocks := []header.SACKBlock{{Start: seqnum.Value(twice.start), End: seqnum.Value(twice.end)}}
	most := (header.TCPOptionsMaximumSize - n - 4) / 8
	blocks = append(blocks, opts.SACKBlocks...)
	n += header.EncodeNOP(o[n:])
	n += header.EncodeNOP(o[n:])
	return n + header.EncodeSACKBlocks(blocks[:min(len(blocks), most)], o[n:])
}
