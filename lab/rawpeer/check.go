package rawpeer

import (
	"fmt"
)

// queueOf says where messages belong: RFC 5040, figure 4; RFC 7306, figure 4. -1: tagged.
var queueOf = [16]int{
	OpWrite: -1, OpReadRequest: 1, OpReadResponse: -1, OpSend: 0, OpSendInv: 0, OpSendSE: 0,
	OpSendSEInv: 0, OpTerminate: 2,
	OpImmediate: 0, OpImmediateSE: 0, OpAtomic: 1, OpAtomicResp: 3, 12: -2, 13: -2, 14: -2, 15: -2,
}

// headerLens are the sizes of messages that are all RDMAP header.
var headerLens = map[byte]int{OpReadRequest: readLen, OpImmediate: 8, OpImmediateSE: 8,
	OpAtomic: 52, OpAtomicResp: 12}

// A Checker holds what a sender sends to what every sender must do, whatever it is about: versions,
// reserved bits, opcodes and queues, sequences, offsets, message boundaries, nothing behind a
// Terminate.
type Checker struct {
	msn        [4]uint32 // of the last message of each queue
	mo         uint32    // of the next segment of the message under way
	tagged     Seg       // the last segment of a tagged message under way
	inTagged   bool
	inUntagged bool
	op         byte
	terminated bool
}

// Check takes the next ULPDU.
func (c *Checker) Check(u []byte) error {
	s, ok := ParseSeg(u)
	if !ok {
		return fmt.Errorf("a segment of %d octets", len(u))
	}
	op := s.Op()
	switch {
	case c.terminated:
		return fmt.Errorf("%s behind a Terminate", opNames[op])
	case s.DDP&3 != 1, s.DDP&0x3c != 0:
		return fmt.Errorf("octet 0 is %#02x: DV or reserved bits", s.DDP)
	case s.RDMAP&0xc0 != version1, s.RDMAP&0x30 != 0:
		return fmt.Errorf("octet 1 is %#02x: RV or reserved bits", s.RDMAP)
	case queueOf[op] == -2:
		return fmt.Errorf("%s, which nobody has defined", opNames[op])
	case (queueOf[op] == -1) != (s.DDP&bitT != 0):
		return fmt.Errorf("%s with T=%d", opNames[op], s.DDP>>7)
	}
	if s.DDP&bitT != 0 {
		return c.checkTagged(s)
	}
	if int(s.QN) != queueOf[op] {
		return fmt.Errorf("%s on QN %d", opNames[op], s.QN)
	}
	if op != OpSendInv && op != OpSendSEInv && s.Inv != 0 {
		return fmt.Errorf("%s with %#08x in the field for an STag", opNames[op], s.Inv)
	}
	if c.inTagged && op != OpTerminate {
		return fmt.Errorf("%s within a tagged message", opNames[op])
	}
	if c.inUntagged && op != OpTerminate && op != c.op {
		return fmt.Errorf("%s within a %s", opNames[op], opNames[c.op])
	}
	if !c.inUntagged || op == OpTerminate {
		c.msn[s.QN]++
		c.inUntagged, c.op, c.mo = true, op, 0
	}
	if s.MSN != c.msn[s.QN] {
		return fmt.Errorf("%s with MSN %d, want %d", opNames[op], s.MSN, c.msn[s.QN])
	}
	if s.MO != c.mo {
		return fmt.Errorf("%s with MO %d, want %d", opNames[op], s.MO, c.mo)
	}
	c.mo += uint32(len(s.Body))
	if n, ok := headerLens[op]; ok && (!s.Last() || len(s.Body) != n) {
		return fmt.Errorf("%s of %d octets with L=%t, want %d in one segment", opNames[op], len(s.Body),
			s.Last(), n)
	}
	if op == OpTerminate {
		c.terminated = true
		return checkTerminate(s)
	}
	c.inUntagged = !s.Last()
	return nil
}

func (c *Checker) checkTagged(s Seg) error {
	op := s.Op()
	if c.inUntagged {
		return fmt.Errorf("%s within a %s", opNames[op], opNames[c.op])
	}
	if t := c.tagged; c.inTagged {
		if want := t.TO + uint64(len(t.Body)); op != t.Op() || s.STag != t.STag || s.TO != want {
			return fmt.Errorf("%s with STag %#x, TO %#x within a %s, want STag %#x, TO %#x", opNames[op],
				s.STag, s.TO, opNames[t.Op()], t.STag, want)
		}
		if len(s.Body) == 0 {
			return fmt.Errorf("%s goes on with nothing", opNames[op])
		}
	}
	c.tagged, c.inTagged = s, !s.Last()
	return nil
}

// checkTerminate wants the form of RFC 5040, section 4.8.
func checkTerminate(s Seg) error {
	b := s.Body
	if len(b) < 4 || !s.Last() || s.MO != 0 || s.MSN != 1 {
		return fmt.Errorf("a Terminate with %d octets, MSN %d, MO %d, L=%t", len(b), s.MSN, s.MO,
			s.Last())
	}
	if b[2]&0x1f != 0 || b[3] != 0 {
		return fmt.Errorf("reserved bits in a Terminate: % x", b[:4])
	}
	want := 4
	if c := Copies(b[2]); c != Bare {
		if c != WithDDP && c != WithRead || len(b) < 7 {
			return fmt.Errorf("a Terminate with M, D, R %#02x and %d octets", b[2], len(b))
		}
		want += 2 + untaggedLen
		if b[6]&bitT != 0 {
			want += taggedLen - untaggedLen
		}
		if c == WithRead {
			want += readLen
		}
	}
	if len(b) != want {
		return fmt.Errorf("a Terminate with M, D, R %#02x has %d octets, want %d", b[2], len(b), want)
	}
	return nil
}
