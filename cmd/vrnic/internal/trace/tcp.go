package trace

import (
	"bytes"
	"encoding/binary"

	"github.com/vrnic/vrnic/iwarp"
)

// maxLater is how many segments that have overtaken others wait for these.
const maxLater = 64

// A stream finds the FPDUs in what one side of a TCP connection sends (RFC 5044). It is looked at
// from somewhere in the middle: it begins at a segment that begins with an FPDU.
type stream struct {
	synced bool
	next   uint32            // the number of the octet behind buf
	buf    []byte            // of an FPDU that has begun
	later  map[uint32][]byte // by number
}

// add takes a segment of TCP. It calls start with each start frame and ulpdu with each ULPDU that
// are whole then. again says that the octets have come before; lost, that some are missing, and the
// beginning of an FPDU is looked for anew.
func (s *stream) add(seq uint32, b []byte, start func(string), ulpdu func([]byte)) (again,
	lost bool) {
	if len(b) == 0 {
		return false, false
	}
	if !s.synced {
		if !begins(b) {
			return false, false
		}
		*s = stream{synced: true, next: seq}
	}
	if d := int32(seq - s.next); d > 0 {
		if s.later == nil {
			s.later = make(map[uint32][]byte)
		}
		if s.later[seq] = bytes.Clone(b); len(s.later) > maxLater {
			s.synced, lost = false, true
		}
		return false, lost
	} else if d < 0 {
		if int(-d) >= len(b) {
			return true, false
		}
		b = b[-d:]
	}
	for ; b != nil; b = s.following() {
		s.buf, s.next = append(s.buf, b...), s.next+uint32(len(b))
		if !s.frames(start, ulpdu) {
			s.synced = false
			return false, true
		}
	}
	return false, false
}

// following is what waits and is next; nil: nothing.
func (s *stream) following() []byte {
	for seq, b := range s.later {
		if d := int32(s.next - seq); d >= 0 {
			delete(s.later, seq)
			if int(d) < len(b) {
				return b[d:]
			}
		}
	}
	return nil
}

// frames takes what is whole off buf; false: it is no FPDU.
func (s *stream) frames(start func(string), ulpdu func([]byte)) bool {
	for len(s.buf) > 0 {
		n := 0
		if isStart(s.buf) {
			f, size, err := iwarp.ParseStartFrame(s.buf)
			if err != nil {
				return len(s.buf) < maxStart // the rest comes, or the connection ends
			}
			n = size
			start(f.String())
		} else {
			if !begins(s.buf) {
				return false
			}
			if len(s.buf) < headLen {
				return true
			}
			length := int(binary.BigEndian.Uint16(s.buf))
			if n = iwarp.FPDULen(length); len(s.buf) < n {
				return true
			}
			ulpdu(s.buf[headLen : headLen+length])
		}
		s.buf = s.buf[n:]
	}
	s.buf = nil
	return true
}

// headLen is the length of an FPDU's header, the length of its ULPDU.
const headLen = 2

// maxStart is more than a start frame has, with 512 octets of private data.
const maxStart = 1 << 10

// startKey begins both start frames.
var startKey = []byte("MPA ID Re")

func isStart(b []byte) bool { return len(b) >= len(startKey) && bytes.HasPrefix(b, startKey) }

// begins says that b can be the beginning of an FPDU, as far as it goes.
func begins(b []byte) bool {
	if isStart(b) {
		return true
	}
	const ddpReserved, rdmapReserved, ddpVersion, rdmapVersion = 0x3c, 0x30, 1, 1
	switch {
	case len(b) < headLen:
		return true
	case binary.BigEndian.Uint16(b) < iwarp.TaggedHeaderLen:
		return false
	case len(b) < headLen+2:
		return true
	}
	ddp, rdmap := iwarp.DDPControl(b[headLen]), iwarp.RDMAPControl(b[headLen+1])
	return ddp.Version() == ddpVersion && ddp&ddpReserved == 0 && rdmap.Version() == rdmapVersion &&
		rdmap&rdmapReserved == 0 && rdmap.Opcode() <= iwarp.OpAtomicResponse
}
